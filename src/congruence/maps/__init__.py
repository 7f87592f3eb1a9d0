"""Maps between embedding spaces, and tables of them by name."""

from __future__ import annotations

from congruence._utils.validation import check_choice
from congruence.maps._base import MAPS, AffineMap, Map, NotFittedMapError, from_pretrained, load, restore_map
from congruence.maps.frame import CanonicalFrame
from congruence.maps.heads import HeadsMap
from congruence.maps.history import History
from congruence.maps.kernel import KernelMap
from congruence.maps.linear import LinearMap
from congruence.maps.mlp import MLPMap
from congruence.maps.orthogonal import OrthogonalMap
from congruence.maps.projections import CCAMap, ProcrustesHeads
from congruence.maps.refinement import RefinedMap, refine
from congruence.maps.unpaired import UnpairedMap

__all__ = [
    "MAPS",
    "METHODS",
    "AffineMap",
    "CCAMap",
    "CanonicalFrame",
    "HeadsMap",
    "History",
    "KernelMap",
    "LinearMap",
    "MLPMap",
    "Map",
    "NotFittedMapError",
    "OrthogonalMap",
    "ProcrustesHeads",
    "RefinedMap",
    "UnpairedMap",
    "from_pretrained",
    "load",
    "make_map",
    "refine",
    "restore_map",
]

MAPS |= {
    "orthogonal": OrthogonalMap,
    "linear": LinearMap,
    "mlp": MLPMap,
    "kernel": KernelMap,
    "procrustes": ProcrustesHeads,
    "cca": CCAMap,
    "heads": HeadsMap,
}

#: Map classes that are fitted on pairs, by the name that ``--method`` and ``make_map`` use; heads are trained
#: instead.
METHODS: dict[str, type[Map]] = {name: cls for name, cls in MAPS.items() if cls is not HeadsMap}


def make_map(method: str, **parameters: object) -> Map:
    """Return an unfitted map by its name in ``METHODS``, with parameters of its class."""
    return METHODS[check_choice(method, METHODS, "method")](**parameters)
