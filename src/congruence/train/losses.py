"""Losses on two batches of vectors: supervised losses on pairs, and divergences from a teacher on rows that need not be
paired.

All take unit rows (or any rows whose inner products are the affinities) as tensors, return a scalar tensor (most of
them in nats), and never store an array of all pairs: the function ``strip`` in each is the loss of a strip of rows.
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


def con_loss(v: Tensor, pos: Tensor, temperature: float | Tensor = 0.07, *, labels: Tensor | None = None) -> Tensor:
    """Contrastive loss: each image is matched to its caption among the captions of the batch, and each caption to its
    image.

    The value is ½(L_VL + L_LV), in nats. 0 for a batch with a single row.

    Parameters
    ----------
    v, pos : tensor, shape (n, d)
        Images, and the caption of each.
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
    v, pos, scale, columns = _read(v, pos, temperature, labels)
    return (_find_partners(v, pos, scale, columns) + _find_partners(pos, v, scale, columns)) / 2


def negcon_loss(
    v: Tensor, pos: Tensor, neg: Tensor, temperature: float | Tensor = 0.07, *, labels: Tensor | None = None
) -> Tensor:
    """Contrastive loss in which each image's candidates are all captions of the batch and all wrong captions, ``neg``
    (n, d) or (n, k, d).

    The value is ½(L_VL + L_LV), in nats; wrong captions, which describe no image, are not part of L_LV. The other
    arguments are as for ``con_loss``: the wrong captions of rows with a common label are removed, too.

    Notes
    -----
    L_VL is the mean over the n images of a cross-entropy with n(1 + k) candidates. The paper divides the sum over n
    images by 2n and excludes the pair from the denominator.

    Source: Yoon, Yue and Kim (2025), equation 2; NegCLIP, Yuksekgonul et al. (2023).
    """
    from congruence.train._strips import in_strips

    v, pos, scale, columns = _read(v, pos, temperature, labels)

    def strip(part: slice, images: Tensor, texts: Tensor, scale: Tensor) -> Tensor:
        own, others = _logits(part, images, texts, len(v), scale, columns)
        return (own.logsumexp(1).logaddexp(others) - own[:, 0]).sum()

    image_to_text = in_strips(strip, v, _contexts(v, pos, neg), scale) / len(v)
    return (image_to_text + _find_partners(pos, v, scale, columns)) / 2


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
    cross-entropy of finding the caption in C(i). Arguments are as for ``negcon_loss``, with α = ``alpha`` in [0, 1].

    Notes
    -----
    In ConCon every text of C(i) has its own denominator (equation 18), which excludes the other texts of C(i), so that
    nothing in it pushes the wrong caption away. With α = 0, only L_LV prefers the correct caption.

    Source: Yoon, Yue and Kim (2025), equations 15 to 20.
    """
    from torch.nn.functional import softplus

    from congruence.train._strips import in_strips

    if isinstance(alpha, bool) or not isinstance(alpha, (int, float)) or not 0 <= alpha <= 1:
        raise ParameterError(argument="alpha", got=alpha, expected="a number from 0 to 1")
    v, pos, scale, columns = _read(v, pos, temperature, labels)

    def strip(part: slice, images: Tensor, texts: Tensor, scale: Tensor) -> Tensor:
        own, others = _logits(part, images, texts, len(v), scale, columns)
        con_con = softplus(others[:, None] - own).mean(1)
        context_nce = own.logsumexp(1) - own[:, 0]
        return ((1 - alpha) * con_con + alpha * context_nce).sum()

    image_to_text = in_strips(strip, v, _contexts(v, pos, neg), scale) / len(v)
    return (image_to_text + _find_partners(pos, v, scale, columns)) / 2


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
    """
    torch = require("torch", extra="train")
    from congruence.train._strips import in_strips

    check_choice(reduction, REDUCTIONS, "reduction")
    X, Y = _batches(X, Y)
    if len(Y) < len(X):
        raise ShapeError(f"Got {len(X)} rows of X and {len(Y)} of Y; expected at least as many of Y.", "Exchange them.")

    def strip(part: slice, rows: Tensor, Y: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
        logits = torch.addmm(bias, rows * scale, Y.T)
        # log(1 + exp(−z)) = log(1 + exp(z)) − z: the pairs' own logits are subtracted.
        pairs = logits.diagonal(part.start).sum(dtype=torch.float64)
        return torch.nn.functional.softplus(logits).sum(dtype=torch.float64) - pairs

    scale, bias = (torch.as_tensor(v, dtype=X.dtype, device=X.device) for v in (logit_scale, logit_bias))
    total = in_strips(strip, X, Y, scale, bias).to(X.dtype)
    return total / (len(X) * len(Y) if reduction == "logits" else len(X))


def infonce_loss(X: Tensor, Y: Tensor, temperature: float | Tensor = 0.07) -> Tensor:
    """Symmetric InfoNCE of rows X and Y (n, d), paired by position: the mean of the cross-entropies, in nats, of
    finding y_i among Y and x_i among X, from the logits ⟨x_i, y_j⟩/τ; gradients flow into ``temperature`` τ too.

    Source: SOTAlign, equation 3, in both directions; Radford et al. (2021), figure 3.
    """
    torch = require("torch", extra="train")
    from congruence.train._strips import in_strips, strips

    X, Y, scale, _ = _read(X, Y, temperature, names=("X", "Y"))
    columns = Y.new_full((len(Y),), -torch.inf)
    with torch.no_grad():
        for part in strips(X, Y):
            columns = torch.logaddexp(columns, ((X[part] * scale) @ Y.T).logsumexp(0))

    def strip(part: slice, rows: Tensor, Y: Tensor, scale: Tensor) -> Tensor:
        logits = (rows * scale) @ Y.T
        # At its own value c, log Σ_i exp(z_i) has the value and the slope of c − 1 + Σ_i exp(z_i − c).
        of_rows, of_columns = logits.logsumexp(1).sum(), (logits - columns).exp().sum()
        return of_rows + of_columns - 2 * logits.diagonal(part.start).sum()

    return (in_strips(strip, X, Y, scale) + (columns - 1).sum()) / (2 * len(X))


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
    torch = require("torch", extra="train")
    from congruence.train._strips import in_strips

    check_positive(epsilon, "epsilon")
    check_positive(epsilon_teacher, "epsilon_teacher")
    X, Y, TX, TY = _student_and_teacher(X, Y, TX, TY)

    def divergence(X: Tensor, Y: Tensor, TX: Tensor, TY: Tensor) -> Tensor:
        def strip(part: slice, rows: Tensor, Y: Tensor) -> Tensor:
            student = torch.log_softmax(rows @ Y.T / epsilon, 1)
            teacher = torch.log_softmax(TX[part] @ TY.T / epsilon_teacher, 1)
            return (teacher.exp() * (teacher - student)).sum()

        return in_strips(strip, X, Y) / len(X)

    value = divergence(X, Y, TX, TY)
    return (value + divergence(Y, X, TY, TX)) / 2 if symmetric else value


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


def _batches(X: Tensor, Y: Tensor, names: tuple[str, str] = ("X", "Y")) -> tuple[Tensor, Tensor]:
    """Return two batches of the same width as tensors of the same type, float32 or float64."""
    torch = require("torch", extra="train")
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


def _read(
    v: Tensor,
    pos: Tensor,
    temperature: float | Tensor,
    labels: Tensor | None = None,
    names: tuple[str, str] = ("v", "pos"),
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return paired batches of one type, 1/τ, and labels of shape (n, g)."""
    torch = require("torch", extra="train")
    v, pos = _batches(v, pos, names)
    check_same_rows(len(v), len(pos), *names)
    tau = torch.as_tensor(temperature, dtype=v.dtype, device=v.device)
    if tau.numel() != 1 or not float(tau.detach()) > 0:
        raise ParameterError(argument="temperature", got=temperature, expected="a positive number")
    if labels is not None:
        labels = torch.as_tensor(labels, device=v.device)
        given, labels = labels, labels[:, None] if labels.ndim == 1 else labels
        if labels.ndim != 2 or len(labels) != len(v) or not labels.shape[1]:
            raise ShapeError(
                f"Got labels of shape {tuple(given.shape)} for {len(v)} images.",
                "Pass one row per image, (n,) or (n, g).",
            )
    return v, pos, 1 / tau.reshape(()), labels


def _student_and_teacher(X: Tensor, Y: Tensor, TX: Tensor, TY: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the vectors of both as tensors of the student's type, the teacher's without a graph."""
    X, Y = _batches(X, Y)
    TX, TY = _batches(TX, TY)
    check_same_rows(len(X), len(TX), "X", "TX")
    check_same_rows(len(Y), len(TY), "Y", "TY")
    return X, Y, TX.detach().to(X.dtype), TY.detach().to(X.dtype)


def _contexts(v: Tensor, pos: Tensor, neg: Tensor) -> Tensor:
    """Return the texts of each image in turn, its caption first, shape (n·(1 + k), d)."""
    import torch

    neg = torch.as_tensor(neg).to(v)
    if neg.ndim == 2:
        neg = neg[:, None]
    if neg.ndim != 3 or not neg.shape[1] or (len(neg), neg.shape[2]) != tuple(v.shape):
        raise ShapeError(
            f"Got neg of shape {tuple(neg.shape)} for v of shape {tuple(v.shape)}.",
            "Pass the wrong captions, (n, k, d).",
        )
    return torch.cat([pos[:, None], neg], 1).flatten(0, 1)


def _logits(
    part: slice, rows: Tensor, texts: Tensor, n: int, scale: Tensor, labels: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return each row's logits of its own m texts (b, m), of which row i has i·m to (i + 1)·m − 1, and the log-sum-exp
    of those of all rows that share no label with it (b,): −inf if there are none.
    """
    import torch

    logits = ((rows * scale) @ texts.T).unflatten(1, (n, -1))  # (b, n, m)
    own = logits[torch.arange(len(rows), device=rows.device), torch.arange(part.start, part.stop, device=rows.device)]
    if labels is None:
        labels = torch.arange(n, device=rows.device)[:, None]
    same = _share_a_label(labels, part)[:, :, None]
    return own, logits.masked_fill(same, -torch.inf).flatten(1).logsumexp(1)


def _share_a_label(labels: Tensor, part: slice) -> Tensor:
    """Return whether each row of a part has a label in common with each row (b, n); it has with itself."""
    return (labels[part, None] == labels).any(2)


def _find_partners(X: Tensor, Y: Tensor, scale: Tensor, labels: Tensor | None = None) -> Tensor:
    """Return the mean cross-entropy of finding each row's partner among those of all rows."""
    import torch

    from congruence.train._strips import in_strips

    def strip(part: slice, rows: Tensor, Y: Tensor, scale: Tensor) -> Tensor:
        logits = (rows * scale) @ Y.T
        own = logits.diagonal(part.start)
        if labels is not None:
            same = _share_a_label(labels, part)
            same.diagonal(part.start).fill_(False)
            logits = logits.masked_fill(same, -torch.inf)
        return (logits.logsumexp(1) - own).sum()

    return in_strips(strip, X, Y, scale) / len(X)
