"""The scikit-learn base classes of maps; in a process that runs a single command, minimal replacements for them.

Importing scikit-learn takes four times as long as fitting a rotation on 1,000 pairs: it imports SciPy's statistics and optimizers, and
pandas if that is installed. Commands use no pipelines, so their process avoids the import. Everywhere else maps are scikit-learn estimators.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from congruence._utils.process import runs_command

if TYPE_CHECKING or not runs_command():
    from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
    from sklearn.exceptions import NotFittedError
    from sklearn.utils.validation import _check_sample_weight, validate_data
else:
    from congruence.maps._plain import (
        BaseEstimator,
        ClassNamePrefixFeaturesOutMixin,
        NotFittedError,
        TransformerMixin,
        _check_sample_weight,
        validate_data,
    )

__all__ = [
    "BaseEstimator",
    "ClassNamePrefixFeaturesOutMixin",
    "NotFittedError",
    "TransformerMixin",
    "_check_sample_weight",
    "validate_data",
]
