"""A fitted rotation with the means of its modalities: inverse, composition, and its saved form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self, overload

import numpy as np
from numpy.typing import ArrayLike

from congruence._utils.arrays import as_given, cast_like, to_numpy
from congruence._utils.typing import Array, ArrowStream, RowsLike, TensorT
from congruence._utils.validation import check_width
from congruence.embeddings import Space, check_space
from congruence.linalg.moments import CrossMoments, pooled_cross
from congruence.linalg.procrustes import cross_svd
from congruence.maps._affine import AffineMap
from congruence.maps._checks import GivenMeans, check_native, check_same_kind
from congruence.maps._saved import check_rotation, given_rows


class RotationMap(AffineMap):
    """A map ``z ↦ (z − μ_A) @ rotation + μ_B`` that has, once fitted, means μ_A and μ_B for each modality.

    A subclass has a parameter ``center`` and sets the attributes in ``fit``.
    """

    center: bool
    rotation_: np.ndarray
    singular_values_: np.ndarray
    gains_: np.ndarray
    rank_: int
    mean_directions_: int
    modality_: str | None
    modality_means_: dict[str, tuple[np.ndarray, np.ndarray]]
    moments_: dict[str, CrossMoments]
    given_means_: dict[str, GivenMeans]

    @property
    def matrix(self) -> np.ndarray:
        """The rotation, shape (d_source, d_target), float64."""
        self.check_fitted()
        return self.rotation_

    @overload
    def inverse_transform(self, Z: TensorT) -> TensorT: ...
    @overload
    def inverse_transform(self, Z: ArrayLike | ArrowStream) -> np.ndarray: ...
    def inverse_transform(self, Z: RowsLike) -> Array:
        """Map target rows back: ``(Z − μ_B) @ rotationᵀ + μ_A``.

        If the map is an isometry, this exactly inverts :meth:`transform`; otherwise the components that :meth:`transform` removed or
        shrank are not restored.

        Parameters
        ----------
        Z : array_like or tensor, shape (m, d_target)

        Returns
        -------
        ndarray or tensor, shape (m, d_source)
            As for :meth:`transform`.

        Raises
        ------
        ShapeError, DtypeError, NotFiniteError, NotFittedMapError
            If arrays have the wrong shape, are not real numbers or contain NaN or infinity, or the map is not fitted.
        """
        self.check_fitted()
        A = check_native(Z, "Z")
        check_width(A.shape[1], self.d_target, type(self).__name__ + ".inverse_transform", self.n_features_in_)
        transposed = self.rotation_.T
        out = A @ cast_like(transposed, A) + cast_like(self.source_mean_ - self.target_mean_ @ transposed, A)
        return as_given(out, Z)

    def inverse(self) -> Self:
        """Return the map from target to source, equal to the map fitted with source and target exchanged.

        Returns
        -------
        OrthogonalMap

        Raises
        ------
        NotFittedMapError
            If the map is not fitted.
        """
        self.check_fitted()
        new = self._like()
        new.moments_ = {name: moments.swap() for name, moments in self.moments_.items()}
        self._set(
            new,
            rotation=np.ascontiguousarray(self.rotation_.T),
            means=(self.target_mean_, self.source_mean_),
            table={name: (b, a) for name, (a, b) in self.modality_means_.items()},
            source=self.target_space_,
            target=self.source_space_,
        )
        for name, means in self.given_means_.items():
            new._set_means(name, GivenMeans(means.target, means.source, means.n_target or None, means.n_source))
        return new

    def then(self, other: Self) -> Self:
        """Return the map that applies this map and then ``other``.

        The two maps may have different means in the intermediate space; the result accounts for this. Modalities that both maps know keep their own means.

        Parameters
        ----------
        other : OrthogonalMap
            From this map's target to a third space.

        Returns
        -------
        OrthogonalMap

        Raises
        ------
        ParameterError
            If ``other`` is a map of another kind.
        ShapeError, SpaceMismatchError
            If ``other`` does not start from this map's target: its width or its model differs.
        NotFittedMapError
            If one of the maps is not fitted.
        """
        check_same_kind(self, other, "compose")
        self.check_fitted()
        other.check_fitted()
        check_width(self.d_target, other.n_features_in_, "the second " + type(other).__name__)
        check_intermediate(self.target_space_, other.source_space_)
        rotation = self.rotation_ @ other.rotation_

        def join(
            first: tuple[np.ndarray, np.ndarray], second: tuple[np.ndarray, np.ndarray]
        ) -> tuple[np.ndarray, np.ndarray]:
            return first[0], second[1] + (first[1] - second[0]) @ other.rotation_

        new = self._like()
        new.moments_ = {}
        self._set(
            new,
            rotation=rotation,
            means=join((self.source_mean_, self.target_mean_), (other.source_mean_, other.target_mean_)),
            table={
                name: join(self.modality_means_[name], other.modality_means_[name])
                for name in self.modality_means_
                if name in other.modality_means_
            },
            source=self.source_space_,
            target=other.target_space_,
        )
        new.given_means_ = {}
        gains = np.linalg.svd(rotation, compute_uv=False)
        new.gains_ = new.singular_values_ = gains
        new.rank_ = int(np.count_nonzero(gains > 1e-8))
        new.mean_directions_ = 0
        new.n_pairs_ = min(self.n_pairs_, other.n_pairs_)
        new.facts_ = new._measure("composed", rotation.shape, None)
        return new

    def covered_share(self, X: RowsLike) -> np.ndarray:
        """Return the share of each centered row's variance (norm²) in directions the anchors cover.

        Parameters
        ----------
        X : array_like, shape (m, d_source)

        Returns
        -------
        ndarray of float64, shape (m,)
            In [0, 1]. The fit has no information about the remaining component: it is dropped or, with ``shrinkage="full"``,
            rotated arbitrarily. A row equal to the mean counts as 1.

        Raises
        ------
        ShapeError, DtypeError, NotFiniteError, NotFittedMapError
            If arrays have the wrong shape, are not real numbers or contain NaN or infinity, or the map is not fitted.
        """
        A = to_numpy(self._check_source(X))
        basis = self._covered_basis()
        centered = A - self.source_mean_
        total = np.einsum("ij,ij->i", centered, centered)
        covered = np.square(centered @ basis).sum(axis=1)
        return np.minimum(np.divide(covered, total, out=np.ones(len(A)), where=total > 0), 1.0)

    def _covered_basis(self) -> np.ndarray:
        # Under "full" the rotation does not show which directions were covered.
        if self.gains_[self.rank_ :].any() and self.moments_:
            matrix, max_rank = pooled_cross(list(self.moments_.values()), center=self.center), self.n_pairs_
        else:
            matrix, max_rank = self.rotation_, self.rank_ + self.mean_directions_
        return cross_svd(matrix, max_rank=max_rank, complete=False).U[:, : self.rank_ + self.mean_directions_]

    def _measure(self, shrinkage: str, shape: tuple[int, ...], alignment: float | None) -> dict[str, object]:
        d_source, d_target = shape
        facts: dict[str, object] = {
            "shrinkage_used": shrinkage,
            "n_pairs": self.n_pairs_,
            "rank": self.rank_,
            "mean_directions": self.mean_directions_,
            "directions": min(shape),
            "is_isometry": bool(d_source <= d_target and np.allclose(self.gains_, 1)),
            "is_projection": d_source > d_target,
            "mean_gain": float(self.gains_.mean()),
            "modality": self.modality_,
            "modalities": sorted(self.modality_means_),
        }
        if alignment is not None:
            facts["alignment"] = alignment
        if self.given_means_:
            facts["mean_rows"] = self._mean_rows()
        return facts

    def _like(self) -> Self:
        """Return a new, unfitted map with the same parameters and spaces."""
        new = type(self)(**self.get_params())
        new.source_space_, new.target_space_ = self.source_space_, self.target_space_
        new.n_features_in_ = self.n_features_in_
        new.scores_, new.given_means_ = {}, {}
        return new

    @classmethod
    def _of_parts(
        cls,
        rotation: np.ndarray,
        means: tuple[np.ndarray, np.ndarray],
        table: Mapping[str, tuple[np.ndarray, np.ndarray]],
        spaces: tuple[Space, Space],
        *,
        n_pairs: int,
        center: bool,
    ) -> Self:
        """Build a map that was not fitted on pairs itself, as :meth:`then` does."""
        new = cls(center=center)
        new.moments_, new.given_means_ = {}, {}
        new.rotation_, new.n_features_in_ = rotation, rotation.shape[0]
        new.source_mean_, new.target_mean_ = means
        new.modality_means_, new.modality_ = dict(table), spaces[0].modality
        new.source_space_, new.target_space_ = spaces
        new.gains_ = new.singular_values_ = np.linalg.svd(rotation, compute_uv=False)
        new.rank_, new.mean_directions_ = int(np.count_nonzero(new.gains_ > 1e-8)), 0
        new.n_pairs_, new.scores_ = n_pairs, {}
        new.facts_ = new._measure("composed", rotation.shape, None)
        return new

    def _set(
        self,
        new: Self,
        rotation: np.ndarray,
        means: tuple[np.ndarray, np.ndarray],
        table: Mapping[str, tuple[np.ndarray, np.ndarray]],
        source: Space,
        target: Space,
    ) -> None:
        """Set the fitted attributes of a map that covers the same directions as this one."""
        new.rotation_ = rotation
        new.n_features_in_ = rotation.shape[0]
        new.source_mean_, new.target_mean_ = means
        new.modality_means_ = dict(table)
        new.given_means_ = dict(self.given_means_)
        new.modality_ = self.modality_
        new.source_space_, new.target_space_ = source, target
        new.singular_values_, new.gains_, new.rank_ = self.singular_values_, self.gains_, self.rank_
        new.mean_directions_ = self.mean_directions_
        new.n_pairs_ = self.n_pairs_
        new.facts_ = {**self.facts_, **new._measure(self.facts_["shrinkage_used"], rotation.shape, None)}

    def _set_means(self, modality: str, means: GivenMeans) -> None:
        """Store means that were given and, for :meth:`_restore`, the number of rows behind them."""
        self.given_means_[modality] = means
        self.facts_ = {**self.facts_, "mean_rows": self._mean_rows()}

    def _mean_rows(self) -> dict[str, list[float | None]]:
        return {name: [means.n_source, means.n_target] for name, means in self.given_means_.items()}

    def state(self) -> dict[str, np.ndarray]:
        """Return rotation, means, spectrum and moments as arrays."""
        self.check_fitted()
        arrays = {
            "rotation": self.rotation_,
            "source_mean": self.source_mean_,
            "target_mean": self.target_mean_,
            "singular_values": self.singular_values_,
            "gains": self.gains_,
        }
        for name, (a, b) in self.modality_means_.items():
            arrays[f"means.{name}.source"] = a
            arrays[f"means.{name}.target"] = b
        for name, moments in self.moments_.items():
            arrays.update({f"moments.{name}.{key}": value for key, value in moments.state().items()})
        return arrays

    def _restore(self, arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> None:
        groups: dict[str, dict[str, np.ndarray]] = {}
        means: dict[str, dict[str, np.ndarray]] = {}
        for key, value in arrays.items():
            table, _, path = key.partition(".")
            if table in ("moments", "means"):
                name, _, part = path.rpartition(".")
                (groups if table == "moments" else means).setdefault(name, {})[part] = value
        check_rotation(arrays, facts, groups, means)
        self.moments_ = {name: CrossMoments.from_state(state) for name, state in groups.items()}
        self.modality_means_ = {name: (m["source"], m["target"]) for name, m in means.items()}
        self.rotation_ = arrays["rotation"]
        self.source_mean_, self.target_mean_ = arrays["source_mean"], arrays["target_mean"]
        self.singular_values_, self.gains_ = arrays["singular_values"], arrays["gains"]
        self.given_means_ = {
            name: GivenMeans(*self.modality_means_[name], *counts)
            for name, counts in given_rows(facts, self.modality_means_, self.moments_).items()
        }
        self.rank_, self.n_pairs_ = facts["rank"], facts["n_pairs"]
        self.mean_directions_ = facts["mean_directions"]
        self.modality_ = facts.get("modality")
        self.n_features_in_ = self.rotation_.shape[0]
        self.facts_ = dict(facts)


def check_intermediate(end: Space, start: Space) -> None:
    """Check that the space in which one map ends is the space in which the next starts, as far as known; modalities may differ.

    Raises
    ------
    SpaceMismatchError
        If the spaces are known to differ.
    """
    check_space(replace(end, normalized=None), start, Space(), modality=False)
