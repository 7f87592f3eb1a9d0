"""Draw all panels of an experiment on one figure, with examples and the paper's claim."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping

from matplotlib.figure import Figure
from matplotlib.image import BboxImage
from matplotlib.transforms import Bbox, TransformedBbox
from PIL import Image

from congruence.plotting.data import Panel
from congruence.plotting.look import COLOR, HEIGHT, WIDTH, style, words
from congruence_papers import claim_lines, data_lines, panels
from congruence_papers.drawing import CROWDED, draw_panel
from congruence_papers.plain import Example, ExperimentResults, Item

__all__ = ["draw_experiment"]

#: Margins around a panel's axes, for ticks and labels, and the gap between panels, in points.
_LEFT, _RIGHT, _TOP, _BOTTOM, _GAP = 52, 10, 14, 48, 16

#: Average width of a letter, height of a line of text, and size of a picture, in points.
_LETTER, _LINE, _PICTURE = 5.4, 14, 64


def draw_experiment(results: ExperimentResults, pictures: Mapping[str, bytes] | None = None) -> Figure:
    """Draw a paper's figure: its panels, three per row, then examples, the paper's claim, and the data.

    Parameters
    ----------
    results : mapping
        From :func:`congruence_papers.run`.
    pictures : mapping of str to bytes, optional
        PNG, JPEG or WebP by id. A picture that is missing, of another format or damaged is replaced by its text or id.

    Returns
    -------
    matplotlib.figure.Figure
        Not registered with pyplot.
    """
    shown = panels(results)
    columns = min(3, max(1, len(shown)))
    width = max(columns * (WIDTH + _GAP), 560)
    heading = textwrap.wrap(words(f"{results['experiment']}: {results['title']}", 1000), int(width / 8))
    claim = [
        part
        for line in [*claim_lines(results), *data_lines(results)]
        for part in textwrap.wrap(words(line, 10_000), int(width / _LETTER), subsequent_indent="    ")
    ]
    rows = [shown[first : first + columns] for first in range(0, len(shown), columns)]
    heights = [HEIGHT + 46 + _LINE * max(_legend_lines(panel) for panel in row) for row in rows]
    examples = results["extra"].get("examples", [])
    top = 46 + 16 * len(heading)
    height = top + sum(heights) + sum(map(_example_height, examples)) + _LINE * len(claim) + 6
    with style():
        sheet = _Sheet(width, height)
        for k, line in enumerate(heading):
            sheet.write(8, 20 + 16 * k, line, size=13, weight="bold")
        quick = " (quick run)" if results["quick"] else ""
        sheet.write(
            8, top - 24, f"{len(results['seeds'])} draws{quick}; claim and data are below the panels.", soft=True
        )
        for r, (row, row_height) in enumerate(zip(rows, heights, strict=True)):
            for c, panel in enumerate(row):
                letter = chr(ord("a") + (r * columns + c) % 26)
                sheet.panel(c * (WIDTH + _GAP) + 8, top, panel, letter)
            top += row_height
        for example in examples:
            sheet.example(example, pictures or {}, top)
            top += _example_height(example)
        for k, line in enumerate(claim):
            sheet.write(8, top + _LINE * k, line, soft=True)
        return sheet.figure


def _legend_lines(panel: Panel) -> int:
    """Return the number of lines of a panel's legend."""
    if panel["kind"] == "clouds":
        return len(panel["points"])
    return 2 if panel["kind"] == "kernel" else len(panel["series"])


def _example_height(example: Example) -> int:
    return max(16 + 74 * len(example["rows"]), 80) + _LINE


class _Sheet:
    """A figure with coordinates in points from its upper left corner, as in SVG."""

    def __init__(self, width: float, height: float) -> None:
        self.figure = Figure(figsize=(width / 72, height / 72), dpi=144)
        self._width, self._height = width, height

    def write(
        self, x: float, y: float, text: str, *, size: float = 10.5, soft: bool = False, weight: str = "normal"
    ) -> None:
        position = x / self._width, 1 - y / self._height
        if soft:
            self.figure.text(*position, text, size=9.5, va="baseline", weight=weight, color=COLOR["soft"])
        else:
            self.figure.text(*position, text, size=size, va="baseline", weight=weight)

    def panel(self, left: float, top: float, panel: Panel, letter: str) -> None:
        self.write(left, top, f"({letter}) {words(panel['title'])}")
        framed = panel["kind"] != "clouds"
        margin = _LEFT if framed else 8
        slanted = panel["kind"] == "bars" and len(panel["groups"]) > CROWDED
        bottom = (_BOTTOM + 30 * slanted) if framed else 8
        ax = self.figure.add_axes(
            (
                (left + margin) / self._width,
                1 - (top + 4 + HEIGHT - bottom) / self._height,
                (WIDTH - margin - _RIGHT) / self._width,
                (HEIGHT - bottom - _TOP) / self._height,
            )
        )
        draw_panel(panel, ax, annotate=False)
        handles, labels = ax.get_legend_handles_labels()
        # The legend is positioned on the figure, since the height of the axes varies.
        legend_left, legend_top = left + _LEFT, top + HEIGHT + 10
        ax.legend(
            handles,
            labels,
            loc="upper left",
            bbox_to_anchor=(legend_left / self._width, 1 - legend_top / self._height),
            bbox_transform=self.figure.transFigure,
            labelspacing=0.25,
            **({"handlelength": 0.9, "handleheight": 0.8} if panel["kind"] == "bars" else {}),
        )

    def example(self, example: Example, pictures: Mapping[str, bytes], top: float) -> None:
        """Draw an image, the caption derived from it, and the images retrieved, in rows."""
        self._picture(example["query"], pictures, 8, top)
        self.write(100, top + 8, words(f"{example['read']} → {example['mapped_to']}", 90))
        for r, (name, items) in enumerate(example["rows"].items()):
            y = top + 16 + 74 * r
            self.write(100, y + 34, words(name, 14), soft=True)
            for k, item in enumerate(items):
                self._picture(item, pictures, 180 + 72 * k, y)

    def _picture(self, item: Item, pictures: Mapping[str, bytes], x: float, y: float) -> None:
        decoded = _decode(pictures.get(item["id"]))
        if decoded is None:
            self.write(x, y + 34, words(item["text"] or item["id"], 12), soft=True)
            return
        bounds = Bbox.from_bounds(
            x / self._width, 1 - (y + _PICTURE) / self._height, _PICTURE / self._width, _PICTURE / self._height
        )
        image = BboxImage(TransformedBbox(bounds, self.figure.transFigure), interpolation="none", gid=item["id"])
        image.set_data(decoded)
        self.figure.add_artist(image)


def _decode(picture: bytes | None) -> Image.Image | None:
    """Return a decoded picture; None if it is missing, of another format, or damaged."""
    try:
        return Image.open(io.BytesIO(picture or b""), formats=("PNG", "JPEG", "WEBP")).convert("RGBA")
    except (OSError, ValueError, SyntaxError, EOFError, MemoryError, Image.DecompressionBombError):
        return None
