"""From the plain data of a summary to one HTML file without outside references."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from congruence._utils.atomic import atomic_path
from congruence._utils.display import visible
from congruence.report import figures

__all__ = ["fill", "render", "write_report"]


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
    # Words in plots are escaped by who draws them, so control characters are taken from the page as a whole.
    return visible(environment.get_template(template).render(**data), keep="\n\t")


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
    spectrum, kernel = summary["spectrum"], summary["kernel"]
    plots["spectrum"] = Markup(figures.spectrum(spectrum)) if spectrum else None
    # Matched pairs are of both models: neither model's color, nor that of mapped rows.
    plots["kernel"] = Markup(figures.kernel(kernel, matched="ink")) if kernel else None
    plots["few_anchors"] = {}
    for name, measures in (("retrieval", ("classified", "retrieval")), ("cosine", ("cosine",))):
        curves = summary["few_anchors"]
        drawing = curves and figures.few_anchors(curves, measures, f"{name} by number of anchors")
        if drawing:
            plots["few_anchors"][name] = Markup(drawing)
    clouds = summary["clouds"]
    plots["clouds"] = clouds and {
        when: Markup(figures.clouds(clouds[when]["points"], f"both models {when} the map", mapped=when == "after"))
        for when in ("before", "after")
    }
    return plots


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}".replace("-", "−")
