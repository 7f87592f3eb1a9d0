"""What the paper claims, by sign and size, on the embeddings at hand; and where what was measured says otherwise."""

import hashlib
from functools import cache

import numpy as np
import pytest

from congruence_papers import EXPERIMENTS, run
from congruence_papers.canonical import contrastive_heads, maps, open_sample
from congruence_papers.canonical.data import Heads

#: They begin first, and one after another in one worker: tests share the runs of experiments.
pytestmark = pytest.mark.long


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
def opened(models: str, variant: str | None, file: str | None):
    return open_sample(models, file, variant)


@cache
def rows(name: str, models: str = "sample", file: str | None = None):
    # Effects are many times the spread of draws (benchmarks/records has the configurations' own five), so two draws
    # show them. On LVIS every draw fits the same texts: only random rotations and perceptrons, which take seconds,
    # would be others.
    config = EXPERIMENTS[name]
    seeds = 1 if models == "lvis" else 2
    return run(config, collections=[opened(models, config.variant, file)], seeds=seeds).results["rows"]


def value(found, metric, quantity="after", **more):
    wanted = {"metric": metric, "quantity": quantity, **more}
    means = [row["mean"] for row in found if all(row[k] == v for k, v in wanted.items())]
    assert len(means) == 1, (metric, quantity, more, means)
    return means[0]


@pytest.fixture(scope="session")
def caltech(shared):
    return str(shared("caltech101_unimodal.npz"))


@pytest.fixture(scope="session", params=["sample", "caltech101"])
def pair(request):
    return (request.param, None if request.param == "sample" else request.getfixturevalue("caltech"))


def test_text_rises_though_only_images_were_fitted(pair):
    found = rows("fig11", *pair)
    assert abs(value(found, "text_cosine", "before")) < 0.05
    assert value(found, "text_cosine") > 0.7
    assert value(found, "text_retrieval", "before") < 0.05
    assert value(found, "text_retrieval") > 0.9
    assert value(found, "image_aligned_text") > 0.88 * value(found, "image_aligned_text", "model_b")
    assert value(found, "image_aligned_text", "before") < 0.03


def test_images_rise_though_only_texts_were_fitted(pair):
    found = rows("fig34", *pair)
    assert abs(value(found, "image_cosine", "before")) < 0.05
    fitted = "orthogonal"
    assert value(found, "image_cosine", series=fitted) > 0.45
    assert value(found, "image_retrieval", series=fitted) > 0.5
    own = value(found, "aligned_image_text", series=fitted)
    assert own > 0.9 * value(found, "aligned_image_text", "model_b")
    assert value(found, "text_retrieval", series=fitted) == 1.0  # every class was fitted on


def test_unseen_classes_follow_seen_ones_and_gain_less_and_less():
    found = rows("fig5")
    unseen = {n: value(found, "text_cosine", series="orthogonal", part="unseen", x=n) for n in (2, 5, 10, 15, 20, 30)}
    seen = {n: value(found, "text_cosine", series="orthogonal", part="seen", x=n) for n in (2, 30)}
    assert unseen[2] < unseen[5] < unseen[10] < unseen[15] < unseen[30] < seen[30]
    assert (unseen[10] - unseen[2]) / 8 > 3 * (unseen[30] - unseen[15]) / 15
    # Counter-evidence: the paper's curve is flat from 10 to 15 classes on; this one is not.
    assert unseen[30] - unseen[10] > 0.1


def test_few_anchors_gain_from_the_filter():
    found = rows("fig5")
    for n in (2, 5, 10, 20, 30):
        full, kept = (value(found, "text_cosine", series=s, part="unseen", x=n) for s in ("orthogonal", "filtered"))
        assert kept > full + 0.01


def test_the_measure_of_figure_5_cannot_tell_a_fitted_rotation_from_a_random_one(pair):
    """Counter-evidence: any rotation with exchanged means keeps the source's own geometry."""
    found = rows("fig5", *pair)
    for n in (10, 20, 30):
        at = {"part": "unseen", "x": n}
        fitted, random = (value(found, "aligned_image_aligned_text", series=s, **at) for s in ("orthogonal", "random"))
        assert abs(fitted - random) < 0.03
    assert value(found, "text_cosine", series="random", part="unseen", x=30) < 0.1


def test_centering_helps_pointwise_cosine():
    found = rows("fig49")
    for metric, gain in (("text_cosine", 0.01), ("image_cosine", 0.0)):
        assert value(found, metric, series="orthogonal") > value(found, metric, series="uncentered") + gain
    # And without it, images and texts of the source keep exactly their own accuracy.
    own = value(found, "aligned_image_aligned_text", "model_a")
    assert value(found, "aligned_image_aligned_text", series="uncentered") == pytest.approx(own, abs=2e-3)


def test_the_orthogonal_map_keeps_the_geometry_but_linear_maps_have_the_higher_cosine():
    """Of figure 7 classification holds here; its text–text cosine does not (appendix E.9 agrees)."""
    found = rows("fig46")

    def of(metric, series):
        return value(found, metric, series=series)

    assert of("aligned_image_aligned_text", "orthogonal") > of("aligned_image_aligned_text", "linear") + 0.02
    assert of("aligned_image_aligned_text", "orthogonal") > of("aligned_image_aligned_text", "mlp") + 0.01
    assert of("image_cosine", "orthogonal") < of("image_cosine", "linear") < of("image_cosine", "mlp")
    assert of("text_cosine", "orthogonal") < of("text_cosine", "linear")
    assert of("text_cosine", "orthogonal") < of("text_cosine", "filtered")


def test_there_and_back_nearly_gives_the_model_back(pair):
    found = rows("fig39", *pair)
    assert value(found, "image_cosine") > 0.96
    assert value(found, "text_cosine") > 0.96
    for metric in ("aligned_image_text", "image_aligned_text", "aligned_image_aligned_text"):
        assert abs(value(found, metric) - value(found, metric, "model_a")) < 0.02


def test_the_composed_map_nearly_matches_the_direct_one(pair):
    found = rows("fig40", *pair)
    chains = list(dict.fromkeys(row["pair"] for row in found))
    middles = [chain.split(" → ")[1] for chain in chains]
    assert len(chains) == len({*middles}) == 3  # each model is in the middle once
    for chain in chains:
        for metric in ("image_cosine", "text_cosine", "aligned_image_text", "image_aligned_text"):
            composed, direct = (value(found, metric, pair=chain, series=s) for s in ("composed", "direct"))
            assert abs(composed - direct) < 0.07
            assert composed > value(found, metric, "random_rotation", pair=chain) + 0.2


def test_a_narrower_source_is_mapped_too():
    found = rows("fig43")
    assert value(found, "text_cosine") > 0.7
    assert value(found, "aligned_image_text") > 0.9 * value(found, "aligned_image_text", "model_a")


def test_a_map_helps_other_data_but_not_as_an_own_one_does():
    found = rows("fig6")
    for data, home, other in (("people", "people", "things"), ("things", "things", "people")):
        own = value(found, "text_cosine", data=data, series=f"fitted on {home}", part="in domain")
        away = value(found, "text_cosine", data=data, series=f"fitted on {other}", part="means of the data evaluated")
        assert value(found, "text_cosine", "before", data=data) + 0.4 < away < own - 0.1


def test_the_same_photos_make_models_easier_to_align(caltech):
    found = rows("fig52", "caltech101", caltech)
    pair = "EfficientNet + MPNet → MobileNet + MiniLM"
    other, same = (value(found, "text_cosine", pair=pair + end) for end in ("", " (same photos)"))
    assert same > other + 0.02


def test_both_paths_of_the_diagram_meet(pair):
    found = rows("fig53", *pair)
    assert value(found, "overlap_at_5") > 20 * value(found, "overlap_at_5", "chance")


def test_edited_prompts_find_the_edited_class_and_keep_next_to_nothing_of_the_template(pair):
    found = rows("fig55", *pair)
    mapped, alone = (value(found, "edited_class_image", series=s) for s in ("mapped", "target alone"))
    assert 0.85 * alone < mapped <= alone
    # Counter-evidence, of class prompts: the template that is found again is hardly more often the same than by chance.
    assert value(found, "rest_kept") < value(found, "rest_kept", "chance") + 0.1


def test_kernels_agree_where_coordinates_do_not(pair):
    found = rows("fig3", *pair)
    assert value(found, "kernel_correlation", "value") > 0.5
    assert abs(value(found, "cross_model_correlation", "value")) < 0.05


def test_lvis_images_are_mapped_by_a_map_fitted_on_texts(lvis_path):
    found = rows("fig11", "lvis", str(lvis_path))
    for target in ("OpenAI B/16", "EVA-02 B/16"):
        pair = f"OpenAI B/32 → {target}"
        assert value(found, "text_cosine", pair=pair) > 0.9
        assert value(found, "aligned_image_text", pair=pair) > 0.7
        assert value(found, "aligned_image_text", "before", pair=pair) < 0.02
        assert value(found, "aligned_image_text_centered", pair=pair) > 0.75


def test_most_of_a_raw_cosine_between_clips_is_the_exchange_of_means(lvis_path):
    """A random rotation about the right means has a text–text cosine of 0.7 on LVIS: mind the control."""
    found = rows("fig46", "lvis", str(lvis_path))
    pair = "OpenAI B/32 → EVA-02 B/16"
    assert value(found, "text_cosine", "before", pair=pair) < 0.05
    assert 0.6 < value(found, "text_cosine", series="random", pair=pair) < 0.8
    assert value(found, "text_retrieval", series="random", pair=pair) < 0.05
    assert value(found, "text_cosine", series="orthogonal", pair=pair) > 0.9


def test_clips_of_the_same_data_are_closer(lvis_path):
    found = rows("fig52", "lvis", str(lvis_path))
    same, other = (value(found, "text_cosine", pair=f"OpenAI B/32 → {t}") for t in ("OpenAI B/16", "EVA-02 B/16"))
    assert same > other + 0.01


def test_on_the_unfitted_modality_the_rotation_is_best_then_linear_then_the_perceptron(lvis_path):
    """Figure 7 turned round: fitted on texts, images are mapped. Plain least squares fails on them altogether."""
    found = rows("fig46", "lvis", str(lvis_path))
    for target in ("OpenAI B/16", "EVA-02 B/16"):
        pair = f"OpenAI B/32 → {target}"
        for metric, room in (("aligned_image_text", 0.05), ("aligned_image_text_centered", 0.02)):
            methods = ("orthogonal", "linear", "mlp", "least_squares")
            rotation, linear, mlp, plain = (value(found, metric, series=s, pair=pair) for s in methods)
            assert rotation > linear + room
            assert linear > mlp - 0.01
            assert plain < 0.05
        # On the fitted modality cosine says the opposite.
        own = [value(found, "text_cosine", series=s, pair=pair) for s in ("orthogonal", "linear")]
        assert own[0] < own[1]


def test_closing_the_gap_by_a_translation_costs_accuracy(lvis_path):
    found = rows("fig2", "lvis", str(lvis_path))
    assert value(found, "gap", "value") > 0.9
    for series in ("texts moved", "images moved"):
        kept, half, closed = (value(found, "zero_shot", series=series, x=x) for x in (0.0, 0.5, 1.0))
        assert kept > half + 0.05 > closed + 0.15
