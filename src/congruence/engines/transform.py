"""Map Arrow batches, in the pipelines of Ray, Spark, Dask or Daft."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from congruence._utils.validation import RowNames
from congruence.embeddings import Space
from congruence.io import store_as
from congruence.io.tables import MemoryTable, TableLayout, TableSource, list_array
from congruence.maps import Map, load
from congruence.upgrade.transform import BlockMap

if TYPE_CHECKING:
    import pandas


class MapBatch:
    """Maps the vectors of Arrow batches; ids and all other columns pass through.

    Use it with ``ray.data.Dataset.map_batches(…, batch_format="pyarrow")``, Spark's ``mapInArrow`` (``over``), Dask
    (``frame``) or Daft (``vectors``). It can be pickled. The commands of this library use the same code, so
    equal blocks give identical results, bit for bit.

    Parameters
    ----------
    mapping : Map or path-like
        A fitted map, or the folder of a saved one.
    schema : pyarrow.Schema
        Schema of the batches. If its metadata state the space of the vectors, this is checked against the map. The
        schema of the output is ``schema``.
    column, ids : str, optional
        Columns of the vectors, and of the ids, for messages; by default the only column of lists, and ``id`` or
        ``ids``, if there is one.
    dim : int, optional
        Width of the vectors, if the column has lists of variable length; by default the width that the map expects.
    space : Space, optional
        Known facts about the vectors; they override the metadata of the schema.
    column_out : str, optional
        Name of a new column for the mapped vectors; by default they replace the source vectors.
    **options
        As for ``congruence.transform_file``. With ``device`` "cpu" or "cuda", torch computes the matrix products on
        that device, with "auto" on a GPU if the worker has one; by default, NumPy computes them.
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
        **options: Any,
    ) -> None:
        fitted = mapping if isinstance(mapping, Map) else load(mapping)
        width = dim or (fitted.d_target if options.get("side") == "target" else fitted.n_features_in_)
        none = MemoryTable("batch", pa.RecordBatch.from_pylist([], schema))
        self._source = TableSource("batch", column, ids, table=none, dim=width)
        known = self._source.space if space is None else replace(self._source.space, **space.to_dict())
        self.function = BlockMap(fitted, replace(known, dim=self._source.dim), self._source.dtype, **options)
        self.layout = TableLayout(
            self._source.columns[0],
            dim=self.function.dim,
            dtype=self.function.dtype,
            has_ids=self._source.has_ids,
            id_type=self._source.id_type,
            space=self.function.space,
            column_out=column_out,
            path="batch",
        )
        self._expected: pa.Schema = self._source.columns[0].schema
        self.schema: pa.Schema = self.layout.schema

    def __call__(self, batch: pa.RecordBatch | pa.Table) -> pa.RecordBatch | pa.Table:
        """Map a batch with the columns of the schema, in any order; rows keep their order."""
        rows = batch.select(self._expected.names)
        if isinstance(rows, pa.Table):
            return pa.Table.from_batches([self._map(part) for part in rows.to_batches()], self.schema)
        return self._map(rows)

    def over(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield each batch mapped, as Spark's ``mapInArrow`` calls it."""
        for batch in batches:
            yield self(batch)

    def frame(self, frame: pandas.DataFrame) -> pandas.DataFrame:
        """Map a pandas frame with Arrow's types, as Dask's ``map_partitions`` calls it; its index is kept."""
        import pandas

        expected = self._expected
        mapped = self(pa.Table.from_pandas(frame[expected.names], schema=expected, preserve_index=False))
        out: pandas.DataFrame = mapped.to_pandas(types_mapper=pandas.ArrowDtype)
        return out.set_axis(frame.index)

    def vectors(self, column: pa.Array | pa.ChunkedArray) -> pa.Array:
        """Map a single column of lists, as Daft calls its functions."""
        array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        kind = self.schema.field(self.layout.at).type
        if not len(array):
            return pa.array([], kind)
        rows = self._source.vectors(array.cast(self._expected.field(self._source.columns[0].vector).type))
        return list_array(self._mapped(None, rows), kind)

    def _map(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not batch.schema.equals(self._expected):  # engines choose between list and large_list, for example
            batch = batch.cast(self._expected)
        if not len(batch):
            return pa.RecordBatch.from_pylist([], self.schema)
        ids, block = self._source.block(batch, 0)
        return self.layout.fill(ids, self._mapped(ids, block), batch)

    def _mapped(self, ids: pa.Array | None, block: np.ndarray) -> np.ndarray:
        self.function.check_block(block, "batch", RowNames(ids, 0), first=True)
        return store_as(self.function(block), self.function.dtype, "batch")
