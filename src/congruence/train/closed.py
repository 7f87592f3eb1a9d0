"""Methods with a closed form, with the same ``fit`` and ``score`` as those that are trained.

They are saved as themselves, and ``congruence.load`` returns the map of ``congruence.maps``.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from congruence._utils.typing import RowsLike
from congruence.maps import CCAMap, HeadsMap, ProcrustesHeads
from congruence.train._base import HeadTrainer, retrieval_score
from congruence.train._reading import Unpaired, Validation, read_data, space_of


def fit_closed(
    self: Any,
    X: RowsLike,
    Y: RowsLike | None = None,
    *,
    unpaired: Unpaired | None = None,
    validation: Validation | None = None,
    checkpoint: str | Path | None = None,
    resume: bool = True,
    verbose: bool = True,
) -> HeadsMap:
    """Fit the map on the pairs, with the arguments of ``HeadTrainer.fit``; unpaired rows are checked, but not used."""
    self._check_parameters()
    data = read_data(self, X, Y, unpaired, validation)
    self._fit(data.source, data.target)
    self.source_space_ = replace(space_of(X), dim=data.source.shape[1])
    self.target_space_ = replace(space_of(Y), dim=data.target.shape[1])
    if data.validation is not None:
        self.scores_[f"validation_{self.criterion}"] = self.score(*data.validation)
    return self


class CCA(CCAMap):
    """Canonical correlation analysis: ``CCAMap`` as one of the methods (SOTAlign, equation 7 and proposition C.2)."""

    method: ClassVar[str] = "cca"
    criterion: ClassVar[str] = HeadTrainer.criterion
    fit = fit_closed  # type: ignore[assignment]
    score = retrieval_score


class Procrustes(ProcrustesHeads):
    """Procrustes analysis: ``ProcrustesHeads`` as one of the methods (SOTAlign, equation 6 and proposition C.1)."""

    method: ClassVar[str] = "procrustes"
    criterion: ClassVar[str] = HeadTrainer.criterion
    fit = fit_closed  # type: ignore[assignment]
    score = retrieval_score


class CSA(CCAMap):
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
        As for ``CCAMap``.

    Notes
    -----
    CSA's similarity is Σ ρ_i u_i v_i/(‖u‖‖v‖). The inner product of mapped rows is its numerator. Their cosine divides
    by the norms of the weighted rows instead, so it equals CSA's similarity only if all correlations are equal.

    Source: Li, Chinchali and Topcu (2025), "CSA: data-efficient mapping of unimodal features to multimodal features";
    SOTAlign, table 6.
    """

    method: ClassVar[str] = "csa"
    criterion: ClassVar[str] = HeadTrainer.criterion
    fit = fit_closed  # type: ignore[assignment]
    score = retrieval_score

    def __init__(
        self,
        n_components: int | None = None,
        ridge: float = 0.0,
        power: float = 0.5,
        center: bool = True,
        normalize: bool = True,
    ) -> None:
        super().__init__(n_components=n_components, ridge=ridge, center=center, normalize=normalize, power=power)
