"""Refine a map with two unpaired pools: rounds of matching and refitting, evaluated on left-out pairs."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from congruence._utils.arrays import blocks, normalize_rows
from congruence._utils.typing import RowsLike
from congruence._utils.validation import (
    as_matrix,
    check_positive,
    check_same_rows,
    check_scale,
    check_seed,
    check_width,
)
from congruence.errors import AlignmentWarning, CongruenceWarning, InputError, ParameterError, TooFewAnchorsError
from congruence.linalg.csls import ScaledSimilarity, mutual_neighbors
from congruence.maps.card import refinement_sentence
from congruence.maps.orthogonal import Modalities, OrthogonalMap
from congruence.splits import duplicate_groups

#: Fewest pairs that can show an improvement: the signs of five gains are all positive by chance in 1 of 32 cases.
FEWEST = 5

#: Largest p-value at which refinement counts as an improvement.
LEVEL = 0.05

#: Number of leading directions of each pool used in the rounds; the final fit uses all directions.
_DIRECTIONS = 128

#: Temperature of the softmax over CSLS similarities.
_TEMPERATURE = 0.3

#: Number of random sign patterns in the sign test when there are too many pairs to enumerate all patterns.
_DRAWS = 4095


@dataclass(frozen=True)
class Matches:
    """Row numbers (k,) of the pairs found between two pools, in the arrays as passed, and the evidence for them."""

    source_rows: np.ndarray = field(repr=False)
    target_rows: np.ndarray = field(repr=False)

    def to_dict(self) -> dict[str, object]:
        """Return the evidence, and the number of matches, as plain data."""
        evidence = {name: value for name, value in vars(self).items() if not name.endswith("_rows")}
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in evidence.items()}
        return {**plain, "matches": len(self.source_rows)}


@dataclass(frozen=True)
class Refinement(Matches):
    """Matches between two unpaired pools, and whether maps fitted with them do better on unseen pairs.

    - ``improves``: Whether refined maps are better on left-out pairs (``p_value`` ≤ 0.05); only then use the matches.
    - ``kind``: ``"soft"`` (weighted means of the other pool) or ``"hard"`` (mutual nearest neighbors).
    - ``n_pairs``, ``pool_sizes``: Pairs given; rows of the pools, without duplicates and rows that are among the pairs.
    - ``source_rows``, ``target_rows``: Row numbers (k,) of the mutual nearest neighbors, in the pools as passed.
    - ``matched_share``: k divided by the rows of the smaller pool. No evidence: wrong maps match a third to two thirds.
    - ``recall_before``, ``recall_after``, ``median_rank_before``, ``median_rank_after``: Of left-out pairs, whose
      target is ranked among the ``gallery`` (the target pool and the other left-out targets), without and with
      refinement.
    - ``cosine_gain``, ``p_value``: Mean gain in the cosine of a left-out pair, both sides centered, and the one-sided
      p-value of its sign test.
    """

    improves: bool
    kind: str
    n_pairs: int
    pool_sizes: tuple[int, int]
    matched_share: float
    recall_before: float
    recall_after: float
    median_rank_before: float
    median_rank_after: float
    gallery: int
    cosine_gain: float
    p_value: float

    def to_dict(self) -> dict[str, object]:
        """Return the evidence, and the number of matches in use, as plain data."""
        return super().to_dict() | ({"matches": sum(self.pool_sizes)} if self.kind == "soft" else {})

    @property
    def sentence(self) -> str:
        """The result as one sentence, for display."""
        return refinement_sentence(self.to_dict())


def refine(
    X: RowsLike,
    Y: RowsLike,
    unpaired: tuple[RowsLike, RowsLike],
    *,
    base: OrthogonalMap | None = None,
    max_iter: int = 8,
    n_neighbors: int = 10,
    folds: int = 5,
    random_state: int = 0,
) -> Refinement:
    """Match two unpaired pools, starting from at least five known pairs, and test whether the matches help.

    A round maps the source pool by the current map, matches both centered pools by CSLS similarities (Conneau et al.
    2018), and fits the next map on pairs and matches: in the first ``max_iter`` rounds each row with the mean of the
    other pool weighted by a softmax at temperature 0.3, which needs no common items; in up to ``max_iter`` further
    rounds with its mutual nearest neighbor. The soft rounds must improve the cosines of left-out folds (sign test); the
    hard ones are used if they improve them further (research/refine.md). Wide rows are reduced to their 128 leading
    directions.
    Time: at most 2 (folds + 1) · max_iter rounds, each O(p q · 128).

    Parameters
    ----------
    unpaired : (array_like, array_like), shapes (p, d_source) and (q, d_target)
        Further rows of both models, of the same modality, in any order, with any share of common items. Duplicate rows,
        and rows that are in X or Y, are left out.
    base : OrthogonalMap, optional
        Map whose parameters the fits use; fitted or not.
    """
    return _refine(X, Y, unpaired, base, max_iter, n_neighbors, folds, random_state)[0]


def _refine(
    X: RowsLike,
    Y: RowsLike,
    unpaired: tuple[RowsLike, RowsLike],
    base: OrthogonalMap | None,
    max_iter: int,
    n_neighbors: int,
    folds: int,
    random_state: int,
) -> tuple[Refinement, tuple[np.ndarray, np.ndarray]]:
    """Return the evidence, and pairs and matches, (m, d_source) and (m, d_target)."""
    check_positive(max_iter, "max_iter", integer=True)
    check_positive(n_neighbors, "n_neighbors", integer=True)
    check_seed(random_state)
    if check_positive(folds, "folds", integer=True) < 2:
        raise ParameterError(f"Got `folds={folds}`; expected at least 2, to leave pairs out.", "Pass `folds=5`.")
    A, B = as_matrix(X, "X"), as_matrix(Y, "Y")
    check_same_rows(len(A), len(B), "X", "Y")
    # Identical pairs share a fold and count once, since a pair must not be retrieved by means of its own copy.
    labels = duplicate_groups(A, B)
    n, n_different = len(A), int(labels.max()) + 1
    if n_different < FEWEST:
        problem = f"Got {n_different} different pairs to refine; expected at least {FEWEST}."
        raise TooFewAnchorsError(problem, "Pass more, or leave out `unpaired=…`.")
    base = OrthogonalMap() if base is None else base
    U, V = read_pools(unpaired, A.shape[1], B.shape[1])
    rows = [new_rows(U, "unpaired_source", A), new_rows(V, "unpaired_target", B)]
    U, V = U[rows[0]], V[rows[1]]
    all_directions = _Rounds(base, U, V, 1, n_neighbors)
    bases = leading_directions(U, _DIRECTIONS), leading_directions(V, _DIRECTIONS)
    reduced = _Rounds(base, U @ bases[0], V @ bases[1], max_iter, n_neighbors)
    full, (A, B) = (A, B), (A @ bases[0], B @ bases[1])
    # With the pairs alone, after the soft rounds, after the hard ones: cosines of left-out pairs, and ranks.
    cosines, ranks = np.empty((2, 3, n))
    fold = np.random.default_rng(random_state).permutation(n_different)[labels] % min(folds, n_different)
    gallery = 0
    for k in range(fold.max() + 1):
        out = fold == k
        maps = reduced.run(A[~out], B[~out])
        for stage, mapping in enumerate(maps):
            cosines[stage, out], ranks[stage, out] = reduced.measure(mapping, A[out], B[out])
        gallery = max(gallery, len(V) + int(out.sum()))
    gains = [np.bincount(labels, after - cosines[0]) / np.bincount(labels) for after in cosines[1:]]
    stage = 1 if gains[0].mean() > gains[1].mean() else 2
    # The soft matches must help, so that the hard ones are no second chance.
    p_value = max(_sign_test(gain, random_state) for gain in gains[:stage])
    maps = reduced.run(A, B)
    i, j, _ = reduced.match(maps[2])
    i, j, _ = all_directions.match(all_directions.fit(*_joined(full, U[i], V[j])))
    matched = _joined(full, *(reduced.soft(maps[1], U, V) if stage == 1 else (U[i], V[j])))
    refinement = Refinement(
        improves=p_value <= LEVEL,
        kind=("soft", "hard")[stage - 1],
        n_pairs=n,
        pool_sizes=(len(U), len(V)),
        source_rows=rows[0][i],
        target_rows=rows[1][j],
        matched_share=len(i) / min(len(U), len(V)),
        recall_before=float((ranks[0] <= 1).mean()),
        recall_after=float((ranks[stage] <= 1).mean()),
        median_rank_before=float(np.median(ranks[0])),
        median_rank_after=float(np.median(ranks[stage])),
        gallery=gallery,
        cosine_gain=float(gains[stage - 1].mean()),
        p_value=p_value,
    )
    return refinement, matched


@dataclass(eq=False, repr=False)
class RefinedMap(OrthogonalMap):
    """An ``OrthogonalMap`` fitted on pairs and, if they help, on matches between two unpaired pools.

    ``congruence.refine`` finds the matches and evaluates them on left-out pairs. If they do not help, the map is fitted
    on the pairs alone and ``fit`` warns. ``n_pairs_`` includes the matches; ``refinement_`` has them and the evidence.
    ``save`` writes a plain ``OrthogonalMap``, with the evidence in ``scores_["refinement"]``.

    Examples
    --------
    >>> from congruence import RefinedMap
    >>> from congruence.synthetic import rigid_problem
    >>> problem = rigid_problem(260, 16, 20, noise=0.1, decay=0.4, random_state=0)
    >>> X, Y = problem.X[:8], problem.Y[:8]
    >>> mapping = RefinedMap().fit(X, Y, unpaired=(problem.X[8:200], problem.Y[200:30:-1]))
    >>> mapping.refinement_.improves
    True
    """

    max_iter: int = 8
    n_neighbors: int = 10
    folds: int = 5

    def fit(
        self,
        X: RowsLike,
        Y: RowsLike,
        sample_weight: ArrayLike | None = None,
        modality: Modalities = None,
        *,
        unpaired: tuple[RowsLike, RowsLike] | None = None,
    ) -> Self:
        """Fit the rotation on pairs and, if they help, on matches between the pools ``unpaired``, (p, d_source) and (q,
        d_target). With pools, all rows have one modality and equal weight.
        """
        self.refinement_: Refinement | None = None
        if unpaired is None or Y is None:
            return super().fit(X, Y, sample_weight, modality)
        if sample_weight is not None or not (modality is None or isinstance(modality, str)):
            advice = "Leave out `sample_weight=…`, and pass one `modality=…`."
            raise ParameterError("Unpaired rows need pairs of one modality and equal weight.", advice)
        own = (self.max_iter, self.n_neighbors, self.folds, self.random_state)
        refinement, matched = _refine(X, Y, unpaired, self, *own)
        A, B = matched if refinement.improves else (X, Y)
        super().fit(A, B, None, modality)
        self.refinement_, self.scores_["refinement"] = refinement, refinement.to_dict()
        if not refinement.improves:
            problem = f"{refinement.sentence} So the map is fitted on the pairs alone."
            warnings.warn(AlignmentWarning(problem, "Pass more pairs, or larger `unpaired=…`."), stacklevel=2)
        return self


class _Rounds:
    """Rounds of matching and refitting between two pools."""

    def __init__(self, base: OrthogonalMap, U: np.ndarray, V: np.ndarray, max_iter: int, n_neighbors: int) -> None:
        self.parameters = {name: getattr(base, name) for name in OrthogonalMap().get_params()}
        self.U, self.V, self.max_iter, self.n_neighbors = U, V, max_iter, n_neighbors
        self.means = U.mean(axis=0, dtype=np.float64), V.mean(axis=0, dtype=np.float64)
        self.target = normalize_rows(V - self.means[1].astype(V.dtype))

    def run(self, X: np.ndarray, Y: np.ndarray) -> list[OrthogonalMap]:
        """Return the maps of the pairs, of the last soft round and of the last hard one."""
        mapping = self.fit(X, Y)
        maps = [mapping]
        for _ in range(self.max_iter):
            mapping = self.fit(*_joined((X, Y), *self.soft(mapping, self.U, self.V)))
        maps.append(mapping)
        found = np.empty((2, 0), np.intp)
        for _ in range(self.max_iter):
            before, found = found, np.stack(self.match(mapping)[:2])
            if np.array_equal(found, before):
                break
            mapping = self.fit(*_joined((X, Y), self.U[found[0]], self.V[found[1]]))
        return [*maps, mapping]

    def soft(self, mapping: OrthogonalMap, U: np.ndarray, V: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows of both pools, each with the weighted mean of the other pool."""
        similarity = ScaledSimilarity(self._mapped(mapping, self.U), self.target, self.n_neighbors)
        return similarity.matched(U, V, _TEMPERATURE)

    def match(self, mapping: OrthogonalMap) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the mutual nearest neighbors of the mapped source pool and the target pool."""
        return mutual_neighbors(self._mapped(mapping, self.U), self.target, self.n_neighbors)

    def measure(self, mapping: OrthogonalMap, X: np.ndarray, Y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return each row's cosine with its own target, and that target's rank among the pool and all of Y; ties get
        their mean rank, 1 is best.
        """
        queries = self._mapped(mapping, X)
        gallery = np.concatenate([self.target, normalize_rows(Y - self.means[1].astype(Y.dtype))])
        similarity = queries @ gallery.T
        own = similarity[np.arange(len(X)), len(self.target) + np.arange(len(X))]
        above, equal = (similarity > own[:, None]).sum(axis=1), (similarity == own[:, None]).sum(axis=1)
        return own, 1 + above + (equal - 1) / 2

    def _mapped(self, mapping: OrthogonalMap, X: np.ndarray) -> np.ndarray:
        """Return the rotated rows, centered at the mean of the source pool, with unit norm."""
        rotated = (X - self.means[0].astype(X.dtype)) @ mapping.rotation_.astype(X.dtype)
        return np.asarray(normalize_rows(rotated))

    def fit(self, X: np.ndarray, Y: np.ndarray) -> OrthogonalMap:
        """Fit the map of these pairs without warnings."""
        # Warnings about the widths and the pairs are issued once, by the fit that is returned.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CongruenceWarning)
            return OrthogonalMap(**self.parameters).fit(X, Y)


def _joined(pairs: tuple[np.ndarray, np.ndarray], left: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return pairs with further pairs."""
    return np.concatenate([pairs[0], left]), np.concatenate([pairs[1], right])


def leading_directions(X: np.ndarray, most: int) -> np.ndarray:
    """Return an orthonormal basis of at most ``most`` leading principal directions of X, shape (d, min(d, most))."""
    d = X.shape[1]
    if d <= most:
        return np.eye(d, dtype=X.dtype)
    centered = X - X.mean(axis=0, dtype=np.float64).astype(X.dtype)
    gram = np.zeros((d, d))
    for part in blocks(len(X), 8 * d):
        block = centered[part].astype(np.float64)
        gram += block.T @ block
    return np.linalg.eigh(gram)[1][:, ::-1][:, :most].astype(X.dtype)


def _sign_test(gain: np.ndarray, random_state: int) -> float:
    """One-sided p-value of the mean of paired gains under random signs; all patterns are enumerated up to 12 pairs."""
    n = len(gain)
    if n <= np.log2(_DRAWS + 1):
        signs = 1 - 2 * (np.arange(2**n)[:, None] >> np.arange(n) & 1)
        return float(((signs @ gain) >= gain.sum() - 1e-12).mean())
    signs = np.random.default_rng(random_state).choice([-1, 1], size=(_DRAWS, n))
    return float((1 + ((signs @ gain) >= gain.sum() - 1e-12).sum()) / (_DRAWS + 1))


def read_pools(unpaired: object, d_source: int, d_target: int) -> tuple[np.ndarray, np.ndarray]:
    """Return both pools as matrices (p, d_source) and (q, d_target), checked against the models' widths."""
    if not isinstance(unpaired, (tuple, list)) or len(unpaired) != 2 or any(side is None for side in unpaired):
        raise ParameterError("Got unpaired rows that are not of two models.", "Pass `unpaired=(old, new)`.")
    pools = []
    for side, rows, width in zip(("source", "target"), unpaired, (d_source, d_target), strict=True):
        pool = as_matrix(getattr(rows, "vectors", rows), f"unpaired_{side}")
        check_scale(pool, f"unpaired_{side}")
        check_width(pool.shape[1], width, f"the {side} rows of the pairs")
        pools.append(pool)
    return pools[0], pools[1]


def new_rows(X: np.ndarray, name: str, known: np.ndarray | None = None) -> np.ndarray:
    """Return the numbers of the rows that equal neither a known row nor an earlier one."""
    offset = 0 if known is None else len(known)
    first = np.unique(duplicate_groups(X if known is None else np.concatenate([known, X])), return_index=True)[1]
    rows = np.sort(first[first >= offset]) - offset
    if len(rows) < 2:
        besides = "" if known is None else " besides those of the pairs"
        raise InputError(f"Got {len(rows)} different rows in {name}{besides}; expected at least 2.", "Pass more rows.")
    return rows
