"""Whether preserving the anchors' lengths forces a linear map to be a rotation (Definition 5.4, Theorem C.23)."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import scipy.linalg
from scipy.optimize import linprog
from scipy.sparse.linalg import LinearOperator, eigsh, lobpcg

from congruence._utils.arrays import blocks, normalize_rows
from congruence._utils.plain import PlainData
from congruence._utils.typing import RowsLike
from congruence._utils.validation import as_matrix, check_positive, check_seed
from congruence.theory._base import as_unit_rows
from congruence.theory.covered import rounding_floor

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Spanning(PlainData):
    """Whether the squares x xᵀ of a set of rows span the symmetric matrices.

    - ``n``, ``width``, ``dimension``: Number of rows, their width d, and d(d + 1)/2, the dimension of the symmetric
      matrices. Fewer rows than this cannot span it.
    - ``rank``: Number of dimensions that the squares span. If ``exact`` is False: a lower bound, or ``dimension`` if
      the estimate is that they span.
    - ``exact``: Whether ``rank`` and ``spans`` come from a complete decomposition; n < dimension is certain anyway.
    - ``sigma_min``, ``sigma_max``: The ``dimension``-th and the first singular value of the matrix whose rows are
      svec(x xᵀ). ``sigma_min`` is 0 if n < dimension, and an upper bound from an iteration if ``exact`` is False.
    - ``tolerance``: Singular values above this count as nonzero.
    - ``witness``, shape (d, d): The symmetric M with ‖M‖_F = 1 that minimizes √(Σ (xᵀ M x)²), or None. If the rows do
      not span, xᵀ M x vanishes on every row, and A = (I + tM)^½ with a small t preserves the length of every anchor
      without being a rotation.
    - ``singular_values``, shape (min(n, dimension),): All singular values of that matrix, descending; None if ``exact``
      is False.
    """

    n: int
    width: int
    dimension: int
    rank: int
    spans: bool
    exact: bool
    sigma_min: float
    sigma_max: float
    tolerance: float
    witness: np.ndarray | None
    singular_values: np.ndarray | None = None

    def plot(self, ax: Axes | None = None, *, annotate: bool = True) -> Axes:
        """Draw the singular values and the tolerance on ``ax``; if not all were computed, the first and the last."""
        from congruence.plotting import draw_singular_values

        ends = {1: self.sigma_max} | ({self.dimension: self.sigma_min} if self.n >= self.dimension else {})
        values = ends if self.singular_values is None else dict(enumerate(self.singular_values.tolist(), start=1))
        title = f"Squares of the anchors: rank {self.rank:,}{'' if self.exact else ' or more'} of {self.dimension:,}"
        return draw_singular_values(
            values, ax, tolerance=self.tolerance, rank=self.rank, title=title, annotate=annotate
        )


#: Matrices with at most this many rows or columns are decomposed completely.
DENSE = 3_000
#: With fewer rows than dimensions, the matrix of features is decomposed if it has at most this many entries.
_FEATURES = 25_000_000
_LOBPCG_VECTORS = 4
_LOBPCG_ITERATIONS = 300


def anchors_needed(d: int) -> int:
    """Return d(d + 1)/2, the fewest anchors that can be Sym(d)-spanning, and nearly always are (Definition 5.4)."""
    check_positive(d, "d", integer=True)
    return int(d) * (int(d) + 1) // 2


def sym_spanning(S: RowsLike, *, rtol: float | None = None, random_state: int = 0) -> Spanning:
    """Test whether rows S (n, d) are Sym(d)-spanning: no symmetric M ≠ 0 has xᵀ M x = 0 on all of them (Definition
    5.4).

    If the anchors are, a linear map that preserves the length of each preserves all lengths and angles (Lemma C.14); if
    not, some linear map that is no isometry preserves them. The scale of a row changes ``sigma_min`` but not the span.
    Singular values count that exceed the share ``rtol`` of the largest, by default that cannot be due to rounding.

    The rank is that of the n × D matrix T with rows svec(x xᵀ), D = d(d + 1)/2: the entries on the diagonal and √2
    times those above, so that T svec(M) = (xᵀ M x)_x and ‖svec(M)‖ = ‖M‖_F. Above D = 3,000 (d = 76) LOBPCG finds an
    upper bound of its smallest singular value: "does not span" has a witness, "spans" is an estimate. With n < D rows
    cannot span; the rank of a large T is a lower bound, from its Gram matrix (S Sᵀ)∘².

    >>> sym_spanning([[1, 0], [0, 1], [0.6, 0.8]]).spans, sym_spanning([[1, 0], [0, 1], [-1, 0]]).rank
    (True, 2)
    """
    check_seed(random_state)
    return _analyze(S, as_matrix(S, "S").astype(np.float64), rtol, random_state)[0]


def _analyze(
    S: RowsLike, A: np.ndarray, rtol: float | None, random_state: int
) -> tuple[Spanning, tuple[np.ndarray, np.ndarray] | None]:
    """Return the result of ``sym_spanning`` for checked anchors, and the factors of their features, if any."""
    n, d = A.shape
    D = anchors_needed(d)
    norm = float(np.sqrt(np.mean(np.einsum("ij,ij->i", A, A) ** 2)))

    def floor(top: float) -> float:
        return rounding_floor(S, (n, D), norm, top, rtol)

    if n >= D and D <= DENSE:
        s, vt = decompose(A)
        tolerance = floor(float(s[0]))
        rank = int(np.count_nonzero(s > tolerance))
        result = Spanning(n, d, D, rank, rank == D, True, float(s[-1]), float(s[0]), tolerance, unpack(vt[-1], d), s)
        return result, (s, vt)
    return (_too_few if n < D else _estimate)(A, floor, np.random.default_rng(random_state)), None


def _too_few(A: np.ndarray, floor: Callable[[float], float], rng: np.random.Generator) -> Spanning:
    """Return the result for fewer rows than dimensions, which cannot span: their rank, and a witness."""
    n, d = A.shape
    D = anchors_needed(d)
    # The rank of some of the rows is a lower bound on the rank of all.
    part = A[rng.permutation(n)[:DENSE]] if n > DENSE else A
    values, U = scipy.linalg.eigh((part @ part.T) ** 2, check_finite=False)
    nonzero = values > len(part) * np.finfo(np.float64).eps * values[-1]
    s = np.sqrt(np.maximum(values[::-1], 0))
    exact = bool(nonzero.all()) and len(part) == n
    if not exact and len(part) == n and n * D <= _FEATURES:
        s = scipy.linalg.svdvals(features(A), check_finite=False)
        exact = True
    tolerance = floor(float(s[0]))
    rank = int(np.count_nonzero(s > tolerance)) if exact else int(np.count_nonzero(s[: nonzero.sum()] > tolerance))
    witness = None
    if len(part) == n:
        M = rng.standard_normal((d, d))
        M = M + M.T
        for _ in range(3):  # project onto the null space; repeated passes remove the rounding error of the first
            c = U[:, nonzero] @ ((U[:, nonzero].T @ quadratic_forms(A, M)) / values[nonzero])
            M = M - (A * c[:, None]).T @ A
        witness = M / np.linalg.norm(M)
    return Spanning(n, d, D, rank, False, exact, 0.0, float(s[0]), tolerance, witness, s if exact else None)


def _estimate(A: np.ndarray, floor: Callable[[float], float], rng: np.random.Generator) -> Spanning:
    """Return the result for many rows, with the smallest singular value estimated without forming the features."""
    n, d = A.shape
    D = anchors_needed(d)

    def operator(act: Callable[[np.ndarray], np.ndarray]) -> LinearOperator:
        """Return a map of symmetric matrices as one of the columns svec(M)."""

        def on_columns(X: np.ndarray) -> np.ndarray:
            return np.column_stack([pack(act(unpack(x, d))) for x in X.reshape(D, -1).T]).reshape(X.shape)

        return LinearOperator((D, D), matvec=on_columns, matmat=on_columns, dtype=np.float64)

    squared = operator(lambda M: (A * quadratic_forms(A, M)[:, None]).T @ A)  # TᵀT
    top = float(np.sqrt(eigsh(squared, k=1, v0=rng.standard_normal(D), return_eigenvectors=False, tol=1e-6)[0]))
    values, vectors = scipy.linalg.eigh(A.T @ A / n, check_finite=False)
    in_a_hyperplane = bool(values[0] <= d * np.finfo(np.float64).eps * values[-1])
    if in_a_hyperplane:  # v⊥: xᵀ(vvᵀ)x = 0 for all rows
        witness, tolerance = np.outer(vectors[:, 0], vectors[:, 0]), floor(top)
    else:
        inverse = (vectors / values) @ vectors.T
        with warnings.catch_warnings():  # lobpcg warns that it did not converge; the result is reported as an estimate
            warnings.simplefilter("ignore", UserWarning)
            found, directions = lobpcg(
                squared,
                rng.standard_normal((D, _LOBPCG_VECTORS)),
                M=operator(lambda M: inverse @ M @ inverse),
                tol=1e-10 * top**2,
                maxiter=_LOBPCG_ITERATIONS,
                largest=False,
            )
        witness = unpack(directions[:, int(np.argmin(found))], d)
        witness /= np.linalg.norm(witness)
        # The iteration uses squares of singular values, so it cannot resolve values below the root of the precision.
        tolerance = max(floor(top), 1e-7 * top)
    least = float(np.linalg.norm(quadratic_forms(A, witness)))
    spans = not in_a_hyperplane and least > tolerance
    rank = D if spans else _too_few(A[rng.permutation(n)[: min(n, DENSE)]], floor, rng).rank
    return Spanning(n, d, D, rank, spans, False, least, top, tolerance, witness)


def quadratic_forms(A: np.ndarray, M: np.ndarray) -> np.ndarray:
    """Return xᵀ M x for each row x of A (n, d), shape (n,): the product T svec(M) without T."""
    return np.einsum("ij,ij->i", A @ M, A)


def pack(M: np.ndarray) -> np.ndarray:
    """Return svec(M), shape (d(d + 1)/2,): the entries on the diagonal, and those above times √2, to preserve norms."""
    i, j = np.triu_indices(len(M))
    return M[i, j] * np.where(i == j, 1, np.sqrt(2))


def unpack(x: np.ndarray, d: int) -> np.ndarray:
    """Return the symmetric matrix M, shape (d, d), with svec(M) = x."""
    i, j = np.triu_indices(d)
    M = np.empty((d, d))
    M[i, j] = x * np.where(i == j, 1, np.sqrt(0.5))
    M[j, i] = M[i, j]
    return M


def features(A: np.ndarray) -> np.ndarray:
    """Return svec(x xᵀ) of each row of A (n, d), shape (n, d(d + 1)/2)."""
    i, j = np.triu_indices(A.shape[1])
    out: np.ndarray = A[:, i] * A[:, j]
    out *= np.where(i == j, 1, np.sqrt(2))
    return out


def decompose(A: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return singular values (D,), descending, and right vectors of the features of n ≥ D rows: QR, then SVD."""
    D = anchors_needed(A.shape[1])
    R = np.empty((0, D))
    for rows in blocks(len(A), 8 * D, minimum=D):
        stacked = np.vstack([R, features(A[rows])])
        R = scipy.linalg.qr(stacked, mode="r", overwrite_a=True, check_finite=False)[0][:D]
    _, s, vt = scipy.linalg.svd(R, check_finite=False)
    return s, vt


#: Linear programs are solved for at most this many features of all rows together, which takes about a second each.
_LP_FEATURES = 100_000
#: Maximum number of steps from one direction in the search for the lower bound.
_STEPS = 50


@dataclass(frozen=True)
class Kappa(PlainData):
    """Bounds on κ_S = sup over symmetric M ≠ 0 of ‖M‖₂ / max over anchors u of |uᵀ M u|.

    - ``lower``, ``upper``: κ_S lies between them; both are infinite if the anchors are not Sym(d)-spanning.
    - ``certified``: Whether ``upper`` is proven. ``lower`` is always proven, by ``witness``.
    - ``witness``, shape (d, d): A symmetric M with |uᵀ M u| ≤ 1 on every anchor and ‖M‖₂ = ``lower``. If ``lower`` is
      infinite, an M with ‖M‖_F = 1 and uᵀ M u = 0 on every anchor, or None if there are too many rows to compute one.
    - ``direction``, shape (d,): The unit vector v with |vᵀ M v| = ‖M‖₂: the direction whose length the anchors
      constrain least.
    """

    _also = ("exact",)

    lower: float
    upper: float
    certified: bool
    witness: np.ndarray | None
    direction: np.ndarray | None

    @property
    def exact(self) -> bool:
        """Whether the bounds meet."""
        return self.certified and (self.lower == self.upper or self.upper - self.lower <= 1e-9 * self.upper)


def kappa(S: RowsLike, *, rtol: float | None = None, starts: int = 8, random_state: int = 0) -> Kappa:
    """Bound the constant κ_S of Theorem C.23 from both sides (appendix C.6.2): the smallest such that ‖AᵀA − I‖₂ ≤ κ_S
    ε for every linear map A that preserves the squared length of every anchor, unit rows S (n, d), to within ε.
    ``rtol`` is as in ``sym_spanning``; from ``starts`` random directions the lower bound is improved.

    By duality κ_S = max over unit v of h(v), h(v) = min{‖c‖₁ : Σ cᵢ uᵢuᵢᵀ = vvᵀ}. In the plane (d = 2) it is exact. The
    upper bound is the smallest of three (docs/research/theory.md). Any M gives a lower bound; for a fixed v, the best
    one solves a linear program, or, above 100,000 features, least squares up to d = 76. Replacing v by the eigenvector
    of M with the largest |eigenvalue| never lowers h, so the two steps alternate until h no longer rises. The bounds
    were a factor of 1 to 2.1 apart with linear programs and 4 to 9 without.
    """
    check_seed(random_state)
    A = as_unit_rows(S, "S")
    check_positive(starts, "starts", integer=True)
    n, d = A.shape
    if d == 1:  # M is a number
        value = float(1 / (A**2).max())
        return Kappa(value, value, True, np.array([[value]]), np.ones(1))
    D = anchors_needed(d)
    spanning, factors = _analyze(S, A, rtol, random_state)
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
        others = np.random.default_rng(random_state).standard_normal((starts - 1, d))
        for v in [first, *normalize_rows(others)]:
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


#: Iterations of the weights of anchors; the bound decreases little after ten.
_ITERATIONS = 12


def in_the_plane(A: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """Return κ of anchors (n, 2) that span Sym(2), an M (2, 2) that attains it and the unit v (2,) with |vᵀMv| = κ.

    Write M = aI + b · (reflection at angle w/2): for an anchor at angle θ, uᵀMu = a + b cos(2θ − w), and ‖M‖₂ = |a| +
    |b| is convex, hence largest at a vertex of the polar of {M : |uᵀMu| ≤ 1}: a + b cos(g/2) = 1 for neighbors at a gap
    g, whose normal is w, and a + b cos δ = −1 for the anchor nearest to w + π, at angle δ from w.
    """
    circle = 2 * np.pi
    t = np.sort(2 * np.arctan2(A[:, 1], A[:, 0]) % circle)
    half_gap = np.diff(t, append=t[0] + circle) / 2
    w = t + half_gap
    opposite = (w + np.pi) % circle
    after = np.searchsorted(t, opposite) % len(t)
    delta = np.max([np.abs((t[k] - w + np.pi) % circle - np.pi) for k in (after, after - 1)], axis=0)
    # cos(g/2) − cos δ as a product, which loses no digits if the two are close.
    b = 1 / (np.sin((delta + half_gap) / 2) * np.sin((delta - half_gap) / 2))
    a = 1 - b * np.cos(half_gap)
    k = int((np.abs(a) + b).argmax())
    M = a[k] * np.eye(2) + b[k] * np.array([[np.cos(w[k]), np.sin(w[k])], [np.sin(w[k]), -np.cos(w[k])]])
    angle = w[k] / 2 if a[k] >= 0 else (w[k] + np.pi) / 2
    return float(abs(a[k]) + b[k]), M, np.array([np.cos(angle), np.sin(angle)])


def combination_bound(A: np.ndarray, T: np.ndarray | None, s: np.ndarray, vt: np.ndarray) -> float:
    """Return an upper bound on κ: the ℓ₁ norm of the least-squares combination of anchors, maximized over directions.

    κ = max over unit v of min{‖c‖₁ : Σ cᵢ uᵢuᵢᵀ = vvᵀ}. The c of least squares is cᵢ = vᵀGᵢv with svec(Gᵢ) = (TᵀT)⁻¹
    svec(uᵢuᵢᵀ), so κ ≤ max Σ |vᵀGᵢv| ≤ ‖Σ |Gᵢ|‖₂. ``T`` has the features of A, computed by blocks if it is None.
    """
    n, d = A.shape
    i, j = np.triu_indices(d)
    inverse = (vt.T / s**2) @ vt
    total = np.zeros((d, d))
    for rows in blocks(n, 8 * (len(s) + 4 * d * d)):
        packed = (features(A[rows]) if T is None else T[rows]) @ inverse
        packed *= np.where(i == j, 1, np.sqrt(0.5))
        G = np.zeros((len(packed), d, d))
        G[:, i, j] = packed
        G[:, j, i] = packed
        values, V = np.linalg.eigh(G)
        total += np.einsum("kai,ki,kbi->ab", V, np.abs(values), V, optimize=True)
    return float(np.linalg.eigvalsh(total)[-1])


def design_bound(T: np.ndarray) -> float:
    """Return an upper bound on κ: the smallest 1/σ_min(√w T) over weights w that approach the D-optimal design.

    For w ≥ 0 of sum 1, ‖M‖₂ ≤ ‖√w T svec(M)‖₂/σ_min(√w T) ≤ max |uᵀMu|/σ_min(√w T). The multiplicative step wᵢ ← wᵢ ·
    tᵢᵀ(TᵀWT)⁻¹tᵢ/D increases the determinant (Titterington 1976); the bound holds at every step.
    """
    n, D = T.shape
    w, bound = np.full(n, 1 / n), np.inf
    for _ in range(_ITERATIONS):
        values, V = np.linalg.eigh(T.T @ (w[:, None] * T))
        if values[0] <= 0:
            break
        bound = min(bound, float(values[0] ** -0.5))
        w = w * ((T @ (V / np.sqrt(values))) ** 2).sum(axis=1) / D
        w /= w.sum()
    return bound
