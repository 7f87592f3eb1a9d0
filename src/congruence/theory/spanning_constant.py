"""How strongly the lengths of the anchors hold a linear map to a rotation: the constant of Theorem C.23."""

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

#: Linear programmes are solved up to this many features of all rows together, about a second each.
_LP_FEATURES = 100_000
_ROUNDS = 50


@dataclass(frozen=True)
class Kappa:
    """Bounds on κ_S = sup over symmetric M ≠ 0 of ‖M‖₂ / max over anchors u of |uᵀ M u|.

    Attributes
    ----------
    lower, upper : float
        κ_S lies between them; both are infinite where the anchors are not Sym(d)-spanning.
    certified : bool
        Whether ``upper`` is proven. ``lower`` always is, by ``witness``.
    witness : ndarray, shape (d, d), or None
        A symmetric M with |uᵀ M u| ≤ 1 on every anchor and ‖M‖₂ = ``lower``; where ``lower`` is infinite, an M with
        ‖M‖_F = 1 that no anchor sees, or None if there are too many rows to compute one.
    direction : ndarray, shape (d,), or None
        The unit vector v with |vᵀ M v| = ‖M‖₂: the length that the anchors say least about.
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
            "anchors kept in squared length to within ε leave other squared lengths free by κ·ε."
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

    If a linear map A keeps the squared length of every anchor to within ε, then ‖AᵀA − I‖₂ ≤ κ_S ε, and no smaller constant
    will do.

    Parameters
    ----------
    S : array_like, shape (n, d)
        Anchors: unit rows.
    rtol : float, optional
        As in :func:`congruence.theory.sym_spanning`, which decides whether κ is finite.
    starts : int, default=8
        Directions from which the lower bound is improved; used where n·d(d + 1)/2 ≤ 100,000 for linear programmes, and
        up to d = 76 for least squares.
    random_state : int, default=0

    Returns
    -------
    Kappa

    Raises
    ------
    ParameterError, InputError, ShapeError, DtypeError, NotFiniteError, ZeroRowError
        If arrays have the wrong shape, are not real numbers, contain NaN or infinity or have a row of zeros; a parameter has an invalid
        value; or the input cannot be used otherwise.

    References
    ----------
    Gupta et al. (2026), appendix C.6.2 (Theorem C.23).

    Notes
    -----
    By duality κ_S = max over unit v of h(v), h(v) = min{‖c‖₁ : Σ cᵢ uᵢuᵢᵀ = vvᵀ}: the squared length in direction v is
    a signed combination of the anchors' squared lengths, and κ says how dearly, in the worst direction, it has to be
    extrapolated. If v is an anchor, h(v) = 1.

    *In the plane* (d = 2) κ is exact: one of the vertices of the polar of a prism, one for each gap between neighboring anchors, has it. n log n.

    *Upper bound*, with T as in :func:`congruence.theory.sym_spanning`, the least of three: √n/σ_min(T), since ‖M‖₂ ≤ ‖M‖_F ≤ ‖T svec(M)‖₂/σ_min(T); the same with anchors weighted towards
    the D-optimal design, where programmes are solved; and ‖Σ|Gᵢ|‖₂ with svec(Gᵢ) = (TᵀT)⁻¹svec(uᵢuᵢᵀ), the price of the least-squares c in its worst direction, up to d = 76.
    The last is nearest where anchors are few, the second where they are many; as anchors fill the sphere and κ falls to 1, both stay near d/√2.
    *Lower bound*: any M gives one. For a fixed v, h(v) and its M are a linear programme (HiGHS); replacing v by
    the eigenvector of M with the largest |eigenvalue| never lowers h, so the two steps alternate until they stop. Where
    the programme is too large, least squares take its place: M = argmin ‖T svec(M)‖₂ with vᵀMv = 1. κ
    is the maximum of a convex function, so neither finds it for
    certain. Where we tried, the bounds were a factor of 1 to 2.1 apart with linear programmes and 4 to 9 without.

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
        least = float(1 / (A**2).max())
        return Kappa(least, least, True, np.array([[least]]), np.ones(1))
    D = anchors_needed(d)
    spanning, factors = analyze_spanning(S, A, rtol, random_state)
    if not spanning.spans:
        M = spanning.witness
        return Kappa(np.inf, np.inf, True, M, None if M is None else _longest(M)[1])
    assert spanning.witness is not None  # what spans was decomposed, or iterated on
    if d == 2:
        value, M, v = in_the_plane(A)
        return Kappa(value, value, True, M, v)
    upper = float(np.sqrt(n) / spanning.sigma_min)
    best = max((_scaled(A, M) for M in (spanning.witness, np.eye(d))), key=lambda found: found[0])
    if factors is not None:
        s, vt = factors
        T = features(A) if n * D <= _LP_FEATURES else None
        upper = min(upper, combination_bound(A, T, s, vt), np.inf if T is None else design_bound(T))
        first = best[2]
        for v in [first, *_directions(np.random.default_rng(random_state), starts - 1, d)]:
            last = 0.0
            for _ in range(_ROUNDS):
                f = pack(np.outer(v, v))
                m = _programme(T, f) if T is not None else vt.T @ ((vt @ f) / s**2)
                if m is None:
                    break
                found = _scaled(A, unpack(m, d))
                best = max(best, found, key=lambda found: found[0])
                reached = found[0] / (1.0 if T is not None else float(np.linalg.norm(quadratic_forms(A, found[1]))))
                if reached <= last * (1 + 1e-9):
                    break
                last, v = reached, found[2]
    lower, M, v = best
    return Kappa(lower, max(upper, lower), spanning.exact, M, v)


def _directions(rng: np.random.Generator, count: int, d: int) -> np.ndarray:
    return np.asarray(normalize_rows(rng.standard_normal((count, d))))


def _longest(M: np.ndarray) -> tuple[float, np.ndarray]:
    """Return ‖M‖₂ and the direction that has it."""
    values, vectors = scipy.linalg.eigh(M)
    k = int(np.abs(values).argmax())
    return float(abs(values[k])), vectors[:, k]


def _scaled(A: np.ndarray, M: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """Scale M so that no anchor sees more than 1 of it; return ‖M‖₂, M and its direction."""
    M = M / np.abs(quadratic_forms(A, M)).max()
    length, v = _longest(M)
    return length, M, v


def _programme(T: np.ndarray, f: np.ndarray) -> np.ndarray | None:
    """Maximise ⟨f, m⟩ subject to |T m| ≤ 1; None if the solver gives up."""
    solved = linprog(-f, A_ub=np.vstack([T, -T]), b_ub=np.ones(2 * len(T)), bounds=(None, None), method="highs")
    x: np.ndarray | None = solved.x
    return x
