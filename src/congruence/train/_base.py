"""The methods that train a pair of heads: the parameters they share, and how they are fitted."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

from congruence._utils.optional import require
from congruence._utils.validation import check_choice, check_positive
from congruence.train._objective import HeadsObjective
from congruence.train._reading import Data, read_data, space_of
from congruence.train._trainer import Trainer
from congruence.train.checkpoint import History
from congruence.train.loop import Schedule

__all__ = ["HeadTrainer"]

#: What is done to a row before the first layer.
PREPROCESS = ("none", "normalize", "center")
HEADS = ("linear", "mlp")
PAIR_LOSSES = ("siglip", "infonce")


@dataclass(kw_only=True, eq=False, repr=False)
class HeadTrainer(Trainer):
    """Base of the methods with two heads, a supervised loss on pairs, and whatever a method adds to it.

    A subclass is a dataclass of its own parameters, sets ``method``, and implements :meth:`_objective`.

    Parameters
    ----------
    n_components : int, default=1024
        Width of the joint space.
    head : {"linear", "mlp"}, default="linear"
    hidden : int, optional
        Width of the perceptron's hidden layer; four times the input's by default.
    preprocess : {"center", "normalize", "none"}, default="center"
        Rows to unit norm, and then less their mean; or less of that.
    pair_loss : {"siglip", "infonce"}, default="siglip"
    logit_scale, logit_bias : float, default=20 and −10
        Where the trained scale and bias of the sigmoid loss begin.
    temperature : float, default=0.07
        Where the trained temperature of InfoNCE begins.
    batch_size : int, default=32768
        Pairs and unpaired rows of one side, together, in a step; fewer where there are fewer.
    pair_batch_size : int, default=10000
        The most pairs in a step.
    max_steps, optimizer, learning_rate, weight_decay, warmup, schedule, clip, validate_every, patience, log_every, checkpoint_every, \
precision, device, random_state
        See :class:`congruence.train.Schedule`.

    Attributes
    ----------
    source_layers_, target_layers_ : list of dict
        The heads, as :class:`~congruence.HeadsMap` describes them.
    facts_ : dict
        Sizes, the parameters (``"training"``), and losses and validation scores (``"history"``).
    scores_ : dict
        ``"validation_mean_recall_at_1"``, if there were validation rows.
    """

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
        X: Any,
        Y: Any = None,
        *,
        y: Any = None,
        unpaired: tuple[Any, Any] | None = None,
        validation: tuple[Any, Any] | tuple[Any, Any, Any, Any] | None = None,
        checkpoint: str | Path | None = None,
        resume: bool = True,
        verbose: bool = True,
    ) -> Self:
        """Train the heads.

        Parameters
        ----------
        X : Embeddings or array_like, shape (n, d_source)
        Y : Embeddings or array_like, shape (n, d_target)
            Pairs: by id where both are embeddings with ids, by position otherwise.
        y : array_like, optional
            Another name for ``Y``, as scikit-learn's tools pass it.
        unpaired : tuple of two, optional
            Rows without a partner, of the source and of the target: Embeddings, array_like, Rows, a list of these, or None.
        validation : tuple, optional
            Held-out rows as :meth:`score` takes them: ``(X, Y)``, paired as above, or with two sequences of labels of which equal ones
            belong together. The weights kept are those with the best score.
        checkpoint : path-like, optional
            Folder to keep the last checkpoint in.
        resume : bool, default=True
            Resume from the checkpoint if there is one.
        verbose : bool, default=True
            Show a progress bar on stderr, if that is a terminal.

        Returns
        -------
        Self
            Fitted: a joint-space map that needs no torch to be used.

        Raises
        ------
        InputError
            Pairs listed as unpaired too, or no unpaired rows where the method needs them.
        ShapeError, NotFiniteError, ZeroRowError, TooFewAnchorsError
            Rows that do not fit each other or cannot be trained on, or fewer than two pairs.
        ParameterError
            A parameter the method cannot have.
        TrainingError
            A loss that is not finite, or a checkpoint of another run.
        MissingExtraError
            Without PyTorch.
        """
        require("torch", extra="train")
        self._check_parameters()
        Y = y if Y is None else Y
        data = read_data(self, X, Y, unpaired, validation)
        schedule = Schedule(**{field.name: getattr(self, field.name) for field in fields(Schedule)})
        objective = self._objective(data, schedule)
        history = self._run(
            objective, schedule, {"data": data.facts()}, checkpoint=checkpoint, resume=resume, verbose=verbose
        )
        facts = {
            "n_pairs": len(data.source),
            "n_unpaired_source": 0 if data.unpaired_source is None else len(data.unpaired_source),
            "n_unpaired_target": 0 if data.unpaired_target is None else len(data.unpaired_target),
        }
        parts = {"source": objective.module.source.plain(), "target": objective.module.target.plain()}
        self._take(parts, history, facts, (space_of(X), space_of(Y)))
        self._finish(objective, data, history)
        return self

    # ------------------------------------------------------------------ for subclasses

    @abstractmethod
    def _objective(self, data: Data, schedule: Schedule) -> HeadsObjective:
        """Return what is trained; its :meth:`~HeadsObjective.training_step` is the method."""

    def _finish(self, objective: HeadsObjective, data: Data, history: History) -> None:
        """Note what a method has to say beside its heads, once these are in place."""

    def _check_parameters(self) -> None:
        for name in ("n_components", "batch_size", "pair_batch_size"):
            check_positive(getattr(self, name), name, integer=True)
        if self.hidden is not None:
            check_positive(self.hidden, "hidden", integer=True)
        check_positive(self.temperature, "temperature")
        check_positive(self.logit_scale, "logit_scale")
        check_choice(self.head, HEADS, "head")
        check_choice(self.preprocess, PREPROCESS, "preprocess")
        check_choice(self.pair_loss, PAIR_LOSSES, "pair_loss")
