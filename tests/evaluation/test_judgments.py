"""Relevance judgments, and ranked lists scored by them: against scikit-learn and by hand."""

import numpy as np
import pytest

from congruence import Embeddings
from congruence.errors import FileError, InputError, ShapeError
from congruence.evaluation.judgments import Judgments, expected_scores, judge, ranked_scores, read_qrels

RNG = np.random.default_rng(0)


def rows(n, ids):
    return Embeddings(RNG.standard_normal((n, 3)), ids=ids)


def test_qrels_are_read_as_trec_writes_them(tmp_path):
    path = tmp_path / "qrels.txt"
    path.write_text("q1 0 d7 1\nq1\t0\td2\t3\r\n\nq2 Q0 d7 -1\n", encoding="utf-8-sig")
    assert read_qrels(path) == {"q1": {"d7": 1, "d2": 3}, "q2": {"d7": -1}}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("q 0 d 1\nq 0 d2\n", r"line 2 of .* with 3 fields \('q 0 d2'\)"),
        ("q 0 d 1\n\nq 0 d2 1 x", "line 3 .* 5 fields"),
        ("q 0 d one", "the grade 'one' in line 1"),
        ("q 0 d 1.5", "the grade '1.5'"),
        ("q 0 d ٣", "the grade '٣'"),
        ("q 0 d 1\nq 0 d 0", "'d' is judged twice"),
        ("\n \n", "No judgments"),
    ],
)
def test_a_bad_line_is_named(tmp_path, text, says):
    (tmp_path / "qrels").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=says):
        read_qrels(tmp_path / "qrels")


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(FileError):
        read_qrels(tmp_path / "none")
    (tmp_path / "latin").write_bytes("é 0 d 1".encode("latin-1"))
    with pytest.raises(InputError, match="UTF-8"):
        read_qrels(tmp_path / "latin")


def test_grades_ids_and_what_is_missing():
    queries, index = rows(4, ["a", "b", "c", "7"]), rows(3, [10, 11, 7])
    found = judge(queries, index, qrels={"a": {"11": 2, "10": 1, "99": 3}, "b": {"7": 0}, "z": {"7": 1}})
    assert [one.tolist() for one in found.rows] == [[0, 1], [], [], []]
    assert found.grades[0].tolist() == [1, 2]
    assert found.judged.tolist() == [True, False, False, False]
    assert "1 relevant judgments name documents" in found.notes[0]
    assert "1 judged queries" in found.notes[1]
    assert "3 of 4 queries" in found.notes[2]
    # Without judgments the row with the query's id; a whole number is its decimal digits.
    assert [one.tolist() for one in judge(queries, index).rows] == [[], [], [], [2]]


def test_classes_are_judgments_too():
    found = judge(rows(3, None), rows(5, None), labels=(["x", "y", "z"], ["y", "x", "y", "w", "x"]))
    assert [one.tolist() for one in found.rows] == [[1, 4], [0, 2], []]


def test_what_cannot_be_judged_is_refused():
    queries, index = rows(2, ["a", "b"]), rows(2, ["c", "d"])
    with pytest.raises(InputError, match="No query has a relevant row"):
        judge(queries, index)
    with pytest.raises(InputError, match="without ids"):
        judge(rows(2, None), index)
    with pytest.raises(InputError, match="one of the two"):
        judge(queries, index, qrels={"a": {"c": 1}}, labels=(["x"] * 2, ["x"] * 2))
    with pytest.raises(ShapeError):
        judge(queries, index, labels=(["x"], ["x"] * 2))


def test_a_ranked_list_scored_by_hand():
    judged = Judgments([np.array([2, 5])], [np.array([1.0, 3.0])])
    scores = ranked_scores(np.array([[2, 9, 5, 1]]), judged, at=(1, 2, 3), ndcg_at=3, mode="share")
    assert [scores[f"recall@{k}"][0] for k in (1, 2, 3)] == [0.5, 0.5, 1.0]
    # Gains 1, 0, 3 at ranks 1, 2, 3; at best 3, 1.
    assert scores["ndcg@3"][0] == pytest.approx((1 + 3 / 2) / (3 + 1 / np.log2(3)))
    assert ranked_scores(np.array([[2, 9, 5]]), judged, at=(1,))["recall@1"][0] == 1


def test_ndcg_is_that_of_scikit_learn():
    from sklearn.metrics import ndcg_score

    m, n = 40, 60
    grades = RNG.integers(0, 4, (m, n)) * (RNG.random((m, n)) < 0.3)
    grades[:, 0] = 1
    scores = RNG.standard_normal((m, n))
    judged = Judgments(*zip(*((np.flatnonzero(row), row[row > 0].astype(float)) for row in grades), strict=True))
    found = np.argsort(-scores, axis=1)
    for k in (1, 5, 10, 60):
        ours = ranked_scores(found, judged, ndcg_at=k)[f"ndcg@{k}"]
        assert ours.mean() == pytest.approx(ndcg_score(grades, scores, k=k))


@pytest.mark.parametrize("mode", ["any", "share"])
def test_chance_is_the_mean_over_random_orders(mode):
    n = 12
    judged = Judgments([np.array([3]), np.array([1, 4, 7])], [np.array([2.0]), np.array([1.0, 1.0, 3.0])])
    expected = expected_scores(judged, n, at=(1, 4), ndcg_at=10, mode=mode)
    drawn = [
        ranked_scores(np.stack([RNG.permutation(n), RNG.permutation(n)]), judged, at=(1, 4), mode=mode)
        for _ in range(3000)
    ]
    for name, value in expected.items():
        assert np.mean([one[name] for one in drawn]) == pytest.approx(value, abs=0.02)
