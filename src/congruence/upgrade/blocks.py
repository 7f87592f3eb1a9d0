"""Map blocks of rows with a map that is checked and prepared once, in this process or in others."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import DTypeLike

from congruence._utils.arrays import as_dtype
from congruence._utils.validation import RowNames, check_rows
from congruence.embeddings import Space, check_space, has_unit_rows, normalize_rows
from congruence.errors import ParameterError
from congruence.maps import AffineMap, HeadsMap, Map
from congruence.upgrade._blocks import block_function

__all__ = ["BlockMap"]

#: Device files of the drivers of NVIDIA, of WSL and of AMD.
_GPU_DEVICES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")

#: Bytes of source vectors in a block; a few blocks are in memory at a time.
BLOCK_BYTES = 8 * 2**20


class BlockMap:
    """A map applied to blocks of rows, with fixed side, means, precision and normalization.

    It can be pickled, which is how engines send it to their workers; prepared products are computed again there.

    Parameters
    ----------
    mapping : Map
        A fitted map.
    space : Space
        Space of the vectors, as far as it is known; ``dim`` must be set.
    source_dtype : dtype
        Type in which the vectors are stored: float16, float32 or float64.
    modality : str, optional
        Modality whose means are used; by default that of ``space``.
    normalize : {"auto", True, False}, default="auto"
        Scale mapped rows to unit norm (:meth:`~congruence.maps.Map.gives_unit_rows`).
    dtype : dtype, optional
        Type in which mapped vectors are stored; by default ``source_dtype``.
    side : {"source", "target"}, optional
        Which head of a joint-space map to use.
    check : bool, default=True
        Refuse vectors that are known to belong to another space.
    allow_zero_rows : bool, default=False
    device : str, optional
        "cpu" or "cuda": compute products of affine maps with torch on that device; "auto" does so if the process sees a GPU. By
        default NumPy computes them.

    Attributes
    ----------
    space : Space
        Space of the mapped vectors.
    expected : Space
        Space that the vectors must belong to.
    dim_in, dim : int
        Widths of the input and of the output.
    source_dtype, dtype, compute : numpy.dtype
        Types of the stored input, of the stored output, and of the computation.
    unit : bool
        Whether mapped rows are scaled to unit norm.
    head : str or None
        For a joint-space map: the head that maps the rows.

    Raises
    ------
    SpaceMismatchError, DirectionError, ModalityError
        If the vectors belong to another space.
    ParameterError
        If ``side`` is missing although the vectors could belong to either side, or is "target" for a map without a second head.
    """

    def __init__(
        self,
        mapping: Map,
        space: Space,
        source_dtype: DTypeLike,
        *,
        modality: str | None = None,
        normalize: bool | str = "auto",
        dtype: DTypeLike | None = None,
        side: str | None = None,
        check: bool = True,
        allow_zero_rows: bool = False,
        device: str | None = None,
    ) -> None:
        assert space.dim is not None
        wanted = modality or space.modality
        self.mapped = mapping.for_modality(wanted)
        # A width that does not fit is caught here too, before any work.
        known = replace(space, modality=wanted) if check else Space(dim=space.dim)
        self.expected, output, self.head = _sides(self.mapped, known, side)
        self.source_dtype = as_dtype(source_dtype)
        self.compute = as_dtype("float64" if self.source_dtype == np.float64 else "float32")
        self.dtype = as_dtype(dtype) if dtype is not None else self.source_dtype
        self.unit = self.mapped.gives_unit_rows(normalize)
        self.dim_in, self.dim = space.dim, self.mapped.d_out
        self.space = replace(output, dim=self.dim, modality=wanted, normalized=True if self.unit else None)
        self.check, self.allow_zero_rows, self.device = check, allow_zero_rows, device
        self._function: Callable[[np.ndarray], np.ndarray] | None = None

    def rows_of_block(self, row_bytes: int | None = None) -> int:
        """Return the number of rows per block, the same for every kind of run so that all compute the same products.

        Parameters
        ----------
        row_bytes : int, optional
            Bytes of a row of the table with all its columns, if these are read too.
        """
        rows = max(256, BLOCK_BYTES // (self.dim_in * self.compute.itemsize))
        return rows if row_bytes is None else max(1, min(rows, BLOCK_BYTES // row_bytes))

    def check_block(self, block: np.ndarray, name: str, names: RowNames | None = None, *, first: bool = False) -> None:
        """Refuse rows with NaN, infinity or only zeros; for the first block, also norms that differ from those at the fit.

        Raises
        ------
        NotFiniteError, ZeroRowError, SpaceMismatchError
            If a row contains NaN or infinity, a row is zero, or the norms of the first block differ from those at the fit.
        """
        check_rows(block, name, ids=names, allow_zero_rows=self.allow_zero_rows)
        if first and self.check:
            check_space(Space(normalized=has_unit_rows(block)), self.expected, Space(), modality=False)

    def __call__(self, block: np.ndarray) -> np.ndarray:
        """Map rows.

        Parameters
        ----------
        block : ndarray, shape (b, d_source)

        Returns
        -------
        ndarray of dtype ``compute``, shape (b, d_out)
        """
        if self._function is None:
            self._function = self._prepare()
        out = self._function(block.astype(self.compute, copy=False))
        return normalize_rows(out) if self.unit else out

    def _prepare(self) -> Callable[[np.ndarray], np.ndarray]:
        if self.head is not None:
            return self.mapped.transform if self.head == "source" else self.mapped.transform_target
        if self.device is not None and isinstance(self.mapped, AffineMap) and (self.device != "auto" or _sees_gpu()):
            return _torch_function(self.mapped, self.compute, "cuda" if self.device == "auto" else self.device)
        return block_function(self.mapped, self.compute)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_function": None}


def _sides(mapped: Map, space: Space, side: str | None) -> tuple[Space, Space, str | None]:
    """Return the space the vectors must belong to, the space of the mapped vectors, and the head that maps them if there are two."""
    if isinstance(mapped, HeadsMap):
        if mapped.side_of(space, side) == "source":
            return mapped.source_space_, mapped.joint_space(), "source"
        return mapped.target_space_, mapped.joint_space(), "target"
    if side not in (None, "source"):
        raise ParameterError(
            f"Got side={side!r} for a {mapped.kind} map; expected 'source', the only side it maps. Leave out side=…, or use the inverse map."
        )
    check_space(space, mapped.source_space_, mapped.target_space_, modality=False)
    return mapped.source_space_, mapped.target_space_, None


def _sees_gpu() -> bool:
    """Return whether torch is installed and sees a GPU; engines hide GPUs that a task did not request.

    Importing torch takes seconds, so it is skipped on a Linux machine without a driver's device.
    """
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        return False
    if sys.platform == "linux" and not any(map(os.path.exists, _GPU_DEVICES)):
        return False
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.cuda.is_available())


def _torch_function(mapped: AffineMap, compute: np.dtype, device: str) -> Callable[[np.ndarray], np.ndarray]:
    """Return the product on a device, in the precision of ``compute``: torch rounds to TF32 only if that is enabled."""
    import torch

    matrix = torch.from_numpy(np.ascontiguousarray(mapped.matrix, dtype=compute)).to(device)
    offset = torch.from_numpy(mapped.offset.astype(compute)).to(device)

    def transform(block: np.ndarray) -> np.ndarray:
        rows = torch.from_numpy(np.require(block, requirements=["C", "W"])).to(device)
        out: np.ndarray = torch.addmm(offset, rows, matrix).cpu().numpy()
        return out

    return transform
