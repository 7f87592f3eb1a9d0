"""Panels of a paper's figure: bars by group, and lines with their spread."""

from __future__ import annotations

import textwrap

import numpy as np
from matplotlib.axes import Axes

from congruence.plotting.data import BarsPanel, LinesPanel, Panel
from congruence.plotting.look import COLOR, WIDTH, canvas, explain, tidy, words
from congruence.plotting.maps import draw_clouds, draw_kernel

__all__ = ["CROWDED", "draw_bars", "draw_lines", "draw_panel"]

#: Largest width of a bar; groups are 1 apart.
_WIDEST = 0.3

#: Number of groups above which their names are slanted.
CROWDED = 4

#: Largest number of lines of a group's name, and of letters of a slanted one; and the average width of a letter in points.
_LINES, _SLANTED, _LETTER = 3, 18, 5.6


def draw_panel(panel: Panel, ax: Axes | None = None, *, annotate: bool = True) -> Axes:
    """Draw a panel of a paper's figure.

    Parameters
    ----------
    panel : dict
        One entry of :func:`congruence_papers.drawing`: ``kind`` (``"bars"``, ``"lines"``, ``"clouds"`` or ``"kernel"``), ``title``, and the data of
        this kind.
    ax : matplotlib.axes.Axes, optional
        Axes to draw on; by default those of a new figure, which is not registered with pyplot.
    annotate : bool, default=True
        Add the title and labels that identify what is drawn.

    Returns
    -------
    matplotlib.axes.Axes
    """
    if panel["kind"] == "clouds":
        return draw_clouds(panel["points"], ax, names=panel["names"], title=panel["title"], annotate=annotate)
    if panel["kind"] == "kernel":
        return draw_kernel(panel, ax, color="after", title=panel["title"], annotate=annotate)
    if panel["kind"] == "bars":
        return draw_bars(panel, ax, annotate=annotate)
    return draw_lines(panel, ax, annotate=annotate)


def draw_bars(panel: BarsPanel, ax: Axes | None = None, *, annotate: bool = True) -> Axes:
    """Draw bars side by side for each group, with standard deviations over draws.

    Parameters
    ----------
    panel : dict
        ``title``; ``groups``: names; ``series``: list of dict with ``name``, ``color``, and, with an entry for each bar, ``group`` (its index),
        ``mean`` and ``sd``.
    ax : matplotlib.axes.Axes, optional
        Axes to draw on; by default those of a new figure, which is not registered with pyplot.
    annotate : bool, default=True
        Add the title and labels that identify what is drawn.

    Returns
    -------
    matplotlib.axes.Axes
    """
    with canvas(ax) as ax:
        series, groups = panel["series"], panel["groups"]
        step = min(0.8 / len(series), _WIDEST)
        low, high = 0.0, 1e-9
        for k, bars in enumerate(series):
            positions = [group + step * (k + 0.5 - len(series) / 2) for group in bars["group"]]
            ax.bar(positions, bars["mean"], step * 0.9, color=COLOR[bars["color"]], label=words(bars["name"]))
            spread = [(x, mean, sd) for x, mean, sd in zip(positions, bars["mean"], bars["sd"], strict=True) if sd]
            if spread:
                x, mean, sd = zip(*spread, strict=True)
                ax.errorbar(x, mean, sd, fmt="none", ecolor=COLOR["ink"], elinewidth=1.2)
            low = min(low, *bars["mean"])
            high = max(high, *(mean + (sd or 0.0) for mean, sd in zip(bars["mean"], bars["sd"], strict=True)))
        ax.axhline(0, color=COLOR["soft"], linewidth=1)
        ax.set(xlim=(-0.5, len(groups) - 0.5), ylim=(low * 1.05, high * 1.05))
        tidy(ax)
        ax.spines["bottom"].set_visible(False)
        ax.tick_params(axis="x", length=0, pad=6)
        if len(groups) > CROWDED:
            names = [words(name, _SLANTED) for name in groups]
            ax.set_xticks(range(len(groups)), names, fontsize=9.5, rotation=40, ha="right", rotation_mode="anchor")
        else:
            letters = int((WIDTH - 62) / len(groups) / _LETTER)
            ax.set_xticks(range(len(groups)), [_wrap(name, letters) for name in groups], fontsize=9.5)
        if annotate:
            explain(ax, words(panel["title"]), columns=1)
    return ax


def _wrap(name: str, letters: int) -> str:
    """Return a name in lines of at most so many letters, truncated after three lines."""
    lines = textwrap.wrap(words(name), max(letters, 4))
    return "\n".join(lines if len(lines) <= _LINES else [*lines[: _LINES - 1], f"{lines[_LINES - 1][: letters - 1]}…"])


def draw_lines(panel: LinesPanel, ax: Axes | None = None, *, annotate: bool = True) -> Axes:
    """Draw means along a horizontal axis, with bands of a standard deviation over draws.

    Parameters
    ----------
    panel : dict
        ``title``; ``label`` of the horizontal axis; ``series``: list of dict with ``name``, ``color``, ``x``, ``mean`` and ``sd``.
    ax : matplotlib.axes.Axes, optional
        Axes to draw on; by default those of a new figure, which is not registered with pyplot.
    annotate : bool, default=True
        Add the title and labels that identify what is drawn.

    Returns
    -------
    matplotlib.axes.Axes
    """
    with canvas(ax) as ax:
        series = panel["series"]
        xs = sorted({x for line in series for x in line["x"]})
        low, high = 0.0, -np.inf
        for line in series:
            mean, sd = np.array(line["mean"]), np.array([value or 0.0 for value in line["sd"]])
            if sd.any():
                ax.fill_between(line["x"], mean - sd, mean + sd, color=COLOR[line["color"]], alpha=0.18, linewidth=0)
            ax.plot(line["x"], mean, "o-", color=COLOR[line["color"]], label=words(line["name"]))
            low, high = min(low, (mean - sd).min()), max(high, (mean + sd).max())
        log = xs[0] > 0 and xs[-1] > 10 * xs[0]
        if log:
            ax.set_xscale("log")
            margin = (xs[-1] / xs[0]) ** 0.02
            ax.set_xlim(xs[0] / margin, xs[-1] * margin)
        else:
            margin = 0.02 * (xs[-1] - xs[0]) or 0.5
            ax.set_xlim(xs[0] - margin, xs[-1] + margin)
        ax.set(ylim=(low, high * 1.05 if high > low else low + 1), xlabel=words(panel["label"]))
        tidy(ax, x_ticks=(xs if len(xs) < 8 else xs[::2]) if log else None)
        if annotate:
            explain(ax, words(panel["title"]), columns=1)
    return ax
