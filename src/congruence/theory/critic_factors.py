"""The scores that a dual encoder of d dimensions can represent (Remark C.7), and the construction of one with given scores."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from congruence._utils.typing import RowsLike
from congruence._utils.validation import as_matrix, check_positive
from congruence.errors import ParameterError
from congruence.theory._base import numerical_rank

__all__ = ["CriticRank", "DualEncoder", "critic_rank", "realize_critic"]


@dataclass(frozen=True)
class CriticRank:
    """The dimension that a dual encoder needs for given scores.

    Attributes
    ----------
    shape : (int, int)
        Numbers of images and texts.
    rank : int
        Smallest rank of K − c over all constants c: no encoder of fewer dimensions has these scores, whatever its temperature and bias.
    constant : float
        A c at which this rank is reached.
    singular_values : ndarray, shape (min(n, m),)
        Singular values of K.
    max_temperature : float
        2 / (max K − min K): at a higher temperature, the scores of unit rows cannot differ this much.
    """

    shape: tuple[int, int]
    rank: int
    constant: float
    singular_values: np.ndarray
    max_temperature: float

    @property
    def enough(self) -> int:
        """Number of dimensions in which :func:`realize_critic` attains these scores with unit rows: ``rank`` + 2."""
        return self.rank + 2

    def rms_error(self, d: int) -> float:
        """Return a lower bound on the root mean square error of the scores of any dual encoder of d dimensions.

        The bound is over all temperatures, biases and constants. Such scores have rank at most d + 1, so none are nearer than the d + 1 leading singular
        directions (Eckart and Young, 1936). Unit rows may be unable to reach the bound.
        """
        check_positive(d, "d", integer=True)
        dropped = self.singular_values[d + 1 :]
        return float(np.sqrt((dropped**2).sum() / (self.shape[0] * self.shape[1])))

    def in_words(self) -> str:
        """Return the result as one sentence, for display."""
        return (
            f"These scores of {self.shape[0]} images and {self.shape[1]} texts require a dual encoder of at least {self.rank} dimensions, and {self.enough} are enough; "
            f"its temperature is at most {self.max_temperature:.3g}."
        )

    def to_dict(self) -> dict[str, object]:
        """Return all fields as plain data."""
        return {
            "shape": list(self.shape),
            "rank": self.rank,
            "enough": self.enough,
            "constant": self.constant,
            "singular_values": self.singular_values.tolist(),
            "max_temperature": self.max_temperature,
        }


@dataclass(frozen=True)
class DualEncoder:
    """A dual encoder on finitely many items.

    Attributes
    ----------
    images : ndarray, shape (n, d)
        Unit rows.
    texts : ndarray, shape (m, d)
        Unit rows.
    temperature : float
    bias : float
    """

    images: np.ndarray
    texts: np.ndarray
    temperature: float
    bias: float

    @property
    def scores(self) -> np.ndarray:
        """⟨f(x), g(y)⟩ / τ + b of every pair, shape (n, m)."""
        return np.asarray(self.images @ self.texts.T / self.temperature + self.bias)


def critic_rank(K: RowsLike, *, rtol: float | None = None) -> CriticRank:
    """Determine the dimension that a dual encoder needs for given scores, up to a constant; for the optimal scores of a distribution, pass its :func:`pmi`.

    Parameters
    ----------
    K : array_like, shape (n, m)
        Score of every image and text.
    rtol : float, optional
        Singular values above this share of the largest count as nonzero; by default those above rounding error.

    Returns
    -------
    CriticRank

    References
    ----------
    Gupta et al. (2026), Remark C.7.

    Notes
    -----
    The remark bounds the rank of the scores by d + 1. A sharper statement: scores minus their bias have rank at most d, so no dual encoder has the scores K, up to a
    constant, unless some K − c has rank at most d. The smallest such rank is one less than that of K, at c = 1/(1ᵀK⁺1), if the vector of ones is in the column space and in
    the row space of K and 1ᵀK⁺1 ≠ 0 (Wedderburn's reduction); otherwise it is that of K.

    Examples
    --------
    >>> import numpy as np
    >>> found = critic_rank(np.outer([1, 2, 3], [1, -1]) + 5)
    >>> found.rank, round(found.constant, 12)
    (1, 5.0)
    """
    scores = as_matrix(K, "K", allow_zero_rows=True).astype(np.float64)
    if rtol is not None:
        check_positive(rtol, "rtol", zero=True)
    left, s, right = np.linalg.svd(scores, full_matrices=False)
    rank = numerical_rank(s, scores.shape, rtol) if s[0] > 0 else 0
    constant = 0.0
    if rank:
        floor = max(max(scores.shape) * float(np.finfo(np.float64).eps), rtol or 0.0)
        a, b = left[:, :rank].sum(axis=0), right[:rank].sum(axis=1)
        # Whether the vectors of ones are in the column space and in the row space: their projections have full norm.
        in_span = all(
            abs(float(ones @ ones) / count - 1) <= np.sqrt(floor)
            for ones, count in zip((a, b), scores.shape, strict=True)
        )
        form = float((a / s[:rank]) @ b)  # 1ᵀK⁺1
        if in_span and form != 0:
            reduced = np.linalg.svd(scores - 1 / form, compute_uv=False)
            lower = int((reduced > max(s[0], reduced[0]) * floor * 10).sum())
            if lower < rank:
                rank, constant = lower, 1 / form
    spread = float(np.ptp(scores))
    return CriticRank((scores.shape[0], scores.shape[1]), rank, constant, s, 2 / spread if spread > 0 else np.inf)


def realize_critic(K: RowsLike, *, dim: int | None = None, random_state: int | None = None) -> DualEncoder:
    """Return a dual encoder with unit rows that has the given scores, exactly if its dimension allows it.

    Parameters
    ----------
    K : array_like, shape (n, m)
        Scores, such as the :func:`pmi` of a distribution.
    dim : int, optional
        Dimension, at least 3 or ``critic_rank(K).enough``. By default ``critic_rank(K).enough``, for exact scores; with fewer dimensions, the leading
        directions of K minus its mean are kept.
    random_state : int, optional
        Seed of a random rotation that is applied to images and texts; by default the axes are singular directions.

    Returns
    -------
    DualEncoder

    Notes
    -----
    K − c = A Bᵀ by the singular value decomposition. Divided by the largest row norm of A and of B, all rows have norm at most 1. Two more coordinates, one that only
    images have and one that only texts have, make the norms 1. The temperature is 1 over the product of the two largest norms.

    Examples
    --------
    >>> import numpy as np
    >>> from congruence.theory import pmi
    >>> K = pmi([[3, 1, 2], [1, 3, 2]])
    >>> encoder = realize_critic(K)
    >>> np.allclose(encoder.scores, K), encoder.images.shape
    (True, (2, 4))
    """
    scores = as_matrix(K, "K", allow_zero_rows=True).astype(np.float64)
    needed = critic_rank(scores)
    if dim is None:
        dim = needed.enough
    check_positive(dim, "dim", integer=True)
    if dim < 3 and dim < needed.enough:
        raise ParameterError(
            f"Got dim={dim}; expected 3 or more, since two coordinates are used to make row norms 1. Pass a larger dim=…."
        )
    exact = needed.enough <= dim
    bias = needed.constant if exact else float(scores.mean())
    kept = needed.rank if exact else dim - 2
    left, s, right = np.linalg.svd(scores - bias, full_matrices=False)
    images, texts = left[:, :kept] * np.sqrt(s[:kept]), right[:kept].T * np.sqrt(s[:kept])
    scale = [float(np.linalg.norm(side, axis=1).max(initial=0)) or 1.0 for side in (images, texts)]
    padded = []
    for k, (side, longest) in enumerate(zip((images, texts), scale, strict=True)):
        rows = np.zeros((len(side), dim))
        rows[:, :kept] = side / longest
        rows[:, kept + k] = np.sqrt(np.clip(1 - (rows**2).sum(axis=1), 0, None))
        padded.append(rows)
    if random_state is not None:
        rotation, upper = np.linalg.qr(np.random.default_rng(random_state).standard_normal((dim, dim)))
        padded = [rows @ (rotation * np.sign(np.diag(upper))) for rows in padded]
    return DualEncoder(padded[0], padded[1], 1 / (scale[0] * scale[1]), bias)
