"""What every method shares that trains a pair of heads: what it accepts, how it runs, and the map it returns."""

from __future__ import annotations

import hashlib
import inspect
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from congruence._utils.optional import require
from congruence._utils.validation import check_choice, check_positive, check_width
from congruence.embeddings import Space
from congruence.errors import ParameterError, TooFewAnchorsError
from congruence.maps import HeadsMap
from congruence.train._reading import read_pairs, read_validation, refuse_paired, space_of
from congruence.train.checkpoint import History
from congruence.train.loop import Schedule, autocast, place, run
from congruence.train.losses import infonce_loss, siglip_loss
from congruence.train.retrieval import mean_recall
from congruence.train.rows import ArrayRows, Rows, as_rows, sample

#: What is done to a row before the first layer.
PREPROCESS = ("none", "normalize", "center")
HEADS = ("linear", "mlp")
SUPERVISED = ("siglip", "infonce")
#: Rows from which the mean of a side is taken.
MEAN_ROWS = 100_000


@dataclass(frozen=True)
class Data:
    """What a method trains on.

    Attributes
    ----------
    source, target : ndarray, shape (n, d_source) and (n, d_target), float32
        Pairs.
    unpaired_source, unpaired_target : Rows or None
    validation : tuple of two ndarrays, two arrays of labels, or None
        Rows of both sides to choose by; equal labels mark what belongs together.
    """

    source: np.ndarray
    target: np.ndarray
    unpaired_source: Rows | None
    unpaired_target: Rows | None
    validation: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None

    def facts(self) -> dict[str, Any]:
        """Return what tells these data from others, without holding them: sizes, and a digest of pairs and of some unpaired rows."""
        digest = hashlib.sha256()
        for side in (self.source, self.target):
            digest.update(np.ascontiguousarray(side).tobytes())
        facts: dict[str, Any] = {"pairs": len(self.source)}
        for name in ("unpaired_source", "unpaired_target"):
            rows = getattr(self, name)
            facts[name] = 0 if rows is None else len(rows)
            if rows is not None:
                digest.update(np.ascontiguousarray(sample(rows, 64)).tobytes())
        return {**facts, "digest": digest.hexdigest()}


@dataclass(frozen=True)
class Batch:
    """Rows of a step as tensors: the pairs, and the unpaired rows or None.

    Attributes
    ----------
    source, target : tensor, shape (b, d_source) and (b, d_target)
    unpaired_source, unpaired_target : tensor or None
    index : ndarray of int, shape (b,)
        Which pairs these are.
    """

    source: Any
    target: Any
    unpaired_source: Any
    unpaired_target: Any
    index: np.ndarray


class HeadTrainer(BaseEstimator):
    """Base of the methods: two heads, a supervised loss on pairs, and whatever a method adds to it.

    A subclass sets ``method``, adds its own parameters, and implements :meth:`_loss`; it may implement :meth:`_prepare`.

    Parameters
    ----------
    dim : int, default=1024
        Width of the joint space.
    head : {"linear", "mlp"}, default="linear"
    hidden : int, optional
        Width of the perceptron's hidden layer; four times the input's by default.
    preprocess : {"center", "normalize", "none"}, default="center"
        Rows to unit norm, and then less their mean; or less of that.
    supervised : {"siglip", "infonce"}, default="siglip"
    logit_scale, logit_bias : float, default=20 and −10
        Where the trained scale and bias of the sigmoid loss begin.
    temperature : float, default=0.07
        Where the trained temperature of InfoNCE begins.
    batch_size : int, default=32768
        Pairs and unpaired rows of one side, together, in a step; fewer where there are fewer.
    pair_batch_size : int, default=10000
        The most pairs in a step.
    steps, optimizer, learning_rate, weight_decay, warmup, schedule, clip, validate_every, patience, log_every, checkpoint_every, \
precision, device, seed
        See :class:`congruence.train.Schedule`.
    """

    method: str

    def __init__(
        self,
        *,
        dim: int = 1024,
        head: str = "linear",
        hidden: int | None = None,
        preprocess: str = "center",
        supervised: str = "siglip",
        logit_scale: float = 20.0,
        logit_bias: float = -10.0,
        temperature: float = 0.07,
        batch_size: int = 32768,
        pair_batch_size: int = 10000,
        steps: int = 2000,
        optimizer: str = "lion",
        learning_rate: float = 1e-4,
        weight_decay: float = 1e-5,
        warmup: int = 0,
        schedule: str = "cosine",
        clip: float | None = None,
        validate_every: int = 100,
        patience: int | None = None,
        log_every: int = 10,
        checkpoint_every: int = 200,
        precision: str = "float32",
        device: str = "auto",
        seed: int = 0,
    ):
        self.dim = dim
        self.head = head
        self.hidden = hidden
        self.preprocess = preprocess
        self.supervised = supervised
        self.logit_scale = logit_scale
        self.logit_bias = logit_bias
        self.temperature = temperature
        self.batch_size = batch_size
        self.pair_batch_size = pair_batch_size
        self.steps = steps
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.warmup = warmup
        self.schedule = schedule
        self.clip = clip
        self.validate_every = validate_every
        self.patience = patience
        self.log_every = log_every
        self.checkpoint_every = checkpoint_every
        self.precision = precision
        self.device = device
        self.seed = seed

    @classmethod
    def _get_param_names(cls) -> list[str]:
        # scikit-learn reads the names off one __init__; a method's own parameters stand in front of those all share.
        names = {
            name
            for base in cls.__mro__
            if "__init__" in vars(base)
            for name in inspect.signature(vars(base)["__init__"]).parameters
        }
        return sorted(names - {"self", "parameters", "args", "kwargs"})

    # ------------------------------------------------------------------ for users

    def fit(
        self,
        X: Any,
        Y: Any,
        unpaired_source: Any = None,
        unpaired_target: Any = None,
        *,
        validation: tuple[Any, Any] | tuple[Any, Any, Any, Any] | None = None,
        checkpoint: str | Path | None = None,
        resume: bool = True,
        progress: bool = True,
    ) -> HeadsMap:
        """Train the heads and return them as a map that needs no torch.

        Parameters
        ----------
        X : Embeddings or array_like, shape (n, d_source)
        Y : Embeddings or array_like, shape (n, d_target)
            Pairs: by id where both are embeddings with ids, by position otherwise.
        unpaired_source, unpaired_target : Embeddings, array_like, Rows, or a list of these, optional
            Rows of either side without a partner, from one or several sources.
        validation : tuple, optional
            Held-out rows of both sides, paired as above, or with two sequences of labels of which equal ones belong together. The weights kept
            are those with the best mean of the recalls at 1 in both directions.
        checkpoint : path-like, optional
            Folder to keep the last checkpoint in.
        resume : bool, default=True
            Go on from the checkpoint if there is one.
        progress : bool, default=True

        Returns
        -------
        HeadsMap
            Losses and validation scores are in its ``facts_["history"]``.

        Raises
        ------
        InputError, ShapeError, NotFiniteError, ZeroRowError, TooFewAnchorsError, ParameterError
        TrainingError
            A loss that is not finite, or a checkpoint of another run.
        MissingExtraError
        """
        torch = require("torch", extra="train")
        self._check_parameters()
        data, spaces = self._read(X, Y, unpaired_source, unpaired_target, validation)
        schedule = Schedule(**{f.name: getattr(self, f.name) for f in fields(Schedule)})
        task = _Task(torch, self, data, schedule)
        history = run(
            task,
            schedule,
            checkpoint=checkpoint,
            resume=resume,
            identity={"method": self.method, "parameters": self._plain_params(), "data": data.facts()},
            progress=progress,
        )
        return self._map(task, data, history, spaces)

    # ------------------------------------------------------------------ for subclasses

    def _prepare(self, torch: Any, task: _Task) -> None:
        """Set up what the method needs beside the heads: teachers, neighbors."""

    @abstractmethod
    def _loss(self, torch: Any, task: _Task, batch: Batch, step: int) -> Mapping[str, Any]:
        """Return the terms of the loss of a batch, ``"loss"`` among them."""

    def _check_parameters(self) -> None:
        for name in ("dim", "batch_size", "pair_batch_size"):
            check_positive(getattr(self, name), name, integer=True)
        if self.hidden is not None:
            check_positive(self.hidden, "hidden", integer=True)
        check_positive(self.temperature, "temperature")
        check_positive(self.logit_scale, "logit_scale")
        check_choice(self.head, HEADS, "head")
        check_choice(self.preprocess, PREPROCESS, "preprocess")
        check_choice(self.supervised, SUPERVISED, "supervised")

    def _plain_params(self) -> dict[str, Any]:
        """Return the parameters as plain data; an object among them goes by its kind."""
        params = self.get_params(deep=False)
        return {k: v if isinstance(v, (str, int, float, bool, type(None))) else repr(v) for k, v in params.items()}

    # ------------------------------------------------------------------ reading

    @staticmethod
    def _read(X: Any, Y: Any, U: Any, V: Any, validation: Any) -> tuple[Data, tuple[Space, Space]]:
        (source, target, ids), spaces = read_pairs(X, Y), (space_of(X), space_of(Y))
        if len(source) < 2:
            raise TooFewAnchorsError(f"Got {len(source)} pairs; expected at least two. Pass more pairs.")
        rows = []
        for side, unpaired, name, paired in (("source", U, "X", source), ("target", V, "Y", target)):
            read = as_rows(unpaired, f"unpaired_{side}")
            if read is not None:
                check_width(read.dim, paired.shape[1], f"the {side} rows of the pairs ({name})")
                refuse_paired(unpaired, read, ids, paired, side)
            rows.append(read)
        held = read_validation(validation, source.shape[1], target.shape[1])
        return Data(source, target, rows[0], rows[1], held), spaces

    def _map(self, task: _Task, data: Data, history: History, spaces: tuple[Space, Space]) -> HeadsMap:
        facts = {
            "n_pairs": len(data.source),
            "n_unpaired_source": 0 if data.unpaired_source is None else len(data.unpaired_source),
            "n_unpaired_target": 0 if data.unpaired_target is None else len(data.unpaired_target),
            "steps": history.steps,
            "best_step": history.best_step,
            "history": history.to_dict(),
            "training": self._plain_params(),
        }
        source, target = (head.plain() for head in (task.module.source, task.module.target))
        model = HeadsMap.from_layers(source=source, target=target, facts=facts, method=self.method)
        model.source_space_ = replace(spaces[0], dim=data.source.shape[1])
        model.target_space_ = replace(spaces[1], dim=data.target.shape[1])
        if history.best_score is not None:
            model.scores_["validation_mean_recall_at_1"] = history.best_score
        return model


class _Task:
    """A method at work: its module on its device, and the batches of its steps."""

    def __init__(self, torch: Any, trainer: HeadTrainer, data: Data, schedule: Schedule):
        from congruence.train import _layers

        self.torch, self.trainer, self.data, self.schedule = torch, trainer, data, schedule
        self.device = place(torch, schedule.device)
        rng = np.random.default_rng([schedule.seed, 1])
        heads = {}
        sides = (("source", data.source, data.unpaired_source), ("target", data.target, data.unpaired_target))
        for side, paired, unpaired in sides:
            widths = [paired.shape[1], trainer.dim]
            if trainer.head == "mlp":
                widths.insert(1, trainer.hidden or 4 * paired.shape[1])
            layers = first_layers(trainer.preprocess, paired, unpaired) + _layers.mlp(widths, rng)
            heads[side] = _layers.Head(layers)
        self.module = torch.nn.Module()
        self.module.source, self.module.target = heads["source"], heads["target"]
        if trainer.supervised == "siglip":
            self.module.log_scale = torch.nn.Parameter(torch.tensor(float(np.log(trainer.logit_scale))))
            self.module.bias = torch.nn.Parameter(torch.tensor(float(trainer.logit_bias)))
        else:
            self.module.log_scale = torch.nn.Parameter(torch.tensor(-float(np.log(trainer.temperature))))
        self.module.to(self.device)
        self._pairs = ArrayRows(np.arange(len(data.source))[:, None])
        self.source, self.target = self.tensor(data.source), self.tensor(data.target)
        self.pair_batch = min(trainer.pair_batch_size, trainer.batch_size, len(data.source))
        room = max(trainer.batch_size - self.pair_batch, 1)
        self.unpaired_batch = [
            0 if rows is None else min(room, len(rows)) for rows in (data.unpaired_source, data.unpaired_target)
        ]
        trainer._prepare(torch, self)

    # ------------------------------------------------------------------ what the loop asks for

    def loss(self, step: int) -> Mapping[str, Any]:
        """Return the terms of the loss at a step."""
        return self.trainer._loss(self.torch, self, self.batch(step), step)

    def validate(self) -> float | None:
        """Return the mean of the recalls at 1 in both directions on the held-out rows."""
        if self.data.validation is None:
            return None
        X, Y, x_labels, y_labels = self.data.validation
        with self.torch.inference_mode():
            FX, FY = (self.heads(self.tensor(rows), side).float().cpu().numpy() for rows, side in ((X, 0), (Y, 1)))
        return mean_recall(FX, FY, x_labels, y_labels)

    # ------------------------------------------------------------------ for methods

    def batch(self, step: int) -> Batch:
        """Return the rows of a step."""
        seed = self.schedule.seed
        # The pairs' numbers are drawn like rows; float32 holds integers up to 2^24 exactly, far more pairs than this is for.
        index = self._pairs.batch(step, self.pair_batch, seed)[:, 0].astype(np.int64)
        whole = self.pair_batch == len(self.data.source)
        pairs = [
            side if whole else side[self.torch.from_numpy(index).to(side.device)] for side in (self.source, self.target)
        ]
        sides = (self.data.unpaired_source, self.data.unpaired_target)
        unpaired = [
            None if rows is None else self.tensor(rows.batch(step, self.unpaired_batch[i], seed + 104_729 * (i + 1)))
            for i, rows in enumerate(sides)
        ]
        return Batch(pairs[0], pairs[1], unpaired[0], unpaired[1], index)

    def tensor(self, rows: np.ndarray) -> Any:
        """Return rows as a float32 tensor on the device."""
        return self.torch.from_numpy(np.ascontiguousarray(rows, np.float32)).to(self.device)

    def heads(self, rows: Any, side: int) -> Any:
        """Carry rows into the joint space: unit rows, float32."""
        head = (self.module.source, self.module.target)[side]
        with autocast(self.torch, str(self.device), self.schedule.precision):
            out = head(rows)
        return self.torch.nn.functional.normalize(out.float(), dim=1)

    def supervise(self, X: Any, Y: Any, negatives: Any = None) -> Any:
        """Return the supervised loss of unit rows of which the first of ``Y`` belong to those of ``X``."""
        scale = self.module.log_scale.exp()
        if self.trainer.supervised == "siglip":
            rows = Y if negatives is None else self.torch.cat([Y, negatives])
            return siglip_loss(X, rows, scale, self.module.bias)
        if negatives is not None:
            raise ParameterError(
                'Got supervised="infonce" with unpaired negatives; expected supervised="siglip". Pass that, or leave the negatives out.'
            )
        return infonce_loss(X, Y, 1 / scale)


def first_layers(preprocess: str, paired: np.ndarray, unpaired: Rows | None) -> list[dict[str, Any]]:
    """Return the fixed layers that stand before the trained ones."""
    if preprocess == "none":
        return []
    layers: list[dict[str, Any]] = [{"kind": "normalize"}]
    if preprocess == "center":
        rows = paired if unpaired is None else np.concatenate([paired, sample(unpaired, MEAN_ROWS)])
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        mean = (rows / np.maximum(norms, np.finfo(np.float32).tiny)).mean(axis=0, dtype=np.float64)
        layers.append({"kind": "center", "mean": mean.astype(np.float32)})
    return layers
