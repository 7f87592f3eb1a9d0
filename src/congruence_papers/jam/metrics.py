"""Metrics of aligned encoders in JAM's experiments: binary and 5-way recall."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from congruence.datasets import SugarCrepe
from congruence.evaluation.compositional import TaskRecall, sugarcrepe_outcomes, sugarcrepe_recall, text_only_recall
from congruence.maps import TwoSidedMap

__all__ = ["METRICS", "map_items", "measure_outcomes", "measure_recall", "measure_text_only"]

#: Every metric, with its description.
METRICS = {
    "binary_recall": "the image is nearer its caption than the wrong one",
    "five_way_recall": "the image is nearer its caption than the wrong one and three of other images",
    "image_error": "reconstruction error of images (1: their mean)",
    "text_error": "reconstruction error of texts (1: their mean)",
    "alpha_at_best": "α at the step with the best validation score",
    "epoch_at_best": "epoch of that step",
    "cca_linear": "first canonical correlation of 50 principal components",
    "cca_kernel": "first canonical correlation of 50 kernel principal components",
    "cka_linear": "biased linear CKA of 10 principal components",
    "cka_rbf": "biased CKA with a Gaussian kernel of 10 principal components",
    "svcca": "mean canonical correlation of 10 principal components",
    "cknna": "CKNNA by JAM's equations 6 to 9, of 10 principal components, 10 neighbors",
    "parameters": "millions of parameters of an autoencoder",
    "mflops": "millions of operations per row, round trip",
}


def measure_recall(
    mapping: TwoSidedMap | None, items: SugarCrepe, test: Sequence[np.ndarray], seed: int = 5
) -> dict[str, dict[str, float]]:
    """Measure binary and 5-way recall of a map, or of vectors that already share a space.

    Parameters
    ----------
    mapping : TwoSidedMap or None
        Map with images as source and texts as target; None for vectors of a dual encoder.
    items : SugarCrepe
    test : sequence of ndarray
        Embeddings of the items' images, captions and wrong captions.
    seed : int, default=5
        Random seed of the distractors.

    Returns
    -------
    dict of str to dict of str to float
        ``binary_recall`` and ``five_way_recall`` by task. Swap items are also reported in two parts, and tasks with several categories
        also by category, such as ``"replace, object"``.
    """
    return _by_task(sugarcrepe_recall(items, *map_items(mapping, test), random_state=seed))


def measure_outcomes(
    mapping: TwoSidedMap | None, items: SugarCrepe, test: Sequence[np.ndarray], seed: int = 5
) -> np.ndarray:
    """Return which items are answered correctly, for the same choices as :func:`measure_recall`.

    Parameters
    ----------
    mapping, items, test, seed
        As for :func:`measure_recall`.

    Returns
    -------
    ndarray, shape (n, 2)
        Binary and 5-way outcome of each item: 1, 0, or a fraction for ties.
    """
    return sugarcrepe_outcomes(items, *map_items(mapping, test), random_state=seed)


def map_items(mapping: TwoSidedMap | None, test: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return images, captions and wrong captions mapped into the joint space; without a map, unchanged."""
    V, P, N = test
    if mapping is None:
        return V, P, N
    return mapping.transform(V), mapping.transform_target(P), mapping.transform_target(N)


def measure_text_only(
    score: Callable[[np.ndarray], np.ndarray], items: SugarCrepe, test: Sequence[np.ndarray], seed: int = 5
) -> dict[str, dict[str, float]]:
    """Measure binary and 5-way recall of a score of the texts alone, for the same choices as :func:`measure_recall`; the images are not used.

    Parameters
    ----------
    score : callable
        Score of texts, from :func:`congruence_papers.jam.baselines.fit_text_only`.
    items, test, seed
        As for :func:`measure_recall`.

    Returns
    -------
    dict of str to dict of str to float
    """
    _, P, N = test
    return _by_task(text_only_recall(items, score(P), score(N), random_state=seed))


def _by_task(lines: list[TaskRecall]) -> dict[str, dict[str, float]]:
    """Return recalls under the names of the metrics, by task."""
    return {line.task: {"binary_recall": line.binary, "five_way_recall": line.choice} for line in lines}
