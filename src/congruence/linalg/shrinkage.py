"""Spectral filters: gains that shrink the unreliable singular directions of a cross-covariance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from congruence._utils.arrays import blocks, normalize_rows
from congruence.errors import ParameterError
from congruence.linalg.moments import CrossMoments, pooled_cross, pooled_size
from congruence.linalg.procrustes import CrossSVD, cross_svd
from congruence.splits import duplicate_groups

__all__ = [
    "CV_STRENGTHS",
    "SHRINKAGES",
    "Group",
    "choose_gains",
    "cross_validate",
    "mean_isometry",
    "means_correspond",
    "soft_gains",
    "wiener_gains",
]

#: Values of ``shrinkage`` that :class:`~congruence.OrthogonalMap` accepts.
SHRINKAGES = ("auto", "full", "covered", "wiener", "soft", "cv")

#: Default strength of each filter, chosen by measurement (docs/few_anchors.md).
DEFAULT_STRENGTH = {"wiener": 0.1, "soft": 0.003}

#: Strengths of the Wiener filter tried by cross-validation; 0 is the partial isometry.
CV_STRENGTHS = (0.0, 0.03, 0.1, 0.3, 1.0, 3.0)

#: Minimum number of pairs for cross-validation.
_MIN_CV_PAIRS = 10


@dataclass(frozen=True)
class Group:
    """Paired rows of one modality: ``X`` (n, d_source), ``Y`` (n, d_target) and optional weights (n,)."""

    X: np.ndarray
    Y: np.ndarray
    weights: np.ndarray | None


def choose_gains(
    shrinkage: str, svd: CrossSVD, alignment: float, strength: float | None
) -> tuple[float | None, np.ndarray]:
    """Return the gain of each singular direction.

    Parameters
    ----------
    shrinkage : {"full", "covered", "wiener", "soft"}
    svd : CrossSVD
        SVD of the anchors' mean cross-covariance.
    alignment : float
        Procrustes correlation of the anchors; see :func:`wiener_gains`.
    strength : float or None
        Strength of the filter; None uses the filter's default.

    Returns
    -------
    strength : float or None
        The strength used; None for "full" and "covered".
    gains : ndarray, shape (k,)
    """
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
    """Return the gains of the soft spectral filter s / (s + strength · s₁), which shrinks directions with little evidence.

    Parameters
    ----------
    s : ndarray, shape (k,)
        Singular values in descending order.
    strength : float
        Strength of the filter; 0 gives every direction with a positive singular value a gain of 1.

    Returns
    -------
    ndarray, shape (k,)
        Gains in [0, 1]; 0 where s is 0.
    """
    denominator = s + strength * s[0]
    return np.divide(s, denominator, out=np.zeros_like(s), where=denominator > 0)


def wiener_gains(s: np.ndarray, alignment: float, strength: float) -> np.ndarray:
    """Return the gains of the Wiener filter s² / (s² + τ²), τ = strength · (1 − a²)/a · mean(s).

    The noise level is estimated from the anchors themselves: with ``a`` the Procrustes correlation, 1 − a² is the share
    of variance that no rotation explains. Exact data have a = 1, and every gain is 1; the noisier the
    data, the larger a singular value must be to be kept.

    Parameters
    ----------
    s : ndarray, shape (k,)
        Singular values in descending order.
    alignment : float
        Procrustes correlation Σs / √(Σ‖x‖² Σ‖y‖²) of the centered anchors, in (0, 1].
    strength : float
        Scale of the noise level; 0 gives every direction with a positive singular value a gain of 1.

    Returns
    -------
    ndarray, shape (k,)
        Gains in [0, 1]; 0 where s is 0.
    """
    a = min(max(alignment, np.finfo(float).tiny), 1.0)
    # For exact data 1 − a² is rounding noise; it must not shrink directions whose singular values are of that size.
    unexplained = 1.0 - a * a
    level = strength * (unexplained if unexplained > 1e-13 else 0.0) / a * s.mean()
    denominator = s**2 + level**2
    return np.divide(s**2, denominator, out=np.zeros_like(s), where=denominator > 0)


def means_correspond(a: np.ndarray, b: np.ndarray, rank: int) -> bool:
    """Return whether two means point in similar directions: their cosine is above 0.5 and above the 1 % level of chance in ``rank`` dimensions.

    Parameters
    ----------
    a, b : ndarray, shape (k,)
        Covered parts of the means, in the same coordinates.
    rank : int
        Number of covered directions.

    Returns
    -------
    bool
        False if a mean is zero.
    """
    size = float(np.linalg.norm(a) * np.linalg.norm(b))
    return size > 0 and bool(a @ b > size * max(0.5, 2.33 / np.sqrt(rank)))


def mean_isometry(svd: CrossSVD, means: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, int]:
    """Return an extension of a partial isometry by the directions of the means, if the anchors indicate that the means correspond.

    Centering discards one correspondence: the source mean belongs to the target mean. With fewer anchors than
    dimensions, most of both means lies outside the directions that the anchors cover, where it adds information. Using it is right if the models
    differ by a rotation about the origin, and wrong if they differ by arbitrary offsets. So it is used only if the covered parts of the
    means correspond (:func:`means_correspond`).

    Parameters
    ----------
    svd : CrossSVD
        SVD of the anchors' mean cross-covariance.
    means : sequence of (ndarray, ndarray)
        Source and target mean of each modality's anchors.

    Returns
    -------
    matrix : ndarray, shape (d_source, d_target)
        Partial isometry between the complements of the covered directions; zero if there is nothing to add.
    count : int
        Rank of ``matrix``: at most the number of modalities.
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
    # AᵀB has the widths of the models, but its rank is at most the number of modalities: decompose it in the span of the residuals.
    (qa, ra), (qb, rb) = (np.linalg.qr(side.T) for side in (A, B))
    inner = cross_svd(ra @ rb.T, max_rank=len(residuals))
    return (qa @ inner.U[:, : inner.rank]) @ (inner.Vt[: inner.rank] @ qb.T), inner.rank


def cross_validate(
    groups: Sequence[Group], *, center: bool, random_state: int, folds: int = 5
) -> tuple[float, np.ndarray]:
    """Choose the strength of the Wiener filter that maximizes the likelihood of held-out pairs.

    Parameters
    ----------
    groups : sequence of Group
        Anchors by modality.
    center : bool
        Whether to center the rows of each modality.
    random_state : int
        Seed of the assignment to folds.
    folds : int, default=5
        Number of folds.

    Returns
    -------
    strength : float
        The best of :data:`CV_STRENGTHS`.
    scores : ndarray, shape (len(CV_STRENGTHS),)
        Mean log-probability of held-out pairs for each of :data:`CV_STRENGTHS`.

    Raises
    ------
    ParameterError
        If there are fewer than ten pairs.
    """
    n = sum(len(group.X) for group in groups)
    if n < _MIN_CV_PAIRS:
        raise ParameterError(
            f'Got {n} pairs for shrinkage="cv"; expected at least {_MIN_CV_PAIRS} to split into folds. '
            'Pass shrinkage="auto".'
        )
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
        svd = cross_svd(
            pooled_cross(moments, center=center),
            max_rank=sum(m.rows for m in moments) - len(moments) * center,
            complete=False,
        )
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
    """Return the log-probability of each row's own partner among all rows of the fold, by a softmax over cosines.

    Retrieval accuracy saturates on small folds; the log-probability still distinguishes a clear winner from a narrow one.
    """
    from scipy.special import logsumexp

    x = normalize_rows(x)
    out = np.empty(len(x))
    for part in blocks(len(x), 8 * len(y)):
        logits = x[part] @ y.T / temperature
        own = logits[np.arange(part.stop - part.start), np.arange(part.start, part.stop)]
        out[part] = own - logsumexp(logits, axis=1)
    return out
