"""CSA: canonical directions that count for as much as they correlate."""

from __future__ import annotations

from typing import ClassVar

from congruence.maps import CCAMap
from congruence.train.closed import ClosedForm

__all__ = ["CSA"]


class CSA(ClosedForm, CCAMap):
    """Canonical similarity analysis: CCA cut to its strongest directions, which are weighted by their correlations.

    Parameters
    ----------
    n_components : int, optional
        s, the directions kept; as many as the pairs support by default.
    ridge : float, default=0.0
        λ, added to the Gram matrices. CSA has none. With fewer pairs than dimensions every direction then correlates perfectly on the pairs, whatever they
        are, and the map finds next to nothing on others.
    power : float, default=0.5
        Both sides of direction i are multiplied by ρ_i to this power, so that the inner product of two mapped rows weighs it by ρ_i, as CSA does; 1
        weighs it by ρ_i².
    center, normalize : bool, default=True
        As of :class:`~congruence.CCAMap`.

    Notes
    -----
    CSA's similarity is Σ ρ_i u_i v_i/(‖u‖‖v‖). The inner product of mapped rows is its numerator. Their cosine divides by the norms of the weighted
    rows instead: no cosine of mapped rows is CSA's similarity exactly, unless all correlations are equal.

    References
    ----------
    Li, Chinchali and Topcu (2025), "CSA: data-efficient mapping of unimodal features to multimodal features"; SOTAlign, table 6.
    """

    method: ClassVar[str] = "csa"

    def __init__(
        self,
        n_components: int | None = None,
        ridge: float = 0.0,
        power: float = 0.5,
        center: bool = True,
        normalize: bool = True,
    ) -> None:
        super().__init__(n_components=n_components, ridge=ridge, center=center, normalize=normalize, power=power)
