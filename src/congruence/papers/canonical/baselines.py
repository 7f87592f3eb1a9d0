"""The maps that are compared, each with the means of both modalities."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import numpy as np

from congruence.errors import CongruenceWarning
from congruence.maps import Map, make_map
from congruence.papers.canonical.metrics import Means
from congruence.synthetic import random_rotation

__all__ = ["BASELINES", "ModalityMap", "RandomRotation", "fit_modality_map"]

#: Maps by the names the configurations use.
BASELINES: dict[str, tuple[str, dict[str, object]]] = {
    "orthogonal": ("orthogonal", {"shrinkage": "full"}),
    "uncentered": ("orthogonal", {"shrinkage": "full", "center": False}),
    "probed": ("orthogonal", {"shrinkage": "probed"}),
    "filtered": ("orthogonal", {}),
    "linear": ("linear", {}),
    "least_squares": ("linear", {"ridge": 0.0}),
    "mlp": ("mlp", {}),
    "random": ("random", {}),
}


class RandomRotation:
    """A control: a rotation that knows nothing of the target but its mean.

    Parameters
    ----------
    own : (ndarray, ndarray)
        Means of the source and of the target.
    seed : int
    """

    def __init__(self, own: tuple[np.ndarray, np.ndarray], seed: int) -> None:
        self._own = own
        self._rotation = random_rotation(len(own[0]), len(own[1]), random_state=seed)

    def transform(self, rows: np.ndarray) -> np.ndarray:
        """Rotate rows about the means."""
        return ((rows - self._own[0]) @ self._rotation + self._own[1]).astype(rows.dtype)


class ModalityMap:
    """A fitted map with the means of both modalities: ``(modality, rows) -> mapped rows``.

    Every map, linear and non-linear ones included, exchanges the means of the modality it maps,
    ``z ↦ ψ(z − μ_A + μ_A,fit) − μ_B,fit + μ_B``, which for the rotation is the paper's ``Q(z − μ_A) + μ_B``. Where the
    target's mean is unknown, the source's mean is mapped too.

    Parameters
    ----------
    fitted : Map
        Or anything else that transforms rows.
    own : (ndarray, ndarray)
        Means of the anchors.
    means : dict of str to (ndarray, ndarray or None)
        By modality.
    exchange : bool
        False for the uncentered rotation.
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
        """Map rows of a modality."""
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
        Of the perceptron.
    quick : bool, default=False
        Train the perceptron for a few epochs only.

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
        # Few anchors, and targets narrower than the source, are what some figures are about.
        warnings.simplefilter("ignore", CongruenceWarning)
        fitted = make_map(kind, **parameters).fit(source, target)
    return ModalityMap(fitted, own, means, exchange=method != "uncentered")
