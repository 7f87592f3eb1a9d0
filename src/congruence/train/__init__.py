"""Train pairs of heads on frozen embeddings: SOTAlign, and the methods it is compared with.

torch is imported when a method is fitted, and not before.
"""

import inspect

from congruence._utils.validation import check_choice
from congruence.errors import ParameterError
from congruence.maps import HeadsMap
from congruence.maps.history import History
from congruence.train._base import HeadsObjective, HeadTrainer
from congruence.train.closed import CCA, CSA, Procrustes, WeightedCCA
from congruence.train.jam import JAM, split_by_group
from congruence.train.loop import Schedule
from congruence.train.nnclr import NNCLR
from congruence.train.rows import ArrayRows, Rows, Sources
from congruence.train.sail import SAIL, Contrastive
from congruence.train.sclip import SCLIP
from congruence.train.self_trained import SelfTrainedMap
from congruence.train.sotalign import SOTAlign
from congruence.train.structure import STRUCTURE
from congruence.train.sue import SUE

__all__ = [
    "CCA",
    "CSA",
    "JAM",
    "METHODS",
    "NNCLR",
    "SAIL",
    "SCLIP",
    "STRUCTURE",
    "SUE",
    "ArrayRows",
    "Contrastive",
    "HeadTrainer",
    "HeadsObjective",
    "History",
    "Procrustes",
    "Rows",
    "SOTAlign",
    "Schedule",
    "SelfTrainedMap",
    "Sources",
    "WeightedCCA",
    "make_method",
    "split_by_group",
]

#: Every method, by name: each is a joint-space map with the same ``fit``, but for the rows it learns from beside the
#: pairs: unpaired ones, or JAM's wrong captions.
METHODS: dict[str, type[HeadsMap]] = {
    cls.method: cls
    for cls in (
        *(SelfTrainedMap, SOTAlign, SAIL, STRUCTURE, NNCLR, SCLIP, SUE, CSA, Contrastive, CCA, WeightedCCA, Procrustes),
        JAM,
    )
}


def make_method(name: str, **parameters: object) -> HeadsMap:
    """Return a method of ``METHODS`` by name, with the given parameters."""
    cls = METHODS[check_choice(name, METHODS, "method")]
    known = sorted(inspect.signature(cls).parameters)
    if unknown := sorted(set(parameters) - set(known)):
        raise ParameterError(f"Got {', '.join(unknown)} for {name}; expected some of {', '.join(known)}.", "Use these.")
    return cls(**parameters)
