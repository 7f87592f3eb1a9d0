"""Plots with matplotlib: each function draws one from plain data, and the ``plot`` methods of results draw the same.

``ax`` are the matplotlib axes to draw on, by default those of a new figure, which a notebook displays and which is not
registered with pyplot. With ``annotate``, the default, a plot has a title and labels that identify what is drawn. The
axes are returned. The user's ``rcParams`` are not changed, nor used for new axes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from typing import Any

import numpy as np

from congruence._utils.optional import require

require("matplotlib", extra="plot")

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import LinearSegmentedColormap, Normalize, to_rgba
from matplotlib.patches import Rectangle

from congruence.plotting.look import COLOR, HEIGHT, WIDTH, canvas, tidy, words

#: Dashes of random controls, of reference lines, and of finer ones.
_DOTTED, _DASHED, _FINE = (0, (3, 3)), (0, (4, 4)), (0, (1, 2))

# ------------------------------------------------------------------ a map, and what its anchors determine


def draw_cosines(data: Mapping[str, Any], ax: Axes | None = None, *, annotate: bool = True) -> Axes:
    """Draw histograms of the cosines of pairs before and after mapping, with outlines for the controls.

    ``data``: one of ``histograms`` of ``congruence.report.summarize``.
    """
    with canvas(ax, title=annotate and f"{words(data['name'])} cosines") as ax:
        edges = data["edges"]
        for kind, label, color in (("before", "unmapped", "source"), ("after", "mapped", "after")):
            if data[kind]:
                ax.stairs(data[kind], edges, fill=True, color=COLOR[color], alpha=0.55, label=label)
        for kind, dashes in (("constant", "solid"), ("random_rotation", _DOTTED)):
            if data[kind]:
                label = kind.replace("_", " ")
                ax.stairs(data[kind], edges, color=COLOR["ink"], linewidth=1.6, linestyle=dashes, label=label)
        kinds = ("before", "after", "constant", "random_rotation")
        top = max(max(data[kind]) for kind in kinds if data[kind]) * 1.08 or 1.0
        ax.set(xlim=(edges[0], edges[-1]), ylim=(0, top), xlabel="cosine", ylabel="share of pairs")
        tidy(ax)
    return ax


def draw_spectrum(data: Mapping[str, Sequence[float]], ax: Axes | None = None, *, annotate: bool = True) -> Axes:
    """Draw the ``singular_values`` of the anchors' cross-covariance, relative to the largest, and the ``gains``."""
    with canvas(ax, title=annotate and "What the pairs span") as ax:
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

    ``data``: points (n, 2) by name, such as ``source image``; point i of a modality is the same item on both sides.
    The source's points have the color of mapped vectors if they are ``mapped``; ``names`` are labels for the legend.
    """
    with canvas(ax, title=annotate and words(title)) as ax:
        for modality in ("image", "text"):
            if {f"source {modality}", f"target {modality}"} <= {*data}:
                pairs = list(zip(data[f"source {modality}"], data[f"target {modality}"], strict=True))
                joined = LineCollection(pairs, colors=COLOR["faint"], linewidths=0.7, alpha=0.6)
                ax.add_collection(joined, autolim=False)
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

    ``data``: ``matched`` and ``other``, points (n, 2) of source and target similarity; ``color`` is that of the former.
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
        ax.set(xlim=span, ylim=span, xlabel="⟨f, g⟩ in the old model", ylabel="⟨f̃, g̃⟩ in the new one")
        tidy(ax)
    return ax


def draw_few_anchors(
    data: Mapping[str, Any], measures: Sequence[str], ax: Axes | None = None, *, annotate: bool = True
) -> Axes:
    """Draw scores of maps fitted on few anchors, by number of anchors: means and ranges over several draws.

    ``data``: ``few_anchors`` of ``congruence.report.summarize``, of which the curves of the ``measures`` are drawn.
    """
    with canvas(ax, title=annotate and "Scores by number of pairs", columns=1) as ax:
        n, low = data["n"], 0.0
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
        ax.set(xlim=(n[0] / 1.06, n[-1] * 1.06), ylim=(low, 1.02), xlabel="pairs (logarithmic)")
        tidy(ax, x_ticks=n if len(n) < 8 else n[::2])
    return ax


def draw_covered(data: Mapping[str, Any], ax: Axes | None = None, *, annotate: bool = True) -> Axes:
    """Draw ``shares`` of variance in the span of the first anchors, by order; ``random`` is a control."""
    with canvas(ax, title=annotate and "Variance in the pairs' span") as ax:
        for name, shares in sorted(data["shares"].items(), key=lambda item: item[0] == "random"):
            is_random = name == "random"
            label, color = ("in random order", "ink") if is_random else (words(name), "after")
            dashes = _FINE if is_random else "solid"
            ax.plot(range(1, len(shares) + 1), shares, label=label, color=COLOR[color], linestyle=dashes)
        most = max(1, *map(len, data["shares"].values()))
        ax.set(xlim=(0, most), ylim=(0, 1.02), xlabel="anchors", ylabel="variance spanned")
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
    """Draw singular values, by their number from 1, on a logarithmic axis, with lines at the tolerance and the rank.

    Zeros are drawn at the lower end of the axis.
    """
    with canvas(ax, title=annotate and title) as ax:
        numbers, sizes = np.array(list(values)), np.array(list(values.values()), dtype=float)
        top = float(sizes.max()) or 1.0
        floor = min([*sizes[sizes > 0], tolerance or top, top]) / 10
        line = "-" if len(numbers) > 60 else "o-" if (np.diff(numbers) == 1).all() else "o"
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
        numbers, line = np.arange(1, len(values) + 1), "o-" if len(values) <= 60 else "-"
        ax.fill_between(numbers, values, color=COLOR["after"], alpha=0.18, linewidth=0)
        ax.plot(numbers, values, line, color=COLOR["after"], label="in-sample correlation")
        ax.set(xlim=(1, max(len(values), 2)), ylim=(0, 1.02), xlabel="direction, strongest first")
        ax.set_ylabel("canonical correlation")
        tidy(ax)
    return ax


def draw_rank_trade_off(data: Mapping[str, Any], ax: Axes | None = None, *, annotate: bool = True) -> Axes:
    """Draw the bound on the text error by the number of leading directions, its two terms, and the measured error."""
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
    """Draw the margin γ_c of each class against the margin it needs; classes above the line are certified."""
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


# ------------------------------------------------------------------ scores on named lines

_LINE, _AROUND = 36, 96  # height in points of a line with its name, and of axis, title and legend
_NORMAL = 1.96  # half width of the central 95 % of a normal distribution, in standard deviations

#: Label and color of each kind of non-match.
_OTHERS = {
    "noise": ("noise", "faint"),
    "shuffled": ("re-paired texts", "mid"),
    "unrelated": ("unrelated texts", "mid"),
    "hard": ("hard non-matches", "source"),
}


def draw_similarities(data: Sequence[Mapping[str, Any]], ax: Axes | None = None, *, annotate: bool = True) -> Axes:
    """Draw similarity scores of two spaces with their intervals; bars show the range of random re-pairings."""
    with canvas(ax, _size(data), title=annotate and f"Similarity of two spaces, {data[0]['n']:,} rows") as ax:
        _bars(ax, data)
        intervals = [(row["low"], row["high"]) for row in data]
        _marks(ax, [row["value"] for row in data], "score, 95 %", "after", intervals=intervals)
        _marks(ax, [row["held_out"] for row in data], "held out", "target", marker="D")
        names = [row["metric"] + ("" if row["larger_is_closer"] else ", smaller is closer") for row in data]
        _frame(ax, names, "score")
    return ax


def draw_scores(data: Sequence[Mapping[str, Any]], ax: Axes | None = None, *, annotate: bool = True) -> Axes:
    """Draw a map's scores, except distances, before and after, with the target's own and those of the controls."""
    rows = [row for row in data if row["metric"] != "distance"]
    with canvas(ax, _size(rows), title=annotate and "Scores of the map") as ax:
        for row, y in zip(rows, _heights(rows), strict=True):
            if row["before"] is not None:
                ax.hlines(y, row["before"], row["after"], color=COLOR["faint"], linewidth=1.2, zorder=1)
        chance = [row["chance"] if row["control_constant"] is None else row["control_constant"] for row in rows]
        _marks(ax, chance, "chance, or a constant", "ink", marker="|")
        for name, label, color, marker in (
            ("control_random_rotation", "random rotation", "mid", "|"),
            ("before", "unmapped", "source", "o"),
            ("target", "new model alone", "target", "D"),
            ("after", "mapped", "after", "o"),
        ):
            _marks(ax, [row[name] for row in rows], label, color, marker=marker)
        names = [f"{row['metric']}, {row['query']} → {row['against']}" for row in rows]
        _frame(ax, [name.replace("_", " ").replace("aligned", "mapped") for name in names], "score")
    return ax


def draw_separations(data: Sequence[Mapping[str, Any]], ax: Axes | None = None, *, annotate: bool = True) -> Axes:
    """Draw scores of matches and non-matches: means and standard deviations over random subsets of the rows."""
    lines: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in data:
        name = ", ".join(part for part in (row["metric"], row["formula"]) if part)
        lines.setdefault(name, {})[row["against"]] = row
    title = f"Matches and non-matches, draws of {data[0]['rows']:,} rows"
    with canvas(ax, _size(lines), title=annotate and title) as ax:
        kinds = [kind for kind in _OTHERS if any(kind in line for line in lines.values())]
        matches = [next(iter(line.values()))["match_scores"] for line in lines.values()]
        shifts = np.linspace(-0.12, 0.12, len(kinds) + 1)
        for kind, shift in zip(kinds, shifts[1:], strict=True):
            draws = [line[kind]["other_scores"] if kind in line else () for line in lines.values()]
            _spread(ax, draws, *_OTHERS[kind], shift)
        _spread(ax, matches, "matching pairs", "after", shifts[0])
        _frame(ax, list(lines), "score")
    return ax


def draw_shift(data: Mapping[str, Any], ax: Axes | None = None, *, annotate: bool = True) -> Axes:
    """Draw distances between two collections with their standard deviations, and the distance of samples of one."""
    kinds = {"vectors": data["total"]}
    if data["text"] is not None:
        kinds = {"images": data["image"], "texts": data["text"], "total": data["total"]}
    with canvas(ax, _size(kinds), title=annotate and "Distance between the collections") as ax:
        distances = list(kinds.values())
        _marks(ax, [d["floor"] for d in distances], "samples of one collection", "ink", marker="|")
        intervals = [(d["value"] - d["sd"], d["value"] + d["sd"]) for d in distances]
        _marks(ax, [d["value"] for d in distances], "distance, ± sd", "after", intervals=intervals)
        _frame(ax, list(kinds), "sliced Wasserstein distance, turns")
        ax.set_xlim(left=min(0.0, *(low for low, _ in intervals)))
    return ax


def draw_pairing(data: Mapping[str, Any], ax: Axes | None = None, *, annotate: bool = True) -> Axes:
    """Draw the alignment of held-out pairs; a bar shows its range for random re-pairings."""
    with canvas(ax, _size([data]), title=annotate and "Alignment of the pairs") as ax:
        _bars(ax, [data])
        _marks(ax, [data["alignment"]], "as paired", "after")
        suspects = len(data["suspects"])
        note = f", {suspects:,} of them look wrong" if suspects else ""
        _frame(ax, [f"{data['n_pairs']:,} pairs{note}: {data['state']}"], "mean cosine of held-out pairs")
    return ax


def _size(rows: Sized) -> tuple[float, float]:
    return WIDTH, _AROUND + _LINE * len(rows)


def _heights(rows: Sized) -> np.ndarray:
    return np.arange(len(rows)) + 0.12


def _marks(
    ax: Axes,
    values: Sequence[float | None],
    label: str,
    color: str,
    *,
    marker: str = "o",
    intervals: Sequence[tuple[float, float]] | None = None,
    shift: float = 0.0,
) -> None:
    known = {k: value for k, value in enumerate(values) if value is not None}
    if not known:
        return
    lines, x = list(known), list(known.values())
    y = (_heights(values) + shift)[lines]
    if intervals is not None:
        low, high = zip(*(intervals[k] for k in lines), strict=True)
        ax.hlines(y, low, high, color=COLOR[color], linewidth=1.6)
    size, edge = (11, 1.8) if marker == "|" else (5 if marker == "D" else 7, 0)
    ax.plot(x, y, marker, color=COLOR[color], markersize=size, markeredgewidth=edge, label=label, zorder=3)


def _spread(ax: Axes, draws: Sequence[Sequence[float]], label: str, color: str, shift: float) -> None:
    """Mark mean and standard deviation of the draws of each line that has draws."""
    means = [float(np.mean(line)) if len(line) else None for line in draws]
    sds = [float(np.std(line)) if len(line) else 0.0 for line in draws]
    intervals = [((mean or 0.0) - sd, (mean or 0.0) + sd) for mean, sd in zip(means, sds, strict=True)]
    _marks(ax, means, label, color, intervals=intervals, shift=shift)


def _bars(ax: Axes, data: Sequence[Mapping[str, Any]]) -> None:
    """Draw the central 95 % of each line's null distribution."""
    low, high = ([row["null_mean"] + sign * _NORMAL * row["null_sd"] for row in data] for sign in (-1, 1))
    ax.hlines(_heights(data), low, high, color=COLOR["rule"], linewidth=9, label="re-paired, 95 %")


def _frame(ax: Axes, names: Sequence[str], label: str) -> None:
    for k, name in enumerate(names):
        ax.text(0, k - 0.2, words(name), transform=ax.get_yaxis_transform(), va="center_baseline", color=COLOR["ink"])
    ax.set(ylim=(len(names) - 0.45, -0.5), xlabel=label)
    tidy(ax)
    ax.grid(visible=False, axis="y")
    ax.grid(axis="x", color=COLOR["rule"], linewidth=0.6)
    ax.set_yticks([])


# ------------------------------------------------------------------ a certificate and a migration

#: Label and color of each strategy, in their order.
_LABELS = {
    "keep": ("keep old", "source"),
    "leave": ("leave", "source"),
    "queries": ("map queries", "mid"),
    "stored": ("map store", "after"),
    "progressive": ("map,\nre-embed {:.0%}", "after"),
    "re-embed": ("re-embed", "target"),
}

_CONTROLS = {"chance": ("a random list", _FINE), "random_rotation": ("random rotation", _DOTTED)}


def draw_strategies(data: Mapping[str, Any], ax: Axes | None = None, *, annotate: bool = True) -> Axes:
    """Draw the score of each strategy with its interval; dotted and dashed lines are the scores of the controls. What
    is recommended has a halo, and its name is bold.
    """
    with canvas(ax, title=annotate and f"{words(data['task'])} of each strategy") as ax:
        shown = [strategy for strategy in _LABELS if strategy in data["strategies"]]
        for name, (label, dashes) in _CONTROLS.items():
            if name in data["controls"]:
                ax.axhline(data["controls"][name], color=COLOR["ink"], linewidth=1.2, linestyle=dashes, label=label)
        for k, strategy in enumerate(shown):
            value, low, high = data["strategies"][strategy]
            color = COLOR[_LABELS[strategy][1]]
            ax.errorbar([k], [value], [[value - low], [high - value]], fmt="o", markersize=8, color=color)
            _beside(ax, f"{value:.3f}".replace("-", "−"), (k, value), 7)
            if strategy in data.get("recommended", ()):
                ax.plot([k], [value], "o", markersize=18, color=color, alpha=0.3, markeredgewidth=0)
        lowest = min([0.0, *(low for _, low, _ in data["strategies"].values()), *data["controls"].values()])
        ax.set(xlim=(-0.45, len(shown) - 0.35), ylim=(lowest * 1.05, 1), ylabel=words(data["task"]))
        tidy(ax)
        names = [_LABELS[strategy][0].format(data.get("share") or 0.0) for strategy in shown]
        for strategy, text in zip(shown, ax.set_xticks(range(len(shown)), names, color=COLOR["ink"]), strict=True):
            if strategy in data.get("recommended", ()):
                text.label1.set_fontweight("bold")
        ax.tick_params(axis="x", length=0)
    return ax


def _beside(ax: Axes, text: str, point: tuple[float, float], gap: int) -> None:
    place: dict[str, Any] = {"xytext": (gap, 0), "textcoords": "offset points", "va": "center_baseline"}
    ax.annotate(text, point, color=COLOR["soft"], **place)


def draw_learning_curve(data: Mapping[str, Any], ax: Axes | None = None, *, annotate: bool = True) -> Axes:
    """Draw the score by number of anchors, extrapolated by its power law to twice the present number."""
    with canvas(ax, title=annotate and f"{words(data['task'])} by number of pairs") as ax:
        curve, now, law = data["curve"], data["n_anchors"], data["curve"]["law"]
        sizes: list[float] = list(curve["anchors"])
        mean, error = np.array(curve["mean"]), np.array(curve["error"])
        more = np.geomspace(sizes[-1], 2 * now, 20)
        extrapolated = law["best"] - law["drop"] * more ** -law["exponent"]
        ax.axvline(now, color=COLOR["faint"], linestyle=_DASHED)
        ax.fill_between(sizes, mean - error, mean + error, color=COLOR["after"], alpha=0.18, linewidth=0)
        ax.plot(sizes, mean, "o-", color=COLOR["after"], label="measured")
        ax.plot(more, extrapolated, color=COLOR["faint"], linestyle=_DASHED, label="extrapolated")
        if data["re-embed"] is not None:
            ax.axhline(data["re-embed"], color=COLOR["target"], linewidth=1.6, label="re-embed")
        ax.set_xscale("log")
        bottom, top = min(0.0, float((mean - error).min())), max(1.0, extrapolated.max(), (mean + error).max())
        ax.set(xlim=(sizes[0] / 1.08, 2.3 * now), ylim=(bottom, float(top)))
        ax.set(xlabel="pairs (logarithmic)", ylabel=words(data["task"]))
        tidy(ax, x_ticks=[*sizes[::2], now, 2 * now] if sizes[-1] not in sizes[::2] else [*sizes[::2], 2 * now])
    return ax


def draw_progress(data: Mapping[str, Any], ax: Axes | None = None, *, annotate: bool = True) -> Axes:
    """Draw quality by share re-embedded: each stage with its interval, the forecast, and the old and the new model."""
    with canvas(ax, title=annotate and f"{words(data['metric'])} while re-embedding") as ax:
        for name, value in data["lines"].items():
            color = COLOR["target" if name == "new model" else "source"]
            ax.axhline(value, color=color, linewidth=1.2, linestyle=_DOTTED, label=name)
        for part, color, label in ((data["forecast"], "faint", "forecast"), (data["stages"], "after", "measured")):
            points = [point for point in part if point["value"] == point["value"]]  # without NaN
            if not points:
                continue
            x, value, low, high = ([point[name] for point in points] for name in ("share", "value", "low", "high"))
            percent = [100 * share for share in x]
            ax.fill_between(percent, low, high, color=COLOR[color], alpha=0.2, linewidth=0)
            dashes = (0, (1, 1.5)) if label == "forecast" else "solid"
            ax.plot(percent, value, color=COLOR[color], linestyle=dashes, label=label)
        last = data["stages"][-1]
        ax.plot([100 * last["share"]], [last["value"]], "o", markersize=7, color=COLOR["after"])
        ax.set(xlabel="% re-embedded", ylabel=words(data["metric"]))
        tidy(ax)
    return ax


# ------------------------------------------------------------------ layers of two models

_CELL_WIDTH, _CELL_HEIGHT, _LETTER = 52, 30, 7.4  # size of a cell, and average width of a letter, in points
_NAME = 40  # maximum length of a layer's name

#: Color strengths above which text switches to white in light mode, and to black in dark mode. The contrast is at least
#: 4.5 for all strengths.
STRONG = 0.86
MIDDLE = 0.62


def layer_notes(data: dict[str, Any]) -> list[str]:
    """Return the notes that explain the plot of ``draw_layers``, one line each."""
    return [
        f"{data['metric']}, {data['n']} items. Stronger color: more standard deviations closer than chance.",
        f"Framed: best of {len(data['x_layers']) * len(data['y_layers'])}, {words(data['best'][0])} and "
        f"{words(data['best'][1])}, {data['best_value']:.3f}.",
        f"By chance the best is {data['best_null_mean']:.3f} ± {data['best_null_sd']:.3f} ({data['permutations']} "
        f"re-pairings); p = {data['best_adjusted_p_value']:.3f}, corrected for the search.",
    ]


def draw_layers(
    data: dict[str, Any], ax: Axes | None = None, *, title: str = "Similarity of layers", annotate: bool = True
) -> Axes:
    """Draw the scores of all pairs of layers as a heat map, with a frame around the best; color is lead over chance.

    ``data``: that of ``congruence.compare.spaces.LayerComparison.to_dict``, and ``strength`` of each cell's color.
    """
    rows, columns = ([words(name, _NAME) for name in data[side]] for side in ("x_layers", "y_layers"))
    slope = _LETTER * max(map(len, columns)) * 0.71  # column names are rotated by 45 degrees
    width = 24 + _LETTER * max(map(len, rows)) + _CELL_WIDTH * len(columns) + slope
    notes = 16 + 5.9 * max(map(len, [*layer_notes(data), title]))
    with canvas(ax, (max(width, notes), 104 + slope + _CELL_HEIGHT * len(rows))) as ax:
        strength, values = np.asarray(data["strength"]), data["values"]
        # A fully transparent cell would show no tooltip.
        fade = LinearSegmentedColormap.from_list("strength", [to_rgba(COLOR["after"], a) for a in (0.002, 1)], N=1001)
        mesh = ax.pcolormesh(
            strength, cmap=fade, norm=Normalize(0, 1), edgecolors=COLOR["paper"], linewidth=1, gid="cells"
        )
        mesh.set_antialiased(True)
        for (i, j), shade in np.ndenumerate(strength):
            kind = "on-strong" if shade > STRONG else "on-middle" if shade > MIDDLE else "on-weak"
            value = f"{values[i][j]:.2f}".replace("-", "−")
            ax.text(j + 0.5, i + 0.5, value, ha="center", va="center_baseline", color=COLOR[kind])
        best = (list(data["y_layers"]).index(data["best"][1]), list(data["x_layers"]).index(data["best"][0]))
        ax.add_patch(Rectangle(best, 1, 1, fill=False, edgecolor=COLOR["ink"], linewidth=2.5, clip_on=False))
        ax.set(xlim=(0, strength.shape[1]), ylim=(strength.shape[0], 0))
        ax.spines[:].set_visible(False)
        ax.tick_params(length=0, pad=5)
        ax.xaxis.tick_top()
        tilted: dict[str, Any] = {"rotation": 45, "ha": "left", "va": "bottom", "rotation_mode": "anchor"}
        ax.set_xticks(np.arange(len(columns)) + 0.5, columns, color=COLOR["ink"], **tilted)
        ax.set_yticks(np.arange(len(rows)) + 0.5, rows, color=COLOR["ink"])
        if annotate:
            ax.set_title(words(title), loc="left", x=0)
            for k, note in enumerate(layer_notes(data)):
                ax.annotate(
                    note, (0, 0), xytext=(0, -14 - 17 * k), xycoords="axes fraction", textcoords="offset points",
                    va="baseline", color=COLOR["soft"],
                )  # fmt: skip
    return ax


# ------------------------------------------------------------------ a training run

MARKS = 300  # largest number of points of a curve
_WIDE = 30  # ratio of largest to smallest value above which a curve is drawn on a logarithmic axis
_TASKS = 14  # largest number of tasks that are drawn

#: Labels of terms of losses; by default the name of the term.
_TERMS = {
    "loss": "total loss",
    "reconstruct": "reconstruction error",
    "klot": "KLOT",
    "cka": "CKA",
    "infonce": "InfoNCE",
    "marginal_error": "Marginal error of the heads' plan",
    "marginal_error_teacher": "Marginal error of the teacher's plan",
    "gradient_error": "Estimated relative error of the gradient",
}

_SIDES = {"": "after", "source": "source", "target": "target"}


def loss_curves(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the terms of a history's losses by step, ready for ``draw_loss``; terms of both sides share a plot."""
    losses = record.get("losses", {})
    steps = losses.get("step", [])
    lines_of: dict[str, list[dict[str, Any]]] = {}
    for term, values in losses.items():
        if term != "step" and len(values) == len(steps) > 0:
            stem, _, suffix = term.rpartition("_")
            name, side = (stem, suffix) if suffix in ("source", "target") else (term, "")
            step, value = thin(steps, values)
            lines_of.setdefault(name, []).append({"name": side, "step": step, "value": value})
    out: list[dict[str, Any]] = []
    for term, lines in lines_of.items():
        values = [value for line in lines for value in line["value"]]
        log = min(values) > 0 and max(values) > _WIDE * min(values)
        entry = {"term": term, "name": _TERMS.get(term, term.replace("_", " ")), "log": log, "lines": lines}
        out.append({**entry, "best_step": record.get("best_step"), "steps": record.get("steps") or max(steps)})
    return out


def validation_curve(record: Mapping[str, Any], teacher: float | None = None) -> dict[str, Any] | None:
    """Return a history's validation score by step for ``draw_validation``; None if there is none."""
    scores = record.get("validation", [])
    if not scores:
        return None
    step, value = thin([step for step, _ in scores], [score for _, score in scores])
    return {
        "step": step,
        "value": value,
        "best_step": record.get("best_step"),
        "best": float(max(score for _, score in scores)),
        "teacher": None if teacher is None else float(teacher),
        "steps": record.get("steps") or step[-1],
    }


def thin(*columns: Sequence[float]) -> list[list[float]]:
    """Return columns averaged over consecutive records, so that at most ``MARKS`` are left."""
    parts = min(len(columns[0]), MARKS)
    return [[float(np.mean(part)) for part in np.array_split(np.asarray(c, dtype=float), parts)] for c in columns]


def draw_loss(data: Mapping[str, Any], ax: Axes | None = None, *, annotate: bool = True) -> Axes:
    """Draw a term of ``loss_curves`` by step, for both sides if it has two; a dashed line marks the kept step."""
    with canvas(ax, title=annotate and words(data["name"])) as ax:
        lines = [(line, _SIDES[line["name"]], line["name"] or data["name"]) for line in data["lines"]]
        _draw_curves(ax, data, words(data["name"]), lines, log=data["log"])
    return ax


def draw_validation(data: Mapping[str, Any], ax: Axes | None = None, *, annotate: bool = True) -> Axes:
    """Draw the validation score by step, with the best step marked; ``data`` is from ``validation_curve``."""
    with canvas(ax, title=annotate and "validation score") as ax:
        lines: list[tuple[Mapping[str, Any], str, str]] = [(data, "target", "heads")]
        if data["teacher"] is not None:
            teacher = {"step": [0, data["steps"]], "value": [data["teacher"]] * 2}
            lines.append((teacher, "source", "their linear teacher"))
        _draw_curves(ax, data, "validation score", lines, data["best"])
        if data["best_step"] is not None:
            ax.plot([data["best_step"]], [data["best"]], "o", color=COLOR["target"], markersize=8)
    return ax


def _draw_curves(
    ax: Axes,
    data: Mapping[str, Any],
    label: str,
    lines: Sequence[tuple[Mapping[str, Any], str, str]],
    *also: float,
    log: bool = False,
) -> None:
    """Draw lines by step, each with a color and a label; the axis is called ``label``, and has room for ``also``."""
    values = [value for line, _, _ in lines for value in line["value"]] + [*also]
    low, high = min(values), max(values)
    if data["best_step"] is not None:
        ax.axvline(data["best_step"], color=COLOR["faint"], linestyle=_DASHED)
    for line, color, name in lines:
        marker = "o" if len(line["step"]) <= 40 else None
        ax.plot(line["step"], line["value"], color=COLOR[color], label=words(name), marker=marker, markersize=3.6)
    if log:
        ax.set_yscale("log")
        ax.set_ylim(low * 0.9, high * 1.1)
    else:
        margin = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
        ax.set_ylim(0.0 if 0 <= low < 0.6 * high else low - margin, high + margin)
    ax.set_xlim(0, 1.05 * max(data["steps"], 1))  # room for the last tick label
    ax.set(xlabel="step", ylabel=f"{label}, logarithmic" if log else label)
    tidy(ax)


def draw_recalls(data: Mapping[str, Any], ax: Axes | None = None, *, annotate: bool = True) -> Axes:
    """Draw both recalls of each task as bars, with chance as dashed lines; of many tasks, the first and the last."""
    rows, chances = data["rows"], data["chance"]
    rows = rows if len(rows) <= _TASKS else [*rows[: _TASKS - 1], rows[-1]]
    height = 24 + 16 * (1 + (data["options"] is not None))  # of a task: its name, and one or two bars
    size = WIDTH, 10 + height * len(rows) + (50 if annotate else 0)
    with canvas(ax, size, title=annotate and "Recall at 1 by task") as ax:
        labels = {"binary": f"of {1 + data['wrong']} captions", "choice": f"of {data['options']}"}
        for j, (kind, color) in enumerate((("binary", "after"), ("choice", "source"))):
            shown = [(height * i + 25.5 + 16 * j, row[kind]) for i, row in enumerate(rows) if row[kind] is not None]
            if not shown or chances[kind] is None:
                continue
            middle, shares = zip(*shown, strict=True)
            ax.barh(middle, shares, 11, color=COLOR[color], label=labels[kind])
            for y, share in shown:
                _beside(ax, f"{share:.3f}", (share, y), 5)
            ends = [y - 7.5 for y in middle], [y + 7.5 for y in middle]
            ax.vlines([chances[kind]] * len(middle), *ends, color=COLOR["ink"], linestyles=(0, (2, 2)), linewidth=1.6)
        for i, row in enumerate(rows):
            ax.text(0, height * i + 13, f"{words(row['task'], 40)}, {row['n']:,}", va="baseline", color=COLOR["ink"])
        ax.set(xlim=(0, 1.13), ylim=(height * len(rows), 0))
        ax.set_axis_off()
    return ax


def draw_margins(data: Mapping[str, Any], ax: Axes | None = None, *, annotate: bool = True) -> Axes:
    """Draw a histogram of the caption's cosine minus that of the nearest wrong caption; a dashed line is the mean."""
    with canvas(ax, (WIDTH, HEIGHT), title=annotate and words(data["name"])) as ax:
        edges, counts = data["edges"], data["counts"]
        half = len(counts) // 2
        wrong, right = (counts[:half], edges[: half + 1]), (counts[half:], edges[half:])
        for bins, color, label in ((wrong, "source", "nearer the wrong one"), (right, "after", "nearer the caption")):
            ax.stairs(*bins, fill=True, color=COLOR[color], alpha=0.55, label=label)
        ax.axvline(data["mean"], color=COLOR["faint"], linestyle=_DASHED)
        ax.set(xlim=(edges[0], edges[-1]), ylim=(0, max(counts) * 1.08))
        ax.set(xlabel="cos(caption) − cos(wrong caption)", ylabel="share of captions")
        tidy(ax)
    return ax
