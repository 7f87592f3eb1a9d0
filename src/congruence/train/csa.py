"""CSA: canonical directions weighted by their correlations."""

from __future__ import annotations

from typing import ClassVar

from congruence.maps import CCAMap
from congruence.train.closed import ClosedForm


class CSA(ClosedForm, CCAMap):
    """Canonical similarity analysis: CCA truncated to its strongest directions, which are weighted by their
    correlations.

    Parameters
    ----------
    n_components : int, optional
        s, the number of directions kept; by default as many as the pairs support.
    ridge : float, default=0.0
        λ, added to the Gram matrices. CSA itself has no such term. But with fewer pairs than dimensions and λ = 0,
        every direction correlates perfectly on the pairs, whatever they are, and the map retrieves almost nothing on
        other rows.
    power : float, default=0.5
        Both sides of direction i are multiplied by ρ_i to this power. With 0.5 the inner product of two mapped rows
        weights the direction by ρ_i, as in CSA; with 1 it weights it by ρ_i².
    center, normalize : bool, default=True
        As for :class:`~congruence.CCAMap`.

    Notes
    -----
    CSA's similarity is Σ ρ_i u_i v_i/(‖u‖‖v‖). The inner product of mapped rows is its numerator. Their cosine divides
    by the norms of the weighted rows instead, so it equals CSA's similarity only if all correlations are equal.

    References
    ----------
    Li, Chinchali and Topcu (2025), "CSA: data-efficient mapping of unimodal features to multimodal features"; SOTAlign,
    table 6.
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
