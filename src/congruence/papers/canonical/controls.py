"""What a measure reaches without any knowledge of the target but its mean."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from congruence.errors import InputError
from congruence.evaluation.controls import DRAWS, ControlRows
from congruence.papers.canonical.baselines import RandomRotation
from congruence.papers.canonical.metrics import View, measure

__all__ = ["controls"]

#: Measures of paired rows have both controls; retrieval and classification, which constant rows leave to chance, the random rotation alone.
PAIRED = ("image_cosine", "text_cosine", "image_distance", "text_distance")

#: What must be mapped, and so have means to exchange, for a measure that is not of pairs.
_MAPPED = {
    "image_retrieval": {"image"},
    "image_retrieval_other": {"image"},
    "text_retrieval": {"text"},
    "aligned_image_text": {"image"},
    "aligned_image_text_centered": {"image", "text"},
    "image_aligned_text": {"text"},
    "aligned_image_aligned_text": {"image", "text"},
}

#: Images asked about up to which retrieval is measured for every draw of the rotation; beyond, for the first.
_MOST = 2_000


def controls(
    view: View, metrics: Sequence[str], *, random: bool = True, draws: int = DRAWS
) -> dict[str, dict[str, float]]:
    """Measure two controls of a fitted map.

    Parameters
    ----------
    view : View
        Its ``centers`` are the means that the map exchanges.
    metrics : sequence of str
        Those of :data:`PAIRED` have both controls, others the random rotation.
    random : bool, default=True
        Measure the random rotation.
    draws : int, default=5

    Returns
    -------
    dict of str to dict of str to float
        By metric: ``constant``, every row at the target's mean; ``random_rotation``, a random rotation about the right means, one for images and texts, mean over the
        draws.
    """
    out: dict[str, dict[str, float]] = {}
    for metric in metrics:
        if metric in PAIRED:
            out[metric] = _paired(view, metric, draws)
            if not random:
                out[metric].pop("random_rotation", None)
    if random:
        out |= _turned(view, [metric for metric in metrics if metric in _MAPPED], draws)
    return out


def _paired(view: View, metric: str, draws: int) -> dict[str, float]:
    modality = metric.partition("_")[0]
    source, target = view.images if modality == "image" else view.texts
    ours, theirs = view.centers.get(modality, (None, None))
    if source is None or target is None or ours is None or theirs is None:
        return {}
    lengths = np.linalg.norm(source - ours, axis=1)
    rows = ControlRows(np.asarray(theirs), lengths, max(source.shape[1], target.shape[1]), in_sample=False)
    try:
        found = rows.score(lambda moved: measure(lambda _, __: moved, view, [metric])[metric], draws=draws)
    except InputError:  # a part without any of the rows asked about
        return {}
    named = {"constant": found.constant, "random_rotation": found.random_rotation}
    return {name: value for name, value in named.items() if value is not None}


def _turned(view: View, metrics: Sequence[str], draws: int) -> dict[str, dict[str, float]]:
    """Measure with one random rotation for both modalities, about the means of each."""
    means = {name: own for name, own in view.centers.items() if own[1] is not None}
    asked = [metric for metric in metrics if _MAPPED[metric] <= {*means}]
    if not asked:
        return {}
    values: dict[str, list[float]] = {}
    for seed in range(draws if len(view.rows) <= _MOST else 1):
        turns = {name: RandomRotation((own[0], np.asarray(own[1])), seed) for name, own in means.items()}

        def turned(modality: str, rows: np.ndarray, turns: dict[str, RandomRotation] = turns) -> np.ndarray:
            return turns[modality].transform(rows) if modality in turns else rows  # which no measure asked for looks at

        try:
            found = measure(turned, view, asked)
        except InputError:  # a part without any of the rows asked about
            return {}
        for metric, value in found.items():
            values.setdefault(metric, []).append(value)
    return {metric: {"random_rotation": float(np.mean(own))} for metric, own in values.items()}
