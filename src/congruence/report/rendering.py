"""Render plain data as self-contained HTML pages."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from congruence._utils.atomic import atomic_path
from congruence._utils.display import visible
from congruence.plotting import draw_clouds, draw_cosines, draw_few_anchors, draw_kernel, draw_spectrum
from congruence.plotting.look import HEIGHT, WIDTH
from congruence.report.svg import draw_svg

__all__ = ["fill", "render", "svg", "templates", "write_page", "write_report"]


def render(summary: dict[str, object]) -> str:
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


def fill(template: str, **data: object) -> str:
    """Return a filled-in template; all text is escaped."""
    # Plots enter the template as markup, without escaping, so control characters are replaced in the whole page.
    return visible(templates().get_template(template).render(**data), keep="\n\t")


@cache
def templates() -> Environment:
    """Return the environment of all templates; it is cached, because compiling a template takes longer than filling it in."""
    environment = Environment(
        loader=PackageLoader("congruence.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = _number
    environment.filters["share"] = lambda value: "–" if value is None else f"{value:.1%}"
    return environment


def write_report(path: str | Path, summary: dict[str, Any], *, force: bool = False) -> None:
    """Write a report, atomically.

    Parameters
    ----------
    path : path-like
    summary : dict
        From :func:`congruence.report.summarize`.
    force : bool, default=False
        Replace an existing file.
    """
    write_page(path, render(summary), force=force)


def write_page(path: str | Path, html: str, *, force: bool) -> None:
    """Write a rendered page, atomically."""
    with atomic_path(path, force=force) as temporary:
        temporary.write_text(html, encoding="utf-8")


def _draw(summary: dict[str, Any]) -> dict[str, object]:
    """Draw the plots whose data the summary has; their text is already escaped."""
    few: dict[str, Markup] = {}
    plots: dict[str, object] = {"few_anchors": few, "spectrum": None, "kernel": None, "clouds": None}
    plots["histograms"] = [
        svg(draw_cosines, data, title=f"{data['name']}: cosines of pairs") for data in summary["histograms"]
    ]
    if summary["spectrum"]:
        plots["spectrum"] = svg(draw_spectrum, summary["spectrum"], title="singular values and gains")
    if summary["kernel"]:
        plots["kernel"] = svg(draw_kernel, summary["kernel"], title="image–text similarities in both models")
    curves = summary["few_anchors"]
    for name, measures in (("retrieval", ("classified", "retrieval")), ("cosine", ("cosine",))):
        if curves and any(curve["measure"] in measures for curve in curves["curves"]):
            title = f"{name} by number of anchors"
            few[name] = svg(draw_few_anchors, curves, measures, title=title)
    if clouds := summary["clouds"]:
        plots["clouds"] = {
            when: svg(draw_clouds, clouds[when]["points"], title=f"both models {when} the map", mapped=when == "after")
            for when in ("before", "after")
        }
    return plots


def svg(
    draw: Callable[..., object],
    *data: object,
    title: str,
    size: tuple[float, float] = (WIDTH, HEIGHT),
    **options: object,
) -> Markup:
    """Return a plot of :mod:`congruence.plotting` for a page, without title and legend, which the page has as text."""
    return Markup(draw_svg(lambda ax: draw(*data, ax=ax, annotate=False, **options), title, size))


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}".replace("-", "−")
