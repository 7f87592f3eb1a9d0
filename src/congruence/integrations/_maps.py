"""What exports take: a map, or a bridge, which holds one."""

from __future__ import annotations

from congruence.errors import ParameterError
from congruence.maps import Map

__all__ = ["as_map"]


def as_map(given: object) -> Map:
    """Return the map itself, or the one that a bridge holds.

    Parameters
    ----------
    given : Map or Bridge

    Returns
    -------
    Map

    Raises
    ------
    ParameterError
        It is neither.
    """
    mapping = given if isinstance(given, Map) else getattr(given, "map", None)
    if not isinstance(mapping, Map):
        raise ParameterError(
            f"Got {type(given).__name__}; expected a fitted map or a Bridge. Load one with congruence.load, or fit one with congruence.fit."
        )
    return mapping
