"""FAISS (extra ``faiss``): an affine map as a ``LinearTransform`` that goes in front of an index."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from congruence._utils.atomic import atomic_path
from congruence._utils.optional import require
from congruence.errors import NormWarning, ParameterError, ShapeError
from congruence.maps import AffineMap, Map

if TYPE_CHECKING:
    import faiss

__all__ = ["export_faiss", "to_faiss", "to_faiss_index"]

#: Names of files that hold an index, and with it several transforms.
INDEX_SUFFIXES = (".index", ".faiss")


def to_faiss(mapping: Map) -> faiss.VectorTransform:
    """Return the map as a FAISS vector transform.

    Parameters
    ----------
    mapping : AffineMap
        Orthogonal or linear, fitted.

    Returns
    -------
    faiss.LinearTransform
        With ``have_bias``; ``apply`` gives what ``mapping.transform`` gives, in float32: no unit rows, for which see
        :func:`to_faiss_index`.

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


def to_faiss_index(
    mapping: Map, index: faiss.Index | None = None, *, normalize: bool | str = "auto"
) -> faiss.IndexPreTransform:
    """Return a FAISS index that maps what it is given: the map's transform, then the L2 norm where rows are to be unit rows.

    Parameters
    ----------
    mapping : AffineMap
    index : faiss.Index, optional
        Of the target's width; an empty ``IndexFlatIP`` by default.
    normalize : {"auto", True, False}, default="auto"
        Add a ``NormalizationTransform``; "auto" does so if the target's rows had unit norm at the fit.

    Returns
    -------
    faiss.IndexPreTransform
        Both ``add`` and ``search`` map their rows. It holds a reference to ``index``.

    Raises
    ------
    ParameterError, MissingExtraError
    ShapeError
        The index has another width than the map's output.

    Warns
    -----
    NormWarning
        "auto", and the map does not know of its target's rows.
    """
    transform = to_faiss(mapping)
    faiss = require("faiss", extra="faiss")
    width = mapping.d_out
    index = faiss.IndexFlatIP(width) if index is None else index
    if index.d != width:
        raise ShapeError(
            f"Got an index of width {index.d}; expected {width}, the map's output. Use the target's index."
        )
    out = faiss.IndexPreTransform(index)
    if mapping.gives_unit_rows(normalize):
        out.prepend_transform(faiss.NormalizationTransform(width, 2.0))
    out.prepend_transform(transform)
    return out


def export_faiss(mapping: Map, path: str | Path, *, normalize: bool | str = "auto", force: bool = False) -> Path:
    """Write the map for FAISS.

    A file of one vector transform holds the affine map alone, since FAISS keeps the L2 norm as a transform of its own. An index file
    holds both.

    Parameters
    ----------
    mapping : AffineMap
    path : path-like
        ``.index`` or ``.faiss``: an empty index with the map, and the norm, in front (``faiss.read_index`` reads it; see
        :func:`to_faiss_index`). Any other name: the affine map (``faiss.read_VectorTransform``).
    normalize : {"auto", True, False}, default="auto"
        Scale mapped rows to unit norm; "auto" does so if the target's rows had unit norm at the fit.
    force : bool, default=False
        Replace an existing file.

    Returns
    -------
    Path

    Raises
    ------
    ParameterError
        The map is not affine, or ``normalize=True`` for a file that cannot hold the norm.
    MissingExtraError, OutputExistsError, StorageError

    Warns
    -----
    NormWarning
        The file holds the affine map alone, and mapped rows are to be unit rows; or the map does not know.
    """
    whole = Path(path).suffix.lower() in INDEX_SUFFIXES
    exported: faiss.VectorTransform | faiss.IndexPreTransform
    if whole:
        exported = to_faiss_index(mapping, normalize=normalize)
    else:
        exported = to_faiss(mapping)
        step = f"faiss.NormalizationTransform({mapping.d_out})"
        if normalize is True:
            raise ParameterError(
                f"Got normalize=True for {path}, a FAISS vector transform, which is affine; expected an index file. Choose a name "
                f"that ends in .index, or add {step} yourself."
            )
        if mapping.gives_unit_rows(normalize):
            warnings.warn(
                f"Got a map to unit rows for {path}; expected a file that holds the norm, which a FAISS vector transform cannot. "
                f"Put {step} after it, or choose a name that ends in .index.",
                NormWarning,
                stacklevel=2,
            )
    faiss = require("faiss", extra="faiss")
    # FAISS tells of a full disk by a RuntimeError without its number: it writes to memory, and the file is written here.
    memory = faiss.VectorIOWriter()
    (faiss.write_index if whole else faiss.write_VectorTransform)(exported, memory)
    with atomic_path(path, force=force) as temporary:
        temporary.write_bytes(faiss.vector_to_array(memory.data).tobytes())
    return Path(path)
