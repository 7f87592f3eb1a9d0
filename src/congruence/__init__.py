"""Find the rigid motion between two embedding spaces, and map vectors across it.

Each name is imported when it is first used, so ``import congruence`` is fast and never imports torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from congruence._version import __version__

if TYPE_CHECKING:
    from congruence.compare.layers import compare_layers as compare_layers
    from congruence.compare.pairing import check_pairing as check_pairing
    from congruence.compare.spaces import compare_spaces as compare_spaces
    from congruence.embeddings import Embeddings as Embeddings
    from congruence.embeddings import Pairs as Pairs
    from congruence.embeddings import Space as Space
    from congruence.evaluation import compare_maps as compare_maps
    from congruence.evaluation import evaluate as evaluate
    from congruence.maps import MAPS as MAPS
    from congruence.maps import CanonicalFrame as CanonicalFrame
    from congruence.maps import CCAMap as CCAMap
    from congruence.maps import HeadsMap as HeadsMap
    from congruence.maps import LinearMap as LinearMap
    from congruence.maps import MLPMap as MLPMap
    from congruence.maps import OrthogonalMap as OrthogonalMap
    from congruence.maps import ProcrustesHeads as ProcrustesHeads
    from congruence.maps import RefinedMap as RefinedMap
    from congruence.maps import UnpairedMap as UnpairedMap
    from congruence.maps import from_pretrained as from_pretrained
    from congruence.maps import refine as refine
    from congruence.stores import read_embeddings as read_embeddings
    from congruence.system import SystemInfo as SystemInfo
    from congruence.system import system_info as system_info
    from congruence.train import CSA as CSA
    from congruence.train import JAM as JAM
    from congruence.train import NNCLR as NNCLR
    from congruence.train import SAIL as SAIL
    from congruence.train import SCLIP as SCLIP
    from congruence.train import STRUCTURE as STRUCTURE
    from congruence.train import SUE as SUE
    from congruence.train import Contrastive as Contrastive
    from congruence.train import SOTAlign as SOTAlign
    from congruence.upgrade.bridge import Bridge as Bridge
    from congruence.upgrade.bridge import load as load
    from congruence.upgrade.certify import certify as certify
    from congruence.upgrade.fit import fit as fit
    from congruence.upgrade.migrate import Migration as Migration
    from congruence.upgrade.migrate import migrate as migrate
    from congruence.upgrade.migrate.stages import reembed as reembed
    from congruence.upgrade.progressive import Progressive as Progressive
    from congruence.upgrade.transform import transform_file as transform_file

#: Public name: (module, name there).
_HOME = {
    "Embeddings": ("congruence.embeddings", "Embeddings"),
    "Pairs": ("congruence.embeddings", "Pairs"),
    "Space": ("congruence.embeddings", "Space"),
    "read_embeddings": ("congruence.stores", "read_embeddings"),
    "MAPS": ("congruence.maps", "MAPS"),
    "CanonicalFrame": ("congruence.maps", "CanonicalFrame"),
    "CCAMap": ("congruence.maps", "CCAMap"),
    "HeadsMap": ("congruence.maps", "HeadsMap"),
    "LinearMap": ("congruence.maps", "LinearMap"),
    "MLPMap": ("congruence.maps", "MLPMap"),
    "OrthogonalMap": ("congruence.maps", "OrthogonalMap"),
    "ProcrustesHeads": ("congruence.maps", "ProcrustesHeads"),
    "RefinedMap": ("congruence.maps", "RefinedMap"),
    "UnpairedMap": ("congruence.maps", "UnpairedMap"),
    "from_pretrained": ("congruence.maps", "from_pretrained"),
    "load": ("congruence.upgrade.bridge", "load"),
    "refine": ("congruence.maps", "refine"),
    "SystemInfo": ("congruence.system", "SystemInfo"),
    "system_info": ("congruence.system", "system_info"),
    "CSA": ("congruence.train", "CSA"),
    "JAM": ("congruence.train", "JAM"),
    "NNCLR": ("congruence.train", "NNCLR"),
    "SAIL": ("congruence.train", "SAIL"),
    "SCLIP": ("congruence.train", "SCLIP"),
    "STRUCTURE": ("congruence.train", "STRUCTURE"),
    "SUE": ("congruence.train", "SUE"),
    "Contrastive": ("congruence.train", "Contrastive"),
    "SOTAlign": ("congruence.train", "SOTAlign"),
    "fit": ("congruence.upgrade.fit", "fit"),
    "Bridge": ("congruence.upgrade.bridge", "Bridge"),
    "Migration": ("congruence.upgrade.migrate", "Migration"),
    "migrate": ("congruence.upgrade.migrate", "migrate"),
    "reembed": ("congruence.upgrade.migrate.stages", "reembed"),
    "Progressive": ("congruence.upgrade.progressive", "Progressive"),
    "transform_file": ("congruence.upgrade.transform", "transform_file"),
    "compare_maps": ("congruence.evaluation", "compare_maps"),
    "evaluate": ("congruence.evaluation", "evaluate"),
    "certify": ("congruence.upgrade.certify", "certify"),
    "check_pairing": ("congruence.compare.pairing", "check_pairing"),
    "compare_layers": ("congruence.compare.layers", "compare_layers"),
    "compare_spaces": ("congruence.compare.spaces", "compare_spaces"),
}
_MODULES = (
    "compare",
    "databases",
    "datasets",
    "embed",
    "embeddings",
    "encoders",
    "errors",
    "evaluation",
    "integrations",
    "linalg",
    "maps",
    "metrics",
    "negatives",
    "papers",
    "plotting",
    "recipe",
    "report",
    "stores",
    "synthetic",
    "system",
    "theory",
    "train",
    "transport",
    "upgrade",
)

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        module, attribute = _HOME[name]
        return getattr(importlib.import_module(module), attribute)
    if name in _MODULES:
        return importlib.import_module(f"congruence.{name}")
    raise AttributeError(f"module 'congruence' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES])
