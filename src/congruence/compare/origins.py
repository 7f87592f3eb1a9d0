"""Determine which known model the rows of a store come from, and find rows that fit none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from congruence._utils.arrays import UNIT_TOLERANCE, blocks, to_numpy
from congruence._utils.ids import id_texts
from congruence._utils.typing import RowsLike
from congruence._utils.validation import check_positive, check_seed
from congruence.embeddings import Embeddings, as_embeddings
from congruence.errors import InputError, ParameterError
from congruence.linalg.shrinkage import ledoit_wolf

if TYPE_CHECKING:
    import pyarrow as pa

    from congruence.io import Source
    from congruence.maps import Map

#: Minimum number of known rows of a model: half of them model its distribution, the other half show how far its rows
#: usually are from it.
FEWEST = 40

#: Share of the known rows beyond which p-values come from a fitted tail.
_TAIL = 0.1


class OriginDetector:
    """Determine which of several known models made the rows of a store, and which rows were made by none of them.

    Parameters
    ----------
    fdr : float, default=0.01
        Largest expected share of rows of known models among those reported to belong to none.
    random_state : int, default=0
        Determines how the known rows are split.

    Attributes
    ----------
    names_ : list of str
        Names of the known models.

    Notes
    -----
    A row's p-value under a model is the rank of its Mahalanobis distance among known rows that were not used to fit the
    model, beyond the largest tenth that of a Pareto tail. A row belongs to no known model if the largest of its
    p-values is rejected by Benjamini and Hochberg's procedure at ``fdr``; otherwise it is assigned to the model under
    which it is most likely (docs/doctor.md). Rows are read once, in blocks.

    A known model is represented by rows *of one kind*: a model's texts do not represent its images, and if a store has
    other content, some of its rows belong to no known model although the model is the right one (their ``distance`` is
    then near 1, not far above).

    Examples
    --------
    >>> import numpy as np
    >>> from congruence.compare.origins import OriginDetector
    >>> rng = np.random.default_rng(0)
    >>> old, new = rng.standard_normal((2, 200, 8)) + np.array([[[3.0]], [[-3.0]]])
    >>> report = OriginDetector().fit({"old": old[:100], "new": new[:100]}).examine(np.vstack([old[100:], new[150:]]))
    >>> report.counts
    [100, 50]
    """

    names_: list[str]

    def __init__(self, fdr: float = 0.01, random_state: int = 0) -> None:
        self.fdr = fdr
        self.random_state = random_state

    def fit(self, known: Mapping[str, RowsLike] | None = None, maps: Mapping[str, Map] | None = None) -> Self:
        """Fit on rows of known models.

        Parameters
        ----------
        known : mapping of str to Embeddings or array_like, shapes (n_k, d_k)
            Rows of each model, of the store's modality: at least 40 per model, preferably a few hundred.
        maps : mapping of str to Map, optional
            Fitted maps, whose means distinguish their two models if no rows are available.
        """
        if not check_positive(self.fdr, "fdr") < 1:
            raise ParameterError(f"Got `fdr={self.fdr}`; expected a share below 1.", "Pass `fdr=0.01`, for example.")
        check_seed(self.random_state)
        rng = np.random.default_rng(self.random_state)
        rows = {name: as_embeddings(X, name).vectors for name, X in (known or {}).items()}
        for name, X in rows.items():
            if len(X) < FEWEST:
                raise InputError(f"Got {len(X)} rows of {name}; expected at least {FEWEST}.", "Pass more of its rows.")
        self.names_ = list(rows)
        self._models = {name: _Known(X, rng) for name, X in rows.items()}
        for width in {model.width for model in self._models.values()}:
            peers = [model for model in self._models.values() if model.width == width]
            for k, model in enumerate(peers):
                likely = np.array([other.log_likelihood(other.distance(*model.kept)) for other in peers])
                model.recognized = float((likely.argmax(axis=0) == k).mean())
            for model in peers:
                del model.kept
        self._means = [mean for name, mapping in (maps or {}).items() for mean in _means(name, mapping)]
        self._spans = {name: span for name, mapping in (maps or {}).items() if (span := _span(mapping)) is not None}
        return self

    def examine(self, rows: RowsLike | Source) -> OriginReport:
        """Examine the rows of a store.

        Parameters
        ----------
        rows : Embeddings, array_like of shape (n, d), or an opened source
            A source (``congruence.io.open_source``) is read once, in blocks. Rows with NaN and rows of zeros
            are reported, not refused.
        """
        if not hasattr(self, "names_"):
            raise ParameterError(
                "Got an OriginDetector that is not fitted; expected a fitted one.", "Call fit(known) first."
            )
        examination = _Examination(self)
        for ids, block in _scan(rows):
            examination.add(ids, block)
        if not examination.n:
            raise InputError("No rows.", "Pass a store with rows.")
        return examination.report()


class _Known:
    """A known model, represented by some of its rows."""

    recognized: float
    kept: tuple[np.ndarray, np.ndarray]

    def __init__(self, X: np.ndarray, rng: np.random.Generator) -> None:
        order = rng.permutation(len(X))
        unit, logs = _directions(X[np.sort(order[::2])].astype(np.float64))
        self.width = X.shape[1]
        self._mean = unit.mean(axis=0)
        values, vectors = np.linalg.eigh(ledoit_wolf(unit))
        values = np.maximum(values, 1e-12 * values[-1])
        self._root = vectors / np.sqrt(values)
        # Unit rows in another precision are still unit rows.
        self._log, self._log_sd = float(np.median(logs)), max(float(logs.std()), UNIT_TOLERANCE)
        self._volume = float(np.log(values).sum()) / 2 + np.log(self._log_sd)
        self.kept = _directions(X[np.sort(order[1::2])].astype(np.float64))
        self._sorted = np.sort(self.distance(*self.kept))
        self.median = float(np.median(self._sorted))
        tail = max(int(_TAIL * len(self._sorted)), 2)
        self._tail_start = float(self._sorted[-tail - 1])
        self._hill = max(float(np.log(self._sorted[-tail:] / self._tail_start).mean()), 1e-3)
        self._tail_share = (tail + 1) / (len(self._sorted) + 1)

    def distance(self, unit: np.ndarray, logs: np.ndarray) -> np.ndarray:
        """Return squared Mahalanobis distances, shape (n,)."""
        near = np.square((unit - self._mean) @ self._root).sum(axis=1)
        return np.asarray(near + np.square((logs - self._log) / self._log_sd))

    def log_likelihood(self, distance: np.ndarray) -> np.ndarray:
        """Return the log-likelihood of rows, up to a constant that models of the same width share."""
        return np.asarray(-distance / 2 - self._volume)

    def p_value(self, distance: np.ndarray) -> np.ndarray:
        """Return the rank of each distance among known rows; beyond a tenth, its probability in the fitted tail."""
        n = len(self._sorted)
        ranked = (1 + n - np.searchsorted(self._sorted, distance, "left")) / (n + 1)
        beyond = self._tail_share * np.maximum(distance / self._tail_start, 1.0) ** (-1 / self._hill)
        return np.asarray(np.where(distance > self._tail_start, beyond, ranked))


class _Examination:
    """Accumulates the results for the blocks of a store."""

    def __init__(self, detector: OriginDetector) -> None:
        self._detector, self.n, self.width = detector, 0, 0
        self._unit = self._finite = 0
        self._bad: list[int] = []
        self._zero: list[int] = []
        self._origin: list[np.ndarray] = []
        self._p: list[np.ndarray] = []
        self._distance: list[np.ndarray] = []
        self._ids: dict[int, str] = {}
        self._sums = np.zeros((2, len(detector._means)))
        self._mapped = dict.fromkeys(detector._spans, 0)

    def add(self, ids: pa.Array | np.ndarray | None, block: np.ndarray) -> None:
        """Add the next block of rows, unchecked."""
        detector = self._detector
        if not self.n:
            self.width = block.shape[1]
            self._models = [(name, model) for name, model in detector._models.items() if model.width == self.width]
        rows = block.astype(np.float64)
        good = np.isfinite(rows).all(axis=1)
        zero = good & ~rows.any(axis=1)
        self._bad += (np.flatnonzero(~good) + self.n).tolist()
        self._zero += (np.flatnonzero(zero) + self.n).tolist()
        use = good & ~zero
        origin, p, far = (
            np.full(len(rows), -1, np.int16),
            np.full(len(rows), np.nan, np.float32),
            np.full(len(rows), np.nan, np.float32),
        )
        if use.any():
            X = rows[use]
            unit, logs = _directions(X)
            self._finite += len(X)
            self._unit += int(np.count_nonzero(np.abs(np.expm1(logs)) < UNIT_TOLERANCE))
            if self._models:
                models = [model for _, model in self._models]
                distance = np.array([model.distance(unit, logs) for model in models])
                p_values = np.array([model.p_value(D) for model, D in zip(models, distance, strict=True)])
                likely = np.array([model.log_likelihood(D) for model, D in zip(models, distance, strict=True)])
                nearest = likely.argmax(axis=0)
                origin[use], p[use] = nearest, np.maximum(p_values.max(axis=0), 1e-30)
                typical = np.array([model.median for model in models])
                far[use] = distance[nearest, np.arange(len(X))] / typical[nearest]
                if ids is not None:
                    odd = np.flatnonzero(p <= detector.fdr)  # no other row can be rejected
                    self._ids |= dict(zip((odd + self.n).tolist(), id_texts(_take(ids, odd)).tolist(), strict=True))
            places = [k for k, mean in enumerate(detector._means) if len(mean.mean) == self.width]
            if places:
                means = [detector._means[k] for k in places]
                ratios = np.array([np.square(X - mean.mean).sum(axis=1) / mean.variance for mean in means])
                # Isotropic normal distributions about the means: the likelihood penalizes a large variance.
                nearest = (ratios + np.log([[mean.variance] for mean in means])).argmin(axis=0)
                self._sums[0, places] += np.bincount(nearest, ratios[nearest, np.arange(len(X))], len(means))
                self._sums[1, places] += np.bincount(nearest, minlength=len(means))
            for name, basis in detector._spans.items():
                if len(basis) == self.width:
                    outside = unit - (unit @ basis) @ basis.T
                    self._mapped[name] += int(np.count_nonzero(np.einsum("ij,ij->i", outside, outside) < 1e-5))
        self._origin.append(origin)
        self._p.append(p)
        self._distance.append(far)
        self.n += len(rows)

    def report(self) -> OriginReport:
        """Return the result for all blocks."""
        origin, p, far = (np.concatenate(parts) for parts in (self._origin, self._p, self._distance))
        names = [name for name, _ in self._models]
        odd = np.flatnonzero(p <= _cut(p, self._detector.fdr))
        odd = odd[np.lexsort((odd, -far[odd], p[odd]))]
        listed: list[dict[str, Any]] = [
            {
                "row": int(row),
                "id": self._ids.get(int(row)),
                "nearest": names[origin[row]],
                "p": float(p[row]),
                "distance": float(far[row]),
            }
            for row in odd
        ]
        origin[odd] = -1
        counts = [int(np.count_nonzero(origin == k)) for k in range(len(names))]
        count = max(self._finite, 1)
        by_means: list[dict[str, Any]] = [
            {"name": mean.name, "nearest": float(n / count), "distance": float(total / n) if n else np.nan}
            for mean, total, n in zip(self._detector._means, *self._sums, strict=True)
            if len(mean.mean) == self.width
        ]
        like = next((name for name, n in zip(names, counts, strict=True) if 2 * n > self.n), None)
        if not names and by_means:
            best = max(by_means, key=lambda mean: mean["nearest"])
            like = best["name"] if best["nearest"] > 0.5 and best["distance"] <= NEAR else None
        return OriginReport(
            n=self.n,
            width=self.width,
            names=names,
            counts=counts,
            recognized=[model.recognized for _, model in self._models],
            other_width={
                name: model.width for name, model in self._detector._models.items() if model.width != self.width
            },
            not_finite=self._bad,
            zero=self._zero,
            unit=self._unit / count,
            odd=listed,
            fdr=self._detector.fdr,
            by_means=by_means,
            mapped={name: n for name, n in self._mapped.items() if len(self._detector._spans[name]) == self.width},
            looks_like=like,
            origin=origin,
            p_value=p,
        )


@dataclass(frozen=True)
class _Mean:
    """A mean of a fitted map, and the mean squared distance of its rows from it at the fit."""

    name: str
    mean: np.ndarray
    variance: float


def _means(name: str, mapping: Map) -> list[_Mean]:
    """Return the means of a map's two models, by modality, with the mean squared distance from them at the fit."""
    means = []
    for modality, sides in getattr(mapping, "modality_means_", {}).items():
        for side, mean in zip(("source", "target"), sides, strict=True):
            space = getattr(mapping, f"{side}_space_", None)
            moments = getattr(mapping, "moments_", {}).get(modality)
            variance = 1 - float(mean @ mean)  # exact for unit rows
            if not getattr(space, "normalized", False):
                if moments is None:
                    continue
                variance = float(getattr(moments, f"{side}_scatter") / moments.weight)
            if mean.any() and variance > 0:
                means.append(
                    _Mean(f"{getattr(space, 'model', None) or f'{side} of {name}'}, {modality}", mean, variance)
                )
    return means


def _span(mapping: Map) -> np.ndarray | None:
    """Return an orthonormal basis (d_target, r) of the directions that a map's output spans; None if nearly all."""
    matrix, mean = getattr(mapping, "rotation_", None), getattr(mapping, "target_mean_", None)
    if matrix is None or mean is None:
        return None
    _, s, Vt = np.linalg.svd(matrix, full_matrices=False)
    rank = int(np.count_nonzero(s > 1e-6 * s[0])) if s[0] else 0
    means = [target for _, target in getattr(mapping, "modality_means_", {}).values()] or [mean]
    if rank + len(means) > 0.9 * matrix.shape[1]:  # too few directions remain outside to recognize mapped rows
        return None
    return np.asarray(np.linalg.qr(np.column_stack([Vt[:rank].T, *means]))[0])


def _directions(X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return unit rows, and the logarithms of the norms."""
    norms = np.linalg.norm(X, axis=1)
    return X / norms[:, None], np.log(norms)


def _cut(p: np.ndarray, fdr: float) -> float:
    """Return the largest p-value that Benjamini and Hochberg's procedure rejects, or −1."""
    ordered = np.sort(p[p <= fdr]).astype(np.float64)
    tested = np.count_nonzero(~np.isnan(p))
    below = np.flatnonzero(ordered <= fdr * np.arange(1, len(ordered) + 1) / max(int(tested), 1))
    return float(ordered[below[-1]]) if len(below) else -1.0


def _scan(rows: RowsLike | Source) -> Iterator[tuple[pa.Array | np.ndarray | None, np.ndarray]]:
    """Yield blocks of rows with their ids, unchecked."""
    if hasattr(rows, "scan"):
        yield from rows.scan()
        return
    ids = rows.ids if isinstance(rows, Embeddings) and rows.has_ids else None
    X = to_numpy(getattr(rows, "vectors", rows))
    if X.ndim != 2 or X.dtype.kind not in "fiu":
        X = as_embeddings(rows, "rows", allow_zero_rows=True).vectors
    for part in blocks(len(X), 32 * X.shape[1]):
        yield None if ids is None else ids[part], X[part]


def _take(ids: pa.Array | np.ndarray, rows: np.ndarray) -> pa.Array | np.ndarray:
    return ids.take(rows) if hasattr(ids, "type") else ids[rows]  # an Arrow array does not take an array as an index


#: Largest mean squared distance from a map's mean, in units of that at the fit, for which rows count as that model's
#: (docs/doctor.md).
NEAR = 1.25


@dataclass(frozen=True)
class OriginReport:
    """Result of examining the rows of a store.

    - ``n``, ``width``: Number of rows and their dimensions.
    - ``names``: Known models whose rows have this width, in the order given.
    - ``counts``: Number of rows that look like each of them.
    - ``recognized``: Share of each model's own known rows (those not used to fit it) that are assigned to it.
    - ``other_width``: Known models with another width, and that width; the rows cannot be theirs.
    - ``not_finite``, ``zero``: Numbers of rows with NaN or infinity, and of rows of zeros. They belong to no model,
      and are not counted elsewhere.
    - ``unit``: Share of the other rows that have unit norm.
    - ``odd``: Rows that belong to no known model, the least likely first: ``row``, ``id`` (None without ids),
      ``nearest`` (a known model), ``p`` and ``distance`` (squared; 1 is the median of that model's own rows). Empty
      without known rows.
    - ``fdr``: Bound on the expected share of rows of known models among ``odd``.
    - ``by_means``: For each modality and side of a map: ``name``, ``nearest`` (share of the rows that are most likely
      there, under isotropic normal distributions about the means) and ``distance`` (their mean squared distance from
      it, 1 being that at the fit; None if there are none).
    - ``mapped``: Number of rows that were written by each map, if this can be determined: a map's output may span
      fewer directions than the space has.
    - ``looks_like``: The known model that more than half of the rows look like, if any.
    - ``origin``, shape (n,): Position in ``names`` of the model that each row looks like; −1 for none.
    - ``p_value``, shape (n,): Largest p-value of each row over the known models; NaN for rows with NaN or infinity,
      for zero rows, and without known rows.
    """

    n: int
    width: int
    names: list[str]
    counts: list[int]
    recognized: list[float]
    other_width: dict[str, int]
    not_finite: list[int]
    zero: list[int]
    unit: float
    odd: list[dict[str, Any]]
    fdr: float
    by_means: list[dict[str, Any]]
    mapped: dict[str, int]
    looks_like: str | None
    origin: np.ndarray = field(repr=False)
    p_value: np.ndarray = field(repr=False)

    def to_dict(self) -> dict[str, object]:
        """Return everything except the results for individual rows as plain data."""
        return {key: value for key, value in asdict(self).items() if key not in ("origin", "p_value")}

    def summary(self) -> list[str]:
        """Return the conclusions as sentences."""
        sentences = []
        for rows, content in (
            (self.not_finite, "NaN or infinity"),
            (self.zero, "only zeros, as after a failed encoding"),
        ):
            if rows:
                sentences.append(
                    f"{_rows(len(rows))} with {content}, the first is row {rows[0]:,}: re-encode or remove."
                )
        if 0 < self.unit < 1:
            sentences.append(
                f"{self.unit:.1%} of the rows have unit norm, the others do not: they were written in two "
                "ways, or by two models."
            )
        if self.other_width:
            widths = ", ".join(f"{name} ({width}-d)" for name, width in self.other_width.items())
            sentences.append(f"The rows are {self.width}-d, so they cannot be of {widths}.")
        shares = [(count / self.n, name) for name, count in zip(self.names, self.counts, strict=True) if count]
        if not self.names:
            shares = [
                (mean["nearest"], mean["name"])
                for mean in self.by_means
                if mean["nearest"] >= 0.01 and mean["distance"] <= NEAR
            ]
        if len(shares) > 1:
            parts = ", ".join(f"{share:.1%} {name}" for share, name in sorted(shares, reverse=True))
            sentences.append(f"Rows of several models: {parts}. Scores of one query against them are not comparable.")
        elif self.looks_like:
            sentences.append(f"The rows look like those of {self.looks_like}.")
        elif self.names or self.by_means:
            sentences.append("The rows do not look like those of any known model.")
        if self.odd:
            sentences.append(
                f"{_rows(len(self.odd))} of {self.n:,} fit no known model; the least likely is row "
                f"{self.odd[0]['row']:,}."
            )
        sentences += [f"{_rows(count)} were written by the map {name}." for name, count in self.mapped.items() if count]
        known = self.names or self.by_means or self.other_width
        return (
            sentences
            if known
            else [*sentences, "There is nothing to compare the rows with: pass rows of a known model, or a map."]
        )


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"
