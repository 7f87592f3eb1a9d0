"""Write the results of an experiment to files: JSON, CSV, and the figure in the paper's layout."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path

from congruence._utils.atomic import atomic_path, why_foreign
from congruence.report.examples import data_uri
from congruence.report.pictures import save_figure
from congruence_papers import Outcome
from congruence_papers.page import render_experiment
from congruence_papers.plain import Row
from congruence_papers.sheet import draw_experiment

__all__ = ["to_csv", "why_no_experiment", "write_experiment", "write_files"]


def write_experiment(
    out: str | Path, outcome: Outcome, *, png: bool = False, pdf: bool = False, html: bool = False, force: bool = False
) -> None:
    """Write ``results.json``, ``results.csv`` and ``figure.svg`` into a folder, atomically.

    Parameters
    ----------
    out : path-like
        A new folder.
    outcome : Outcome
        From :func:`congruence_papers.run`.
    png, pdf : bool, default=False
        Write ``figure.png`` or ``figure.pdf`` as well.
    html : bool, default=False
        Write ``report.html``, a page with figure, claim and numbers, as well.
    force : bool, default=False
        Replace the results of an earlier experiment; other folders are never replaced.

    Raises
    ------
    OutputExistsError, FileError, StorageError
        If the output already exists, its parent folder does not exist, or it cannot be written.
    """
    with atomic_path(out, force=force, directory=True, foreign=why_no_experiment) as folder:
        write_files(folder, outcome, png=png, pdf=pdf, html=html)


def why_no_experiment(folder: Path) -> str | None:
    """Return why a folder must not be replaced; None if it contains the results of an experiment."""
    return why_foreign(
        folder,
        "an experiment's results",
        "results.json",
        lambda results: isinstance(results.get("format"), int) and isinstance(results.get("experiment"), str),
        lambda name: name in ("results.json", "results.csv", "figure.svg", "figure.png", "figure.pdf", "report.html"),
    )


def write_files(folder: Path, outcome: Outcome, *, png: bool = False, pdf: bool = False, html: bool = False) -> None:
    """Write the files into an existing folder; parameters as for :func:`write_experiment`."""
    results = outcome.results
    text = json.dumps(results, indent=1, ensure_ascii=False, allow_nan=False)
    (folder / "results.json").write_text(text + "\n", encoding="utf-8")
    (folder / "results.csv").write_text(to_csv(results["rows"]), encoding="utf-8")
    figure = draw_experiment(results, outcome.pictures)
    title = f"{results['experiment']}: {results['title']}"
    sources = {i: uri for i, picture in outcome.pictures.items() if (uri := data_uri(picture))}
    for kind, wanted in (("svg", True), ("png", png), ("pdf", pdf)):
        if wanted:
            save_figure(folder / f"figure.{kind}", figure, title, pictures=sources)
    if html:
        svg = (folder / "figure.svg").read_text(encoding="utf-8")
        (folder / "report.html").write_text(render_experiment(results, svg), encoding="utf-8")


def to_csv(rows: Sequence[Row]) -> str:
    """Return rows as CSV; the values of the draws are joined by spaces.

    Parameters
    ----------
    rows : sequence of dict

    Returns
    -------
    str
    """
    columns = ["data", "pair", "series", "part", "x", "metric", "quantity", "mean", "sd", "n", "values"]
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({**row, "values": " ".join(repr(value) for value in row["values"])})
    return buffer.getvalue()
