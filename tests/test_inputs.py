"""What a caller may pass for vectors, and what comes of it."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse
import torch

import congruence
from congruence import Embeddings, OrthogonalMap, Space, errors
from congruence._utils.columns import to_rows
from congruence.embeddings import as_embeddings, as_pair, by_modality
from congruence.metrics import linear_cka
from congruence.synthetic import rigid_problem

P = rigid_problem(60, 6, 8, noise=0.2, random_state=0)
X, Y = P.X.astype(np.float32), P.Y.astype(np.float32)


class Stream:
    """A column or table of a library that speaks Arrow's C stream only, as polars or DuckDB do."""

    def __init__(self, data):
        self._data = data

    def __arrow_c_stream__(self, requested_schema=None):
        return self._data.__arrow_c_stream__(requested_schema)


class ToArrow:
    """A column or table that gives itself as PyArrow, as polars does."""

    def __init__(self, data):
        self._data = data

    def to_arrow(self):
        return self._data


class ToNumpy:
    def __init__(self, data):
        self._data = data

    def to_numpy(self):
        return self._data


def lists(A, kind=None):
    return pa.array(A.tolist(), kind or pa.list_(pa.float32()))


def fixed(A):
    return pa.FixedSizeListArray.from_arrays(pa.array(A.reshape(-1)), A.shape[1])


FORMS = {
    "numpy": lambda A: A,
    "fortran order": np.asfortranarray,
    "torch": torch.tensor,
    "torch with grad": lambda A: torch.tensor(A, requires_grad=True),
    "list of lists": lambda A: A.tolist(),
    "tuple of tuples": lambda A: tuple(map(tuple, A.tolist())),
    "list of arrays": list,
    "list of tensors": lambda A: list(torch.tensor(A, requires_grad=True)),
    "object array of arrays": lambda A: pd.Series(list(A)).to_numpy(),
    "series of lists": lambda A: pd.Series(A.tolist()),
    "series of arrays": lambda A: pd.Series(list(A)),
    "arrow series": lambda A: pd.Series(pd.arrays.ArrowExtensionArray(fixed(A))),
    "frame": pd.DataFrame,
    "nullable frame": lambda A: pd.DataFrame(A).convert_dtypes(dtype_backend="numpy_nullable"),
    "arrow frame": lambda A: pd.DataFrame(A).convert_dtypes(dtype_backend="pyarrow"),
    "frame of one column": lambda A: pd.DataFrame({"embedding": list(A)}),
    "arrow lists": lists,
    "arrow large lists": lambda A: lists(A, pa.large_list(pa.float32())),
    "arrow fixed lists": fixed,
    "arrow slice": lambda A: fixed(np.vstack([A[:3], A, A[:2]])).slice(3, len(A)),
    "arrow list slice": lambda A: lists(np.vstack([A[:3], A, A[:2]])).slice(3, len(A)),
    "arrow chunks": lambda A: pa.chunked_array([fixed(A[:7]), fixed(A[7:])]),
    "arrow tensors": lambda A: pa.FixedShapeTensorArray.from_numpy_ndarray(A),
    "arrow table": lambda A: pa.table([pa.array(column) for column in A.T], names=[f"d{k}" for k in range(A.shape[1])]),
    "arrow table of one column": lambda A: pa.table({"embedding": lists(A)}),
    "stream column": lambda A: Stream(pa.chunked_array([lists(A)])),
    "stream table": lambda A: Stream(pa.table({"embedding": fixed(A)})),
    "to_arrow": lambda A: ToArrow(lists(A)),
    "to_numpy": ToNumpy,
    "embeddings": Embeddings,
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_vectors_is_the_same_matrix(form):
    given = FORMS[form](X)
    np.testing.assert_allclose(np.asarray(to_rows(given, "X"), dtype=np.float32), X)
    e = as_embeddings(given, "source")
    np.testing.assert_allclose(e.vectors, X)
    assert not e.has_ids
    assert e.space.dim == 6
    expected = congruence.fit(X, Y)
    mapping = congruence.fit(given, FORMS[form](Y))
    np.testing.assert_allclose(mapping.rotation_, expected.rotation_, atol=1e-5)
    moved = mapping.transform(given)
    assert torch.is_tensor(moved) == torch.is_tensor(given)
    np.testing.assert_allclose(moved.detach() if torch.is_tensor(moved) else moved, expected.transform(X), atol=1e-5)
    plain, own = OrthogonalMap().fit(X, Y), OrthogonalMap().fit(given, FORMS[form](Y))
    np.testing.assert_allclose(own.rotation_, plain.rotation_, atol=1e-5)
    if not torch.is_tensor(given):
        out = mapping.transform_embeddings(given)
        assert isinstance(out, Embeddings)
        np.testing.assert_allclose(out, expected.transform(X), atol=1e-5)


def test_evaluate_and_similarity_take_them_too():
    mapping, forms = congruence.fit(X, Y), ((X, Y), (list(torch.tensor(X)), fixed(Y)))
    scores = [[row.after for row in congruence.evaluate(mapping, *pair).rows] for pair in forms]
    assert scores[0] == pytest.approx(scores[1])
    values = [congruence.compare_spaces(*pair, ["cca"], permutations=3, halves=2)[0].value for pair in forms]
    assert values[0] == pytest.approx(values[1])


def test_certify_takes_them_too():
    expected = congruence.certify({"other": Embeddings(X)}, {"other": Embeddings(Y)})
    assert congruence.certify(list(torch.tensor(X)), fixed(Y)).to_dict() == expected.to_dict()
    named = congruence.certify(pd.DataFrame(X), pd.DataFrame(Y).sample(frac=1), modality="text")
    assert named.fitted == ["text"]
    assert named.strategies["own@1"]["stored"].value == expected.strategies["own@1"]["stored"].value


MASKED = np.ma.MaskedArray(X, mask=np.eye(*X.shape, dtype=bool))
RAGGED = [[1.0, 2.0], [3.0, 4.0], [1.0]]
HOLES = [[1.0, 2.0], None, [3.0, 4.0]]
BAD_SHAPES = {
    "ragged list": (RAGGED, r"different widths in old \(2 in most; row 2: 1\)"),
    "ragged tensors": ([torch.ones(2), torch.ones(3), torch.ones(2)], "row 1: 3"),
    "ragged column": (pd.Series(RAGGED), "different widths"),
    "ragged arrow": (pa.array(RAGGED), "row 2: 1"),
    "nested unevenly": ([[1.0, 2.0], [[3.0], [4.0]]], "nested to different depths"),
    "one vector": (X[0], "1 axes"),
    "one vector as a list": ([1.0, 2.0], "1 axes"),
    "three axes": (X[None], "3 axes"),
    "empty list": ([], "empty list for old"),
    "empty array": (X[:0], "0 rows"),
    "empty column": (pa.array([], pa.list_(pa.float32())), "empty column"),
}
BAD_DTYPES = {
    "neither an array nor a table": (object(), "of type object; expected an array, a table"),
    "objects": (np.array([[{}, {}]] * 3), "object array for old"),
    "strings": (["cat", "dog"], "text or bytes"),
    "column of strings": (pd.Series(["cat", "dog"]), "text"),
    "arrow strings": (pa.array(["cat", "dog"]), "column of string"),
    "arrow lists of strings": (pa.array([["cat"], ["dog"]]), "list<item: string>"),
    "masked": (MASKED, "masked values in "),
    "masked rows": (list(MASKED), "masked values in row 0"),
    "sparse": (scipy.sparse.csr_array(X), r"old\.toarray\(\)"),
    "sparse tensor": (torch.tensor(X).to_sparse(), r"old\.to_dense\(\)"),
    "complex": (X * 1j, "complex"),
    "texts beside vectors": (pd.DataFrame({"a": ["x", "x"], "embedding": RAGGED[:2]}), r"old\['embedding'\]"),
}
NOT_FINITE = {
    "nan": (np.where(np.arange(60)[:, None] == 4, np.nan, X), "rows 4"),
    "missing in a list": (HOLES, "1 of 3 rows of old without a vector"),
    "missing in a column": (pd.Series(HOLES), "rows 1"),
    "missing in arrow": (pa.array(HOLES), "without a vector"),
    "null inside a vector": (pa.array([[1.0, 2.0], [None, 3.0]]), "NaN"),
    "missing in a nullable frame": (pd.DataFrame({"a": pd.array([1.0, None], dtype="Float32")}), "NaN"),
}
NO_ROWS = {
    "a path": ("vectors.parquet", "read_embeddings"),
    "a mapping": ({"image": X}, r"by modality \(image\)"),
    "a generator": ((row for row in X), "list"),
}
KINDS = {errors.ShapeError: BAD_SHAPES, errors.DtypeError: BAD_DTYPES, errors.NotFiniteError: NOT_FINITE}
KINDS[errors.InputError] = NO_ROWS
BAD = {name: (given, error, words) for error, cases in KINDS.items() for name, (given, words) in cases.items()}


@pytest.mark.parametrize("case", BAD)
def test_bad_vectors_name_the_argument(case):
    given, error, words = BAD[case]
    with pytest.raises(error, match=words):
        congruence.fit(given, Y)


def test_a_mask_that_hides_nothing_is_no_mask():
    np.testing.assert_array_equal(Embeddings(np.ma.MaskedArray(X)).vectors, X)


@pytest.mark.parametrize(
    ("given", "kept"),
    [(np.float16, np.float16), (np.float32, np.float32), (np.float64, np.float64), (np.int32, np.float64)],
)
def test_precision_is_kept_and_nothing_is_written_to(given, kept):
    A = (X * 100).astype(given)
    A.flags.writeable = False
    e = as_embeddings(A, "source")
    assert e.dtype == kept
    assert (e.vectors is A) == (given == kept)
    assert as_embeddings(torch.tensor(X).to(torch.bfloat16), "source").dtype == np.float32
    assert as_embeddings(torch.tensor(X).half(), "source").dtype == np.float16
    assert as_embeddings(fixed(X.astype(np.float16)), "source").dtype == np.float16


def test_an_arrow_column_in_one_piece_is_not_copied():
    column = fixed(X)
    assert np.shares_memory(to_rows(column, "X"), column.values.to_numpy())


def test_the_index_of_a_frame_is_its_ids_unless_it_is_the_default_one():
    names = [f"i{k}" for k in range(60)]
    assert Embeddings(pd.DataFrame(X, index=names)).ids.tolist() == names
    assert as_embeddings(pd.Series(list(X), index=names), "source").ids.tolist() == names
    assert not Embeddings(pd.DataFrame(X)).has_ids
    assert Embeddings(pd.DataFrame(X)[30:]).ids.tolist() == list(range(30, 60))
    assert Embeddings(pd.DataFrame(X, index=names), ids=range(60)).ids[0] == 0


def test_two_frames_pair_by_their_indexes():
    names = [f"i{k}" for k in range(60)]
    expected = congruence.fit(X, Y).rotation_
    shuffled = pd.DataFrame(Y, index=names).sample(frac=1, random_state=0)
    np.testing.assert_allclose(congruence.fit(pd.DataFrame(X, index=names), shuffled).rotation_, expected)
    # One side with the default index 0, 1, 2, …: its numbers are labels as well, once the other's are in another order.
    shuffled = pd.DataFrame(Y).sample(frac=1, random_state=0)
    np.testing.assert_allclose(congruence.fit(pd.DataFrame(X), shuffled).rotation_, expected)
    mapping = congruence.fit(X, Y)
    sides = (pd.DataFrame(X), shuffled), (X, Y)
    one, other = (congruence.evaluate(mapping, *pair).rows[0].after for pair in sides)
    assert one == pytest.approx(other)
    one, other = (congruence.compare_spaces(*pair, ["linear_cka"], permutations=2)[0].value for pair in sides)
    assert one == pytest.approx(other)
    # Beside an array there are no labels to pair by.
    source, target = as_pair(X, shuffled)
    assert not source.has_ids
    assert target.has_ids


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ([0, 1, 1], "repeats 1 labels"),
        ([0.0, np.nan, 1.0], r"1 missing labels \(rows 1\)"),
        (pd.MultiIndex.from_tuples([("a", 1), ("a", 2), ("b", 1)]), "2 levels"),
    ],
)
def test_an_index_that_names_no_rows_is_refused(index, words):
    with pytest.raises(errors.IdError, match=rf"{words}.*reset_index\(drop=True\)"):
        congruence.fit(pd.DataFrame(X[:3], index=index), Y[:3])


def test_embeddings_out_of_order_are_no_rows_paired_by_position():
    names = [f"i{k}" for k in range(60)]
    a, b = Embeddings(X, ids=names), Embeddings(Y[::-1], ids=names[::-1])
    for function in (OrthogonalMap().fit, linear_cka, congruence.check_pairing):
        with pytest.raises(errors.IdError, match="paired by position"):
            function(a, b)
        function(a, b.take(names))
    np.testing.assert_allclose(congruence.fit(a, b).rotation_, congruence.fit(X, Y).rotation_)


def test_rows_of_one_modality_need_no_mapping():
    mapping = congruence.fit(X, Y)
    scores = congruence.evaluate(mapping, X, Y)
    assert {row.query for row in scores.rows} == {"aligned other"}
    named = congruence.evaluate(mapping, X, Y, modality="text")
    assert [row.after for row in named.rows] == [row.after for row in scores.rows]
    assert named.get("cosine", "aligned text", "target text")
    assert congruence.evaluate(mapping, {"text": X}, {"text": Y}).to_dict() == named.to_dict()
    said = congruence.evaluate(mapping, Embeddings(X, space=Space(modality="text")), Y)
    assert said.to_dict() == named.to_dict()
    on_text = congruence.fit(X, Y, modality="text")
    assert congruence.evaluate(on_text, X, Y).get("cosine", "aligned text", "target text")


def test_a_map_of_two_modalities_says_which_side_is_which():
    sides = Embeddings(X, space=Space(modality="image")), Embeddings(Y, space=Space(modality="text"))
    mapping = congruence.fit(*sides, "cca")
    rows = congruence.evaluate(mapping, X, Y).rows
    assert {(row.query, row.against) for row in rows} >= {("aligned source image", "aligned target text")}
    assert [row.after for row in rows] == [row.after for row in congruence.evaluate(mapping, *sides).rows]
    assert len(congruence.evaluate(congruence.fit(X, Y, "cca"), X, Y).rows) > 0


def test_ids_on_one_side_only_pair_by_position():
    mapping = congruence.fit(X, Y)
    backwards = Embeddings(Y, ids=range(59, -1, -1))
    one, other = (congruence.evaluate(mapping, X, target).rows[0].after for target in (backwards, Y))
    assert one == pytest.approx(other)


def test_modalities_that_contradict_each_other_are_refused():
    text = Embeddings(X, space=Space(modality="text"))
    with pytest.raises(errors.ModalityError, match="text vectors with modality='image'"):
        by_modality(text, Y, "image")
    with pytest.raises(errors.ModalityError, match="beside embeddings by modality"):
        by_modality({"text": X}, {"text": Y}, "text")
    with pytest.raises(errors.InputError, match="only the source by modality"):
        by_modality({"text": X}, Y)
    with pytest.raises(errors.ParameterError, match="'image', 'text'"):
        by_modality(X, Y, "picture")
    with pytest.raises(errors.ShapeError, match=r"source\['image'\] with 1 axes"):
        congruence.evaluate(congruence.fit(X, Y), {"image": X[0]}, {"image": Y})
    with pytest.raises(errors.CongruenceError, match="unfitted"):
        congruence.evaluate(OrthogonalMap(), X, Y)


def test_means_and_queries_take_arrays():
    mapping = congruence.fit(X, Y, modality="image", means={"text": (X + 1, None)})
    assert sorted(mapping.modality_means_) == ["image", "text"]
    queries = pd.DataFrame(X)[30:], pd.DataFrame(Y)[30:]
    assert congruence.certify(X[:30], Y[:30], queries=queries).n_queries == 30


def test_columns_of_a_frame_that_a_map_was_not_fitted_on_are_refused():
    names = [f"c{k}" for k in range(X.shape[1])]
    frame = pd.DataFrame(X, columns=names)
    mapping = OrthogonalMap().fit(frame, Y)
    np.testing.assert_array_equal(mapping.transform(frame), OrthogonalMap().fit(X, Y).transform(X))
    with pytest.raises(ValueError, match="Feature names must be in the same order"):
        mapping.transform(frame[names[::-1]])
    with pytest.raises(ValueError, match="Feature names unseen at fit time"):
        mapping.transform(frame.rename(columns={"c0": "other"}))
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        mapping.transform(X)
