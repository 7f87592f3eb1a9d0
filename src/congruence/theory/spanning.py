"""Do the anchors see every way in which a linear map could fail to be a rotation? (Definition 5.4)."""

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

#: Matrices are decomposed whole up to this many rows or columns, whichever are fewer.
DENSE = 3_000
# … and as long as all features of all rows take no more than this many numbers.
_FEATURES = 25_000_000
_LOBPCG_VECTORS = 4
_LOBPCG_ROUNDS = 300


def anchors_needed(d: int) -> int:
    """Return d(d + 1)/2, the fewest anchors that can be Sym(d)-spanning.

    Generic anchors of this number are: those that are not form a set of measure zero.

    Raises
    ------
    ParameterError
        If a parameter has an invalid value.

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
    """Say whether rows are Sym(d)-spanning: no symmetric M ≠ 0 has xᵀ M x = 0 on all of them.

    If anchors are, and a linear map keeps the length of each, it keeps all lengths and angles (Lemma C.14). If they are
    not, some linear map keeps the length of each and is no isometry.

    Parameters
    ----------
    S : array_like, shape (n, d)
        Anchors, one a row. Unit norm is not needed: scaling a row changes ``sigma_min`` but not what is spanned.
    rtol : float, optional
        A singular value counts if it exceeds this share of the largest. By default it counts if neither arithmetic nor
        rounding to the precision in which ``S`` is stored can have made it.
    random_state : int, default=0
        For the starting vectors of the iteration, and for the choice of a witness among many.

    Returns
    -------
    Spanning

    Raises
    ------
    ParameterError, ShapeError, DtypeError, NotFiniteError, ZeroRowError
        If arrays have the wrong shape, are not real numbers, contain NaN or infinity or have a row of zeros, or a parameter has an invalid value.

    References
    ----------
    Gupta et al. (2026), Definition 5.4, Lemma C.14.

    Notes
    -----
    The rank is that of the n × D matrix T with rows svec(x xᵀ), D = d(d + 1)/2: the entries on the diagonal and √2 times
    those above, so that T svec(M) = (xᵀ M x)_x and ‖svec(M)‖ = ‖M‖_F. With n ≥ D it comes from QR by blocks and an SVD,
    exact to rounding, up to D = 3,000 (d = 76). Beyond, T is never formed (T svec(M) = diag(S M Sᵀ), Tᵀ c = Sᵀ diag(c) S,
    each n·d²) and LOBPCG looks for its smallest singular value, preconditioned by M ↦ C⁻¹ M C⁻¹, C = SᵀS/n; what it returns
    is an upper bound, so "does not span" has a witness and "spans" is an estimate. With n < D the answer is
    no without computing; the rank comes from T where it fits, otherwise from its n × n Gram matrix (S Sᵀ)∘², which
    cannot tell a singular value below 10⁻⁷ of the largest from zero, and then is a lower bound.

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
        As the caller stored it.
    A : ndarray of float64, shape (n, d)
        The same, validated.
    rtol, random_state
        As for :func:`sym_spanning`.

    Returns
    -------
    Spanning
    tuple of ndarray, or None
        As returned by :func:`decompose`; None if the features were not decomposed as a whole.

    Raises
    ------
    ParameterError
        If a parameter has an invalid value.
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
        found = Spanning(n, d, D, rank, rank == D, True, float(s[-1]), float(s[0]), tolerance, unpack(vt[-1], d), s)
        return found, (s, vt)
    return (_too_few if n < D else _estimate)(A, floor, rng), None


def _too_few(A: np.ndarray, floor: Callable[[float], float], rng: np.random.Generator) -> Spanning:
    """Answer for fewer rows than dimensions: no; count the rank, and find a matrix that no row sees."""
    n, d = A.shape
    D = anchors_needed(d)
    part = A[rng.permutation(n)[:DENSE]] if n > DENSE else A  # the rank of some rows bounds that of all from below
    values, U = scipy.linalg.eigh((part @ part.T) ** 2, check_finite=False)
    seen = values > len(part) * np.finfo(np.float64).eps * values[-1]
    s = np.sqrt(np.maximum(values[::-1], 0))
    exact = bool(seen.all()) and len(part) == n
    if not exact and len(part) == n and n * D <= _FEATURES:
        s = scipy.linalg.svdvals(features(A), check_finite=False)
        exact = True
    tolerance = floor(float(s[0]))
    rank = int(np.count_nonzero(s > tolerance)) if exact else int(np.count_nonzero(s[: seen.sum()] > tolerance))
    witness = None
    if len(part) == n:
        M = rng.standard_normal((d, d))
        M = M + M.T
        for _ in range(3):  # each pass removes what rounding left of the part that the rows see
            c = U[:, seen] @ ((U[:, seen].T @ quadratic_forms(A, M)) / values[seen])
            M = M - (A * c[:, None]).T @ A
        witness = M / np.linalg.norm(M)
    return Spanning(n, d, D, rank, False, exact, 0.0, float(s[0]), tolerance, witness, s if exact else None)


def _estimate(A: np.ndarray, floor: Callable[[float], float], rng: np.random.Generator) -> Spanning:
    """Look for the smallest singular value without forming the features."""
    n, d = A.shape
    D = anchors_needed(d)
    values, vectors = scipy.linalg.eigh(A.T @ A / n, check_finite=False)
    if values[0] <= d * np.finfo(np.float64).eps * values[-1]:  # the rows lie in a hyperplane v⊥, and none sees vvᵀ
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
    with warnings.catch_warnings():  # it warns that it has not converged, and an estimate is what this is called
        warnings.simplefilter("ignore", UserWarning)
        found, directions = lobpcg(
            LinearOperator((D, D), matvec=forward, matmat=forward, dtype=np.float64),
            start,
            M=LinearOperator((D, D), matvec=precondition, matmat=precondition, dtype=np.float64),
            tol=1e-10 * top**2,
            maxiter=_LOBPCG_ROUNDS,
            largest=False,
        )
    witness = unpack(directions[:, int(np.argmin(found))], d)
    witness /= np.linalg.norm(witness)
    least = float(np.linalg.norm(quadratic_forms(A, witness)))
    # The iteration sees squares of singular values, so it cannot resolve what is below the root of the precision.
    tolerance = max(floor(top), 1e-7 * top)
    spans = least > tolerance
    rank = D if spans else _too_few(A[rng.permutation(n)[: min(n, DENSE)]], floor, rng).rank
    return Spanning(n, d, D, rank, spans, False, least, top, tolerance, witness)


def _largest(A: np.ndarray, rng: np.random.Generator) -> float:
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
    """Return svec(M): the entries on and above the diagonal, those above times √2, so that norms are kept.

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
    """Decompose the features of n ≥ D rows without holding them all: QR by blocks, then the SVD of R.

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
