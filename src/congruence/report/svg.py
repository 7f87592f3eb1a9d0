"""Figures as SVG: matplotlib's own text, in which the palette's colors are replaced; fonts are those of the page."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable, Mapping, Sequence
from html import escape, unescape

from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from congruence._utils.display import visible
from congruence.errors import ParameterError
from congruence.plotting.look import COLORS, style

#: Name of each palette color, by its light value, in which figures are drawn.
_NAMES = {light: name for name, (light, _) in COLORS.items()}


def to_svg(figure: Figure, title: str) -> str:
    """Return a figure in the palette's colors as an SVG element whose colors are CSS variables of the page.

    A page can contain any number of figures, since ids differ; equal figures give equal text.
    """
    (width, height), shapes = _shapes(figure, lambda name: f"var(--{name})", {}, {})
    return f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">{shapes}</svg>'


def to_document(
    figure: Figure,
    title: str,
    *,
    description: str = "",
    tips: Mapping[str, Sequence[str]] | None = None,
    pictures: Mapping[str, str] | None = None,
) -> str:
    """Return a figure in the palette's colors as a complete SVG file for light and dark mode.

    ``title`` and ``description`` are for screen readers. ``tips`` has the tooltips of the shapes of an artist, by its
    ``gid``; ``pictures``, the data URI to use for an image, by its ``gid``; other images are written as PNG. Elements
    have the light colors, for programs that ignore style sheets; in a browser, CSS variables override them.
    """
    (width, height), shapes = _shapes(figure, lambda name: COLORS[name][0], tips or {}, pictures or {})
    used = [name for name, (light, _) in COLORS.items() if f'"{light}"' in shapes or name == "paper"]
    light, dark = (";".join(f"--{name}:{COLORS[name][k]}" for name in used) for k in (0, 1))
    rules = "".join(
        f'[{kind}="{COLORS[name][0]}"]{{{kind}:var(--{name})}}' for name in used for kind in ("fill", "stroke")
    )
    sheet = (
        f"svg{{{light};max-width:100%;height:auto;"
        'font-family:system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}'
        f"@media(prefers-color-scheme:dark){{svg{{{dark}}}}}{rules}text{{pointer-events:none}}"
    )
    desc = f"<desc>{escape(description)}</desc>" if description else ""
    text = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="{"group" if tips else "img"}" aria-label="{escape(title)}"><title>{escape(title)}</title>{desc}'
        f'<style>{sheet}</style><rect width="100%" height="100%" fill="{COLORS["paper"][0]}"/>{shapes}</svg>\n'
    )
    return visible(text, keep="\n\t")  # XML allows no control characters, not even escaped ones


def _shapes(
    figure: Figure, color: Callable[[str], str], tips: Mapping[str, Sequence[str]], pictures: Mapping[str, str]
) -> tuple[tuple[str, str], str]:
    """Return a figure's size and its SVG, with what ``color`` returns for the name of each palette color."""
    file, canvas, face = io.StringIO(), figure.canvas, figure.get_facecolor()
    with style():
        # savefig would draw a figure that has a layout engine twice and discard the first result.
        try:
            figure.set_facecolor("none")
            FigureCanvasSVG(figure).print_svg(file, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
        finally:
            figure.set_canvas(canvas)
            figure.set_facecolor(face)
    text = visible(file.getvalue(), keep="\n\t")
    size = re.search(r'viewBox="0 0 (\S+) (\S+)"', text)
    assert size is not None
    text = text[text.index("</defs>") + 7 : text.rindex("</svg>")]  # matplotlib's style sheet sets the joins of lines

    def replaced(found: re.Match[str]) -> str:
        """Return a style as attributes, without fonts, and with the palette's colors replaced."""
        look = dict(re.findall(r"\s*([\w-]+):\s*([^;]+)", found[1]))
        if font := re.match(r"(?:(\d+|bold)\s+)?([\d.]+px)", look.pop("font", "")):
            look |= {"font-size": font[2]} | ({"font-weight": font[1]} if font[1] else {})
        look.pop("font-family", None)
        for kind in ("fill", "stroke"):
            if (value := look.get(kind, "none")) != "none":
                if value not in _NAMES:
                    raise _foreign(value)
                look[kind] = color(_NAMES[value])
        return "".join(f' {key}="{value.removesuffix("px")}"' for key, value in look.items())

    text = re.sub(r' style="([^"]*)"', replaced, text)
    if re.search(r"<(text|use)(?![^>]*\bfill=)", text):  # matplotlib leaves out black
        raise _foreign("black")
    for gid, notes in tips.items():
        start = text.index(f'<g id="{gid}">')
        stop, left = text.index("</g>", start), iter(notes)
        tip = lambda found: f"<path{found[1]}><title>{escape(next(left))}</title></path>"  # noqa: E731, B023
        text = text[:start] + re.sub(r"<path([^>]*)/>", tip, text[start:stop]) + text[stop:]

    def image(found: re.Match[str]) -> str:
        """Return an image with its own data URI; matplotlib's has its rows from the bottom up, and is flipped."""
        given = dict(re.findall(r'([\w:]+)="([^"]*)"', found[0]))
        if source := pictures.get(unescape(given.get("id", ""))):
            given = {
                **{key: given[key] for key in ("x", "width", "height")},
                "y": str(-float(given["y"])),
                "href": source,
            }
        given.pop("id", None)
        return "<image" + "".join(f' {key}="{value}"' for key, value in given.items()) + "/>"

    text = re.sub(r"<image [^>]*>", image, text.replace("xlink:href", "href"))
    text = re.sub(r' (d|x|y|width|height|transform|href)="([^"]*)"', _short, re.sub(r'<g id="[^"]*"', "<g", text))
    text = re.sub(r"<text(?=[^>]*>(?: |[^<]*  ))", '<text xml:space="preserve"', re.sub(r">\s+<", "><", text))
    own = hashlib.sha256(text.encode()).hexdigest()[:6]
    text = re.sub(r'( id="|href="#|url\(#)', rf"\g<1>g{own}-", text)
    return (size[1], size[2]), f'<g stroke-linejoin="round">{text}</g>'


def _foreign(color: str) -> ParameterError:
    return ParameterError(f"Got the color {color}; expected one of the palette.", "Use congruence.plotting.look.COLOR.")


def _short(found: re.Match[str]) -> str:
    """Return an attribute with coordinates rounded to a tenth of a point, without needless space."""
    key, value = found[1], found[2]
    if key == "href":
        value = value.replace("\n", "")
    else:
        value = re.sub(r"-?\d+\.\d{2,}", lambda number: f"{float(number[0]):.1f}".removesuffix(".0"), value)
    if key == "d":
        value = re.sub(r"\s*([A-Za-z])\s*", r"\1", value)
    return f' {key}="{value}"'
