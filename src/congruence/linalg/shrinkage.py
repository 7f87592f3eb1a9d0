"""Spectral filters, which shrink the unreliable singular directions of a cross-covariance, and a shrunk covariance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from congruence._utils.arrays import blocks, normalize_rows
from congruence.errors import ParameterError
from congruence.linalg.moments import CrossMoments, pooled_cross, pooled_size
from congruence.linalg.procrustes import CrossSVD, cross_svd
from congruence.splits import duplicate_groups

#: Values of ``shrinkage`` that ``OrthogonalMap`` accepts.
SHRINKAGES = ("auto", "full", "covered", "wiener", "soft", "cv")

#: Default strength of each filter, chosen by measurement (docs/research/readouts.md).
DEFAULT_STRENGTH = {"wiener": 0.1, "soft": 0.003}

#: Strengths of the Wiener filter tried by cross-validation; 0 is the partial isometry.
CV_STRENGTHS = (0.0, 0.03, 0.1, 0.3, 1.0, 3.0)

#: Minimum number of pairs for cross-validation.
_MIN_CV_PAIRS = 10


class Group(NamedTuple):
    """Paired rows of one modality: ``X`` (n, d_source), ``Y`` (n, d_target) and optional weights (n,)."""

    X: np.ndarray
    Y: np.ndarray
    weights: np.ndarray | None
    modality: str = ""


def choose_gains(
    shrinkage: str, svd: CrossSVD, alignment: float, strength: float | None
) -> tuple[float | None, np.ndarray]:
    """Return the strength used, None for "full" and "covered", and the gain of each singular direction (k,)."""
    covered = (np.arange(len(svd.s)) < svd.rank).astype(float)
    if shrinkage == "full":
        return None, np.ones(len(svd.s))
    if shrinkage == "covered":
        return None, covered
    strength = DEFAULT_STRENGTH[shrinkage] if strength is None else strength
    if shrinkage == "wiener":
        return strength, covered * wiener_gains(svd.s, alignment, strength)
    return strength, covered * soft_gains(svd.s, strength)


def soft_gains(s: np.ndarray, strength: float) -> np.ndarray:
    """Return the gains of the soft filter s / (s + strength · s₁), in [0, 1], for descending ``s`` (k,)."""
    denominator = s + strength * s[0]
    return np.divide(s, denominator, out=np.zeros_like(s), where=denominator > 0)


def wiener_gains(s: np.ndarray, alignment: float, strength: float) -> np.ndarray:
    """Return the gains (k,) of the Wiener filter s² / (s² + τ²), τ = strength · (1 − a²)/a · mean(s); ``alignment`` a
    is Σs / √(Σ‖x‖² Σ‖y‖²) of the centered anchors, and 1 − a² estimates the noise.
    """
    a = min(max(alignment, 1e-30), 1.0)  # of less, the square below overflows
    # For exact data 1 − a² is rounding noise; it must not shrink directions whose singular values are of that size.
    unexplained = 1.0 - a * a
    level = strength * (unexplained if unexplained > 1e-13 else 0.0) / a * s.mean()
    denominator = s**2 + level**2
    return np.divide(s**2, denominator, out=np.zeros_like(s), where=denominator > 0)


def means_correspond(a: np.ndarray, b: np.ndarray, rank: int) -> bool:
    """Return whether the cosine of two means (k,) is above 0.5 and the 1 % level of chance in ``rank`` dimensions."""
    size = float(np.linalg.norm(a) * np.linalg.norm(b))
    return size > 0 and bool(a @ b > size * max(0.5, 2.33 / np.sqrt(rank)))


def mean_isometry(svd: CrossSVD, means: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, int]:
    """Return a matrix (d_source, d_target) that extends a partial isometry by the means' directions, and its rank.
    Centering discards that the source mean belongs to the target mean. With few anchors most of both lies outside the
    directions that these cover, and adds information if the models differ by a rotation about the origin: so it is used
    only if the covered parts of the means correspond.
    """
    U, V = svd.U[:, : svd.rank], svd.Vt[: svd.rank].T
    residuals = []
    for a, b in means:
        covered_a, covered_b = a @ U, b @ V
        if not means_correspond(covered_a, covered_b, svd.rank):
            continue
        residual_a, residual_b = a - U @ covered_a, b - V @ covered_b
        lengths = np.linalg.norm(residual_a), np.linalg.norm(residual_b)
        if lengths[0] > 1e-6 * np.linalg.norm(a) and lengths[1] > 1e-6 * np.linalg.norm(b):
            residuals.append((residual_a / lengths[0], residual_b / lengths[1]))
    if not residuals:
        return np.zeros((len(svd.U), svd.Vt.shape[1])), 0
    A, B = (np.array(side) for side in zip(*residuals, strict=True))
    # AᵀB has the widths of the models, but its rank is at most the number of modalities: decompose it in the span of
    # the residuals.
    (qa, ra), (qb, rb) = (np.linalg.qr(side.T) for side in (A, B))
    inner = cross_svd(ra @ rb.T, max_rank=len(residuals))
    return (qa @ inner.U[:, : inner.rank]) @ (inner.Vt[: inner.rank] @ qb.T), inner.rank


def cross_validate(
    groups: Sequence[Group], *, center: bool, random_state: int, folds: int = 5
) -> tuple[float, np.ndarray]:
    """Return the strength of the Wiener filter that held-out pairs find likeliest, and ``CV_STRENGTHS``' scores."""
    n = sum(len(group.X) for group in groups)
    if n < _MIN_CV_PAIRS:
        raise ParameterError(f'`shrinkage="cv"` needs {_MIN_CV_PAIRS} pairs, not {n}.', 'Pass `shrinkage="auto"`.')
    rng = np.random.default_rng(random_state)
    # Identical pairs share a fold, so that no strength is scored on pairs it was fitted on.
    same = [duplicate_groups(group.X, group.Y) for group in groups]
    same = [np.arange(len(label)) if label.max() + 1 < folds else label for label in same]
    labels = [rng.permutation(np.arange(label.max() + 1) % folds)[label] for label in same]
    scores = np.zeros(len(CV_STRENGTHS))
    for k in range(folds):
        moments = []
        for group, label in zip(groups, labels, strict=True):
            kept = label != k
            weights = None if group.weights is None else group.weights[kept]
            moments.append(CrossMoments.of(group.X[kept], group.Y[kept], weights))
        most = sum(m.rows for m in moments) - len(moments) * center
        svd = cross_svd(pooled_cross(moments, center=center), max_rank=most, complete=False)
        alignment = float(svd.s.sum() / pooled_size(moments, center=center))
        for group, label, m in zip(groups, labels, moments, strict=True):
            heldout = label == k
            if heldout.any():
                x = group.X[heldout].astype(np.float64) - (m.source_mean if center else 0)
                y = group.Y[heldout].astype(np.float64) - (m.target_mean if center else 0)
                x, y = x @ svd.U, normalize_rows(y) @ svd.Vt.T
                for j, strength in enumerate(CV_STRENGTHS):
                    gains = choose_gains("wiener", svd, alignment, strength)[1]
                    scores[j] += _likelihood(x * gains[: x.shape[1]], y).sum()
    return float(CV_STRENGTHS[int(np.argmax(scores))]), scores / n


def _likelihood(x: np.ndarray, y: np.ndarray, temperature: float = 0.1) -> np.ndarray:
    """Return the log-probability of each row's own partner by a softmax; retrieval saturates on small folds."""
    from scipy.special import logsumexp

    x = normalize_rows(x)
    out = np.empty(len(x))
    for part in blocks(len(x), 8 * len(y)):
        logits = x[part] @ y.T / temperature
        own = logits[np.arange(part.stop - part.start), np.arange(part.start, part.stop)]
        out[part] = own - logsumexp(logits, axis=1)
    return out


def ledoit_wolf(X: np.ndarray) -> np.ndarray:
    """Return the covariance of rows (n, d) shrunk towards a multiple of the identity (Ledoit and Wolf 2004)."""
    X = X - X.mean(axis=0)
    n, d = X.shape
    S = X.T @ X / n
    share, mean = ledoit_wolf_share(X, float(np.vdot(S, S)))
    S *= 1 - share
    S.flat[:: d + 1] += share * mean
    return S


def ledoit_wolf_share(X: np.ndarray, square: float) -> tuple[float, float]:
    """Return the identity's share in ``ledoit_wolf`` and its multiple; ``square`` is the covariance's squared norm."""
    n, d = X.shape
    sizes = np.einsum("ij,ij->i", X, X)
    mean = float(sizes.sum()) / (n * d)
    distance = square / d - mean**2  # of the covariance from the multiple of the identity
    noise = (float((sizes**2).sum()) / n - square) / (n * d)
    return (min(noise / distance, 1.0) if distance > 0 and noise > 0 else 0.0), mean
