"""Rotations whose means can be set, selected and updated for each modality."""

from __future__ import annotations

from dataclasses import replace
from typing import Self

from numpy.typing import ArrayLike

from congruence._utils.validation import check_choice
from congruence.embeddings import MODALITIES, Embeddings
from congruence.errors import ModalityError, ParameterError
from congruence.maps._checks import GivenMeans, check_forgetting, check_mean, count_rows
from congruence.maps._rotation import RotationMap


class RecenteredMap(RotationMap):
    """A rotation that maps several modalities, each with its own source and target mean."""

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

        Raises
        ------
        ShapeError, DtypeError, NotFiniteError
            If a mean has the wrong width, is not real numbers or contains NaN or infinity.
        ParameterError
            If ``modality`` is unknown.
        NotFittedMapError
            If the map is not fitted.

        Notes
        -----
        Rotating the gap is exact if the same rotation and offset relate both modalities, which is the
        paper's model (Remark C.15), and if the anchors cover the direction of the gap. The
        new map is then the same function as the original one. Two contrastive models need not
        have gaps of the same length, so a measured target mean, even from a few dozen rows, is better.
        """
        self.check_fitted()
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
        ParameterError
            If ``modality`` is unknown.
        NotFittedMapError
            If the map is not fitted.
        """
        self.check_fitted()
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
            If :meth:`recenter` was given mean vectors, so that the number of rows is unknown; if a single vector is passed; or if
            ``forgetting`` is not in (0, 1].
        ShapeError, DtypeError, NotFiniteError
            If the rows have the wrong width, are not real numbers or contain NaN or infinity.
        NotFittedMapError
            If the map is not fitted.
        """
        check_forgetting(forgetting)
        self.check_fitted()
        if modality not in self.given_means_:
            raise ModalityError(
                f"Got modality={modality!r}; expected a modality whose rows were passed to recenter ({', '.join(self.given_means_) or 'none'}). "
                "Call recenter(…, modality=…) first."
            )
        known = self.given_means_[modality]
        sides = []
        for rows, name, mean, weight in (
            (source, "source", known.source, known.n_source),
            (target, "target", known.target, known.n_target),
        ):
            if rows is None:
                sides.append((mean, None if weight is None else weight * forgetting))
                continue
            if weight is None:
                raise ParameterError(
                    f"Got rows for a {name} mean that was given as a vector, so its number of rows is unknown; expected a mean that recenter "
                    f"computed from rows. Pass all rows to recenter(…, modality={modality!r})."
                )
            new = count_rows(rows)
            if new is None:
                raise ParameterError(
                    f"Got one {name} vector; expected a matrix of rows. Pass {name}=… of shape (n, d)."
                )
            total = weight * forgetting + new
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

    def _activate(self, modality: str | None) -> None:
        self.modality_ = modality
        self.source_space_ = replace(self.source_space_, modality=modality)
        self.target_space_ = replace(self.target_space_, modality=modality)
        self.facts_ = {**self.facts_, "modality": modality, "modalities": sorted(self.modality_means_)}
