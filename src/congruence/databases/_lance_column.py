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

from congruence.databases._lance_staging import UNKNOWN, Part, Staging, fragment_of, matrix_of

if TYPE_CHECKING:
    import lance

__all__ = ["commit", "fill", "quoted", "stream"]

#: Number of rows written at a time.
_ROWS = 4096

_OFFSET = np.uint64(2**32 - 1)


def quoted(name: str) -> str:
    """Quote a column name for Lance's paths and conditions; the name must not contain a backtick."""
    return f"`{name}`"


def stream(data: lance.LanceDataset, columns: list[str], **options: Any) -> Iterator[pa.RecordBatch]:
    """Yield batches of columns, to be accessed by position, with the row addresses as the last one, in bounded memory."""
    scanner = data.scanner(
        columns=[quoted(one) for one in columns],
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
    as_ids: Callable[[pa.Array], pa.Array],
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
    as_ids : callable
        Function from a column of ids to ids in the form in which they are staged.
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
    known = {one.fragment_id: one for one in data.get_fragments()}
    places = [part.addresses.copy() for part in parts]
    taken = [
        np.isin(numbers, [*(fragments or ())]) | ~np.isin(numbers, [*known])
        if fragments is not None
        else np.ones(len(numbers), bool)
        for numbers in map(fragment_of, places)
    ]
    if not any(mask.any() for mask in taken):
        return
    _verify(data, parts, places, taken, known, id_column, as_ids)
    _search(data, parts, places, taken, id_column, as_ids)
    # Sorted by address, then from old to new: the last row of each address is used.
    staged = _Staged(
        np.concatenate([one[mask] for one, mask in zip(places, taken, strict=True)]),
        np.concatenate([np.full(int(mask.sum()), k) for k, mask in enumerate(taken)]),
        np.concatenate([np.flatnonzero(mask) for mask in taken]),
    )
    order = np.lexsort((staged.row, staged.part, staged.addresses))
    staged = _Staged(*(one[order] for one in staged))
    last = np.r_[staged.addresses[1:] != staged.addresses[:-1], True] & (staged.addresses != UNKNOWN)
    staged = _Staged(*(one[last] for one in staged))
    files = []
    numbers = fragment_of(staged.addresses)
    for number in np.unique(numbers).tolist():
        start, stop = np.searchsorted(numbers, [number, number + 1])
        some = _Staged(*(one[start:stop] for one in staged))
        files.append((number, _write(data, known[number], parts, some, column, value_type)))
    if files:
        commit(data, files)
    # Oldest first: a kill must not leave a row without the newer one that replaces it.
    for file in dict.fromkeys(part.file for part in parts):
        staging.keep(
            file, ~np.concatenate([mask for part, mask in zip(parts, taken, strict=True) if part.file == file])
        )


def _verify(
    data: lance.LanceDataset,
    parts: list[Part],
    places: list[np.ndarray],
    taken: list[np.ndarray],
    known: Mapping[int, object],
    id_column: str,
    as_ids: Callable[[pa.Array], pa.Array],
) -> None:
    """Set addresses that now hold another row, or none, to UNKNOWN."""
    wanted = {
        number for one, mask in zip(places, taken, strict=True) for number in np.unique(fragment_of(one[mask])).tolist()
    }
    right = [np.zeros(len(one), bool) for one in places]
    for number in wanted & set(known):
        for batch in stream(data, [id_column], fragments=[known[number]], batch_size=65_536):
            ids, there = as_ids(batch.column(0)), np.asarray(batch.column(1))
            for part, place, mask, sound in zip(parts, places, taken, right, strict=True):
                rows = np.flatnonzero(mask & (place >= there[0]) & (place <= there[-1]))
                at = np.searchsorted(there, place[rows])
                hit = there[at] == place[rows]
                rows, at = rows[hit], at[hit]
                same = pc.equal(ids.take(pa.array(at)), part.ids.take(pa.array(rows)))
                sound[rows] = same.to_numpy(zero_copy_only=False)
    for place, mask, sound in zip(places, taken, right, strict=True):
        place[mask & ~sound] = UNKNOWN


def _search(
    data: lance.LanceDataset,
    parts: list[Part],
    places: list[np.ndarray],
    taken: list[np.ndarray],
    id_column: str,
    as_ids: Callable[[pa.Array], pa.Array],
) -> None:
    """Find the rows with an unknown address by id, in one pass over the column of ids."""
    lost = [np.flatnonzero(mask & (place == UNKNOWN)) for place, mask in zip(places, taken, strict=True)]
    if not any(map(len, lost)):
        return
    wanted = [part.ids.take(pa.array(rows)) for part, rows in zip(parts, lost, strict=True)]
    for batch in stream(data, [id_column], batch_size=65_536):
        ids, there = as_ids(batch.column(0)), np.asarray(batch.column(1))
        for ask, place, rows in zip(wanted, places, lost, strict=True):
            at = pc.index_in(ask, value_set=ids).fill_null(-1).to_numpy()
            place[rows[at >= 0]] = there[at[at >= 0]]


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
    offsets = (staged.addresses & _OFFSET).astype(np.int64)
    schema = pa.schema([pa.field(column, value_type)])
    loaded = lru_cache(4)(lambda k: parts[k].load())
    path = str(Path(data.uri) / "data" / name)
    with LanceFileWriter(path, schema, version=data.data_storage_version) as writer:
        for start, stop, there, values, has in _old_rows(data, fragment, len(offsets), column):
            low, high = np.searchsorted(offsets, [start, stop])
            at = offsets[low:high] - start
            if not len(there) and (found := _without_copy(loaded, staged, low, high, stop - start)) is not None:
                dense, mask = found, None
            else:
                dense = np.zeros((stop - start, value_type.list_size), value_type.value_type.to_pandas_dtype())
                full = np.zeros(stop - start, bool)
                dense[there], full[there] = values, has
                for k in np.unique(staged.part[low:high]).tolist():
                    rows = staged.part[low:high] == k
                    vectors, given = loaded(k)
                    dense[at[rows]] = vectors[staged.row[low:high][rows]]
                    full[at[rows]] = given[staged.row[low:high][rows]]
                mask = None if full.all() else pa.array(~full)
            lists = pa.FixedSizeListArray.from_arrays(pa.array(dense.reshape(-1)), type=value_type, mask=mask)
            writer.write_batch(pa.record_batch([lists], schema=schema))
    return DataFile.create(data, name)


def _without_copy(
    loaded: Callable[[int], tuple[np.ndarray, np.ndarray]], staged: _Staged, low: int, high: int, n: int
) -> np.ndarray | None:
    """Return staged vectors without a copy if they fill the whole range of rows and are contiguous, as after a scan; otherwise None."""
    part, row = staged.part[low:high], staged.row[low:high]
    if len(row) != n or (part != part[0]).any() or (np.diff(row) != 1).any():
        return None
    vectors, has = loaded(int(part[0]))
    some = slice(row[0], row[-1] + 1)
    return vectors[some] if has[some].all() else None


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
            at = (np.asarray(batch.column(1)) & _OFFSET).astype(np.int64)
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
