"""Storage of the space of a file's vectors: in the file's own metadata, or in a sidecar file next to it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from congruence.embeddings import Space
from congruence.errors import CorruptFileError

#: Key of the space in the metadata of formats that have metadata.
SPACE_KEY = "congruence.space"


def sidecar(path: Path) -> Path:
    """Return the path of the sidecar file, for formats that cannot hold metadata."""
    return path / "space.json" if path.is_dir() else path.with_name(path.name + ".space.json")


def space_json(space: Space) -> str:
    """Return a space as JSON."""
    return json.dumps(space.to_dict())


def is_space(facts: Mapping[str, object]) -> bool:
    """Return whether an object may have been written by :func:`space_json`."""
    return set(facts) <= set(Space.__dataclass_fields__)


def read_space(text: str | bytes | None, path: str | Path) -> Space:
    """Return the space in a JSON text; an unknown space for None or empty text. Raises CorruptFileError."""
    if not text:
        return Space()
    try:
        facts = json.loads(text)
        if not isinstance(facts, dict) or not isinstance(facts.get("dim"), (int, type(None))):
            raise TypeError("not an object, or dim is not a whole number")
        return Space.from_dict(facts)
    except (ValueError, TypeError, RecursionError) as error:
        raise CorruptFileError(
            f"Got an unreadable description of the space in {path} ({error}); expected JSON. Remove the description, or write it again."
        ) from error


def read_sidecar(path: Path) -> Space:
    """Return the space in the sidecar of a file; an unknown space if there is none."""
    place = sidecar(path)
    return read_space(place.read_bytes(), place) if place.is_file() else Space()
