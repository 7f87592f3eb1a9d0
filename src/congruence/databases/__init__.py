"""Databases of vectors: one file a kind, one contract for all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from congruence._utils.validation import check_choice
from congruence.databases._address import Address
from congruence.databases._base import (
    BATCH,
    Block,
    Capabilities,
    Cursor,
    Database,
    DatabaseInfo,
    PairedBlock,
    Side,
    Stage,
)
from congruence.databases._stretches import Change, Stretched, WrittenFile
from congruence.errors import ParameterError

__all__ = [
    "BATCH",
    "DATABASES",
    "Address",
    "Block",
    "Capabilities",
    "Change",
    "Cursor",
    "Database",
    "DatabaseInfo",
    "Kind",
    "PairedBlock",
    "Side",
    "Stage",
    "Stretched",
    "WrittenFile",
    "open_database",
]


@dataclass(frozen=True)
class Kind:
    """How a kind of database is recognized and opened.

    Attributes
    ----------
    name : str
    extra : str
        Of this package, that installs its client; empty if none is needed.
    schemes : tuple of str
        Of its URLs.
    suffixes : tuple of str
        Of its files and folders.
    example : str
        As its users write it.
    opener : str
        ``module:class``, or a function that returns one, below this package; imported when it is asked for.
    folders : bool
        A folder in which there are files with these suffixes is one too.
    """

    name: str
    extra: str
    schemes: tuple[str, ...]
    suffixes: tuple[str, ...]
    example: str
    opener: str
    folders: bool = False

    def load(self) -> Callable[..., Database]:
        """Return the class that opens a database of this kind."""
        module, _, name = self.opener.partition(":")
        found: Callable[..., Database] = getattr(import_module(f"congruence.databases.{module}"), name)
        return found


#: Kinds by name.
DATABASES: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(
            "lancedb",
            "lancedb",
            ("lancedb", "s3", "gs", "az"),
            (".lance",),
            "photos/items.lance",
            "lancedb:LanceDB",
        ),
        Kind("duckdb", "duckdb", ("duckdb",), (".duckdb", ".ddb"), "photos.duckdb", "duckdb:DuckDB"),
        Kind(
            "pgvector",
            "pgvector",
            ("postgresql", "postgres"),
            (),
            "postgresql://user@host/db",
            "pgvector:PgVector",
        ),
        Kind("sqlite-vec", "sqlite-vec", ("sqlite",), (".sqlite", ".sqlite3", ".db"), "photos.sqlite", "sqlite:SQLite"),
        Kind(
            "qdrant",
            "qdrant",
            ("qdrant", "http", "https"),
            (),
            "http://localhost:6333",
            "qdrant:open_qdrant",
        ),
        Kind(
            "chroma", "chroma", ("chroma", "chroma+http", "chroma+https"), (), "chroma://folder", "chroma:open_chroma"
        ),
        Kind(
            "milvus",
            "milvus",
            ("milvus", "milvus+http", "milvus+https"),
            (),
            "milvus:///path/file.db",
            "milvus:open_milvus",
        ),
        Kind(
            "parquet",
            "",
            ("parquet", "arrow"),
            (".parquet", ".arrow", ".feather"),
            "photos.parquet",
            "parquet:Tables",
            folders=True,
        ),
        Kind("npy", "", ("npy",), (".npy",), "vectors.npy", "npy:Npy"),
        Kind("faiss", "faiss", ("faiss",), (".faiss", ".index"), "photos.faiss", "faiss:Faiss"),
    )
}


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
        A URL or path, as the database's own users write it; :data:`DATABASES` has an example of each. The URL's scheme or the file's
        suffix says which database it is.
    table : str, optional
        Table or collection, where the address does not name it and there are several; ``schema.table`` in PostgreSQL.
    column : str, optional
        Of the vectors, or the name of a named vector, where there are several.
    ids : str, optional
        Column of the ids; by default the primary key, or ``id``. Of an ``.npy``, a file of them.
    modality_column : str, optional
        Column, or field of the payload, that says of each row what it is: image, text, … Of an ``.npy`` or a FAISS index, a file of them.
    rows : str, optional
        Only these rows: a condition in the database's own language (:attr:`Capabilities.filters`).

    Returns
    -------
    Database

    Raises
    ------
    ParameterError
        No kind of database that is known; a table or column that is not there, or must be chosen.
    MissingExtraError
        Its client is not installed.
    FileError, DatabaseError, DatabaseUnavailableError, CorruptFileError
    """
    address = Address.parse(str(where))
    kind = _find_kind(address)
    return kind.load()(address, table=table, column=column, ids=ids, modality_column=modality_column, rows=rows)


def _find_kind(address: Address) -> Kind:
    for kind in DATABASES.values():
        if address.scheme and address.scheme in kind.schemes:
            return kind
        if not address.scheme and Path(address.text.rstrip("/")).suffix.lower() in kind.suffixes:
            return kind
    for kind in DATABASES.values():
        if not address.scheme and kind.folders and _holds(address.text, kind.suffixes):
            return kind
    if address.scheme:
        check_choice(address.scheme, sorted({one for kind in DATABASES.values() for one in kind.schemes}), "scheme")
    examples = ", ".join(f"{kind.example} ({kind.name})" for kind in DATABASES.values())
    raise ParameterError(
        f"Got {address.shown}, which is no known kind of database; expected one as in {examples}. Write its address as its users do."
    )


def _holds(text: str, suffixes: tuple[str, ...]) -> bool:
    """Say whether a path is a folder of files with these suffixes, or such a file or folder and one of its columns, ``PATH:COLUMN``."""
    path = Path(text.rstrip("/"))
    if not path.exists():  # a switch that was killed between two renames: the files lie beside
        path = path.with_name(f".{path.name}.congruence")
    if path.is_dir():
        return any(one.suffix.lower() in suffixes for one in path.rglob("*"))
    before, colon, _ = text.partition(":")
    if not colon or not Path(before).exists():
        return False
    return Path(before).suffix.lower() in suffixes or _holds(before, suffixes)
