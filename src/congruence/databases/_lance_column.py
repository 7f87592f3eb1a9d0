"""Fill a column of a Lance data set with staged vectors: one new data file per fragment, all committed as one new version."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from congruence.databases._lance_staging import UNKNOWN, Part, Staging, fragment_of, matrix_of, offset_of
from congruence.databases._lance_table import as_ids

if TYPE_CHECKING:
    import lance

__all__ = ["commit", "fill", "quoted", "stream"]

#: Number of rows written at a time.
_ROWS = 4096


def quoted(name: str) -> str:
    """Quote a column name for Lance's paths and conditions; the name must not contain a backtick."""
    return f"`{name}`"


def stream(data: lance.LanceDataset, columns: list[str], **options: Any) -> Iterator[pa.RecordBatch]:
    """Yield batches of columns, to be accessed by position, with the row addresses as the last one, in bounded memory."""
    scanner = data.scanner(
        columns=[quoted(column) for column in columns],
        with_row_address=True,
        scan_in_order=True,
        # By default, up to 2 GB would be read ahead.
        batch_readahead=2,
        fragment_readahead=1,
        io_buffer_size=32 * 2**20,
        **options,
    )
    for batch in scanner.to_batches():
        if len(batch):
            yield batch


class _Staged(NamedTuple):
    """Staged rows of several parts: target address, number of the part, and row in the part."""

    addresses: np.ndarray
    part: np.ndarray
    row: np.ndarray


def fill(
    data: lance.LanceDataset,
    staging: Staging,
    fragments: set[int] | None,
    *,
    id_column: str,
    column: str,
    value_type: pa.DataType,
) -> None:
    """Write staged rows into a column.

    Parameters
    ----------
    data : lance.LanceDataset
        Latest version of the data set.
    staging : Staging
    fragments : set of int or None
        Write only rows of these fragments, and rows whose fragment was removed by a compaction; None for all rows.
    id_column, column : str
    value_type : pyarrow.DataType
        Type of the column: a fixed-size list.

    Notes
    -----
    Rows are located again in this version: an address is valid only if it still holds the id that was staged with it. Other
    rows are searched by id, and those that are not found have been deleted. The commit replaces only the column's file in each
    fragment, so rows that others add, delete or update meanwhile are not affected. A kill before the commit leaves files
    that no version refers to; a kill after it leaves staged rows, which the next call writes again.
    """
    parts = list(staging.parts())
    known = {fragment.fragment_id: fragment for fragment in data.get_fragments()}
    addresses = [part.addresses.copy() for part in parts]
    selected = [
        np.isin(numbers, [*(fragments or ())]) | ~np.isin(numbers, [*known])
        if fragments is not None
        else np.ones(len(numbers), bool)
        for numbers in map(fragment_of, addresses)
    ]
    if not any(mask.any() for mask in selected):
        return
    _verify(data, parts, addresses, selected, known, id_column)
    _search(data, parts, addresses, selected, id_column)
    # Sorted by address, then from old to new: the last row of each address is used.
    staged = _Staged(
        np.concatenate([some[mask] for some, mask in zip(addresses, selected, strict=True)]),
        np.concatenate([np.full(int(mask.sum()), k) for k, mask in enumerate(selected)]),
        np.concatenate([np.flatnonzero(mask) for mask in selected]),
    )
    order = np.lexsort((staged.row, staged.part, staged.addresses))
    staged = _Staged(*(values[order] for values in staged))
    last = np.r_[staged.addresses[1:] != staged.addresses[:-1], True] & (staged.addresses != UNKNOWN)
    staged = _Staged(*(values[last] for values in staged))
    files = []
    numbers = fragment_of(staged.addresses)
    for number in np.unique(numbers).tolist():
        start, stop = np.searchsorted(numbers, [number, number + 1])
        in_fragment = _Staged(*(values[start:stop] for values in staged))
        files.append((number, _write(data, known[number], parts, in_fragment, column, value_type)))
    if files:
        commit(data, files)
    # Oldest first: a kill must not leave a row without the newer one that replaces it.
    for file in dict.fromkeys(part.file for part in parts):
        written = [mask for part, mask in zip(parts, selected, strict=True) if part.file == file]
        staging.keep(file, ~np.concatenate(written))


def _verify(
    data: lance.LanceDataset,
    parts: list[Part],
    addresses: list[np.ndarray],
    selected: list[np.ndarray],
    known: Mapping[int, object],
    id_column: str,
) -> None:
    """Set addresses that now hold another row, or none, to UNKNOWN."""
    numbers = {
        number
        for staged, mask in zip(addresses, selected, strict=True)
        for number in np.unique(fragment_of(staged[mask])).tolist()
    }
    verified = [np.zeros(len(staged), bool) for staged in addresses]
    for number in numbers & set(known):
        for batch in stream(data, [id_column], fragments=[known[number]], batch_size=65_536):
            ids, existing = as_ids(batch.column(0)), np.asarray(batch.column(1))
            for part, staged, mask, valid in zip(parts, addresses, selected, verified, strict=True):
                rows = np.flatnonzero(mask & (staged >= existing[0]) & (staged <= existing[-1]))
                at = np.searchsorted(existing, staged[rows])
                hit = existing[at] == staged[rows]
                rows, at = rows[hit], at[hit]
                same = pc.equal(ids.take(pa.array(at)), part.ids.take(pa.array(rows)))
                valid[rows] = same.to_numpy(zero_copy_only=False)
    for staged, mask, valid in zip(addresses, selected, verified, strict=True):
        staged[mask & ~valid] = UNKNOWN


def _search(
    data: lance.LanceDataset,
    parts: list[Part],
    addresses: list[np.ndarray],
    selected: list[np.ndarray],
    id_column: str,
) -> None:
    """Find the rows with an unknown address by id, in one pass over the column of ids."""
    unknown = [np.flatnonzero(mask & (staged == UNKNOWN)) for staged, mask in zip(addresses, selected, strict=True)]
    if not any(map(len, unknown)):
        return
    unknown_ids = [part.ids.take(pa.array(rows)) for part, rows in zip(parts, unknown, strict=True)]
    for batch in stream(data, [id_column], batch_size=65_536):
        ids, existing = as_ids(batch.column(0)), np.asarray(batch.column(1))
        for staged_ids, staged, rows in zip(unknown_ids, addresses, unknown, strict=True):
            at = pc.index_in(staged_ids, value_set=ids).fill_null(-1).to_numpy()
            staged[rows[at >= 0]] = existing[at[at >= 0]]


def _write(
    data: lance.LanceDataset,
    fragment: lance.LanceFragment,
    parts: list[Part],
    staged: _Staged,
    column: str,
    value_type: pa.DataType,
) -> lance.fragment.DataFile:
    """Write the column's file for one fragment, i.e. the existing vectors overwritten by the staged ones; return its description."""
    from lance.file import LanceFileWriter
    from lance.fragment import DataFile

    name = f"{uuid.uuid4()}.lance"
    offsets = offset_of(staged.addresses)
    schema = pa.schema([pa.field(column, value_type)])
    load = lru_cache(4)(lambda k: parts[k].load())
    path = str(Path(data.uri) / "data" / name)
    with LanceFileWriter(path, schema, version=data.data_storage_version) as writer:
        for start, stop, existing, values, has in _old_rows(data, fragment, len(offsets), column):
            low, high = np.searchsorted(offsets, [start, stop])
            at = offsets[low:high] - start
            whole = None if len(existing) else _without_copy(load, staged, low, high, stop - start)
            if whole is not None:
                dense, mask = whole, None
            else:
                dense = np.zeros((stop - start, value_type.list_size), value_type.value_type.to_pandas_dtype())
                full = np.zeros(stop - start, bool)
                dense[existing], full[existing] = values, has
                for k in np.unique(staged.part[low:high]).tolist():
                    rows = staged.part[low:high] == k
                    vectors, has_vector = load(k)
                    dense[at[rows]] = vectors[staged.row[low:high][rows]]
                    full[at[rows]] = has_vector[staged.row[low:high][rows]]
                mask = None if full.all() else pa.array(~full)
            lists = pa.FixedSizeListArray.from_arrays(pa.array(dense.reshape(-1)), type=value_type, mask=mask)
            writer.write_batch(pa.record_batch([lists], schema=schema))
    return DataFile.create(data, name)


def _without_copy(
    load: Callable[[int], tuple[np.ndarray, np.ndarray]], staged: _Staged, low: int, high: int, n: int
) -> np.ndarray | None:
    """Return staged vectors without a copy if they fill the whole range of rows and are contiguous, as after a scan; otherwise None."""
    part, row = staged.part[low:high], staged.row[low:high]
    if len(row) != n or (part != part[0]).any() or (np.diff(row) != 1).any():
        return None
    vectors, has_vector = load(int(part[0]))
    rows = slice(row[0], row[-1] + 1)
    return vectors[rows] if has_vector[rows].all() else None


def _old_rows(
    data: lance.LanceDataset, fragment: lance.LanceFragment, n_staged: int, column: str
) -> Iterator[tuple[int, int, np.ndarray, np.ndarray | int, np.ndarray | bool]]:
    """Divide a fragment's physical rows, including deleted ones, into ranges.

    Yields start and stop of each range, and for the rows that are read from the existing column their positions in the range, their vectors, and
    which of them have a vector.
    """
    size, done = fragment.physical_rows, 0
    field = data.lance_schema.field(column).id()
    nothing = np.empty(0, np.int64)
    if n_staged < fragment.count_rows() and any(field in file.fields for file in fragment.data_files()):
        for batch in stream(data, [column], fragments=[fragment], batch_size=_ROWS):
            at = offset_of(np.asarray(batch.column(1)))
            values, has = matrix_of(batch.column(0))
            stop = int(at[-1]) + 1
            yield done, stop, at - done, values, has
            done = stop
    while done < size:
        stop = min(done + _ROWS, size)
        yield done, stop, nothing, 0, False
        done = stop


def commit(data: lance.LanceDataset, files: list[tuple[int, lance.fragment.DataFile]]) -> None:
    """Replace the files of fragments, given by number, for the columns that the new files contain, in one new version."""
    from lance import LanceDataset, LanceOperation

    groups = [LanceOperation.DataReplacementGroup(number, file) for number, file in files]
    LanceDataset.commit(data, LanceOperation.DataReplacement(groups), read_version=data.version)
