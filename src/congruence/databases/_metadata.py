"""The description of a space in the metadata of a collection, as files of vectors keep it in theirs."""

from __future__ import annotations

import json
from collections.abc import Mapping

from congruence.embeddings import Space
from congruence.errors import CorruptFileError

#: Key under which a collection's metadata, like a file's, tells the space of its vectors: JSON, as an object or as text.
SPACE_KEY = "congruence.space"

#: Key of what a migration keeps in the metadata of the collection that it writes.
MARK_KEY = "congruence.migration"


def space_in(metadata: Mapping[str, object] | None, place: str) -> Space:
    """Read the space in a collection's metadata; none there means an unknown space. Raises CorruptFileError."""
    facts = (metadata or {}).get(SPACE_KEY)
    if not facts:
        return Space()
    try:
        if isinstance(facts, str):
            facts = json.loads(facts)
        if not isinstance(facts, dict):
            raise TypeError("no object")
        return Space.from_dict(facts)
    except (ValueError, TypeError, RecursionError) as error:
        raise CorruptFileError(
            f"Got an unreadable {SPACE_KEY!r} in the metadata of {place} ({error}); expected JSON that describes a space. "
            "Remove the key, or write the description again."
        ) from error
