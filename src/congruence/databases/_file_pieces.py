"""Consecutive rows of a file, and functions for reading and finding rows that all file formats share."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from congruence.databases._address import Address
from congruence.errors import IdError, ParameterError
from congruence.stores import read_column

__all__ = ["Piece", "among", "copy_mode", "cut", "hashes", "label_array", "only", "path_of", "refuse_options"]


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


def copy_mode(source: Path, target: Path) -> None:
    """Copy the permissions of a file to the file that replaces it."""
    os.chmod(target, source.stat().st_mode & 0o7777)


def only(column: pa.Array | None, mask: np.ndarray) -> pa.Array | None:
    """Return the entries of a column for which the mask is true; None if the column is None."""
    if column is None or mask.all():
        return column
    return column.filter(pa.array(mask))


def among(ids: pa.Array, known: pa.Array) -> np.ndarray:
    """Return the position of each id in ``known``; -1 if it is missing."""
    import pyarrow.compute as pc

    try:
        positions = pc.index_in(ids.cast(known.type), value_set=known)
    except pa.ArrowInvalid as error:
        raise IdError(
            f"Got ids of {ids.type}; expected {known.type}. Pass ids in the type that a scan returns."
        ) from error
    return np.asarray(positions.fill_null(-1).to_numpy(zero_copy_only=False), np.int64)


def hashes(ids: pa.Array) -> np.ndarray:
    """Return a 64-bit integer per id: the id itself, or the hash of a string."""
    if pa.types.is_integer(ids.type):
        return np.asarray(ids.to_numpy(zero_copy_only=False)).astype(np.int64, copy=False)
    return np.fromiter(map(hash, ids.to_pylist()), np.int64, len(ids))


def label_array(spec: str, n: int) -> pa.Array:
    """Return a column of modalities, one per row. Raises ParameterError, and the errors of reading the file."""
    labels = read_column(spec)
    if len(labels) != n:
        raise ParameterError(
            f"Got {len(labels)} modalities in {spec} for {n} rows; expected one per row. Pass modality_column=… of the same rows."
        )
    return pa.array(labels, pa.large_string())


def refuse_options(options: Mapping[str, str | None], what: str) -> None:
    """Raise ParameterError if an option that a file format does not support is not None."""
    for name, value in options.items():
        if value is not None:
            raise ParameterError(f"Got {name}={value!r} for {what}; expected none. Leave {name}= out.")
