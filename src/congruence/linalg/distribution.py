"""How the rows of a model are distributed: a description small enough to be saved, to compare other rows with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Self

import numpy as np

from congruence._utils.arrays import UNIT_TOLERANCE
from congruence.linalg.shrinkage import ledoit_wolf_share
from congruence.splits import equal_rows

#: Fewest distinct rows that are described, and most that are used: for a description that is kept, and for one that
#: is used at once.
FEWEST, MOST, MOST_AT_HAND = 40, 512, 2048

#: Number of leading directions that are kept; the other directions share one variance, relative to their scales.
DIRECTIONS = 14

#: Iterations after which a subspace holds the leading directions.
ITERATIONS = 8

#: Contiguous parts that are left out in turn, so that rows ordered by content show how far other content is; and how
#: many of them for a description that is used at once.
FOLDS, FOLDS_AT_HAND = 4, 8

#: Rows whose components are shuffled lie where an unrelated model's rows lie; so often they are.
SHUFFLES = 16

#: Position between the median distance of a model's left-out rows (0) and that of an unrelated model's (1) up to which
#: rows can be of the model. Rows of new content reached .64 at the 99th percentile, those of other models started
#: at .69 (tests/compare/test_origins_of_maps.py).
FAR = 0.66

#: Fewest rows that describe a model well enough to say that other rows must be of another one.
_MANY = 100

#: Mean cosine of a model's rows from which they share a direction whatever their content, and from which no similar
#: model shares it.
_CONCENTRATED = 0.45, 0.55, 0.58

#: Mean cosine of a model's rows from which those of one modality share their mean direction whatever their content, and
#: cosine with it below which the mean of other rows is that of another modality, as of a dual encoder. Topics of one
#: model reached .62 and .60, modalities of CLIP .75 and .31 (benchmarks/which_rows.py).
_MODALITY, _APART = 0.65, 0.45

#: Share of the left-out rows beyond which p-values come from a fitted tail.
_TAIL = 0.1


@dataclass(frozen=True, eq=False)
class RowDistribution:
    """A normal distribution of unit rows, with a few directions of their own, and of the logarithms of their norms.

    - ``mean``, ``scale``, shape (d,): Rows minus the mean are divided by the scale.
    - ``directions``, shape (r, d), and ``variances``, (r + 1,): Leading directions, and the variances along each and
      along all others.
    - ``norms``: Median and standard deviation of the logarithms of the norms.
    - ``distances``: Sorted squared distances of rows that were left out of the estimate.
    - ``farthest``: Largest squared distance of rows left out at random, so that none is of content of its own.
    - ``unrelated``: Median distance of rows with shuffled components.
    - ``recognized``: Share of left-out rows that are more likely under this than under any other of their ``Kinds``.
    """

    mean: np.ndarray
    scale: np.ndarray
    directions: np.ndarray
    variances: np.ndarray
    norms: np.ndarray
    distances: np.ndarray = field(default_factory=lambda: np.empty(0))
    farthest: np.ndarray = field(default_factory=lambda: np.empty(0))
    unrelated: np.ndarray = field(default_factory=lambda: np.empty(0))
    recognized: np.ndarray = field(default_factory=lambda: np.empty(0))

    @classmethod
    def of(cls, unit: np.ndarray, logs: np.ndarray, *, small: bool = True) -> tuple[Self, np.ndarray]:
        """Describe unit rows (n, d) and the logarithms of their norms; also return the distance of each, left out. A
        ``small`` description has few directions and can be kept; otherwise it has all directions.
        """
        estimate = _few_directions if small else _all_directions
        unit = unit.astype(np.float32) if small else unit  # as a small description is saved

        def left_out(order: np.ndarray) -> np.ndarray:
            far = np.empty(len(unit))
            for part in np.array_split(order, FOLDS if small else FOLDS_AT_HAND):
                kept = np.delete(np.arange(len(unit)), part)
                far[part] = cls(*estimate(unit[kept], logs[kept])).distance(unit[part], logs[part])
            return far

        far = left_out(np.arange(len(unit)))
        spread = left_out(np.random.default_rng(0).permutation(len(unit))) if small else far
        new = replace(cls(*estimate(unit, logs)), distances=np.sort(far), farthest=np.array([spread.max()]))
        some = np.linspace(0, len(unit) - 1, min(len(unit), 64)).astype(int)
        unrelated = [new.distance(other, logs[some]) for other in shuffled(unit[some])]
        return replace(new, unrelated=np.array([np.median(unrelated)])), far

    @property
    def width(self) -> int:
        """Number of components."""
        return len(self.mean)

    @property
    def median(self) -> float:
        """Median distance of rows that were left out."""
        return float(np.median(self.distances))

    def distance(self, unit: np.ndarray, logs: np.ndarray) -> np.ndarray:
        """Return squared Mahalanobis distances (n,) of unit rows and the logarithms of their norms."""
        Z = (unit - self.mean) / self.scale
        along = np.square(Z @ self.directions.T)
        near = along @ (1 / self.variances[:-1]) + (np.square(Z).sum(axis=1) - along.sum(axis=1)) / self.variances[-1]
        return np.asarray(near + np.square((logs - self.norms[0]) / self.norms[1]))

    def log_likelihood(self, distance: np.ndarray) -> np.ndarray:
        """Return the log-likelihood of rows, up to a constant that distributions of the same width share."""
        rest = self.width - len(self.directions)
        volume = np.log(self.scale).sum() + (np.log(self.variances[:-1]).sum() + rest * np.log(self.variances[-1])) / 2
        return np.asarray(-distance / 2 - volume - np.log(self.norms[1]))

    def fits(self, distance: np.ndarray, least: float) -> np.ndarray:
        """Return whether rows can be of this model: clearly nearer to its rows than an unrelated model's rows are.
        Where its own rows are not that near, rows whose p-value is above ``least`` can be too.
        """
        near = distance <= self.median + FAR * (float(self.unrelated[0]) - self.median)
        return np.asarray(near if self.tells_unrelated else near | (self.p_value(distance) > least))

    @property
    def tells_unrelated(self) -> bool:
        """Whether nearly all rows that were left out are far nearer than those of an unrelated model."""
        if len(self.directions) > DIRECTIONS:  # so near to its own rows that other content may seem unrelated
            return False
        usual = float(np.quantile(self.distances, 0.99)) - self.median
        return FAR * (float(self.unrelated[0]) - self.median) > usual

    def related(self, rows: np.ndarray, deviations: float = 2) -> bool:
        """Return whether rows (n, d) vary along the same directions as this model's rows, whatever their mean. Then
        they may be of the same model, with other content. Rows whose components are shuffled vary less along them by so
        many standard ``deviations``.
        """
        Z = directions(rows)[0]
        Z = (Z - Z.mean(axis=0)) / self.scale
        along, *null = (float(np.square(X @ self.directions.T).sum()) for X in (Z, *shuffled(Z)))
        return bool(along > np.mean(null) + deviations * np.std(null))

    def near_mean(self, rows: np.ndarray) -> bool:
        """Return whether the mean of rows (n, d) points where this model's does, more than with shuffled components."""
        mean = directions(rows)[0].mean(axis=0)[None]
        near, *null = (float(self.mean @ other[0]) for other in (mean, *shuffled(mean)))
        return bool(near > np.mean(null) + 3 * np.std(null))

    def excludes(self, rows: np.ndarray) -> bool:
        """Return whether rows (n, d), none of which ``fits``, must be of another model, or of another modality. Only if
        the model's own rows share a direction whatever their content, and many describe it; else its own may be as far.
        """
        many = len(self.distances) >= _MANY
        least = _CONCENTRATED[0] if many else _CONCENTRATED[2]
        if not self.tells_unrelated or self.concentration < least:
            return False
        mean = directions(rows)[0].mean(axis=0)
        near = float(mean @ self.mean) / max(float(np.linalg.norm(mean) * np.linalg.norm(self.mean)), 1e-12)
        return (self.concentration >= _MODALITY and near < _APART) or not self.related(rows, 2 if many else 1)

    def unusual(self, rows: np.ndarray) -> int:
        """Return how many rows are far from this model's; 0 if a similar model's rows would be recognized."""
        if self.tells_unrelated and self.concentration >= _CONCENTRATED[1]:
            return 0
        return int(np.count_nonzero(self.distance(*directions(rows)) > self.farthest[0]))

    @property
    def concentration(self) -> float:
        """Mean cosine of two different rows."""
        return float(self.mean @ self.mean)

    def p_value(self, distance: np.ndarray) -> np.ndarray:
        """Return the rank of each distance among left-out rows; beyond a tenth, its probability in a Pareto tail."""
        n = len(self.distances)
        tail = max(int(_TAIL * n), 2)
        start = float(self.distances[-tail - 1])
        hill = max(float(np.log(self.distances[-tail:] / start).mean()), 1e-3)
        ranked = (1 + n - np.searchsorted(self.distances, distance, "left")) / (n + 1)
        beyond = (tail + 1) / (n + 1) * np.maximum(distance / start, 1.0) ** (-1 / hill)
        return np.asarray(np.where(distance > start, beyond, ranked))

    def state(self) -> dict[str, np.ndarray]:
        """Return the arrays, in float32."""
        return {one.name: np.asarray(getattr(self, one.name), np.float32) for one in fields(self)}

    @classmethod
    def from_state(cls, arrays: Mapping[str, np.ndarray], width: int) -> Self:
        """Build the distribution from ``state``, after checking it. Raises ValueError or KeyError."""
        names = [one.name for one in fields(cls)]
        new = cls(*(np.asarray(arrays[name], np.float64) for name in names))
        r = len(new.directions)
        shapes = [(width,), (width,), (r, width), (r + 1,), (2,), (len(new.distances),), (1,), (1,), (1,)]
        for name, shape in zip(names, shapes, strict=True):
            if getattr(new, name).shape != shape or not np.isfinite(getattr(new, name)).all():
                raise ValueError(f"{name} of the rows at the fit is damaged")
        positive = new.scale, new.variances, new.norms[1:], new.distances, new.farthest, new.unrelated
        if len(arrays) != len(names) or len(new.distances) < FEWEST or any((part <= 0).any() for part in positive):
            raise ValueError("the description of the rows at the fit is damaged")
        return new


def directions(X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return unit rows, and the logarithms of the norms."""
    X = np.asarray(X, np.float64)
    norms = np.linalg.norm(X, axis=1)
    return X / norms[:, None], np.log(norms)


def shuffled(rows: np.ndarray) -> list[np.ndarray]:
    """Return rows (n, d) with their components in random orders, the same for all rows."""
    rng = np.random.default_rng(0)
    return [rows[:, rng.permutation(rows.shape[1])] for _ in range(SHUFFLES)]


def distinct(rows: np.ndarray, most: int = MOST) -> np.ndarray:
    """Return distinct rows in their order, at most ``most``, spread over all of them."""
    part = rows[np.linspace(0, len(rows) - 1, min(len(rows), 4 * most)).astype(int)]  # all of many would take seconds
    first = np.flatnonzero(equal_rows(part) == np.arange(len(part)))
    if len(first) < most and len(part) < len(rows):  # most are copies
        part, first = rows, np.flatnonzero(equal_rows(rows) == np.arange(len(rows)))
    return np.ascontiguousarray(part[first[np.linspace(0, len(first) - 1, min(len(first), most)).astype(int)]])


def _few_directions(unit: np.ndarray, logs: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return mean, scale, a few directions, variances and norms."""
    n, d = unit.shape
    mean = unit.mean(axis=0)
    Z = unit - mean
    variance = np.einsum("ij,ij->j", Z, Z) / n
    # A component that hardly varied among few rows may vary in others.
    scale = np.maximum(np.sqrt((n * variance + 20 * variance.mean()) / (n + 20)), 1e-6)
    Z /= scale
    rank = max(min(DIRECTIONS, n // 4, d // 4), 1)
    axes, values = _principal(Z, rank)
    values = values * n / (n - 1)
    rest = max((float(np.vdot(Z, Z)) / (n - 1) - float(values.sum())) / max(d - rank, 1), 1e-6)
    return mean, scale, axes, np.append(np.maximum(values, rest), rest), _norms(logs)


def _all_directions(unit: np.ndarray, logs: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return mean, scale, all directions, variances and norms, of the covariance of Ledoit and Wolf."""
    n, d = unit.shape
    mean = unit.mean(axis=0)
    Z = unit - mean
    axes, values = _principal(Z, min(n - 1, d))
    share, level = ledoit_wolf_share(Z, float(np.square(values).sum()))
    variances = (1 - share) * np.append(np.maximum(values, 0), 0) + share * level
    return mean, np.ones(d), axes, np.maximum(variances, 1e-12 * variances.max()), _norms(logs)


def _principal(Z: np.ndarray, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the leading principal axes (rank, d) of centered rows, and the variances along them. A few of many are
    found by iterations of a subspace with directions to spare, in float32, a tenth of the time of all.
    """
    n, d = Z.shape
    few = 4 * rank < min(n, d)
    rows = Z.astype(np.float32) if few else Z
    G = rows @ rows.T if n < d else rows.T @ rows
    if few:
        basis = np.random.default_rng(0).standard_normal((len(G), 2 * rank), dtype=G.dtype)
        for _ in range(ITERATIONS // 2):
            basis = G @ (G @ basis)
            values, turned = np.linalg.eigh(basis.T @ basis)  # orthonormal at a tenth of the cost of a QR
            basis = basis @ (turned / np.sqrt(np.maximum(values, 1e-10 * values[-1])))
        values, turned = np.linalg.eigh(basis.T @ G @ basis)
        vectors = basis @ turned
    else:
        values, vectors = np.linalg.eigh(G)
    values, vectors = values[-rank:], vectors[:, -rank:]
    tiny = np.finfo(float).eps * max(values[-1], np.finfo(float).tiny)
    axes = (vectors.T @ Z) / np.sqrt(np.maximum(values, tiny))[:, None] if n < d else vectors.T
    return axes, values / n


def _norms(logs: np.ndarray) -> np.ndarray:
    """Return the median and the spread of the logarithms of norms."""
    return np.array([np.median(logs), max(float(logs.std()), UNIT_TOLERANCE)])  # also unit in another precision


class Kinds(dict[str, RowDistribution]):
    """Distributions of rows of several kinds by name, e.g. of two models. ``margins[a, b]`` is how much more likely
    than under its own kind ``b`` a row may be under ``a``: the largest difference of the log-likelihoods but for 0.5 %
    of the rows that were left out.
    """

    margins: dict[tuple[str, str], float]

    @classmethod
    def of(cls, rows: Mapping[str, np.ndarray], *, small: bool = True) -> Self:
        """Describe rows of each kind; kinds with fewer than ``FEWEST`` distinct rows are left out."""
        parts = {name: directions(distinct(X, MOST if small else MOST_AT_HAND)) for name, X in rows.items()}
        parts = {name: part for name, part in parts.items() if len(part[0]) >= FEWEST}
        found = {name: RowDistribution.of(*part, small=small) for name, part in parts.items()}
        new = cls({name: kind for name, (kind, _) in found.items()})
        new.margins = {}
        for name, (own, far) in found.items():
            mine, best = own.log_likelihood(far), np.full(len(far), True)
            for other, (there, _) in found.items():
                if other != name and there.width == own.width:
                    more = there.log_likelihood(there.distance(*parts[name])) - mine
                    best &= more < 0
                    new.margins[other, name] = max(float(np.quantile(more, 0.995)), 0.0)
            new[name] = replace(own, recognized=np.array([best.mean()]))
        return new

    def state(self) -> dict[str, np.ndarray]:
        """Return all arrays by the name of their kind and their own."""
        arrays = {f"{name}.{part}": value for name, kind in self.items() for part, value in kind.state().items()}
        for name in self:
            margins = [self.margins.get((other, name), 0.0) for other in sorted(self)]
            arrays[f"{name}.margins"] = np.array(margins, np.float32)
        return arrays

    @classmethod
    def from_state(cls, arrays: Mapping[str, np.ndarray], width_of: Mapping[str, int]) -> Self:
        """Build the kinds from ``state``, after checking it; ``width_of`` has the width of each name's first part."""
        parts: dict[str, dict[str, np.ndarray]] = {}
        for key in arrays:
            name, _, part = key.rpartition(".")
            parts.setdefault(name, {})[part] = arrays[key]
        margins = {name: np.asarray(kind.pop("margins"), np.float64) for name, kind in parts.items()}
        new = cls()
        for name, kind in parts.items():
            new[name] = RowDistribution.from_state(kind, width_of[name.partition(".")[0]])
        if any(row.shape != (len(new),) or not np.isfinite(row).all() for row in margins.values()):
            raise ValueError("the margins between kinds of rows are damaged")
        new.margins = {
            (other, name): float(row[k]) for name, row in margins.items() for k, other in enumerate(sorted(new))
        }
        return new

    def renamed(self, names: Mapping[str, str]) -> Self:
        """Return the kinds whose names' first parts are in ``names``, under new ones."""
        parts = {name: name.partition(".") for name in self}
        renamed = {name: names[first] + dot + rest for name, (first, dot, rest) in parts.items() if first in names}
        new = type(self)({renamed[name]: kind for name, kind in self.items() if name in renamed})
        new.margins = {
            (renamed[a], renamed[b]): margin for (a, b), margin in self.margins.items() if {a, b} <= renamed.keys()
        }
        return new


def kind_name(side: str, modality: str | None) -> str:
    """Return the name of a kind of rows: "old", "new" or "mapped", and the modality if it is known."""
    return side if modality is None else f"{side}.{modality}"


def names_of(kinds: Iterable[str], side: str) -> dict[str | None, str]:
    """Return the names of the kinds of one side, by modality."""
    return {name.partition(".")[2] or None: name for name in kinds if name.partition(".")[0] == side}
