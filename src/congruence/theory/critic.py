"""The optimal scores of a contrastive loss: the log density ratio, up to a constant (section 5.2, appendices C.2 and C.3).

The distributions here are finite: n images, m texts, and the probability of each pair. Every expectation of the paper is then a sum, and its statements can be checked exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations_with_replacement, islice
from math import comb, factorial

import numpy as np
from scipy.special import logsumexp

from congruence._utils.typing import RowsLike
from congruence._utils.validation import as_matrix, check_positive
from congruence.errors import InputError, ParameterError, ShapeError

__all__ = ["CriticGap", "as_joint", "bayes_posterior", "critic_gap", "infonce_loss", "pmi", "sigmoid_loss"]

#: Maximum number of sets of negatives over which a loss is summed, which takes seconds with 10 × 10 pairs.
_MOST_SETS = 100_000
#: Number of sets of negatives in memory at a time.
_SETS_AT_ONCE = 1_000
#: Largest difference of scores whose exponential is a normal number.
_WIDEST = 700.0


def as_joint(P: RowsLike, name: str = "P") -> np.ndarray:
    """Validate a joint distribution of images and texts, and return it in float64 with sum 1."""
    joint = as_matrix(P, name, allow_zero_rows=True).astype(np.float64)
    least = float(joint.min())
    if not least > 0:
        raise InputError(
            f"Got {least:.3g} in {name}; expected positive entries, since the logarithm of a density ratio is needed for every pair (Assumption C.1). "
            "Add a small number to counts of zero."
        )
    return np.asarray(joint / joint.sum())


def pmi(P: RowsLike) -> np.ndarray:
    """Return the pointwise mutual information of every image and text, log p(x, y) / (p(x) p(y)).

    Parameters
    ----------
    P : array_like, shape (n, m)
        Joint probabilities of images (rows) and texts, or counts: positive; divided by their sum.

    Returns
    -------
    ndarray, shape (n, m)
        In nats.

    References
    ----------
    Gupta et al. (2026), Definition C.3.

    Examples
    --------
    >>> import numpy as np
    >>> np.exp(pmi([[3, 1], [1, 3]])).round(12).tolist()
    [[1.5, 0.5], [0.5, 1.5]]
    """
    joint = as_joint(P)
    independent = joint.sum(axis=1, keepdims=True) * joint.sum(axis=0)
    return np.asarray(np.log(joint / independent))


def bayes_posterior(P: RowsLike, image: int, candidates: Sequence[int]) -> np.ndarray:
    """Return the probability that each of several candidate texts is the one drawn with an image, if the others were drawn independently.

    Parameters
    ----------
    P : array_like, shape (n, m)
        As in :func:`pmi`.
    image : int
        Row of ``P``.
    candidates : sequence of int
        Columns of ``P``, in any order; one may occur twice.

    Returns
    -------
    ndarray, shape (len(candidates),)
        r(x, yⱼ) / Σₖ r(x, yₖ), with r the density ratio.

    References
    ----------
    Gupta et al. (2026), Theorem C.4 (i).

    Examples
    --------
    >>> bayes_posterior([[3, 1], [1, 3]], 0, [0, 1]).round(12).tolist()
    [0.75, 0.25]
    """
    K = pmi(P)
    n, m = K.shape
    chosen = np.asarray(candidates)
    if not (0 <= image < n) or chosen.ndim != 1 or not len(chosen) or chosen.min() < 0 or chosen.max() >= m:
        raise ParameterError(
            f"Got image={image} and candidates={list(candidates)} for {n} images and {m} texts; expected rows and columns of P. Pass numbers from 0."
        )
    own = K[image, chosen]
    return np.asarray(np.exp(own - logsumexp(own)))


def infonce_loss(S: RowsLike, P: RowsLike, n_candidates: int = 2) -> tuple[float, float]:
    """Return the InfoNCE loss of scores on a complete distribution, for each direction: an exact expectation, without sampling.

    Parameters
    ----------
    S : array_like, shape (n, m)
        Score of every image and text.
    P : array_like, shape (n, m)
        As in :func:`pmi`.
    n_candidates : int, default=2
        N of the paper: one positive and N − 1 negatives, drawn independently with replacement.

    Returns
    -------
    images, texts : float
        In nats: L⁽ˣ⁾ of finding an image's text and L⁽ʸ⁾ of finding a text's image; the symmetric loss is their sum.

    References
    ----------
    Gupta et al. (2026), eq. (2), appendix C.1.

    Notes
    -----
    The loss does not depend on the order of the negatives, so it is a sum over multisets with multinomial weights,
    C(m + N − 2, N − 1) of them, and not over mᴺ⁻¹ lists.

    Examples
    --------
    >>> import numpy as np
    >>> losses = infonce_loss(np.zeros((2, 2)), [[3, 1], [1, 3]])
    >>> [round(float(loss / np.log(2)), 12) for loss in losses]  # chance
    [1.0, 1.0]
    """
    joint, scores = _joint_and_scores(S, P)
    check_positive(n_candidates, "n_candidates", integer=True)
    if n_candidates < 2:
        raise ParameterError(
            f"Got n_candidates={n_candidates}; expected at least 2, a positive and a negative. Pass a larger n_candidates=…."
        )
    return _one_way(scores, joint, n_candidates), _one_way(scores.T, joint.T, n_candidates)


def _one_way(S: np.ndarray, joint: np.ndarray, n_candidates: int) -> float:
    m = joint.shape[1]
    count = comb(m + n_candidates - 2, n_candidates - 1)
    if count > _MOST_SETS:
        raise ParameterError(
            f"Got {count:,} sets of {n_candidates - 1} negatives among {m}; expected at most {_MOST_SETS:,}, since the loss is summed over all of them. Pass a smaller n_candidates=…."
        )
    marginal = joint.sum(axis=0)
    S = S - S.max(axis=1, keepdims=True)
    if (worst := -float(S.min())) > _WIDEST:
        raise InputError(
            f"Got scores {worst:.3g} apart; expected at most {_WIDEST:.0f} within a row or a column, since the exponentials of larger differences underflow. Divide them by a temperature."
        )
    E = np.exp(S)
    expected = 0.0
    for sets, weights in _negatives(m, n_candidates - 1, marginal):
        others = E @ sets.T  # (n, sets)
        logs = np.log(E[:, :, None] + others[:, None, :]) @ weights
        expected += float((joint * logs).sum())
    return expected - float((joint * S).sum())


def _negatives(m: int, size: int, marginal: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield multisets of columns as counts, with the probability of each, in batches."""
    multisets = combinations_with_replacement(range(m), size)
    while batch := list(islice(multisets, _SETS_AT_ONCE)):
        sets = np.zeros((len(batch), m))
        np.add.at(sets, (np.repeat(np.arange(len(batch)), size), np.ravel(batch)), 1)
        orders = factorial(size) / np.prod(np.vectorize(factorial, otypes=[float])(sets.astype(int)), axis=1)
        yield sets, orders * np.exp(sets @ np.log(marginal))


def sigmoid_loss(S: RowsLike, P: RowsLike, negatives: float = 1.0) -> float:
    """Return SigLIP's loss of scores on a complete distribution: the logistic loss of telling pairs from independent draws.

    Its only minimizer is log r − log k, with k negatives per pair: the same score as for InfoNCE, with the constant fixed.

    Parameters
    ----------
    S, P : array_like, shape (n, m)
        As in :func:`infonce_loss`.
    negatives : float, default=1.0
        k, the number of independent draws per pair.

    Returns
    -------
    float
        E over pairs of −log σ(s), plus k times E over independent draws of −log σ(−s), in nats.

    References
    ----------
    Gupta et al. (2026), section 5.2; Zhai et al. (2023), "Sigmoid Loss for Language Image Pre-Training".

    Examples
    --------
    >>> import numpy as np
    >>> P = np.array([[3, 1], [1, 3]])
    >>> sigmoid_loss(pmi(P), P) < sigmoid_loss(pmi(P) + 0.1, P)
    True
    """
    joint, scores = _joint_and_scores(S, P)
    check_positive(negatives, "negatives")
    independent = np.outer(joint.sum(axis=1), joint.sum(axis=0))
    return float((joint * np.logaddexp(0, -scores) + negatives * independent * np.logaddexp(0, scores)).sum())


@dataclass(frozen=True)
class CriticGap:
    """Deviation of scores from the optimal ones for a distribution.

    Attributes
    ----------
    loss : float
        The symmetric InfoNCE loss, in nats.
    infimum : float
        The smallest loss that any scores attain: that of the pointwise mutual information.
    by_image, by_text : float
        Largest range of S − log r among the texts of one image, and among the images of one text. A score minimizes the loss of its direction if and
        only if this is 0: a function of the image alone, or for ``by_text`` of the text alone, may be added (Theorem C.4).
    spread : float
        Range of S − log r over all pairs: 0 if and only if the score minimizes the symmetric loss (Theorem C.5).
    constant : float
        Midpoint of the smallest and the largest S − log r.
    """

    loss: float
    infimum: float
    by_image: float
    by_text: float
    spread: float
    constant: float

    @property
    def excess(self) -> float:
        """Loss above the smallest possible loss, in nats."""
        return self.loss - self.infimum

    def in_words(self) -> str:
        """Return the result as one sentence, for display."""
        return (
            f"The loss is {self.excess:.3g} nats above the smallest possible; scores are the pointwise mutual information plus "
            f"{self.constant:.3g}, within {self.spread / 2:.3g}."
        )

    def to_dict(self) -> dict[str, float]:
        """Return all fields as plain data."""
        return {**asdict(self), "excess": self.excess}


def critic_gap(S: RowsLike, P: RowsLike, n_candidates: int = 2) -> CriticGap:
    """Compare scores with the optimal ones for a distribution: log r plus any constant.

    Parameters
    ----------
    S, P : array_like, shape (n, m)
    n_candidates : int, default=2
        As in :func:`infonce_loss`.

    Returns
    -------
    CriticGap

    References
    ----------
    Gupta et al. (2026), Theorems C.4 and C.5.

    Examples
    --------
    >>> P = [[3, 1], [1, 3]]
    >>> gap = critic_gap(pmi(P) + 7, P)
    >>> round(gap.excess, 12), round(gap.spread, 12), round(gap.constant, 12)
    (0.0, 0.0, 7.0)
    """
    joint, scores = _joint_and_scores(S, P)
    K = pmi(joint)
    deviation = scores - K
    return CriticGap(
        loss=sum(infonce_loss(scores, joint, n_candidates)),
        infimum=sum(infonce_loss(K, joint, n_candidates)),
        by_image=float(np.ptp(deviation, axis=1).max()),
        by_text=float(np.ptp(deviation, axis=0).max()),
        spread=float(np.ptp(deviation)),
        constant=float(deviation.max() + deviation.min()) / 2,
    )


def _joint_and_scores(S: RowsLike, P: RowsLike) -> tuple[np.ndarray, np.ndarray]:
    """Return the joint distribution and the scores, validated; both of shape (n, m)."""
    joint = as_joint(P)
    scores = as_matrix(S, "S", allow_zero_rows=True).astype(np.float64)
    if scores.shape != joint.shape:
        raise ShapeError(
            f"Got S of shape {scores.shape} and P of shape {joint.shape}; expected the same: a row for each image, a column for each text. Pass the scores of all pairs."
        )
    return joint, scores
