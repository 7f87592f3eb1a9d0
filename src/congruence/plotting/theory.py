"""Plots of the theorems' quantities: what a set of rows spans, and the resulting bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from congruence.plotting.look import COLOR, canvas, explain, tidy

__all__ = ["draw_class_margins", "draw_correlations", "draw_rank_trade_off", "draw_singular_values"]

_DASHED = (0, (4, 4))


def draw_singular_values(
    values: Mapping[int, float],
    ax: Axes | None = None,
    *,
    tolerance: float,
    rank: int,
    title: str = "Singular values",
    annotate: bool = True,
) -> Axes:
    """Draw singular values on a logarithmic axis; a dashed line marks the tolerance.

    Parameters
    ----------
    values : mapping of int to float
        By their number from 1, descending; those of 0 lie at the lower end of the axis.
    ax : matplotlib.axes.Axes, optional
        Axes to draw on; by default those of a new figure, which is not registered with pyplot.
    tolerance : float
        A singular value counts if it is above this.
    rank : int
        How many do.
    title : str, default="Singular values"
    annotate : bool, default=True
        Add the title and labels that identify what is drawn.

    Returns
    -------
    matplotlib.axes.Axes
    """
    with canvas(ax) as ax:
        at, size = np.array(list(values)), np.array(list(values.values()), dtype=float)
        top = float(size.max()) or 1.0
        positive = size[size > 0]
        floor = min(float(positive.min()) if len(positive) else top, tolerance or top) / 10
        shown = np.maximum(size, floor)
        line = "-" if len(at) > 60 else "o-" if np.array_equal(np.diff(at), np.ones(len(at) - 1)) else "o"
        ax.plot(at, shown, line, color=COLOR["after"], label="singular values")
        if tolerance > 0:
            ax.axhline(tolerance, color=COLOR["ink"], linewidth=1.2, linestyle=_DASHED, label="tolerance")
        ax.axvline(rank, color=COLOR["faint"], linestyle=_DASHED, label=f"rank {rank:,}")
        ax.set_yscale("log")
        ax.set(xlim=(min(1.0, at[0]), max(2.0, float(at[-1]), 1.02 * rank)), ylim=(floor, 3 * top))
        ax.set(xlabel="direction, strongest first", ylabel="singular value, logarithmic")
        tidy(ax)
        if annotate:
            explain(ax, title)
    return ax


def draw_correlations(values: Sequence[float], ax: Axes | None = None, *, annotate: bool = True) -> Axes:
    """Draw canonical correlations, strongest first.

    Parameters
    ----------
    values : sequence of float
    ax : matplotlib.axes.Axes, optional
        Axes to draw on; by default those of a new figure, which is not registered with pyplot.
    annotate : bool, default=True
        Add a title.

    Returns
    -------
    matplotlib.axes.Axes
    """
    with canvas(ax) as ax:
        at = np.arange(1, len(values) + 1)
        ax.fill_between(at, values, color=COLOR["after"], alpha=0.18, linewidth=0)
        ax.plot(at, values, "o-" if len(at) <= 60 else "-", color=COLOR["after"], label="in-sample correlation")
        ax.set(xlim=(1, max(len(values), 2)), ylim=(0, 1.02), xlabel="direction, strongest first")
        ax.set_ylabel("canonical correlation")
        tidy(ax)
        if annotate:
            explain(ax, "Canonical correlations, in sample")
    return ax


def draw_rank_trade_off(data: Mapping[str, Any], ax: Axes | None = None, *, annotate: bool = True) -> Axes:
    """Draw the bound on the text error by the number of leading directions, its two parts, and the measured error within them.

    Parameters
    ----------
    data : mapping
        ``ranks``, ``sharp``, ``outside``, ``whole``, ``measured``: a number for each rank; ``best``: the rank of the least bound.
    ax : matplotlib.axes.Axes, optional
        Axes to draw on; by default those of a new figure, which is not registered with pyplot.
    annotate : bool, default=True
        Add a title and labels that identify what is drawn.

    Returns
    -------
    matplotlib.axes.Axes
    """
    with canvas(ax) as ax:
        ax.axvline(data["best"], color=COLOR["faint"], linestyle=_DASHED)
        for name, color, dashes, label in (
            ("whole", "after", "solid", "bound"),
            ("sharp", "source", "solid", "bound within"),
            ("outside", "target", "solid", "bound outside"),
            ("measured", "ink", _DASHED, "measured within"),
        ):
            ax.plot(data["ranks"], data[name], color=COLOR[color], linestyle=dashes, label=label)
        top = max(float(np.max(data[name])) for name in ("whole", "sharp", "outside", "measured"))
        ax.set(xlim=(1, max(float(data["ranks"][-1]), 2.0)), ylim=(0, 1.05 * top or 1.0))
        ax.set(xlabel=f"leading directions (least bound at {data['best']})", ylabel="text error")
        tidy(ax)
        if annotate:
            explain(ax, "Bound on the text error")
    return ax


def draw_class_margins(data: Mapping[str, object], ax: Axes | None = None, *, annotate: bool = True) -> Axes:
    """Draw each class's margin against what could change its result; classes above the line are certified.

    Parameters
    ----------
    data : mapping
        ``margins`` and ``needed``: by class, γ_c and 2(η_c + s_c); ``right``: by class, whether retrieval found it.
    ax : matplotlib.axes.Axes, optional
        Axes to draw on; by default those of a new figure, which is not registered with pyplot.
    annotate : bool, default=True
        Add a title and labels that identify what is drawn.

    Returns
    -------
    matplotlib.axes.Axes
    """
    with canvas(ax) as ax:
        margins, needed = np.asarray(data["margins"], dtype=float), np.asarray(data["needed"], dtype=float)
        right = np.asarray(data["right"], dtype=bool)
        low, high = min(0.0, margins.min(), needed.min()), max(margins.max(), needed.max(), 1e-9)
        span = (low - 0.04 * (high - low), high + 0.04 * (high - low))
        ax.plot(span, span, color=COLOR["faint"], linestyle=_DASHED)
        for kind, color, label in ((right, "after", "retrieved"), (~right, "source", "another class retrieved")):
            ax.plot(needed[kind], margins[kind], "o", color=COLOR[color], label=label)
        ax.set(xlim=span, ylim=span, xlabel="2(η + s), what could overturn it", ylabel="margin γ")
        tidy(ax)
        if annotate:
            explain(ax, "Margins of the classes")
    return ax
