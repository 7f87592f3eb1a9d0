"""The HTML page of an experiment: what was run, the paper's claim, the figure, and all numbers."""

from __future__ import annotations

import base64
import json

from congruence.report.rendering import fill
from congruence_papers import claim_lines, data_lines, panels
from congruence_papers.plain import AXES, ExperimentResults
from congruence_papers.summary import note_lines

__all__ = ["render_experiment"]

_LEVELS = {"yes": "passes", "partly": "partial", "no": "fails", "not checked": ""}


def render_experiment(results: ExperimentResults, figure: str) -> str:
    """Return the page of an experiment as self-contained HTML.

    Parameters
    ----------
    results : mapping
        From :func:`congruence_papers.run`.
    figure : str
        The whole figure as an SVG document.

    Returns
    -------
    str
        HTML without scripts and without references to anything outside it. All text is escaped.
    """
    rows = results["rows"]
    shown = [column for column in AXES if any(row[column] is not None for row in rows)]
    panel_titles = {str(panel["title"]) for panel in panels(results)}
    claim, held, *rules = claim_lines(results)
    config = results["config"]
    summary = {
        "title": f"{results['experiment']}: {results['title']}",
        "version": results["versions"]["congruence"],
        "level": _LEVELS[results["held"]["verdict"]],
        "claim": claim,
        "held": held,
        "rules": rules,
        "data": data_lines(results),
        "notes": note_lines(results),
        "facts": [("Section", config["section"]), ("Kind", config["kind"]), ("Run on", results["ran_on"]), ("Quick", "yes" if results["quick"] else "no"), ("Seconds", results["seconds"])],
        "columns": shown,
        "tables": [
            (metric, [row for row in rows if row["metric"] == metric])
            for metric in dict.fromkeys([*config["metrics"], *(row["metric"] for row in rows)])
            if any(row["metric"] == metric for row in rows)
        ],
        "alt": f"Panels: {'; '.join(sorted(panel_titles))}. Every number is in the tables below.",
        "config": json.dumps(config, indent=1, ensure_ascii=False),
        "versions": ", ".join(f"{name} {version}" for name, version in results["versions"].items()),
    }  # fmt: skip
    picture = f"data:image/svg+xml;base64,{base64.b64encode(figure.encode()).decode()}"
    return fill("experiment.html", s=summary, picture=picture)
