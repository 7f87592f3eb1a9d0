"""Search an index with bridged queries: of the old model's rows, ranked again by the new model, or of rows of both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
from numpy.typing import ArrayLike

from congruence._utils.arrays import blocks, is_tensor, normalize_rows
from congruence._utils.columns import to_rows
from congruence._utils.ids import id_rows, id_texts, is_in
from congruence._utils.typing import RowsLike, Tensor
from congruence._utils.validation import as_matrix, check_choice, check_positive, check_seed
from congruence.embeddings import Embeddings, Space, as_embeddings
from congruence.errors import DirectionError, InputError, ParameterError, ShapeError, SpaceMismatchError
from congruence.metrics.hubness import Hubness, as_hubness
from congruence.metrics.search import NEIGHBORS, nearest

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from congruence.upgrade.bridge.bridge import Bridge

_FLOATS = (np.dtype(np.float32), np.dtype(np.float64))

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


def is_plain(queries: RowsLike) -> TypeIs[np.ndarray]:
    """Return whether queries are an array of float32 or float64, which needs no conversion."""
    return type(queries) is np.ndarray and queries.dtype in _FLOATS


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
    source_dim: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Find the n nearest rows in an index of any kind; return scores, largest first, and ids, shapes (m, n).

    ``vectors`` (m, d) are bridged queries, ``bank`` (b, d) those of the correction, by default the same, and
    ``source_dim`` is the width of the queries' model, for error messages.
    """
    check_choice(metric, NEIGHBORS, "metric")
    if callable(getattr(index, "search", None)) or callable(index):
        if metric != "cosine" or hubness is not None or bank is not None:
            raise ParameterError(
                "A search index takes no metric, hubness or bank.", "Pass its vectors, or leave these out."
            )
        return _search_index(vectors, index, n)
    rows = as_embeddings(index, "index")
    if rows.dim != vectors.shape[1]:
        whose = ", that of the queries' model" if rows.dim == source_dim else ""
        raise ShapeError(
            f"The index has width {rows.dim}{whose}; the old model has {vectors.shape[1]}.", "Pass the old model's."
        )
    n = min(n, len(rows))
    place, scores = _nearest(vectors, rows.vectors, n, metric, as_hubness(hubness), bank)
    return scores, rows.ids[place] if rows.has_ids else place


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
        raise InputError(
            f"The index returned {type(result).__name__}.", "Return (scores, ids), each of shape (queries, n)."
        )
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
    queries: np.ndarray,
    rows: np.ndarray,
    n: int,
    metric: str,
    correction: Hubness | None,
    bank: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers and the scores of the n nearest rows."""
    if correction is None:
        if bank is not None:
            raise ParameterError("A bank is used only with hubness.", "Pass `hubness=…`, or leave it out.")
        place = nearest(queries, n, rows, metric=metric)
        return place, _scores(queries, rows, place, metric)
    if metric != "cosine":
        raise ParameterError(f"Got `metric={metric!r}` with hubness, which needs cosines.", "Leave out `metric=…`.")
    rows, bank, queries = (normalize_rows(side) for side in (rows, queries if bank is None else bank, queries))
    queries, rows = correction.of(bank, rows).as_inner_products(queries, rows)
    place = nearest(queries, n, rows, metric="inner")
    return place, _scores(queries, rows, place, "inner")


def _scores(queries: np.ndarray, rows: np.ndarray, place: np.ndarray, metric: str) -> np.ndarray:
    """Return the similarities of the rows found, in float64 and in blocks of queries."""
    out = np.empty(place.shape)
    for part in blocks(len(queries), place.shape[1] * rows.shape[1] * 8):
        Q, G = queries[part].astype(np.float64), rows[place[part]].astype(np.float64)
        if metric == "euclidean":
            out[part] = -np.square(G - Q[:, None]).sum(axis=2)
            continue
        out[part] = np.einsum("ij,ikj->ik", Q, G)
        if metric == "cosine":
            out[part] /= np.linalg.norm(Q, axis=1)[:, None] * np.linalg.norm(G, axis=2)
    return out


def rerank_rows(
    queries: np.ndarray, scores: np.ndarray, ids: np.ndarray, rerank: RowsLike | Embeddings | Lookup, k: int
) -> SearchResult:
    """Rank candidates (m, c) by their cosine with the queries (m, d) in the new model.

    A row of NaN, None from a callable, and an id that embeddings do not have mean that there is no vector: these
    candidates come last, in the order and with the scores of the first stage.
    """
    take = min(k, ids.shape[1])
    lookup = _lookup(rerank, queries.shape[1])
    out_scores, out_ids = np.empty((len(ids), take)), np.empty((len(ids), take), dtype=ids.dtype)
    placed = np.empty((len(ids), take), dtype=bool)
    Q = normalize_rows(queries)
    for part in blocks(len(ids), ids.shape[1] * queries.shape[1] * 8):
        names, where = np.unique(ids[part], return_inverse=True)
        vectors = lookup(names)
        if vectors.shape[1] != queries.shape[1]:
            raise ShapeError(
                f"rerank has {vectors.shape[1]} dimensions; queries have {queries.shape[1]}.",
                "Pass the new model's vectors.",
            )
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
                raise InputError(
                    f"Got {len(found)} vectors from rerank for {known.sum()} ids.", "Return None for unknown ids."
                )
            vectors = np.full((len(names), width), np.nan)
            for row, vector in zip(np.flatnonzero(known), found, strict=True):
                if vector is not None:
                    if np.shape(vector) != (width,):
                        raise ShapeError(
                            f"Got shape {np.shape(vector)} from rerank; expected ({width},).", "Return the new model's."
                        )
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
            raise InputError(
                f"The index's ids are not row numbers of rerank, which has {len(table)} rows.",
                "Pass `rerank=…` as embeddings with the index's ids.",
            )
        return np.where((rows >= 0)[:, None], table[rows], np.nan)

    return by_row


# ------------------------------------------------------------------ an index of rows of both models

MERGES = ("standardize", "none")  # how scores of the two parts are brought onto one scale

#: Maximum and minimum number of rows of each part by which a query's scores are standardized.
BACKGROUND, FEWEST = 1000, 20

_FIX = "Pass `background=…`, or `merge='none'`."


@dataclass(frozen=True, eq=False)
class MixedResult:
    """Result of a search of both parts, nearest first; without the axis of queries for one query."""

    scores: np.ndarray  # (m, k); standardized: deviations above the query's mean score in the part
    ids: np.ndarray  # (m, k), or row numbers if a part has no ids
    new: np.ndarray  # (m, k): whether the row is from the new model's part
    n_in_both: int = 0  # rows of the old part that were left out because the new part has their ids

    def __len__(self) -> int:
        return len(self.ids)


def search_mixed(
    bridge: Bridge,
    queries: RowsLike,
    old: object,
    new: object,
    k: int = 10,
    *,
    modality: str | None = None,
    merge: str = "standardize",
    background: tuple[RowsLike, RowsLike] | None = None,
    random_state: int = 0,
) -> MixedResult:
    """Search an index of which one part holds the old model's vectors and the other the new model's.

    Parameters
    ----------
    bridge : Bridge
        From the new model to the old one; the old part is searched with bridged queries.
    queries : Embeddings, array_like or tensor, shape (m, d_new) or (d_new,)
        Queries in the new model.
    old, new : Embeddings, array_like of shapes (n, d_old) and (n', d_new), FAISS index, or callable
        The two parts, in any form that ``Bridge.search`` accepts. If both have ids, an item that is in both counts
        as new.
    modality : str, optional
        Modality of the queries, as for ``Bridge.transform``.
    merge : {"standardize", "none"}, default="standardize"
        "standardize": subtract from a query's scores in a part their mean over some rows of that part, and divide by
        their standard deviation. "none": compare the cosines of the two models directly.
    background : tuple of array_like, shapes (b, d_old) and (b', d_new), optional
        Rows to standardize by. By default up to 1,000 random rows of each part, which is right if both parts have
        similar content, e.g. if the migration is in random order. If it is ordered by date or topic, pass the same
        items in both models. Required for a part that searches by itself.
    random_state : int, default=0
        Random seed of these rows.

    Examples
    --------
    >>> from congruence import Bridge, fit
    >>> from congruence.synthetic import rigid_problem
    >>> from congruence.upgrade.bridge import search_mixed
    >>> p = rigid_problem(n=200, d_source=16, random_state=0)
    >>> bridge = Bridge(fit(p.X[:100], p.Y[:100], check=False))
    >>> found = search_mixed(bridge, p.X[100:103], old=p.Y[100:150], new=p.X[150:], k=3)
    >>> found.ids[:, 0].tolist(), found.new[:, 0].tolist()
    ([0, 1, 2], [False, False, False])
    """
    check_positive(k, "k", integer=True)
    check_choice(merge, MERGES, "merge")
    check_seed(random_state)
    if isinstance(queries, Embeddings):
        rows, single = queries.vectors, False
        bridged = bridge.transform(queries, modality).vectors
    else:
        matrix, single = as_rows(queries)
        rows = as_embeddings(matrix, "queries").vectors
        bridged = np.asarray(bridge.transform(rows, modality))
    old_part = _IndexPart(old, bridged, "old", bridge.target, bridge.source)
    new_part = _IndexPart(new, rows, "new", bridge.source, bridge.target)
    n_in_both = old_part.leave_out(new_part)
    rng = np.random.default_rng(random_state)
    found = []
    for part, reference in zip((new_part, old_part), (background or (None, None))[::-1], strict=True):
        if not part.empty:
            scores, ids = find(part.queries, part.index, k, source_dim=rows.shape[1])
            if merge == "standardize":
                mean, sd = part.scale(reference, rng)
                scores = (scores - mean) / sd
            found.append((scores, ids, np.full(ids.shape, part is new_part)))
    if len({ids.dtype.kind for _, ids, _ in found}) > 1:
        # Ids of one part and row numbers of the other: as objects, numbers stay numbers.
        found = [(scores, ids.astype(object), is_new) for scores, ids, is_new in found]
    scores, ids, is_new = (np.hstack(side) for side in zip(*found, strict=True))
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    scores, ids, is_new = (np.take_along_axis(side, order, axis=1) for side in (scores, ids, is_new))
    if single:
        scores, ids, is_new = scores[0], ids[0], is_new[0]
    return MixedResult(scores, ids, is_new, n_in_both)


class _IndexPart:
    """One part of the index, and the queries in its space."""

    def __init__(self, index: Any, queries: np.ndarray, name: str, own: Space, other: Space) -> None:
        self.queries, self.name, self.index, self.empty = queries, name, index, False
        self.rows: Embeddings | None = None
        if callable(getattr(index, "search", None)) or callable(index):
            return
        self.index = self.rows = as_embeddings(index, name)
        if self.rows.dim != queries.shape[1]:
            raise ShapeError(
                f"The {name} part has {self.rows.dim}-d rows; expected {queries.shape[1]}-d.",
                f"Pass `{name}=…` with rows of the {name} model.",
            )
        # The width alone does not show a part of another model if both models have the same.
        model = self.rows.space.model
        if model and own.model and model != own.model:
            if model == other.model:
                raise DirectionError(
                    f"The two parts look exchanged: the {name} one has {model!r} vectors.",
                    "Exchange `old=…` and `new=…`.",
                )
            raise SpaceMismatchError(
                f"The {name} part has vectors of {model!r}; expected those of {own.model!r}.",
                f"Pass `{name}=…` of that model, or another bridge.",
            )

    def leave_out(self, other: _IndexPart) -> int:
        """Leave out the rows whose ids are among the other part's, and return their number."""
        if self.rows is None or other.rows is None or not (self.rows.has_ids and other.rows.has_ids):
            return 0
        known = is_in(id_texts(self.rows.ids), id_texts(other.rows.ids))
        self.empty = bool(known.all())
        if known.any() and not self.empty:
            self.index = self.rows = self.rows.take(np.flatnonzero(~known))
        return int(known.sum())

    def scale(self, background: RowsLike | None, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard deviation of each query's cosines with rows of this part, shapes (m, 1)."""
        if background is not None:
            rows = as_embeddings(background, "background").vectors
            if rows.shape[1] != self.queries.shape[1]:
                raise ShapeError(
                    f"Got {rows.shape[1]}-d background rows for the {self.name} part; expected "
                    f"{self.queries.shape[1]}-d.",
                    "Pass `background=(old rows, new rows)`.",
                )
        elif self.rows is not None:
            rows = self.rows.vectors
            if len(rows) > BACKGROUND:
                rows = rows[np.sort(rng.choice(len(rows), BACKGROUND, replace=False))]
        else:
            raise ParameterError(
                f"The {self.name} part searches by itself, and has no background to standardize its scores by.", _FIX
            )
        if len(rows) < FEWEST:
            raise InputError(f"The {self.name} part has {len(rows)} rows to standardize by; {FEWEST} are needed.", _FIX)
        rows = normalize_rows(rows)
        mean, sd = np.empty((2, len(self.queries), 1))
        for part in blocks(len(self.queries), 8 * len(rows)):
            near = normalize_rows(self.queries[part]) @ rows.T
            mean[part, 0], sd[part, 0] = near.mean(axis=1), near.std(axis=1)
        if not sd.min() > 0:
            raise InputError(f"All rows of the {self.name} part have the same cosine with a query.", _FIX)
        return mean, sd
