"""The HTML page of a trained joint-space map."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from congruence.plotting import draw_loss, draw_margins, draw_recalls, draw_validation
from congruence.plotting.training import recalls_size
from congruence.report.rendering import fill, svg, write_page

__all__ = ["render_training", "write_training"]


def render_training(summary: dict[str, Any]) -> str:
    """Return the page of a trained map as self-contained HTML.

    Parameters
    ----------
    summary : dict
        From :func:`congruence.report.summarize_training`.

    Returns
    -------
    str
        HTML without scripts and without references to anything outside it. All text is escaped.
    """
    tasks, validation = summary["by_task"], summary["validation"]
    plots = {
        "tasks": tasks and svg(draw_recalls, tasks, title="recall by task", size=recalls_size(tasks)),
        "margins": [
            svg(draw_margins, data, title=f"{data['name']}: cosine of the caption minus cosine of the wrong one")
            for data in summary["margins"]
        ],
        "curves": [svg(draw_loss, data, title=f"{data['name']} by step") for data in summary["curves"]],
        "validation": validation and svg(draw_validation, validation, title="validation score by step"),
    }
    return fill("training.html", s=summary, plots=plots)


def write_training(path: str | Path, summary: dict[str, object], *, force: bool = False) -> None:
    """Write the page of a trained map, atomically.

    Parameters
    ----------
    path : path-like
    summary : dict
        From :func:`congruence.report.summarize_training`.
    force : bool, default=False
        Replace an existing file.
    """
    write_page(path, render_training(summary), force=force)
