"""What may be given, and which queries and which map the scores are of."""

import json

import numpy as np
import pytest
from certify_data import sides

import congruence
from congruence import Bridge, Embeddings
from congruence.errors import IdError, InputError
from congruence.report import render_certificate
from congruence.synthetic import upgrade_problem
from congruence.upgrade.certify import certify
from congruence.upgrade.certify.design import Design
from congruence.upgrade.certify.recipe import MapRecipe

QUICK = {"method": "orthogonal"}


@pytest.fixture(scope="module")
def p():
    return upgrade_problem(300, 16, source_noise=0.8, target_noise=0.5, random_state=0, classes=8)


def classes(p, n):
    """Images and one text a class in both models, and the labels."""
    both = sides(p, slice(0, n), ("image",))
    for side, texts in zip(both, (p.source_texts, p.target_texts), strict=True):
        rows = np.stack([texts[p.labels == k].mean(axis=0) for k in range(8)])
        side["text"] = Embeddings(rows, ids=[f"c{k}" for k in range(8)])
    return both, {str(i): f"c{p.labels[i]}" for i in range(n)}


@pytest.mark.parametrize("paired", [True, False])
def test_texts_of_the_new_model_alone_are_enough(p, paired):
    source, target = sides(p, slice(0, 100), ("image",))
    rows = slice(0, 100) if paired else slice(200, 250)
    texts = Embeddings(
        p.target_texts[rows], ids=[str(i) if paired else f"q{i}" for i in range(100)[: 50 + 50 * paired]]
    )
    found = certify(source, {**target, "text": texts}, **QUICK)
    task = "recall@1" if paired else "graded_text_overlap@10"
    assert found.task == task
    assert {"leave", "stored"} <= set(found.strategies[task]) <= {"leave", "stored", "re-embed"}
    assert any("queries of the old model are not given" in note for note in found.notes)


def test_judged_queries_are_scored_by_what_they_find(p):
    images = [
        {"image": Embeddings(X[:100], ids=[f"d{i}" for i in range(100)])} for X in (p.source_images, p.target_images)
    ]
    names = [f"q{i}" for i in range(60)]
    texts = [Embeddings(X[:60], ids=names) for X in (p.source_texts, p.target_texts)]
    qrels = {f"q{i}": {f"d{i}": 1, f"d{i + 1}": 0} for i in range(50)}
    found = certify(*images, text_queries=tuple(texts), qrels=qrels, **QUICK)
    assert found.strategies["recall@1"]["stored"].n == 50  # the others are not judged
    own = p.target_texts[:50] @ p.target_images[:100].T
    assert found.strategies["recall@1"]["re-embed"].value == pytest.approx((own.argmax(axis=1) == np.arange(50)).mean())
    assert all(one["judged"] and one["query"] in names for one in found.examples)
    assert f">{found.examples[0]['query']}" in render_certificate(found)
    with pytest.raises(IdError, match="No judged query"):
        certify(*images, text_queries=tuple(texts), qrels={"x": {"d0": 1}}, **QUICK)
    with pytest.raises(InputError, match="without queries"):
        certify(*images, qrels=qrels, **QUICK)


@pytest.mark.long
def test_arrays_do_not_collide_and_rows_without_a_partner_are_counted(p):
    old, new = p.source_images, p.target_images
    found = certify(old[:100], new[:100], labels=p.labels[:100], **QUICK)
    assert found.task == "same_class@1"
    assert certify(old[:100], new[:100], queries=(old[100:], new[100:]), **QUICK).n_queries == 200
    with pytest.raises(InputError, match="have the vectors of pairs"):
        certify(old[:100], new[:100], queries=(old[:80], new[:80]), **QUICK)
    apart = [Embeddings(X[k : k + 60], ids=range(k, k + 60)) for X, k in ((old, 0), (new, 20))]
    joined = certify(*apart, **QUICK)
    assert joined.n_anchors == 40
    assert "40 of 120 rows" in joined.notes[0]


def test_no_query_is_scored_by_means_that_include_it(p):
    both, labels = classes(p, 120)
    design = Design.of(*both, None, None, labels, None, None, "orthogonal", 10, None, 0)
    recipe = MapRecipe(design.fitted, "orthogonal")
    model = recipe.fit(design.anchors, np.arange(120), None, design.others)
    own = both[1]["text"].vectors
    for part in np.unique(design.items.query_fold):
        kept = design.items.query_fold != part
        mean = model.without(int(part)).forward.for_modality("text").target_mean_
        np.testing.assert_allclose(mean, own[kept].mean(axis=0), atol=1e-12)
    unseen, seen = (certify(*both, labels=labels, seen=known, **QUICK) for known in (False, True))
    assert (unseen.measured["queries_are"], seen.measured["queries_are"]) == ("unseen", "seen")
    assert unseen.measured["digest"] == seen.measured["digest"]
    assert any("seen queries" in note for note in seen.notes)
    np.testing.assert_array_equal(*(one.fit().rotation_ for one in (unseen, seen)))  # the same map is saved


@pytest.mark.long
def test_the_maps_that_are_kept_are_those_that_were_measured(p, here, tmp_path):
    texts = [Embeddings(X[200:260]) for X in (p.source_texts, p.target_texts)]
    images = [{"image": X[:120]} for X in (p.source_images, p.target_images)]
    held = [{"image": X[120:200]} for X in (p.source_images, p.target_images)]
    found = certify(*images, queries=tuple(held), text_queries=tuple(texts), **QUICK)
    back = Bridge(found.fit_queries(), modality="text").transform(texts[1].vectors)
    store = found.fit().transform(p.source_images[120:200], modality="image")
    judge = texts[1].vectors @ p.target_images[120:200].T
    right = np.argsort(-judge, axis=1)[:, :10]
    for strategy, queries, rows in (("stored", texts[1].vectors, store), ("queries", back, p.source_images[120:200])):
        mine = np.argsort(-(queries @ rows.T), axis=1)[:, :10]
        overlap = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(mine, right, strict=True)])
        # The measured one leaves out a fold of the texts from the means.
        assert found.strategies["text_overlap@10"][strategy].value == pytest.approx(overlap, abs=0.04)
    for name, X in (("old", p.source_images), ("new", p.target_images)):
        np.save(tmp_path / f"{name}.npy", X[:120])
    data = json.loads(here("check", "old.npy", "new.npy", "--set", "tie=0", "--set", "retention=.1", "--json").out)
    if "queries" in (data["verdict"]["action"], *data["verdict"]["between"]):
        kept = congruence.load(tmp_path / "checked/back")
        again = certify(p.source_images[:120], p.target_images[:120]).fit_queries()
        np.testing.assert_allclose(kept.transform(p.target_images), again.transform(p.target_images))


def test_an_undecided_verdict_says_what_decides_and_promises_no_more_than_twice_the_anchors(p):
    for n in (40, 160):
        verdict = certify(*sides(p, slice(0, n)), **QUICK).verdict
        if verdict.settled:
            assert verdict.confidence[verdict.action] >= 0.9
            continue
        assert max(verdict.confidence.values()) < 0.9 or verdict.confidence[verdict.between[0]] < 0.9
        assert len(verdict.between) >= 2
        assert "What decides it is whether" in verdict.reason
        assert "lists after mapping, " not in verdict.reason  # of two ways to map, the one that decides is named
        assert verdict.more is None or 0 < verdict.more <= n


def test_the_command_prints_in_how_many_directions_the_pairs_vary(p, here, tmp_path):
    found = []
    for kinds in (3, 60):  # the same items, with those of few kinds nearly alike
        for name, X in (("old", p.source_images), ("new", p.target_images)):
            rows = X[np.arange(60) % kinds] + 0.05 * X[:60]
            np.save(tmp_path / f"{name}.npy", rows / np.linalg.norm(rows, axis=1, keepdims=True))
        said = here("check", "old.npy", "new.npy", "--modality", "image", "-o", "checked", "--force").ends(0).out
        (line,) = [line for line in said.splitlines() if line.startswith("The image pairs vary in about")]
        found.append(int(line.split()[6]))
        kept = json.loads((tmp_path / "checked" / "certificate.json").read_text())
        assert found[-1] == round(kept["distinct"]["image"])
    assert found[0] < 4 < found[1]
