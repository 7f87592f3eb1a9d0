"""Plots with matplotlib: each function draws one plot from plain data, on the user's axes or on new ones.

The ``plot`` methods of results draw the same plots. Importing this package imports matplotlib, but never pyplot: figures are not
registered with pyplot, and the user's ``rcParams`` are not changed, nor used for new axes.
"""

from congruence.plotting.anchors import draw_covered
from congruence.plotting.certificate import draw_learning_curve, draw_strategies
from congruence.plotting.layers import draw_layers
from congruence.plotting.maps import draw_clouds, draw_cosines, draw_few_anchors, draw_kernel, draw_spectrum
from congruence.plotting.progressive import draw_progress
from congruence.plotting.scores import draw_pairing, draw_scores, draw_separations, draw_shift, draw_similarities
from congruence.plotting.theory import (
    draw_class_margins,
    draw_correlations,
    draw_rank_trade_off,
    draw_singular_values,
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
