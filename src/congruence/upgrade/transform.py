"""Map a store of vectors, from disk to disk in bounded memory."""

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
from congruence.stores import Rows, Source, check_output_place, open_sink
from congruence.upgrade.blocks import BlockMap

__all__ = ["TransformReport", "transform_file"]

#: Rows on which the probed energy is estimated.
_ENERGY_ROWS = 1000

#: Ids, vectors, and the rows of the table they stand in.
_Block: TypeAlias = tuple[pa.Array | None, np.ndarray, Rows | None]


@dataclass(frozen=True)
class TransformReport:
    """What :func:`transform_file` did.

    Attributes
    ----------
    output : str
    rows, dim : int
        Size of what was written.
    dtype : str
    seconds : float
    probed_energy : float or None
        Mean share of the first rows' energy in directions the anchors probed.
    normalized : bool
        The mapped rows were scaled to unit norm.
    left_out : list of str
        Columns of the source's table for which the output has no room.
    """

    output: str
    rows: int
    dim: int
    dtype: str
    seconds: float
    probed_energy: float | None
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
    """Stream a store through a map into another store.

    Reading, the matrix product and writing overlap; the order of the rows and their ids stay. Of a table every column stays, with
    its name, type, place and metadata; that of the vectors holds the mapped ones. The output appears only when it is complete.

    Parameters
    ----------
    mapping : Map
        Fitted; to go back, pass its ``inverse()``.
    source : Source
    output : path-like
        The suffix chooses the format (:data:`congruence.stores.FORMATS`). Never what is read, not even with ``force``.
    modality : str, optional
        Which of the map's means to use; the source's own modality by default.
    normalize : {"auto", True, False}, default="auto"
        Scale the mapped rows to unit norm; "auto" does so if the target's rows had unit norm at the fit
        (:meth:`~congruence.maps.Map.gives_unit_rows`).
    dtype : dtype, optional
        Of the output: float16, float32 or float64; the source's by default.
    force : bool, default=False
        Replace an existing output.
    check : bool, default=True
        Refuse vectors whose space is known to differ from the map's source.
    allow_zero_rows : bool, default=False
    side : {"source", "target"}, optional
        Which head of a two-sided map to use; by default the one whose space the vectors come from. Other maps map source
        rows only.
    column_out : str, optional
        Write the mapped vectors to a new column of this name and leave the source's as they are.
    callback : callable, optional
        Called with the number of rows of each block once it is written.

    Returns
    -------
    TransformReport

    Raises
    ------
    SpaceMismatchError, DirectionError, ModalityError
        Before anything is written.
    ParameterError
        ``side`` is missing where the vectors could belong to either, or is "target" for a map without a second head; the output
        is what is read; ``column_out`` exists, or the output has no columns.
    NotFiniteError, ZeroRowError, StorageError, CorruptFileError
        During the walk; nothing is left behind.

    Warns
    -----
    ColumnsWarning
        The output has no room for some of the table's columns; they are named.
    NormWarning
        ``normalize="auto"``, and the map does not know of its target's rows.
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
            f"Got columns that {output} has no room for; expected room for all. These are left out: {', '.join(sink.left_out)}. "
            "Write a .parquet to keep them.",
            ColumnsWarning,
            stacklevel=2,
        )
    energy: list[float] = []
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
                energy.append(float(function.mapped.probed_energy(block[:_ENERGY_ROWS]).mean()))
            row += len(block)
            yield ids, function(block), others

    with sink:
        for ids, block, others in run_ahead(transformed()):
            sink.write(ids, block, others)
            if callback is not None:
                callback(len(block))
    seconds = time.perf_counter() - started
    probed = energy[0] if energy else None
    return TransformReport(
        str(output), source.n, function.dim, function.dtype.name, seconds, probed, function.unit, sink.left_out
    )
