"""The compared maps with the means of both modalities, the metrics of a mapped collection, and its controls."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from congruence.errors import CongruenceWarning, InputError
from congruence.evaluation.controls import DRAWS, ControlRows
from congruence.maps import make_map
from congruence.metrics import class_retrieval, paired_cosine, paired_distance, zero_shot_accuracy
from congruence.synthetic import random_rotation
from congruence_papers.core import told

Means = tuple[np.ndarray, np.ndarray | None]

#: A map: ``(modality, rows) -> mapped rows``.
Mapped = Callable[[str, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class EvaluationRows:
    """Data of both models: ``labels`` are rows of the prototypes, ``rows`` and ``classes`` (q,) what is queried."""

    images: tuple[np.ndarray | None, np.ndarray | None]
    texts: tuple[np.ndarray | None, np.ndarray | None]
    labels: np.ndarray
    rows: np.ndarray
    classes: np.ndarray
    centers: Mapping[str, Means]


def references(view: EvaluationRows, metrics: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return the scores that do not depend on a map: before mapping, of each model alone, of the target's rows."""
    out: dict[str, dict[str, float]] = {}
    for metric in metrics:
        scores: dict[str, float | None] = {}
        modality, _, measure = metric.partition("_")
        if "aligned" in metric:
            centered = metric.endswith("centered")
            pairs = {"model_a": (0, 0), "model_b": (1, 1)}
            if metric != "aligned_image_aligned_text":  # images of one model, texts of the other
                pairs["before"] = (1, 0) if metric == "image_aligned_text" else (0, 1)
            for name, (a, b) in pairs.items():
                if name != "before" or _same_width(view.images[a], view.texts[b]):
                    centers = _center(view, a, b) if centered else None
                    scores[name] = _classify(view, view.images[a], view.texts[b], centers)
        else:
            source, target = view.images if modality == "image" else view.texts
            if source is None or target is None:
                continue
            if _same_width(source, target):
                scores["before"] = _within(view, modality, measure, source)
            scores["oracle"] = 0.0 if measure == "distance" else 1.0
            if measure == "retrieval_other":
                scores["oracle"] = _within(view, modality, measure, target)
        out[metric] = {name: value for name, value in scores.items() if value is not None}
    return out


def measure(mapping: Mapped, view: EvaluationRows, metrics: Sequence[str]) -> dict[str, float]:
    """Return the scores of a map."""
    (ia, ib), (ta, tb) = view.images, view.texts
    images = None if ia is None else mapping("image", ia)
    texts = None if ta is None else mapping("text", ta)
    out: dict[str, float | None] = {}
    for metric in metrics:
        modality, _, what = metric.partition("_")
        if metric == "image_aligned_text":
            out[metric] = _classify(view, ib, texts)
        elif metric == "aligned_image_aligned_text":
            out[metric] = _classify(view, images, texts)
        elif modality == "aligned":
            centers = _center(view, 0, 1) if metric.endswith("centered") else None
            if centers is not None and ia is not None:
                # The images are mapped, so their center is mapped, too.
                centers = (mapping("image", centers[0][None].astype(ia.dtype))[0], centers[1])
            out[metric] = _classify(view, images, tb, centers)
        elif (queries := images if modality == "image" else texts) is not None:
            out[metric] = _within(view, modality, what, queries)
    measured = {metric: value for metric, value in out.items() if value is not None}
    if not measured:
        raise InputError(f"These rows allow none of {', '.join(metrics)}.", "Pass both models' images or texts.")
    return measured


def _same_width(a: np.ndarray | None, b: np.ndarray | None) -> bool:
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
    rows = view.rows if modality == "image" else view.classes
    if target is None or len(rows) < (2 if what == "retrieval_other" else 1):
        return None
    labels = view.labels if modality == "image" else np.arange(len(target))
    if what in ("cosine", "distance"):
        return (paired_cosine if what == "cosine" else paired_distance)(queries[rows], target[rows])
    if what == "retrieval_other":
        return class_retrieval(queries[rows], target[rows], labels[rows], exclude_self=True)
    return class_retrieval(queries[rows], target, labels[rows], labels)


#: Maps by the names used in the configurations: the method and its parameters, see ``congruence.maps.make_map``.
BASELINES: dict[str, tuple[str, dict[str, object]]] = {
    name: (kind, parameters) for name, (kind, parameters) in told("canonical")["methods"].items()
}


def rotate_randomly(own: tuple[np.ndarray, np.ndarray], seed: int) -> Callable[[np.ndarray], np.ndarray]:
    """Return a control: a random rotation about the source's mean, moved to the target's mean."""
    rotation = random_rotation(len(own[0]), len(own[1]), random_state=seed)
    return lambda rows: ((rows - own[0]) @ rotation + own[1]).astype(rows.dtype)


def fit_modality_map(
    method: str,
    source: np.ndarray,
    target: np.ndarray,
    means: Mapping[str, Means],
    *,
    seed: int = 0,
    quick: bool = False,
) -> Mapped:
    """Return a map fitted on paired rows, shape (n, d), of one modality.

    Every map, including linear and non-linear ones, exchanges the means of the modality it maps,
    ``z ↦ ψ(z − μ_A + μ_A,fit) − μ_B,fit + μ_B``, which for the rotation is the paper's ``Q(z − μ_A) + μ_B``. If a mean
    of the modality is unknown, the rows are mapped as they are, without exchanging means.
    """
    kind, parameters = BASELINES[method]
    own = (source.mean(axis=0, dtype=np.float64), target.mean(axis=0, dtype=np.float64))
    if kind == "random":
        transform = rotate_randomly(own, seed)
    else:
        if kind == "mlp":
            parameters = {**parameters, "random_state": seed, **({"hidden": 64, "max_epochs": 15} if quick else {})}
        with warnings.catch_warnings():
            # Some figures deliberately use few anchors, or targets narrower than the source.
            warnings.simplefilter("ignore", CongruenceWarning)
            transform = make_map(kind, **parameters).fit(source, target).transform

    def mapped(modality: str, rows: np.ndarray) -> np.ndarray:
        a, b = means.get(modality, (None, None))
        if method == "uncentered" or a is None or b is None:
            return transform(rows)
        return transform(rows + (own[0] - a).astype(rows.dtype)) + (b - own[1]).astype(rows.dtype)

    return mapped


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
    """Measure the constant and the random-rotation control of the metrics that have query rows."""
    out: dict[str, dict[str, float]] = {}
    for metric in metrics:
        if metric in PAIRED:
            with suppress(InputError):  # there are no query rows
                out[metric] = _paired(view, metric, draws)
                if not random:
                    out[metric].pop("random_rotation", None)
    means = {name: (own[0], own[1]) for name, own in view.centers.items() if own[1] is not None}
    others = [metric for metric in metrics if metric in _MAPPED and _MAPPED[metric] <= {*means}]
    if random and others:
        with suppress(InputError):
            out |= _rotated(view, others, means, draws)
    return out


def _paired(view: EvaluationRows, metric: str, draws: int) -> dict[str, float]:
    modality = metric.partition("_")[0]
    source, target = view.images if modality == "image" else view.texts
    source_mean, target_mean = view.centers.get(modality, (None, None))
    if source is None or target is None or source_mean is None or target_mean is None:
        return {}
    lengths = np.linalg.norm(source - source_mean, axis=1)
    rows = ControlRows(np.asarray(target_mean), lengths, max(source.shape[1], target.shape[1]), in_sample=False)
    scores = rows.score(lambda moved: measure(lambda _, __: moved, view, [metric])[metric], draws=draws)
    named = {"constant": scores.constant, "random_rotation": scores.random_rotation}
    return {name: value for name, value in named.items() if value is not None}


def _rotated(
    view: EvaluationRows, metrics: Sequence[str], means: Mapping[str, tuple[np.ndarray, np.ndarray]], draws: int
) -> dict[str, dict[str, float]]:
    """Measure with the same random rotation for both modalities, about the means of each."""
    drawn = []
    for seed in range(draws if len(view.rows) <= _MOST else 1):
        rotations = {name: rotate_randomly(own, seed) for name, own in means.items()}

        def rotate(modality: str, rows: np.ndarray, rotations: Any = rotations) -> np.ndarray:
            # Rows of other modalities are not used by the measurable metrics.
            return rotations[modality](rows) if modality in rotations else rows

        drawn.append(measure(rotate, view, metrics))
    return {metric: {"random_rotation": float(np.mean([scores[metric] for scores in drawn]))} for metric in drawn[0]}
