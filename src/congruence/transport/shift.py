"""Distribution shift between a collection of unpaired images and texts and the paired data it is used with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from congruence._utils.plain import PlainData
from congruence._utils.typing import RowsLike
from congruence._utils.validation import check_positive, check_seed
from congruence.errors import ParameterError
from congruence.transport.sliced import choose_cost, circle_costs, random_frames, sphere_pair

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Distance:
    """Mean and deviation of a sliced distance, in turns; ``floor``: that of the same rows split at random."""

    value: float
    sd: float
    floor: float


@dataclass(frozen=True)
class DistributionShift(PlainData):
    """Distances between an unpaired and a paired collection, and their sum, draw by draw."""

    image: Distance
    text: Distance | None
    total: Distance

    def plot(self, ax: Axes | None = None, *, annotate: bool = True) -> Axes:
        """Draw the distances with their standard deviations, and those between samples of one collection, on ``ax``."""
        from congruence.plotting import draw_shift

        return draw_shift(self.to_dict(), ax, annotate=annotate)


def distribution_shift(
    X: RowsLike,
    A: RowsLike,
    Y: RowsLike | None = None,
    B: RowsLike | None = None,
    *,
    p: float = 2,
    n_projections: int = 500,
    variant: str = "circular",
    grid: int | None = None,
    normalize: bool = False,
    max_rows: int = 100_000,
    repeats: int = 20,
    random_state: int = 0,
    callback: Callable[[int], None] | None = None,
) -> DistributionShift:
    """Measure the distance of unpaired from paired data: SSW(X, A) + SSW(Y, B), sliced distances on the sphere.

    Source: SOTAlign, equations 14 and 22, appendices B.4 (p = 2, 500 projections, 100,000 rows, 20 seeds) and C.2.

    Parameters
    ----------
    X, A : array_like, shapes (n, d) and (m, d)
        Unpaired images, and images of the paired data, from the same encoder.
    Y, B : array_like, shapes (n', e) and (m', e), optional
        The corresponding texts.
    p, n_projections, variant, grid, normalize
        As for ``sliced_wasserstein_sphere``.
    max_rows : int, default=100_000
        Number of rows drawn, without replacement, of a larger collection.
    repeats : int, default=20
        Number of draws of rows and circles; ``callback`` is called with 1 after each.
    """
    check_seed(random_state)
    cost = choose_cost(variant, p, grid)
    check_positive(n_projections, "n_projections", integer=True)
    check_positive(max_rows, "max_rows", integer=True)
    check_positive(repeats, "repeats", integer=True)
    if (Y is None) != (B is None):
        raise ParameterError(
            f"Got texts of the {'paired' if Y is None else 'unpaired'} side only.", "Pass both `Y=…` and `B=…`."
        )
    sides = [sphere_pair(X, A, ("X", "A"), normalize)]
    if Y is not None and B is not None:
        sides.append(sphere_pair(Y, B, ("Y", "B"), normalize))
    distances = np.empty((repeats, len(sides), 2))  # the distance and its floor
    for repeat in range(repeats):
        rng = np.random.default_rng([random_state, repeat])
        for k, side in enumerate(sides):
            first, second = (
                cloud if len(cloud) <= max_rows else cloud[np.sort(rng.choice(len(cloud), max_rows, replace=False))]
                for cloud in side
            )
            frames = random_frames(n_projections, first.shape[1], rng)
            order = rng.permutation(len(first) + len(second))
            distances[repeat, k] = circle_costs(first, second, frames, cost, order=order).mean(axis=1) ** (1 / p)
        if callback:
            callback(1)
    parts = [_summary(distances[:, k]) for k in range(len(sides))]
    return DistributionShift(parts[0], parts[1] if len(parts) > 1 else None, _summary(distances.sum(axis=1)))


def _summary(draws: np.ndarray) -> Distance:
    sd = float(draws[:, 0].std(ddof=1)) if len(draws) > 1 else 0.0
    return Distance(float(draws[:, 0].mean()), sd, float(draws[:, 1].mean()))
