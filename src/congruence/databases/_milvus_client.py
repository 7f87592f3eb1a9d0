"""Connection to Milvus, in a Milvus Lite file or on a server, with the client's errors translated into those of this library."""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

from congruence._utils.optional import require
from congruence.databases._address import Address, refuse_secrets
from congruence.errors import (
    CongruenceError,
    CorruptFileError,
    DatabaseError,
    DatabaseUnavailableError,
    FileError,
    ParameterError,
    StorageError,
)

if TYPE_CHECKING:
    from pymilvus import MilvusClient

__all__ = ["TOKEN", "Connection", "connect", "file_of"]

#: Environment variable with the server's token, which is not allowed in an address.
TOKEN = "MILVUS_TOKEN"  # the variable's name, not a secret

#: Timeouts in seconds: of most requests, and of those that load, index or flush a collection.
_TIMEOUT, _LONG_TIMEOUT = 60.0, 3600.0

_LONG = ("load_collection", "create_index", "flush")

_FULL = re.compile(r"no space left|disk is full|disk quota", re.IGNORECASE)
_BUSY = re.compile(r"rate limit|not ready|unavailable|deadline|timeout|too many requests", re.IGNORECASE)


class Connection:
    """A Milvus client whose errors are translated into those of this library.

    Attributes
    ----------
    client : pymilvus.MilvusClient
    address : Address
        Address of the file or server; its secrets include the server's token.
    file : Path or None
        Database of Milvus Lite: a folder whose name ends in ``.db``.
    lite : bool
        Whether Milvus Lite answers, from a file or at a URL.
    """

    def __init__(self, client: MilvusClient, address: Address, file: Path | None) -> None:
        self.client = client
        self.address = address
        self.file = file
        self.lite = str(self.call("get_server_version")).startswith("milvus_lite")

    def call(self, name: str, *args: object, **kwargs: object) -> Any:
        """Call a method of the client. Raises DatabaseError, DatabaseUnavailableError, StorageError."""
        if self.file is None:
            kwargs.setdefault("timeout", _LONG_TIMEOUT if name in _LONG else _TIMEOUT)
        try:
            with _silent():
                result = getattr(self.client, name)(*args, **kwargs)
                # The client returns a lazy sequence: read it here, where errors are translated.
                return [dict(row) for row in result] if name == "query" else result
        except CongruenceError:
            raise
        except Exception as error:
            ours = _translate(error, self.address)
            if ours is None:
                raise
            raise ours from error

    def aliases(self) -> dict[str, str]:
        """Return a dict from each alias to its collection."""
        names = self.call("list_aliases")["aliases"]
        return {name: self.call("describe_alias", name)["collection_name"] for name in names}

    def load(self, collection: str) -> None:
        """Load a collection into memory unless it is loaded; Milvus can only read loaded collections."""
        state = self.call("get_load_state", collection)["state"]
        if getattr(state, "name", str(state)) != "Loaded":
            self.call("load_collection", collection)


def file_of(address: Address) -> Path | None:
    """Return the path in an address of Milvus Lite, or None for a server."""
    if address.scheme != "milvus":
        return None
    parts = urlsplit(address.text)
    return Path(unquote(f"{parts.netloc}{parts.path}")).expanduser()


def connect(address: Address) -> Connection:
    """Open a file or a server. Raises ParameterError, FileError, CorruptFileError, DatabaseError, DatabaseUnavailableError, MissingExtraError."""
    refuse_secrets(address, TOKEN)
    file = file_of(address)
    if file is not None:
        _check_file(file, address)
    pymilvus = require("pymilvus", extra="milvus")
    _silence_log()
    if file is not None:
        require("milvus_lite", extra="milvus")
        options: dict[str, object] = {"uri": str(file)}
    else:
        parts = urlsplit(address.text)
        token = os.environ.get(TOKEN) or ""
        if token:
            address = replace(address, secrets=(token,))
        scheme = "https" if address.scheme.endswith("https") else "http"
        database = parse_qs(parts.query).get("database", [""])[0]
        options = {"uri": f"{scheme}://{parts.netloc}", "token": token, "db_name": database, "timeout": _TIMEOUT}
    try:
        with _silent():
            client = pymilvus.MilvusClient(**options)
    except Exception as error:
        if file is not None:
            raise _open_error(file, address) from error
        ours = _translate(error, address)
        if ours is None:
            raise
        raise ours from error
    return Connection(client, address, file)


def _check_file(file: Path, address: Address) -> None:
    if file.suffix != ".db":
        raise ParameterError(
            f"Got {address.shown}; expected a path that ends in .db (Milvus Lite), or milvus+http:// for a server. "
            "Pass the path that the application passes to MilvusClient."
        )
    if file.is_file():
        raise FileError(
            f"Got {address.shown}, which is one file; expected the folder that Milvus Lite 3 writes. Export it with the release that wrote it "
            "(milvus-lite dump), and load the export into a new database."
        )
    if not (file / "collections").is_dir():  # the client would create a new database
        raise FileError(
            f"Got {address.shown}, which is not a Milvus Lite database; expected one that MilvusClient created. Pass the path of such a database."
        )


def _open_error(file: Path, address: Address) -> CongruenceError:
    """Return the reason why a file could not be opened, by opening it again without the client, which only reports that it failed."""
    try:
        require("milvus_lite.db", extra="milvus").MilvusLite(str(file)).close()
    except Exception as error:
        if type(error).__name__ == "DataDirLockedError":
            return DatabaseUnavailableError(
                f"Got {address.shown}, which another process has open; expected it closed, since only one process at a time can open a Milvus Lite database. "
                "Close the other client."
            )
        if isinstance(error, PermissionError):
            return FileError(
                f"Got {address.shown} ({error}); expected a folder with read and write access. Change its permissions."
            )
        return CorruptFileError(
            f"Got {address.shown}, which cannot be read ({type(error).__name__}: {error}); expected a Milvus Lite database. "
            "Restore it from a backup."
        )
    return DatabaseUnavailableError(
        f"Got {address.shown}, which could not be opened; expected a Milvus Lite database that opens. Try again."
    )


# ---- the client's log, to which it writes a traceback of each error that it raises -----------------------------------

_own_calls = threading.local()


@contextmanager
def _silent() -> Iterator[None]:
    _own_calls.depth = getattr(_own_calls, "depth", 0) + 1
    try:
        yield
    finally:
        _own_calls.depth -= 1


def _is_users(record: logging.LogRecord) -> bool:
    """Return whether a log record comes from a call of the user rather than of this library."""
    return not getattr(_own_calls, "depth", 0)


def _silence_log() -> None:
    """Suppress the client's log during calls by this library, whose errors are raised anyway; the user's own calls are still logged."""
    for name in ("pymilvus.decorators", "pymilvus.client.connection_manager", "milvus_lite.server_manager"):
        logging.getLogger(name).addFilter(_is_users)  # adding the same filter twice has no effect


def _translate(error: Exception, address: Address) -> CongruenceError | None:
    """Return this library's error for an error of the database client, or None if the exception is a bug rather than such an error."""
    where, name = address.shown, type(error).__name__
    module = type(error).__module__.partition(".")[0]
    message = " ".join(address.hide(str(getattr(error, "message", "") or error) or name).split())
    if _FULL.search(message):
        return StorageError(
            f"Got a full disk while writing to {where} ({message}); expected free space. Free disk space there."
        )
    if name in ("ConnectError", "MilvusUnavailableException") or module == "grpc" or _BUSY.search(message):
        return DatabaseUnavailableError(
            f"Got no answer from {where} ({message}); expected one. Start Milvus, or try again later."
        )
    if getattr(error, "code", None) == 65535 and "auth" in message:
        return DatabaseError(
            f"Got no access to {where} ({message}); expected a token with read and write access. Set the environment variable {TOKEN}."
        )
    if module == "pymilvus" or isinstance(error, (ValueError, TypeError, OSError)):
        return DatabaseError(
            f"Got an error from {where}: {message}; expected the request to succeed. Fix the cause in Milvus's message."
        )
    return None
