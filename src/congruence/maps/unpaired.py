"""The orthogonal map from two collections of rows without any known pair, and the evidence for it."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from itertools import combinations
from typing import Self

import numpy as np

from congruence._utils.arrays import normalize_rows
from congruence._utils.typing import RowsLike
from congruence._utils.validation import as_matrix, check_positive, check_scale, check_seed
from congruence.errors import AlignmentWarning, ParameterError
from congruence.linalg.csls import mutual_neighbors
from congruence.linalg.procrustes import cross_svd
from congruence.maps._base import as_target
from congruence.maps.orthogonal import OrthogonalMap
from congruence.maps.refinement import Matches, leading_directions, new_rows

#: Smallest agreement at which an alignment counts as successful; research/refine.md gives its error rates.
AGREEMENT = 0.5

#: Leading directions of each side in the search: so few that a rotation cannot fit arbitrary matches.
_DIRECTIONS = 128

#: Entropy weights in turn, in standard deviations of the affinities; linearizations of each; iterations of these.
_EPSILONS, _STEPS, _ITERATIONS = (0.5, 0.35, 0.25, 0.2), 3, 30

#: Share of the source rows left out of each restart, and the fewest of them that tell whether restarts agree.
_LEFT_OUT, _FEWEST_LEFT_OUT = 0.1, 20

#: Rounds in which the matches used grow from the most confident eighth to all.
_ROUNDS = 8


@dataclass(frozen=True)
class Alignment(Matches):
    """Whether independent restarts found the same map.

    - ``found``: Whether ``agreement`` ≥ 0.5, on at least 20 rows.
    - ``agreement``, ``chance``: Share of the ``left_out`` rows of the two restarts that agree best which both map to
      the same target row; and that of two random maps.
    - ``matched_share``: Mutual nearest neighbors divided by the rows of the smaller side. It is no
      evidence (research/refine.md).
    - ``n_restarts``, ``sizes``: Restarts run; numbers of different rows on both sides.
    """

    found: bool
    agreement: float
    chance: float
    left_out: int
    matched_share: float
    n_restarts: int
    sizes: tuple[int, int]

    @property
    def sentence(self) -> str:
        """The result as one sentence, for display."""
        evidence = (
            f"of {self.left_out} rows left out, two of {self.n_restarts} restarts map {self.agreement:.0%} to the "
            f"same target (chance {self.chance:.1%}, needed {AGREEMENT:.0%})"
        )
        return f"The spaces were aligned: {evidence}." if self.found else f"No alignment was found: {evidence}."


@dataclass(eq=False, repr=False)
class UnpairedMap(OrthogonalMap):
    """A rotation between two spaces fitted without any known pair, with a measure of whether the search succeeded.

    Each restart leaves out a tenth of the source rows, couples the sorted similarities of each row to its own side,
    sharpens the plan by entropic Gromov–Wasserstein (Alvarez-Melis and Jaakkola 2018) and refines its matches as
    ``congruence.refine`` does. Successful restarts agree on rows they have not seen; failed ones do not, although each
    matches a third or more of its rows. The map is fitted on the matches of the restart that agrees best with another.
    The method needs two sides that share most of their items, and models as similar as two CLIP text encoders
    (research/refine.md). ``alignment_`` has the matches and the evidence.

    Parameters
    ----------
    n_restarts : int, default=4
        Largest number of restarts, at least 2; the search ends as soon as two agree.
    n_neighbors : int, default=10
        Number of neighbors for CSLS.
    max_rows : int, default=2000
        Largest number of rows of a side that are coupled; more are replaced by so many centroids (k-means).

    Examples
    --------
    >>> from congruence import UnpairedMap
    >>> from congruence.synthetic import unimodal_problem
    >>> p = unimodal_problem(300, 24, latent=20, noise=0, nuisance=0.05, classes=60, spread=0.3, random_state=0)
    >>> UnpairedMap().fit(p.images, p.texts[::-1]).alignment_.found
    True
    """

    n_restarts: int = 4
    n_neighbors: int = 10
    max_rows: int = 2000

    def fit(  # type: ignore[override]  # rows are not paired, so they have neither weights nor modalities of their own
        self, X: RowsLike, Y: RowsLike, modality: str | None = None
    ) -> Self:
        """Match rows (n, d_source) and (m, d_target), copies once, and fit the rotation on the matches."""
        check_positive(self.n_neighbors, "n_neighbors", integer=True)
        check_positive(self.max_rows, "max_rows", integer=True)
        check_seed(self.random_state)
        if check_positive(self.n_restarts, "n_restarts", integer=True) < 2:
            raise ParameterError(argument="n_restarts", got=self.n_restarts, expected="at least 2, to compare")
        Y = self._require_target(Y)
        A = as_matrix(getattr(X, "vectors", X), "X", min_rows=4, numeric_objects=True)
        B = as_target(getattr(Y, "vectors", Y), min_rows=4)
        check_scale(A, "X")
        check_scale(B, "Y")
        self._check_columns(X, A, reset=True)
        rows = [new_rows(side, name) for side, name in ((A, "X"), (B, "Y"))]
        U, V = (_center_and_scale(side[kept]) for side, kept in ((A, rows[0]), (B, rows[1])))
        U, V = (normalize_rows(side @ leading_directions(side, _DIRECTIONS)) for side in (U, V))
        search = _Search(U, V, self.n_neighbors, self.max_rows)
        restarts: list[tuple[np.ndarray, np.ndarray]] = []
        agreement = 0.0
        while len(restarts) < 2 or (len(restarts) < self.n_restarts and agreement < AGREEMENT):
            rng = np.random.default_rng([self.random_state, len(restarts)])
            restarts.append(search.restart(rng, perturb=bool(restarts)))
            if len(restarts) > 1:
                agreement, best, left_out = _compare(search, restarts)
        i, j = search.final_matches(restarts[best][0])
        found = bool(agreement >= AGREEMENT and left_out >= _FEWEST_LEFT_OUT)
        super().fit(A[rows[0][i]], B[rows[1][j]], None, modality)
        share = len(i) / min(len(U), len(V))
        evidence = found, agreement, 1 / len(V), left_out, share, len(restarts), (len(U), len(V))
        self.alignment_ = Alignment(rows[0][i], rows[1][j], *evidence)
        self.scores_["alignment"] = self.alignment_.to_dict()
        if not found:
            problem = f"The spaces could not be aligned without pairs. {self.alignment_.sentence}"
            advice = ("Do not use this map.", "Pass five or more pairs to `congruence.refine`.")
            warnings.warn(AlignmentWarning(problem, advice), stacklevel=2)
        return self


class _Search:
    """Search for the rotation between two sets of centered unit rows by independent restarts."""

    def __init__(self, U: np.ndarray, V: np.ndarray, n_neighbors: int, max_rows: int) -> None:
        self.U, self.V, self.n_neighbors, self.max_rows = U, V, n_neighbors, max_rows

    def restart(self, rng: np.random.Generator, *, perturb: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return the rotation found without a tenth of the source rows, and the numbers of these rows."""
        from congruence.transport.gromov import gromov_wasserstein  # imports SciPy, which other maps do not need

        n = len(self.U)
        left_out = np.sort(rng.permutation(n)[: max(1, round(_LEFT_OUT * n))])
        U = np.delete(self.U, left_out, axis=0)
        sides = _centroids(U, self.max_rows, rng), _centroids(self.V, self.max_rows, rng)
        plan = _initial_plan(*sides, rng if perturb else None)
        for epsilon in _EPSILONS:
            plan = gromov_wasserstein(
                *sides, epsilon, start=plan, relative=True, max_iter=_STEPS, sinkhorn_iter=_ITERATIONS
            ).plan
        # A row's match is confident if most of the row's mass is in one entry.
        i, j = np.arange(len(plan)), np.argmax(plan, axis=1)
        score = plan[i, j] / plan.sum(axis=1)
        first = np.argsort(-score, kind="stable")[: max(4, len(i) // 4)]
        rotation = _rotation(sides[0][i[first]], sides[1][j[first]])
        for k in range(1, _ROUNDS + 1):
            i, j, score = self.match(rotation, U)
            kept = np.argsort(-score, kind="stable")[: max(4, round(k / _ROUNDS * len(i)))]
            rotation = _rotation(U[i[kept]], self.V[j[kept]])
        return rotation, left_out

    def final_matches(self, rotation: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the matches of all rows, after iterating until they no longer change."""
        i, j, _ = self.match(rotation)
        for _ in range(_ROUNDS):
            before = i, j
            i, j, _ = self.match(_rotation(self.U[i], self.V[j]))
            if all(map(np.array_equal, before, (i, j))):
                break
        # Without matches, e.g. with three different rows, return arbitrary pairs: the agreement shows that the search
        # failed.
        if len(i) < 2:
            i = j = np.arange(min(len(self.U), len(self.V)))
        return i, j

    def match(self, rotation: np.ndarray, U: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the mutual nearest neighbors of the mapped rows and the target rows."""
        return mutual_neighbors(normalize_rows((self.U if U is None else U) @ rotation), self.V, self.n_neighbors)

    def nearest(self, rotation: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return the target row nearest to each of these mapped rows."""
        return np.asarray(np.argmax((self.U[rows] @ rotation) @ self.V.T, axis=1))


def _compare(search: _Search, restarts: list[tuple[np.ndarray, np.ndarray]]) -> tuple[float, int, int]:
    """Return the best agreement of two restarts, the index of the first of the two, and the number of rows compared."""
    agreements = []
    for a, b in combinations(range(len(restarts)), 2):
        same = [
            search.nearest(restarts[a][0], left_out) == search.nearest(restarts[b][0], left_out)
            for left_out in (restarts[a][1], restarts[b][1])
        ]
        agreements.append((float(np.concatenate(same).mean()), -a, sum(map(len, same))))
    agreement, minus_first, left_out = max(agreements)
    return agreement, -minus_first, left_out


def _initial_plan(U: np.ndarray, V: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
    """Couple rows by the similarity of their similarity distributions, each minus the mean distribution of its side."""
    from congruence.transport.entropic import sinkhorn
    from congruence.transport.gromov import local_distributions

    affinity = _center_and_scale(local_distributions(U)) @ _center_and_scale(local_distributions(V)).T
    scale = float(affinity.std()) or 1.0
    affinity = (affinity - affinity.mean()) / scale
    if rng is not None:
        affinity = affinity + rng.standard_normal(affinity.shape, dtype=np.float32).astype(affinity.dtype)
    return np.asarray(sinkhorn(affinity, 1.0, _ITERATIONS).plan())


def _centroids(X: np.ndarray, most: int, rng: np.random.Generator) -> np.ndarray:
    """Return the rows, or ``most`` cluster centroids if there are more rows."""
    if len(X) <= most:
        return X
    from scipy.cluster.vq import kmeans2

    # Random samples of both sides would share few items: a tenth, if 2,000 of 20,000 rows were sampled on each side.
    centroids = kmeans2(X, most, iter=10, minit="points", missing="warn", rng=rng)[0]
    return _center_and_scale(centroids.astype(X.dtype))


def _rotation(U: np.ndarray, V: np.ndarray) -> np.ndarray:
    """Return the partial isometry of the directions that the pairs can determine."""
    svd = cross_svd(U.astype(np.float64).T @ V.astype(np.float64), max_rank=max(1, len(U) - 1), complete=False)
    return np.asarray((svd.U[:, : svd.rank] @ svd.Vt[: svd.rank]).astype(U.dtype))


def _center_and_scale(X: np.ndarray) -> np.ndarray:
    """Return rows minus their mean, scaled to unit norm."""
    return np.asarray(normalize_rows(X - X.mean(axis=0, dtype=np.float64).astype(X.dtype)))
