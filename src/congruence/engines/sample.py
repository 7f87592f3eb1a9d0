"""A sample of a data set's rows by a hash of their ids: equal ids give the same items, in any order."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.ipc

from congruence._utils.engine import Engine
from congruence._utils.ids import id_texts
from congruence._utils.validation import RowNames, check_rows
from congruence.embeddings import Embeddings
from congruence.errors import InputError
from congruence.io.dataset import DataSet, Fragment
from congruence.io.tables import list_array

#: Default number of rows in a sample: 61 MB at 768 float32 numbers per row, and searching all of them takes seconds.
SAMPLE = 20_000


def read_sample(
    data: DataSet, *, engine: Engine, share: float = 1.0, random_state: int = 0, allow_zero_rows: bool = False
) -> Embeddings:
    """Read about this share of the rows, chosen by a hash of their ids; 1 reads all rows, in their order.

    Data sets with the same ids give the same items, whose ids are row numbers if there are none.
    """
    work = partial(_sample, data.without_fragments(), data.table.first_rows, share, random_state, allow_zero_rows)
    content = engine.reduce(work, _merge_samples, data.fragments)
    table = pyarrow.ipc.open_stream(content).read_all().combine_chunks()
    if not len(table):
        problem = f"No rows of {data.table.name} in a sample of {share:.2g} of them."
        raise InputError(problem, "Pass a larger `sample=…`.")
    vectors = table.column("vector").combine_chunks().flatten().to_numpy().reshape(-1, data.dim)
    ids = table.column("id").combine_chunks()
    return Embeddings(vectors, ids=ids, space=data.space, allow_zero_rows=allow_zero_rows)


def _sample(
    data: DataSet,
    first_rows: dict[str, int],
    share: float,
    random_state: int,
    allow_zero_rows: bool,
    fragment: Fragment,
) -> bytes:
    """Return ids and vectors of a fragment's chosen rows as an Arrow stream; runs on a worker."""
    kind = data.id_type if data.has_ids else pa.int64()
    schema = pa.schema({"id": kind, "vector": pa.list_(pa.from_numpy_dtype(data.dtype), data.dim)})
    name, row = data.table.path_of(fragment), 0
    kept: list[pa.RecordBatch] = []
    for ids, block in data.open(fragment).scan():
        check_rows(block, name, ids=RowNames(ids, fragment.start + row), allow_zero_rows=allow_zero_rows)
        start = first_rows[fragment.name] + row
        names = pa.array(np.arange(start, start + len(block))) if ids is None else ids
        chosen = np.flatnonzero(_is_chosen(names, share, random_state))
        lists = list_array(np.ascontiguousarray(block[chosen]), schema.field("vector").type)
        kept.append(pa.record_batch([names.take(pa.array(chosen)).cast(kind), lists], schema=schema))
        row += len(block)
    return _stream(pa.Table.from_batches(kept, schema))


def _is_chosen(ids: pa.Array, share: float, random_state: int) -> np.ndarray:
    """Return for each id whether it is in the sample, which depends only on the id's text."""
    if share >= 1:
        return np.ones(len(ids), bool)
    most = int(share * 2**64)
    key = random_state.to_bytes(8, "little", signed=True)
    texts = id_texts(ids.to_numpy(zero_copy_only=False)).tolist()
    digests = (hashlib.blake2b(str(text).encode(), digest_size=8, key=key).digest() for text in texts)
    return np.fromiter((int.from_bytes(digest, "little") < most for digest in digests), bool, len(texts))


def _merge_samples(streams: Sequence[bytes]) -> bytes:
    """Return the rows of several streams, in order, as one stream."""
    return _stream(pa.concat_tables([pyarrow.ipc.open_stream(stream).read_all() for stream in streams]))


def _stream(table: pa.Table) -> bytes:
    out = io.BytesIO()
    with pyarrow.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue()
