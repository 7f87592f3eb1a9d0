"""A saved bridge: the folder of a map, whose configuration says what is done to queries beside."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from congruence import persist
from congruence._utils.display import as_markdown
from congruence.embeddings import MODALITIES
from congruence.errors import CorruptFileError
from congruence.maps import restore_map

if TYPE_CHECKING:
    from congruence.upgrade.bridge._bridge import Bridge

    BridgeT = TypeVar("BridgeT", bound=Bridge)

__all__ = ["KIND", "read_bridge", "restore_bridge", "write_bridge"]

#: What ``config.json`` calls a bridge, where a map names its method.
KIND = "bridge"

#: What of a map's configuration stands among a bridge's facts, so that the digest of these covers it.
_OF_MAP = ("kind", "parameters", "facts")


def read_bridge(cls: type[BridgeT], path: str | Path) -> BridgeT:
    """Read a bridge's folder, or a map's; see :meth:`Bridge.load`."""
    arrays, config = persist.read_folder(path)
    if config.get("kind") != KIND:
        return cls(restore_map(arrays, config, path))
    return restore_bridge(cls, arrays, config, path)


def write_bridge(bridge: Bridge, path: str | Path, *, force: bool) -> Path:
    """Write a bridge's folder; see :meth:`Bridge.save`."""
    config = bridge.map.config()
    whole = {
        **config,
        "kind": KIND,
        "parameters": {"normalize": bridge.normalize, "modality": bridge.modality},
        "facts": {"map": {key: config[key] for key in _OF_MAP}},
    }
    return persist.write_folder(path, bridge.map.state(), whole, _card(bridge), force=force)


def restore_bridge(
    cls: type[BridgeT], arrays: Mapping[str, np.ndarray], config: Mapping[str, Any], path: str | Path
) -> BridgeT:
    """Make the bridge that was read from a folder, after checking all of it. Raises CorruptFileError."""
    try:
        given, facts = config["parameters"], config["facts"]
        normalize, modality = given["normalize"], given["modality"]
        if set(given) != {"normalize", "modality"} or set(facts) != {"map"} or set(facts["map"]) != set(_OF_MAP):
            raise ValueError("parts that are none of a bridge")
        if not (isinstance(normalize, bool) or normalize == "auto") or modality not in (None, *MODALITIES):
            raise ValueError("parameters that a bridge does not have")
        return cls(restore_map(arrays, {**config, **facts["map"]}, path), normalize=normalize, modality=modality)
    except CorruptFileError:
        raise
    except (AttributeError, LookupError, TypeError, ValueError) as error:  # a map that no bridge is made of among them
        raise CorruptFileError(
            f"Got a saved bridge in {path} with parts missing or damaged ({error!r}); expected a complete one. Make it again of its map."
        ) from error


def _card(bridge: Bridge) -> str:
    source, target = bridge.source, bridge.target
    lines = [
        "---",
        "library_name: congruence",
        "tags: [embeddings, alignment, procrustes]",
        "---",
        f"# Bridge: queries of {as_markdown(source.model or 'the new model')} over an index of {as_markdown(target.model or 'the old model')}",
        "",
        f"Maps queries of *{as_markdown(str(source))}* into the space of *{as_markdown(str(target))}*, whose vectors stay as they are.",
        "",
        "```python",
        "import congruence",
        "",
        'bridge = congruence.load("path/to/this/folder")',
        "queries = bridge.transform(vectors)  # search the old index with these",
        "```",
    ]
    return "\n".join(lines) + "\n"
