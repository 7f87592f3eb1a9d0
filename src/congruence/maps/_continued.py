"""Rotations that can be updated with more pairs or merged with those of other shards."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from congruence.errors import ParameterError
from congruence.maps._checks import Modalities, check_forgetting, check_same_kind
from congruence.maps._recentered import RecenteredMap


class ContinuedMap(RecenteredMap):
    """A rotation computed from moments, which are sums, so that more pairs can be added.

    A subclass gathers the moments (``_gather``) and computes the rotation from them (``_solve``).
    """

    shrinkage: str
    _active: str | None

    @abstractmethod
    def _start(self) -> None:
        """Check the parameters, and discard everything gathered so far."""

    @abstractmethod
    def _gather(
        self,
        X: ArrayLike,
        Y: ArrayLike | None,
        sample_weight: ArrayLike | None,
        modality: Modalities,
        *,
        reset: bool,
        min_pairs: int = 2,
    ) -> Sequence[object]:
        """Check rows and add them to the moments."""

    @abstractmethod
    def _solve(self) -> Self:
        """Compute the rotation from the moments."""

    def partial_fit(
        self,
        X: ArrayLike,
        Y: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        modality: Modalities = None,
        *,
        y: ArrayLike | None = None,
        forgetting: float = 1.0,
    ) -> Self:
        """Add pairs to those already seen; the result equals one fit on all of them.

        The rotation is computed only when it is next needed, so many small batches cost no more than one large batch.

        Parameters
        ----------
        X, Y, sample_weight, modality, y
            As for :meth:`fit`. A batch may hold a single pair, as long as two pairs have been seen when the map is used.
        forgetting : float, default=1.0
            Factor in (0, 1] by which the weights of all earlier pairs are multiplied. After t more batches a pair has weight forgetting to the
            power t; the result equals one fit with these weights as ``sample_weight``.

        Returns
        -------
        Self

        Raises
        ------
        ParameterError
            If ``forgetting`` is not in (0, 1]; if ``shrinkage="cv"``; if the map has no moments, as after :meth:`then` or from a
            :class:`~congruence.CanonicalFrame`; or if it was recentered without a modality name.
        InputError
            As for :meth:`fit`; the earlier pairs then keep their weights.

        Notes
        -----
        Means set by :meth:`recenter` are kept. A target mean that :meth:`recenter` derived from the gap between modalities is recomputed with the new rotation.
        """
        check_forgetting(forgetting)
        if self.shrinkage == "cv":
            raise ParameterError(
                'Got shrinkage="cv" for partial_fit; expected a shrinkage that needs no second pass over the rows. '
                'Pass shrinkage="auto".'
            )
        first = not self.__dict__.get("moments_")
        if first and "rotation_" in vars(self):
            raise ParameterError("Got a composed map in partial_fit; expected a map fitted on pairs. Fit a new map.")
        if first:
            self._start()
        before = self.moments_
        if not first:
            self._refuse_unnamed_means()
            self._active = self.modality_ if "modality_" in vars(self) else getattr(self, "_active", None)
            # Create new moments: other maps of the same fit share the present ones (for_modality, recenter).
            self.moments_ = {name: moments.scaled(forgetting) for name, moments in self.moments_.items()}
        try:
            self._gather(X, y if Y is None else Y, sample_weight, modality, reset=first, min_pairs=1)
        except Exception:
            self.moments_ = before  # a rejected batch must not decay the weights of earlier ones
            raise
        return self

    def merge(self, other: Self) -> Self:
        """Return the map fitted on the pairs of both maps together.

        Parameters
        ----------
        other : OrthogonalMap
            Map fitted with the same parameters on other pairs of the same two models, e.g. on another shard.

        Returns
        -------
        OrthogonalMap

        Raises
        ------
        ParameterError
            If the maps differ in class or parameters, were not fitted on pairs, or ``shrinkage="cv"``.
        ShapeError
            If the maps differ in width.
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
        new = self._like()
        new.moments_ = {name: moments.copy() for name, moments in self.moments_.items()}
        for name, moments in other.moments_.items():
            new.moments_[name] = new.moments_[name].merge(moments) if name in new.moments_ else moments.copy()
        new.given_means_ = {**other.given_means_, **self.given_means_}
        source, target = new.source_space_, new.target_space_
        new.source_space_ = replace(source, normalized=source.normalized and other.source_space_.normalized)
        new.target_space_ = replace(target, normalized=target.normalized and other.target_space_.normalized)
        return new._solve()

    def _refuse_unnamed_means(self) -> None:
        if "rotation_" not in vars(self) or self.modality_ is not None or not self.center:
            return
        if not np.array_equal(self.source_mean_, self.moments_[min(self.moments_)].source_mean):
            raise ParameterError(
                "Got a map that was recentered without modality=…; expected the modality, which determines the means to keep. Pass modality=… to recenter."
            )

    def _keep_given_means(self) -> None:
        """After solving, restore the means set by ``recenter`` and the modality in use."""
        fitted = self.source_mean_, self.target_mean_
        for name, means in self.given_means_.items():
            if means.n_target == 0:
                target = fitted[1] + (means.source - fitted[0]) @ self.rotation_
                self.given_means_[name] = means = replace(means, target=target)
            self.modality_means_[name] = means.source, means.target
        active = vars(self).get("_active") or self.modality_
        if active in self.modality_means_:
            self.modality_ = active
            self.source_mean_, self.target_mean_ = self.modality_means_[active]
