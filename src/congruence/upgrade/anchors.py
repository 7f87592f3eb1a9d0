"""Choose which items to encode with both models: an order of a store's rows, computed from the source vectors alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from congruence._utils.atomic import atomic_path
from congruence._utils.display import short
from congruence._utils.ids import as_ids
from congruence._utils.validation import (
    RowNames,
    check_choice,
    check_positive,
    check_rows,
    check_same_rows,
    check_scale,
    check_seed,
)
from congruence.embeddings import Embeddings, as_embeddings
from congruence.errors import IdError, ParameterError, ShapeError, TooFewAnchorsError
from congruence.io import Source, find_sink, open_sink
from congruence.linalg import selection
from congruence.splits import duplicate_groups

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from congruence._utils.typing import Labels, RowsLike


#: λ of ``variance``, ``volume`` and ``leverage`` as a multiple of the rows' mean squared norm: about the share of the
#: variance that a rotation leaves unexplained between the models of benchmarks/bench_anchors.py, where values from 0.1
#: to 1 give the same results.
_RIDGE = 0.3

#: Functions of centered rows, a number of anchors and a generator that return the chosen rows in order; ``random`` and
#: ``balanced`` keep the order of the draw.
METHODS: dict[str, Callable[[np.ndarray, int, np.random.Generator], np.ndarray]] = {
    "variance": lambda X, n, rng: selection.greedy_variance(X, n, _RIDGE),
    "facility": lambda X, n, rng: selection.facility_location(X, n),
    "volume": lambda X, n, rng: selection.greedy_volume(X, n, _RIDGE),
    "kmeans++": selection.kmeans_plus_plus,
    "leverage": lambda X, n, rng: selection.leverage(X, n, rng, _RIDGE),
    "random": lambda X, n, rng: np.arange(n),
    "balanced": lambda X, n, rng: np.arange(n),
}


@dataclass(frozen=True, eq=False)
class Anchors:
    """Rows of a store to encode with both models, the most informative first: any first k are a choice of k anchors."""

    embeddings: Embeddings  # (n, d), in order, with the store's ids or row numbers
    rows: np.ndarray  # (n,), row numbers in the store
    covered: np.ndarray  # (n,), share of the variance in the span of the first k anchors
    covered_by_random: np.ndarray  # (n,), the same in random order
    method: str
    n_rows: int  # of the store
    n_candidates: int  # distinct rows, or a sample of them
    n_identical: int  # rows that repeat another candidate's vector
    n_zero: int  # rows of zeros
    has_ids: bool  # whether the ids come from the store

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def ids(self) -> np.ndarray:
        """Ids in order, or row numbers, shape (n,)."""
        return self.embeddings.ids

    def to_dict(self) -> dict[str, object]:
        """Return all fields except the vectors as plain data."""
        facts = {"method": self.method, "n": len(self), "ids": self.ids.tolist() if self.has_ids else None}
        facts |= {name: getattr(self, name).tolist() for name in ("rows", "covered", "covered_by_random")}
        return facts | {name: getattr(self, name) for name in ("n_rows", "n_candidates", "n_identical", "n_zero")}

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the share of variance covered, by number of anchors (``congruence.plotting.draw_covered``)."""
        from congruence.plotting import draw_covered

        shares = {self.method: self.covered.tolist(), "random": self.covered_by_random.tolist()}
        return draw_covered({"shares": shares}, ax)

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write the anchors in order, atomically: as ``.txt`` an id or row number a line, otherwise vectors and ids."""
        check_anchors_output(path)
        if Path(path).suffix.lower() != ".txt":
            kind = pa.string() if self.ids.dtype == object else pa.from_numpy_dtype(self.ids.dtype)
            vectors = self.embeddings.vectors
            with open_sink(
                path, n=len(self), dim=vectors.shape[1], dtype=vectors.dtype, has_ids=True, id_type=kind,
                space=self.embeddings.space, force=force,
            ) as sink:  # fmt: skip
                sink.write(pa.array(self.ids, kind), vectors)
            return
        lines = [str(name) for name in self.ids.tolist()]
        broken = next((name for name in lines if "\n" in name or "\r" in name), None)
        if broken is not None:
            raise IdError(f"The id {short(repr(broken))} has a line break.", "Pass a `path=…` that ends in .parquet.")
        with atomic_path(path, force=force) as temporary:
            temporary.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def check_anchors_output(path: str | Path) -> None:
    """Refuse a path that ``Anchors.save`` cannot write to: a format of vectors that cannot hold ids."""
    if Path(path).suffix.lower() != ".txt" and not find_sink(path, "anchors").keeps_ids:
        raise ParameterError(
            f"{path} cannot hold ids, which identify the items to encode.", "Pass a path that ends in .parquet or .txt."
        )


def choose_anchors(
    X: RowsLike | Source,
    n: int,
    method: str = "variance",
    *,
    labels: Labels | None = None,
    max_rows: int = 10_000,
    random_state: int = 0,
) -> Anchors:
    """Choose the items of a store that both models should encode, from the source vectors.

    A row of zeros, which usually comes from a failed encoding, is never chosen, and of equal rows only one is; fewer
    than ``n`` different rows raise TooFewAnchorsError.

    Parameters
    ----------
    X : Embeddings, array_like or Source, shape (m, d)
        The store in the source model. For a ``Source``, as returned by ``open_source``, only
        the sampled rows are kept in memory.
    method : {"variance", "facility", "volume", "kmeans++", "leverage", "random", "balanced"}, default="variance"
        Rows that most reduce the expected error over all rows of a linear map fitted on them ("variance"); that are
        nearest to all rows ("facility"); each farthest from the span of those before ("volume"); drawn by D² sampling
        ("kmeans++") or by leverage score ("leverage"); random; or the classes of ``labels`` in turn ("balanced").
    labels : sequence of length m, optional
        Class of each row, for ``"balanced"``.
    max_rows : int, default=10_000
        If the store is larger, anchors are chosen among a random sample of this many rows (taking classes in turn for
        ``"balanced"``), or of twice ``n`` if that is more.

    Examples
    --------
    >>> import numpy as np
    >>> from congruence.upgrade.anchors import choose_anchors
    >>> X = np.array([[0.0, 0.1], [9.0, 0.0], [9.0, 0.0], [0.0, 5.0], [-9.0, 0.1], [0.1, -5.0]])
    >>> found = choose_anchors(X, 2)
    >>> found.rows, found.covered.round(2)
    (array([4, 5]), array([0.76, 1.  ]))
    """
    check_choice(method, METHODS, "method")
    check_positive(n, "n", integer=True)
    check_positive(max_rows, "max_rows", integer=True)
    check_seed(random_state)
    if (labels is None) == (method == "balanced"):
        fix = "Pass `labels=…`." if labels is None else "Pass `method='balanced'`, or leave out `labels=…`."
        raise ParameterError(f"Method 'balanced' takes labels, and no other does; got {method!r}.", fix)
    if not isinstance(X, Source):
        X = as_embeddings(X, "X", allow_zero_rows=True)
    m = X.n if isinstance(X, Source) else len(X)
    if n > m:
        raise ParameterError(
            f"Got `n={n:,}` for {m:,} rows; expected no more than there are.", f"Pass `n={m}` or less."
        )
    rng = np.random.default_rng(random_state)
    drawn = rng.permutation(m) if labels is None else _in_turn(labels, m, rng)
    drawn = drawn[: max(max_rows, 2 * n)]
    pool = _read(X, drawn)
    nonzero = pool.vectors.any(axis=1)
    groups = duplicate_groups(pool.vectors)
    first = np.zeros(len(pool), bool)
    first[np.unique(groups, return_index=True)[1]] = True
    candidates = np.flatnonzero(nonzero & first)
    if len(candidates) < n:
        sample = f" of the {len(drawn):,} drawn from {m:,}" if len(drawn) < m else ""
        raise TooFewAnchorsError(
            f"Got {len(candidates):,} different rows that are not all zeros{sample}; expected {n:,}.",
            (f"Pass `n={len(candidates)}` or less.", *([f"Pass `max_rows={m}`."] if sample else [])),
        )
    A = pool.vectors[candidates].astype(np.float64)
    check_scale(A, "X")
    A -= A.mean(axis=0)
    order = METHODS[method](A, n, rng) if A.any() else np.arange(n)
    chosen = candidates[order]
    # The sample is in random order, unless it was drawn by class.
    random = np.arange(n) if labels is None else rng.permutation(len(A))[:n]
    return Anchors(
        pool.take(chosen),
        drawn[chosen],
        selection.covered_share(A, order),
        selection.covered_share(A, random),
        method,
        m,
        len(candidates),
        int((~first & nonzero).sum()),
        int((~nonzero).sum()),
        bool(X.has_ids),
    )


def _in_turn(labels: Labels, m: int, rng: np.random.Generator) -> np.ndarray:
    """Return all rows in an order that takes one row of each class, then the next of each, in random order."""
    labels = np.asarray(labels)
    if labels.ndim != 1:
        raise ShapeError(
            f"Got labels of shape {labels.shape}; expected one per row.", f"Pass `labels=…` with {m} entries."
        )
    check_same_rows(m, len(labels), "X", "labels")
    codes = np.unique(labels.astype(str), return_inverse=True)[1].reshape(-1)
    rows = rng.permutation(m)
    by_class = rows[np.argsort(codes[rows], kind="stable")]
    sizes = np.bincount(codes)
    turn = np.arange(m) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return by_class[np.lexsort((rng.permutation(len(sizes))[codes[by_class]], turn))]


def _read(X: Embeddings | Source, rows: np.ndarray) -> Embeddings:
    """Return rows of a store in the given order, with its ids or the row numbers."""
    if not isinstance(X, Source):
        return X.take(rows)
    ids, vectors = X.take(rows)
    names = rows if ids is None else as_ids(ids)
    check_rows(vectors, X.path, ids=RowNames(None if ids is None else names, rows), allow_zero_rows=True)
    return Embeddings(vectors, ids=names, space=X.space, allow_zero_rows=True)
