"""Tables and figures of three papers, recomputed on the data at hand; adds ``congruence lab reproduce``."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from congruence_papers.canonical import Collection, Model
    from congruence_papers.core import Claim, Data, Experiment
    from congruence_papers.figure import panels, write_experiment
    from congruence_papers.jam import JAMData
    from congruence_papers.running import EXPERIMENTS, PAPERS, Outcome, listing, run
    from congruence_papers.sotalign import SOTAlignData

#: Where the names are; a command that needs one module does not wait for the others.
_NAMES = {
    "canonical": ("Collection", "Model"),
    "core": ("Claim", "Data", "Experiment"),
    "figure": ("panels", "write_experiment"),
    "jam": ("JAMData",),
    "running": ("EXPERIMENTS", "PAPERS", "Outcome", "listing", "run"),
    "sotalign": ("SOTAlignData",),
}

__all__ = [
    "EXPERIMENTS",
    "PAPERS",
    "Claim",
    "Collection",
    "Data",
    "Experiment",
    "JAMData",
    "Model",
    "Outcome",
    "SOTAlignData",
    "listing",
    "panels",
    "run",
    "write_experiment",
]


def __getattr__(name: str) -> Any:
    for module, names in _NAMES.items():
        if name in names:
            return getattr(import_module(f"congruence_papers.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
