"""FAISS (extra ``faiss``): an affine map as a ``LinearTransform`` in front of a new or existing index."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from congruence._utils.arrays import UNIT_TOLERANCE
from congruence._utils.atomic import atomic_path, check_output
from congruence._utils.display import short
from congruence._utils.optional import require
from congruence.errors import CorruptFileError, FileError, NormWarning, OutputExistsError, ParameterError, ShapeError
from congruence.integrations._maps import as_map
from congruence.maps import AffineMap, Map

if TYPE_CHECKING:
    import faiss

    from congruence.upgrade.bridge import Bridge

__all__ = ["export_faiss", "to_faiss", "to_faiss_index"]

#: Names of files that hold an index, and with it several transforms.
INDEX_SUFFIXES = (".index", ".faiss")


def to_faiss(mapping: Map | Bridge, *, modality: str | None = None) -> faiss.VectorTransform:
    """Return the map as a FAISS vector transform.

    Parameters
    ----------
    mapping : AffineMap or Bridge
        Orthogonal or linear, fitted.
    modality : str, optional
        Modality whose means are used; by default the modality the map was fitted on.

    Returns
    -------
    faiss.LinearTransform
        With ``have_bias``; ``apply`` gives what ``mapping.transform`` gives, in float32: no unit rows, for which see
        :func:`to_faiss_index`.

    Raises
    ------
    ParameterError
        The map is not affine.
    ModalityError
        The map has no means for the modality.
    MissingExtraError
        Without the ``faiss`` extra.
    """
    mapping, _ = as_map(mapping, modality)
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
    mapping: Map | Bridge,
    index: faiss.Index | None = None,
    *,
    modality: str | None = None,
    normalize: bool | str = "auto",
) -> faiss.IndexPreTransform:
    """Return a FAISS index that maps its input: the map's transform, followed by L2 normalization if rows should have unit norm.

    Around an index of the target model's vectors it takes the source model's queries. Nothing in that index is read or changed by it.

    Parameters
    ----------
    mapping : AffineMap or Bridge
    index : faiss.Index, optional
        Of the target's width, of any kind; an empty ``IndexFlatIP`` by default.
    modality : str, optional
        Modality whose means are used; by default the modality the map was fitted on.
    normalize : {"auto", True, False}, default="auto"
        Add a ``NormalizationTransform``; "auto" does so if the target's rows had unit norm at the fit.

    Returns
    -------
    faiss.IndexPreTransform
        Both ``add`` and ``search`` map their rows: new items are added as vectors of the source model too. It holds a reference to ``index``.

    Raises
    ------
    ParameterError, ModalityError, MissingExtraError
        If a parameter has an invalid value; the modality does not fit; or an optional dependency is not installed.
    ShapeError
        The index has another width than the map's output.

    Warns
    -----
    NormWarning
        "auto", and the map does not know of its target's rows; or mapped rows are unit rows and those of an L2 index are not, so that its
        order would not be that of raw queries.
    """
    mapping, normalize = as_map(mapping, modality, normalize)
    transform = to_faiss(mapping)
    faiss = require("faiss", extra="faiss")
    width = mapping.d_out
    index = faiss.IndexFlatIP(width) if index is None else index
    if index.d != width:
        way = " Or use the inverse map, which leads to this width." if index.d == mapping.n_features_in_ else ""
        raise ShapeError(
            f"Got an index of width {index.d}; expected {width}, the map's output. Use the target's index.{way}"
        )
    out = faiss.IndexPreTransform(index)
    if mapping.gives_unit_rows(normalize):
        _check_norms(index)
        out.prepend_transform(faiss.NormalizationTransform(width, 2.0))
    out.prepend_transform(transform)
    return out


def export_faiss(
    mapping: Map | Bridge,
    path: str | Path,
    *,
    index: str | Path | faiss.Index | None = None,
    modality: str | None = None,
    normalize: bool | str = "auto",
    force: bool = False,
) -> Path:
    """Write the map for FAISS.

    A file of one vector transform holds the affine map alone, since FAISS keeps the L2 norm as a transform of its own. An index file
    holds both.

    Parameters
    ----------
    mapping : AffineMap or Bridge
    path : path-like
        ``.index`` or ``.faiss``, and any name with ``index``: the index with the map, and the norm, in front (``faiss.read_index`` reads it; see
        :func:`to_faiss_index`). Any other name: the affine map (``faiss.read_VectorTransform``).
    index : path-like or faiss.Index, optional
        An index of the target model's vectors, of any kind, to put the map in front of; its bytes end the new file as they are. An empty
        ``IndexFlatIP`` by default. A file is mapped into memory, not read (FAISS 1.11 and later).
    modality : str, optional
        Modality whose means are used; by default the modality the map was fitted on.
    normalize : {"auto", True, False}, default="auto"
        Scale mapped rows to unit norm; "auto" does so if the target's rows had unit norm at the fit.
    force : bool, default=False
        Replace an existing file; never that of the index.

    Returns
    -------
    Path

    Raises
    ------
    ParameterError
        The map is not affine, or ``normalize=True`` for a file that cannot hold the norm.
    ShapeError
        The index has another width than the map's output.
    FileError, CorruptFileError
        No file of an index, or one that FAISS cannot read.
    ModalityError, MissingExtraError, OutputExistsError, StorageError
        If the modality does not fit; an optional dependency is not installed; the output already exists; or the output cannot be written.

    Warns
    -----
    NormWarning
        The file holds the affine map alone, and mapped rows are to be unit rows; or as of :func:`to_faiss_index`.
    """
    mapping, normalize = as_map(mapping, modality, normalize)
    check_output(path, force=force)
    if isinstance(index, (str, Path)):
        if os.path.exists(path) and os.path.exists(index) and os.path.samefile(path, index):
            raise OutputExistsError(
                f"Got {path} as the output, which is the index itself; expected another path: the index stays as it is. Choose another name."
            )
        index = _read_index(index)
    whole = index is not None or Path(path).suffix.lower() in INDEX_SUFFIXES
    exported: faiss.VectorTransform | faiss.IndexPreTransform
    if whole:
        exported = to_faiss_index(mapping, index, normalize=normalize)
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
    with atomic_path(path, force=force) as temporary, open(temporary, "wb") as file:
        # FAISS tells of a full disk by a RuntimeError without its number; Python's own write raises what it is.
        (faiss.write_index if whole else faiss.write_VectorTransform)(exported, faiss.PyCallbackIOWriter(file.write))
    return Path(path)


def _read_index(path: str | Path) -> faiss.Index:
    """Open the file of an index, where FAISS can without reading it."""
    faiss = require("faiss", extra="faiss")
    if not Path(path).is_file():
        raise FileError(
            f"Got no file at {path}; expected a FAISS index. Pass index=… as the file that faiss.write_index wrote."
        )
    try:
        return faiss.read_index(os.fspath(path), getattr(faiss, "IO_FLAG_MMAP_IFC", 0))
    except RuntimeError as error:
        raise CorruptFileError(
            f"Got {path}, which FAISS does not read as an index of float vectors ({short(str(error), 300)}); expected an intact one. "
            "Write it again with faiss.write_index."
        ) from error


def _check_norms(index: faiss.Index) -> None:
    """Warn if unit queries will meet an L2 index of rows that are none; an inner product orders them alike whatever the query's norm."""
    faiss = require("faiss", extra="faiss")
    rows = _stored_rows(index) if index.metric_type == faiss.METRIC_L2 else None
    if rows is None or not len(rows):
        return
    norms = np.linalg.norm(rows.astype(np.float64), axis=1)
    if np.abs(norms - 1).max() > UNIT_TOLERANCE:
        warnings.warn(
            f"Got an L2 index whose rows have norms of {norms.min():.3g} to {norms.max():.3g}, and a map to unit rows; expected unit rows in both, as "
            "the map's target had at the fit, or distances depend on norms that mapped queries have lost. Fit the map to vectors as they "
            "are in the index, or use an index of unit rows.",
            NormWarning,
            stacklevel=4,
        )


def _stored_rows(index: faiss.Index, most: int = 256) -> np.ndarray | None:
    """Return some rows of an index that keeps them as floats; None of one that keeps codes or transforms them."""
    faiss = require("faiss", extra="faiss")
    index = faiss.downcast_index(index)
    if isinstance(index, (faiss.IndexIDMap, faiss.IndexIDMap2)):
        return _stored_rows(index.index)
    if isinstance(index, faiss.IndexHNSW):
        return _stored_rows(index.storage)
    if isinstance(index, faiss.IndexFlat):
        return index.reconstruct_batch(np.arange(0, index.ntotal, max(1, index.ntotal // most))[:most])
    if isinstance(index, faiss.IndexIVFFlat):
        lists = index.invlists
        largest = max(range(lists.nlist), key=lists.list_size)
        count = min(lists.list_size(largest), most)
        codes = (
            faiss.rev_swig_ptr(lists.get_codes(largest), count * lists.code_size) if count else np.empty(0, np.uint8)
        )
        return codes.copy().view(np.float32).reshape(count, index.d)
    return None
