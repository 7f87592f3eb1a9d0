"""Read and delete records of Chroma collections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from congruence.databases._base import Block
from congruence.databases._chroma_client import Connection

if TYPE_CHECKING:
    from congruence.databases._client_types import Collection

__all__ = ["SAMPLE", "Records"]

#: Number of rows from which the metadata keys are determined.
SAMPLE = 1000


class Records:
    """Reads and deletes records of collections, in requests no larger than the client allows.

    Attributes
    ----------
    where : mapping or None
        Filter that selects the records; None for all.
    modality : str or None
        Metadata key that holds the modality.
    """

    def __init__(self, connection: Connection, where: Mapping[str, object] | None, modality: str | None) -> None:
        self._connection, self.where, self.modality = connection, where, modality

    def fields(self, collection: Collection) -> tuple[str, ...]:
        """Return the metadata keys of the first rows, and ``document`` if one of them has a document."""
        found = self._connection.call(collection.get, limit=SAMPLE, include=["metadatas", "documents"])
        keys = dict.fromkeys(key for metadata in found["metadatas"] for key in metadata or {})
        return (*keys, *(["document"] if any(document is not None for document in found["documents"]) else []))

    def get(self, collection: Collection | None, ids: list[str], include: list[str]) -> Mapping[str, Any]:
        """Return the records of these ids that exist, sorted by id; none if the collection is None."""
        found: dict[str, list[Any]] = {key: [] for key in ["ids", *include]}
        for start in range(0, len(ids), self._connection.max_records):
            if collection is None:
                break
            got = self._connection.call(
                collection.get, ids=ids[start : start + self._connection.max_records], include=include
            )
            for key in found:
                found[key] += list(got[key])
        order = sorted(range(len(found["ids"])), key=found["ids"].__getitem__)
        return {key: [values[k] for k in order] for key, values in found.items()}

    @property
    def include(self) -> list[str]:
        """Fields to request for a block."""
        return ["embeddings"] if self.modality is None else ["embeddings", "metadatas"]

    def block(self, found: Mapping[str, Any]) -> Block:
        """Convert the result of :meth:`get` to a block."""
        ids = found["ids"]
        vectors = np.asarray(found["embeddings"], np.float32) if ids else np.empty((0, 0), np.float32)
        modalities = None
        if self.modality is not None:
            values = [(metadata or {}).get(self.modality) for metadata in found["metadatas"]]
            modalities = pa.array([None if value is None else str(value) for value in values], pa.large_string())
        return Block(
            pa.array(ids, pa.large_string()), np.ascontiguousarray(vectors), modalities, ids[-1] if ids else ""
        )

    def ids(self, collection: Collection) -> list[str]:
        """Return the sorted ids of the selected records."""
        ids: list[str] = sorted(self._connection.call(collection.get, where=self.where, include=[])["ids"])
        return ids

    def count(self, collection: Collection) -> int:
        """Return the number of selected records."""
        return int(self._connection.call(collection.count)) if self.where is None else len(self.ids(collection))

    def remove(self, collection: Collection, ids: list[str]) -> None:
        """Delete records by id."""
        for start in range(0, len(ids), self._connection.max_records):
            self._connection.call(collection.delete, ids=ids[start : start + self._connection.max_records])
