"""The rigid map: one rotation between two spaces, shared by every modality."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np

from congruence._utils.arrays import as_given, beside, to_numpy
from congruence._utils.validation import check_choice, check_positive, check_seed, check_width
from congruence.embeddings import MODALITIES, Space, check_space, has_unit_rows
from congruence.errors import (
    DegenerateWarning,
    InputError,
    ModalityError,
    ParameterError,
    ProjectionWarning,
    ShapeError,
    TooFewAnchorsError,
)
from congruence.linalg.moments import CrossMoments, pooled_cross, pooled_size
from congruence.linalg.procrustes import cross_svd, rotation_from_svd
from congruence.linalg.shrinkage import SHRINKAGES, Group, choose_gains, cross_validate, mean_isometry
from congruence.maps._base import AffineMap, check_mean, check_native, check_same_kind
from congruence.maps._saved import check_rotation

__all__ = ["OrthogonalMap", "check_middle"]

#: Attributes computed from the moments; ``partial_fit`` drops them and the next use computes them again.
_SOLVED = (
    "rotation_",
    "source_mean_",
    "target_mean_",
    "modality_means_",
    "modality_",
    "singular_values_",
    "gains_",
    "rank_",
    "mean_directions_",
    "n_pairs_",
    "facts_",
)


class OrthogonalMap(AffineMap):
    """Procrustes rotation between two embedding spaces: ``z ↦ (z − μ_A) @ rotation + μ_B``.

    Fitted on pairs of one modality, it carries every modality of a dual encoder; each keeps its own means
    (:meth:`recenter`, :meth:`for_modality`).

    Parameters
    ----------
    center : bool, default=True
        Remove the means before fitting and exchange them when carrying. ``False`` is the paper's uncentered ablation.
    shrinkage : {"auto", "full", "probed", "wiener", "soft", "cv"}, default="auto"
        What to do with singular directions s, u, v of the anchors' cross-covariance.

        * ``"full"``: the textbook solution ``U Vᵀ`` of the paper's §6. Directions the anchors never probed
          are filled with an arbitrary rotation.
        * ``"probed"``: the partial isometry ``U_r V_rᵀ`` of the directions the anchors probed: all that is
          identifiable (Thm C.16).
        * ``"wiener"``: gain s² / (s² + τ²), the noise level τ read off the anchors
          (:func:`congruence.linalg.shrinkage.wiener_gains`). Exact data give the exact isometry. Where few anchors leave
          directions unprobed and their means correspond, the direction of the means counts as probed
          (:func:`congruence.linalg.shrinkage.mean_isometry`).
        * ``"soft"``: gain s / (s + strength · s₁).
        * ``"cv"``: ``"wiener"`` with the strength under which held-out pairs are likeliest, by five-fold cross-validation
          and a softmax over cosines.
        * ``"auto"``: ``"wiener"``, or ``"full"`` with ``allow_reflection=False``.
    shrinkage_strength : float, optional
        Of ``"wiener"`` (default 0.1) and ``"soft"`` (default 0.003); the other spectra have none.
    allow_reflection : bool, default=True
        Without, the map is a rotation of determinant 1, SO(d). This needs equal widths and no shrinkage.
    random_state : int, default=0
        Fixes the folds of ``shrinkage="cv"``.

    Attributes
    ----------
    rotation_ : ndarray of float64, shape (d_source, d_target)
        Acts on rows from the right: the transpose of the paper's ``Q``.
    source_mean_, target_mean_ : ndarray of float64
        Means the map exchanges; zeros when ``center=False``.
    singular_values_ : ndarray, shape (min(d_source, d_target),)
        Of the mean cross-covariance of the anchors.
    gains_ : ndarray, shape (min(d_source, d_target),)
        Factor applied to each singular direction; all 1 for a textbook rotation.
    rank_ : int
        Number of directions the anchors probed.
    mean_directions_ : int
        Directions added because the anchors' means correspond.
    modality_means_ : dict of str to (ndarray, ndarray)
        Source and target mean of every modality the map knows.
    moments_ : dict of str to CrossMoments
        What was gathered from the anchors, by modality; saved, so that a loaded map can be continued or merged.
    n_pairs_ : int
        Pairs with positive weight.
    cv_strength_, cv_scores_ : float, ndarray
        Strength chosen and mean log-probability of held-out pairs for each of
        :data:`congruence.linalg.shrinkage.CV_STRENGTHS`, under
        ``shrinkage="cv"``.

    Raises
    ------
    InputError
        See :mod:`congruence.errors`; every kind of bad input has its own class.

    Warns
    -----
    ProjectionWarning
        d_source > d_target: the map is then a projection, not an isometry.
    DegenerateWarning
        ``shrinkage="full"`` with fewer probed directions than dimensions.

    References
    ----------
    Gupta et al. (2026), "Canonicalizing Multimodal Contrastive Representation Learning", §6, Thm C.16 and
    appendix D.4.1 (whose Algorithm 1 deploys the transpose of what it fits; this class does not).
    Schönemann (1966), "A generalized solution of the orthogonal Procrustes problem".

    Examples
    --------
    >>> import numpy as np
    >>> from congruence import OrthogonalMap
    >>> from congruence.synthetic import rigid_problem
    >>> problem = rigid_problem(n=200, d_source=16, random_state=0)
    >>> mapping = OrthogonalMap().fit(problem.X, problem.Y)
    >>> bool(np.allclose(mapping.transform(problem.X), problem.Y))
    True
    """

    kind: ClassVar[str] = "orthogonal"

    rotation_: np.ndarray
    singular_values_: np.ndarray
    gains_: np.ndarray
    rank_: int
    mean_directions_: int
    modality_: str | None
    modality_means_: dict[str, tuple[np.ndarray, np.ndarray]]
    moments_: dict[str, CrossMoments]
    cv_strength_: float
    cv_scores_: np.ndarray

    def __init__(
        self,
        center: bool = True,
        shrinkage: str = "auto",
        shrinkage_strength: float | None = None,
        allow_reflection: bool = True,
        random_state: int = 0,
    ) -> None:
        self.center = center
        self.shrinkage = shrinkage
        self.shrinkage_strength = shrinkage_strength
        self.allow_reflection = allow_reflection
        self.random_state = random_state

    # ------------------------------------------------------------------ fitting

    def fit(self, X: Any, Y: Any = None, sample_weight: Any = None, modality: Any = None, *, y: Any = None) -> Self:
        """Fit the rotation on rows paired by position.

        Parameters
        ----------
        X : array_like, shape (n, d_source)
            float16, float32 or float64; sums are float64. Not modified.
        Y : array_like, shape (n, d_target)
        sample_weight : array_like, shape (n,), optional
            Non-negative; integer weights act like repeated rows.
        modality : str or sequence of str, shape (n,), optional
            Modality of the rows. Rows of different modalities are centered apart and their
            cross-covariances add.
        y : array_like, optional
            Another name for ``Y``, as scikit-learn's tools pass it.

        Returns
        -------
        Self
        """
        self._start()
        Y = y if Y is None else Y
        groups = self._gather(X, Y, sample_weight, modality, reset=True)
        if self.shrinkage == "cv":
            self.cv_strength_, self.cv_scores_ = cross_validate(
                groups, center=self.center, random_state=self.random_state
            )
        return self._solve()

    def partial_fit(
        self, X: Any, Y: Any = None, sample_weight: Any = None, modality: Any = None, *, y: Any = None
    ) -> Self:
        """Add pairs to those already seen; the result equals one fit on all of them.

        The rotation is computed when it is next needed, so many small batches cost no more than one large.

        Parameters
        ----------
        X, Y, sample_weight, modality, y
            As for :meth:`fit`. A batch may hold a single pair, as long as two have been seen when the map is used.

        Returns
        -------
        Self
        """
        if self.shrinkage == "cv":
            raise ParameterError(
                'Got shrinkage="cv" for partial_fit; expected a shrinkage that needs no second pass over the rows. '
                'Pass shrinkage="auto".'
            )
        first = not self.__dict__.get("moments_")
        if first and "rotation_" in self.__dict__:
            raise ParameterError("Got a composed map to continue; expected a map fitted on pairs. Fit a new one.")
        if first:
            self._start()
        self._gather(X, y if Y is None else Y, sample_weight, modality, reset=first, min_pairs=1)
        return self

    def merge(self, other: OrthogonalMap) -> OrthogonalMap:
        """Return the map fitted on the pairs of both maps together.

        Parameters
        ----------
        other : OrthogonalMap
            Fitted with the same parameters on other pairs of the same two models, for example on another shard.

        Returns
        -------
        OrthogonalMap

        Raises
        ------
        ParameterError, ShapeError
        """
        check_same_kind(self, other, "merge")
        if self.get_params() != other.get_params():
            raise ParameterError(
                f"Got maps with parameters {self.get_params()} and {other.get_params()}; expected the same. Fit both with the same parameters."
            )
        if self.shrinkage == "cv":
            raise ParameterError(
                'Got shrinkage="cv" to merge; expected a shrinkage that needs no second pass over the rows. '
                'Pass shrinkage="auto".'
            )
        if not (self.moments_ and other.moments_):
            raise ParameterError("Got a composed map to merge; expected maps fitted on pairs. Merge before composing.")
        new = self._like(self)
        new.moments_ = {name: moments.copy() for name, moments in self.moments_.items()}
        for name, moments in other.moments_.items():
            new.moments_[name] = new.moments_[name].merge(moments) if name in new.moments_ else moments.copy()
        ours, theirs = new.source_space_, new.target_space_
        new.source_space_ = replace(ours, normalized=ours.normalized and other.source_space_.normalized)
        new.target_space_ = replace(theirs, normalized=theirs.normalized and other.target_space_.normalized)
        return new._solve()

    def _start(self) -> None:
        check_choice(self.shrinkage, SHRINKAGES, "shrinkage")
        if self.shrinkage_strength is not None:
            check_positive(self.shrinkage_strength, "shrinkage_strength", zero=True)
        if self.random_state is not None:
            check_seed(self.random_state)
        self.moments_ = {}
        for name in (*_SOLVED, "cv_strength_", "cv_scores_"):
            self.__dict__.pop(name, None)

    def _gather(
        self, X: Any, Y: Any, sample_weight: Any, modality: Any, *, reset: bool, min_pairs: int = 2
    ) -> list[Group]:
        """Check rows, add them to the moments of their modality, and return them by modality."""
        A, B, weights = self._check_pairs(X, Y, sample_weight, reset=reset, min_pairs=min_pairs)
        seen = next((len(m.target_mean) for m in self.moments_.values()), B.shape[1])
        if B.shape[1] != seen:
            raise ShapeError(
                f"Got target rows of width {B.shape[1]}; expected {seen} as before. Pass vectors of the same two models."
            )
        if not self.allow_reflection and A.shape[1] != B.shape[1]:
            raise ParameterError(
                f"Got allow_reflection=False for widths {A.shape[1]} and {B.shape[1]}; expected equal widths, since only a square "
                "matrix has a determinant. Leave out allow_reflection=False."
            )
        if not self.allow_reflection and self.shrinkage not in ("auto", "full"):
            raise ParameterError(
                f'Got allow_reflection=False with shrinkage={self.shrinkage!r}; expected "full", since a partial map has no '
                'determinant. Pass shrinkage="full", or leave out allow_reflection=False.'
            )
        groups = []
        for name, rows in _split_modalities(modality, len(A)):
            a, b = (A, B) if rows is None else (A[rows], B[rows])
            w = weights if weights is None or rows is None else weights[rows]
            if name not in self.moments_:
                self.moments_[name] = CrossMoments(A.shape[1], B.shape[1])
            self.moments_[name].update(a, b, w)
            groups.append(Group(a, b, w))
        for name in _SOLVED:
            self.__dict__.pop(name, None)
        if reset:
            self._remember(A, B)
            names = list(self.moments_)
            if len(names) == 1 and names[0]:
                self.source_space_ = replace(self.source_space_, modality=names[0])
                self.target_space_ = replace(self.target_space_, modality=names[0])
        else:  # unit rows are known as such while all are
            ours, theirs = self.source_space_, self.target_space_
            self.source_space_ = replace(ours, normalized=ours.normalized and has_unit_rows(A))
            self.target_space_ = replace(theirs, normalized=theirs.normalized and has_unit_rows(B))
        return groups

    def _shrinkage(self) -> str:
        if self.shrinkage == "auto":
            return "wiener" if self.allow_reflection else "full"
        return "wiener" if self.shrinkage == "cv" else self.shrinkage

    def _strength(self) -> float | None:
        return self.cv_strength_ if self.shrinkage == "cv" else self.shrinkage_strength

    def __getattr__(self, name: str) -> Any:
        # Reached only for attributes that are missing: solve lazily after partial_fit.
        if name in _SOLVED and self.__dict__.get("moments_"):
            self._solve()
            return self.__dict__[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _solve(self) -> Self:
        moments = list(self.moments_.values())
        pairs = sum(m.rows for m in moments)
        if pairs < 2:
            raise TooFewAnchorsError(
                f"Got {pairs} pair in all; expected at least 2. Pass more pairs to partial_fit before using the map."
            )
        cross = pooled_cross(moments, center=self.center)
        most = pairs - len(moments) if self.center else pairs
        size = pooled_size(moments, center=self.center)
        svd = cross_svd(cross, max_rank=most, scale=size)
        if svd.rank == 0:
            raise InputError(
                f"Got {pairs} pairs that do not vary together (constant rows on a side, or pairs that "
                "cancel); expected anchors that vary. Pass other anchors."
            )
        alignment = float(svd.s.sum() / size)
        shrinkage, shrinkage_strength, gains = choose_gains(self._shrinkage(), svd, alignment, self._strength())
        self.rotation_ = rotation_from_svd(svd, gains, allow_reflection=self.allow_reflection)
        self.mean_directions_ = 0
        if shrinkage == "wiener" and self.center and svd.rank < len(svd.s):
            extra, self.mean_directions_ = mean_isometry(svd, [(m.source_mean, m.target_mean) for m in moments])
            self.rotation_ += extra
        self.singular_values_ = svd.s
        self.gains_ = gains
        self.rank_ = svd.rank
        self.n_pairs_ = pairs
        self.modality_means_ = {
            name: (m.source_mean, m.target_mean) for name, m in self.moments_.items() if name and self.center
        }
        first = min(self.moments_)
        self.modality_ = first or None
        zeros = np.zeros(cross.shape[0]), np.zeros(cross.shape[1])
        means = (self.moments_[first].source_mean, self.moments_[first].target_mean) if self.center else zeros
        self.source_mean_, self.target_mean_ = means
        self.facts_ = self._measure(shrinkage, cross.shape, alignment)
        self.facts_["shrinkage_strength_used"] = shrinkage_strength
        self._warn(shrinkage)
        return self

    def _measure(self, shrinkage: str, shape: tuple[int, ...], alignment: float | None) -> dict[str, Any]:
        d_source, d_target = shape
        facts: dict[str, Any] = {
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
        return facts

    def _warn(self, shrinkage: str) -> None:
        d_source, d_target = self.rotation_.shape
        if d_source > d_target:
            warnings.warn(
                f"Got d_source={d_source} > d_target={d_target}; expected a target at least as wide, since the map is a projection, "
                f"which loses {d_source - d_target} dimensions and is no isometry. Exchange the two models to keep distances.",
                ProjectionWarning,
                stacklevel=4,
            )
        if shrinkage == "full" and self.rank_ < len(self.gains_):
            warnings.warn(
                f"Got anchors that cover {self.rank_} of {len(self.gains_)} directions; expected all, since the other "
                f'{len(self.gains_) - self.rank_} are filled with an arbitrary rotation under shrinkage="full". '
                'Add anchors, or pass shrinkage="auto".',
                DegenerateWarning,
                stacklevel=4,
            )

    # ------------------------------------------------------------------ geometry

    @property
    def matrix(self) -> np.ndarray:
        """The rotation, shape (d_source, d_target), float64."""
        self._check_fitted()
        return self.rotation_

    def inverse_transform(self, Z: Any) -> Any:
        """Carry target rows back: ``(Z − μ_B) @ rotationᵀ + μ_A``.

        Exact on what :meth:`transform` returns when the map is an isometry; otherwise the part that was lost
        or faded stays so.

        Parameters
        ----------
        Z : array_like or tensor, shape (m, d_target)

        Returns
        -------
        ndarray or tensor, shape (m, d_source)
            As from :meth:`transform`.
        """
        self._check_fitted()
        A = check_native(Z, "Z")
        check_width(A.shape[1], self.d_target, type(self).__name__ + ".inverse_transform", self.n_features_in_)
        back = self.rotation_.T
        out = A @ beside(back, A) + beside(self.source_mean_ - self.target_mean_ @ back, A)
        return as_given(out, Z)

    def inverse(self) -> OrthogonalMap:
        """Return the map from target to source: the one a fit with the sides exchanged would give.

        Returns
        -------
        OrthogonalMap
        """
        self._check_fitted()
        new = self._like(self)
        new.moments_ = {name: moments.swap() for name, moments in self.moments_.items()}
        self._set(
            new,
            rotation=np.ascontiguousarray(self.rotation_.T),
            means=(self.target_mean_, self.source_mean_),
            table={name: (b, a) for name, (a, b) in self.modality_means_.items()},
            source=self.target_space_,
            target=self.source_space_,
        )
        return new

    def then(self, other: OrthogonalMap) -> OrthogonalMap:
        """Return the map that applies this one and then ``other``.

        Means stay right: the middle means need not be equal. Modalities known to both keep their own.

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
        """
        check_same_kind(self, other, "compose")
        self._check_fitted()
        other._check_fitted()
        check_width(self.d_target, other.n_features_in_, "the second " + type(other).__name__)
        check_middle(self.target_space_, other.source_space_)
        rotation = self.rotation_ @ other.rotation_

        def join(first: tuple[np.ndarray, np.ndarray], second: tuple[np.ndarray, np.ndarray]) -> tuple[Any, Any]:
            return first[0], second[1] + (first[1] - second[0]) @ other.rotation_

        new = self._like(self)
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
        gains = np.linalg.svd(rotation, compute_uv=False)
        new.gains_ = new.singular_values_ = gains
        new.rank_ = int(np.count_nonzero(gains > 1e-8))
        new.mean_directions_ = 0
        new.n_pairs_ = min(self.n_pairs_, other.n_pairs_)
        new.facts_ = new._measure("composed", rotation.shape, None)
        return new

    def recenter(self, source_mean: Any, target_mean: Any = None, *, modality: str | None = None) -> OrthogonalMap:
        """Return a map with the same rotation and the means of another modality.

        Parameters
        ----------
        source_mean : array_like, shape (d_source,) or (m, d_source), or Embeddings
            Mean of that modality in the source model, or rows to average.
        target_mean : array_like, shape (d_target,) or (m, d_target), or Embeddings, optional
            The same in the target model. When it is not given, the gap between the two modalities' source
            means is carried over the rotation: ``μ_B + (source_mean − μ_A) @ rotation``.
        modality : str, optional
            Name under which the new map keeps these means for :meth:`for_modality`.

        Returns
        -------
        OrthogonalMap

        Notes
        -----
        Carrying the gap is exact when one rotation about one offset relates both modalities, which is the
        paper's model (Remark C.15), and when the anchors probed the direction of the gap. It then makes the
        carried map the same function as the original one. Two contrastive models need not
        have gaps of the same length, so a real target mean, even from a few dozen rows, is better.
        """
        self._check_fitted()
        d_source, d_target = self.rotation_.shape
        a = check_mean(source_mean, d_source, "source_mean")
        if target_mean is None:
            b = self.target_mean_ + (a - self.source_mean_) @ self.rotation_
        else:
            b = check_mean(target_mean, d_target, "target_mean")
        new = self._like(self)
        new.moments_ = self.moments_
        table = dict(self.modality_means_)
        if modality is not None:
            check_choice(modality, MODALITIES, "modality")
            table[modality] = (a, b)
        self._set(new, self.rotation_, (a, b), table, self.source_space_, self.target_space_)
        new._activate(modality)
        return new

    def for_modality(self, modality: str | None) -> OrthogonalMap:
        """Return the map with the means of one of its modalities.

        Parameters
        ----------
        modality : str or None
            ``None`` returns the map as it is.

        Returns
        -------
        OrthogonalMap

        Raises
        ------
        ModalityError
            If the map has no means for it. A map fitted without naming a modality accepts any.
        """
        self._check_fitted()
        if modality is None or modality == self.modality_:
            return self
        check_choice(modality, MODALITIES, "modality")
        if modality in self.modality_means_:
            new = self._like(self)
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

    def probed_energy(self, X: Any) -> np.ndarray:
        """Return the share of each centered row's energy in directions the anchors probed.

        Parameters
        ----------
        X : array_like, shape (m, d_source)

        Returns
        -------
        ndarray of float64, shape (m,)
            In [0, 1]. What is missing to 1 was never seen by the fit: it is dropped, or, under ``shrinkage="full"``,
            turned arbitrarily. A row equal to the mean counts as 1.
        """
        A = to_numpy(self._check_source(X))
        basis = self._probed_basis()
        centered = A - self.source_mean_
        total = np.einsum("ij,ij->i", centered, centered)
        probed = np.square(centered @ basis).sum(axis=1)
        return np.minimum(np.divide(probed, total, out=np.ones(len(A)), where=total > 0), 1.0)

    def _probed_basis(self) -> np.ndarray:
        if self.gains_[self.rank_ :].any() and self.moments_:  # "full": the rotation hides what was probed
            return cross_svd(pooled_cross(list(self.moments_.values()), center=self.center)).U[:, : self.rank_]
        return np.linalg.svd(self.rotation_, full_matrices=False)[0][:, : self.rank_ + self.mean_directions_]

    # ------------------------------------------------------------------ copies and saving

    @staticmethod
    def _like(other: OrthogonalMap) -> OrthogonalMap:
        new = OrthogonalMap(**other.get_params())
        new.source_space_, new.target_space_ = other.source_space_, other.target_space_
        new.n_features_in_ = other.n_features_in_
        new.scores_ = {}
        return new

    def _set(
        self,
        new: OrthogonalMap,
        rotation: np.ndarray,
        means: tuple[np.ndarray, np.ndarray],
        table: Mapping[str, tuple[np.ndarray, np.ndarray]],
        source: Space,
        target: Space,
    ) -> None:
        """Fill a copy of this map that moves the same directions, with what differs given."""
        new.rotation_ = rotation
        new.n_features_in_ = rotation.shape[0]
        new.source_mean_, new.target_mean_ = means
        new.modality_means_ = dict(table)
        new.modality_ = self.modality_
        new.source_space_, new.target_space_ = source, target
        new.singular_values_, new.gains_, new.rank_ = self.singular_values_, self.gains_, self.rank_
        new.mean_directions_ = self.mean_directions_
        new.n_pairs_ = self.n_pairs_
        new.facts_ = {**self.facts_, **new._measure(self.facts_["shrinkage_used"], rotation.shape, None)}

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
        self.rank_, self.n_pairs_ = facts["rank"], facts["n_pairs"]
        self.mean_directions_ = facts["mean_directions"]
        self.modality_ = facts.get("modality")
        self.n_features_in_ = self.rotation_.shape[0]
        self.facts_ = dict(facts)


def check_middle(end: Space, start: Space) -> None:
    """Refuse to compose maps whose middle spaces are known to differ (modalities may)."""
    check_space(replace(end, normalized=None), start, Space(), modality=False)


def _split_modalities(modality: Any, n: int) -> list[tuple[str, np.ndarray | None]]:
    """Return (name, rows) for each modality; one unnamed group when nothing was said."""
    if modality is None:
        return [("", None)]
    if isinstance(modality, str):
        return [(check_choice(modality, MODALITIES, "modality"), None)]
    names = np.asarray(modality).astype(str)
    if names.shape != (n,):
        raise InputError(
            f"Got modality of shape {names.shape} for {n} rows; expected one name, or one a row. Pass modality=… of shape ({n},)."
        )
    return [(check_choice(str(name), MODALITIES, "modality"), names == name) for name in np.unique(names)]
