"""NNCLR, as DeCLIP uses it: near neighbors of a row's partner among the unpaired rows are further partners."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from congruence._utils.validation import check_positive
from congruence.errors import InputError
from congruence.train._base import Batch, HeadTrainer
from congruence.train._neighbors import nearest_rows
from congruence.train.rows import Rows, scannable

__all__ = ["NNCLR"]


class NNCLR(HeadTrainer):
    """Train heads with the supervised loss on pairs, and on pairs in which one row is replaced by an unpaired neighbor of it.

    For an image a with caption b, one of the k unpaired texts nearest to b in the text encoder's own space is a further positive of a, drawn anew each
    step; and likewise for a caption. Images are the source, texts the target.

    Parameters
    ----------
    k : int, default=5
        Neighbors to draw from; SOTAlign's authors try 1, 5 and 10.
    text_weight, image_weight : float, default=1.0
        w of the losses between images and neighbors of their texts, and between texts and neighbors of their images: 0, 0.1, 1 or 10 in their
        search. A side of weight 0 needs no unpaired rows.
    **parameters
        See :class:`~congruence.train.HeadTrainer`.

    Notes
    -----
    Neighbors are found once, before training, by comparing all rows: O(pairs · unpaired · width) time. The neighbors' rows themselves, at most
    k a pair, are then held in memory. NNCLR takes them from a queue of late batches instead, which trained encoders would need.

    References
    ----------
    Dwibedi et al. (2021), "With a little help from my friends: nearest-neighbor contrastive learning of visual representations"; Li et al. (2022),
    "Supervision exists everywhere" (DeCLIP); SOTAlign, appendix A.2.
    """

    method = "nnclr"

    def __init__(self, k: int = 5, text_weight: float = 1.0, image_weight: float = 1.0, **parameters: Any):
        super().__init__(**parameters)
        self.k = k
        self.text_weight = text_weight
        self.image_weight = image_weight

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_positive(self.k, "k", integer=True)
        check_positive(self.text_weight, "text_weight", zero=True)
        check_positive(self.image_weight, "image_weight", zero=True)

    def _prepare(self, torch: Any, task: Any) -> None:
        data = task.data
        sides = (
            ("source", self.image_weight, data.source, data.unpaired_source),
            ("target", self.text_weight, data.target, data.unpaired_target),
        )
        task.neighbors = []
        for side, weight, paired, unpaired in sides:
            if weight and unpaired is None:
                name = "image_weight" if side == "source" else "text_weight"
                raise InputError(
                    f"Got no unpaired {side} rows and {name}={weight:g}; expected some, since neighbors are searched among them. Pass unpaired_{side}=…, or {name}=0."
                )
            task.neighbors.append(self._find(torch, task, paired, unpaired) if weight else None)

    def _find(self, torch: Any, task: Any, paired: np.ndarray, unpaired: Rows) -> tuple[np.ndarray, Any]:
        """Return for each pair the places of its neighbors, and the rows these places are in."""
        index = nearest_rows(torch, paired, unpaired, self.k, task.device)
        used, places = np.unique(index, return_inverse=True)
        return places.reshape(index.shape), task.tensor(scannable(unpaired).take(used))

    def _loss(self, torch: Any, task: Any, batch: Batch, step: int) -> Mapping[str, Any]:
        X, Y = task.heads(batch.source, 0), task.heads(batch.target, 1)
        terms = {"supervised": task.supervise(X, Y)}
        loss = terms["supervised"]
        for side, name, weight, others in ((1, "text", self.text_weight, X), (0, "image", self.image_weight, Y)):
            if weight:
                near = task.heads(self._draw(torch, task, batch.index, step, side), side)
                terms[f"near_{name}"] = task.supervise(others, near)
                loss = loss + weight * terms[f"near_{name}"]
        return {"loss": loss, **terms}

    def _draw(self, torch: Any, task: Any, index: np.ndarray, step: int, side: int) -> Any:
        """Return a neighbor of each pair's row, which one by the step and the seed alone."""
        places, rows = task.neighbors[side]
        rng = np.random.default_rng([self.seed, step, 11 + side])
        chosen = places[index, rng.integers(self.k, size=len(index))]
        return rows[torch.from_numpy(chosen).to(rows.device)]
