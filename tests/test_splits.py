import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from congruence import Embeddings, Space
from congruence.errors import DuplicateWarning, ParameterError, ShapeError, TooFewAnchorsError
from congruence.splits import Split, duplicate_groups, equal_rows, unpaired_pools, warn_duplicates

IDS = np.array([f"item {k}" for k in range(500)])


@given(st.integers(0, 498), st.integers(0, 1000))
def test_exactly_as_many_as_asked(count, seed):
    heldout = Split.choose(IDS, count if count != 0 else 0.0, seed).held_out(IDS)
    assert heldout.sum() == count


def test_shares_are_rounded_and_order_does_not_matter():
    split = Split.choose(IDS, 0.3, 7)
    heldout = split.held_out(IDS)
    assert heldout.sum() == 150
    order = np.random.default_rng(0).permutation(500)
    assert np.array_equal(Split.choose(IDS[order], 0.3, 7).held_out(IDS), heldout)
    assert np.array_equal(split.held_out(IDS[order]), heldout[order])
    assert np.array_equal(split.held_out(IDS[:10]), heldout[:10])
    assert Split.from_dict(split.to_dict()) == split
    assert not np.array_equal(Split.choose(IDS, 0.3, 8).held_out(IDS), heldout)
    assert Split.choose(IDS, 0.3, 7, np.arange(500)) == split  # groups without repeats change nothing
    assert "exceptions" not in split.to_dict()


@pytest.mark.parametrize(
    ("holdout", "error"),
    [(-0.1, ParameterError), (1.5, ParameterError), (np.nan, ParameterError), (499, TooFewAnchorsError)],
)
def test_impossible_holdouts(holdout, error):
    with pytest.raises(error):
        Split.choose(IDS, holdout)


def naive_groups(*sides):
    labels = np.arange(len(sides[0]))
    while True:
        before = labels.copy()
        for side in sides:
            for i, row in enumerate(side):
                labels[i] = labels[(side == row).all(axis=1)].min()
        if np.array_equal(before, labels):
            return np.unique(labels, return_inverse=True)[1].reshape(-1)


@given(st.integers(0, 500), st.integers(1, 3))
def test_groups_are_connected_components_over_both_sides(seed, width):
    rng = np.random.default_rng(seed)
    X, Y = (rng.normal(size=(12, width)).astype(np.float32)[rng.integers(12, size=30)] for _ in range(2))
    assert np.array_equal(duplicate_groups(X, Y), naive_groups(X, Y))
    assert np.array_equal(duplicate_groups(X), naive_groups(X))


@pytest.mark.parametrize("before", [0, 40])
def test_rows_of_equal_hashes_are_compared(monkeypatch, before):
    class Flat:
        @staticmethod
        def integers(low, high, size, dtype):
            return np.zeros(size, dtype)

    monkeypatch.setattr(np.random, "default_rng", lambda seed: Flat)
    rows = np.hstack([np.ones((4, before)), [[1.0, 2.0], [2.0, 1.0], [1.0, 2.0], [5.0, 6.0]]])
    assert equal_rows(rows).tolist() == [0, 1, 0, 3]


def test_equal_numbers_areequal_rows_whatever_their_bytes():
    X = np.array([[0.0, 1.0], [-0.0, 1.0], [1.0, 0.0], [0.0, np.nextafter(1, 2)]])
    assert duplicate_groups(X).tolist() == [0, 0, 1, 2]
    half = np.random.default_rng(0).normal(size=(40, 7)).astype(np.float16)[np.arange(60) % 40]
    for kind in (np.float16, np.float32, np.float64):
        for rows in (half.astype(kind), np.asfortranarray(half.astype(kind)), half.astype(kind)[:, ::-1]):
            assert np.array_equal(duplicate_groups(rows), np.arange(60) % 40)
    with pytest.raises(ShapeError):
        duplicate_groups(X, X[:3])


def test_one_text_for_a_class_does_not_join_its_images():
    rng = np.random.default_rng(0)
    images, prompts = rng.normal(size=(90, 4)), rng.normal(size=(9, 3))[np.arange(90) % 9]
    assert len(np.unique(duplicate_groups(images, prompts))) == 90
    images[50] = images[3]
    sides = (Embeddings(images, space=Space(modality="image")), Embeddings(prompts, space=Space(modality="text")))
    for order in (sides, sides[::-1]):
        groups = duplicate_groups(*order)
        assert len(np.unique(groups)) == 89
        assert groups[50] == groups[3]


@pytest.mark.parametrize("holdout", [1, 7, 40, 0.3])
def test_a_group_is_held_out_whole_and_found_by_id_alone(holdout):
    groups = np.random.default_rng(1).integers(150, size=500)
    split = Split.choose(IDS, holdout, 3, groups)
    heldout = split.held_out(IDS)
    for label in np.unique(groups):
        assert len(set(heldout[groups == label])) == 1
    asked = holdout if holdout >= 1 else 150
    smallest = np.bincount(groups)[np.unique(groups)].min()
    n = heldout.sum()
    assert n == asked or n == smallest > asked or asked - n < np.bincount(groups).max()
    order = np.random.default_rng(0).permutation(500)
    assert Split.choose(IDS[order], holdout, 3, groups[order]) == split
    again = Split.from_dict(split.to_dict())
    assert again == split
    assert np.array_equal(again.held_out(IDS[order][:99]), heldout[order][:99])


def test_groups_that_cannot_be_divided():
    with pytest.raises(TooFewAnchorsError, match="groups"):
        Split.choose(IDS, 0.3, 0, np.arange(500) % 2)
    with pytest.raises(ShapeError):
        Split.choose(IDS, 0.3, 0, np.arange(9))


def test_identical_rows_are_told_of():
    with pytest.warns(DuplicateWarning, match="4 of 5 rows .* 2 groups"):
        assert warn_duplicates(np.array([0, 1, 0, 1, 2])) == {"rows": 4, "groups": 2}
    assert warn_duplicates(np.arange(4)) is None


@given(
    n=st.integers(2, 60),
    mine=st.integers(0, 20),
    theirs=st.integers(0, 20),
    overlap=st.floats(0, 1),
    size=st.none() | st.integers(1, 40),
    seed=st.integers(0, 9),
)
def test_pools_have_the_share_in_common_that_was_asked_for(n, mine, theirs, overlap, size, seed):
    source = [*range(n), *range(100, 100 + mine)]  # n items of both sides, others of one
    target = [*range(n), *range(200, 200 + theirs)]
    a, b = unpaired_pools(source, target, overlap, size, random_state=seed)
    assert len(a) == len(b) == len(set(a)) == len(set(b))
    s = len(a)
    items, others = {source[i] for i in a}, {target[i] for i in b}
    assert len(items & others) == round(overlap * s)
    # No larger pools could be had: a brute-force count over s.
    possible = [
        k
        for k in range(1, n + min(mine, theirs) + 1)
        if round(overlap * k) + sum(max(0, k - round(overlap * k) - own) for own in (mine, theirs)) <= n
    ]
    assert s == max(k for k in possible if size is None or k <= size)
    again = unpaired_pools(source, target, overlap, size, random_state=seed)
    assert all(map(np.array_equal, (a, b), again))


def test_pools_take_the_rows_of_an_item_together():
    a, b = unpaired_pools(np.arange(20), np.repeat(np.arange(20), 3), 0.0)
    assert (len(a), len(b)) == (10, 30)
    assert not set(a) & set(b // 3)


def test_pools_are_in_an_order_of_their_own():
    a, b = unpaired_pools(range(200), range(200), 1.0)
    assert sorted(a) == sorted(b) == list(range(200))
    assert (a == b).mean() < 0.1
    assert (np.diff(a) > 0).mean() < 0.7


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"overlap": 1.1}, "overlap=1.1"),
        ({"overlap": float("nan")}, "overlap=nan"),
        ({"size": 0}, "size=0"),
        ({"target": [7]}, "0 of them on both sides"),
        ({"target": []}, "3 and 0 items"),
    ],
)
def test_pools_that_cannot_be_had(change, said):
    with pytest.raises(ParameterError, match=said):
        unpaired_pools(**{"source": [0, 1, 2], "target": [0, 1, 2], "overlap": 1.0, **change})
