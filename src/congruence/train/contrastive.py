"""The contrastive baseline of small data: perceptrons trained with InfoNCE on the pairs alone."""

from __future__ import annotations

from typing import Any

from congruence.train.sail import SAIL

__all__ = ["Contrastive"]


class Contrastive(SAIL):
    """:class:`SAIL` with other defaults: ``supervised="infonce"`` and ``head="mlp"``.

    Parameters
    ----------
    supervised : {"siglip", "infonce"}, default="infonce"
    head : {"linear", "mlp"}, default="mlp"
    **parameters
        See :class:`SAIL`.

    References
    ----------
    SOTAlign, tables 6 and 11, "Contrastive", after Yacobi et al. (2025), "Learning shared representations from unpaired data".
    """

    method = "contrastive"

    def __init__(self, supervised: str = "infonce", head: str = "mlp", **parameters: Any):
        super().__init__(supervised=supervised, head=head, **parameters)
