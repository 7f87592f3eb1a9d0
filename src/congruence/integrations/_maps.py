"""Resolve what an export is given: a map, or a bridge, which contains one."""

from __future__ import annotations

from congruence.errors import ParameterError
from congruence.maps import Map
from congruence.upgrade.bridge import Bridge

__all__ = ["as_map"]


def as_map(given: object, modality: str | None = None, normalize: bool | str = "auto") -> tuple[Map, bool | str]:
    """Return the map to export, and whether mapped rows are scaled to unit norm.

    Parameters
    ----------
    given : Map or Bridge
    modality : str, optional
        By default the bridge's, or the map's own.
    normalize : {"auto", True, False}, default="auto"
        "auto" is the bridge's.

    Returns
    -------
    Map
        For the modality.
    {"auto", True, False}

    Raises
    ------
    ParameterError
        Neither a map nor a bridge.
    ModalityError
        The map does not know the modality; or none was said of a bridge whose map knows several.
    NotFittedMapError
        If the map is not fitted.
    """
    if isinstance(given, Bridge):
        return given.for_modality(modality), given.normalize if normalize == "auto" else normalize
    if not isinstance(given, Map):
        raise ParameterError(
            f"Got {type(given).__name__}; expected a fitted map or a Bridge. Load one with congruence.load, or fit one with congruence.fit."
        )
    return given.for_modality(modality), normalize
