"""S-CLIP: unpaired rows get pseudo-labels from the partners of the paired rows they resemble."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from congruence._utils.optional import require
from congruence._utils.validation import check_choice, check_positive, check_same_rows
from congruence.errors import ParameterError
from congruence.train._base import Batch, HeadsObjective, HeadTrainer
from congruence.transport import sinkhorn

if TYPE_CHECKING:
    from torch import Tensor


ASSIGNMENTS = ("hard", "soft", "ot")


def pseudo_label_loss(
    U: Tensor,
    Y: Tensor,
    similar: Tensor,
    paired: Tensor,
    logit_scale: float | Tensor = 20.0,
    *,
    assignment: str = "ot",
    temperature: float = 0.05,
    max_iter: int = 100,
) -> Tensor:
    """Cross-entropy of assigning unpaired images to the captions of the paired images they resemble.

    ``U`` (m, d) and ``Y`` (n, d) are unpaired rows and the partners of the paired rows in the joint space, of unit
    norm; gradients flow into both. ``similar`` (m, e) and ``paired`` (n, e) are where similarity is measured. The
    target of row i over all j is 1 for the largest cosine, the softmax of cosines over τ, or row i of the entropic
    transport plan, scaled to add up to 1.

    Source: Mo et al. (2023), "S-CLIP: semi-supervised vision-language learning using few specialist captions".
    """
    torch = require("torch", extra="train")
    from congruence.train._strips import in_strips

    check_choice(assignment, ASSIGNMENTS, "assignment")
    check_positive(temperature, "temperature")
    check_positive(max_iter, "max_iter", integer=True)
    check_same_rows(len(U), len(similar), "U", "similar")
    check_same_rows(len(Y), len(paired), "Y", "paired")
    queries, keys = (torch.nn.functional.normalize(rows.detach().to(U.dtype), dim=1) for rows in (similar, paired))
    plan = sinkhorn(X=queries, Y=keys, epsilon=temperature, max_iter=max_iter).plan if assignment == "ot" else None

    def strip(part: slice, rows: Tensor, Y: Tensor, scale: Tensor) -> Tensor:
        with torch.no_grad():
            if plan is not None:
                P: Any = plan(part)
                targets = P / P.sum(1, keepdim=True).clamp_min(torch.finfo(P.dtype).tiny)
            else:
                targets = _assign(queries[part] @ keys.T / temperature, assignment)
        return -(targets * torch.log_softmax((rows * scale) @ Y.T, 1)).sum()

    scale = torch.as_tensor(logit_scale, dtype=U.dtype, device=U.device)
    return in_strips(strip, U, Y, scale) / len(U)


def _assign(similar: Tensor, assignment: str) -> Tensor:
    """Return weights of the columns, for each row: 1 for the largest, or their softmax."""
    import torch

    if assignment == "soft":
        return torch.softmax(similar, 1)
    return torch.zeros_like(similar).scatter_(1, similar.argmax(1, keepdim=True), 1)


def published_loss(X: Tensor, Y: Tensor, U: Tensor, scale: Tensor, assignment: str) -> tuple[Tensor, Tensor]:
    """Return S-CLIP's loss on pairs and that on pseudo-labels as its public code has them.

    The unpaired images ``U`` are candidates of each caption too. Images are compared in the joint space, at a
    temperature of one over the scale and with ten Sinkhorn iterations, and the gradient flows through the assignment.
    """
    import torch
    from torch.nn.functional import cross_entropy

    own = torch.arange(len(X), device=X.device)
    supervised = (cross_entropy(scale * X @ Y.T, own) + cross_entropy(scale * Y @ torch.cat([X, U]).T, own)) / 2
    similar = scale * U @ X.T
    potential = torch.zeros_like(similar[0])
    for _ in range(10 if assignment == "ot" else 0):
        rows = -torch.logsumexp(similar + potential, 1, keepdim=True)
        potential = -torch.logsumexp(similar + rows, 0)
    target = _assign(similar + potential, "hard" if assignment == "hard" else "soft")
    return supervised, cross_entropy(scale * U @ Y.T, target)


class _Objective(HeadsObjective):
    trainer: SCLIP

    def prepare(self) -> None:
        if self.trainer.published:
            self.need_unpaired("these rows get pseudo-labels", "source", "image_weight")
            return
        for side, name in (("source", "image_weight"), ("target", "text_weight")):
            self.need_unpaired("these rows get pseudo-labels", side, name)

    def training_step(self, batch: Batch) -> Mapping[str, Tensor]:
        trainer = self.trainer
        X, Y = self.heads(batch.source, 0), self.heads(batch.target, 1)
        if trainer.published:
            U = self.heads(batch.unpaired_source, 0)
            supervised, pseudo = published_loss(X, Y, U, self.module.log_scale.exp(), trainer.assignment)
            return {"loss": supervised + pseudo / 2, "supervised": supervised, "pseudo_image": pseudo}
        terms = {"supervised": self.pair_loss(X, Y)}
        loss = terms["supervised"]
        sides = (
            ("image", trainer.image_weight, 0, batch.unpaired_source, batch.source, X, Y),
            ("text", trainer.text_weight, 1, batch.unpaired_target, batch.target, Y, X),
        )
        for name, weight, side, unpaired, paired_rows, paired_joint, partners in sides:
            if not weight:
                continue
            U = self.heads(unpaired, side)
            similar, paired = (unpaired, paired_rows) if trainer.space == "unimodal" else (U, paired_joint)
            pseudo = pseudo_label_loss(
                *(U, partners, similar, paired, self.module.log_scale.exp()),
                assignment=trainer.assignment,
                temperature=trainer.assignment_temperature,
                max_iter=trainer.max_iter,
            )
            terms[f"pseudo_{name}"] = pseudo
            loss = loss + weight * pseudo
        return {"loss": loss, **terms}


@dataclass(eq=False, repr=False)
class SCLIP(HeadTrainer):
    """Train heads with the supervised loss on pairs, and with pseudo-labels on unpaired rows.

    The captions that an unpaired image should be near are those of the paired images in the batch that resemble it, and
    likewise for unpaired texts. Images are the source, texts the target.

    Parameters
    ----------
    assignment, max_iter : {"hard", "soft", "ot"} and int, default="ot" and 100
        How similarity is turned into a target; see ``pseudo_label_loss``.
    assignment_temperature : float, default=0.05
        τ of the softmax or ε of the transport.
    space : {"unimodal", "joint"}, default="unimodal"
        Where images are compared with images: in their encoder's space or, without a gradient, in the space being
        trained.
    image_weight, text_weight : float, default=1.0
        Weights of the losses on unpaired images and unpaired texts; SOTAlign's authors search over 0, 0.1, 1 and 10. A
        side with weight 0 needs no unpaired rows.
    published : bool, default=False
        The loss of S-CLIP's public code, but for its key words: InfoNCE in which unpaired images are candidates of each
        caption, plus half the loss on pseudo-labels of images, found in the joint space, through which the gradient
        flows. ``assignment`` applies; the other parameters above do not. Needs ``pair_loss="infonce"``.
    **parameters
        Parameters of ``HeadTrainer``. S-CLIP's own supervised loss is ``"infonce"``.

    Notes
    -----
    The logits share the trained scale of the supervised loss. This is the adaptation that SOTAlign describes.
    S-CLIP's authors train whole encoders, use unpaired images alone, and add a loss on key words.

    Source: Mo et al. (2023), "S-CLIP: semi-supervised vision-language learning using few specialist captions", and its
    code, https://github.com/alinlab/s-clip (``custom/loss.py``); SOTAlign, appendix A.2.
    """

    method: ClassVar[str] = "sclip"
    objective = _Objective
    counts = ("max_iter",)
    positive = ("assignment_temperature",)
    not_negative = ("image_weight", "text_weight")

    assignment: str = "ot"
    assignment_temperature: float = 0.05
    space: str = "unimodal"
    image_weight: float = 1.0
    text_weight: float = 1.0
    max_iter: int = 100
    published: bool = False

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_choice(self.assignment, ASSIGNMENTS, "assignment")
        check_choice(self.space, ("unimodal", "joint"), "space")
        if self.published and self.pair_loss != "infonce":
            raise ParameterError("Got `published=True` without InfoNCE.", 'Pass `pair_loss="infonce"`.')
