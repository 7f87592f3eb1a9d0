"""Protocols for the database clients, for type annotations only.

The clients are optional dependencies, and most are untyped: the protocols declare the methods that are called, and their results.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias

import numpy as np

__all__ = ["Collection", "CollectionClient", "Cursor", "Row", "SQLConnection"]

#: A row of a result; the types of its columns depend on the query.
Row: TypeAlias = tuple[Any, ...]


class Result(Protocol):
    """The rows that a statement returned."""

    def fetchone(self) -> Row | None: ...
    def fetchall(self) -> list[Row]: ...
    def __iter__(self) -> Iterator[Row]: ...


class SQLConnection(Protocol):
    """A connection to SQLite, or the part of a DuckDB connection that has the same methods."""

    def execute(self, statement: str, values: Sequence[object] = ..., /) -> Result: ...
    def executemany(self, statement: str, values: Iterable[Sequence[object]], /) -> object: ...


class Copy(Protocol):
    """A COPY in progress."""

    def write(self, data: bytes, /) -> None: ...


class Transactions(Protocol):
    """A connection that supports transactions."""

    def transaction(self) -> AbstractContextManager[object]: ...


class Cursor(Protocol):
    """A psycopg cursor."""

    @property
    def connection(self) -> Transactions: ...
    def execute(self, query: object, params: Sequence[object] | None = None, /) -> Result: ...
    def copy(self, statement: object, /) -> AbstractContextManager[Copy]: ...


class Collection(Protocol):
    """A Chroma collection."""

    @property
    def name(self) -> str: ...
    @property
    def metadata(self) -> Mapping[str, Any] | None: ...
    @property
    def configuration_json(self) -> Mapping[str, Any]: ...
    def count(self) -> int: ...
    def get(
        self,
        ids: list[str] | None = None,
        where: Mapping[str, object] | None = None,
        limit: int | None = None,
        include: list[str] = ...,
    ) -> Mapping[str, Any]: ...
    def query(
        self,
        query_embeddings: np.ndarray,
        n_results: int,
        where: Mapping[str, object] | None = None,
        include: list[str] = ...,
    ) -> Mapping[str, Any]: ...
    def add(
        self,
        ids: list[str],
        embeddings: np.ndarray,
        metadatas: Sequence[object] | None = None,
        documents: Sequence[object] | None = None,
        uris: Sequence[object] | None = None,
    ) -> None: ...
    def update(self, ids: list[str], embeddings: np.ndarray) -> None: ...
    def delete(self, ids: list[str]) -> object: ...
    def modify(self, name: str) -> None: ...


class CollectionClient(Protocol):
    """A Chroma client, for a folder or a server."""

    def get_max_batch_size(self) -> int: ...
    def get_collection(self, name: str, embedding_function: None) -> Collection: ...
    def list_collections(self) -> Sequence[Collection]: ...
    def create_collection(
        self, name: str, embedding_function: None, configuration: Mapping[str, object], metadata: Mapping[str, object]
    ) -> Collection: ...
    def delete_collection(self, name: str) -> None: ...
