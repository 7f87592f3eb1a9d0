"""The orthogonal map from a few pairs and two unpaired pools."""

from __future__ import annotations

from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from congruence._utils.typing import RowsLike
from congruence._utils.validation import as_matrix
from congruence.errors import ParameterError
from congruence.maps._as_rotation import SavedAsRotation
from congruence.maps._checks import Modalities
from congruence.maps.refinement import Refinement, read_pools, refine, warn_refinement

__all__ = ["RefinedMap"]


class RefinedMap(SavedAsRotation):
    """An :class:`~congruence.OrthogonalMap` fitted on pairs and, if they help, on matches found between two unpaired pools.

    :func:`congruence.maps.refinement.refine` finds the matches and evaluates them on left-out pairs. If they do not help, the map is fitted on the
    pairs alone and ``fit`` warns. :meth:`save` writes a plain :class:`~congruence.OrthogonalMap`, with the evidence in ``scores_["refinement"]``.

    Parameters
    ----------
    center, shrinkage, shrinkage_strength, allow_reflection
        As for :class:`~congruence.OrthogonalMap`; used in every fit.
    max_iter : int, default=8
        Largest number of refinement rounds.
    n_neighbors : int, default=10
        Number of neighbors for CSLS.
    folds : int, default=5
        Number of folds of the pairs, for the evaluation.
    random_state : int, default=0
        Determines the folds.

    Attributes
    ----------
    refinement_ : Refinement or None
        The matches and the evidence; None if no pools were passed.

    See Also
    --------
    congruence.OrthogonalMap : This map has the same attributes. ``n_pairs_`` includes the matches.

    Examples
    --------
    >>> from congruence import RefinedMap
    >>> from congruence.synthetic import rigid_problem
    >>> problem = rigid_problem(260, 16, 20, noise=0.1, decay=0.4, random_state=0)
    >>> X, Y = problem.X[:8], problem.Y[:8]
    >>> mapping = RefinedMap().fit(X, Y, unpaired=(problem.X[8:200], problem.Y[200:30:-1]))
    >>> mapping.refinement_.improves
    True
    """

    refinement_: Refinement | None

    def __init__(
        self,
        center: bool = True,
        shrinkage: str = "auto",
        shrinkage_strength: float | None = None,
        allow_reflection: bool = True,
        max_iter: int = 8,
        n_neighbors: int = 10,
        folds: int = 5,
        random_state: int = 0,
    ) -> None:
        super().__init__(center, shrinkage, shrinkage_strength, allow_reflection, random_state)
        self.max_iter = max_iter
        self.n_neighbors = n_neighbors
        self.folds = folds

    def fit(
        self,
        X: RowsLike,
        Y: RowsLike | None = None,
        sample_weight: ArrayLike | None = None,
        modality: Modalities = None,
        *,
        unpaired: tuple[RowsLike, RowsLike] | None = None,
        y: RowsLike | None = None,
    ) -> Self:
        """Fit the rotation on pairs and, if they help, on matches between the pools.

        Parameters
        ----------
        X : array_like, shape (n, d_source)
        Y : array_like, shape (n, d_target)
        sample_weight : array_like, shape (n,), optional
            Only without pools.
        modality : str, optional
            Modality of all rows, including the pools; without pools also one modality per row.
        unpaired : (array_like, array_like), shapes (p, d_source) and (q, d_target), optional
            Further rows of both models, in any order.
        y : array_like, optional
            Alternative name for ``Y``, as used by scikit-learn's tools.

        Returns
        -------
        Self

        Raises
        ------
        InputError
            As for :func:`congruence.maps.refinement.refine` and :meth:`congruence.OrthogonalMap.fit`.
        ParameterError
            If a parameter has an invalid value, or weights or several modalities are passed together with pools.

        Warns
        -----
        AlignmentWarning
            If the pools did not help.
        """
        Y = y if Y is None else Y
        self.refinement_ = None
        if unpaired is None or Y is None:
            return super().fit(X, Y, sample_weight, modality)
        if sample_weight is not None or not (modality is None or isinstance(modality, str)):
            raise ParameterError(
                "Got unpaired rows together with sample_weight or several modalities; expected pairs of one modality and equal weight. "
                "Leave out sample_weight=…, and pass one modality=…."
            )
        refinement = refine(
            X,
            Y,
            unpaired,
            base=self,
            max_iter=self.max_iter,
            n_neighbors=self.n_neighbors,
            folds=self.folds,
            random_state=self.random_state,
        )
        A, B = as_matrix(X, "X"), as_matrix(Y, "Y")
        if refinement.improves:
            U, V = read_pools(unpaired, A.shape[1], B.shape[1])
            A = np.concatenate([A, U[refinement.source_rows]])
            B = np.concatenate([B, V[refinement.target_rows]])
        super().fit(A, B, None, modality)
        self.refinement_, self.scores_["refinement"] = refinement, refinement.to_dict()
        warn_refinement(refinement)
        return self
