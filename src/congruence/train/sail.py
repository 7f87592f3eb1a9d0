"""SAIL and Contrastive: heads trained on pairs alone, or with unpaired rows as additional negatives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, ClassVar

from congruence.train._base import Batch, HeadsObjective, HeadTrainer

if TYPE_CHECKING:
    from torch import Tensor


class _Objective(HeadsObjective):
    trainer: SAIL | Contrastive

    def prepare(self) -> None:
        if self.trainer.negatives:
            self.need_unpaired("`negatives=True` uses both")

    def training_step(self, batch: Batch) -> Mapping[str, Tensor]:
        X, Y = self.heads(batch.source, 0), self.heads(batch.target, 1)
        if not self.trainer.negatives:
            return {"loss": self.pair_loss(X, Y)}
        forth = self.pair_loss(X, Y, self.heads(batch.unpaired_target, 1))
        back = self.pair_loss(Y, X, self.heads(batch.unpaired_source, 0))
        return {"loss": (forth + back) / 2}


@dataclass(eq=False, repr=False)
class SAIL(HeadTrainer):
    """Train heads with the supervised loss on pairs.

    Source: Zhang et al. (2025), "Assessing and learning alignment of unimodal vision and language models"; SOTAlign,
    appendix A.2.

    Parameters
    ----------
    negatives : bool, default=False
        Use the unpaired rows of a batch as negatives: every source row against all target rows and every target row
        against all source rows, averaged. If False, unpaired rows are not used.
    **parameters
        Parameters of ``HeadTrainer``, with its defaults.

    Notes
    -----
    This is SAIL as SOTAlign compares with it (appendix A.2): the SigLIP loss on pairs alone, its scale and bias
    trained, and in a variant unpaired rows as further negatives. It was not checked against SAIL's own paper.
    """

    method: ClassVar[str] = "sail"
    objective = _Objective

    negatives: bool = False


@dataclass(eq=False, repr=False)
class Contrastive(HeadTrainer):
    """``SAIL`` with other defaults: ``pair_loss="infonce"`` and ``head="mlp"``.

    Source: SOTAlign, tables 6 and 11, "Contrastive", after Yacobi et al. (2025), "Learning shared representations from
    unpaired data".
    """

    method: ClassVar[str] = "contrastive"
    objective = _Objective

    negatives: bool = False
    _: KW_ONLY
    pair_loss: str = "infonce"
    head: str = "mlp"
