"""Losses on images with captions and wrong captions: JAM's Con, NegCon and Spread.

As in :mod:`congruence.train.losses`, inputs are rows whose inner products are the similarities (unit rows, for
cosines), results are scalar tensors, and values and gradients are computed in strips.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from congruence._utils.optional import require
from congruence._utils.validation import check_same_rows
from congruence.errors import ParameterError, ShapeError
from congruence.train._batches import batches, check_temperature

if TYPE_CHECKING:
    from torch import Tensor


def con_loss(v: Tensor, pos: Tensor, temperature: float | Tensor = 0.07, *, labels: Tensor | None = None) -> Tensor:
    """Contrastive loss: each image is matched to its caption among the captions of the batch, and each caption to its
    image.

    ``v`` (n, d); ``pos`` (n, d): row i is the caption of image i; ``temperature``: τ of σ(x, x′) = exp(⟨x, x′⟩/τ).
    Gradients flow into it; ``labels`` (n,): rows with an equal label in the same column, such as two captions of one
    image, are not negatives of each other: they are removed from each other's denominators. By default all other rows
    are negatives. Returns (): ½(L_VL + L_LV), in nats. 0 for a batch with a single row.

    Notes
    -----
    The paper's formula excludes the pair itself from the denominator (j ≠ i); that loss has no lower bound, and is not
    a cross-entropy, as the paper's text describes it. Here the pair is included, as in CLIP.

    References
    ----------
    Yoon, Yue and Kim (2025), "Escaping Plato's Cave: JAM", equation 1.
    """
    v, pos, scale = _read(v, pos, temperature)
    columns = _labels(labels, v)
    return (_cross_entropy(v, pos[:, None], scale, columns) + _cross_entropy(pos, v[:, None], scale, columns)) / 2


def negcon_loss(
    v: Tensor, pos: Tensor, neg: Tensor, temperature: float | Tensor = 0.07, *, labels: Tensor | None = None
) -> Tensor:
    """Contrastive loss in which each image's candidates are all captions of the batch and all wrong captions.

    ``v`` (n, d); ``pos`` (n, d): row i is the caption of image i; ``neg`` (n, d); ``labels`` (n,): as for
    :func:`con_loss`; the wrong captions of such rows are removed, too. Returns (): ½(L_VL + L_LV), in nats; wrong
    captions, which describe no image, are not part of L_LV.

    Notes
    -----
    L_VL is the mean over the n images of a cross-entropy with n(1 + k) candidates. The paper divides the sum over n
    images by 2n and excludes the pair from the denominator.

    References
    ----------
    Yoon, Yue and Kim (2025), equation 2; NegCLIP, Yuksekgonul et al. (2023).
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

    ``v`` (n, d); ``pos`` (n, d): row i is the caption of image i; ``neg`` (n, d): wrong captions of each image, so that
    C(i) has two texts or 1 + k; ``labels`` (n,): as for :func:`con_loss`; C(i) itself is not changed; returns ().

    Notes
    -----
    In ConCon every text of C(i) has its own denominator (equation 18), which excludes the other texts of C(i), so that
    nothing in it pushes the wrong caption away. With α = 0, only L_LV prefers the correct caption.

    References
    ----------
    Yoon, Yue and Kim (2025), equations 15 to 20.

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
    v, pos = batches(v, pos, ("v", "pos"))
    check_same_rows(len(v), len(pos), "v", "pos")
    return v, pos, 1 / check_temperature(temperature, v)


def _contexts(v: Tensor, pos: Tensor, neg: Tensor) -> Tensor:
    """Return the texts of each image, its caption first, shape (n, 1 + k, d). Raises ShapeError."""
    torch = require("torch", extra="train")
    neg = torch.as_tensor(neg).to(v)
    if neg.ndim == 2:
        neg = neg[:, None]
    if neg.ndim != 3 or not neg.shape[1] or (len(neg), neg.shape[2]) != tuple(v.shape):
        raise ShapeError(
            f"Got neg of shape {tuple(neg.shape)} for v of shape {tuple(v.shape)}; expected (n, d) or (n, k, "
            "d), the wrong captions of each image.",
            "Pass `neg=…` of such a shape.",
        )
    return torch.cat([pos[:, None], neg], 1)


def _labels(labels: Tensor | None, v: Tensor) -> Tensor | None:
    """Return labels of shape (n, g). Raises ShapeError."""
    if labels is None:
        return None
    torch = require("torch", extra="train")
    labels = torch.as_tensor(labels, device=v.device)
    columns: Tensor = labels[:, None] if labels.ndim == 1 else labels
    if columns.ndim != 2 or len(columns) != len(v) or not columns.shape[1]:
        raise ShapeError(
            f"Got labels of shape {tuple(labels.shape)} for {len(v)} images; expected (n,) or (n, g), one row "
            "per image.",
            "Pass `labels=…` of such a shape.",
        )
    return columns


def _logits(rows: Tensor, contexts: Tensor, scale: Tensor, labels: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return each row's logits of its own context, shape (n, m), and the log of the sum of exponentials over all
    others, shape (n,).
    """
    from congruence.train import _autograd

    own = (rows[:, None] * contexts).sum(2) * scale
    return own, _autograd.LogSumOthers.apply(rows, contexts.flatten(0, 1), scale, labels)


def _cross_entropy(rows: Tensor, contexts: Tensor, scale: Tensor, labels: Tensor | None = None) -> Tensor:
    """Return the mean cross-entropy of finding each row's partner among those of all rows, where each context is one
    partner.
    """
    own, others = _logits(rows, contexts, scale, labels)
    return (own[:, 0].logaddexp(others) - own[:, 0]).mean()
