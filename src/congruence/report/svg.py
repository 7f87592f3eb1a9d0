"""Figures as SVG: matplotlib's own text, in which each color of the palette becomes a CSS variable."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Mapping, Sequence
from html import escape

from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from congruence._utils.display import visible
from congruence.errors import ParameterError
from congruence.plotting.look import COLOR, COLORS, style


def to_svg(figure: Figure, title: str) -> str:
    """Return a figure in the palette's colors as an SVG element whose colors are CSS variables of the page.

    A page can contain any number of figures, since ids differ; equal figures give equal text.
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
    """Return a figure in the palette's colors as a complete SVG file for light and dark mode.

    ``title`` and ``description`` are for screen readers. ``tips`` has the tooltips of the shapes of an artist, by its
    ``gid``. Elements have the light colors, for programs that ignore style sheets; in a browser, rules override them.
    """
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
        raise ParameterError(
            f"Got the color {foreign[0]}; expected one of the palette.", "Use congruence.plotting.look.COLOR."
        )
    return head.partition('viewBox="')[2].partition('"')[0], f'<g stroke-linejoin="round">{shapes}</g>'
