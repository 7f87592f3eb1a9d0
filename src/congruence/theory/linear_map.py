"""The linear map that agreeing kernels determine (Theorem 5.3), and its error if they do so only nearly (C.21).

For m text anchors with rows G (m, d) and G̃ (m, d̃), an image x has the scores k(x) = G f(x) and k̃(x) = G̃ f̃(x). If
these are equal and G̃ has rank d̃, f̃(x) = G̃⁺ k̃(x) = G̃⁺ G f(x): the map is A = G̃⁺ G, which for m = d̃ is the
paper's G̃^{-⊤} Gᵀ (its matrices have items as columns). In general f̃ − A f = G̃⁺ (k̃ − k), so that with |k̃ − k| ≤ ε
in each of m coordinates

    ‖f̃ − A f‖ ≤ ‖k̃ − k‖₂ / σ_min(G̃) ≤ √m ε / σ_min(G̃).

This is Theorem C.21 with √m for √d̃. More anchors do not loosen it: σ_min grows like √m for anchors drawn alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.linalg

from congruence._utils.arrays import blocks
from congruence._utils.plain import PlainData
from congruence._utils.typing import RowsLike
from congruence.errors import InputError, TooFewAnchorsError
from congruence.linalg.procrustes import cross_svd
from congruence.theory._base import (
    Bound,
    as_map,
    check_levels,
    check_upwards,
    dual_encoders,
    numerical_rank,
    paired_models,
)


@dataclass(frozen=True)
class AnchorMap:
    """The linear map that the scores against text anchors determine.

    - ``matrix``, shape (d, d̃): Aᵀ, acting on rows: ``F @ matrix`` estimates ``F_target``, for images.
    - ``sigma_min``: Smallest singular value of G̃ on the directions that its rows span.
    - ``rank``: Number of these directions.
    - ``full_column_rank``: Whether A has rank d, which the text half of Theorem 5.3 and Theorem C.23 require.
    """

    matrix: np.ndarray
    sigma_min: float
    rank: int
    full_column_rank: bool
    n_anchors: int


@dataclass(frozen=True)
class TextError(PlainData):
    """Error in the text half of Theorem 5.3; all values are zero if its conditions hold.

    - ``largest``, ``mean``: Largest and mean ‖Proj_{Im A} g̃(y) − A(AᵀA)⁻¹ g(y)‖ over the texts.
    - ``quantiles``: Quantiles of this error by level.
    - ``sigma_min``, ``sigma_max``: Smallest and largest singular value of A. Texts are mapped by A^{-⊤}, so a small
      σ_min(A) amplifies their errors.
    """

    largest: float
    mean: float
    quantiles: dict[float, float]
    sigma_min: float
    sigma_max: float


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
    solution = _solve(G, G_target)
    m, d_target = G_target.shape
    if solution.rank < d_target and not allow_rank_deficient:
        problem = f"Got {m} text anchors that span {solution.rank} of the target's {d_target} dimensions"
        remedy = "or pass `allow_rank_deficient=True` for the map into their span"
        if m < d_target:
            raise TooFewAnchorsError(f"{problem}; expected at least {d_target} anchors.", f"Add some, {remedy}.")
        raise InputError(f"{problem}.", f"Choose more varied anchors, {remedy}.")
    return solution


def linear_bound(F: RowsLike, G: RowsLike, F_target: RowsLike, G_target: RowsLike) -> Bound:
    """Bound ‖f̃(x) − A f(x)‖ for images by the disagreement of the kernels, and measure it.

    The rows are those of ``kernel_agreement``, with text anchors in G and G̃. The bound is √m ε / σ_min(G̃), infinite
    if the anchors leave directions of the target uncovered; ``measured`` is Δ of Theorem C.23, and ``trivial`` 1, the
    error of A = 0. ``conditions``: ``epsilon``, ``sigma_min``, ``n_anchors``, ``rank``, and ``sharp``, the step before
    the last, max ‖k̃(x) − k(x)‖₂ / σ_min(G̃).

    Source: Gupta et al. (2026), Theorem C.21; the docstring of the module proves it for m > d̃.
    """
    F, G, F_target, G_target = dual_encoders(F, G, F_target, G_target)
    A = _solve(G, G_target)
    m, d_target = G_target.shape
    epsilon = longest = delta = 0.0
    for part in blocks(len(F), 8 * 3 * (m + d_target)):
        gap = F_target[part] @ G_target.T - F[part] @ G.T
        epsilon = max(epsilon, float(np.abs(gap).max()))
        longest = max(longest, float(np.linalg.norm(gap, axis=1).max()))
        delta = max(delta, float(np.linalg.norm(F_target[part] - F[part] @ A.matrix, axis=1).max()))
    sigma = A.sigma_min if A.rank == d_target else 0.0
    return Bound(
        "Thm C.21",
        "‖f̃(x) − A f(x)‖, the error of the linear map on images",
        float(np.sqrt(m)) * epsilon / sigma if sigma else float("inf"),
        delta,
        1.0,
        {
            "epsilon": epsilon,
            "sigma_min": sigma,
            "n_anchors": float(m),
            "rank": float(A.rank),
            "sharp": longest / sigma if sigma else float("inf"),
        },
        "the map A = 0, which sends every image to the zero vector",
    )


def linear_text_error(
    G: RowsLike, G_target: RowsLike, A: RowsLike, quantiles: Sequence[float] = (0.5, 0.9, 0.99)
) -> TextError:
    """Measure the distance between Proj_{Im A} g̃(y) and A(AᵀA)⁻¹ g(y), equal by Theorem 5.3 if the kernels agree on
    image anchors that span the source space.

    ``G`` (m, d) and ``G_target`` (m, d̃) are texts in both models, unit rows, d ≤ d̃; ``A`` (d, d̃) is the linear map
    for images, acting on rows.
    """
    G, G_target = paired_models(G, G_target, ("G", "G_target"))
    d, d_target = G.shape[1], G_target.shape[1]
    check_upwards(d, d_target)
    matrix = as_map(A, d, d_target, "A")
    levels = check_levels(quantiles)
    # With Aᵀ = W S Vᵀ the columns of V span Im A, and A(AᵀA)⁻¹ = V S⁻¹ Wᵀ: compare the coordinates along V.
    svd = cross_svd(matrix)
    W, s, Vt = svd.U, svd.s, svd.Vt
    if (rank := numerical_rank(s, matrix.shape)) < d:
        raise InputError(f"Got A of rank {rank}; expected full column rank {d}.", "Take anchors that span the source.")
    errors = np.linalg.norm(G_target @ Vt.T - (G @ W) / s, axis=1)
    values = np.quantile(errors, levels, method="inverted_cdf").tolist()
    return TextError(
        float(errors.max()), float(errors.mean()), dict(zip(levels, values, strict=True)), float(s[-1]), float(s[0])
    )


def _solve(G: np.ndarray, G_target: np.ndarray) -> AnchorMap:
    """Return G̃⁺ G on the directions that G̃ covers."""
    svd = cross_svd(G_target)
    rank = numerical_rank(svd.s, G_target.shape)
    U, s, Vt = svd.U[:, :rank], svd.s[:rank], svd.Vt[:rank]
    matrix = (G.T @ (U / s)) @ Vt
    # The rank of A is that of Uᵀ G. In A itself, rounding error divided by a small singular value could count as a
    # direction.
    full = numerical_rank(scipy.linalg.svdvals(U.T @ G), G.shape) == G.shape[1]
    return AnchorMap(matrix, float(s[-1]), rank, full, len(G))
