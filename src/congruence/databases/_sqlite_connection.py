"""Connection to SQLite with sqlite-vec loaded, with one writer at a time and errors translated into those of this library."""

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

#: Size of the page cache. vec0 stores 1,024 vectors in one value, a chain of pages that SQLite follows for each vector it reads; without the
#: cache, the chain would be read from disk again for each row.
_CACHE_BYTES = 64 * 2**20


def quoted(name: str) -> str:
    """Quote a name for SQL."""
    return '"' + name.replace('"', '""') + '"'


class Connection:
    """A connection to a file with sqlite-vec loaded; threads use it one at a time.

    Parameters
    ----------
    path : Path
    seconds : float
        Time to wait for another writer.

    Attributes
    ----------
    client : sqlite3.Connection
    lock : RLock
        Held during each query, and during a whole transaction.

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
            # Autocommit: transactions are begun explicitly.
            self.client = self._module.connect(
                str(path), timeout=seconds, isolation_level=None, check_same_thread=False
            )
            load_vec(self.client)
            self.client.execute(f"PRAGMA cache_size = -{_CACHE_BYTES // 1024}")
            # With this, renaming a table does not change views: a view shows the table that currently has the name.
            self.client.execute("PRAGMA legacy_alter_table = ON")

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Translate the client's errors into those of this library."""
        try:
            yield
        except self._module.Error as error:
            raise translate(error, self._path, self._seconds) from error

    def read(self, statement: str, values: Sequence[object] = ()) -> list[Row]:
        """Return the rows of a query."""
        with self.lock, self.errors():
            rows: list[Row] = self.client.execute(statement, values).fetchall()
            return rows

    @contextmanager
    def writing(self) -> Iterator[SQLConnection]:
        """Yield the client's connection in a transaction that holds the write lock; commit it, or roll it back after an error."""
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
    """Return an SQLite module that can load extensions, which the standard library's module cannot in many builds of Python."""
    if hasattr(sqlite3.Connection, "enable_load_extension"):
        return sqlite3
    return require("pysqlite3.dbapi2", extra="sqlite-vec")


def load_vec(connection: sqlite3.Connection) -> None:
    """Load sqlite-vec into a connection."""
    connection.enable_load_extension(True)
    require("sqlite_vec", extra="sqlite-vec").load(connection)
    connection.enable_load_extension(False)


def make_scratch(path: Path, n: int) -> None:
    """Create a file with a vec0 table of ``n`` rows with small vectors."""
    with closing(sqlite_module().connect(str(path), isolation_level=None)) as connection:
        load_vec(connection)
        connection.execute("CREATE VIRTUAL TABLE scratch USING vec0(id integer primary key, vector int8[8])")
        connection.execute("BEGIN")
        connection.executemany("INSERT INTO scratch VALUES (?, vec_int8(?))", ((k, bytes(8)) for k in range(n)))
        connection.execute("COMMIT")


def translate(error: Exception, path: Path, seconds: float) -> CongruenceError:
    """Return this library's error for an error of SQLite."""
    text = str(error)
    if "locked" in text or "busy" in text:
        return DatabaseUnavailableError(
            f"Got no lock on {path} within {seconds:g} s ({text}); expected no other process to write. Try again when it has finished."
        )
    if "not a database" in text or "malformed" in text:
        return CorruptFileError(
            f"Got a file {path} that is damaged or not an SQLite database ({text}); expected an SQLite database. Restore it from a backup."
        )
    if "disk is full" in text:
        return StorageError(
            f"Got a full disk while writing {path} ({text}); expected free space. Free disk space, and try again."
        )
    return DatabaseError(
        f"Got an error of SQLite for {path} ({text}); expected the statement to succeed. Fix the cause that SQLite reports, and try again."
    )
