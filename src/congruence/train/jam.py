"""JAM: an autoencoder for each model, trained together so that captions and images meet in the middle and wrong captions do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from congruence._utils.optional import require
from congruence._utils.validation import check_choice, check_positive
from congruence.embeddings import Embeddings, Space
from congruence.errors import InputError, ParameterError, TooFewAnchorsError
from congruence.maps import HeadsMap
from congruence.metrics import recall_at_k
from congruence.train.autoencoder import autoencoder, count, in_units
from congruence.train.captions import Captions, read_captions, read_held, split_by_group
from congruence.train.joint_losses import con_loss, negcon_loss, spread_loss
from congruence.train.loop import Schedule, autocast, place, run
from congruence.train.retrieval import partners
from congruence.train.rows import ArrayRows

__all__ = ["JAM"]

LOSSES = ("spread", "negcon", "con")
#: The largest 1/τ a learned temperature may reach, as in CLIP.
LARGEST_SCALE = 100.0


class JAM(BaseEstimator):
    """Train an autoencoder of images and one of texts whose latent spaces are one, by reconstruction and by a contrastive loss.

    Parameters
    ----------
    loss : {"spread", "negcon", "con"}, default="spread"
        See :mod:`congruence.train.joint_losses`. The first two need wrong captions.
    alpha : float or tuple of two float, default=0.5
        α of Spread; two: where a linear curriculum begins and ends.
    temperature : float, default=0.07
        τ.
    learn_temperature : bool, default=False
        Train log 1/τ from there on, up to 1/τ = 100. The paper says τ = 0.07 for all experiments in section 3.1, and that it is learned in
        appendix D.2.
    reconstruction : tuple of two float, default=(1.0, 0.1)
        λ, the weight of the reconstruction error, in the first step and in the last.
    hidden : sequence of int, default=(512, 512, 512)
    latent : int, default=256
        Width of the joint space.
    dropout : float, default=0.1
    standardize : bool, default=True
        Train on rows less their mean, divided by one number, their standard deviation, so that λ means the same for every model. The map
        takes and returns rows as they are. The paper says nothing of it.
    epochs : int, default=100
    batch_size : int, default=32
    learning_rate, weight_decay : float, default=1e-3 and 0.01
        Of AdamW; the paper prints neither.
    clip : float or None, default=1.0
    schedule : {"cosine", "constant"}, default="cosine"
    validate_every, patience : int, int or None, default=5 and 5
        Epochs between validations, and validations without a better score after which training ends.
    log_every : int, default=10
        Steps between the losses kept.
    checkpoint_every : int, default=5
        Epochs between checkpoints.
    precision, device, seed
        See :class:`congruence.train.Schedule`. The seed also divides the rows. The paper's are 5, 42 and 55.

    References
    ----------
    Yoon, Yue and Kim (2025), "Escaping Plato's Cave: JAM for Aligning Independently Trained Vision and Language Models", sections 3 and 4,
    appendices C and D.
    """

    method = "jam"

    def __init__(
        self,
        loss: str = "spread",
        alpha: float | tuple[float, float] = 0.5,
        temperature: float = 0.07,
        learn_temperature: bool = False,
        reconstruction: tuple[float, float] = (1.0, 0.1),
        *,
        hidden: Sequence[int] = (512, 512, 512),
        latent: int = 256,
        dropout: float = 0.1,
        standardize: bool = True,
        epochs: int = 100,
        batch_size: int = 32,
        learning_rate: float = 1e-3,
        weight_decay: float = 0.01,
        clip: float | None = 1.0,
        schedule: str = "cosine",
        validate_every: int = 5,
        patience: int | None = 5,
        log_every: int = 10,
        checkpoint_every: int = 5,
        precision: str = "float32",
        device: str = "auto",
        seed: int = 5,
    ):
        self.loss = loss
        self.alpha = alpha
        self.temperature = temperature
        self.learn_temperature = learn_temperature
        self.reconstruction = reconstruction
        self.hidden = hidden
        self.latent = latent
        self.dropout = dropout
        self.standardize = standardize
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.clip = clip
        self.schedule = schedule
        self.validate_every = validate_every
        self.patience = patience
        self.log_every = log_every
        self.checkpoint_every = checkpoint_every
        self.precision = precision
        self.device = device
        self.seed = seed

    def fit(
        self,
        X: Any,
        Y: Any,
        negatives: Any = None,
        *,
        groups: Any = None,
        validation: tuple[Any, ...] | None = None,
        checkpoint: str | Path | None = None,
        resume: bool = True,
        progress: bool = True,
    ) -> HeadsMap:
        """Train both autoencoders and return them as a map that needs no torch.

        Parameters
        ----------
        X : Embeddings or array_like, shape (n, d_source)
            Images, one row to a caption.
        Y : Embeddings or array_like, shape (n, d_target)
            Their captions: by id where both are embeddings with ids, by position otherwise.
        negatives : Embeddings or array_like, shape (n, d_target) or (n, k, d_target), optional
            Wrong captions in the order of ``Y``, or with its ids.
        groups : sequence, shape (n,), optional
            The image of each row of ``Y``. Without ``validation``, 70 % of the images are trained on and 15 % chosen by;
            :func:`congruence.train.split_by_group` with the same seed gives the 15 % that are left to test on.
        validation : tuple, optional
            Held-out ``(X, Y)``, ``(X, Y, negatives)`` or ``(X, Y, negatives, groups)``. The weights kept are those with which most images have a
            caption of theirs nearest, among all captions and wrong captions given here.
        checkpoint : path-like, optional
            Folder to keep the last checkpoint in.
        resume : bool, default=True
            Go on from the checkpoint if there is one.
        progress : bool, default=True

        Returns
        -------
        HeadsMap
            With decoders. Losses, the size of both autoencoders, and the error of reconstruction as a share of the variance (1: no
            better than the mean) are in its ``facts_``. Without a validation the weights are the last.

        Raises
        ------
        InputError, ShapeError, NotFiniteError, ZeroRowError, TooFewAnchorsError, ParameterError
        TrainingError
            A loss that is not finite, or a checkpoint of another run.
        MissingExtraError
        """
        self._check_parameters()
        torch = require("torch", extra="train")
        data = read_captions(X, Y, negatives, groups)
        if self.loss != "con" and data.negatives is None:
            raise InputError(
                f"Got no wrong captions for loss={self.loss!r}; expected some, which this loss compares with. Pass negatives=…, or "
                'loss="con".'
            )
        split = None
        if validation is not None:
            held = read_held(validation, data)
        elif groups is not None:
            parts = split_by_group(data.groups, seed=self.seed)
            held, split = data.take(parts[1]), [len(rows) for rows in parts]
            data = data.take(parts[0])
        else:
            held = None
        if len(data) < 2:
            raise TooFewAnchorsError(f"Got {len(data)} pairs to train on; expected at least two. Pass more pairs.")
        per_epoch = -(-len(data) // self.batch_size)
        schedule = Schedule(
            steps=self.epochs * per_epoch,
            optimizer="adamw",
            validate_every=self.validate_every * per_epoch,
            checkpoint_every=self.checkpoint_every * per_epoch,
            **{
                name: getattr(self, name)
                for name in ("learning_rate", "weight_decay", "schedule", "clip", "patience", "log_every", "precision")
            },
            device=self.device,
            seed=self.seed,
        )
        task = _Task(torch, self, data, held, schedule)
        history = run(
            task,
            schedule,
            checkpoint=checkpoint,
            resume=resume,
            identity={
                "method": self.method,
                "parameters": self._plain_params(),
                "data": data.digest(),
                "validation": None if held is None else held.digest(),
            },
            progress=progress,
        )
        return self._map(task, history, (X, Y), split)

    def _check_parameters(self) -> None:
        check_choice(self.loss, LOSSES, "loss")
        for name in ("latent", "epochs", "batch_size", "validate_every", "checkpoint_every"):
            check_positive(getattr(self, name), name, integer=True)
        check_positive(self.temperature, "temperature")
        if isinstance(self.hidden, (str, int)):
            raise ParameterError(
                f"Got hidden={self.hidden!r}; expected a list of widths. Pass hidden=(512, 512, 512), for example."
            )
        for width in self.hidden:
            check_positive(width, "a width of hidden", integer=True)
        if isinstance(self.dropout, bool) or not isinstance(self.dropout, (int, float)) or not 0 <= self.dropout < 1:
            raise ParameterError(
                f"Got dropout={self.dropout!r}; expected a share from 0 to below 1. Pass dropout=0.1, for example."
            )
        for end in _ends(self.alpha, "alpha"):
            if not 0 <= end <= 1:
                raise ParameterError(
                    f"Got alpha={self.alpha!r}; expected numbers from 0 to 1. Pass alpha=0.5, for example."
                )
        for end in _ends(self.reconstruction, "reconstruction"):
            check_positive(end, "reconstruction", zero=True)

    def _plain_params(self) -> dict[str, Any]:
        params = self.get_params(deep=False)
        return {name: list(value) if isinstance(value, (tuple, list)) else value for name, value in params.items()}

    def _map(self, task: _Task, history: Any, sides: tuple[Any, Any], split: list[int] | None) -> HeadsMap:
        parts: dict[str, Any] = {}
        size: dict[str, int] = {}
        for i, side in enumerate(("source", "target")):
            layers = task.module.encode[i].plain(), task.module.decode[i].plain()
            cost = count(layers[0]) + count(layers[1])
            size |= {f"{side}_parameters": cost.parameters, f"{side}_flops_per_row": cost.flops}
            parts[side], parts[f"decode_{side}"] = in_units(*layers, task.means[i], task.scales[i])
        data, held = task.data, task.held
        facts: dict[str, Any] = {
            "n_pairs": len(data),
            "negatives_each": 0 if data.negatives is None else data.negatives.shape[1],
            "steps": history.steps,
            "best_step": history.best_step,
            "size": size,
            "history": history.to_dict(),
            "training": self._plain_params(),
        }
        if split is not None:
            facts["split"] = dict(zip(("train", "validation", "test"), split, strict=True))
        if history.best_step is not None and isinstance(self.alpha, (tuple, list)):
            facts["alpha_at_best"] = task.between(self.alpha, max(history.best_step - 1, 0))
        if self.learn_temperature:
            facts["temperature"] = float(task.temperature().detach())
        model = HeadsMap.from_layers(**parts, method=self.method, facts=facts)
        rows = data if held is None else held
        model.facts_["reconstruction_error"] = {
            "rows": "training" if held is None else "validation",
            "source": _error(model.reconstruct(rows.source), rows.source, task.means[0]),
            "target": _error(model.reconstruct_target(rows.target), rows.target, task.means[1]),
        }
        spaces = [side.space if isinstance(side, Embeddings) else Space() for side in sides]
        model.source_space_ = replace(spaces[0], dim=data.source.shape[1])
        model.target_space_ = replace(spaces[1], dim=data.target.shape[1])
        if history.best_score is not None:
            model.scores_["validation_source_to_target_recall_at_1"] = history.best_score
        return model


class _Task:
    """The two autoencoders on their device, and the losses of their steps."""

    def __init__(self, torch: Any, jam: JAM, data: Captions, held: Captions | None, schedule: Schedule):
        from congruence.train._layers import Head

        self.torch, self.jam, self.data, self.held, self.schedule = torch, jam, data, held, schedule
        self.device = place(torch, schedule.device)
        rng = np.random.default_rng([schedule.seed, 1])
        self.means, self.scales, encoders, decoders = [], [], [], []
        for rows in (data.source, data.target):
            encoder, decoder = autoencoder(rows.shape[1], rng, tuple(jam.hidden), jam.latent, jam.dropout)
            encoders.append(Head(encoder))
            decoders.append(Head(decoder))
            mean, scale = _units(rows) if jam.standardize else (np.zeros(rows.shape[1]), 1.0)
            self.means.append(mean)
            self.scales.append(scale)
        self.module = torch.nn.Module()
        self.module.encode, self.module.decode = torch.nn.ModuleList(encoders), torch.nn.ModuleList(decoders)
        if jam.learn_temperature:
            self.module.log_scale = torch.nn.Parameter(torch.tensor(-float(np.log(jam.temperature))))
        self.module.to(self.device)
        self.source, self.target = self.tensor(data.source, 0), self.tensor(data.target, 1)
        self.wrong = None if jam.loss == "con" else self.tensor(data.negatives, 1)
        self.batch_size = min(jam.batch_size, len(data))
        self._order = ArrayRows(np.arange(len(data))[:, None])
        if held is not None:
            self._partners = partners(held.groups, held.groups)

    # ------------------------------------------------------------------ what the loop asks for

    def loss(self, step: int) -> Mapping[str, Any]:
        """Return the terms of the loss at a step."""
        torch, jam = self.torch, self.jam
        drawn = self._order.batch(step, self.batch_size, self.schedule.seed)[:, 0].astype(np.int64)
        index = torch.from_numpy(drawn).to(self.device)
        images, texts = self.source[index], self.target[index]
        if self.wrong is not None:
            texts = torch.cat([texts, self.wrong[index].flatten(0, 1)])
        with autocast(torch, str(self.device), self.schedule.precision):
            latent = [encode(rows) for encode, rows in zip(self.module.encode, (images, texts), strict=True)]
            again = [decode(rows).float() for decode, rows in zip(self.module.decode, latent, strict=True)]
        errors = [torch.nn.functional.mse_loss(a, b) for a, b in zip(again, (images, texts), strict=True)]
        v, t = (torch.nn.functional.normalize(rows.float(), dim=1) for rows in latent)
        tau = self.temperature()
        if self.wrong is None:
            alignment = con_loss(v, t, tau)
        else:
            pos, neg = t[: len(v)], t[len(v) :].unflatten(0, (len(v), -1))
            if jam.loss == "negcon":
                alignment = negcon_loss(v, pos, neg, tau)
            else:
                alignment = spread_loss(v, pos, neg, self.between(jam.alpha, step), tau)
        weight = self.between(jam.reconstruction, step)
        terms = {
            "loss": alignment + weight * (errors[0] + errors[1]),
            "alignment": alignment,
            "reconstruct_source": errors[0],
            "reconstruct_target": errors[1],
        }
        return {**terms, "temperature": tau} if jam.learn_temperature else terms

    def validate(self) -> float | None:
        """Return the share of held-out images whose nearest text is one of their captions."""
        held = self.held
        if held is None:
            return None
        texts = held.target
        if held.negatives is not None:
            texts = np.concatenate([texts, held.negatives.reshape(-1, texts.shape[1])])
        with (
            self.torch.inference_mode(),
            autocast(self.torch, str(self.device), self.schedule.precision),
        ):
            v, t = (
                encode(self.tensor(rows, side)).float().cpu().numpy()
                for side, (encode, rows) in enumerate(zip(self.module.encode, (held.source, texts), strict=True))
            )
        return recall_at_k(v, t, self._partners, k=1)

    # ------------------------------------------------------------------ parts

    def tensor(self, rows: Any, side: int) -> Any:
        """Return rows in the units they are trained in, on the device."""
        units = (rows - self.means[side]) / self.scales[side]
        return self.torch.from_numpy(np.ascontiguousarray(units, np.float32)).to(self.device)

    def temperature(self) -> Any:
        """Return τ."""
        if not self.jam.learn_temperature:
            return self.torch.tensor(self.jam.temperature)
        with self.torch.no_grad():  # the weight itself, so that a gradient can bring it back
            self.module.log_scale.clamp_(max=float(np.log(LARGEST_SCALE)))
        return self.module.log_scale.neg().exp()

    def between(self, ends: Any, step: int) -> float:
        """Return where a linear schedule stands at a step: its first value in the first step, its last in the last."""
        first, last = _ends(ends, "ends")
        return float(first + (last - first) * min(step / max(self.schedule.steps - 1, 1), 1.0))


def _ends(value: Any, name: str) -> tuple[float, float]:
    """Return where a schedule begins and ends; one number does both."""
    ends = value if isinstance(value, (tuple, list)) else (value, value)
    if len(ends) != 2 or any(isinstance(end, bool) or not isinstance(end, (int, float)) for end in ends):
        raise ParameterError(f"Got {name}={value!r}; expected a number, or two. Pass {name}=1.0, for example.")
    return ends[0], ends[1]


def _units(rows: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the mean of rows and their standard deviation, one number; 1 for rows that are all the same up to rounding."""
    mean = rows.mean(0, dtype=np.float64)
    scale = float(np.sqrt(np.mean((rows - mean) ** 2)))
    return mean, scale if scale > np.finfo(np.float32).eps * np.abs(rows).max() else 1.0


def _error(again: np.ndarray, rows: np.ndarray, mean: np.ndarray) -> float:
    """Return the squared error of reconstructed rows over that of the training mean."""
    spread = float(np.sum((rows - mean) ** 2))
    return float(np.sum((again.astype(np.float64) - rows) ** 2)) / spread if spread else 0.0
