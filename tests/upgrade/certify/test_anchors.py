"""Anchors are drawn from the rows that both models have, however few of the store's these are."""

import numpy as np
import pytest

from congruence import Embeddings
from congruence.errors import IdError, ParameterError
from congruence.upgrade.certify import split_anchors
from congruence.upgrade.certify.design import split_texts


def embed(n, first=0, d=8, prefix="item", seed=0):
    rows = np.random.default_rng(seed).standard_normal((n, d)).astype(np.float32)
    return Embeddings(rows, ids=[f"{prefix} {i}" for i in range(first, first + n)])


def test_a_few_re_encoded_items_of_a_large_store_are_all_that_is_drawn_from():
    source = {"image": embed(20_000)}
    target = {"image": embed(20_000).take(np.arange(0, 20_000, 200))}
    anchors, queries = split_anchors(source, target, 50)
    for side in (*anchors, *queries):
        assert len(side["image"]) == 50
    assert set(anchors[0]["image"].ids) == set(anchors[1]["image"].ids)
    assert not set(anchors[0]["image"].ids) & set(queries[0]["image"].ids)
    with pytest.raises(ParameterError, match="anchors=100 of 100 common items"):
        split_anchors(source, target, 100)


def test_a_list_of_ids_says_which_items_are_anchors():
    source, target = {"image": embed(60)}, {"image": embed(40)}
    chosen = [f"item {i}" for i in range(50, 9, -1)]  # of which 10 … 39 are known to both
    anchors, queries = split_anchors(source, target, chosen)
    assert sorted(anchors[1]["image"].ids) == sorted(f"item {i}" for i in range(10, 40))
    assert sorted(queries[0]["image"].ids) == sorted(f"item {i}" for i in range(10))
    with pytest.raises(ParameterError, match="none left to score"):
        split_anchors(source, target, [f"item {i}" for i in range(40)])
    with pytest.raises(IdError, match="None of .* anchors is among the 40"):
        split_anchors(source, target, ["a", "b"])


def test_captions_must_be_known_too():
    source = {"image": embed(300), "text": embed(300, first=100)}
    target = {"image": embed(250), "text": embed(300, first=50)}  # in common: 100 … 249
    anchors, queries = split_anchors(source, target, 90)
    for part, n in ((anchors, 90), (queries, 60)):
        assert {len(side[m]) for side in part for m in ("image", "text")} == {n}

    # A target without images is split by captions.
    anchors, queries = split_anchors({"image": embed(100), "text": embed(100)}, {"text": embed(40)}, 30)
    assert (len(anchors[0]["image"]), len(queries[0]["image"]), len(queries[1]["text"])) == (30, 10, 10)


def test_texts_of_classes_and_of_other_items_belong_to_both_parts():
    for texts, by_class in ((embed(5, prefix="class"), True), (embed(30, prefix="query"), False)):
        sides = {"image": embed(100), "text": texts}
        anchors, queries = split_anchors(sides, sides, 60, by_class=by_class)
        for part in (anchors, queries):
            assert len(part[1]["text"]) == len(texts)
        assert len(queries[0]["image"]) == 40


def test_rows_without_ids_pair_by_position():
    plain = Embeddings(embed(50).vectors)
    anchors, queries = split_anchors({"image": plain}, {"image": plain}, 30)
    assert len(anchors[0]["image"]) == len(anchors[1]["image"]) == 30
    assert not set(anchors[0]["image"].ids) & set(queries[0]["image"].ids)


def test_texts_are_captions_or_queries():
    images, captions, queries = embed(50), embed(50), embed(20, prefix="query")
    kept = split_texts({"image": images, "text": captions}, {"image": images, "text": captions})
    assert kept[2] is None
    assert "text" in kept[0]
    source, target, texts = split_texts({"image": images, "text": queries}, {"image": images, "text": queries})
    assert set(source) == set(target) == {"image"}
    assert len(texts[1]) == 20
    plain = [Embeddings(rows.vectors) for rows in (images, queries)]
    sides = dict(zip(("image", "text"), plain, strict=True))
    assert split_texts(sides, sides)[2] is not None  # row 3 of twenty texts is not the caption of image 3


def test_what_cannot_be_split_is_refused_with_a_number_that_can_be():
    sides, one = {"image": embed(40)}, {"image": embed(1)}
    for anchors in (0, -3, 40):
        with pytest.raises(ParameterError, match=r"at least 1, and some left to score. Pass anchors=20"):
            split_anchors(sides, sides, anchors)
    with pytest.raises(ParameterError, match="Both models have 1 items") as caught:
        split_anchors(one, one, 10)
    assert "anchors=" not in str(caught.value)
    with pytest.raises(IdError, match="no id in common"):
        split_anchors(sides, {"image": embed(50, prefix="other")}, 10)
