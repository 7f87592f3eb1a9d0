"""Figures in the palette's colors, as SVG with CSS variables and as files; equal figures give equal bytes."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from congruence._utils.atomic import atomic_path
from congruence._utils.display import visible
from congruence.compare.spaces import LayerComparison, Similarities
from congruence.errors import ParameterError
from congruence.plotting import layer_notes
from congruence.plotting.look import COLOR, COLORS, style, words


def to_svg(figure: Figure, title: str) -> str:
    """Return a figure as an SVG element whose colors are CSS variables; equal figures give equal text, and share no
    ids.
    """
    size, shapes = _shapes(figure)
    for name, color in COLOR.items():
        shapes = shapes.replace(f": {color}", f": var(--{name})")
    own = hashlib.sha256(shapes.encode()).hexdigest()[:6]
    shapes = re.sub(r'( id="|href="#|url\(#)', rf"\g<1>g{own}-", shapes)
    return f'<svg viewBox="{size}" role="img" aria-label="{escape(title)}">{shapes}</svg>'


def to_document(
    figure: Figure, title: str, *, description: str = "", tips: Mapping[str, Sequence[str]] | None = None
) -> str:
    """Return a figure as an SVG file for light and dark mode, with the ``tips`` of shapes by their artist's ``gid``."""
    size, shapes = _shapes(figure)
    for gid, notes in (tips or {}).items():
        start = shapes.index(f'<g id="{gid}">')
        first, *others = shapes[start : (stop := shapes.index("</g>", start))].split("/>")
        titles = (f"><title>{escape(note)}</title></path>{rest}" for note, rest in zip(notes, others, strict=True))
        shapes = shapes[:start] + first + "".join(titles) + shapes[stop:]
    used = [name for name, color in COLOR.items() if f": {color}" in shapes or name == "paper"]
    light, dark = (";".join(f"--{name}:{COLORS[name][k]}" for name in used) for k in (0, 1))
    rules = "".join(
        f'[style*="{kind}: {COLOR[name]}"]{{{kind}:var(--{name})!important}}'
        for name in used
        for kind in ("fill", "stroke")
    )
    sheet = (
        f"svg{{{light};max-width:100%;height:auto}}@media(prefers-color-scheme:dark){{svg{{{dark}}}}}{rules}"
        'text{pointer-events:none;white-space:pre;font-family:system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",'
        "sans-serif!important}"
    )
    _, _, width, height = size.split()
    desc = f"<desc>{escape(description)}</desc>" if description else ""
    text = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{size}" width="{width}" height="{height}" '
        f'role="{"group" if tips else "img"}" aria-label="{escape(title)}"><title>{escape(title)}</title>{desc}'
        f'<style>{sheet}</style><rect width="100%" height="100%" style="fill: {COLOR["paper"]}"/>{shapes}</svg>\n'
    )
    return visible(text, keep="\n\t")  # XML allows no control characters, not even escaped ones


def _shapes(figure: Figure) -> tuple[str, str]:
    """Return a figure's view box and its SVG elements; refuse colors that are not of the palette."""
    file, canvas, face = io.StringIO(), figure.canvas, figure.get_facecolor()
    with style():
        # savefig would draw a figure that has a layout engine twice and discard the first result.
        try:
            figure.set_facecolor("none")
            FigureCanvasSVG(figure).print_svg(file)
        finally:
            figure.set_canvas(canvas)
            figure.set_facecolor(face)
    head, _, shapes = visible(file.getvalue(), keep="\n\t").partition("</defs>")  # where matplotlib's style sheet ends
    shapes = shapes.rpartition("</svg>")[0].replace("xlink:href", "href")
    painted = {*re.findall(r'\b(?:fill|stroke): ([^;"]+)', shapes)} - {"none"}
    if re.search(r"<(text|use)(?![^>]*\bfill: )", shapes):  # matplotlib leaves out black
        painted.add("black")
    if foreign := sorted(painted - {*COLOR.values()}):
        problem = f"Got the color {foreign[0]}; expected one of the palette."
        raise ParameterError(problem, "Use congruence.plotting.look.COLOR.")
    return head.partition('viewBox="')[2].partition('"')[0], f'<g stroke-linejoin="round">{shapes}</g>'


#: Metadata to leave out of each format: the program and the date.
_METADATA: dict[str, dict[str, None]] = {
    ".png": {"Software": None},
    ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


def check_suffix(path: str | Path) -> str:
    """Return the suffix of a figure's path, ``.svg`` by default, ``.png`` or ``.pdf``, in lower case; refuse others."""
    suffix = Path(path).suffix.lower() or ".svg"
    if suffix not in (".svg", *_METADATA):
        problem = f"Got a picture named {Path(path).name}; expected one that ends in .svg, .png or .pdf."
        raise ParameterError(problem, "Choose one of these suffixes.")
    return suffix


def write_figure(
    path: str | Path,
    drawn: Axes | Figure,
    title: str,
    *,
    description: str = "",
    tips: Mapping[str, Sequence[str]] | None = None,
    force: bool = False,
) -> None:
    """Write a figure, or that of axes, atomically, in the format of the suffix; the words are for SVG only."""
    suffix = check_suffix(path)
    figure = drawn if isinstance(drawn, Figure) else drawn.get_figure(root=True)
    assert figure is not None
    with atomic_path(path, force=force) as temporary:
        if suffix == ".svg":
            temporary.write_text(to_document(figure, title, description=description, tips=tips), encoding="utf-8")
            return
        with style():
            figure.savefig(temporary, format=suffix[1:], metadata=_METADATA[suffix])


def write_layers(path: str | Path, comparison: LayerComparison, title: str, *, force: bool = False) -> None:
    """Write the heat map of a comparison, below its ``title``; in SVG with a tooltip for each cell."""
    tips = [
        f"{words(name)} and {words(other)}: {comparison.values[i, j]:.3f}, by chance "
        f"{comparison.null_mean[i, j]:.3f} ± {comparison.null_sd[i, j]:.3f}"
        for i, name in enumerate(comparison.x_layers)
        for j, other in enumerate(comparison.y_layers)
    ]
    notes = " ".join(layer_notes(comparison.to_dict()))
    plot = comparison.plot(title=title)
    write_figure(path, plot, words(title), description=notes, tips={"cells": tips}, force=force)


def write_similarities(path: str | Path, similarities: Similarities, title: str, *, force: bool = False) -> None:
    """Write the plot of scores and their null distribution; ``title`` is read by screen readers, in SVG only."""
    scores = "; ".join(
        f"{row.metric} {row.value:.3f} ({row.low:.3f} to {row.high:.3f}), by chance {row.null_mean:.3f} ± "
        f"{row.null_sd:.3f}"
        for row in similarities
    )
    write_figure(path, similarities.plot(), words(title), description=scores, force=force)
