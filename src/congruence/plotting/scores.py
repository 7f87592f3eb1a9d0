"""Plots of scores with their intervals and chance levels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes

from congruence.plotting.look import COLOR, WIDTH, canvas, tidy, words

if TYPE_CHECKING:
    from collections.abc import Sized

#: Height in points of a line with its name, and of axis, title and legend.
_LINE, _AROUND = 36, 96

#: Half width of the central 95 % of a normal distribution, in standard deviations.
_NORMAL = 1.96

#: Label and color of each kind of non-match.
_OTHERS = {
    "noise": ("noise", "faint"),
    "shuffled": ("re-paired texts", "mid"),
    "unrelated": ("unrelated texts", "mid"),
    "hard": ("hard non-matches", "source"),
}


def draw_similarities(data: Sequence[Mapping[str, Any]], ax: Axes | None = None, *, annotate: bool = True) -> Axes:
    """Draw similarity scores of two spaces with their intervals; bars show the range of random re-pairings.

    ``data``: one entry per metric, from ``congruence.compare.spaces.Similarity.to_dict``.
    """
    with canvas(ax, _size(data), title=annotate and f"Similarity of two spaces, {data[0]['n']:,} rows") as ax:
        names = [row["metric"] + ("" if row["larger_is_closer"] else ", smaller is closer") for row in data]
        _bars(ax, data, "re-paired, 95 %")
        intervals = [(row["low"], row["high"]) for row in data]
        _marks(ax, [row["value"] for row in data], "score, 95 %", "after", intervals=intervals)
        _marks(ax, [row["held_out"] for row in data], "held out", "target", marker="D")
        _frame(ax, names, "score")
    return ax


def draw_scores(data: Sequence[Mapping[str, Any]], ax: Axes | None = None, *, annotate: bool = True) -> Axes:
    """Draw a map's scores before and after mapping, with the target's own scores and those of the controls.

    ``data``: rows from ``congruence.evaluation.Scores.to_dict``; distances, which have another scale, are left out.
    """
    rows = [row for row in data if row["metric"] != "distance"]
    with canvas(ax, _size(rows), title=annotate and "Scores of the map") as ax:
        sides = [f"{row['query']} → {row['against']}".replace("aligned", "mapped") for row in rows]
        names = [f"{row['metric'].replace('_', ' ')}, {side}" for row, side in zip(rows, sides, strict=True)]
        for row, y in zip(rows, _heights(rows), strict=True):
            if row["before"] is not None:
                ax.hlines(y, row["before"], row["after"], color=COLOR["faint"], linewidth=1.2, zorder=1)
        chance = [row["chance"] if row["control_constant"] is None else row["control_constant"] for row in rows]
        _marks(ax, chance, "chance, or a constant", "ink", marker="|")
        _marks(ax, [row["control_random_rotation"] for row in rows], "random rotation", "mid", marker="|")
        _marks(ax, [row["before"] for row in rows], "unmapped", "source")
        _marks(ax, [row["target"] for row in rows], "target alone", "target", marker="D")
        _marks(ax, [row["after"] for row in rows], "mapped", "after")
        _frame(ax, names, "score")
    return ax


def draw_separations(data: Sequence[Mapping[str, Any]], ax: Axes | None = None, *, annotate: bool = True) -> Axes:
    """Draw scores of matching pairs and of non-matches: means and standard deviations over random subsets of the rows.

    ``data``: from ``congruence.compare.matching.Separation.to_dict``; entries of the same metric and formula share
    a line.
    """
    lines: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in data:
        name = ", ".join(part for part in (row["metric"], row["formula"]) if part)
        lines.setdefault(name, {})[row["against"]] = row
    with canvas(
        ax, _size(lines), title=annotate and f"Matches and non-matches, draws of {data[0]['rows']:,} rows"
    ) as ax:
        kinds = [kind for kind in _OTHERS if any(kind in line for line in lines.values())]
        matches = [next(iter(line.values()))["match_scores"] for line in lines.values()]
        shifts = np.linspace(-0.12, 0.12, len(kinds) + 1)
        for kind, shift in zip(kinds, shifts[1:], strict=True):
            label, color = _OTHERS[kind]
            _spread(
                ax, [line[kind]["other_scores"] if kind in line else () for line in lines.values()], label, color, shift
            )
        _spread(ax, matches, "matching pairs", "after", shifts[0])
        _frame(ax, list(lines), "score")
    return ax


def draw_shift(data: Mapping[str, Any], ax: Axes | None = None, *, annotate: bool = True) -> Axes:
    """Draw distances between two collections with their standard deviations, and the distance of samples of one.

    ``data``: from ``congruence.transport.shift.DistributionShift.to_dict``.
    """
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
    """Draw the alignment of held-out pairs; a bar shows its range for random re-pairings.

    ``data``: from ``congruence.compare.pairing.PairingReport.to_dict``, with enough pairs for a null distribution.
    """
    with canvas(ax, _size([data]), title=annotate and "Alignment of the anchors") as ax:
        _bars(ax, [data], "re-paired, 95 %")
        _marks(ax, [data["alignment"]], "as paired", "after")
        suspects = len(data["suspects"])
        note = f", {suspects:,} of them look wrong" if suspects else ""
        _frame(ax, [f"{data['n_pairs']:,} pairs{note}: {data['state']}"], "mean cosine of held-out pairs")
    return ax


# ------------------------------------------------------------------ lines and marks


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
    """Mark the value of each line that has one, with its interval."""
    shown = [
        (value, y + shift, k)
        for k, (value, y) in enumerate(zip(values, _heights(values), strict=True))
        if value is not None
    ]
    if not shown:
        return
    x, y, lines = zip(*shown, strict=True)
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


def _bars(ax: Axes, data: Sequence[Mapping[str, Any]], label: str) -> None:
    """Draw the central 95 % of each line's null distribution."""
    low, high = ([row["null_mean"] + sign * _NORMAL * row["null_sd"] for row in data] for sign in (-1, 1))
    ax.hlines(_heights(data), low, high, color=COLOR["rule"], linewidth=9, label=label)


def _frame(ax: Axes, names: Sequence[str], label: str) -> None:
    """Write the name of each line above it; the first line is at the top."""
    for k, name in enumerate(names):
        ax.text(0, k - 0.2, words(name), transform=ax.get_yaxis_transform(), va="center_baseline", color=COLOR["ink"])
    ax.set(ylim=(len(names) - 0.45, -0.5), xlabel=label)
    tidy(ax)
    ax.grid(visible=False, axis="y")
    ax.grid(axis="x", color=COLOR["rule"], linewidth=0.6)
    ax.set_yticks([])


#: Label and color of each strategy, in their order.
_LABELS = {
    "keep": ("keep old", "source"),
    "stored": ("map store", "after"),
    "queries": ("map queries", "mid"),
    "re-embed": ("re-embed", "target"),
}

_CONTROLS = {"chance": "a random list", "random_rotation": "random rotation"}


def draw_strategies(data: Mapping[str, Any], ax: Axes | None = None, *, annotate: bool = True) -> Axes:
    """Draw the score of each strategy with its interval; dotted and dashed lines are the scores of the controls.

    ``data``: ``task``; ``strategies``, ``(value, low, high)`` by strategy; ``controls``, score by control.
    """
    with canvas(ax, title=annotate and f"{words(data['task'])} of each strategy") as ax:
        shown = [strategy for strategy in _LABELS if strategy in data["strategies"]]
        for name, label in _CONTROLS.items():
            if name in data["controls"]:
                dashes = (0, (1, 2)) if name == "chance" else (0, (3, 3))
                ax.axhline(data["controls"][name], color=COLOR["ink"], linewidth=1.2, linestyle=dashes, label=label)
        for k, strategy in enumerate(shown):
            value, low, high = data["strategies"][strategy]
            color = COLOR[_LABELS[strategy][1]]
            ax.errorbar([k], [value], [[value - low], [high - value]], fmt="o", markersize=8, color=color)
            ax.annotate(
                f"{value:.3f}".replace("-", "−"), (k, value), xytext=(7, 0), textcoords="offset points",
                va="center_baseline", color=COLOR["soft"],
            )  # fmt: skip
        lowest = min([0.0, *(low for _, low, _ in data["strategies"].values()), *data["controls"].values()])
        ax.set(xlim=(-0.45, len(shown) - 0.35), ylim=(lowest * 1.05, 1), ylabel=words(data["task"]))
        tidy(ax)
        ax.set_xticks(range(len(shown)), [_LABELS[strategy][0] for strategy in shown], color=COLOR["ink"])
        ax.tick_params(axis="x", length=0)
    return ax


def draw_learning_curve(data: Mapping[str, Any], ax: Axes | None = None, *, annotate: bool = True) -> Axes:
    """Draw the score by number of anchors, extrapolated to four times the present number.

    ``data``: ``task``; ``n_anchors``; ``curve``: ``anchors``, ``mean``, ``error`` and the power ``law``
    (``best``, ``drop``, ``exponent``); ``re-embed``, the score of re-embedding, or None.
    """
    with canvas(ax, title=annotate and f"{words(data['task'])} by number of anchors") as ax:
        curve, now = data["curve"], data["n_anchors"]
        sizes: list[float] = list(curve["anchors"])
        mean, error = np.array(curve["mean"]), np.array(curve["error"])
        law = curve["law"]
        more = np.geomspace(sizes[-1], 4 * now, 20)
        extrapolated = law["best"] - law["drop"] * more ** -law["exponent"]
        ax.axvline(now, color=COLOR["faint"], linestyle=(0, (4, 4)))
        ax.fill_between(sizes, mean - error, mean + error, color=COLOR["after"], alpha=0.18, linewidth=0)
        ax.plot(sizes, mean, "o-", color=COLOR["after"], label="measured")
        ax.plot(more, extrapolated, color=COLOR["faint"], linestyle=(0, (4, 4)), label="extrapolated")
        if data["re-embed"] is not None:
            ax.axhline(data["re-embed"], color=COLOR["target"], linewidth=1.6, label="re-embed")
        ax.set_xscale("log")
        ax.set(
            xlim=(sizes[0] / 1.08, 4.8 * now),
            ylim=(
                min(0.0, float((mean - error).min())),
                max(1.0, float(extrapolated.max()), float((mean + error).max())),
            ),
            xlabel="anchors (logarithmic)",
            ylabel=words(data["task"]),
        )
        tidy(ax, x_ticks=[*sizes[::2], now, 4 * now] if sizes[-1] not in sizes[::2] else [*sizes[::2], 4 * now])
    return ax


def draw_progress(data: Mapping[str, Any], ax: Axes | None = None, *, annotate: bool = True) -> Axes:
    """Draw quality by share re-embedded: each stage with its interval, the forecast, and the old and the new model.

    ``data``: ``metric``; ``stages`` and ``forecast``, lists of ``share``, ``value``, ``low`` and ``high``; ``lines``,
    values of ``"new model"`` and ``"old model"``, either of which may be missing.
    """
    with canvas(ax, title=annotate and f"{words(data['metric'])} while re-embedding") as ax:
        for name, value in data["lines"].items():
            color = COLOR["target" if name == "new model" else "source"]
            ax.axhline(value, color=color, linewidth=1.2, linestyle=(0, (3, 3)), label=name)
        for part, color, label in ((data["forecast"], "faint", "forecast"), (data["stages"], "after", "measured")):
            points = [point for point in part if point["value"] == point["value"]]  # without NaN
            if not points:
                continue
            x = [100 * point["share"] for point in points]
            low, high = [point["low"] for point in points], [point["high"] for point in points]
            ax.fill_between(x, low, high, color=COLOR[color], alpha=0.2, linewidth=0)
            dashes = (0, (1, 1.5)) if label == "forecast" else "solid"
            ax.plot(x, [point["value"] for point in points], color=COLOR[color], linestyle=dashes, label=label)
        last = data["stages"][-1]
        ax.plot([100 * last["share"]], [last["value"]], "o", markersize=7, color=COLOR["after"])
        ax.set(xlabel="% re-embedded", ylabel=words(data["metric"]))
        tidy(ax)
    return ax
