"""FAISS (extra ``faiss``): an affine map as a ``LinearTransform`` that goes in front of an index."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from congruence._atomic import atomic_path
from congruence._extras import require
from congruence.errors import ParameterError
from congruence.maps import AffineMap, Map


def to_faiss(mapping: Map) -> Any:
    """Return the map as a FAISS vector transform.

    Parameters
    ----------
    mapping : AffineMap
        Orthogonal or linear, fitted.

    Returns
    -------
    faiss.LinearTransform
        With ``have_bias``; ``apply`` gives what ``mapping.transform`` gives, in float32. Put it before an index with
        ``faiss.IndexPreTransform``.

    Raises
    ------
    ParameterError
        The map is not affine.
    MissingExtraError
        Without the ``faiss`` extra.
    """
    if not isinstance(mapping, AffineMap):
        raise ParameterError(
            f"Got {type(mapping).__name__}; expected an affine map, since FAISS has no others. Use OrthogonalMap or "
            "LinearMap, or map the vectors first (mapping.transform)."
        )
    faiss = require("faiss", extra="faiss")
    matrix = mapping.matrix
    transform = faiss.LinearTransform(matrix.shape[0], matrix.shape[1], True)
    # FAISS multiplies columns: A is (d_out, d_in), row-major.
    faiss.copy_array_to_vector(np.ascontiguousarray(matrix.T, dtype=np.float32).ravel(), transform.A)
    faiss.copy_array_to_vector(np.ascontiguousarray(mapping.offset, dtype=np.float32), transform.b)

    transform.set_is_orthonormal()
    transform.is_trained = True
    return transform


def export_faiss(mapping: Map, path: str | Path, *, force: bool = False) -> Path:
    """Write the map as a FAISS vector transform file (``faiss.read_VectorTransform`` reads it).

    Parameters
    ----------
    mapping : AffineMap
    path : path-like
    force : bool, default=False
        Replace an existing file.

    Returns
    -------
    Path

    Raises
    ------
    ParameterError, MissingExtraError, OutputExistsError, StorageError
    """
    transform = to_faiss(mapping)
    faiss = require("faiss", extra="faiss")
    with atomic_path(path, force=force) as temporary:
        faiss.write_VectorTransform(transform, str(temporary))
    return Path(path)
