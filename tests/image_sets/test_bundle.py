import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from congruence import errors
from congruence.datasets import Bundle, read_bundle, write_bundle
from congruence.embeddings import Embeddings, Space

RNG = np.random.default_rng(0)


def rows(n, d, modality, model, start=0):
    X = RNG.standard_normal((n, d)).astype(np.float16)
    return Embeddings(X, ids=[f"i{k}" for k in range(start, start + n)], space=Space(model, modality=modality))


@pytest.fixture
def bundle():
    return Bundle(
        {"image": rows(5, 3, "image", "a"), "text": rows(4, 3, "text", "a"), "edit": rows(2, 3, "text", "a")},
        {"image": rows(5, 4, "image", "b", start=1), "text": rows(4, 4, "text", "b")},
        classes={"image": {"i0": "i1"}, "edit": {"i0": "i2"}},
        labels={"i1": "fruit", "i2": "animal"},
        texts={"image": {"i0": "an apple"}, "edit": {"i0": "a ‘<cat>’"}},
        before={"i0": "i1"},
        thumbnails={"i0": b"\x89PNG..."},
        info={"title": "t", "licences": ["MIT"]},
    )


def test_what_is_written_is_read_back(bundle, tmp_path):
    path = tmp_path / "b.parquet"
    write_bundle(path, bundle)
    back = read_bundle(path)
    for side in ("source", "target"):
        assert set(getattr(back, side)) == set(getattr(bundle, side))
        for kind, items in getattr(bundle, side).items():
            again = getattr(back, side)[kind]
            np.testing.assert_array_equal(again.vectors, items.vectors)
            assert again.ids.tolist() == items.ids.tolist()
            assert again.space == items.space
    for name in ("classes", "texts", "before", "thumbnails", "info"):
        assert getattr(back, name) == getattr(bundle, name), name
    assert back.labels == {"i1": "fruit", "i2": "animal"}
    with pytest.raises(errors.OutputExistsError):
        write_bundle(path, bundle)
    write_bundle(path, back, force=True)
    assert [p.name for p in tmp_path.iterdir()] == ["b.parquet"]


def test_classes_and_sides(bundle):
    assert bundle.class_of("image", np.array(["i0", "i3"])).tolist() == ["i1", "i3"]
    assert set(bundle.side("source")) == {"image", "text"}
    kept = bundle.take({"image": np.array(["i1", "i2", "i99"])})
    assert kept.source["image"].ids.tolist() == ["i1", "i2"]
    assert len(kept.source["text"]) == 4


def table(**change):
    sides = {"source": [[1.0, 2.0], [3.0, 4.0]], "target": [[1.0], [3.0]]}
    sides = {side: pa.array(rows, pa.list_(pa.float32(), len(rows[0]))) for side, rows in sides.items()}
    columns = {"kind": ["image", "image"], "id": ["a", "b"], **sides}
    return pa.table({k: v for k, v in {**columns, **change}.items() if v is not None})


def test_a_table_made_elsewhere_needs_four_columns_only(tmp_path):
    pq.write_table(table(), tmp_path / "a.parquet")
    bundle = read_bundle(tmp_path / "a.parquet")
    assert bundle.source["image"].dim == 2
    assert bundle.target["image"].dim == 1
    pq.write_table(table(target=pa.array([None, [3.0]], pa.list_(pa.float32(), 1))), tmp_path / "a.parquet")
    assert read_bundle(tmp_path / "a.parquet").target["image"].ids.tolist() == ["b"]


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"target": None}, errors.InputError, "without the columns target"),
        ({"kind": ["image", "smell"]}, errors.InputError, "'smell'"),
        ({"id": ["a", "a"]}, errors.IdError, "duplicate"),
        ({"source": pa.array([[np.nan, 1], [1, 2]], pa.list_(pa.float32(), 2))}, errors.NotFiniteError, "NaN"),
        ({"source": pa.array([[0, 0], [1, 2]], pa.list_(pa.float32(), 2))}, errors.ZeroRowError, "zero"),
        ({"source": pa.array(["x", "y"])}, errors.CongruenceError, "Got"),
        ({"source": pa.array([[1.0], [1.0, 2.0]], pa.list_(pa.float32()))}, errors.CongruenceError, "Got"),
        ({"source": pa.array([[1.0, None], [1.0, 2.0]], pa.list_(pa.float32(), 2))}, errors.CongruenceError, "Got"),
    ],
)
def test_tables_that_cannot_be(change, error, words, tmp_path):
    pq.write_table(table(**change), tmp_path / "a.parquet")
    with pytest.raises(error, match=words):
        read_bundle(tmp_path / "a.parquet")


def test_names_and_kinds_are_checked(bundle, tmp_path):
    with pytest.raises(errors.InputError, match=r"\.parquet"):
        write_bundle(tmp_path / "b.npz", bundle)
    with pytest.raises(errors.InputError, match="'sound'"):
        write_bundle(tmp_path / "b.parquet", Bundle({"sound": rows(2, 2, "other", "a")}, {}))
    with pytest.raises(errors.FileError, match="No file"):
        read_bundle(tmp_path / "none.parquet")


def test_truncation_is_noticed(bundle, tmp_path):
    path = tmp_path / "b.parquet"
    write_bundle(path, bundle)
    raw = path.read_bytes()
    for keep in (0, 3, len(raw) // 2, len(raw) - 1):
        path.write_bytes(raw[:keep])
        with pytest.raises(errors.CorruptFileError):
            read_bundle(path)
