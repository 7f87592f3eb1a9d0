"""Where a file of vectors keeps what is known of their space: in its own metadata, or in a file beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from congruence.embeddings import Space
from congruence.errors import CorruptFileError

#: Key under which files that can hold metadata keep their space.
SPACE_KEY = "congruence.space"


def sidecar(path: Path) -> Path:
    """Where formats without room for metadata keep their space."""
    return path / "space.json" if path.is_dir() else path.with_name(path.name + ".space.json")


def space_json(space: Space) -> str:
    """Write a space as JSON."""
    return json.dumps(space.to_dict())


def is_space(facts: Mapping[str, object]) -> bool:
    """Say whether an object can be one that :func:`space_json` wrote."""
    return set(facts) <= set(Space.__dataclass_fields__)


def read_space(text: str | bytes | None, path: str | Path) -> Space:
    """Read a space from JSON; nothing there means an unknown space. Raises CorruptFileError."""
    if not text:
        return Space()
    try:
        facts = json.loads(text)
        if not isinstance(facts, dict) or not isinstance(facts.get("dim"), (int, type(None))):
            raise TypeError("no object, or one with a wrong type of number")
        return Space.from_dict(facts)
    except (ValueError, TypeError, RecursionError) as error:
        raise CorruptFileError(
            f"Got an unreadable description of the space in {path} ({error}); expected JSON. Remove the description, or write it again."
        ) from error


def read_sidecar(path: Path) -> Space:
    """Read the space written beside a file, if any."""
    place = sidecar(path)
    return read_space(place.read_bytes(), place) if place.is_file() else Space()
