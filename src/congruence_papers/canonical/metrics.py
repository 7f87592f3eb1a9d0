"""The paper's metrics of a fitted map on one part of the data, and the reference scores of each model alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from congruence.errors import InputError
from congruence.metrics import class_retrieval, paired_cosine, paired_distance, zero_shot_accuracy

__all__ = ["METRICS", "Means", "View", "measure", "references"]

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


@dataclass(frozen=True)
class View:
    """Data to evaluate on: query rows and candidates in both models.

    Attributes
    ----------
    images : (ndarray or None, ndarray or None), shapes (n, d_source) and (n, d_target)
        Image embeddings in the source and in the target; all are candidates.
    texts : (ndarray or None, ndarray or None), shapes (c, d_source) and (c, d_target)
        Class prototypes in the source and in the target; all are candidates.
    labels : ndarray of int, shape (n,)
        Class of each image, as a row number of the prototypes.
    rows, classes : ndarray of int, shape (q,) and (r,)
        Indices of the images and the classes that are queries.
    centers : mapping of str to (ndarray, ndarray or None)
        Means of each modality in the source and in the target, for the centered accuracy and the controls.
    """

    images: tuple[np.ndarray | None, np.ndarray | None]
    texts: tuple[np.ndarray | None, np.ndarray | None]
    labels: np.ndarray
    rows: np.ndarray
    classes: np.ndarray
    centers: Mapping[str, Means]


def references(view: View, metrics: list[str]) -> dict[str, dict[str, float]]:
    """Return the scores that do not depend on a map: before mapping, of each model alone, and of the target's own rows.

    Parameters
    ----------
    view : View
    metrics : list of str

    Returns
    -------
    dict of str to dict of str to float
        By metric, those of the following that exist: ``before``, unmapped source rows compared with the target; ``model_a`` and ``model_b``,
        classification within the source and within the target; ``oracle``, the score of the target's own rows.
    """
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


def measure(mapping: Callable[[str, np.ndarray], np.ndarray], view: View, metrics: list[str]) -> dict[str, float]:
    """Return the scores of a map.

    Parameters
    ----------
    mapping : callable
        ``(modality, rows) -> mapped rows``.
    view : View
    metrics : list of str
        Keys of :data:`METRICS`. Metrics that need images or texts that a model lacks are omitted.

    Returns
    -------
    dict of str to float
        Score by metric.

    Raises
    ------
    InputError
        If none of the metrics can be measured.
    """
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
        raise InputError(
            f"Got embeddings on which none of {', '.join(metrics)} can be measured; expected images or texts of both "
            "models. Pass a collection that has these."
        )
    return measured


def _same_width(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    """Return whether both arrays exist and have the same width."""
    return a is not None and b is not None and a.shape[1] == b.shape[1]


def _center(view: View, images: int, texts: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the image mean and the text mean of the models with these indices, or None if one of them is unknown."""
    image, text = view.centers.get("image", (None, None))[images], view.centers.get("text", (None, None))[texts]
    return None if image is None or text is None else (image, text)


def _classify(
    view: View,
    images: np.ndarray | None,
    texts: np.ndarray | None,
    centers: tuple[np.ndarray, np.ndarray] | None = None,
) -> float | None:
    """Return the zero-shot accuracy of the query images; None without images, texts or queries."""
    if images is None or texts is None or not len(view.rows):
        return None
    return zero_shot_accuracy(images[view.rows], texts, view.labels[view.rows], center=centers)


def _within(view: View, modality: str, what: str, queries: np.ndarray) -> float | None:
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
