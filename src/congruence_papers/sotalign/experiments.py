"""The figures and tables of SOTAlign, with its claims about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from congruence.errors import ParameterError
from congruence_papers.core import (
    Claim,
    Experiment,
    Paper,
    Study,
    above,
    at_least,
    at_most,
    beats,
    below,
    experiment_maker,
)
from congruence_papers.sotalign import figures
from congruence_papers.sotalign.data import SOTAlignData, open_features
from congruence_papers.sotalign.methods import BASELINES, METRICS
from congruence_papers.sotalign.samples import SAMPLE_DATA, open_sample

# ------------------------------------------------------------------ kinds

_SPLIT = "the split: pairs, unpaired rows, validation rows and test rows"

#: Parameters of most kinds; a size of 0 or an empty value is chosen for the data.
_SIZES = {"unpaired": 0, "validation": 0, "test": 0, "training": {}, "tune": True, "overlap": 0.0}
_TWO = {"methods": ["sail", "sotalign"], "scatter": False, "pairs": 0, **_SIZES}

KINDS = {
    "sotalign_methods": Study(figures.methods, _SPLIT, {"methods": ["sotalign", "sail"], "pairs": [], **_SIZES}),
    "sotalign_teachers": Study(figures.teachers, _SPLIT, {"teachers": ["procrustes", "cca", "contrastive"],
        "divergences": ["none", "cka", "infonce", "klot"], "pairs": 0, **_SIZES}),
    "sotalign_sweep": Study(figures.sweep, _SPLIT, {"methods": ["sotalign", "sail"], "over": ["pairs", "unpaired"],
        "pairs": 0, "pairs_sweep": [], "unpaired_sweep": [], **_SIZES}),
    "sotalign_unpaired_sources": Study(figures.unpaired_sources, _SPLIT, {"vary": "both", "scatter": False, "pairs": 0,
        **_SIZES}),
    "sotalign_source_distances": Study(figures.source_distances, "the halves of the sources, and the circles"),
    "sotalign_paired_sources": Study(figures.paired_sources, _SPLIT, _TWO),
    "sotalign_encoders": Study(figures.encoders, _SPLIT, _TWO),
}  # fmt: skip

# ------------------------------------------------------------------ claims

#: The methods of tables 4 and 5 that SOTAlign is compared with: all but the bound that knows all pairs.
_OTHERS = tuple(
    BASELINES[name].words
    for name in ("sail", "structure", "sail_negatives", "structure_unpaired", "nnclr", "sclip", "cca", "procrustes")
)


def best(metric: str) -> Claim:
    """Claim that a metric is highest for SOTAlign."""
    return beats(metric, "SOTAlign", *_OTHERS)


def klot_best(teacher: str) -> Claim:
    """Claim that KLOT beats the other divergences with a teacher."""
    return Claim(
        f"mean_r1 with KLOT is above none, CKA and InfoNCE, {teacher} teacher",
        lambda v: above(
            *(v("mean_r1", series=f"{teacher} teacher", part=part) for part in ("klot", "none", "cka", "infonce"))
        ),
    )


OVER_SAIL = beats("mean_r1", "SOTAlign", "SAIL")
CCA_BEST = Claim(
    "mean_r1 with KLOT and CCA is at least that of the other teachers",
    lambda v: at_least(
        *(v("mean_r1", series=f"{name} teacher", part="klot") for name in ("cca", "procrustes", "contrastive"))
    ),
)
_ROWS = {"series": "SOTAlign", "part": "unpaired rows of either side"}
MORE_HELPS = Claim(
    "mean_r1 of SOTAlign rises with the unpaired rows",
    lambda v: above(v("mean_r1", **_ROWS, x="max"), v("mean_r1", **_ROWS, x="min")),
)
FALLS = Claim("correlation is below 0", lambda v: below(v("correlation"), 0.0))
RISES = Claim("correlation is above 0", lambda v: above(v("correlation"), 0.0))
NOTHING_GAINED = Claim(
    "zero_shot of STRUCTURE gains at most 0.01 from unpaired rows",
    lambda v: at_most(v("zero_shot", series="STRUCTURE, unpaired too"), v("zero_shot", series="STRUCTURE") + 0.01),
)
OVER_SUE = tuple(beats(metric, "SOTAlign", "SUE", by=0.05) for metric in ("i2t_r5", "t2i_r5"))
MLP_OVER_SUE = tuple(beats(metric, "SOTAlign, perceptrons of width 8", "SUE") for metric in ("i2t_r5", "t2i_r5"))

# ------------------------------------------------------------------ figures and tables

_METHODS = [
    *("sail_all", "sail", "structure", "sail_negatives", "structure_unpaired", "nnclr", "sclip"),
    *("sotalign", "sotalign_teacher", "cca", "procrustes"),
]
_ENCODERS = tuple(
    f"{image}/{text}"
    for image in ("dinov2-vitl14", "dinov3-vitl16")
    for text in ("nemotron-8b", "qwen3-8b", "nv-embed-v2")
)
_SOURCES = "cc3m cc12m imagenet coco wikitext103"
_RETRIEVAL = ("t2i_r1", "i2t_r1", "mean_r1")
_SHIFTS = ("shift", "image_shift", "text_shift")


_experiment = experiment_maker(
    "sotalign",
    models="dinov3-vitl16/nv-embed-v2",
    data="cc3m coco",
    sample_data="synthetic imagenet1000 caltech101",
    seeds=5,
)

EXPERIMENTS = (
    _experiment("fig4", "Numbers of pairs and of unpaired rows", "6.2", "sweep",
        "SOTAlign is above SAIL from 300 pairs to 100,000, most between 1,000 and 10,000, and reaches what SAIL does "
        "with a quarter of the pairs; both fail with 100. Gains grow up to 500,000 unpaired rows.", OVER_SAIL,
        MORE_HELPS, metrics=("mean_r1",)),
    _experiment("fig5", "Distance of the unpaired data and retrieval", "6.2", "unpaired_sources",
        "The further unpaired data are from the paired, by the sliced distance of eq. 14, the less they help.", FALLS,
        data=_SOURCES, variant="sources", metrics=("mean_r1", "correlation"), parameters={"vary": "both",
        "scatter": True}),
    _experiment("fig7", "Numbers of pairs, all measures", "B.2", "sweep", "As figure 4.", OVER_SAIL,
        data="cc3m coco imagenet", metrics=(*_RETRIEVAL, "mean_r5", "mean_r10"), parameters={"over": ["pairs"]}),
    _experiment("fig8", "Numbers of unpaired rows, all measures", "B.2", "sweep", "As figure 4.", OVER_SAIL,
        data="cc3m coco imagenet", metrics=(*_RETRIEVAL, "mean_r5", "mean_r10"), parameters={"over": ["unpaired"]}),
    _experiment("fig9", "Mutual k-NN of the encoders and retrieval", "B.2", "encoders",
        "The more alike the encoders, the better the retrieval.", RISES, models=_ENCODERS, metrics=("mean_r1",
        "correlation"), parameters={"scatter": True}),
    _experiment("fig10", "Distance of the unpaired images and retrieval", "B.4", "unpaired_sources",
        "With the unpaired texts fixed, the correlation is stronger.", FALLS, data=_SOURCES, variant="sources",
        metrics=("mean_r1", "correlation"), parameters={"vary": "images", "scatter": True}),
    _experiment("fig11", "Distance of the unpaired texts and retrieval", "B.4", "unpaired_sources",
        "With the unpaired images fixed, the correlation is stronger. (The caption repeats that of figure 10; the "
        "text of B.4 says which is which.)", FALLS, data=_SOURCES, variant="sources", metrics=("mean_r1",
        "correlation"), parameters={"vary": "texts", "scatter": True}),
    _experiment("fig12", "Distances between sources", "B.4", "source_distances",
        "Means and standard deviations over 20 draws of 100,000 rows.", data=_SOURCES, variant="sources", seeds=20,
        metrics=("image_shift", "text_shift")),
    _experiment("table1", "Teachers and divergences", "6.1", "teachers",
        "KLOT beats the other divergences with every teacher; CCA with KLOT is best.", *map(klot_best, ("procrustes",
        "cca", "contrastive")), CCA_BEST, metrics=("mean_r1", "mean_r5", "mean_r10")),
    _experiment("table2", "Sources of the pairs", "6.2", "paired_sources",
        "SOTAlign gains over SAIL whatever the pairs are; pairs of COCO retrieve best on COCO.", OVER_SAIL,
        data="cc3m cc12m coco", variant="sources", metrics=(*_RETRIEVAL, *_SHIFTS)),
    _experiment("table3", "Encoders", "6.2", "encoders",
        "DINOv3 with NV-Embed-v2 is best; SOTAlign gains over SAIL with every pair of encoders.", OVER_SAIL,
        models=_ENCODERS, metrics=_RETRIEVAL),
    _experiment("table4", "Methods, retrieval", "6.3", "methods",
        "SOTAlign is above every supervised and semi-supervised method; none of the others makes use of unpaired rows.",
        best("mean_r1"), data="cc3m coco flickr30k", metrics=_RETRIEVAL, parameters={"methods": _METHODS}),
    _experiment("table5", "Methods, zero-shot classification", "6.3", "methods",
        "SOTAlign classifies best; STRUCTURE is above SAIL and gains nothing from unpaired rows.", best("zero_shot"),
        beats("zero_shot", "STRUCTURE", "SAIL"), NOTHING_GAINED, data="cc3m food101 cifar10 cifar100 dtd imagenet",
        sample_data="synthetic caltech101", variant="classes", metrics=("zero_shot", "i2t_r1"),
        parameters={"methods": _METHODS}),
    _experiment("table6", "Alignment within one data set", "6.3", "methods",
        "With 100 or 500 pairs of one data set and 400 items to search, SOTAlign is far above SUE.", *OVER_SUE,
        data="coco flickr30k polyvore", metrics=("i2t_r5", "t2i_r5"), parameters={"methods": ["csa", "contrastive",
        "sue", "sotalign"]}),
    _experiment("table7", "Sources of unpaired images and texts", "B.2", "unpaired_sources",
        "SOTAlign is above SAIL with every source, and better the closer it is to the data measured on.", OVER_SAIL,
        data=_SOURCES, variant="sources", metrics=(*_RETRIEVAL, *_SHIFTS), parameters={"vary": "both"}),
    _experiment("table8", "Encoders, with mutual k-NN", "B.2", "encoders",
        "SOTAlign gains over SAIL with every pair of encoders.", OVER_SAIL, models=_ENCODERS, metrics=(*_RETRIEVAL,
        "mutual_knn")),
    _experiment("table9", "Methods, retrieval at 1 and 5", "B.3", "methods", "As table 4.", best("t2i_r1"),
        best("i2t_r1"), data="cc3m coco flickr30k", metrics=("t2i_r1", "t2i_r5", "i2t_r1", "i2t_r5"),
        parameters={"methods": _METHODS}),
    _experiment("table10", "Methods, zero-shot classification and retrieval", "B.3", "methods",
        "As table 5; on Aircraft STRUCTURE is best.", best("zero_shot"), beats("zero_shot", "STRUCTURE", "SAIL"),
        data="cc3m food101 cifar10 cifar100 aircraft dtd flowers imagenet", sample_data="synthetic caltech101",
        variant="classes", metrics=("zero_shot", "i2t_r1"), parameters={"methods": _METHODS}),
    _experiment("table11", "Alignment within one data set, with SUE's heads and without", "B.3", "methods",
        "SOTAlign is above SUE with perceptrons of width 8, too.", *MLP_OVER_SUE, data="coco flickr30k polyvore",
        metrics=("i2t_r5", "t2i_r5"), parameters={"methods": ["csa", "contrastive", "sue",
        "sotalign_mlp", "sotalign"]}),
)  # fmt: skip


def _open_models(
    experiment: Experiment,
    models: str,
    *,
    data: Sequence[str] | None = None,
    file: str | Path | None = None,
    device: str = "auto",
    **_: object,
) -> list[SOTAlignData]:
    if file is None:
        among = ", ".join(experiment.sample_data)
        raise ParameterError(
            f"Got {models} for {experiment.name}; expected one of {among}: the paper's encoders and "
            "collections cannot be downloaded here.",
            "Embed the collections yourself, and pass `file=…` with their folder, or `collections=…`.",
        )
    if data:
        raise ParameterError(f"Got data {', '.join(data)} for the embeddings in {file}.", "Leave out `data=…`.")
    named = experiment.models if models == "paper" else models.split(",")
    return [open_features(named, file, variant=experiment.variant, device=device)]


def _count(facts: Mapping[str, Any]) -> str:
    images, texts = ({rows[0] for rows in facts[side].values()} for side in ("images", "texts"))
    return f"{max(images)} images, {max(texts)} texts, {facts['labels']} labels, split anew for each draw"


PAPER = Paper(
    "sotalign",
    "SOTAlign",
    EXPERIMENTS,
    KINDS,
    METRICS,
    SOTAlignData,
    SAMPLE_DATA,
    lambda name, variant, file=None, **_: open_sample(name, file, variant),
    _open_models,
    _count,
    choices={
        "methods": tuple(BASELINES),
        "teachers": ("procrustes", "cca", "contrastive"),
        "divergences": ("none", "cka", "infonce", "klot"),
        "over": ("pairs", "unpaired"),
        "vary": ("both", "images", "texts"),
    },
    ranges={"overlap": ("a share from 0 to 1, or null", lambda share: share is None or 0 <= share <= 1)},
    drawings={
        "sotalign-fig1": ("a drawing of the task", "1"),
        "sotalign-fig2": ("a drawing of the method", "3"),
        "sotalign-fig3": ("memory of the gradient of KLOT: benchmarks/klot.py", "5"),
        "sotalign-fig6": ("memory and time of the gradient of KLOT: benchmarks/klot.py", "B.1"),
    },
)
