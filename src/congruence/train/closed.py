"""Methods that are solved rather than trained, with the same ``fit`` as those that are trained."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import Any

from sklearn.base import BaseEstimator

from congruence.maps import CCAMap, ProcrustesHeads
from congruence.maps.two_sided import TwoSidedMap
from congruence.train._base import HeadTrainer
from congruence.train.retrieval import mean_recall

__all__ = ["CCA", "ClosedForm", "Procrustes"]


class ClosedForm(BaseEstimator):
    """Base of the methods that fit a two-sided map on the pairs in one go; a subclass sets ``method`` and implements :meth:`make`."""

    method: str

    @abstractmethod
    def make(self) -> TwoSidedMap:
        """Return the unfitted map."""

    def fit(
        self,
        X: Any,
        Y: Any,
        unpaired_source: Any = None,
        unpaired_target: Any = None,
        *,
        validation: tuple[Any, Any] | tuple[Any, Any, Any, Any] | None = None,
        checkpoint: str | Path | None = None,
        resume: bool = True,
        progress: bool = True,
    ) -> TwoSidedMap:
        """Fit the map on the pairs.

        Parameters
        ----------
        X : Embeddings or array_like, shape (n, d_source)
        Y : Embeddings or array_like, shape (n, d_target)
            Pairs: by id where both are embeddings with ids, by position otherwise.
        unpaired_source, unpaired_target : optional
            Checked, as for the other methods, and of no influence.
        validation : tuple, optional
            Held-out rows, as for :meth:`HeadTrainer.fit`; the map's score on them is kept in ``scores_``.
        checkpoint, resume, progress
            As for the other methods; there is nothing to stop or resume.

        Returns
        -------
        TwoSidedMap

        Raises
        ------
        InputError, ShapeError, NotFiniteError, ZeroRowError, TooFewAnchorsError
        ParameterError
            Among others, ``dim`` is more than the pairs carry.
        """
        data, spaces = HeadTrainer._read(X, Y, unpaired_source, unpaired_target, validation)
        fitted = self.make().fit(data.source, data.target)
        fitted.source_space_ = replace(spaces[0], dim=data.source.shape[1])
        fitted.target_space_ = replace(spaces[1], dim=data.target.shape[1])
        if data.validation is not None:
            A, B, x_labels, y_labels = data.validation
            score = mean_recall(fitted.transform(A), fitted.transform_target(B), x_labels, y_labels)
            fitted.scores_["validation_mean_recall_at_1"] = score
        return fitted


class CCA(ClosedForm):
    """Canonical correlation analysis: :class:`~congruence.CCAMap` among the methods.

    Parameters
    ----------
    dim : int, optional
        Directions kept; as many as the pairs carry by default.
    regularization : float, default=0.1
        λ, added to the Gram matrices.

    References
    ----------
    SOTAlign, equation 7 and proposition C.2.
    """

    method = "cca"

    def __init__(self, dim: int | None = None, regularization: float = 0.1):
        self.dim = dim
        self.regularization = regularization

    def make(self) -> TwoSidedMap:
        """Return the unfitted map."""
        return CCAMap(dim=self.dim, regularization=self.regularization)


class Procrustes(ClosedForm):
    """Procrustes analysis: :class:`~congruence.ProcrustesHeads` among the methods.

    Parameters
    ----------
    dim : int, optional
        Directions kept; as many as the pairs carry by default.

    References
    ----------
    SOTAlign, equation 6 and proposition C.1.
    """

    method = "procrustes"

    def __init__(self, dim: int | None = None):
        self.dim = dim

    def make(self) -> TwoSidedMap:
        """Return the unfitted map."""
        return ProcrustesHeads(dim=self.dim)
