"""Find the rigid motion between two embedding spaces, and carry vectors across it.

Names are loaded when first used, so that ``import congruence`` costs next to nothing and never imports torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from congruence._version import __version__

if TYPE_CHECKING:
    from congruence.embeddings import Embeddings, Pairs, Space
    from congruence.maps import MAPS, LinearMap, MLPMap, OrthogonalMap, from_pretrained, load

_HOME = {
    "Embeddings": "congruence.embeddings",
    "Pairs": "congruence.embeddings",
    "Space": "congruence.embeddings",
    "MAPS": "congruence.maps",
    "LinearMap": "congruence.maps",
    "MLPMap": "congruence.maps",
    "OrthogonalMap": "congruence.maps",
    "from_pretrained": "congruence.maps",
    "load": "congruence.maps",
}
_MODULES = ("embeddings", "errors", "linalg", "maps", "metrics", "moments", "synthetic")

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    if name in _MODULES:
        return importlib.import_module(f"congruence.{name}")
    raise AttributeError(f"module 'congruence' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, *_MODULES})
