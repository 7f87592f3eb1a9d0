"""Whether preserving the lengths of the anchors forces a linear map to be a rotation (Definition 5.4)."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import scipy.linalg
from scipy.sparse.linalg import LinearOperator, eigsh, lobpcg

from congruence._utils.arrays import blocks
from congruence._utils.typing import RowsLike
from congruence._utils.validation import as_matrix, check_positive, check_seed
from congruence.theory._spanning import Spanning
from congruence.theory.covered import rounding_floor

__all__ = [
    "Spanning",
    "analyze_spanning",
    "anchors_needed",
    "decompose",
    "features",
    "pack",
    "quadratic_forms",
    "sym_spanning",
    "unpack",
]

#: Matrices with at most this many rows or columns are decomposed completely.
DENSE = 3_000
#: With fewer rows than dimensions, the matrix of features is decomposed if it has at most this many entries.
_FEATURES = 25_000_000
_LOBPCG_VECTORS = 4
_LOBPCG_ITERATIONS = 300


def anchors_needed(d: int) -> int:
    """Return d(d + 1)/2, the fewest anchors that can be Sym(d)-spanning.

    Almost every set of this many anchors is Sym(d)-spanning: the exceptions have measure zero.

    References
    ----------
    Gupta et al. (2026), Definition 5.4.

    Examples
    --------
    >>> anchors_needed(512)
    131328
    """
    check_positive(d, "d", integer=True)
    return int(d) * (int(d) + 1) // 2


def sym_spanning(S: RowsLike, *, rtol: float | None = None, random_state: int = 0) -> Spanning:
    """Test whether rows are Sym(d)-spanning: no symmetric M ≠ 0 has xᵀ M x = 0 on all of them.

    If the anchors are, a linear map that preserves the length of each preserves all lengths and angles (Lemma C.14). If they are
    not, some linear map preserves the length of each without being an isometry.

    Parameters
    ----------
    S : array_like, shape (n, d)
        Anchors, one per row. They need not have unit norm: scaling a row changes ``sigma_min`` but not the span.
    rtol : float, optional
        Count singular values that exceed this share of the largest. By default, count those that cannot be due to
        arithmetic rounding or to rounding to the precision in which ``S`` is stored.
    random_state : int, default=0
        Seed of the starting vectors of the iteration, and of the choice of a witness.

    Returns
    -------
    Spanning

    References
    ----------
    Gupta et al. (2026), Definition 5.4, Lemma C.14.

    Notes
    -----
    The rank is that of the n × D matrix T with rows svec(x xᵀ), D = d(d + 1)/2: the entries on the diagonal and √2 times
    those above, so that T svec(M) = (xᵀ M x)_x and ‖svec(M)‖ = ‖M‖_F. With n ≥ D it comes from QR by blocks and an SVD,
    exact to rounding, up to D = 3,000 (d = 76). Above that, T is never formed (T svec(M) = diag(S M Sᵀ), Tᵀ c = Sᵀ diag(c) S,
    each n·d²) and LOBPCG searches for its smallest singular value, preconditioned by M ↦ C⁻¹ M C⁻¹, C = SᵀS/n. Its result
    is an upper bound, so "does not span" has a witness and "spans" is an estimate. With n < D rows cannot span; the
    rank is that of T if T is small enough, and otherwise that of its n × n Gram matrix (S Sᵀ)∘², in which a singular value
    below 10⁻⁷ of the largest cannot be told from zero, so that the rank is a lower bound.

    Examples
    --------
    >>> import numpy as np
    >>> sym_spanning([[1, 0], [0, 1], [0.6, 0.8]]).spans
    True
    >>> sym_spanning([[1, 0], [0, 1], [-1, 0]]).rank
    2
    """
    check_seed(random_state)
    A = as_matrix(S, "S").astype(np.float64)
    return analyze_spanning(S, A, rtol, random_state)[0]


def analyze_spanning(
    S: RowsLike, A: np.ndarray, rtol: float | None, random_state: int
) -> tuple[Spanning, tuple[np.ndarray, np.ndarray] | None]:
    """Return the result of :func:`sym_spanning`, and the decomposition that it computed, if any.

    Parameters
    ----------
    S : array_like, shape (n, d)
        Anchors as passed by the caller; their dtype is used.
    A : ndarray of float64, shape (n, d)
        The anchors, validated.
    rtol, random_state
        As for :func:`sym_spanning`.

    Returns
    -------
    Spanning
    tuple of ndarray, or None
        As returned by :func:`decompose`; None if the features were not decomposed as a whole.
    """
    if rtol is not None:
        check_positive(rtol, "rtol", zero=True)
    n, d = A.shape
    D = anchors_needed(d)
    rng = np.random.default_rng(random_state)
    norm = float(np.sqrt(np.mean(np.einsum("ij,ij->i", A, A) ** 2)))

    def floor(top: float) -> float:
        return rtol * top if rtol is not None else rounding_floor(S, (n, D), norm, top)

    if n >= D and D <= DENSE:
        s, vt = decompose(A)
        tolerance = floor(float(s[0]))
        rank = int(np.count_nonzero(s > tolerance))
        result = Spanning(n, d, D, rank, rank == D, True, float(s[-1]), float(s[0]), tolerance, unpack(vt[-1], d), s)
        return result, (s, vt)
    return (_too_few if n < D else _estimate)(A, floor, rng), None


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
    values, vectors = scipy.linalg.eigh(A.T @ A / n, check_finite=False)
    # If the rows are in a hyperplane v⊥, xᵀ(vvᵀ)x = 0 for all of them.
    if values[0] <= d * np.finfo(np.float64).eps * values[-1]:
        v = vectors[:, 0]
        bound = _too_few(A[rng.permutation(n)[: min(n, DENSE)]], floor, rng)
        witness = np.outer(v, v)
        least = float(np.linalg.norm(quadratic_forms(A, witness)))
        top = _largest(A, rng)
        return Spanning(n, d, D, bound.rank, False, False, least, top, floor(top), witness)
    inverse = (vectors / values) @ vectors.T

    def forward(X: np.ndarray) -> np.ndarray:
        return _columns(lambda M: (A * quadratic_forms(A, M)[:, None]).T @ A, X, d)

    def precondition(X: np.ndarray) -> np.ndarray:
        return _columns(lambda M: inverse @ M @ inverse, X, d)

    top = _largest(A, rng)
    start = rng.standard_normal((D, _LOBPCG_VECTORS))
    with warnings.catch_warnings():  # lobpcg warns that it did not converge; the result is reported as an estimate
        warnings.simplefilter("ignore", UserWarning)
        squared, directions = lobpcg(
            LinearOperator((D, D), matvec=forward, matmat=forward, dtype=np.float64),
            start,
            M=LinearOperator((D, D), matvec=precondition, matmat=precondition, dtype=np.float64),
            tol=1e-10 * top**2,
            maxiter=_LOBPCG_ITERATIONS,
            largest=False,
        )
    witness = unpack(directions[:, int(np.argmin(squared))], d)
    witness /= np.linalg.norm(witness)
    least = float(np.linalg.norm(quadratic_forms(A, witness)))
    # The iteration uses squares of singular values, so it cannot resolve values below the square root of the precision.
    tolerance = max(floor(top), 1e-7 * top)
    spans = least > tolerance
    rank = D if spans else _too_few(A[rng.permutation(n)[: min(n, DENSE)]], floor, rng).rank
    return Spanning(n, d, D, rank, spans, False, least, top, tolerance, witness)


def _largest(A: np.ndarray, rng: np.random.Generator) -> float:
    """Return the largest singular value of the features, without forming them."""
    d = A.shape[1]
    D = anchors_needed(d)

    def forward(x: np.ndarray) -> np.ndarray:
        return pack((A * quadratic_forms(A, unpack(x.ravel(), d))[:, None]).T @ A)

    operator = LinearOperator((D, D), matvec=forward, dtype=np.float64)
    value = eigsh(operator, k=1, v0=rng.standard_normal(D), return_eigenvectors=False, tol=1e-6)
    return float(np.sqrt(value[0]))


def _columns(act: Callable[[np.ndarray], np.ndarray], X: np.ndarray, d: int) -> np.ndarray:
    """Apply an operator on symmetric matrices to each column svec(M)."""
    columns = X.reshape(len(X), -1)
    return np.column_stack([pack(act(unpack(x, d))) for x in columns.T]).reshape(X.shape)


def quadratic_forms(A: np.ndarray, M: np.ndarray) -> np.ndarray:
    """Return xᵀ M x for each row x: the product T svec(M) without T.

    Parameters
    ----------
    A : ndarray of float64, shape (n, d)
    M : ndarray, shape (d, d)

    Returns
    -------
    ndarray, shape (n,)
    """
    return np.einsum("ij,ij->i", A @ M, A)


def pack(M: np.ndarray) -> np.ndarray:
    """Return svec(M): the entries on and above the diagonal, those above times √2, so that norms are preserved.

    Parameters
    ----------
    M : ndarray, shape (d, d)
        Symmetric.

    Returns
    -------
    ndarray, shape (d(d + 1)/2,)
    """
    i, j = np.triu_indices(len(M))
    return M[i, j] * np.where(i == j, 1, np.sqrt(2))


def unpack(x: np.ndarray, d: int) -> np.ndarray:
    """Return the symmetric matrix M with svec(M) = x.

    Parameters
    ----------
    x : ndarray, shape (d(d + 1)/2,)
    d : int

    Returns
    -------
    ndarray, shape (d, d)
    """
    i, j = np.triu_indices(d)
    M = np.empty((d, d))
    M[i, j] = x * np.where(i == j, 1, np.sqrt(0.5))
    M[j, i] = M[i, j]
    return M


def features(A: np.ndarray) -> np.ndarray:
    """Return svec(x xᵀ) of each row.

    Parameters
    ----------
    A : ndarray of float64, shape (n, d)

    Returns
    -------
    ndarray, shape (n, d(d + 1)/2)
    """
    i, j = np.triu_indices(A.shape[1])
    out: np.ndarray = A[:, i] * A[:, j]
    out *= np.where(i == j, 1, np.sqrt(2))
    return out


def decompose(A: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Decompose the features of n ≥ D rows, a block at a time: QR by blocks, then the SVD of R.

    Parameters
    ----------
    A : ndarray of float64, shape (n, d)

    Returns
    -------
    ndarray, shape (D,)
        Singular values, descending.
    ndarray, shape (D, D)
        Right singular vectors as rows.
    """
    D = anchors_needed(A.shape[1])
    R = np.empty((0, D))
    for rows in blocks(len(A), 8 * D, minimum=D):
        stacked = np.vstack([R, features(A[rows])])
        R = scipy.linalg.qr(stacked, mode="r", overwrite_a=True, check_finite=False)[0][:D]
    _, s, vt = scipy.linalg.svd(R, check_finite=False)
    return s, vt
