"""Change the embedding model of a vector index without encoding everything again.

Each name is imported when it is first used, so ``import congruence`` is fast and never imports torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from congruence._version import __version__

if TYPE_CHECKING:
    from congruence.compare.pairing import check_pairing as check_pairing
    from congruence.compare.spaces import compare_layers as compare_layers
    from congruence.compare.spaces import compare_spaces as compare_spaces
    from congruence.embeddings import Embeddings as Embeddings
    from congruence.embeddings import Pairs as Pairs
    from congruence.embeddings import Space as Space
    from congruence.evaluation import compare_maps as compare_maps
    from congruence.evaluation import evaluate as evaluate
    from congruence.io import read_embeddings as read_embeddings
    from congruence.maps import MAPS as MAPS
    from congruence.maps import CanonicalFrame as CanonicalFrame
    from congruence.maps import CCAMap as CCAMap
    from congruence.maps import HeadsMap as HeadsMap
    from congruence.maps import KernelMap as KernelMap
    from congruence.maps import LinearMap as LinearMap
    from congruence.maps import MLPMap as MLPMap
    from congruence.maps import OrthogonalMap as OrthogonalMap
    from congruence.maps import ProcrustesHeads as ProcrustesHeads
    from congruence.maps import RefinedMap as RefinedMap
    from congruence.maps import UnpairedMap as UnpairedMap
    from congruence.maps import from_pretrained as from_pretrained
    from congruence.maps import refine as refine
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
    from congruence.train import SelfTrainedMap as SelfTrainedMap
    from congruence.train import SOTAlign as SOTAlign
    from congruence.upgrade.bridge import Bridge as Bridge
    from congruence.upgrade.bridge import load as load
    from congruence.upgrade.certify import certify as certify
    from congruence.upgrade.fit import fit as fit
    from congruence.upgrade.lazy import LazySearch as LazySearch
    from congruence.upgrade.migrate import Migration as Migration
    from congruence.upgrade.migrate import migrate as migrate
    from congruence.upgrade.migrate.stages import reembed as reembed
    from congruence.upgrade.progressive import Progressive as Progressive
    from congruence.upgrade.transform import transform_file as transform_file

#: Public names, by the module that they are imported from.
_HOME = {
    "compare.pairing": "check_pairing",
    "compare.spaces": "compare_layers compare_spaces",
    "embeddings": "Embeddings Pairs Space",
    "evaluation": "compare_maps evaluate",
    "io": "read_embeddings",
    "maps": "CCAMap CanonicalFrame HeadsMap KernelMap LinearMap MAPS MLPMap OrthogonalMap ProcrustesHeads RefinedMap "
    "UnpairedMap from_pretrained refine",
    "system": "SystemInfo system_info",
    "train": "CSA Contrastive JAM NNCLR SAIL SCLIP SOTAlign STRUCTURE SUE SelfTrainedMap",
    "upgrade.bridge": "Bridge load",
    "upgrade.certify": "certify",
    "upgrade.fit": "fit",
    "upgrade.lazy": "LazySearch",
    "upgrade.migrate": "Migration migrate",
    "upgrade.migrate.stages": "reembed",
    "upgrade.progressive": "Progressive",
    "upgrade.transform": "transform_file",
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names.split()}
_MODULES = (
    "compare databases datasets embed embeddings encoders errors evaluation integrations io linalg maps metrics "
    "plotting recipe report synthetic system theory train transport upgrade"
)

__all__ = ["__version__", *_MODULE_OF]


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        return getattr(importlib.import_module(f"congruence.{_MODULE_OF[name]}"), name)
    if name in _MODULES.split():
        return importlib.import_module(f"congruence.{name}")
    raise AttributeError(f"module 'congruence' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES.split()])
