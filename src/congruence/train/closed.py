"""Methods that are solved rather than trained, with the same ``fit`` as those that are trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

from congruence.maps import CCAMap, ProcrustesHeads
from congruence.maps.projections import ProjectionMap
from congruence.train._reading import read_data, space_of
from congruence.train._trainer import Method

__all__ = ["CCA", "ClosedForm", "Procrustes"]


class ClosedForm(ProjectionMap, Method):
    """Base of the methods that are solved on the pairs in one go: a map of :mod:`congruence.maps`, fitted as the trained methods are.

    What :meth:`save` writes is that map, and what :func:`congruence.load` returns is one.
    """

    def fit(
        self,
        X: Any,
        Y: Any = None,
        *,
        y: Any = None,
        unpaired: tuple[Any, Any] | None = None,
        validation: tuple[Any, Any] | tuple[Any, Any, Any, Any] | None = None,
        checkpoint: str | Path | None = None,
        resume: bool = True,
        verbose: bool = True,
    ) -> Self:
        """Fit the map on the pairs.

        Parameters
        ----------
        X : Embeddings or array_like, shape (n, d_source)
        Y : Embeddings or array_like, shape (n, d_target)
            Pairs: by id where both are embeddings with ids, by position otherwise.
        y : array_like, optional
            Another name for ``Y``, as scikit-learn's tools pass it.
        unpaired : tuple of two, optional
            Checked, as for the other methods, and of no influence.
        validation : tuple, optional
            Held-out rows as :meth:`score` takes them; the score is kept in ``scores_``.
        checkpoint, resume, verbose
            As for the other methods; there is nothing to stop or resume.

        Returns
        -------
        Self

        Raises
        ------
        InputError, ShapeError, NotFiniteError, ZeroRowError, TooFewAnchorsError
            Rows that do not fit each other or cannot be fitted, or fewer than two pairs.
        ParameterError
            Among others, ``n_components`` is more than the pairs support.
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
    """Canonical correlation analysis: :class:`~congruence.CCAMap` among the methods, with its parameters.

    References
    ----------
    SOTAlign, equation 7 and proposition C.2.
    """

    method: ClassVar[str] = "cca"


class Procrustes(ClosedForm, ProcrustesHeads):
    """Procrustes analysis: :class:`~congruence.ProcrustesHeads` among the methods, with its parameters.

    References
    ----------
    SOTAlign, equation 6 and proposition C.1.
    """

    method: ClassVar[str] = "procrustes"
