"""The description of a space in a collection's metadata, in the same format as in files of vectors."""

from __future__ import annotations

import json
from collections.abc import Mapping

from congruence.embeddings import Space
from congruence.errors import CorruptFileError

#: Metadata key of the vectors' space, in collections as in files: JSON, as an object or as a string.
SPACE_KEY = "congruence.space"

#: Metadata key for the data that a migration stores in the collection it creates.
MARK_KEY = "congruence.migration"


def space_in(metadata: Mapping[str, object] | None, place: str) -> Space:
    """Return the space in a collection's metadata, or an unknown space if there is none. Raises CorruptFileError if it cannot be parsed."""
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
