"""Certificates of models whose relation is known."""

import json

import numpy as np
import pytest
from certify_data import sides, tables

from congruence import Embeddings, Space, errors
from congruence.embeddings import normalize_rows
from congruence.errors import IdError, InputError, ModalityError, ParameterError
from congruence.metrics import HUBNESS, recall_at_k
from congruence.synthetic import upgrade_problem
from congruence.upgrade.certify import EXIT_CODES, STRATEGIES, Criteria, certify
from congruence.upgrade.certify.design import EvaluationSet
from congruence.upgrade.certify.recipe import MapRecipe
from congruence.upgrade.certify.scoring import score_heldout

#: Which map it is is the subject of test_which_map.py.
QUICK = {"method": "orthogonal"}


def embed(rows, ids=None, **space):
    return Embeddings(np.asarray(rows), ids=ids, space=Space(**space))


@pytest.mark.long
def test_bounds_that_say_nothing_are_left_out():
    """Of models that are a rotation of each other, the theorems say something; of noisy ones, they do not."""
    exact, noisy = (
        {e["theorem"] for e in certify(*sides(rigid), **QUICK).theory}
        for rigid in (problem(source_noise=1e-6, target_noise=1e-6, decay=0.0, d=8), problem())
    )
    assert {"Thm C.21", "Thm C.25", "Thm C.28"} <= exact
    assert not {"Thm C.21", "Thm C.25", "Thm C.28", "Thm C.16"} & noisy


def problem(n=150, d=32, **facts):
    return upgrade_problem(
        n, d, **{"source_noise": 1.0, "target_noise": 0.5, "shared": 1.0, "decay": 0.2, "random_state": 0, **facts}
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("facts", "thresholds", "action"),
    [
        ({"shared": 1.0, "source_noise": 1.0, "target_noise": 0.9}, {"retention": 0.8}, "map"),
        ({"target_noise": 1.6}, {}, "keep"),
        ({"target_noise": 0.3, "shared": 0.0, "source_noise": 1.3}, {}, "re-embed"),
        ({"d_target": 16, "target_noise": 0.9}, {"retention": 0.8, "must_move": True}, "queries"),
        ({"mispaired": 1.0}, {}, "undecided"),
    ],
)
def test_verdicts_on_known_relations(facts, thresholds, action):
    certificate = certify(*sides(problem(300, **facts)), thresholds=Criteria(**thresholds), **QUICK)
    likeliest = (certificate.verdict.between or [certificate.verdict.action])[0]
    assert (certificate.verdict.action if action == "undecided" else likeliest) == action, certificate.verdict
    assert certificate.verdict.reason
    assert certificate.facts["modality"] == "image"
    if facts != {"mispaired": 1.0}:
        assert sum(certificate.verdict.confidence.values()) == pytest.approx(1)


@pytest.mark.long
def test_few_anchors_of_a_true_rotation_are_mapped_with_more():
    p = problem(n=700, d=64, decay=0.0, target_noise=0.9)
    options = {"queries": sides(p, slice(300, None)), "thresholds": Criteria(retention=0.93, must_move=True), **QUICK}
    few = certify(*sides(p, slice(0, 24)), **options)
    assert few.verdict.action != "map", few.verdict
    assert few.verdict.more is None or 0 < few.verdict.more <= 24
    assert certify(*sides(p, slice(0, 300)), **options).verdict.action == "map"


@pytest.mark.long
def test_estimates_are_near_what_other_items_show():
    p = problem(n=2300, source_noise=1.0, target_noise=0.7, shared=0.5)
    certificate = certify(*sides(p, slice(0, 300)), **QUICK)
    own = np.arange(300)
    mapping = MapRecipe(certificate.fitted, random_state=0).fit(tables(p, own), own)
    others = [EvaluationSet(tables(p, own + k, what="queries")) for k in range(300, 2100, 300)]
    found = [score_heldout(mapping, other).scores for other in others]
    for way, estimate in certificate.strategies["recall@1"].items():
        truth = np.mean([scores[f"recall@1/{way}"].mean() for scores in found])
        assert estimate.low - 0.03 <= truth <= estimate.high + 0.03, way


def test_no_cosine_stands_without_its_controls():
    p = problem(n=200, source_noise=0.5)
    certificate = certify(*sides(p), **QUICK)
    for name, cosine in certificate.cosines.items():
        target = p.target_images if name == "image" else p.target_texts
        mean = target.mean(axis=0)
        known = certificate.controls[f"cosine/{name}"]
        assert known["constant"] == pytest.approx(np.mean(target @ mean) / np.linalg.norm(mean), abs=0.02)
        assert known["random_rotation"] < cosine.value - 0.1


@pytest.mark.parametrize("how", [{"hubness": "csls"}, pytest.param({"hubness": "qb_norm"}, marks=pytest.mark.long)])
def test_the_way_to_search_is_that_of_the_retrieval_measures(how):
    p = problem(200, 24, source_noise=1.5, target_noise=1.5, shared=0.5)
    anchors, queries = sides(p, slice(0, 60)), sides(p, slice(60, 200))
    found = certify(*anchors, queries=queries, **how, **QUICK)
    assert (found.n_anchors, found.n_queries, found.strategies["recall@1"]["keep"].n) == (60, 140, 140)
    assert set(found.covered) == {"image", "text"}
    texts, images = queries[1]["text"].vectors, found.fit().transform(queries[0]["image"].vectors, "image")
    for k in (1, 10):
        expected = recall_at_k(texts, images, range(140), k, **how)
        assert found.strategies[f"recall@{k}"]["stored"].value == pytest.approx(expected)
        own = recall_at_k(texts, queries[1]["image"].vectors, range(140), k, **how)
        assert found.strategies[f"recall@{k}"]["re-embed"].value == pytest.approx(own)
    plain = certify(*anchors, queries=queries, **QUICK)
    changed = [name for name in plain.strategies if name.startswith("recall@")]
    assert any(plain.strategies[name] != found.strategies[name] for name in changed)
    for name in ("overlap@10", "text_overlap@10"):
        assert found.strategies[name]["stored"].value != plain.strategies[name]["stored"].value
        assert 0 <= found.strategies[name]["stored"].value <= 1
    assert len(found.notes) == len(plain.notes) + len(how)
    # The queries' own lists over the mapped store, by hand.
    stores = images, queries[1]["image"].vectors
    lists = [np.argsort(-_searched(texts, store, **how), axis=1)[:, :10] for store in stores]
    overlap = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(*lists, strict=True)])
    assert found.strategies["text_overlap@10"]["stored"].value == pytest.approx(overlap, abs=1e-3)


def _searched(queries, store, hubness):
    near = normalize_rows(queries) @ normalize_rows(store).T
    return HUBNESS[hubness]().of_matrix(near).correct(near)


def test_queries_the_anchors_never_covered_are_noticed():
    p = problem(300, d=64, decay=0.0)
    basis = np.linalg.svd(p.source_images[:200], full_matrices=False)[2][:20]
    flat = {m: embed(rows.vectors @ basis.T @ basis, rows.ids) for m, rows in sides(p, slice(0, 200))[0].items()}
    target = {m: embed(rows.vectors @ p.rotation, rows.ids) for m, rows in flat.items()}
    certificate = certify(flat, target, queries=sides(p, slice(200, None)), **QUICK)
    assert certificate.covered["image"] < 0.6


@pytest.mark.long
def test_labels_turn_texts_into_classes():
    p = problem(classes=8)
    names = [f"class {k}" for k in range(8)]
    own = [p.labels == k for k in range(8)]
    prompts = [embed([texts[rows].mean(0) for rows in own], names) for texts in (p.source_texts, p.target_texts)]
    both = [side | {"text": texts} for side, texts in zip(sides(p, modalities=("image",)), prompts, strict=True)]
    labels = {str(i): f"class {k}" for i, k in enumerate(p.labels)}
    certificate = certify(*both, labels=labels, **QUICK)
    assert certificate.task == "zero_shot"
    assert certificate.fitted == ["image"]
    assert set(certificate.strategies["zero_shot"]) == set(STRATEGIES)
    assert set(certificate.strategies["recall@1"]) == set(STRATEGIES)  # lists beside classes
    assert certificate.strategies["zero_shot@5"]["keep"].value >= certificate.strategies["zero_shot"]["keep"].value
    on_text = certify(*both, labels=labels, fitted="image", random_state=1, **QUICK)
    assert on_text.strategies["zero_shot"]["keep"] != certificate.strategies["zero_shot"]["re-embed"]
    few = [side | {"text": side["text"].take(np.arange(5))} for side in both]
    with pytest.raises(errors.TooFewAnchorsError, match="5 pairs"):
        certify(*few, labels=dict.fromkeys(labels, "class 0"), fitted="text", **QUICK)
    with pytest.raises(IdError, match="have no label"):
        certify(*both, labels={"0": "class 0"}, **QUICK)
    with pytest.raises(IdError, match="No text has the id of these labels"):
        certify(*both, labels={k: v + "?" for k, v in labels.items()}, **QUICK)


def test_one_modality_alone():
    p = problem()
    certificate = certify(*sides(p, modalities=("text",)), **QUICK)
    assert certificate.task == "graded_overlap@10"
    assert set(certificate.strategies["own@1"]) == {"leave", "stored", "queries"}
    assert set(certificate.strategies["overlap@10"]) == {"keep", "leave", "stored", "queries"}
    assert any("neither captions nor labels" in note for note in certificate.notes)
    labels = {str(i): str(k) for i, k in enumerate(p.labels)}
    certificate = certify(*sides(p, modalities=("image",)), labels=labels, **QUICK)
    assert certificate.task == "same_class@1"
    assert set(certificate.strategies["same_class@1"]) == set(STRATEGIES)
    assert repr(certificate).startswith(f"Certificate: {certificate.verdict.headline}"[:60])


def test_a_target_without_images_says_nothing_of_re_embedding():
    source, target = sides(problem())
    certificate = certify(source, {"text": target["text"]}, **QUICK)
    assert "re-embed" not in certificate.strategies["recall@1"]
    assert set(certificate.retention) == {"leave/keep", "stored/keep", "queries/keep"}
    assert {certificate.verdict.action} <= {"map", "queries", "leave", "keep", "undecided"}
    assert any("unknown" in note for note in certificate.notes)
    with pytest.raises(InputError, match="has no text rows"):
        certify(source, {"image": target["image"]}, **QUICK)


def test_a_certificate_is_plain_data_and_repeats():
    p = problem(n=80)
    one, two = (certify(*sides(p), **QUICK) for _ in range(2))
    assert json.dumps(one.to_dict()) == json.dumps(two.to_dict())
    assert one.verdict.action in EXIT_CODES
    assert json.loads(json.dumps(one.to_dict()))["verdict"]["action"] == one.verdict.action


@pytest.mark.long
def test_float16_and_rows_in_another_order_change_nothing_much():
    p = problem(n=100)
    source, target = sides(p)
    mixed = np.random.default_rng(0).permutation(100)
    shuffled = {m: e.take(mixed) for m, e in target.items()}
    half = {m: embed(e.vectors.astype(np.float16), e.ids.tolist()) for m, e in source.items()}
    a, b = certify(source, target, **QUICK), certify(half, shuffled, **QUICK)
    assert a.cosines["image"].value == pytest.approx(b.cosines["image"].value, abs=2e-3)


BAD = {"n_neighbors": 0, "fitted": "audio", "theory": "long", "rows": 0}


def test_bad_input():
    p = problem(n=60)
    source, target = sides(p)
    images = [{"image": side["image"]} for side in (source, target)]
    broken, short = p.source_images.copy(), embed(p.source_texts[:, :5], source["text"].ids)
    broken[3] = np.nan
    names = [f"x{i}" for i in range(60)]
    for old, new, options, error, said in (
        ({}, target, {}, InputError, "in the old model and"),
        (images[0], {"text": target["text"]}, {}, InputError, "in the old model and"),
        (*sides(p, slice(0, 9)), {}, errors.TooFewAnchorsError, "Too few: both models have 9 pairs"),
        ({"image": broken}, images[1], {}, errors.NotFiniteError, None),
        (images[0], {"image": embed(p.target_images, names)}, {}, IdError, None),
        ({"image": embed(p.source_images, modality="text")}, images[1], {}, ModalityError, "text vectors as image"),
        (
            {"image": embed(p.source_images, model="a"), "text": embed(p.source_texts, model="b")},
            {"image": embed(p.target_images), "text": embed(p.target_texts)},
            {}, errors.SpaceMismatchError, "of the old model holds",
        ),
        (source | {"text": short}, target, {}, errors.SpaceMismatchError, "5 components"),
        (source, target, {"queries": (source, target)}, InputError, "are pairs too"),
        (source, target, {"queries": images}, ModalityError, "unlike the pairs"),
        (*images, {"queries": [{"image": embed(np.eye(2, 32), ["x", "y"])}] * 2}, InputError, "2 held-out items"),
        *((source, target, {name: value}, ParameterError, None) for name, value in BAD.items()),
        (*images, {"fitted": "both"}, ModalityError, "both"),
    ):  # fmt: skip
        with pytest.raises(error, match=said):
            certify(old, new, **options)


def test_folds_may_have_no_stored_rows():
    """Descriptions of many classes are fitted on, of which few have stored rows."""
    rng = np.random.default_rng(0)
    images, texts = rng.standard_normal((2, 40, 12))
    turn = np.linalg.qr(rng.standard_normal((12, 12)))[0]
    labels = {str(row): str(row % 3) for row in range(40)}
    found = certify(
        {"image": images, "text": texts}, {"image": images @ turn, "text": texts @ turn}, labels=labels, fitted="text"
    )
    assert found.cosines["image"].value > 0.99
