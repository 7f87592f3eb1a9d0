"""The commands that the papers add to ``congruence``: ``reproduce``, ``datasets`` and ``negatives``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer

from congruence.cli import number, print_json, print_table, progress, say, say_error
from congruence.errors import ParameterError

if TYPE_CHECKING:
    from congruence_papers.image_sets import Entry

_FORCE = typer.Option("--force", help="Replace an existing output.")
_JSON = typer.Option("--json", help="Report as JSON.")


# ------------------------------------------------------------------ reproduce


def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(
            help="fig1 … fig56, table1, table2, jam-table2 …, sotalign-table1 …; without it, all are listed."
        ),
    ] = None,
    out: Annotated[str | None, typer.Option("--out", "-o", help="New folder for the numbers and the figure.")] = None,
    changed: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Change a parameter, or the metrics (methods=orthogonal,mlp); may be repeated. --json without "
            "NAME lists them.",
        ),
    ] = None,
    models: Annotated[
        str | None,
        typer.Option(
            help="Embeddings to run on: sample, lvis, caltech101 or clip (jam-… and sotalign-…: synthetic, "
            "imagenet1000 or caltech101; jam-… also sugarcrepe), paper, or names of models joined by / "
            "(openai-b32/laion400m-b32)."
        ),
    ] = None,
    data: Annotated[str | None, typer.Option(help="Data sets, separated by commas; by default the figure's.")] = None,
    file: Annotated[
        str | None,
        typer.Option(
            help="The .npz file of lvis, caltech101, clip or imagenet1000, or its folder; the folder of sugarcrepe; "
            "for models by name, the folder of their embeddings, whose contents the list without NAME shows."
        ),
    ] = None,
    root: Annotated[
        str | None,
        typer.Option(help="Folder of the data sets, for models that embed them; for jam-…, the folder of SugarCrepe."),
    ] = None,
    cache: Annotated[str | None, typer.Option(help="Folder for embeddings; by default ROOT/embeddings.")] = None,
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
    force: Annotated[bool, _FORCE] = False,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Recompute a figure or table of a paper; without a name, list all of them.

    Example: congruence lab reproduce table2 --models sample --quick -o table2
    """
    from congruence.persist import atomic_path
    from congruence_papers.figure import why_no_experiment, write_files
    from congruence_papers.running import find, run

    if name is None:
        _list(as_json)
        return
    paper, experiment = find(name)
    known = {"metrics": [], **paper.parameters(experiment, {})}
    parameters = _parsed(changed or (), known)

    source = {"models": models, "file": file, "root": root, "cache": cache, "seeds": seeds, "quick": quick}
    encoder = {"device": device, "dtype": dtype, "batch_size": batch_size}
    names = [part.strip() for part in data.split(",")] if data else None
    if out is None and (png or pdf or html):
        raise ParameterError("There is no folder for the figure and the page.", "Pass `out=FOLDER`.")
    # The folder is created first: embedding may take hours, and an output that cannot be written is refused at once.
    place = nullcontext() if out is None else atomic_path(out, force=force, directory=True, foreign=why_no_experiment)
    with place as folder:
        outcome = run(name, data=names, parameters=parameters, log=say_error, **source, **encoder)  # type: ignore[arg-type]
        written = [] if folder is None else write_files(folder, outcome, png=png, pdf=pdf, html=html)
    if as_json:
        print_json(outcome.results)
        return
    _print(outcome.results)
    if written:
        say(f"Written to {out}: {', '.join(written)}")


def _parsed(changed: Sequence[str], known: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of --set; a value is JSON, or text, or for a list values separated by commas."""
    parameters = {}
    for entry in changed:
        name, sign, text = (part.strip() for part in entry.partition("="))
        if not (name and sign and text):
            raise ParameterError(f"Got --set {entry}; expected NAME=VALUE.", "Write --set methods=orthogonal,mlp.")
        if isinstance(known.get(name), list) and not text.startswith("["):
            parameters[name] = [_value(part.strip()) for part in text.split(",")]
        else:
            parameters[name] = _value(text)
    return parameters


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _list(as_json: bool) -> None:
    from congruence_papers.running import WHAT_RAN, listing

    rows = listing()
    if as_json:
        print_json(rows)
        return
    print(WHAT_RAN)
    print()
    for row in rows:
        same = row["same_experiment_here"] or [row["name"]]
        if row["name"] != same[0]:
            continue
        print(f"{', '.join(same)}: {row['title']}")
        if row["runs_here"]:
            as_one = f", one experiment for these {len(same)}" if len(same) > 1 else ""
            print(f"    runs here on {', '.join(row['runs_here'])}{as_one}")
        else:
            print(f"    {row['kind']}")
        for own in rows:
            if own["needs_weights"] and own["name"] in same:
                needs = f"weights {', '.join(own['needs_weights'])}; data {', '.join(own['needs_data'])}"
                print(f"    {own['name']:16} §{own['section']:6} the paper's version needs {needs}")
                print(f"{'':28}or --file FOLDER with {', '.join(own['needs_files'])}")
    print("\nWhere weights and data are published:")
    for name, place in sorted({pair for row in rows for pair in row["published_at"].items()}):
        print(f"    {name:16} {place}")


def _print(results: dict[str, Any]) -> None:
    from congruence_papers.figure import note_lines, shown_rows, summary_lines

    columns, rows = shown_rows(results)
    table = []
    for row in rows:
        cells = ["" if row[column] is None else str(row[column]) for column in columns]
        table.append([*cells, number(row["mean"]), "" if row["sd"] is None else number(row["sd"]), str(row["n"])])
    print_table(f"{results['experiment']}: {results['title']}", [*columns, "mean", "sd", "n"], table)
    for line in [*summary_lines(results), *note_lines(results)]:
        say(line)


# ------------------------------------------------------------------ datasets


def datasets(
    name: Annotated[str | None, typer.Argument(help="Name of a data set; all by default.")] = None,
    root: Annotated[str, typer.Option(help="Folder that contains the data sets, each in a subfolder.")] = "data",
    download: Annotated[
        bool, typer.Option("--download", help="Download missing files, verify their checksums, and unpack them.")
    ] = False,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """List the known image data sets, or describe and download one.

    Example: congruence lab datasets
    """
    from congruence_papers.core import check_choice
    from congruence_papers.image_sets import DATASETS, download_dataset

    if name is None:
        if download:
            raise ParameterError("Got --download without a data set.", "Write congruence lab datasets NAME --download.")
        known = [_facts(entry, root) for entry in DATASETS.values()]
        if as_json:
            print_json({"root": root, "datasets": known})
            return
        columns = ["name", "data set", "classes", "templates", "images by split", "download", "found"]
        print_table(f"image data sets, looked for in {root}", columns, list(map(_row, known)))
        return
    entry = DATASETS[check_choice(name, DATASETS, "data set")]
    made: list[str] = []
    if download:
        with progress(f"downloading {name}", sum(r.size or 0 for r in entry.resources), as_json) as callback:
            made = download_dataset(name, root, callback)
    facts = _facts(entry, root)
    if as_json:
        print_json({"root": root, **facts, "made": made})
        return
    print_table(entry.title, ["", ""], [[key, text] for key, text in _description(facts, made) if text])


def _facts(entry: Entry, root: str) -> dict[str, Any]:
    """Describe a data set as plain data."""
    folder = entry.locate(root) if entry.resources else None
    return {
        **{"name": entry.name, "title": entry.title, "classes": entry.classes, "templates": list(entry.templates)},
        **{"splits": dict(entry.splits), "splits_from": entry.splits_from},
        "download": [
            {"url": r.url, "path": r.path, "bytes": r.size, "sha256": r.sha256, "md5": r.md5} for r in entry.resources
        ],
        "bytes": sum(resource.size or 0 for resource in entry.resources),
        "found": None if folder is None else str(folder),
    }


def _row(facts: dict[str, Any]) -> list[str]:
    splits = ", ".join(f"{split} {count:,}" for split, count in facts["splits"].items() if not split[-1].isdigit())
    size = f"{facts['bytes'] / 1e6:,.0f} MB" if facts["bytes"] else ""
    found = facts["found"] or ("no" if facts["download"] else "")
    counts = [str(facts["classes"] or ""), str(len(facts["templates"]))]
    return [facts["name"], facts["title"], *counts, splits or "any", size, found]


def _description(facts: dict[str, Any], written: list[str]) -> list[tuple[str, str]]:
    rows = list(zip(("name", "title", "classes", "templates", "splits", "size", "found"), _row(facts), strict=True))
    if numbered := [split for split in facts["splits"] if split[-1].isdigit()]:
        rows.append(("splits too", f"{numbered[0]} … {numbered[-1]}, {facts['splits'][numbered[0]]:,} each"))
    rows += [("splits by", facts["splits_from"]), ("first template", facts["templates"][0])]
    rows.append(("written", ", ".join(written)))
    for source in facts["download"]:
        checksum = source["sha256"] or source["md5"] or "not published; the checksum of the first download is recorded"
        size = "not published" if source["bytes"] is None else str(source["bytes"])
        rows += [
            ("download", source["url"] or ""),
            ("  to", source["path"]),
            ("  bytes", size),
            ("  checksum", checksum),
        ]
    return rows


# ------------------------------------------------------------------ negatives


def negatives(
    captions: Annotated[
        str, typer.Argument(metavar="IN", help="English captions in a .csv, .jsonl, .parquet or .txt.")
    ],
    out: Annotated[str, typer.Option("--out", "-o", help="File to write: .csv, .jsonl or .parquet.")],
    column: Annotated[str | None, typer.Option(help="Column with the captions.")] = None,
    id_column: Annotated[str | None, typer.Option(help="Column with unique ids.")] = None,
    group_column: Annotated[
        str | None, typer.Option(help="Column that names the item (e.g. an image) that each caption belongs to.")
    ] = None,
    kinds: Annotated[str, typer.Option(help="Kinds of negatives, separated by commas; or all.")] = "all",
    per_caption: Annotated[int, typer.Option(help="Largest number of negatives of each kind per caption.")] = 1,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    force: Annotated[bool, _FORCE] = False,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Create hard negatives of captions: replace a word, swap two words, or add a word.

    Example: congruence lab negatives captions.csv --column caption -o wrong.csv
    """
    from congruence.embed import open_items
    from congruence.io import read_column
    from congruence.persist import check_output
    from congruence_papers.negatives import KINDS, count, generate, write_negatives

    check_output(out, force=force)  # checked before the work starts
    chosen = KINDS if kinds == "all" else tuple(kind.strip() for kind in kinds.split(","))
    items = open_items(captions, modality="text", column=column, id_column=id_column)
    if group_column is not None and captions.lower().endswith(".txt"):
        raise ParameterError(f"{captions} has no columns.", "Leave out `group_column=…`.")
    groups = None if group_column is None else read_column(f"{captions}:{group_column}").tolist()
    texts = [str(items.fetch(row)) for row in range(len(items))]
    found = generate(texts, chosen, per_caption, seed, groups=groups)
    write_negatives(found, out, items.ids.tolist(), force=force)
    counts = count(found, len(texts), chosen)
    if as_json:
        print_json({"captions": len(texts), "negatives": len(found), "kinds": counts, "seed": seed, "output": out})
        return
    print_table(
        f"{len(found)} negatives of {len(texts)} captions, written to {out}",
        ["kind", "negatives", "captions", "without", "share"],
        [
            [kind, str(c["negatives"]), str(c["captions"]), str(c["without"]), number(c["captions"] / len(texts))]
            for kind, c in counts.items()
        ],
    )
