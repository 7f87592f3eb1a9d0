"""The first line that a user writes: ``congruence.fit`` on whatever holds the vectors, and what it returns."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.model_selection import cross_val_score

import congruence
from congruence import Embeddings, OrthogonalMap, Space, load
from congruence.errors import DegenerateWarning, DtypeError, IdError, ModalityError, ParameterError
from congruence.metrics import class_retrieval, linear_cka
from congruence.synthetic import rigid_problem

N, D = 40, 6
PROBLEM = rigid_problem(N, D, noise=0.05, random_state=0)
A, B = PROBLEM.X, PROBLEM.Y
ORDER = np.random.default_rng(1).permutation(N)
IDS = np.array([f"item {k}" for k in range(N)])


class Stream:
    """A table of another library, which can be read once."""

    def __init__(self, table):
        self._reader = table.to_reader()

    def __arrow_c_stream__(self, requested_schema=None):
        return self._reader.__arrow_c_stream__(requested_schema)


class Column:
    """A column of another library, which can be read once."""

    def __init__(self, column):
        self._column = [pa.chunked_array([column])]

    def __arrow_c_stream__(self, requested_schema=None):
        return self._column.pop().__arrow_c_stream__(requested_schema)


def frame(rows, ids, name="id"):
    return pd.DataFrame({name: ids, "vector": list(rows)})


def wide(rows, ids, name="id"):
    return pd.DataFrame(rows, columns=[f"d{k}" for k in range(rows.shape[1])]).assign(**{name: ids})


def table(rows, ids, name="id"):
    return pa.table({name: pa.array(ids), "vector": pa.array(rows.tolist())})


def polars(rows, ids):
    return pytest.importorskip("polars").DataFrame({"id": list(ids), "vector": rows.tolist()})


def hugging_face(rows, ids):
    """A data set whose rows are read through an order of its own, and come as tensors."""
    back = pytest.importorskip("datasets").Dataset.from_dict({"id": list(ids)[::-1], "vector": rows.tolist()[::-1]})
    return back.select(range(len(rows) - 1, -1, -1)).with_format("torch")


FORMS = {
    "frame": frame,
    "beside others": lambda rows, ids: frame(rows, ids).assign(title="same", price=np.arange(len(rows))),
    "arrow, beside others": lambda rows, ids: table(rows, ids).append_column("title", pa.array(["same"] * len(rows))),
    "upper case": lambda rows, ids: frame(rows, ids, "ID"),
    "another name": lambda rows, ids: frame(rows, ids, "sku"),
    "arrow": table,
    "arrow, another name": lambda rows, ids: table(rows, ids, "sku"),
    "record batch": lambda rows, ids: table(rows, ids).combine_chunks().to_batches()[0],
    "stream": lambda rows, ids: Stream(table(rows, ids)),
    "fixed size": lambda rows, ids: table(rows, ids).set_column(
        1, "vector", pa.FixedSizeListArray.from_arrays(rows.ravel(), rows.shape[1])
    ),
    "wide": wide,
    "wide, numbered columns": lambda rows, ids: pd.DataFrame(rows).assign(id=ids),
    "wide, beside an index": lambda rows, ids: wide(rows, ids).set_index(np.arange(5, 5 + len(rows))),
    "index": lambda rows, ids: pd.DataFrame(rows, index=ids),
    "polars": polars,
    "polars, lazy": lambda rows, ids: polars(rows, ids).lazy(),
    "hugging face": hugging_face,
}


class Read(Exception):
    """Ends a certificate as soon as its rows are read: what it says of them is the same for all forms."""


def certified_rows(old, new):
    """Return the rows of both models that a certificate is made of."""

    def stop(items, *_, **__):
        raise Read(*(next(iter(side.values())) for side in (items.tables.source, items.tables.target)))

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Read) as read:
        patch.setattr("congruence.upgrade.certify.certificate.cross_fit", stop)
        congruence.certify(old, new, "orthogonal")
    return read.value.args


@pytest.mark.parametrize(
    ("whole", "form"),
    [
        pytest.param(
            whole, form, marks=[pytest.mark.long] * (whole and form not in ("frame", "arrow", "wide", "index"))
        )
        for whole in (False, True)
        for form in FORMS
    ],
)
def test_tables_with_ids_are_rows_wherever_rows_are_taken(form, whole):
    ids = np.arange(N) * 3 if whole else IDS
    make, options = FORMS[form], {"modality": "text", "center": True}
    expected = congruence.fit(A, B, "orthogonal", means={"image": (A + 2, None)}, **options)
    old = lambda: make(A, ids)  # noqa: E731  # some can be read once
    new, images = make(B[ORDER], ids[ORDER]), make(A + 2, ids)
    mapping = congruence.fit(old(), new, "orthogonal", means={"image": (images, None)}, **options)
    assert mapping.scores_["paired_by"] == "id"
    assert f"{N} pairs by id" in repr(mapping)
    for modality in ("text", "image"):
        np.testing.assert_allclose(mapping.transform(old(), modality), expected.transform(A, modality), atol=1e-9)
    named = mapping.for_modality("text")
    np.testing.assert_array_equal(named.transform_target(make(B, ids)), B)
    assert named.transform_embeddings(old()).ids.tolist() == Embeddings(old()).ids.tolist() == list(ids)
    assert named.score(old(), make(B, ids)) == 1
    assert congruence.evaluate(named, old(), make(B[ORDER], ids[ORDER])).rows[0].after > 0.9
    for rows, given in zip(certified_rows(old(), make(B[ORDER], ids[ORDER])), (A, B), strict=True):
        np.testing.assert_allclose(rows, given)
    own = OrthogonalMap().fit(old(), make(B, ids))
    np.testing.assert_allclose(own.rotation_, OrthogonalMap().fit(A, B).rotation_, atol=1e-9)
    if form != "index":  # an index is no column
        for by_position in (named.score, OrthogonalMap().fit, linear_cka):
            with pytest.raises(IdError, match="paired by position"):
                by_position(old(), make(B[ORDER], ids[ORDER]))


def test_a_column_of_another_library_is_read_once():
    mapping = congruence.fit(Stream(pa.table({"v": A.tolist()})), Column(pa.array(B.tolist())))
    np.testing.assert_array_equal(mapping.rotation_, congruence.fit(A, B).rotation_)


def test_a_column_that_repeats_is_no_id():
    labels = np.repeat(["a", "b"], N // 2)
    with pytest.raises(DtypeError, match="column of vectors"):
        congruence.fit(frame(A, labels, "label"), frame(B, labels, "label"))
    with pytest.raises(IdError, match="ids of old"):
        congruence.fit(frame(A, labels), frame(B, labels))
    assert congruence.fit(A, B).scores_["paired_by"] == "position"


IMAGES = A + 2.0, B - 1.0
MEANS = {
    "rows": IMAGES,
    "lists": [rows.tolist() for rows in IMAGES],
    "means": tuple(rows.mean(axis=0) for rows in IMAGES),
    "by side": {"source": IMAGES[0], "target": pd.DataFrame(IMAGES[1])},
}


@pytest.mark.parametrize("form", MEANS)
def test_means_in_any_form_are_the_same(form):
    mapping = congruence.fit(A, B, modality="text", means={"image": MEANS[form]})
    a, b = mapping.modality_means_["image"]
    np.testing.assert_allclose(a, IMAGES[0].mean(axis=0))
    np.testing.assert_allclose(b, IMAGES[1].mean(axis=0))
    for alone in ({"source": IMAGES[0]}, {"old": IMAGES[0]}, IMAGES[0], IMAGES[0].tolist(), (IMAGES[0], None)):
        assert "image" in congruence.fit(A, B, modality="text", means={"image": alone}).modality_means_


ONE_SIDE = [{"image": of} for of in ({"target": B}, {"source": A, "targets": B}, (A,), (None, B))]


@pytest.mark.parametrize("means", [*ONE_SIDE, A, [A], "image", 3])
def test_means_that_are_not_of_two_sides_by_modality_are_refused(means):
    with pytest.raises(ParameterError, match="an old and a new model" if isinstance(means, dict) else "no mapping"):
        congruence.fit(A, B, modality="text", means=means)


@pytest.fixture(scope="module")
def both():
    return congruence.fit(A, B, modality="text", means={"image": IMAGES})


def test_a_map_of_two_modalities_asks_which(both, tmp_path):
    images = both.for_modality("image").transform(A)
    assert np.abs(images - both.transform(A, modality="text")).max() > 0.5
    declared = Embeddings(A, space=Space(modality="image"))
    for got in (both.transform(A, "image"), both.predict(A, modality="image"), both.transform(declared)):
        np.testing.assert_array_equal(got, images)
    assert both.score(declared, images) == both.for_modality("image").score(A, images) == 1
    again = load(both.save(tmp_path / "both"))
    for asks in (both, again, both.inverse()):
        for use in (asks.transform, asks.transform_embeddings, asks.inverse_transform, asks.covered_share):
            with pytest.raises(ModalityError, match="image and text"):
                use(A)
        for use in (asks.as_layers, lambda asks=asks: asks.score(A, A)):
            with pytest.raises(ModalityError, match="nothing says which"):
                use()
        with pytest.raises(ModalityError, match="audio"):
            asks.transform(A, modality="audio")
    told = load(both.for_modality("image").save(tmp_path / "told"))
    np.testing.assert_array_equal(told.transform(A), images)
    np.testing.assert_allclose(told.inverse().transform(images), A, atol=0.5)


@pytest.mark.parametrize("method", ["linear", "mlp", "procrustes", "cca"])
def test_every_map_takes_a_modality(method):
    mapping = congruence.fit(A, B, method)
    np.testing.assert_array_equal(mapping.transform(A, modality="image"), mapping.transform(A))


def test_few_pairs_are_told_what_they_are_worth():
    with pytest.warns(DegenerateWarning, match=r"4 pairs.*3 of 6 directions \(50%\)"):
        congruence.fit(A[:4], B[:4])


def test_score_is_retrieval_on_the_rows_given():
    noisy = B + np.random.default_rng(0).standard_normal(B.shape)
    mapping = OrthogonalMap().fit(A, noisy)
    expected = class_retrieval(mapping.transform(A), noisy, np.arange(N))
    assert 0.1 < expected < 1
    assert mapping.score(A, noisy) == pytest.approx(expected)
    assert OrthogonalMap().fit(A, B).score(np.repeat(A[:3], 2, axis=0), np.repeat(B[:3], 2, axis=0)) == 0.5
    assert cross_val_score(OrthogonalMap(), A, B, cv=4).mean() > 0.9


def test_what_is_shown_says_what_was_chosen_and_draws_it(both):
    lines = repr(congruence.fit(A, B, holdout=10)).splitlines()
    shown = {line.split()[0]: line for line in lines[1:] if line.strip()}
    assert {"chosen", "fitted", "stored", "held"} <= set(shown)
    assert "rotation about the means" in shown["chosen"]
    assert "directions" in shown["fitted"]
    assert both._repr_html_().count("<rect") == len(both.scores_["choice"]["tried"])
    with pytest.warns(DegenerateWarning):
        few = congruence.fit(A[:4], B[:4])
    assert few._repr_html_().count("<rect") == 1


def test_arguments_of_the_wrong_kind_are_named(tmp_path):
    """A path where vectors belong, vectors where a path belongs, and a map and a file exchanged."""
    np.save(tmp_path / "old.npy", A)
    mapping = congruence.fit(A, B, check=False)
    for call, words in (
        (lambda: congruence.read_embeddings(A), "Got ndarray for a path"),
        (lambda: congruence.transform_file(mapping, A, tmp_path / "out.npy"), "Got ndarray for a path"),
        (lambda: congruence.transform_file(tmp_path / "old.npy", mapping, tmp_path / "out.npy"), "for the map"),
    ):
        with pytest.raises(congruence.errors.InputError, match=words):
            call()
    congruence.transform_file(mapping, tmp_path / "old.npy", tmp_path / "out.npy")
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), mapping.transform(A), atol=1e-6)
    (one,) = congruence.compare_spaces(A, B, "linear_cka", permutations=9)
    assert one.metric == "linear_cka"
