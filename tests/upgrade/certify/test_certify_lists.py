"""What a certificate says of lists after some encodings for a query, against a ``LazySearch`` of the same store."""

import numpy as np
import pytest
from test_certify_mixed import problem

from congruence import Embeddings, LazySearch
from congruence.report import render_certificate
from congruence.upgrade.certify import certify

N, QUERIES = 300, 60


@pytest.fixture(scope="module")
def world():
    p = problem(2 * N + QUERIES, spread=0.8)
    anchors, store = slice(0, N), slice(N, 2 * N)
    names = [f"item {k}" for k in range(N)]
    old, new = (Embeddings(side[anchors]) for side in (p.source_images, p.target_images))
    held = tuple(Embeddings(side[store], ids=names) for side in (p.source_images, p.target_images))
    return old, new, held, p.target_texts[2 * N :]


@pytest.fixture(scope="module")
def certificate(world):
    old, new, held, texts = world
    facts = {"rows": 10_000, "encode_rate": 5.0, "price": 0.01, "log": 100}
    return certify(
        old, new, "orthogonal", modality="image", queries=held, text_queries=(None, texts), seen=True, **facts
    )


def test_the_lists_are_those_of_a_lazy_search(certificate, world):
    _, _, (old, new), texts = world
    told = {one["encodings"]: one["score"] for one in certificate.lists["by_encodings"]}
    assert certificate.lists["measure"] == "text_overlap@10"
    assert [*told] == [0, 20, 50, 100]
    mapping = certificate.fit()
    true = np.argsort(-(texts @ new.vectors.T), axis=1)[:, :10]
    for encodings in (0, 50):
        score, found = told[encodings], []
        for query in texts:  # each with nothing re-embedded before
            rows = lambda ids: new.take(ids).vectors  # noqa: E731
            search = LazySearch(old, mapping, rows, max(encodings, 1), check=False, modality="image")
            search.limit = encodings
            found.append(search.search(query).ids)
        right = [np.isin(new.ids[a], b).mean() for a, b in zip(true, found, strict=True)]
        assert score.value == pytest.approx(np.mean(right), abs=0.03)
        assert score.low <= np.mean(right) <= score.high
    values = [score.value for score in told.values()]
    assert values == sorted(values)
    assert values[0] == pytest.approx(certificate.strategies["text_overlap@10"]["stored"].value, abs=1e-6)
    assert values[2] > values[0] + 0.1


def test_what_a_log_costs(certificate):
    table = {one["encodings"]: one for one in certificate.lists["by_encodings"]}
    assert table[0]["items"] == 0
    assert table[100]["items"] <= 100 * 100
    for one in table.values():
        assert one["minutes"] == pytest.approx(one["items"] / 5 / 60)
        assert one["price"] == pytest.approx(one["items"] * 0.01)
    assert certificate.to_dict()["lists"]["by_encodings"][1]["score"]["n"] == QUERIES
    page = render_certificate(certificate)
    assert "50 encodings for a query" in page
    assert f"{table[50]['items']:,} items for" in page


@pytest.mark.long
def test_anchors_among_themselves_tell_nearly_the_same(certificate, world):
    old, new, _, texts = world
    own = certify(old, new, "orthogonal", modality="image", text_queries=(None, texts), seen=True)
    for ours, theirs in zip(own.lists["by_encodings"], certificate.lists["by_encodings"], strict=True):
        assert ours["score"].value == pytest.approx(theirs["score"].value, abs=0.08)
    assert own.lists["by_encodings"][1]["items"] == 1000 * 20  # at most, in a store of unknown size


@pytest.mark.long
def test_a_store_of_few_items_or_one_searched_with_a_correction_has_none(world):
    old, new, _, texts = world
    few = {"text_queries": (None, texts), "modality": "image", "seen": True}
    assert certify(old.vectors[:30], new.vectors[:30], "orthogonal", **few).lists == {}
    assert certify(old.vectors[:60], new.vectors[:60], "orthogonal", hubness="csls", **few).lists == {}
