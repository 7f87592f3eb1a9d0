"""Save and load a bridge: a map's folder, whose configuration also states how queries are processed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from congruence import persist
from congruence._utils.display import as_markdown
from congruence.embeddings import MODALITIES
from congruence.errors import CorruptFileError
from congruence.evaluation.thresholds import Thresholds
from congruence.maps import restore_map
from congruence.upgrade.bridge._base import BridgedQueries

__all__ = ["KIND", "read_bridge", "restore_bridge", "write_bridge"]

BridgeT = TypeVar("BridgeT", bound=BridgedQueries)

#: ``kind`` of a bridge in ``config.json``; that of a map is its method.
KIND = "bridge"

#: Name of the array of thresholds.
TABLE = "bridge.thresholds"

#: Entries of a map's configuration that are stored among a bridge's facts, so that the digest of the facts covers them.
_OF_MAP = ("kind", "parameters", "facts")


def read_bridge(cls: type[BridgeT], path: str | Path) -> BridgeT:
    """Read a bridge's folder, or a map's; see :meth:`congruence.Bridge.load`."""
    arrays, config = persist.read_folder(path)
    if config.get("kind") != KIND:
        return cls(restore_map(arrays, config, path))
    return restore_bridge(cls, arrays, config, path)


def write_bridge(bridge: BridgedQueries, path: str | Path, *, force: bool) -> Path:
    """Write a bridge's folder; see :meth:`congruence.Bridge.save`."""
    config = bridge.map.config()
    saved = {
        **config,
        "kind": KIND,
        "parameters": {"normalize": bridge.normalize, "modality": bridge.modality},
        "facts": {"map": {key: config[key] for key in _OF_MAP}},
    }
    arrays = bridge.map.state()
    if bridge.thresholds is not None:
        saved["facts"]["thresholds"] = bridge.thresholds.facts()
        arrays = {**arrays, TABLE: bridge.thresholds.table}
    return persist.write_folder(path, arrays, saved, _card(bridge), force=force)


def restore_bridge(
    cls: type[BridgeT], arrays: Mapping[str, np.ndarray], config: Mapping[str, Any], path: str | Path
) -> BridgeT:
    """Return the bridge that was read from a folder, after checking its content. Raises CorruptFileError."""
    try:
        parameters, facts = config["parameters"], config["facts"]
        normalize, modality = parameters["normalize"], parameters["modality"]
        if (
            set(parameters) != {"normalize", "modality"}
            or not {"map"} <= set(facts) <= {"map", "thresholds"}
            or set(facts["map"]) != set(_OF_MAP)
        ):
            raise ValueError("unknown or missing entries")
        if not (isinstance(normalize, bool) or normalize == "auto") or modality not in (None, *MODALITIES):
            raise ValueError("invalid normalize or modality")
        arrays = dict(arrays)
        thresholds = Thresholds.restore(arrays.pop(TABLE), facts["thresholds"]) if "thresholds" in facts else None
        mapping = restore_map(arrays, {**config, **facts["map"]}, path)
        bridge = cls(mapping, normalize=normalize, modality=modality)
        bridge.thresholds = thresholds
        return bridge
    except CorruptFileError:
        raise
    except (
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
    ) as error:  # also raised for maps that a bridge does not support
        raise CorruptFileError(
            f"Got a saved bridge in {path} with parts missing or damaged ({error!r}); expected a complete one. Create the bridge again from its map."
        ) from error


def _card(bridge: BridgedQueries) -> str:
    source, target = bridge.source, bridge.target
    lines = [
        "---",
        "library_name: congruence",
        "tags: [congruence, embeddings, alignment, procrustes]",
        "---",
        f"# Bridge: queries of {as_markdown(source.model or 'the new model')} over an index of {as_markdown(target.model or 'the old model')}",
        "",
        f"Maps queries of *{as_markdown(str(source))}* into the space of *{as_markdown(str(target))}*, whose vectors do not change.",
        "",
        "```python",
        "import congruence",
        "",
        'bridge = congruence.load("path/to/this/folder")',
        "queries = bridge.transform(vectors)  # search the old index with these",
        "```",
    ]
    return "\n".join(lines) + "\n"
