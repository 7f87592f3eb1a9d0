"""The way to Chroma: its client on a folder or a server, its errors in our words, and which collection is which."""

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
from congruence.databases._address import Address
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

#: Environment variable with the token of the server; an address never has one.
API_KEY = "CHROMA_API_KEY"


_P = ParamSpec("_P")
_T = TypeVar("_T")


@dataclass(frozen=True)
class Place:
    """The collections that there are, by role: of the old vectors; under the user's name, ``…__congruence_old``, ``…_new`` and ``…_back``."""

    old: Collection
    shown: Collection | None
    aside: Collection | None
    new: Collection | None
    back: Collection | None

    @property
    def made(self) -> Collection | None:
        """Where the new vectors are, or None."""
        beside = self.back if self.new is None else self.new
        return self.shown if self.aside is not None and self.shown is not None else beside

    @property
    def switched(self) -> bool:
        """Whether readers see the new vectors, or a rollback was cut short."""
        # Between the two renames of a rollback the new ones are at "back", between those of a switch at "new".
        return self.aside is not None and (self.shown is not None or self.back is not None)


def folder_of(address: Address) -> Path | None:
    """Return the folder of an address; None for a server's."""
    parts = urlsplit(address.text)
    return Path(unquote(f"{parts.netloc}{parts.path}")).expanduser() if address.scheme == "chroma" else None


class Connection:
    """Chroma's client, whose errors become ours.

    Attributes
    ----------
    address : Address
        Its secrets include the server's token.
    most : int
        Records in one request.
    """

    def __init__(self, client: CollectionClient, address: Address) -> None:
        self.client, self.address = client, address
        self.most = max(1, int(self.ask(client.get_max_batch_size)))

    def ask(self, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Call the client, or a collection of its. Raises DatabaseError, DatabaseUnavailableError, StorageError."""
        try:
            return call(*args, **kwargs)
        except Exception as error:
            ours = translate(error, self.address)
            if ours is None:
                raise
            raise ours from error

    def get(self, name: str) -> Collection | None:
        """Return a collection, None where there is none of this name."""
        try:
            return self.ask(self.client.get_collection, name, embedding_function=None)
        except DatabaseError as error:
            if type(error.__cause__).__name__ in ("NotFoundError", "InvalidArgumentError"):
                return None
            raise

    def names(self) -> list[str]:
        """Return the names of the collections."""
        return [one.name for one in self.ask(self.client.list_collections)]


def connect(address: Address) -> Connection:
    """Open a folder or a server. Raises ParameterError, FileError, DatabaseError."""
    if address.secrets:
        raise ParameterError(
            f"Got {address.shown} with a secret in it; expected an address without one, since addresses end up in histories and logs. "
            f"Set the environment variable {API_KEY} instead."
        )
    folder = folder_of(address)
    if folder is not None and not (folder / "chroma.sqlite3").is_file():  # the client would make a new one
        raise FileError(
            f"Got {address.shown}, where no chroma.sqlite3 is; expected a folder that chromadb.PersistentClient has made. Write its path."
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
    """Return what :meth:`Chroma.prepare` put into the metadata; empty where it did not make the collection."""
    try:
        mark = json.loads((collection.metadata or {}).get(MARK_KEY, "null"))
    except (TypeError, ValueError):
        return {}
    return mark if isinstance(mark, dict) and isinstance(mark.get("note"), dict) else {}


def where_of(text: str) -> dict[str, object]:
    """Read a filter. Raises ParameterError."""
    try:
        where = json.loads(text)
    except ValueError as error:
        raise ParameterError(
            f'Got rows={text!r}, which is no JSON ({error}); expected a where of Chroma such as {{"kind": "image"}}. Write it as JSON.'
        ) from error
    if not isinstance(where, dict) or not where:
        raise ParameterError(
            f'Got rows={text!r}; expected a where of Chroma such as {{"kind": "image"}}. Write it as a JSON object.'
        )
    return where


def translate(error: Exception, address: Address) -> CongruenceError | None:
    """Return this library's error for an error of the database client, or None if the error is a bug and not the client's."""
    if isinstance(error, CongruenceError):
        return None
    where, words, name = address.shown, address.hide(str(error) or type(error).__name__), type(error).__name__
    module = type(error).__module__.partition(".")[0]
    if "disk is full" in words or "No space left" in words:
        return StorageError(
            f"Got no room for what is written to {where} ({words}); expected some. Free disk space there."
        )
    if (
        "Could not connect" in words
        or module in ("httpx", "httpcore")
        or name in ("RateLimitError", "OperationalError")
    ):
        return DatabaseUnavailableError(
            f"Got no service from {where} ({words}); expected an answer. Start Chroma's server, or try again."
        )
    if isinstance(error, (ValueError, TypeError, OSError, sqlite3.Error)) or module in (
        "chromadb",
        "chromadb_rust_bindings",
    ):
        return DatabaseError(
            f"Got a refusal of {where}: {words}; expected the request to be taken. See Chroma's message."
        )
    return None


def only_table(names: list[str], address: Address) -> str:
    """Return the one collection there is, whatever a migration has renamed it to. Raises ParameterError if there are others."""
    found = sorted({re.sub(r"__congruence_(old|new|back)$", "", name) for name in names})
    if len(found) != 1:
        raise ParameterError(
            f"Got {address.shown} with {len(found)} collections ({', '.join(map(repr, found[:20])) or 'none'}); expected one to be "
            "chosen. Pass table=…."
        )
    return found[0]


def index_words(collection: Collection) -> tuple[str, str]:
    """Return the space of a collection's index as Chroma calls it, and the index in a few words."""
    kind = "hnsw" if collection.configuration_json.get("hnsw") else "spann"
    config = collection.configuration_json.get(kind) or {}
    words = f"{kind.upper()} (m={config.get('max_neighbors')}, ef_construction={config.get('ef_construction')})"
    return str(config.get("space")), words


def settings_of(old: Collection, mark: dict[str, Any]) -> dict[str, Any]:
    """Return what makes a collection like the old one. Its embedding function is left out: it makes vectors of the old model."""
    kept = {key: one for key, one in (old.metadata or {}).items() if key not in (SPACE_KEY, MARK_KEY)}
    config = {key: one for key in ("hnsw", "spann") if (one := old.configuration_json.get(key))}
    return {"configuration": config, "metadata": {**kept, MARK_KEY: json.dumps(mark)}}
