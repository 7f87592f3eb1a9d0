"""The orthogonal map: one rotation between two spaces, shared by every modality."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from congruence._utils.arrays import to_numpy
from congruence._utils.columns import to_rows
from congruence._utils.typing import Array, RowsLike
from congruence._utils.validation import as_matrix, check_choice, check_positive, check_seed, check_width
from congruence.embeddings import MODALITIES, Embeddings, Space, check_space, has_unit_rows
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
from congruence.linalg.procrustes import cross_svd, gram_error, half_svd, near_identity, rotation_from_svd
from congruence.linalg.shrinkage import SHRINKAGES, Group, choose_gains, cross_validate, mean_isometry
from congruence.maps._base import AffineMap
from congruence.maps.readout import Measured, Readout, RowMeans, find_lift
from congruence.persist import TOLERANCE, check_arrays, check_orthonormal, count, is_number, number

#: One modality for all rows, or one for each row.
Modalities: TypeAlias = str | Sequence[str] | np.ndarray | None

#: Source and target mean.
Means: TypeAlias = tuple[np.ndarray, np.ndarray]

#: Bound on the rounding error of a rotation below which it is computed by a Gram matrix, in half of the time.
_ACCURATE = 1e-9

#: Attributes computed from the moments. ``partial_fit`` drops them, and they are computed again when next used.
_SOLVED = (
    *("rotation_", "source_mean_", "target_mean_", "modality_means_", "modality_", "singular_values_", "gains_"),
    *("rank_", "mean_directions_", "n_pairs_", "facts_"),
)


class GivenMeans(NamedTuple):
    """Means passed to ``recenter``, and the total weight of the rows they average: None for a mean vector, 0 for a mean
    derived from the gap between modalities.
    """

    source: np.ndarray
    target: np.ndarray
    n_source: float | None
    n_target: float | None


@dataclass(eq=False, repr=False)
class OrthogonalMap(AffineMap):
    """Procrustes rotation between two embedding spaces: ``z ↦ (z − μ_A) @ rotation + μ_B``.

    Fitted on pairs of one modality, it maps every modality of a dual encoder; each modality has its own means
    (``recenter``, ``for_modality``).

    Source: Gupta et al. (2026), "Canonicalizing Multimodal Contrastive Representation Learning", §6, Thm C.16 and
    appendix D.4.1 (whose Algorithm 1 deploys the transpose of what it fits; this class does not). Schönemann (1966).

    Parameters
    ----------
    center : bool, default=True
        Map the source mean to the target mean; the rotation is fitted on centered rows. False is the paper's ablation.
    shrinkage : {"auto", "full", "covered", "wiener", "soft", "cv"}, default="auto"
        How to weight the singular directions s, u, v of the pairs' cross-covariance. "Covered" directions are those
        with s above rounding error.

        - ``"full"``: the textbook ``U Vᵀ`` of §6; directions that the pairs do not cover are filled arbitrarily.
        - ``"covered"``: the partial isometry of the covered directions, all that can be identified (Thm C.16).
        - ``"wiener"``: gain s² / (s² + τ²), with the noise τ estimated from the pairs. If few pairs leave directions
          uncovered and the means correspond, the direction of the means counts as covered
          (``congruence.linalg.shrinkage``).
        - ``"soft"``: gain s / (s + strength · s₁).
        - ``"cv"``: ``"wiener"`` with the strength of the largest cross-validated likelihood.
        - ``"auto"``: ``"wiener"``, or ``"full"`` with ``allow_reflection=False``.
    shrinkage_strength : float, optional
        Strength of ``"wiener"`` (default 0.1) or ``"soft"`` (default 0.003).
    allow_reflection : bool, default=True
        If False, the map is in SO(d), which requires equal widths and no shrinkage.
    random_state : int, default=0
        Determines the folds of ``shrinkage="cv"``.
    identity : float, default=0.0
        For related models of equal widths: weight of the identity, relative to s₁. The map is then the rotation nearest
        to the weighted sum, without shrinkage.

    Attributes
    ----------
    rotation_ : ndarray of float64, shape (d_source, d_target)
        Multiplies rows from the right: the transpose of the paper's ``Q``.
    source_mean_, target_mean_ : ndarray of float64, shape (d_source,) and (d_target,)
    singular_values_, gains_ : ndarray, shape (min(d_source, d_target),)
        Singular values of the pairs' mean cross-covariance, and the factor applied to each direction.
    rank_, mean_directions_ : int
        Directions that the pairs cover, and those added because the pairs' means correspond.
    modality_means_ : dict of str to (ndarray, ndarray)
        Source and target mean of every modality the map knows.
    moments_ : dict of str to CrossMoments
        Sums over the pairs, by modality, from which a map is updated or merged.
    cv_strength_, cv_scores_ : float, ndarray
        With ``shrinkage="cv"``: the strength chosen, and the score of each of ``linalg.shrinkage.CV_STRENGTHS``.

    Examples
    --------
    >>> import numpy as np
    >>> from congruence import OrthogonalMap
    >>> from congruence.synthetic import rigid_problem
    >>> problem = rigid_problem(n=200, d_source=16, random_state=0)
    >>> bool(np.allclose(OrthogonalMap().fit(problem.X, problem.Y).transform(problem.X), problem.Y))
    True
    """

    kind: ClassVar[str] = "orthogonal"
    _told = False  # whether a call chose the modality whose means are in use

    center: bool = True
    shrinkage: str = "auto"
    shrinkage_strength: float | None = None
    allow_reflection: bool = True
    random_state: int = 0
    identity: float = 0.0

    def fit(
        self, X: RowsLike, Y: RowsLike, sample_weight: ArrayLike | None = None, modality: Modalities = None
    ) -> Self:
        """Fit the rotation on rows paired by position. ``sample_weight`` (n,) counts as repetitions. ``modality`` is
        one name or one per row; each modality is centered by itself, and their cross-covariances are added.
        """
        self._start()
        groups = self._gather(X, Y, sample_weight, modality, reset=True)
        if self.shrinkage == "cv":
            self.cv_strength_, self.cv_scores_ = cross_validate(
                groups, center=self.center, random_state=self.random_state
            )
        return self._solve()

    def partial_fit(
        self,
        X: RowsLike,
        Y: RowsLike,
        sample_weight: ArrayLike | None = None,
        modality: Modalities = None,
        *,
        forgetting: float = 1.0,
    ) -> Self:
        """Add pairs, even a single one, to those already seen; the result equals one ``fit`` on all of them. The
        weights of all earlier pairs are multiplied by ``forgetting``, in (0, 1]. Means set by ``recenter`` are kept. A
        read-out that ``congruence.fit`` chose is measured again, on each batch before the map sees it.
        """
        _check_forgetting(forgetting)
        self._refuse_cv()
        before = self.__dict__.get("moments_")
        solved = "rotation_" in vars(self)
        unseen = self._like() if before and self.readout_ is not None else None
        if not before:
            if solved:
                raise ParameterError("A composed map has no pairs to add to.", "Fit a new map.")
            self._start()
        else:
            pairs_mean = before[min(before)].source_mean * self.center
            if solved and self.modality_ is None and not np.array_equal(self.source_mean_, pairs_mean):
                raise ParameterError("The map was recentered without a modality.", "Pass `modality=…` to recenter.")
            self._active = self.modality_ if "modality_" in vars(self) else getattr(self, "_active", None)
            # New ones, since other maps of the same fit share the present ones (for_modality, recenter).
            self.moments_: dict[str, CrossMoments] = {name: one.scaled(forgetting) for name, one in before.items()}
        try:
            groups = self._gather(X, Y, sample_weight, modality, reset=not before, min_pairs=1)
        except Exception:
            self.moments_ = before or {}  # a rejected batch must not decay the weights of earlier ones
            raise
        self.scores_ = {}
        if unseen is not None and unseen.readout_ is not None:
            weight = unseen.n_pairs_ * forgetting
            for group in groups:
                share = len(group.X) / (len(group.X) + weight)
                unseen.readout_ = unseen.readout_.merge(unseen._read_again(group), share)
            self.readout_ = unseen.readout_
        return self

    def _read_again(self, group: Group) -> Readout:
        """Return the read-out as measured on pairs of one modality that the map has not seen."""
        known = self.moments_.get(group.modality) or CrossMoments.of(group.X, group.Y)
        a, b = known.source_mean, known.target_mean
        x, y = group.X - a, group.Y - b
        there, back = Measured.of(x @ self.rotation_, y, b), Measured.of(y @ self.rotation_.T, x, a)
        assert self.readout_ is not None
        lift = find_lift(x @ self.rotation_, y, b, there.height)
        found = there.height, there.share, back.share, lift
        tables = ({} if value is None else {group.modality: value} for value in found)
        return Readout(self.readout_.queries, self.readout_.store, *tables)

    def merge(self, other: Self) -> Self:
        """Return the map fitted on the pairs of both maps together, such as those of two shards; both have the same
        parameters. What ``congruence.fit`` measured for the read-outs of both is averaged, a lower bound.
        """
        self._check_same_kind(other, "merge")
        if (ours := self.get_params()) != (theirs := other.get_params()):
            raise ParameterError(f"Got maps with parameters {ours} and {theirs}.", "Fit both with the same.")
        self._refuse_cv()
        if not (self.moments_ and other.moments_):
            raise ParameterError("A composed map has no pairs to merge.", "Merge before composing.")
        if (self.readout_ is None) != (other.readout_ is None):
            raise ParameterError("Only one of the two maps has a read-out.", "Fit both with congruence.fit.")
        new = type(self)(**self.get_params())
        new.n_features_in_, new.scores_ = self.n_features_in_, {}
        new.moments_ = {name: moments.copy() for name, moments in self.moments_.items()}
        for name, moments in other.moments_.items():
            new.moments_[name] = new.moments_[name].merge(moments) if name in new.moments_ else moments.copy()
        new.given_means_ = {**other.given_means_, **self.given_means_}
        new.role_ = self.role_
        if self.readout_ is not None and other.readout_ is not None:
            new.readout_ = self.readout_.merge(other.readout_, other.n_pairs_ / (self.n_pairs_ + other.n_pairs_))
        new.source_space_, new.target_space_ = (
            replace(mine, normalized=mine.normalized and theirs.normalized)
            for mine, theirs in ((self.source_space_, other.source_space_), (self.target_space_, other.target_space_))
        )
        return new._solve()

    @classmethod
    def from_moments(
        cls,
        moments: Mapping[str, CrossMoments],
        *,
        normalized: tuple[bool, bool] = (False, False),
        half: bool = False,
        **parameters: Any,
    ) -> Self:
        """Return the map fitted on the pairs that these moments summarize by modality (``""`` if it is unknown).
        ``normalized`` says whether all source and all target rows had unit norm. ``shrinkage="cv"`` is refused.
        ``half``: with half of the digits and of the work, to compare maps.
        """
        new = cls(**parameters)
        new._start()
        new._refuse_cv()
        if not moments:
            raise TooFewAnchorsError("Got no moments; expected those of at least 2 pairs.", "Pass {modality: moments}.")
        new.moments_ = dict(moments)
        d_source, d_target = next(iter(moments.values())).cross.shape
        new._check_reflection(d_source, d_target)
        new.n_features_in_, new.scores_ = d_source, {}
        names = list(moments)
        modality = (names[0] or None) if len(names) == 1 else None
        new.source_space_ = Space(dim=d_source, modality=modality, normalized=normalized[0])
        new.target_space_ = Space(dim=d_target, modality=modality, normalized=normalized[1])
        return new._solve(half)

    def _start(self) -> None:
        """Check the parameters, and discard everything gathered so far."""
        check_choice(self.shrinkage, SHRINKAGES, "shrinkage")
        if self.shrinkage_strength is not None:
            check_positive(self.shrinkage_strength, "shrinkage_strength", zero=True)
        if self.random_state is not None:
            check_seed(self.random_state)
        check_positive(self.identity, "identity", zero=True)
        self.moments_ = {}
        self.given_means_: dict[str, GivenMeans] = {}
        for name in (*_SOLVED, "cv_strength_", "cv_scores_", "_active", "_told"):
            self.__dict__.pop(name, None)

    def _refuse_cv(self) -> None:
        if self.shrinkage == "cv":
            raise ParameterError('`shrinkage="cv"` needs rows, not their moments.', 'Pass `shrinkage="auto"`.')

    def _gather(
        self,
        X: RowsLike,
        Y: RowsLike,
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
            raise ShapeError(f"Got target rows of width {B.shape[1]}, not {d_target}.", "Pass those of one model.")
        self._check_reflection(A.shape[1], B.shape[1])
        groups = []
        for name, rows in _split_modalities(modality, len(A)):
            a, b = (A, B) if rows is None else (A[rows], B[rows])
            w = weights if weights is None or rows is None else weights[rows]
            if name not in self.moments_:
                self.moments_[name] = CrossMoments(A.shape[1], B.shape[1])
            self.moments_[name].update(a, b, w)
            groups.append(Group(a, b, w, name))
        for name in (*_SOLVED, "_folded"):
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
        if self.identity and (d_source != d_target or not self.allow_reflection or self.shrinkage != "auto"):
            problem = "`identity=…` needs equal widths, and no other parameter of the rotation."
            raise ParameterError(problem, "Leave out `identity=…`.")
        if not self.allow_reflection and (d_source != d_target or self.shrinkage not in ("auto", "full")):
            problem = f"`allow_reflection=False` needs equal widths, not {d_source} and {d_target}, and no shrinkage."
            raise ParameterError(problem, 'Leave it out, or pass `shrinkage="full"`.')

    def __getattr__(self, name: str) -> Any:
        # Called only for missing attributes: solve on demand after partial_fit.
        if name in _SOLVED and self.__dict__.get("moments_"):
            self._solve()
            return self.__dict__[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _solve(self, half: bool = False) -> Self:
        """Compute the rotation and the means from the moments."""
        moments = list(self.moments_.values())
        pairs = sum(m.rows for m in moments)
        if pairs < 2:
            raise TooFewAnchorsError(f"Got {pairs} pair in all; expected at least 2.", "Pass more to partial_fit.")
        shrinkage, given = self.shrinkage, self.shrinkage_strength
        if shrinkage == "auto":
            shrinkage = "wiener" if self.allow_reflection else "full"
        elif shrinkage == "cv":
            shrinkage, given = "wiener", self.cv_strength_
        cross = pooled_cross(moments, center=self.center)
        d_source, d_target = cross.shape
        most = pairs - len(moments) if self.center else pairs
        size = pooled_size(moments, center=self.center)
        # Subtracting the mean from equal rows leaves rounding error, which is not a direction of the data.
        error = np.finfo(np.float64).eps * pooled_size(moments, center=False)
        scale = max(size, error)
        full = shrinkage == "full"  # which fills the directions that are not covered as well
        # Half of the digits are enough if all directions are covered and weak ones get small gains.
        quick = not full if half else min(cross.shape) <= most
        while True:
            if quick:
                svd = half_svd(cross, max_rank=most, scale=scale)
            else:
                svd = cross_svd(cross, max_rank=most, scale=scale, complete=full)
            if svd.rank == 0:
                raise InputError(f"Got {pairs} pairs that do not vary together, as constant rows.", "Pass other pairs.")
            alignment = float(svd.s.sum() / size)
            strength, gains = choose_gains(shrinkage, svd, alignment, given)
            if not quick or half or (svd.rank == len(svd.s) and gram_error(svd.s, gains) < _ACCURATE):
                break
            quick = False
        self.mean_directions_ = 0
        if self.identity:
            shrinkage, strength, gains = "full", None, np.ones(d_source)
            basis, turn = near_identity(svd, self.identity, half=half)
            self.rotation_ = np.eye(d_source) + basis @ turn @ basis.T
        else:
            self.rotation_ = rotation_from_svd(svd, gains, allow_reflection=self.allow_reflection)
        if shrinkage == "wiener" and self.center and svd.rank < len(svd.s):
            extra, self.mean_directions_ = mean_isometry(svd, [(m.source_mean, m.target_mean) for m in moments])
            self.rotation_ += extra
        self.singular_values_, self.gains_, self.rank_, self.n_pairs_ = svd.s, gains, svd.rank, pairs
        self._solve_means(d_source, d_target)
        self.facts_ = self._measure(shrinkage)
        self.facts_ |= {"alignment": alignment, "shrinkage_strength_used": strength}
        if d_source > d_target:
            problem = (
                f"The map leads from {d_source} to {d_target} dimensions: it is a projection, which loses "
                f"{d_source - d_target} dimensions and is no isometry."
            )
            warnings.warn(ProjectionWarning(problem, "Exchange the two models to keep distances."), stacklevel=3)
        if shrinkage == "full" and svd.rank < len(gains) and not self.identity:
            problem = (
                f"The pairs span {svd.rank} of {len(gains)} directions; the other {len(gains) - svd.rank} are "
                'filled with an arbitrary rotation under `shrinkage="full"`.'
            )
            warnings.warn(DegenerateWarning(problem, 'Add pairs, or pass `shrinkage="auto"`.'), stacklevel=3)
        return self

    def _solve_means(self, d_source: int, d_target: int) -> None:
        """Set the means of every modality: those of the pairs, and those set by ``recenter``."""
        first, origin = min(self.moments_), (np.zeros(d_source), np.zeros(d_target))
        fitted = {name: (m.source_mean, m.target_mean) if self.center else origin for name, m in self.moments_.items()}
        self.modality_means_ = {
            name: means for name, means in fitted.items() if name and (self.center or self.given_means_)
        }
        for name, means in list(self.given_means_.items()):
            if means.n_target == 0 and name in fitted:
                del self.given_means_[name]  # the pairs of this modality show what had to be derived before
                continue
            if means.n_target == 0:
                target = fitted[first][1] + (means.source - fitted[first][0]) @ self.rotation_
                self.given_means_[name] = means = means._replace(target=target)
            self.modality_means_[name] = means.source, means.target
        active = vars(self).get("_active") or first or None
        self.modality_: str | None = active if active in self.modality_means_ else first or None
        self.source_mean_, self.target_mean_ = self.modality_means_.get(active or "", fitted[first])

    def _measure(self, shrinkage: str) -> dict[str, Any]:
        d_source, d_target = self.rotation_.shape
        given = self.given_means_.items()
        return {
            "shrinkage_used": shrinkage,
            "n_pairs": self.n_pairs_,
            "rank": self.rank_,
            "mean_directions": self.mean_directions_,
            "directions": min(d_source, d_target),
            "is_isometry": bool(d_source <= d_target and np.allclose(self.gains_, 1)),
            "is_projection": d_source > d_target,
            "mean_gain": float(self.gains_.mean()),
            "modality": self.modality_,
            "modalities": sorted(self.modality_means_),
            "modality_chosen": self._told,
            **({"mean_rows": {name: [m.n_source, m.n_target] for name, m in given}} if given else {}),
        }

    def recenter(
        self,
        source_mean: ArrayLike | Embeddings,
        target_mean: ArrayLike | Embeddings | None = None,
        *,
        modality: str | None = None,
        offset: float = 1.0,
        use: bool = True,
    ) -> Self:
        """Return a map with the same rotation and the means of another modality.

        Parameters
        ----------
        source_mean, target_mean : array_like, shape (d,) or (m, d), or Embeddings
            Means, or rows to average. Without ``target_mean``, the gap between the two modalities' source means is
            rotated like any row, ``μ_B + (source_mean − μ_A) @ rotation``, which is exact if one rotation and offset
            relate both modalities (Remark C.15); a measured mean, even from a few dozen rows, is better.
        modality : str, optional
            Name under which the new map stores these means for ``for_modality``.
        offset : float, default=1.0
            Without ``target_mean``: share of this map's offset ``μ_B − μ_A @ rotation`` that is kept. With 1 the map is
            the same function, with 0 a rotation about the origin.
        use : bool, default=True
            Whether the new map maps rows about these means; otherwise it keeps them for rows of their modality.
        """
        self.check_fitted()
        d_source, d_target = self.rotation_.shape
        a, n_source = _average(source_mean, d_source, "source_mean")
        n_target: float | None = 0
        if target_mean is None:
            b = a @ self.rotation_ + offset * (self.target_mean_ - self.source_mean_ @ self.rotation_)
        else:
            b, n_target = _average(target_mean, d_target, "target_mean")
        given = {}
        if modality is not None:
            given[check_choice(modality, MODALITIES, "modality")] = GivenMeans(a, b, n_source, n_target)
        if use:
            return self._with_means((a, b), modality, given)
        return self._with_means((self.source_mean_, self.target_mean_), self.modality_, given, told=self._told)

    def for_modality(self, modality: str | None, *, ask: bool = False) -> Self:
        """Return the map with the means of one of its modalities; of ``None``, the map itself. A map fitted without the
        name of a modality accepts any; otherwise one without means raises ModalityError. So does None with ``ask``, if
        there are means of several modalities and no call of this method chose one.
        """
        self.check_fitted()
        if modality is None:
            if ask and not self._told and len(self.modality_means_) > 1:
                known = sorted(self.modality_means_)
                problem = f"This map has means for {' and '.join(known)}, and nothing says which these rows are."
                raise ModalityError(problem, f"Pass {' or '.join(f'`modality={name!r}`' for name in known)}.")
            return self
        check_choice(modality, MODALITIES, "modality")
        if means := self.modality_means_.get(modality):
            used = zip((self.source_mean_, self.target_mean_), means, strict=True)
            if modality == self.modality_ and self._told and all(np.array_equal(a, b) for a, b in used):
                return self
            return self._with_means(means, modality, {})
        if modality == self.modality_ or (self.modality_ is None and not self.modality_means_):
            return self
        if not self.center:
            return self._with_means(self._origin(), modality, {})
        others = ", ".join(sorted({*self.modality_means_, self.modality_ or ""} - {""}))
        problem = f"Got {modality} rows; the map has means for {others}."
        raise ModalityError(problem, f"Fit it with the means of {modality} too: `means={{{modality!r}: …}}`.")

    def update_means(
        self,
        source: ArrayLike | None = None,
        target: ArrayLike | None = None,
        *,
        modality: str,
        forgetting: float = 1.0,
    ) -> Self:
        """Return a map whose means of one modality include further unpaired rows, as if ``recenter`` had been given
        them too (rows, not mean vectors). Rows counted so far weigh ``forgetting`` times as much, in (0, 1].
        """
        _check_forgetting(forgetting)
        self.check_fitted()
        if modality not in self.given_means_:
            raise ModalityError(f"No rows of `modality={modality!r}` were passed to recenter.", "Call recenter first.")
        known = self.given_means_[modality]
        sides: list[tuple[np.ndarray, float | None]] = []
        for rows, name, mean, weight in (
            (source, "source", known.source, known.n_source),
            (target, "target", known.target, known.n_target),
        ):
            old = None if weight is None else weight * forgetting
            if rows is None:
                sides.append((mean, old))
                continue
            new, n = _average(rows, len(mean), name)
            if old is None or n is None:
                raise ParameterError(f"A {name} mean given as a vector has no weight.", "Pass all rows to recenter.")
            sides.append((mean + (new - mean) * (n / (old + n)), old + n))
        (a, n_source), (b, n_target) = sides
        if n_target == 0:  # the target mean comes from the gap between modalities only
            b = known.target + (a - known.source) @ self.rotation_
        means = (a, b) if modality == self.modality_ else (self.source_mean_, self.target_mean_)
        given = {modality: GivenMeans(a, b, n_source, n_target)}
        new_map = self._with_means(means, self.modality_, given, told=self._told)
        new_map.source_space_, new_map.target_space_ = self.source_space_, self.target_space_
        return new_map

    def _with_means(
        self, means: Means, modality: str | None, given: Mapping[str, GivenMeans], *, told: bool = True
    ) -> Self:
        """Return this map with other means in use, and with given means added to its table."""
        new = self._like()
        new.source_mean_, new.target_mean_ = means
        if given and not self.center:  # the modalities of the pairs keep the origin
            new.modality_means_ = dict.fromkeys(filter(None, self.moments_), self._origin()) | new.modality_means_
        new.modality_means_ |= {name: (one.source, one.target) for name, one in given.items()}
        new.given_means_ |= given
        new.modality_, new._told = modality, told
        new.source_space_ = replace(self.source_space_, modality=modality)
        new.target_space_ = replace(self.target_space_, modality=modality)
        new.facts_ = {**self.facts_, **new._measure(self.facts_["shrinkage_used"])}
        return new if self._folded is None else new.for_role(self.role_)

    def _like(self) -> Self:
        """Return a map with the parameters and fitted attributes of this one, without scores."""
        self.check_fitted()
        tables = {name: dict(getattr(self, name)) for name in ("given_means_", "modality_means_")}  # solved, if need be
        new = copy(self)
        vars(new).update(tables, scores_={}, _folded=None)
        vars(new).pop("feature_names_in_", None)
        return new

    @property
    def _coefficients(self) -> np.ndarray:
        return self.rotation_

    def inverse_transform(self, Z: RowsLike, modality: str | None = None) -> Array:
        """Map target rows (m, d_target) back: ``(Z − μ_B) @ rotationᵀ + μ_A``, as ``inverse()`` in role "plain"."""
        return self.inverse().transform(Z, modality, "plain")

    def inverse(self) -> Self:
        """Return the map from target to source, equal to the map fitted with source and target exchanged."""
        self.check_fitted()
        new = self._like()
        new.moments_ = {name: moments.swap() for name, moments in self.moments_.items()}
        new.rotation_ = np.ascontiguousarray(self.rotation_.T)
        new.n_features_in_ = len(new.rotation_)
        new.source_mean_, new.target_mean_ = self.target_mean_, self.source_mean_
        new.source_space_, new.target_space_ = self.target_space_, self.source_space_
        new.modality_means_ = {name: (b, a) for name, (a, b) in self.modality_means_.items()}
        new.given_means_ = {
            name: GivenMeans(m.target, m.source, m.n_target, m.n_source) for name, m in self.given_means_.items()
        }
        new.facts_ = {**self.facts_, **new._measure(self.facts_["shrinkage_used"])}
        if self.readout_ is not None:
            new.readout_ = self.readout_.inverse()
        if self.origins_ is not None:
            new.origins_ = self.origins_.renamed({"old": "new", "new": "old"})
        return new

    def then(self, other: Self) -> Self:
        """Return the map that applies this map and then ``other``, from this map's target but possibly about other
        means. Modalities that both maps know keep their own means.
        """
        self._check_same_kind(other, "compose")
        self.check_fitted()
        other.check_fitted()
        check_width(self.d_target, other.n_features_in_, "the second " + type(other).__name__)
        check_space(replace(self.target_space_, normalized=None), other.source_space_, Space(), modality=False)

        def join(first: OrthogonalMap, second: OrthogonalMap) -> Means:
            gap = first.target_mean_ - second.source_mean_
            return first.source_mean_, second.target_mean_ + gap @ other.rotation_

        both = (*self.modality_means_, *other.modality_means_, self.modality_, other.modality_)
        named = {name for name in both if name is not None}
        table: dict[str, Means] = {}
        for name in sorted(named):
            with suppress(ModalityError):
                table[name] = join(self.for_modality(name), other.for_modality(name))
        if named and not table:
            known = f"{self._known_modalities()}, and {other._known_modalities()}"
            raise ModalityError(f"The maps have means for {known}.", "Add means with recenter.")
        modality = next((name for name in (self.modality_, other.modality_, *table) if name in table), None)
        new = self._of_parts(
            self.rotation_ @ other.rotation_,
            table[modality] if modality else join(self, other),
            table,
            (self.source_space_, other.target_space_),
            modality=modality,
            told=(self._told or other._told) and modality in (self.modality_, other.modality_),
            n_pairs=min(self.n_pairs_, other.n_pairs_),
            **{**self.get_params(), "center": self.center or other.center},
        )
        new.role_ = other.role_
        if self.readout_ is not None and other.readout_ is not None:
            new.readout_ = self.readout_.then(other.readout_)
        return new

    def _origin(self) -> Means:
        d_source, d_target = self.rotation_.shape
        return np.zeros(d_source), np.zeros(d_target)

    def _known_modalities(self) -> str:
        return " and ".join(sorted(self.modality_means_)) or self.modality_ or "rows of any modality"

    def _check_same_kind(self, other: object, verb: str) -> None:
        if type(self) is not type(other):
            kinds = f"{type(other).__name__} to {verb} with {type(self).__name__}"
            raise ParameterError(f"Got {kinds}.", "Transform in two steps instead.")

    @classmethod
    def _of_parts(
        cls,
        rotation: np.ndarray,
        means: Means,
        table: Mapping[str, Means],
        spaces: tuple[Space, Space],
        *,
        modality: str | None,
        told: bool,
        n_pairs: int,
        **parameters: Any,
    ) -> Self:
        """Build a map that was not fitted on pairs itself."""
        new = cls(**parameters)
        new.moments_, new.given_means_, new.scores_ = {}, {}, {}
        new.rotation_, new.n_features_in_ = rotation, len(rotation)
        new.source_mean_, new.target_mean_ = means
        new.modality_means_, new.modality_, new._told = dict(table), modality, told
        new.source_space_, new.target_space_ = spaces
        new.gains_ = new.singular_values_ = np.linalg.svd(rotation, compute_uv=False)
        new.rank_, new.mean_directions_ = int(np.count_nonzero(new.gains_ > 1e-8)), 0
        new.n_pairs_ = n_pairs
        new.facts_ = new._measure("composed")
        return new

    def _means(self) -> RowMeans:
        """Return the means of the rows that this map maps, and all known means, as read-outs use them."""
        table = {name: (m.source_mean, m.target_mean) for name, m in self.moments_.items()} or self.modality_means_
        own = table.get(self.modality_ or "")
        source, target = self.source_mean_, self.target_mean_
        table = table or {"": (source, target)}  # of a composed map
        if not self.center and own is not None and not source.any():
            source, target = own
        given = self.given_means_
        table = {**table, **{name: (means.source, means.target) for name, means in given.items()}}
        sources = {name: a for name, (a, _) in table.items() if name not in given or given[name].n_source != 0}
        targets = {name: b for name, (_, b) in table.items() if name not in given or given[name].n_target != 0}
        return RowMeans(source, target, (self.modality_ or "") not in {"", *targets}, sources, targets)

    def covered_share(self, X: RowsLike) -> np.ndarray:
        """Return the share (m,) of each centered row's squared norm in directions that the anchors cover; 1 for the
        mean. The rest is dropped or, with ``shrinkage="full"``, rotated arbitrarily.
        """
        mean = self._for_rows(X, None, "plain").source_mean_
        A = to_numpy(self._check_source(X))
        kept = self.rank_ + self.mean_directions_
        if kept == len(mean):
            return np.ones(len(A))
        # Under "full" the rotation does not show which directions were covered.
        if self.gains_[self.rank_ :].any() and self.moments_:
            matrix, max_rank = pooled_cross(list(self.moments_.values()), center=self.center), self.n_pairs_
        else:
            matrix, max_rank = self.rotation_, kept
        basis = cross_svd(matrix, max_rank=max_rank, complete=False).U[:, :kept]
        centered = A - mean
        total = np.einsum("ij,ij->i", centered, centered)
        covered = np.square(centered @ basis).sum(axis=1)
        return np.minimum(np.divide(covered, total, out=np.ones(len(A)), where=total > 0), 1.0)

    def _plain(self) -> OrthogonalMap:
        if type(self) is OrthogonalMap:
            return self
        self.check_fitted()
        plain = OrthogonalMap(**{name: getattr(self, name) for name in OrthogonalMap().get_params()})
        vars(plain).update(vars(self._like()), scores_=self.scores_)
        return plain

    def state(self) -> dict[str, np.ndarray]:
        """Return rotation, means, spectrum and moments as arrays."""
        self.check_fitted()
        names = ("rotation", "source_mean", "target_mean", "singular_values", "gains")
        arrays: dict[str, np.ndarray] = {name: getattr(self, f"{name}_") for name in names}
        for name, (a, b) in self.modality_means_.items():
            arrays |= {f"means.{name}.source": a, f"means.{name}.target": b}
        for name, moments in self.moments_.items():
            arrays |= {f"moments.{name}.{key}": value for key, value in moments.state().items()}
        return arrays

    def _restore(self, arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> None:
        tables: dict[str, dict[str, dict[str, np.ndarray]]] = {"moments": {}, "means": {}}
        shapes = {"rotation": "io", "source_mean": "i", "target_mean": "o", "singular_values": "s", "gains": "s"}
        parts = {"totals": "4", "source_mean": "i", "target_mean": "o", "cross": "io", "gram": "ii"}
        for key, value in arrays.items():
            table, _, path = key.partition(".")
            if table in tables:
                name, _, part = path.rpartition(".")
                tables[table].setdefault(name, {})[part] = value
        moments, means = tables["moments"], tables["means"]
        for name in means:
            shapes |= {f"means.{name}.source": "i", f"means.{name}.target": "o"}
        for name, sums in moments.items():
            shapes |= {f"moments.{name}.{part}": axes for part, axes in parts.items() if part != "gram" or part in sums}
        check_arrays(arrays, shapes)
        if unknown := {*means, *moments, facts.get("modality") or ""} - {*MODALITIES, ""}:
            raise ValueError(f"arrays of unknown modalities: {', '.join(sorted(unknown))}")
        for sums in moments.values():
            # Total weight, number of rows, and the scatter of both sides; all are 0 for a modality whose weights are
            # all 0.
            if sums["totals"].shape != (4,) or (sums["totals"] < 0).any() or sums["totals"][1] % 1:
                raise ValueError("the totals of the moments are not valid sums")
        if moments and not sum(float(sums["totals"][0]) for sums in moments.values()) > 0:
            raise ValueError("the moments have no weight")
        self.moments_ = {name: CrossMoments.from_state(sums) for name, sums in moments.items()}
        self.modality_means_ = {name: (m["source"], m["target"]) for name, m in means.items()}
        self.rotation_ = arrays["rotation"]
        self.source_mean_, self.target_mean_ = arrays["source_mean"], arrays["target_mean"]
        self.singular_values_, self.gains_ = arrays["singular_values"], arrays["gains"]
        self.given_means_ = {}
        for name, counts in dict(facts.get("mean_rows", {})).items():
            if len(counts) != 2 or any(n is not None and (not is_number(n) or n < 0) for n in counts):
                raise ValueError("mean_rows contains values that are not pairs of counts")
            self.given_means_[name] = GivenMeans(*self.modality_means_[name], *counts)
        directions = min(self.rotation_.shape)
        self.rank_, self.n_pairs_ = count(facts, "rank", most=directions), count(facts, "n_pairs")
        self.mean_directions_ = count(facts, "mean_directions", most=directions)
        self.modality_, self._told = facts.get("modality"), facts.get("modality_chosen") is True
        self.n_features_in_ = len(self.rotation_)
        measured = self._measure(facts["shrinkage_used"])
        gain = abs(number(facts, "mean_gain") - measured.pop("mean_gain"))
        if gain > TOLERANCE or any(facts.get(name, value) != value for name, value in measured.items()):
            raise ValueError("facts that the arrays contradict")
        self.facts_ = {**facts, **measured}
        _check_spectrum(self.rotation_, self.gains_, self.singular_values_, self.mean_directions_)


def _check_spectrum(rotation: np.ndarray, gains: np.ndarray, singular: np.ndarray, extra: int) -> None:
    """Check a saved rotation, whose singular values are the gains, and 1 for ``extra`` directions of the means."""
    directions = min(rotation.shape)
    if len(gains) != directions or (singular < 0).any():
        raise ValueError("gains or singular values do not match the rotation")
    if (gains < 0).any() or (gains > 1 + TOLERANCE).any():
        raise ValueError("gains are not between 0 and 1")
    if np.allclose(gains, 1):
        check_orthonormal(rotation, "the rotation")
    squares = float(np.square(rotation).sum()) - float(np.square(gains).sum())
    if not abs(squares - extra) <= TOLERANCE * directions:
        raise ValueError("gains do not match the rotation")


def _average(given: ArrayLike | Embeddings, width: int, name: str) -> tuple[np.ndarray, int | None]:
    """Return a mean vector in float64 from a vector, rows or embeddings, and the number of rows; None for a vector."""
    vectors = to_rows(given.mean if isinstance(given, Embeddings) else given, name)
    n = len(given) if isinstance(given, Embeddings) else None if vectors.ndim == 1 else len(vectors)
    mean = as_matrix(vectors[None, :] if vectors.ndim == 1 else vectors, name, allow_zero_rows=True)
    if mean.shape[1] != width:
        raise ShapeError(f"Got {name} of width {mean.shape[1]}; expected {width}.", "Pass vectors of the fitted model.")
    return mean.mean(axis=0, dtype=np.float64), n


def _split_modalities(modality: Modalities, n: int) -> list[tuple[str, np.ndarray | None]]:
    """Return the name and a mask of the rows of each modality; a single unnamed group if no modality was given."""
    if modality is None:
        return [("", None)]
    if isinstance(modality, str):
        return [(check_choice(modality, MODALITIES, "modality"), None)]
    names = np.asarray(modality).astype(str)
    if names.shape != (n,):
        raise InputError(f"Got modality of shape {names.shape} for {n} rows.", "Pass one name, or one for each row.")
    return [(check_choice(str(name), MODALITIES, "modality"), names == name) for name in np.unique(names)]


def _check_forgetting(forgetting: float) -> None:
    if check_positive(forgetting, "forgetting") > 1:
        raise ParameterError(argument="forgetting", got=forgetting, expected="a number above 0, at most 1")
