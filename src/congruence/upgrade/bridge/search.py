"""Search an index of the old model's rows with bridged queries, and rank candidates again by the new model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import ArrayLike

from congruence._utils.arrays import blocks, is_plain, is_tensor, normalize_rows
from congruence._utils.columns import to_rows
from congruence._utils.ids import id_rows, id_texts
from congruence._utils.typing import RowsLike, Tensor
from congruence._utils.validation import as_matrix, check_choice
from congruence.embeddings import Embeddings, Space, as_embeddings
from congruence.errors import DirectionError, InputError, ParameterError, ShapeError, SpaceMismatchError
from congruence.metrics.hubness import Hubness, as_hubness
from congruence.metrics.search import NEIGHBORS, exact_similarity, nearest

_ANY = Space()  # of an unnamed model

#: Function of bridged queries and a number n of results; returns scores and ids, each of shape (m, n), nearest first.
Searcher: TypeAlias = "Callable[[np.ndarray, int], tuple[ArrayLike, ArrayLike]]"

#: Function of ids, shape (c,); returns their vectors in the new model, shape (c, d), with a row of NaN, or None, for an
#: id without a vector.
Lookup: TypeAlias = "Callable[[np.ndarray], Sequence[ArrayLike | None] | np.ndarray]"


@dataclass(frozen=True, eq=False)
class SearchResult:
    """Result of a search, nearest first; without the axis of queries for one query."""

    scores: np.ndarray  # (m, k), larger is nearer: cosines in the new model where reranked, else similarities
    ids: np.ndarray  # (m, k), or row numbers if the index has none; −1 for rows not found
    reranked: np.ndarray  # (m, k): whether the score is from the new model

    def __len__(self) -> int:
        return len(self.ids)

    def one(self) -> SearchResult:
        """Return the result of the first query without the axis of queries."""
        return SearchResult(self.scores[0], self.ids[0], self.reranked[0])


def as_rows(queries: RowsLike) -> tuple[RowsLike, bool]:
    """Return the queries as a 2-D array, (m, d), and whether a single vector was passed."""
    if is_tensor(queries):
        return (cast("Tensor", queries[None]), True) if queries.ndim == 1 else (queries, False)
    A = queries if is_plain(queries) else to_rows(queries, "queries")
    if A.ndim == 1 and len(A) and A.dtype.kind in "fiub":
        return A[None], True
    return queries, False


def find(
    vectors: np.ndarray,
    index: Any,
    n: int,
    *,
    metric: str = "cosine",
    hubness: str | Hubness | None = None,
    bank: np.ndarray | None = None,
    own: Space = _ANY,
    other: Space = _ANY,
) -> tuple[np.ndarray, np.ndarray]:
    """Return scores, largest first, and ids, (m, n), of the n rows of an index nearest to bridged queries.

    ``own`` is the space of the index and ``other`` that of the queries before the map.
    """
    check_choice(metric, NEIGHBORS, "metric")
    if callable(getattr(index, "search", None)) or callable(index):
        if metric != "cosine" or hubness is not None or bank is not None:
            problem = "A search index takes no metric, hubness or bank."
            raise ParameterError(problem, "Pass its vectors, or leave these out.")
        return _search_index(vectors, index, n)
    rows = rows_of_index(index, replace(own, dim=vectors.shape[1]), other)
    n = min(n, len(rows))
    place, scores = _nearest(vectors, rows.vectors, n, metric, as_hubness(hubness), bank)
    return scores, rows.ids[place] if rows.has_ids else place


def rows_of_index(index: Any, own: Space, other: Space, part: str = "") -> Embeddings:
    """Return the rows of an index, or of its ``part``, "old" or "new". Raises ShapeError or SpaceMismatchError, as
    DirectionError if they are of the ``other`` model, unless they are of its ``own`` space.
    """
    what, pass_ = ("index", "Pass the old model's.") if not part else (f"{part} part", f"Pass the {part} model's.")
    rows = as_embeddings(index, part or "index")
    if rows.dim != own.dim:
        whose = ", that of the other model" if rows.dim == other.dim else ""
        raise ShapeError(f"The {what} has width {rows.dim}{whose}; expected {own.dim}.", pass_)
    model = rows.space.model  # the width alone shows nothing if both models have the same
    if model and own.model and model != own.model:
        problem = f"The {what} has vectors of {model!r}; expected those of {own.model!r}."
        if model == other.model:
            fix = "Exchange `old=…` and `new=…`." if part else "Queries of this model search it without a map."
            raise DirectionError(problem, fix)
        raise SpaceMismatchError(problem, "Pass vectors of that model, or use a map fitted on this one.")
    return rows


def _search_index(vectors: np.ndarray, index: Any, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Search a FAISS index, or call a search function."""
    width = getattr(index, "d", None)
    if isinstance(width, int) and width != vectors.shape[1]:
        raise ShapeError(f"The index has width {width}; the old model has {vectors.shape[1]}.", "Pass the old model's.")
    if hasattr(index, "ntotal"):
        if not index.ntotal:
            raise ShapeError("Got a FAISS index without rows.", "Add the old model's vectors to it.")
        n = min(n, index.ntotal)
    if callable(getattr(index, "search", None)):
        result = index.search(np.ascontiguousarray(vectors, dtype=np.float32), n)
    else:
        result = index(vectors, n)
    if not (isinstance(result, tuple) and len(result) == 2):
        problem = f"The index returned {type(result).__name__}."
        raise InputError(problem, "Return (scores, ids), each of shape (queries, n).")
    scores, ids = np.asarray(result[0], dtype=np.float64), np.asarray(result[1])
    if scores.shape != ids.shape or scores.ndim != 2 or len(scores) != len(vectors):
        raise InputError(
            f"The index returned scores of shape {scores.shape} and ids of shape {ids.shape} for "
            f"{len(vectors)} queries.",
            "Return a row for each query.",
        )
    if getattr(index, "metric_type", 0) == 1:  # faiss.METRIC_L2, whose distances are squared and smaller when nearer
        scores = -scores
    return scores, ids


def _nearest(
    queries: np.ndarray, rows: np.ndarray, n: int, metric: str, correction: Hubness | None, bank: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    if correction is None:
        if bank is not None:
            raise ParameterError("A bank is used only with hubness.", "Pass `hubness=…`, or leave it out.")
        return _with_scores(queries, rows, n, metric)
    if metric != "cosine":
        raise ParameterError(f"Got `metric={metric!r}` with hubness, which needs cosines.", "Leave out `metric=…`.")
    rows, bank, queries = (normalize_rows(side) for side in (rows, queries if bank is None else bank, queries))
    return _with_scores(*correction.of(bank, rows).as_inner_products(queries, rows), n, "inner")


def _with_scores(queries: np.ndarray, rows: np.ndarray, n: int, metric: str) -> tuple[np.ndarray, np.ndarray]:
    place = nearest(queries, n, rows, metric=metric)
    similarity = exact_similarity(queries, rows, metric, ("queries", "index"))
    return place, similarity(np.repeat(np.arange(len(queries)), n), place.reshape(-1)).reshape(place.shape)


def rerank_rows(
    queries: np.ndarray, scores: np.ndarray, ids: np.ndarray, rerank: RowsLike | Embeddings | Lookup, k: int
) -> SearchResult:
    """Rank candidates (m, c) by their cosine with the queries in the new model; those without a vector come last."""
    take = min(k, ids.shape[1])
    lookup = _lookup(rerank, queries.shape[1])
    out_scores, out_ids = np.empty((len(ids), take)), np.empty((len(ids), take), dtype=ids.dtype)
    placed = np.empty((len(ids), take), dtype=bool)
    Q = normalize_rows(queries)
    for part in blocks(len(ids), ids.shape[1] * queries.shape[1] * 8):
        names, where = np.unique(ids[part], return_inverse=True)
        vectors = lookup(names)
        if vectors.shape[1] != queries.shape[1]:
            problem = f"rerank has {vectors.shape[1]} dimensions; queries have {queries.shape[1]}."
            raise ShapeError(problem, "Pass the new model's vectors.")
        has_vector = ~np.isnan(vectors).all(axis=1)
        vectors = np.where(has_vector[:, None], vectors, 0)
        as_matrix(vectors, "rerank", allow_zero_rows=True)  # rejects vectors that contain some NaN or infinity
        where = where.reshape(ids[part].shape)
        known = (has_vector & vectors.any(axis=1))[where]
        near = np.einsum("ij,ikj->ik", Q[part].astype(np.float64), normalize_rows(vectors)[where].astype(np.float64))
        # A stable sort with candidates without a vector last: these keep the order of the first stage.
        order = np.argsort(np.where(known, -near, np.inf), axis=1, kind="stable")[:, :take]
        merged = np.where(known, near, scores[part])
        for out, values in ((out_scores, merged), (out_ids, ids[part]), (placed, known)):
            out[part] = np.take_along_axis(values, order, axis=1)
    return SearchResult(out_scores, out_ids, placed)


def _lookup(rerank: RowsLike | Embeddings | Lookup, width: int) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function of distinct ids that returns their vectors, a row of NaN for those that have none."""
    if callable(rerank) and not hasattr(rerank, "__array__"):

        def by_call(names: np.ndarray) -> np.ndarray:
            # An index that finds fewer rows than requested pads with −1, which is not an id.
            known = names != -1 if names.dtype.kind in "iu" else np.ones(len(names), bool)
            found = list(rerank(names[known])) if known.any() else []
            if len(found) != known.sum():
                problem = f"Got {len(found)} vectors from rerank for {known.sum()} ids."
                raise InputError(problem, "Return None for unknown ids.")
            vectors = np.full((len(names), width), np.nan)
            for row, vector in zip(np.flatnonzero(known), found, strict=True):
                if vector is not None:
                    if np.shape(vector) != (width,):
                        problem = f"Got shape {np.shape(vector)} from rerank; expected ({width},)."
                        raise ShapeError(problem, "Return the new model's.")
                    vectors[row] = vector
            return vectors

        return by_call
    table = np.asarray(rerank.vectors if isinstance(rerank, Embeddings) else rerank)
    if table.ndim != 2 or table.dtype.kind != "f":
        raise ShapeError(
            f"Got rerank of shape {table.shape} and dtype {table.dtype}; expected one row of floats for each "
            "row of the index.",
            "Pass a matrix, embeddings with ids, or a function of ids.",
        )
    ids = id_texts(rerank.ids) if isinstance(rerank, Embeddings) and rerank.has_ids else None

    def by_row(names: np.ndarray) -> np.ndarray:
        rows = names if ids is None else id_rows(ids, id_texts(names))
        if rows.dtype.kind not in "iu" or (len(rows) and (rows.max() >= len(table) or rows.min() < -1)):
            problem = f"The index's ids are not row numbers of rerank, which has {len(table)} rows."
            raise InputError(problem, "Pass `rerank=…` as embeddings with the index's ids.")
        return np.where((rows >= 0)[:, None], table[rows], np.nan)

    return by_row
