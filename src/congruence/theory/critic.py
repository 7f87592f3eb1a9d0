"""The optimal scores of a contrastive loss: the log density ratio, up to a constant (section 5.2, C.2 to C.4).

The distributions here are finite: P (n, m) holds the positive probabilities, or counts, of every image with every text.
Every expectation of the paper is then a sum, and its statements can be checked exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement, islice
from math import comb, factorial

import numpy as np
from scipy.special import logsumexp

from congruence._utils.plain import PlainData
from congruence._utils.typing import RowsLike
from congruence._utils.validation import as_matrix, check_positive, check_seed
from congruence.errors import InputError, ParameterError, ShapeError
from congruence.theory._base import numerical_rank

#: Maximum number of sets of negatives over which a loss is summed, which takes seconds with 10 × 10 pairs.
_MOST_SETS = 100_000
#: Number of sets of negatives in memory at a time.
_SETS_AT_ONCE = 1_000
#: Largest difference of scores whose exponential is a normal number.
_WIDEST = 700.0


def _as_scores(S: RowsLike, name: str, shape: tuple[int, ...] | None = None, *, above_zero: bool = False) -> np.ndarray:
    """Return a table of numbers in float64, of this shape and positive if that is required."""
    table = as_matrix(S, name, allow_zero_rows=True).astype(np.float64)
    if shape is not None and table.shape != shape:
        raise ShapeError(f"Got {name} of shape {table.shape}; expected {shape}.", "Pass one number for each item.")
    if above_zero and not table.min() > 0:
        raise InputError(f"Got {table.min():.3g} in {name}; expected positive numbers.", "Leave out such items.")
    return table


def _as_joint(P: RowsLike) -> np.ndarray:
    joint = _as_scores(P, "P", above_zero=True)
    return np.asarray(joint / joint.sum())


def pmi(P: RowsLike) -> np.ndarray:
    """Return log p(x, y) / (p(x) p(y)) of every image and text, in nats (Definition C.3)."""
    joint = _as_joint(P)
    return np.asarray(np.log(joint / (joint.sum(axis=1, keepdims=True) * joint.sum(axis=0))))


def bayes_posterior(P: RowsLike, image: int, candidates: Sequence[int]) -> np.ndarray:
    """Return the probability of each candidate text to be an image's own (Theorem C.4 (i)): r(x, yⱼ) / Σₖ r(x, yₖ),
    with r the density ratio, if one was drawn with the image and the others independently.

    ``image`` is a row of P, ``candidates`` are columns, of which one may occur twice.
    """
    K = pmi(P)
    chosen = np.asarray(candidates)
    if not 0 <= image < len(K) or not len(chosen) or chosen.min() < 0 or chosen.max() >= K.shape[1]:
        raise ParameterError(f"P has no `image={image}` or `candidates={list(candidates)}`.", "Pass rows and columns.")
    own = K[image, chosen]
    return np.asarray(np.exp(own - logsumexp(own)))


def infonce_loss(S: RowsLike, P: RowsLike, n_candidates: int = 2) -> tuple[float, float]:
    """Return the InfoNCE loss of scores S (n, m), in nats, for each direction, without sampling (eq. (2), C.1).

    L⁽ˣ⁾ is that of finding an image's text among ``n_candidates``, of which all but one are drawn independently with
    replacement, L⁽ʸ⁾ that of finding a text's image; the symmetric loss is their sum. Since the order of the negatives
    does not matter, they are sums over C(m + N − 2, N − 1) multisets with multinomial weights.
    """
    joint = _as_joint(P)
    scores = _as_scores(S, "S", joint.shape)
    if check_positive(n_candidates, "n_candidates", integer=True) < 2:
        raise ParameterError(argument="n_candidates", got=n_candidates, expected="at least 2")
    return _one_way(scores, joint, n_candidates), _one_way(scores.T, joint.T, n_candidates)


def _one_way(S: np.ndarray, joint: np.ndarray, n_candidates: int) -> float:
    m = joint.shape[1]
    count = comb(m + n_candidates - 2, n_candidates - 1)
    if count > _MOST_SETS:
        raise ParameterError(f"Got {count:,} sets of negatives.", "Pass a smaller `n_candidates=…`.")
    S = S - S.max(axis=1, keepdims=True)
    if (worst := -float(S.min())) > _WIDEST:
        raise InputError(f"Scores {worst:.3g} apart underflow (limit {_WIDEST:.0f}).", "Divide by a temperature.")
    E = np.exp(S)
    expected = 0.0
    for sets, weights in _negatives(m, n_candidates - 1, joint.sum(axis=0)):
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
    """Return SigLIP's loss of scores S (n, m), in nats: the logistic loss of telling pairs from independent draws.

    With ``negatives`` k per pair, E over pairs of −log σ(s) plus k times E over independent draws of −log σ(−s). Its
    only minimizer is log r − log k: the score of InfoNCE, with the constant fixed.

    Source: Gupta et al. (2026), section 5.2; Zhai et al. (2023), "Sigmoid Loss for Language Image Pre-Training".
    """
    joint = _as_joint(P)
    scores = _as_scores(S, "S", joint.shape)
    check_positive(negatives, "negatives")
    independent = np.outer(joint.sum(axis=1), joint.sum(axis=0))
    return float((joint * np.logaddexp(0, -scores) + negatives * independent * np.logaddexp(0, scores)).sum())


@dataclass(frozen=True)
class CriticGap(PlainData):
    """Deviation of scores from the optimal ones for a distribution.

    - ``loss``, ``infimum``: The symmetric InfoNCE loss, in nats, and the smallest that any scores attain: that of the
      pointwise mutual information.
    - ``by_image``, ``by_text``: Largest range of S − log r among the texts of one image, and among the images of one
      text. A score minimizes the loss of its direction if and only if this is 0 (Theorem C.4).
    - ``spread``, ``constant``: Range of S − log r over all pairs, 0 if and only if the score minimizes the symmetric
      loss (Theorem C.5), and its midpoint.
    """

    _also = ("excess",)

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


def critic_gap(S: RowsLike, P: RowsLike, n_candidates: int = 2) -> CriticGap:
    """Compare scores with the optimal ones for a distribution, log r plus any constant (Theorems C.4 and C.5); the
    arguments are those of ``infonce_loss``.

    >>> gap = critic_gap(pmi([[3, 1], [1, 3]]) + 7, [[3, 1], [1, 3]])
    >>> round(gap.excess, 12), round(gap.spread, 12), round(gap.constant, 12)
    (0.0, 0.0, 7.0)
    """
    K = pmi(P)
    deviation = _as_scores(S, "S", K.shape) - K
    return CriticGap(
        loss=sum(infonce_loss(S, P, n_candidates)),
        infimum=sum(infonce_loss(K, P, n_candidates)),
        by_image=float(np.ptp(deviation, axis=1).max()),
        by_text=float(np.ptp(deviation, axis=0).max()),
        spread=float(np.ptp(deviation)),
        constant=float(deviation.max() + deviation.min()) / 2,
    )


@dataclass(frozen=True)
class CriticRank(PlainData):
    """The dimension that a dual encoder needs for given scores.

    - ``shape``: Numbers of images and texts.
    - ``rank``, ``constant``: Smallest rank of K − c over all constants c, and a c at which it is reached: no encoder of
      fewer dimensions has these scores, whatever its temperature and bias.
    - ``singular_values``, shape (min(n, m),): Singular values of K.
    - ``max_temperature``: 2 / (max K − min K): at a higher one, the scores of unit rows cannot differ this much.
    """

    _also = ("enough",)

    shape: tuple[int, int]
    rank: int
    constant: float
    singular_values: np.ndarray
    max_temperature: float

    @property
    def enough(self) -> int:
        """Number of dimensions in which ``realize_critic`` attains these scores with unit rows: ``rank`` + 2."""
        return self.rank + 2

    def rms_error(self, d: int) -> float:
        """Return a lower bound on the root mean square error of the scores of any dual encoder of d dimensions, which
        have rank at most d + 1: that without the d + 1 leading singular directions (Eckart and Young 1936).
        """
        dropped = self.singular_values[check_positive(d, "d", integer=True) + 1 :]
        return float(np.sqrt((dropped**2).sum() / (self.shape[0] * self.shape[1])))


def critic_rank(K: RowsLike, *, rtol: float | None = None) -> CriticRank:
    """Determine the dimension that a dual encoder needs for given scores K (n, m), up to a constant (Remark C.7).

    For the optimal scores of a distribution, pass its ``pmi``. Singular values count above the share ``rtol`` of the
    largest, by default above rounding error.

    Scores minus their bias have rank at most d, so no dual encoder has the scores K, up to a constant, unless some K −
    c has rank at most d. The smallest such rank is one less than that of K, at c = 1/(1ᵀK⁺1), if the vector of ones is
    in its column and its row space and 1ᵀK⁺1 ≠ 0 (Wedderburn's reduction); otherwise it is that of K.
    """
    scores = _as_scores(K, "K")
    n, m = scores.shape
    left, s, right = np.linalg.svd(scores, full_matrices=False)
    rank, constant = (numerical_rank(s, scores.shape, rtol) if s[0] > 0 else 0), 0.0
    if rank:
        floor = max(max(n, m) * float(np.finfo(np.float64).eps), rtol or 0.0)
        a, b = left[:, :rank].sum(axis=0), right[:rank].sum(axis=1)
        # The vectors of ones are in the column space and in the row space if their projections have full norm.
        in_span = all(abs(float(ones @ ones) / k - 1) <= np.sqrt(floor) for ones, k in ((a, n), (b, m)))
        form = float((a / s[:rank]) @ b)  # 1ᵀK⁺1
        if in_span and form != 0:
            reduced = np.linalg.svd(scores - 1 / form, compute_uv=False)
            lower = int((reduced > max(s[0], reduced[0]) * floor * 10).sum())
            if lower < rank:
                rank, constant = lower, 1 / form
    spread = float(np.ptp(scores))
    return CriticRank((n, m), rank, constant, s, 2 / spread if spread > 0 else np.inf)


@dataclass(frozen=True)
class DualEncoder:
    """A dual encoder on finitely many items: unit rows ``images`` (n, d) and ``texts`` (m, d)."""

    images: np.ndarray
    texts: np.ndarray
    temperature: float
    bias: float

    @property
    def scores(self) -> np.ndarray:
        """⟨f(x), g(y)⟩ / τ + b of every pair, shape (n, m)."""
        return np.asarray(self.images @ self.texts.T / self.temperature + self.bias)


def realize_critic(K: RowsLike, *, dim: int | None = None, random_state: int | None = None) -> DualEncoder:
    """Return a dual encoder with unit rows that has the scores K (n, m), exactly if its dimension allows it.

    ``dim`` is at least 3 or ``critic_rank(K).enough``, the default, with which scores are exact; below, the leading
    directions of K minus its mean are kept. ``random_state`` seeds a random rotation of images and texts; by default
    the axes are singular directions.

    K − c = A Bᵀ by the singular value decomposition, divided by the largest row norm of A and of B; two more
    coordinates, one for images and one for texts, make all norms 1, and the temperature is 1 over the product of these
    two norms.
    """
    scores = _as_scores(K, "K")
    needed = critic_rank(scores)
    dim = needed.enough if dim is None else check_positive(dim, "dim", integer=True)
    if dim < min(3, needed.enough):
        raise ParameterError(f"Got `dim={dim}`; two coordinates make row norms 1.", "Pass `dim=3` or more.")
    bias, kept = (needed.constant, needed.rank) if needed.enough <= dim else (float(scores.mean()), dim - 2)
    left, s, right = np.linalg.svd(scores - bias, full_matrices=False)
    padded, temperature = [], 1.0
    for k, side in enumerate((left[:, :kept] * np.sqrt(s[:kept]), right[:kept].T * np.sqrt(s[:kept]))):
        longest = float(np.linalg.norm(side, axis=1).max(initial=0)) or 1.0
        rows = np.zeros((len(side), dim))
        rows[:, :kept] = side / longest
        rows[:, kept + k] = np.sqrt(np.clip(1 - (rows**2).sum(axis=1), 0, None))
        padded.append(rows)
        temperature /= longest
    if random_state is not None:
        rotation, upper = np.linalg.qr(np.random.default_rng(random_state).standard_normal((dim, dim)))
        padded = [rows @ (rotation * np.sign(np.diag(upper))) for rows in padded]
    return DualEncoder(padded[0], padded[1], temperature, bias)


@dataclass(frozen=True)
class Curation(PlainData):
    """A data set selected from a world by weights of images and of texts, and the effect on the optimal scores.

    - ``joint``, shape (n, m): Distribution of the data set.
    - ``normalizer``: Z = E*[u(X) v(Y)].
    - ``image_factor``, shape (n,): E*[v(Y) | X = x]: the average weight of the texts of an image.
    - ``text_factor``, shape (m,): E*[u(X) | Y = y]: the average weight of the images of a text.
    """

    _also = ("constant", "departure")

    joint: np.ndarray
    normalizer: float
    image_factor: np.ndarray
    text_factor: np.ndarray

    @property
    def shift(self) -> np.ndarray:
        """K⁽ᵃ⁾ − K* by Lemma C.9, shape (n, m): the change of each pair's pointwise mutual information."""
        by_pair = np.log(self.image_factor)[:, None] + np.log(self.text_factor)
        return np.asarray(np.log(self.normalizer) - by_pair)

    @property
    def constant(self) -> float:
        """The constant nearest to ``shift``; log(Z / (E*[u] E*[v])) if the curation is independent (Theorem C.11)."""
        return float(self.shift.max() + self.shift.min()) / 2

    @property
    def departure(self) -> float:
        """Largest |K⁽ᵃ⁾ − K* − constant|, in nats: 0 if and only if Assumption C.10 holds.

        As the shift is a sum of a function of the image and one of the text, this is half the sum of the ranges of log
        E*[v | x] and log E*[u | y].
        """
        return float(np.ptp(np.log(self.image_factor)) + np.ptp(np.log(self.text_factor))) / 2


def curate(
    P: RowsLike, image_weights: Sequence[float] | np.ndarray, text_weights: Sequence[float] | np.ndarray
) -> Curation:
    """Select a data set by weights u (n,), v (m,): p⁽ᵃ⁾(x, y) ∝ u(x) v(y) p*(x, y) (eq. (3), C.8, C.9)."""
    joint = _as_joint(P)
    u, v = (
        _as_scores(np.asarray(weights)[:, None], name, (count, 1), above_zero=True)[:, 0]
        for weights, name, count in (
            (image_weights, "image_weights", joint.shape[0]),
            (text_weights, "text_weights", joint.shape[1]),
        )
    )
    weighted = u[:, None] * v * joint
    normalizer = float(weighted.sum())
    return Curation(weighted / normalizer, normalizer, joint @ v / joint.sum(axis=1), u @ joint / joint.sum(axis=0))


def independent_weights(P: RowsLike, *, strength: float = 0.5, random_state: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Draw weights of images (n,) and texts (m,) that curate a world P independently (Assumption C.10).

    E*[u(X) | Y = y] = 1 for every text and E*[v(Y) | X = x] = 1 for every image; ``strength``, below 1, is the largest
    deviation of a weight from 1. E*[v(Y) | X = x] = c for all x means that P (v − c·1) = 0: v differs from a constant
    by an element of the null space of P, and u by one of that of Pᵀ, so a world of full rank allows none.
    """
    joint = _as_joint(P)
    check_seed(random_state)
    if check_positive(strength, "strength") >= 1:
        raise ParameterError(argument="strength", got=strength, expected="less than 1")
    rng = np.random.default_rng(random_state)
    left, s, right = np.linalg.svd(joint)
    rank = numerical_rank(s, joint.shape)
    if rank == max(joint.shape):
        raise InputError(f"Only constant weights are independent for full rank {rank}.", "Pass a P of fewer topics.")
    sides = []
    for null, n in ((left.T[rank:], len(left)), (right[rank:], len(right))):
        # A random vector is projected onto the null space: the result must not depend on the basis that the SVD returns
        deviation = rng.standard_normal(n) @ null.T @ null
        sides.append(1 + strength * deviation / np.abs(deviation).max() if len(null) else np.ones(n))
    return sides[0], sides[1]


def latent_joint(
    n_images: int, n_texts: int, n_topics: int, *, concentration: float = 1.0, random_state: int = 0
) -> np.ndarray:
    """Return the joint distribution of images and texts that are independent given a topic: Σₖ πₖ p(x | k) p(y | k).

    Its rank is ``n_topics``, which must be below n or m for independent curation. ``concentration`` is that of the
    Dirichlet distributions of items given a topic; below 1, an item belongs mostly to one topic.
    """
    for name, value in (("n_images", n_images), ("n_texts", n_texts), ("n_topics", n_topics)):
        check_positive(value, name, integer=True)
    check_positive(concentration, "concentration")
    check_seed(random_state)
    rng = np.random.default_rng(random_state)
    images, texts = (0.9 * rng.dirichlet(np.full(n, concentration), n_topics) + 0.1 / n for n in (n_images, n_texts))
    joint = np.einsum("k,kx,ky->xy", rng.dirichlet(np.full(n_topics, 5.0)), images, texts)
    return np.asarray(joint / joint.sum())
