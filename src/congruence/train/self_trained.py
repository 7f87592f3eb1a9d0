"""Joint-space maps by closed-form self-training: canonical correlations of pairs and of soft matches between pools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias

import numpy as np
import scipy.linalg

from congruence._utils.arrays import blocks, normalize_rows
from congruence._utils.typing import Layer
from congruence._utils.validation import check_choice, check_seed
from congruence.embeddings import Space
from congruence.errors import ParameterError
from congruence.linalg.csls import ScaledSimilarity
from congruence.maps.heads import SIDES
from congruence.maps.refinement import leading_directions
from congruence.train._base import check_numbers
from congruence.train.closed import ClosedForm
from congruence.train.retrieval import left_out_ranks
from congruence.train.rows import DISTRACTORS, Rows, TrainingData, fold_numbers, sample, spread

#: Leading principal directions of each side that are used: more change nothing measurable and cost their cube.
DIRECTIONS = 256

#: λ to choose from, as shares of the trace of each side's Gram matrix.
RIDGES = (0.0025, 0.0075, 0.025, 0.075, 0.25)

#: Matches and λ of the rounds to choose from.
ROUNDS = (("soft", 0.0075), ("soft", 0.025), ("soft", 0.075), ("hard", 0.0075))

#: Largest number of rows of a pool kept in the map for CSLS.
BANK_ROWS = 2000

#: Fewest different pairs that can be divided into folds, and fewest new rows of a pool that are used.
FEWEST_PAIRS, FEWEST_ROWS = 5, 20


#: Directions of both sides, (d, k) and (e, k).
Weights: TypeAlias = tuple[np.ndarray, np.ndarray]


class Choice(NamedTuple):
    """What a map is made of: its matches, λ as a share of the trace, the rounds, and the correction for hubs."""

    matches: str
    ridge: float
    rounds: int
    hubness: str | None


@dataclass(eq=False, repr=False)
class SelfTrainedMap(ClosedForm):
    """Join two models by few pairs and two pools of unpaired rows, in closed form.

    A teacher is fitted on the pairs (canonical correlation analysis with a ridge, directions weighted by √ρ). In each
    round, each unpaired row gets a counterpart, and the next map is fitted on the pairs and on these: the mean of the
    other pool weighted by a softmax of CSLS similarities (soft), or its mutual nearest neighbor (hard, for pools that
    share items). Cross-validation over the pairs chooses λ, the matches, the number of rounds, and whether searches are
    corrected for hubs; then all pairs are used. Where nothing is better than the teacher by more than a standard error,
    the teacher is the result, and ``fit`` warns.

    Parameters
    ----------
    n_components : int, optional
        Largest width of the joint space; by default as many directions as pairs and matches determine, at most 256.
    matches : {"auto", "none", "soft", "hard"}, default="auto"
        Kinds of matches to choose from besides the teacher; "none" is the teacher.
    temperature : float, default=0.1
        Of the softmax over CSLS similarities.
    hubness : {"auto", "csls", "none"}, default="auto"
        Whether ``score`` and ``congruence.evaluation.search`` correct for hubs; the mapped rows do not depend on it.
    max_rows : int, default=5000
        Rows of each pool that choose and take part in all rounds, spread over it. With soft matches, the last
        round matches all rows with the sample of the other side, in one pass.

    Attributes
    ----------
    choice_ : Choice
    banks_ : tuple of ndarray, each of shape (at most 2000, d_out)
        Mapped unpaired rows of both models, from which searches compute the densities that CSLS subtracts.
    scores_ : dict
        ``"self_training"``: the choice, and how the teacher and the chosen map find left-out pairs among the pool.

    Notes
    -----
    Rows are scaled to unit norm, centered by the mean of pairs and pool, and reduced to 256 principal directions. The
    pairs weigh at least half as much as all matches together. Rows of a pool that equal a row of the pairs, or each
    other, count once, but for the last pass over larger pools. Time O(m² · 256) a round for m rows of each pool and
    O(n · m · 256) for all n; memory O(m · 256) and a block of similarities.

    Source: Conneau et al. (2018), "Word translation without parallel data" (CSLS). Vinod (1976), "Canonical ridge and
    econometrics of joint production".

    Examples
    --------
    >>> from congruence.synthetic import unimodal_problem
    >>> from congruence.train import SelfTrainedMap
    >>> world = unimodal_problem(1200, 32, 24, latent=8, noise=0.5, random_state=0)
    >>> U, V = world.images[30:600], world.texts[600:]
    >>> mapping = SelfTrainedMap().fit(world.images[:30], world.texts[:30], unpaired=(U, V))
    >>> mapping.choice_.matches
    'soft'
    """

    kind: ClassVar[str] = "heads"
    method: ClassVar[str] = "self_trained"
    counts: ClassVar = ("n_components", "max_rounds", "max_rows", "folds")
    positive: ClassVar = ("temperature",)

    n_components: int | None = None
    matches: str = "auto"
    max_rounds: int = 5
    temperature: float = 0.1
    hubness: str = "auto"
    max_rows: int = 5000
    folds: int = 5
    random_state: int = 0

    def fit_data(self, data: TrainingData, choice: Choice | None = None) -> str:
        """Choose, unless a choice is given, and fit; return why the unpaired rows were not used, or an empty string."""
        groups = data.labels()
        pools = [
            _new_rows(pool, paired, self.max_rows)
            for pool, paired in ((data.unpaired_source, data.source), (data.unpaired_target, data.target))
        ]
        sides = [_Side(paired, pool) for paired, pool in zip((data.source, data.target), pools, strict=True)]
        (A, U), (B, V) = ((side.pairs, side.pool) for side in sides)
        why = ""
        evidence: dict[str, Any] = {}
        if choice is None and groups.max() + 1 < FEWEST_PAIRS:
            why = f"{groups.max() + 1} different pairs cannot be divided into folds"
            choice = Choice("none", RIDGES[2], 0, None)
        elif choice is None:
            if self.matches != "none" and min(len(U), len(V)) < FEWEST_ROWS:
                why = f"there are {len(U)} and {len(V)} new unpaired rows, where {FEWEST_ROWS} of each are needed"
            choice, evidence = self._choose(A, B, U, V, groups)
            if not why and choice.matches == "none" and self.matches != "none":
                why = "maps with matches are not better on pairs left out"
        found = _rounds(A, B, U, V, choice, choice.rounds, self.temperature)
        weights = found[-1]
        if choice.matches == "soft" and max(map(len, all_rows := _readable(data))) > self.max_rows:
            weights = _on_all_rows(sides, all_rows, found[-2], choice, self.temperature)
        weights = weights[0][:, : self.n_components], weights[1][:, : self.n_components]
        layers = {name: side.layers(W) for name, side, W in zip(SIDES, sides, weights, strict=True)}
        facts: dict[str, Any] = {**data.sizes(), "used_rows": [len(U), len(V)], "hubness": choice.hubness}
        self.set_layers(layers, self.method, {**facts, "training": self.get_params()})
        self.source_space_, self.target_space_ = Space(dim=self.n_features_in_), Space(dim=self.d_target)
        self.choice_ = choice
        self.banks_ = (
            normalize_rows(np.concatenate([U[spread(len(U), BANK_ROWS)], A]) @ weights[0]),
            normalize_rows(np.concatenate([V[spread(len(V), BANK_ROWS)], B]) @ weights[1]),
        )
        told = {**choice._asdict(), **evidence, **({"note": why} if why else {})}
        self.scores_ = {"self_training": {**told, "sentence": describe(told)}}
        return why

    def _check_parameters(self) -> None:
        check_choice(self.matches, ("auto", "none", "soft", "hard"), "matches")
        check_choice(self.hubness, ("auto", "csls", "none"), "hubness")
        check_numbers(self)
        if self.folds < 2:
            raise ParameterError(argument="folds", got=self.folds, expected="at least 2")
        check_seed(self.random_state)

    def _choose(
        self, A: np.ndarray, B: np.ndarray, U: np.ndarray, V: np.ndarray, groups: np.ndarray
    ) -> tuple[Choice, dict[str, Any]]:
        """Return the choice, and how left-out pairs are found by the teacher and by the map chosen."""
        U, V = (pool[spread(len(pool), DISTRACTORS)] for pool in (U, V))
        corrections = {"auto": (None, "csls"), "csls": ("csls",), "none": (None,)}[self.hubness]
        fold = fold_numbers(groups, self.folds, self.random_state)
        outs = [fold == k for k in range(fold.max() + 1)]

        def measure(matches: str, ridge: float, rounds: int) -> dict[Choice, np.ndarray]:
            """Return reciprocal ranks and hits (n, 2) of all pairs, each left out once, for each number of rounds."""
            scores: dict[Choice, np.ndarray] = {}
            for out in outs:
                first = Choice(matches, ridge, 0, None)
                found = _rounds(A[~out], B[~out], U, V, first, rounds, self.temperature)
                for number, weights in enumerate(found):
                    a, b, u, v = (normalize_rows(rows @ W) for rows, W in zip((A, B, U, V), weights * 2, strict=True))
                    banks = np.concatenate([u, a[~out]]), np.concatenate([v, b[~out]])
                    for hubness in corrections:
                        ranks = left_out_ranks((a[out], b[out]), (u, v), groups[out], banks if hubness else None)
                        key = Choice(matches if number else "none", ridge, number, hubness)
                        scores.setdefault(key, np.empty((len(A), 2)))[out] = ranks
            return scores

        trials: dict[Choice, np.ndarray] = {}
        for ridge in RIDGES:
            trials |= measure("none", ridge, 0)
        quality = {one: scores[:, 0].mean() for one, scores in trials.items()}
        teacher = max((one for one in trials if one.hubness == corrections[0]), key=quality.__getitem__)
        if self.matches != "none" and min(len(U), len(V)) >= FEWEST_ROWS:
            for matches, ridge in ROUNDS:
                if self.matches in ("auto", matches):
                    trials |= measure(matches, ridge, self.max_rounds)
        best = max(trials, key=lambda one: trials[one][:, 0].mean())
        gain, error = _mean_and_error(trials[best][:, 0] - trials[teacher][:, 0])
        if gain <= error:
            best = teacher
        before, after = trials[teacher].mean(axis=0), trials[best].mean(axis=0)
        gain, error = _mean_and_error(trials[best][:, 1] - trials[teacher][:, 1])
        return best, {
            "folds": len(outs),
            "gallery": int(len(V) + np.mean([out.sum() for out in outs])),
            "reciprocal_rank": [float(before[0]), float(after[0])],
            "recall_at_1": [float(before[1]), float(after[1])],
            "gain": gain,
            "gain_error": error,
        }


class _Side:
    """Rows of one model, scaled, centered and reduced to their principal directions, and the layers that do so."""

    def __init__(self, paired: np.ndarray, pool: np.ndarray) -> None:
        rows = normalize_rows(np.concatenate([paired, pool]))
        self.mean = rows.mean(axis=0, dtype=np.float64).astype(np.float32)
        self.basis = leading_directions(rows - self.mean, DIRECTIONS)
        self.pairs, self.pool = self.reduce(paired), self.reduce(pool)

    def reduce(self, rows: np.ndarray) -> np.ndarray:
        """Return rows in the principal directions."""
        return (normalize_rows(rows) - self.mean) @ self.basis

    def layers(self, weights: np.ndarray) -> list[Layer]:
        """Return the layers of a head that maps reduced rows by these weights."""
        center: Layer = {"kind": "center", "mean": self.mean}
        return [{"kind": "normalize"}, center, {"kind": "linear", "weight": self.basis @ weights}]


def _new_rows(pool: Rows | None, paired: np.ndarray, most: int) -> np.ndarray:
    """Return at most ``most`` rows of a pool, without copies and without rows of the pairs."""
    if pool is None:
        return np.empty((0, paired.shape[1]), np.float32)
    rows = np.concatenate([paired, sample(pool, most)])
    first = np.sort(np.unique(rows, axis=0, return_index=True)[1])
    return rows[first[first >= len(paired)]]


def _rounds(
    A: np.ndarray, B: np.ndarray, U: np.ndarray, V: np.ndarray, choice: Choice, rounds: int, temperature: float
) -> list[Weights]:
    """Return the weights of both sides, (d, k), of the teacher and after each round."""
    found = [_Sums(A, B).solve(choice.ridge)]
    for _ in range(rounds):
        mapped = [normalize_rows(pool @ W) for pool, W in zip((U, V), found[-1], strict=True)]
        similarity = ScaledSimilarity(mapped[0], mapped[1], 10)
        left, right = similarity.matched(U, V, temperature if choice.matches == "soft" else None)
        sums = _Sums(A, B, max(1.0, len(left) / (2 * len(A)))).add(left, right)
        found.append(sums.solve(choice.ridge))
    return found


def _readable(data: TrainingData) -> tuple[Any, Any]:
    """Return the unpaired rows of both sides, of which all can be read; no rows if there are none, or only samples."""
    pools = data.unpaired_source, data.unpaired_target
    return pools if all(hasattr(pool, "scan") for pool in pools) else ((), ())


def _on_all_rows(
    sides: list[_Side], pools: tuple[Any, Any], weights: Weights, choice: Choice, temperature: float
) -> Weights:
    """Return the weights after a last round that matches every unpaired row, softly, with the other side's sample. Rows
    are read once, and only covariances kept.
    """
    mapped = [normalize_rows(side.pool @ W) for side, W in zip(sides, weights, strict=True)]
    near = ScaledSimilarity(mapped[0], mapped[1], 10)
    count, pairs = sum(map(len, pools)), (sides[0].pairs, sides[1].pairs)
    sums = _Sums(*pairs, max(1.0, count / (2 * len(pairs[0]))))
    for own, other, density in ((0, 1, near.r_b), (1, 0, near.r_a)):
        density = density.astype(np.float32)
        for _, block in pools[own].scan():
            for part in blocks(len(block), 12 * len(density)):
                rows = sides[own].reduce(block[part])
                affinity = np.exp((2 * normalize_rows(rows @ weights[own]) @ mapped[other].T - density) / temperature)
                match = affinity @ sides[other].pool / affinity.sum(axis=1, keepdims=True)
                sums.add(*((rows, match) if own == 0 else (match, rows)))
    return sums.solve(choice.ridge)


class _Sums:
    """Gram matrices of both sides and their product, (d, d), (e, e) and (d, e), of weighted pairs of rows."""

    def __init__(self, A: np.ndarray, B: np.ndarray, weight: float = 1.0) -> None:
        self.left, self.right, self.cross = (weight * (X.T @ Y).astype(float) for X, Y in ((A, A), (B, B), (A, B)))

    def add(self, A: np.ndarray, B: np.ndarray) -> Self:
        self.left += A.T @ A
        self.right += B.T @ B
        self.cross += A.T @ B
        return self

    def solve(self, ridge: float) -> Weights:
        """Return directions (d, k) of both sides by canonical correlation analysis, weighted by √ρ.

        λ is ``ridge`` times the trace of each Gram matrix, whatever the number of rows and directions.
        """
        factors = []
        for gram in (self.left, self.right):
            shrunk = gram + (ridge * np.trace(gram) + np.finfo(float).tiny) * np.eye(len(gram))
            factors.append(scipy.linalg.cholesky(shrunk, lower=True, check_finite=False))
        whitened = scipy.linalg.solve_triangular(factors[0], self.cross, lower=True)
        whitened = scipy.linalg.solve_triangular(factors[1], whitened.T, lower=True).T
        left, correlations, right = scipy.linalg.svd(whitened, full_matrices=False)
        kept = max(1, int((correlations > 1e-6 * correlations[0]).sum()))
        roots = np.sqrt(correlations[:kept])
        sides = ((factors[0], left[:, :kept] * roots), (factors[1], right[:kept].T * roots))
        W, Z = (scipy.linalg.solve_triangular(L, side, lower=True, trans="T").astype(np.float32) for L, side in sides)
        return W, Z


def describe(facts: dict[str, Any]) -> str:
    """Return what was chosen, why, and the gain to expect, as sentences."""
    made = "the teacher, fitted on the pairs alone"
    if facts["matches"] != "none":
        kind = {"soft": "soft matches", "hard": "mutual nearest neighbors"}[facts["matches"]]
        made = f"{facts['rounds']} round{'s' * (facts['rounds'] != 1)} of {kind}"
    text = f"Chosen: {made}, λ = {facts['ridge']:g} of the trace{', CSLS' * (facts['hubness'] is not None)}."
    if "folds" in facts:
        before, after = facts["recall_at_1"]
        text += (
            f" Of pairs left out ({facts['folds']} folds, {facts['gallery']} rows searched), the teacher finds "
            f"{before:.0%} first and this map {after:.0%} (gain {facts['gain']:+.0%} ± {facts['gain_error']:.0%})."
        )
    return text + (f" The pairs alone are used: {facts['note']}." if "note" in facts else "")


def _mean_and_error(values: np.ndarray) -> tuple[float, float]:
    """Return the mean and its standard error."""
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values)))
