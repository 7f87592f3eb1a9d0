"""JAM's two autoencoders as an objective for the training loop: batches of images, captions and wrong captions, and the
loss of each step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from congruence.errors import ParameterError
from congruence.metrics import recall_at_k
from congruence.train.autoencoder import autoencoder
from congruence.train.captions import Captions
from congruence.train.loop import Schedule, autocast, torch_device
from congruence.train.losses import con_loss, negcon_loss, spread_loss
from congruence.train.retrieval import partners
from congruence.train.rows import ArrayRows

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

#: Upper bound of 1/τ for a learned temperature, as in CLIP.
LARGEST_SCALE = 100.0


@dataclass(frozen=True)
class Batch:
    """Rows of a step as tensors, standardized as for training.

    ``images`` (b, d_source); ``texts`` (b + b·k, d_target): the captions, followed by the k wrong captions of each row
    in turn; ``labels`` (b, 3): ids of each row's image by group label, its image by vector, and its caption by vector;
    equal ids are the same item.
    """

    step: int
    images: Tensor
    texts: Tensor
    labels: Tensor | None


class Parameters(Protocol):
    """The parameters of :class:`congruence.train.JAM` that the objective uses."""

    loss: str
    spread_mix: float | tuple[float, float]
    temperature: float
    learn_temperature: bool
    reconstruction: tuple[float, float]
    hidden: Sequence[int]
    latent: int
    dropout: float
    standardize: bool
    mask_same: bool
    batch_size: int


class AutoencoderObjective:
    """Both autoencoders on their device, and the loss of each training step.

    ``module``: contains ``encode`` and ``decode``, each with one head per side, and ``log_scale`` if the temperature is
    learned; ``data``, ``heldout``: training rows and validation rows; ``means``, ``scales``: for each side, the mean
    that is subtracted from its rows and the number they are then divided by.
    """

    module: Module

    def __init__(self, jam: Parameters, data: Captions, heldout: Captions | None, schedule: Schedule):
        import torch

        from congruence.train._layers import Head

        self.jam, self.data, self.heldout, self.schedule = jam, data, heldout, schedule
        self.device = torch_device(schedule.device)
        rng = np.random.default_rng([schedule.random_state, 1])
        self.means: list[np.ndarray] = []
        self.scales: list[float] = []
        encoders, decoders = [], []
        for rows in (data.source, data.target):
            encoder, decoder = autoencoder(rows.shape[1], rng, tuple(jam.hidden), jam.latent, jam.dropout)
            encoders.append(Head(encoder))
            decoders.append(Head(decoder))
            mean, scale = _mean_and_scale(rows) if jam.standardize else (np.zeros(rows.shape[1]), 1.0)
            self.means.append(mean)
            self.scales.append(scale)
        self.module = torch.nn.Module()
        self.module.encode, self.module.decode = torch.nn.ModuleList(encoders), torch.nn.ModuleList(decoders)
        if jam.learn_temperature:
            self.module.log_scale = torch.nn.Parameter(torch.tensor(-float(np.log(jam.temperature))))
        self.module.to(self.device)
        self.source, self.target = self.tensor(data.source, 0), self.tensor(data.target, 1)
        # The Con loss does not use wrong captions, although validation may.
        negatives = None if jam.loss == "con" else data.negatives
        self.wrong = None if negatives is None else self.tensor(negatives, 1)
        self.labels: Tensor | None = None
        if jam.mask_same:
            # Images are identified by group label and also by vector, since groups may be missing.
            keys = (data.groups, data.source, data.target)
            numbers = [np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1) for rows in keys]
            self.labels = torch.from_numpy(np.column_stack(numbers)).to(self.device)
        self.batch_size = min(jam.batch_size, len(data))
        self._order = ArrayRows(np.arange(len(data))[:, None])
        if heldout is not None:
            self._partners = partners(heldout.groups, heldout.groups)

    # ------------------------------------------------------------------ for the training loop

    def batch(self, step: int) -> Batch:
        """Return the rows of a step."""
        import torch

        rows = self._order.batch(step, self.batch_size, self.schedule.random_state)[:, 0].astype(np.int64)
        index = torch.from_numpy(rows).to(self.device)
        texts = self.target[index]
        if self.wrong is not None:
            texts = torch.cat([texts, self.wrong[index].flatten(0, 1)])
        return Batch(step, self.source[index], texts, None if self.labels is None else self.labels[index])

    def training_step(self, batch: Batch) -> Mapping[str, Tensor]:
        """Return the loss of a batch and its terms."""
        from torch.nn import functional as F

        jam, inputs = self.jam, (batch.images, batch.texts)
        with autocast(str(self.device), self.schedule.precision):
            latent = [encode(rows) for encode, rows in zip(self.module.encode, inputs, strict=True)]
            decoded = [decode(rows).float() for decode, rows in zip(self.module.decode, latent, strict=True)]
        errors = [F.mse_loss(output, rows) for output, rows in zip(decoded, inputs, strict=True)]
        v, t = (F.normalize(rows.float(), dim=1) for rows in latent)
        tau = self.temperature()
        if self.wrong is None:
            alignment = con_loss(v, t, tau, labels=batch.labels)
        else:
            pos, neg = t[: len(v)], t[len(v) :].unflatten(0, (len(v), -1))
            if jam.loss == "negcon":
                alignment = negcon_loss(v, pos, neg, tau, labels=batch.labels)
            else:
                alpha = self.scheduled(jam.spread_mix, batch.step)
                alignment = spread_loss(v, pos, neg, alpha, tau, labels=batch.labels)
        weight = self.scheduled(jam.reconstruction, batch.step)
        terms = {
            "loss": alignment + weight * (errors[0] + errors[1]),
            "alignment": alignment,
            "reconstruct_source": errors[0],
            "reconstruct_target": errors[1],
        }
        return {**terms, "temperature": tau} if jam.learn_temperature else terms

    def validate(self) -> float | None:
        """Return the share of held-out images whose nearest text is one of their captions."""
        import torch

        heldout = self.heldout
        if heldout is None:
            return None
        with torch.inference_mode(), autocast(str(self.device), self.schedule.precision):
            v, t = (
                encode(self.tensor(rows, side)).float().cpu().numpy()
                for side, (encode, rows) in enumerate(
                    zip(self.module.encode, (heldout.source, heldout.candidates()), strict=True)
                )
            )
        return recall_at_k(v, t, self._partners, k=1)

    # ------------------------------------------------------------------ helpers

    def tensor(self, rows: np.ndarray, side: int) -> Tensor:
        """Return standardized rows as a tensor on the device."""
        import torch

        standardized = (rows - self.means[side]) / self.scales[side]
        return torch.from_numpy(np.ascontiguousarray(standardized, np.float32)).to(self.device)

    def temperature(self) -> Tensor:
        """Return the temperature τ."""
        import torch

        if not self.jam.learn_temperature:
            return torch.tensor(self.jam.temperature)
        # Clamp the parameter, not its output: beyond the bound, the output's gradient would be zero.
        with torch.no_grad():
            self.module.log_scale.clamp_(max=float(np.log(LARGEST_SCALE)))
        return self.module.log_scale.neg().exp()

    def scheduled(self, span: float | tuple[float, float], step: int) -> float:
        """Return the value of a linear schedule at a step, from the first value in the first step to the second in the
        last.
        """
        first, last = ends(span, "span")
        return float(first + (last - first) * min(step / max(self.schedule.max_steps - 1, 1), 1.0))


def ends(value: object, name: str) -> tuple[float, float]:
    """Return the start and end of a schedule; a single number is a constant schedule.

    Raises ParameterError for anything else.
    """
    both = value if isinstance(value, (tuple, list)) else (value, value)
    if len(both) != 2 or any(isinstance(end, bool) or not isinstance(end, (int, float)) for end in both):
        raise ParameterError(
            f"Got {name}={value!r}; expected a number, or a pair of numbers.", f"Pass {name}=1.0, for example."
        )
    return both[0], both[1]


def _mean_and_scale(rows: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the mean of the rows and their overall standard deviation (a single number), which is 1 if all rows are
    equal up to rounding.
    """
    mean = rows.mean(0, dtype=np.float64)
    scale = float(np.sqrt(np.mean((rows - mean) ** 2)))
    return mean, scale if scale > np.finfo(np.float32).eps * np.abs(rows).max() else 1.0
