"""The contrastive baseline for small data: perceptrons trained with InfoNCE on the pairs alone."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from congruence.train.sail import SAIL


@dataclass(eq=False, repr=False)
class Contrastive(SAIL):
    """:class:`SAIL` with other defaults: ``pair_loss="infonce"`` and ``head="mlp"``.

    Parameters
    ----------
    pair_loss : {"siglip", "infonce"}, default="infonce"
    head : {"linear", "mlp"}, default="mlp"
    **parameters
        Parameters of :class:`SAIL`, with its defaults.

    References
    ----------
    SOTAlign, tables 6 and 11, "Contrastive", after Yacobi et al. (2025), "Learning shared representations from unpaired
    data".
    """

    method: ClassVar[str] = "contrastive"

    _: KW_ONLY
    pair_loss: str = "infonce"
    head: str = "mlp"
