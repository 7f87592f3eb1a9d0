"""Base of the methods that train a pair of heads: their parameters, fit and score."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import ClassVar, Self

from congruence._utils.arrays import to_numpy
from congruence._utils.optional import require
from congruence._utils.typing import Labels, RowsLike
from congruence._utils.validation import check_choice, check_positive
from congruence.embeddings import Embeddings, Space
from congruence.errors import InputError
from congruence.maps import HeadsMap
from congruence.maps.history import History
from congruence.train._objective import HeadsObjective
from congruence.train._reading import Data, Unpaired, Validation, read_data, space_of
from congruence.train.loop import BatchT, Objective, Schedule, run
from congruence.train.retrieval import mean_recall

#: Preprocessing of rows before the first layer.
PREPROCESS = ("none", "normalize", "center")
HEADS = ("linear", "mlp")
PAIR_LOSSES = ("siglip", "infonce")


def retrieval_score(
    self: HeadsMap,
    X: RowsLike,
    y: RowsLike | None = None,
    x_labels: Labels | None = None,
    y_labels: Labels | None = None,
) -> float:
    """Return the mean of recall at 1 in both directions, by which parameters and steps are selected.

    Parameters
    ----------
    X : array_like, shape (n, d_source)
    y : array_like, shape (m, d_target)
        Target rows; scikit-learn's tools pass them under this name.
    x_labels, y_labels : sequence, shape (n,) and (m,), optional
        Rows with equal labels match, and any matching row counts as a hit. Without labels, rows match by position.

    Returns
    -------
    float

    Raises
    ------
    ShapeError
        If the sides have different lengths and there are no labels.
    InputError
        If there are no target rows, or the label of a row does not occur on the other side.
    """
    if y is None:
        raise InputError(
            "Got rows of the source alone; expected those of the target too, in which they are searched.",
            "Pass `y=…`.",
        )
    mapped = self.transform(_vectors(X)), self.transform_target(_vectors(y))
    return mean_recall(to_numpy(mapped[0]), to_numpy(mapped[1]), x_labels, y_labels)


@dataclass(kw_only=True, eq=False, repr=False)
class HeadTrainer(HeadsMap):
    """Base of the methods with two heads and a supervised loss on pairs, to which each method may add other terms.

    A subclass is a dataclass of its own parameters, sets ``method``, and implements :meth:`_objective`.

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
    max_steps, optimizer, learning_rate, weight_decay, warmup, schedule, clip, validate_every, patience, log_every, \
    checkpoint_every, precision, device, random_state
        See :class:`congruence.train.Schedule`.

    Attributes
    ----------
    source_layers_, target_layers_ : list of dict
        The heads, as :class:`~congruence.HeadsMap` describes them.
    history_ : History
        Losses and validation scores by step; ``history_.plot()`` draws them.
    facts_ : dict
        Sizes, the training parameters (``"training"``), and the data of ``history_`` (``"history"``).
    scores_ : dict
        ``"validation_mean_recall_at_1"``, if validation rows were passed.
    """

    method: ClassVar[str]
    criterion: ClassVar[str] = "mean_recall_at_1"
    score = retrieval_score

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
    max_steps: int = 2000
    optimizer: str = "lion"
    learning_rate: float = 1e-4
    weight_decay: float = 1e-5
    warmup: int = 0
    schedule: str = "cosine"
    clip: float | None = None
    validate_every: int = 100
    patience: int | None = None
    log_every: int = 10
    checkpoint_every: int = 200
    precision: str = "float32"
    device: str = "auto"
    random_state: int = 0

    # ------------------------------------------------------------------ for users

    def fit(
        self,
        X: RowsLike,
        Y: RowsLike | None = None,
        *,
        unpaired: Unpaired | None = None,
        validation: Validation | None = None,
        checkpoint: str | Path | None = None,
        resume: bool = True,
        verbose: bool = True,
    ) -> Self:
        """Train the heads.

        Parameters
        ----------
        X : Embeddings or array_like, shape (n, d_source)
        Y : Embeddings or array_like, shape (n, d_target)
            Paired with X by id if both are embeddings with ids, else by position.
        unpaired : tuple of two, optional
            Rows without a partner, of the source and of the target: Embeddings, array_like, Rows, a list of these, or
            None.
        validation : tuple, optional
            Held-out rows as for :meth:`score`: ``(X, Y)``, paired as above, or ``(X, Y, x_labels, y_labels)``, where
            rows with equal labels match. The weights with the best score are kept.
        checkpoint : path-like, optional
            Folder in which the latest checkpoint is kept.
        resume : bool, default=True
            Resume from the checkpoint if there is one.
        verbose : bool, default=True
            Show a progress bar on stderr, if that is a terminal.

        Returns
        -------
        Self
            The fitted map: a joint-space map that does not need torch to be applied.

        Raises
        ------
        InputError
            If rows are in both the pairs and the unpaired rows, or the method needs unpaired rows and got none.
        ShapeError, NotFiniteError, ZeroRowError, TooFewAnchorsError
            If rows do not match or cannot be trained on, or there are fewer than two pairs.
        ParameterError
            If a parameter has an invalid value.
        TrainingError
            If a loss is not finite, or the checkpoint belongs to another run.
        MissingExtraError
            If PyTorch is not installed.
        """
        require("torch", extra="train")
        self._check_parameters()
        data = read_data(self, X, Y, unpaired, validation)
        schedule = Schedule(**{field.name: getattr(self, field.name) for field in fields(Schedule)})
        objective = self._objective(data, schedule)
        history = run_training(
            self, objective, schedule, {"data": data.facts()}, checkpoint=checkpoint, resume=resume, verbose=verbose
        )
        facts = {
            "n_pairs": len(data.source),
            "n_unpaired_source": 0 if data.unpaired_source is None else len(data.unpaired_source),
            "n_unpaired_target": 0 if data.unpaired_target is None else len(data.unpaired_target),
        }
        layers = {"source": objective.module.source.plain(), "target": objective.module.target.plain()}
        take_layers(self, layers, history, facts, (space_of(X), space_of(Y)))
        self._finish(objective, data, history)
        return self

    # ------------------------------------------------------------------ for subclasses

    @abstractmethod
    def _objective(self, data: Data, schedule: Schedule) -> HeadsObjective:
        """Return the objective to train; its :meth:`~HeadsObjective.training_step` defines the method."""

    def _finish(self, objective: HeadsObjective, data: Data, history: History) -> None:
        """Record further results of a method, after the trained heads have been stored."""

    def _check_parameters(self) -> None:
        """Raise ParameterError if a parameter is invalid."""
        for name in ("n_components", "batch_size", "pair_batch_size"):
            check_positive(getattr(self, name), name, integer=True)
        if self.hidden is not None:
            check_positive(self.hidden, "hidden", integer=True)
        check_positive(self.temperature, "temperature")
        check_positive(self.logit_scale, "logit_scale")
        check_choice(self.head, HEADS, "head")
        check_choice(self.preprocess, PREPROCESS, "preprocess")
        check_choice(self.pair_loss, PAIR_LOSSES, "pair_loss")


def run_training(
    trainer: HeadsMap,
    objective: Objective[BatchT],
    schedule: Schedule,
    data: Mapping[str, object],
    *,
    checkpoint: str | Path | None,
    resume: bool,
    verbose: bool,
) -> History:
    """Train; ``data`` identifies the rows of this run, to distinguish it from other runs."""
    identity = {"method": trainer.method, "parameters": plain_parameters(trainer), **data}
    return run(objective, schedule, checkpoint=checkpoint, resume=resume, identity=identity, verbose=verbose)


def take_layers(
    trainer: HeadsMap,
    layers: Mapping[str, object],
    history: History,
    facts: Mapping[str, object],
    spaces: tuple[Space, Space],
) -> None:
    """Store the trained layers and the facts about the training, which makes a trainer a fitted map."""
    training = {
        "steps": history.steps,
        "best_step": history.best_step,
        "history": history.to_dict(),
        "training": plain_parameters(trainer),
    }
    trainer.set_layers(layers, trainer.method, {**facts, **training})
    trainer.source_space_ = replace(spaces[0], dim=trainer.n_features_in_)
    trainer.target_space_ = replace(spaces[1], dim=trainer.d_target)
    best = history.best_score
    trainer.scores_ = {} if best is None else {f"validation_{trainer.criterion}": best}


def plain_parameters(trainer: HeadsMap) -> dict[str, object]:
    """Return the parameters as plain data; objects are represented by their ``repr``."""
    return {name: _plain(value) for name, value in trainer.get_params(deep=False).items()}


def _vectors(rows: RowsLike) -> RowsLike:
    return rows.vectors if isinstance(rows, Embeddings) else rows


def _plain(value: object) -> object:
    if isinstance(value, (tuple, list)):
        return [_plain(entry) for entry in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else repr(value)
