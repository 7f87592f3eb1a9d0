"""Choose a map by cross-validated retrieval of the pairs; other modalities decide which are candidates.

A rotation fitted on texts also maps images; a linear map may retrieve texts better but degrade images. It is therefore
a candidate only if rows of another modality, paired with the anchors by id, show how much, or if there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from congruence._utils.arrays import blocks
from congruence._utils.plain import PlainData
from congruence.embeddings import normalize_rows
from congruence.errors import InputError, ParameterError
from congruence.linalg.moments import CrossMoments
from congruence.linalg.procrustes import CrossSVD, half_svd
from congruence.linalg.shrinkage import choose_gains, mean_isometry
from congruence.maps import OrthogonalMap, make_map
from congruence.splits import duplicate_groups, equal_rows

#: Share of the anchors' offset μ_B − μ_A @ rotation that is used for a modality whose target mean is unknown;
#: docs/means.md gives the reason and the data on which it was chosen.
OFFSET = 0.5

#: Functions from rows to mapped rows: for the anchors' modality, and for another one, whose source mean and target mean
#: (or None) are passed.
Moves = tuple[Callable[[np.ndarray], np.ndarray], Callable[[np.ndarray, np.ndarray, np.ndarray | None], np.ndarray]]


@dataclass(frozen=True)
class Candidate:
    """A candidate map: its description, its method and its parameters."""

    name: str
    method: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


#: In order of preference.
ROTATIONS = (
    Candidate("rotation about the means", "orthogonal"),
    Candidate("rotation about the means, no direction damped", "orthogonal", {"shrinkage": "covered"}),
    Candidate(
        "rotation about the means, weak directions damped more",
        "orthogonal",
        {"shrinkage": "wiener", "shrinkage_strength": 1.0},
    ),
    Candidate("rotation about the origin", "orthogonal", {"center": False}),
)
LINEAR = (
    Candidate("ridge regression", "linear"),
    Candidate("ridge regression without intercept", "linear", {"center": False}),
    Candidate("least squares with intercept", "linear", {"ridge": 0.0}),
)


class CandidatePairs:
    """Paired rows (n, d_source) and (n, d_target), and their moments."""

    def __init__(self, X: np.ndarray, Y: np.ndarray) -> None:
        self.X, self.Y = X, Y
        self._moments: CrossMoments | None = None

    def without(self, test: np.ndarray) -> FittedPairs:
        """Return all pairs except those in the given rows."""
        kept = np.ones(len(self.X), dtype=bool)
        kept[test] = False
        k = min(self.X.shape[1], self.Y.shape[1])
        if np.count_nonzero(kept) <= k:  # a product of thin matrices is decomposed faster than their cross-covariance
            return FittedPairs(self, kept, None)
        if self._moments is None:
            self._moments = CrossMoments.of(self.X, self.Y)
        left = self._moments.without(CrossMoments.of(self.X[test], self.Y[test]))
        return FittedPairs(self, kept, left)


class FittedPairs:
    """The pairs that candidates are fitted on; what several candidates need is computed once."""

    def __init__(self, pairs: CandidatePairs, which: np.ndarray, moments: CrossMoments | None) -> None:
        self._pairs, self._which = pairs, which
        self.moments = moments
        self.means = (
            (moments.source_mean, moments.target_mean)
            if moments is not None
            else (self.X.mean(axis=0, dtype=np.float64), self.Y.mean(axis=0, dtype=np.float64))
        )
        self._solved: dict[bool, tuple[CrossSVD, float]] = {}

    @property
    def X(self) -> np.ndarray:
        """The source rows, shape (n, d_source): a copy, made only if rows themselves are needed."""
        return np.asarray(self._pairs.X[self._which])

    @property
    def Y(self) -> np.ndarray:
        """The target rows, shape (n, d_target)."""
        return np.asarray(self._pairs.Y[self._which])

    def solved(self, center: bool) -> tuple[CrossSVD, float]:
        """Return the SVD of the mean cross-covariance, singular values padded with zeros, and its alignment."""
        if center not in self._solved:
            self._solved[center] = self._thin(center) if self.moments is None else self._whole(center)
        return self._solved[center]

    def span(self) -> np.ndarray | None:
        """Return a basis of the source rows' span, (d_source, n), in which ridge regression is the same, or None."""
        if np.count_nonzero(self._which) >= self._pairs.X.shape[1]:
            return None
        return np.asarray(np.linalg.qr(self.X.T.astype(np.float64))[0])

    def _thin(self, center: bool) -> tuple[CrossSVD, float]:
        """Return ``solved`` from the rows, if there are fewer pairs than dimensions."""
        a, b = self.means if center else (0.0, 0.0)
        x, y = self.X.astype(np.float64) - a, self.Y.astype(np.float64) - b
        n, most = len(x), min(x.shape[1], y.shape[1])
        (qx, rx), (qy, ry) = np.linalg.qr(x.T), np.linalg.qr(y.T)
        U, s, Vt = np.linalg.svd(rx @ ry.T / n)
        size = float(np.linalg.norm(x) * np.linalg.norm(y)) / n
        rank = int(np.count_nonzero(s > 4 * max(x.shape[1], y.shape[1]) * np.finfo(np.float64).eps * max(size, 1e-300)))
        rank = min(rank, n - center)
        whole = np.zeros(most)
        whole[:rank] = s[:rank]
        return CrossSVD(qx @ U[:, :rank], whole, Vt[:rank] @ qy.T, rank), float(s.sum() / size) if size else 0.0

    def _whole(self, center: bool) -> tuple[CrossSVD, float]:
        """Return ``solved`` from the moments."""
        m = self.moments
        assert m is not None
        cross = (m.cross if center else m.uncentered_cross()) / m.weight
        svd = half_svd(cross)
        source, target = m.source_scatter, m.target_scatter
        if not center:
            source += m.weight * float(m.source_mean @ m.source_mean)
            target += m.weight * float(m.target_mean @ m.target_mean)
        size = float(np.sqrt(source * target)) / m.weight
        return svd, float(svd.s.sum() / size) if size else 0.0


def moves(candidate: Candidate, kept: FittedPairs) -> Moves:
    """Fit a candidate, and return functions that map rows of the anchors' modality and of another one."""
    if candidate.method != "orthogonal":
        fitted: Any = make_map(candidate.method, **candidate.parameters)
        basis = kept.span()
        fitted.solve(kept.X @ basis if basis is not None else kept.X, kept.Y)

        def own(rows: np.ndarray) -> np.ndarray:
            return np.asarray(fitted.transform(rows if basis is None else rows @ basis))

        return own, lambda rows, *means: own(rows)
    center = candidate.parameters.get("center", True)
    shrinkage = candidate.parameters.get("shrinkage", "wiener")
    svd, alignment = kept.solved(center)
    if svd.rank == 0:
        gains, extra = np.zeros(0), None
    else:
        gains = choose_gains(shrinkage, svd, alignment, candidate.parameters.get("shrinkage_strength"))[1][: svd.rank]
        extra = None
        if center and shrinkage == "wiener" and svd.rank < len(svd.s):
            matrix, count = mean_isometry(svd, [kept.means])
            extra = matrix if count else None
    a, b = kept.means if center else tuple(np.zeros_like(mean) for mean in kept.means)

    def rotate(rows: np.ndarray) -> np.ndarray:
        rotated = (rows @ svd.U * gains) @ svd.Vt
        return np.asarray(rotated if extra is None else rotated + rows @ extra)

    def other(rows: np.ndarray, source_mean: np.ndarray, target_mean: np.ndarray | None) -> np.ndarray:
        if target_mean is not None:
            return np.asarray(rotate(rows - source_mean) + target_mean)
        return np.asarray(rotate(rows) + OFFSET * (b - rotate(a[None])[0]))

    return lambda rows: rotate(rows - a) + b, other


#: Minimum number of different pairs for cross-validation; with fewer, the preferred map is taken without comparison.
FEWEST = 12

#: Number of folds, and numbers of repeats below a number of pairs: with few pairs, the result depends more on how they
#: are split.
FOLDS = 3
REPEATS = ((60, 8), (150, 4), (400, 2))

#: From this many pairs, of more than this many dimensions, only one fold is scored, so that the cost stays that of one
#: or two fits.
MANY, WIDE = 400, 128

MOST_SCORED = 1000  # largest number of pairs scored per fold

#: Difference of mean reciprocal ranks too small to prefer another map, even if it is statistically significant.
WORTH = 0.005


@dataclass(frozen=True)
class Other:
    """Rows of another modality, some of which belong to the anchors' items."""

    modality: str
    anchors: np.ndarray  # (m,): anchor of each row, −1 for none
    vectors: np.ndarray  # (m, d_source)
    target_mean: np.ndarray | None = None  # (d_target,), if known


@dataclass(frozen=True)
class Choice(PlainData):
    """The map that was chosen, and the evidence for the choice."""

    name: str  # the map in words
    method: str
    parameters: dict[str, Any]
    evidence: str  # which rows decided, or why nothing was compared
    n_pairs: int = 0  # held out and scored; 0 if nothing was compared
    folds: int = 0
    repeats: int = 0
    lead: float | None = None  # score minus that of the first candidate
    lead_error: float | None = None
    tried: list[dict[str, Any]] = field(default_factory=list)  # scores of each candidate, and its distance to the best
    not_tried: str = ""  # why other kinds of map were no candidates


def choose_map(
    X: np.ndarray,
    Y: np.ndarray,
    *,
    others: Sequence[Other] = (),
    fixed: Mapping[str, object] | None = None,
    single_modality: bool = False,
    rotations_only: bool = False,
    groups: np.ndarray | None = None,
    random_state: int = 0,
) -> Choice:
    """Choose a map by cross-validated retrieval, with the one-standard-error rule.

    ``others`` are rows of other modalities, which the map should not degrade; ``fixed`` holds parameters of
    ``OrthogonalMap``: if only ``center`` is set, the choice is among such rotations, otherwise there
    is none. With ``single_modality`` no other modality can be degraded; ``rotations_only`` excludes linear maps. Pairs
    of one of the ``groups`` (n,) share a fold; by default pairs with identical vectors do.

    Notes
    -----
    A candidate is fitted without one fold, whose pairs are then searched in both directions. A pair's score is its mean
    reciprocal rank among different rows, averaged over directions and repeats; with ``others`` it is the mean over
    modalities, where rows of another modality are searched against the target rows of their items. Of the candidates,
    in order of preference, the first is taken whose score is within one standard error of the best (of the paired
    difference, where the pairs of a group count once), or within 0.005 of it (Breiman et al. 1984, "Classification and
    regression trees", §3.4.3).
    """
    fixed = dict(fixed or {})
    foreign = sorted(set(fixed) - set(OrthogonalMap().get_params()))
    if foreign:
        raise ParameterError(
            f"Got {foreign[0]}=… for `method='auto'`; expected parameters of a rotation.",
            f"Pass `method='linear'`, for example, or leave out `{foreign[0]}=…`.",
        )
    if set(fixed) - {"center"}:
        return Choice("rotation as given", "orthogonal", fixed, "its parameters were given, so nothing was compared")
    for side, rows in (("source", X), ("target", Y)):
        if fixed.get("center", True) and len(rows) > 1 and (rows == rows[:1]).all():
            raise InputError(f"All {side} rows of {len(rows)} pairs are equal.", "Pass anchors that vary.")
    free = (single_modality or bool(others)) and not rotations_only
    candidates = _candidates(fixed, free, least_squares=len(X) * (1 - 1 / FOLDS) > X.shape[1] + 1)
    if fixed:
        not_tried = "other maps: center was given"
    elif rotations_only:
        not_tried = "linear maps: only rotations can be fitted on several modalities together"
    else:
        not_tried = "" if free else "linear maps: their effect on rows of another modality is unknown"
    groups = duplicate_groups(X, Y) if groups is None else np.unique(groups, return_inverse=True)[1]
    different = int(groups.max()) + 1
    if different < FEWEST or len(candidates) == 1:
        evidence = "nothing to compare"
        if different < FEWEST:
            evidence = f"{different} different {'pairs are' if different > 1 else 'pair is'} too few to compare maps on"
        first = candidates[0]
        return Choice(first.name, first.method, dict(first.parameters), evidence, not_tried=not_tried)
    others = () if single_modality else others
    repeats = next((times for most, times in REPEATS if different < most), 1)
    scores = _cross_validate(X, Y, candidates, others, groups, repeats, random_state)
    evidence = " and ".join(["pairs", *(f"{other.modality} rows of the same items" for other in others)])
    return scores.decide(candidates, [other.modality for other in others], groups, evidence, repeats, not_tried)


def _candidates(fixed: Mapping[str, object], free: bool, least_squares: bool) -> list[Candidate]:
    """Return the maps to compare: linear ones only if ``free``, and unregularized ones only if pairs suffice."""
    if fixed:
        return [kind for kind in ROTATIONS if kind.parameters.get("center", True) == fixed["center"]]
    linear = [kind for kind in LINEAR if kind.parameters.get("ridge") != 0 or least_squares]
    return [*ROTATIONS, *(linear if free else ())]


def _cross_validate(
    X: np.ndarray,
    Y: np.ndarray,
    candidates: Sequence[Candidate],
    others: Sequence[Other],
    groups: np.ndarray,
    repeats: int,
    random_state: int,
) -> _CandidateScores:
    """Score each candidate on the pairs, and on others' rows, of each fold after fitting it without the fold."""
    pairs = CandidatePairs(X, Y)
    scores = _CandidateScores(len(candidates), 1 + len(others), X, Y)
    parts = 1 if len(X) >= MANY and min(X.shape[1], Y.shape[1]) > WIDE else FOLDS
    for test in _held_out(groups, parts, repeats, random_state):
        without = pairs.without(test)
        fitted = [moves(candidate, without) for candidate in candidates]
        left_out = X[test].astype(np.float64)
        scores.add(0, test, [own(left_out) for own, _ in fitted], Y[test])
        for column, modality in enumerate(others, 1):
            unseen = ~np.isin(modality.anchors, test)
            rows = np.flatnonzero(~unseen)
            if len(rows) < 2 or not unseen.any():  # nothing to search, or no mean without the fold
                continue
            rows = rows[:: -(-len(rows) // MOST_SCORED) or 1]
            left_out = modality.vectors[rows].astype(np.float64)
            mean = modality.vectors[unseen].mean(axis=0, dtype=np.float64)
            mapped = [other(left_out, mean, modality.target_mean) for _, other in fitted]
            scores.add(column, modality.anchors[rows], mapped, Y[modality.anchors[rows]])
    return scores


def _held_out(groups: np.ndarray, parts: int, repeats: int, random_state: int) -> Iterator[np.ndarray]:
    """Yield the rows of each fold that is scored."""
    rng = np.random.default_rng(random_state)
    for _ in range(repeats):
        fold = rng.permutation(np.arange(groups.max() + 1) % FOLDS)[groups]
        for part in range(parts):
            test = np.flatnonzero(fold == part)
            yield test if len(test) <= MOST_SCORED else np.sort(rng.choice(test, MOST_SCORED, replace=False))


class _CandidateScores:
    """Accumulates sums of scores by candidate, modality and anchor; equal rows count as one."""

    def __init__(self, candidates: int, modalities: int, X: np.ndarray, Y: np.ndarray) -> None:
        self.source, self.target = equal_rows(X), equal_rows(Y)
        self.rank, self.first = np.zeros((2, modalities, len(X), candidates))
        self.times = np.zeros((modalities, len(X)))

    def add(self, column: int, anchors: np.ndarray, mapped: Sequence[np.ndarray], theirs: np.ndarray) -> None:
        """Search each candidate's mapped rows and the target rows among each other, in both directions."""
        k = len(anchors)
        if k < 2:
            return
        theirs = normalize_rows(theirs.astype(np.float64)).T
        sources, targets = np.arange(k) if column else self.source[anchors], self.target[anchors]
        # Another copy of the row that is sought is no wrong answer, and copies of a wrong answer are one.
        wrong = (sources[:, None] != sources) & (targets[:, None] != targets)
        weights = [1 / np.bincount(labels, minlength=1)[labels] for labels in (sources, targets)]
        # With small folds, processing candidates one by one would spend more time on calls than on arithmetic.
        for part in blocks(len(mapped), 8 * k * k, budget=4 * 2**20, minimum=1):
            near = normalize_rows(np.concatenate(mapped[part])).reshape(-1, k, len(theirs)) @ theirs
            own = np.diagonal(near, axis1=1, axis2=2)
            for least, count in (
                (own[:, :, None], lambda found: (found & wrong) @ weights[1]),
                (own[:, None, :], lambda found: weights[0] @ (found & wrong)),
            ):
                ahead = count(near > least + 1e-9)
                tied = count(near >= least - 1e-9) - ahead
                # An anchor may have several rows. Candidates are the last axis, so that rows can be indexed by anchor.
                np.add.at(self.rank[column, :, part], anchors, 1 / (1 + ahead + tied / 2).T)
                np.add.at(self.first[column, :, part], anchors, ((ahead == 0) / (1 + tied)).T)
        np.add.at(self.times[column], anchors, 2)

    def decide(
        self,
        candidates: Sequence[Candidate],
        modalities: Sequence[str],
        groups: np.ndarray,
        evidence: str,
        repeats: int,
        not_tried: str,
    ) -> Choice:
        """Apply the one-standard-error rule."""
        scored = (self.times > 0).all(axis=0)
        if modalities and np.count_nonzero(scored) < FEWEST:  # too few anchors have rows of the other modality
            scored = self.times[0] > 0
        with np.errstate(invalid="ignore"):
            each, first = (
                np.moveaxis(sums / self.times[..., None], -1, 0)[:, :, scored] for sums in (self.rank, self.first)
            )
        value = np.nanmean(each, axis=1)
        mean = value.mean(axis=1)
        best = int(np.argmax(mean))
        labels = np.unique(groups[scored], return_inverse=True)[1]

        def error(difference: np.ndarray) -> float:
            sums = np.bincount(labels, difference - difference.mean())
            return float(np.sqrt(np.square(sums).sum()) / len(difference))

        behind = [(float(mean[best] - mean[k]), error(value[best] - value[k])) for k in range(len(candidates))]
        chosen = next(k for k, (gap, se) in enumerate(behind) if gap <= max(se, WORTH))
        return Choice(
            candidates[chosen].name,
            candidates[chosen].method,
            dict(candidates[chosen].parameters),
            evidence,
            int(np.count_nonzero(scored)),
            FOLDS,
            repeats,
            float(mean[chosen] - mean[0]),
            error(value[chosen] - value[0]),
            [
                {
                    "name": candidate.name,
                    "score": float(each[k, 0].mean()),
                    "retrieval_at_1": float(first[k, 0].mean()),
                    "behind": behind[k][0],
                    "error": behind[k][1],
                    "other": {
                        name: float(np.nanmean(each[k, m]))
                        for m, name in enumerate(modalities, 1)
                        if np.isfinite(each[k, m]).any()
                    },
                }
                for k, candidate in enumerate(candidates)
            ],
            not_tried,
        )
