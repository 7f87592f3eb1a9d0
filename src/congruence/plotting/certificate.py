"""Plots of a certificate: the score of each strategy, and the effect of more anchors."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes

from congruence.plotting.data import AnchorsCurve, Strategies
from congruence.plotting.look import COLOR, canvas, explain, tidy, words

__all__ = ["draw_learning_curve", "draw_strategies"]

#: Label and color of each strategy, in their order.
_LABELS = {
    "keep": ("keep old", "source"),
    "stored": ("map store", "after"),
    "queries": ("map queries", "mid"),
    "re-embed": ("re-embed", "target"),
}

_CONTROLS = {"chance": "a random list", "random_rotation": "random rotation"}


def draw_strategies(data: Strategies, ax: Axes | None = None, *, annotate: bool = True) -> Axes:
    """Draw the score of each strategy with its interval; dotted and dashed lines are the scores of the controls.

    Parameters
    ----------
    data : mapping
        ``task``; ``strategies``: ``(value, low, high)`` by strategy; ``controls``: score by control.
    ax : matplotlib.axes.Axes, optional
        Axes to draw on; by default those of a new figure, which is not registered with pyplot.
    annotate : bool, default=True
        Add a title, and a legend of the controls.
    """
    with canvas(ax) as ax:
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
        if annotate:
            explain(ax, f"{words(data['task'])} of each strategy")
    return ax


def draw_learning_curve(data: AnchorsCurve, ax: Axes | None = None, *, annotate: bool = True) -> Axes:
    """Draw the score by number of anchors, extrapolated to four times the present number.

    Parameters
    ----------
    data : mapping
        ``task``; ``n_anchors``; ``curve``: ``anchors``, ``mean``, ``sd``, ``repeats`` and the power ``law`` (``best``, ``drop``, ``exponent``);
        ``re-embed``: the score of re-embedding, or None.
    ax : matplotlib.axes.Axes, optional
        Axes to draw on; by default those of a new figure, which is not registered with pyplot.
    annotate : bool, default=True
        Add a title and labels that identify what is drawn.
    """
    with canvas(ax) as ax:
        curve, now = data["curve"], data["n_anchors"]
        sizes: list[float] = list(curve["anchors"])
        mean, sd = np.array(curve["mean"]), np.array(curve["sd"])
        law = curve["law"]
        more = np.geomspace(sizes[-1], 4 * now, 20)
        extrapolated = law["best"] - law["drop"] * more ** -law["exponent"]
        ax.axvline(now, color=COLOR["faint"], linestyle=(0, (4, 4)))
        ax.fill_between(sizes, mean - sd, mean + sd, color=COLOR["after"], alpha=0.18, linewidth=0)
        ax.plot(sizes, mean, "o-", color=COLOR["after"], label=f"mean of {curve['repeats']} draws")
        ax.plot(more, extrapolated, color=COLOR["faint"], linestyle=(0, (4, 4)), label="extrapolated")
        if data["re-embed"] is not None:
            ax.axhline(data["re-embed"], color=COLOR["target"], linewidth=1.6, label="re-embed")
        ax.set_xscale("log")
        ax.set(
            xlim=(sizes[0] / 1.08, 4.8 * now),
            ylim=(min(0.0, float((mean - sd).min())), max(1.0, float(extrapolated.max()), float((mean + sd).max()))),
            xlabel="anchors (logarithmic)",
            ylabel=words(data["task"]),
        )
        tidy(ax, x_ticks=[*sizes[::2], now, 4 * now] if sizes[-1] not in sizes[::2] else [*sizes[::2], 4 * now])
        if annotate:
            explain(ax, f"{words(data['task'])} by number of anchors")
    return ax
