"""From agreeing kernels to a linear map, to a rotation, and from images to texts: Theorems 5.3, C.21, C.23, C.25, C.28.

*Images.* For m text anchors with rows G (m, d) and G̃ (m, d̃), an image has the scores k = G f and k̃ = G̃ f̃. If these are
equal and G̃ has rank d̃, f̃ = G̃⁺ k̃ = G̃⁺ G f: the map is A = G̃⁺ G, for m = d̃ the paper's G̃^{-⊤} Gᵀ. In general f̃ − A f =
G̃⁺ (k̃ − k), so that with |k̃ − k| ≤ ε in each of m coordinates ‖f̃ − A f‖ ≤ ‖k̃ − k‖₂ / σ_min(G̃) ≤ √m ε / σ_min(G̃). This is
Theorem C.21 with √m for √d̃; more anchors do not loosen it, since σ_min grows like √m.

*Texts* are bounded through n image anchors. For h = g − Qᵀ g̃ and each anchor, ⟨f(xⱼ), h⟩ is the disagreement of the
kernels, at most ε′, and ⟨f̃(xⱼ) − Q f(xⱼ), g̃⟩, at most δ_f: hence ‖F h‖₂ ≤ √n (ε′ + δ_f) (the paper prints √d̃, which is
looser). With σᵢ and vᵢ the singular values and right vectors of F, U_r the span of the first r of them, ‖F h‖² = Σᵢ σᵢ²
⟨vᵢ, h⟩² ≥ σ_r² ‖Proj_{U_r} h‖², so that ‖Proj_{U_r} h‖ ≤ ρ(r) = √n (ε′ + δ_f) / σ_r for *every* r up to the rank of F:
with r the rank, Theorem C.28; with r = d, Theorem C.25. For smaller r it says more about fewer directions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import scipy.linalg

from congruence._utils.arrays import blocks
from congruence._utils.plain import PlainData
from congruence._utils.typing import RowsLike
from congruence._utils.validation import as_matrix, check_positive
from congruence.errors import InputError, ParameterError, TooFewAnchorsError
from congruence.linalg.procrustes import cross_svd, rotation_from_svd
from congruence.theory._base import (
    FARTHEST,
    LEVELS,
    Bound,
    as_map,
    divided,
    dual_encoders,
    longest,
    numerical_rank,
    paired_models,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class AnchorMap:
    """The linear map that the scores against text anchors determine.

    - ``matrix``, shape (d, d̃): Aᵀ, acting on rows: ``F @ matrix`` estimates ``F_target``, for images.
    - ``sigma_min``, ``rank``: Smallest singular value of G̃ on the directions that its rows span, and their number.
    - ``full_column_rank``: Whether A has rank d, which the text half of Theorem 5.3 and Theorem C.23 require.
    """

    matrix: np.ndarray
    sigma_min: float
    rank: int
    full_column_rank: bool
    n_anchors: int


def anchor_map(G: RowsLike, G_target: RowsLike, *, allow_rank_deficient: bool = False) -> AnchorMap:
    """Compute the linear map for images from texts alone, A = G̃⁺ G (Theorem 5.3, appendix C.5.1).

    ``G`` (m, d) and ``G_target`` (m, d̃) are text anchors in both models, unit rows, with G̃ of rank d̃ and so m ≥ d̃,
    unless ``allow_rank_deficient``: A then maps into the span of the target's anchors only. The widths may be any. The
    kernels are assumed to agree exactly; for practical use, fit a map on pairs of the same modality.

    Examples
    --------
    >>> import numpy as np
    >>> from congruence.synthetic import random_rotation
    >>> G, Q = random_rotation(4, random_state=0), random_rotation(4, random_state=1)
    >>> bool(np.allclose(anchor_map(G, G @ Q).matrix, Q))
    True
    """
    G, G_target = paired_models(G, G_target, ("G", "G_target"))
    found = _solve(G, G_target)
    m, d_target = G_target.shape
    if found.rank < d_target and not allow_rank_deficient:
        problem = f"Got {m} text anchors that span {found.rank} of the target's {d_target} dimensions"
        remedy = "or pass `allow_rank_deficient=True` for the map into their span"
        if m < d_target:
            raise TooFewAnchorsError(f"{problem}; expected at least {d_target} anchors.", f"Add some, {remedy}.")
        raise InputError(f"{problem}.", f"Choose more varied anchors, {remedy}.")
    return found


def _solve(G: np.ndarray, G_target: np.ndarray) -> AnchorMap:
    """Return G̃⁺ G on the directions that G̃ covers."""
    svd = cross_svd(G_target)
    rank = numerical_rank(svd.s, G_target.shape)
    U, s, Vt = svd.U[:, :rank], svd.s[:rank], svd.Vt[:rank]
    # The rank of A is that of Uᵀ G. In A itself, rounding error divided by a small singular value could count as a
    # direction.
    full = numerical_rank(scipy.linalg.svdvals(U.T @ G), G.shape) == G.shape[1]
    return AnchorMap((G.T @ (U / s)) @ Vt, float(s[-1]), rank, full, len(G))


def linear_bound(F: RowsLike, G: RowsLike, F_target: RowsLike, G_target: RowsLike) -> Bound:
    """Bound ‖f̃(x) − A f(x)‖ for images by the disagreement of the kernels, and measure it (Theorem C.21).

    The rows are those of ``kernel_agreement``, with text anchors in G and G̃. The bound is √m ε / σ_min(G̃), infinite
    if the anchors leave directions of the target uncovered; ``measured`` is Δ of Theorem C.23, and ``trivial`` 1, the
    error of A = 0. ``conditions``: ``epsilon``, ``sigma_min``, ``n_anchors``, ``rank``, and ``sharp``, the step before
    the last, max ‖k̃(x) − k(x)‖₂ / σ_min(G̃).
    """
    F, G, F_target, G_target = dual_encoders(F, G, F_target, G_target)
    A = _solve(G, G_target)
    m, d_target = G_target.shape
    epsilon = farthest = delta = 0.0
    for part in blocks(len(F), 8 * 3 * (m + d_target)):
        gap = F_target[part] @ G_target.T - F[part] @ G.T
        epsilon = max(epsilon, float(np.abs(gap).max()))
        farthest = max(farthest, longest(gap))
        delta = max(delta, longest(F_target[part] - F[part] @ A.matrix))
    sigma = A.sigma_min if A.rank == d_target else 0.0
    quantity = "‖f̃(x) − A f(x)‖, the error of the linear map on images"
    numbers = {"epsilon": epsilon, "sigma_min": sigma, "n_anchors": float(m), "rank": float(A.rank)}
    value, sharp = divided(m**0.5 * epsilon, sigma), divided(farthest, sigma)
    zero = "the map A = 0, which sends every image to the zero vector"
    return Bound("Thm C.21", quantity, value, delta, 1.0, {**numbers, "sharp": sharp}, zero)


@dataclass(frozen=True)
class TextError(PlainData):
    """Error in the text half of Theorem 5.3; all values are zero if its conditions hold.

    - ``largest``, ``mean``, ``quantiles``: Of ‖Proj_{Im A} g̃(y) − A(AᵀA)⁻¹ g(y)‖ over the texts.
    - ``sigma_min``, ``sigma_max``: Smallest and largest singular value of A. Texts are mapped by A^{-⊤}, so a small
      σ_min(A) amplifies their errors.
    """

    largest: float
    mean: float
    quantiles: dict[float, float]
    sigma_min: float
    sigma_max: float


def linear_text_error(G: RowsLike, G_target: RowsLike, A: RowsLike) -> TextError:
    """Measure the distance between Proj_{Im A} g̃(y) and A(AᵀA)⁻¹ g(y), equal by Theorem 5.3 if the kernels agree on
    image anchors that span the source space.

    ``G`` (m, d) and ``G_target`` (m, d̃) are texts in both models, unit rows; ``A`` (d, d̃), d ≤ d̃, is the linear map
    for images, acting on rows.
    """
    G, G_target = paired_models(G, G_target, ("G", "G_target"))
    matrix = as_map(A, G.shape[1], G_target.shape[1], "A")
    # With Aᵀ = W S Vᵀ the columns of V span Im A, and A(AᵀA)⁻¹ = V S⁻¹ Wᵀ: compare the coordinates along V.
    svd = cross_svd(matrix)
    W, s, Vt = svd.U, svd.s, svd.Vt
    if (rank := numerical_rank(s, matrix.shape)) < len(matrix):
        problem = f"Got A of rank {rank}; expected full column rank {len(matrix)}."
        raise InputError(problem, "Take anchors that span the source.")
    errors = np.linalg.norm(G_target @ Vt.T - (G @ W) / s, axis=1)
    by_level = dict(zip(LEVELS, np.quantile(errors, LEVELS, method="inverted_cdf").tolist(), strict=True))
    return TextError(float(errors.max()), float(errors.mean()), by_level, float(s[-1]), float(s[0]))


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


def polar_rotation(A: RowsLike, *, rtol: float | None = None) -> PolarRotation:
    """Compute the rotation nearest to a linear map A (d, d̃), d ≤ d̃, its polar factor, and its distance (proof of
    Theorem C.23).

    Singular values up to the share ``rtol`` of the largest count as zero; by default, those within rounding error.
    """
    matrix = as_matrix(A, "A", allow_zero_rows=True)
    svd = cross_svd(as_map(matrix, len(matrix), matrix.shape[1], "A"))
    s = svd.s
    unique = numerical_rank(s, matrix.shape, rtol) == len(s)
    rotation = rotation_from_svd(svd) + 0.0  # no negative zeros
    return PolarRotation(rotation, float(np.abs(s - 1).max()), float(np.abs(s**2 - 1).max()), unique)


def orthogonal_bound(F: RowsLike, F_target: RowsLike, A: RowsLike, kappa: float) -> Bound:
    """Bound ‖f̃(x) − Q f(x)‖ for the polar factor Q of a linear map A, and measure it (Theorem C.23).

    ``F`` (n, d) and ``F_target`` (n, d̃) are images in both models, unit rows; ``A`` (d, d̃), d ≤ d̃, acts on rows, for
    example ``anchor_map(…).matrix``; ``kappa`` is κ_S of a subset S of these images, or an upper bound on it: at least
    1, and ``inf`` if they do not span Sym(d).

    The bound is Δ + κ (2 + Δ) Δ with Δ = max ‖f̃ − A f‖. ``conditions``: ``delta``, ``kappa``, ``polar_distance`` ‖A −
    Q‖₂, ``gram_distance`` ‖AᵀA − I‖₂, and ``sharp``, the step before the last, Δ + ‖A − Q‖₂, which needs no κ. The
    theorem assumes full column rank, so that Q is unique; the inequality holds without it.
    """
    F, F_target = paired_models(F, F_target, ("F", "F_target"))
    matrix = as_map(A, F.shape[1], F_target.shape[1], "A")
    if not kappa >= 1 - 1e-9:  # also refuses NaN
        raise ParameterError(argument="kappa", got=kappa, expected="at least 1")
    polar = polar_rotation(matrix)
    delta, measured = (longest(F @ linear - F_target) for linear in (matrix, polar.rotation))
    value = delta + kappa * (2 + delta) * delta if np.isfinite(kappa) else float("inf")
    conditions = {
        "delta": delta,
        "kappa": float(kappa),
        "polar_distance": polar.distance,
        "gram_distance": polar.gram_distance,
        "sharp": delta + polar.distance,
    }
    quantity = "‖f̃(x) − Q f(x)‖, the error of the rotation on images"
    return Bound("Thm C.23", quantity, value, measured, FARTHEST, conditions)


def text_bound(
    F: RowsLike, G: RowsLike, F_target: RowsLike, G_target: RowsLike, Q: RowsLike, *, rtol: float | None = None
) -> Bound:
    """Bound ‖Qᵀ g̃(y) − g(y)‖ for texts by the errors of a rotation on image anchors, and measure it (Theorem C.25,
    with √n in place of √d̃).

    The rows are those of ``kernel_agreement``: n ≥ d image anchors and any texts. ``Q`` (d, d̃), d ≤ d̃, is any
    rotation, acting on rows, such as that of ``polar_rotation``, or ``rotation_`` of an ``OrthogonalMap`` with
    ``center=False``. Singular values of F up to the share ``rtol`` of the largest count as zero; by default, those
    within rounding error.

    The bound is √n (ε′ + δ_f) / σ_min(F), infinite if the anchors leave directions of the source uncovered.
    ``conditions``: ``epsilon``, ``delta_f``, ``sigma_min``, ``n_anchors``, ``rank``, and ``sharp``, (max ‖k(y) −
    k̃(y)‖₂ + ‖F̃ − F Q‖₂) / σ_min(F).
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
    do (Theorem C.28).

    The bound is ρ(r) = √n (ε + δ_f) / σ_r(F) for ‖Proj_{U_r} (g − Qᵀ g̃)‖, where r, ``rank``, is the number of leading
    right singular directions of F: all of them by default. Arguments and ``conditions`` are those of ``text_bound``,
    with ``sigma_min`` = σ_r.
    """
    errors = _TextErrors(F, G, F_target, G_target, Q, rtol)
    r = errors.rank if rank is None else int(check_positive(rank, "rank", integer=True))
    if r > errors.rank:
        raise ParameterError(f"Got `rank={r}`, above that of the anchors.", f"Pass `rank={errors.rank}` or less.")
    quantity = f"‖Proj (g(y) − Qᵀ g̃(y))‖, the error on texts along {r} directions of the image anchors"
    return errors.bound("Thm C.28", quantity, float(errors.s[r - 1]), r, float(errors.within[r - 1]))


@dataclass(frozen=True)
class RankTradeOff:
    """The text bound for each number r of leading singular directions of the image anchors; arrays of shape (R,).

    - ``ranks``: 1, 2, …, the rank of the anchors.
    - ``rho``, ``sharp``: ρ(r), which bounds the text error within U_r, and the bound before the last step of the proof.
    - ``measured``: max ‖Proj_{U_r} (g − Qᵀ g̃)‖ over the texts.
    - ``outside``: max ‖g − Proj g‖ + ‖Qᵀg̃ − Proj Qᵀg̃‖ over the texts, which bounds the text error outside U_r.
    - ``whole``: √(sharp² + outside²), which bounds the whole text error, whatever the rank of the anchors.
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


def rank_trade_off(
    F: RowsLike, G: RowsLike, F_target: RowsLike, G_target: RowsLike, Q: RowsLike, *, rtol: float | None = None
) -> RankTradeOff:
    """Return the bound of ``projected_text_bound`` for every r, and a bound on the whole text error.

    ρ(r) alone is smallest at r = 1, where it does not bound the error in the other directions, which the components of
    both models' texts outside U_r do: ‖h‖² ≤ ρ(r)² + (‖(I−P)g‖ + ‖(I−P)Qᵀg̃‖)². This step is not in the paper.
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
        Q = as_map(Q, F.shape[1], F_target.shape[1], "Q", rotation=True)
        self.n, self.width = F.shape
        svd = cross_svd(F)
        self.s, Vt = svd.s, svd.Vt
        self.rank = numerical_rank(self.s, F.shape, rtol)
        residual = F_target - F @ Q
        self.delta_f = longest(residual)
        self.epsilon = farthest = self.whole = 0.0
        self.within, self.beyond = np.zeros(len(self.s)), np.zeros(len(self.s))
        for part in blocks(len(G), 8 * (3 * self.n + 8 * self.width)):
            texts, mapped = G[part], G_target[part] @ Q.T
            gap = texts @ F.T - G_target[part] @ F_target.T
            self.epsilon = max(self.epsilon, float(np.abs(gap).max()))
            farthest = max(farthest, longest(gap))
            self.whole = max(self.whole, longest(texts - mapped))
            within = np.sqrt(_squared_projections(texts - mapped, Vt))
            beyond = sum(
                np.sqrt(np.maximum((Z**2).sum(axis=1)[:, None] - _squared_projections(Z, Vt), 0))
                for Z in (texts, mapped)
            )
            self.within = np.maximum(self.within, within.max(axis=0))
            self.beyond = np.maximum(self.beyond, np.max(beyond, axis=0))
        # F h(y) = k(y) − k̃(y) + (F̃ − F Q) g̃(y), with ‖g̃‖ = 1.
        self.loose = float(np.sqrt(self.n)) * (self.epsilon + self.delta_f)
        self.sharp = farthest + float(scipy.linalg.svdvals(residual)[0])

    def bound(self, theorem: str, quantity: str, sigma: float, rank: int, measured: float) -> Bound:
        conditions = {
            "epsilon": self.epsilon,
            "delta_f": self.delta_f,
            "sigma_min": sigma,
            "n_anchors": float(self.n),
            "rank": float(rank),
            "sharp": divided(self.sharp, sigma),
        }
        return Bound(theorem, quantity, divided(self.loose, sigma), measured, FARTHEST, conditions)


def _squared_projections(Z: np.ndarray, Vt: np.ndarray) -> np.ndarray:
    """Return ‖Proj_{U_r} z‖² for each row z and each r."""
    return np.cumsum((Z @ Vt.T) ** 2, axis=1)
