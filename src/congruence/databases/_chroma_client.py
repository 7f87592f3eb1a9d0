"""Connection to Chroma, in a folder or on a server, with translated errors, and the roles of a migration's collections."""

from __future__ import annotations

import json
import os
import re
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

from congruence._utils.optional import require
from congruence.databases._address import Address, refuse_secrets
from congruence.databases._metadata import MARK_KEY, SPACE_KEY
from congruence.errors import (
    CongruenceError,
    DatabaseError,
    DatabaseUnavailableError,
    FileError,
    ParameterError,
    StorageError,
)

if TYPE_CHECKING:
    from congruence.databases._client_types import Collection, CollectionClient

#: Environment variable with the server's token, which is not allowed in an address.
API_KEY = "CHROMA_API_KEY"

_P = ParamSpec("_P")
_T = TypeVar("_T")


@dataclass(frozen=True)
class Place:
    """The existing collections of a migration, by name.

    Attributes
    ----------
    old : Collection
        The collection of the old vectors, whatever its name.
    current : Collection or None
        The collection with the user's name.
    named_old, named_new, named_back : Collection or None
        The collections with the suffixes ``__congruence_old``, ``__congruence_new`` and ``__congruence_back``.
    """

    old: Collection
    current: Collection | None
    named_old: Collection | None
    named_new: Collection | None
    named_back: Collection | None

    @property
    def new(self) -> Collection | None:
        """The collection of the new vectors, whatever its name, or None."""
        if self.named_old is not None and self.current is not None:
            return self.current
        return self.named_back if self.named_new is None else self.named_new

    @property
    def switched(self) -> bool:
        """Whether readers see the new vectors, or a rollback was interrupted."""
        # An interrupted rollback leaves the new vectors in ``named_back``, an interrupted switch in ``named_new``.
        return self.named_old is not None and (self.current is not None or self.named_back is not None)


def folder_of(address: Address) -> Path | None:
    """Return the folder of an address, or None for a server."""
    parts = urlsplit(address.text)
    return Path(unquote(f"{parts.netloc}{parts.path}")).expanduser() if address.scheme == "chroma" else None


class Connection:
    """A Chroma client whose errors are translated into those of this library.

    Attributes
    ----------
    client : CollectionClient
    address : Address
        Address of the folder or server; its secrets include the server's token.
    max_records : int
        Maximum number of records per request.
    """

    def __init__(self, client: CollectionClient, address: Address) -> None:
        self.client, self.address = client, address
        self.max_records = max(1, int(self.call(client.get_max_batch_size)))

    def call(self, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Call a method of the client or of one of its collections. Raises DatabaseError, DatabaseUnavailableError, StorageError."""
        try:
            return call(*args, **kwargs)
        except Exception as error:
            ours = translate(error, self.address)
            if ours is None:
                raise
            raise ours from error

    def get(self, name: str) -> Collection | None:
        """Return a collection, or None if there is none of this name."""
        try:
            return self.call(self.client.get_collection, name, embedding_function=None)
        except DatabaseError as error:
            if type(error.__cause__).__name__ in ("NotFoundError", "InvalidArgumentError"):
                return None
            raise

    def names(self) -> list[str]:
        """Return the names of all collections."""
        return [collection.name for collection in self.call(self.client.list_collections)]


def connect(address: Address) -> Connection:
    """Open a folder or a server. Raises ParameterError, FileError, DatabaseError, DatabaseUnavailableError, MissingExtraError."""
    refuse_secrets(address, API_KEY)
    folder = folder_of(address)
    if folder is not None and not (folder / "chroma.sqlite3").is_file():  # the client would create a new folder
        raise FileError(
            f"Got {address.shown}, which has no chroma.sqlite3; expected a folder that chromadb.PersistentClient created. Pass the path of such a folder."
        )
    chromadb = require("chromadb", extra="chroma")
    key = os.environ.get(API_KEY)
    try:
        if folder is not None:
            client = chromadb.PersistentClient(path=str(folder))
        else:
            parts = urlsplit(address.text)
            options: dict[str, object] = {
                name: values[0] for name, values in parse_qs(parts.query).items() if name in ("tenant", "database")
            }
            if key:
                address, options["headers"] = replace(address, secrets=(key,)), {"x-chroma-token": key}
            secure = address.scheme == "chroma+https"
            port = parts.port or (443 if secure else 8000)
            client = chromadb.HttpClient(host=parts.hostname or "localhost", port=port, ssl=secure, **options)
    except Exception as error:
        ours = translate(error, address)
        if ours is None:
            raise
        raise ours from error
    return Connection(client, address)


def mark_of(collection: Collection) -> dict[str, Any]:
    """Return the data that :meth:`Chroma.prepare` stored in the metadata; empty for a collection that it did not create."""
    try:
        mark = json.loads((collection.metadata or {}).get(MARK_KEY, "null"))
    except (TypeError, ValueError):
        return {}
    return mark if isinstance(mark, dict) and isinstance(mark.get("note"), dict) else {}


def parse_where(text: str) -> dict[str, object]:
    """Parse a filter. Raises ParameterError."""
    try:
        where = json.loads(text)
    except ValueError as error:
        raise ParameterError(
            f'Got rows={text!r}, which is not JSON ({error}); expected a Chroma where filter such as {{"kind": "image"}}. Pass the filter as JSON.'
        ) from error
    if not isinstance(where, dict) or not where:
        raise ParameterError(
            f'Got rows={text!r}; expected a Chroma where filter such as {{"kind": "image"}}. Pass the filter as a JSON object.'
        )
    return where


def translate(error: Exception, address: Address) -> CongruenceError | None:
    """Return this library's error for an error of the database client, or None if the exception is a bug rather than such an error."""
    if isinstance(error, CongruenceError):
        return None
    where, message, name = address.shown, address.hide(str(error) or type(error).__name__), type(error).__name__
    module = type(error).__module__.partition(".")[0]
    if "disk is full" in message or "No space left" in message:
        return StorageError(
            f"Got a full disk while writing to {where} ({message}); expected free space. Free disk space there."
        )
    if (
        "Could not connect" in message
        or module in ("httpx", "httpcore")
        or name in ("RateLimitError", "OperationalError")
    ):
        return DatabaseUnavailableError(
            f"Got no answer from {where} ({message}); expected one. Start the Chroma server, or try again later."
        )
    if isinstance(error, (ValueError, TypeError, OSError, sqlite3.Error)) or module in (
        "chromadb",
        "chromadb_rust_bindings",
    ):
        return DatabaseError(
            f"Got an error from {where}: {message}; expected the request to succeed. Fix the cause in Chroma's message."
        )
    return None


def only_table(names: list[str], address: Address) -> str:
    """Return the name of the only collection, without the suffix of a migration. Raises ParameterError if there are several, or none."""
    tables = sorted({re.sub(r"__congruence_(old|new|back)$", "", name) for name in names})
    if len(tables) != 1:
        raise ParameterError(
            f"Got {address.shown} with {len(tables)} collections ({', '.join(map(repr, tables[:20])) or 'none'}); expected exactly one, "
            "or the name of one. Pass table=…."
        )
    return tables[0]


def describe_index(collection: Collection) -> tuple[str, str]:
    """Return the distance of a collection's index (Chroma's ``space``), and a short description of the index."""
    kind = "hnsw" if collection.configuration_json.get("hnsw") else "spann"
    config = collection.configuration_json.get(kind) or {}
    parameters = f"m={config.get('max_neighbors')}, ef_construction={config.get('ef_construction')}"
    return str(config.get("space")), f"{kind.upper()} ({parameters})"


def settings_of(old: Collection, mark: dict[str, Any]) -> dict[str, Any]:
    """Return the settings for a collection like the old one, without its embedding function, which belongs to the old model."""
    kept = {key: value for key, value in (old.metadata or {}).items() if key not in (SPACE_KEY, MARK_KEY)}
    config = {key: value for key in ("hnsw", "spann") if (value := old.configuration_json.get(key))}
    return {"configuration": config, "metadata": {**kept, MARK_KEY: json.dumps(mark)}}
