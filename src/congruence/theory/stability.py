"""From a linear map to a rotation, and from images to texts: Theorems C.23, C.25 and C.28, and measured errors.

Rows are items, so that F (n, d) here is the paper's Fᵀ, and Q (d, d̃) acts on rows: f̃ ≈ f @ Q, g ≈ g̃ @ Qᵀ.

Texts are bounded through n image anchors. For h(y) = g(y) − Qᵀ g̃(y) and each anchor, ⟨f(xⱼ), h⟩ is the disagreement of
the kernels, at most ε′, and ⟨f̃(xⱼ) − Q f(xⱼ), g̃(y)⟩, at most δ_f. Hence ‖F h‖₂ ≤ √n (ε′ + δ_f), with the number of
anchors under the root (the paper has n = d anchors and prints √d̃, which is looser). Let σ₁ ≥ σ₂ ≥ … be the singular
values of F, v₁, v₂, … its right singular vectors, and U_r the span of the first r of them. Then

    ‖F h‖² = Σᵢ σᵢ² ⟨vᵢ, h⟩² ≥ σ_r² Σ_{i ≤ r} ⟨vᵢ, h⟩² = σ_r² ‖Proj_{U_r} h‖²,

so that ‖Proj_{U_r} h‖ ≤ ρ(r) = √n (ε′ + δ_f) / σ_r for *every* r up to the rank of F. With r the rank, U_r is the span
of the anchors and this is Theorem C.28; with r = d it is Theorem C.25. For smaller r it says more about fewer
directions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import scipy.linalg

from congruence._utils.arrays import blocks
from congruence._utils.typing import RowsLike
from congruence._utils.validation import as_matrix, check_positive
from congruence.errors import ParameterError
from congruence.linalg.procrustes import cross_svd, rotation_from_svd
from congruence.theory._base import (
    FARTHEST,
    Bound,
    as_map,
    as_rotation,
    check_upwards,
    dual_encoders,
    numerical_rank,
    paired_models,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class PolarRotation:
    """The rotation nearest to a linear map.

    - ``rotation``, shape (d, d̃): Qᵀ of A = Q (AᵀA)^{1/2}, acting on rows; its rows are orthonormal.
    - ``distance``: ‖A − Q‖₂ = max |σᵢ(A) − 1|.
    - ``gram_distance``: ‖AᵀA − I‖₂ = max |σᵢ(A)² − 1|, never less than ``distance``.
    - ``unique``: Whether A has full column rank; otherwise Q is one of several at the same distance.
    """

    rotation: np.ndarray
    distance: float
    gram_distance: float
    unique: bool


@dataclass(frozen=True)
class RankTradeOff:
    """The text bound for each number r of leading singular directions of the image anchors.

    - ``ranks``, shape (R,): 1, 2, …, the rank of the anchors.
    - ``rho``, shape (R,): ρ(r), which bounds the text error within U_r. Nondecreasing.
    - ``sharp``, shape (R,): The tighter bound before the last step of the proof.
    - ``measured``, shape (R,): max ‖Proj_{U_r} (g − Qᵀ g̃)‖ over the texts.
    - ``outside``, shape (R,): max ‖g − Proj g‖ + ‖Qᵀg̃ − Proj Qᵀg̃‖ over the texts, which bounds the text error outside
      U_r. Nonincreasing.
    - ``whole``, shape (R,): √(sharp² + outside²), which bounds the whole text error ‖g − Qᵀ g̃‖, whatever the rank of
      the anchors.
    """

    ranks: np.ndarray
    rho: np.ndarray
    sharp: np.ndarray
    measured: np.ndarray
    outside: np.ndarray
    whole: np.ndarray

    @property
    def best(self) -> int:
        """The r at which the bound on the whole text error is smallest."""
        return int(self.ranks[self.whole.argmin()])

    def plot(self, ax: Axes | None = None, *, annotate: bool = True) -> Axes:
        """Draw the bound on the text error by r, its two parts, the error measured within U_r, and the best r."""
        from congruence.plotting import draw_rank_trade_off

        return draw_rank_trade_off({**vars(self), "best": self.best}, ax, annotate=annotate)


def polar_rotation(A: RowsLike, *, rtol: float | None = None) -> PolarRotation:
    """Compute the rotation nearest to a linear map A (d, d̃), d ≤ d̃, its polar factor, and its distance (proof of
    Theorem C.23).

    Singular values up to the share ``rtol`` of the largest count as zero; by default, those within rounding error.

    Examples
    --------
    >>> import numpy as np
    >>> polar_rotation(np.diag([1.1, -0.8])).rotation
    array([[ 1.,  0.],
           [ 0., -1.]])
    >>> round(polar_rotation(np.diag([1.1, -0.8])).distance, 12)
    0.2
    """
    matrix = as_matrix(A, "A", allow_zero_rows=True).astype(np.float64)
    check_upwards(*matrix.shape)
    svd = cross_svd(matrix)
    s, rotation = svd.s, rotation_from_svd(svd)
    return PolarRotation(
        rotation + 0.0,  # no negative zeros
        float(np.abs(s - 1).max()),
        float(np.abs(s**2 - 1).max()),
        numerical_rank(s, matrix.shape, rtol) == len(s),
    )


def orthogonal_bound(F: RowsLike, F_target: RowsLike, A: RowsLike, kappa: float) -> Bound:
    """Bound ‖f̃(x) − Q f(x)‖ for the polar factor Q of a linear map A, and measure it (Theorem C.23).

    ``F`` (n, d) and ``F_target`` (n, d̃) are images in both models, unit rows, d ≤ d̃; ``A`` (d, d̃) acts on rows, for
    example ``anchor_map(…).matrix``; ``kappa`` is κ_S of a subset S of these images, or an upper bound on it: at least
    1, and ``inf`` if they do not span Sym(d).

    The bound is Δ + κ (2 + Δ) Δ with Δ = max ‖f̃ − A f‖. ``conditions``: ``delta``, ``kappa``, ``polar_distance`` ‖A −
    Q‖₂, ``gram_distance`` ‖AᵀA − I‖₂, and ``sharp``, the step before the last, Δ + ‖A − Q‖₂, which needs no κ. The
    theorem assumes full column rank, so that Q is unique; the inequality holds without it.
    """
    F, F_target = paired_models(F, F_target, ("F", "F_target"))
    check_upwards(F.shape[1], F_target.shape[1])
    matrix = as_map(A, F.shape[1], F_target.shape[1], "A")
    if not kappa >= 1 - 1e-9:  # also refuses NaN
        raise ParameterError(f"Got `kappa={kappa!r}`; κ is at least 1.", "Pass `kappa=1.0` or more.")
    polar = polar_rotation(matrix)
    delta, measured = (
        float(np.linalg.norm(F @ linear - F_target, axis=1).max()) for linear in (matrix, polar.rotation)
    )
    value = delta + kappa * (2 + delta) * delta if np.isfinite(kappa) else float("inf")
    return Bound(
        "Thm C.23",
        "‖f̃(x) − Q f(x)‖, the error of the rotation on images",
        value,
        measured,
        FARTHEST,
        {
            "delta": delta,
            "kappa": float(kappa),
            "polar_distance": polar.distance,
            "gram_distance": polar.gram_distance,
            "sharp": delta + polar.distance,
        },
    )


def text_bound(
    F: RowsLike, G: RowsLike, F_target: RowsLike, G_target: RowsLike, Q: RowsLike, *, rtol: float | None = None
) -> Bound:
    """Bound ‖Qᵀ g̃(y) − g(y)‖ for texts by the errors of a rotation on image anchors, and measure it.

    The rows are those of ``kernel_agreement``: n ≥ d image anchors and any texts, d ≤ d̃. ``Q`` (d, d̃) is any
    rotation, acting on rows, such as that of ``polar_rotation``, or ``rotation_`` of an ``OrthogonalMap`` with
    ``center=False``. Singular values of F up to the share ``rtol`` of the largest count as zero; by default, those
    within rounding error.

    The bound is √n (ε′ + δ_f) / σ_min(F), infinite if the anchors leave directions of the source uncovered.
    ``conditions``: ``epsilon``, ``delta_f``, ``sigma_min``, ``n_anchors``, ``rank``, and ``sharp``, (max ‖k(y) −
    k̃(y)‖₂ + ‖F̃ − F Q‖₂) / σ_min(F).

    Source: Gupta et al. (2026), Theorem C.25, with √n in place of √d̃; see the docstring of the module.
    """
    errors = _TextErrors(F, G, F_target, G_target, Q, rtol)
    sigma = errors.s[-1] if errors.rank == errors.width else 0.0
    quantity = "‖Qᵀ g̃(y) − g(y)‖, the error of the rotation on texts"
    return errors.bound("Thm C.25", quantity, float(sigma), errors.rank, errors.whole)


def projected_text_bound(
    F: RowsLike,
    G: RowsLike,
    F_target: RowsLike,
    G_target: RowsLike,
    Q: RowsLike,
    rank: int | None = None,
    *,
    rtol: float | None = None,
) -> Bound:
    """Bound the text error within the directions that image anchors cover, and measure it; any number of anchors will
    do.

    The bound is ρ(r) = √n (ε + δ_f) / σ_r(F) for ‖Proj_{U_r} (g − Qᵀ g̃)‖, where r, ``rank``, is the number of leading
    right singular directions of F: all of them by default, which is Theorem C.28 of Gupta et al. (2026). Arguments and
    ``conditions`` are those of ``text_bound``, with ``sigma_min`` = σ_r.
    """
    errors = _TextErrors(F, G, F_target, G_target, Q, rtol)
    r = errors.rank if rank is None else int(check_positive(rank, "rank", integer=True))
    if r > errors.rank:
        raise ParameterError(f"Got `rank={r}`, above that of the anchors.", f"Pass `rank={errors.rank}` or less.")
    quantity = f"‖Proj (g(y) − Qᵀ g̃(y))‖, the error on texts along {r} directions of the image anchors"
    return errors.bound("Thm C.28", quantity, float(errors.s[r - 1]), r, float(errors.within[r - 1]))


def rank_trade_off(
    F: RowsLike, G: RowsLike, F_target: RowsLike, G_target: RowsLike, Q: RowsLike, *, rtol: float | None = None
) -> RankTradeOff:
    """Return the bound of ``projected_text_bound`` for every r, and a bound on the whole text error.

    ρ(r) alone is smallest at r = 1, where it does not bound the error in the other directions, which the components of
    both models' texts outside U_r do: ‖h‖² ≤ ρ(r)² + (‖(I−P)g‖ + ‖(I−P)Qᵀg̃‖)², here with the sharp form of ρ. ``best``
    is the r that minimizes this sum. This step is not in the paper.
    """
    errors = _TextErrors(F, G, F_target, G_target, Q, rtol)
    r, s = errors.rank, errors.s[: errors.rank]
    sharp, outside = errors.sharp / s, errors.beyond[:r]
    whole = np.sqrt(sharp**2 + outside**2)
    return RankTradeOff(np.arange(1, r + 1), errors.loose / s, sharp, errors.within[:r], outside, whole)


class _TextErrors:
    """Errors of a rotation on texts, measured and bounded, in each singular direction of the image anchors."""

    def __init__(
        self, F: RowsLike, G: RowsLike, F_target: RowsLike, G_target: RowsLike, Q: RowsLike, rtol: float | None
    ) -> None:
        F, G, F_target, G_target = dual_encoders(F, G, F_target, G_target)
        Q = as_rotation(Q, F.shape[1], F_target.shape[1])
        self.n, self.width = F.shape
        svd = cross_svd(F)
        self.s, Vt = svd.s, svd.Vt
        self.rank = numerical_rank(self.s, F.shape, rtol)
        residual = F_target - F @ Q
        self.delta_f = float(np.linalg.norm(residual, axis=1).max())
        self.epsilon = longest = self.whole = 0.0
        self.within, self.beyond = np.zeros(len(self.s)), np.zeros(len(self.s))
        for part in blocks(len(G), 8 * (3 * self.n + 8 * self.width)):
            texts, mapped = G[part], G_target[part] @ Q.T
            gap = texts @ F.T - G_target[part] @ F_target.T
            self.epsilon = max(self.epsilon, float(np.abs(gap).max()))
            longest = max(longest, float(np.linalg.norm(gap, axis=1).max()))
            self.whole = max(self.whole, float(np.linalg.norm(texts - mapped, axis=1).max()))
            within = np.sqrt(_squared_projections(texts - mapped, Vt))
            beyond = sum(
                np.sqrt(np.maximum((Z**2).sum(axis=1)[:, None] - _squared_projections(Z, Vt), 0))
                for Z in (texts, mapped)
            )
            self.within = np.maximum(self.within, within.max(axis=0))
            self.beyond = np.maximum(self.beyond, np.max(beyond, axis=0))
        # F h(y) = k(y) − k̃(y) + (F̃ − F Q) g̃(y), with ‖g̃‖ = 1.
        self.loose = float(np.sqrt(self.n)) * (self.epsilon + self.delta_f)
        self.sharp = longest + float(scipy.linalg.svdvals(residual)[0])

    def bound(self, theorem: str, quantity: str, sigma: float, rank: int, measured: float) -> Bound:
        conditions = {
            "epsilon": self.epsilon,
            "delta_f": self.delta_f,
            "sigma_min": sigma,
            "n_anchors": float(self.n),
            "rank": float(rank),
            "sharp": self.sharp / sigma if sigma else float("inf"),
        }
        return Bound(theorem, quantity, self.loose / sigma if sigma else float("inf"), measured, FARTHEST, conditions)


def _squared_projections(Z: np.ndarray, Vt: np.ndarray) -> np.ndarray:
    """Return ‖Proj_{U_r} z‖² for each row z and each r."""
    return np.cumsum((Z @ Vt.T) ** 2, axis=1)
