"""What a cosine, or an accuracy that a rotation cannot change, reaches without any knowledge of the target but its mean."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from congruence.errors import InputError
from congruence.evaluation.controls import DRAWS, ControlRows
from congruence.papers.canonical.baselines import RandomRotation
from congruence.papers.canonical.metrics import View, measure

__all__ = ["controls"]

#: Measures of paired rows; classification among mapped rows, which any rotation keeps, has the random rotation alone beside it.
PAIRED = ("image_cosine", "text_cosine", "image_distance", "text_distance")
KEPT = "aligned_image_aligned_text"


def controls(
    view: View, metrics: Sequence[str], *, random: bool = True, draws: int = DRAWS
) -> dict[str, dict[str, float]]:
    """Measure two controls of a fitted map.

    Parameters
    ----------
    view : View
        Its ``centers`` are the means that the map exchanges.
    metrics : sequence of str
        Those of :data:`PAIRED` and :data:`KEPT` among them are measured.
    random : bool, default=True
        Measure the random rotation.
    draws : int, default=5

    Returns
    -------
    dict of str to dict of str to float
        By metric: ``constant``, every row at the target's mean; ``random_rotation``, a random rotation about the right means, mean over the draws.
    """
    out: dict[str, dict[str, float]] = {}
    for metric in metrics:
        if metric in PAIRED:
            out[metric] = _paired(view, metric, draws)
            if not random:
                out[metric].pop("random_rotation", None)
        elif metric == KEPT and random:
            out[metric] = _turned(view, draws)
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


def _turned(view: View, draws: int) -> dict[str, float]:
    """Classify with one random rotation for both modalities, about the means of each."""
    means = {name: own for name, own in view.centers.items() if own[1] is not None}
    if view.images[0] is None or view.texts[0] is None or {*means} != {"image", "text"}:
        return {}
    values = []
    for seed in range(draws):
        turns = {name: RandomRotation((own[0], np.asarray(own[1])), seed) for name, own in means.items()}

        def turned(modality: str, rows: np.ndarray, turns: dict[str, RandomRotation] = turns) -> np.ndarray:
            return turns[modality].transform(rows)

        try:
            values.append(measure(turned, view, [KEPT])[KEPT])
        except InputError:
            return {}
    return {"random_rotation": float(np.mean(values))}
