"""Metrics of aligned encoders: retrieval, classification, and the agreement of two encoders."""

from __future__ import annotations

import numpy as np

from congruence.maps import TwoSidedMap
from congruence.metrics import ensemble_prompts, mutual_knn, zero_shot_accuracy
from congruence.train.retrieval import recalls
from congruence_papers.sotalign.data import Heldout, SOTAlignData

__all__ = ["METRICS", "encoder_agreement", "measure_heads"]

#: Every metric, with its axis label in figures.
METRICS = {
    **{f"t2i_r{k}": f"text to image, recall at {k}" for k in (1, 5, 10)},
    **{f"i2t_r{k}": f"image to text, recall at {k}" for k in (1, 5, 10)},
    **{f"mean_r{k}": f"MeanR@{k}" for k in (1, 5, 10)},
    "zero_shot": "zero-shot accuracy",
    "mutual_knn": "mutual k-NN of the two encoders",
    "shift": "distance from the paired data (turns)",
    "image_shift": "distance of the images (turns)",
    "text_shift": "distance of the texts (turns)",
    "correlation": "Pearson r over all points",
}


def measure_heads(mapping: TwoSidedMap, heldout: Heldout, classes: bool = False) -> dict[str, float]:
    """Measure retrieval in both directions, and classification.

    Parameters
    ----------
    mapping : TwoSidedMap
        Map with images as source and texts as target.
    heldout : Heldout
    classes : bool, default=False
        Also classify the images by the mean of each label's mapped texts.

    Returns
    -------
    dict of str to float
        Values by key of :data:`METRICS`. Any text or image with the same label counts as a hit.
    """
    F, G = mapping.transform(heldout.images), mapping.transform_target(heldout.texts)
    scores = recalls(F, G, heldout.image_labels, heldout.text_labels)
    directions = {"source_to_target": "i2t", "target_to_source": "t2i", "mean": "mean"}
    out = {f"{directions[d]}_r{k}": value for name, value in scores.items() for d, k in [name.split("@")]}
    if classes:
        prototypes, names = ensemble_prompts(G, heldout.text_labels)
        out["zero_shot"] = zero_shot_accuracy(F, prototypes, heldout.image_labels, names)
    return out


def encoder_agreement(
    data: SOTAlignData, encoders: tuple[str, str], k: int = 10, rows: int = 1000, seed: int = 0
) -> float:
    """Return the mutual k-NN of an image and a text encoder, on one random image and one random text of each label that both sides have.

    Parameters
    ----------
    data : SOTAlignData
    encoders : (str, str)
    k : int, default=10
    rows : int, default=1000
        Maximum number of labels.
    seed : int, default=0

    Returns
    -------
    float
        Mean share of common neighbors; chance is k/(n − 1).

    References
    ----------
    SOTAlign, appendix B.2, figure 9; Huh et al. (2024), "The Platonic representation hypothesis", section 2.
    """
    rng = np.random.default_rng(seed)
    common = np.intersect1d(data.image_labels[data.image_source == 0], data.text_labels)
    common = np.sort(rng.permutation(common)[:rows])
    chosen = []
    for labels in (data.image_labels, data.text_labels):
        order = rng.permutation(len(labels))
        order = order[np.argsort(labels[order], kind="stable")]
        chosen.append(order[np.searchsorted(labels[order], common)])
    return mutual_knn(
        data.images[encoders[0]][chosen[0]].astype(np.float64),
        data.texts[encoders[1]][chosen[1]].astype(np.float64),
        min(k, len(common) - 1),
        metric="cosine",
    )
