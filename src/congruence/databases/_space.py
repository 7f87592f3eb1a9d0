"""Read the space of vectors, i.e. the model that computed them, from a database's metadata."""

from __future__ import annotations

import json
from collections.abc import Mapping

from congruence.embeddings import Space
from congruence.errors import CorruptFileError

__all__ = ["SPACE_KEY", "space_from_metadata"]

#: Metadata key of the space in files and tables; the same as in :mod:`congruence.stores`.
SPACE_KEY = "congruence.space"


def space_from_metadata(metadata: Mapping[str, str], place: str) -> Space:
    """Return the space in metadata, or an unknown space if there is none. Raises CorruptFileError if it cannot be parsed."""
    text = metadata.get(SPACE_KEY)
    if not text:
        return Space()
    try:
        facts = json.loads(text)
        if not isinstance(facts, dict):
            raise TypeError("no object")
        return Space.from_dict(facts)
    except (ValueError, TypeError, RecursionError) as error:
        raise CorruptFileError(
            f"Got an unreadable description of the space in {place} ({error}); expected JSON. Remove the description, or write it again."
        ) from error
