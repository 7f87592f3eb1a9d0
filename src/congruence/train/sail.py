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
    This is SAIL as SOTAlign compares with it. The loss, the initial scale and bias (20 and −10) and the batch size are
    those of SAIL's public code (https://github.com/lezhang7/SAIL), which differs otherwise:

    - its heads are gated: a product of two linear layers of eight times the input's width, and a linear layer to 1024
      dimensions; it has linear heads only to measure how well two encoders can be aligned;
    - an image has two captions, one of them long and generated;
    - it trains on up to 23 million pairs, at a learning rate of 1e-5, where 1e-4 for 2000 steps is the default here.
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
