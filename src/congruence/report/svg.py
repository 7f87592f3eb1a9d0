"""Figures as SVG for HTML pages: CSS variables for colors, selectable text, no ids, no external resources."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from itertools import groupby
from typing import NamedTuple
from xml.etree import ElementTree

from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from congruence._utils.display import visible
from congruence.errors import ParameterError
from congruence.plotting.look import COLORS, HEIGHT, WIDTH, new_axes, style

_SVG = "{http://www.w3.org/2000/svg}"
_LINK = "{http://www.w3.org/1999/xlink}href"

#: Name of each palette color, by its light value, in which figures are drawn.
_NAMES = {light: name for name, (light, _) in COLORS.items()}

#: Style properties that are written, with their default values, which are left out.
_KEPT = {
    "fill": None,
    "stroke": "none",
    "opacity": "1",
    "fill-opacity": "1",
    "stroke-opacity": "1",
    "stroke-width": "1",
    "stroke-dasharray": "none",
    "stroke-dashoffset": "0",
    "stroke-linecap": "butt",
    "font-size": None,
    "font-weight": "400",
    "text-anchor": "start",
}


def draw_svg(draw: Callable[[Axes], object], title: str, size: tuple[float, float] = (WIDTH, HEIGHT)) -> str:
    """Return a plot as an SVG element for an HTML page, which is as wide as its container.

    ``draw`` draws on the axes that it is passed; ``title`` is a label for screen readers; ``size`` is in points, which
    are pixels if the plot is shown at its original size.
    """
    with style():
        ax = new_axes(size)
        draw(ax)
        figure = ax.figure
        assert isinstance(figure, Figure)
        return to_svg(figure, title)


def to_svg(figure: Figure, title: str) -> str:
    """Return a figure in the palette's colors as an SVG element whose colors are CSS variables of the page.

    It has no ids, so that a page can contain any number of figures; equal figures give equal text.
    """
    (width, height), parts = _parts(figure, lambda name: f"var(--{name})", {}, {})
    return f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">{parts}</svg>'


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
    (width, height), parts = _parts(figure, lambda name: COLORS[name][0], tips or {}, pictures or {})
    used = [name for name, (light, _) in COLORS.items() if f'"{light}"' in parts or name == "paper"]
    light, dark = (";".join(f"--{name}:{COLORS[name][k]}" for name in used) for k in (0, 1))
    rules = "".join(
        f'[{kind}="{COLORS[name][0]}"]{{{kind}:var(--{name})}}'
        for name in used
        for kind in ("fill", "stroke")
        if f'{kind}="{COLORS[name][0]}"' in parts or (name, kind) == ("paper", "fill")
    )
    sheet = (
        f"svg{{{light};max-width:100%;height:auto;"
        'font-family:system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}'
        f"@media(prefers-color-scheme:dark){{svg{{{dark}}}}}{rules}text{{pointer-events:none}}"
    )
    desc = f"<desc>{escape(description)}</desc>" if description else ""
    text = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="{"group" if tips else "img"}" '
        f'aria-label="{escape(title)}"><title>{escape(title)}</title>{desc}<style>{sheet}</style><rect '
        f'width="100%" height="100%" fill="{COLORS["paper"][0]}"/>{parts}</svg>\n'
    )
    return visible(text, keep="\n\t")  # XML allows no control characters, not even escaped ones


def _parts(
    figure: Figure, color: Callable[[str], str], tips: Mapping[str, Sequence[str]], pictures: Mapping[str, str]
) -> tuple[tuple[str, str], str]:
    """Return a figure's size, and its shapes in drawing order; consecutive paths of the same style are merged."""
    file, canvas, face = io.StringIO(), figure.canvas, figure.get_facecolor()
    with style():
        # savefig would draw a figure that has a layout engine twice and discard the first result; print_svg applies the
        # layout, too.
        try:
            figure.set_facecolor("none")
            FigureCanvasSVG(figure).print_svg(file, metadata={"Date": None, "Creator": None})
        finally:
            figure.set_canvas(canvas)
            figure.set_facecolor(face)
    root = ElementTree.fromstring(visible(file.getvalue(), keep="\n\t"))
    markers = {path.get("id", ""): path for path in root.iter(f"{_SVG}path") if path.get("id")}
    out = []
    for (tag, look, alone), shapes in groupby(
        _shapes(root, markers, tips, pictures), lambda s: (s.tag, s.look, bool(s.tip) or not s.path)
    ):
        attributes = "".join(f' {key}="{escape(value)}"' for key, value in _with_colors(look, color).items())
        for shape in [*shapes] if alone else [_Shape(tag, look, "".join(shape.path for shape in shapes))]:
            path = f' d="{shape.path}"' if shape.path else ""
            inner = f"<title>{escape(shape.tip)}</title>" if shape.tip else escape(shape.text)
            out.append(f"<{tag}{attributes}{path}" + (f">{inner}</{tag}>" if inner else "/>"))
    width, height = (_rounded(float(value)) for value in root.get("viewBox", "0 0 0 0").split()[2:])
    # matplotlib sets line joins in its own style sheet, which is not copied.
    return (width, height), f'<g stroke-linejoin="round">{"".join(out)}</g>'


class _Shape(NamedTuple):
    """A shape: its tag, its style attributes, and its path, text or tooltip."""

    tag: str
    look: dict[str, str]
    path: str = ""
    text: str = ""
    tip: str = ""


def _shapes(
    root: ElementTree.Element,
    markers: Mapping[str, ElementTree.Element],
    tips: Mapping[str, Sequence[str]],
    pictures: Mapping[str, str],
) -> Iterator[_Shape]:
    """Yield the shapes of an SVG document in drawing order."""
    tips_left: Iterator[str] | None = None

    def walk(node: ElementTree.Element) -> Iterator[_Shape]:
        nonlocal tips_left
        if node.tag in (f"{_SVG}defs", f"{_SVG}metadata"):
            return
        outer = tips_left
        if node.get("id") in tips:
            tips_left = iter(tips[node.get("id", "")])
        look = _look(node)
        if node.tag == f"{_SVG}path":
            if look.get("fill") != "none" or "stroke" in look:
                yield _Shape("path", look, _translated(node.get("d", "")), tip=next(tips_left) if tips_left else "")
        elif node.tag == f"{_SVG}use":
            shape = markers[node.get(_LINK, "#")[1:]]
            d, (x, y) = shape.get("d", ""), (float(node.get(key, "0")) for key in ("x", "y"))
            look = _look(shape) | look
            if d.count("C") == 8 and "stroke" not in look:
                # A dot is written as a point with a round line cap, so that one short path can draw thousands of dots
                # of the same style.
                radius = float(d.split()[2])
                pen = {"fill": "none", "stroke": look.get("fill", "#000000"), "stroke-linecap": "round"}
                pen |= {"stroke-width": _rounded(2 * radius)}
                if "fill-opacity" in look:
                    pen["stroke-opacity"] = look["fill-opacity"]
                yield _Shape("path", pen, f"M{_rounded(x)} {_rounded(y)}h0")
            else:
                yield _Shape("path", look, _translated(d, x, y), tip=next(tips_left) if tips_left else "")
        elif node.tag == f"{_SVG}text":
            transforms = dict(re.findall(r"(\w+)\(([^)]*)\)", node.get("transform", "")))
            # matplotlib positions the lines of a multi-line text by transforms, and a single line by attributes.
            x, y = transforms.get("translate", f"{node.get('x', '0')} {node.get('y', '0')}").split()
            position = {"x": _rounded(float(x)), "y": _rounded(float(y))}
            if angle := float(transforms.get("rotate", "0").split()[0]) % 360:
                position["transform"] = f"rotate({_rounded(angle)} {position['x']} {position['y']})"
            if "font-size" in look:
                look["font-size"] = look["font-size"].removesuffix("px")
            if re.search(r"^ |  ", node.text or ""):
                position["xml:space"] = "preserve"
            yield _Shape("text", position | look, text=node.text or "")
        elif node.tag == f"{_SVG}image":
            frame = {key: node.get(key, "0") for key in ("x", "y", "width", "height")}
            if source := pictures.get(node.get("id", "")):
                # matplotlib writes the rows of an image from the bottom up, and flips it by a transform.
                yield _Shape("image", {**frame, "y": _rounded(-float(frame["y"])), "href": source})
            else:
                embedded = {"transform": node.get("transform", ""), "href": node.get(_LINK, "").replace("\n", "")}
                yield _Shape("image", frame | embedded)
        for child in node:
            yield from walk(child)
        tips_left = outer

    yield from walk(root)


def _look(node: ElementTree.Element) -> dict[str, str]:
    """Return the style properties of an element that differ from their defaults."""
    properties = dict(re.findall(r"\s*([\w-]+):\s*([^;]+)", node.get("style", "")))
    if font := re.match(r"(?:(\d+|bold)\s+)?([\d.]+)px", properties.pop("font", "")):
        properties |= {"font-size": font[2], **({"font-weight": font[1]} if font[1] else {})}
    return {key: properties[key] for key in _KEPT if key in properties and properties[key] != _KEPT[key]}


def _with_colors(attributes: Mapping[str, str], color: Callable[[str], str]) -> dict[str, str]:
    """Return attributes with each palette color replaced by what ``color`` returns for its name."""
    out = dict(attributes)
    for kind in ("fill", "stroke"):
        value = out.get(kind, "none" if kind == "stroke" or "href" in out else "#000000")
        if value == "none":
            continue
        if value not in _NAMES:
            raise ParameterError(
                f"Got the color {value} in a figure; expected one of the palette.",
                "Use congruence.plotting.look.COLOR.",
            )
        out[kind] = color(_NAMES[value])
    return out


def _translated(path: str, x: float = 0.0, y: float = 0.0) -> str:
    """Return a path moved by (x, y), with coordinates rounded to a tenth of a point."""
    out = []
    for letter, numbers in re.findall(r"([A-Za-z])([^A-Za-z]*)", path):
        coordinates = [_rounded(float(value) + (y if k % 2 else x)) for k, value in enumerate(numbers.split())]
        out.append(letter + " ".join(coordinates))
    return "".join(out)


def _rounded(value: float) -> str:
    """Return a coordinate as text, rounded to a tenth of a point."""
    text = f"{value:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text
