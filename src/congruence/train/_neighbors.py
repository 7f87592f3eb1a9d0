"""Nearest rows of one collection among those of another, which is read through once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

from congruence._utils.arrays import blocks
from congruence.errors import ParameterError
from congruence.train.rows import Rows, scannable


def nearest_rows(queries: np.ndarray, rows: Rows, k: int, device: str | torch.device = "cpu") -> np.ndarray:
    """Find the k rows with the largest cosine for each query, by comparing all.

    Parameters
    ----------
    queries : ndarray of float32, shape (n, d)
    rows : Rows
        With methods ``scan`` and ``take``.
    k : int
    device : torch.device, optional
        To compute on.

    Returns
    -------
    ndarray of int, shape (n, k)
        Row numbers, nearest first. Cosines are computed in float32: rows equally near up to its rounding may change places.

    Raises
    ------
    ParameterError
        More neighbors than rows.
    InputError
        The rows cannot be read through.

    Notes
    -----
    O(n·k) memory beside the queries and one block. SOTAlign, appendix A.2: with frozen encoders neighbors can be found once and for all.
    """
    if k > len(rows):
        raise ParameterError(
            f"Got n_neighbors={k} and {len(rows)} unpaired rows; expected at most as many. Pass n_neighbors={len(rows)} or less."
        )
    import torch

    unit = torch.nn.functional.normalize
    Q = unit(torch.tensor(queries), dim=1).to(device)  # a copy: what is mapped from a file cannot be written to
    best = torch.full((len(Q), k), -torch.inf, device=device)
    index = torch.zeros((len(Q), k), dtype=torch.int64, device=device)
    for start, block in scannable(rows).scan():
        there = unit(torch.tensor(block), dim=1).to(device)
        for part in blocks(len(Q), 4 * len(there)):
            value, place = (Q[part] @ there.T).topk(min(k, len(there)), dim=1)
            values, places = torch.cat([best[part], value], 1), torch.cat([index[part], place + start], 1)
            best[part], order = values.topk(k, dim=1)
            index[part] = places.gather(1, order)
    return index.cpu().numpy()
