"""The compared maps, each combined with the means of both modalities."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import numpy as np

from congruence.errors import CongruenceWarning
from congruence.maps import Map, make_map
from congruence.synthetic import random_rotation
from congruence_papers.canonical.metrics import Means

__all__ = ["BASELINES", "ModalityMap", "RandomRotation", "fit_modality_map"]

#: Maps by the names used in the configurations: the method and its parameters, see :func:`congruence.maps.make_map`.
BASELINES: dict[str, tuple[str, dict[str, object]]] = {
    "orthogonal": ("orthogonal", {"shrinkage": "full"}),
    "uncentered": ("orthogonal", {"shrinkage": "full", "center": False}),
    "covered": ("orthogonal", {"shrinkage": "covered"}),
    "filtered": ("orthogonal", {}),
    "linear": ("linear", {}),
    "least_squares": ("linear", {"ridge": 0.0}),
    "mlp": ("mlp", {}),
    "random": ("random", {}),
}


class RandomRotation:
    """A control: a random rotation about the correct means.

    Parameters
    ----------
    own : (ndarray, ndarray), shapes (d_source,) and (d_target,)
        Means of the source and of the target, around which rows are rotated.
    seed : int
    """

    def __init__(self, own: tuple[np.ndarray, np.ndarray], seed: int) -> None:
        self._own = own
        self._rotation = random_rotation(len(own[0]), len(own[1]), random_state=seed)

    def transform(self, rows: np.ndarray) -> np.ndarray:
        """Rotate rows about the source's mean and move them to the target's mean."""
        return ((rows - self._own[0]) @ self._rotation + self._own[1]).astype(rows.dtype)


class ModalityMap:
    """A fitted map combined with the means of both modalities: ``(modality, rows) -> mapped rows``.

    Every map, including linear and non-linear ones, exchanges the means of the modality it maps,
    ``z ↦ ψ(z − μ_A + μ_A,fit) − μ_B,fit + μ_B``, which for the rotation is the paper's ``Q(z − μ_A) + μ_B``. If a mean of
    the modality is unknown, the rows are mapped as they are, without exchanging means.

    Parameters
    ----------
    fitted : Map or RandomRotation
    own : (ndarray, ndarray), shapes (d_source,) and (d_target,)
        Means of the anchors in the source and in the target, μ_A,fit and μ_B,fit.
    means : mapping of str to (ndarray, ndarray or None)
        Means of each modality in the source and in the target, μ_A and μ_B.
    exchange : bool
        Whether to exchange means; False for the uncentered rotation.
    """

    def __init__(
        self,
        fitted: Map | RandomRotation,
        own: tuple[np.ndarray, np.ndarray],
        means: Mapping[str, Means],
        exchange: bool,
    ):
        self._map, self._own, self._means, self._exchange = fitted, own, means, exchange

    def __call__(self, modality: str, rows: np.ndarray) -> np.ndarray:
        """Map rows of one modality."""
        source, target = self._means.get(modality, (None, None))
        if not self._exchange or source is None or target is None:
            return self._map.transform(rows)
        shift = (self._own[0] - source).astype(rows.dtype)
        return self._map.transform(rows + shift) + (target - self._own[1]).astype(rows.dtype)


def fit_modality_map(
    method: str,
    source: np.ndarray,
    target: np.ndarray,
    means: Mapping[str, Means],
    *,
    seed: int = 0,
    quick: bool = False,
) -> ModalityMap:
    """Fit a map on paired rows of one modality.

    Parameters
    ----------
    method : str
        A key of :data:`BASELINES`.
    source, target : ndarray, shape (n, d_source) and (n, d_target)
    means : mapping of str to (ndarray, ndarray or None)
        Means to exchange, by modality.
    seed : int, default=0
        Random seed of the MLP and of the random rotation.
    quick : bool, default=False
        Train a smaller MLP, for a few epochs only.

    Returns
    -------
    ModalityMap
    """
    kind, parameters = BASELINES[method]
    own = (source.mean(axis=0, dtype=np.float64), target.mean(axis=0, dtype=np.float64))
    if kind == "random":
        return ModalityMap(RandomRotation(own, seed), own, means, exchange=True)
    if kind == "mlp":
        parameters = {**parameters, "random_state": seed, **({"hidden": 64, "max_epochs": 15} if quick else {})}
    with warnings.catch_warnings():
        # Some figures deliberately use few anchors, or targets narrower than the source.
        warnings.simplefilter("ignore", CongruenceWarning)
        fitted = make_map(kind, **parameters).fit(source, target)
    return ModalityMap(fitted, own, means, exchange=method != "uncentered")
