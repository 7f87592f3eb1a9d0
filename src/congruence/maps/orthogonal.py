"""The orthogonal map: one rotation between two spaces, shared by every modality."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from congruence._utils.typing import RowsLike
from congruence._utils.validation import check_choice, check_positive, check_seed
from congruence.embeddings import Space, has_unit_rows
from congruence.errors import (
    DegenerateWarning,
    InputError,
    ParameterError,
    ProjectionWarning,
    ShapeError,
    TooFewAnchorsError,
)
from congruence.linalg.moments import CrossMoments, pooled_cross, pooled_size
from congruence.linalg.procrustes import cross_svd, rotation_from_svd
from congruence.linalg.shrinkage import SHRINKAGES, Group, choose_gains, cross_validate, mean_isometry
from congruence.maps._checks import Modalities, split_modalities
from congruence.maps._continued import ContinuedMap

__all__ = ["OrthogonalMap"]

#: Attributes computed from the moments. ``partial_fit`` drops them, and they are computed again when next used.
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


class OrthogonalMap(ContinuedMap):
    """Procrustes rotation between two embedding spaces: ``z ↦ (z − μ_A) @ rotation + μ_B``.

    Fitted on pairs of one modality, it maps every modality of a dual encoder; each modality has its own means
    (:meth:`recenter`, :meth:`for_modality`).

    Parameters
    ----------
    center : bool, default=True
        Subtract the source mean and add the target mean when mapping; the rotation is fitted on centered rows. ``False`` is the paper's
        uncentered ablation.
    shrinkage : {"auto", "full", "covered", "wiener", "soft", "cv"}, default="auto"
        How to weight the singular directions s, u, v of the anchors' cross-covariance. "Covered" directions are those with s above rounding error.
        * ``"full"``: the textbook solution ``U Vᵀ`` of the paper's §6. Directions that the anchors do not cover are filled with an
          arbitrary rotation.
        * ``"covered"``: the partial isometry ``U_r V_rᵀ`` of the directions that the anchors cover, which is all that can be
          identified (Thm C.16).
        * ``"wiener"``: gain s² / (s² + τ²), with the noise level τ estimated from the anchors
          (:func:`congruence.linalg.shrinkage.wiener_gains`). Noise-free data give the exact isometry. If few anchors leave directions
          uncovered and the anchors' means correspond, the direction of the means counts as covered
          (:func:`congruence.linalg.shrinkage.mean_isometry`).
        * ``"soft"``: gain s / (s + strength · s₁).
        * ``"cv"``: ``"wiener"`` with the strength that maximizes the likelihood of held-out pairs, by five-fold cross-validation
          and a softmax over cosines.
        * ``"auto"``: ``"wiener"``, or ``"full"`` with ``allow_reflection=False``.
    shrinkage_strength : float, optional
        Strength of ``"wiener"`` (default 0.1) or ``"soft"`` (default 0.003); the other settings have no strength.
    allow_reflection : bool, default=True
        If False, the map is a rotation of determinant 1, in SO(d). This requires equal widths and no shrinkage.
    random_state : int, default=0
        Determines the folds of ``shrinkage="cv"``.

    Attributes
    ----------
    rotation_ : ndarray of float64, shape (d_source, d_target)
        Multiplies rows from the right: the transpose of the paper's ``Q``.
    source_mean_, target_mean_ : ndarray of float64, shape (d_source,) and (d_target,)
        Mean subtracted from source rows and mean added to mapped rows; zeros when ``center=False``.
    singular_values_ : ndarray, shape (min(d_source, d_target),)
        Singular values of the anchors' mean cross-covariance.
    gains_ : ndarray, shape (min(d_source, d_target),)
        Factor applied to each singular direction; all 1 for a textbook rotation.
    rank_ : int
        Number of directions that the anchors cover.
    mean_directions_ : int
        Number of directions added because the anchors' means correspond.
    modality_means_ : dict of str to (ndarray, ndarray)
        Source and target mean of every modality the map knows.
    moments_ : dict of str to CrossMoments
        Sums over the anchors, by modality. They are saved, so that a loaded map can be updated or merged.
    n_pairs_ : int
        Number of pairs with positive weight.
    cv_strength_, cv_scores_ : float, ndarray, shape (len(CV_STRENGTHS),)
        With ``shrinkage="cv"``: the strength chosen, and the mean log-probability of held-out pairs for each strength in
        :data:`congruence.linalg.shrinkage.CV_STRENGTHS`.

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

    def fit(
        self,
        X: RowsLike,
        Y: RowsLike | None = None,
        sample_weight: ArrayLike | None = None,
        modality: Modalities = None,
        *,
        y: RowsLike | None = None,
    ) -> Self:
        """Fit the rotation on rows paired by position.

        Parameters
        ----------
        X : array_like, shape (n, d_source)
            float16, float32 or float64; sums are computed in float64. Not modified.
        Y : array_like, shape (n, d_target)
        sample_weight : array_like, shape (n,), optional
            Non-negative. An integer weight has the effect of repeating the row.
        modality : str or sequence of str, shape (n,), optional
            Modality of the rows. Rows of different modalities are centered separately and their cross-covariances are
            added.
        y : array_like, optional
            Alternative name for ``Y``, as used by scikit-learn's tools.

        Returns
        -------
        Self

        Raises
        ------
        ShapeError, DtypeError, NotFiniteError, ZeroRowError
            If arrays have the wrong shape, are not real numbers, contain NaN or infinity or have a row of zeros.
        TooFewAnchorsError
            If there are fewer than two pairs with positive weight.
        InputError
            If the two sides do not vary together, or weights or modalities have invalid values.
        ParameterError
            If a parameter of the map has an invalid value.

        Warns
        -----
        ProjectionWarning
            If d_source > d_target: the map is then a projection, not an isometry.
        DegenerateWarning
            If ``shrinkage="full"`` and the anchors do not cover all dimensions.
        """
        self._start()
        Y = y if Y is None else Y
        groups = self._gather(X, Y, sample_weight, modality, reset=True)
        if self.shrinkage == "cv":
            self.cv_strength_, self.cv_scores_ = cross_validate(
                groups, center=self.center, random_state=self.random_state
            )
        return self._solve()

    @classmethod
    def from_moments(
        cls, moments: Mapping[str, CrossMoments], *, normalized: tuple[bool, bool] = (False, False), **parameters: Any
    ) -> Self:
        """Return the map fitted on the pairs that these moments summarize, which may have been gathered on several machines.

        Parameters
        ----------
        moments : mapping of str to CrossMoments
            Moments by modality; the empty string stands for an unknown modality.
        normalized : (bool, bool), default=(False, False)
            Whether all source and all target rows had unit norm.
        **parameters
            Parameters of the map.

        Returns
        -------
        OrthogonalMap
            Equal to a fit on all pairs, up to the rounding of float64 sums.

        Raises
        ------
        ParameterError
            If ``shrinkage="cv"``, which needs the rows themselves, or another parameter has an invalid value.
        TooFewAnchorsError
            If there are fewer than two pairs.
        InputError
            If the two sides do not vary together.
        """
        new = cls(**parameters)
        new._start()
        if new.shrinkage == "cv":
            raise ParameterError(
                'Got shrinkage="cv" for moments; expected a shrinkage that needs no second pass over the rows. Pass shrinkage="auto".'
            )
        if not moments:
            raise TooFewAnchorsError("Got no moments; expected those of at least 2 pairs. Pass {modality: moments}.")
        new.moments_ = dict(moments)
        first = next(iter(new.moments_.values()))
        new._check_reflection(*first.cross.shape)
        new.n_features_in_ = first.cross.shape[0]
        names = list(new.moments_)
        modality = (names[0] or None) if len(names) == 1 else None
        new.source_space_ = Space(dim=first.cross.shape[0], modality=modality, normalized=normalized[0])
        new.target_space_ = Space(dim=first.cross.shape[1], modality=modality, normalized=normalized[1])
        new.scores_ = {}
        return new._solve()

    def _start(self) -> None:
        check_choice(self.shrinkage, SHRINKAGES, "shrinkage")
        if self.shrinkage_strength is not None:
            check_positive(self.shrinkage_strength, "shrinkage_strength", zero=True)
        if self.random_state is not None:
            check_seed(self.random_state)
        self.moments_, self.given_means_ = {}, {}
        for name in (*_SOLVED, "cv_strength_", "cv_scores_", "_active"):
            self.__dict__.pop(name, None)

    def _gather(
        self,
        X: RowsLike,
        Y: RowsLike | None,
        sample_weight: ArrayLike | None,
        modality: Modalities,
        *,
        reset: bool,
        min_pairs: int = 2,
    ) -> list[Group]:
        """Check rows, add them to the moments of their modality, and return them grouped by modality."""
        A, B, weights = self._check_pairs(X, Y, sample_weight, reset=reset, min_pairs=min_pairs)
        d_target = next((len(m.target_mean) for m in self.moments_.values()), B.shape[1])
        if B.shape[1] != d_target:
            raise ShapeError(
                f"Got target rows of width {B.shape[1]}; expected {d_target} as before. Pass vectors of the same two models."
            )
        self._check_reflection(A.shape[1], B.shape[1])
        groups = []
        for name, rows in split_modalities(modality, len(A)):
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
        else:  # the rows count as unit rows as long as all of them are
            source, target = self.source_space_, self.target_space_
            self.source_space_ = replace(source, normalized=source.normalized and has_unit_rows(A))
            self.target_space_ = replace(target, normalized=target.normalized and has_unit_rows(B))
        return groups

    def _check_reflection(self, d_source: int, d_target: int) -> None:
        if self.allow_reflection:
            return
        if d_source != d_target:
            raise ParameterError(
                f"Got allow_reflection=False for widths {d_source} and {d_target}; expected equal widths, since only a square "
                "matrix has a determinant. Leave out allow_reflection=False."
            )
        if self.shrinkage not in ("auto", "full"):
            raise ParameterError(
                f'Got allow_reflection=False with shrinkage={self.shrinkage!r}; expected "full", since a partial map has no '
                'determinant. Pass shrinkage="full", or leave out allow_reflection=False.'
            )

    def _shrinkage(self) -> str:
        if self.shrinkage == "auto":
            return "wiener" if self.allow_reflection else "full"
        return "wiener" if self.shrinkage == "cv" else self.shrinkage

    def _strength(self) -> float | None:
        return self.cv_strength_ if self.shrinkage == "cv" else self.shrinkage_strength

    def __getattr__(self, name: str) -> Any:
        # Called only for missing attributes: solve on demand after partial_fit.
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
        # Subtracting the mean from equal rows leaves rounding error, which is not a direction of the data.
        error = np.finfo(np.float64).eps * pooled_size(moments, center=False)
        shrinkage = self._shrinkage()
        # "full" fills the other directions as well.
        svd = cross_svd(cross, max_rank=most, scale=max(size, error), complete=shrinkage == "full")
        if svd.rank == 0:
            raise InputError(
                f"Got {pairs} pairs that do not vary together (constant rows on a side, or pairs that "
                "cancel); expected anchors that vary. Pass other anchors."
            )
        alignment = float(svd.s.sum() / size)
        strength, gains = choose_gains(shrinkage, svd, alignment, self._strength())
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
        self._keep_given_means()
        self.facts_ = self._measure(shrinkage, cross.shape, alignment)
        self.facts_["shrinkage_strength_used"] = strength
        self._warn(shrinkage)
        return self

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
