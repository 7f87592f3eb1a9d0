"""The kinds of figures and tables of SOTAlign, with their parameters."""

from __future__ import annotations

from congruence_papers.sotalign.figures import methods, sources
from congruence_papers.sotalign.protocol import RESAMPLED
from congruence_papers.study import Kind

__all__ = ["KINDS"]

#: Parameters of most kinds; a size of 0 or an empty value is chosen for the data.
_SIZES: dict[str, object] = {"unpaired": 0, "validation": 0, "test": 0, "training": {}, "tune": True, "overlap": 0.0}
_TWO = ["sail", "sotalign"]

KINDS: dict[str, Kind] = {
    "sotalign_methods": Kind(methods.run_methods, RESAMPLED, {"methods": ["sotalign", "sail"], "pairs": [], **_SIZES}),
    "sotalign_teachers": Kind(
        methods.run_teachers,
        RESAMPLED,
        {
            "teachers": ["procrustes", "cca", "contrastive"],
            "divergences": ["none", "cka", "infonce", "klot"],
            "pairs": 0,
            **_SIZES,
        },
    ),
    "sotalign_sweep": Kind(
        methods.run_sweep,
        RESAMPLED,
        {
            "methods": ["sotalign", "sail"],
            "over": ["pairs", "unpaired"],
            "pairs": 0,
            "pairs_sweep": [],
            "unpaired_sweep": [],
            **_SIZES,
        },
    ),
    "sotalign_unpaired_sources": Kind(
        sources.run_unpaired_sources, RESAMPLED, {"vary": "both", "scatter": False, "pairs": 0, **_SIZES}
    ),
    "sotalign_source_distances": Kind(sources.run_source_distances, "the halves of the sources, and the circles"),
    "sotalign_paired_sources": Kind(
        sources.run_paired_sources, RESAMPLED, {"methods": _TWO, "scatter": False, "pairs": 0, **_SIZES}
    ),
    "sotalign_encoders": Kind(
        sources.run_encoders, RESAMPLED, {"methods": _TWO, "scatter": False, "pairs": 0, **_SIZES}
    ),
}
