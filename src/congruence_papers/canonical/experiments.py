"""The figures and tables of the Canonical paper, with its claims about them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from congruence_papers.canonical import figures
from congruence_papers.canonical.data import Collection
from congruence_papers.canonical.maps import BASELINES, METRICS
from congruence_papers.canonical.models import open_for
from congruence_papers.canonical.samples import SAMPLE_DATA, open_sample
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

#: The paper's pairs of models.
B32_LAION, L14_SIGLIP, L14_FLAVA = "openai-b32/laion400m-b32", "openai-l14/siglip", "openai-l14/flava"
B32_B16 = "openai-b32/openai-b16"
PAIRS = (B32_LAION, L14_SIGLIP, L14_FLAVA)

_RETRIEVAL = ("image_retrieval", "text_retrieval")
_ALIGNED = ("aligned_image_text", "image_aligned_text", "aligned_image_aligned_text")
_CENTERED = "aligned_image_text_centered"
_COSINES = ("image_cosine", "text_cosine")

#: Metrics of the main text's figures, and of the appendix's.
MAIN = ("aligned_image_aligned_text", _CENTERED, *_COSINES)
ALL = (*_RETRIEVAL, *_ALIGNED, _CENTERED, "text_cosine")
CYCLE = (*_RETRIEVAL, *_ALIGNED, *_COSINES)

# ------------------------------------------------------------------ kinds

#: Templates from which the class prototypes for evaluation are computed: all (eq. 6), or the first only, as the caption
#: of table 2 says.
_EVALUATED = {"evaluation_templates": "all"}
_FITTED = {"fit": "image", "methods": ["orthogonal"]}
_SHARE = "the anchors: each draw takes {share:.0%} of the training rows"
_SUBSETS = "the anchors of every map independently: {share:.0%} of the training rows each"
_NOTHING = "nothing: every number is a property of the embeddings"
_COUNTS = "nothing: these are counts"

KINDS = {
    "main": Study(figures.main, f"{_SHARE}; the test part is fixed", {**_FITTED, "share": 0.8, "fit_templates": "all",
        **_EVALUATED}),
    "few_anchors": Study(figures.few_anchors, "the N classes fitted on", {**_FITTED, "classes": [2, 3, 5, 10, 15, 20,
        30, 50], "means": "seen", **_EVALUATED}),
    "transfer": Study(figures.transfer, f"{_SHARE}; the test parts are fixed", {"share": 0.8, "means": ["evaluated",
        "fitted"], **_EVALUATED}),
    "cycle": Study(figures.cycle, _SUBSETS, {"fit": "image", "share": 0.95, **_EVALUATED}),
    "composition": Study(figures.composition, _SUBSETS, {"fit": "image", "share": 0.95, **_EVALUATED}),
    "gap": Study(figures.gap, _NOTHING, {"steps": 11, "points": 60, **_EVALUATED}),
    "kernels": Study(figures.kernels, _NOTHING, {"points": 400, **_EVALUATED}),
    "clouds": Study(figures.clouds, _SHARE, {"points": 60, "share": 0.8, **_EVALUATED}),
    "commuting": Study(figures.commuting, _SHARE, {"examples": 3, "share": 0.8}),
    "edits": Study(
        figures.edits,
        "the anchors, {share:.0%} of the training rows each time, and the texts edited",
        {"examples": 4, "share": 0.8, "swaps": 500, "captions": "", "edits": {}},
    ),
    "statistics": Study(figures.statistics, _COUNTS),
    "templates": Study(figures.templates, _COUNTS),
}  # fmt: skip

# ------------------------------------------------------------------ claims


def controlled(metric: str, part: str | None = None) -> Claim:
    """Claim that a metric rises above its value before mapping and both controls."""
    keys: dict[str, Any] = {} if part is None else {"part": part}
    return Claim(
        f"{metric}{f' ({part})' if part else ''} is above before, constant and random rotation",
        lambda v: above(v(metric, **keys), *v.controls(metric)),
    )


def gains(metric: str) -> Claim:
    """Claim that mapping raises a metric by more than 0.1."""
    return Claim(f"{metric} gains more than 0.1", lambda v: above(v(metric), v(metric, "before") + 0.1))


def reaches(metric: str, of: str, **keys: Any) -> Claim:
    """Claim that a metric is at least 90 % of that of a model alone."""
    place = "".join(f", {key} {value}" for key, value in keys.items())
    return Claim(
        f"{metric} is at least 0.9 of {of}{place}", lambda v: at_least(v(metric, **keys), 0.9 * v(metric, of, **keys))
    )


def least(metric: str, bound: float) -> Claim:
    """Claim that a metric is at least a number."""
    return Claim(f"{metric} is at least {bound}", lambda v: at_least(v(metric), bound))


def close(metric: str, series: str, other: str, most: float) -> Claim:
    """Claim that a metric differs by at most a number between two series."""
    return Claim(
        f"{metric} differs by at most {most} between {series} and {other}",
        lambda v: at_most(abs(v(metric, series=series) - v(metric, series=other)), most),
    )


def counts(metric: str, **expected: int) -> tuple[Claim, ...]:
    """Claim numbers of the data sets."""

    def one(data: str, number: int) -> Claim:
        return Claim(f"{metric} of {data} is {number}", lambda v: at_most(abs(v(metric, data=data) - number), 0))

    return tuple(one(data, number) for data, number in expected.items())


def moved(series: str) -> Claim:
    """Claim that closing the gap by a translation costs more than 0.02 of accuracy."""
    return Claim(
        f"zero_shot falls by more than 0.02, {series}",
        lambda v: below(v("zero_shot", series=series, x="max"), v("zero_shot", series=series, x="min") - 0.02),
    )


def saturates(metric: str) -> tuple[Claim, Claim]:
    """Claim that a metric rises up to 10 classes, and little after that."""
    return (
        Claim(f"{metric} rises by more than 0.02 up to 10 classes", lambda v: above(v(metric, x=10), v(metric,
            x="min") + 0.02)),
        Claim(f"{metric} at 10 classes is at least 0.95 of its end", lambda v: at_least(v(metric, x=10),
            0.95 * v(metric, x="max"))),
    )  # fmt: skip


def transfers(metric: str) -> Claim:
    """Claim that a metric on other data is at least 95 % of that of an in-domain fit."""
    return Claim(
        f"{metric} is at least 0.95 of in domain",
        lambda v: at_least(v(metric, part="means of the data evaluated"), 0.95 * v(metric, part="in domain")),
    )


def same_data_helps(metric: str) -> Claim:
    """Claim that models of the same training data agree better."""
    return Claim(
        f"{metric} is higher for pairs of the same training data",
        lambda v: above(
            v(metric, part="same training data", pair="*"), v(metric, part="other training data", pair="*")
        ),
    )


GAP = Claim("gap is above 0.5", lambda v: above(v("gap"), 0.5))
KERNELS = (
    Claim("kernel_correlation is above 0.5", lambda v: above(v("kernel_correlation"), 0.5)),
    Claim("kernel_correlation is more than 0.3 above |cross_model_correlation|",
        lambda v: above(v("kernel_correlation"), abs(v("cross_model_correlation")) + 0.3)),
)  # fmt: skip
NEAR_ZERO = Claim("|image_cosine| is below 0.1 before", lambda v: below(abs(v("image_cosine", "before")), 0.1))
COMMUTES = (
    least("overlap_at_5", 0.8),
    Claim("overlap_at_5 is above 10 times chance", lambda v: above(v("overlap_at_5"), 10 * v("overlap_at_5",
        "chance"))),
    Claim("right_class_at_5 through texts is at least 0.9 of direct", lambda v: at_least(v("right_class_at_5",
        series="through texts"), 0.9 * v("right_class_at_5", series="direct"))),
)  # fmt: skip
EDITED = (
    Claim("edited_class_image, mapped, is at least 0.9 of the target alone", lambda v: at_least(v("edited_class_image",
        series="mapped"), 0.9 * v("edited_class_image", series="target alone"))),
    Claim("rest_kept is more than 0.1 above chance", lambda v: above(v("rest_kept"), v("rest_kept", "chance") + 0.1)),
)  # fmt: skip
CYCLES = (
    least("image_cosine", 0.95),
    least("text_cosine", 0.95),
    Claim("aligned_image_text is within 0.03 of model_a",
        lambda v: at_most(abs(v("aligned_image_text") - v("aligned_image_text", "model_a")), 0.03)),
)  # fmt: skip
COMPOSES = tuple(close(metric, "composed", "direct", 0.05) for metric in (*_COSINES, "aligned_image_text"))
ONE_MAP = (
    reaches("image_retrieval", "oracle"),
    controlled("image_cosine"),
    controlled("text_cosine"),
    gains("text_retrieval"),
    gains("image_aligned_text"),
    reaches("aligned_image_text", "model_a"),
)
FEW = tuple(
    reaches(metric, of, part="unseen", x=10)
    for metric, of in (
        ("text_retrieval", "oracle"),
        ("aligned_image_text", "model_a"),
        ("image_aligned_text", "model_b"),
    )
)
FITTED_ON_TEXT = (
    gains("aligned_image_text"),
    controlled("image_cosine"),
    Claim("image_cosine is below that of a fit on images", lambda v: below(v("image_cosine"), v("image_cosine",
        series="orthogonal, fitted on images"))),
    Claim("image_retrieval is below that of a fit on images", lambda v: below(v("image_retrieval"), v("image_retrieval",
        series="orthogonal, fitted on images"))),
)  # fmt: skip

UNCENTERED = Claim(
    "aligned_image_aligned_text is at least as high without centering",
    lambda v: at_least(
        v("aligned_image_aligned_text", series="uncentered"), v("aligned_image_aligned_text", series="orthogonal")
    ),
)

#: Classes, training, validation and test images as printed in table 1, and templates as in table 2.
SIZES: dict[str, list[Any]] = {
    "caltech101": [100, 4128, 1649, 2465],
    "pets": [37, 2944, 736, 3669],
    "cifar100": [100, 50_000, None, 10_000],
    "stl10": [10, 50_000, None, 8000],
    "dtd": [47, 2820, 1128, 1692],
}
TEMPLATES = {"pets": 1, "cifar100": 18, "caltech101": 34, "stl10": 2, "dtd": 8}

# ------------------------------------------------------------------ figures and tables


_experiment = experiment_maker(models=B32_LAION, data="pets", sample_data="sample lvis caltech101")
_PHOTOS = "pets caltech101 cifar100 stl10 dtd"
_EXPRESSIVE = ["orthogonal", "covered", "filtered", "linear", "least_squares", "mlp", "random"]
_PETS_STEPS, _STEPS = [2, 3, 5, 8, 10, 15, 20, 25, 30], [2, 3, 5, 10, 15, 20, 30, 50, 75]
_ONE_MAP = (
    "One map fitted on images aligns images to near the oracle and raises text–text agreement and classification "
    "without harm to images."
)
_KERNEL_MODELS = (B32_LAION, B32_B16)
_TWO_PATHS = "The direct path and the one through texts lead to nearly the same images."
_EDITS = "Retrieved images show the edited class and keep what the rest of the caption says."


def _series(
    first: int,
    title: str,
    section: str,
    kind: str,
    claim: str,
    *claims: Claim,
    data: str = "caltech101 cifar100 pets",
    step: int = 1,
    **more: Any,
) -> list[Experiment]:
    """Return one figure for each data set, numbered from ``first``."""
    return [
        _experiment(f"fig{first + step * k}", title, section, kind, claim, *claims, data=name, **more)
        for k, name in enumerate(data.split())
    ]


EXPERIMENTS = (
    _experiment("fig1", "Both models before and after one rotation", "1", "clouds",
        "One orthogonal map fitted on images aligns images and, with a large gain in cosine, texts.",
        controlled("image_cosine"), controlled("text_cosine"), gains("text_retrieval"), metrics=("text_retrieval",
        *_COSINES)),
    _experiment("fig2", "The modality gap, and what closing it by a translation costs", "4", "gap",
        "Images and texts lie apart; a translation that closes the gap degrades classification.", GAP,
        moved("texts moved"), moved("images moved"), data="cifar100"),
    _experiment("fig3", "Image–text kernels of both models", "4", "kernels",
        "The multimodal kernel is preserved across models, the unimodal one across models is not.", *KERNELS,
        models=_KERNEL_MODELS, data="cifar100", sample_data="sample caltech101"),
    _experiment("fig4", "One map between two models", "7.2", "main",
        "Image–image cosine rises from near zero to about 0.8 to 0.9; text–text cosine rises although only images "
        "were fitted.", NEAR_ZERO, least("image_cosine", 0.8), controlled("image_cosine"), controlled("text_cosine"),
        models=PAIRS, metrics=MAIN, numbers={"image_cosine_after": [0.8, 0.9]}),
    _experiment("fig5", "Few classes", "7.3", "few_anchors",
        "Seen and unseen classes rise together and saturate at about 10 to 15 classes.", *saturates("text_cosine"),
        *saturates("aligned_image_aligned_text"), models=L14_FLAVA, seeds=5, metrics=("aligned_image_aligned_text",
        _CENTERED, "text_cosine"), parameters={"methods": ["orthogonal", "filtered", "random"], "classes": _PETS_STEPS},
        numbers={"classes_at_saturation": [10, 15]}),
    _experiment("fig6", "Transfer of the map between data sets", "7.4", "transfer",
        "A map fitted on Pets raises text–text cosine on Caltech-101 and the other way round; classification stays "
        "close to an in-domain fit.", controlled("text_cosine", "means of the data evaluated"),
        transfers("aligned_image_aligned_text"), models=L14_FLAVA, data="pets caltech101",
        metrics=("aligned_image_aligned_text", _CENTERED, "text_cosine")),
    _experiment("fig7", "Orthogonal, linear and non-linear maps", "7.5", "main",
        "More expressive maps raise image–image cosine; the orthogonal map is best on text–text cosine and on "
        "classification.", beats("image_cosine", "linear", "orthogonal"), beats("image_cosine", "mlp", "orthogonal"),
        beats("text_cosine", "orthogonal", "linear", "mlp"), beats("aligned_image_aligned_text", "orthogonal", "linear",
        "mlp"), models=PAIRS, metrics=MAIN, parameters={"methods": _EXPRESSIVE}),
    _experiment("fig9", "The modality gap in several models", "E.1", "gap",
        "Images and texts form two well separated clusters in every model.", GAP,
        models="openai-b32/laion400m-b32/flava", data="cifar100"),
    _experiment("fig10", "Image–text kernels across model variants", "E.2", "kernels",
        "The angles of texts with images are preserved while absolute coordinates shift.", *KERNELS,
        models=_KERNEL_MODELS, data="cifar100", sample_data="sample caltech101"),
    *_series(11, "One map between two models, all measures", "E.3", "main", _ONE_MAP, *ONE_MAP, data=_PHOTOS,
        models=PAIRS, metrics=(*ALL[:-1], *_COSINES, "image_distance", "text_distance")),
    *(
        _experiment(f"fig{16 + 4 * d + m}", "Few classes, all measures", "E.4", "few_anchors",
            "A map fitted on few classes maps unseen ones, near the oracle.", *FEW, models=models, data=data,
            metrics=ALL, parameters={"classes": _PETS_STEPS if data == "pets" else _STEPS})
        for d, data in enumerate(("caltech101", "cifar100", "pets"))
        for m, models in enumerate((B32_B16, B32_LAION, L14_FLAVA, L14_SIGLIP))
    ),
    *(
        _experiment(f"fig{28 + m}", "Transfer of the map between data sets, all measures", "E.5", "transfer",
            "A map fitted on one data set maps the texts of another, often as well as an in-domain fit.",
            controlled("text_cosine", "means of the data evaluated"), transfers("text_cosine"), models=models,
            data="pets caltech101", metrics=ALL)
        for m, models in enumerate((B32_B16, B32_LAION, L14_FLAVA, L14_SIGLIP))
    ),
    *_series(32, "Fitted on text prompts", "E.6", "main",
        "A map fitted on texts maps images; image–image agreement is weaker than with a fit on images.",
        *FITTED_ON_TEXT, models=PAIRS, metrics=(*ALL, "image_cosine"), parameters={"fit": "text"}),
    *_series(35, "Cycle consistency", "E.7", "cycle",
        "A round trip of two maps fitted on independent 95 % subsets nearly gives the first model back.", *CYCLES,
        step=2, models=PAIRS, metrics=CYCLE),
    *_series(36, "Composition", "E.7", "composition", "The composed map nearly matches the direct one.", *COMPOSES,
        step=2, models=("openai-b32/laion400m-b32/openai-b16", "flava/openai-l14/siglip"), metrics=CYCLE,
        variant="third"),
    *_series(41, "Different widths", "E.8", "main",
        "A semi-orthogonal map from 512 to 768 dimensions keeps classification and text–text agreement high.",
        reaches("aligned_image_text", "model_a"), least("text_retrieval", 0.9), models="openai-b32/openai-l14",
        metrics=ALL, variant="narrow"),
    *_series(44, "Orthogonal, linear and non-linear maps, all measures", "E.9", "main",
        "Linear and non-linear maps raise pointwise cosine; the orthogonal map is best where images meet mapped "
        "texts; retrieval within a modality has no clear winner.", *(beats(metric, series,
        "orthogonal") for metric in _COSINES for series in ("linear", "mlp")), beats("image_aligned_text", "orthogonal",
        "linear", "mlp"), models=PAIRS, metrics=(*ALL[:-1], *_COSINES), parameters={"methods": _EXPRESSIVE}),
    *_series(47, "With and without centering", "E.10", "main",
        "Centering raises cosines and mixed classification; without it aligned images and aligned texts agree "
        "slightly better.", *(beats(metric, "orthogonal", "uncentered") for metric in (*_COSINES,
        "aligned_image_text")), UNCENTERED, models=PAIRS, metrics=CYCLE, parameters={"methods": ["orthogonal",
        "uncentered"]}),
    *_series(50, "Same training data, other architecture", "E.11", "main",
        "Transfer is stronger than between models trained on different data.", *map(same_data_helps, ("text_cosine",
        "text_retrieval", "aligned_image_text")), models=B32_B16, metrics=ALL, variant="same_data"),
    *_series(53, "Commuting diagram", "E.12", "commuting", _TWO_PATHS, *COMMUTES, data="pets caltech101",
        sample_data="sample caltech101"),
    _experiment("fig55", "Captions with the class changed", "E.13", "edits", _EDITS, *EDITED,
        sample_data="sample caltech101", parameters={"edits": {"Birman": "Russian Blue"}}),
    _experiment("fig56", "Captions with the class changed", "E.13", "edits", _EDITS, *EDITED,
        sample_data="sample caltech101", variant="items", parameters={"edits": {"American Bulldog": "Basset Hound"}}),
    _experiment("table1", "Classes and images of the data sets", "D.3.1", "statistics",
        "Classes, training, validation and test images. STL-10 is printed with 50,000 training images; it has 5,000.",
        *counts("classes", **{name: own[0] for name, own in SIZES.items()}), *counts("test_images",
        **{name: own[3] for name, own in SIZES.items()}), data=_PHOTOS, seeds=1, numbers={"columns": ["classes",
        "train", "validation", "test"], **SIZES}),
    _experiment("table2", "Prompt templates", "D.3.2", "templates",
        "Templates of the official CLIP repository. The caption says that a single template a class is used for "
        "evaluation in all results, eq. 6 of the same section that they are averaged: evaluation_templates takes "
        "either.", *counts("templates", **TEMPLATES), data=_PHOTOS, seeds=1, numbers=TEMPLATES),
)  # fmt: skip


def _count(facts: Mapping[str, Any]) -> str:
    single = ", the first of them measured" if facts["evaluation_templates"] == "single" else ""
    images = f"{facts['train_images']} images to fit on, {facts['test_images']} to measure on"
    return f"{facts['classes']} classes; {images}; {facts['templates']} templates a class{single}"


PAPER = Paper(
    "canonical",
    "the Canonical paper",
    EXPERIMENTS,
    KINDS,
    METRICS,
    Collection,
    SAMPLE_DATA,
    lambda name, variant, file=None, **_: open_sample(name, file, variant),
    open_for,
    _count,
    choices={
        "methods": tuple(BASELINES),
        "fit": ("image", "text"),
        "means": ("seen", "all", "evaluated", "fitted"),
        "fit_templates": ("all", "single"),
        "evaluation_templates": ("all", "single"),
    },
    ranges={"share": ("a share above 0 and up to 1", lambda share: 0 < share <= 1)},
    drawings={"fig8": ("a diagram of how the theorems depend on each other", "C")},
)
