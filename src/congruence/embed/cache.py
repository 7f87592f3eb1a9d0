"""A cache of vectors by content, so that an item encoded once is found again whatever file or data set it is in."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np

from congruence.errors import CorruptFileError, FileError, StorageError

__all__ = ["VectorCache"]


class VectorCache:
    """Vectors of one encoder on disk, by the digest of their items, each with a checksum.

    One SQLite file an encoder, named after its fingerprint: complete after a crash, and open to several processes of one
    machine at a time. Do not put it on a network drive, where SQLite's locks cannot be relied on.

    Parameters
    ----------
    folder : path-like
        Made if it is not there.
    fingerprint : str
        Of the encoder.
    dim : int
        Width of its vectors.

    Raises
    ------
    FileError, StorageError
        The folder cannot be made, or the file not be opened.
    CorruptFileError
        The file is no cache.
    """

    def __init__(self, folder: str | Path, fingerprint: str, dim: int) -> None:
        self.path = Path(folder) / f"{fingerprint}.sqlite"
        self.dim = dim
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(
                f"Got no cache folder at {folder} ({error}); expected one that can be written. Pass another cache=…."
            ) from error
        with self._open() as base:
            base.execute(
                "CREATE TABLE IF NOT EXISTS vectors (item TEXT PRIMARY KEY, vector BLOB NOT NULL) WITHOUT ROWID"
            )

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(sqlite3.connect(self.path, timeout=60)) as base, base:
                yield base
        except sqlite3.OperationalError as error:
            raise StorageError(
                f"Got a refusal from the cache {self.path} ({error}); expected a file that can be read and written. "
                "Free space, or pass another cache=…."
            ) from error
        except sqlite3.DatabaseError as error:
            raise CorruptFileError(
                f"Got a damaged cache, {self.path} ({error}); expected one that congruence wrote. Delete this file; it is filled again."
            ) from error

    def get(self, digests: list[str]) -> dict[str, np.ndarray]:
        """Return the cached vectors by digest; vectors that are damaged, have another length or are not finite count as missing."""
        found: dict[str, np.ndarray] = {}
        with self._open() as base:
            for start in range(0, len(digests), 500):  # SQLite bounds the number of parameters
                some = digests[start : start + 500]
                marks = ",".join("?" * len(some))
                for item, blob in base.execute(f"SELECT item, vector FROM vectors WHERE item IN ({marks})", some):
                    size = 4 * self.dim  # without a checksum, of before there were any: missing
                    if not isinstance(item, str) or not isinstance(blob, bytes):
                        continue
                    if blob[size:] != _checksum(item, blob[:size]):
                        continue
                    vector = np.frombuffer(blob[:size], dtype="<f4")
                    if np.isfinite(vector).all():
                        found[item] = vector.astype(np.float32)
        return found

    def put(self, vectors: Mapping[str, np.ndarray]) -> None:
        """Store vectors by digest, all or none of them."""
        raw = {item: np.ascontiguousarray(vector, dtype="<f4").tobytes() for item, vector in vectors.items()}
        rows = [(item, vector + _checksum(item, vector)) for item, vector in raw.items()]
        with self._open() as base:
            base.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?)", rows)


def _checksum(item: str, vector: bytes) -> bytes:
    """Return what stands behind a vector in the file, and tells of a damaged one and of one of another item."""
    return hashlib.blake2b(vector, digest_size=8, key=item.encode()[:64]).digest()
