"""The compared maps with the means of both modalities, the metrics of a mapped collection, and its controls."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from congruence.errors import CongruenceWarning, InputError
from congruence.evaluation.controls import DRAWS, ControlRows
from congruence.maps import Map, make_map
from congruence.metrics import class_retrieval, paired_cosine, paired_distance, zero_shot_accuracy
from congruence.synthetic import random_rotation

#: Every metric, with its label on a figure's axis.
METRICS = {
    "image_cosine": "image–image cosine",
    "text_cosine": "text–text cosine",
    "image_distance": "image–image distance",
    "text_distance": "text–text distance",
    "image_retrieval": "image–image class retrieval",
    "image_retrieval_other": "image–image class retrieval, own counterpart left out",
    "text_retrieval": "text–text class retrieval",
    "aligned_image_text": "aligned image, target text",
    "image_aligned_text": "target image, aligned text",
    "aligned_image_aligned_text": "aligned image, aligned text",
    "aligned_image_text_centered": "aligned image, target text, both centered",
}

Means = tuple[np.ndarray, np.ndarray | None]

#: A map: ``(modality, rows) -> mapped rows``.
Mapped = Callable[[str, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class EvaluationRows:
    """Data to evaluate on, in both models: ``labels`` (n,) are row numbers of the prototypes, and ``rows`` and
    ``classes`` (q,) the images and classes that are queries.
    """

    images: tuple[np.ndarray | None, np.ndarray | None]
    texts: tuple[np.ndarray | None, np.ndarray | None]
    labels: np.ndarray
    rows: np.ndarray
    classes: np.ndarray
    centers: Mapping[str, Means]


def references(view: EvaluationRows, metrics: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return the scores that do not depend on a map: before mapping, of each model alone, of the target's rows."""
    (ia, ib), (ta, tb) = view.images, view.texts
    out: dict[str, dict[str, float]] = {}
    for metric in metrics:
        scores: dict[str, float | None] = {}
        modality, _, measure = metric.partition("_")
        if metric.startswith("aligned") or metric == "image_aligned_text":
            centered = metric.endswith("centered")
            scores["model_a"] = _classify(view, ia, ta, _center(view, 0, 0) if centered else None)
            scores["model_b"] = _classify(view, ib, tb, _center(view, 1, 1) if centered else None)
            if metric.startswith("aligned_image_text") and _same_width(ia, tb):
                scores["before"] = _classify(view, ia, tb, _center(view, 0, 1) if centered else None)
            elif metric == "image_aligned_text" and _same_width(ib, ta):
                scores["before"] = _classify(view, ib, ta)
        else:
            source, target = view.images if modality == "image" else view.texts
            if source is None or target is None:
                continue
            if _same_width(source, target):
                scores["before"] = _within(view, modality, measure, source)
            if measure == "retrieval_other":
                scores["oracle"] = _within(view, modality, measure, target)
            else:
                scores["oracle"] = 0.0 if measure == "distance" else 1.0
        out[metric] = {name: value for name, value in scores.items() if value is not None}
    return out


def measure(mapping: Mapped, view: EvaluationRows, metrics: Sequence[str]) -> dict[str, float]:
    """Return the scores of a map."""
    (ia, ib), (ta, tb) = view.images, view.texts
    mapped: dict[str, np.ndarray | None] = {
        "image": None if ia is None else mapping("image", ia),
        "text": None if ta is None else mapping("text", ta),
    }
    out: dict[str, float | None] = {}
    for metric in metrics:
        modality, _, what = metric.partition("_")
        if metric.startswith("aligned_image_text"):
            centers = _center(view, 0, 1) if metric.endswith("centered") else None
            if centers is not None and ia is not None:
                # The images are mapped, so their center is mapped, too.
                centers = (mapping("image", centers[0][None].astype(ia.dtype))[0], centers[1])
            out[metric] = _classify(view, mapped["image"], tb, centers)
        elif metric == "image_aligned_text":
            out[metric] = _classify(view, ib, mapped["text"])
        elif metric == "aligned_image_aligned_text":
            out[metric] = _classify(view, mapped["image"], mapped["text"])
        elif (queries := mapped[modality]) is not None:
            out[metric] = _within(view, modality, what, queries)
    measured = {metric: value for metric, value in out.items() if value is not None}
    if not measured:
        raise InputError(f"These rows allow none of {', '.join(metrics)}.", "Pass both models' images or texts.")
    return measured


def _same_width(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    """Return whether both arrays exist and have the same width."""
    return a is not None and b is not None and a.shape[1] == b.shape[1]


def _center(view: EvaluationRows, images: int, texts: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the image mean and the text mean of the models with these indices, or None if one of them is unknown."""
    image, text = view.centers.get("image", (None, None))[images], view.centers.get("text", (None, None))[texts]
    return None if image is None or text is None else (image, text)


def _classify(
    view: EvaluationRows,
    images: np.ndarray | None,
    texts: np.ndarray | None,
    centers: tuple[np.ndarray, np.ndarray] | None = None,
) -> float | None:
    """Return the zero-shot accuracy of the query images; None without images, texts or queries."""
    if images is None or texts is None or not len(view.rows):
        return None
    queries = images[view.rows]
    if centers is not None:
        queries, texts = queries - centers[0], texts - centers[1]
    return zero_shot_accuracy(queries, texts, view.labels[view.rows])


def _within(view: EvaluationRows, modality: str, what: str, queries: np.ndarray) -> float | None:
    """Return a metric of one modality, of rows compared with those of the target; None if there are too few."""
    target = (view.images if modality == "image" else view.texts)[1]
    if target is None:
        return None
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


#: Maps by the names used in the configurations: the method and its parameters, see ``congruence.maps.make_map``.
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
    """A control: a random rotation about the correct means."""

    def __init__(self, own: tuple[np.ndarray, np.ndarray], seed: int) -> None:
        self._own = own
        self._rotation = random_rotation(len(own[0]), len(own[1]), random_state=seed)

    def transform(self, rows: np.ndarray) -> np.ndarray:
        """Rotate rows about the source's mean and move them to the target's mean."""
        return ((rows - self._own[0]) @ self._rotation + self._own[1]).astype(rows.dtype)


class ModalityMap:
    """A fitted map combined with the means of both modalities: ``(modality, rows) -> mapped rows``.

    Every map, including linear and non-linear ones, exchanges the means of the modality it maps,
    ``z ↦ ψ(z − μ_A + μ_A,fit) − μ_B,fit + μ_B``, which for the rotation is the paper's ``Q(z − μ_A) + μ_B``. If a mean
    of the modality is unknown, the rows are mapped as they are, without exchanging means.
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
    """Fit a map on paired rows, shape (n, d), of one modality."""
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


#: Metrics of paired rows, which have both controls. Retrieval and classification have the random rotation only:
#: constant rows would score at chance.
PAIRED = ("image_cosine", "text_cosine", "image_distance", "text_distance")

#: Modalities whose means must be known for each of the other metrics.
_MAPPED = {
    "image_retrieval": {"image"},
    "image_retrieval_other": {"image"},
    "text_retrieval": {"text"},
    "aligned_image_text": {"image"},
    "aligned_image_text_centered": {"image", "text"},
    "image_aligned_text": {"text"},
    "aligned_image_aligned_text": {"image", "text"},
}

#: With more query images than this, metrics of unpaired rows are measured for the first random rotation only.
_MOST = 2_000


def controls(
    view: EvaluationRows, metrics: Sequence[str], *, random: bool = True, draws: int = DRAWS
) -> dict[str, dict[str, float]]:
    """Measure the constant and the random-rotation control."""
    out: dict[str, dict[str, float]] = {}
    for metric in metrics:
        if metric in PAIRED:
            out[metric] = _paired(view, metric, draws)
            if not random:
                out[metric].pop("random_rotation", None)
    if random:
        out |= _rotated(view, [metric for metric in metrics if metric in _MAPPED], draws)
    return out


def _paired(view: EvaluationRows, metric: str, draws: int) -> dict[str, float]:
    """Measure both controls of a metric of paired rows."""
    modality = metric.partition("_")[0]
    source, target = view.images if modality == "image" else view.texts
    source_mean, target_mean = view.centers.get(modality, (None, None))
    if source is None or target is None or source_mean is None or target_mean is None:
        return {}
    lengths = np.linalg.norm(source - source_mean, axis=1)
    rows = ControlRows(np.asarray(target_mean), lengths, max(source.shape[1], target.shape[1]), in_sample=False)
    try:
        scores = rows.score(lambda moved: measure(lambda _, __: moved, view, [metric])[metric], draws=draws)
    except InputError:  # there are no query rows
        return {}
    named = {"constant": scores.constant, "random_rotation": scores.random_rotation}
    return {name: value for name, value in named.items() if value is not None}


def _rotated(view: EvaluationRows, metrics: Sequence[str], draws: int) -> dict[str, dict[str, float]]:
    """Measure with the same random rotation for both modalities, about the means of each."""
    means = {name: own for name, own in view.centers.items() if own[1] is not None}
    measurable = [metric for metric in metrics if _MAPPED[metric] <= {*means}]
    if not measurable:
        return {}
    values: dict[str, list[float]] = {}
    for seed in range(draws if len(view.rows) <= _MOST else 1):
        rotations = {name: RandomRotation((own[0], np.asarray(own[1])), seed) for name, own in means.items()}

        def rotate(modality: str, rows: np.ndarray, rotations: dict[str, RandomRotation] = rotations) -> np.ndarray:
            # Rows of other modalities are not used by the measurable metrics.
            return rotations[modality].transform(rows) if modality in rotations else rows

        try:
            scores = measure(rotate, view, measurable)
        except InputError:  # there are no query rows
            return {}
        for metric, value in scores.items():
            values.setdefault(metric, []).append(value)
    return {metric: {"random_rotation": float(np.mean(draws_of))} for metric, draws_of in values.items()}
