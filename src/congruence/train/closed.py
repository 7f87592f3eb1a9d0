"""Methods with a closed-form solution, with the same ``fit`` as those that are trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Self

from congruence._utils.typing import RowsLike
from congruence.maps import CCAMap, ProcrustesHeads
from congruence.maps.projections import ProjectionMap
from congruence.train._reading import Unpaired, Validation, read_data, space_of
from congruence.train._trainer import Method


class ClosedForm(ProjectionMap, Method):
    """Base of the methods that are solved in closed form on the pairs: a map of :mod:`congruence.maps` with the ``fit``
    of the trained methods.

    :meth:`save` writes this map, and :func:`congruence.load` returns it.
    """

    def fit(
        self,
        X: RowsLike,
        Y: RowsLike | None = None,
        *,
        y: RowsLike | None = None,
        unpaired: Unpaired | None = None,
        validation: Validation | None = None,
        checkpoint: str | Path | None = None,
        resume: bool = True,
        verbose: bool = True,
    ) -> Self:
        """Fit the map on the pairs.

        Parameters
        ----------
        X : Embeddings or array_like, shape (n, d_source)
        Y : Embeddings or array_like, shape (n, d_target)
            Paired with X by id if both are embeddings with ids, else by position.
        y : array_like, optional
            Alternative name for ``Y``, as used by scikit-learn's tools.
        unpaired : tuple of two, optional
            Checked, as for the other methods, but not used.
        validation : tuple, optional
            Held-out rows as for :meth:`score`; the score is stored in ``scores_``.
        checkpoint, resume, verbose
            Accepted as by the other methods, but without effect.

        Returns
        -------
        Self

        Raises
        ------
        InputError, ShapeError, NotFiniteError, ZeroRowError, TooFewAnchorsError
            If rows do not match or cannot be fitted, or there are fewer than two pairs.
        ParameterError
            If a parameter has an invalid value, e.g. ``n_components`` is more than the pairs support.
        """
        self._check_all_parameters()
        Y = y if Y is None else Y
        data = read_data(self, X, Y, unpaired, validation)
        self._fit(data.source, data.target)
        self.source_space_ = replace(space_of(X), dim=data.source.shape[1])
        self.target_space_ = replace(space_of(Y), dim=data.target.shape[1])
        if data.validation is not None:
            self.scores_[f"validation_{self.criterion}"] = self.score(*data.validation)
        return self


class CCA(ClosedForm, CCAMap):
    """Canonical correlation analysis: :class:`~congruence.CCAMap` as one of the methods, with its parameters.

    References
    ----------
    SOTAlign, equation 7 and proposition C.2.
    """

    method: ClassVar[str] = "cca"


class Procrustes(ClosedForm, ProcrustesHeads):
    """Procrustes analysis: :class:`~congruence.ProcrustesHeads` as one of the methods, with its parameters.

    References
    ----------
    SOTAlign, equation 6 and proposition C.1.
    """

    method: ClassVar[str] = "procrustes"
