"""The way to Qdrant: its client on a server or a folder, and its errors in our words."""

from __future__ import annotations

import os
import re
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

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
    from types import ModuleType

    from qdrant_client import QdrantClient

__all__ = ["API_KEY", "TIMEOUT", "Connection", "connect", "folder_of"]

#: Environment variable with the key of the server; an address never has one.
API_KEY = "QDRANT_API_KEY"

#: Seconds that the server has for an answer.
TIMEOUT = 60

_FULL = re.compile(r"no space left|disk is full|not enough (disk )?space", re.IGNORECASE)


class Connection:
    """Qdrant's client, whose errors become ours.

    Attributes
    ----------
    address : Address
        Its secrets include the server's key.
    folder : Path or None
        Of the client's local mode.
    """

    def __init__(self, client: QdrantClient, address: Address, folder: Path | None) -> None:
        self.client = client
        self.address = address
        self.folder = folder

    def ask(self, name: str, *args: object, **kwargs: object) -> Any:
        """Call a method of the client. Raises DatabaseError, DatabaseUnavailableError, StorageError."""
        try:
            return getattr(self.client, name)(*args, **kwargs)
        except CongruenceError:
            raise
        except Exception as error:
            ours = _translate(error, self.address)
            if ours is None:
                raise
            raise ours from error

    def close(self) -> None:
        """Let go of the connection, or of the folder's lock."""
        self.client.close()


def connect(address: Address) -> Connection:
    """Open a server or a folder. Raises ParameterError, FileError, CorruptFileError, DatabaseError, MissingExtraError."""
    if address.secrets:
        raise ParameterError(
            f"Got {address.shown} with a secret in it; expected an address without one, since addresses end up in histories and logs. "
            f"Set the environment variable {API_KEY} instead."
        )
    qdrant = require("qdrant_client", extra="qdrant")
    folder = folder_of(address)
    if folder is not None:
        return Connection(_open_folder(qdrant, folder, address), address, folder)
    key = os.environ.get(API_KEY) or None
    if key is not None:
        address = replace(address, secrets=(key,))
    url = re.sub(r"^qdrant://", "http://", address.text, flags=re.IGNORECASE)
    try:
        client = qdrant.QdrantClient(url=url, api_key=key, timeout=TIMEOUT, check_compatibility=False)
    except ValueError as error:
        raise ParameterError(
            f"Got {address.shown} ({error}); expected an address such as http://localhost:6333. Write host and port."
        ) from error
    return Connection(client, address, None)


def folder_of(address: Address) -> Path | None:
    """Return the folder that an address of the client's local mode names, or None for a server."""
    if address.scheme != "qdrant":
        return None
    parts = urlsplit(address.text)
    if parts.netloc in ("", ".", "..", "~"):
        return Path(unquote(f"{parts.netloc}{parts.path}")).expanduser()
    return None


def _open_folder(qdrant: ModuleType, folder: Path, address: Address) -> QdrantClient:
    if not (folder / "meta.json").is_file():  # the client would make a new one
        raise FileError(
            f"Got {address.shown}, where no meta.json is; expected a folder that QdrantClient(path=…) has made. Write its path."
        )
    try:
        return qdrant.QdrantClient(path=str(folder), force_disable_check_same_thread=True)
    except RuntimeError as error:
        if "already accessed" not in str(error):
            raise
        raise DatabaseUnavailableError(
            f"Got {address.shown}, which another process has open; expected it closed, since a folder has one client at a time. "
            "Close the other client, or run Qdrant's server."
        ) from error
    except OSError as error:
        raise FileError(f"Got {address.shown} ({error}); expected a readable folder. Make it readable.") from error
    except Exception as error:  # JSON, SQLite, pickle and pydantic all have their own ways to say it
        raise CorruptFileError(
            f"Got {address.shown}, which cannot be read ({type(error).__name__}: {error}); expected a folder of Qdrant's client. "
            "Restore it from a backup."
        ) from error


def _translate(error: Exception, address: Address) -> CongruenceError | None:
    """Return this library's error for an error of the database client, or None if the error is a bug and not the client's."""
    where, source = address.shown, getattr(error, "source", None)
    words = address.hide(str(source if source is not None else error) or type(error).__name__)
    if _FULL.search(words):
        return StorageError(
            f"Got no room for what is written to {where} ({words}); expected some. Free disk space there."
        )
    if type(error).__name__ == "ResourceExhaustedResponse":
        return _unavailable(where, f"too many requests: {words}")
    if source is not None:
        if isinstance(source, ValueError):  # an answer that is not Qdrant's
            return DatabaseError(
                f"Got an answer of {where} that is not Qdrant's ({words}); expected Qdrant's REST interface. Write the port that it listens on."
            )
        return _unavailable(where, f"{type(source).__name__}: {words}")
    status = getattr(error, "status_code", None)
    if status is not None:
        if status in (408, 425, 429, 500, 502, 503, 504):
            return _unavailable(where, words)
        if status in (401, 403):
            return DatabaseError(
                f"Got no access to {where} ({words}); expected a key that may read and write. Set the environment variable {API_KEY}."
            )
        return DatabaseError(
            f"Got a refusal of {where}: {words}; expected the request to be taken. See Qdrant's message and its log."
        )
    if isinstance(error, sqlite3.OperationalError):
        return _unavailable(where, words)
    if isinstance(error, (ValueError, sqlite3.Error, OSError)):
        return DatabaseError(
            f"Got a refusal of {where}: {words}; expected the request to be taken. See Qdrant's message."
        )
    return None


def _unavailable(where: str, words: str) -> DatabaseUnavailableError:
    return DatabaseUnavailableError(
        f"Got no service from {where} ({words}); expected an answer. Start Qdrant, or try again."
    )
