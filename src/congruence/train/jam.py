"""JAM: an autoencoder per model, trained jointly so that images and their captions share a latent space and wrong
captions stay apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np

from congruence._utils.optional import require
from congruence._utils.typing import Array, Labels, Layer, RowsLike
from congruence._utils.validation import check_choice, check_positive
from congruence.embeddings import Embeddings
from congruence.errors import InputError, ParameterError, TooFewAnchorsError
from congruence.maps import HeadsMap
from congruence.maps.history import History
from congruence.metrics import recall_at_k
from congruence.train._autoencoders import AutoencoderObjective, ends
from congruence.train._base import run_training, take_layers
from congruence.train._reading import pair_by_id, space_of
from congruence.train.autoencoder import count, in_units
from congruence.train.captions import Captions, HeldCaptions, read_captions, read_validation_captions, split_by_group
from congruence.train.loop import Schedule, used_precision
from congruence.train.retrieval import partners

LOSSES = ("spread", "negcon", "con")


@dataclass(eq=False, repr=False)
class JAM(HeadsMap):
    """Train an autoencoder of images and one of texts with a shared latent space, by reconstruction and a contrastive
    loss.

    Parameters
    ----------
    loss : {"spread", "negcon", "con"}, default="spread"
        See :mod:`congruence.train.losses`. The first two need wrong captions.
    spread_mix : float or tuple of two float, default=0.5
        α of Spread; a pair gives the start and end of a linear curriculum.
    temperature : float, default=0.07
        τ.
    learn_temperature : bool, default=False
        Train log 1/τ starting from this value, up to 1/τ = 100. The paper's section 3.1 states τ = 0.07 for all
        experiments; its appendix D.2 states that τ is learned.
    reconstruction : tuple of two float, default=(1.0, 0.1)
        λ, the weight of the reconstruction error, in the first step and in the last.
    hidden : sequence of int, default=(512, 512, 512)
        Widths of the hidden stages; see :func:`congruence.train.autoencoder.autoencoder`.
    latent : int, default=256
        Width of the joint space.
    dropout : float, default=0.1
    standardize : bool, default=True
        Train on rows minus their mean, divided by their standard deviation (a single number), so that λ has the same
        meaning for every model. The map takes and returns rows in their original scale. The paper does not mention this
        step.
    mask_same : bool, default=False
        Exclude rows of the same image, and rows with equal captions, from each other's candidates, since such captions
        are not wrong. The paper does not mention this step.
    max_epochs : int, default=100
    batch_size : int, default=32
    learning_rate, weight_decay : float, default=1e-3 and 0.01
        Of AdamW; the paper does not report them.
    clip : float or None, default=1.0
        Largest norm of the gradient.
    schedule : {"cosine", "constant"}, default="cosine"
    validate_every, patience : int, int or None, default=5 and 5
        Epochs between validations, and number of validations without improvement after which training ends.
    log_every : int, default=10
        Steps between recorded losses.
    checkpoint_every : int, default=5
        Epochs between checkpoints. An epoch uses every row once, in random order; a batch may span the end of one epoch
        and the start of the next.
    precision, device, random_state
        See :class:`congruence.train.Schedule`. ``precision`` defaults to ``"auto"``: recall is the same in bfloat16
        (docs/jam.md). Use ``"float32"`` if results must not depend on the processor. ``random_state`` also determines
        the split of the rows. The paper uses 5, 42 and 55.

    Attributes
    ----------
    history_ : History
        Losses and validation scores by step; ``history_.plot()`` draws them.

    References
    ----------
    Yoon, Yue and Kim (2025), "Escaping Plato's Cave: JAM for Aligning Independently Trained Vision and Language
    Models", sections 3 and 4, appendices C and D.
    """

    method: ClassVar[str] = "jam"
    criterion: ClassVar[str] = "source_to_target_recall_at_1"

    loss: str = "spread"
    spread_mix: float | tuple[float, float] = 0.5
    temperature: float = 0.07
    learn_temperature: bool = False
    reconstruction: tuple[float, float] = (1.0, 0.1)
    _: KW_ONLY
    hidden: Sequence[int] = (512, 512, 512)
    latent: int = 256
    dropout: float = 0.1
    standardize: bool = True
    mask_same: bool = False
    max_epochs: int = 100
    batch_size: int = 32
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    clip: float | None = 1.0
    schedule: str = "cosine"
    validate_every: int = 5
    patience: int | None = 5
    log_every: int = 10
    checkpoint_every: int = 5
    precision: str = "auto"
    device: str = "auto"
    random_state: int = 5

    def fit(
        self,
        X: RowsLike,
        Y: RowsLike | None = None,
        *,
        negatives: RowsLike | None = None,
        groups: Labels | None = None,
        validation: HeldCaptions | None = None,
        checkpoint: str | Path | None = None,
        resume: bool = True,
        verbose: bool = True,
    ) -> Self:
        """Train both autoencoders.

        Parameters
        ----------
        X : Embeddings or array_like, shape (n, d_source)
            Images, one row per caption.
        Y : Embeddings or array_like, shape (n, d_target)
            Their captions, paired by id if both are embeddings with ids, else by position.
        negatives : Embeddings or array_like, shape (n, d_target) or (n, k, d_target), optional
            Wrong captions, in the order of ``Y``, or with its ids.
        groups : sequence, shape (n,), optional
            The image of each row of ``Y``. Without ``validation``, 70 % of the images are used for training and 15 %
            for validation; :func:`congruence.train.split_by_group` with the same ``random_state`` returns the remaining
            15 %, for testing.
        validation : tuple, optional
            Held-out rows as for :meth:`score`: ``(X, Y)``, ``(X, Y, negatives)`` or ``(X, Y, negatives, groups)``. The
            weights with the best score are kept; without validation, the last weights.
        checkpoint : path-like, optional
            Folder in which the latest checkpoint is kept.
        resume : bool, default=True
            Resume from the checkpoint if there is one.
        verbose : bool, default=True
            Show a progress bar on stderr, if that is a terminal.

        Returns
        -------
        Self
            The fitted map: a joint-space map with decoders that does not need torch to be applied. Its ``facts_`` hold
            the losses, the sizes of both autoencoders, and the reconstruction error as a share of the variance (1 is no
            better than the mean).

        Raises
        ------
        InputError
            If the loss needs wrong captions and none were passed.
        ShapeError, NotFiniteError, ZeroRowError, TooFewAnchorsError
            If rows do not match or cannot be trained on, or there are too few rows or too few images to split.
        ParameterError
            If a parameter has an invalid value.
        TrainingError
            If a loss is not finite, or the checkpoint belongs to another run.
        MissingExtraError
            If PyTorch is not installed.
        """
        self._check_parameters()
        require("torch", extra="train")
        spaces = space_of(X), space_of(Y)
        if not pair_by_id(X, Y):
            A, B, _ = self._check_pairs(X, Y)
            X, Y = (side if isinstance(side, Embeddings) else rows for side, rows in ((X, A), (Y, B)))
        data = read_captions(X, Y, negatives, groups)
        if self.loss != "con" and data.negatives is None:
            raise InputError(
                f"Got no wrong captions for `loss={self.loss!r}`; expected some, which this loss compares with.",
                'Pass `negatives=…`, or `loss="con"`.',
            )
        split = None
        if validation is not None:
            heldout = read_validation_captions(validation, data)
        elif groups is not None:
            parts = split_by_group(data.groups, random_state=self.random_state)
            heldout, split = data.take(parts[1]), [len(rows) for rows in parts]
            data = data.take(parts[0])
        else:
            heldout = None
        if len(data) < 2:
            raise TooFewAnchorsError(f"Got {len(data)} pairs to train on; expected at least two.", "Pass more pairs.")
        schedule = self._schedule(len(data))
        objective = AutoencoderObjective(self, data, heldout, schedule)
        digests = {"data": data.digest(), "validation": None if heldout is None else heldout.digest()}
        history = run_training(
            self, objective, schedule, digests, checkpoint=checkpoint, resume=resume, verbose=verbose
        )
        layers, facts = self._describe(objective, history, split)
        take_layers(self, layers, history, facts, spaces)
        self.facts_["reconstruction_error"] = self._errors(objective)
        return self

    def score(
        self,
        X: RowsLike,
        y: RowsLike | None = None,
        negatives: RowsLike | None = None,
        groups: Labels | None = None,
    ) -> float:
        """Return the share of images whose nearest text is one of their captions, by which parameters and steps are
        selected.

        Parameters
        ----------
        X : array_like, shape (n, d_source)
            Images, one row per caption.
        y : array_like, shape (n, d_target)
            Their captions.
        negatives : array_like, shape (n, d_target) or (n, k, d_target), optional
            Wrong captions, added to the captions that are searched.
        groups : sequence, shape (n,), optional
            The image of each row; any of its captions counts as a hit. By default each row is an image of its own.

        Returns
        -------
        float

        Raises
        ------
        ShapeError, NotFiniteError, ZeroRowError, NotFittedMapError
            If arrays have the wrong shape, contain NaN or infinity or have a row of zeros, or the map is not fitted.
        """
        self._check_source(getattr(X, "vectors", X))
        heldout = read_captions(X, y, negatives, groups)
        hits = partners(heldout.groups, heldout.groups)
        return recall_at_k(self.transform(heldout.source), self.transform_target(heldout.candidates()), hits, k=1)

    # ------------------------------------------------------------------ parts

    def _schedule(self, pairs: int) -> Schedule:
        """Return the schedule of the training loop, which counts steps where this class counts epochs."""
        per_epoch = -(-pairs // self.batch_size)
        shared = (
            "learning_rate",
            "weight_decay",
            "schedule",
            "clip",
            "patience",
            "log_every",
            "precision",
            "device",
            "random_state",
        )
        return Schedule(
            max_steps=self.max_epochs * per_epoch,
            optimizer="adamw",
            validate_every=self.validate_every * per_epoch,
            checkpoint_every=self.checkpoint_every * per_epoch,
            **{name: getattr(self, name) for name in shared},
        )

    def _check_parameters(self) -> None:
        """Raise ParameterError if a parameter is invalid."""
        check_choice(self.loss, LOSSES, "loss")
        for name in ("latent", "max_epochs", "batch_size", "validate_every", "checkpoint_every"):
            check_positive(getattr(self, name), name, integer=True)
        check_positive(self.temperature, "temperature")
        if isinstance(self.hidden, (str, int)):
            raise ParameterError(
                argument="hidden",
                got=self.hidden,
                expected="a list of widths",
                fix="Pass `hidden=(512, 512, 512)`, for example.",
            )
        for width in self.hidden:
            check_positive(width, "a width of hidden", integer=True)
        if isinstance(self.dropout, bool) or not isinstance(self.dropout, (int, float)) or not 0 <= self.dropout < 1:
            raise ParameterError(
                argument="dropout",
                got=self.dropout,
                expected="a share from 0 to below 1",
                fix="Pass `dropout=0.1`, for example.",
            )
        for end in ends(self.spread_mix, "spread_mix"):
            if not 0 <= end <= 1:
                raise ParameterError(
                    argument="spread_mix",
                    got=self.spread_mix,
                    expected="numbers from 0 to 1",
                    fix="Pass `spread_mix=0.5`, for example.",
                )
        for end in ends(self.reconstruction, "reconstruction"):
            check_positive(end, "reconstruction", zero=True)

    def _describe(
        self, objective: AutoencoderObjective, history: History, split: list[int] | None
    ) -> tuple[dict[str, list[Layer]], dict[str, object]]:
        """Return the layers, adjusted to rows in their original scale, and the facts about the training to store."""
        layers: dict[str, list[Layer]] = {}
        size: dict[str, int] = {}
        for i, side in enumerate(("source", "target")):
            encoder, decoder = objective.module.encode[i].plain(), objective.module.decode[i].plain()
            cost = count(encoder) + count(decoder)
            size |= {f"{side}_parameters": cost.parameters, f"{side}_flops_per_row": cost.flops}
            layers[side], layers[f"decode_{side}"] = in_units(encoder, decoder, objective.means[i], objective.scales[i])
        negatives = objective.data.negatives
        facts: dict[str, object] = {
            "n_pairs": len(objective.data),
            "negatives_each": 0 if negatives is None else negatives.shape[1],
            "size": size,
            "precision": used_precision(self.precision, str(objective.device)),
        }
        if split is not None:
            facts["split"] = dict(zip(("train", "validation", "test"), split, strict=True))
        if history.best_step is not None and isinstance(self.spread_mix, (tuple, list)):
            facts["spread_mix_at_best"] = objective.scheduled(self.spread_mix, max(history.best_step - 1, 0))
        if self.learn_temperature:
            facts["temperature"] = float(objective.temperature().detach())
        return layers, facts

    def _errors(self, objective: AutoencoderObjective) -> dict[str, object]:
        """Return the squared reconstruction error divided by that of the training mean, on the validation rows if there
        are any.
        """
        heldout = objective.heldout
        rows: Captions = objective.data if heldout is None else heldout
        source, target = objective.means
        return {
            "rows": "training" if heldout is None else "validation",
            "source": _error(self.reconstruct(rows.source), rows.source, source),
            "target": _error(self.reconstruct_target(rows.target), rows.target, target),
        }


def _error(reconstructed: Array, rows: np.ndarray, mean: np.ndarray) -> float:
    """Return the squared error of reconstructed rows divided by that of the training mean."""
    spread = float(np.sum((rows - mean) ** 2))
    return float(np.sum((np.asarray(reconstructed, np.float64) - rows) ** 2)) / spread if spread else 0.0
