"""Base of every map: a scikit-learn transformer fitted on paired rows that knows its two spaces and can be saved."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Self, overload

import numpy as np
from numpy.typing import ArrayLike

from congruence._utils.arrays import as_given, is_tensor
from congruence._utils.typing import Array, ArrowStream, RowsLike, Tensor, TensorT
from congruence._utils.validation import (
    as_matrix,
    check_same_rows,
    check_scale,
    check_width,
)
from congruence.embeddings import (
    Embeddings,
    Space,
    as_embeddings,
    check_order,
    check_space,
    has_unit_rows,
    normalize_rows,
)
from congruence.errors import (
    NormWarning,
    ParameterError,
    TooFewAnchorsError,
)
from congruence.maps._checks import (
    NotFittedMapError,
    as_target,
    check_native,
    check_weights,
    require_target,
    with_names,
)
from congruence.maps._estimator import ClassNamePrefixFeaturesOutMixin, TransformerMixin, validate_data
from congruence.maps._exported import Exported
from congruence.maps._saving import Saving

if TYPE_CHECKING:
    from sklearn.utils import Tags


class Map(ClassNamePrefixFeaturesOutMixin, TransformerMixin, Exported, Saving):
    """Base of all maps between two embedding spaces.

    A subclass sets ``kind``, implements ``fit``, ``transform``, ``state`` and ``_restore``, and is listed in
    ``congruence.maps.MAPS``. After a fit, ``source_space_`` and ``target_space_`` identify the spaces the map connects
    and ``scores_`` holds everything that was measured; both are saved with the map.
    """

    kind: ClassVar[str]
    #: Advice for vectors that have the width of the target, for error messages.
    wrong_side: ClassVar[str] = "Apply the inverse"
    n_features_in_: int
    source_space_: Space
    target_space_: Space
    scores_: dict[str, Any]
    facts_: dict[str, Any]
    n_pairs_: int

    # ------------------------------------------------------------------ contract

    @abstractmethod
    def fit(self, X: RowsLike, Y: RowsLike | None = None, *, y: RowsLike | None = None) -> Self:
        """Fit the map on rows paired by position.

        Parameters
        ----------
        X : array_like, shape (n, d_source)
        Y : array_like, shape (n, d_target)
        y : array_like, optional
            Alternative name for ``Y``, as used by scikit-learn's tools.

        Returns
        -------
        Self
        """

    @overload
    @abstractmethod
    def transform(self, X: TensorT) -> TensorT: ...
    @overload
    @abstractmethod
    def transform(self, X: ArrayLike | ArrowStream) -> np.ndarray: ...
    @abstractmethod
    def transform(self, X: RowsLike) -> Array:
        """Map source rows into the target space.

        Parameters
        ----------
        X : array_like or tensor, shape (m, d_source)

        Returns
        -------
        ndarray or tensor, shape (m, d_out)
            A tensor for tensor input, on the same device, with the same dtype and in its autograd graph.
        """

    @overload
    def transform_target(self, Y: TensorT) -> TensorT: ...
    @overload
    def transform_target(self, Y: ArrayLike | ArrowStream) -> np.ndarray: ...
    def transform_target(self, Y: RowsLike) -> Array:
        """Map target rows into the space that :meth:`transform` maps to: the identity, except for joint-space maps.

        Parameters
        ----------
        Y : array_like or tensor, shape (m, d_target)

        Returns
        -------
        ndarray or tensor, shape (m, d_out)

        Raises
        ------
        ShapeError, DtypeError, NotFiniteError, NotFittedMapError
            If arrays have the wrong shape, are not real numbers or contain NaN or infinity, or the map is not fitted.
        """
        self.check_fitted()
        B = check_native(Y, "Y")
        check_width(B.shape[1], self.d_target, type(self).__name__ + ".transform_target", self.n_features_in_)
        return as_given(B, Y)

    # ------------------------------------------------------------------ checks shared by subclasses

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.target_tags.one_d_labels = False
        tags.target_tags.two_d_labels = True
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = False
        return tags

    @property
    def d_target(self) -> int:
        """Width of the target model's vectors."""
        return self._n_features_out

    @property
    def d_out(self) -> int:
        """Width of the output of :meth:`transform`: ``d_target``, or the width of the joint space for a joint-space map."""
        return self._n_features_out

    @property
    @abstractmethod
    def _n_features_out(self) -> int:
        """Width of the output of :meth:`transform`; scikit-learn uses it to name output features."""

    def check_fitted(self) -> None:
        """Refuse a map that is not fitted.

        Raises
        ------
        NotFittedMapError
            If :meth:`fit` was not called.
        """
        if not hasattr(self, "n_features_in_"):
            raise NotFittedMapError(
                f"Got an unfitted {type(self).__name__}; expected a fitted one. Call fit(X, Y) first."
            )

    def _check_pairs(
        self,
        X: RowsLike,
        Y: RowsLike | None,
        sample_weight: ArrayLike | None = None,
        *,
        reset: bool = True,
        min_pairs: int = 2,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Validate paired rows and weights; store (or compare) the names and number of input features."""
        Y = require_target(Y, type(self).__name__)
        check_order(X, Y)
        A = as_matrix(X, "X", numeric_objects=True)
        B = as_target(Y)
        check_same_rows(len(A), len(B), "X", "Y")
        check_scale(A, "X")
        check_scale(B, "Y")
        if not reset:
            check_width(A.shape[1], self.n_features_in_, type(self).__name__)
        validate_data(self, with_names(X, A), reset=reset, skip_check_array=True)
        weights = None
        if sample_weight is not None:
            weights = check_weights(sample_weight, A)
        used = len(A) if weights is None else int(np.count_nonzero(weights))
        if used < min_pairs:
            raise TooFewAnchorsError(
                f"Got n_samples = {used} pairs with positive weight; expected at least {min_pairs}. Pass more anchors."
            )
        return A, B, weights

    def _check_source(self, X: RowsLike) -> Array:
        """Validate rows to transform; a tensor stays a tensor (:func:`check_native`).

        Zero rows are accepted, because the estimator has no ids with which to name them.
        """
        self.check_fitted()
        A = check_native(X, "X")
        check_width(A.shape[1], self.n_features_in_, type(self).__name__, self.d_target, self.wrong_side)
        # congruence.fit passes arrays without column names, so a data frame with names must not cause a warning.
        # If neither has names, there is nothing to check, and scikit-learn's check would take longer than mapping a few rows.
        if hasattr(self, "feature_names_in_"):
            validate_data(self, with_names(X, A), reset=False, skip_check_array=True)
        return A

    def _remember(self, X: np.ndarray, Y: np.ndarray) -> None:
        """Initialize the attributes that every fitted map has."""
        self.source_space_ = Space(dim=X.shape[1], normalized=has_unit_rows(X))
        self.target_space_ = Space(dim=Y.shape[1], normalized=has_unit_rows(Y))
        self.scores_ = {}

    # ------------------------------------------------------------------ use on embeddings

    def for_modality(self, modality: str | None) -> Map:
        """Return the map to use for a modality: the map itself, unless the method keeps means for each modality."""
        return self

    def gives_unit_rows(self, normalize: bool | str = "auto") -> bool:
        """Return whether :meth:`transform_embeddings`, ``transform_file`` and exports scale mapped rows to unit norm.

        :meth:`transform` never scales: it is the fitted map itself, which can be inverted and composed.

        Parameters
        ----------
        normalize : {"auto", True, False}, default="auto"
            "auto" scales if the target's rows had unit norm at the fit (``target_space_.normalized``).

        Returns
        -------
        bool

        Raises
        ------
        ParameterError
            If ``normalize`` has another value.

        Warns
        -----
        NormWarning
            If ``normalize="auto"`` and the map does not know whether its target's rows had unit norm; rows are then not scaled.
        """
        self.check_fitted()
        if isinstance(normalize, (bool, np.bool_)):
            return bool(normalize)
        if not isinstance(normalize, str) or normalize != "auto":
            raise ParameterError(f"Got normalize={normalize!r}; expected 'auto', True or False. Choose one of these.")
        if self.target_space_.normalized is None:
            self._norm_unknown()
        return bool(self.target_space_.normalized)

    def _norm_unknown(self) -> None:
        warnings.warn(
            "Got a map without a record of whether the target's rows had unit norm, such as one of an earlier version; expected that "
            "record. Rows keep the norms the map gives them. Pass normalize=True for unit rows.",
            NormWarning,
            stacklevel=4,
        )

    @overload
    def transform_embeddings(
        self, embeddings: TensorT, *, modality: str | None = None, normalize: bool | str = "auto"
    ) -> TensorT: ...
    @overload
    def transform_embeddings(
        self, embeddings: ArrayLike | ArrowStream, *, modality: str | None = None, normalize: bool | str = "auto"
    ) -> Embeddings: ...
    def transform_embeddings(
        self, embeddings: RowsLike, *, modality: str | None = None, normalize: bool | str = "auto"
    ) -> Embeddings | Tensor:
        """Map embeddings, after checking that they come from this map's source space.

        Parameters
        ----------
        embeddings : Embeddings or array_like, shape (m, d_source)
        modality : str, optional
            Modality whose means are used; by default the modality of the embeddings.
        normalize : {"auto", True, False}, default="auto"
            Scale the mapped rows to unit norm. "auto" does so if the target's rows had unit norm at the fit, so that mapped rows and
            the target model's own rows can share an inner-product index. With False, rows are as :meth:`transform` returns them.

        Returns
        -------
        Embeddings
            Same ids, in the target space. For tensor input a tensor, as from :meth:`transform`, so that its device and graph are kept.

        Raises
        ------
        SpaceMismatchError, DirectionError, ModalityError
            If the embeddings do not belong to the source space, or belong to the target space or to a modality without known means.
        ShapeError, DtypeError, NotFiniteError
            If vectors have the wrong width, are not real numbers or contain NaN or infinity.
        NotFittedMapError
            If the map is not fitted.
        ParameterError
            If ``normalize`` has another value.

        Warns
        -----
        NormWarning
            If ``normalize="auto"`` and the map does not know whether its target's rows had unit norm; rows are then not scaled.
        """
        self.check_fitted()
        if is_tensor(embeddings):
            mapped = self.for_modality(modality)
            unit = mapped.gives_unit_rows(normalize)
            out = mapped.transform(embeddings)
            return normalize_rows(out) if unit else out
        embeddings = as_embeddings(embeddings, "embeddings", allow_zero_rows=True)
        modality = modality or embeddings.space.modality
        mapped = self.for_modality(modality)
        check_space(embeddings.space, mapped.source_space_, mapped.target_space_, modality=False)
        unit = mapped.gives_unit_rows(normalize)
        vectors = mapped.transform(embeddings.vectors)
        if unit:
            vectors = normalize_rows(vectors)
        space = replace(
            mapped.target_space_, dim=vectors.shape[1], modality=modality, normalized=True if unit else None
        )
        return Embeddings(
            vectors, ids=embeddings.ids if embeddings.has_ids else None, space=space, allow_zero_rows=True
        )

    def describe(self) -> dict[str, object]:
        """Return what is known about the fitted map as plain data (what ``congruence inspect`` prints)."""
        self.check_fitted()
        return {
            "kind": self.kind,
            "parameters": self.get_params(deep=False),
            "source": self.source_space_.to_dict(),
            "target": self.target_space_.to_dict(),
            **self.facts_,
            "scores": self.scores_,
        }
