"""The kinds of experiment, one file each, and the table that names them."""

from __future__ import annotations

from collections.abc import Callable

from congruence.experiments.kinds import (
    aligning,
    aligning_sources,
    consistency,
    diagrams,
    edits,
    few_anchors,
    geometry,
    joining,
    main,
    statistics,
    transfer,
)
from congruence.experiments.kinds._aligning import RESAMPLED as SPLITS
from congruence.experiments.kinds._base import QUICK_DRAWS, Job
from congruence.experiments.kinds._joining import RESAMPLED as DIVISIONS

__all__ = ["KINDS", "QUICK_DRAWS", "Job"]

#: Every kind: what runs it, and what its draws resample.
KINDS: dict[str, tuple[Callable[[Job], None], str]] = {
    "main": (main.run, main.RESAMPLED),
    "few_anchors": (few_anchors.run, few_anchors.RESAMPLED),
    "transfer": (transfer.run, transfer.RESAMPLED),
    "cycle": (consistency.run_cycle, consistency.RESAMPLED),
    "composition": (consistency.run_composition, consistency.RESAMPLED),
    "gap": (geometry.run_gap, geometry.RESAMPLED_GAP),
    "kernels": (geometry.run_kernels, geometry.RESAMPLED_KERNELS),
    "clouds": (geometry.run_clouds, geometry.RESAMPLED_CLOUDS),
    "commuting": (diagrams.run_commuting, diagrams.RESAMPLED),
    "edits": (edits.run_edits, edits.RESAMPLED),
    "statistics": (statistics.run_statistics, statistics.RESAMPLED),
    "templates": (statistics.run_templates, statistics.RESAMPLED),
    "align_methods": (aligning.run_methods, SPLITS),
    "align_teachers": (aligning.run_teachers, SPLITS),
    "align_sweep": (aligning.run_sweep, SPLITS),
    "align_unpaired_sources": (aligning_sources.run_unpaired_sources, SPLITS),
    "align_source_distances": (aligning_sources.run_source_distances, "the halves of the sources, and the circles"),
    "align_paired_sources": (aligning_sources.run_paired_sources, SPLITS),
    "align_encoders": (aligning_sources.run_encoders, SPLITS),
    "joint_losses": (joining.run_losses, DIVISIONS),
    "joint_layers": (joining.run_layers, DIVISIONS),
    "joint_statistics": (joining.run_statistics, joining.RESAMPLED_STATISTICS),
    "joint_sizes": (joining.run_sizes, "nothing: these are counts"),
}
