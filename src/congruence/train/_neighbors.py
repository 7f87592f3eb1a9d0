"""Exact nearest-neighbor search in a collection that is read once, in blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

from congruence._utils.arrays import blocks
from congruence.errors import ParameterError
from congruence.train.rows import Rows, scannable


def nearest_rows(queries: np.ndarray, rows: Rows, k: int, device: str | torch.device = "cpu") -> np.ndarray:
    """Return the k rows with the largest cosine for each query, by exhaustive search.

    ``queries`` (n, d); ``rows``: rows to search, which can be scanned in blocks
    (:class:`~congruence.train.rows.ScannableRows`). Returns (n, k): row numbers, nearest first. Cosines are computed in
    float32; rows whose cosines differ by no more than rounding may be in either order.

    Notes
    -----
    Memory is O(n·k) in addition to the queries and one block. With frozen encoders, neighbors need to be computed only
    once (SOTAlign, appendix A.2).
    """
    if k > len(rows):
        raise ParameterError(
            f"Got `n_neighbors={k}` and {len(rows)} unpaired rows; expected at most as many.",
            f"Pass `n_neighbors={len(rows)}` or less.",
        )
    import torch

    unit = torch.nn.functional.normalize
    Q = unit(torch.tensor(queries), dim=1).to(device)  # a copy, because memory-mapped arrays may be read-only
    best = torch.full((len(Q), k), -torch.inf, device=device)
    index = torch.zeros((len(Q), k), dtype=torch.int64, device=device)
    for start, block in scannable(rows).scan():
        R = unit(torch.tensor(block), dim=1).to(device)
        for part in blocks(len(Q), 4 * len(R)):
            cosines, columns = (Q[part] @ R.T).topk(min(k, len(R)), dim=1)
            candidates = torch.cat([best[part], cosines], 1)
            numbers = torch.cat([index[part], columns + start], 1)
            best[part], order = candidates.topk(k, dim=1)
            index[part] = numbers.gather(1, order)
    return index.cpu().numpy()
