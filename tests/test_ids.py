import datetime
import tracemalloc
import uuid

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import congruence
from congruence import Embeddings, Pairs
from congruence._utils.ids import MAX_ID_BYTES, as_ids, id_rows, id_texts, is_in, same_ids
from congruence.errors import IdError
from congruence.splits import Split

RNG = np.random.default_rng(0)
LONGEST = "x" * MAX_ID_BYTES
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)


def made(ids, width=3):
    return Embeddings(np.random.default_rng(len(ids)).standard_normal((len(ids), width)), ids=ids)


@pytest.mark.parametrize(
    ("given", "dtype", "kept"),
    [
        ([3, 1, 2], np.int64, [3, 1, 2]),
        (range(3), np.int64, [0, 1, 2]),
        (np.array([3, 1], np.uint8), np.int64, [3, 1]),
        (np.array([2**64 - 1, 0], np.uint64), np.uint64, [2**64 - 1, 0]),
        ([2**64 - 1, 0], np.uint64, [2**64 - 1, 0]),
        ([2**64 - 1, -1], object, [str(2**64 - 1), "-1"]),
        ([10**30, 7], object, ["1" + "0" * 30, "7"]),
        (["a", "a\0", "a\0\0"], object, ["a", "a\0", "a\0\0"]),
        (["07", 7], object, ["07", "7"]),
        ([b"\xc3\xa9", "e"], object, ["é", "e"]),
        (np.array([b"\xc3\xa9", b"e"]), object, ["é", "e"]),
        (np.array(["a", "bcd"]), object, ["a", "bcd"]),
        (np.array(["2020-01-01", "2020-01-02"], "M8[D]"), object, ["2020-01-01", "2020-01-02"]),
        ([datetime.date(2020, 1, 1), uuid.UUID(int=1)], object, ["2020-01-01", str(uuid.UUID(int=1))]),
        (pd.Series([5, 6]), np.int64, [5, 6]),
        (pd.Series([5, 6], dtype="Int64"), np.int64, [5, 6]),
        (pd.Series(["a", "b"], dtype="string"), object, ["a", "b"]),
        (pd.Series(["a", "b"], dtype="category"), object, ["a", "b"]),
        (pa.array([5, 6], pa.int32()), np.int64, [5, 6]),
        (pa.chunked_array([["a"], ["b"]]), object, ["a", "b"]),
        ([LONGEST, "nan", "None"], object, [LONGEST, "nan", "None"]),
    ],
)
def test_ids_are_whole_numbers_or_texts(given, dtype, kept):
    ids = as_ids(given)
    assert ids.dtype == dtype
    assert ids.tolist() == kept
    assert made(given).ids.tolist() == kept


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["a", None, "b", ""], r"missing in 2 rows \(1, 3\)"),
        ([1, None], r"missing in 1 row \(1\)"),
        ([1.0, float("nan")], r"missing in 1 row \(1\)"),
        (np.array([1.0, np.nan, np.nan]), r"missing in 2 rows \(1, 2\) \(pandas then converts"),
        (np.array(["2020-01-01", "NaT"], "M8[D]"), r"missing in 1 row \(1\)"),
        (pd.Series(["a", pd.NA], dtype="string"), r"missing in 1 row \(1\)"),
        (pd.Series([1, pd.NA], dtype="Int64"), r"missing in 1 row \(1\)"),
        ([pd.NaT, "a"], r"missing in 1 row \(0\)"),
        (pd.Series(["a", None], dtype="category"), r"missing in 1 row \(1\)"),
        (pa.array([1, None]), r"missing in 1 row \(1\)"),
        (np.ma.array([1, 2, 3], mask=[False, True, False]), r"missing in 1 row \(1\)"),
        ([""], r"missing in 1 row \(0\)"),
        ([1.0, 2.0], r"row 0 is 1.0, float \(pandas converts whole numbers to floats if some are missing\)"),
        (np.array([1.0, 2.0], np.float32), "row 0 is 1.0, float"),
        ([True, False], "row 0 is True, bool"),
        (np.array([True, False]), "row 0 is True, bool"),
        ([1, True], "row 1 is True, bool"),
        ([object()], "row 0 is <object"),
        ([b"\xff"], "row 0 is b'.xff'.*expected text in UTF-8"),
        (["a", "\ud800"], "row 1 is '.ud800', which contains half a character"),
        (["a", LONGEST + "x"], r"65,537 bytes in UTF-8 \(row 1 of ids\); expected at most 65,536"),
        (["é" * (MAX_ID_BYTES // 2 + 1)], "65,538 bytes"),
        (["a\0", "a", "a"], "1 duplicate ids .'a'."),
        ([7, "7"], "1 duplicate ids .'7'."),
        ([7, 7], "1 duplicate ids .'7'."),
        ([["a"], ["b"]], r"shape \(2, 1\)"),
        ([[["a"], ["b", "c"]], "d"], r"shape \(2, '…'\)"),
        ([1 << 20_000], "of 20,001 bits"),
    ],
)
def test_what_cannot_be_an_id_is_refused(given, words):
    with pytest.raises(IdError, match=words):
        as_ids(given)


def test_a_long_id_is_shortened_in_messages_and_displays():
    long = ["y" * 60_000, "b"]
    assert len(repr(made(long))) < 400
    with pytest.raises(IdError) as caught:
        Pairs.join(made(long), made(["c", "d"]))
    assert len(str(caught.value)) < 500


def test_a_number_is_the_text_of_its_digits():
    numbers, texts = made([7, 8, 10, 11]), made(["10", "07", "7", "11\0"])
    pairs = Pairs.join(numbers, texts)
    assert pairs.source.ids.tolist() == [7, 10]
    assert pairs.target.ids.tolist() == ["7", "10"]
    assert pairs.only_target.tolist() == ["07", "11\0"]
    assert Pairs.join(texts, numbers).ids.tolist() == ["10", "7"]
    assert Pairs.join(made(np.array([7, 8], np.uint64)), numbers).ids.tolist() == [7, 8]
    assert 7 in numbers
    assert "7" in numbers
    assert "07" not in numbers
    assert True not in made([1])


def test_integers_select_rows_and_texts_select_ids():
    e = made([7, 8, 9])
    assert np.array_equal(e["7"], e.vectors[0])
    assert np.array_equal(e[1], e.vectors[1])
    assert e.take(["9", "7"]).ids.tolist() == [9, 7]
    assert e.take([0, 2]).ids.tolist() == [7, 9]
    assert made(["a", "a\0"]).take(["a\0"]).ids.tolist() == ["a\0"]
    assert e.take(pd.Series(["9", "8"])).ids.tolist() == e.take(np.array(["9", "8"])).ids.tolist() == [9, 8]
    with pytest.raises(IdError, match="'07'"):
        e.take(["07"])
    assert e.to_pandas().index.tolist() == [7, 8, 9]


@given(st.lists(TEXTS, unique=True), st.lists(TEXTS, unique=True), st.booleans())
def test_rows_of_ids_follow_their_texts(ours, theirs, numbers):
    if numbers:
        ours, theirs = ([len(text) * 31 + ord(text[0]) for text in texts] for texts in (ours, theirs))
        ours, theirs = list(dict.fromkeys(ours)), list(dict.fromkeys(theirs))
    for a, b in ((ours, theirs), (ours, [str(x) for x in theirs]), ([str(x) for x in ours], theirs)):
        A, B = as_ids(a), as_ids(b)
        place = {str(text): row for row, text in enumerate(a)}
        expected = [place.get(str(text), -1) for text in b]
        assert id_rows(A, B).tolist() == expected
        assert is_in(B, A).tolist() == [row >= 0 for row in expected]
        assert same_ids(A, B) == ([*map(str, a)] == [*map(str, b)])


def test_a_split_is_of_the_texts_of_ids():
    numbers = np.arange(200)
    texts = id_texts(numbers)
    rule = Split.choose(texts, 40)
    # As chosen by versions in which every id was text of a fixed width.
    assert rule.threshold == 3425991504036343164
    assert Split.choose(numbers, 40) == Split.choose(texts.astype(str), 40) == rule
    assert np.array_equal(rule.held_out(numbers), rule.held_out(texts))
    groups = numbers // 2
    assert Split.choose(numbers, 40, groups=groups) == Split.choose(texts, 40, groups=groups)
    assert Split.choose(numbers, 40, groups=groups).threshold == 3007560805737344232


def test_fit_and_evaluate_join_numbers_with_texts():
    rng = np.random.default_rng(0)
    X, Y = rng.standard_normal((60, 4)), rng.standard_normal((60, 4))
    order = rng.permutation(60)
    numbers, texts = Embeddings(X, ids=range(60)), Embeddings(Y[order], ids=[str(k) for k in order])
    mapping = congruence.fit(numbers, texts, check=False)
    expected = congruence.fit(X, Y, check=False)
    np.testing.assert_allclose(mapping.rotation_, expected.rotation_, atol=1e-10)
    score = congruence.evaluate(mapping, numbers, texts).rows[0]
    assert score.after == congruence.evaluate(expected, X, Y).rows[0].after
    labels = {str(k): f"class {k % 3}" for k in range(60)}
    by_number = {k: f"class {k % 3}" for k in range(60)}
    images = {"image": numbers}, {"image": texts}
    first, second = (congruence.evaluate(mapping, *images, labels=given).to_dict() for given in (labels, by_number))
    assert first == second


def test_one_long_id_costs_its_length_not_that_of_all():
    n = 20_000
    ids = [*map(str, range(10_000, 10_000 + n - 1)), "z" * 60_000]
    vectors = np.ones((n, 2), np.float32)
    tracemalloc.start()
    try:
        one, two = Embeddings(vectors, ids=ids), Embeddings(vectors, ids=ids[::-1])
        pairs = Pairs.join(one, two)
        Split.choose(pairs.ids, 0.2)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(pairs) == n
    assert peak < 20e6  # 4.8 GB as strings of a fixed width
