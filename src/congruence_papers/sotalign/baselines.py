"""The compared methods, their hyperparameter grids, and how they are fitted to a split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from congruence.maps import TwoSidedMap
from congruence.train import METHODS, HeadTrainer, make_method
from congruence.train.tuning import grid_points
from congruence_papers.sotalign.data import Parts
from congruence_papers.sotalign.metrics import measure_heads

__all__ = ["BASELINES", "Baseline", "choose", "combinations", "fit_baseline", "method_parameters"]

#: Number of pairs for which the paper's weights α were chosen.
PAPER_PAIRS = 10_000


@dataclass(frozen=True)
class Baseline:
    """A method in the comparison.

    Attributes
    ----------
    words : str
        Label in figures and tables.
    method : str
        A key of :data:`congruence.train.METHODS`.
    fixed : dict
        Parameters that are not tuned.
    grid : dict of str to sequence
        Values to choose from, eight combinations in all; names that are not parameters of the method are converted by :func:`method_parameters`.
    unpaired : bool
        Whether unpaired rows are used.
    oracle_pairs : bool
        Whether it is also trained on the true pairs of the unpaired rows' items: an upper bound, not a competitor.
    """

    words: str
    method: str
    fixed: Mapping[str, Any] = field(default_factory=dict)
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    unpaired: bool = True
    oracle_pairs: bool = False


_RATES = {"preprocess": ("center", "normalize"), "rate": (1.0, 1 / 3, 3.0, 10.0)}
_WEIGHTS = {"weight": (10.0, 1.0, 100.0, 0.1), "preprocess": ("center", "normalize")}
_ALPHAS = {"paper_alpha": (1e-4, 1e-3, 1e-5, 1e-2)}
_TEACHERS = {"teacher": ("cca", "procrustes")}

#: All methods that can be listed in a table. Without tuning, the first combination of the grid is used.
BASELINES: dict[str, Baseline] = {
    "sotalign": Baseline("SOTAlign", "sotalign", {}, {**_ALPHAS, **_TEACHERS}),
    # Ours: the paper initializes the heads at random.
    "sotalign_teacher": Baseline(
        "SOTAlign, teacher's start", "sotalign", {"init": "teacher"}, {**_ALPHAS, **_TEACHERS}
    ),
    "sail": Baseline("SAIL", "sail", {}, _RATES, unpaired=False),
    "sail_all": Baseline("SAIL, all pairs", "sail", {}, _RATES, unpaired=False, oracle_pairs=True),
    "sail_negatives": Baseline("SAIL, unpaired negatives", "sail", {"negatives": True}, _RATES),
    "structure": Baseline("STRUCTURE", "structure", {}, _WEIGHTS, unpaired=False),
    "structure_unpaired": Baseline("STRUCTURE, unpaired too", "structure", {"unpaired": True}, _WEIGHTS),
    "nnclr": Baseline("NNCLR", "nnclr", {}, {"n_neighbors": (5, 1), "both_weights": (0.1, 1.0, 0.3, 3.0)}),
    "sclip": Baseline("S-CLIP", "sclip", {}, {"assignment": ("ot", "soft"), "both_weights": (0.1, 1.0, 0.3, 3.0)}),
    "sue": Baseline("SUE", "sue", {"n_components": 8}, {"n_neighbors": (30, 10), "ridge": (0.1, 1.0, 0.01, 10.0)}),
    "contrastive": Baseline("Contrastive", "contrastive", {}, _RATES, unpaired=False),
    "csa": Baseline("CSA", "csa", {}, {"ridge": (0.0, 0.1, 1.0, 10.0), "power": (0.5, 1.0)}, unpaired=False),
    "cca": Baseline(
        "CCA", "cca", {}, {"ridge": (0.1, 1.0, 10.0, 100.0), "components_share": (1.0, 0.25)}, unpaired=False
    ),
    "procrustes": Baseline(
        "Procrustes",
        "procrustes",
        {},
        {"components_share": (1.0, 0.9, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125)},
        unpaired=False,
    ),
    "sotalign_mlp": Baseline(
        "SOTAlign, perceptrons of width 8", "sotalign", {"head": "mlp", "n_components": 8}, {**_ALPHAS, **_TEACHERS}
    ),
}


def method_parameters(
    tried: Mapping[str, Any], pairs: int, rank: int, learning_rate: float = 1e-4
) -> dict[str, object]:
    """Convert a combination of the grid to parameters of its method.

    ``paper_alpha`` α becomes α · 10⁴/pairs: the paper chose α for 10,000 pairs, and the gradient of its supervised loss, a mean over n² logits of which
    n are pairs, falls as 1/n. ``both_weights`` sets the weight of images and of texts. ``components_share`` is the width as a share of the number of
    directions that the pairs span, and ``rate`` is the learning rate as a multiple of the one shared by all methods.

    Parameters
    ----------
    tried : mapping
        One combination of a grid.
    pairs : int
        Number of pairs.
    rank : int
        Maximum number of directions that the pairs can span.
    learning_rate : float, default=1e-4
        Learning rate shared by all methods.

    Returns
    -------
    dict
    """
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
    """Return the parameter combinations of a baseline; without tuning, the first is used.

    Parameters
    ----------
    name : str
        A key of :data:`BASELINES`.

    Returns
    -------
    list of dict
    """
    return grid_points(BASELINES[name].grid)


def fit_baseline(
    name: str, parts: Parts, training: Mapping[str, Any], tried: Mapping[str, Any] | None = None, seed: int = 0
) -> TwoSidedMap:
    """Fit a baseline to a split; the step with the best retrieval on the validation part is kept, if the method trains in steps.

    Parameters
    ----------
    name : str
        A key of :data:`BASELINES`.
    parts : Parts
    training : mapping
        Parameters shared by all trained methods; each uses those it has, and closed-form methods use none. ``unpaired_batch`` is the number of unpaired
        rows per step.
    tried : mapping, optional
        One of :func:`combinations`; by default the first.
    seed : int, default=0

    Returns
    -------
    TwoSidedMap
    """
    baseline = BASELINES[name]
    parameters: dict[str, object] = {}
    if issubclass(METHODS[baseline.method], HeadTrainer):
        names = make_method(baseline.method).get_params()
        parameters = {key: value for key, value in training.items() if key in names} | {"random_state": seed}
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
    """Evaluate every combination of a baseline on tuning splits, and return the best combination and all trials.

    The score is the mean of MeanR@1, @5 and @10 on the splits' test parts, because recall at 1 alone is too noisy with few items.

    Parameters
    ----------
    name : str
    splits : sequence of Parts
        Tuning splits, with seeds that are not used for reported results.
    training : mapping
    classes : bool, default=False
        As for :func:`measure_heads`.
    among : sequence of mapping, optional
        Combinations to evaluate; by default the baseline's own.

    Returns
    -------
    tuple of (dict, list of (dict, dict))
        The best combination; each combination with its metrics, averaged over the splits.
    """
    trials = []
    for tried in among or combinations(name):
        scores = [measure_heads(fit_baseline(name, parts, training, tried), parts.test, classes) for parts in splits]
        trials.append((dict(tried), {key: sum(each[key] for each in scores) / len(scores) for key in scores[0]}))
    best = max(trials, key=lambda trial: sum(value for key, value in trial[1].items() if key.startswith("mean_r")))
    return best[0], trials
