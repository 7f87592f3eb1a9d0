"""Fitting, carrying and measuring with maps that have a head for each side."""

import json

import numpy as np
import pyarrow as pa
import pytest

import congruence
from congruence import CCAMap, Embeddings, Space
from congruence.embeddings import normalize_rows
from congruence.errors import DirectionError, InputError, ModalityError, ParameterError, ShapeError, SpaceMismatchError
from congruence.evaluation import evaluate
from congruence.io import open_sink, open_source
from congruence.metrics import ensemble_prompts, paired_cosine, recall_at_k, zero_shot_accuracy
from congruence.splits import Split
from congruence.upgrade.transform import transform_file


class Unimodal:
    """A vision model and a language model that saw the same items, some of them described several times."""

    def __init__(self, classes=12, per_class=20, d_image=24, d_text=18, seed=0):
        rng = np.random.default_rng(seed)
        n = classes * per_class
        centers = 2 * rng.standard_normal((classes, 8))
        self.of_class = np.repeat(np.arange(classes), per_class)
        items = centers[self.of_class] + rng.standard_normal((n, 8))
        see, read = rng.standard_normal((8, d_image)), rng.standard_normal((8, d_text))

        def image(z):
            return z @ see + 1.5 * rng.standard_normal((len(z), d_image)) + 0.5

        def text(z):
            return z @ read + 1.5 * rng.standard_normal((len(z), d_text)) - 0.5

        self.ids = np.array([f"photo {k}" for k in range(n)])
        self.images = Embeddings(image(items), ids=self.ids, space=Space("dino", modality="image"))
        self.texts = Embeddings(text(items), ids=self.ids, space=Space("minilm", modality="text"))
        self.captions = Embeddings(
            text(np.repeat(items, 2, axis=0)),
            ids=[f"{i}#{k}" for i in self.ids for k in "ab"],
            space=Space("minilm", modality="text"),
        )
        self.caption_of = {i: i.split("#")[0] for i in self.captions.ids.tolist()}
        self.class_names = np.array([f"class {k}" for k in range(classes)])
        self.labels = dict(zip(self.ids.tolist(), self.class_names[self.of_class].tolist(), strict=True))
        self.prompts = Embeddings(
            text(np.repeat(centers, 3, axis=0)),
            ids=[f"{name}/{k}" for name in self.class_names for k in range(3)],
            space=Space("minilm", modality="text"),
        )
        self.prompt_of = {i: i.split("/")[0] for i in self.prompts.ids.tolist()}


@pytest.fixture(scope="module")
def data():
    return Unimodal()


@pytest.fixture(scope="module")
def mapping(data):
    return congruence.fit(data.images, data.texts, "cca", n_components=8, holdout=60, random_state=1)


@pytest.mark.parametrize("method", ["cca", "procrustes"])
def test_images_and_their_texts_are_fitted_and_measured_in_the_joint_space(data, method):
    m = congruence.fit(data.images, data.texts, method, n_components=8, holdout=60, random_state=1)
    assert (m.source_space_.model, m.source_space_.modality) == ("dino", "image")
    assert (m.target_space_.model, m.target_space_.modality) == ("minilm", "text")
    assert m.scores_["pairing"]["looks_paired"]
    heldout = Split.from_dict(m.scores_["holdout"]).held_out(data.ids)
    assert (heldout.sum(), m.n_pairs_) == (60, 180)
    a, b = m.transform(data.images.vectors[heldout]), m.transform_target(data.texts.vectors[heldout])
    own = np.arange(60)
    assert m.scores_["held_out_cosine"] == pytest.approx(paired_cosine(a, b))
    assert m.scores_["held_out_retrieval_at_1"] == pytest.approx(recall_at_k(a, b, own))
    assert m.scores_["held_out_retrieval_back_at_1"] == pytest.approx(recall_at_k(b, a, own))
    assert m.scores_["held_out_recall_at_10"] == pytest.approx(recall_at_k(a, b, own, k=10))
    assert m.scores_["held_out_retrieval_at_1"] > 0.5
    assert "held_out_cosine_unmapped" not in m.scores_


def test_one_sided_methods_still_want_one_modality(data):
    with pytest.raises(ModalityError, match="method='cca'"):
        congruence.fit(data.images, data.texts, "linear")
    with pytest.raises(ModalityError):
        congruence.fit(data.images, data.texts, "cca", modality="image")
    with pytest.raises(ParameterError, match="only a rotation is shared"):
        congruence.fit(data.images, data.texts, "cca", means={"text": (data.texts, None)})
    plain = congruence.fit(Embeddings(data.images.vectors), Embeddings(data.texts.vectors), "cca", modality="other")
    assert (plain.source_space_.modality, plain.target_space_.modality) == ("other", "other")


def test_scores_of_paired_items_are_their_metrics(data, mapping):
    scores = evaluate(mapping, {"image": data.images}, {"text": data.texts})
    a, b = mapping.transform(data.images.vectors), mapping.transform_target(data.texts.vectors)
    own = np.arange(240)
    names = ("aligned source image", "aligned target text")
    row = scores.get("cosine", *names)
    assert (row.n, row.before, row.source, row.target) == (240, None, None, None)
    assert row.after == pytest.approx(paired_cosine(a, b))
    for k in (1, 5, 10):
        assert scores.get(f"recall_at_{k}", *names).after == pytest.approx(recall_at_k(a, b, own, k=k))
        assert scores.get(f"recall_at_{k}", *names[::-1]).after == pytest.approx(recall_at_k(b, a, own, k=k))
    both = recall_at_k(a, b, own), recall_at_k(b, a, own)
    assert both[0] != both[1]
    assert scores.get("mean_recall_at_1", *names).after == pytest.approx(np.mean(both))
    assert not any(row.metric == "zero_shot" for row in scores.rows)
    json.dumps(scores.to_dict())


def test_other_ways_to_search_are_measured_in_the_joint_space(data, mapping):
    rows = {"image": data.images.take(np.arange(40))}, {"text": data.texts.take(np.arange(40))}
    scores = evaluate(mapping, *rows, hubness="qb_norm")
    a, b = mapping.transform(rows[0]["image"].vectors), mapping.transform_target(rows[1]["text"].vectors)
    names = ("aligned source image", "aligned target text")
    forth, back = (recall_at_k(*both, range(40), 1, hubness="qb_norm") for both in ((a, b), (b, a)))
    assert scores.get("recall_at_1_qb_norm", *names).after == forth
    assert scores.get("mean_recall_at_1_qb_norm", *names).after == (forth + back) / 2
    at_5 = recall_at_k(b, a, range(40), 5, hubness="qb_norm")
    assert scores.get("recall_at_5_qb_norm", *names[::-1]).after == at_5


def test_items_are_matched_by_id_in_any_order(data, mapping):
    order = np.random.default_rng(0).permutation(240)
    straight = evaluate(mapping, {"image": data.images}, {"text": data.texts})
    mixed = evaluate(mapping, {"image": data.images}, {"text": data.texts.take(order)})
    for one, other in zip(straight.rows, mixed.rows, strict=True):
        assert one.after == pytest.approx(other.after)
    some = evaluate(mapping, {"image": data.images}, {"text": data.texts.take(order[:200])})
    there = some.get("recall_at_1", "aligned source image", "aligned target text")
    assert there.n == 200  # images without a text are not asked for one
    back = some.get("recall_at_1", "aligned target text", "aligned source image")
    a, b = mapping.transform(data.images.vectors), mapping.transform_target(data.texts.vectors[order[:200]])
    assert back.after == pytest.approx(recall_at_k(b, a, order[:200]))  # but stay in the gallery


def test_several_texts_an_image(data, mapping):
    scores = evaluate(mapping, {"image": data.images}, {"text": data.captions}, prompt_labels=data.caption_of)
    a, b = mapping.transform(data.images.vectors), mapping.transform_target(data.captions.vectors)
    own = np.arange(480).reshape(240, 2)
    names = ("aligned source image", "aligned target text")
    row = scores.get("cosine", *names)
    assert row.n == 480
    assert row.after == pytest.approx(paired_cosine(np.repeat(a, 2, axis=0), b))
    assert scores.get("recall_at_5", *names).after == pytest.approx(recall_at_k(a, b, own, k=5))
    assert scores.get("recall_at_5", *names[::-1]).after == pytest.approx(
        recall_at_k(b, a, np.repeat(np.arange(240), 2), k=5)
    )
    part = {i: label for i, label in data.caption_of.items() if i.endswith("a")}
    notes = evaluate(mapping, {"image": data.images}, {"text": data.captions}, prompt_labels=part).notes
    assert notes == ["240 texts without a class were left out."]


def test_classes_are_told_by_ensembled_prompts(data, mapping):
    scores = evaluate(
        mapping, {"image": data.images}, {"text": data.prompts}, labels=data.labels, prompt_labels=data.prompt_of
    )
    a, b = mapping.transform(data.images.vectors), mapping.transform_target(data.prompts.vectors)
    of_prompt = np.repeat(data.class_names, 3)
    of_image = data.class_names[data.of_class]
    prototypes, classes = ensemble_prompts(b, of_prompt)
    names = ("aligned source image", "aligned target text")
    row = scores.get("zero_shot", *names)
    assert row.after == pytest.approx(zero_shot_accuracy(a, prototypes, of_image, classes))
    assert row.n == 240
    assert row.after > 0.8
    assert "zero_shot: aligned source image, aligned target text" in str(scores)
    same = of_image[:, None] == of_prompt[None]
    row = scores.get("cosine", *names)
    assert row.n == same.sum()
    assert row.after == pytest.approx((normalize_rows(a) @ normalize_rows(b).T)[same].mean())
    relevant = [np.flatnonzero(row) for row in same]
    assert scores.get("recall_at_1", *names).after == pytest.approx(recall_at_k(a, b, relevant))


def test_texts_as_source_and_images_as_target(data):
    m = congruence.fit(data.texts, data.images, "cca", n_components=8)
    scores = evaluate(
        m, {"text": data.prompts}, {"image": data.images}, labels=data.labels, prompt_labels=data.prompt_of
    )
    row = scores.get("zero_shot", "aligned target image", "aligned source text")
    prototypes, classes = ensemble_prompts(m.transform(data.prompts.vectors), np.repeat(data.class_names, 3))
    expected = zero_shot_accuracy(
        m.transform_target(data.images.vectors), prototypes, data.class_names[data.of_class], classes
    )
    assert row.after == pytest.approx(expected)


def test_what_the_models_reach_without_the_map(data):
    """Two dual encoders of one width, joined on images: unmapped and native scores stand beside the mapped one."""
    rng = np.random.default_rng(0)
    turn = rng.standard_normal((18, 18))
    source = {
        "image": Embeddings(data.texts.vectors + 1, ids=data.ids, space=Space("A", modality="image")),
        "text": Embeddings(data.texts.vectors, ids=data.ids, space=Space("A", modality="text")),
    }
    target = {m: Embeddings(e.vectors @ turn, ids=e.ids, space=Space("B", modality=m)) for m, e in source.items()}
    m = congruence.fit(source["image"], target["image"], "cca", check=False)
    scores = evaluate(m, source, target)
    own = np.arange(240)
    row = scores.get("recall_at_1", "aligned source image", "aligned target text")
    raw = {(s, k): e.vectors for s, side in (("s", source), ("t", target)) for k, e in side.items()}
    assert row.before == pytest.approx(recall_at_k(raw["s", "image"], raw["t", "text"], own))
    assert row.source == pytest.approx(recall_at_k(raw["s", "image"], raw["s", "text"], own))
    assert row.target == pytest.approx(recall_at_k(raw["t", "image"], raw["t", "text"], own))
    back = scores.get("recall_at_1", "aligned target text", "aligned source image")
    assert back.before == pytest.approx(recall_at_k(raw["t", "text"], raw["s", "image"], own))
    assert back.source == pytest.approx(recall_at_k(raw["s", "text"], raw["s", "image"], own))
    mean = scores.get("mean_recall_at_1", "aligned source image", "aligned target text")
    assert mean.before == pytest.approx((row.before + back.before) / 2)
    assert scores.get("cosine", "aligned source image", "aligned target image").source is None
    assert {(r.query, r.against) for r in scores.rows if r.metric == "cosine"} == {
        (f"aligned source {a}", f"aligned target {b}") for a in ("image", "text") for b in ("image", "text")
    }


def test_rows_without_ids_pair_by_position(data, mapping):
    images, texts = Embeddings(data.images.vectors), Embeddings(data.texts.vectors)
    named = evaluate(mapping, {"image": data.images}, {"text": data.texts})
    placed = evaluate(mapping, {"image": images}, {"text": texts})
    assert [r.after for r in placed.rows] == pytest.approx([r.after for r in named.rows], rel=1e-12)
    with pytest.raises(ShapeError, match="paired by row"):
        evaluate(mapping, {"image": images}, {"text": texts.take(np.arange(100))})


def test_galleries_smaller_than_k_have_no_recall_at_k(data, mapping):
    few = evaluate(mapping, {"image": data.images.take(np.arange(4))}, {"text": data.texts.take(np.arange(4))})
    assert {r.metric for r in few.rows} == {"cosine", "recall_at_1", "mean_recall_at_1"}


def test_what_cannot_be_measured_is_refused(data, mapping):
    with pytest.raises(InputError, match="nothing can be measured"):
        evaluate(mapping, {"image": data.images}, {})
    with pytest.raises(InputError, match="nothing can be measured"):
        evaluate(mapping, {"image": data.images}, {"text": data.prompts})
    with pytest.raises(InputError, match="No source"):
        evaluate(mapping, {}, {"text": data.texts})
    with pytest.raises(DirectionError, match='side="target"'):
        evaluate(mapping, {"text": data.texts}, {"image": data.images})
    with pytest.raises(SpaceMismatchError):
        other = Embeddings(data.images.vectors, ids=data.ids, space=Space("clip"))
        evaluate(mapping, {"image": other}, {"text": data.texts})
    with pytest.raises(ModalityError, match="text vectors as 'image'"):
        evaluate(mapping, {"image": data.images}, {"image": data.texts})
    with pytest.raises(InputError, match="No prompt has a class"):
        evaluate(mapping, {"image": data.images}, {"text": data.texts}, prompt_labels={"x": "y"})
    with pytest.raises(InputError, match="no label"):
        evaluate(mapping, {"image": data.images}, {"text": data.texts}, labels={"x": "y"})


def test_only_the_modality_a_head_is_for_goes_through_it(data, mapping):
    """The source model's own texts are no input of a head for images; they serve to say what that model reaches
    alone.
    """
    own = Embeddings(data.images.vectors, ids=data.ids, space=Space("dino", modality="text"))
    scores = evaluate(mapping, {"image": data.images, "text": own}, {"text": data.texts})
    assert {r.query for r in scores.rows} == {"aligned source image", "aligned target text"}
    assert scores.get("recall_at_1", "aligned source image", "aligned target text").source == 1


def store(path, X, ids, space=None):
    with open_sink(path, n=len(X), dim=X.shape[1], dtype=X.dtype, has_ids=True, space=space) as sink:
        sink.write(pa.array(ids), X)
    return open_source(path)


def test_both_sides_are_carried_into_the_joint_space(data, mapping, tmp_path):
    ids = data.ids.tolist()
    images = store(tmp_path / "i.parquet", data.images.vectors, ids, Space("dino", modality="image"))
    texts = store(tmp_path / "t.parquet", data.texts.vectors, ids, Space("minilm", modality="text"))
    report = transform_file(mapping, images, tmp_path / "ci.parquet")
    transform_file(mapping, texts, tmp_path / "ct.parquet", normalize=True)
    assert report.dim == 8
    a, b = (open_source(tmp_path / f"{name}.parquet") for name in ("ci", "ct"))
    np.testing.assert_allclose(a.read().vectors, mapping.transform(data.images.vectors), atol=1e-9)
    np.testing.assert_allclose(
        b.read().vectors, normalize_rows(mapping.transform_target(data.texts.vectors)), atol=1e-9
    )
    assert a.space.model == b.space.model == "joint (cca) of dino and minilm"
    assert (a.space.modality, b.space.modality, b.space.normalized) == ("image", "text", True)
    assert a.space.revision == mapping.joint_space().revision
    with pytest.raises(DirectionError, match='side="target"'):
        transform_file(mapping, texts, tmp_path / "x.parquet", side="source")
    with pytest.raises(SpaceMismatchError):
        transform_file(mapping, store(tmp_path / "u.npz", normalize_rows(data.images.vectors), ids), tmp_path / "x.npz")
    assert not (tmp_path / "x.parquet").exists()


def test_sides_of_one_width_have_to_be_named(data, tmp_path):
    m = CCAMap(n_components=4).fit(data.texts.vectors, data.texts.vectors[::-1])
    source = store(tmp_path / "t.npz", data.texts.vectors, data.ids.tolist())
    with pytest.raises(ParameterError, match="fit both sides"):
        transform_file(m, source, tmp_path / "out.npz")
    transform_file(m, source, tmp_path / "out.npz", side="target")
    out = open_source(tmp_path / "out.npz").read().vectors
    np.testing.assert_allclose(out, m.transform_target(data.texts.vectors), atol=1e-9)
    one_sided = congruence.LinearMap().fit(data.texts.vectors, data.images.vectors)
    with pytest.raises(ParameterError, match="has one side"):
        transform_file(one_sided, source, tmp_path / "no.npz", side="target")


@pytest.fixture
def files(data, tmp_path):
    np.savez(tmp_path / "i.npz", v=data.images.vectors, ids=data.ids, label=data.class_names[data.of_class])
    np.savez(tmp_path / "t.npz", v=data.texts.vectors, ids=data.ids)
    captions = np.array(list(data.caption_of.values()))
    np.savez(tmp_path / "c.npz", v=data.captions.vectors, ids=data.captions.ids.astype(str), of=captions)
    np.savez(
        tmp_path / "p.npz", v=data.prompts.vectors, ids=data.prompts.ids.astype(str), of=np.repeat(data.class_names, 3)
    )
    return tmp_path


FIT = ["fit", "i.npz:v", "t.npz:v", "--ids", "ids", "--modality", "image", "--set", "new_modality=text", "-o", "map"]


def test_the_command_line_fits_carries_and_measures(here, files, data):
    named = ["--set", "old_model=dino", "--set", "new_model=minilm"]
    fitted = here(
        *FIT, *named, "--method", "cca", "--set", "n_components=8", "--set", "ridge=0.5", "--holdout", "60"
    ).ends(0)
    assert "width of the joint space" in fitted.out
    assert "retrieval at 1, back" in fitted.out
    m = congruence.load(files / "map")
    assert (m.n_components, m.ridge, m.target_space_.modality) == (8, 0.5, "text")
    shown = here("inspect", "map")
    assert "joint dim" in shown.out
    measure = ["lab", "evaluate", "map", "--ids", "ids", "--held-out", "--json", "--old-image", "i.npz:v", "--new-text"]
    result = json.loads(here(*measure, "t.npz:v").out)
    by_key = {(r["metric"], r["query"]): r for r in result["rows"]}
    assert by_key["cosine", "aligned first image"]["n"] == 60
    assert by_key["recall_at_1", "aligned first image"]["after"] == pytest.approx(m.scores_["held_out_retrieval_at_1"])
    several = json.loads(here(*measure, "c.npz:v", "--prompt-labels", "c.npz:of").out)
    assert {r["n"] for r in several["rows"] if r["query"] == "aligned second text"} == {120}
    labels = ["--labels", "i.npz:label", "--prompt-labels", "p.npz:of"]
    classes = json.loads(here(*measure, "p.npz:v", *labels).out)
    row = next(r for r in classes["rows"] if r["metric"] == "zero_shot")
    assert row["n"] == 60
    assert row["after"] > 0.8
    for name, side in (("i", "first"), ("t", "second")):
        assert here("transform", "map", f"{name}.npz:v", "-o", f"{name}.npy", "--side", side).code == 0
    np.testing.assert_allclose(np.load(files / "t.npy"), m.transform_target(data.texts.vectors), atol=1e-9)
    assert here("transform", "map", "t.npz:v", "-o", "again.npy").code == 0  # the width tells the side
    np.testing.assert_array_equal(np.load(files / "again.npy"), np.load(files / "t.npy"))
