"""JAM: an autoencoder per model, trained jointly to share a latent space and keep wrong captions apart."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self, TypeAlias

import numpy as np

from congruence._utils.ids import id_rows
from congruence._utils.optional import choose_device, require
from congruence._utils.typing import Labels, Layer, RowsLike
from congruence._utils.validation import as_matrix, check_choice, check_positive, check_same_rows, check_width
from congruence.embeddings import Embeddings
from congruence.errors import InputError, ParameterError, ShapeError, TooFewAnchorsError
from congruence.maps import HeadsMap
from congruence.maps.heads import SIDES
from congruence.maps.history import History
from congruence.metrics import recall_at_k
from congruence.splits import Split
from congruence.train._base import check_numbers, train_heads
from congruence.train.loop import Schedule, autocast, used_precision
from congruence.train.losses import con_loss, negcon_loss, spread_loss
from congruence.train.retrieval import partners
from congruence.train.rows import ArrayRows, join_by_id, read_pairs, space_of

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module


#: Held-out images and captions, optionally with wrong captions and the image label of each row.
HeldCaptions: TypeAlias = (
    "tuple[RowsLike, RowsLike] | tuple[RowsLike, RowsLike, RowsLike | None]"
    " | tuple[RowsLike, RowsLike, RowsLike | None, Labels | None]"
)


@dataclass(frozen=True)
class Captions:
    """Images (n, d), captions (n, e), wrong captions (n, k, e), and labels (n,), equal for rows of one image."""

    source: np.ndarray
    target: np.ndarray
    negatives: np.ndarray | None
    groups: np.ndarray

    def __len__(self) -> int:
        return len(self.source)

    def take(self, rows: np.ndarray) -> Captions:
        """Return some of the rows."""
        wrong = None if self.negatives is None else self.negatives[rows]
        return Captions(self.source[rows], self.target[rows], wrong, self.groups[rows])

    def candidates(self) -> np.ndarray:
        """Return the captions followed by all wrong captions, shape (n + n·k, d_target)."""
        if self.negatives is None:
            return self.target
        return np.concatenate([self.target, self.negatives.reshape(-1, self.target.shape[1])])

    def texts(self) -> np.ndarray:
        """Return numbers (n, 1 + k) that identify captions and wrong captions: equal vectors have equal numbers."""
        n, width = self.target.shape
        wrong = np.empty((n, 0, width), np.float32) if self.negatives is None else self.negatives
        rows = np.concatenate([self.target, wrong.reshape(-1, width)])
        numbers = np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1)
        return np.column_stack([numbers[:n], numbers[n:].reshape(n, -1)])

    def digest(self) -> str:
        """Return a digest that identifies these rows."""
        digest = hashlib.sha256()
        for rows in (self.source, self.target, self.negatives):
            digest.update(b"none" if rows is None else np.ascontiguousarray(rows).tobytes())
        # Only which rows share a label matters, not the labels themselves.
        digest.update(np.unique(self.groups, return_inverse=True)[1].astype(np.int64).tobytes())
        return digest.hexdigest()


def split_by_group(
    groups: Labels, shares: tuple[float, float] = (0.7, 0.15), random_state: int = 5
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Split rows by their labels ``groups`` (n,), such as images, into row numbers for training, validation and
    testing.

    Rows of one group stay together; ``shares`` of the *groups* are for training and for validation, the rest for
    testing. Equal to splitting twice with ``congruence.datasets.SugarCrepe.split_by_image``.

    Examples
    --------
    >>> from congruence.train import split_by_group
    >>> [len(rows) for rows in split_by_group([i // 2 for i in range(40)])]
    [28, 6, 6]
    """
    labels = np.asarray(groups).astype(str)
    train, validation = shares
    if not (min(shares) > 0 and train + validation < 1):
        raise ParameterError(argument="shares", got=shares, expected="two above 0 whose sum is below 1")
    names = np.unique(labels)
    not_train = _held_out(names, train, random_state)
    test = _held_out(not_train, round(validation / (1 - train), 9), random_state)  # 0.15 is half of the remaining 0.3
    heldout, tested = np.isin(labels, not_train), np.isin(labels, test)
    return np.flatnonzero(~heldout), np.flatnonzero(heldout & ~tested), np.flatnonzero(tested)


def _held_out(names: np.ndarray, share_kept: float, random_state: int) -> np.ndarray:
    """Return the groups that are held out if a share of them is kept."""
    count = len(names) - round(share_kept * len(names))
    if not 0 < count <= len(names) - 2:
        raise TooFewAnchorsError(f"Got {len(names)} groups; {count} would be held out.", "Pass more groups.")
    return names[Split.choose(names, count, random_state).held_out(names)]


def read_captions(
    X: RowsLike, Y: RowsLike | None, negatives: RowsLike | None = None, groups: Labels | None = None
) -> Captions:
    """Return images, captions, wrong captions and labels in one order."""
    A, B, ids = read_pairs(X, Y)
    n = len(B) if ids is None else len(Y)  # type: ignore[arg-type]
    wrong = None if negatives is None else _wrong(negatives, Y, n, B.shape[1])
    labels = np.arange(n) if groups is None else np.asarray(groups)
    if labels.shape != (n,):
        raise ShapeError(f"Got groups of shape {labels.shape}; expected ({n},).", "Pass one label per caption.")
    if ids is not None:
        rows = id_rows(Y.ids, ids)  # type: ignore[union-attr]
        wrong, labels = (None if wrong is None else wrong[rows]), labels[rows]
    return Captions(A, B, wrong, labels)


def _wrong(negatives: RowsLike, Y: RowsLike | None, n: int, width: int) -> np.ndarray:
    """Return the wrong captions of each row of Y, shape (n, k, width)."""
    joined = join_by_id(Y, negatives)
    if joined is not None:
        check_same_rows(n, len(joined.target), "Y", "negatives with an id of Y")
        negatives = joined.target
    N = np.asarray(getattr(negatives, "vectors", negatives))
    if N.ndim == 3 and N.size:
        k, flat = N.shape[1], N.reshape(-1, N.shape[2])
    else:
        k, flat = 1, N
    flat = as_matrix(flat, "negatives")
    check_width(flat.shape[1], width, "the captions (Y)")
    check_same_rows(n, len(flat) // k, "Y", "negatives")
    return np.asarray(flat, np.float32).reshape(n, k, width)


def read_validation_captions(validation: HeldCaptions, data: Captions) -> Captions:
    """Return the validation rows."""
    if not isinstance(validation, (tuple, list)) or not 2 <= len(validation) <= 4:
        raise ParameterError("Got a validation of another form.", "Pass `validation=(X, Y, negatives, groups)`.")
    heldout = read_captions(*validation)
    check_width(heldout.source.shape[1], data.source.shape[1], "the images to train on")
    check_width(heldout.target.shape[1], data.target.shape[1], "the captions to train on")
    return heldout


Layers: TypeAlias = list[Layer]


@dataclass(frozen=True)
class Cost:
    """Number of parameters of layers, and of multiplications and additions of the matrix products per row."""

    parameters: int
    flops: int

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.parameters + other.parameters, self.flops + other.flops)


def autoencoder(
    d_input: int,
    rng: np.random.Generator,
    hidden: Sequence[int] = (512, 512, 512),
    latent: int = 256,
    dropout: float = 0.1,
) -> tuple[Layers, Layers]:
    """Return an encoder and its decoder with initial weights, as layers for ``congruence.HeadsMap.from_layers``, plus
    ``dropout``.

    A stage is a dense layer and a residual block of LayerNorm, SwiGLU, dropout and another dense layer, all of the
    stage's width in ``hidden``; a final dense layer leads to the latent space. The decoder uses the widths in reverse
    order. The paper names these parts but not their arrangement (docs/research/jam.md).

    Source: Yoon, Yue and Kim (2025), "Escaping Plato's Cave: JAM", section 3 and appendix D.2.
    """
    require("torch", extra="train")
    return (
        _funnel([d_input, *hidden], latent, rng, dropout),
        _funnel([latent, *reversed(hidden)], d_input, rng, dropout),
    )


def _funnel(widths: Sequence[int], d_out: int, rng: np.random.Generator, dropout: float) -> Layers:
    from congruence.train._layers import linear

    layers: Layers = []
    for d_in, width in pairwise(widths):
        value, gate = linear(width, width, rng), linear(width, width, rng)
        gated = {**value, "kind": "swiglu", "gate_weight": gate["weight"], "gate_bias": gate["bias"]}
        drop = [{"kind": "dropout", "p": dropout}] if dropout else []
        ones, zeros = np.ones(width, np.float32), np.zeros(width, np.float32)
        norm = {"kind": "layernorm", "weight": ones, "bias": zeros, "eps": 1e-5}
        block = [norm, gated, *drop, linear(width, width, rng)]
        layers += [linear(d_in, width, rng), {"kind": "residual", "layers": block}]
    return [*layers, linear(widths[-1], d_out, rng)]


def count(layers: Iterable[Layer]) -> Cost:
    """Count the parameters of layers, as of ``congruence.HeadsMap.layers``, and the operations per row."""
    total = Cost(0, 0)
    for layer in layers:
        if layer["kind"] == "residual":
            total += count(layer["layers"])
        elif layer["kind"] != "center":  # a mean is not trained
            arrays = [value for value in layer.values() if isinstance(value, np.ndarray)]
            total += Cost(sum(a.size for a in arrays), sum(2 * a.size for a in arrays if a.ndim == 2))
    return total


def in_units(encoder: Layers, decoder: Layers, mean: np.ndarray, scale: float) -> tuple[Layers, Layers]:
    """Return layers for rows in their original scale, given layers trained on (rows − ``mean``) / ``scale``."""
    first, last = encoder[0], decoder[-1]
    divided = {"weight": first["weight"] / np.float32(scale)}
    multiplied = {
        "weight": last["weight"] * np.float32(scale),
        "bias": (last["bias"] * np.float64(scale) + mean).astype(np.float32),
    }
    center = {"kind": "center", "mean": mean.astype(np.float32)}
    return [center, {**first, **divided}, *encoder[1:]], [*decoder[:-1], {**last, **multiplied}]


#: Upper bound of 1/τ for a learned temperature, as in CLIP.
LARGEST_SCALE = 100.0


@dataclass(eq=False, repr=False)
class JAM(HeadsMap):
    """Train an autoencoder of images and one of texts with a shared latent space, by reconstruction and a contrastive
    loss.

    Source: Yoon, Yue and Kim (2025), "Escaping Plato's Cave: JAM for Aligning Independently Trained Vision and Language
    Models", sections 3 and 4, appendices C and D.

    Parameters
    ----------
    loss : {"spread", "negcon", "con"}, default="spread"
        See ``congruence.train.losses``. The first two need wrong captions.
    spread_mix : float or tuple of two float, default=0.5
        α of Spread; a pair gives the start and end of a linear curriculum.
    temperature, learn_temperature : float and bool, default=0.07 and False
        τ, fixed, or trained from this value, up to 1/τ = 100. The paper's section 3.1 states τ = 0.07 for all
        experiments; its appendix D.2 states that τ is learned.
    reconstruction : tuple of two float, default=(1.0, 0.1)
        λ, the weight of the reconstruction error, in the first step and in the last.
    hidden, latent : sequence of int and int, default=(512, 512, 512) and 256
        Widths of the hidden stages and of the joint space; see ``congruence.train.jam.autoencoder``.
    standardize : bool, default=True
        Train on rows minus their mean, divided by their standard deviation (a single number), so that λ has the same
        meaning for every model. The map takes and returns rows in their original scale. Not in the paper.
    mask_same : bool, default=False
        Exclude rows of the same image, and rows with equal captions, from each other's candidates, since such captions
        are not wrong. Not in the paper.
    validate_every, patience, checkpoint_every : int, int or None, int, default=5
        In epochs, in validations without improvement, and in epochs. An epoch uses every row once, in random order; a
        batch may span the end of one epoch and the start of the next.
    learning_rate, weight_decay, clip, schedule, log_every, precision, device, random_state
        See ``congruence.train.Schedule``; the optimizer is AdamW, whose settings the paper does not report. Recall is
        the same in bfloat16 (docs/research/jam.md); use ``"float32"`` if results must not depend on the processor.
        ``random_state`` also determines the split of the rows. The paper uses 5, 42 and 55.
    """

    method: ClassVar[str] = "jam"
    criterion: ClassVar[str] = "source_to_target_recall_at_1"
    counts: ClassVar = ("latent", "max_epochs", "batch_size", "validate_every", "checkpoint_every")
    positive: ClassVar = ("temperature",)

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

        ``facts_`` then hold the losses, the sizes of both autoencoders, and the reconstruction error as a share of the
        variance (1 is no better than the mean).

        Parameters
        ----------
        X, Y : Embeddings or array_like, shapes (n, d_source) and (n, d_target)
            Images, one row per caption, and their captions, paired by id if both have ids, else by position.
        negatives : Embeddings or array_like, shape (n, d_target) or (n, k, d_target), optional
            Wrong captions, in the order of ``Y``, or with its ids.
        groups : sequence, shape (n,), optional
            The image of each row of ``Y``. Without ``validation``, 70 % of the images are used for training and 15 %
            for validation; ``congruence.train.split_by_group`` with the same ``random_state`` returns the rest.
        validation : tuple, optional
            Held-out rows as for ``score``: ``(X, Y)``, ``(X, Y, negatives)`` or ``(X, Y, negatives, groups)``. The
            weights with the best score are kept; without validation, the last weights.
        checkpoint, resume, verbose
            As for ``congruence.train.HeadTrainer.fit``.
        """
        self._check_parameters()
        require("torch", extra="train")
        spaces = space_of(X), space_of(Y)
        if join_by_id(X, Y) is None:
            A, B, _ = self._check_pairs(X, Y)
            X, Y = (side if isinstance(side, Embeddings) else rows for side, rows in ((X, A), (Y, B)))
        data = read_captions(X, Y, negatives, groups)
        if self.loss != "con" and data.negatives is None:
            raise InputError(f"Got no wrong captions for `loss={self.loss!r}`.", 'Pass `negatives=…`, or `loss="con"`.')
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
        train_heads(self, objective, schedule, digests, spaces, checkpoint=checkpoint, resume=resume, verbose=verbose)
        if split is not None:
            self.facts_["split"] = dict(zip(("train", "validation", "test"), split, strict=True))
        self.facts_["reconstruction_error"] = self._errors(objective)
        return self

    def score(
        self, X: RowsLike, y: RowsLike | None = None, negatives: RowsLike | None = None, groups: Labels | None = None
    ) -> float:
        """Return the share of images X (n, d_source), one row per caption y (n, d_target), whose nearest text is one of
        their captions, by which parameters and steps are selected.

        Wrong captions (n, d_target) or (n, k, d_target) are searched too; captions of equal ``groups`` (n,) are one
        image's.
        """
        self._check_source(getattr(X, "vectors", X))
        heldout = read_captions(X, y, negatives, groups)
        hits = partners(heldout.groups, heldout.groups)
        return recall_at_k(self.transform(heldout.source), self.transform_target(heldout.candidates()), hits, k=1)

    def _schedule(self, pairs: int) -> Schedule:
        """Return the schedule of the training loop, which counts steps where this class counts epochs."""
        per_epoch = -(-pairs // self.batch_size)
        shared = {field.name: getattr(self, field.name) for field in fields(Schedule) if hasattr(self, field.name)}
        shared |= {name: shared[name] * per_epoch for name in ("validate_every", "checkpoint_every")}
        return Schedule(max_steps=self.max_epochs * per_epoch, optimizer="adamw", **shared)

    def _check_parameters(self) -> None:
        """Raise ParameterError if a parameter is invalid."""
        check_choice(self.loss, ("spread", "negcon", "con"), "loss")
        check_numbers(self)
        if isinstance(self.hidden, (str, int)):
            raise ParameterError(argument="hidden", got=self.hidden, expected="widths")
        for width in self.hidden:
            check_positive(width, "a width of hidden", integer=True)
        if isinstance(self.dropout, bool) or not isinstance(self.dropout, (int, float)) or not 0 <= self.dropout < 1:
            raise ParameterError(argument="dropout", got=self.dropout, expected="a share below 1")
        if not all(0 <= end <= 1 for end in ends(self.spread_mix, "spread_mix")):
            raise ParameterError(argument="spread_mix", got=self.spread_mix, expected="0 to 1")
        for end in ends(self.reconstruction, "reconstruction"):
            check_positive(end, "reconstruction", zero=True)

    def _errors(self, objective: AutoencoderObjective) -> dict[str, object]:
        """Return the squared reconstruction error divided by that of the training mean, on validation rows if any."""
        rows = objective.data if objective.heldout is None else objective.heldout
        errors: dict[str, object] = {"rows": "training" if objective.heldout is None else "validation"}
        sides = ((self.reconstruct, rows.source), (self.reconstruct_target, rows.target))
        for side, (reconstruct, given), mean in zip(SIDES, sides, objective.means, strict=True):
            spread = float(np.sum((given - mean) ** 2))
            error = float(np.sum((np.asarray(reconstruct(given), np.float64) - given) ** 2))
            errors[side] = error / spread if spread else 0.0
        return errors


@dataclass(frozen=True)
class CaptionBatch:
    """Rows of a step as tensors, standardized: texts (b + b·k, d_target) are the captions, then the k wrong captions of
    each row in turn; equal ``labels`` (b, 3), of groups, images and captions, are the same item.
    """

    step: int
    images: Tensor
    texts: Tensor
    labels: Tensor | None


class AutoencoderObjective:
    """Both autoencoders on their device, and the loss of each training step.

    ``module`` contains ``encode`` and ``decode``, each with one head per side, and ``log_scale`` if the temperature is
    learned; rows are trained on minus ``means``, divided by ``scales``.
    """

    module: Module

    def __init__(self, jam: JAM, data: Captions, heldout: Captions | None, schedule: Schedule):
        import torch

        from congruence.train._layers import Head

        self.jam, self.data, self.heldout, self.schedule = jam, data, heldout, schedule
        self.device = torch.device(choose_device(torch, schedule.device))
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

    def batch(self, step: int) -> CaptionBatch:
        """Return the rows of a step."""
        import torch

        rows = self._order.batch(step, self.batch_size, self.schedule.random_state)[:, 0].astype(np.int64)
        index = torch.from_numpy(rows).to(self.device)
        texts = self.target[index]
        if self.wrong is not None:
            texts = torch.cat([texts, self.wrong[index].flatten(0, 1)])
        return CaptionBatch(step, self.source[index], texts, None if self.labels is None else self.labels[index])

    def training_step(self, batch: CaptionBatch) -> Mapping[str, Tensor]:
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
                self.module.encode[side](self.tensor(rows, side)).float().cpu().numpy()
                for side, rows in enumerate((heldout.source, heldout.candidates()))
            )
        return recall_at_k(v, t, self._partners, k=1)

    def result(self, history: History) -> tuple[dict[str, list[Layer]], dict[str, object]]:
        """Return the trained layers, adjusted to rows in their original scale, and facts about the training."""
        jam = self.jam
        layers: dict[str, list[Layer]] = {}
        size: dict[str, int] = {}
        for i, side in enumerate(SIDES):
            encoder, decoder = self.module.encode[i].plain(), self.module.decode[i].plain()
            cost = count(encoder) + count(decoder)
            size |= {f"{side}_parameters": cost.parameters, f"{side}_flops_per_row": cost.flops}
            layers[side], layers[f"decode_{side}"] = in_units(encoder, decoder, self.means[i], self.scales[i])
        negatives = self.data.negatives
        facts: dict[str, object] = {
            "n_pairs": len(self.data),
            "negatives_each": 0 if negatives is None else negatives.shape[1],
            "size": size,
            "precision": used_precision(jam.precision, str(self.device)),
        }
        if history.best_step is not None and isinstance(jam.spread_mix, (tuple, list)):
            facts["spread_mix_at_best"] = self.scheduled(jam.spread_mix, max(history.best_step - 1, 0))
        if jam.learn_temperature:
            facts["temperature"] = float(self.temperature().detach())
        return layers, facts

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
        """Return the value of a linear schedule at a step."""
        first, last = ends(span, "span")
        return float(first + (last - first) * min(step / max(self.schedule.max_steps - 1, 1), 1.0))


def ends(value: object, name: str) -> tuple[float, float]:
    """Return the start and end of a schedule; a single number is a constant schedule."""
    both = value if isinstance(value, (tuple, list)) else (value, value)
    if len(both) != 2 or any(isinstance(end, bool) or not isinstance(end, (int, float)) for end in both):
        raise ParameterError(argument=name, got=value, expected="a number, or a pair of numbers")
    return both[0], both[1]


def _mean_and_scale(rows: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the mean of the rows and their overall standard deviation, 1 if all rows are equal up to rounding."""
    mean = rows.mean(0, dtype=np.float64)
    scale = float(np.sqrt(np.mean((rows - mean) ** 2)))
    return mean, scale if scale > np.finfo(np.float32).eps * np.abs(rows).max() else 1.0
