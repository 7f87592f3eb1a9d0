"""What a cosine, or an accuracy that a rotation cannot change, reaches without any knowledge of the target but its mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from congruence.errors import InputError
from congruence.experiments.measure import RandomRotation, View, measure

#: Measures that controls are shown beside: those of a pair of rows, and classification among mapped rows, which any rotation keeps.
CONTROLLED = (
    "image_cosine",
    "text_cosine",
    "image_distance",
    "text_distance",
    "aligned_image_aligned_text",
)

#: Random rotations drawn.
DRAWS = 5


def controls(
    view: View, metrics: Sequence[str], *, random: bool = True, draws: int = DRAWS
) -> dict[str, dict[str, float]]:
    """Measure two controls of a fitted map.

    Parameters
    ----------
    view : View
        Its ``centres`` are the means that the map exchanges.
    metrics : sequence of str
        Those of :data:`CONTROLLED` among them are measured.
    random : bool, default=True
        Measure the random rotation.
    draws : int, default=5

    Returns
    -------
    dict of str to dict of str to float
        By metric: ``constant``, every row at the target's mean (of cosines and distances only); ``random_rotation``, a random rotation about the
        right means, mean over the draws.
    """
    known = {
        modality: (own[0], own[1])
        for modality, own in view.centres.items()
        if own[0] is not None and own[1] is not None
    }
    wanted = [metric for metric in metrics if metric in CONTROLLED and _needed(metric) <= set(known)]
    out: dict[str, dict[str, float]] = {metric: {} for metric in wanted}

    def constant(modality: str, rows: np.ndarray) -> np.ndarray:
        mean = known[modality][1] if modality in known else rows.mean(axis=0)
        return np.tile(np.asarray(mean, rows.dtype), (len(rows), 1))

    for metric in wanted:
        if not metric.startswith("aligned"):
            out[metric].update(_measured(constant, view, metric, "constant"))
    for seed in range(draws if random else 0):
        # One rotation for both modalities, about the means of each.
        turns = {modality: RandomRotation(own, seed) for modality, own in known.items()}

        def turned(modality: str, rows: np.ndarray, turns: dict[str, RandomRotation] = turns) -> np.ndarray:
            return turns[modality].transform(rows) if modality in turns else rows

        for metric in wanted:
            for name, value in _measured(turned, view, metric, "random_rotation").items():
                out[metric][name] = out[metric].get(name, 0.0) + value / draws
    return {metric: found for metric, found in out.items() if found}


def _needed(metric: str) -> set[str]:
    return {"image", "text"} if metric.startswith("aligned") else {metric.partition("_")[0]}


def _measured(carry: Callable[[str, np.ndarray], np.ndarray], view: View, metric: str, name: str) -> dict[str, float]:
    """Measure one metric, or nothing where the view lacks what it needs."""
    try:
        return {name: measure(carry, view, [metric])[metric]}
    except InputError:
        return {}
