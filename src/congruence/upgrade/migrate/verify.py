"""Checks before the switch: whether the new vectors equal the map's output, and whether the index finds them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from congruence._utils.ids import id_texts
from congruence._utils.plain import PlainData
from congruence._utils.top_k import top_k
from congruence.databases import Block, Database, VectorSide, rows_of
from congruence.embeddings import Embeddings, normalize_rows
from congruence.errors import CorruptFileError, IdError, ShapeError
from congruence.upgrade.migrate.mapper import RowMapper
from congruence.upgrade.migrate.passes import checksum_of, checksum_text, rows_per_block
from congruence.upgrade.migrate.quantize import recall_of, similarities
from congruence.upgrade.migrate.written import Marks


def read_sample(database: Database, sample: list[int | str]) -> tuple[Block, Block, np.ndarray]:
    """Return the sampled rows with old and with new vectors, and the position in the new of each old row, or −1."""
    first = next(iter(database.scan("old", batch=1)), None)
    if first is None:
        raise ShapeError("Got a table without rows.", "Check the table and the condition.")
    try:
        ids = pa.array(sample, first.ids.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise CorruptFileError(
            f"The journal's sample has other ids than the table ({first.ids.type}).",
            "Restore the journal, or discard the new vectors and run again with another `journal=…`.",
        ) from error
    old, new = database.fetch(ids, "old"), database.fetch(ids, "new")
    return old, new, rows_of(old.ids, new.ids)


#: Number of queries for which the results of the index are compared with exact search; without an index, where the
#: search of the database is exact and reads all rows for each query, fewer.
QUERIES, QUERIES_UNINDEXED = 200, 10


@dataclass(frozen=True)
class Verification(PlainData):
    """Result of ``Migration.verify``."""

    passed: bool
    rows_old: int
    rows_new: int
    read_back: int  # sampled rows that were read and mapped again
    wrong: int  # whose new vector is wrong or missing
    largest_difference: float  # in a component as stored; for int8 in quantization steps
    k: int
    index_recall: float | None  # share of the exact k nearest rows that the database's search finds
    index_recall_old: float | None  # the same of the old vectors and their index
    heldout: dict[str, float]  # "queries", "recall@1", "recall@10" of new vectors that find their own row, "chance@10"
    checksum_new: str  # over all new vectors as they are stored
    stored_recall: float | None = None  # share of the 10 nearest in float32 that are found as stored
    clipped: float = 0.0  # share of components outside the int8 ranges
    problems: list[str] = field(default_factory=list)  # reasons why verification failed


def verify(
    database: Database,
    mapper: RowMapper,
    sample: list[int | str],
    *,
    heldout: Embeddings | None = None,
    k: int = 10,
    least_recall: float = 0.9,
    callback: Callable[[int], object] | None = None,
    marks: Marks | None = None,
) -> Verification:
    """Check row counts, a sample read back, and the recall of the new index; see ``Verification``."""
    problems: list[str] = []
    info, bits = database.info(), "binary" in (mapper.old.element_type, mapper.new.element_type)
    distance = info.distance or (None if bits else database.searches_by)
    n_old, n_new = database.count("old"), database.count("new")
    # Rows that the application added after a switch may have no old vector.
    if n_new < n_old or (marks is None and n_old != n_new):
        problems.append(f"{n_old:,} rows have an old vector and {n_new:,} a new one")
    old, new, place = read_sample(database, sample)
    has_new = place >= 0
    wanted = database.as_stored(mapper(old.ids, old.vectors, old.modalities))[has_new]
    stored = new.vectors[place[has_new]]
    differs = mapper.new.differs(stored, wanted)
    if marks is not None:  # vectors that the application wrote after a switch stay
        differs &= ~marks.theirs(new.ids.take(pa.array(place[has_new])), old.vectors[has_new], stored)
    wrong = int((~has_new).sum()) + int(differs.sum())
    if wrong:
        problems.append(
            f"{wrong:,} of {len(old.ids):,} sampled rows have a vector that differs from the output of the map, "
            "as rows do that changed since the run"
        )
    n_queries = QUERIES if info.index else QUERIES_UNINDEXED
    unit = distance == "cosine" and not mapper.new.coded  # quantized vectors are compared as stored
    queries, all_queries = stored[:n_queries], stored[:n_queries]
    if unit:
        queries = all_queries = normalize_rows(queries)
    if heldout is not None:
        if not heldout.has_ids:
            raise IdError("The held-out vectors have no ids.", "Pass a file with ids.")
        if heldout.vectors.shape[1] != mapper.dim:
            raise ShapeError(
                f"Got {heldout.vectors.shape[1]}-d held-out vectors; expected {mapper.dim}-d.",
                "Pass vectors of the new model.",
            )
        all_queries = np.concatenate([queries, mapper.new.encode(np.asarray(heldout.vectors, np.float32))])
    best, least, rows, checksum = _exact(database, "new", all_queries, k, distance, callback)
    recall = recall_old = None
    if database.capabilities.searches and len(queries):
        queries_old = old.vectors[has_new][:n_queries]
        least_old = _exact(database, "old", queries_old, k, distance, callback, adds=False)[1]
        near = min(k, rows)
        recall = _recall(database, "new", queries, near, least, distance)
        recall_old = _recall(database, "old", queries_old, near, least_old, distance)
        if recall < min(least_recall, recall_old - 0.05):
            problems.append(f"the new index finds {recall:.3f} of the {k} nearest rows, the old one {recall_old:.3f}")
    scores: dict[str, float] = {}
    if heldout is not None:
        pairs = list(zip(best[len(queries) :], id_texts(heldout.ids).tolist(), strict=True))
        scores = {
            "queries": len(pairs),
            "recall@1": float(np.mean([name in found[:1] for found, name in pairs])),
            "recall@10": float(np.mean([name in found[:10] for found, name in pairs])),
            "chance@10": min(10 / max(rows, 1), 1.0),
        }
        if scores["recall@10"] <= 2 * scores["chance@10"]:
            problems.append("held-out vectors of the new model find their own rows no better than chance")
    return Verification(
        passed=not problems,
        rows_old=n_old,
        rows_new=n_new,
        read_back=len(old.ids),
        wrong=wrong,
        largest_difference=float(np.abs(stored - mapper.new.encode(wanted)).max(initial=0.0)),
        k=k,
        index_recall=recall,
        index_recall_old=recall_old,
        heldout=scores,
        checksum_new=checksum_text(checksum),
        stored_recall=None if mapper.new.element_type == "float32" else recall_of(wanted, stored, distance),
        clipped=mapper.new.clipped(wanted),
        problems=problems,
    )


def _exact(
    database: Database,
    side: VectorSide,
    queries: np.ndarray,
    k: int,
    distance: str | None,
    callback: Callable[[int], object] | None,
    *,
    adds: bool = True,
) -> tuple[list[list[str]], np.ndarray, int, int]:
    """Return ids of each query's ``k`` nearest rows, similarity of the last, rows, and their checksum if it adds."""
    rows = checksum = 0
    scores = np.full((len(queries), 0), -np.inf, np.float32)
    names = np.empty((len(queries), 0), object)
    for block in database.scan(side, batch=rows_per_block(queries.shape[1])):
        rows += len(block.ids)
        checksum += checksum_of(block.ids, block.vectors) if adds else 0
        texts, similar = id_texts(block.ids.to_pylist()), similarities(queries, block.vectors, distance)
        near = top_k(similar, min(k, len(texts)))
        scores = np.concatenate([scores, np.take_along_axis(similar, near, 1)], axis=1)
        names = np.concatenate([names, texts[near]], axis=1)
        near = top_k(scores, min(k, scores.shape[1]))
        scores, names = np.take_along_axis(scores, near, 1), np.take_along_axis(names, near, 1)
        if callback is not None:
            callback(len(block.ids))
    return names.tolist(), scores.min(axis=1, initial=np.inf), rows, checksum


def _recall(
    database: Database, side: VectorSide, queries: np.ndarray, k: int, least: np.ndarray, distance: str | None
) -> float:
    """Return the share of the search's results that are as similar as the ``k`` nearest: any of them if several tie."""
    results = database.search(queries, k, side)
    block = database.fetch(pa.concat_arrays(results).unique(), side)
    similar, shares = similarities(queries, block.vectors, distance), []
    for row, ids, needed in zip(similar, results, least, strict=False):  # the least of held-out queries follow
        rows = rows_of(ids, block.ids)
        nearly = needed - 1e-5 * np.abs(row).max(initial=0.0)
        shares.append(np.count_nonzero(row[rows[rows >= 0]] >= nearly) / k)
    return float(np.mean(shares))
