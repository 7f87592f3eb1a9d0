"""Heat map of similarities between the layers of two models, with the value in every cell."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, Normalize, to_rgba
from matplotlib.patches import Rectangle

from congruence.plotting.look import COLOR, canvas, words

#: Size of a cell, and average width of a letter, in points.
_CELL_WIDTH, _CELL_HEIGHT, _LETTER = 52, 30, 7.4

#: Maximum length of a layer's name.
_NAME = 40

#: Color strengths above which text switches to white in light mode, and to black in dark mode. The contrast is at least
#: 4.5 for all strengths.
STRONG = 0.86
MIDDLE = 0.62


def layer_notes(data: dict[str, Any]) -> list[str]:
    """Return the notes that explain the plot, one line each."""
    return [
        f"{data['metric']}, {data['n']} items. Stronger color: more standard deviations closer than chance.",
        f"Framed: best of {len(data['x_layers']) * len(data['y_layers'])}, {words(data['best'][0])} and "
        f"{words(data['best'][1])}, {data['best_value']:.3f}.",
        f"By chance the best is {data['best_null_mean']:.3f} ± {data['best_null_sd']:.3f} ({data['permutations']} "
        f"re-pairings); p = {data['best_adjusted_p_value']:.3f}, corrected for the search.",
    ]


def layers_size(data: dict[str, Any], title: str = "") -> tuple[float, float]:
    """Return the size in points that ``draw_layers`` needs with its title and notes."""
    rows, columns = ([words(name, _NAME) for name in data[side]] for side in ("x_layers", "y_layers"))
    slope = _LETTER * max(map(len, columns)) * 0.71  # column names are rotated by 45 degrees
    width = 24 + _LETTER * max(map(len, rows)) + _CELL_WIDTH * len(columns) + slope
    notes = 16 + 5.9 * max(map(len, [*layer_notes(data), title]))
    return max(width, notes), 104 + slope + _CELL_HEIGHT * len(rows)


def draw_layers(
    data: dict[str, Any], ax: Axes | None = None, *, title: str = "Similarity of layers", annotate: bool = True
) -> Axes:
    """Draw the scores of all pairs of layers as a heat map.

    The color of a cell shows how far its score is above chance; the best score has a frame. ``data``: that of
    ``congruence.compare.layers.LayerComparison.to_dict``, plus ``strength``, the color strength of each cell, 0 to
    1.
    """
    with canvas(ax, layers_size(data, title)) as ax:
        strength, values = np.asarray(data["strength"]), data["values"]
        # A fully transparent cell would show no tooltip.
        fade = LinearSegmentedColormap.from_list("strength", [to_rgba(COLOR["after"], a) for a in (0.002, 1)], N=1001)
        mesh = ax.pcolormesh(
            strength, cmap=fade, norm=Normalize(0, 1), edgecolors=COLOR["paper"], linewidth=1, gid="cells"
        )
        mesh.set_antialiased(True)
        best = (list(data["x_layers"]).index(data["best"][0]), list(data["y_layers"]).index(data["best"][1]))
        for (i, j), shade in np.ndenumerate(strength):
            kind = "on-strong" if shade > STRONG else "on-middle" if shade > MIDDLE else "on-weak"
            value = f"{values[i][j]:.2f}".replace("-", "−")
            ax.text(j + 0.5, i + 0.5, value, ha="center", va="center_baseline", color=COLOR[kind])
        ax.add_patch(
            Rectangle((best[1], best[0]), 1, 1, fill=False, edgecolor=COLOR["ink"], linewidth=2.5, clip_on=False)
        )
        ax.set(xlim=(0, strength.shape[1]), ylim=(strength.shape[0], 0))
        ax.spines[:].set_visible(False)
        ax.tick_params(length=0, pad=5)
        ax.xaxis.tick_top()
        names = [words(name, _NAME) for name in data["y_layers"]]
        ax.set_xticks(
            np.arange(len(names)) + 0.5,
            names,
            rotation=45,
            ha="left",
            va="bottom",
            rotation_mode="anchor",
            color=COLOR["ink"],
        )
        ax.set_yticks(
            np.arange(len(strength)) + 0.5, [words(name, _NAME) for name in data["x_layers"]], color=COLOR["ink"]
        )
        if annotate:
            ax.set_title(words(title), loc="left", x=0)
            for k, note in enumerate(layer_notes(data)):
                ax.annotate(
                    note, (0, 0), xytext=(0, -14 - 17 * k), xycoords="axes fraction", textcoords="offset points",
                    va="baseline", color=COLOR["soft"],
                )  # fmt: skip
    return ax
