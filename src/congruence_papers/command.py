"""``congruence reproduce``: recompute a figure or table of a paper on the data at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from congruence_papers import Outcome
    from congruence_papers.plain import ListingEntry

__all__ = ["command"]


def command(
    name: Annotated[
        str | None,
        typer.Argument(help="fig1 … fig56, table1, table2, jam-table2 …, sotalign-table1 …, or your own .yaml."),
    ] = None,
    out: Annotated[str | None, typer.Option("--out", "-o", help="New folder for the numbers and the figure.")] = None,
    models: Annotated[
        str | None,
        typer.Option(
            help="Embeddings to run on: sample, lvis or caltech101 (jam-… and sotalign-…: synthetic, imagenet1000 or caltech101; jam-… also sugarcrepe), "
            "paper, or names of models joined by / (openai-b32/laion400m-b32)."
        ),
    ] = None,
    data: Annotated[str | None, typer.Option(help="Data sets, separated by commas; by default the figure's.")] = None,
    file: Annotated[
        str | None,
        typer.Option(
            help="The .npz file of lvis, caltech101 or imagenet1000, or its folder; the folder of sugarcrepe; for models of jam-… and sotalign-…, the folder of their embeddings."
        ),
    ] = None,
    root: Annotated[
        str | None,
        typer.Option(help="Folder of the data sets, for models given by name; for jam-…, the folder of SugarCrepe."),
    ] = None,
    cache: Annotated[str | None, typer.Option(help="Folder for embeddings; by default ROOT/embeddings.")] = None,
    captions: Annotated[
        str | None,
        typer.Option(
            help="Captions for fig55 and fig56: .csv or .tsv with the columns id and caption, or .json. An id is that of an image or a class."
        ),
    ] = None,
    edits: Annotated[
        list[str] | None,
        typer.Option(
            "--edit",
            help="BEFORE=AFTER: rename a class in the captions (Birman='Russian Blue'); may be repeated.",
        ),
    ] = None,
    evaluation_templates: Annotated[
        str | None,
        typer.Option(help="all: represent a class by the mean over all templates; single: by the first template."),
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="Number of random draws.")] = None,
    device: Annotated[str, typer.Option(help="Device of the encoders.")] = "auto",
    dtype: Annotated[str, typer.Option(help="Data type of the encoders.")] = "auto",
    batch_size: Annotated[int, typer.Option(help="Batch size of the encoders.")] = 64,
    quick: Annotated[
        bool, typer.Option("--quick", help="Use fewer draws and anchors, to check that it works.")
    ] = False,
    png: Annotated[bool, typer.Option("--png", help="Also write the figure as PNG.")] = False,
    pdf: Annotated[bool, typer.Option("--pdf", help="Also write the figure as PDF.")] = False,
    html: Annotated[
        bool, typer.Option("--html", help="Also write report.html, a page with the figure, the claim and the numbers.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the results in an existing folder.")] = False,
    as_list: Annotated[bool, typer.Option("--list", help="List every figure and table, and what each needs.")] = False,
    schema: Annotated[
        bool,
        typer.Option(
            "--schema",
            help="Show the YAML keys of all kinds of experiments, or of the kind of NAME (fig5, few_anchors, mine.yaml); with --json as JSON Schema.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Report as JSON.")] = False,
) -> None:
    """Recompute a figure or table of a paper, and write its numbers and its figure."""
    from congruence.errors import ParameterError

    if as_list or schema:
        _check_alone("--list" if as_list else "--schema", out=out, png=png, pdf=pdf, html=html, force=force)
    if as_list:
        _list(as_json)
        return
    if schema:
        _schema(name, as_json)
        return
    if name is None or out is None:
        raise ParameterError(
            f"Got no {'NAME' if name is None else '--out'}; expected both, for example congruence reproduce fig5 -o fig5. Pass NAME and --out FOLDER, or --list for all names."
        )
    from congruence._utils.atomic import atomic_path
    from congruence.cli._base import print_json, say_error
    from congruence_papers import run
    from congruence_papers.files import why_no_experiment, write_files

    data_sets = [part.strip() for part in data.split(",")] if data else None
    # The folder is created first, because embedding may take hours, and an output that cannot be written is refused at once.
    with atomic_path(out, force=force, directory=True, foreign=why_no_experiment) as folder:
        outcome = run(
            name,
            models=models,
            data=data_sets,
            file=file,
            root=root,
            cache=cache,
            seeds=seeds,
            quick=quick,
            captions=captions,
            edits=_edits(edits),
            evaluation_templates=evaluation_templates,
            device=device,
            dtype=dtype,
            batch_size=batch_size,
            log=say_error,
        )
        write_files(folder, outcome, png=png, pdf=pdf, html=html)
    if as_json:
        print_json(outcome.results)
        return
    figures = [f"figure.{kind}" for kind, wanted in (("svg", True), ("png", png), ("pdf", pdf)) if wanted]
    _print(outcome, out, [*figures, *(["report.html"] if html else [])])


def _check_alone(flag: str, **others: object) -> None:
    """Raise ParameterError for output options together with an option that only prints."""
    from congruence.errors import ParameterError

    for name, value in others.items():
        if value:
            raise ParameterError(
                f"Got {flag} and --{name}; expected {flag} alone, which prints and writes no files. Leave out one of them."
            )


def _edits(entries: list[str] | None) -> dict[str, str] | None:
    """Return the new name of each renamed class. Raises ParameterError for an entry other than BEFORE=AFTER."""
    from congruence.errors import ParameterError

    if not entries:
        return None
    pairs = [entry.partition("=") for entry in entries]
    for before, sign, after in pairs:
        if not (before.strip() and sign and after.strip()):
            raise ParameterError(
                f"Got --edit {before}{sign}{after}; expected BEFORE=AFTER, two class names. Write --edit 'Birman=Russian Blue'."
            )
    return {before.strip(): after.strip() for before, _, after in pairs}


def _list(as_json: bool) -> None:
    from congruence.cli._base import print_json
    from congruence_papers import NOT_RUN, STUDIES, count_experiments, listing

    rows = listing()
    if as_json:
        print_json(rows)
        return
    print(NOT_RUN)
    for line in count_experiments(rows):
        counts = (
            ("figures", line["figures"], line["figure_experiments"]),
            ("tables", line["tables"], line["table_experiments"]),
        )
        parts = [f"{count} {kind} are {experiments} experiments" for kind, count, experiments in counts if count]
        print(f"On stand-in data, {' and '.join(parts)} ({STUDIES[line['paper']].title}).")
    print()
    for row in rows:
        if row["same_experiment_here"] and row["name"] != row["same_experiment_here"][0]:
            continue
        print(f"{', '.join(row['same_experiment_here']) or row['name']}: {row['title']}")
        if row["runs_here"]:
            print(f"    runs here on {', '.join(row['runs_here'])}{_as_one(row)}")
        else:
            print(f"    {row['kind']}")
        for own in rows:
            if own["needs_weights"] and own["name"] in row["same_experiment_here"]:
                needs = f"weights {', '.join(own['needs_weights'])}; data {', '.join(own['needs_data'])}"
                print(f"    {own['name']:16} §{own['section']:6} the paper's version needs {needs}")


def _schema(name: str | None, as_json: bool) -> None:
    from congruence.cli._base import print_json
    from congruence_papers import describe_schema, experiment_schema, kind_named

    kind = None if name is None else kind_named(name)
    if as_json:
        print_json(experiment_schema(kind))
    else:
        print(describe_schema(kind))


def _as_one(row: ListingEntry) -> str:
    count = len(row["same_experiment_here"])
    return f", one experiment for these {count}" if count > 1 else ""


def _print(outcome: Outcome, out: str, files: list[str]) -> None:
    from congruence.cli._base import number, print_table, say
    from congruence_papers import claim_lines, data_lines
    from congruence_papers.plain import COLUMNS
    from congruence_papers.summary import note_lines

    results = outcome.results
    shown = [column for column in COLUMNS if any(row[column] is not None for row in results["rows"])]
    # The configurations list retrieval first. Sorted by metric, each cosine is next to its controls.
    metrics = list(dict.fromkeys([*results["config"]["metrics"], *(row["metric"] for row in results["rows"])]))
    table = []
    for row in sorted(results["rows"], key=lambda row: metrics.index(row["metric"])):
        cells = ["" if row[column] is None else str(row[column]) for column in shown]
        table.append([*cells, number(row["mean"]), "" if row["sd"] is None else number(row["sd"]), str(row["n"])])
    print_table(f"{results['experiment']}: {results['title']}", [*shown, "mean", "sd", "n"], table)
    for line in [*claim_lines(results), *data_lines(results)]:
        say(line)
    for note in note_lines(results):
        say(note)
    say(f"Written to {out}: results.json, results.csv, {', '.join(files)}")
