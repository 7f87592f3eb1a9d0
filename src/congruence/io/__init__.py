"""Files of vectors: streaming readers, atomic writers, and the table of formats."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike

from congruence._utils.arrays import as_dtype
from congruence._utils.ids import to_ids
from congruence._utils.validation import check_positive
from congruence.embeddings import Embeddings, Space
from congruence.errors import DtypeError, IdError, ParameterError, ShapeError
from congruence.io._base import (
    BATCH,
    SPACE_KEY,
    ArraySource,
    NamedArrays,
    RawSource,
    RowsByNumber,
    Sink,
    Source,
    check_output_place,
    read_space,
    store_as,
)
from congruence.io.formats import (
    FORMATS,
    find_column_format,
    find_format,
    find_sink,
    is_folder,
    names_columns,
    parse_spec,
    suffix_of,
    suffixes,
)
from congruence.io.reading import missing_file, missing_key, natural
from congruence.io.rows import POOL, StreamedRows

if TYPE_CHECKING:
    import pyarrow as pa

    from congruence.io.columns import Columns
    from congruence.io.ids import Column
    from congruence.train.rows import Rows

__all__ = [
    "BATCH",
    "FORMATS",
    "SPACE_KEY",
    "ArraySource",
    "NamedArrays",
    "RawSource",
    "RowsByNumber",
    "Sink",
    "Source",
    "StreamedRows",
    "check_output_place",
    "contents",
    "find_format",
    "find_sink",
    "matrices",
    "natural",
    "open_rows",
    "open_sink",
    "open_source",
    "parse_spec",
    "read_column",
    "read_embeddings",
    "read_ids",
    "read_links",
    "read_space",
    "store_as",
    "suffixes",
]


def open_source(spec: str | Path, *, ids: str | Path | bool | None = None, space: Space | None = None) -> Source:
    """Open a matrix of vectors for reading.

    Parameters
    ----------
    spec : str or path-like
        ``path`` or ``path:key``, where the key is that of an array, or a column; or a folder of parts,
        ``folder[:img_emb]``. See ``FORMATS``.
    ids : str, path-like or False, optional
        Where the ids are: a key or column of the same file, or the spec of another file. By default the file's own ids
        (columns ``id`` or ``ids`` in tables, the array ``ids`` in archives); ``False`` for none.
    space : Space, optional
        What is known about the origin of the vectors; completes and overrides what the file declares.

    Raises FileError, CorruptFileError, ParameterError or InputError.
    """
    path, key = parse_spec(spec)
    kind = find_format(path, there=True)
    if ids is True:
        raise ParameterError("Got `ids=True`.", "Pass `ids=…` with a key, a column or a file, or False.")
    column = ids if ids is None or ids is False else _find_ids(path, kind, str(ids))
    source = kind(path, key, column)  # type: ignore[call-arg]
    if not isinstance(column, (str, bool, type(None))):  # read already, from another file
        source.files = (*source.files, Path(parse_spec(str(ids))[0]))
    if source._ids is not None and len(source._ids) != source.n:
        problem = f"Got {len(source._ids)} ids for {source.n} rows of {source.path}; expected one per row."
        raise IdError(problem, "Pass ids of the same rows as `ids=…`, or `ids=False`.")
    if space is not None:
        source.space = replace(source.space, **space.to_dict())
    return source


def _find_ids(path: str, kind: type[Source], ids: str) -> pa.Array | str:
    """Return ids read from another file or array, or the name of the column from which the reader reads them."""
    other, _ = parse_spec(ids)
    if "://" in other or (Path(other).exists() and not is_folder(other)):
        return read_ids(ids)
    if names_columns(other):
        raise missing_file(other)
    if kind.names_ids:
        return ids
    if kind.key is None or kind.read_column is None:
        problem = f"Got `ids={ids!r}` for {path}; expected a file that exists, since it holds one array."
        raise ParameterError(problem, "Pass `ids=…` with the path of a file of ids.")
    from congruence.io.ids import column_ids

    return column_ids(kind.read_column(path, ids), f"{path}:{ids}")


def open_sink(
    path: str | Path,
    *,
    n: int,
    dim: int,
    dtype: DTypeLike = np.float32,
    has_ids: bool = False,
    id_type: pa.DataType | None = None,
    space: Space | None = None,
    force: bool = False,
    parts: list[tuple[str, int]] | None = None,
    columns: list[Columns] | None = None,
    column_out: str | None = None,
    facts: dict[str, Any] | None = None,
) -> Sink:
    """Open a file of vectors for writing; use it as a context manager.

    Parameters
    ----------
    path : path-like
        The suffix determines the format; without a suffix, a folder of parts is written.
    n, dim, dtype
        Number of rows and columns that will be written; float16, float32 or float64.
    has_ids, id_type
        Whether ids will be written, and their Arrow type, if the format has types: int64, uint64 or, by default,
        string. The formats ``.npy`` and ``.safetensors`` cannot hold ids and leave them out.
    parts
        For a folder: names and row counts of the parts, those of a ``Source`` for example; by default about a million
        rows each.
    columns, column_out
        The columns of the source's table other than its vectors (``Source.columns``), whose rows are then written with
        each block, as ``Source.scan_table`` yields them; and the name of the column of vectors, if that of the source
        is kept too. Columns that the format cannot hold are listed in the sink's ``left_out``.
    facts
        What the source says of its rows (``Source.facts``), which a ``.vdf`` keeps.

    Raises ParameterError or DtypeError immediately, OutputExistsError on entering the context, and StorageError while
    writing or if rows are missing at the end. No partial output is left.
    """
    kind = find_sink(path)
    check_positive(n, "n", integer=True)
    check_positive(dim, "dim", integer=True)
    dtype = as_dtype(dtype)
    codes = dtype in (np.int8, np.uint8)
    if codes and not kind.keeps_codes:
        raise DtypeError(f"Got {dtype} for {path}, which holds floats.", "Choose .npy, .npz, .h5, .parquet or .arrow.")
    if not codes and dtype not in (np.float16, np.float32, np.float64):
        raise DtypeError(f"Got dtype {dtype}.", "Pass `dtype=…` with float16, float32 or float64.")
    if dtype.itemsize > np.dtype(kind.widest).itemsize:
        widest = np.dtype(kind.widest)
        raise DtypeError(f"Got dtype {dtype} for {path}, which holds {widest}.", f"Pass `dtype='{widest}'`.")
    if kind.needs_ids and not has_ids:
        raise IdError(f"Got no ids for {path}, in which each row has a word.", "Pass ids, or choose .npy.")
    if column_out is not None and not kind.keeps_columns:
        known = [name for name in suffixes(lambda one: one.sink is not None and one.sink.keeps_columns) if name]
        named = list({find_format(f"x{suffix}"): suffix for suffix in reversed(known)}.values())[::-1]
        problem = f"Got `column_out={column_out!r}` for {path}; expected an output with named columns."
        raise ParameterError(problem, f"Choose {', '.join(named[:-1])} or {named[-1]}.")
    return kind(
        path=Path(path),
        n=n,
        dim=dim,
        dtype=dtype,
        has_ids=has_ids,
        space=space or Space(),
        force=force,
        id_type=id_type,
        parts=parts,
        columns=columns or [],
        column_out=column_out,
        facts=facts,
    )


def read_embeddings(
    spec: str | Path,
    *,
    ids: str | Path | bool | None = None,
    space: Space | None = None,
    allow_zero_rows: bool = False,
) -> Embeddings:
    """Read a whole matrix of vectors with its ids; see ``open_source`` for arguments and errors."""
    return open_source(spec, ids=ids, space=space).read(allow_zero_rows=allow_zero_rows)


def open_rows(spec: str | Path, *, ids: str | Path | bool | None = None, memory: int = 2**30) -> Rows:
    """Open a store for training, whatever its size: ``congruence.train.ArrayRows`` or ``StreamedRows``.

    ``spec`` and ``ids`` are those of ``open_source``; ids only identify rows in messages. A matrix of up to ``memory``
    bytes is read. A larger one is memory-mapped if it is a ``.npy`` of C-ordered floats, whose rows are then drawn from
    the whole file with one short read each, and streamed otherwise, with two chunks of rows within this limit.
    """
    from congruence.io.npy import NpySource
    from congruence.train.rows import ArrayRows

    check_positive(memory, "memory", integer=True)
    source = open_source(spec, ids=ids)
    row_bytes = source.dim * source.dtype.itemsize
    if source.n * row_bytes <= memory:
        return ArrayRows(source.read().vectors)
    if isinstance(source, NpySource):
        mapped = np.load(source.path, mmap_mode="r", allow_pickle=False)
        if mapped.flags.c_contiguous and mapped.dtype.kind == "f":
            if hasattr(mmap, "MADV_RANDOM"):  # otherwise the system reads a hundred kilobytes ahead for each row
                mapped.base.madvise(mmap.MADV_RANDOM)
            return ArrayRows(mapped, name=source.path)
    return StreamedRows(source, pool=max(1, min(POOL, memory // (2 * row_bytes))))


def matrices(spec: str | Path) -> dict[str, str]:
    """Return the specs of the matrices in a file or folder, e.g. the layers of a model, by key or file name.

    ``spec`` is a file, for all its 2-D arrays; ``file:pattern``, with the shell wildcards ``*`` and ``?``; or a folder,
    for all files of vectors in it. The order is natural: ``layer_2`` before ``layer_10``.
    """
    path, pattern = parse_spec(spec)
    shapes: Mapping[str, tuple[int, ...] | str]
    if is_folder(path):
        kinds = {*suffixes()} - {"", ".txt", ".bin", ".json", ".pt", ".pth"}  # suffixes of many other files
        files = [p for p in Path(path).iterdir() if p.is_file() and p.suffix.lower() in kinds and p.name[0] != "."]
        stems = [p.stem for p in files]
        found = {p.stem if stems.count(p.stem) == 1 else p.name: str(p) for p in files}
        shapes = dict.fromkeys(found, "")
    else:
        kind = find_format(path, "matrices", there=True)
        if kind.shapes is None:
            return {pattern or Path(path).stem: str(spec)}
        shapes = kind.shapes(path)
        found = {key: f"{path}:{key}" for key, shape in shapes.items() if len(shape) == 2}
    if pattern is not None:
        found = {key: place for key, place in found.items() if key == pattern or fnmatchcase(key, pattern)}
    if not found:
        listed = ", ".join(f"{name} {shape}".strip() for name, shape in shapes.items()) or "nothing"
        wanted = "" if pattern is None else f" that matches {pattern!r}"
        raise ParameterError(f"Got no matrix{wanted} in {path}, which holds {listed}.", "Pass another key or file.")
    return {key: found[key] for key in sorted(found, key=natural)}


def contents(spec: str | Path) -> dict[str, str]:
    """Return the shapes of the arrays and columns in a file by key; ``vectors`` where a file holds one without a key.

    With ``file:key``, only those of this name, else of this beginning; an error lists the candidates if there are none.
    """
    path, key = parse_spec(spec)
    kind = find_format(path, "what it holds", there=True)
    if kind.shapes is None:
        try:
            source = kind(path, key)  # type: ignore[call-arg]
        except (DtypeError, ParameterError):
            if kind.listing is None or key is not None:
                raise
            return dict(kind.listing(path))
        others = [f.name for one in source.columns for f in one.schema if f.name not in (one.vector, "vectors")]
        return {"vectors": f"{source.n} × {source.dim}", **dict.fromkeys(others, str(source.n))}
    shapes = kind.shapes(path)
    if key is not None:
        found = [key] if key in shapes else [name for name in shapes if name.startswith(key)]
        if not found:
            raise missing_key(key, path, shapes)
        shapes = {name: shapes[name] for name in found}
    return {name: " × ".join("lists" if k < 0 else str(k) for k in shape) for name, shape in shapes.items()}


def read_column(spec: str | Path) -> np.ndarray:
    """Read labels as text, shape (n,), object array of str: a column of a table, an array, or the lines of a ``.txt``.

    ``spec`` is ``path:key``; ``.npy`` and ``.txt`` need no key. Of a folder of tables, all parts are read.
    """
    from congruence.io.ids import column_texts

    return column_texts(_read_column(spec), str(spec))


def read_ids(spec: str | Path) -> pa.Array:
    """Read ids from any column that ``read_column`` accepts, shape (n,): int64, uint64 or large_string."""
    from congruence.io.ids import column_ids

    return column_ids(_read_column(spec), str(spec))


#: Usual names of the two columns of a file of pairs, in the order in which they are tried.
_LINKS = (("old_id", "new_id"), ("old", "new"), ("source_id", "target_id"), ("source", "target"))


def read_links(spec: str | Path) -> tuple[np.ndarray, np.ndarray]:
    """Read pairs of ids, shapes (n,), as ``Pairs.join`` takes them: the old model's and the new model's.

    ``spec`` is ``path:old,new`` with the names of two columns, by default ``old_id`` and ``new_id``; or a ``.txt`` with
    two words on each line, as dictionaries of translations are written. An id may be in several pairs.
    """
    from congruence.io.ids import id_array

    path, key = parse_spec(spec)
    if suffix_of(path) == ".txt" and not is_folder(path):
        lines = [line.split("\t") if "\t" in line else line.split() for line in read_column(spec)]
        bad = next((k for k, words in enumerate(lines) if len(words) != 2 and "".join(words)), None)
        if bad is not None:
            raise ShapeError(f"Got {len(lines[bad])} words in line {bad + 1} of {path}; expected two.", "Correct it.")
        old, new = (np.array([words[k].strip() for words in lines if len(words) == 2], object) for k in (0, 1))
        return to_ids(old, f"old ids in {path}"), to_ids(new, f"new ids in {path}")
    names = [] if key is None else key.split(",")
    kind = find_column_format(path)
    held = dict((kind.shapes or kind.listing)(path)) if kind.shapes or kind.listing else {}
    if key is None:
        names = [*next((two for two in _LINKS if {*two} <= {*held}), ())]
    if len(names) != 2:
        listed = ", ".join(held) or "none"
        problem = f"Got {'no' if key is None else len(names)} columns for the pairs in {path}, which has {listed}."
        raise ParameterError(problem, f"Write {path}:OLD,NEW with the names of two columns of ids.")
    old, new = (id_array([read_ids(f"{path}:{name}")]) for name in names)
    return old, new


def _read_column(spec: str | Path) -> Column:
    path, key = parse_spec(spec)
    return find_column_format(path).read_column(path, key)
