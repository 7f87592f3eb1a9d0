"""A pair of heads as an objective for the training loop: batches, the loss on pairs, and retrieval for validation."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from congruence._utils.typing import Layer
from congruence.errors import ParameterError
from congruence.train._reading import Data
from congruence.train.loop import Schedule, autocast, torch_device
from congruence.train.losses import infonce_loss, siglip_loss
from congruence.train.retrieval import mean_recall
from congruence.train.rows import ArrayRows, Rows, sample

if TYPE_CHECKING:
    import torch
    from torch import Tensor

#: Maximum number of unpaired rows that the mean of a side is computed from.
MEAN_ROWS = 100_000


@dataclass(frozen=True)
class Batch:
    """Rows of a step as tensors: the pairs, and the unpaired rows or None.

    ``source``, ``target`` (b, d_source); ``index`` (b,): row numbers of these pairs.
    """

    step: int
    source: Tensor
    target: Tensor
    unpaired_source: Tensor | None
    unpaired_target: Tensor | None
    index: np.ndarray


class Parameters(Protocol):
    """The parameters of :class:`congruence.train.HeadTrainer` that every objective uses."""

    n_components: int
    head: str
    hidden: int | None
    preprocess: str
    pair_loss: str
    logit_scale: float
    logit_bias: float
    temperature: float
    batch_size: int
    pair_batch_size: int


class HeadsObjective:
    """The objective of a method: its module on its device, and the loss of each training step.

    The subclass of each method implements :meth:`training_step`; its constructor prepares everything this needs besides
    the heads.

    ``module``: contains the heads ``source`` and ``target``, and ``log_scale`` of the loss on pairs, with ``bias`` for
    the sigmoid loss; ``source``, ``target``: the rows of the pairs, on the device; ``pair_batch``: number of pairs per
    step; ``unpaired_batch``: number of unpaired rows of each side per step.
    """

    module: torch.nn.Module

    def __init__(self, trainer: Parameters, data: Data, schedule: Schedule):
        import torch

        from congruence.train import _layers

        self.trainer, self.data, self.schedule = trainer, data, schedule
        self.device = torch_device(schedule.device)
        rng = np.random.default_rng([schedule.random_state, 1])
        self.module = torch.nn.Module()
        sides = (("source", data.source, data.unpaired_source), ("target", data.target, data.unpaired_target))
        for side, paired, unpaired in sides:
            widths = [paired.shape[1], trainer.n_components]
            if trainer.head == "mlp":
                widths.insert(1, trainer.hidden or 4 * paired.shape[1])
            layers = first_layers(trainer.preprocess, paired, unpaired) + _layers.mlp(widths, rng)
            setattr(self.module, side, _layers.Head(layers))
        if trainer.pair_loss == "siglip":
            self.module.log_scale = torch.nn.Parameter(torch.tensor(float(np.log(trainer.logit_scale))))
            self.module.bias = torch.nn.Parameter(torch.tensor(float(trainer.logit_bias)))
        else:
            self.module.log_scale = torch.nn.Parameter(torch.tensor(-float(np.log(trainer.temperature))))
        self.module.to(self.device)
        self._pairs = ArrayRows(np.arange(len(data.source))[:, None])
        self.source, self.target = self.tensor(data.source), self.tensor(data.target)
        self.pair_batch = min(trainer.pair_batch_size, trainer.batch_size, len(data.source))
        remaining = max(trainer.batch_size - self.pair_batch, 1)
        self.unpaired_batch = [
            0 if rows is None else min(remaining, len(rows)) for rows in (data.unpaired_source, data.unpaired_target)
        ]

    # ------------------------------------------------------------------ for the training loop

    def batch(self, step: int) -> Batch:
        """Return the rows of a step."""
        import torch

        seed = self.schedule.random_state
        # Row numbers are drawn like rows, as float32, which is exact for integers up to 2^24: more pairs than these
        # methods are meant for.
        index = self._pairs.batch(step, self.pair_batch, seed)[:, 0].astype(np.int64)
        all_pairs = self.pair_batch == len(self.data.source)
        pairs = [
            side if all_pairs else side[torch.from_numpy(index).to(side.device)] for side in (self.source, self.target)
        ]
        sides = (self.data.unpaired_source, self.data.unpaired_target)
        unpaired = [
            None if rows is None else self.tensor(rows.batch(step, self.unpaired_batch[i], seed + 104_729 * (i + 1)))
            for i, rows in enumerate(sides)
        ]
        return Batch(step, pairs[0], pairs[1], unpaired[0], unpaired[1], index)

    @abstractmethod
    def training_step(self, batch: Batch) -> Mapping[str, Tensor]:
        """Return the terms of the loss of a batch as scalars, ``"loss"`` among them."""

    def validate(self) -> float | None:
        """Return the mean of the recalls at 1 in both directions on the held-out rows."""
        import torch

        if self.data.validation is None:
            return None
        X, Y, x_labels, y_labels = self.data.validation
        with torch.inference_mode():
            FX, FY = (self.heads(self.tensor(rows), side).float().cpu().numpy() for rows, side in ((X, 0), (Y, 1)))
        return mean_recall(FX, FY, x_labels, y_labels)

    # ------------------------------------------------------------------ for subclasses

    def tensor(self, rows: np.ndarray) -> Tensor:
        """Return rows as a float32 tensor on the device."""
        import torch

        return torch.from_numpy(np.ascontiguousarray(rows, np.float32)).to(self.device)

    def heads(self, rows: Tensor, side: int) -> Tensor:
        """Map rows into the joint space: unit rows, float32."""
        import torch

        head = (self.module.source, self.module.target)[side]
        with autocast(str(self.device), self.schedule.precision):
            out = head(rows)
        return torch.nn.functional.normalize(out.float(), dim=1)

    def pair_loss(self, X: Tensor, Y: Tensor, negatives: Tensor | None = None) -> Tensor:
        """Return the supervised loss of paired unit rows. Raises ParameterError for ``negatives`` with InfoNCE."""
        import torch

        scale = self.module.log_scale.exp()
        if self.trainer.pair_loss == "siglip":
            rows = Y if negatives is None else torch.cat([Y, negatives])
            return siglip_loss(X, rows, scale, self.module.bias)
        if negatives is not None:
            raise ParameterError(
                'Got `pair_loss="infonce"` with unpaired negatives; expected `pair_loss="siglip"`.',
                "Pass that, or leave the negatives out.",
            )
        return infonce_loss(X, Y, 1 / scale)


def first_layers(preprocess: str, paired: np.ndarray, unpaired: Rows | None) -> list[Layer]:
    """Return the fixed layers of a head, which precede the trained ones."""
    if preprocess == "none":
        return []
    layers: list[Layer] = [{"kind": "normalize"}]
    if preprocess == "center":
        rows = paired if unpaired is None else np.concatenate([paired, sample(unpaired, MEAN_ROWS)])
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        mean = (rows / np.maximum(norms, np.finfo(np.float32).tiny)).mean(axis=0, dtype=np.float64)
        layers.append({"kind": "center", "mean": mean.astype(np.float32)})
    return layers
