"""vec0 tables of sqlite-vec: parse and write their CREATE statement, encode their vectors, and rename them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from congruence.databases._bits import pack, unpack
from congruence.databases._sqlite_connection import quoted
from congruence.errors import ParameterError

if TYPE_CHECKING:
    from congruence.databases._client_types import SQLConnection

__all__ = ["Vec0", "rename"]

_VECTOR = re.compile(r"(\w+)\s+(float|f32|int8|i8|bit)\s*\[\s*(\d+)\s*\](.*)", re.IGNORECASE | re.DOTALL)
_METRIC = re.compile(r"distance_metric\s*=\s*(\w+)", re.IGNORECASE)
_KEY = re.compile(r"(\w+)\s+(integer|int|text)\s+primary\s+key", re.IGNORECASE)
_OTHER = re.compile(r"\+?\s*(\w+)\s+\w+(\s+partition\s+key)?", re.IGNORECASE)


@dataclass(frozen=True)
class Vec0:
    """A vec0 table, as declared by its CREATE statement.

    Attributes
    ----------
    arguments : tuple of str
        Arguments of ``vec0(…)``.
    at : int
        Position of the vectors' column among the arguments.
    column, type, metric : str
    dim : int
    ids : str
        Name of the primary key, or ``rowid``.
    id_type : {"int", "text"}
    others : tuple of str
        Names of metadata columns, partition keys, auxiliary columns, and other columns of vectors.
    """

    arguments: tuple[str, ...]
    at: int
    column: str
    type: str
    dim: int
    metric: str
    ids: str
    id_type: str
    others: tuple[str, ...]

    @classmethod
    def parse(cls, table: str, statement: str, column: str | None) -> Vec0:
        """Parse a CREATE statement. Raises ParameterError if the column does not exist or must be specified."""
        body = statement[statement.index("(") + 1 : statement.rindex(")")]
        arguments = tuple(" ".join(argument.split()) for argument in body.split(",") if argument.strip())
        vectors = {
            match[1]: (k, match) for k, argument in enumerate(arguments) if (match := _VECTOR.fullmatch(argument))
        }
        if column is None and len(vectors) != 1:
            raise ParameterError(
                f"Got several columns of vectors in {table!r}: {', '.join(vectors)}; expected one. Pass its name (column=)."
            )
        column = next(iter(vectors)) if column is None else column
        if column not in vectors:
            raise ParameterError(
                f"Got column={column!r}; expected one of {', '.join(vectors)}. Pass the name of a column of vectors (column=)."
            )
        at, declaration = vectors[column]
        key = next((match for argument in arguments if (match := _KEY.fullmatch(argument))), None)
        others = [
            (_VECTOR.fullmatch(argument) or _OTHER.fullmatch(argument))
            for argument in arguments
            if not _KEY.fullmatch(argument) and "=" not in argument.split(" ")[0]
        ]
        metric = _METRIC.search(declaration[4])
        return cls(
            arguments,
            at,
            column,
            declaration[2].lower(),
            int(declaration[3]),
            metric[1].lower() if metric else "l2",
            key[1] if key else "rowid",
            "text" if key and key[2].lower() == "text" else "int",
            tuple(match[1] for match in others if match and match[1] != column),
        )

    @property
    def id_array_type(self) -> pa.DataType:
        """Arrow type of the ids in a block."""
        return pa.int64() if self.id_type == "int" else pa.large_string()

    @property
    def element_type(self) -> str:
        """Element type in the terms of :class:`congruence.databases.DatabaseInfo`."""
        return {"int8": "int8", "i8": "int8", "bit": "binary"}.get(self.type, "float32")

    @property
    def value(self) -> str:
        """SQL placeholder for a vector; sqlite-vec takes a blob for float32 unless it is wrapped in a function."""
        return {"float32": "?", "int8": "vec_int8(?)", "binary": "vec_bit(?)"}[self.element_type]

    def blobs(self, vectors: np.ndarray) -> np.ndarray:
        """Encode vectors as blobs, one per row; the lowest bit of a byte is the first component, as in ``vec_quantize_binary``."""
        if self.element_type == "binary":
            return pack(vectors, "little")
        return np.ascontiguousarray(vectors, "<f4" if self.element_type == "float32" else np.int8)

    def numbers(self, blobs: Sequence[bytes]) -> np.ndarray:
        """Decode blobs to vectors, ndarray of float32, shape (b, dim); bits become 1 and -1."""
        joined = b"".join(blobs)
        if self.element_type == "binary":
            return unpack(np.frombuffer(joined, np.uint8).reshape(len(blobs), self.dim // 8), self.dim, "little")
        kind = np.dtype("<f4" if self.element_type == "float32" else "i1")
        return np.frombuffer(joined, kind).reshape(len(blobs), self.dim).astype(np.float32)

    def create(self, name: str, dim: int, element_type: str) -> str:
        """Return the statement that creates the same table with vectors of another width and type."""
        declaration = _VECTOR.fullmatch(self.arguments[self.at])
        options = declaration[4] if declaration else ""
        if element_type == "binary":  # bits are compared by the Hamming distance, and accept no other metric
            options = _METRIC.sub("", options).rstrip()
        type_ = {"float32": "float", "int8": "int8", "binary": "bit"}[element_type]
        vector = f"{self.column} {type_}[{int(dim)}]{options}"
        arguments = [*self.arguments[: self.at], vector, *self.arguments[self.at + 1 :]]
        return f"CREATE VIRTUAL TABLE {quoted(name)} USING vec0({', '.join(arguments)})"


def rename(connection: SQLConnection, old: str, new: str) -> None:
    """Rename a vec0 table and its shadow tables, which vec0 locates by its own name but does not rename."""
    connection.execute(f"ALTER TABLE {quoted(old)} RENAME TO {quoted(new)}")
    shadow = re.compile(
        re.escape(old) + r"(_(info|chunks|rowids|auxiliary|(vector_chunks|metadatachunks|metadatatext)\d+))"
    )
    for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
        if suffix := shadow.fullmatch(name):
            connection.execute(f"ALTER TABLE {quoted(name)} RENAME TO {quoted(new + suffix[1])}")
