"""FAISS (extra ``faiss``): export an affine map as a ``LinearTransform``, alone or in front of an index."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from congruence._utils.arrays import UNIT_TOLERANCE
from congruence._utils.atomic import atomic_path, check_output
from congruence._utils.optional import require
from congruence._utils.typing import RowsLike
from congruence.errors import NormWarning, OutputExistsError, ParameterError, ShapeError
from congruence.evaluation.joint_search import searched_rows
from congruence.integrations._maps import as_map, check_suffix
from congruence.io import read_embeddings
from congruence.io.faiss_file import read_index
from congruence.maps import AffineMap, HeadsMap, Map
from congruence.maps.heads import SIDES

if TYPE_CHECKING:
    import faiss

    from congruence.upgrade.bridge import Bridge


#: File suffixes for an index, which can hold several transforms, and for one transform.
INDEX_SUFFIXES, TRANSFORM_SUFFIX = (".index", ".faiss"), ".vt"

_SAMPLE = 256  # rows of an index whose norms are compared with those of queries


def to_faiss(mapping: Map | Bridge, *, modality: str | None = None) -> faiss.VectorTransform:
    """Return an affine map as a FAISS transform, which maps rows as ``mapping.transform`` does, in float32.

    It does not scale rows to unit norm; for this see ``to_faiss_index``. ``modality`` is the one whose means are used,
    by default that of the bridge, or that the map was fitted on. Maps that are not affine are refused.
    """
    mapping, _ = as_map(mapping, modality)
    if not isinstance(mapping, AffineMap):
        problem = f"Got a map of kind {mapping.kind}; expected an affine map, the only kind that FAISS supports."
        raise ParameterError(problem, "Use an orthogonal or a linear map, or map the vectors first.")
    return _linear(mapping.matrix, mapping.offset)


def to_faiss_index(
    mapping: Map | Bridge,
    index: faiss.Index | None = None,
    *,
    modality: str | None = None,
    normalize: bool | str = "auto",
) -> faiss.IndexPreTransform:
    """Return an index that maps what is added and searched, and then calls ``index``, which is not changed.

    In front of an index of the target model's vectors, it accepts the source model's queries.

    Parameters
    ----------
    mapping, modality, normalize
        As for ``to_faiss``; ``congruence.integrations.to_onnx``.
    index : faiss.Index, optional
        An index of any kind with the width of the map's output; by default an empty ``IndexFlatIP``.

    Warns
    -----
    NormWarning
        If ``normalize="auto"`` and the map does not know whether its target's rows had unit norm; or if mapped rows
        have unit norm but those of an L2 index do not, which would change the ranking.
    """
    mapping, normalize = as_map(mapping, modality, normalize)
    transform = to_faiss(mapping)
    faiss = require("faiss", extra="faiss")
    width = mapping.d_out
    index = faiss.IndexFlatIP(width) if index is None else index
    if index.d != width:
        hint = " Or use the inverse map, whose output has this width." if index.d == mapping.n_features_in_ else ""
        raise ShapeError(
            f"Got an index of width {index.d}; expected {width}, the map's output.", f"Use the target's index.{hint}"
        )
    out = faiss.IndexPreTransform(index)
    if mapping.gives_unit_rows(normalize):
        if index.metric_type == faiss.METRIC_L2:  # with inner products, the norm of a query does not affect the ranking
            _check_norms(index)
        out.prepend_transform(faiss.NormalizationTransform(width, 2.0))
    out.prepend_transform(transform)
    return out


def to_faiss_joint_index(
    mapping: HeadsMap, gallery: RowsLike, *, side: str = "source", hubness: str = "auto"
) -> faiss.IndexPreTransform:
    """Return an index of one model's rows (n, d) that is searched with unmapped rows of the other, the ``side``; its
    inner products are the scores of ``congruence.evaluation.search``, whose correction for hubs is one more coordinate.

    Heads of other layers than scaling to unit norm, centering and linear ones are refused.
    """
    rows = np.ascontiguousarray(searched_rows(mapping, gallery, side=side, hubness=hubness), np.float32)
    faiss = require("faiss", extra="faiss")
    width = mapping.d_out
    index = faiss.IndexFlatIP(rows.shape[1])
    index.add(rows)
    out = faiss.IndexPreTransform(index)
    more = [{"kind": "linear", "weight": np.eye(width, width + 1), "bias": np.eye(width + 1)[width]}]
    layers = [*mapping.layers()[SIDES.index(side)], {"kind": "normalize"}, *more[: rows.shape[1] - width]]
    for layer in reversed(layers):
        kind = layer["kind"]
        if kind == "normalize":
            out.prepend_transform(faiss.NormalizationTransform(out.d, 2.0))
        elif kind == "center":
            out.prepend_transform(_linear(np.eye(out.d), -np.asarray(layer["mean"])))
        elif kind == "linear":
            out.prepend_transform(_linear(layer["weight"], layer.get("bias", np.zeros(out.d))))
        else:
            raise ParameterError(f"Got a head with a layer {kind}, which FAISS does not have.", "Map the rows first.")
    return out


def _linear(matrix: np.ndarray, offset: np.ndarray) -> faiss.LinearTransform:
    """Return the transform x @ matrix + offset, float32."""
    faiss = require("faiss", extra="faiss")
    transform = faiss.LinearTransform(*matrix.shape, True)
    # FAISS maps column vectors: A has shape (d_out, d_in), row-major.
    faiss.copy_array_to_vector(np.ascontiguousarray(matrix.T, dtype=np.float32).ravel(), transform.A)
    faiss.copy_array_to_vector(np.ascontiguousarray(offset, dtype=np.float32), transform.b)
    transform.set_is_orthonormal()
    transform.is_trained = True
    return transform


def export_faiss(
    mapping: Map | Bridge,
    path: str | Path,
    *,
    index: str | Path | faiss.Index | RowsLike | None = None,
    modality: str | None = None,
    normalize: bool | str = "auto",
    side: str = "source",
    force: bool = False,
) -> Path:
    """Write a map to a file that FAISS can read, with NormWarnings as of ``to_faiss_index``.

    Parameters
    ----------
    mapping, modality, normalize
        As for ``to_faiss_index``.
    path : path-like
        If it ends in ``.index`` or ``.faiss``, or if ``index`` is given: the index with the map and the normalization
        in front, for ``faiss.read_index``. If it ends in ``.vt``, or has no suffix, only the affine map, for
        ``faiss.read_VectorTransform``, which cannot hold the normalization: ``normalize=True`` is refused, and "auto"
        warns. Other suffixes are refused.
    index : path-like or faiss.Index, optional
        An index of the target model's vectors, which is copied unchanged into the new file. A file is memory-mapped,
        not read (FAISS 1.11 and later). For a joint-space map: vectors of the model that is searched, or a file of
        them; the queries are of the other model, the ``side``.
    force : bool, default=False
        Replace an existing file, but never that of ``index``.
    """
    suffix = check_suffix(path, *INDEX_SUFFIXES, TRANSFORM_SUFFIX)
    check_output(path, force=force)
    exported: faiss.VectorTransform | faiss.IndexPreTransform
    if isinstance(mapping, HeadsMap):
        if index is None or suffix not in INDEX_SUFFIXES:
            problem = "Got a joint-space map without rows to search, or for a file that is no index."
            raise ParameterError(problem, "Pass vectors of one model as `index=…`, and a path that ends in .index.")
        rows = read_embeddings(index) if isinstance(index, (str, Path)) else index
        _write(to_faiss_joint_index(mapping, rows, side=side), "write_index", path, force)
        return Path(path)
    mapping, normalize = as_map(mapping, modality, normalize)
    if side != "source":
        problem = f"Got `side={side!r}` for a map that leads from one model to the other."
        raise ParameterError(problem, "Leave out `side=…`, or export the inverse map.")
    if isinstance(index, (str, Path)):
        if os.path.exists(path) and os.path.exists(index) and os.path.samefile(path, index):
            raise OutputExistsError(f"{path} is also the index to read, which is never replaced.", "Pass another path.")
        index = read_index(Path(index))
    if index is not None or suffix in INDEX_SUFFIXES:
        exported, writer = to_faiss_index(mapping, index, normalize=normalize), "write_index"
    else:
        exported, writer = to_faiss(mapping), "write_VectorTransform"
        problem = f"{path} is a FAISS vector transform, which cannot scale rows to unit norm."
        fix = f"Choose a name that ends in .index, or add faiss.NormalizationTransform({mapping.d_out}) yourself."
        if normalize is True:
            raise ParameterError(problem, fix)
        if mapping.gives_unit_rows(normalize):
            warnings.warn(NormWarning(problem, fix), stacklevel=2)
    _write(exported, writer, path, force)
    return Path(path)


def _write(exported: faiss.VectorTransform | faiss.Index, writer: str, path: str | Path, force: bool) -> None:
    library = require("faiss", extra="faiss")
    with atomic_path(path, force=force) as temporary, open(temporary, "wb") as file:
        # For a full disk, FAISS raises a RuntimeError without an errno; Python's write raises an OSError.
        getattr(library, writer)(exported, library.PyCallbackIOWriter(file.write))


def _check_norms(index: faiss.Index) -> None:
    """Warn if the rows of an index do not have unit norm, as queries will; only some rows of some kinds are known."""
    faiss = require("faiss", extra="faiss")
    index = faiss.downcast_index(index)
    if isinstance(index, (faiss.IndexIDMap, faiss.IndexIDMap2)):
        index = faiss.downcast_index(index.index)
    if isinstance(index, faiss.IndexHNSW):
        index = faiss.downcast_index(index.storage)
    if isinstance(index, faiss.IndexFlat):
        rows = index.reconstruct_batch(np.arange(0, index.ntotal, max(1, index.ntotal // _SAMPLE))[:_SAMPLE])
    elif isinstance(index, faiss.IndexIVFFlat) and index.ntotal:
        lists = index.invlists
        largest = max(range(lists.nlist), key=lists.list_size)
        count = min(lists.list_size(largest), _SAMPLE)
        codes = faiss.rev_swig_ptr(lists.get_codes(largest), count * lists.code_size)
        rows = codes.copy().view(np.float32).reshape(count, index.d)
    else:  # empty, or an index that stores codes or transforms its rows
        return
    norms = np.linalg.norm(rows.astype(np.float64), axis=1)
    if len(norms) and np.abs(norms - 1).max() > UNIT_TOLERANCE:
        warnings.warn(
            NormWarning(
                f"Got an L2 index whose rows have norms of {norms.min():.3g} to {norms.max():.3g}, and a map "
                "to unit-norm rows; expected unit norm in both, since distances depend on norms, which mapped "
                "queries have lost.",
                "Fit the map to the vectors as they are stored in the index, or use an index of unit-norm rows.",
            ),
            stacklevel=4,
        )
