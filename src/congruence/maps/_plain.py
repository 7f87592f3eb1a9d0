"""Replacements for the parts of scikit-learn that commands use, under the same names: parameters and checks of a map."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Self

from congruence._utils.typing import Array, RowsLike
from congruence._utils.validation import check_choice

if TYPE_CHECKING:
    import numpy as np
    from sklearn.utils import Tags


__all__ = [
    "BaseEstimator",
    "ClassNamePrefixFeaturesOutMixin",
    "NotFittedError",
    "TransformerMixin",
    "_check_sample_weight",
    "validate_data",
]


class NotFittedError(ValueError, AttributeError):
    """An estimator is used before it is fitted."""


class BaseEstimator:
    """Base class of estimators whose parameters are the arguments of ``__init__``, stored unchanged."""

    def get_params(self, deep: bool = True) -> dict[str, object]:
        """Return the parameters by name; ``deep`` has no effect, since no parameter of a map is an estimator."""
        return {name: getattr(self, name) for name in sorted(inspect.signature(type(self)).parameters)}

    def set_params(self, **params: object) -> Self:
        """Set parameters by name, and return the map itself."""
        for name, value in params.items():
            check_choice(name, self.get_params(), "parameter")
            setattr(self, name, value)
        return self

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        parameters = inspect.signature(type(self)).parameters
        changed = {name: value for name, value in self.get_params().items() if value is not parameters[name].default}
        call = f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in changed.items())})"
        return call[:N_CHAR_MAX]

    def __sklearn_tags__(self) -> Tags:
        # Only scikit-learn calls this, so it is already imported.
        from sklearn.base import BaseEstimator as SklearnEstimator

        return SklearnEstimator().__sklearn_tags__()


class TransformerMixin:
    """Mixin that adds :meth:`fit_transform`."""

    def fit_transform(self, X: RowsLike, y: RowsLike | None = None, **fit_params: object) -> Array:
        """Fit the map, and return the mapped rows."""
        return self.fit(X, y, **fit_params).transform(X)  # type: ignore[attr-defined]


class ClassNamePrefixFeaturesOutMixin:
    """Empty mixin: commands read matrices, which have no named columns."""


def validate_data(estimator: Any, X: np.ndarray, *, reset: bool = True, skip_check_array: bool = True) -> None:
    """Store the number of columns; maps check it themselves before they call this."""
    if reset:
        estimator.n_features_in_ = X.shape[1]


def _check_sample_weight(sample_weight: object, X: object, **options: object) -> object:
    from sklearn.utils import validation

    return validation._check_sample_weight(sample_weight, X, **options)
