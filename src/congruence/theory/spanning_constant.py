"""Bounds on the constant of Theorem C.23: how far a linear map that nearly preserves the anchors' lengths can be from an isometry."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import scipy.linalg
from scipy.optimize import linprog

from congruence._utils.arrays import normalize_rows
from congruence._utils.typing import RowsLike
from congruence._utils.validation import check_positive, check_seed
from congruence.theory._base import unit_rows
from congruence.theory._kappa import combination_bound, design_bound, in_the_plane
from congruence.theory.spanning import analyze_spanning, anchors_needed, features, pack, quadratic_forms, unpack

__all__ = ["Kappa", "kappa"]

#: Linear programs are solved for at most this many features of all rows together, which takes about a second each.
_LP_FEATURES = 100_000
#: Maximum number of steps from one direction in the search for the lower bound.
_STEPS = 50


@dataclass(frozen=True)
class Kappa:
    """Bounds on κ_S = sup over symmetric M ≠ 0 of ‖M‖₂ / max over anchors u of |uᵀ M u|.

    Attributes
    ----------
    lower, upper : float
        κ_S lies between them; both are infinite if the anchors are not Sym(d)-spanning.
    certified : bool
        Whether ``upper`` is proven. ``lower`` is always proven, by ``witness``.
    witness : ndarray, shape (d, d), or None
        A symmetric M with |uᵀ M u| ≤ 1 on every anchor and ‖M‖₂ = ``lower``. If ``lower`` is infinite, an M with
        ‖M‖_F = 1 and uᵀ M u = 0 on every anchor, or None if there are too many rows to compute one.
    direction : ndarray, shape (d,), or None
        The unit vector v with |vᵀ M v| = ‖M‖₂: the direction whose length the anchors constrain least.
    """

    lower: float
    upper: float
    certified: bool
    witness: np.ndarray | None
    direction: np.ndarray | None

    @property
    def exact(self) -> bool:
        """Whether the bounds meet."""
        return self.certified and (self.lower == self.upper or self.upper - self.lower <= 1e-9 * self.upper)

    def in_words(self) -> str:
        """Return the result as one sentence, for display."""
        if np.isinf(self.lower):
            return "κ is infinite: the anchors' lengths allow linear maps that are far from every rotation."
        if self.exact:
            return f"κ is {self.lower:.3g}."
        return (
            f"κ is at least {self.lower:.3g} and {'at most' if self.certified else 'by estimate at most'} {self.upper:.3g}: "
            "if the anchors' squared lengths are preserved to within ε, those of other unit vectors are to within κ·ε."
        )

    def to_dict(self) -> dict[str, object]:
        """Return all fields as plain data."""
        arrays = {
            name: None if array is None else array.tolist()
            for name, array in (("witness", self.witness), ("direction", self.direction))
        }
        return {**asdict(self), **arrays, "exact": self.exact}


def kappa(S: RowsLike, *, rtol: float | None = None, starts: int = 8, random_state: int = 0) -> Kappa:
    """Bound the constant κ_S of Theorem C.23 from both sides.

    If a linear map A preserves the squared length of every anchor to within ε, then ‖AᵀA − I‖₂ ≤ κ_S ε, and κ_S is the smallest
    such constant.

    Parameters
    ----------
    S : array_like, shape (n, d)
        Anchors: unit rows.
    rtol : float, optional
        As in :func:`congruence.theory.sym_spanning`, which decides whether κ is finite.
    starts : int, default=8
        Number of directions from which the lower bound is improved: by linear programs if n·d(d + 1)/2 ≤ 100,000, otherwise by
        least squares up to d = 76.
    random_state : int, default=0
        Seed of these directions.

    Returns
    -------
    Kappa

    References
    ----------
    Gupta et al. (2026), appendix C.6.2 (Theorem C.23).

    Notes
    -----
    By duality κ_S = max over unit v of h(v), h(v) = min{‖c‖₁ : Σ cᵢ uᵢuᵢᵀ = vvᵀ}: the squared length in direction v is
    a signed combination of the anchors' squared lengths, and κ is the ℓ₁ norm of its coefficients in the worst direction. If v is an
    anchor, h(v) = 1.

    *In the plane* (d = 2) κ is exact: it is attained at a vertex of the polar of a prism, one for each gap between neighboring anchors. O(n log n).

    *Upper bound*, with T as in :func:`congruence.theory.sym_spanning`, the smallest of three: √n/σ_min(T), since ‖M‖₂ ≤ ‖M‖_F ≤ ‖T svec(M)‖₂/σ_min(T);
    the same with anchors weighted towards the D-optimal design, if linear programs are solved; and ‖Σ|Gᵢ|‖₂ with svec(Gᵢ) = (TᵀT)⁻¹svec(uᵢuᵢᵀ),
    which bounds the ℓ₁ norm of the least-squares c in the worst direction, up to d = 76. The last is the tightest with few anchors, the second with many;
    as anchors fill the sphere and κ falls to 1, both stay near d/√2.

    *Lower bound*: any M gives one. For a fixed v, h(v) and its M are the solution of a linear program (HiGHS); replacing v by
    the eigenvector of M with the largest |eigenvalue| never lowers h, so the two steps alternate until h no longer rises. If
    the program is too large, it is replaced by least squares: M = argmin ‖T svec(M)‖₂ with vᵀMv = 1. κ
    is the maximum of a convex function, so neither is certain to find it. In our experiments the bounds were a factor of 1 to 2.1 apart with
    linear programs and 4 to 9 without.

    ‖M‖₂ is at least max|uᵀMu| on unit rows, so κ ≥ 1; more anchors never raise it.

    Examples
    --------
    >>> import numpy as np
    >>> angles = np.arange(8) * np.pi / 8
    >>> k = kappa(np.c_[np.cos(angles), np.sin(angles)])
    >>> round(k.lower, 6), round(float(1 / np.cos(np.pi / 8)), 6)
    (1.082392, 1.082392)
    """
    check_seed(random_state)
    A = unit_rows(S, "S")
    check_positive(starts, "starts", integer=True)
    n, d = A.shape
    if d == 1:  # M is a number
        value = float(1 / (A**2).max())
        return Kappa(value, value, True, np.array([[value]]), np.ones(1))
    D = anchors_needed(d)
    spanning, factors = analyze_spanning(S, A, rtol, random_state)
    if not spanning.spans:
        M = spanning.witness
        return Kappa(np.inf, np.inf, True, M, None if M is None else _longest(M)[1])
    assert spanning.witness is not None  # None only if the anchors do not span
    if d == 2:
        value, M, v = in_the_plane(A)
        return Kappa(value, value, True, M, v)
    upper = float(np.sqrt(n) / spanning.sigma_min)
    best = max((_scaled(A, M) for M in (spanning.witness, np.eye(d))), key=lambda candidate: candidate[0])
    if factors is not None:
        s, vt = factors
        T = features(A) if n * D <= _LP_FEATURES else None
        upper = min(upper, combination_bound(A, T, s, vt), np.inf if T is None else design_bound(T))
        first = best[2]
        for v in [first, *_random_directions(np.random.default_rng(random_state), starts - 1, d)]:
            last = 0.0
            for _ in range(_STEPS):
                f = pack(np.outer(v, v))
                m = _linear_program(T, f) if T is not None else vt.T @ ((vt @ f) / s**2)
                if m is None:
                    break
                candidate = _scaled(A, unpack(m, d))
                best = max(best, candidate, key=lambda candidate: candidate[0])
                value = candidate[0]
                if T is None:
                    value /= float(np.linalg.norm(quadratic_forms(A, candidate[1])))
                if value <= last * (1 + 1e-9):
                    break
                last, v = value, candidate[2]
    lower, M, v = best
    return Kappa(lower, max(upper, lower), spanning.exact, M, v)


def _random_directions(rng: np.random.Generator, count: int, d: int) -> np.ndarray:
    """Draw unit vectors uniformly."""
    return np.asarray(normalize_rows(rng.standard_normal((count, d))))


def _longest(M: np.ndarray) -> tuple[float, np.ndarray]:
    """Return ‖M‖₂ and the unit eigenvector that attains it."""
    values, vectors = scipy.linalg.eigh(M)
    k = int(np.abs(values).argmax())
    return float(abs(values[k])), vectors[:, k]


def _scaled(A: np.ndarray, M: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """Scale M so that |uᵀMu| ≤ 1 on every anchor; return ‖M‖₂, M and the unit eigenvector that attains ‖M‖₂."""
    M = M / np.abs(quadratic_forms(A, M)).max()
    length, v = _longest(M)
    return length, M, v


def _linear_program(T: np.ndarray, f: np.ndarray) -> np.ndarray | None:
    """Return the m that maximizes ⟨f, m⟩ subject to |T m| ≤ 1; None if the solver fails."""
    solved = linprog(-f, A_ub=np.vstack([T, -T]), b_ub=np.ones(2 * len(T)), bounds=(None, None), method="highs")
    x: np.ndarray | None = solved.x
    return x
