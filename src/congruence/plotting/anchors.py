"""Plot of a choice of anchors: the share of the rows' variance that they cover."""

from __future__ import annotations

from matplotlib.axes import Axes

from congruence.plotting.data import Covered
from congruence.plotting.look import COLOR, canvas, explain, tidy, words

__all__ = ["draw_covered"]


def draw_covered(data: Covered, ax: Axes | None = None, *, annotate: bool = True) -> Axes:
    """Draw the share of the rows' variance in the span of the first anchors, by number of anchors.

    Parameters
    ----------
    data : mapping
        ``shares``: for each order of the anchors, the shares for the first 1, 2, … anchors; the order named ``random`` is drawn as a control.
    ax : matplotlib.axes.Axes, optional
        Axes to draw on; by default those of a new figure, which is not registered with pyplot.
    annotate : bool, default=True
        Add a title and a legend.
    """
    with canvas(ax) as ax:
        most = 1
        for name, shares in sorted(data["shares"].items(), key=lambda item: item[0] == "random"):
            is_random = name == "random"
            style = {"color": COLOR["ink"], "linestyle": (0, (1, 2))} if is_random else {"color": COLOR["after"]}
            ax.plot(range(1, len(shares) + 1), shares, label="in random order" if is_random else words(name), **style)
            most = max(most, len(shares))
        ax.set(xlim=(0, most), ylim=(0, 1.02), xlabel="anchors", ylabel="variance covered")
        tidy(ax)
        if annotate:
            explain(ax, "Variance in the anchors' span")
    return ax
