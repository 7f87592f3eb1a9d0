"""Two data sets selected from one world, and when their optimal scores agree (section 5.2, appendix C.4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from congruence._utils.typing import RowsLike
from congruence._utils.validation import as_matrix, check_positive, check_seed
from congruence.errors import InputError, ParameterError, ShapeError
from congruence.theory.critic import as_joint

__all__ = ["Curation", "curate", "independent_weights", "latent_joint"]


@dataclass(frozen=True)
class Curation:
    """A data set selected from a world by weights of images and of texts, and the effect on the optimal scores.

    Attributes
    ----------
    joint : ndarray, shape (n, m)
        Distribution of the data set.
    normalizer : float
        Z = E*[u(X) v(Y)].
    image_factor : ndarray, shape (n,)
        E*[v(Y) | X = x]: the average weight of the texts of an image.
    text_factor : ndarray, shape (m,)
        E*[u(X) | Y = y]: the average weight of the images of a text.
    """

    joint: np.ndarray
    normalizer: float
    image_factor: np.ndarray
    text_factor: np.ndarray

    @property
    def shift(self) -> np.ndarray:
        """K⁽ᵃ⁾ − K* by Lemma C.9, shape (n, m): the change in the pointwise mutual information of each pair caused by the curation."""
        by_pair = np.log(self.image_factor)[:, None] + np.log(self.text_factor)
        return np.asarray(np.log(self.normalizer) - by_pair)

    @property
    def constant(self) -> float:
        """The constant nearest to ``shift``; log(Z / (E*[u] E*[v])) if the curation is independent (Theorem C.11)."""
        shift = self.shift
        return float(shift.max() + shift.min()) / 2

    @property
    def departure(self) -> float:
        """Largest |K⁽ᵃ⁾ − K* − constant|, in nats: 0 if and only if Assumption C.10 holds.

        As the shift is a sum of a function of the image and one of the text, this is half the sum of the ranges of log E*[v | x] and log E*[u | y].
        """
        return float(np.ptp(np.log(self.image_factor)) + np.ptp(np.log(self.text_factor))) / 2

    def in_words(self) -> str:
        """Return the result as one sentence, for display."""
        return (
            f"The optimal scores on the data set are those of the world plus {self.constant:.3g}, within {self.departure:.3g}; "
            f"the log mean weight of an image's texts has a range of {np.ptp(np.log(self.image_factor)):.3g}, that of a text's images {np.ptp(np.log(self.text_factor)):.3g}."
        )

    def to_dict(self) -> dict[str, object]:
        """Return all fields as plain data."""
        arrays = {name: getattr(self, name).tolist() for name in ("joint", "image_factor", "text_factor")}
        return {**arrays, "normalizer": self.normalizer, "constant": self.constant, "departure": self.departure}


def curate(
    P: RowsLike, image_weights: Sequence[float] | np.ndarray, text_weights: Sequence[float] | np.ndarray
) -> Curation:
    """Select a data set from a world: p⁽ᵃ⁾(x, y) ∝ u(x) v(y) p*(x, y).

    Parameters
    ----------
    P : array_like, shape (n, m)
        The world: joint probabilities or counts, positive.
    image_weights : array_like, shape (n,)
        u, the positive weight with which each image is selected.
    text_weights : array_like, shape (m,)
        v, the positive weight with which each text is selected.

    Returns
    -------
    Curation

    References
    ----------
    Gupta et al. (2026), eq. (3), Assumption C.8, Lemma C.9.

    Examples
    --------
    >>> import numpy as np
    >>> chosen = curate([[3, 1], [1, 3]], [2, 1], [1, 1])  # the first image is selected twice as often as the second
    >>> chosen.joint.tolist()
    [[0.5, 0.16666666666666666], [0.08333333333333333, 0.25]]
    >>> np.allclose(chosen.image_factor, 1), round(chosen.departure, 4)
    (True, 0.1682)
    """
    joint = as_joint(P)
    u, v = (
        _weights(weights, name, count)
        for weights, name, count in zip(
            (image_weights, text_weights), ("image_weights", "text_weights"), joint.shape, strict=True
        )
    )
    weighted = u[:, None] * v * joint
    normalizer = float(weighted.sum())
    return Curation(weighted / normalizer, normalizer, joint @ v / joint.sum(axis=1), u @ joint / joint.sum(axis=0))


def _weights(weights: Sequence[float] | np.ndarray, name: str, count: int) -> np.ndarray:
    """Return ``count`` positive weights in float64. Raises ShapeError or InputError."""
    array = np.asarray(weights)
    if array.shape != (count,):
        raise ShapeError(f"Got {name} of shape {array.shape}; expected ({count},). Pass one weight for each.")
    column = as_matrix(array[:, None], name, allow_zero_rows=True)[:, 0]
    if not float(column.min()) > 0:
        raise InputError(
            f"Got {float(column.min()):.3g} in {name}; expected positive numbers. Leave out items of weight 0."
        )
    return np.asarray(column, dtype=np.float64)


def independent_weights(P: RowsLike, *, strength: float = 0.5, random_state: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Draw weights of images and texts that curate a world independently, as Assumption C.10 requires.

    Parameters
    ----------
    P : array_like, shape (n, m)
        The world: joint probabilities or counts, positive.
    strength : float, default=0.5
        Largest deviation of a weight from 1, between 0 and 1.
    random_state : int, default=0

    Returns
    -------
    image_weights : ndarray, shape (n,)
        u, with E*[u(X) | Y = y] = 1 for every text.
    text_weights : ndarray, shape (m,)
        v, with E*[v(Y) | X = x] = 1 for every image.

    References
    ----------
    Gupta et al. (2026), Assumption C.10.

    Notes
    -----
    E*[v(Y) | X = x] = c for all x means that P (v − c·1) = 0. So v differs from a constant by an element of the null space of P, of dimension m − rank(P), and u by
    one of the null space of Pᵀ, of dimension n − rank(P): **a world of full rank allows no independent curation**, and a world of k latent topics (rank k) allows
    weights with the same mean for every topic. The paper does not state this.

    Examples
    --------
    >>> import numpy as np
    >>> P = latent_joint(8, 9, 3)
    >>> u, v = independent_weights(P)
    >>> float(abs(u - 1).max()), float(abs(v - 1).max())
    (0.5, 0.5)
    >>> bool(np.ptp(P @ v / P.sum(axis=1)) < 1e-12)
    True
    """
    joint = as_joint(P)
    check_seed(random_state)
    check_positive(strength, "strength")
    if strength >= 1:
        raise ParameterError(
            f"Got strength={strength}; expected a number below 1, since weights must be positive. Pass strength=0.5, for example."
        )
    rng = np.random.default_rng(random_state)
    left, s, right = np.linalg.svd(joint)
    rank = int((s > max(joint.shape) * np.finfo(np.float64).eps * s[0]).sum())
    if rank == max(joint.shape):
        raise InputError(
            f"Got P of full rank {rank}; expected a lower rank, since otherwise only constant weights curate independently. Pass a world with fewer latent topics than items."
        )
    sides = []
    for null, n in ((left.T[rank:], len(left)), (right[rank:], len(right))):
        # A random vector is projected onto the null space, because the result must not depend on the basis that the SVD returns.
        deviation = rng.standard_normal(n) @ null.T @ null
        sides.append(1 + strength * deviation / np.abs(deviation).max() if len(null) else np.ones(n))
    return sides[0], sides[1]


def latent_joint(
    n_images: int, n_texts: int, n_topics: int, *, concentration: float = 1.0, random_state: int = 0
) -> np.ndarray:
    """Return the joint distribution of images and texts that are independent given a topic: Σₖ πₖ p(x | k) p(y | k).

    Parameters
    ----------
    n_images, n_texts, n_topics : int
        n, m and the rank of the result, which must be below n or m for independent curation.
    concentration : float, default=1.0
        Concentration of the Dirichlet distributions of items given a topic; below 1, an item belongs mostly to one topic.
    random_state : int, default=0

    Returns
    -------
    ndarray, shape (n_images, n_texts)
        Positive, with sum 1.

    Examples
    --------
    >>> import numpy as np
    >>> int(np.linalg.matrix_rank(latent_joint(8, 9, 3)))
    3
    """
    for name, value in (("n_images", n_images), ("n_texts", n_texts), ("n_topics", n_topics)):
        check_positive(value, name, integer=True)
    check_positive(concentration, "concentration")
    check_seed(random_state)
    rng = np.random.default_rng(random_state)
    images, texts = (0.9 * rng.dirichlet(np.full(n, concentration), n_topics) + 0.1 / n for n in (n_images, n_texts))
    joint = np.einsum("k,kx,ky->xy", rng.dirichlet(np.full(n_topics, 5.0)), images, texts)
    return np.asarray(joint / joint.sum())
