"""Joint-space maps with one matrix per model: the common base of Procrustes heads and canonical correlations."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np

from congruence._utils.arrays import blocks
from congruence._utils.typing import Array, Layer, RowsLike
from congruence._utils.validation import check_positive
from congruence.embeddings import normalize_rows
from congruence.errors import ParameterError
from congruence.maps import _layers
from congruence.maps._saved import check_arrays, count
from congruence.maps.two_sided import TwoSidedMap

__all__ = ["ProjectionMap", "Rows"]


@dataclass(frozen=True)
class Rows:
    """Rows of one side as used in the fit: optionally scaled to unit norm and centered, one float64 block at a time.

    Attributes
    ----------
    raw : ndarray, shape (n, d)
    normalize : bool
    shift : ndarray of float64, shape (d,)
        Vector that is subtracted: the mean of the (unit) rows, or zeros.
    average : ndarray of float64, shape (d,)
        Mean of the (unit) rows before anything is subtracted.
    """

    raw: np.ndarray
    normalize: bool
    shift: np.ndarray
    average: np.ndarray

    @classmethod
    def of(cls, raw: np.ndarray, *, normalize: bool, center: bool) -> Rows:
        """Build from raw rows, computing their mean."""
        rows = cls(raw, normalize, np.zeros(raw.shape[1]), np.zeros(raw.shape[1]))
        average = sum((rows[part].sum(axis=0) for part in rows.parts()), np.zeros(raw.shape[1])) / len(raw)
        return cls(raw, normalize, average if center else rows.shift, average)

    def __len__(self) -> int:
        return len(self.raw)

    @property
    def width(self) -> int:
        """Number of columns."""
        return self.raw.shape[1]

    @property
    def size(self) -> float:
        """√n · ‖mean row‖. Rounding error after centering is about this times machine precision."""
        return float(np.sqrt(len(self.raw)) * np.linalg.norm(self.average))

    def __getitem__(self, part: slice) -> np.ndarray:
        block = self.raw[part].astype(np.float64)
        return (normalize_rows(block) if self.normalize else block) - self.shift

    def parts(self) -> Iterator[slice]:
        """Yield slices that divide the rows into blocks of bounded memory."""
        return blocks(len(self.raw), 8 * self.width)


class ProjectionMap(TwoSidedMap):
    """Base of joint-space maps ``x ↦ (u(x) − source mean) @ source_weights``, and the same for the target.

    ``u`` scales a row to unit norm if ``normalize`` is set, and is the identity otherwise; a zero row stays zero.
    """

    n_components: int | None
    center: bool
    normalize: bool
    source_weights_: np.ndarray
    target_weights_: np.ndarray
    source_mean_: np.ndarray
    target_mean_: np.ndarray
    singular_values_: np.ndarray

    @abstractmethod
    def _check_parameters(self) -> None:
        """Raise an error if a parameter has an invalid value."""

    @abstractmethod
    def _solve(self, A: Rows, B: Rows) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
        """Return all directions of both sides (as columns), their singular values, and how many exceed rounding error."""

    def _check_all_parameters(self) -> None:
        if self.n_components is not None:
            check_positive(self.n_components, "n_components", integer=True)
        self._check_parameters()

    def _scales(self, singular: np.ndarray) -> np.ndarray | None:
        """Return the factor of each kept direction, the same on both sides; None by default."""
        return None

    def fit(self, X: RowsLike, Y: RowsLike | None = None, *, y: RowsLike | None = None) -> Self:
        """Fit both heads on rows paired by position.

        Parameters
        ----------
        X : array_like, shape (n, d_source)
        Y : array_like, shape (n, d_target)
        y : array_like, optional
            Alternative name for ``Y``, as used by scikit-learn's tools.

        Returns
        -------
        Self

        Raises
        ------
        InputError
            If the rows cannot be used; each kind of invalid input has its own class in :mod:`congruence.errors`.
        ParameterError
            If a parameter has an invalid value, or ``n_components`` is more than these pairs allow.
        """
        self._check_all_parameters()
        return self._fit(*self._check_pairs(X, y if Y is None else Y)[:2])

    def _fit(self, source: np.ndarray, target: np.ndarray) -> Self:
        """Fit both heads on rows that were already checked."""
        A, B = self._rows(source), self._rows(target)
        return self._set_solution(A, B, self._solve(A, B))

    def _rows(self, raw: np.ndarray) -> Rows:
        return Rows.of(raw, normalize=self.normalize, center=self.center)

    def _set_solution(self, A: Rows, B: Rows, solution: tuple[np.ndarray, np.ndarray, np.ndarray, int]) -> Self:
        """Set the fitted attributes from the directions that :meth:`_solve` returns."""
        U, V, singular, rank = solution
        # Constant rows carry no information, but a map must have a width: use one constant direction.
        most = max(1, min(rank, A.width, B.width, len(A) - bool(self.center)))
        if self.n_components is not None and self.n_components > most:
            raise ParameterError(
                f"Got n_components={self.n_components}; expected at most {most}, the number of directions that {len(A)} pairs of widths "
                f"{A.width} and {B.width} have in common. Pass n_components={most}, or more pairs."
            )
        k = self.n_components or most
        signs = _signs(U[:, :k], A.average)
        scales = self._scales(singular[:k])
        signs = signs if scales is None else signs * scales
        self._remember(A.raw, B.raw)
        self.n_features_in_ = A.width
        self.source_weights_, self.target_weights_ = (np.ascontiguousarray(W[:, :k] * signs) for W in (U, V))
        self.source_mean_, self.target_mean_ = A.shift, B.shift
        self.singular_values_ = singular[:most]
        self.n_pairs_ = len(A)
        self.facts_ = {"n_pairs": self.n_pairs_, "rank": rank, "directions": min(A.width, B.width)}
        return self

    @property
    def d_target(self) -> int:
        """Width of the target model's vectors."""
        return len(self.target_weights_)

    @property
    def _n_features_out(self) -> int:
        return self.source_weights_.shape[1]

    def _head(self, rows: Array, side: str) -> Array:
        if side == "source":
            mean, weights = self.source_mean_, self.source_weights_
        else:
            mean, weights = self.target_mean_, self.target_weights_
        if not isinstance(rows, np.ndarray):
            return _layers.run(self._layers(mean, weights), rows, weights.shape[1])
        # The mean is folded into one offset, so that blocks need not be copied to center them.
        offset = -(mean @ weights).astype(rows.dtype)
        weights = weights.astype(rows.dtype, copy=False)
        out = np.empty((len(rows), weights.shape[1]), dtype=rows.dtype)
        for part in blocks(len(rows), rows.shape[1] * 8):
            block = normalize_rows(rows[part]) if self.normalize else rows[part]
            np.matmul(block, weights, out=out[part])
        out += offset
        return out

    def layers(self) -> tuple[list[Layer], list[Layer]]:
        """Return both heads as ``normalize``, ``center`` and ``linear`` layers.

        Returns
        -------
        tuple of two lists of dict

        Raises
        ------
        NotFittedMapError
            If the map is not fitted.
        """
        self.check_fitted()
        source = self._layers(self.source_mean_, self.source_weights_)
        return source, self._layers(self.target_mean_, self.target_weights_)

    def _layers(self, mean: np.ndarray, weights: np.ndarray) -> list[Layer]:
        layers: list[Layer] = [{"kind": "normalize"}] if self.normalize else []
        if self.center:
            layers.append({"kind": "center", "mean": mean.copy()})
        return [*layers, {"kind": "linear", "weight": weights.copy()}]

    def _form(self) -> str:
        return "unit rows" if self.normalize else "raw rows"

    def state(self) -> dict[str, np.ndarray]:
        """Return weights, means and singular values as arrays."""
        self.check_fitted()
        return {
            "source_weights": self.source_weights_,
            "target_weights": self.target_weights_,
            "source_mean": self.source_mean_,
            "target_mean": self.target_mean_,
            "singular_values": self.singular_values_,
        }

    def _restore(self, arrays: Mapping[str, np.ndarray], facts: Mapping[str, object]) -> None:
        shapes = {"source_weights": "ik", "target_weights": "ok", "source_mean": "i", "target_mean": "o"}
        check_arrays(arrays, {**shapes, "singular_values": "s"})
        self.source_weights_, self.target_weights_ = arrays["source_weights"], arrays["target_weights"]
        self.source_mean_, self.target_mean_ = arrays["source_mean"], arrays["target_mean"]
        self.singular_values_ = arrays["singular_values"]
        self.n_features_in_, width = self.source_weights_.shape
        if len(self.singular_values_) < width or (self.singular_values_ < 0).any():
            raise ValueError("negative singular values, or fewer singular values than directions")
        if self.n_components not in (None, width) or not (
            self.center or not (self.source_mean_.any() or self.target_mean_.any())
        ):
            raise ValueError("arrays that do not match the map's parameters")
        self.n_pairs_ = count(facts, "n_pairs")
        self.facts_ = dict(facts)


def _signs(U: np.ndarray, average: np.ndarray) -> np.ndarray:
    """Choose the sign of each direction such that the mean row has a positive component.

    The rule uses only inner products of the data, so rotating the inputs leaves the outputs unchanged. If the mean has no component
    in a direction, the direction's largest entry is made positive.
    """
    component = average @ U
    size = np.linalg.norm(average) * np.linalg.norm(U, axis=0)
    largest = U[np.argmax(np.abs(U), axis=0), np.arange(U.shape[1])]
    return np.where(np.where(np.abs(component) > 1e-9 * size, component, largest) < 0, -1.0, 1.0)
