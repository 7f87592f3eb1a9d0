"""Class prototypes for zero-shot classification, from the embeddings of several prompts per class."""

from __future__ import annotations

from typing import overload

import numpy as np

from congruence._utils.typing import Labels, RowsLike
from congruence._utils.validation import as_matrix
from congruence.errors import ShapeError
from congruence.metrics._base import as_labels
from congruence.metrics.rows import unit

__all__ = ["ensemble_prompts"]


@overload
def ensemble_prompts(embeddings: RowsLike, classes: None = None) -> np.ndarray: ...
@overload
def ensemble_prompts(embeddings: RowsLike, classes: Labels) -> tuple[np.ndarray, np.ndarray]: ...
def ensemble_prompts(embeddings: RowsLike, classes: Labels | None = None) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
    """Average prompt embeddings into class prototypes: normalize, average, and normalize again.

    Parameters
    ----------
    embeddings : array_like, shape (k, t, d), or (p, d) with ``classes``
        t prompts for each of k classes; or p prompts in any order.
    classes : array_like, shape (p,), optional
        Class of each prompt.

    Returns
    -------
    ndarray, shape (k, d)
        Unit rows.
    ndarray, shape (k,)
        Only with ``classes``: the class of each prototype, sorted.

    Raises
    ------
    ShapeError, DtypeError, NotFiniteError
        If arrays have the wrong shape, are not real numbers or contain NaN or infinity.
    ZeroRowError
        If a prompt, or the mean of a class, is a row of zeros.

    References
    ----------
    Gupta et al. (2026), appendix D.3, eq. (6); Radford et al. (2021), §3.1.4.
    """
    if classes is None:
        array = np.asarray(embeddings)
        if array.ndim != 3 or 0 in array.shape:
            raise ShapeError(
                f"Got prompts of shape {array.shape}; expected (classes, templates, dimensions). "
                "Pass classes=… for a flat list of prompts."
            )
        k, t, d = array.shape
        flat = unit(as_matrix(array.reshape(k * t, d), "embeddings"), "embeddings")
        return np.asarray(unit(flat.reshape(k, t, d).mean(axis=1), "the prototypes"))
    flat = unit(as_matrix(embeddings, "embeddings"), "embeddings")
    names, class_of = np.unique(as_labels(classes, len(flat), "classes"), return_inverse=True)
    sums = np.zeros((len(names), flat.shape[1]), dtype=flat.dtype)
    np.add.at(sums, class_of, flat)
    return unit(sums, "the prototypes"), names
