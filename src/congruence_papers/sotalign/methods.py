"""The compared methods, how they are tuned and fitted, and the metrics of their heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from congruence.maps import HeadsMap
from congruence.metrics import ensemble_prompts, mutual_knn, zero_shot_accuracy
from congruence.train import METHODS, HeadTrainer, make_method
from congruence.train.retrieval import recalls
from congruence.train.tuning import grid_points
from congruence_papers.core import told
from congruence_papers.sotalign.data import Heldout, Parts, SOTAlignData


def measure_heads(mapping: HeadsMap, heldout: Heldout, classes: bool = False) -> dict[str, float]:
    """Measure retrieval in both directions, and classification."""
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
    """Return the mutual k-NN of two encoders on one random image and text of each common label (figure 9)."""
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


#: Number of pairs for which the paper's weights α were chosen.
PAPER_PAIRS = 10_000

#: What the paper's training is, where ``SOTAlign``'s defaults differ.
PAPER: dict[str, Any] = {"init": "random", "folds": None, "patience": None, "n_components": 1024, "batch_size": 32768}
PAPER |= {"pair_batch_size": 10_000, "max_steps": 2000, "learning_rate": 1e-4, "validate_every": 100, "teacher": "cca"}


@dataclass(frozen=True)
class Baseline:
    """A method in the comparison."""

    words: str
    method: str
    fixed: Mapping[str, Any] = field(default_factory=dict)
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    unpaired: bool = True
    oracle_pairs: bool = False


#: All methods of the tables. Without tuning, the first combination of the grid is used. The start at the
#: teacher is ours: the paper initializes the heads at random.
BASELINES = {name: Baseline(**facts) for name, facts in told("sotalign")["methods"].items()}


def method_parameters(
    tried: Mapping[str, Any], pairs: int, rank: int, learning_rate: float = 1e-4
) -> dict[str, object]:
    """Convert a combination of the grid to parameters of its method."""
    out = dict(tried)
    if "rate" in out:
        out["learning_rate"] = out.pop("rate") * learning_rate
    if "paper_alpha" in out:
        out["divergence_weight"] = out.pop("paper_alpha") * PAPER_PAIRS / pairs
    if "both_weights" in out:
        out["image_weight"] = out["text_weight"] = out.pop("both_weights")
    if "components_share" in out:
        share = out.pop("components_share")
        if share < 1:
            out["n_components"] = max(1, int(share * rank))
    return out


def combinations(name: str) -> list[dict[str, object]]:
    """Return the parameter combinations of a baseline; without tuning, the first is used."""
    return grid_points(BASELINES[name].grid)


def fit_baseline(
    name: str, parts: Parts, training: Mapping[str, Any], tried: Mapping[str, Any] | None = None, seed: int = 0
) -> HeadsMap:
    """Fit a baseline to a split; of steps, the one with the best retrieval on the validation part is kept."""
    baseline = BASELINES[name]
    parameters: dict[str, object] = {}
    if issubclass(METHODS[baseline.method], HeadTrainer):
        names = make_method(baseline.method).get_params()
        parameters = {**(PAPER if baseline.method == "sotalign" else {})}
        parameters |= {key: value for key, value in training.items() if key in names} | {"random_state": seed}
        if "unpaired_batch" in training:
            parameters["batch_size"] = len(parts.images) + training["unpaired_batch"]
    rate = training.get("learning_rate", 1e-4)
    tried = combinations(name)[0] if tried is None else tried
    rank = min(len(parts.images) - 1, parts.images.shape[1], parts.texts.shape[1])
    chosen = method_parameters(tried, len(parts.images), rank, rate)
    method = make_method(baseline.method, **{**parameters, **baseline.fixed, **chosen})
    unpaired = (parts.unpaired_images, parts.unpaired_texts) if baseline.unpaired else None
    heldout = parts.validation.validation
    images, texts = parts.all_pairs() if baseline.oracle_pairs else (parts.images, parts.texts)
    return method.fit(images, texts, unpaired=unpaired, validation=heldout, verbose=False)


def choose(
    name: str,
    splits: Sequence[Parts],
    training: Mapping[str, object],
    classes: bool = False,
    among: Sequence[Mapping[str, object]] | None = None,
) -> tuple[dict[str, Any], list[tuple[dict[str, Any], dict[str, float]]]]:
    """Evaluate every combination of a baseline on tuning splits, and return the best and all trials: by the mean of
    MeanR@1, @5 and @10 on the test parts, since recall at 1 alone is too noisy with few items.
    """
    trials = []
    for tried in among or combinations(name):
        scores = [measure_heads(fit_baseline(name, parts, training, tried), parts.test, classes) for parts in splits]
        trials.append((dict(tried), {key: sum(each[key] for each in scores) / len(scores) for key in scores[0]}))
    best = max(trials, key=lambda trial: sum(value for key, value in trial[1].items() if key.startswith("mean_r")))
    return best[0], trials
