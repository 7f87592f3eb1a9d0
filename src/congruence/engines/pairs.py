"""Two columns of paired vectors: in one data set, or in two data sets with equal files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from congruence._utils.validation import RowNames, check_rows
from congruence.embeddings import Space
from congruence.engines.dataset import DataSet, Fragment, open_dataset, split_spec
from congruence.errors import IdError, ParameterError


#: Bytes of source vectors in a block.
_BLOCK_BYTES = 8 * 2**20


@dataclass(frozen=True)
class PairedData:
    """Source and target vectors, row by row.

    Attributes
    ----------
    source, target : DataSet
    partner : dict of str to Fragment
        Fragment of the target by the name of the source's fragment.
    allow_zero_rows : bool
    """

    source: DataSet
    target: DataSet
    partner: dict[str, Fragment]
    allow_zero_rows: bool = False

    @property
    def fragments(self) -> tuple[Fragment, ...]:
        """The source's fragments."""
        return self.source.fragments

    def without_fragments(self) -> PairedData:
        """Return the pairs without the lists of fragments, as they are sent to a worker."""
        return replace(self, source=self.source.without_fragments(), target=self.target.without_fragments())

    def blocks(self, fragment: Fragment) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield blocks of a fragment's source vectors and of the paired target vectors.

        Raises
        ------
        IdError
            If both sides have ids, and those of a row differ.
        NotFiniteError, ZeroRowError, ShapeError
            If a vector has another width, contains NaN or infinity, or is all zeros (unless ``allow_zero_rows``).
        """
        source, target = self.source.open(fragment), self.target.open(self.partner[fragment.name])
        rows = max(256, _BLOCK_BYTES // (4 * max(self.source.dim, self.target.dim)))
        names = self.source.path_of(fragment), self.target.path_of(self.partner[fragment.name])
        row = 0
        # A block may end early at a row group; the rest of the longer block is then paired with the next block of the other side.
        readers = source.scan(batch=rows), target.scan(batch=rows)
        pending: list[tuple[pa.Array | None, np.ndarray] | None] = [None, None]
        while True:
            for k, reader in enumerate(readers):
                if pending[k] is None:
                    pending[k] = next(reader, None)
            if pending[0] is None or pending[1] is None:
                return
            (ids, x), (other, y) = pending[0], pending[1]
            n = min(len(x), len(y))
            _check_same_ids(ids, other, n, fragment.start + row, names)
            for block, name, block_ids in ((x[:n], names[0], ids), (y[:n], names[1], other)):
                check_rows(
                    block, name, ids=RowNames(block_ids, fragment.start + row), allow_zero_rows=self.allow_zero_rows
                )
            yield x[:n], y[:n]
            row += n
            pending = [
                None if len(block) == n else (None if block_ids is None else block_ids[n:], block[n:])
                for block_ids, block in ((ids, x), (other, y))
            ]


def _check_same_ids(ids: pa.Array | None, other: pa.Array | None, n: int, row: int, names: tuple[str, str]) -> None:
    if ids is None or other is None:
        return
    a, b = ids[:n], other[:n]
    if not a.equals(b.cast(a.type)):
        at = next(k for k in range(n) if str(a[k]) != str(b[k]))
        raise IdError(
            f"Got id {str(a[at])!r} in row {row + at} of {names[0]} and {str(b[at])!r} in {names[1]}; expected the same rows in the same order. "
            "Join both models' vectors into one table by id, and pass its two columns."
        )


def open_pairs(
    source: str,
    target: str,
    *,
    ids: str | bool | None = None,
    target_ids: str | bool | None = None,
    spaces: tuple[Space, Space] = (Space(), Space()),
    allow_zero_rows: bool = False,
) -> PairedData:
    """Open two columns of one data set, or two data sets whose files have the same numbers of rows.

    Parameters
    ----------
    source, target : str
        ``path:column``; see :func:`open_dataset`.
    ids, target_ids : str or False, optional
        Columns of ids. If both sides have ids, they are compared row by row.
    spaces : (Space, Space), optional
        Known facts about both spaces; they override those in the files.
    allow_zero_rows : bool, default=False

    Returns
    -------
    PairedData

    Raises
    ------
    ParameterError
        If the fragments of the two sides differ in number or in rows, so that rows cannot be paired by position.
    FileError, CorruptFileError
        If a file does not exist, cannot be read or is damaged.
    """
    together = split_spec(source)[0] == split_spec(target)[0]
    options = {} if together else {"fragment_bytes": 2**62}  # whole files, since row groups of two data sets may differ
    first = open_dataset(source, ids=ids, space=spaces[0], **options)
    second = open_dataset(target, ids=target_ids if target_ids is not None else ids, space=spaces[1], **options)
    sizes = [[fragment.rows for fragment in data.fragments] for data in (first, second)]
    if sizes[0] != sizes[1]:
        raise ParameterError(
            f"Got {first.rows} rows in {len(sizes[0])} fragments of {first.place.shown} and {second.rows} in {len(sizes[1])} of {second.place.shown}; expected the same "
            "numbers of rows in each, in the same order. Join both models' vectors into one table by id, and pass its two columns."
        )
    partner = {a.name: b for a, b in zip(first.fragments, second.fragments, strict=True)}
    return PairedData(first, second, partner, allow_zero_rows)
