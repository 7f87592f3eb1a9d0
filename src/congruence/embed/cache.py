"""A cache of vectors by content, so that an item is encoded only once, whichever file or data set it comes from."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np

from congruence.errors import CorruptFileError, FileError, StorageError


class VectorCache:
    """Cache of one encoder's vectors of width ``dim`` on disk, by the digest of the item; each vector has a checksum.

    It is one SQLite file in ``folder``, named by the encoder's ``fingerprint``: consistent after a crash, and open to
    several processes on one machine, but not on a network drive, where SQLite's locks are unreliable.
    """

    def __init__(self, folder: str | Path, fingerprint: str, dim: int, *, locks: bool = True) -> None:
        self.path = Path(folder).absolute() / f"{fingerprint}.sqlite"
        self.dim, self._uri = dim, f"{self.path.as_uri()}?nolock={int(not locks)}"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(f"Got no cache folder at {folder} ({error}).", "Pass another `cache=…`.") from error
        with self._open() as connection:
            connection.execute(
                "CREATE TABLE IF NOT EXISTS vectors (item TEXT PRIMARY KEY, vector BLOB NOT NULL) WITHOUT ROWID"
            )

    @classmethod
    def exclusive(cls, folder: Path, fingerprint: str, dim: int) -> VectorCache:
        """Return a cache in a folder that only this process uses; one that is damaged is begun again."""
        try:
            cache = cls(folder, fingerprint, dim, locks=False)
            with cache._open() as connection:
                if connection.execute("PRAGMA quick_check").fetchone() == ("ok",):
                    return cache
        except (CorruptFileError, StorageError):
            pass
        (folder / f"{fingerprint}.sqlite").unlink(missing_ok=True)
        return cls(folder, fingerprint, dim, locks=False)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(sqlite3.connect(self._uri, timeout=60, uri=True)) as connection, connection:
                yield connection
        except sqlite3.OperationalError as error:
            fixes = ("Free space.", "Use another folder.")
            raise StorageError(f"Got an error from the cache {self.path} ({error}).", fixes) from error
        except sqlite3.DatabaseError as error:
            problem = f"Got a damaged cache, {self.path} ({error})."
            raise CorruptFileError(problem, "Delete it; the next run fills it again.") from error

    def get(self, digests: list[str]) -> dict[str, np.ndarray]:
        """Return the cached vectors by digest; those that are damaged or not finite count as missing."""
        cached: dict[str, np.ndarray] = {}
        size = 4 * self.dim
        with self._open() as connection:
            for start in range(0, len(digests), 500):  # SQLite limits the number of parameters
                part = digests[start : start + 500]
                query = f"SELECT item, vector FROM vectors WHERE item IN ({','.join('?' * len(part))})"
                for item, blob in connection.execute(query, part):
                    whole = isinstance(item, str) and isinstance(blob, bytes)
                    if whole and blob[size:] == _checksum(item, blob[:size]):
                        vector = np.frombuffer(blob[:size], dtype="<f4")
                        if np.isfinite(vector).all():
                            cached[item] = vector.astype(np.float32)
        return cached

    def put(self, vectors: Mapping[str, np.ndarray]) -> None:
        """Store vectors by digest, all or none of them."""
        raw = {item: np.ascontiguousarray(vector, dtype="<f4").tobytes() for item, vector in vectors.items()}
        rows = [(item, vector + _checksum(item, vector)) for item, vector in raw.items()]
        with self._open() as connection:
            connection.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?)", rows)


def _checksum(item: str, vector: bytes) -> bytes:
    """Return the checksum that is stored after a vector, by which damage or another item's vector is noticed."""
    return hashlib.blake2b(vector, digest_size=8, key=item.encode()[:64]).digest()
