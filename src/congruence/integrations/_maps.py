"""The map of an export, which accepts a map or a bridge."""

from __future__ import annotations

from congruence.errors import ParameterError
from congruence.maps import Map
from congruence.upgrade.bridge import Bridge

__all__ = ["as_map"]


def as_map(mapping: object, modality: str | None = None, normalize: bool | str = "auto") -> tuple[Map, bool | str]:
    """Return the map to export, and whether mapped rows are scaled to unit norm.

    Parameters
    ----------
    mapping : Map or Bridge
    modality : str, optional
        Modality whose means are used; by default that of the bridge or of the map.
    normalize : {"auto", True, False}, default="auto"
        "auto" uses the setting of a bridge.

    Returns
    -------
    mapping : Map
        The map for this modality.
    normalize : {"auto", True, False}

    Raises
    ------
    ParameterError
        If ``mapping`` is neither a map nor a bridge.
    ModalityError
        If the map has no means for the modality, or has means for several and none is selected.
    NotFittedMapError
        If the map is not fitted.
    """
    if isinstance(mapping, Bridge):
        return mapping.for_modality(modality), mapping.normalize if normalize == "auto" else normalize
    if not isinstance(mapping, Map):
        raise ParameterError(
            f"Got {type(mapping).__name__}; expected a fitted map or a Bridge. Load one with congruence.load, "
            "or fit one with congruence.fit."
        )
    return mapping.for_modality(modality), normalize
