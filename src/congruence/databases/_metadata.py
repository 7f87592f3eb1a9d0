"""The description of a space in the metadata of a table or collection, in the same format as in files of vectors."""

from __future__ import annotations

import json
from collections.abc import Mapping

from congruence.embeddings import Space
from congruence.errors import CorruptFileError

__all__ = ["MARK_KEY", "SPACE_KEY", "space_in"]

#: Metadata key of the vectors' space, the same as in :mod:`congruence.stores`: a JSON object, or its text.
SPACE_KEY = "congruence.space"

#: Metadata key of the data that a migration stores with the new vectors.
MARK_KEY = "congruence.migration"


def space_in(metadata: Mapping[str, object] | None, place: str) -> Space:
    """Return the space in metadata, or an unknown space if there is none. Raises CorruptFileError if it cannot be parsed."""
    facts = (metadata or {}).get(SPACE_KEY)
    if not facts:
        return Space()
    try:
        if isinstance(facts, str):
            facts = json.loads(facts)
        if not isinstance(facts, dict):
            raise TypeError("not an object")
        return Space.from_dict(facts)
    except (ValueError, TypeError, RecursionError) as error:
        raise CorruptFileError(
            f"Got an unreadable description of the space, {SPACE_KEY!r} in the metadata of {place} ({error}); expected JSON. "
            "Remove the description, or write it again."
        ) from error
