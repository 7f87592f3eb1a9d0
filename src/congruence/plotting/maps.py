"""Plots of a map and of what its anchors determine: cosines, spectra, points, similarities, bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection

from congruence.plotting.look import COLOR, canvas, tidy, words

#: Dashes of random controls, and of reference lines.
_DOTTED, _DASHED = (0, (3, 3)), (0, (4, 4))

_NAMES = {"before": "unmapped", "after": "mapped", "constant": "constant", "random_rotation": "random rotation"}


def draw_cosines(data: Mapping[str, Any], ax: Axes | None = None, *, annotate: bool = True) -> Axes:
    """Draw histograms of the cosines of pairs before and after mapping, with outlines for the controls.

    ``data``: one of ``histograms`` of ``congruence.report.summarize``: ``name``, ``edges``, and shares of pairs
    ``before``, ``after``, ``constant`` and ``random_rotation``, each of which may be None.
    """
    with canvas(ax, title=annotate and f"{words(data['name'])} cosines") as ax:
        edges = data["edges"]
        for shares, color, kind in ((data["before"], "source", "before"), (data["after"], "after", "after")):
            if shares:
                ax.stairs(shares, edges, fill=True, color=COLOR[color], alpha=0.55, label=_NAMES[kind])
        controls = (data["constant"], "solid", "constant"), (data["random_rotation"], _DOTTED, "random_rotation")
        for shares, dashes, kind in controls:
            if shares:
                ax.stairs(shares, edges, color=COLOR["ink"], linewidth=1.6, linestyle=dashes, label=_NAMES[kind])
        histograms = (data["before"], data["after"], data["constant"], data["random_rotation"])
        top = max(max(shares) for shares in histograms if shares) * 1.08 or 1.0
        ax.set(xlim=(edges[0], edges[-1]), ylim=(0, top), xlabel="cosine", ylabel="share of pairs")
        tidy(ax)
    return ax


def draw_spectrum(data: Mapping[str, Sequence[float]], ax: Axes | None = None, *, annotate: bool = True) -> Axes:
    """Draw the singular values of the anchors' cross-covariance, relative to the largest, and the gains.

    ``data``: ``singular_values`` and ``gains``, strongest direction first.
    """
    with canvas(ax, title=annotate and "What the anchors cover") as ax:
        values, n = data["singular_values"], len(data["singular_values"])
        top = max(values) or 1.0
        x, shares = range(1, n + 1), [value / top for value in values]
        ax.fill_between(x, shares, color=COLOR["faint"], alpha=0.18, linewidth=0)
        ax.plot(x, shares, color=COLOR["faint"], label="singular values")
        ax.plot(x, data["gains"], color=COLOR["ink"], label="gain of the map")
        ax.set(xlim=(1, max(n, 2)), ylim=(0, 1.02), xlabel="direction, strongest first", ylabel="share of the first")
        tidy(ax)
    return ax


def draw_clouds(
    data: dict[str, Sequence[Sequence[float]]],
    ax: Axes | None = None,
    *,
    mapped: bool = False,
    names: Mapping[str, str] | None = None,
    title: str = "Two principal directions",
    annotate: bool = True,
) -> Axes:
    """Draw both models' images (dots) and texts (triangles) in two principal directions, pairs joined by lines.

    ``data``: points, shape (n, 2), by name: ``source image``, ``source text``, ``target image``, ``target text``; point
    i of a modality is the same item on both sides. If the source's points are ``mapped``, they have the color of mapped
    vectors. ``names`` are labels of clouds in the legend; by default the names above.
    """
    with canvas(ax, title=annotate and words(title)) as ax:
        for modality in ("image", "text"):
            if {f"source {modality}", f"target {modality}"} <= {*data}:
                pairs = list(zip(data[f"source {modality}"], data[f"target {modality}"], strict=True))
                ax.add_collection(
                    LineCollection(pairs, colors=COLOR["faint"], linewidths=0.7, alpha=0.6), autolim=False
                )
        for name, points in data.items():
            side, modality = name.split(" ")
            color = COLOR["after" if mapped and side == "source" else side]
            label = f"{'mapped ' if mapped and side == 'source' else ''}{name}"
            marker, size = ("^", 5.2) if modality == "text" else ("o", 4.4)
            x, y = zip(*points, strict=True) if len(points) else ((), ())
            ax.plot(x, y, marker, color=color, markersize=size, label=(names or {}).get(name, label))
        ax.set_aspect("equal", adjustable="datalim")  # with different scales, distances could not be compared
        ax.margins(0.03)
        ax.set_axis_off()
    return ax


def draw_kernel(
    data: Mapping[str, Any],
    ax: Axes | None = None,
    *,
    color: str = "ink",
    title: str = "Similarities",
    annotate: bool = True,
) -> Axes:
    """Draw image–text similarities in one model against those in the other.

    ``data``: ``matched`` and ``other``, points of source and target similarity, shape (n, 2). ``color`` is that of
    matched pairs, which belong to both models.
    """
    with canvas(ax, title=annotate and words(title)) as ax:
        points = [*data["other"], *data["matched"]]
        low, high = min(map(min, points)), max(map(max, points))
        margin = (high - low) * 0.04 or 0.1
        span = (low - margin, high + margin)
        ax.plot(span, span, color=COLOR["faint"], linestyle=_DASHED, linewidth=1.2)
        for shown, hue, size, alpha, label in (
            (data["other"], "faint", 2.6, 0.45, "different classes"),
            (data["matched"], color, 3.6, 1.0, "same class"),
        ):
            x, y = zip(*shown, strict=True) if shown else ((), ())
            ax.plot(x, y, "o", color=COLOR[hue], markersize=size, alpha=alpha, label=label)
        ax.set(xlim=span, ylim=span, xlabel="⟨f, g⟩ in the source", ylabel="⟨f̃, g̃⟩ in the target")
        tidy(ax)
    return ax


def draw_few_anchors(
    data: Mapping[str, Any], measures: Sequence[str], ax: Axes | None = None, *, annotate: bool = True
) -> Axes:
    """Draw scores of maps fitted on few anchors, by number of anchors: means and ranges over several draws.

    ``data``: ``few_anchors`` of ``congruence.report.summarize``; curves of the ``measures`` ``"classified"``,
    ``"retrieval"`` or ``"cosine"`` are drawn.
    """
    with canvas(ax, title=annotate and "Scores by number of anchors", columns=1) as ax:
        n = data["n"]
        low = 0.0
        for curve in data["curves"]:
            if curve["measure"] not in measures:
                continue
            mapped = curve["kind"] == "mapped"
            color = COLOR["after" if mapped else "ink"]
            if mapped:
                ax.fill_between(n, curve["low"], curve["high"], color=color, alpha=0.18, linewidth=0)
            low = min(low, *curve["low"])
            marker = "s" if curve["measure"] == "classified" else "^" if curve["items"] == "text" else "o"
            dashes = _DASHED if curve["kind"] == "random rotation" else "solid"
            ax.plot(n, curve["mean"], marker=marker, color=color, linestyle=dashes, label=words(curve["name"]))
        ax.set_xscale("log")
        ax.set(xlim=(n[0] / 1.06, n[-1] * 1.06), ylim=(low, 1.02), xlabel="anchors (logarithmic)")
        tidy(ax, x_ticks=n if len(n) < 8 else n[::2])
    return ax


def draw_covered(data: Mapping[str, Any], ax: Axes | None = None, *, annotate: bool = True) -> Axes:
    """Draw the share of the rows' variance in the span of the first anchors, by number of anchors.

    ``data``: ``shares``, for each order of the anchors the shares for the first 1, 2, … anchors; ``random`` is a
    control.
    """
    with canvas(ax, title=annotate and "Variance in the anchors' span") as ax:
        most = 1
        for name, shares in sorted(data["shares"].items(), key=lambda item: item[0] == "random"):
            is_random = name == "random"
            style = {"color": COLOR["ink"], "linestyle": (0, (1, 2))} if is_random else {"color": COLOR["after"]}
            ax.plot(range(1, len(shares) + 1), shares, label="in random order" if is_random else words(name), **style)
            most = max(most, len(shares))
        ax.set(xlim=(0, most), ylim=(0, 1.02), xlabel="anchors", ylabel="variance covered")
        tidy(ax)
    return ax


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

    ``values`` are in descending order, by their number from 1; zeros are drawn at the lower end of the axis. ``rank``
    is the number of those above the ``tolerance``.
    """
    with canvas(ax, title=annotate and title) as ax:
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
    return ax


def draw_correlations(values: Sequence[float], ax: Axes | None = None, *, annotate: bool = True) -> Axes:
    """Draw canonical correlations, strongest first."""
    with canvas(ax, title=annotate and "Canonical correlations, in sample") as ax:
        numbers = np.arange(1, len(values) + 1)
        ax.fill_between(numbers, values, color=COLOR["after"], alpha=0.18, linewidth=0)
        line = "o-" if len(numbers) <= 60 else "-"
        ax.plot(numbers, values, line, color=COLOR["after"], label="in-sample correlation")
        ax.set(xlim=(1, max(len(values), 2)), ylim=(0, 1.02), xlabel="direction, strongest first")
        ax.set_ylabel("canonical correlation")
        tidy(ax)
    return ax


def draw_rank_trade_off(data: Mapping[str, Any], ax: Axes | None = None, *, annotate: bool = True) -> Axes:
    """Draw the bound on the text error by the number of leading directions, its two terms, and the measured error.

    ``data``: ``ranks``, for each rank ``sharp``, ``outside``, ``whole`` and ``measured``, and ``best``, the rank with
    the least bound.
    """
    with canvas(ax, title=annotate and "Bound on the text error") as ax:
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
    return ax


def draw_class_margins(data: Mapping[str, Any], ax: Axes | None = None, *, annotate: bool = True) -> Axes:
    """Draw the margin of each class against the margin it needs; classes above the line are certified.

    ``data``: for each class, ``margins`` (γ_c), ``needed`` (2(η_c + s_c)), and ``right`` (whether it was retrieved).
    """
    with canvas(ax, title=annotate and "Margins of the classes") as ax:
        margins, needed = np.asarray(data["margins"], dtype=float), np.asarray(data["needed"], dtype=float)
        right = np.asarray(data["right"], dtype=bool)
        low, high = min(0.0, margins.min(), needed.min()), max(margins.max(), needed.max(), 1e-9)
        span = (low - 0.04 * (high - low), high + 0.04 * (high - low))
        ax.plot(span, span, color=COLOR["faint"], linestyle=_DASHED)
        for kind, color, label in ((right, "after", "retrieved"), (~right, "source", "another class retrieved")):
            ax.plot(needed[kind], margins[kind], "o", color=COLOR[color], label=label)
        ax.set(xlim=span, ylim=span, xlabel="needed margin 2(η + s)", ylabel="margin γ")
        tidy(ax)
    return ax
