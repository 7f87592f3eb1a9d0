"""Methods with a closed form, with the same ``fit`` and ``score`` as those that are trained.

They are saved as themselves, and ``congruence.load`` returns the map of ``congruence.maps``.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from congruence._utils.arrays import normalize_rows, to_numpy
from congruence._utils.typing import Labels, RowsLike
from congruence.errors import AlignmentWarning
from congruence.maps import CCAMap, HeadsMap, ProcrustesHeads
from congruence.maps.heads import SIDES
from congruence.train._base import HeadTrainer, retrieval_score
from congruence.train.retrieval import left_out_ranks
from congruence.train.rows import TrainingData, Unpaired, Validation, divide, read_data, space_of


class ClosedForm(HeadsMap):
    """Base of the methods with a closed form: ``fit`` and ``score`` of those that are trained."""

    method: ClassVar[str]
    criterion: ClassVar[str] = HeadTrainer.criterion
    score = retrieval_score

    def fit(
        self,
        X: RowsLike,
        Y: RowsLike | None = None,
        *,
        unpaired: Unpaired | None = None,
        validation: Validation | float | None = None,
        groups: Labels | None = None,
        checkpoint: str | Path | None = None,
        resume: bool = True,
        verbose: bool = True,
    ) -> Self:
        """Fit the map in closed form, with the arguments of ``HeadTrainer.fit``.

        Only ``SelfTrainedMap`` uses unpaired rows, and warns (AlignmentWarning) where they do not help. Validation rows
        are scored, but choose nothing; a share or number of the pairs is left out in turns (``scores_["folds"]``).
        """
        self._check_parameters()  # type: ignore[attr-defined]
        share: Any = validation if isinstance(validation, Real) else None
        data = read_data(self, X, Y, unpaired, None if share is not None else validation, groups)  # type: ignore[arg-type]
        evidence = {} if share is None else {"folds": self._left_out(data, share)}
        note = self.fit_data(data)
        self.scores_ |= evidence
        self.source_space_ = replace(space_of(X), dim=data.source.shape[1])
        self.target_space_ = replace(space_of(Y), dim=data.target.shape[1])
        if data.validation is not None:
            self.scores_[f"validation_{self.criterion}"] = self.score(*data.validation)
        if note:
            problem = f"The map is fitted on the pairs alone: {note}."
            warnings.warn(AlignmentWarning(problem, "Pass more pairs, or larger `unpaired=(U, V)`."), stacklevel=2)
        return self

    def _left_out(self, data: TrainingData, share: float) -> dict[str, float]:
        """Return the mean reciprocal rank of pairs left out of the fit."""
        labels = data.labels()
        fold = divide(labels, None, share, 0)
        ranks = []
        for number in np.unique(fold):
            one, out = type(self)(**self.get_params()), fold == number
            part = data.leave_out(out, labels)
            if (width := getattr(one, "n_components", None)) is not None:  # which fewer pairs may not determine
                one.set_params(n_components=min(width, len(part.source) - 1))
            one.fit_data(part)
            assert part.distractors is not None
            U, V = part.distractors
            u = one.transform(U) if len(U) else np.empty((0, one.d_out))
            v = one.transform_target(V) if len(V) else np.empty((0, one.d_out))
            mapped = (one.transform(data.source[out]), one.transform_target(data.target[out]), u, v)
            a, b, u, v = (normalize_rows(to_numpy(rows)) for rows in mapped)
            ranks.append(left_out_ranks((a, b), (u, v), labels[out])[:, 0])
        return {"folds": len(ranks), "score": float(np.concatenate(ranks).mean())}

    def fit_data(self, data: TrainingData) -> str:
        """Fit to the pairs; a method that uses unpaired rows returns why it did not."""
        self._fit(data.source, data.target)  # type: ignore[attr-defined]  # of the map it extends
        return ""


class CCA(ClosedForm, CCAMap):
    """Canonical correlation analysis: ``CCAMap`` as one of the methods (SOTAlign, equation 7 and proposition C.2)."""

    method: ClassVar[str] = "cca"


class Procrustes(ClosedForm, ProcrustesHeads):
    """Procrustes analysis: ``ProcrustesHeads`` as one of the methods (SOTAlign, equation 6 and proposition C.1)."""

    method: ClassVar[str] = "procrustes"


@dataclass(eq=False, repr=False)
class WeightedCCA(CCA):
    """``CCA`` with other defaults, compared by the cosine of directions weighted by the root of their correlations."""

    method: ClassVar[str] = "weighted_cca"

    ridge: float = 1.0
    power: float = 0.5


@dataclass(eq=False, repr=False)
class CSA(ClosedForm):
    """Canonical similarity analysis as published: the score Σ ρ_i u_i v_i/(‖u‖‖v‖) of canonical directions u, v.

    Two more coordinates make it a plain cosine of mapped rows: [√ρ û, √(1 − Σ ρ û²), 0] and [√ρ v̂, 0, √(1 − Σ ρ v̂²)]
    of the unit rows û and v̂. With the norms of the *weighted* rows, which often retrieves better, it is
    ``WeightedCCA``.

    Parameters
    ----------
    n_components : int, optional
        s, the number of directions kept; by default as many as the pairs support.
    ridge : float, default=0.0
        λ, added to the Gram matrices, which CSA does not have. With fewer pairs than dimensions and λ = 0, every
        direction correlates perfectly on the pairs, and the map retrieves almost nothing on other rows.
    center, normalize : bool, default=True
        As for ``CCAMap``.

    Source: Li, Chinchali and Topcu (2025), "CSA: data-efficient mapping of unimodal features to multimodal features";
    SOTAlign, table 6.
    """

    kind: ClassVar[str] = "heads"
    method: ClassVar[str] = "csa"

    n_components: int | None = None
    ridge: float = 0.0
    center: bool = True
    normalize: bool = True

    def _check_parameters(self) -> None:
        CCAMap(**self.get_params())._check_parameters()

    def _fit(self, source: np.ndarray, target: np.ndarray) -> None:
        cca = CCAMap(**self.get_params()).fit(source, target)
        roots = np.sqrt(np.clip(cca.singular_values_[: cca.d_out], 0, 1))
        weights = np.concatenate([np.diag(roots), np.zeros((len(roots), 2))], axis=1)
        parts = {}
        for column, (side, layers) in enumerate(zip(SIDES, cca.layers(), strict=True), start=len(roots)):
            own = (np.arange(len(roots) + 2) == column).astype(float)
            weighted = {"kind": "linear", "weight": weights}
            parts[side] = [*layers, {"kind": "normalize"}, weighted, {"kind": "complete", "column": own}]
        self.set_layers(parts, self.method, {"n_pairs": len(source), "training": self.get_params()})
        self.scores_ = {}
