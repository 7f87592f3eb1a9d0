"""Fill a column of a Lance data set with staged vectors: one new data file a fragment, all of them one new version."""

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

#: Rows that are written at a time.
_ROWS = 4096

_OFFSET = np.uint64(2**32 - 1)


def quoted(name: str) -> str:
    """Return the name of a column as paths and conditions of Lance take it; it has no backtick."""
    return f"`{name}`"


def stream(data: lance.LanceDataset, columns: list[str], **options: Any) -> Iterator[pa.RecordBatch]:
    """Yield columns, named by position, and at the end the rows' addresses; memory stays flat."""
    scanner = data.scanner(
        columns=[quoted(one) for one in columns],
        with_row_address=True,
        scan_in_order=True,
        # It would hold up to 2 GB that it has read ahead.
        batch_readahead=2,
        fragment_readahead=1,
        io_buffer_size=32 * 2**20,
        **options,
    )
    for batch in scanner.to_batches():
        if len(batch):
            yield batch


class _Staged(NamedTuple):
    """Rows of several parts: where each is to go, and where it is."""

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
    """Move staged rows into a column.

    Parameters
    ----------
    data : lance.LanceDataset
        Its latest version.
    staging : Staging
    fragments : set of int or None
        Only rows of these, and those whose fragment is gone since a compaction; None for all.
    id_column, column : str
    as_ids : callable
        Makes ids, as they are staged, of what the column holds.
    value_type : pyarrow.DataType
        Of the column: a list of fixed size.

    Notes
    -----
    Rows are looked up again in this version: an address counts only if the id that was staged with it still stands there; other
    rows are searched by their ids, and those that are not found have been deleted. The commit replaces the column's file in each
    fragment and nothing else, so rows that others add, delete or update meanwhile stay as they are. A kill before it leaves files
    that no version names; a kill after it, staged rows that the next call writes once more.
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
    # Sorted by address, then by age: the last of each address counts.
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
    for file in dict.fromkeys(part.file for part in parts):  # the oldest first: none outlives one that counts more
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
    """Set addresses at which another row stands now, or none, to UNKNOWN."""
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
    """Find the rows without an address by their ids, in one pass over that column."""
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
    """Write the column's file of one fragment: what it has, with staged rows in place of it; return its description."""
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
            if not len(there) and (found := _as_it_is(loaded, staged, low, high, stop - start)) is not None:
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


def _as_it_is(
    loaded: Callable[[int], tuple[np.ndarray, np.ndarray]], staged: _Staged, low: int, high: int, n: int
) -> np.ndarray | None:
    """Return staged vectors without a copy if they are all of a range of rows and stand together, as those of a scan do."""
    part, row = staged.part[low:high], staged.row[low:high]
    if len(row) != n or (part != part[0]).any() or (np.diff(row) != 1).any():
        return None
    vectors, has = loaded(int(part[0]))
    some = slice(row[0], row[-1] + 1)
    return vectors[some] if has[some].all() else None


def _old_rows(
    data: lance.LanceDataset, fragment: lance.LanceFragment, n_staged: int, column: str
) -> Iterator[tuple[int, int, np.ndarray, np.ndarray | int, np.ndarray | bool]]:
    """Cut a fragment's physical rows, deleted ones too, into ranges: start, stop, and in it the rows that have a new vector by now."""
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
    """Put files in the place of those that fragments, by their numbers, have for the same columns, in one new version."""
    from lance import LanceDataset, LanceOperation

    groups = [LanceOperation.DataReplacementGroup(number, file) for number, file in files]
    LanceDataset.commit(data, LanceOperation.DataReplacement(groups), read_version=data.version)
