"""The map of an export, which accepts a map or a bridge."""

from __future__ import annotations

from pathlib import Path

from congruence.errors import ParameterError
from congruence.maps import Map
from congruence.upgrade.bridge import Bridge


def as_map(
    mapping: object, modality: str | None = None, normalize: bool | str = "auto", role: str = "query"
) -> tuple[Map, bool | str]:
    """Return the map of a role to export, and whether mapped rows are scaled to unit norm.

    ``modality``: modality whose means are used; by default that of the bridge or of the map; ``normalize``: "auto" uses
    the setting of a bridge.
    """
    if isinstance(mapping, Bridge):
        return mapping.for_modality(modality, role), mapping.normalize if normalize == "auto" else normalize
    if not isinstance(mapping, Map):
        problem = f"Got {type(mapping).__name__}; expected a fitted map or a Bridge."
        raise ParameterError(problem, "Load one with congruence.load, or fit one with congruence.fit.")
    return mapping.for_modality(modality).for_role(role), normalize


def check_suffix(path: str | Path, *known: str) -> str:
    """Return the suffix of an exported file, in lower case, which may be missing; refuse one of another format."""
    suffix = Path(path).suffix.lower()
    if suffix and suffix not in known:
        problem = f"Got the output {Path(path).name}; expected a name that ends in {' or '.join(known)}."
        raise ParameterError(problem, f"Choose such a name, e.g. {Path(path).stem}{known[0]}.")
    return suffix
