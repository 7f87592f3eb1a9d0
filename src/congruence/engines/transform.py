"""Map a data set of many files, one task per fragment."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import DTypeLike

from congruence._utils.ahead import run_ahead
from congruence._utils.validation import RowNames
from congruence.engines._base import Engine
from congruence.engines.bad_rows import REASONS, find_bad, quarantine_schema, quarantined
from congruence.engines.batch import store_as
from congruence.engines.dataset import DataSet, Fragment
from congruence.engines.jobs import collect_bad, quarantine_place, run_pending
from congruence.engines.journal import Journal, Plan
from congruence.engines.outputs import Output, map_digest, write_fragment, write_parquet
from congruence.errors import InputError
from congruence.maps import Map
from congruence.stores.fragments import TableFragment
from congruence.stores.layout import TableLayout
from congruence.upgrade.transform import BlockMap

__all__ = ["DataSetReport", "transform_dataset"]


@dataclass(frozen=True)
class DataSetReport:
    """Summary of a call to :func:`transform_dataset`.

    Attributes
    ----------
    output, engine : str
        Path of the output, and name of the engine.
    rows, dim : int
        Number of rows and width of the output.
    dtype : str
        Type of the stored vectors.
    fragments, resumed : int
        Number of fragments, and number of those that an earlier run had finished.
    bad_rows : int
        Number of rows that were left out.
    bad_rows_file : str or None
        Path of the file of rows that were left out; None if there are none.
    normalized : bool
        Whether the mapped rows were scaled to unit norm.
    seconds : float
        Duration of this run.
    """

    output: str
    engine: str
    rows: int
    dim: int
    dtype: str
    fragments: int
    resumed: int
    bad_rows: int
    bad_rows_file: str | None
    normalized: bool
    seconds: float

    def to_dict(self) -> dict[str, object]:
        """Return the report as plain data."""
        return asdict(self)


def transform_dataset(
    mapping: Map,
    data: DataSet,
    output: str,
    *,
    engine: Engine,
    modality: str | None = None,
    normalize: bool | str = "auto",
    dtype: DTypeLike | None = None,
    force: bool = False,
    check: bool = True,
    allow_zero_rows: bool = False,
    side: str | None = None,
    column_out: str | None = None,
    bad_rows: str | None = None,
    callback: Callable[[int], object] | None = None,
) -> DataSetReport:
    """Map a data set to a new data set, fragment by fragment; after an interruption, the same call resumes.

    Each fragment of the output has the name of the fragment it was read from, and the rows in the same order. Blocks are those of
    :func:`congruence.transform_file`, so with the same number of BLAS threads the numbers are identical, bit for bit.

    Parameters
    ----------
    mapping : Map
    data : DataSet
        See :func:`congruence.engines.open_dataset`.
    output : str
        Folder of Parquet files, or a ``.lance`` data set; a local path or a URL.
    engine : Engine
    modality, normalize, dtype, check, allow_zero_rows, side, column_out
        As for :func:`congruence.transform_file`.
    force : bool, default=False
        Replace an output that an engine wrote, and discard the journal of another job.
    bad_rows : str, optional
        Parquet file for rows with invalid vectors; without it, the first such row stops the job.
    callback : callable, optional
        Called with the number of rows of each finished fragment.

    Returns
    -------
    DataSetReport

    Raises
    ------
    SpaceMismatchError, DirectionError, ModalityError, ParameterError, OutputExistsError
        If the vectors belong to another space or to the map's target, an option is invalid, or the output exists. Raised before anything is
        written.
    NotFiniteError, ZeroRowError, ShapeError, IdError, CorruptFileError
        If a vector, an id or a file is invalid; the message names the fragment. Finished fragments are kept for the next run.
    StorageError
        If the output cannot be written.
    """
    started = time.perf_counter()
    out = Output.of(output)
    out.prepare(data.place, force=force)
    function = BlockMap(
        mapping,
        replace(data.space, dim=data.dim),
        data.dtype,
        modality=modality,
        normalize=normalize,
        dtype=dtype,
        side=side,
        check=check,
        allow_zero_rows=allow_zero_rows,
        device="auto",
    )
    layout = TableLayout(
        data.columns,
        dim=function.dim,
        dtype=function.dtype,
        has_ids=data.has_ids,
        id_type=data.id_type,
        space=function.space,
        column_out=column_out,
        path=out.place.shown,
    )
    identity = {
        "source": data.place.shown,
        "version": data.version,
        "output": out.place.shown,
        "map": map_digest(function.mapped.state()),
        "kind": function.mapped.kind,
        "column": data.columns.vector,
        "column_out": column_out,
        "dtype": function.dtype.name,
        "unit": function.unit,
        "head": function.head,
        "bad_rows": bad_rows is not None,
        "allow_zero_rows": allow_zero_rows,
    }
    quarantine = quarantine_place(bad_rows, force=force)
    with out.locked():
        journal = Journal(out.journal, Plan("transform", identity, data.fragments)).open(restart=force)
        journal.keep(out.sizes())
        if callback is not None and journal.resumed:
            callback(journal.rows + journal.bad)
        work = _TransformWork(
            data.without_fragments(),
            function,
            layout,
            out,
            function.rows_of_block(data.row_bytes),
            bad_rows is not None,
        )
        run_pending(engine, work, journal, callback)
        if quarantine is not None:
            collect_bad(out, journal, quarantine, quarantine_schema(data.columns.schema))
        out.publish(journal, layout.schema)
    return DataSetReport(
        out.place.shown,
        engine.name,
        journal.rows,
        function.dim,
        function.dtype.name,
        len(data.fragments),
        journal.resumed,
        journal.bad,
        None if quarantine is None or not journal.bad else quarantine.shown,
        function.unit,
        time.perf_counter() - started,
    )


@dataclass(frozen=True)
class _TransformWork:
    """Maps one fragment; sent to the workers.

    Attributes
    ----------
    data : DataSet
        The data set without its fragments.
    function : BlockMap
    layout : TableLayout
    output : Output
    block : int
        Number of rows per block.
    quarantine : bool
        Quarantine bad rows instead of stopping.
    """

    data: DataSet
    function: BlockMap
    layout: TableLayout
    output: Output
    block: int
    quarantine: bool

    def __call__(self, fragment: Fragment) -> dict[str, object]:
        """Map a fragment, write it, and return its receipt as plain data."""
        source = self.data.open(fragment)
        bad_batches: list[pa.RecordBatch] = []
        receipt = write_fragment(
            self.output, fragment.name, self.layout, self._batches(source, fragment, bad_batches), kept=True
        )
        bad = sum(map(len, bad_batches))
        if bad_batches:
            place = self.output.quarantine.child(f"{fragment.name}.parquet")
            write_parquet(place, bad_batches[0].schema, iter(bad_batches))
        return {**receipt.to_dict(), "bad": bad}

    def _batches(
        self, source: TableFragment, fragment: Fragment, bad_batches: list[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        name = self.data.path_of(fragment)
        first = True
        for row, piece in run_ahead(source.tables(self.block)):
            start = fragment.start + row
            try:
                ids, block = source.block(piece, start)
                self.function.check_block(block, name, RowNames(ids, start), first=first)
            except InputError:
                if not self.quarantine:
                    raise
                piece = self._quarantine(piece, start, name, bad_batches)
                if not len(piece):
                    continue
                ids, block = source.block(piece, start)
                self.function.check_block(block, name, RowNames(ids, start), first=first)
            first = False
            yield self.layout.fill(ids, self._stored(block), piece)

    def _stored(self, block: np.ndarray) -> np.ndarray:
        return store_as(self.function(block), self.function.dtype, self.output.place.shown)

    def _quarantine(
        self, piece: pa.RecordBatch, start: int, name: str, bad_batches: list[pa.RecordBatch]
    ) -> pa.RecordBatch:
        columns = self.data.columns
        code = find_bad(piece.column(columns.vector), self.data.dim, allow_zero_rows=self.function.allow_zero_rows)
        if code.any():
            rows, schema = np.flatnonzero(code), quarantine_schema(columns.schema)
            bad_batches.append(quarantined(piece, rows, [REASONS[k] for k in code[rows]], start, name, schema))
        return piece.filter(pa.array(code == 0))
