"""Load saved maps and bridges (:func:`congruence.load`)."""

from __future__ import annotations

from pathlib import Path

from congruence import persist
from congruence.maps import Map, restore_map
from congruence.upgrade.bridge._bridge import Bridge
from congruence.upgrade.bridge.saved import KIND, restore_bridge

__all__ = ["load"]


def load(path: str | Path) -> Map | Bridge:
    """Load a map or bridge saved with :meth:`Map.save <congruence.maps.Map.save>` or :meth:`Bridge.save`. Nothing in the folder is executed.

    Parameters
    ----------
    path : path-like

    Returns
    -------
    Map or Bridge
        The kind that was saved.

    Raises
    ------
    FileError, CorruptFileError, VersionError
        If the folder cannot be read, is damaged, or was written in a newer format.
    ParameterError
        If the folder holds a frame (use :meth:`congruence.CanonicalFrame.load`).
    """
    arrays, config = persist.read_folder(path)
    if config.get("kind") != KIND:
        return restore_map(arrays, config, path)
    return restore_bridge(Bridge, arrays, config, path)
