"""Plots as SVG text: colours come from the page's style sheet, so they follow light, dark and print."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

__all__ = ["Plot", "clouds", "few_anchors", "histogram", "kernel", "spectrum", "ticks"]

#: Size of a plot in its own units, small enough that labels stay readable on a telephone.
WIDTH, HEIGHT = 360, 250

_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 10, 14, 38


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Return round numbers within an interval.

    Parameters
    ----------
    low, high : float
    about : int, default=5
        Roughly how many.

    Returns
    -------
    list of float

    Examples
    --------
    >>> ticks(0, 1)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    step = (high - low) / max(about, 1)
    if step <= 0 or not math.isfinite(step):
        return [low]
    size = 10.0 ** math.floor(math.log10(step))
    step = size * next(m for m in (1, 2, 5, 10) if size * m >= step * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(k * step, 12) for k in range(first, last + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """Return powers of ten within an interval, and twice and five times these where there are few."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if math.log10(high / low) < 2.5 else (1,)
    return [step * 10.0**power for power in powers for step in steps if low <= step * 10.0**power <= high]


class Plot:
    """Axes with room for marks.

    Parameters
    ----------
    title : str
        Read aloud by screen readers; the visible title stands in the page.
    x, y : (float, float)
        Ranges of the axes.
    x_label, y_label : str
    log_x : bool, default=False
        Logarithmic horizontal axis, with ticks at ``x_ticks``.
    log_y : bool, default=False
        Logarithmic vertical axis.
    x_ticks : sequence of float, optional
    frame : bool, default=True
        Draw ticks and grid; without, the coordinates have no meaning of their own.
    """

    def __init__(
        self,
        title: str,
        x: tuple[float, float],
        y: tuple[float, float],
        x_label: str = "",
        y_label: str = "",
        *,
        log_x: bool = False,
        log_y: bool = False,
        x_ticks: Sequence[float] | None = None,
        frame: bool = True,
    ) -> None:
        self._log, self._log_y = log_x, log_y
        self._x = tuple(math.log(v) for v in x) if log_x else x
        self._y = tuple(math.log(v) for v in y) if log_y else y
        self._left = _LEFT if frame else 8
        self._bottom = _BOTTOM if frame else 8
        self._parts: list[str] = []
        self._title = title
        if frame:
            self._axes(x, y, x_label, y_label, x_ticks)

    def px(self, value: float) -> float:
        """Return the horizontal place of a value."""
        low, high = self._x
        value = math.log(value) if self._log else value
        return self._left + (value - low) / (high - low) * (WIDTH - self._left - _RIGHT)

    def py(self, value: float) -> float:
        """Return the vertical place of a value."""
        low, high = self._y
        value = math.log(value) if self._log_y else value
        return HEIGHT - self._bottom - (value - low) / (high - low) * (HEIGHT - self._bottom - _TOP)

    def _axes(
        self,
        x: tuple[float, float],
        y: tuple[float, float],
        x_label: str,
        y_label: str,
        x_ticks: Sequence[float] | None,
    ) -> None:
        base = HEIGHT - _BOTTOM
        for value in _log_ticks(*y) if self._log_y else ticks(*y):
            place = self.py(value)
            self._parts.append(f'<path class="grid" d="M{_LEFT} {place:.1f}H{WIDTH - _RIGHT}"/>')
            self.text(_LEFT - 5, place + 3.5, _tick(value), "end")
        for value in x_ticks if x_ticks is not None else ticks(*x):
            self._parts.append(f'<path class="axis" d="M{self.px(value):.1f} {base}v4"/>')
            self.text(self.px(value), base + 15, _tick(value), "middle")
        self._parts.append(f'<path class="axis" d="M{_LEFT} {base}H{WIDTH - _RIGHT}"/>')
        self.text((_LEFT + WIDTH - _RIGHT) / 2, HEIGHT - 5, x_label, "middle", "label")
        if y_label:
            middle = (_TOP + base) / 2
            self._parts.append(
                f'<text class="label" text-anchor="middle" transform="translate(11 {middle:.0f}) rotate(-90)">'
                f"{escape(y_label)}</text>"
            )

    def text(self, x: float, y: float, words: str, anchor: str = "start", kind: str = "tick") -> None:
        """Write words at a place of the drawing."""
        self._parts.append(
            f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'
        )

    def line(self, xs: Sequence[float], ys: Sequence[float], kind: str) -> None:
        """Draw a line through points."""
        points = " ".join(f"{self.px(a):.1f},{self.py(b):.1f}" for a, b in zip(xs, ys, strict=True))
        self._parts.append(f'<polyline class="line {kind}" points="{points}"/>')

    def band(self, xs: Sequence[float], low: Sequence[float], high: Sequence[float], kind: str) -> None:
        """Fill between two lines."""
        there = [f"{self.px(a):.1f},{self.py(b):.1f}" for a, b in zip(xs, high, strict=True)]
        back = [f"{self.px(a):.1f},{self.py(b):.1f}" for a, b in zip(xs, low, strict=True)]
        self._parts.append(f'<polygon class="band {kind}" points="{" ".join(there + back[::-1])}"/>')

    def steps(self, edges: Sequence[float], counts: Sequence[float], kind: str) -> None:
        """Draw a histogram as a filled outline."""
        path = [f"M{self.px(edges[0]):.1f} {self.py(0):.1f}"]
        for k, count in enumerate(counts):
            path.append(f"V{self.py(count):.1f}H{self.px(edges[k + 1]):.1f}")
        path.append(f"V{self.py(0):.1f}Z")
        self._parts.append(f'<path class="area {kind}" d="{"".join(path)}"/>')

    def outline(self, edges: Sequence[float], counts: Sequence[float], kind: str) -> None:
        """Draw a histogram as a line without a filling."""
        path = [f"M{self.px(edges[0]):.1f} {self.py(0):.1f}"]
        for k, count in enumerate(counts):
            path.append(f"V{self.py(count):.1f}H{self.px(edges[k + 1]):.1f}")
        self._parts.append(f'<path class="line {kind}" d="{"".join(path)}V{self.py(0):.1f}"/>')

    def bar(self, x: float, width: float, height: float, kind: str) -> None:
        """Draw a bar from zero around a horizontal place."""
        left, right, zero, top = self.px(x - width / 2), self.px(x + width / 2), self.py(0), self.py(height)
        self._parts.append(f'<path class="bar {kind}" d="M{left:.1f} {zero:.1f}V{top:.1f}H{right:.1f}V{zero:.1f}Z"/>')

    def whisker(self, x: float, low: float, high: float) -> None:
        """Draw an upright line between two values."""
        self._parts.append(f'<path class="whisker" d="M{self.px(x):.1f} {self.py(low):.1f}V{self.py(high):.1f}"/>')

    def dots(self, xs: Sequence[float], ys: Sequence[float], kind: str, radius: float = 2.2) -> None:
        """Draw round marks, as one path so that thousands stay cheap."""
        path = "".join(f"M{self.px(a):.1f} {self.py(b):.1f}h0" for a, b in zip(xs, ys, strict=True))
        self._parts.append(f'<path class="dot {kind}" stroke-width="{2 * radius:g}" d="{path}"/>')

    def triangles(self, xs: Sequence[float], ys: Sequence[float], kind: str, radius: float = 2.6) -> None:
        """Draw triangular marks."""
        path = "".join(
            f"M{self.px(a):.1f} {self.py(b) - radius:.1f}l{radius} {2 * radius}h{-2 * radius}z"
            for a, b in zip(xs, ys, strict=True)
        )
        self._parts.append(f'<path class="mark {kind}" d="{path}"/>')

    def squares(self, xs: Sequence[float], ys: Sequence[float], kind: str, radius: float = 2.2) -> None:
        """Draw square marks."""
        path = "".join(
            f"M{self.px(a) - radius:.1f} {self.py(b) - radius:.1f}h{2 * radius}v{2 * radius}h{-2 * radius}z"
            for a, b in zip(xs, ys, strict=True)
        )
        self._parts.append(f'<path class="mark {kind}" d="{path}"/>')

    def segments(self, starts: Sequence[Any], ends: Sequence[Any], kind: str = "pair") -> None:
        """Join points two by two."""
        path = "".join(
            f"M{self.px(a[0]):.1f} {self.py(a[1]):.1f}L{self.px(b[0]):.1f} {self.py(b[1]):.1f}"
            for a, b in zip(starts, ends, strict=True)
        )
        self._parts.append(f'<path class="{kind}" d="{path}"/>')

    def rule(self, y: float, kind: str) -> None:
        """Draw a horizontal line across."""
        self._parts.append(f'<path class="line {kind}" d="M{self._left} {self.py(y):.1f}H{WIDTH - _RIGHT}"/>')

    def upright(self, x: float, kind: str) -> None:
        """Draw a vertical line from top to bottom."""
        self._parts.append(f'<path class="line {kind}" d="M{self.px(x):.1f} {_TOP}V{HEIGHT - self._bottom}"/>')

    def svg(self) -> str:
        """Return the drawing as an SVG element."""
        return (
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(self._title)}">'
            f"{''.join(self._parts)}</svg>"
        )


def _tick(value: float) -> str:
    text = f"{value:g}"
    return text.replace("-", "−")


def histogram(data: dict[str, Any]) -> str:
    """Draw cosines of pairs before and after the map, and outlines of those of the controls.

    Parameters
    ----------
    data : dict
        ``name``, ``edges``, and for each of ``before``, ``after``, ``constant`` and ``random_rotation`` shares of pairs or None.

    Returns
    -------
    str
    """
    kinds = [kind for kind in ("before", "after", "constant", "random_rotation") if data[kind]]
    top = max(max(data[kind]) for kind in kinds) * 1.08 or 1.0
    edges = data["edges"]
    plot = Plot(f"{data['name']}: cosines of pairs", (edges[0], edges[-1]), (0, top), "cosine", "share of pairs")
    for kind in ("before", "after"):
        if data[kind]:
            plot.steps(edges, data[kind], kind)
    for kind, style in (("constant", "constant"), ("random_rotation", "rotation")):
        if data[kind]:
            plot.outline(edges, data[kind], style)
    return plot.svg()


def spectrum(data: dict[str, Any]) -> str:
    """Draw singular values of the anchors' cross-covariance, as shares of the largest, and the gains.

    Parameters
    ----------
    data : dict
        ``singular_values``, ``gains``.

    Returns
    -------
    str
    """
    values, gains = data["singular_values"], data["gains"]
    top = max(values) or 1.0
    n = len(values)
    plot = Plot(
        "singular values and gains", (1, max(n, 2)), (0, 1.02), "direction, strongest first", "share of the first"
    )
    xs = list(range(1, n + 1))
    plot.band(xs, [0.0] * n, [v / top for v in values], "faint")
    plot.line(xs, [v / top for v in values], "faint")
    plot.line(xs, gains, "ink")
    return plot.svg()


def clouds(data: dict[str, Any], title: str, *, mapped: bool = False) -> str:
    """Draw both models' images and texts in two principal directions, pairs joined by lines.

    Parameters
    ----------
    data : dict
        Lists of points by name: ``source image``, ``source text``, ``target image``, ``target text``.
    title : str
    mapped : bool, default=False
        Whether the source's points were mapped, which is another color.

    Returns
    -------
    str
    """
    points = [point for cloud in data.values() for point in cloud]
    low = [min(p[axis] for p in points) for axis in (0, 1)]
    high = [max(p[axis] for p in points) for axis in (0, 1)]
    # One scale for both directions, or distances would lie.
    span = max((high[0] - low[0]) / (WIDTH - 16), (high[1] - low[1]) / (HEIGHT - 16)) * 1.06 or 1.0
    middle = [(low[axis] + high[axis]) / 2 for axis in (0, 1)]
    x = (middle[0] - span * (WIDTH - 16) / 2, middle[0] + span * (WIDTH - 16) / 2)
    y = (middle[1] - span * (HEIGHT - 16) / 2, middle[1] + span * (HEIGHT - 16) / 2)
    plot = Plot(title, x, y, frame=False)
    for modality in ("image", "text"):
        a, b = data.get(f"source {modality}"), data.get(f"target {modality}")
        if a and b:
            plot.segments(a, b)
    for name, cloud in data.items():
        side, modality = name.split(" ")
        draw = plot.triangles if modality == "text" else plot.dots
        kind = "after" if mapped and side == "source" else side
        draw([p[0] for p in cloud], [p[1] for p in cloud], kind)
    return plot.svg()


def kernel(data: dict[str, Any], matched: str = "after") -> str:
    """Draw image–text similarities in one model against those in the other.

    Parameters
    ----------
    data : dict
        ``matched`` and ``other``: lists of (source similarity, target similarity).
    matched : str, default="after"
        Style of the marks of matched pairs.

    Returns
    -------
    str
    """
    points = [*data["other"], *data["matched"]]
    low, high = min(min(p) for p in points), max(max(p) for p in points)
    room = (high - low) * 0.04 or 0.1
    span = (low - room, high + room)
    plot = Plot("image–text similarities in both models", span, span, "⟨f, g⟩ in the source", "⟨f̃, g̃⟩ in the target")
    plot.line(span, span, "same")
    plot.dots([p[0] for p in data["other"]], [p[1] for p in data["other"]], "faint", 1.3)
    plot.dots([p[0] for p in data["matched"]], [p[1] for p in data["matched"]], matched, 1.8)
    return plot.svg()


def few_anchors(data: dict[str, Any], measures: Sequence[str], title: str) -> str | None:
    """Draw scores against the number of anchors.

    Parameters
    ----------
    data : dict
        ``n`` and ``curves``: list of dict with ``measure``, ``items``, ``kind``, ``mean``, ``low``, ``high``.
    measures : sequence of str
        Which curves to draw.
    title : str

    Returns
    -------
    str or None
        None where there is no such curve.
    """
    n = data["n"]
    curves = [curve for curve in data["curves"] if curve["measure"] in measures]
    if not curves:
        return None
    low = min(0.0, *[min(curve["low"]) for curve in curves])
    shown = n if len(n) < 8 else n[::2]
    plot = Plot(title, (n[0], n[-1]), (low, 1.02), "anchors (logarithmic)", log_x=True, x_ticks=shown)
    for curve in curves:
        kind = {"mapped": "after", "constant": "constant", "random rotation": "rotation"}[curve["kind"]]
        if kind == "after":
            plot.band(n, curve["low"], curve["high"], kind)
        plot.line(n, curve["mean"], kind)
        classified = curve["measure"] == "classified"
        mark = plot.squares if classified else plot.triangles if curve["items"] == "text" else plot.dots
        mark(n, curve["mean"], kind)
    return plot.svg()
