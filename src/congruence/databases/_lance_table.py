"""Find a Lance table and its columns, convert between Lance's types and blocks, and translate Lance's errors."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from congruence._utils.lance_urls import lance_location
from congruence._utils.refusals import describe_refusal
from congruence.databases._address import Address
from congruence.databases._bits import pack, unpack
from congruence.databases._uuids import uuid_texts
from congruence.errors import (
    CongruenceError,
    CorruptFileError,
    DatabaseError,
    DatabaseUnavailableError,
    FileError,
    ParameterError,
    StorageError,
)

__all__ = [
    "EXTENSION",
    "NEW",
    "NOTE",
    "OLD",
    "TOKEN",
    "TablePlace",
    "as_ids",
    "decoded_metadata",
    "dim_of",
    "find_columns",
    "find_table",
    "flat_of",
    "hiding_metadata",
    "is_bits",
    "note_of",
    "numbers_of",
    "storage_of",
    "translated_errors",
    "type_of",
]

#: Suffixes of the additional column's name: new vectors before the switch, old ones after it.
NEW, OLD = "__congruence_new", "__congruence_old"

#: Keys of the note, and of the name of the folder with staged vectors, in the new column's metadata.
NOTE, TOKEN = "congruence.note", "congruence.staging"

#: Metadata key of a column's Arrow extension type.
EXTENSION = "ARROW:extension:name"

_CONFLICT = re.compile(r"conflict|contention|retryable|concurrent", re.IGNORECASE)
_DAMAGE = re.compile(
    r"corrupt|magic|decod|unexpected|truncated|out of (range|bounds)|not found|invalid (data|file|argument|range)|checksum|protobuf",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class TablePlace:
    """Location of a table.

    Attributes
    ----------
    uri : str
        Path of the table's folder, or its URL in an object store, without the query.
    options : dict of str to str, or None
        Storage options for Lance. Each process takes credentials from its environment.
    """

    uri: str
    options: dict[str, str] | None = None

    @property
    def folder(self) -> Path | None:
        """Folder of the table; None in an object store."""
        return None if "://" in self.uri else Path(self.uri)

    def __str__(self) -> str:
        return self.uri


def find_table(address: Address, table: str | None) -> TablePlace:
    """Return the location of a table. Raises FileError if there is none, ParameterError if the address or name does not determine one."""
    if address.scheme not in ("", "lancedb"):
        uri, options = lance_location(address.text)
        if not uri.rstrip("/").endswith(".lance"):
            raise ParameterError(
                f"Got {address.shown} in an object store; expected a Lance table there, whose URL ends in .lance. Other files are mapped into a second "
                "data set: congruence transform."
            )
        return TablePlace(uri.rstrip("/"), options)
    text = address.text[len("lancedb://") :] if address.scheme == "lancedb" else address.text
    place = Path(text).absolute()
    if place.suffix == ".lance":
        if table not in (None, place.stem):
            raise ParameterError(f"Got table={table!r} for {address.shown}; expected {place.stem!r}. Leave table= out.")
    else:
        tables = sorted(folder.stem for folder in place.glob("*.lance")) if place.is_dir() else []
        if table is None and len(tables) == 1:
            table = tables[0]
        if table not in tables:
            names = ", ".join(tables) or "none"
            raise ParameterError(
                f"Got table={table!r} for {address.shown}, which has {names}; expected one of its tables. Pass table= with the name of one."
            )
        place = place / f"{table}.lance"
    if not (place / "_versions").is_dir():
        raise FileError(
            f"Got {address.shown}, where there is no Lance table; expected the folder of one. Check the path."
        )
    return TablePlace(str(place))


def find_columns(
    schema: pa.Schema, primary: list[str], place: TablePlace, column: str | None, ids: str | None, modality: str | None
) -> tuple[str, str, str | None]:
    """Return the columns of the vectors, of the ids and, if given, of the modalities.

    Raises
    ------
    ParameterError
        If a column does not exist, must be specified, or cannot be quoted.
    DatabaseError
        If the type of the vectors or ids is not supported.
    """
    for option, name in (("column", column), ("ids", ids), ("modality_column", modality)):
        if name is not None and name not in schema.names:
            raise ParameterError(
                f"Got {option}={name!r} for {place}; expected one of its columns, {', '.join(schema.names)}. Pass {option}= with the name of one."
            )
    vectors = [field.name for field in schema if _is_vector(field.type) and not field.name.endswith((NEW, OLD))]
    if column is None:  # bytes need not be bits of vectors, so a column of floats is preferred
        vectors = [name for name in vectors if not is_bits(schema.field(name).type)] or vectors
        if len(vectors) != 1:
            names = ", ".join(vectors) or "none"
            raise ParameterError(
                f"Got {len(vectors)} columns of vectors in {place} ({names}); expected exactly one, or the name of one. Pass column=."
            )
        column = vectors[0]
    if column not in vectors:
        raise DatabaseError(
            f"Got column {column!r} of {schema.field(column).type}; expected lists of fixed size of float16, float32 or float64, or of uint8 for bits. "
            "Pass another column=, or cast this one."
        )
    if ids is None:
        ids = "id" if "id" in schema.names else primary[0] if len(primary) == 1 else None
    if ids is None:
        raise ParameterError(
            f"Got {place} without a column id or a primary key of one column; expected a column of ids. Pass ids= with its name."
        )
    kind = storage_of(schema.field(ids).type)
    if not (pa.types.is_integer(kind) or _is_text(kind) or kind == pa.binary(16)):
        raise DatabaseError(
            f"Got ids of {kind} in column {ids!r}; expected integers, strings or UUIDs. Pass another column as ids=."
        )
    for name in (column, ids, modality):
        if name is not None and "`" in name:
            raise ParameterError(
                f"Got column {name!r}; expected a name without a backtick, which Lance cannot quote. Rename the column."
            )
    return column, ids, modality


def _is_vector(kind: pa.DataType) -> bool:
    kind = storage_of(kind)
    return bool(pa.types.is_fixed_size_list(kind) and (pa.types.is_floating(kind.value_type) or is_bits(kind)))


def is_bits(kind: pa.DataType) -> bool:
    """Return whether a type is a fixed-size list of bytes, which Lance compares only by their bits."""
    kind = storage_of(kind)
    return bool(pa.types.is_fixed_size_list(kind) and kind.value_type == pa.uint8())


def dim_of(kind: pa.DataType) -> int:
    """Return the number of components of the vectors in a column of this type."""
    kind = storage_of(kind)
    return int(kind.list_size) * (8 if is_bits(kind) else 1)


def type_of(element_type: str, dim: int) -> pa.DataType:
    """Return the column type for vectors of an element type and width."""
    if element_type == "binary":
        return pa.list_(pa.uint8(), dim // 8)
    return pa.list_(pa.float32() if element_type == "float32" else pa.float16(), dim)


def numbers_of(stored: np.ndarray) -> np.ndarray:
    """Convert stored vectors to float32, shape (b, dim), C-contiguous; bits become 1 and -1."""
    if stored.dtype == np.uint8:
        return unpack(stored, 8 * stored.shape[1])
    return np.ascontiguousarray(stored, np.float32)


def flat_of(vectors: np.ndarray, kind: pa.DataType) -> np.ndarray:
    """Return a flat copy of vectors as the values of a column of this type."""
    if is_bits(kind):
        return pack(vectors).reshape(-1)
    return np.array(vectors, kind.value_type.to_pandas_dtype()).reshape(-1)


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def as_ids(column: pa.Array) -> pa.Array:
    """Convert a column to ids as in a block: int64, uint64 or large_string; 16 bytes become the text of a UUID."""
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if column.type == pa.binary(16):
        return uuid_texts(column)
    if pa.types.is_uint64(column.type):
        return column
    return column.cast(pa.int64() if pa.types.is_integer(column.type) else pa.large_string())


def storage_of(kind: pa.DataType) -> pa.DataType:
    """Return the storage type of an extension type; other types unchanged."""
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def decoded_metadata(metadata: Mapping[bytes, bytes] | None) -> dict[str, str]:
    """Decode the keys and values of metadata to strings."""
    decoded = {}
    for key, value in (metadata or {}).items():
        name = key.decode(errors="replace") if isinstance(key, bytes) else key
        decoded[name] = value.decode(errors="replace") if isinstance(value, bytes) else value
    return decoded


def hiding_metadata(kind: pa.DataType) -> dict[str, str]:
    """Return metadata that exclude a column of vectors from those that LanceDB's Python client considers for a search without a column name."""
    shape = json.dumps({"shape": [kind.list_size]})
    return {EXTENSION: "arrow.fixed_shape_tensor", "ARROW:extension:metadata": shape}


def note_of(schema: pa.Schema, column: str) -> dict[str, str]:
    """Return the note in a column's metadata; empty if there is none or it cannot be parsed."""
    try:
        note = json.loads(decoded_metadata(schema.field(column).metadata).get(NOTE, "{}"))
    except (ValueError, RecursionError):
        return {}
    return {str(key): str(value) for key, value in note.items()} if isinstance(note, dict) else {}


@contextmanager
def translated_errors(place: TablePlace, where: str | None) -> Iterator[None]:
    """Translate Lance's errors, which differ only in their text, to those of this library."""
    try:
        yield
    except CongruenceError:
        raise
    except (OSError, ValueError, RuntimeError, pa.ArrowException) as error:
        raise _translate(error, place, where) from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # raised for a panic in Rust; not a subclass of Exception
            raise
        raise CorruptFileError(
            f"Got a damaged table, {place} ({_first_line(error)}); expected an intact one. Restore an older version, or a backup."
        ) from None


def _translate(error: Exception, place: TablePlace, where: str | None) -> CongruenceError:
    text, reason = str(error), _first_line(error)
    number = error.errno if isinstance(error, OSError) and error.errno else None
    if found := re.search(r"os error (\d+)", text):
        number = int(found[1])
    if number is not None:
        return StorageError(describe_refusal(OSError(number, os.strerror(number)), f"from the disk at {place}"))
    if where is not None and re.search(r"invalid user input|schema error|parsing|filter", text, re.IGNORECASE):
        return ParameterError(
            f"Got the condition {where!r}, which Lance rejects ({reason}); expected a condition for LanceDB's where. Pass rows=… in LanceDB's SQL."
        )
    if _CONFLICT.search(text):
        return DatabaseUnavailableError(
            f"Got a conflict with another writer of {place} ({reason}); expected none. Try again."
        )
    if re.search(r"dataset at path .* was not found", text, re.IGNORECASE):
        return FileError(f"Got {place}, where there is no Lance table; expected the folder of one. Check the path.")
    if _DAMAGE.search(text):
        return CorruptFileError(
            f"Got a damaged table, {place} ({reason}); expected an intact one. Restore an older version, or a backup."
        )
    return DatabaseError(
        f"Got an error from Lance for {place} ({reason}); expected the request to succeed. Fix the cause in Lance's message."
    )


def _first_line(error: BaseException) -> str:
    """Return the first line of a message, without references to Lance's source files."""
    lines = str(error).splitlines() or [""]
    return re.sub(r",? ?/[^\s,]*\.rs:\d+:\d+", "", lines[0])[:500]
