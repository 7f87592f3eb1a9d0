"""Singular value decompositions of cross-covariances, and the rotations they give."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class CrossSVD:
    """Thin singular value decomposition ``U @ diag(s) @ Vt`` of a cross-covariance (d_source, d_target). ``U``
    (d_source, k) and ``Vt`` (k, d_target) may lack directions of which ``s`` is 0; ``rank`` counts singular values
    above rounding error, the directions that the anchors cover.
    """

    U: np.ndarray
    s: np.ndarray
    Vt: np.ndarray
    rank: int


#: A sketch is used if it has at most this share of the columns; a larger one saves no time.
_MAX_SKETCH = 0.6

#: Number of columns of a sketch beyond the rank.
_OVERSAMPLING = 8


def cross_svd(
    M: np.ndarray, *, max_rank: int | None = None, scale: float | None = None, complete: bool = True
) -> CrossSVD:
    """Decompose a cross-covariance (d_source, d_target) and find its numerical rank. ``max_rank`` is a known bound on
    it; ``scale`` the size of the products M was summed from (by default s₁), to which its rounding error is
    proportional. Without ``complete``, directions whose singular value is 0 may be missing, and a matrix of low
    ``max_rank`` is decomposed through a sketch of its range (Halko et al. 2011, algorithms 4.1 and 5.1).
    """
    share = 4 * max(M.shape) * np.finfo(np.float64).eps
    sketched = None
    if not complete and max_rank is not None and max_rank + _OVERSAMPLING <= _MAX_SKETCH * min(M.shape):
        sketched = _sketched_svd(M, max_rank, share, scale)
    U, s, Vt = sketched or _svd(M)
    top = max(scale or 0.0, float(s[0]) if len(s) else 0.0)
    rank = int(np.count_nonzero(s > share * top))
    if max_rank is not None:
        rank = min(rank, max_rank)
    return CrossSVD(U, s, Vt, rank)


def _svd(M: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    try:
        return np.linalg.svd(M, full_matrices=False)
    except np.linalg.LinAlgError:  # the divide-and-conquer driver fails on a few matrices; gesvd does not
        import scipy.linalg  # only here: its import takes as long as the decomposition of 1,000 dimensions

        return scipy.linalg.svd(M, full_matrices=False, check_finite=False, lapack_driver="gesvd")


def _sketch(M: np.ndarray, max_rank: int, rng: np.random.Generator) -> np.ndarray:
    """Return an orthonormal basis of the range of a matrix of at most this rank."""
    return np.linalg.qr(M @ rng.standard_normal((M.shape[1], max_rank + _OVERSAMPLING)))[0]


def _sketched_svd(
    M: np.ndarray, max_rank: int, share: float, scale: float | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Decompose a matrix of at most this rank, up to rounding; return None if its rank proves to be higher."""
    rng = np.random.default_rng(0)
    Q = _sketch(M, max_rank, rng)
    inner, s, Vt = _svd(Q.T @ M)
    probe = rng.standard_normal(M.shape[1])
    image = M @ probe
    # The largest entry, not the norm: squares of very large numbers would leave the range of float64.
    if np.abs(image - Q @ (Q.T @ image)).max() > share * max(scale or 0.0, float(s[0])) * np.linalg.norm(probe):
        return None
    padded = np.zeros(min(M.shape))
    padded[:max_rank] = s[:max_rank]
    return Q @ inner[:, :max_rank], padded, Vt[:max_rank]


def half_svd(M: np.ndarray, *, max_rank: int | None = None, scale: float = 0.0) -> CrossSVD:
    """Decompose by the smaller Gram matrix: half of ``cross_svd``'s work and digits, to compare maps."""
    if max_rank is not None and max_rank + _OVERSAMPLING <= _MAX_SKETCH * min(M.shape):
        basis = _sketch(M, max_rank, np.random.default_rng(0))
        inner = half_svd(basis.T @ M, scale=scale)
        rank = min(inner.rank, max_rank)
        s = np.zeros(min(M.shape))
        s[:rank] = inner.s[:rank]
        return CrossSVD(basis @ inner.U[:, :rank], s, inner.Vt[:rank], rank)
    narrow = M.shape[0] <= M.shape[1]
    size = float(np.abs(M).max()) or 1.0  # squares of very small or large numbers would leave the range of float64
    side = (M if narrow else M.T) / size
    values, vectors = np.linalg.eigh(side @ side.T)
    s = np.sqrt(np.maximum(values[::-1], 0.0))
    share = 4 * max(M.shape) * np.finfo(np.float64).eps
    rank = int(np.count_nonzero(s > max(1e-7 * s[0], share * scale / size)))
    if max_rank is not None:
        rank = min(rank, max_rank)
    near = vectors[:, ::-1][:, :rank]
    far = side.T @ near / s[:rank]
    if M.dtype == np.float64:  # the norms are more digits of small singular values
        norms = np.sqrt(np.einsum("ij,ij->j", far, far))
        s[:rank] *= norms
        far /= norms
    s[rank:] = 0.0
    U, V = (near, far) if narrow else (far, near)
    return CrossSVD(U, s * size, V.T, rank)


def gram_error(s: np.ndarray, gains: np.ndarray) -> float:
    """Return a bound on the error of ``U diag(gains) Vᵀ`` if singular values ``s`` (k,) > 0 came from ``half_svd``."""
    return float(np.finfo(np.float64).eps * (gains * np.square(s[0] / s)).max())


def rotation_from_svd(svd: CrossSVD, gains: np.ndarray | None = None, *, allow_reflection: bool = True) -> np.ndarray:
    """Build ``U diag(gains) Vᵀ`` (d_source, d_target): the Procrustes rotation if all gains (k,) are 1, the default;
    without ``allow_reflection`` the weakest direction is reversed if the determinant is −1 (Umeyama 1991).
    """
    U = svd.U if gains is None else svd.U * gains[: svd.U.shape[1]]
    R = U @ svd.Vt
    if not allow_reflection and np.linalg.slogdet(R)[0] < 0:
        R = R - 2 * np.outer(U[:, -1], svd.Vt[-1])
    return R


def near_identity(svd: CrossSVD, weight: float, *, half: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Return a basis B (d, k) and T (k, k) such that ``I + B T Bᵀ`` is the rotation nearest to ``M + weight s₁ I``. M
    is the square matrix that was decomposed. Outside of its range and its row space, the rotation is the identity.
    ``half``: with half of the digits, to compare maps.
    """
    U, s, V = svd.U[:, : svd.rank], svd.s[: svd.rank], svd.Vt[: svd.rank].T
    basis = np.linalg.qr(np.hstack([U, V]))[0] if 2 * svd.rank < len(U) else np.eye(len(U))
    inner = (basis.T @ U * (s / s[0])) @ (V.T @ basis) + weight * np.eye(basis.shape[1])
    return basis, _polar(inner, 1e-9 if half else 1e-4) - np.eye(basis.shape[1])


def _polar(M: np.ndarray, least: float) -> np.ndarray:
    """Return the orthogonal factor of a square matrix, by the eigenvectors of its Gram if their ratio permits it."""
    values, vectors = np.linalg.eigh(M.T @ M)
    if values[0] > least * values[-1]:
        return np.asarray(M @ (vectors / np.sqrt(values)) @ vectors.T)
    left, _, right = _svd(M)
    return np.asarray(left @ right)


def procrustes(X: np.ndarray, Y: np.ndarray) -> np.ndarray:
    """Return the semi-orthogonal R that minimizes ‖X R − Y‖ (Schönemann 1966), or maximizes tr(Rᵀ Xᵀ Y)."""
    return rotation_from_svd(cross_svd(X.astype(np.float64).T @ Y.astype(np.float64)))
