"""The way to SQLite: a module that can load sqlite-vec, a connection of one writer at a time, and its errors in our words."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from threading import RLock
from types import ModuleType
from typing import TYPE_CHECKING

from congruence._utils.optional import require
from congruence.errors import (
    CongruenceError,
    CorruptFileError,
    DatabaseError,
    DatabaseUnavailableError,
    StorageError,
)

if TYPE_CHECKING:
    from congruence.databases._client_types import Row, SQLConnection

__all__ = ["Connection", "make_scratch", "quoted", "sqlite_module"]

#: Memory for pages of the file. vec0 keeps 1,024 vectors in one value, a chain of pages that each read of a vector follows: a chain that is
#: not in memory is read anew for every row.
_CACHE_BYTES = 64 * 2**20


def quoted(name: str) -> str:
    """Quote a name for SQL."""
    return '"' + name.replace('"', '""') + '"'


class Connection:
    """A file that is open with sqlite-vec loaded; threads take turns.

    Parameters
    ----------
    path : Path
    seconds : float
        How long another writer is waited for.

    Attributes
    ----------
    client : sqlite3.Connection
    lock : RLock
        Is taken for each statement that reads, and for a whole transaction.

    Raises
    ------
    CorruptFileError, DatabaseError, DatabaseUnavailableError, MissingExtraError
        If a file is damaged; the database rejects the request; the database does not answer; or an optional dependency is not installed.
    """

    def __init__(self, path: Path, seconds: float) -> None:
        self._path, self._seconds = path, seconds
        self.lock = RLock()
        self._module = sqlite_module()
        with self.errors():
            # In no transaction.
            self.client = self._module.connect(
                str(path), timeout=seconds, isolation_level=None, check_same_thread=False
            )
            load_vec(self.client)
            self.client.execute(f"PRAGMA cache_size = -{_CACHE_BYTES // 1024}")
            # A view of the user's keeps the name that it was written with, and shows what stands under it.
            self.client.execute("PRAGMA legacy_alter_table = ON")

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn the client's errors into ours."""
        try:
            yield
        except self._module.Error as error:
            raise translate(error, self._path, self._seconds) from error

    def read(self, statement: str, values: Sequence[object] = ()) -> list[Row]:
        """Return the rows of a query."""
        with self.lock, self.errors():
            found: list[Row] = self.client.execute(statement, values).fetchall()
            return found

    @contextmanager
    def writing(self) -> Iterator[SQLConnection]:
        """Give the client's connection in a transaction that is the only one to write: all of it happens, or nothing."""
        with self.lock, self.errors():
            self.client.execute("BEGIN IMMEDIATE")
            try:
                yield self.client
                self.client.execute("COMMIT")
            except BaseException:
                if self.client.in_transaction:
                    self.client.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Close the connection."""
        self.client.close()


def sqlite_module() -> ModuleType:
    """Return an SQLite module that can load extensions, which many builds of Python leave out of their own."""
    if hasattr(sqlite3.Connection, "enable_load_extension"):
        return sqlite3
    return require("pysqlite3.dbapi2", extra="sqlite-vec")


def load_vec(connection: sqlite3.Connection) -> None:
    """Load sqlite-vec into a connection."""
    connection.enable_load_extension(True)
    require("sqlite_vec", extra="sqlite-vec").load(connection)
    connection.enable_load_extension(False)


def make_scratch(path: Path, n: int) -> None:
    """Make a file with a vec0 table of so many rows, with small vectors."""
    with closing(sqlite_module().connect(str(path), isolation_level=None)) as connection:
        load_vec(connection)
        connection.execute("CREATE VIRTUAL TABLE scratch USING vec0(id integer primary key, vector int8[8])")
        connection.execute("BEGIN")
        connection.executemany("INSERT INTO scratch VALUES (?, vec_int8(?))", ((k, bytes(8)) for k in range(n)))
        connection.execute("COMMIT")


def translate(error: Exception, path: Path, seconds: float) -> CongruenceError:
    """Return SQLite's error as ours."""
    text = str(error)
    if "locked" in text or "busy" in text:
        return DatabaseUnavailableError(
            f"Got no lock on {path} within {seconds:g} s ({text}); expected that no other process writes. Try again when none does."
        )
    if "not a database" in text or "malformed" in text:
        return CorruptFileError(
            f"Got a file {path} that is damaged, or no SQLite database ({text}); expected one. Restore it from a backup."
        )
    if "disk is full" in text:
        return StorageError(f"Got no room for {path} ({text}); expected some. Make room on the disk, and run it again.")
    return DatabaseError(
        f"Got a refusal from {path} ({text}); expected the statement to run. Remove the reason that SQLite gives, and run it again."
    )
