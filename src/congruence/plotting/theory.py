"""Plots of the theorems' quantities: spectra of a set of rows, bounds, and margins."""

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
        Singular values in descending order, by their number from 1; zeros are drawn at the lower end of the axis.
    ax : matplotlib.axes.Axes, optional
        Axes to draw on; by default those of a new figure, which is not registered with pyplot.
    tolerance : float
        Singular values above it count towards the rank.
    rank : int
        Number of singular values above the tolerance.
    title : str, default="Singular values"
    annotate : bool, default=True
        Add the title and labels that identify what is drawn.
    """
    with canvas(ax) as ax:
        numbers, sizes = np.array(list(values)), np.array(list(values.values()), dtype=float)
        top = float(sizes.max()) or 1.0
        positive = sizes[sizes > 0]
        floor = min(float(positive.min()) if len(positive) else top, tolerance or top) / 10
        consecutive = np.array_equal(np.diff(numbers), np.ones(len(numbers) - 1))
        line = "-" if len(numbers) > 60 else "o-" if consecutive else "o"
        ax.plot(numbers, np.maximum(sizes, floor), line, color=COLOR["after"], label="singular values")
        if tolerance > 0:
            ax.axhline(tolerance, color=COLOR["ink"], linewidth=1.2, linestyle=_DASHED, label="tolerance")
        ax.axvline(rank, color=COLOR["faint"], linestyle=_DASHED, label=f"rank {rank:,}")
        ax.set_yscale("log")
        ax.set(xlim=(min(1.0, numbers[0]), max(2.0, float(numbers[-1]), 1.02 * rank)), ylim=(floor, 3 * top))
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
    """
    with canvas(ax) as ax:
        numbers = np.arange(1, len(values) + 1)
        ax.fill_between(numbers, values, color=COLOR["after"], alpha=0.18, linewidth=0)
        line = "o-" if len(numbers) <= 60 else "-"
        ax.plot(numbers, values, line, color=COLOR["after"], label="in-sample correlation")
        ax.set(xlim=(1, max(len(values), 2)), ylim=(0, 1.02), xlabel="direction, strongest first")
        ax.set_ylabel("canonical correlation")
        tidy(ax)
        if annotate:
            explain(ax, "Canonical correlations, in sample")
    return ax


def draw_rank_trade_off(data: Mapping[str, Any], ax: Axes | None = None, *, annotate: bool = True) -> Axes:
    """Draw the bound on the text error by the number of leading directions, its two terms, and the measured error within these directions.

    Parameters
    ----------
    data : mapping
        ``ranks``, and for each rank ``sharp``, ``outside``, ``whole`` and ``measured``; ``best``: the rank with the least bound.
    ax : matplotlib.axes.Axes, optional
        Axes to draw on; by default those of a new figure, which is not registered with pyplot.
    annotate : bool, default=True
        Add a title and labels that identify what is drawn.
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
    """Draw the margin of each class against the margin it needs; retrieval is certified for classes above the line.

    Parameters
    ----------
    data : mapping
        For each class, ``margins`` (γ_c), ``needed`` (2(η_c + s_c)), and ``right`` (whether it was retrieved).
    ax : matplotlib.axes.Axes, optional
        Axes to draw on; by default those of a new figure, which is not registered with pyplot.
    annotate : bool, default=True
        Add a title and labels that identify what is drawn.
    """
    with canvas(ax) as ax:
        margins, needed = np.asarray(data["margins"], dtype=float), np.asarray(data["needed"], dtype=float)
        right = np.asarray(data["right"], dtype=bool)
        low, high = min(0.0, margins.min(), needed.min()), max(margins.max(), needed.max(), 1e-9)
        span = (low - 0.04 * (high - low), high + 0.04 * (high - low))
        ax.plot(span, span, color=COLOR["faint"], linestyle=_DASHED)
        for kind, color, label in ((right, "after", "retrieved"), (~right, "source", "another class retrieved")):
            ax.plot(needed[kind], margins[kind], "o", color=COLOR[color], label=label)
        ax.set(xlim=span, ylim=span, xlabel="needed margin 2(η + s)", ylabel="margin γ")
        tidy(ax)
        if annotate:
            explain(ax, "Margins of the classes")
    return ax
