"""Similarity scores between two spaces, each compared with its distribution over random re-pairings of the rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from congruence._utils.display import text_table
from congruence._utils.optional import require
from congruence._utils.plain import PlainData
from congruence._utils.progress import progress_bar
from congruence._utils.typing import RowsLike
from congruence._utils.validation import as_matrix, check_positive, check_same_rows, check_seed
from congruence.embeddings import Pairs, as_pair
from congruence.errors import ParameterError, TooFewAnchorsError
from congruence.metrics import BETWEEN_SPACES, METRICS, between_spaces, fit_cca
from congruence.metrics.null import chance

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

#: Default metrics: one of each family, whose chance level is either known to be near zero or reported.
DEFAULT = ("linear_cka", "cknna", "mutual_knn", "cca", "procrustes_distance")


@dataclass(frozen=True)
class Similarity(PlainData):
    """A similarity score and its distribution by chance.

    - ``null_mean``, ``null_sd``: Mean and standard deviation of the score over random re-pairings of the rows.
    - ``p_value``: Share of re-pairings, including the actual one, that score at least as close: never below 1 /
      (permutations + 1).
    - ``adjusted_p_value``: The same share for the closest score over *all* metrics measured together, each
      standardized by its own mean and standard deviation over all re-pairings, including the actual pairing (Westfall
      and Young 1993). Valid for the best metric.
    - ``low``, ``high``: Interval of about 95 %: the value ± 1.96 standard errors of the delete-half jackknife.
    - ``held_out``: For CCA and SVCCA: correlation on one half of the rows along directions fitted on the other half.
      In-sample, these scores are the result of an optimization, and rise with the number of dimensions whatever the
      data.
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


def compare_spaces(
    X: RowsLike,
    Y: RowsLike,
    metrics: Sequence[str] = DEFAULT,
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
        Embeddings with ids, and pandas objects with an index, are paired by those, else by row.
    metrics : sequence of str
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
    Gram matrices, neighbor tables and bases are computed once and reused, so that a re-pairing costs a small part of
    the score. The spread over halves estimates the standard error at n rows (Shao and Wu 1989; docs/similarity.md).

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
    A, B = (as_matrix(side, name, allow_zero_rows=True) for side, name in zip(pairs, "XY", strict=True))
    rng = np.random.default_rng(random_state)
    rows = draw_rows(len(A), max_rows, rng)
    if rows is not None:
        A, B = A[rows], B[rows]
    n = len(A)
    orders = [rng.permutation(n) for _ in range(permutations)]
    parts = [np.sort(rng.choice(n, n // 2, replace=False)) for _ in range(halves)]
    values, nulls, errors = [], [], []
    with progress_bar("comparing", len(names) * permutations, quiet=callback is not None) as bar:
        advance = callback or (bar and bar.advance)
        for name, steps in zip(names, entries, strict=True):
            first, second = steps.prepare(A, "X"), steps.prepare(B, "Y")
            values.append(steps.compare(first, second))
            null = []
            for order in orders:
                null.append(steps.compare(first, steps.reorder(second, order)))
                if advance:
                    advance(1)
            nulls.append(null)
            drawn = [float(METRICS[name].fn(A[part], B[part])) for part in parts]
            errors.append(float(np.std(drawn, ddof=1)) if halves > 1 else 0.0)
    larger = np.array([METRICS[name].larger_is_closer for name in names])
    by_chance = chance(np.array(values), np.array(nulls).T, larger)
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
            METRICS[name].larger_is_closer,
            n,
            permutations,
        )
        for k, name in enumerate(names)
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


#: Minimum number of rows on which spaces are compared.
FEWEST_ROWS = 8


def check_metrics(metrics: Sequence[str]) -> list[str]:
    """Return the names of metrics, each once."""
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
