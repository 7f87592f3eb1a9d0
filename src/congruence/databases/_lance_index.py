"""Vector indexes of a Lance table: describe one, and build one like it over another column."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from congruence.databases._lance_column import quoted
from congruence.databases._lance_table import is_bits, storage_of

if TYPE_CHECKING:
    import lance

__all__ = ["VectorIndex", "describe_index", "find_index", "index_like"]


class VectorIndex(NamedTuple):
    """An index over a column of vectors.

    Attributes
    ----------
    name : str
    kind : str
        ``IVF_PQ``, ``IVF_HNSW_SQ``, …
    metric : {"cosine", "dot", "l2", "hamming"}
    partitions : int
    sub_vectors : int or None
        Number of sub-vectors of the product quantization.
    bits : int or None
        Number of bits of the quantization.
    hnsw : tuple of int or None
        Maximum number of connections per node, and number of candidates during construction.
    dim : int
    unindexed : int
        Number of rows that are not in the index; a search scans these.
    """

    name: str
    kind: str
    metric: str
    partitions: int
    sub_vectors: int | None
    bits: int | None
    hnsw: tuple[int, int] | None
    dim: int
    unindexed: int


def find_index(data: lance.LanceDataset, column: str) -> VectorIndex | None:
    """Return the vector index of a column, if it has one."""
    for index in data.describe_indices():
        if list(index.field_names) != [column] or "metric_type" not in index.details:
            continue
        details, statistics = index.details, data.stats.index_stats(index.name)
        compression, graph = details.get("compression") or {}, details.get("hnsw")
        return VectorIndex(
            index.name,
            index.index_type,
            str(details["metric_type"]).lower(),
            max((int(part.get("num_partitions") or 1) for part in statistics["indices"]), default=1),
            compression.get("num_sub_vectors"),
            compression.get("num_bits"),
            (graph["max_connections"], graph["construction_ef"]) if graph else None,
            getattr(data.schema.field(column).type, "list_size", 0),
            int(statistics["num_unindexed_rows"]),
        )
    return None


def describe_index(index: VectorIndex) -> str:
    """Return a short description of an index: kind, metric and parameters."""
    parts = [index.kind, index.metric, f"{index.partitions} partitions"]
    if index.sub_vectors:
        parts.append(f"{index.sub_vectors} sub-vectors")
    if index.hnsw:
        parts.append("m={}, ef_construction={}".format(*index.hnsw))
    return ", ".join(parts)


def index_like(data: lance.LanceDataset, like: VectorIndex, column: str, name: str | None) -> None:
    """Build an index of the same kind and parameters over another column; if ``name`` is given, it replaces the index of that name.

    The length of the sub-vectors is kept, or reduced until it divides the width. Bits are indexed unquantized (flat) by the Hamming
    distance. Floats that replace bits are indexed by cosine.
    """
    kind = storage_of(data.schema.field(column).type)
    dim = kind.list_size
    if is_bits(kind):
        flat = "IVF_HNSW_FLAT" if "HNSW" in like.kind else "IVF_FLAT"
        like = like._replace(kind=flat, metric="hamming", sub_vectors=None)
    elif like.metric == "hamming":
        like = like._replace(metric="cosine")
    options: dict[str, object] = {"metric": like.metric, "num_partitions": like.partitions}
    if like.sub_vectors:
        length = max(1, like.dim // like.sub_vectors)
        while dim % length:
            length -= 1
        options["num_sub_vectors"] = dim // length
    if like.bits and like.kind.endswith(("PQ", "RQ")):
        options["num_bits"] = like.bits
    if like.hnsw:
        options["m"], options["ef_construction"] = like.hnsw
    names = {index.name for index in data.describe_indices()}
    candidates = (f"{column}_idx{k or ''}" for k in range(len(names) + 1))
    unused = next(candidate for candidate in candidates if candidate not in names)
    data.create_index(quoted(column), like.kind, name=name or unused, replace=name is not None, **options)
