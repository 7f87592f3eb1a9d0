"""The way to Milvus: its client on a file of Milvus Lite or a server, and its errors in our words."""

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
from congruence.databases._address import Address
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

#: Environment variable with the token of the server; an address never has one.
TOKEN = "MILVUS_TOKEN"  # the variable's name, not a secret

#: Seconds that a server has for an answer, and for loading or indexing a collection.
_TIMEOUT, _LONG_TIMEOUT = 60.0, 3600.0

_LONG = ("load_collection", "create_index", "flush")

_FULL = re.compile(r"no space left|disk is full|disk quota", re.IGNORECASE)
_BUSY = re.compile(r"rate limit|not ready|unavailable|deadline|timeout|too many requests", re.IGNORECASE)


class Connection:
    """Milvus's client, whose errors become ours.

    Attributes
    ----------
    address : Address
        Its secrets include the server's token.
    file : Path or None
        Of Milvus Lite: a folder, whose name ends in ``.db``.
    lite : bool
        Milvus Lite answers, from a file or by URL.
    """

    def __init__(self, client: MilvusClient, address: Address, file: Path | None) -> None:
        self.client = client
        self.address = address
        self.file = file
        self.lite = str(self.ask("get_server_version")).startswith("milvus_lite")

    def ask(self, name: str, *args: object, **kwargs: object) -> Any:
        """Call a method of the client. Raises DatabaseError, DatabaseUnavailableError, StorageError."""
        if self.file is None:
            kwargs.setdefault("timeout", _LONG_TIMEOUT if name in _LONG else _TIMEOUT)
        try:
            with _silent():
                found = getattr(self.client, name)(*args, **kwargs)
                # The client reads rows when they are asked for.
                return [dict(one) for one in found] if name == "query" else found
        except CongruenceError:
            raise
        except Exception as error:
            ours = _translate(error, self.address)
            if ours is None:
                raise
            raise ours from error

    def aliases(self) -> dict[str, str]:
        """Return the collection that each alias means."""
        names = self.ask("list_aliases")["aliases"]
        return {name: self.ask("describe_alias", name)["collection_name"] for name in names}

    def load(self, collection: str) -> None:
        """Have a collection in memory, without which Milvus reads nothing of it."""
        state = self.ask("get_load_state", collection)["state"]
        if getattr(state, "name", str(state)) != "Loaded":
            self.ask("load_collection", collection)


def file_of(address: Address) -> Path | None:
    """Return the file of an address of Milvus Lite; None for a server's."""
    if address.scheme != "milvus":
        return None
    parts = urlsplit(address.text)
    return Path(unquote(f"{parts.netloc}{parts.path}")).expanduser()


def connect(address: Address) -> Connection:
    """Open a file or a server. Raises ParameterError, FileError, CorruptFileError, DatabaseError, MissingExtraError."""
    if address.secrets:
        raise ParameterError(
            f"Got {address.shown} with a secret in it; expected an address without one, since addresses end up in histories and logs. "
            f"Set the environment variable {TOKEN} instead."
        )
    file = file_of(address)
    if file is not None:
        _check_file(file, address)
    pymilvus = require("pymilvus", extra="milvus")
    _quieten()
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
            raise _why_not(file, address) from error
        ours = _translate(error, address)
        if ours is None:
            raise
        raise ours from error
    return Connection(client, address, file)


def _check_file(file: Path, address: Address) -> None:
    if file.suffix != ".db":
        raise ParameterError(
            f"Got {address.shown}; expected a path that ends in .db, as Milvus Lite's client wants it, or milvus+http:// for a server. "
            "Write the path that MilvusClient is given."
        )
    if file.is_file():
        raise FileError(
            f"Got {address.shown}, which is one file; expected the folder that Milvus Lite 3 writes. Copy it with the release that wrote it "
            "(milvus-lite dump), and load that into a new one."
        )
    if not (file / "collections").is_dir():  # the client would make a new one
        raise FileError(
            f"Got {address.shown}, where no database of Milvus Lite is; expected a path that MilvusClient has made. Write its path."
        )


def _why_not(file: Path, address: Address) -> CongruenceError:
    """Open the file once more by itself: the client says only that it failed."""
    try:
        require("milvus_lite.db", extra="milvus").MilvusLite(str(file)).close()
    except Exception as error:
        if type(error).__name__ == "DataDirLockedError":
            return DatabaseUnavailableError(
                f"Got {address.shown}, which another process has open; expected it closed, since Milvus Lite has one process at a time. "
                "Close the other client."
            )
        if isinstance(error, PermissionError):
            return FileError(
                f"Got {address.shown} ({error}); expected a folder that can be read and written. Make it so."
            )
        return CorruptFileError(
            f"Got {address.shown}, which cannot be read ({type(error).__name__}: {error}); expected a database of Milvus Lite. "
            "Restore it from a backup."
        )
    return DatabaseUnavailableError(f"Got {address.shown}, which did not open; expected it to. Try again.")


# ---- the client's own log: it prints a traceback of each error that it raises ----------------------------------------

_calling = threading.local()


@contextmanager
def _silent() -> Iterator[None]:
    _calling.depth = getattr(_calling, "depth", 0) + 1
    try:
        yield
    finally:
        _calling.depth -= 1


def _not_ours(record: logging.LogRecord) -> bool:
    return not getattr(_calling, "depth", 0)


def _quieten() -> None:
    """Keep what is logged of calls of ours, whose errors are raised, out of the log; the user's own calls go on to be logged."""
    for name in ("pymilvus.decorators", "pymilvus.client.connection_manager", "milvus_lite.server_manager"):
        logging.getLogger(name).addFilter(_not_ours)  # the same filter twice is one


def _translate(error: Exception, address: Address) -> CongruenceError | None:
    """Return this library's error for an error of the database client, or None if the error is a bug and not the client's."""
    where, name = address.shown, type(error).__name__
    module = type(error).__module__.partition(".")[0]
    words = " ".join(address.hide(str(getattr(error, "message", "") or error) or name).split())
    if _FULL.search(words):
        return StorageError(
            f"Got no room for what is written to {where} ({words}); expected some. Free disk space there."
        )
    if name in ("ConnectError", "MilvusUnavailableException") or module == "grpc" or _BUSY.search(words):
        return DatabaseUnavailableError(
            f"Got no service from {where} ({words}); expected an answer. Start Milvus, or try again."
        )
    if getattr(error, "code", None) == 65535 and "auth" in words:
        return DatabaseError(
            f"Got no access to {where} ({words}); expected a token that may read and write. Set the environment variable {TOKEN}."
        )
    if module == "pymilvus" or isinstance(error, (ValueError, TypeError, OSError)):
        return DatabaseError(
            f"Got a refusal of {where}: {words}; expected the request to be taken. See Milvus's message."
        )
    return None
