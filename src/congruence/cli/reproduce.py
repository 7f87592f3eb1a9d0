"""``congruence reproduce``: a figure or table of the paper, on what is at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from congruence.experiments import Outcome


def command(
    name: Annotated[
        str | None,
        typer.Argument(help="fig1 … fig56, table1, table2, jam-table2 …, sotalign-table1 …, or a .yaml of your own."),
    ] = None,
    out: Annotated[str | None, typer.Option("--out", "-o", help="New folder for numbers and figure.")] = None,
    models: Annotated[
        str | None,
        typer.Option(
            help="sample, lvis, caltech101 (of jam-… and sotalign-…: synthetic, imagenet1000, caltech101; of jam-… sugarcrepe too), "
            "paper, or names joined by / (openai-b32/laion400m-b32)."
        ),
    ] = None,
    data: Annotated[str | None, typer.Option(help="Data sets, joined by commas; by default the figure's.")] = None,
    file: Annotated[
        str | None,
        typer.Option(
            help="The .npz of lvis, caltech101 or imagenet1000, or its folder; of sugarcrepe its folder; of jam-…'s models that of their embeddings."
        ),
    ] = None,
    root: Annotated[
        str | None, typer.Option(help="Folder of the data sets, for models by name; for jam-… that of SugarCrepe.")
    ] = None,
    cache: Annotated[str | None, typer.Option(help="Folder for embeddings; by default ROOT/embeddings.")] = None,
    seeds: Annotated[int | None, typer.Option(help="Number of draws.")] = None,
    device: Annotated[str, typer.Option(help="Of the encoders.")] = "auto",
    dtype: Annotated[str, typer.Option(help="Of the encoders.")] = "auto",
    batch_size: Annotated[int, typer.Option(help="Of the encoders.")] = 64,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer draws and anchors: to see that it works.")] = False,
    png: Annotated[bool, typer.Option("--png", help="Write the figure as PNG too (extra png).")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace OUT.")] = False,
    as_list: Annotated[bool, typer.Option("--list", help="List every figure and table, and what it needs.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Report as JSON.")] = False,
) -> None:
    """Run a figure or table of a paper and write its numbers and its figure."""
    from congruence.errors import ParameterError

    if as_list:
        _list(as_json)
        return
    if name is None or out is None:
        raise ParameterError(
            "Got no figure or no folder for it; expected both (congruence reproduce fig5 -o fig5). Pass NAME and --out FOLDER, or --list for all names."
        )
    from congruence._atomic import atomic_path
    from congruence._extras import require
    from congruence.cli._base import print_json
    from congruence.experiments import ALIGNMENT_STAND_INS, JOINT_STAND_INS, STAND_INS, run
    from congruence.report import write_files

    if png:
        require("resvg_py", extra="png")  # said before the work, not after it
    named = [part.strip() for part in data.split(",")] if data else None
    options: dict[str, Any] = {}
    if models == "sugarcrepe":
        options = {"log": _say}
    elif models not in (None, *STAND_INS, *ALIGNMENT_STAND_INS, *JOINT_STAND_INS):
        options = {"device": device, "dtype": dtype, "batch_size": batch_size, "log": _say}
    # The folder first: embedding may take hours, and an output that cannot be written is known now.
    with atomic_path(out, force=force, directory=True) as folder:
        outcome = run(
            name, models=models, data=named, file=file, root=root, cache=cache, seeds=seeds, quick=quick, **options
        )
        write_files(folder, outcome, png=png)
    if as_json:
        print_json(outcome.results)
        return
    _print(outcome, out, png)


def _say(words: str) -> None:
    import sys

    print(words, file=sys.stderr)


def _list(as_json: bool) -> None:
    from congruence.cli._base import print_json
    from congruence.experiments import listing

    rows = listing()
    if as_json:
        print_json(rows)
        return
    for row in rows:
        state = [f"runs here on {', '.join(row['runs_here'])}"] if row["runs_here"] else [row["kind"]]
        if row["needs_weights"]:
            state.append(f"the paper's needs weights {', '.join(row['needs_weights'])}")
            state.append(f"and data {', '.join(row['needs_data'])}")
        print(f"{row['name']:16} §{row['section']:6} {row['title']}\n{'':24} {'; '.join(state)}")


def _print(outcome: Outcome, out: str, png: bool) -> None:
    from congruence.cli._base import number, print_table

    results = outcome.results
    columns = ["data", "pair", "series", "part", "x", "metric", "quantity"]
    shown = [column for column in columns if any(row[column] is not None for row in results["rows"])]
    table = []
    for row in results["rows"]:
        cells = ["" if row[column] is None else str(row[column]) for column in shown]
        table.append([*cells, number(row["mean"]), "" if row["sd"] is None else number(row["sd"]), str(row["n"])])
    print_table(f"{results['experiment']}: {results['title']}", [*shown, "mean", "sd", "n"], table)
    print(f"Resampled: {results['resampled']}.")
    for note in [*results["notes"], *(note for data in results["data"] for note in data["notes"])]:
        print(note)
    print(f"Written to {out}: results.json, results.csv, figure.svg{', figure.png' if png else ''}")
