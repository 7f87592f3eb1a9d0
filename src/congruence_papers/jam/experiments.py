"""The figures and tables of JAM, with its claims about them, and experiments that its paper does not have."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from congruence_papers.core import Claim, Experiment, Paper, Study, at_least, beats, below, experiment_maker
from congruence_papers.jam import figures
from congruence_papers.jam.data import TASKS, JAMData, open_features
from congruence_papers.jam.methods import BASELINES, CONTROLS, METRICS
from congruence_papers.jam.samples import SAMPLE_DATA, open_sample

# ------------------------------------------------------------------ kinds

_SPLIT = (
    "the split of the images into training, validation and test (70–15–15), the initial weights, and the distractors"
)

#: Parameters of most kinds; a number of items that is 0 or an empty value is chosen for the data.
_PARTS = {"tasks": list(TASKS), "train": 0, "validation": 0, "test": 0, "training": {}}
_SIZES = {key: value for key, value in _PARTS.items() if key != "tasks"}

KINDS = {
    "jam_losses": Study(figures.losses, _SPLIT, {"methods": ["con", "negcon", "spread", "cca", "text_only"],
        "dual_encoders": [], "dual_methods": [], **_PARTS}),
    "jam_pairs": Study(figures.pairs, _SPLIT, {"methods": ["con", "negcon", "spread"], "pairs": [16, 32, 64, 128],
        **{key: value for key, value in _PARTS.items() if key != "train"}}),
    "jam_transfer": Study(figures.transfer, _SPLIT, {"methods": ["spread", "text_only"], **_SIZES}),
    "jam_controls": Study(figures.controls, _SPLIT, {"methods": ["spread", "text_only"], "controls": list(CONTROLS),
        **_PARTS}),
    "jam_reconstruction": Study(figures.reconstruction, _SPLIT, {"methods": ["spread"], "weights": [0.0, 0.01, 0.1, 1.0,
        10.0], **_PARTS}),
    "jam_layer_pairs": Study(figures.layer_pairs, _SPLIT, {"methods": ["spread"], **_PARTS}),
    "jam_layers": Study(figures.layers, _SPLIT, {"spread_mix": [0.0, 1.0], **_PARTS}),
    "jam_statistics": Study(figures.statistics, "the images, and one item of each", {"tasks": list(TASKS),
        "rows": 1000}),
    "jam_sizes": Study(figures.sizes, "nothing: these are counts", {"widths": {}}),
}  # fmt: skip

# ------------------------------------------------------------------ claims


def easy_and_hard(metric: str) -> tuple[Claim, Claim]:
    """Claim that easy non-matches score below 70 % of matches, and hard ones at least 90 %."""
    return (
        Claim(
            f"{metric} of captions of other images is below 0.7 of matches",
            lambda v: below(v(metric, part="easy: captions of other images"), 0.7 * v(metric, part="match")),
        ),
        Claim(
            f"{metric} of hard non-matches is at least 0.9 of matches",
            lambda v: at_least(v(metric, part="hard non-match"), 0.9 * v(metric, part="match")),
        ),
    )


def rises_with_depth(metric: str) -> Claim:
    """Claim that a metric rises from early to middle to late layers."""
    return Claim(
        f"{metric} rises from early to mid to late layers",
        lambda v: min(
            below(v(metric, series="early"), v(metric, series="mid")),
            below(v(metric, series="mid"), v(metric, series="late")),
            key=lambda step: step.holds,
        ),
    )


_RECALLS = ("binary_recall", "five_way_recall")
ORDER = tuple(
    claim
    for metric in _RECALLS
    for claim in (beats(metric, "Spread", "NegCon"), beats(metric, "NegCon", "Con", by=0.05))
)
STATISTICS = tuple(
    claim for metric in ("cca_linear", "cka_linear", "svcca", "cknna") for claim in easy_and_hard(metric)
)
EARLY_LARGER = beats("alpha_at_best", "early", "late")
DEEPER = tuple(map(rises_with_depth, ("five_way_recall", "binary_recall")))
LIGHT = Claim("parameters are below 22 millions", lambda v: below(v("parameters"), 22))

# ------------------------------------------------------------------ figures and tables

_ONE, _TEXTS = ("dinov2-base/gemma2-2b",), ("gemma2-2b", "llama3.2-1b", "olmo2-7b")
_BASE = tuple(f"dinov2-base/{text}" for text in _TEXTS)
_LARGE = tuple(f"dinov2-large/{text}" for text in ("gemma2-9b", "llama3.2-3b", "olmo2-13b"))
_DUAL = ["openai-b32", "laion400m-b32", "siglip", "clip-finetuned"]
_SAMPLES, _LAYERED = "synthetic sugarcrepe imagenet1000 caltech101", "synthetic sugarcrepe"
_MEASURES = ("cca_linear", "cca_kernel", "cka_linear", "cka_rbf", "svcca", "cknna")
_STATISTICS = "Easy non-matches score far below matches, hard non-matches almost as high."
#: Table 11 prints 4096 and 32 layers for Llama3.2 3B, whose published configuration has 3072 and 28, and 12 layers for
#: DINOv2 ViT-L, which has 24.
_WIDTHS = {
    **{"dinov2-base": 768, "dinov2-large": 1024, "llama3.2-1b": 2048, "gemma2-2b": 2304},
    **{"gemma2-9b": 3584, "llama3.2-3b": 4096, "olmo2-7b": 4096, "olmo2-13b": 5120},
}


_experiment = experiment_maker("jam", models=_BASE, data="sugarcrepe", sample_data=_SAMPLES, metrics=_RECALLS)

EXPERIMENTS = (
    _experiment("fig1", "Statistical measures of matches and non-matches", "2.2", "statistics", _STATISTICS,
        *STATISTICS, metrics=_MEASURES),
    _experiment("fig4", "α at the best step of a curriculum, by depth of layers", "4.2", "layers",
        "Early layers need a larger α, late ones a smaller. α and the epoch grow together, so that whatever trains "
        "longer is best at a larger α. The text gives no layer numbers.", EARLY_LARGER, sample_data=_LAYERED,
        variant="layers", metrics=("alpha_at_best", "epoch_at_best")),
    _experiment("fig5", "Recall of the curriculum on α, by depth of layers", "4.2", "layers",
        "Recall rises from early to late layers for every task and pair of models. The text gives no layer numbers.",
        *DEEPER, sample_data=_LAYERED, variant="layers", metrics=("five_way_recall", "binary_recall")),
    _experiment("table2", "JAM's losses and dual encoders, image-to-text recall", "4.1", "losses",
        "Spread is best in nearly every column, NegCon next, Con far behind; Spread matches or surpasses several "
        "CLIPs. One entry cannot be: OLMo2, NegCon, add, 5-way above binary (97.96 and 96.67), since the 5-way choice "
        "is among more texts.", *ORDER, parameters={"dual_encoders": _DUAL}),
    _experiment("table3", "JAM's losses with larger models", "4.3", "losses",
        "No consistent gain from larger models; Spread holds at every size. Two entries cannot be: OLMo2 13B, Con, "
        "replace and add, 5-way above binary (68.68 and 65.86, 62.52 and 59.21).", *ORDER, models=_LARGE,
        variant="sizes", parameters={"methods": ["con", "negcon", "spread", "text_only"]}),
    _experiment("table6", "Statistical measures, replace", "B.3.1", "statistics", _STATISTICS, *STATISTICS,
        metrics=_MEASURES, parameters={"tasks": ["replace"]}),
    _experiment("table7", "Statistical measures, add", "B.3.2", "statistics", _STATISTICS, *STATISTICS,
        sample_data=_LAYERED, metrics=_MEASURES, parameters={"tasks": ["add"]}),
    _experiment("table8", "Statistical measures, swap", "B.3.3", "statistics", _STATISTICS, *STATISTICS,
        sample_data=_LAYERED, metrics=_MEASURES, parameters={"tasks": ["swap"]}),
    _experiment("table12", "Size of the autoencoders", "D.2", "sizes",
        "Light modules beside the backbones. The parameters grow by different numbers for each dimension of the input "
        "(6,400, 1,600, 3,400 to 4,100), which no single architecture of these widths does.", LIGHT, models=(*_BASE,
        *_LARGE), seeds=1, metrics=("parameters", "mflops"), parameters={"widths": _WIDTHS}),
    _experiment("context", "Wrong captions as context, by the number of pairs", "not in the paper", "pairs",
        "No claim of the paper, which has Spread first everywhere: where it is, and why.", models=_ONE,
        sample_data="synthetic", variant="context", seeds=10, metrics=("five_way_recall", "binary_recall"),
        parameters={"tasks": ["replace"], "training": {"hidden": [48, 48], "latent": 24, "max_epochs": 30,
        "learning_rate": 0.003, "validate_every": 2, "device": "cpu"}}),
    _experiment("controls", "Images of white noise and unrelated texts, recall by JAM and by texts alone",
        "not in the paper", "controls",
        "No claim of the paper, which uses white noise and unrelated texts for its statistical measures only (B.3).",
        models=_ONE, parameters={"methods": ["spread", "cca", "text_only"]}),
    _experiment("layers", "Every layer of the image encoder with every layer of the text encoder", "not in the paper",
        "layer_pairs", "No claim of the paper, which takes layers of the same depth on both sides.", models=_ONE,
        sample_data=_LAYERED, variant="layers", metrics=("five_way_recall", "binary_recall")),
    _experiment("reconstruction", "Reconstruction against alignment, by the weight of the reconstruction",
        "not in the paper", "reconstruction",
        "No claim of the paper, whose weight falls from 1 to 0.1: the last of the weights.", models=_ONE,
        metrics=("five_way_recall", "binary_recall", "image_error", "text_error"), parameters={"weights": [0.0, 0.01,
        0.1, 1.0, 10.0, 100.0, [1.0, 0.1]]}),
    _experiment("towers", "JAM's heads on the towers of a dual encoder", "not in the paper", "losses",
        "No claim of the paper, which measures dual encoders as they are and one that was trained further.",
        models=_ONE, parameters={"methods": ["spread", "towers", "towers_spread", "text_only"], "dual_encoders": _DUAL,
        "dual_methods": ["spread"]}),
    _experiment("transfer", "Fitted on one task, measured on the others", "not in the paper", "transfer",
        "No claim of the paper, which fits and measures on the same task.", models=_ONE,
        parameters={"methods": ["spread", "cca", "text_only"]}),
)  # fmt: skip


def _open_models(
    experiment: Experiment,
    models: str,
    *,
    file: str | Path | None = None,
    root: str | Path | None = None,
    device: str = "auto",
    **_: object,
) -> list[JAMData]:
    named = experiment.models if models == "paper" else [models]
    dual = experiment.parameters.get("dual_encoders", [])
    return [open_features(named, file, root, experiment.variant, dual_encoders=dual, device=device)]


def _count(facts: Mapping[str, Any]) -> str:
    items = ", ".join(f"{count} {task}" for task, count in facts["items"].items())
    return f"{items} items of {facts['distinct_images']} images, split 70–15–15 by image"


def _numbers(value: Any, most: float = float("inf")) -> bool:
    return all(0 <= one <= most for one in value)


def _weights(value: Any) -> bool:
    """Return whether these are at least two weights, each not negative, or (first, last) of a schedule."""
    pairs = [one if isinstance(one, list | tuple) else (one, one) for one in value]
    return len(pairs) > 1 and all(len(pair) == 2 and _numbers(pair) for pair in pairs)


PAPER = Paper(
    "jam",
    "JAM",
    EXPERIMENTS,
    KINDS,
    METRICS,
    JAMData,
    SAMPLE_DATA,
    lambda name, variant, file=None, **more: open_sample(name, file, variant, **more),
    _open_models,
    _count,
    choices={
        "methods": tuple(BASELINES),
        "tasks": TASKS,
        "controls": tuple(CONTROLS),
        "dual_methods": ("con", "negcon", "spread"),
    },
    ranges={
        "spread_mix": ("two numbers from 0 to 1", lambda value: len(value) == 2 and _numbers(value, 1)),
        "weights": ("at least two weights, none negative", _weights),
        "pairs": ("numbers of pairs, each above 1", lambda value: bool(value) and all(isinstance(n,
            int) and n > 1 for n in value)),
    },
    drawings={
        "jam-fig2": ("a drawing of the method", "3"),
        "jam-fig3": ("a drawing of the Spread loss", "3.1"),
        "jam-table1": ("a glossary", "3.1"),
        "jam-table4": ("properties of the statistical measures, in words", "B.1"),
        "jam-table5": ("a glossary", "B.2"),
        "jam-table9": ("notation of two Spread losses", "C.3"),
        "jam-table10": ("terms of the Spread loss, in words", "C.3"),
        "jam-table11": ("sizes of the backbones, which are those of jam-table12", "D.1"),
    },
    seeds=figures.paper_seeds,
)  # fmt: skip
