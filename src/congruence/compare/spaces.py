"""Similarity scores between spaces, each compared with its distribution over random re-pairings of the rows: of two
spaces by several metrics, or of every layer of one model with every layer of another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from congruence._utils.display import text_table
from congruence._utils.optional import require
from congruence._utils.plain import PlainData
from congruence._utils.progress import progress_bar
from congruence._utils.threads import calm_threads
from congruence._utils.typing import RowsLike
from congruence._utils.validation import as_matrix, check_positive, check_same_rows, check_seed, in_range
from congruence.embeddings import Pairs, as_pair
from congruence.errors import InputError, ParameterError, TooFewAnchorsError
from congruence.metrics import BETWEEN_SPACES, between_spaces, fit_cca, prepare_each

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

#: Default metrics: one of each family, whose chance level is either known to be near zero or reported.
DEFAULT = ("linear_cka", "cknna", "mutual_knn", "cca", "procrustes_distance")

#: Minimum number of rows on which spaces are compared.
FEWEST_ROWS = 8

#: Layers of one model on the same items, as a mapping by name or as a sequence.
Layers: TypeAlias = "Mapping[str, RowsLike] | Sequence[RowsLike] | np.ndarray"


@dataclass(frozen=True)
class Similarity(PlainData):
    """A similarity score and its distribution by chance: ``null_mean``, ``null_sd``, ``p_value`` and, over all metrics
    measured together, ``adjusted_p_value`` as in ``Chance``.

    - ``low``, ``high``: Interval of about 95 %: the value ± 1.96 standard errors of the delete-half jackknife.
    - ``held_out``: For CCA and SVCCA: correlation on one half of the rows along directions fitted on the other half.
    - ``n``: Number of rows.
    """

    metric: str
    value: float
    null_mean: float
    null_sd: float
    p_value: float
    adjusted_p_value: float
    low: float
    high: float
    held_out: float | None
    larger_is_closer: bool
    n: int
    permutations: int


class Similarities(list[Similarity]):
    """Result of ``compare_spaces``: a list of scores that shows as a table."""

    def __repr__(self) -> str:
        rows = [
            [
                one.metric,
                f"{one.value:.3f}",
                f"[{one.low:.3f}, {one.high:.3f}]",
                f"{one.null_mean:.3f} ± {one.null_sd:.3f}",
                f"{one.adjusted_p_value:.3g}",
            ]
            for one in self
        ]
        return text_table(["metric", "value", "95 %", "by chance", "adjusted p"], rows)

    def to_frame(self) -> DataFrame:
        """Return the scores as a pandas table, one row a metric."""
        pandas = require("pandas", extra="pandas")
        return pandas.DataFrame([one.to_dict() for one in self]).set_index("metric")

    def plot(self, ax: Axes | None = None, *, annotate: bool = True) -> Axes:
        """Draw each score with its interval, and the range of 95 % of random re-pairings, on ``ax`` or new axes."""
        from congruence.plotting import draw_similarities

        return draw_similarities([similarity.to_dict() for similarity in self], ax, annotate=annotate)


@calm_threads()
def compare_spaces(
    X: RowsLike,
    Y: RowsLike,
    metrics: str | Sequence[str] = DEFAULT,
    *,
    permutations: int = 200,
    halves: int = 20,
    max_rows: int | None = None,
    random_state: int = 0,
    callback: Callable[[int], None] | None = None,
) -> Similarities:
    """Score the similarity of two spaces with several metrics, each with its permutation null.

    Parameters
    ----------
    X, Y : Embeddings or array_like, shapes (n, d) and (n, e)
        Paired by ids or a pandas index, else by row.
    metrics : str or sequence of str
        Keys of ``congruence.metrics.METRICS`` that compare two spaces.
    permutations, halves : int, default=200 and 20
        Numbers of random re-pairings, the same ones for every metric, and of random halves of the rows, for the
        interval.
    max_rows : int, optional
        If there are more rows, use a random sample of this size, at least 8. ``rbf_cka`` and ``rsa`` need this beyond
        5,000 rows.
    callback : callable, optional
        Called with 1 after each re-pairing of each metric; by default a progress bar is shown in a terminal.

    Notes
    -----
    The spread over halves estimates the standard error at n rows (Shao and Wu 1989; docs/research/similarity.md).

    Examples
    --------
    >>> import numpy as np
    >>> from congruence.compare.spaces import compare_spaces
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((100, 5))
    >>> score, = compare_spaces(X, X @ rng.standard_normal((5, 4)), ["linear_cka"])
    >>> score.value > 0.3 and score.p_value < 0.01
    True
    """
    check_seed(random_state)
    names = check_metrics(metrics)
    entries = [between_spaces(name) for name in names]
    check_positive(permutations, "permutations", integer=True)
    check_positive(halves, "halves", integer=True)
    ours, theirs = as_pair(X, Y, ("X", "Y"), allow_zero_rows=True)
    if not (ours.has_ids and theirs.has_ids):
        check_same_rows(len(ours), len(theirs), "X", "Y")
    pairs = Pairs.join(ours, theirs)
    if len(pairs) < FEWEST_ROWS:
        raise TooFewAnchorsError(f"Got {len(pairs)} paired rows; expected at least {FEWEST_ROWS}.", "Pass more rows.")
    A, B = (in_range(as_matrix(side, name, allow_zero_rows=True)) for side, name in zip(pairs, "XY", strict=True))
    rng = np.random.default_rng(random_state)
    rows = draw_rows(len(A), max_rows, rng)
    if rows is not None:
        A, B = A[rows], B[rows]
    n = len(A)
    orders = [rng.permutation(n) for _ in range(permutations)]
    parts = [np.sort(rng.choice(n, n // 2, replace=False)) for _ in range(halves)]
    values, nulls = [], []
    with progress_bar("comparing", len(entries) * permutations, quiet=callback is not None) as bar:
        advance = callback or (bar and bar.advance)
        sides = prepare_each(entries, A, "X"), prepare_each(entries, B, "Y")
        for steps, first, second in zip(entries, *sides, strict=True):
            values.append(steps.compare(first, second))
            null = []
            for order in orders:
                null.append(steps.compare(first, steps.reorder(second, order)))
                if advance:
                    advance(1)
            nulls.append(null)
        each = []
        for part in parts:
            sides = prepare_each(entries, A[part], "X"), prepare_each(entries, B[part], "Y")
            each.append([steps.compare(*pair) for steps, *pair in zip(entries, *sides, strict=True)])
    errors = np.std(each, axis=0, ddof=1).tolist() if halves > 1 else [0.0] * len(entries)
    by_chance = chance(np.array(values), np.array(nulls).T, np.array([steps.larger_is_closer for steps in entries]))
    return Similarities(
        Similarity(
            name,
            values[k],
            float(by_chance.mean[k]),
            float(by_chance.sd[k]),
            float(by_chance.p_value[k]),
            float(by_chance.adjusted_p_value[k]),
            values[k] - 1.96 * errors[k],
            values[k] + 1.96 * errors[k],
            _held_out(name, A, B, parts[0]),
            steps.larger_is_closer,
            n,
            permutations,
        )
        for k, (name, steps) in enumerate(zip(names, entries, strict=True))
    )


def _held_out(name: str, A: np.ndarray, B: np.ndarray, half: np.ndarray) -> float | None:
    """Fit canonical directions on one half of the rows and return the correlation on the other half."""
    if name not in ("cca", "svcca"):
        return None
    other = np.setdiff1d(np.arange(len(A)), half)
    if name == "cca":
        return float(fit_cca(A[half], B[half]).score(A[other], B[other]))
    sides = []
    for side in (A, B):
        mean = side[half].mean(axis=0, dtype=np.float64)
        _, s, vt = np.linalg.svd(side[half] - mean, full_matrices=False)
        share = np.cumsum(s**2) / np.sum(s**2)
        sides.append((side - mean) @ vt[: int(np.searchsorted(share, 0.99 - 1e-12)) + 1].T)
    return float(fit_cca(sides[0][half], sides[1][half], reduce=None).score(sides[0][other], sides[1][other]))


def check_metrics(metrics: str | Sequence[str]) -> list[str]:
    """Return the names of metrics, each once; one name stands for itself."""
    if isinstance(metrics, str):
        return [metrics]
    if not metrics:
        raise ParameterError("Got no metric that compares two spaces.", f"Pass one of {', '.join(BETWEEN_SPACES)}.")
    return list(dict.fromkeys(metrics))


def draw_rows(n: int, max_rows: int | None, rng: np.random.Generator) -> np.ndarray | None:
    """Return the numbers of at most ``max_rows`` of n rows, drawn at random, ascending; None if all rows are used."""
    if max_rows is None:
        return None
    if check_positive(max_rows, "max_rows", integer=True) < FEWEST_ROWS:
        raise ParameterError(argument="max_rows", got=max_rows, expected=f"at least {FEWEST_ROWS}")
    return np.sort(rng.choice(n, max_rows, replace=False)) if n > max_rows else None


# ------------------------------------------------------------------ layers


@dataclass(frozen=True, eq=False)
class LayerComparison(PlainData):
    """Scores of L × M pairs of layers, and the best score that a search over them finds by chance.

    - ``x_layers``, ``y_layers``: Names of the L and of the M layers.
    - ``values``, and ``null_mean``, ``null_sd``, ``p_values``, ``adjusted_p_values`` as in ``Chance``, shape (L, M).
    - ``best``, ``best_value``, ``best_p_value``, ``best_adjusted_p_value``: The pair of layers that scores closest. Use
      the adjusted p-value, because the pair was found by a search.
    - ``best_null_mean``, ``best_null_sd``: Of the closest of the L × M scores over re-pairings: the best by chance.
    """

    _also = ("z_scores",)

    metric: str
    x_layers: tuple[str, ...]
    y_layers: tuple[str, ...]
    values: np.ndarray
    null_mean: np.ndarray
    null_sd: np.ndarray
    p_values: np.ndarray
    adjusted_p_values: np.ndarray
    best: tuple[str, str]
    best_value: float
    best_p_value: float
    best_adjusted_p_value: float
    best_null_mean: float
    best_null_sd: float
    larger_is_closer: bool
    n: int
    permutations: int

    def __repr__(self) -> str:
        rows = [
            [name, *(f"{value:.3f}" for value in row)] for name, row in zip(self.x_layers, self.values, strict=True)
        ]
        found = f"best {' and '.join(self.best)}: {self.best_value:.3f}, by chance {self.best_null_mean:.3f} ± "
        found += f"{self.best_null_sd:.3f}, adjusted p {self.best_adjusted_p_value:.3g}"
        return f"{text_table([self.metric, *self.y_layers], rows)}\n{found}"

    def to_frame(self) -> DataFrame:
        """Return the values as a pandas table, one row a layer of the first model, one column one of the second."""
        pandas = require("pandas", extra="pandas")
        return pandas.DataFrame(self.values, index=list(self.x_layers), columns=list(self.y_layers))

    @property
    def z_scores(self) -> np.ndarray:
        """Standard deviations by which each score is closer than chance (L, M); 0 for a null without variance."""
        gap = (self.values - self.null_mean) * (1 if self.larger_is_closer else -1)
        flat = self.null_sd <= 1e-9 * np.maximum(1, np.abs(self.null_mean))
        return np.divide(gap, self.null_sd, out=np.zeros_like(gap), where=~flat)

    @property
    def strength(self) -> np.ndarray:
        """How far each score is above chance (L, M): from 0, no closer, to 1, the furthest above it."""
        above = np.maximum(self.z_scores, 0)
        return above / (above.max() or 1.0)

    def to_dict(self) -> dict[str, object]:
        """Return all fields as plain data."""
        data = super().to_dict()
        return {name: list(value) if isinstance(value, tuple) else value for name, value in data.items()}

    def plot(self, ax: Axes | None = None, *, title: str = "Similarity of layers", annotate: bool = True) -> Axes:
        """Draw the scores as a heat map, colored by how far they are above chance, on ``ax`` or new axes."""
        from congruence.plotting import draw_layers

        return draw_layers(self.to_dict() | {"strength": self.strength}, ax, title=title, annotate=annotate)


@calm_threads()
def compare_layers(
    X_layers: Layers,
    Y_layers: Layers,
    metric: str = "linear_cka",
    *,
    permutations: int = 200,
    max_rows: int | None = None,
    random_state: int = 0,
    callback: Callable[[int], None] | None = None,
) -> LayerComparison:
    """Score every layer of one model against every layer of another, corrected for the search.

    Reporting the best pair of layers, as the code of Huh et al. (2024) does, is a search over L × M scores. The best of
    these is above chance even for unrelated models, so the same search is repeated on randomly re-paired rows.

    Source: Westfall and Young (1993), "Resampling-based multiple testing". Huh et al. (2024), "The Platonic
    Representation Hypothesis".

    Parameters
    ----------
    X_layers, Y_layers : mapping of str to array_like, or sequence of array_like, each of shape (n, d)
        Row i is the same item in every layer of both models. Layers in a sequence are named by their position from 0.
    metric : str, default="linear_cka"
        A key of ``congruence.metrics.METRICS`` that compares two spaces.
    permutations : int, default=200
        Number of random re-pairings, the same ones for every pair of layers; ``callback`` is called with 1 after each.
    max_rows : int, optional
        If there are more rows, use a random sample of this size, at least 8.

    Notes
    -----
    For layers with n ≤ 4d, linear CKA keeps n × n kernels in memory; RBF CKA and RSA always do.
    """
    check_seed(random_state)
    steps = between_spaces(metric)
    check_positive(permutations, "permutations", integer=True)
    sides = [_layers(X_layers, "X"), _layers(Y_layers, "Y")]
    layers = [(name, A) for side in sides for name, A in side.items()]
    first_name, first = layers[0]
    for name, A in layers[1:]:
        check_same_rows(len(first), len(A), first_name, name)
    n = len(first)
    rng = np.random.default_rng(random_state)
    rows = draw_rows(n, max_rows, rng)
    if rows is not None:
        sides = [{name: A[rows] for name, A in side.items()} for side in sides]
        n = len(rows)
    ours, theirs = ([steps.prepare(A, name) for name, A in side.items()] for side in sides)

    def compare(others: list[object]) -> list[list[float]]:
        return [[steps.compare(x, y) for y in others] for x in ours]

    values = np.array(compare(theirs))
    null = np.empty((permutations, *values.shape))
    for scores in null:
        order = rng.permutation(n)
        scores[:] = compare([steps.reorder(side, order) for side in theirs])
        if callback:
            callback(1)
    larger = steps.larger_is_closer
    by_chance = chance(values, null, larger)
    best = np.unravel_index(int(np.argmax(values) if larger else np.argmin(values)), values.shape)
    closest = null.max(axis=(1, 2)) if larger else null.min(axis=(1, 2))
    x_names, y_names = (_names(layers) for layers in (X_layers, Y_layers))
    return LayerComparison(
        metric=metric,
        x_layers=x_names,
        y_layers=y_names,
        values=values,
        null_mean=by_chance.mean,
        null_sd=by_chance.sd,
        p_values=by_chance.p_value,
        adjusted_p_values=by_chance.adjusted_p_value,
        best=(x_names[best[0]], y_names[best[1]]),
        best_value=float(values[best]),
        best_p_value=float(by_chance.p_value[best]),
        best_adjusted_p_value=float(by_chance.adjusted_p_value[best]),
        best_null_mean=float(closest.mean()),
        best_null_sd=float(closest.std(ddof=1)) if permutations > 1 else 0.0,
        larger_is_closer=larger,
        n=n,
        permutations=permutations,
    )


def _names(layers: Layers) -> tuple[str, ...]:
    return tuple(map(str, layers if isinstance(layers, Mapping) else range(len(layers))))


def _layers(layers: Layers, side: str) -> dict[str, np.ndarray]:
    """Return the checked layers by their names in error messages."""
    names = _names(layers)
    if not names:
        raise ParameterError(f"No layers of {side}.", "Pass a mapping of names to arrays, or a list of arrays.")
    if len(set(names)) < len(names):
        raise ParameterError(
            f"Got layers of {side} that share a name; expected names that differ.", "Give each layer its own name."
        )
    arrays = layers.values() if isinstance(layers, Mapping) else layers
    out = {}
    for name, array in zip(names, arrays, strict=True):
        label = f"layer {name!r} of {side}"
        A = out[label] = in_range(as_matrix(array, label, min_rows=FEWEST_ROWS, allow_zero_rows=True))
        if not np.ptp(A, axis=0).any():
            raise InputError(f"Got {len(A)} equal rows in {label}; expected rows that differ.", "Leave this layer out.")
    return out


# ------------------------------------------------------------------ chance


class Chance(NamedTuple):
    """Null distribution and p-values of scores; each array has the shape of the scores.

    ``mean`` and ``sd`` are over re-paired rows. ``p_value`` is the share of the permutations + 1 pairings, including
    the actual one, that score at least as close; ``adjusted_p_value`` that for the closest of *all* scores in a
    pairing, each standardized over all pairings (Westfall and Young 1993), and is valid for the best of them.
    """

    mean: np.ndarray
    sd: np.ndarray
    p_value: np.ndarray
    adjusted_p_value: np.ndarray


def chance(values: np.ndarray, null: np.ndarray, larger_is_closer: np.ndarray | bool) -> Chance:
    """Return p-values of scores, individually and adjusted for choosing the best of all; row r of ``null`` holds all
    scores of the same re-pairing.

    If rows are unrelated, all pairings are exchangeable: the probability that any adjusted p-value is at most α is at
    most α. Standardizing without the actual pairing would reject far more often.

    Source: Westfall and Young (1993), the single-step max-T procedure; Phipson and Smyth (2010), "Permutation p-values
    should never be zero".
    """
    sign = np.where(larger_is_closer, 1.0, -1.0)
    values, null = values * sign, null * sign
    draws = len(null)
    # Equal scores may differ by rounding if they are summed in another order; they must count as ties.
    tolerance = 1e-12 * np.maximum(1, np.abs(values))
    n_as_close = (null >= values - tolerance).sum(axis=0)
    pairings = np.concatenate([values[None], null])
    center, spread = pairings.mean(axis=0), pairings.std(axis=0)
    # A constant score (PWCCA with n ≤ d) carries no information: neither the value nor any re-pairing is extreme.
    scale = np.where(spread <= 1e-9 * np.maximum(1, np.abs(center)), np.inf, spread)
    slack = tolerance / scale
    best = ((null - center) / scale + slack).reshape(draws, -1).max(axis=1)
    observed = (values - center) / scale - slack
    n_best_as_close = draws - np.searchsorted(np.sort(best), observed)
    sd = null.std(axis=0, ddof=1) if draws > 1 else np.zeros(values.shape)
    return Chance(sign * null.mean(axis=0), sd, (1 + n_as_close) / (draws + 1), (1 + n_best_as_close) / (draws + 1))
