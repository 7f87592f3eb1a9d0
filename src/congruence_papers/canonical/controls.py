"""Control scores of maps that use only the mean of the target."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from congruence.errors import InputError
from congruence.evaluation.controls import DRAWS, ControlRows
from congruence_papers.canonical.baselines import RandomRotation
from congruence_papers.canonical.metrics import View, measure

__all__ = ["controls"]

#: Metrics of paired rows, which have both controls. Retrieval and classification have the random rotation only: constant rows would score at chance.
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
    view: View, metrics: Sequence[str], *, random: bool = True, draws: int = DRAWS
) -> dict[str, dict[str, float]]:
    """Measure the constant and the random-rotation control.

    Parameters
    ----------
    view : View
        Its ``centers`` are the means that the map exchanges.
    metrics : sequence of str
        Metrics in :data:`PAIRED` have both controls, the others the random rotation.
    random : bool, default=True
        Whether to include the random rotation.
    draws : int, default=5
        Number of random rotations to average over.

    Returns
    -------
    dict of str to dict of str to float
        By metric: ``constant``, with every row replaced by the target's mean; ``random_rotation``, the mean over random rotations about the correct
        means. Metrics of images and texts together use the same rotation for both.
    """
    out: dict[str, dict[str, float]] = {}
    for metric in metrics:
        if metric in PAIRED:
            out[metric] = _paired(view, metric, draws)
            if not random:
                out[metric].pop("random_rotation", None)
    if random:
        out |= _rotated(view, [metric for metric in metrics if metric in _MAPPED], draws)
    return out


def _paired(view: View, metric: str, draws: int) -> dict[str, float]:
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


def _rotated(view: View, metrics: Sequence[str], draws: int) -> dict[str, dict[str, float]]:
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
