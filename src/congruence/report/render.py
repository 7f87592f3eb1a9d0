"""From the plain data of a summary to one HTML file without outside references."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from congruence._atomic import atomic_path
from congruence.report import figures


def render(summary: dict[str, Any]) -> str:
    """Return a report as one self-contained HTML page.

    Parameters
    ----------
    summary : dict
        From :func:`congruence.report.summarize`.

    Returns
    -------
    str
        HTML without scripts and without references to anything outside it. All text is escaped.
    """
    return fill("report.html", s=summary, plots=_draw(summary))


def fill(template: str, **data: Any) -> str:
    """Fill one of the templates; all words are escaped."""
    environment = Environment(
        loader=PackageLoader("congruence.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = _number
    environment.filters["share"] = lambda value: "–" if value is None else f"{value:.1%}"
    return environment.get_template(template).render(**data)


def write_report(path: str | Path, summary: dict[str, Any], *, force: bool = False) -> None:
    """Write a report, atomically.

    Parameters
    ----------
    path : path-like
    summary : dict
        From :func:`congruence.report.summarize`.
    force : bool, default=False
        Replace an existing file.

    Raises
    ------
    OutputExistsError, StorageError
    """
    html = render(summary)
    with atomic_path(path, force=force) as temporary:
        temporary.write_text(html, encoding="utf-8")


def _draw(summary: dict[str, Any]) -> dict[str, Any]:
    """Draw every plot there is data for. What figures return has its words escaped already."""
    plots: dict[str, Any] = {"histograms": [Markup(figures.histogram(data)) for data in summary["histograms"]]}
    for name in ("spectrum", "kernel", "few_anchors"):
        plots[name] = Markup(getattr(figures, name)(summary[name])) if summary[name] else None
    clouds = summary["clouds"]
    plots["clouds"] = clouds and {
        when: Markup(figures.clouds(clouds[when]["points"], f"both models {when} the map"))
        for when in ("before", "after")
    }
    return plots


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}".replace("-", "−")
