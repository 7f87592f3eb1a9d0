"""A map as a function from Arrow batches to Arrow batches, which any engine can send to its workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import DTypeLike

from congruence._utils.validation import RowNames
from congruence.embeddings import Space
from congruence.errors import DtypeError
from congruence.maps import Map, load
from congruence.stores.fragments import SchemaSource
from congruence.stores.layout import TableLayout, list_array
from congruence.upgrade.transform import BlockMap

if TYPE_CHECKING:
    import pandas

__all__ = ["MapBatch", "store_as"]


class MapBatch:
    """Maps the vectors of Arrow batches; ids and all other columns pass through.

    Use it with ``ray.data.Dataset.map_batches(…, batch_format="pyarrow")``, Spark's ``mapInArrow`` (:meth:`over`), Dask (:meth:`frame`) or Daft
    (:meth:`vectors`). It can be pickled. The commands of this library use the same code, so equal blocks give identical results, bit for bit.

    Parameters
    ----------
    mapping : Map or path-like
        A fitted map, or the folder of a saved one.
    schema : pyarrow.Schema
        Schema of the batches. If its metadata state the space of the vectors, this is checked against the map. The schema of the output is :attr:`schema`.
    column : str, optional
        Column of the vectors; may be left out if there is only one column of lists.
    ids : str or False, optional
        Column of the ids, for messages; by default ``id`` or ``ids``, if there is one.
    dim : int, optional
        Width of the vectors, if the column has lists of variable length; by default the width that the map expects.
    space : Space, optional
        Known facts about the vectors; they override the metadata of the schema.
    column_out : str, optional
        Name of a new column for the mapped vectors; by default they replace the source vectors.
    modality, normalize, dtype, side, check, allow_zero_rows
        As for :func:`congruence.transform_file`.
    device : str, optional
        "cpu" or "cuda": compute matrix products with torch on that device; "auto" does so on a GPU if the worker has one. By default, NumPy computes them.

    Attributes
    ----------
    schema : pyarrow.Schema
        Schema of the output.

    Raises
    ------
    SpaceMismatchError, DirectionError, ModalityError, ParameterError, ShapeError, DtypeError
        If the vectors belong to another space or to the map's target, the modality does not fit, a parameter has an invalid value, or the column
        has the wrong shape or type.

    Examples
    --------
    >>> import numpy as np, pyarrow as pa
    >>> from congruence import OrthogonalMap
    >>> from congruence.engines import MapBatch
    >>> from congruence.synthetic import rigid_problem
    >>> problem = rigid_problem(n=200, d_source=16, random_state=0)
    >>> mapping = OrthogonalMap().fit(problem.X, problem.Y)
    >>> vectors = pa.FixedSizeListArray.from_arrays(problem.X.ravel(), 16)
    >>> batch = pa.record_batch({"id": pa.array(range(200)), "vector": vectors})
    >>> mapped = MapBatch(mapping, batch.schema)(batch)
    >>> mapped.schema.names
    ['id', 'vector']
    """

    def __init__(
        self,
        mapping: Map | str | Path,
        schema: pa.Schema,
        column: str | None = None,
        *,
        ids: str | bool | None = None,
        dim: int | None = None,
        space: Space | None = None,
        column_out: str | None = None,
        modality: str | None = None,
        normalize: bool | str = "auto",
        dtype: DTypeLike | None = None,
        side: str | None = None,
        check: bool = True,
        allow_zero_rows: bool = False,
        device: str | None = None,
    ) -> None:
        fitted = mapping if isinstance(mapping, Map) else load(mapping)
        width = dim or (fitted.d_target if side == "target" else fitted.n_features_in_)
        self._source = SchemaSource(schema, "batch", dim=width, key=column, ids=ids)
        known = self._source.space if space is None else replace(self._source.space, **space.to_dict())
        self._function = BlockMap(
            fitted,
            replace(known, dim=self._source.dim),
            self._source.dtype,
            modality=modality,
            normalize=normalize,
            dtype=dtype,
            side=side,
            check=check,
            allow_zero_rows=allow_zero_rows,
            device=device,
        )
        self._layout = TableLayout(
            self._source.columns[0],
            dim=self._function.dim,
            dtype=self._function.dtype,
            has_ids=self._source.has_ids,
            id_type=self._source.id_type,
            space=self._function.space,
            column_out=column_out,
            path="batch",
        )
        self.schema: pa.Schema = self._layout.schema

    def __call__(self, batch: pa.RecordBatch | pa.Table) -> pa.RecordBatch | pa.Table:
        """Map a batch.

        Parameters
        ----------
        batch : pyarrow.RecordBatch or Table
            Batch with the columns of the schema, in any order.

        Returns
        -------
        pyarrow.RecordBatch or Table
            The same number of rows, in the same order.

        Raises
        ------
        NotFiniteError, ZeroRowError, ShapeError, IdError
            If a vector or an id is invalid; the message names the row by its id, or by its position in the batch.
        DtypeError
            If a number is too large for ``dtype``.
        """
        columns = self._source.columns[0].schema
        rows = batch.select(columns.names)
        if isinstance(rows, pa.Table):
            return pa.Table.from_batches([self._map(part) for part in rows.to_batches()], self.schema)
        return self._map(rows)

    def over(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield each batch mapped, as Spark's ``mapInArrow`` calls it."""
        for batch in batches:
            yield self(batch)

    def frame(self, frame: pandas.DataFrame) -> pandas.DataFrame:
        """Map a pandas frame with Arrow's types, as Dask's ``map_partitions`` calls it.

        Parameters
        ----------
        frame : pandas.DataFrame
            Its index is kept.

        Returns
        -------
        pandas.DataFrame
        """
        import pandas

        expected = self._source.columns[0].schema
        mapped = self(pa.Table.from_pandas(frame[expected.names], schema=expected, preserve_index=False))
        out: pandas.DataFrame = mapped.to_pandas(types_mapper=pandas.ArrowDtype)
        return out.set_axis(frame.index)

    def vectors(self, column: pa.Array | pa.ChunkedArray) -> pa.Array:
        """Map a single column of vectors, as Daft calls its functions.

        Parameters
        ----------
        column : pyarrow.Array or ChunkedArray of lists

        Returns
        -------
        pyarrow.Array
        """
        array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        if not len(array):
            return pa.array([], self.schema.field(self._layout.at).type)
        kind = self._source.columns[0].schema.field(self._source.columns[0].vector).type
        block = self._source.vectors(array.cast(kind) if array.type != kind else array)
        self._function.check_block(block, "batch", RowNames(None, 0), first=True)
        mapped = store_as(self._function(block), self._function.dtype, "batch")
        return list_array(mapped, self.schema.field(self._layout.at).type)

    def _map(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        expected = self._source.columns[0].schema
        if not batch.schema.equals(expected):  # engines choose between list and large_list, string and large_string
            batch = batch.cast(expected)
        if not len(batch):
            return pa.RecordBatch.from_pylist([], self.schema)
        ids, block = self._source.block(batch, 0)
        self._function.check_block(block, "batch", RowNames(ids, 0), first=True)
        return self._layout.fill(ids, store_as(self._function(block), self._function.dtype, "batch"), batch)


def store_as(vectors: np.ndarray, dtype: np.dtype, name: str) -> np.ndarray:
    """Return mapped rows in the data type in which they are stored. Raises DtypeError if a number is too large for it."""
    try:
        with np.errstate(over="raise"):
            return np.ascontiguousarray(vectors, dtype=dtype)
    except FloatingPointError as error:
        raise DtypeError(
            f"Got numbers beyond the range of {dtype} for {name}; expected smaller ones. Pass a wider dtype=…, 'float32' or 'float64'."
        ) from error
