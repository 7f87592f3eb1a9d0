"""STRUCTURE: contrastive heads that preserve the geometry that the rows of a batch have in their own model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from congruence._utils.optional import require
from congruence._utils.validation import check_choice, check_positive, check_same_rows
from congruence.errors import InputError, ShapeError
from congruence.train._base import Batch, HeadsObjective, HeadTrainer

if TYPE_CHECKING:
    from torch import Tensor


DIRECTIONS = ("js", "published")


def structure_loss(
    aligned: Tensor,
    original: Tensor,
    temperature: float = 0.07,
    levels: int = 1,
    *,
    direction: str = "js",
    decay: bool = True,
) -> Tensor:
    """Divergence between the geometry of rows and that of the same rows in another space.

    Rows of both spaces, (n, d) and (n, e), are scaled to unit norm and centered; P and Q are the softmaxes over the
    columns of their inner products over τ, each row's own included. The loss is the mean over ``levels`` l of the
    divergence of the rows of Pˡ and Qˡ: the Jensen–Shannon divergence, at most log 2, or with "published" (KL(m‖p) +
    KL(m‖q))/2, m = (p + q)/2, which is unbounded and what the public code's ``kl_div(log p, m)`` computes.

    Source: Gröger et al. (2025), "With limited data for multimodal alignment, let the STRUCTURE guide you".
    """
    torch = require("torch", extra="train")
    from congruence.train._strips import in_strips

    check_positive(temperature, "temperature")
    check_positive(levels, "levels", integer=True)
    check_choice(direction, DIRECTIONS, "direction")
    check_same_rows(len(aligned), len(original), "aligned", "original")
    if aligned.ndim != 2 or original.ndim != 2 or not len(aligned):
        raise ShapeError(f"Got arrays of shapes {tuple(aligned.shape)} and {tuple(original.shape)}.", "Pass (n, d).")
    Z, T = (_centered(rows) for rows in (aligned, original.detach().to(aligned.dtype)))

    def strip(part: slice, rows: Tensor, Z: Tensor) -> Tensor:
        p, q = (torch.log_softmax(side / temperature, 1) for side in (T[part] @ T.T, rows @ Z.T))
        return _divergence(p, q, direction)

    total = in_strips(strip, Z, Z) / len(Z)
    if levels > 1:
        P, Q = (torch.softmax(rows @ rows.T / temperature, 1) for rows in (T, Z))
        Pl, Ql = P, Q
        tiny = torch.finfo(Z.dtype).tiny
        for level in range(2, levels + 1):
            Pl, Ql = Pl @ P, Ql @ Q
            p, q = (rows.clamp_min(tiny).log() for rows in (Pl, Ql))
            total = total + _divergence(p, q, direction) / (len(Z) * (level if decay else 1))
    return total / levels


def _centered(rows: Tensor) -> Tensor:
    """Return rows scaled to unit norm and centered."""
    import torch

    rows = torch.nn.functional.normalize(rows, dim=1)
    return rows - rows.mean(0)


def _divergence(log_p: Tensor, log_q: Tensor, direction: str) -> Tensor:
    """Return the sum over rows of the divergence of p and q."""
    import torch

    p, q = log_p.exp(), log_q.exp()
    m = (p + q) / 2
    log_m = m.clamp_min(torch.finfo(m.dtype).tiny).log()  # clamped where both underflow
    if direction == "published":
        return (m * (log_m - (log_p + log_q) / 2)).sum()
    return (p * (log_p - log_m) + q * (log_q - log_m)).sum() / 2


class _Objective(HeadsObjective):
    trainer: STRUCTURE

    def prepare(self) -> None:
        if self.trainer.unpaired and self.data.unpaired_source is None and self.data.unpaired_target is None:
            raise InputError("Got `unpaired=True` without unpaired rows.", "Pass `unpaired=(U, V)` to fit.")

    def training_step(self, batch: Batch) -> Mapping[str, Tensor]:
        import torch

        trainer = self.trainer
        X, Y = self.heads(batch.source, 0), self.heads(batch.target, 1)
        supervised = self.pair_loss(X, Y)
        if not trainer.weight:
            return {"loss": supervised, "supervised": supervised}
        sides = ((X, batch.source, batch.unpaired_source), (Y, batch.target, batch.unpaired_target))
        terms = []
        for side, (aligned, original, unpaired) in enumerate(sides):
            if trainer.unpaired and unpaired is not None:
                aligned, original = torch.cat([aligned, self.heads(unpaired, side)]), torch.cat([original, unpaired])
            tau, options = trainer.structure_temperature, {"direction": trainer.direction}
            terms.append(structure_loss(aligned, original, tau, trainer.levels, decay=trainer.decay, **options))
        structure = (terms[0] + terms[1]) / 2
        weight = trainer.weight * min(1.0, (batch.step + 1) / max(trainer.structure_warmup, 1))
        return {"loss": supervised + weight * structure, "supervised": supervised, "structure": structure}


@dataclass(eq=False, repr=False)
class STRUCTURE(HeadTrainer):
    """Train heads with the supervised loss plus λ times the change in the geometry of each side.

    Source: Gröger et al. (2025), "With limited data for multimodal alignment, let the STRUCTURE guide you"; SOTAlign,
    appendix A.2.

    Parameters
    ----------
    weight : float, default=1.0
        λ of ``structure_loss``, the mean of both sides. SOTAlign's authors choose it among 0.1, 1, 10, 100 and
        1000.
    structure_temperature : float, default=0.07
        τ of the softmaxes. (``temperature`` belongs to InfoNCE.)
    structure_warmup : int, default=0
        Number of steps over which λ rises linearly; SOTAlign's authors also try 500.
    unpaired : bool, default=False
        Preserve the joint geometry of the pairs and unpaired rows of a batch; if False, that of the pairs alone.
    direction : {"js", "published"}, default="js"
        Which divergence; see ``structure_loss``.
    decay : bool, default=True
        Weight level l by 1/l.
    **parameters
        Parameters of ``HeadTrainer``, with its defaults. STRUCTURE's own supervised loss is
        ``"infonce"``.
    """

    method: ClassVar[str] = "structure"
    objective = _Objective
    counts = ("levels",)
    positive = ("structure_temperature",)
    not_negative = ("weight",)

    weight: float = 1.0
    levels: int = 1
    structure_temperature: float = 0.07
    structure_warmup: int = 0
    unpaired: bool = False
    direction: str = "js"
    decay: bool = True

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_positive(self.structure_warmup, "structure_warmup", zero=True, integer=True)
        check_choice(self.direction, DIRECTIONS, "direction")
