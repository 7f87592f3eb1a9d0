"""Losses on two batches of vectors: supervised losses on pairs, and divergences from a teacher on rows that need not be
paired.

All take unit rows (or any rows whose inner products are the affinities) as tensors, return a scalar tensor, and never
store an array of all pairs: values and gradients are computed in strips.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from congruence._utils.optional import require
from congruence._utils.validation import check_choice, check_positive, check_same_rows
from congruence.errors import ShapeError
from congruence.train._batches import batches, check_temperature
from congruence.train.joint_losses import con_loss, negcon_loss, spread_loss

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "cka_divergence",
    "con_loss",
    "generalized_infonce",
    "infonce_loss",
    "negcon_loss",
    "siglip_loss",
    "spread_loss",
]

#: How a sum over all pairs of a batch is averaged: over the n·m logits, or over the n rows.
REDUCTIONS = ("logits", "rows")


def siglip_loss(
    X: Tensor,
    Y: Tensor,
    logit_scale: float | Tensor = 20.0,
    logit_bias: float | Tensor = -10.0,
    *,
    reduction: str = "logits",
) -> Tensor:
    """Sigmoid loss: each of the n·m combinations is classified as a pair (i = j) or not.

    ``X`` (n, d); ``Y`` (m, d): m ≥ n. Row i is paired with row i of ``X``; rows from n on are unpaired and serve as
    additional negatives; ``logit_scale``, ``logit_bias``: s and b of the logits s⟨x_i, y_j⟩ + b. Gradients flow into
    them; ``reduction``: divide the sum by n·m, as in the code of SAIL and SOTAlign and as the weights α of that paper
    assume, or by n, as in SigLIP's paper; returns ().

    References
    ----------
    Zhai et al. (2023), "Sigmoid loss for language image pre-training", section 3.2.

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
    X, Y = batches(X, Y)
    if len(Y) < len(X):
        raise ShapeError(
            f"Got {len(X)} rows of X and {len(Y)} of Y; expected at least as many of Y, the partners of X first.",
            "Exchange X and Y.",
        )
    scale, bias = (torch.as_tensor(v, dtype=X.dtype, device=X.device) for v in (logit_scale, logit_bias))
    total = _autograd.Siglip.apply(X, Y, scale, bias)
    return total / (len(X) * len(Y) if reduction == "logits" else len(X))


def infonce_loss(X: Tensor, Y: Tensor, temperature: float | Tensor = 0.07) -> Tensor:
    """Symmetric InfoNCE: the mean of the cross-entropies of finding y_i among Y and x_i among X.

    ``X`` (n, d); ``Y`` (n, d): row i belongs to row i of ``X``; ``temperature``: τ of the logits ⟨x_i, y_j⟩/τ.
    Gradients flow into it; returns ().

    References
    ----------
    SOTAlign, equation 3, in both directions; Radford et al. (2021), figure 3.
    """
    require("torch", extra="train")
    from congruence.train import _autograd

    X, Y = batches(X, Y)
    check_same_rows(len(X), len(Y), "X", "Y")
    return _autograd.InfoNCE.apply(X, Y, 1 / check_temperature(temperature, X))


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
    """KL(softmax of the teacher's affinities ‖ softmax of the student's), averaged over rows.

    ``X``, ``Y`` (n, d): the student's vectors, into which gradients flow; ``TX``, ``TY`` (n, e): the teacher's vectors
    of the same items, into which no gradients flow; ``symmetric``: average this with the same divergence with X and Y
    exchanged. The paper's equation uses the rows only; returns ().

    References
    ----------
    SOTAlign, equation 10.
    """
    require("torch", extra="train")
    from congruence.train import _autograd

    check_positive(epsilon, "epsilon")
    check_positive(epsilon_teacher, "epsilon_teacher")
    X, Y, TX, TY = _read(X, Y, TX, TY)
    value = _autograd.SoftmaxKL.apply(X, Y, TX, TY, epsilon, epsilon_teacher)
    if symmetric:
        value = (value + _autograd.SoftmaxKL.apply(Y, X, TY, TX, epsilon, epsilon_teacher)) / 2
    return value


def cka_divergence(X: Tensor, Y: Tensor, TX: Tensor, TY: Tensor) -> Tensor:
    """One minus the centered alignment of the student's affinities with the teacher's.

    ``X``, ``Y`` (n, d): the student's vectors, into which gradients flow; ``TX``, ``TY`` (n, e); returns ().

    Notes
    -----
    These are kernels between two sets, ⟨x_i, y_j⟩, so the paper's proposition C.6, on Gram matrices, does not apply.
    With centered rows, ⟨XYᵀ, TX TYᵀ⟩ = Σ (XᵀTX) ∘ (YᵀTY) still holds: O(n·d²) time and no n × m array. Equation 9 of
    the paper has H = I − 11ᵀ instead of I − 11ᵀ/n.

    References
    ----------
    SOTAlign, equation 9.
    """
    torch = require("torch", extra="train")
    X, Y, TX, TY = (side - side.mean(0) for side in _read(X, Y, TX, TY))

    def inner(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
        return ((a.T @ c) * (b.T @ d)).sum()

    tiny = torch.finfo(X.dtype).tiny
    squared_norms = (inner(X, Y, X, Y) * inner(TX, TY, TX, TY)).clamp_min(tiny)
    return 1 - inner(X, Y, TX, TY) / squared_norms.sqrt()


def _read(X: Tensor, Y: Tensor, TX: Tensor, TY: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the vectors of student and teacher as tensors of the student's type, the teacher's without a graph.

    Raises ShapeError.
    """
    X, Y = batches(X, Y)
    TX, TY = batches(TX, TY)
    check_same_rows(len(X), len(TX), "X", "TX")
    check_same_rows(len(Y), len(TY), "Y", "TY")
    return X, Y, TX.detach().to(X.dtype), TY.detach().to(X.dtype)
