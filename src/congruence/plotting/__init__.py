"""Plots with matplotlib: each function draws one from plain data, and the ``plot`` methods of results draw the same.

``ax`` are the matplotlib axes to draw on, by default those of a new figure, which a notebook displays and which is not
registered with pyplot. With ``annotate``, the default, a plot has a title and labels that identify what is drawn. The
axes are returned. The user's ``rcParams`` are not changed, nor used for new axes.
"""

from congruence._utils.optional import require

require("matplotlib", extra="plot")

from congruence.plotting.layers import draw_layers
from congruence.plotting.maps import (
    draw_class_margins,
    draw_clouds,
    draw_correlations,
    draw_cosines,
    draw_covered,
    draw_few_anchors,
    draw_kernel,
    draw_rank_trade_off,
    draw_singular_values,
    draw_spectrum,
)
from congruence.plotting.scores import (
    draw_learning_curve,
    draw_pairing,
    draw_progress,
    draw_scores,
    draw_separations,
    draw_shift,
    draw_similarities,
    draw_strategies,
)
from congruence.plotting.training import draw_loss, draw_margins, draw_recalls, draw_validation

__all__ = [
    "draw_class_margins",
    "draw_clouds",
    "draw_correlations",
    "draw_cosines",
    "draw_covered",
    "draw_few_anchors",
    "draw_kernel",
    "draw_layers",
    "draw_learning_curve",
    "draw_loss",
    "draw_margins",
    "draw_pairing",
    "draw_progress",
    "draw_rank_trade_off",
    "draw_recalls",
    "draw_scores",
    "draw_separations",
    "draw_shift",
    "draw_similarities",
    "draw_singular_values",
    "draw_spectrum",
    "draw_strategies",
    "draw_validation",
]
