"""Losses on two batches of vectors: supervised losses on pairs, and divergences from a teacher on rows that need not be
paired.

All take unit rows (or any rows whose inner products are the affinities) as tensors, return a scalar tensor (most of
them in nats), and never store an array of all pairs: values and gradients are computed in strips.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from congruence._utils.optional import require
from congruence._utils.validation import check_choice, check_positive, check_same_rows
from congruence.errors import ParameterError, ShapeError

if TYPE_CHECKING:
    from torch import Tensor


#: How a sum over all pairs of a batch is averaged: over the n·m logits, or over the n rows.
REDUCTIONS = ("logits", "rows")


def _batches(X: Tensor, Y: Tensor, names: tuple[str, str] = ("X", "Y")) -> tuple[Tensor, Tensor]:
    """Return two batches of the same width as tensors of the same type, float32 or float64."""
    import torch

    sides = [torch.as_tensor(side) for side in (X, Y)]
    for side, name in zip(sides, names, strict=True):
        if side.ndim != 2 or not len(side):
            raise ShapeError(
                f"Got {name} of shape {tuple(side.shape)}; expected at least one row.", "Pass an array of shape (n, d)."
            )
    if sides[0].shape[1] != sides[1].shape[1]:
        raise ShapeError(
            f"Got {names[0]} with {sides[0].shape[1]} columns and {names[1]} with {sides[1].shape[1]}.",
            "Map both into one space first.",
        )
    dtype = torch.float64 if torch.float64 in (sides[0].dtype, sides[1].dtype) else torch.float32
    return sides[0].to(dtype), sides[1].to(dtype)


def _check_temperature(temperature: float | Tensor, like: Tensor) -> Tensor:
    """Return a positive temperature as a scalar tensor of the type and on the device of ``like``."""
    import torch

    tau = torch.as_tensor(temperature, dtype=like.dtype, device=like.device)
    if tau.numel() != 1 or not float(tau.detach()) > 0:
        raise ParameterError(
            argument="temperature", got=temperature, expected="a positive number", fix="Pass `temperature=0.07`."
        )
    return tau.reshape(())


def con_loss(v: Tensor, pos: Tensor, temperature: float | Tensor = 0.07, *, labels: Tensor | None = None) -> Tensor:
    """Contrastive loss: each image is matched to its caption among the captions of the batch, and each caption to its
    image.

    The value is ½(L_VL + L_LV), in nats. 0 for a batch with a single row.

    Parameters
    ----------
    v : tensor, shape (n, d)
        Images.
    pos : tensor, shape (n, d)
        Row i is the caption of image i.
    temperature : float or tensor of one number, default=0.07
        τ of σ(x, x′) = exp(⟨x, x′⟩/τ). Gradients flow into it.
    labels : tensor of int, shape (n,) or (n, g), optional
        Rows with an equal label in the same column, such as two captions of one image, are not negatives of each other:
        they are removed from each other's denominators. By default all other rows are negatives.

    Notes
    -----
    The paper's formula excludes the pair itself from the denominator (j ≠ i); that loss has no lower bound, and is not
    a cross-entropy, as the paper's text describes it. Here the pair is included, as in CLIP.

    Source: Yoon, Yue and Kim (2025), "Escaping Plato's Cave: JAM", equation 1.
    """
    v, pos, scale = _read(v, pos, temperature)
    columns = _labels(labels, v)
    return (_cross_entropy(v, pos[:, None], scale, columns) + _cross_entropy(pos, v[:, None], scale, columns)) / 2


def negcon_loss(
    v: Tensor, pos: Tensor, neg: Tensor, temperature: float | Tensor = 0.07, *, labels: Tensor | None = None
) -> Tensor:
    """Contrastive loss in which each image's candidates are all captions of the batch and all wrong captions.

    The value is ½(L_VL + L_LV), in nats; wrong captions, which describe no image, are not part of L_LV.

    Parameters
    ----------
    v, pos, temperature
        As for ``con_loss``.
    neg : tensor, shape (n, d) or (n, k, d)
        Wrong captions of each image.
    labels : tensor of int, shape (n,) or (n, g), optional
        As for ``con_loss``; the wrong captions of such rows are removed, too.

    Notes
    -----
    L_VL is the mean over the n images of a cross-entropy with n(1 + k) candidates. The paper divides the sum over n
    images by 2n and excludes the pair from the denominator.

    Source: Yoon, Yue and Kim (2025), equation 2; NegCLIP, Yuksekgonul et al. (2023).
    """
    v, pos, scale = _read(v, pos, temperature)
    columns = _labels(labels, v)
    own, others = _logits(v, _contexts(v, pos, neg), scale, columns)
    image_to_text = (own.logsumexp(1).logaddexp(others) - own[:, 0]).mean()
    return (image_to_text + _cross_entropy(pos, v[:, None], scale, columns)) / 2


def spread_loss(
    v: Tensor,
    pos: Tensor,
    neg: Tensor,
    alpha: float = 0.5,
    temperature: float | Tensor = 0.07,
    *,
    labels: Tensor | None = None,
) -> Tensor:
    """Move images toward their captions and wrong captions and away from all others, and then distinguish the correct
    caption.

    ½[(1 − α)·ConCon + α·contextNCE + L_LV]. With C(i) the caption of image i and its wrong captions, ConCon is the mean
    over C(i) of the cross-entropy of finding each of them among all texts outside C(i), and contextNCE the
    cross-entropy of finding the caption in C(i).

    Parameters
    ----------
    v, pos, temperature
        As for ``con_loss``.
    neg : tensor, shape (n, d) or (n, k, d)
        Wrong captions of each image, so that C(i) has two texts or 1 + k.
    alpha : float, default=0.5
        In [0, 1].
    labels : tensor of int, shape (n,) or (n, g), optional
        As for ``con_loss``; C(i) itself is not changed.

    Notes
    -----
    In ConCon every text of C(i) has its own denominator (equation 18), which excludes the other texts of C(i), so that
    nothing in it pushes the wrong caption away. With α = 0, only L_LV prefers the correct caption.

    Source: Yoon, Yue and Kim (2025), equations 15 to 20.

    Examples
    --------
    >>> import torch
    >>> from congruence.train.losses import spread_loss
    >>> v = torch.eye(4, dtype=torch.float64)
    >>> round(spread_loss(v, v, v, alpha=1.0).item(), 4)  # wrong captions equal the correct ones: half of log 2
    0.3466
    """
    if isinstance(alpha, bool) or not isinstance(alpha, (int, float)) or not 0 <= alpha <= 1:
        raise ParameterError(
            argument="alpha", got=alpha, expected="a number from 0 to 1", fix="Pass `alpha=0.5`, for example."
        )
    v, pos, scale = _read(v, pos, temperature)
    columns = _labels(labels, v)
    own, others = _logits(v, _contexts(v, pos, neg), scale, columns)
    con_con = (others[:, None] - own).logaddexp(own.new_zeros(())).mean()
    context_nce = (own.logsumexp(1) - own[:, 0]).mean()
    return ((1 - alpha) * con_con + alpha * context_nce + _cross_entropy(pos, v[:, None], scale, columns)) / 2


def _read(v: Tensor, pos: Tensor, temperature: float | Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return images and captions of one type, and 1/τ."""
    require("torch", extra="train")
    v, pos = _batches(v, pos, ("v", "pos"))
    check_same_rows(len(v), len(pos), "v", "pos")
    return v, pos, 1 / _check_temperature(temperature, v)


def _contexts(v: Tensor, pos: Tensor, neg: Tensor) -> Tensor:
    """Return the texts of each image, its caption first, shape (n, 1 + k, d)."""
    torch = require("torch", extra="train")
    neg = torch.as_tensor(neg).to(v)
    if neg.ndim == 2:
        neg = neg[:, None]
    if neg.ndim != 3 or not neg.shape[1] or (len(neg), neg.shape[2]) != tuple(v.shape):
        raise ShapeError(
            f"Got neg of shape {tuple(neg.shape)} for v of shape {tuple(v.shape)}.",
            "Pass the wrong captions, (n, k, d).",
        )
    return torch.cat([pos[:, None], neg], 1)


def _labels(labels: Tensor | None, v: Tensor) -> Tensor | None:
    """Return labels of shape (n, g)."""
    if labels is None:
        return None
    torch = require("torch", extra="train")
    labels = torch.as_tensor(labels, device=v.device)
    columns: Tensor = labels[:, None] if labels.ndim == 1 else labels
    if columns.ndim != 2 or len(columns) != len(v) or not columns.shape[1]:
        raise ShapeError(
            f"Got labels of shape {tuple(labels.shape)} for {len(v)} images.", "Pass one row per image, (n,) or (n, g)."
        )
    return columns


def _logits(rows: Tensor, contexts: Tensor, scale: Tensor, labels: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return each row's logits of its own context (n, m), and the log-sum-exp of all others (n,)."""
    from congruence.train import _autograd

    own = (rows[:, None] * contexts).sum(2) * scale
    return own, _autograd.LogSumOthers.apply(rows, contexts.flatten(0, 1), scale, labels)


def _cross_entropy(rows: Tensor, contexts: Tensor, scale: Tensor, labels: Tensor | None = None) -> Tensor:
    """Return the mean cross-entropy of finding each row's partner among those of all rows."""
    own, others = _logits(rows, contexts, scale, labels)
    return (own[:, 0].logaddexp(others) - own[:, 0]).mean()


def siglip_loss(
    X: Tensor,
    Y: Tensor,
    logit_scale: float | Tensor = 20.0,
    logit_bias: float | Tensor = -10.0,
    *,
    reduction: str = "logits",
) -> Tensor:
    """Sigmoid loss: each of the n·m combinations of X (n, d) and Y (m, d), m ≥ n, is classified as a pair (i = j) or
    not.

    Rows of Y from n on are unpaired and serve as additional negatives. Gradients flow into ``logit_scale`` s and
    ``logit_bias`` b of the logits s⟨x_i, y_j⟩ + b as well. ``reduction`` divides the sum by n·m ("logits"), as in the
    code of SAIL and SOTAlign and as the weights α of that paper assume, or by n ("rows"), as in SigLIP's paper.

    Source: Zhai et al. (2023), "Sigmoid loss for language image pre-training", section 3.2.

    Examples
    --------
    >>> import torch
    >>> from congruence.train.losses import siglip_loss
    >>> X = torch.eye(2, dtype=torch.float64)
    >>> round(siglip_loss(X, X, 20.0, -10.0).item(), 8)  # all four logits have the correct sign and size 10
    4.54e-05
    """
    torch = require("torch", extra="train")
    from congruence.train import _autograd

    check_choice(reduction, REDUCTIONS, "reduction")
    X, Y = _batches(X, Y)
    if len(Y) < len(X):
        raise ShapeError(
            f"Got {len(X)} rows of X and {len(Y)} of Y; expected at least as many of Y.", "Exchange X and Y."
        )
    scale, bias = (torch.as_tensor(v, dtype=X.dtype, device=X.device) for v in (logit_scale, logit_bias))
    total = _autograd.Siglip.apply(X, Y, scale, bias)
    return total / (len(X) * len(Y) if reduction == "logits" else len(X))


def infonce_loss(X: Tensor, Y: Tensor, temperature: float | Tensor = 0.07) -> Tensor:
    """Symmetric InfoNCE of rows X and Y (n, d), paired by position: the mean of the cross-entropies, in nats, of
    finding y_i among Y and x_i among X, from the logits ⟨x_i, y_j⟩/τ; gradients flow into ``temperature`` τ too.

    Source: SOTAlign, equation 3, in both directions; Radford et al. (2021), figure 3.
    """
    require("torch", extra="train")
    from congruence.train import _autograd

    X, Y = _batches(X, Y)
    check_same_rows(len(X), len(Y), "X", "Y")
    return _autograd.InfoNCE.apply(X, Y, 1 / _check_temperature(temperature, X))


def generalized_infonce(
    X: Tensor,
    Y: Tensor,
    TX: Tensor,
    TY: Tensor,
    epsilon: float = 0.05,
    epsilon_teacher: float = 0.01,
    *,
    symmetric: bool = False,
) -> Tensor:
    """KL(softmax of the teacher's affinities ‖ softmax of the student's), averaged over rows (SOTAlign, equation 10).

    Gradients flow into the student's vectors X (n, d) and Y (m, d), not into the teacher's TX (n, e) and TY (m, e).
    ``symmetric`` averages this with the divergence with X and Y exchanged; the paper uses the rows only.
    """
    require("torch", extra="train")
    from congruence.train import _autograd

    check_positive(epsilon, "epsilon")
    check_positive(epsilon_teacher, "epsilon_teacher")
    X, Y, TX, TY = _student_and_teacher(X, Y, TX, TY)
    value = _autograd.SoftmaxKL.apply(X, Y, TX, TY, epsilon, epsilon_teacher)
    if symmetric:
        value = (value + _autograd.SoftmaxKL.apply(Y, X, TY, TX, epsilon, epsilon_teacher)) / 2
    return value


def cka_divergence(X: Tensor, Y: Tensor, TX: Tensor, TY: Tensor) -> Tensor:
    """One minus the centered alignment of the student's affinities with the teacher's, in [0, 2] (SOTAlign, equation
    9).

    Shapes as in ``generalized_infonce``. The kernels ⟨x_i, y_j⟩ are between two sets, so proposition C.6, on Gram
    matrices, does not apply; but ⟨XYᵀ, TX TYᵀ⟩ = Σ (XᵀTX) ∘ (YᵀTY) holds: O(n·d²) time, no n × m array. Equation 9 has
    H = I − 11ᵀ instead of I − 11ᵀ/n.
    """
    torch = require("torch", extra="train")
    X, Y, TX, TY = (side - side.mean(0) for side in _student_and_teacher(X, Y, TX, TY))

    def inner(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
        return ((a.T @ c) * (b.T @ d)).sum()

    tiny = torch.finfo(X.dtype).tiny
    squared_norms = (inner(X, Y, X, Y) * inner(TX, TY, TX, TY)).clamp_min(tiny)
    return 1 - inner(X, Y, TX, TY) / squared_norms.sqrt()


def _student_and_teacher(X: Tensor, Y: Tensor, TX: Tensor, TY: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the vectors of both as tensors of the student's type, the teacher's without a graph."""
    X, Y = _batches(X, Y)
    TX, TY = _batches(TX, TY)
    check_same_rows(len(X), len(TX), "X", "TX")
    check_same_rows(len(Y), len(TY), "Y", "TY")
    return X, Y, TX.detach().to(X.dtype), TY.detach().to(X.dtype)
