"""Compare every layer of one model with every layer of another, corrected for the search over pairs of layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from congruence._utils.display import text_table
from congruence._utils.optional import require
from congruence._utils.plain import PlainData
from congruence._utils.typing import RowsLike
from congruence._utils.validation import as_matrix, check_positive, check_same_rows, check_seed
from congruence.compare.spaces import FEWEST_ROWS, draw_rows
from congruence.errors import InputError, ParameterError
from congruence.metrics import between_spaces
from congruence.metrics.null import chance

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame


#: Layers of one model on the same items, as a mapping by name or as a sequence.
Layers: TypeAlias = "Mapping[str, RowsLike] | Sequence[RowsLike] | np.ndarray"


@dataclass(frozen=True, eq=False)
class LayerComparison(PlainData):
    """Scores of L × M pairs of layers, and the best score that a search over them finds by chance.

    - ``x_layers``, ``y_layers``: Names of the L and of the M layers.
    - ``values``, ``null_mean``, ``null_sd``, shape (L, M): The scores, and their mean and standard deviation over
      random re-pairings of the rows.
    - ``p_values``, shape (L, M): Share of re-pairings, including the actual one, in which this pair of layers scores
      at least as close.
    - ``adjusted_p_values``, shape (L, M): The same share for the closest of *all* pairs of layers in each re-pairing,
      each pair standardized by its own mean and standard deviation over all pairings (Westfall and Young 1993). For
      unrelated models the probability that any of these p-values is at most α is at most α.
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
        Row i is the same item in every layer of both models; widths may differ from layer to layer. Layers in a
        sequence are named by their position, starting at 0.
    metric : str, default="linear_cka"
        A key of ``congruence.metrics.METRICS`` that compares two spaces.
    permutations : int, default=200
        Number of random re-pairings, the same ones for every pair of layers; ``callback`` is called with 1 after each.
    max_rows : int, optional
        If there are more rows, use a random sample of this size, at least 8.

    Notes
    -----
    Each layer is prepared once (Gram matrix, neighbor table or basis) and re-paired once per permutation, which leaves
    L·M comparisons. For layers with n ≤ 4d, linear CKA keeps n × n kernels in memory; RBF CKA and RSA always do.
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
        A = out[label] = as_matrix(array, label, min_rows=FEWEST_ROWS, allow_zero_rows=True)
        if not np.ptp(A, axis=0).any():
            raise InputError(f"Got {len(A)} equal rows in {label}; expected rows that differ.", "Leave this layer out.")
    return out
