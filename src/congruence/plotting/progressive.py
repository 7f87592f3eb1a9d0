"""Plot of a progressive migration: quality against the share of re-embedded rows."""

from __future__ import annotations

from matplotlib.axes import Axes

from congruence.plotting.data import ProgressPicture
from congruence.plotting.look import COLOR, canvas, explain, tidy, words

__all__ = ["draw_progress"]


def draw_progress(data: ProgressPicture, ax: Axes | None = None, *, annotate: bool = True) -> Axes:
    """Draw the quality of each stage with its interval, the last stage as a dot, the forecast, and lines for the old and the new model.

    Parameters
    ----------
    data : mapping
        ``metric``; ``stages`` and ``forecast``: lists of ``share``, ``value``, ``low`` and ``high``; ``lines``: values of ``"new model"`` and ``"old model"``, either
        of which may be missing.
    ax : matplotlib.axes.Axes, optional
        Axes to draw on; by default those of a new figure, which is not registered with pyplot.
    annotate : bool, default=True
        Add a title and a legend.
    """
    with canvas(ax) as ax:
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
        if annotate:
            explain(ax, f"{words(data['metric'])} while re-embedding")
    return ax
