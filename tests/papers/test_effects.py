"""What the paper claims, by sign and size, on the embeddings at hand; and where what was measured says otherwise."""

import hashlib
from functools import cache

import numpy as np
import pytest

from congruence_papers import EXPERIMENTS, run
from congruence_papers.canonical import contrastive_heads, maps, open_sample
from congruence_papers.canonical.data import Heads
from congruence_papers.core import mean

#: They begin first, and one after another in one worker: tests share the runs of experiments.
pytestmark = pytest.mark.long

ALIGNED, CENTERED = "aligned_image_text", "aligned_image_text_centered"
OWN = "aligned_image_aligned_text"


def of(metric, series, **more):
    return mean(metric, series=series, **more)


def unseen(n, series="orthogonal", metric="text_cosine"):
    return mean(metric, series=series, part="unseen", x=n)


def moved(series, x):
    return mean("zero_shot", series=series, x=x)


TEXT_RISES_THOUGH_ONLY_IMAGES_WERE_FITTED = [
    abs(mean("text_cosine", "before")) < 0.05,
    mean("text_cosine") > 0.7,
    mean("text_retrieval", "before") < 0.05,
    mean("text_retrieval") > 0.9,
    mean("image_aligned_text") > 0.88 * mean("image_aligned_text", "model_b"),
    mean("image_aligned_text", "before") < 0.03,
]
IMAGES_RISE_THOUGH_ONLY_TEXTS_WERE_FITTED = [
    abs(mean("image_cosine", "before")) < 0.05,
    of("image_cosine", "orthogonal") > 0.45,
    of("image_retrieval", "orthogonal") > 0.5,
    of(ALIGNED, "orthogonal") > 0.9 * mean(ALIGNED, "model_b"),
    of("text_retrieval", "orthogonal") >= 1.0,  # every class was fitted on
]
UNSEEN_CLASSES_FOLLOW_SEEN_ONES_AND_GAIN_LESS_AND_LESS = [
    *(unseen(more) > unseen(n) for n, more in ((2, 5), (5, 10), (10, 15), (15, 30))),
    mean("text_cosine", series="orthogonal", part="seen", x=30) > unseen(30),
    (1 / 8) * (unseen(10) - unseen(2)) > (3 / 15) * (unseen(30) - unseen(15)),
    # Counter-evidence: the paper's curve is flat from 10 to 15 classes on; this one is not.
    unseen(30) - unseen(10) > 0.1,
    *(unseen(n, "filtered") > unseen(n) + 0.01 for n in (2, 5, 10, 20, 30)),
]
# Counter-evidence: any rotation with exchanged means keeps the source's own geometry.
THE_MEASURE_OF_FIGURE_5_CANNOT_TELL_A_FITTED_ROTATION_FROM_A_RANDOM_ONE = [
    *(abs(unseen(n, "orthogonal", OWN) - unseen(n, "random", OWN)) < 0.03 for n in (10, 20, 30)),
    unseen(30, "random") < 0.1,
]
CENTERING_HELPS_POINTWISE_COSINE = [
    of("text_cosine", "orthogonal") > of("text_cosine", "uncentered") + 0.01,
    of("image_cosine", "orthogonal") > of("image_cosine", "uncentered"),
    # Without it, images and texts of the source keep exactly their own accuracy.
    abs(of(OWN, "uncentered") - mean(OWN, "model_a")) <= 2e-3,
]
# Of figure 7 classification holds here; its text–text cosine does not (appendix E.9 agrees).
THE_ORTHOGONAL_MAP_KEEPS_THE_GEOMETRY_BUT_LINEAR_MAPS_HAVE_THE_HIGHER_COSINE = [
    of(OWN, "orthogonal") > of(OWN, "linear") + 0.02,
    of(OWN, "orthogonal") > of(OWN, "mlp") + 0.01,
    of("image_cosine", "orthogonal") < of("image_cosine", "linear"),
    of("image_cosine", "linear") < of("image_cosine", "mlp"),
    *(of("text_cosine", "orthogonal") < of("text_cosine", other) for other in ("linear", "filtered")),
]
THERE_AND_BACK_NEARLY_GIVES_THE_MODEL_BACK = [
    *(mean(metric) > 0.96 for metric in ("image_cosine", "text_cosine")),
    *(abs(mean(metric) - mean(metric, "model_a")) < 0.02 for metric in (ALIGNED, "image_aligned_text", OWN)),
]
_COMPOSED = ("image_cosine", "text_cosine", ALIGNED, "image_aligned_text")
THE_COMPOSED_MAP_NEARLY_MATCHES_THE_DIRECT_ONE = [
    *(abs(of(metric, "composed") - of(metric, "direct")) < 0.07 for metric in _COMPOSED),
    *(of(metric, "composed") > mean(metric, "random_rotation") + 0.2 for metric in _COMPOSED),
]
_AT_HOME, _AWAY = (
    {d: mean("text_cosine", data=d, series=f"fitted on {f}", part=part) for d, f in fitted.items()}
    for fitted, part in (
        ({"people": "people", "things": "things"}, "in domain"),
        ({"people": "things", "things": "people"}, "means of the data evaluated"),
    )
)
A_MAP_HELPS_OTHER_DATA_BUT_NOT_AS_AN_OWN_ONE_DOES = [
    *(_AWAY[d] > mean("text_cosine", "before", data=d, part="*") + 0.4 for d in _AWAY),
    *(_AWAY[d] < _AT_HOME[d] - 0.1 for d in _AWAY),
]
_PHOTOS, _CLIPS = "EfficientNet + MPNet → MobileNet + MiniLM", "OpenAI B/32 → "
_MAPPED, _ALONE = (of("edited_class_image", series) for series in ("mapped", "target alone"))
EDITED_PROMPTS_FIND_THE_EDITED_CLASS = [
    _MAPPED > 0.85 * _ALONE,
    _MAPPED <= _ALONE,
    # Counter-evidence, of class prompts: the template that is found again is hardly more often the same than by chance.
    mean("rest_kept") < mean("rest_kept", "chance") + 0.1,
]
_EVA = {"pair": f"{_CLIPS}EVA-02 B/16"}
MOST_OF_A_RAW_COSINE_BETWEEN_CLIPS_IS_THE_EXCHANGE_OF_MEANS = [  # mind the control
    mean("text_cosine", "before", **_EVA) < 0.05,
    of("text_cosine", "random", **_EVA) > 0.6,
    of("text_cosine", "random", **_EVA) < 0.8,
    of("text_retrieval", "random", **_EVA) < 0.05,
    of("text_cosine", "orthogonal", **_EVA) > 0.9,
]
# Figure 7 turned round: fitted on texts, images are mapped. Plain least squares fails on them altogether.
ON_THE_UNFITTED_MODALITY_THE_ROTATION_IS_BEST_THEN_LINEAR_THEN_THE_PERCEPTRON = [
    *(of(metric, "orthogonal") > of(metric, "linear") + room for metric, room in ((ALIGNED, 0.05), (CENTERED, 0.02))),
    *(of(metric, "linear") > of(metric, "mlp") - 0.01 for metric in (ALIGNED, CENTERED)),
    *(of(metric, "least_squares") < 0.05 for metric in (ALIGNED, CENTERED)),
    of("text_cosine", "orthogonal") < of("text_cosine", "linear"),  # on the fitted modality cosine says the opposite
]
CLOSING_THE_GAP_BY_A_TRANSLATION_COSTS_ACCURACY = [
    mean("gap") > 0.9,
    *(moved(s, 0.0) > moved(s, 0.5) + 0.05 for s in ("texts moved", "images moved")),
    *(moved(s, 0.5) > moved(s, 1.0) + 0.1 for s in ("texts moved", "images moved")),
]
LVIS_IMAGES_ARE_MAPPED_BY_A_MAP_FITTED_ON_TEXTS = [
    mean("text_cosine") > 0.9,
    mean(ALIGNED) > 0.7,
    mean(ALIGNED, "before") < 0.02,
    mean(CENTERED) > 0.75,
]
KERNELS_AGREE_WHERE_COORDINATES_DO_NOT = [
    mean("kernel_correlation") > 0.5,
    abs(mean("cross_model_correlation")) < 0.05,
]


def closer(same, other, by):
    first, second = (mean("text_cosine", pair=pair, part="*") for pair in (same, other))
    return [first > second + by]


EFFECTS = {
    ("fig11", "sample caltech101"): TEXT_RISES_THOUGH_ONLY_IMAGES_WERE_FITTED,
    ("fig34", "sample caltech101"): IMAGES_RISE_THOUGH_ONLY_TEXTS_WERE_FITTED,
    ("fig5", "sample"): UNSEEN_CLASSES_FOLLOW_SEEN_ONES_AND_GAIN_LESS_AND_LESS,
    ("fig5", "sample caltech101"): THE_MEASURE_OF_FIGURE_5_CANNOT_TELL_A_FITTED_ROTATION_FROM_A_RANDOM_ONE,
    ("fig49", "sample"): CENTERING_HELPS_POINTWISE_COSINE,
    ("fig46", "sample"): THE_ORTHOGONAL_MAP_KEEPS_THE_GEOMETRY_BUT_LINEAR_MAPS_HAVE_THE_HIGHER_COSINE,
    ("fig39", "sample caltech101"): THERE_AND_BACK_NEARLY_GIVES_THE_MODEL_BACK,
    ("fig40", "sample caltech101"): THE_COMPOSED_MAP_NEARLY_MATCHES_THE_DIRECT_ONE,
    ("fig43", "sample"): [mean("text_cosine") > 0.7, mean(ALIGNED) > 0.9 * mean(ALIGNED, "model_a")],
    ("fig6", "sample"): A_MAP_HELPS_OTHER_DATA_BUT_NOT_AS_AN_OWN_ONE_DOES,
    ("fig52", "caltech101"): closer(f"{_PHOTOS} (same photos)", _PHOTOS, 0.02),
    ("fig53", "sample caltech101"): [mean("overlap_at_5") > 20 * mean("overlap_at_5", "chance")],
    ("fig55", "sample caltech101"): EDITED_PROMPTS_FIND_THE_EDITED_CLASS,
    ("fig3", "sample caltech101"): KERNELS_AGREE_WHERE_COORDINATES_DO_NOT,
    ("fig11", "lvis"): LVIS_IMAGES_ARE_MAPPED_BY_A_MAP_FITTED_ON_TEXTS,
    ("fig46", "lvis"): [
        *MOST_OF_A_RAW_COSINE_BETWEEN_CLIPS_IS_THE_EXCHANGE_OF_MEANS,
        *ON_THE_UNFITTED_MODALITY_THE_ROTATION_IS_BEST_THEN_LINEAR_THEN_THE_PERCEPTRON,
    ],
    ("fig52", "lvis"): closer(f"{_CLIPS}OpenAI B/16", f"{_CLIPS}EVA-02 B/16", 0.01),
    ("fig2", "lvis"): CLOSING_THE_GAP_BY_A_TRANSLATION_COSTS_ACCURACY,
}

_heads: dict[tuple[object, ...], Heads] = {}


def heads_once(images: np.ndarray, texts: np.ndarray, dim: int, **options: object) -> Heads:
    key = *(hashlib.blake2b(rows.tobytes()).digest() for rows in (images, texts)), dim, *sorted(options.items())
    if key not in _heads:
        _heads[key] = contrastive_heads(images, texts, dim, **options)
    return _heads[key]


@pytest.fixture(scope="module", autouse=True)
def cheap():
    """Fit heads once, and stop perceptrons sooner: none here is better again after five epochs that are not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("congruence_papers.canonical.data.contrastive_heads", heads_once)
        patch.setitem(maps.BASELINES, "mlp", ("mlp", {"patience": 5}))
        yield
    _heads.clear()


@cache
def rows(name, models, file):
    # Effects are many times the spread of draws (benchmarks/records has the configurations' own five), so two draws
    # show them. On LVIS every draw fits the same texts: only random rotations and perceptrons, which take seconds,
    # would be others.
    config = EXPERIMENTS[name]
    data = open_sample(models, file, config.variant)
    return run(config, collections=[data], seeds=1 if models == "lvis" else 2).results["rows"]


@pytest.mark.parametrize(
    ("name", "models", "effects"),
    [(name, models, effects) for (name, both), effects in EFFECTS.items() for models in both.split()],
)
def test_effects_have_their_sign_and_size(name, models, effects, request, shared):
    files = {"caltech101": "caltech101_unimodal.npz", "lvis": "lvis1203_clip.npz"}
    found = rows(name, models, None if models == "sample" else str(shared(files[models])))
    for effect in effects:
        judged = effect.judge(found)
        assert judged["held"] == judged["of"] > 0, judged


def test_each_model_is_once_in_the_middle_of_a_chain():
    chains = {row["pair"] for row in rows("fig40", "sample", None)}
    assert len(chains) == len({chain.split(" → ")[1] for chain in chains}) == 3
