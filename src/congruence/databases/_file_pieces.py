"""Consecutive rows of a file, and functions for reading and finding rows that all file formats share."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from congruence._utils.refusals import describe_refusal, is_refusal
from congruence.databases._address import Address
from congruence.errors import CorruptFileError, FileError, IdError

__all__ = ["Piece", "among", "copy_mode", "cut", "hashes", "only", "path_of", "reading"]


class Piece(NamedTuple):
    """Consecutive rows of the original file.

    Attributes
    ----------
    start : int
        Row number of the first row.
    ids : pyarrow.Array of int64, uint64 or large_string, shape (b,)
    valid : ndarray of bool, shape (b,)
        Which rows have a vector; undefined if no vectors were requested.
    vectors : ndarray of float32, shape (valid.sum(), dim), or None
    modalities : pyarrow.Array of large_string, shape (b,), or None
    """

    start: int
    ids: pa.Array
    valid: np.ndarray
    vectors: np.ndarray | None
    modalities: pa.Array | None


def cut(pieces: Iterator[Piece], stop: int | None) -> Iterator[Piece]:
    """Yield pieces up to row number ``stop``, shortening the last one; all pieces if it is None."""
    for piece in pieces:
        rows = len(piece.ids) if stop is None else min(len(piece.ids), stop - piece.start)
        if rows <= 0:
            return
        if rows == len(piece.ids):
            yield piece
            continue
        valid = piece.valid[:rows]
        vectors = None if piece.vectors is None else piece.vectors[: int(valid.sum())]
        modalities = None if piece.modalities is None else piece.modalities.slice(0, rows)
        yield Piece(piece.start, piece.ids.slice(0, rows), valid, vectors, modalities)
        return


def path_of(address: Address, schemes: tuple[str, ...]) -> str:
    """Return the path in an address: the part after ``scheme://``, or the whole address."""
    text = re.sub(rf"^({'|'.join(schemes)})://", "", address.text, flags=re.IGNORECASE)
    return text.rstrip("/") or text


@contextmanager
def reading(path: str | Path, *damage: type[Exception]) -> Iterator[None]:
    """Translate errors to FileError, or to CorruptFileError for the types in ``damage``."""
    try:
        yield
    except damage as error:
        if is_refusal(error):
            raise FileError(describe_refusal(error, f"while reading {path}")) from error  # type: ignore[arg-type]
        raise CorruptFileError(
            f"Got a truncated or damaged file, {path} ({str(error)[:300]}); expected an intact one of the kind its name says. "
            "Copy or write it again."
        ) from error
    except OSError as error:
        raise FileError(describe_refusal(error, f"while reading {path}")) from error


def copy_mode(source: Path, target: Path) -> None:
    """Copy the permissions of a file to the file that replaces it."""
    os.chmod(target, source.stat().st_mode & 0o7777)


def only(column: pa.Array | None, there: np.ndarray) -> pa.Array | None:
    """Return the entries of a column for which the mask is true; None if the column is None."""
    if column is None or there.all():
        return column
    return column.filter(pa.array(there))


def among(ids: pa.Array, known: pa.Array) -> np.ndarray:
    """Return the position of each id in ``known``; -1 if it is missing."""
    import pyarrow.compute as pc

    try:
        found = pc.index_in(ids.cast(known.type), value_set=known)
    except pa.ArrowInvalid as error:
        raise IdError(
            f"Got ids of {ids.type}; expected {known.type}. Pass ids in the type that a scan returns."
        ) from error
    return np.asarray(found.fill_null(-1).to_numpy(zero_copy_only=False), np.int64)


def hashes(ids: pa.Array) -> np.ndarray:
    """Return a 64-bit integer per id: the id itself, or the hash of a string."""
    if pa.types.is_integer(ids.type):
        return np.asarray(ids.to_numpy(zero_copy_only=False)).astype(np.int64, copy=False)
    return np.fromiter(map(hash, ids.to_pylist()), np.int64, len(ids))
