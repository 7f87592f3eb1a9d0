"""Whether a map sends every class prompt nearest to its own class in the other model (Proposition C.19)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import scipy.linalg

from congruence._utils.arrays import blocks
from congruence._utils.typing import RowsLike
from congruence._utils.validation import as_matrix, check_width
from congruence.errors import ParameterError, ShapeError
from congruence.theory._base import as_map, paired_models
from congruence.theory.covered import covered_subspace

if TYPE_CHECKING:
    from matplotlib.axes import Axes


#: A margin below this times the largest squared norm may be rounding error.
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Margins:
    """The statements of Proposition C.19 about each class prompt, and the measured retrieval.

    - ``rank``: Dimension r of U_X, the anchors' span.
    - ``gamma``, ``eta``: γ and η of Definition C.18: the smallest margin inside U_X, the largest product of the
      residuals outside it.
    - ``rho``: The largest ‖Proj_{QU_X} g̃ − Q Proj_{U_X} g‖ over the classes. The proposition supposes 0 (Assumption
      C.17); Theorem C.28 bounds it.
    - ``margins``, ``residuals``, ``errors``, shape (K,): By class: γ_c = ‖u_c‖² − max ⟨u_c, u_c'⟩ over c' ≠ c, η_c =
      max |⟨Q w_c, w̃_c'⟩| and s_c = max |⟨Q u_c, e_c'⟩| over all c', where g = u + w, g̃ = Q u + e + w̃ and e =
      Proj_{QU_X} g̃ − Q u is what the assumption neglects.
    - ``offsets``, shape (K,): By class: max over c' ≠ c of r(c, c') − r(c, c), where r(c, c') = ⟨Q u_c, e_c'⟩ + ⟨Q w_c,
      w̃_c'⟩ are the terms of the score that γ does not include. Terms that all classes share cancel.
    - ``inside``, shape (K,): ‖u_c‖.
    - ``retrieved``, shape (K,): ĉ(y_c) = argmax ⟨Q g(y_c), g̃(y_c')⟩, the class that is retrieved.
    - ``rounding``: Margins below this count as zero.
    - ``names``: Names of the classes.
    """

    rank: int
    gamma: float
    eta: float
    rho: float
    margins: np.ndarray
    residuals: np.ndarray
    errors: np.ndarray
    offsets: np.ndarray
    inside: np.ndarray
    retrieved: np.ndarray
    rounding: float
    names: tuple[str, ...] | None = None

    @property
    def holds(self) -> bool:
        """Whether γ > 2η: then all classes are retrieved correctly if the proposition's assumption holds too."""
        return self.gamma - 2 * self.eta > self.rounding

    @property
    def safe(self) -> np.ndarray:
        """Classes with γ_c > 2η_c, which are retrieved correctly if the proposition's assumption holds."""
        return self._above(2 * self.residuals)

    @property
    def certified(self) -> np.ndarray:
        """Classes with γ_c > 2(η_c + s_c), which are retrieved correctly for any models."""
        return self._above(2 * (self.residuals + self.errors))

    @property
    def certified_by_difference(self) -> np.ndarray:
        """Classes with γ_c > max r(c, c') − r(c, c), retrieved correctly for any models; they include ``certified``."""
        return self._above(self.offsets)

    def certified_within(self, rho: float | None = None) -> np.ndarray:
        """Return whether each class (K,) has γ_c > 2(η_c + ‖u_c‖ρ), and so is retrieved in any two models with ‖e‖ ≤ ρ.

        ``rho`` is a bound on ‖e‖, e.g. from Theorem C.28; by default the largest measured value.
        """
        rho = self.rho if rho is None else rho
        if not rho >= self.rho * (1 - 1e-12):
            raise ParameterError(argument="rho", got=rho, expected=f"at least {self.rho}, which is measured")
        return self._above(2 * (self.residuals + self.inside * rho))

    def _above(self, threshold: np.ndarray) -> np.ndarray:
        return np.asarray(self.margins - threshold > self.rounding)

    @property
    def right(self) -> np.ndarray:
        """Classes that are retrieved correctly."""
        return np.asarray(self.retrieved == np.arange(len(self.retrieved)))

    def confusion(self, promised: np.ndarray | None = None) -> dict[str, int]:
        """Count classes as "safe & right", "safe & wrong" …; ``promised``, by default ``safe``, is by class (K,)."""
        promised = self.safe if promised is None else promised
        sides = {"safe": promised, "unsafe": ~promised}, {"right": self.right, "wrong": ~self.right}
        return {f"{p} & {r}": int((sides[0][p] & sides[1][r]).sum()) for p in sides[0] for r in sides[1]}

    def breaking(self) -> list[str]:
        """Return the classes with γ_c ≤ 2η_c by name (or number), the smallest margin first."""
        order = np.argsort(self.margins - 2 * self.residuals, kind="stable")
        worst = order[~self.safe[order]].tolist()
        return [self.names[c] if self.names is not None else str(c) for c in worst]

    def in_words(self) -> str:
        """Return the result as one or two sentences, for display."""
        every = "guarantees every class" if self.holds else "guarantees nothing for all classes together"
        sentence = (
            f"γ = {self.gamma:.3g} and η = {self.eta:.3g}: Proposition C.19 {every}. "
            f"Class by class it guarantees {int(self.safe.sum())} of {len(self.margins)}"
        )
        if self.rho > self.rounding:
            sentence += (
                f" under its assumption, which is violated by {self.rho:.3g}; "
                f"{int(self.certified_by_difference.sum())} are certain for any models"
            )
        return f"{sentence}; {int(self.right.sum())} are retrieved."

    def to_dict(self) -> dict[str, object]:
        """Return the summary and the classes as plain data."""
        by_class = ("retrieved", "margins", "residuals", "errors", "offsets", "inside")
        return {
            **{name: getattr(self, name) for name in ("rank", "gamma", "eta", "rho", "holds")},
            "confusion": self.confusion(),
            "confusion_certified": self.confusion(self.certified),
            "confusion_certified_by_difference": self.confusion(self.certified_by_difference),
            "breaking": self.breaking(),
            **{name: getattr(self, name).tolist() for name in by_class},
        }

    def plot(self, ax: Axes | None = None, *, annotate: bool = True) -> Axes:
        """Draw each class's margin γ_c against 2(η_c + s_c) on ``ax``: classes above the line are certified."""
        from congruence.plotting import draw_class_margins

        needed = 2 * (self.residuals + self.errors)
        classes = {"margins": self.margins, "needed": needed, "right": self.right}
        return draw_class_margins(classes, ax, annotate=annotate)


def class_margins(
    F_anchors: RowsLike,
    G_classes: RowsLike,
    G_target_classes: RowsLike,
    Q: RowsLike,
    *,
    rank: int | None = None,
    rtol: float | None = None,
    names: Sequence[str] | None = None,
) -> Margins:
    """Test whether a map must send each class prompt nearest to its own class (C.18, Proposition C.19).

    ``F_anchors`` (n, d) are anchors of the other modality in the source model, of which only the span U_X is used,
    found with ``rank`` and ``rtol`` as by ``covered_subspace``. ``G_classes`` (K, d) and ``G_target_classes`` (K,
    d_target) have one row per class, paired by row and compared by inner product; ensemble several prompts of a class
    beforehand. ``Q`` (d, d_target) is the rotation acting on rows, such as
    ``OrthogonalMap(shrinkage="full").fit(…).rotation_``, orthonormal to 10⁻³; the nearest exactly orthonormal one is
    used.

    With Q written on columns, g = u + w for u in U_X and w orthogonal to it, and g̃ = Q u + e + w̃ for e in QU_X and w̃
    orthogonal to that, every score is

    ⟨Q g_c, g̃_c'⟩ = ⟨u_c, u_c'⟩ + ⟨Q u_c, e_c'⟩ + ⟨Q w_c, w̃_c'⟩.

    The proposition assumes e = 0. From c to c' ≠ c the first term then falls by at least γ_c, and the last rises by at
    most 2η_c: class c is retrieved correctly if γ_c > 2η_c. (The last inequality of the printed proof has the wrong
    sign; the condition stands.) Real models have e ≠ 0: the middle term can rise by 2s_c ≤ 2‖u_c‖ρ, so γ_c > 2(η_c +
    s_c) is sufficient without any assumption. Only differences of the last two terms, r, decide: γ_c > max r(c, c') −
    r(c, c) is the weakest sufficient condition for a given γ_c. Memory is O(K·d), time O(K²·d).
    """
    G, G_target = paired_models(G_classes, G_target_classes, ("G_classes", "G_target_classes"), unit=False, min_rows=2)
    (K, d), d_target = G.shape, G_target.shape[1]
    U, _, Vt = scipy.linalg.svd(as_map(Q, d, d_target, "Q", rotation=True), full_matrices=False, check_finite=False)
    R = U @ Vt  # exactly orthonormal
    F = as_matrix(F_anchors, "F_anchors")
    check_width(F.shape[1], d, "class_margins")
    if names is not None and len(names) != K:
        raise ShapeError(f"Got {len(names)} names for {K} classes.", f"Pass `names=…` with {K} entries.")
    basis = covered_subspace(F_anchors, rank=rank, rtol=rtol).basis
    # Coordinates of u and of Proj g̃ in the basis of U_X and its image: their inner products are those of the vectors.
    image = basis @ R
    u, u_target = G @ basis.T, G_target @ image.T
    error = u_target - u
    w, w_target = (G - u @ basis) @ R, G_target - u_target @ image
    mapped = G @ R
    margins, residuals, errors, offsets = (np.empty(K) for _ in range(4))
    retrieved = np.empty(K, dtype=np.int64)
    for rows in blocks(K, 3 * 8 * K):
        own = (np.arange(rows.stop - rows.start), np.arange(rows.start, rows.stop))
        within, scores = u[rows] @ u.T, mapped[rows] @ G_target.T
        retrieved[rows] = scores.argmax(axis=1)
        scores -= within
        gains = scores - scores[own][:, None]
        gains[own] = -np.inf
        offsets[rows] = gains.max(axis=1)
        squared_norms = within[own]
        within[own] = -np.inf
        margins[rows] = squared_norms - within.max(axis=1)
        residuals[rows] = np.abs(w[rows] @ w_target.T).max(axis=1)
        errors[rows] = np.abs(u[rows] @ error.T).max(axis=1)
    return Margins(
        rank=len(basis),
        gamma=float(margins.min()),
        eta=float(residuals.max()),
        rho=float(np.linalg.norm(error, axis=1).max()),
        margins=margins,
        residuals=residuals,
        errors=errors,
        offsets=offsets,
        inside=np.linalg.norm(u, axis=1),
        retrieved=retrieved,
        rounding=_ROUNDING * float(max(np.linalg.norm(side, axis=1).max() ** 2 for side in (G, G_target))),
        names=None if names is None else tuple(map(str, names)),
    )
