"""Checks before the switch: whether the new vectors equal the map's output, and whether the index finds them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from congruence._utils.ids import id_texts
from congruence._utils.plain import PlainData
from congruence._utils.top_k import top_k
from congruence.databases import Block, Database, VectorSide, rows_of
from congruence.embeddings import Embeddings, normalize_rows
from congruence.errors import CorruptFileError, IdError, ShapeError
from congruence.upgrade.migrate.mapper import RowMapper
from congruence.upgrade.migrate.passes import (
    Found,
    Work,
    add_up,
    checksum_of,
    checksum_text,
    only_add_up,
    rows_per_block,
)
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
    index_recall_old: float | None  # the same of the old vectors and their index; None without one, if not needed
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
    prove: bool = False,
) -> tuple[Verification, dict[str, Any] | None]:
    """Check row counts, a sample read back, and the recall of the new index; see ``Verification``.

    Also returns what ``Passes.repair`` would find if this process has mapped all rows as they stand; else None. Only
    with ``prove`` is this worth a pass by pairs where these are not in one row.
    """
    problems: list[str] = []
    info, bits = database.info(), "binary" in (mapper.old.element_type, mapper.new.element_type)
    distance = info.distance or (None if bits else database.searches_by)
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
    queries_old = old.vectors[has_new][:n_queries]
    searches = database.capabilities.searches and len(queries) > 0
    asked: dict[VectorSide, np.ndarray] = {"new": all_queries, **({"old": queries_old} if searches else {})}
    near = {side: Nearest(of_side, k, distance) for side, of_side in asked.items()}
    whole, counts = False, None
    if searches and marks is None and (prove or database.capabilities.follows_deletes):
        whole, counts = _scan_both(database, mapper, near, callback)
    n_old, n_new = database.count("old"), database.count("new")
    # Rows that the application added after a switch may have no old vector.
    if n_new < n_old or (marks is None and n_old != n_new):
        problems.insert(0, f"{n_old:,} rows have an old vector and {n_new:,} a new one")
    if not whole or near["new"].rows != n_new:
        counts = None
        for side, of_side in asked.items():
            near[side] = Nearest(of_side, k, distance)
            for block in database.scan(side, batch=rows_per_block(of_side.shape[1])):
                near[side].add(block.ids, block.vectors, checksum_of(block.ids, block.vectors))
                if callback is not None:
                    callback(len(block.ids))
    rows, recall, recall_old = near["new"].rows, None, None
    if searches:
        few = min(k, rows)
        recall = _recall(database, "new", queries, few, near["new"].least, distance)
        if info.index or recall < least_recall:  # without an index each search reads all rows
            recall_old = _recall(database, "old", queries_old, few, near["old"].least, distance)
        if recall < least_recall and recall < (recall_old or 0.0) - 0.05:
            problems.append(f"the new index finds {recall:.3f} of the {k} nearest rows, the old one {recall_old:.3f}")
    scores: dict[str, float] = {}
    if heldout is not None:
        pairs = list(zip(near["new"].best[len(queries) :], id_texts(heldout.ids).tolist(), strict=True))
        scores = {
            "queries": len(pairs),
            "recall@1": float(np.mean([name in found[:1] for found, name in pairs])),
            "recall@10": float(np.mean([name in found[:10] for found, name in pairs])),
            "chance@10": min(10 / max(rows, 1), 1.0),
        }
        if scores["recall@10"] <= 2 * scores["chance@10"]:
            problems.append("held-out vectors of the new model find their own rows no better than chance")
    verification = Verification(
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
        checksum_new=checksum_text(near["new"].checksum),
        stored_recall=None if mapper.new.element_type == "float32" else recall_of(wanted, stored, distance),
        clipped=mapper.new.clipped(wanted),
        problems=problems,
    )
    return verification, counts


class Nearest:
    """The ids of each query's ``k`` nearest rows among all that were added, by exact search, and their checksum."""

    def __init__(self, queries: np.ndarray, k: int, distance: str | None) -> None:
        self._queries, self._k, self._distance = queries, k, distance
        self._scores = np.full((len(queries), 0), -np.inf, np.float32)
        self._names = np.empty((len(queries), 0), object)
        self.rows = self.checksum = 0

    def add(self, ids: pa.Array, vectors: np.ndarray, checksum: int) -> None:
        """Add a block of rows (b, dim)."""
        self.rows, self.checksum = self.rows + len(ids), self.checksum + checksum
        similar = similarities(self._queries, vectors, self._distance)
        near = top_k(similar, min(self._k, len(ids)))
        few, places = np.unique(near, return_inverse=True)  # a name for each row would take as long as the search
        names = id_texts(ids.take(pa.array(few)).to_pylist())[places].reshape(near.shape)
        scores = np.concatenate([self._scores, np.take_along_axis(similar, near, 1)], axis=1)
        names = np.concatenate([self._names, names], axis=1)
        near = top_k(scores, min(self._k, scores.shape[1]))
        self._scores, self._names = np.take_along_axis(scores, near, 1), np.take_along_axis(names, near, 1)

    @property
    def best(self) -> list[list[str]]:
        """The ids of each query's nearest rows, nearest first."""
        return list(self._names.tolist())

    @property
    def least(self) -> np.ndarray:
        """The similarity of the last of these, shape (queries,)."""
        return np.asarray(self._scores.min(axis=1, initial=np.inf))


def _scan_both(
    database: Database,
    mapper: RowMapper,
    near: Mapping[VectorSide, Nearest],
    callback: Callable[[int], object] | None,
) -> tuple[bool, dict[str, Any] | None]:
    """Add the rows of both sides in one scan.

    Returns whether all have both vectors, and what ``Passes.repair`` would find, if this process has mapped all.
    """
    mapper.settle()
    work, found, complete, mapped = Work(only_add_up, database, mapper), Found(), True, True
    for block in database.scan_pairs(batch=rows_per_block(max(mapper.old.dim, mapper.dim))):
        before = found.old
        right, _, digests = add_up(work, block, found)
        found.rows += len(block.ids)
        found.marks.append(digests)
        complete, mapped = complete and bool(block.has_new.all()), mapped and bool(right.all())
        if not complete:
            break
        near["old"].add(block.ids, block.old, found.old - before)
        near["new"].add(block.ids, block.new, int(digests.sum(dtype=np.uint64)))
        if callback is not None:
            callback(len(block.ids))
    return complete, found.counts() if complete and mapped else None


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
