"""Base of the methods that train a pair of heads: their parameters and fit, and the objective of their training."""

from __future__ import annotations

import copy
import hashlib
import inspect
import warnings
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from congruence._utils.arrays import to_numpy
from congruence._utils.optional import choose_device, require
from congruence._utils.typing import Labels, Layer, RowsLike
from congruence._utils.validation import check_choice, check_positive
from congruence.embeddings import Space
from congruence.errors import CongruenceWarning, InputError, ParameterError
from congruence.maps import HeadsMap
from congruence.maps.history import History
from congruence.train.loop import Callback, Schedule, autocast, run
from congruence.train.losses import infonce_loss, siglip_loss
from congruence.train.retrieval import left_out_ranks, mean_recall
from congruence.train.rows import (
    ArrayRows,
    Rows,
    TrainingData,
    Unpaired,
    Validation,
    divide,
    read_data,
    sample,
    space_of,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from congruence.train._layers import Head

#: Maximum number of unpaired rows that the mean of a side is computed from.
MEAN_ROWS = 100_000


def retrieval_score(
    self: HeadsMap,
    X: RowsLike,
    y: RowsLike | None = None,
    x_labels: Labels | None = None,
    y_labels: Labels | None = None,
) -> float:
    """Return the mean of recall at 1 in both directions, by which parameters and steps are selected; with CSLS if the
    map chose that.

    ``X`` (n, d_source), ``y`` (m, d_target): rows with equal labels match, without labels those at equal positions.
    """
    if y is None:
        raise InputError("Got rows of the source alone, and none to search among.", "Pass `y=…`.")
    mapped = to_numpy(self.transform(getattr(X, "vectors", X)))
    found = to_numpy(self.transform_target(getattr(y, "vectors", y)))
    return mean_recall(mapped, found, x_labels, y_labels, self.search_banks)


@dataclass(kw_only=True, eq=False, repr=False)
class HeadTrainer(HeadsMap, Schedule):
    """Base of the methods with two heads and a supervised loss on pairs, to which each method may add other terms.

    A subclass is a dataclass of its own parameters, and sets ``method`` and ``objective``.

    Parameters
    ----------
    n_components : int, default=1024
        Width of the joint space.
    head : {"linear", "mlp"}, default="linear"
    hidden : int, optional
        Width of the perceptron's hidden layer; by default four times the input's width.
    preprocess : {"center", "normalize", "none"}, default="center"
        "center" scales rows to unit norm and then subtracts their mean; "normalize" only scales; "none" does neither.
    pair_loss : {"siglip", "infonce"}, default="siglip"
    logit_scale, logit_bias : float, default=20 and −10
        Initial values of the trained scale and bias of the sigmoid loss.
    temperature : float, default=0.07
        Initial value of the trained temperature of InfoNCE.
    batch_size : int, default=32768
        Largest number of pairs and unpaired rows of one side, together, per step.
    pair_batch_size : int, default=10000
        Largest number of pairs per step.
    folds : int, optional
        Without validation rows in ``fit``: choose the number of steps by this many folds of the pairs, each left out
        and searched among unpaired rows, and then train on all pairs. None trains for ``max_steps``.
    max_steps, optimizer, learning_rate, weight_decay, warmup, schedule, clip, validate_every, patience, log_every, \
    checkpoint_every, precision, device, random_state
        See ``congruence.train.Schedule``.

    Attributes
    ----------
    facts_ : dict
        Sizes, the training parameters (``"training"``), and the data of ``history_`` (``"history"``).
    scores_ : dict
        ``"validation_mean_recall_at_1"``, if validation rows were passed.
    """

    method: ClassVar[str]
    #: What is trained; its ``training_step`` defines the method.
    objective: ClassVar[type[HeadsObjective]]
    criterion: ClassVar[str] = "mean_recall_at_1"
    score = retrieval_score
    counts: ClassVar[tuple[str, ...]] = ("n_components", "batch_size", "pair_batch_size", "hidden")
    positive: ClassVar[tuple[str, ...]] = ("temperature", "logit_scale")
    not_negative: ClassVar[tuple[str, ...]] = ()

    n_components: int = 1024
    head: str = "linear"
    hidden: int | None = None
    preprocess: str = "center"
    pair_loss: str = "siglip"
    logit_scale: float = 20.0
    logit_bias: float = -10.0
    temperature: float = 0.07
    batch_size: int = 32768
    pair_batch_size: int = 10000
    folds: int | None = None

    def __post_init__(self) -> None:
        """Check nothing: as every estimator's, the parameters are checked by ``fit``."""

    def fit(
        self,
        X: RowsLike,
        Y: RowsLike | None = None,
        *,
        unpaired: Unpaired | None = None,
        validation: Validation | float | None = None,
        groups: Labels | None = None,
        checkpoint: str | Path | None = None,
        resume: bool = True,
        verbose: bool = True,
        callback: Callback | None = None,
    ) -> Self:
        """Train the heads.

        Parameters
        ----------
        X, Y : Embeddings or array_like, shapes (n, d_source) and (n, d_target)
            Paired by id if both are embeddings with ids, else by position.
        unpaired : tuple of two, optional
            Rows without a partner, of the source and of the target: Embeddings, array_like, Rows, a list of these, or
            None.
        validation : tuple, optional
            Held-out rows as for ``score``, with labels or paired as above, by which the best weights are kept; or a
            share (below 1) or number of the pairs, by which the number of steps is chosen before all are used.
        groups : sequence, shape (n,), optional
            Labels of the rows of ``Y`` that are left out together; by default identical vectors on either side.
        checkpoint, resume : path-like, optional, and bool, default=True
            Folder in which the latest checkpoint is kept, and whether to resume from it.
        verbose : bool, default=True
            Show a progress bar on stderr, if that is a terminal.
        callback : callable, optional
            Called as ``callback(step, values)`` with the recorded losses and ``"learning_rate"`` of a step, and with
            ``"validation"`` after a validation.
        """
        require("torch", extra="train")
        self._check_parameters()
        share: Any = validation if isinstance(validation, Real) else None
        data = read_data(self, X, Y, unpaired, None if share is not None else validation, groups)  # type: ignore[arg-type]
        options: dict[str, Any] = {"resume": resume, "verbose": verbose, "callback": callback}
        spaces = space_of(X), space_of(Y)
        if data.validation is None and (share is not None or self.folds is not None):
            folder = None if checkpoint is None else Path(checkpoint)
            if folder is not None:
                folder.mkdir(exist_ok=True)
            steps, evidence = self._choose_steps(data, share, folder, options)
            last = None if folder is None else folder / "all"
            self._train(data, spaces, checkpoint=last, stop=steps, **options)
            self.scores_["folds"] = evidence
        else:
            self._train(data, spaces, checkpoint=checkpoint, **options)
        return self

    def _train(self, data: TrainingData, spaces: tuple[Space, Space], **options: Any) -> None:
        schedule = Schedule(**{field.name: getattr(self, field.name) for field in fields(Schedule)})
        objective = self.objective(self, data, schedule)
        history = train_heads(self, objective, schedule, {"data": data.facts()}, spaces, **options)
        self._finish(objective, data, history)

    def _choose_steps(
        self, data: TrainingData, share: float | None, folder: Path | None, options: Mapping[str, Any]
    ) -> tuple[int, dict[str, Any]]:
        """Return the number of steps at which left-out pairs are found best, and the mean of the validation scores.

        A later step has to be better than the first validation by more than a standard error over the folds.
        """
        groups = data.labels()
        fold = divide(groups, self.folds, share, self.random_state)
        curves = []
        for number in range(1 if share is not None else int(fold.max()) + 1):
            one = copy.copy(self)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", CongruenceWarning)
                part = data.leave_out(fold == number, groups)
                path = None if folder is None else folder / f"fold{number}"
                one._train(part, (Space(), Space()), checkpoint=path, **options)
            curves.append(one.history_.validation)
        steps = [step for step, _ in min(curves, key=len)]
        scores = np.array([[score for _, score in curve[: len(steps)]] for curve in curves])
        best = int(np.argmax(scores.mean(axis=0)))
        gains = scores[:, best] - scores[:, 0]
        error = float(gains.std(ddof=1) / np.sqrt(len(gains))) if len(gains) > 1 else 0.0
        chosen = steps[best] if gains.mean() > error else steps[0]
        means = scores.mean(axis=0)
        evidence = {"folds": len(curves), "steps": steps, "reciprocal_rank": means.tolist()}
        evidence |= {"chosen": chosen, "score": float(means[steps.index(chosen)])}
        return chosen, {**evidence, "gain": float(gains.mean()), "gain_error": error}

    def _finish(self, objective: HeadsObjective, data: TrainingData, history: History) -> None:
        """Record further results of a method, after the trained heads have been stored."""

    def _check_parameters(self) -> None:
        """Raise ParameterError if a parameter is invalid."""
        check_numbers(self)
        check_choice(self.head, ("linear", "mlp"), "head")
        check_choice(self.preprocess, ("none", "normalize", "center"), "preprocess")
        check_choice(self.pair_loss, ("siglip", "infonce"), "pair_loss")


def check_numbers(trainer: Any) -> None:
    """Check the parameters that a class and its bases list in ``counts``, ``positive`` and ``not_negative``."""
    for cls in type(trainer).__mro__:
        for kind, options in NUMBERS.items():
            for name in vars(cls).get(kind, ()):
                if getattr(trainer, name) is not None:
                    check_positive(getattr(trainer, name), name, **options)


#: Lists of a class of the names of parameters that must be numbers of a kind, or None.
NUMBERS = {"counts": {"integer": True}, "positive": {}, "not_negative": {"zero": True}}


def train_heads(
    trainer: HeadsMap,
    objective: Any,
    schedule: Schedule,
    data: Mapping[str, object],
    spaces: tuple[Space, Space],
    **options: Any,
) -> History:
    """Train with the options of ``run``, and store what makes a trainer a fitted map; ``data`` identifies the rows."""
    parameters = {name: _plain(value) for name, value in trainer.get_params(deep=False).items()}
    identity = {"method": trainer.method, "parameters": parameters, **data}
    if code := {name: found for name, one in trainer.get_params(deep=False).items() if (found := _code_of(one))}:
        identity["code"] = code  # two functions may share a name, as all lambdas of a place do
    history = run(objective, schedule, identity=identity, **options)
    layers, facts = objective.result(history)
    steps = {"steps": history.steps, "best_step": history.best_step, "history": history.to_dict()}
    trainer.set_layers(layers, trainer.method, {**facts, **steps, "training": parameters})
    trainer.source_space_ = replace(spaces[0], dim=trainer.n_features_in_)
    trainer.target_space_ = replace(spaces[1], dim=trainer.d_target)
    best = history.best_score
    trainer.scores_ = {} if best is None else {f"validation_{trainer.criterion}": best}
    return history


def _code_of(value: Any) -> str:
    """Return a digest of what a Python function does, as far as it can be seen; empty for anything else."""
    code = getattr(value, "__code__", value if inspect.iscode(value) else None)
    if code is None:
        return ""
    parts = [code.co_code.hex(), repr(code.co_names), repr(getattr(value, "__defaults__", None))]
    parts += [_code_of(one) if inspect.iscode(one) else repr(one) for one in code.co_consts]
    return hashlib.sha256("\n".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


def _plain(value: object) -> object:
    """Return a parameter as plain data: functions by their name, other objects by their ``repr``."""
    if isinstance(value, (tuple, list)):
        return [_plain(entry) for entry in value]
    if inspect.isroutine(value):  # a repr would hold an address, and no checkpoint would be resumed
        return f"{value.__module__}.{value.__qualname__}"
    return value if isinstance(value, (str, int, float, bool, type(None))) else repr(value)


@dataclass(frozen=True)
class Batch:
    """Rows of a step as tensors: the pairs, with their row numbers ``index``, and the unpaired rows or None."""

    step: int
    source: Tensor
    target: Tensor
    unpaired_source: Tensor | None
    unpaired_target: Tensor | None
    index: np.ndarray


class HeadsObjective:
    """A method's module on its device, and the loss of each training step, which subclasses implement.

    ``module`` contains the heads ``source`` and ``target``, and ``log_scale`` (and ``bias``) of the loss on pairs.
    """

    module: torch.nn.Module
    #: How searches among the heads' rows correct for hubs, and so the folds, too.
    hubness: str | None = None

    def __init__(self, trainer: HeadTrainer, data: TrainingData, schedule: Schedule):
        import torch

        self.trainer, self.data, self.schedule = trainer, data, schedule
        self.device = torch.device(choose_device(torch, schedule.device))
        rng = np.random.default_rng([schedule.random_state, 1])
        self.module = torch.nn.Module()
        sides = (("source", data.source, data.unpaired_source), ("target", data.target, data.unpaired_target))
        for side, paired, unpaired in sides:
            setattr(self.module, side, new_head(trainer, paired, unpaired, trainer.n_components, rng))
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
        self.prepare()

    def prepare(self) -> None:
        """Check the data, and compute what all steps use."""

    def need_unpaired(self, why: str, side: str | None = None, weight: str = "") -> None:
        """Refuse data without unpaired rows of both sides or, unless the parameter ``weight`` is 0, of one side."""
        if side is not None and not getattr(self.trainer, weight):
            return
        sides = ("source", "target") if side is None else (side,)
        if any(getattr(self.data, f"unpaired_{name}") is None for name in sides):
            missing = "rows of one side or both" if side is None else f"{side} rows"
            otherwise = "" if side is None else f", or {weight}=0"
            raise InputError(f"Got no unpaired {missing}, but {why}.", f"Pass `unpaired=(U, V)`{otherwise}.")

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

    def result(self, history: History) -> tuple[dict[str, list[Layer]], dict[str, object]]:
        """Return the trained layers, and facts about the training to store with them."""
        layers = {"source": self.module.source.plain(), "target": self.module.target.plain()}
        return layers, dict(self.data.sizes())

    def validate(self) -> float | None:
        """Return the mean of the recalls at 1 in both directions on the held-out rows."""
        import torch

        if self.data.validation is None:
            return None
        X, Y, x_labels, y_labels = self.data.validation
        with torch.inference_mode():
            FX, FY = (self.heads(self.tensor(rows), side).float().cpu().numpy() for rows, side in ((X, 0), (Y, 1)))
            if self.data.distractors is None:
                return mean_recall(FX, FY, x_labels, y_labels)
            U, V = (self.heads(self.tensor(rows), i).cpu().numpy() for i, rows in enumerate(self.data.distractors))
        return float(left_out_ranks((FX, FY), (U, V), x_labels, (U, V) if self.hubness else None)[:, 0].mean())

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
        """Return the supervised loss of paired unit rows."""
        import torch

        scale = self.module.log_scale.exp()
        if self.trainer.pair_loss == "siglip":
            rows = Y if negatives is None else torch.cat([Y, negatives])
            return siglip_loss(X, rows, scale, self.module.bias)
        if negatives is not None:
            raise ParameterError('Got `pair_loss="infonce"` with unpaired negatives.', 'Pass `pair_loss="siglip"`.')
        return infonce_loss(X, Y, 1 / scale)


def new_head(
    trainer: HeadTrainer, paired: np.ndarray, unpaired: Rows | None, width: int, rng: np.random.Generator
) -> Head:
    """Return a head with initial weights, from rows of one side to a space of this width."""
    from congruence.train import _layers

    widths = [paired.shape[1], width]
    if trainer.head == "mlp":
        widths.insert(1, trainer.hidden or 4 * paired.shape[1])
    return _layers.Head(first_layers(trainer.preprocess, paired, unpaired) + _layers.mlp(widths, rng))


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
