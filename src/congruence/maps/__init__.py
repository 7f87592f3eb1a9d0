"""Maps between embedding spaces, and tables of them by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from congruence import persist
from congruence._utils.validation import check_choice
from congruence.errors import CorruptFileError, ParameterError
from congruence.maps._base import AffineMap, Map, NotFittedMapError, refuse_damage
from congruence.maps.frame import CanonicalFrame
from congruence.maps.heads import HeadsMap
from congruence.maps.history import History
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

#: Every map class, by the name used in ``config.json``.
MAPS: dict[str, type[Map]] = {
    "orthogonal": OrthogonalMap,
    "linear": LinearMap,
    "mlp": MLPMap,
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


def load(path: str | Path) -> Map:
    """Load a map saved with ``Map.save``; nothing in the folder is executed. Raises FileError or its kinds."""
    arrays, config = persist.read_folder(path)
    return restore_map(arrays, config, path)


def restore_map(arrays: Mapping[str, np.ndarray], config: Mapping[str, object], path: str | Path) -> Map:
    """Build the map that ``congruence.persist.read_folder`` read from a folder, after checking its content."""
    kind = config.get("kind")
    for other, loader in (("bridge", "Bridge.load"), (CanonicalFrame.kind, "CanonicalFrame.load")):
        if kind == other:
            fix = ("Pass a map.", f"Load it with `congruence.{loader}`.")
            raise ParameterError(f"Got a {other} in {path}; expected a map.", fix)
    if not isinstance(kind, str) or kind not in MAPS:
        problem = f"Got a map of kind {kind!r} in {path}; expected one of {', '.join(MAPS)}."
        raise CorruptFileError(problem, "Upgrade congruence.")
    with refuse_damage("map", path):
        return MAPS[kind]._from_saved(arrays, config)


def from_pretrained(name_or_path: str | Path, *, revision: str | None = None, token: str | None = None) -> Map:
    """Load a map from a local folder or, as ``"owner/name"``, from the Hugging Face hub (extra ``hub``)."""
    if persist.find_map(name_or_path).is_dir():
        return load(name_or_path)
    return load(persist.download_folder(str(name_or_path), revision=revision, token=token))
