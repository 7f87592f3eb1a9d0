import numpy as np
import pytest

import congruence
from congruence import Embeddings, OrthogonalMap, Space, errors
from congruence.errors import InputError, ModalityError, PairingWarning, ParameterError, SpaceMismatchError
from congruence.evaluation import evaluate
from congruence.linalg import shrinkage
from congruence.maps import MLPMap
from congruence.metrics import CSLS, class_retrieval, paired_cosine, zero_shot_accuracy
from congruence.splits import Split
from congruence.synthetic import random_rotation


class TwoModels:
    """Two dual encoders that differ by one rotation and, for each modality, by their means."""

    def __init__(self, classes=30, per_class=8, d=24, noise=0.05, seed=0):
        rng = np.random.default_rng(seed)
        centers = rng.standard_normal((classes, d))
        self.names = [f"class {k}" for k in range(classes)]
        self.image_ids = [f"{name}/{j}" for name in self.names for j in range(per_class)]
        self.labels = dict(zip(self.image_ids, np.repeat(self.names, per_class), strict=True))
        image = np.repeat(centers, per_class, axis=0) + 0.4 * rng.standard_normal((classes * per_class, d))
        text = centers + 0.1 * rng.standard_normal((classes, d))
        gap = {m: (2 * rng.standard_normal(d), 2 * rng.standard_normal(d)) for m in ("image", "text")}
        R = random_rotation(d, random_state=seed)
        self.source, self.target = {}, {}
        for m, z, ids in (("image", image, self.image_ids), ("text", text, self.names)):
            self.source[m] = Embeddings(z + gap[m][0], ids=ids, space=Space("A", modality=m))
            noisy = z @ R + noise * rng.standard_normal(z.shape)
            self.target[m] = Embeddings(noisy + gap[m][1], ids=ids, space=Space("B", modality=m))


@pytest.fixture(scope="module")
def models():
    return TwoModels()


def fit(models, **options):
    means = {"text": (models.source["text"], models.target["text"])}
    return congruence.fit(models.source["image"], models.target["image"], means=means, **options)


def test_a_map_fitted_on_images_carries_text(models):
    mapping = fit(models, holdout=40, random_state=1)
    assert (mapping.source_space_.model, mapping.target_space_.model) == ("A", "B")
    assert mapping.source_space_.modality == "image"
    moved = mapping.transform_embeddings(models.source["text"])
    assert paired_cosine(moved.vectors, models.target["text"].vectors) > 0.98
    assert mapping.scores_["held_out_pairs"] == 40
    assert mapping.scores_["held_out_cosine"] > 0.98 > 0.3 > mapping.scores_["held_out_cosine_unmapped"]
    assert mapping.scores_["pairing"]["looks_paired"]
    assert mapping.n_pairs_ == 200


def test_held_out_pairs_are_really_held_out(models):
    mapping = fit(models, holdout=0.25, random_state=3)
    heldout = Split.from_dict(mapping.scores_["holdout"]).held_out(models.source["image"].ids)
    assert heldout.sum() == 60
    X, Y = models.source["image"].vectors, models.target["image"].vectors
    only_train = OrthogonalMap().fit(X[~heldout], Y[~heldout])
    np.testing.assert_allclose(mapping.rotation_, only_train.rotation_, atol=1e-10)
    expected = paired_cosine(mapping.transform(X[heldout], modality="image"), Y[heldout])
    assert mapping.scores_["held_out_cosine"] == pytest.approx(expected)


def test_pairs_are_found_by_id_whatever_the_order(models):
    order = np.random.default_rng(0).permutation(240)
    target = models.target["image"].take(order[:200])
    mapping = congruence.fit(models.source["image"], target)
    assert mapping.n_pairs_ == 200
    assert mapping.scores_["unpaired_source"] == 40
    direct = OrthogonalMap().fit(*congruence.Pairs.join(models.source["image"], target))
    np.testing.assert_allclose(mapping.rotation_, direct.rotation_, atol=1e-12)


def test_shuffled_anchors_are_noticed(models):
    source, target = models.source["image"], models.target["image"]
    order = np.random.default_rng(0).permutation(240)
    mixed = Embeddings(target.vectors[order], ids=target.ids, space=target.space)
    with pytest.warns(PairingWarning, match="do not look paired"):
        congruence.fit(source, mixed)
    with pytest.raises(errors.UnpairedError):
        congruence.fit(source, mixed, strict=True)
    assert "pairing" not in congruence.fit(source, mixed, check=False).scores_


def test_what_cannot_be_fitted(models):
    image, text, target = models.source["image"], models.target["text"], models.target["image"]
    with pytest.raises(ModalityError, match="image, text"):
        congruence.fit(image, text)
    with pytest.raises(ParameterError, match="only a rotation is shared"):
        fit(models, method="linear")
    with pytest.raises(ParameterError, match="pairs' modality"):
        congruence.fit(image, target, means={"image": (image, None)})
    with pytest.raises(ParameterError, match="Pass modality="):
        congruence.fit(Embeddings(image.vectors), Embeddings(target.vectors), means={"text": (text, None)})
    with pytest.raises(ParameterError, match="'orthogonal', 'linear', 'mlp'"):
        congruence.fit(image, target, "rotation")


def test_every_score_is_its_metric(models):
    mapping = fit(models)
    scores = evaluate(mapping, models.source, models.target, labels=models.labels)
    labels = np.array([models.labels[i] for i in models.image_ids])
    s, t = models.source, models.target
    moved = {m: mapping.for_modality(m).transform(s[m].vectors) for m in s}
    for m in s:
        row = scores.get("cosine", f"aligned {m}", f"target {m}")
        assert row.after == pytest.approx(paired_cosine(moved[m], t[m].vectors))
        assert row.before == pytest.approx(paired_cosine(s[m].vectors, t[m].vectors))
        assert row.after > 0.95 > row.before
    row = scores.get("retrieval_other", "aligned image", "target image")
    for value, rows in ((row.after, moved["image"]), (row.target, t["image"].vectors)):
        assert value == pytest.approx(class_retrieval(rows, t["image"].vectors, labels, exclude_self=True))
    names = s["text"].ids
    native = zero_shot_accuracy(t["image"].vectors, t["text"].vectors, labels, names)
    for image, text, a, b in (
        ("aligned", "target", moved["image"], t["text"].vectors),
        ("target", "aligned", t["image"].vectors, moved["text"]),
        ("aligned", "aligned", moved["image"], moved["text"]),
    ):
        row = scores.get("zero_shot", f"{image} image", f"{text} text")
        assert row.after == pytest.approx(zero_shot_accuracy(a, b, labels, names))
        assert row.target == pytest.approx(native)
        assert row.n == 240
    assert scores.get("zero_shot", "aligned image", "target text").before < 0.3
    assert scores.covered_share == {"image": pytest.approx(1), "text": pytest.approx(1)}
    metrics = [row["metric"] for row in scores.to_dict()["rows"]]
    assert metrics[0] == "retrieval"
    assert set(metrics[-4:]) == {"cosine", "distance"}  # of both modalities, after everything that ranks
    with pytest.raises(KeyError):
        scores.get("cosine", "nothing", "at all")


def test_other_ways_to_search_are_lines_of_their_own(models):
    mapping = fit(models)
    plain = evaluate(mapping, models.source, models.target, labels=models.labels)
    scores = evaluate(mapping, models.source, models.target, labels=models.labels, hubness=CSLS(5))
    assert [row for row in scores.rows if row in plain.rows] == plain.rows  # nothing of what was there changes
    labels = np.array([models.labels[i] for i in models.image_ids])
    t = {m: rows.vectors for m, rows in models.target.items()}
    moved = mapping.for_modality("image").transform(models.source["image"].vectors)
    row = scores.get("retrieval_csls", "aligned image", "target image")
    assert row.after == class_retrieval(moved, t["image"], labels, hubness=CSLS(5))
    assert row.target == class_retrieval(t["image"], t["image"], labels, hubness=CSLS(5))
    other = scores.get("retrieval_other_csls", "aligned image", "target image")
    assert other.after == class_retrieval(moved, t["image"], labels, exclude_self=True, hubness=CSLS(5))
    assert other.chance == plain.get("retrieval_other", "aligned image", "target image").chance
    row = scores.get("zero_shot_csls", "aligned image", "target text")
    assert row.after == zero_shot_accuracy(moved, t["text"], labels, models.source["text"].ids, hubness=CSLS(5))
    assert any("transductive" in note for note in scores.notes)
    one = {"text": models.source["text"].take([0])}, {"text": models.target["text"].take([0])}
    assert {row.metric for row in evaluate(mapping, *one).rows} == {"retrieval", "cosine", "distance"}
    with pytest.raises(ParameterError, match="'csls', 'qb_norm'"):
        evaluate(mapping, models.source, models.target, labels=models.labels, hubness="hubs")


def test_what_is_missing_is_left_out(models):
    mapping = fit(models)
    scores = evaluate(mapping, {"image": models.source["image"]}, {"text": models.target["text"]}, labels=models.labels)
    assert {(r.query, r.against) for r in scores.rows} == {("aligned image", "target text")}
    assert scores.rows[0].source is None
    with pytest.raises(InputError, match="nothing can be measured"):
        evaluate(mapping, {"image": models.source["image"]}, {})
    with pytest.raises(InputError, match="No source"):
        evaluate(mapping, {}, models.target)


def test_prompts_become_prototypes(models):
    text = models.source["text"]
    prompts = Embeddings(np.repeat(text.vectors, 2, axis=0), ids=[f"{i}|{k}" for i in text.ids for k in "ab"])
    classes = {i: i.split("|")[0] for i in prompts.ids}
    source = {"image": models.source["image"], "text": prompts}
    mapping = fit(models)
    named = {"labels": models.labels, "prompt_labels": {**classes, **{i: i for i in text.ids}}}
    ensembled = evaluate(mapping, source, {"text": models.target["text"]}, **named)
    unit = text.vectors / np.linalg.norm(text.vectors, axis=1, keepdims=True)  # two equal prompts average to one
    labels = np.array([models.labels[i] for i in models.image_ids])
    expected = zero_shot_accuracy(models.source["image"].vectors, unit, labels, text.ids)
    assert ensembled.get("zero_shot", "aligned image", "aligned text").source == pytest.approx(expected)
    with pytest.raises(InputError, match="No prompt has a class"):
        evaluate(mapping, source, {}, prompt_labels={"x": "y"})


def test_spaces_and_labels_are_checked(models):
    mapping = fit(models)
    swapped = {"text": models.source["image"]}
    for source, target, options, error, said in (
        (models.target, models.source, {}, SpaceMismatchError, None),
        (models.source, models.target, {"labels": {"x": "y"}}, InputError, "no label"),
        (models.source, models.target, {}, InputError, "No image's class is among the texts"),
        (swapped, models.target, {}, ModalityError, "image vectors as 'text'"),
    ):
        with pytest.raises(error, match=said):
            evaluate(mapping, source, target, **options)


def test_other_widths_have_no_before(models):
    wide = {m: Embeddings(np.hstack([e.vectors, np.zeros((len(e), 5))]), ids=e.ids) for m, e in models.target.items()}
    mapping = congruence.fit(models.source["image"], wide["image"], modality="image")
    scores = evaluate(mapping, models.source, wide, labels=models.labels)
    assert all(row.before is None for row in scores.rows)
    assert scores.get("cosine", "aligned image", "target image").after > 0.95


@pytest.fixture
def repeated():
    rng = np.random.default_rng(0)
    X = np.repeat(rng.normal(size=(60, 8)), 2, axis=0)
    Y = X @ np.linalg.qr(rng.normal(size=(8, 8)))[0] + 0.1 * rng.normal(size=(120, 8))
    return X, Y


def test_fit_holds_out_copies_together(repeated):
    ids = [f"caption {i}" for i in range(120)]
    sides = [Embeddings(rows, ids=ids) for rows in repeated]
    with pytest.warns(errors.DuplicateWarning, match="120 of 120 rows"):
        mapping = congruence.fit(*sides, holdout=30, check=False)
    heldout = Split.from_dict(mapping.scores_["holdout"]).held_out(np.array(ids))
    assert heldout.sum() == 30
    assert np.array_equal(heldout[::2], heldout[1::2])
    assert (mapping.scores_["identical_rows"], mapping.scores_["identical_groups"]) == (120, 60)
    congruence.fit(*sides, check=False)  # nothing is divided, and nothing said
    # A column of labels stands in for the vectors, in the order of the source; None divides row by row, silently.
    order = np.random.default_rng(1).permutation(120)
    labels = np.arange(120) // 4
    mapping = congruence.fit(sides[0].take(order), sides[1], holdout=0.25, groups=labels[order], check=False)
    heldout = Split.from_dict(mapping.scores_["holdout"]).held_out(np.array(ids)).reshape(30, 4)
    assert np.array_equal(heldout.all(axis=1), heldout.any(axis=1))
    alone = congruence.fit(*sides, holdout=30, groups=None, check=False)
    heldout = Split.from_dict(alone.scores_["holdout"]).held_out(np.array(ids))
    assert not np.array_equal(heldout[::2], heldout[1::2])


def test_folds_and_early_stopping_see_no_copies(repeated, monkeypatch):
    X, Y = repeated
    kept = []
    of = shrinkage.CrossMoments.of
    monkeypatch.setattr(shrinkage.CrossMoments, "of", lambda A, *rest: kept.append(A) or of(A, *rest))
    OrthogonalMap(shrinkage="cv").fit(X, Y)
    folds = [rows for rows in kept if len(rows) < 120]
    assert len(folds) == 5
    for rows in folds:
        assert (np.unique(rows, axis=0, return_counts=True)[1] == 2).all()
    groups = np.arange(120) // 2
    heldout = MLPMap(validation_share=0.2)._hold_out(groups)
    assert heldout.sum() == 24
    assert np.array_equal(heldout[::2], heldout[1::2])
