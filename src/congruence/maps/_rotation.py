"""A fitted rotation with the means of its modalities: inverse, composition, means, and its saved form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self, overload

import numpy as np
from numpy.typing import ArrayLike

from congruence._utils.arrays import as_given, cast_like, to_numpy
from congruence._utils.typing import Array, ArrowStream, RowsLike, TensorT
from congruence._utils.validation import check_choice, check_width
from congruence.embeddings import MODALITIES, Embeddings, Space, check_space
from congruence.errors import ModalityError
from congruence.linalg.moments import CrossMoments, pooled_cross
from congruence.linalg.procrustes import cross_svd
from congruence.maps._affine import AffineMap
from congruence.maps._checks import GivenMeans, check_mean, check_native, check_same_kind, count_rows
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
        self._check_fitted()
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
        """
        self._check_fitted()
        A = check_native(Z, "Z")
        check_width(A.shape[1], self.d_target, type(self).__name__ + ".inverse_transform", self.n_features_in_)
        back = self.rotation_.T
        out = A @ cast_like(back, A) + cast_like(self.source_mean_ - self.target_mean_ @ back, A)
        return as_given(out, Z)

    def inverse(self) -> Self:
        """Return the map from target to source, equal to the map fitted with source and target exchanged.

        Returns
        -------
        OrthogonalMap
        """
        self._check_fitted()
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
        for name, one in self.given_means_.items():
            new._set_means(name, GivenMeans(one.target, one.source, one.n_target or None, one.n_source))
        return new

    def then(self, other: Self) -> Self:
        """Return the map that applies this map and then ``other``.

        The means of the two maps' middle space need not be equal; they are accounted for. Modalities that both maps know keep their own means.

        Parameters
        ----------
        other : OrthogonalMap
            From this map's target to a third space.

        Returns
        -------
        OrthogonalMap

        Raises
        ------
        ParameterError, ShapeError, SpaceMismatchError
            If arrays have the wrong shape; a parameter has an invalid value; or vectors belong to another space.
        """
        check_same_kind(self, other, "compose")
        self._check_fitted()
        other._check_fitted()
        check_width(self.d_target, other.n_features_in_, "the second " + type(other).__name__)
        check_middle(self.target_space_, other.source_space_)
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

    def recenter(
        self,
        source_mean: ArrayLike | Embeddings,
        target_mean: ArrayLike | Embeddings | None = None,
        *,
        modality: str | None = None,
        offset: float = 1.0,
    ) -> Self:
        """Return a map with the same rotation and the means of another modality.

        Parameters
        ----------
        source_mean : array_like, shape (d_source,) or (m, d_source), or Embeddings
            Mean of that modality in the source model, or rows to average.
        target_mean : array_like, shape (d_target,) or (m, d_target), or Embeddings, optional
            The same in the target model. If it is omitted, the gap between the two modalities' source
            means is rotated like any row: ``μ_B + (source_mean − μ_A) @ rotation``.
        modality : str, optional
            Name under which the new map stores these means for :meth:`for_modality`.
        offset : float, default=1.0
            Without ``target_mean``: share of this map's offset ``μ_B − μ_A @ rotation`` that the new map keeps. With 1 it is the same function,
            with 0 a rotation about the origin.

        Returns
        -------
        OrthogonalMap

        Notes
        -----
        Rotating the gap is exact if the same rotation and offset relate both modalities, which is the
        paper's model (Remark C.15), and if the anchors cover the direction of the gap. The
        new map is then the same function as the original one. Two contrastive models need not
        have gaps of the same length, so a measured target mean, even from a few dozen rows, is better.
        """
        self._check_fitted()
        d_source, d_target = self.rotation_.shape
        a = check_mean(source_mean, d_source, "source_mean")
        if target_mean is None:
            b = self.target_mean_ + (a - self.source_mean_) @ self.rotation_
            b = b - (1 - offset) * (self.target_mean_ - self.source_mean_ @ self.rotation_)
        else:
            b = check_mean(target_mean, d_target, "target_mean")
        new = self._like()
        new.moments_ = self.moments_
        table = dict(self.modality_means_)
        if modality is not None:
            check_choice(modality, MODALITIES, "modality")
            table[modality] = (a, b)
        self._set(new, self.rotation_, (a, b), table, self.source_space_, self.target_space_)
        if modality is not None:
            n_target = 0 if target_mean is None else count_rows(target_mean)
            new._set_means(modality, GivenMeans(a, b, count_rows(source_mean), n_target))
        new._activate(modality)
        return new

    def for_modality(self, modality: str | None) -> Self:
        """Return the map with the means of one of its modalities.

        Parameters
        ----------
        modality : str or None
            ``None`` returns the map unchanged.

        Returns
        -------
        OrthogonalMap

        Raises
        ------
        ModalityError
            If the map has no means for the modality. A map fitted without a modality name accepts any.
        """
        self._check_fitted()
        if modality is None or modality == self.modality_:
            return self
        check_choice(modality, MODALITIES, "modality")
        if modality in self.modality_means_:
            new = self._like()
            new.moments_ = self.moments_
            means = self.modality_means_[modality]
            self._set(new, self.rotation_, means, self.modality_means_, self.source_space_, self.target_space_)
            new._activate(modality)
            return new
        if not self.center or (self.modality_ is None and not self.modality_means_):
            return self
        known = sorted({*self.modality_means_, self.modality_ or ""} - {""})
        raise ModalityError(
            f"Got modality={modality!r}; expected one this map has means for ({', '.join(known)}). "
            "Pass one of these, or add the means of this one with recenter, or with means=… when fitting."
        )

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
        """
        A = to_numpy(self._check_source(X))
        basis = self._covered_basis()
        centered = A - self.source_mean_
        total = np.einsum("ij,ij->i", centered, centered)
        covered = np.square(centered @ basis).sum(axis=1)
        return np.minimum(np.divide(covered, total, out=np.ones(len(A)), where=total > 0), 1.0)

    def _covered_basis(self) -> np.ndarray:
        if self.gains_[self.rank_ :].any() and self.moments_:  # "full": the rotation hides what was covered
            whole, count = pooled_cross(list(self.moments_.values()), center=self.center), self.n_pairs_
        else:
            whole, count = self.rotation_, self.rank_ + self.mean_directions_
        return cross_svd(whole, max_rank=count, complete=False).U[:, : self.rank_ + self.mean_directions_]

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
        """Fill a copy of this map that acts on the same directions, with the given differences."""
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
        return {name: [one.n_source, one.n_target] for name, one in self.given_means_.items()}

    def _activate(self, modality: str | None) -> None:
        self.modality_ = modality
        self.source_space_ = replace(self.source_space_, modality=modality)
        self.target_space_ = replace(self.target_space_, modality=modality)
        self.facts_ = {**self.facts_, "modality": modality, "modalities": sorted(self.modality_means_)}

    def state(self) -> dict[str, np.ndarray]:
        """Return rotation, means, spectrum and moments as arrays."""
        self._check_fitted()
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
            head, _, rest = key.partition(".")
            if head in ("moments", "means"):
                name, _, part = rest.rpartition(".")
                (groups if head == "moments" else means).setdefault(name, {})[part] = value
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


def check_middle(end: Space, start: Space) -> None:
    """Refuse to compose maps whose middle spaces are known to differ (their modalities may differ)."""
    check_space(replace(end, normalized=None), start, Space(), modality=False)
