"""SAIL: contrastive heads on pairs alone, or with unpaired rows as further negatives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from congruence.errors import InputError
from congruence.train._base import Batch, HeadTrainer

__all__ = ["SAIL"]


class SAIL(HeadTrainer):
    """Train heads with the supervised loss on pairs.

    Parameters
    ----------
    negatives : bool, default=False
        Add the unpaired rows of a batch as negatives: every source row against all target rows, every target row against all source rows, the
        mean of both. Without it unpaired rows have no part.
    **parameters
        See :class:`~congruence.train.HeadTrainer`.

    References
    ----------
    Zhang et al. (2025), "Assessing and learning alignment of unimodal vision and language models"; SOTAlign, appendix A.2.

    Examples
    --------
    >>> from congruence.synthetic import dual_problem  # doctest: +SKIP
    >>> mapping = SAIL(dim=64, steps=200).fit(images, texts)  # doctest: +SKIP
    """

    method = "sail"

    def __init__(self, negatives: bool = False, **parameters: Any):
        super().__init__(**parameters)
        self.negatives = negatives

    def _prepare(self, torch: Any, task: Any) -> None:
        if self.negatives and (task.data.unpaired_source is None or task.data.unpaired_target is None):
            raise InputError(
                "Got negatives=True without unpaired rows of both sides; expected both. Pass unpaired_source=… and unpaired_target=…."
            )

    def _loss(self, torch: Any, task: Any, batch: Batch, step: int) -> Mapping[str, Any]:
        X, Y = task.heads(batch.source, 0), task.heads(batch.target, 1)
        if not self.negatives:
            return {"loss": task.supervise(X, Y)}
        forth = task.supervise(X, Y, task.heads(batch.unpaired_target, 1))
        back = task.supervise(Y, X, task.heads(batch.unpaired_source, 0))
        return {"loss": (forth + back) / 2}
