"""The kinds of figures and tables of JAM, with their parameters."""

from __future__ import annotations

from congruence_papers.jam.controls import CONTROLS
from congruence_papers.jam.data import TASKS
from congruence_papers.jam.figures import controls, losses, statistics, tradeoff
from congruence_papers.jam.protocol import RESAMPLED
from congruence_papers.study import Kind

__all__ = ["KINDS"]

#: Parameters of most kinds; a number of items that is 0 or an empty value is chosen for the data.
_PARTS: dict[str, object] = {"tasks": list(TASKS), "train": 0, "validation": 0, "test": 0, "training": {}}

KINDS: dict[str, Kind] = {
    "jam_losses": Kind(
        losses.run_losses,
        RESAMPLED,
        {"methods": ["con", "negcon", "spread", "cca", "text_only"], "dual_encoders": [], "dual_methods": [], **_PARTS},
    ),
    "jam_pairs": Kind(
        losses.run_pairs,
        RESAMPLED,
        {
            "methods": ["con", "negcon", "spread"],
            "pairs": [16, 32, 64, 128],
            **{key: value for key, value in _PARTS.items() if key != "train"},
        },
    ),
    "jam_transfer": Kind(
        controls.run_transfer,
        RESAMPLED,
        {"methods": ["spread", "text_only"], **{key: value for key, value in _PARTS.items() if key != "tasks"}},
    ),
    "jam_controls": Kind(
        controls.run_controls, RESAMPLED, {"methods": ["spread", "text_only"], "controls": list(CONTROLS), **_PARTS}
    ),
    "jam_reconstruction": Kind(
        tradeoff.run_reconstruction,
        RESAMPLED,
        {"methods": ["spread"], "weights": [0.0, 0.01, 0.1, 1.0, 10.0], **_PARTS},
    ),
    "jam_layer_pairs": Kind(tradeoff.run_layer_pairs, RESAMPLED, {"methods": ["spread"], **_PARTS}),
    "jam_layers": Kind(losses.run_layers, RESAMPLED, {"spread_mix": [0.0, 1.0], **_PARTS}),
    "jam_statistics": Kind(statistics.run_statistics, statistics.RESAMPLED, {"tasks": list(TASKS), "rows": 1000}),
    "jam_sizes": Kind(statistics.run_sizes, "nothing: these are counts", {"widths": {}}),
}
