"""The paper's measures of one fitted map, on one part of the data, beside what each model reaches alone."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from congruence.errors import CongruenceWarning, InputError
from congruence.maps import Map, make_map
from congruence.metrics import class_retrieval, paired_cosine, paired_distance, zero_shot_accuracy
from congruence.synthetic import random_rotation

#: Every measure, with the words that stand on a figure's axis.
METRICS = {
    "image_cosine": "image–image cosine",
    "text_cosine": "text–text cosine",
    "image_distance": "image–image distance",
    "text_distance": "text–text distance",
    "image_retrieval": "image–image class retrieval",
    "image_retrieval_other": "the same, own counterpart left out",
    "text_retrieval": "text–text class retrieval",
    "aligned_image_text": "aligned image, target text",
    "image_aligned_text": "target image, aligned text",
    "aligned_image_aligned_text": "aligned image, aligned text",
    "aligned_image_text_centred": "aligned image, target text, both centred",
}

#: Maps by the names the configurations use.
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "orthogonal": ("orthogonal", {"spectrum": "full"}),
    "uncentred": ("orthogonal", {"spectrum": "full", "center": False}),
    "probed": ("orthogonal", {"spectrum": "probed"}),
    "filtered": ("orthogonal", {}),
    "linear": ("linear", {}),
    "least_squares": ("linear", {"alpha": 0.0}),
    "mlp": ("mlp", {}),
    "random": ("random", {}),
}

Means = tuple[np.ndarray, np.ndarray | None]


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
        self._rotation = random_rotation(len(own[0]), len(own[1]), seed=seed)

    def transform(self, rows: np.ndarray) -> np.ndarray:
        """Rotate rows about the means."""
        return ((rows - self._own[0]) @ self._rotation + self._own[1]).astype(rows.dtype)


class Carrier:
    """A fitted map with the means of both modalities: ``(modality, rows) -> carried rows``.

    Every map, linear and non-linear ones included, exchanges the means of the modality it carries,
    ``z ↦ ψ(z − μ_A + μ_A,fit) − μ_B,fit + μ_B``, which for the rotation is the paper's ``Q(z − μ_A) + μ_B``. Where the
    target's mean is unknown, the map carries the source's.

    Parameters
    ----------
    fitted : Map
        Or anything else that transforms rows.
    own : (ndarray, ndarray)
        Means of the anchors.
    means : dict of str to (ndarray, ndarray or None)
        By modality.
    exchange : bool
        False for the uncentred rotation.
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
        """Carry rows of a modality."""
        source, target = self._means.get(modality, (None, None))
        if not self._exchange or source is None or target is None:
            return self._map.transform(rows)
        shift = (self._own[0] - source).astype(rows.dtype)
        return self._map.transform(rows + shift) + (target - self._own[1]).astype(rows.dtype)


def fit_carrier(
    method: str,
    source: np.ndarray,
    target: np.ndarray,
    means: Mapping[str, Means],
    *,
    seed: int = 0,
    quick: bool = False,
) -> Carrier:
    """Fit a map on paired rows of one modality.

    Parameters
    ----------
    method : str
        A key of :data:`METHODS`.
    source, target : ndarray, shape (n, d_source) and (n, d_target)
    means : mapping of str to (ndarray, ndarray or None)
        Means to exchange, by modality.
    seed : int, default=0
        Of the perceptron.
    quick : bool, default=False
        Train the perceptron for a few epochs only.

    Returns
    -------
    Carrier
    """
    kind, parameters = METHODS[method]
    own = (source.mean(axis=0, dtype=np.float64), target.mean(axis=0, dtype=np.float64))
    if kind == "random":
        return Carrier(RandomRotation(own, seed), own, means, exchange=True)
    if kind == "mlp":
        parameters = {"random_state": seed, **({"hidden": 64, "max_epochs": 15} if quick else {})}
    with warnings.catch_warnings():
        # Few anchors, and targets narrower than the source, are what some figures are about.
        warnings.simplefilter("ignore", CongruenceWarning)
        fitted = make_map(kind, **parameters).fit(source, target)
    return Carrier(fitted, own, means, exchange=method != "uncentred")


@dataclass(frozen=True)
class View:
    """What is measured on: queries of both models among all candidates.

    Attributes
    ----------
    images : (ndarray or None, ndarray or None)
        All images to search, in the source and in the target.
    texts : (ndarray or None, ndarray or None)
        Class prototypes, in the source and in the target.
    labels : ndarray of int, shape (n,)
        Class of each image: a row of the prototypes.
    rows, classes : ndarray of int
        Which images and which classes are asked about; all are candidates.
    centres : mapping of str to (ndarray, ndarray or None)
        Means for the centred accuracy.
    """

    images: tuple[np.ndarray | None, np.ndarray | None]
    texts: tuple[np.ndarray | None, np.ndarray | None]
    labels: np.ndarray
    rows: np.ndarray
    classes: np.ndarray
    centres: Mapping[str, Means]


def references(view: View, metrics: list[str]) -> dict[str, dict[str, float]]:
    """Measure what does not depend on a map: before, and each model alone.

    Parameters
    ----------
    view : View
    metrics : list of str

    Returns
    -------
    dict of str to dict of str to float
        By metric: ``before``, ``model_a``, ``model_b``, ``oracle``, as far as they exist.
    """
    same = {m: _same_width(view, m) for m in ("image", "text")}
    (ia, ib), (ta, tb) = view.images, view.texts
    crossing = (
        ia is None or tb is None or ia.shape[1] == tb.shape[1],
        ib is None or ta is None or ib.shape[1] == ta.shape[1],
    )
    out: dict[str, dict[str, float]] = {}
    for metric in metrics:
        found: dict[str, float | None] = {}
        modality, _, measure = metric.partition("_")
        if metric.startswith("aligned") or metric == "image_aligned_text":
            centred = metric.endswith("centred")
            found["model_a"] = _classify(view, ia, ta, _centre(view, 0, 0) if centred else None)
            found["model_b"] = _classify(view, ib, tb, _centre(view, 1, 1) if centred else None)
            if metric.startswith("aligned_image_text") and crossing[0]:
                centre = _centre(view, 0, 1) if centred else None
                found["before"] = _classify(view, ia, tb, centre)
            elif metric == "image_aligned_text" and crossing[1]:
                found["before"] = _classify(view, ib, ta)
        else:
            side = view.images if modality == "image" else view.texts
            if side[0] is None or side[1] is None:
                continue
            if same[modality]:
                found["before"] = _within(view, modality, measure, side[0])
            if measure == "retrieval_other":
                found["oracle"] = _within(view, modality, measure, side[1])
            else:
                found["oracle"] = 0.0 if measure == "distance" else 1.0
        out[metric] = {name: value for name, value in found.items() if value is not None}
    return out


def measure(carry: Callable[[str, np.ndarray], np.ndarray], view: View, metrics: list[str]) -> dict[str, float]:
    """Measure a map.

    Parameters
    ----------
    carry : callable
        ``(modality, rows) -> carried rows``.
    view : View
    metrics : list of str
        Those for which images or texts of a model are missing are left out.

    Returns
    -------
    dict of str to float

    Raises
    ------
    InputError
        Nothing can be measured.
    """
    (ia, ib), (ta, tb) = view.images, view.texts
    moved: dict[str, np.ndarray | None] = {
        "image": None if ia is None else carry("image", ia),
        "text": None if ta is None else carry("text", ta),
    }
    out: dict[str, float | None] = {}
    for metric in metrics:
        modality, _, what = metric.partition("_")
        if metric.startswith("aligned_image_text"):
            centre = _centre(view, 0, 1) if metric.endswith("centred") else None
            if centre is not None and ia is not None:
                # The cloud's centre is carried to where the map puts it.
                centre = (carry("image", centre[0][None].astype(ia.dtype))[0], centre[1])
            out[metric] = _classify(view, moved["image"], tb, centre)
        elif metric == "image_aligned_text":
            out[metric] = _classify(view, ib, moved["text"])
        elif metric == "aligned_image_aligned_text":
            out[metric] = _classify(view, moved["image"], moved["text"])
        elif (view.images if modality == "image" else view.texts)[1] is not None and moved[modality] is not None:
            out[metric] = _within(view, modality, what, moved[modality])
    known = {metric: value for metric, value in out.items() if value is not None}
    if not known:
        raise InputError(
            f"Got embeddings on which none of {', '.join(metrics)} can be measured; expected images or texts of both "
            "models. Pass a collection that has these."
        )
    return known


def _same_width(view: View, modality: str) -> bool:
    a, b = view.images if modality == "image" else view.texts
    return a is not None and b is not None and a.shape[1] == b.shape[1]


def _centre(view: View, images: int, texts: int) -> tuple[Any, Any] | None:
    """Return the image mean of one model and the text mean of one, if both are known."""
    centre = (view.centres.get("image", (None, None))[images], view.centres.get("text", (None, None))[texts])
    return None if centre[0] is None or centre[1] is None else centre


def _classify(
    view: View, images: np.ndarray | None, texts: np.ndarray | None, centre: tuple[Any, Any] | None = None
) -> float | None:
    if images is None or texts is None or not len(view.rows):
        return None
    return zero_shot_accuracy(images[view.rows], texts, view.labels[view.rows], center=centre)


def _within(view: View, modality: str, what: str, queries: Any) -> float | None:
    target: Any = (view.images if modality == "image" else view.texts)[1]
    rows = view.rows if modality == "image" else view.classes
    labels = view.labels if modality == "image" else np.arange(len(target))
    if len(rows) < (2 if what == "retrieval_other" else 1):
        return None
    if what == "cosine":
        return paired_cosine(queries[rows], target[rows])
    if what == "distance":
        return paired_distance(queries[rows], target[rows])
    if what == "retrieval_other":
        return class_retrieval(queries[rows], target[rows], labels[rows], exclude_self=True)
    return class_retrieval(queries[rows], target, labels[rows], labels)
