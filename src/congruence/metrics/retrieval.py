"""Paired rows, and nearest-neighbor retrieval and zero-shot classification (Gupta et al. 2026, appendix D.4.2).

Retrieval processes blocks of queries and never holds all similarities at once. Similarities are cosines, minus one
number per gallery row if hubs are corrected for. Equal similarities share the credit: if three gallery rows tie for
first place and one is correct, the query scores 1/3, the expected score of breaking the tie at random.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike

from congruence._utils.arrays import blocks, normalize_rows
from congruence._utils.top_k import any_drawn
from congruence._utils.typing import Labels, RowsLike, SizedRows
from congruence._utils.validation import as_matrix, check_choice, check_positive, check_same_width, check_scale
from congruence.errors import IdError, InputError, ParameterError, ShapeError
from congruence.metrics._base import Metric, as_labels, paired
from congruence.metrics.hubness import Hubness, as_hubness

# ------------------------------------------------------------------ paired rows


def paired_cosines(X: RowsLike, Y: RowsLike) -> np.ndarray:
    """Cosine between row i of X and row i of Y, both of shape (n, d): a float64 array of shape (n,), in [−1, 1]."""
    A, B = paired(X, Y)
    out = np.empty(len(A))
    for part in blocks(len(A), 16 * A.shape[1], budget=8 * 2**20):
        a = normalize_rows(A[part].astype(np.float64), "X")
        b = normalize_rows(B[part].astype(np.float64), "Y")
        out[part] = np.einsum("ij,ij->i", a, b)
    return np.clip(out, -1.0, 1.0)


def paired_cosine(X: RowsLike, Y: RowsLike) -> float:
    """Mean cosine of paired rows, X and Y of shape (n, d), in [−1, 1]; 1 for pairs of the same direction.

    Source: Gupta et al. (2026), appendix D.4.2, metric (1).
    """
    return float(paired_cosines(X, Y).mean())


def paired_distance(X: RowsLike, Y: RowsLike) -> float:
    """Mean Euclidean distance of paired rows, X and Y of shape (n, d), without any normalization.

    Source: Gupta et al. (2026), appendix D.4.2, metric (1).
    """
    A, B = paired(X, Y)
    check_scale(A, "X")
    check_scale(B, "Y")
    total = 0.0
    for part in blocks(len(A), 16 * A.shape[1], budget=8 * 2**20):
        total += float(np.linalg.norm(A[part].astype(np.float64) - B[part], axis=1).sum())
    return total / len(A)


# ------------------------------------------------------------------ retrieval


def _similarities(
    queries: SizedRows, gallery: SizedRows, hubness: str | Hubness | None, bank: RowsLike | None, exclude_self: bool
) -> Iterator[tuple[slice, np.ndarray, float]]:
    """Yield slices of queries, their similarities to the gallery, and the difference up to which two count as equal."""
    method = as_hubness(hubness)
    if bank is not None and method is None:
        raise ParameterError("A bank of queries is used only with hubness.", 'Pass `hubness="csls"`, or leave it out.')
    Q, G = (as_matrix(X, name, allow_zero_rows=True) for X, name in ((queries, "queries"), (gallery, "gallery")))
    check_same_width(Q, G)
    dtype = np.result_type(Q, G)

    def unit(rows: np.ndarray, name: str) -> np.ndarray:
        return np.asarray(normalize_rows(rows, name).astype(dtype, copy=False))

    G = unit(G, "gallery")
    # The rounding error of a dot product of unit vectors grows like √d; copies of a row may differ by this much.
    tie = 4 * float(np.finfo(dtype).eps) * np.sqrt(Q.shape[1])
    correction = None
    if method is not None:
        B = Q if bank is None else as_matrix(bank, "bank", allow_zero_rows=True)
        check_same_width(B, G)
        bank_rows = unit(B, "queries" if bank is None else "bank")
        correction = method.of(bank_rows, G, exclude_self=exclude_self and bank is None)
        tie *= 2  # the subtracted numbers are rounded as well
    for part in blocks(len(Q), len(G) * dtype.itemsize):
        similarity = unit(Q[part], "queries") @ G.T
        if exclude_self:
            rows = np.arange(part.start, part.stop)
            similarity[rows - part.start, rows] = -np.inf
        yield part, similarity if correction is None else correction.correct(similarity), tie


def top1_scores(
    queries: SizedRows,
    gallery: SizedRows,
    query_labels: Labels,
    gallery_labels: Labels,
    *,
    hubness: str | Hubness | None = None,
    bank: RowsLike | None = None,
    exclude_self: bool = False,
) -> np.ndarray:
    """Return for each query whether its nearest gallery row has the query's label: 1, 0, or a fraction for ties, (m,).

    Parameters
    ----------
    hubness : {"csls", "qb_norm"} or Hubness, optional
        Correct for gallery rows that are near many queries (``CSLS``, ``QBNorm``).
    bank : array_like, shape (b, d), optional
        Queries from which the correction is computed. By default the given ones: the score is then transductive, i.e.
        that of queries that arrive together.
    exclude_self : bool, default=False
        Exclude gallery row i for query i, for galleries that contain the queries' own items.
    """
    m, n = len(queries), len(gallery)
    expected = as_labels(query_labels, m, "query_labels")
    of_gallery = as_labels(gallery_labels, n, "gallery_labels")
    if exclude_self and (m != n or n < 2):
        raise ShapeError(
            f"Got {m} queries and {n} gallery rows; expected pairs, to exclude each query's own row.",
            "Pass `exclude_self=False`.",
        )
    out = np.empty(m)
    for part, similarity, tie in _similarities(queries, gallery, hubness, bank, exclude_self):
        best = np.argmax(similarity, axis=1)
        top = similarity[np.arange(len(best)), best]
        out[part] = of_gallery[best] == expected[part]
        tied = similarity >= (top - tie)[:, None]
        for row in np.flatnonzero(tied.sum(axis=1) > 1):  # rare, so a loop is fast enough
            out[part.start + row] = np.mean(of_gallery[tied[row]] == expected[part.start + row])
    return out


def class_retrieval(
    queries: SizedRows,
    gallery: SizedRows,
    query_labels: Labels,
    gallery_labels: Labels | None = None,
    *,
    exclude_self: bool = False,
    hubness: str | Hubness | None = None,
    bank: RowsLike | None = None,
) -> float:
    """Share of queries whose nearest gallery row is of the same class (top-1, cosine), in [0, 1]; always 1 with one
    class.

    ``gallery_labels`` are by default those of the queries; the other arguments are as for ``top1_scores``. The paper
    does not exclude a query's own row.

    Source: Gupta et al. (2026), appendix D.4.2, metric (2).
    """
    theirs = query_labels if gallery_labels is None else gallery_labels
    options: dict[str, Any] = {"exclude_self": exclude_self, "hubness": hubness, "bank": bank}
    return float(top1_scores(queries, gallery, query_labels, theirs, **options).mean())


def zero_shot_accuracy(
    images: SizedRows,
    prototypes: SizedRows,
    labels: Labels,
    classes: Labels | None = None,
    *,
    hubness: str | Hubness | None = None,
    bank: RowsLike | None = None,
) -> float:
    """Share of images whose nearest class prototype is that of their own class, in [0, 1].

    A prototype is one text vector per class; see ``ensemble_prompts``. ``labels`` (n,) are row numbers of
    ``prototypes``, or of ``classes`` (k,), their names. ``hubness`` and ``bank`` are as for ``top1_scores``, with
    images as the queries.

    Source: Gupta et al. (2026), appendix D.4.2, metrics (3) to (5).
    """
    k = len(prototypes)
    names = np.arange(k) if classes is None else as_labels(classes, k, "classes")
    expected = as_labels(labels, len(images), "labels")
    check_prototypes(names)
    unknown = ~np.isin(expected, names)
    if unknown.any():
        raise InputError(
            f"Got label {expected[unknown][0]} without a prototype ({unknown.sum()} images).",
            "Use the names of `classes=…`.",
        )
    return float(top1_scores(images, prototypes, expected, names, hubness=hubness, bank=bank).mean())


def check_prototypes(names: np.ndarray) -> None:
    """Check that no class has two prototypes."""
    if len(np.unique(names)) < len(names):
        raise InputError("Got a class with two prototypes.", "Average the prompts of each class with ensemble_prompts.")


def recall_at_k(
    queries: SizedRows,
    gallery: SizedRows,
    relevant: Sequence[ArrayLike] | np.ndarray,
    k: int = 1,
    *,
    mode: str = "any",
    hubness: str | Hubness | None = None,
    bank: RowsLike | None = None,
) -> float:
    """Recall among the k nearest gallery rows, with any number of relevant rows per query.

    In [0, 1]. Rows tied for the k-th place count with the expected value of breaking the tie at random. ``relevant``
    has for each query the relevant gallery row, or several. ``mode`` is "any", the share of queries with a relevant row
    among the k, as in image-caption retrieval, or "share", the mean share of relevant rows found, as in information
    retrieval. The other arguments are as for ``top1_scores``.
    """
    check_positive(k, "k", integer=True)
    check_choice(mode, ("any", "share"), "mode")
    m, n = len(queries), len(gallery)
    if k > n:
        raise ParameterError(f"Got `k={k}` for a gallery of {n}.", f"Pass `k={n}` or less.")
    if len(relevant) != m:
        raise ShapeError(f"Got relevant rows for {len(relevant)} of {m} queries.", f"Pass `relevant=…` of length {m}.")
    query, row = _pairs(relevant, n)
    count = np.bincount(query, minlength=m)
    total = 0.0
    for part, similarity, tie in _similarities(queries, gallery, hubness, bank, exclude_self=False):
        kth = np.partition(similarity, n - k, axis=1)[:, n - k, None]
        above, level = similarity > kth + tie, np.abs(similarity - kth) <= tie
        places, tied = k - np.count_nonzero(above, axis=1), np.count_nonzero(level, axis=1)
        in_block = slice(*np.searchsorted(query, (part.start, part.stop)))
        pairs = query[in_block] - part.start, row[in_block]
        # Number of each query's relevant rows among the first k, and among those tied for the k-th place.
        certain, possible = (np.bincount(pairs[0], mask[pairs], minlength=len(similarity)) for mask in (above, level))
        if mode == "share":
            total += sum(((certain + possible * places / tied) / count[part]).tolist())
        else:
            total += np.count_nonzero(certain)
            for i in np.flatnonzero((certain == 0) & (possible > 0)):
                total += any_drawn(int(possible[i]), int(tied[i]), int(places[i]))
    return total / m


def _pairs(relevant: Sequence[ArrayLike] | np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the pairs of query and relevant gallery row, without repetition, ordered by query."""
    lists = [np.asarray(rows, dtype=int).reshape(-1) for rows in relevant]
    query = np.repeat(np.arange(len(lists)), [len(rows) for rows in lists])
    row = np.concatenate([*lists, np.empty(0, int)])
    wrong = np.bincount(query, (row >= 0) & (row < n), minlength=len(lists)) < [max(len(rows), 1) for rows in lists]
    if wrong.any():
        i = int(np.argmax(wrong))
        raise IdError(
            f"Got relevant rows {np.unique(lists[i]).tolist()} for query {i}.", f"Pass at least one, from 0 to {n - 1}."
        )
    return np.divmod(np.unique(query * n + row), n)


# ------------------------------------------------------------------ class prototypes from several prompts


@overload
def ensemble_prompts(embeddings: RowsLike, classes: None = None) -> np.ndarray: ...
@overload
def ensemble_prompts(embeddings: RowsLike, classes: Labels) -> tuple[np.ndarray, np.ndarray]: ...
def ensemble_prompts(embeddings: RowsLike, classes: Labels | None = None) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
    """Average prompt embeddings into class prototypes (k, d): normalize, average, and normalize again.

    ``embeddings`` are t prompts for each of k classes, (k, t, d); or p prompts in any order, (p, d), with the class of
    each, ``classes`` (p,): the class of each prototype, sorted, is then returned as well.

    Source: Gupta et al. (2026), appendix D.3, eq. (6); Radford et al. (2021), §3.1.4.
    """
    if classes is None:
        array = np.asarray(embeddings)
        if array.ndim != 3 or 0 in array.shape:
            raise ShapeError(
                f"Got prompts of shape {array.shape}; expected (classes, templates, dimensions).",
                "Pass `classes=…` for a flat list.",
            )
        k, t, d = array.shape
        flat = normalize_rows(as_matrix(array.reshape(k * t, d), "embeddings"), "embeddings")
        return np.asarray(normalize_rows(flat.reshape(k, t, d).mean(axis=1), "the prototypes"))
    flat = normalize_rows(as_matrix(embeddings, "embeddings"), "embeddings")
    names, class_of = np.unique(as_labels(classes, len(flat), "classes"), return_inverse=True)
    sums = np.zeros((len(names), flat.shape[1]), dtype=flat.dtype)
    np.add.at(sums, class_of, flat)
    return normalize_rows(sums, "the prototypes"), names


_SOURCE = "Gupta et al. (2026), appendix D.4.2"
_JOINT = frozenset({"joint rotation", "joint permutation", "symmetry"})

METRICS = (
    Metric(paired_cosine, (-1.0, 1.0), _JOINT | {"row scaling"}, _SOURCE, cost="n·d", one_space=True),
    Metric(paired_distance, (0.0, float("inf")), _JOINT, _SOURCE, larger_is_closer=False, cost="n·d", one_space=True),
)
