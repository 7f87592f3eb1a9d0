"""Connection to Qdrant, on a server or in a folder, with the client's errors translated into those of this library."""

from __future__ import annotations

import os
import re
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

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
    from types import ModuleType

    from qdrant_client import QdrantClient

__all__ = ["API_KEY", "TIMEOUT", "Connection", "connect", "folder_of"]

#: Environment variable with the server's API key, which is not allowed in an address.
API_KEY = "QDRANT_API_KEY"

#: Timeout of a request, in seconds.
TIMEOUT = 60

_FULL = re.compile(r"no space left|disk is full|not enough (disk )?space", re.IGNORECASE)


class Connection:
    """A Qdrant client whose errors are translated into those of this library.

    Attributes
    ----------
    client : qdrant_client.QdrantClient
    address : Address
        Address of the server or folder; its secrets include the server's key.
    folder : Path or None
        Folder, if the client is in local mode.
    """

    def __init__(self, client: QdrantClient, address: Address, folder: Path | None) -> None:
        self.client = client
        self.address = address
        self.folder = folder

    def call(self, name: str, *args: object, **kwargs: object) -> Any:
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
        """Close the connection, or release the folder's lock."""
        self.client.close()


def connect(address: Address) -> Connection:
    """Open a server or a folder. Raises ParameterError, FileError, CorruptFileError, DatabaseUnavailableError, MissingExtraError."""
    refuse_secrets(address, API_KEY)
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
            f"Got {address.shown} ({error}); expected an address such as http://localhost:6333. Pass an address with host and port."
        ) from error
    return Connection(client, address, None)


def folder_of(address: Address) -> Path | None:
    """Return the folder of an address in local mode, or None for a server."""
    if address.scheme != "qdrant":
        return None
    parts = urlsplit(address.text)
    if parts.netloc in ("", ".", "..", "~"):
        return Path(unquote(f"{parts.netloc}{parts.path}")).expanduser()
    return None


def _open_folder(qdrant: ModuleType, folder: Path, address: Address) -> QdrantClient:
    if not (folder / "meta.json").is_file():  # the client would create a new folder
        raise FileError(
            f"Got {address.shown}, which has no meta.json; expected a folder that QdrantClient(path=…) created. Pass the path of such a folder."
        )
    try:
        return qdrant.QdrantClient(path=str(folder), force_disable_check_same_thread=True)
    except RuntimeError as error:
        if "already accessed" not in str(error):
            raise
        raise DatabaseUnavailableError(
            f"Got {address.shown}, which another process has open; expected it closed, since only one client at a time can open a folder. "
            "Close the other client, or run Qdrant's server."
        ) from error
    except OSError as error:
        raise FileError(
            f"Got {address.shown} ({error}); expected a readable folder. Change its permissions, or pass another path."
        ) from error
    except Exception as error:  # JSON, SQLite, pickle and pydantic each raise their own exceptions
        raise CorruptFileError(
            f"Got {address.shown}, which cannot be read ({type(error).__name__}: {error}); expected a folder of the Qdrant client. "
            "Restore it from a backup."
        ) from error


def _translate(error: Exception, address: Address) -> CongruenceError | None:
    """Return this library's error for an error of the database client, or None if the exception is a bug rather than such an error."""
    where, source = address.shown, getattr(error, "source", None)
    message = address.hide(str(source if source is not None else error) or type(error).__name__)
    if _FULL.search(message):
        return StorageError(
            f"Got a full disk while writing to {where} ({message}); expected free space. Free disk space there."
        )
    if type(error).__name__ == "ResourceExhaustedResponse":
        return _unavailable(where, f"too many requests: {message}")
    if source is not None:
        if isinstance(source, ValueError):  # a response that is not Qdrant's
            return DatabaseError(
                f"Got a response from {where} that is not Qdrant's ({message}); expected Qdrant's REST API. Pass the host and port of that API."
            )
        return _unavailable(where, f"{type(source).__name__}: {message}")
    status = getattr(error, "status_code", None)
    if status is not None:
        if status in (408, 425, 429, 500, 502, 503, 504):
            return _unavailable(where, message)
        if status in (401, 403):
            return DatabaseError(
                f"Got no access to {where} ({message}); expected a key with read and write access. Set the environment variable {API_KEY}."
            )
        return DatabaseError(
            f"Got an error from {where}: {message}; expected the request to succeed. Fix the cause in Qdrant's message, or see its log."
        )
    if isinstance(error, sqlite3.OperationalError):
        return _unavailable(where, message)
    if isinstance(error, (ValueError, sqlite3.Error, OSError)):
        return DatabaseError(
            f"Got an error from {where}: {message}; expected the request to succeed. Fix the cause in Qdrant's message."
        )
    return None


def _unavailable(where: str, message: str) -> DatabaseUnavailableError:
    return DatabaseUnavailableError(
        f"Got no answer from {where} ({message}); expected one. Start Qdrant, or try again later."
    )
