"""Test whether similarity scores distinguish matching pairs from non-matching ones, as in the JAM paper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from congruence._utils.arrays import normalize_rows
from congruence._utils.plain import PlainData
from congruence._utils.typing import RowsLike
from congruence._utils.validation import (
    as_matrix,
    check_choice,
    check_positive,
    check_same_rows,
    check_same_width,
    check_scale,
    check_seed,
)
from congruence.compare.spaces import FEWEST_ROWS, check_metrics
from congruence.errors import ParameterError, ShapeError
from congruence.metrics import METRICS, Metric, between_spaces
from congruence.metrics.cka import BIASED
from congruence.metrics.correlations import compare_bases
from congruence.metrics.neighbors import prepare_cknna

if TYPE_CHECKING:
    from matplotlib.axes import Axes


#: The paper's four metrics.
DEFAULT = ("linear_cka", "cknna", "cca", "svcca")

#: Largest number of texts of which all pairs are compared.
_MOST_TEXTS = 5000

#: The paper's metrics: what their formulas are called in it and in this library, and the steps of its own. It reports
#: the *first* canonical correlation (appendix B.2.3), *biased* CKA (equations 3 and 4) and a CKNNA by equations 6 to 9.
JAM = {
    "linear_cka": ("biased", "debiased", BIASED),
    "cknna": ("eq. 6–9", "Huh et al.", replace(METRICS["cknna"], prepare=partial(prepare_cknna, definition="jam"))),
    "cca": ("first", "mean", replace(METRICS["cca"], compare=partial(compare_bases, components="first"))),
    "svcca": ("mean", "mean", None),
}


@dataclass(frozen=True)
class Separation(PlainData):
    """One metric's scores of matching pairs compared with those of one kind of non-match.

    - ``definition``, ``formula``: Source of the definition, "jam", "congruence" or "both", and what distinguishes the
      two, as in ``JAM``.
    - ``against``: "noise", "shuffled", "unrelated", "hard".
    - ``match``, ``other``: Scores on all rows; except for ``"hard"`` the second is a mean over ``permutations`` draws.
    - ``match_scores``, ``other_scores``: Scores on random subsets of rows, the i-th entries on the same images.
    - ``effect_size``: Difference of their means divided by their pooled standard deviation (Cohen's d), positive if
      matches score closer. Subsets overlap, so this is not a test.
    - ``auc``: Share of pairs of a match's and a non-match's score in which the match is closer; ties count half.
    - ``p_value``: One-sided p-value of a randomization test on all rows; see ``match_test``. Never below 1 /
      (permutations + 1).
    """

    metric: str
    definition: str
    formula: str
    against: str
    match: float
    other: float
    match_scores: tuple[float, ...]
    other_scores: tuple[float, ...]
    effect_size: float
    auc: float
    p_value: float
    larger_is_closer: bool
    n: int
    rows: int
    permutations: int


class Separations(list[Separation]):
    """Result of ``match_test``: a list with one entry per metric and kind of non-match, with a ``plot`` method."""

    def plot(self, ax: Axes | None = None, *, annotate: bool = True) -> Axes:
        """Draw means and standard deviations of matches and non-matches over subsets, on ``ax`` or new axes."""
        from congruence.plotting import draw_separations

        return draw_separations([separation.to_dict() for separation in self], ax, annotate=annotate)


def match_test(
    images: RowsLike,
    texts: RowsLike,
    hard: RowsLike | None = None,
    *,
    unrelated: RowsLike | None = None,
    metrics: Sequence[str] = DEFAULT,
    definition: str = "both",
    components: int | None = 10,
    normalize: bool = False,
    standardize: bool = False,
    draws: int = 100,
    rows: int | None = None,
    permutations: int = 200,
    random_state: int = 0,
    callback: Callable[[int], None] | None = None,
) -> Separations:
    """Score matching pairs, easy non-matches and hard non-matches, and test whether each metric distinguishes them.

    Source: Yoon, Yue and Kim, "Escaping Plato's Cave: JAM for Aligning Independently Trained Vision and Language
    Models", section 2 and appendix B.3. Edgington and Onghena (2007), "Randomization tests" (paired exchanges).

    Parameters
    ----------
    images, texts : array_like, shapes (n, d) and (n, e)
        Paired by row.
    hard : array_like of shape (n, e), or "nearest", optional
        A wrong caption for each image. ``"nearest"`` permutes ``texts`` such that each belongs to another image and the
        old and new texts are as similar as possible (largest sum of cosines).
    unrelated : array_like, shape (m, e), optional
        Texts about something else, m ≥ n (the paper uses sentences of a novel). By default the given texts, re-paired
        at random.
    definition : {"both", "jam", "congruence"}, default="both"
        The paper's (``JAM``), or those of ``congruence.metrics.METRICS``.
    components : int or None, default=10
        Number of leading principal components each side is first reduced to, as in the paper's appendix B.3; for
        ``cca`` it is 50 there and here. ``None`` uses the embeddings unchanged, and each metric's own defaults.
    normalize, standardize : bool, default=False
        Scale the (reduced) rows to unit norm before CKNNA, and divide each column by its standard deviation before the
        principal components of SVCCA, as the code of Huh et al. does.
    draws, rows : int, default=100 and half of the rows
        Number and size of random subsets of rows, the same for every metric and kind of non-match.
    permutations : int, default=200
        Number of randomizations for each p-value; ``callback`` is called with 1 after every draw and randomization.

    Notes
    -----
    Easy non-matches are Gaussian noise with the moments of each image dimension in place of the images (``"noise"``,
    drawn again each time), and other texts (``"unrelated"`` or ``"shuffled"``). Their p is the share of
    ``permutations`` non-matches of all rows, including the actual pairing, that score at least as close as it. The p of
    hard non-matches is the share of random exchanges of each row's two captions with as large a difference. Subsets
    overlap, so no test compares their scores (research/similarity.md). P-values are not corrected for several metrics.
    """
    check_seed(random_state)
    scored = [
        measure
        for name in check_metrics(metrics)
        for measure in measures(name, definition, components=components is not None, normalize=normalize)
    ]
    check_positive(draws, "draws", integer=True)
    check_positive(permutations, "permutations", integer=True)
    if components is not None:
        check_positive(components, "components", integer=True)
    V, T = (
        as_matrix(A, name, min_rows=FEWEST_ROWS, allow_zero_rows=True)
        for A, name in ((images, "images"), (texts, "texts"))
    )
    check_scale(V, "images")
    check_scale(T, "texts")
    n = len(V)
    check_same_rows(n, len(T), "images", "texts")
    rows = max(n // 2, FEWEST_ROWS) if rows is None else check_positive(rows, "rows", integer=True)
    if not FEWEST_ROWS <= rows <= n:
        raise ParameterError(
            f"Got `rows={rows}` for {n} pairs; expected {FEWEST_ROWS} to {n}.", f"Pass `rows={n}` to use all pairs."
        )
    H = None if hard is None else _hard(hard, T)
    U = None if unrelated is None else _unrelated(unrelated, T)
    conditions = ["noise", "shuffled" if U is None else "unrelated", *(["hard"] if H is not None else [])]
    rng = np.random.default_rng(random_state)

    def side(A: np.ndarray, name: str) -> _PreparedSide:
        return _prepare(A, name, scored, components, standardize)

    def compare(first: _PreparedSide, second: _PreparedSide) -> np.ndarray:
        return np.array([measure.metric.compare(first[_key(measure)], second[_key(measure)]) for measure in scored])

    def easy(image_side: _PreparedSide, text_side: _PreparedSide, raw: np.ndarray) -> list[np.ndarray]:
        """Score noise like the images ``raw``, and a draw of other texts."""
        noise = raw.mean(axis=0, dtype=np.float64) + raw.std(axis=0, dtype=np.float64) * rng.standard_normal(raw.shape)
        if U is None:
            order = rng.permutation(len(raw))
            reorder = {_key(measure): measure.metric.reorder for measure in scored}
            others = {key: reorder[key](prepared, order) for key, prepared in text_side.items()}
        else:
            others = side(U[rng.choice(len(U), len(raw), replace=False)], "unrelated")
        return [compare(side(noise, "noise"), text_side), compare(image_side, others)]

    match_scores, other_scores = np.empty((draws, len(scored))), np.empty((draws, len(conditions), len(scored)))
    for k in range(draws):
        chosen = rng.choice(n, rows, replace=False)
        ours, theirs = side(V[chosen], "images"), side(T[chosen], "texts")
        match_scores[k] = compare(ours, theirs)
        scores = easy(ours, theirs, V[chosen])
        if H is not None:
            scores.append(compare(ours, side(H[chosen], "hard")))
        other_scores[k] = scores
        if callback:
            callback(1)

    ours, theirs = side(V, "images"), side(T, "texts")
    match = compare(ours, theirs)
    sign = np.array([1.0 if measure.metric.larger_is_closer else -1.0 for measure in scored])
    reached, total = np.ones((len(conditions), len(scored))), np.zeros((len(conditions), len(scored)))
    wrong = match if H is None else compare(ours, side(H, "hard"))
    for _ in range(permutations):
        for c, score in enumerate(easy(ours, theirs, V)):
            reached[c] += sign * score >= sign * match - 1e-12
            total[c] += score / permutations
        if H is not None:
            coin = rng.integers(2, size=(n, 1)) == 1
            first, second = side(np.where(coin, T, H), "texts"), side(np.where(coin, H, T), "hard")
            gap = sign * (compare(ours, first) - compare(ours, second))
            reached[2] += gap >= sign * (match - wrong) - 1e-12
        if callback:
            callback(1)
    if H is not None:
        total[2] = wrong
    return Separations(
        Separation(
            metric=measure.metric.name,
            definition=measure.definition,
            formula=measure.formula,
            against=condition,
            match=float(match[m]),
            other=float(total[c, m]),
            match_scores=tuple(match_scores[:, m].tolist()),
            other_scores=tuple(other_scores[:, c, m].tolist()),
            effect_size=_effect(sign[m] * match_scores[:, m], sign[m] * other_scores[:, c, m]),
            auc=_auc(sign[m] * match_scores[:, m], sign[m] * other_scores[:, c, m]),
            p_value=float(reached[c, m] / (permutations + 1)),
            larger_is_closer=measure.metric.larger_is_closer,
            n=n,
            rows=rows,
            permutations=permutations,
        )
        for m, measure in enumerate(scored)
        for c, condition in enumerate(conditions)
    )


def _hard(hard: RowsLike, T: np.ndarray) -> np.ndarray:
    """Return hard non-matches: the ones passed, or similar texts of other images."""
    if isinstance(hard, str):
        check_choice(hard, ("nearest",), "hard")
        return T[_nearest_derangement(T)]
    H = as_matrix(hard, "hard", allow_zero_rows=True)
    check_same_rows(len(T), len(H), "texts", "hard")
    check_same_width(T, H)
    return H


def _nearest_derangement(T: np.ndarray) -> np.ndarray:
    """Return the permutation without fixed points that maximizes the similarity of texts and their replacements."""
    from scipy.optimize import linear_sum_assignment

    if len(T) > _MOST_TEXTS:
        raise ShapeError(
            f"Got {len(T)} rows for `hard='nearest'`, which compares all pairs.", f"Pass a sample of {_MOST_TEXTS}."
        )
    rows = normalize_rows(T.astype(np.float64), "texts")
    similarity = rows @ rows.T
    np.fill_diagonal(similarity, -2.0 * len(T))  # worse than any permutation that moves every text
    return linear_sum_assignment(similarity, maximize=True)[1]


def _unrelated(unrelated: RowsLike, T: np.ndarray) -> np.ndarray:
    U = as_matrix(unrelated, "unrelated", allow_zero_rows=True)
    check_same_width(T, U)
    if len(U) < len(T):
        raise ShapeError(
            f"Got {len(U)} unrelated texts for {len(T)} pairs; expected at least as many.", "Embed more texts."
        )
    return U


class Measure(NamedTuple):
    """A metric under the definition of ``"jam"``, of ``"congruence"``, or of both, if they agree."""

    definition: str
    formula: str
    metric: Metric


def measures(name: str, definition: str = "both", *, components: bool = True, normalize: bool = False) -> list[Measure]:
    """Return a metric under the requested definitions, the paper's first; SVCCA of components is their CCA."""
    check_choice(definition, ("both", "jam", "congruence"), "definition")
    default = between_spaces(name)
    if name == "svcca" and components:
        default = replace(METRICS["cca"], fn=default.fn)
    if name not in JAM:
        if definition == "jam":
            raise ParameterError(
                f"The JAM paper does not define {name}.", f"Choose from its metrics: {', '.join(JAM)}."
            )
        return [Measure("congruence", "", default)]
    jam_formula, formula, jam = JAM[name]
    if jam is None:
        return [Measure("both", formula, default)]
    if name == "cknna" and normalize:
        default = replace(default, prepare=partial(prepare_cknna, normalize=True))
        jam = replace(jam, prepare=partial(prepare_cknna, definition="jam", normalize=True))
    both = [Measure("jam", jam_formula, jam), Measure("congruence", formula, default)]
    return [measure for measure in both if definition in ("both", measure.definition)]


#: One side as prepared for each metric; definitions with the same preparation share it.
_Key: TypeAlias = tuple[str, Callable[[np.ndarray, str], object]]
_PreparedSide: TypeAlias = dict[_Key, object]


def _key(measure: Measure) -> _Key:
    return measure.metric.name, measure.metric.prepare


def _prepare(
    A: np.ndarray, name: str, scored: list[Measure], components: int | None, standardize: bool
) -> _PreparedSide:
    """Reduce one side as each metric requires, and prepare it."""
    kinds = {_key(measure): measure.metric.prepare for measure in scored}
    scaled = _standardized(A) if standardize and any(metric == "svcca" for metric, _ in kinds) else A
    if components is None:
        return {key: prepare(scaled if key[0] == "svcca" else A, name) for key, prepare in kinds.items()}
    wide = _principal(A, max(50 if any(metric == "cca" for metric, _ in kinds) else 0, components))
    reduced = {"cca": wide[:, :50], "svcca": wide[:, :components] if scaled is A else _principal(scaled, components)}
    return {key: prepare(reduced.get(key[0], wide[:, :components]), name) for key, prepare in kinds.items()}


def _standardized(A: np.ndarray) -> np.ndarray:
    """Return centered columns scaled to the same length, without constant ones."""
    A = A[:, np.ptp(A, axis=0) > 0].astype(np.float64)
    A = A - A.mean(axis=0)
    A = A / np.abs(A).max(axis=0)
    return A / np.linalg.norm(A, axis=0)


def _principal(A: np.ndarray, k: int) -> np.ndarray:
    """Return coordinates of centered rows in their leading principal directions, strongest first."""
    A = A - A.mean(axis=0, dtype=np.float64)
    n, d = A.shape
    if n < d:
        values, vectors = np.linalg.eigh(A @ A.T)
        return (vectors * np.sqrt(np.clip(values, 0, None)))[:, ::-1][:, :k]
    return A @ np.linalg.eigh(A.T @ A)[1][:, ::-1][:, :k]


def _effect(match: np.ndarray, other: np.ndarray) -> float:
    """Return Cohen's d."""
    gap, spread = match.mean() - other.mean(), np.sqrt((match.var() + other.var()) / 2)
    if spread <= 1e-12:
        return 0.0 if abs(gap) <= 1e-12 else float(np.copysign(np.inf, gap))
    return float(gap / spread)


def _auc(match: np.ndarray, other: np.ndarray) -> float:
    """Return the share of pairs in which the match's score is larger, counting ties as half."""
    gap = match[:, None] - other
    return float(((gap > 1e-12) + 0.5 * (np.abs(gap) <= 1e-12)).mean())
