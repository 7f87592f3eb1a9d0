"""NNCLR, as used in DeCLIP: unpaired rows near a row's partner serve as additional partners."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from congruence._utils.arrays import blocks
from congruence.errors import ParameterError
from congruence.train._base import Batch, HeadsObjective, HeadTrainer
from congruence.train.rows import Rows, scannable

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def nearest_rows(queries: np.ndarray, rows: Rows, k: int, device: str | torch.device = "cpu") -> np.ndarray:
    """Return the k row numbers (n, k) with the largest cosine for each query (n, d), by exhaustive search in float32,
    nearest first; rows that differ by no more than rounding may be in either order.
    """
    if k > len(rows):
        raise ParameterError(f"Got `n_neighbors={k}` and {len(rows)} unpaired rows.", f"Pass at most {len(rows)}.")
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


class _Objective(HeadsObjective):
    trainer: NNCLR

    def prepare(self) -> None:
        self.neighbors = [self._find("source", "image_weight"), self._find("target", "text_weight")]

    def _find(self, side: str, name: str) -> tuple[np.ndarray, Tensor] | None:
        """Return each pair's neighbors as positions in the returned rows; None for a side with weight 0."""
        if not getattr(self.trainer, name):
            return None
        self.need_unpaired("neighbors are searched among them", side, name)
        unpaired = getattr(self.data, f"unpaired_{side}")
        index = nearest_rows(getattr(self.data, side), unpaired, self.trainer.n_neighbors, self.device)
        used, positions = np.unique(index, return_inverse=True)
        return positions.reshape(index.shape), self.tensor(scannable(unpaired).take(used))

    def training_step(self, batch: Batch) -> Mapping[str, Tensor]:
        trainer = self.trainer
        X, Y = self.heads(batch.source, 0), self.heads(batch.target, 1)
        terms = {"supervised": self.pair_loss(X, Y)}
        loss = terms["supervised"]
        for side, name, weight, others in ((1, "text", trainer.text_weight, X), (0, "image", trainer.image_weight, Y)):
            if weight:
                near = self.heads(self._draw(batch, side), side)
                terms[f"near_{name}"] = self.pair_loss(others, near)
                loss = loss + weight * terms[f"near_{name}"]
        return {"loss": loss, **terms}

    def _draw(self, batch: Batch, side: int) -> Tensor:
        """Return one neighbor for each pair of the batch, determined by the step and the seed alone."""
        import torch

        neighbors = self.neighbors[side]
        assert neighbors is not None  # the side's weight is not 0
        positions, rows = neighbors
        rng = np.random.default_rng([self.schedule.random_state, batch.step, 11 + side])
        chosen = positions[batch.index, rng.integers(self.trainer.n_neighbors, size=len(batch.index))]
        return rows[torch.from_numpy(chosen).to(rows.device)]


@dataclass(eq=False, repr=False)
class NNCLR(HeadTrainer):
    """Train heads with the supervised loss on pairs, and on pairs in which one row is replaced by an unpaired neighbor.

    For an image a with caption b, one of the ``n_neighbors`` unpaired texts nearest to b in the text encoder's own
    space is an additional positive of a, drawn again at each step; and vice versa for captions. Images are the source,
    texts the target.

    Parameters
    ----------
    n_neighbors : int, default=5
        Number of neighbors to draw from; SOTAlign's authors try 1, 5 and 10.
    text_weight, image_weight : float, default=1.0
        Weights w of the losses between images and neighbors of their texts, and between texts and neighbors of their
        images; SOTAlign's authors search over 0, 0.1, 1 and 10. A side with weight 0 needs no unpaired rows.
    **parameters
        Parameters of ``HeadTrainer``, with its defaults.

    Notes
    -----
    Neighbors are found once, before training, by comparing all rows: O(pairs · unpaired · width) time. The neighbors
    themselves, at most ``n_neighbors`` rows per pair, are kept in memory. NNCLR draws them from a queue of recent
    batches instead, which is necessary if encoders are trained.

    Source: Dwibedi et al. (2021), "With a little help from my friends: nearest-neighbor contrastive learning of visual
    representations"; Li et al. (2022), "Supervision exists everywhere" (DeCLIP); SOTAlign, appendix A.2.
    """

    method: ClassVar[str] = "nnclr"
    objective = _Objective
    counts = ("n_neighbors",)
    not_negative = ("text_weight", "image_weight")

    n_neighbors: int = 5
    text_weight: float = 1.0
    image_weight: float = 1.0
