"""The kinds of figures and tables of the Canonical paper, with their parameters."""

from __future__ import annotations

from congruence_papers.canonical.figures import (
    consistency,
    diagrams,
    edits,
    few_anchors,
    geometry,
    main,
    statistics,
    transfer,
)
from congruence_papers.study import Kind

__all__ = ["KINDS"]

#: Templates from which the class prototypes for evaluation are computed: all (eq. 6), or the first only, as the caption of table 2 says.
_EVALUATED: dict[str, object] = {"evaluation_templates": "all"}

_FITTED: dict[str, object] = {"fit": "image", "methods": ["orthogonal"]}
_CLASSES = [2, 3, 5, 10, 15, 20, 30, 50]

KINDS: dict[str, Kind] = {
    "main": Kind(main.run, main.RESAMPLED, {**_FITTED, "share": 0.8, "fit_templates": "all", **_EVALUATED}),
    "few_anchors": Kind(
        few_anchors.run, few_anchors.RESAMPLED, {**_FITTED, "classes": _CLASSES, "means": "seen", **_EVALUATED}
    ),
    "transfer": Kind(transfer.run, transfer.RESAMPLED, {"share": 0.8, "means": ["evaluated", "fitted"], **_EVALUATED}),
    "cycle": Kind(consistency.run_cycle, consistency.RESAMPLED, {"fit": "image", "share": 0.95, **_EVALUATED}),
    "composition": Kind(
        consistency.run_composition, consistency.RESAMPLED, {"fit": "image", "share": 0.95, **_EVALUATED}
    ),
    "gap": Kind(geometry.run_gap, geometry.RESAMPLED_GAP, {"steps": 11, "points": 60, **_EVALUATED}),
    "kernels": Kind(geometry.run_kernels, geometry.RESAMPLED_KERNELS, {"points": 400, **_EVALUATED}),
    "clouds": Kind(geometry.run_clouds, geometry.RESAMPLED_CLOUDS, {"points": 60, "share": 0.8, **_EVALUATED}),
    "commuting": Kind(diagrams.run_commuting, diagrams.RESAMPLED, {"examples": 3, "share": 0.8}),
    "edits": Kind(
        edits.run_edits,
        edits.RESAMPLED,
        {"examples": 4, "share": 0.8, "swaps": 500, "captions": "", "edits": {}},
    ),
    "statistics": Kind(statistics.run_statistics, statistics.RESAMPLED),
    "templates": Kind(statistics.run_templates, statistics.RESAMPLED),
}
