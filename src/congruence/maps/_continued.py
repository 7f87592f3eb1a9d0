"""Rotations that can be updated with more pairs, with other shards, or with more rows for their means."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from congruence._utils.validation import check_positive
from congruence.errors import ModalityError, ParameterError
from congruence.maps._checks import GivenMeans, Modalities, check_mean, check_same_kind, count_rows
from congruence.maps._rotation import RotationMap


class ContinuedMap(RotationMap):
    """A rotation computed from moments, which are sums, so that more pairs can be added.

    A subclass gathers the moments (``_gather``) and computes the rotation from them (``_solve``).
    """

    shrinkage: str
    _active: str | None

    @abstractmethod
    def _start(self) -> None:
        """Discard everything gathered so far."""

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
            If ``shrinkage="cv"``; if the map has no moments, as after :meth:`then` or from a :class:`~congruence.CanonicalFrame`; or if it
            was recentered without a modality name.

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
        ParameterError, ShapeError
            If the maps differ in parameters or widths, were not fitted on pairs, or ``shrinkage="cv"``.
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
        ours, theirs = new.source_space_, new.target_space_
        new.source_space_ = replace(ours, normalized=ours.normalized and other.source_space_.normalized)
        new.target_space_ = replace(theirs, normalized=theirs.normalized and other.target_space_.normalized)
        return new._solve()

    def update_means(
        self,
        source: ArrayLike | None = None,
        target: ArrayLike | None = None,
        *,
        modality: str,
        forgetting: float = 1.0,
    ) -> Self:
        """Return a map whose means of one modality include additional unpaired rows.

        Parameters
        ----------
        source, target : Embeddings or array_like, shapes (n, d_source) and (m, d_target), optional
            Rows to add to one side or both; they need not be paired.
        modality : str
            A modality for which :meth:`recenter` was given rows.
        forgetting : float, default=1.0
            Factor in (0, 1] by which the weight of the rows counted so far is multiplied.

        Returns
        -------
        OrthogonalMap
            With forgetting = 1, the same map as :meth:`recenter` with all rows together, up to rounding.

        Raises
        ------
        ModalityError
            If :meth:`recenter` set no means of this modality.
        ParameterError
            If :meth:`recenter` was given mean vectors, so that the number of rows is unknown.
        """
        check_forgetting(forgetting)
        self._check_fitted()
        if modality not in self.given_means_:
            raise ModalityError(
                f"Got modality={modality!r}; expected a modality whose rows were passed to recenter ({', '.join(self.given_means_) or 'none'}). "
                "Call recenter(…, modality=…) first."
            )
        known = self.given_means_[modality]
        sides = []
        for rows, name, mean, seen in (
            (source, "source", known.source, known.n_source),
            (target, "target", known.target, known.n_target),
        ):
            if rows is None:
                sides.append((mean, None if seen is None else seen * forgetting))
                continue
            if seen is None:
                raise ParameterError(
                    f"Got rows for a {name} mean that was given as a vector, so its number of rows is unknown; expected a mean that recenter "
                    f"computed from rows. Pass all rows to recenter(…, modality={modality!r})."
                )
            new = count_rows(rows)
            if new is None:
                raise ParameterError(
                    f"Got one {name} vector; expected a matrix of rows. Pass {name}=… of shape (n, d)."
                )
            total = seen * forgetting + new
            sides.append((mean + (check_mean(rows, len(mean), name) - mean) * (new / total), total))
        (a, n_source), (b, n_target) = sides
        if n_target == 0:  # the target mean comes from the gap between modalities only
            b = known.target + (a - known.source) @ self.rotation_
        new_means = (a, b) if modality == self.modality_ else (self.source_mean_, self.target_mean_)
        table = {**self.modality_means_, modality: (a, b)}
        out = self._like()
        out.moments_ = self.moments_
        self._set(out, self.rotation_, new_means, table, self.source_space_, self.target_space_)
        out._set_means(modality, GivenMeans(a, b, n_source, n_target))
        return out

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
        for name, given in self.given_means_.items():
            if given.n_target == 0:
                gap = fitted[1] + (given.source - fitted[0]) @ self.rotation_
                self.given_means_[name] = given = replace(given, target=gap)
            self.modality_means_[name] = given.source, given.target
        active = vars(self).get("_active") or self.modality_
        if active in self.modality_means_:
            self.modality_ = active
            self.source_mean_, self.target_mean_ = self.modality_means_[active]


def check_forgetting(forgetting: float) -> None:
    """Check that a forgetting factor is in (0, 1]. Raises ParameterError."""
    if check_positive(forgetting, "forgetting") > 1:
        raise ParameterError(
            f"Got forgetting={forgetting}; expected a number above 0 and at most 1. Pass forgetting=0.9, for example."
        )
