"""Render plain data as self-contained HTML pages."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup
from matplotlib.axes import Axes

from congruence._utils.atomic import atomic_path
from congruence._utils.display import visible
from congruence.report.pictures import to_svg


def fill(template: str | Template, **data: object) -> str:
    """Return a filled-in template, by name or from elsewhere; all text is escaped."""
    # Plots enter the template as markup, without escaping, so control characters are replaced in the whole page.
    return visible(templates().get_template(template).render(**data), keep="\n\t")


@cache
def templates() -> Environment:
    """Return the environment of all templates; compiling one takes longer than filling it in."""
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


def write_page(path: str | Path, html: str, *, force: bool = False) -> None:
    """Write a rendered page, atomically; only with ``force`` does it replace an existing file."""
    with atomic_path(path, force=force) as temporary:
        temporary.write_text(html, encoding="utf-8")


def svg(draw: Callable[..., Axes], *data: object, title: str, **options: object) -> Markup:
    """Return a plot of ``congruence.plotting`` for a page, without title and legend, which the page has as text."""
    figure = draw(*data, annotate=False, **options).get_figure(root=True)
    assert figure is not None
    return Markup(to_svg(figure, title))


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}".replace("-", "−")
