"""Map a file of vectors to another file, in bounded memory."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import DTypeLike

from congruence._utils.ahead import run_ahead
from congruence._utils.validation import RowNames
from congruence.errors import ColumnsWarning
from congruence.maps import Map, OrthogonalMap
from congruence.stores import Source, check_output_place, open_sink
from congruence.stores.tables import TableRows
from congruence.upgrade.blocks import BlockMap

__all__ = ["TransformReport", "transform_file"]

#: Number of rows from which the share of variance in covered directions is estimated.
_COVERED_ROWS = 1000

#: Ids, vectors, and the table rows they belong to.
_Block: TypeAlias = tuple[pa.Array | None, np.ndarray, TableRows | None]


@dataclass(frozen=True)
class TransformReport:
    """Summary of a call to :func:`transform_file`.

    Attributes
    ----------
    output : str
    rows, dim : int
        Size of the output.
    dtype : str
    seconds : float
    covered_share : float or None
        Mean share of the first rows' variance (norm²) in directions that the anchors cover.
    normalized : bool
        Whether the mapped rows were scaled to unit norm.
    left_out : list of str
        Columns of the source table that the output cannot hold.
    """

    output: str
    rows: int
    dim: int
    dtype: str
    seconds: float
    covered_share: float | None
    normalized: bool = False
    left_out: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, object]:
        """Return the report as plain data."""
        return asdict(self)


def transform_file(
    mapping: Map,
    source: Source,
    output: str | Path,
    *,
    modality: str | None = None,
    normalize: bool | str = "auto",
    dtype: DTypeLike | None = None,
    force: bool = False,
    check: bool = True,
    allow_zero_rows: bool = False,
    side: str | None = None,
    column_out: str | None = None,
    callback: Callable[[int], object] | None = None,
) -> TransformReport:
    """Map a file of vectors into another file.

    Reading, mapping and writing overlap; rows keep their order and their ids. All columns of a table are kept, with
    their names, types, order and metadata; the column of vectors holds the mapped ones. The output appears only once it is complete.

    Parameters
    ----------
    mapping : Map
        A fitted map; to map back, pass its ``inverse()``.
    source : Source
    output : path-like
        The suffix determines the format (:data:`congruence.stores.FORMATS`). Must not be the source itself, not even with ``force``.
    modality : str, optional
        Modality whose means are used; by default the source's own modality.
    normalize : {"auto", True, False}, default="auto"
        Scale the mapped rows to unit norm; "auto" does so if the target's rows had unit norm at the fit
        (:meth:`~congruence.maps.Map.gives_unit_rows`).
    dtype : dtype, optional
        Data type of the output: float16, float32 or float64; by default the source's.
    force : bool, default=False
        Replace an existing output.
    check : bool, default=True
        Refuse vectors that are known to belong to another space than the map's source.
    allow_zero_rows : bool, default=False
    side : {"source", "target"}, optional
        Which head of a joint-space map to use; by default the one whose space the vectors belong to. Other maps can map source
        rows only.
    column_out : str, optional
        Write the mapped vectors to a new column of this name, and keep the source's column of vectors.
    callback : callable, optional
        Called with the number of rows of each block after it is written.

    Returns
    -------
    TransformReport

    Raises
    ------
    SpaceMismatchError, DirectionError, ModalityError
        If the vectors do not belong to the map's source; raised before anything is written.
    ParameterError
        If ``side`` is missing although the vectors could belong to either side, or is "target" for a map without a second head; if the output
        is the source; if ``column_out`` already exists, or the output format has no columns.
    NotFiniteError, ZeroRowError, StorageError, CorruptFileError
        If a row contains NaN or infinity, a row is zero, the output cannot be written, or the source is damaged. No partial output is left.

    Warns
    -----
    ColumnsWarning
        If the output cannot hold some of the table's columns; the warning names them.
    NormWarning
        If ``normalize="auto"`` and the map does not record whether its target's rows had unit norm.
    """
    started = time.perf_counter()
    check_output_place(source, output)
    function = BlockMap(
        mapping,
        replace(source.space, dim=source.dim),
        source.dtype,
        modality=modality,
        normalize=normalize,
        dtype=dtype,
        side=side,
        check=check,
        allow_zero_rows=allow_zero_rows,
    )
    sink = open_sink(
        output,
        n=source.n,
        dim=function.dim,
        dtype=function.dtype,
        has_ids=source.has_ids,
        id_type=source.id_type,
        space=function.space,
        force=force,
        parts=source.parts,
        columns=source.columns,
        column_out=column_out,
    )
    if sink.left_out:
        warnings.warn(
            f"Got columns that {output} cannot hold; expected a format that holds all. These are left out: {', '.join(sink.left_out)}. "
            "Write a .parquet to keep them.",
            ColumnsWarning,
            stacklevel=2,
        )
    shares: list[float] = []
    rows = function.rows_of_block(source.row_bytes if sink.keeps_columns else None)

    def scan() -> Iterator[_Block]:
        if sink.keeps_columns:
            return source.scan_table(batch=rows)
        return ((ids, block, None) for ids, block in source.scan(batch=rows))

    def transformed() -> Iterator[_Block]:
        row = 0
        for ids, block, others in run_ahead(scan()):
            function.check_block(block, source.path, RowNames(ids, row), first=row == 0)
            if row == 0 and isinstance(function.mapped, OrthogonalMap):
                shares.append(float(function.mapped.covered_share(block[:_COVERED_ROWS]).mean()))
            row += len(block)
            yield ids, function(block), others

    with sink:
        for ids, block, others in run_ahead(transformed()):
            sink.write(ids, block, others)
            if callback is not None:
                callback(len(block))
    seconds = time.perf_counter() - started
    covered = shares[0] if shares else None
    return TransformReport(
        str(output), source.n, function.dim, function.dtype.name, seconds, covered, function.unit, sink.left_out
    )
