import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from congruence import Embeddings, Pairs, Space, errors
from congruence.embeddings import check_space, has_unit_rows, normalize_rows

RNG = np.random.default_rng(0)
GOOD = RNG.standard_normal((6, 4))


def spoiled(row, value):
    X = GOOD.copy()
    X[row] = value
    return X


@pytest.mark.parametrize(
    ("vectors", "error", "words"),
    [
        (spoiled(2, np.nan), errors.NotFiniteError, "rows 2"),
        (spoiled((3, 1), np.inf), errors.NotFiniteError, "rows 3"),
        (spoiled(4, 0), errors.ZeroRowError, "rows 4"),
        (np.empty((0, 4)), errors.ShapeError, "0 rows"),
        (np.empty((4, 0)), errors.ShapeError, "0 feature"),
        (GOOD[0], errors.ShapeError, "1 axes"),
        (GOOD[None], errors.ShapeError, "3 axes"),
        (GOOD.astype(object), errors.DtypeError, "object"),
        (GOOD.astype(str), errors.DtypeError, "text"),
        (GOOD + 1j, errors.DtypeError, "complex"),
    ],
)
def test_bad_vectors_are_refused(vectors, error, words):
    with pytest.raises(error, match=words):
        Embeddings(vectors)


def test_bad_rows_are_named_by_id():
    with pytest.raises(errors.ZeroRowError, match="ids 'e'"):
        Embeddings(spoiled(4, 0), ids=list("abcdef"))
    assert len(Embeddings(spoiled(4, 0), allow_zero_rows=True)) == 6
    with pytest.raises(errors.NotFiniteError, match="'a', 'b', 'c', 'd', 'e' and 1 more"):
        Embeddings(np.full((6, 4), np.nan), ids=list("abcdef"))


def test_huge_and_tiny_rows_are_neither_infinite_nor_zero():
    Embeddings(np.array([[1e300, 1e300], [1e-300, 0.0]]))
    Embeddings(np.array([[1e30, 1e30], [1e-30, 0.0]], dtype=np.float32))
    Embeddings(np.array([[6e4, 6e4], [6e-8, 0.0]], dtype=np.float16))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_vectors_keep_their_dtype_and_are_not_copied(dtype):
    X = GOOD.astype(dtype)
    assert Embeddings(X).vectors is X


def test_ids_must_be_one_a_row():
    with pytest.raises(errors.IdError, match="5 ids for 6 rows"):
        Embeddings(GOOD, ids=list("abcde"))


def test_take_follows_ids_masks_and_numbers():
    e = Embeddings(GOOD, ids=list("abcdef"))
    assert np.array_equal(e.take(["f", "a"]).vectors, GOOD[[5, 0]])
    assert e.take(np.array([True] * 2 + [False] * 4)).ids.tolist() == ["a", "b"]
    with pytest.raises(errors.IdError, match="'z'"):
        e.take(["z"])


def test_space_facts_are_filled_in_and_checked():
    e = Embeddings(normalize_rows(GOOD), space=Space("m", modality="image"))
    assert (e.space.dim, e.space.normalized, e.space.modality) == (4, True, "image")
    assert Embeddings(GOOD).space.normalized is False
    with pytest.raises(errors.SpaceMismatchError, match="4-d vectors for a space with dim=5"):
        Embeddings(GOOD, space=Space(dim=5))
    with pytest.raises(errors.ParameterError, match="'image', 'text'"):
        Space(modality="picture")


def test_space_survives_a_dictionary():
    space = Space("m", "r", "text", 3, True)
    assert Space.from_dict({**space.to_dict(), "of_a_later_version": 1}) == space
    assert str(space) == "m@r, text, 3-d, unit rows"


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (Space("b"), "Direction"), (Space("c"), "SpaceMismatch"), (Space("a", "2"), "SpaceMismatch"),
        (Space(dim=5), "Direction"), (Space(dim=6), "SpaceMismatch"), (Space(normalized=False), "SpaceMismatch"),
        (Space(modality="text"), "Modality"),
    ],
)  # fmt: skip
def test_spaces_that_differ_are_told_apart(data, error):
    with pytest.raises(errors.CongruenceError) as caught:
        check_space(data, Space("a", "1", "image", 4, True), Space("b", "1", "image", 5, True))
    assert type(caught.value).__name__ == f"{error}Error"


def test_unknown_facts_are_no_difference():
    check_space(Space(), Space("a", "1", "image", 4, True), Space("b"))
    check_space(Space("a", "1", "image", 4, True), Space(), Space())


def test_normalizing_leaves_the_input_alone_and_zero_rows_zero():
    X = spoiled(1, 0)
    before = X.copy()
    out = normalize_rows(X)
    assert np.array_equal(X, before)
    assert np.allclose(np.linalg.norm(out, axis=1), [1, 0, 1, 1, 1, 1])
    assert has_unit_rows(out[[0, 2]])
    assert Embeddings(GOOD).normalize().space.normalized


def test_pairs_join_by_id_in_the_sources_order():
    a = Embeddings(GOOD, ids=list("abcdef"))
    b = Embeddings(GOOD[::-1] * 2, ids=list("gedcba"))
    pairs = Pairs.join(a, b)
    assert pairs.ids.tolist() == list("abcde")
    assert pairs.only_source.tolist() == ["f"]
    assert pairs.only_target.tolist() == ["g"]
    position = {name: k for k, name in enumerate("gedcba")}
    X, Y = pairs
    for k, name in enumerate("abcde"):
        assert np.array_equal(X[k], GOOD["abcdef".index(name)])
        assert np.array_equal(Y[k], (GOOD[::-1] * 2)[position[name]])


def test_pairs_without_common_ids_are_refused():
    with pytest.raises(errors.IdError, match="no id in common"):
        Pairs.join(Embeddings(GOOD, ids=list("abcdef")), Embeddings(GOOD, ids=list("uvwxyz")))
    with pytest.raises(errors.IdError, match="1 ids only on the old side and 1 only on the new one"):
        Pairs.join(Embeddings(GOOD, ids=list("abcdef")), Embeddings(GOOD, ids=list("abcdeg")), missing="error")
    with pytest.raises(errors.ParameterError):
        Pairs.join(Embeddings(GOOD), Embeddings(GOOD), missing="ignore")


def test_pairs_without_ids_need_equal_lengths():
    assert len(Pairs.join(Embeddings(GOOD), Embeddings(GOOD, ids=list("abcdef")))) == 6
    with pytest.raises(errors.ShapeError, match="6 rows of the first and 5 rows of the second"):
        Pairs.join(Embeddings(GOOD), Embeddings(GOOD[:5]))


@given(st.permutations(list(range(6))), st.sets(st.integers(0, 5), min_size=1))
def test_joining_undoes_any_shuffle_and_any_loss(order, kept):
    ids = np.array(list("abcdef"))
    rows = [k for k in order if k in kept]
    pairs = Pairs.join(Embeddings(GOOD, ids=ids), Embeddings(GOOD[rows], ids=ids[rows]))
    assert np.array_equal(*pairs)
    assert pairs.ids.tolist() == [ids[k] for k in sorted(kept)]


def test_embeddings_are_an_array_to_numpy():
    e = Embeddings(GOOD, ids=list("abcdef"))
    assert (e.shape, e.ndim, len(e), e.dtype) == ((6, 4), 2, 6, np.float64)
    assert np.asarray(e) is e.vectors
    assert np.array(e) is not e.vectors
    assert np.asarray(e, dtype=np.float32).dtype == np.float32
    np.testing.assert_array_equal(np.linalg.norm(e, axis=1), np.linalg.norm(GOOD, axis=1))
    np.testing.assert_array_equal(np.stack(list(e)), GOOD)
    assert not np.shares_memory(e.__array__(copy=True), GOOD)
    assert e.__array__(copy=False) is e.vectors
    with pytest.raises(ValueError, match="needs a copy"):
        e.__array__(dtype=np.float32, copy=False)


def test_indexing_gives_embeddings_and_one_item_its_vector():
    e = Embeddings(GOOD, ids=list("abcdef"), space=Space("m"))
    for which, rows in (
        (slice(1, 4), [1, 2, 3]),
        (slice(None, None, -2), [5, 3, 1]),
        *[(mask, [0, 2, 4]) for mask in (np.array([True, False] * 3), [True, False] * 3)],
        *[(rows, [2, 0]) for rows in (np.array([2, 0]), [-4, 0], np.array(["c", "a"], dtype=object))],
        (["f", "b"], [5, 1]),
        (np.array(["c"]), [2]),
        ([], []),
    ):
        part = e[which]
        assert isinstance(part, Embeddings)
        np.testing.assert_array_equal(part.vectors, GOOD[rows])
        assert part.ids.tolist() == [list("abcdef")[k] for k in rows]
        assert part.space.model == "m"
    for which, row in (("c", 2), (np.str_("c"), 2), (2, 2), (-1, 5), (np.int64(0), 0)):
        np.testing.assert_array_equal(e[which], GOOD[row])
    assert "c" in e
    assert "z" not in e
    assert 0 not in e
    with pytest.raises(errors.IdError, match="'z'"):
        e["z"]
    with pytest.raises(IndexError):
        e[6]
    with pytest.raises(errors.ParameterError, match="2 indices"):
        e[0, 1]
    assert not Embeddings(GOOD)[1:3].has_ids


def test_a_frame_and_back():
    import pandas as pd

    e = Embeddings(GOOD.astype(np.float32), ids=list("abcdef"))
    frame = e.to_pandas()
    assert frame.shape == (6, 4)
    assert frame.index.name == "id"
    assert set(frame.dtypes) == {np.dtype(np.float32)}
    again = Embeddings(frame)
    assert again.ids.tolist() == e.ids.tolist()
    np.testing.assert_array_equal(again, e)
    frame.iloc[0, 0] = 99
    assert e.vectors[0, 0] != 99
    assert isinstance(Embeddings(GOOD).to_pandas().index, pd.RangeIndex)


def test_pandas_is_asked_for_by_name(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(errors.MissingExtraError, match=r"congruence\[pandas\]"):
        Embeddings(GOOD).to_pandas()


def test_embeddings_show_themselves_in_a_few_lines():
    e = Embeddings(np.ones((1203, 512), dtype=np.float16), ids=range(1203), space=Space("<b>model", modality="text"))
    assert len(repr(e).splitlines()) <= 10
    assert "1,203 × 512 float16" in repr(e)
    assert "&lt;b&gt;model" in e._repr_html_()
    assert "<b>model" not in e._repr_html_()
