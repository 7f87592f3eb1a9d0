"""``congruence report``: one self-contained HTML page about a map."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    map_path: Annotated[str, typer.Argument(metavar="MAP", help="Folder of a saved map.")],
    data: Annotated[
        str, typer.Argument(help="Bundle (.parquet) of both models' embeddings, or “sample” for the bundled one.")
    ],
    out: Annotated[str, typer.Option("--out", "-o", help="HTML file to write.")] = "report.html",
    held_out: Annotated[
        bool | None,
        typer.Option("--held-out/--all", help="Only items the map was not fitted on (default, if it knows them)."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Chooses examples and anchors.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the data of the report as JSON.")] = False,
) -> None:
    """Measure a map on both models' embeddings and draw what a person would want to see."""
    from pathlib import Path

    import congruence
    from congruence.cli._base import print_json
    from congruence.datasets import load_sample, read_bundle
    from congruence.errors import OutputExistsError
    from congruence.report import summarize, write_report

    if Path(out).exists() and not force:  # said before the work, not after it
        raise OutputExistsError(
            f"Got an output path that exists, {out}; expected a new one; do pass --force to replace it."
        )
    mapping = congruence.load(map_path)
    bundle = load_sample() if data == "sample" else read_bundle(data)
    summary = summarize(mapping, bundle, held_out=held_out, seed=seed)
    write_report(out, summary, force=force)
    if as_json:
        print_json(summary)
    else:
        print(summary["verdict"]["sentence"])
        print(f"Report: {out}")
