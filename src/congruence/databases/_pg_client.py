"""Connections to PostgreSQL, one read-only and one for writing, and translation of the client's errors, without secrets."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import TYPE_CHECKING

from congruence._utils.optional import require
from congruence.databases._address import Address, hide_secrets
from congruence.errors import CongruenceError, DatabaseError, DatabaseUnavailableError, StorageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import psycopg

    from congruence.databases._client_types import Cursor, Row

__all__ = ["Client", "one_row"]

#: Seconds to wait for the locks of a switch; meanwhile, new readers queue behind it.
LOCK_SECONDS = 5

#: Messages of failed connections for which a retry does not help; these errors have no code.
_REFUSED = re.compile(
    r"authentication failed|no pg_hba\.conf entry|(database|role) \".*\" does not exist|no password supplied|invalid (URI|connection)"
    r"|missing \"=\"|invalid percent-encoded",
    re.IGNORECASE,
)

#: Codes of errors after which a retry may succeed: connections, too many of them, memory, locks, shutdown, a canceled statement.
_TRANSIENT = re.compile(r"08...|53[23]00|40...|55P03|57...|25P0[34]")


class Client:
    """Two connections that are opened on demand, and reopened after they were lost.

    Parameters
    ----------
    address : Address
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self._psycopg = require("psycopg", extra="pgvector")
        self._open: dict[bool, psycopg.Connection] = {}
        self._locks = {True: RLock(), False: RLock()}

    @contextmanager
    def reading(self) -> Iterator[Cursor]:
        """Yield a cursor in a read-only transaction, with results in binary format."""
        with self._locks[True], self._transaction(True) as cursor:
            yield cursor

    @contextmanager
    def writing(self, *, lock: bool = False) -> Iterator[Cursor]:
        """Yield a cursor in a transaction, which is committed at the end and rolled back after an error.

        Parameters
        ----------
        lock : bool, default=False
            Set a timeout for locks, for a transaction that locks tables that others use.
        """
        with self._locks[False], self._transaction(False) as cursor:
            if lock:
                cursor.execute(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'")
            yield cursor

    @contextmanager
    def _transaction(self, reads: bool) -> Iterator[Cursor]:
        with self._translating_errors(reads):
            connection = self._connect(reads)
            with connection.transaction(), connection.cursor(binary=reads) as cursor:
                yield cursor

    def _connect(self, reads: bool) -> psycopg.Connection:
        connection = self._open.get(reads)
        if connection is None or connection.closed:
            connection = self._psycopg.connect(
                self.address.text,
                autocommit=True,
                application_name="congruence",
                connect_timeout=10,
                # Behind a connection pooler, the next transaction may run in another server process, without the prepared statement.
                prepare_threshold=None,
                # Placeholders are $1, so that a percent sign in a name or in the user's condition has no special meaning.
                cursor_factory=self._psycopg.RawCursor,
            )
            connection.read_only = reads
            self._open[reads] = connection
        return connection

    @contextmanager
    def _translating_errors(self, reads: bool) -> Iterator[None]:
        """Translate the client's errors, and close the connection if it was lost."""
        try:
            yield
        except self._psycopg.Error as error:
            connection = self._open.get(reads)
            lost = connection is None or connection.closed or connection.broken
            if connection is not None and lost:
                connection.close()
                del self._open[reads]
            # Without the cause: the client's own message may contain the secrets that are removed here.
            raise self._translate(error, lost) from None

    def _translate(self, error: psycopg.Error, lost: bool) -> CongruenceError:
        text = " ".join(str(error).split()) or type(error).__name__
        text = hide_secrets(self.address.hide(text), tuple(filter(None, [os.environ.get("PGPASSWORD")])))
        code = error.sqlstate or ""
        place = self.address.shown
        if code == "55P03":
            return DatabaseUnavailableError(
                f"Got no lock within {LOCK_SECONDS} s from {place} ({text}); expected no long query to lock the table. "
                "Try again when none is running."
            )
        if _TRANSIENT.fullmatch(code) or (not code and lost and not _REFUSED.search(text)):
            return DatabaseUnavailableError(
                f"Got no answer from {place} ({text}); expected a server that answers. Try again when it does."
            )
        if code == "53100":
            return StorageError(
                f"Got a full disk at {place} ({text}); expected free space. Free disk space on the server, and run it again."
            )
        if not code and lost:
            return DatabaseError(
                f"Got a connection refused by {place} ({text}); expected the server to accept this user. "
                "Pass an address with the right host, user, password and database."
            )
        hint = {
            "42501": "Run it as the owner of the table.",
            "25006": "Connect to the primary server, and remove functions that write from rows=.",
        }.get(code, "Fix the cause in the server's message, and run it again.")
        return DatabaseError(f"Got an error from {place} ({text}); expected the statement to succeed. {hint}")

    def close(self) -> None:
        """Close both connections."""
        for connection in self._open.values():
            connection.close()
        self._open.clear()


def one_row(cursor: Cursor, query: object, values: Sequence[object] | None = None) -> Row:
    """Return the row of a query that always has one. Raises DatabaseError if there is none, because the table no longer exists."""
    row = cursor.execute(query, values).fetchone()
    if row is None:
        raise DatabaseError(
            "Got nothing from the catalog about a table that is being migrated; expected the table to still exist. Open the database again."
        )
    return row
