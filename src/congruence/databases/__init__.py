"""Databases of vectors: one module per kind, with a common interface.

Another package adds a kind by an entry point in the group ``congruence.databases``, named after a URL scheme or, with a
dot, a suffix of files. It leads to a subclass of ``Database``: of ``CollectionDatabase`` if the new vectors are in a
second collection or table, or of ``ColumnDatabase`` if they are in a second column.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path

from congruence._utils.validation import check_choice
from congruence.databases._base import (
    BATCH,
    Address,
    Block,
    Capabilities,
    Change,
    Cursor,
    Database,
    DatabaseInfo,
    NewBlock,
    NewVectors,
    PairedBlock,
    RowRange,
    Stage,
    VectorSide,
    WrittenFile,
    bytes_a_row,
    rows_of,
)
from congruence.databases._collections import CollectionDatabase, Collections
from congruence.databases._columns import ColumnDatabase
from congruence.databases._refusals import check_writable
from congruence.errors import ParameterError

__all__ = [
    "BATCH",
    "DATABASES",
    "Address",
    "Block",
    "Capabilities",
    "Change",
    "CollectionDatabase",
    "Collections",
    "ColumnDatabase",
    "Cursor",
    "Database",
    "DatabaseInfo",
    "Kind",
    "NewBlock",
    "NewVectors",
    "PairedBlock",
    "RowRange",
    "Stage",
    "VectorSide",
    "WrittenFile",
    "bytes_a_row",
    "check_writable",
    "open_database",
    "rows_of",
]


@dataclass(frozen=True)
class Kind:
    """How a kind of database is recognized and opened."""

    name: str
    schemes: tuple[str, ...]  # of URLs
    suffixes: tuple[str, ...]  # of its files and folders
    example: str  # an address, as users of the database write it
    opener: str  # ``module:class``, imported on demand; from this package, with a leading dot
    folders: bool = False  # whether a folder of files with these suffixes is also a database of this kind

    def load(self) -> Callable[..., Database]:
        """Return the class that opens a database of this kind."""
        module, _, name = self.opener.partition(":")
        opener: Callable[..., Database] = getattr(import_module(module, __name__), name)
        return opener


_SQLITE = (".sqlite", ".sqlite3", ".db")
_TABLES = (".parquet", ".arrow", ".feather")
_SEARCH = "elasticsearch+http elasticsearch+https opensearch+http opensearch+https"

#: Kinds by name.
DATABASES: Mapping[str, Kind] = {
    name: Kind(name, tuple(schemes.split()), suffixes, example, opener, folders=name == "parquet")
    for name, schemes, suffixes, example, opener in (
        ("lancedb", "lancedb s3 gs az", (".lance",), "photos/items.lance", ".lancedb:LanceDB"),
        ("duckdb", "duckdb", (".duckdb", ".ddb"), "photos.duckdb", ".duckdb:DuckDB"),
        ("pgvector", "postgresql postgres", (), "postgresql://user@host/db", ".pgvector:PgVector"),
        ("sqlite-vec", "sqlite", _SQLITE, "photos.sqlite", ".sqlite:SQLite"),
        ("qdrant", "qdrant http https", (), "http://localhost:6333", ".qdrant:Qdrant"),
        ("chroma", "chroma chroma+http chroma+https", (), "chroma://folder", ".chroma:Chroma"),
        ("milvus", "milvus milvus+http milvus+https", (), "milvus:///path/file.db", ".milvus:Milvus"),
        ("elasticsearch", _SEARCH, (), "elasticsearch+http://host:9200", ".elasticsearch:Elasticsearch"),
        ("parquet", "parquet arrow", _TABLES, "photos.parquet", ".parquet:Tables"),
        ("npy", "npy", (".npy",), "vectors.npy", ".npy:Npy"),
        ("faiss", "faiss", (".faiss", ".index"), "photos.faiss", ".faiss:Faiss"),
    )
}


@cache
def _installed() -> tuple[Kind, ...]:
    """Return the kinds of other packages."""
    from importlib.metadata import entry_points  # takes long, and is needed for unknown addresses only

    kinds = []
    for point in entry_points(group="congruence.databases"):
        name, opener = point.name.lower(), point.value
        if name.startswith("."):
            kinds.append(Kind(name[1:], (), (name,), f"file{name}", opener))
        else:
            kinds.append(Kind(name, (name,), (), f"{name}://place", opener))
    return tuple(kinds)


def _kinds() -> Iterator[Kind]:
    yield from DATABASES.values()
    yield from _installed()


def open_database(
    where: str | Path,
    *,
    table: str | None = None,
    column: str | None = None,
    ids: str | None = None,
    modality_column: str | None = None,
    rows: str | None = None,
) -> Database:
    """Open the vectors of a database for a migration.

    Parameters
    ----------
    where : str or path-like
        A URL or path, in the form that the database's own users write; ``DATABASES`` has an example of each. The
        URL scheme or the file suffix determines the database.
    table : str, optional
        Table or collection, if the address does not name it and there are several; ``schema.table`` in PostgreSQL.
    column : str, optional
        Column of the vectors, or name of the named vector, if there are several.
    ids : str, optional
        Column of the ids; by default the primary key, or ``id``. For an ``.npy``, a file of ids.
    modality_column : str, optional
        Column or payload field with the modality of each row: image, text, etc. For an ``.npy`` or a FAISS index, a
        file.
    rows : str, optional
        Migrate only these rows: a condition in the database's own query language (``Capabilities.filters``).

    Returns
    -------
    Database

    Raises
    ------
    ParameterError
        If the kind of database is unknown, or a table or column does not exist or must be specified.
    MissingExtraError
        If the client is not installed.
    FileError, DatabaseError, DatabaseUnavailableError, CorruptFileError
        If a file cannot be read; the database rejects the request; the database does not answer; or a file is damaged.
    """
    address = Address.parse(str(where))
    kind = _find_kind(address)
    return kind.load()(address, table=table, column=column, ids=ids, modality_column=modality_column, rows=rows)


def _find_kind(address: Address) -> Kind:
    for kind in _kinds():
        if address.scheme and address.scheme in kind.schemes:
            return kind
        if not address.scheme and Path(address.text.rstrip("/")).suffix.lower() in kind.suffixes:
            return kind
    for kind in _kinds():
        if not address.scheme and kind.folders and _is_folder_of(address.text, kind.suffixes):
            return kind
    if address.scheme:
        check_choice(address.scheme, sorted({scheme for kind in _kinds() for scheme in kind.schemes}), "scheme")
    examples = ", ".join(f"{kind.example} ({kind.name})" for kind in _kinds())
    shown = address.shown
    if not address.scheme:  # a mistyped URL or a connection string may have a password in it
        shown = re.sub(r"(?i)(:|password\s*=).*(?=@)|(password\s*=)\s*\S+", r"\1\2***", address.text)
    raise ParameterError(
        f"Got {shown}, which is not an address of a known kind of database; expected one such as {examples}.",
        "Write the address in one of these forms.",
    )


def _is_folder_of(text: str, suffixes: tuple[str, ...]) -> bool:
    """Return whether a path, maybe followed by ``:COLUMN``, is a file or folder of files with these suffixes."""
    path = Path(text.rstrip("/"))
    if not path.exists():  # after a switch that was killed between two renames, the files are in the hidden folder
        path = path.with_name(f".{path.name}.congruence")
    if path.is_dir():
        return any(file.suffix.lower() in suffixes for file in path.rglob("*"))
    before, colon, _ = text.partition(":")
    if not colon or not Path(before).exists():
        return False
    return Path(before).suffix.lower() in suffixes or _is_folder_of(before, suffixes)
