"""Several vectors a row: lists as of ColBERT, Array2D and tensors; they are mapped one by one and stay together."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from congruence import OrthogonalMap, errors
from congruence.io import contents, open_source, read_embeddings
from congruence.upgrade.transform import transform_file

RNG = np.random.default_rng(8)
COUNTS = RNG.integers(1, 5, 30)
X = RNG.standard_normal((COUNTS.sum(), 6)).astype(np.float32)
IDS = [f"d{k}" for k in range(30)]
NAMES = [f"{i}[{j}]" for i, count in zip(IDS, COUNTS, strict=True) for j in range(count)]
MAP = OrthogonalMap().fit(X, X[:, ::-1])
FLAT = pa.array(X.ravel())
ENDS = np.r_[0, np.cumsum(COUNTS)]

KINDS = {
    "lists": pa.ListArray.from_arrays(ENDS.astype("i4"), pa.ListArray.from_arrays(np.arange(len(X) + 1) * 6, FLAT)),
    "fixed": pa.LargeListArray.from_arrays(ENDS, pa.FixedSizeListArray.from_arrays(FLAT, 6)),
}


def save(path, column, ids=True):
    table = pa.table(({"id": IDS} if ids else {}) | {"v": column, "note": IDS})
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=9)
    else:
        with pa.ipc.new_file(str(path), table.schema) as file:
            file.write_table(table, max_chunksize=9)
    return path


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
@pytest.mark.parametrize("kind", [*KINDS])
def test_lists_of_vectors_are_mapped_and_stay_together(kind, suffix, tmp_path):
    path = save(tmp_path / f"a{suffix}", KINDS[kind])
    source = open_source(path)
    found = source.read()
    np.testing.assert_array_equal(found.vectors, X)
    assert found.ids.tolist() == NAMES
    ids, rows = source.take([len(X) - 1, 3])
    assert ids.to_pylist() == [NAMES[-1], NAMES[3]]
    np.testing.assert_array_equal(rows, X[[-1, 3]])
    np.testing.assert_array_equal(np.concatenate([block for _, block in source.scan(7, 5)]), X[7:])
    assert not open_source(path, ids=False).has_ids
    for out in (f"o{suffix}", "p.parquet"):
        report = transform_file(MAP, path, tmp_path / out, normalize=False)
        assert report.rows == len(X)
        back = open_source(tmp_path / out)
        np.testing.assert_allclose(back.read().vectors, X[:, ::-1], atol=1e-5)
        assert back.read().ids.tolist() == NAMES
        table = back.table.pieces(["note", "v"])
        lengths = [n for _, piece in table for n in piece.column("v").value_lengths().to_pylist()]
        assert lengths == COUNTS.tolist()
    with pytest.warns(errors.ColumnsWarning, match="note"):
        transform_file(MAP, path, tmp_path / "flat.npz", normalize=False)
    assert read_embeddings(tmp_path / "flat.npz").ids.tolist() == NAMES
    with pytest.raises(errors.ParameterError, match="several vectors a row"):
        transform_file(MAP, path, tmp_path / "o.csv")
    assert not (tmp_path / "o.csv").exists()


def test_array2d_and_tensors(tmp_path, here):
    layers = np.stack([X[:30], 2 * X[:30], 3 * X[:30]], 1)
    tensor = pa.FixedShapeTensorArray.from_numpy_ndarray(layers)
    nested = pa.array(layers.tolist(), pa.list_(pa.list_(pa.float32())))
    plain = pa.FixedShapeTensorArray.from_numpy_ndarray(X[:30])
    for name, column in {"tensor": tensor, "array2d": nested}.items():
        path = save(tmp_path / f"{name}.parquet", column)
        np.testing.assert_array_equal(read_embeddings(f"{path}:v").vectors, layers.reshape(-1, 6))
        for k in range(3):
            found = read_embeddings(f"{path}:v[{k}]")
            np.testing.assert_array_equal(found.vectors, layers[:, k])
            assert found.ids.tolist() == IDS
        transform_file(MAP, f"{path}:v", tmp_path / f"{name}_out.parquet", normalize=False)
        mapped = read_embeddings(f"{tmp_path}/{name}_out.parquet:v[1]").vectors
        np.testing.assert_allclose(mapped, layers[:, 1, ::-1], atol=1e-5)
        with pytest.raises(errors.ShapeError, match="3 vectors in row 0"):
            read_embeddings(f"{path}:v[3]")
    assert contents(tmp_path / "tensor.parquet")["v"] == "30 × 3 × 6"
    np.testing.assert_array_equal(read_embeddings(save(tmp_path / "plain.parquet", plain)).vectors, X[:30])
    done = here("inspect", f"{tmp_path}/plain.parquet:v[1]").ends(2)
    assert "v" in done.err


def test_an_array2d_of_datasets_keeps_its_features(tmp_path):
    datasets = pytest.importorskip("datasets")
    layers = np.stack([X[:30], 2 * X[:30]], 1)
    features = datasets.Features({"id": datasets.Value("string"), "v": datasets.Array2D((2, 6), "float32")})
    data = datasets.Dataset.from_dict({"id": IDS, "v": layers.tolist()}, features=features)
    data.to_parquet(tmp_path / "a.parquet")
    data.save_to_disk(tmp_path / "saved")
    wide = OrthogonalMap().fit(X, np.c_[X[:, ::-1], X[:, :1]])
    for path in (tmp_path / "a.parquet", next((tmp_path / "saved").glob("*.arrow"))):
        np.testing.assert_array_equal(read_embeddings(f"{path}:v").vectors, layers.reshape(-1, 6))
        transform_file(wide, f"{path}:v", tmp_path / "out.parquet", normalize=False, force=True)
        out = datasets.Dataset.from_parquet(str(tmp_path / "out.parquet"), cache_dir=str(tmp_path / "cache"))
        assert out.features["v"].shape == (2, 7)
        np.testing.assert_allclose(np.array(out["v"])[:, 1], wide.transform(layers[:, 1]), atol=1e-4)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([[[1.0, 2.0]], None], "Got no vectors in row 1"),
        ([[[1.0, 2.0], None]], "missing vector in row 1"),
        ([[[1.0, 2.0]], [[1.0]]], "1 numbers in row 1"),
        ([[[1.0, 2.0]], [[1.0, None]]], "missing numbers in row 1"),
        ([[[1.0, 2.0]], [[1.0, float("nan")]]], "NaN"),
        ([[], []], "no vectors"),
    ],
)
def test_lists_that_cannot_be(rows, words, tmp_path, here):
    pq.write_table(pa.table({"v": pa.array(rows, pa.list_(pa.list_(pa.float64())))}), tmp_path / "a.parquet")
    OrthogonalMap().fit(X[:, :2], X[:, 1::-1]).save(tmp_path / "map")
    done = here("transform", "map", "a.parquet", "-o", "out.parquet").ends(2)
    assert words in done.err
    assert len(done.err.strip().splitlines()) == 1
    assert not (tmp_path / "out.parquet").exists()


@pytest.mark.parametrize("kind", [*KINDS])
def test_folders_and_fragments_of_lists(kind, tmp_path, here):
    (tmp_path / "data").mkdir()
    MAP.save(tmp_path / "map")
    half = int(ENDS[15])
    for name, rows in (("a", slice(0, 15)), ("b", slice(15, 30))):
        table = pa.table({"id": IDS[rows], "v": KINDS[kind].slice(rows.start, 15), "note": IDS[rows]})
        pq.write_table(table, tmp_path / f"data/{name}.parquet", row_group_size=4)
    source = open_source(tmp_path / "data")
    assert (source.n, source.table_rows, source.parts) == (len(X), 30, [("a.parquet", 15), ("b.parquet", 15)])
    np.testing.assert_array_equal(source.take([half, 0])[1], X[[half, 0]])
    run = ["transform", "map", "data", "--normalize", "no", "-o"]
    here(*run, "folder").ends(0)
    here(*run, "one.parquet").ends(0)
    here(*run, "jobs", "--set", "bad_rows=bad.parquet").ends(0)
    for out in ("folder", "one.parquet", "jobs"):
        back = read_embeddings(tmp_path / out)
        assert back.ids.tolist() == NAMES
        np.testing.assert_allclose(back.vectors, X[:, ::-1], atol=1e-5)
    for part in ("folder/b.parquet", "jobs/b.parquet"):
        assert pq.read_table(tmp_path / part).column_names == ["id", "v", "note"]
        assert open_source(tmp_path / part).read().ids.tolist() == NAMES[half:]
    fitted = here("fit", "data", "data", "-o", "same", "--set", "check=false", "--engine", "local").ends(2)
    assert "same file" in fitted.err
    assert not (tmp_path / "bad.parquet").exists()
    worse = [[[1.0] * 6], [[1.0] * 6, [0.0] * 6], [], None, [[2.0] * 6, [float("nan")] * 6], [[3.0] * 5]]
    table = pa.table({"id": [*"abcdef"], "v": pa.array(worse, pa.list_(pa.list_(pa.float32())))})
    pq.write_table(table, tmp_path / "worse.parquet")
    here("transform", "map", "worse.parquet", "-o", "good", "--set", "bad_rows=bad.parquet").ends(0)
    assert read_embeddings(tmp_path / "good").ids.tolist() == ["a[0]"]
    assert pq.read_table(tmp_path / "bad.parquet")["id"].to_pylist() == ["b", "d", "e", "f"]


def test_a_map_of_token_vectors_by_fragments(tmp_path):
    from congruence.engines import LocalEngine, fit_dataset, open_pairs

    save(tmp_path / "old.parquet", KINDS["lists"])
    flipped = pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(X[:, ::-1]).ravel()), 6)
    save(tmp_path / "new.parquet", pa.ListArray.from_arrays(ENDS.astype("i4"), flipped))
    paired = open_pairs(str(tmp_path / "old.parquet"), str(tmp_path / "new.parquet"))
    fitted = fit_dataset(paired, "orthogonal", engine=LocalEngine(), check=False)
    whole = OrthogonalMap().fit(X, X[:, ::-1])
    np.testing.assert_allclose(np.abs(fitted.rotation_), np.abs(whole.rotation_), atol=1e-4)
    save(tmp_path / "fewer.parquet", pa.ListArray.from_arrays(np.r_[ENDS[:-1], ENDS[-1] - 1].astype("i4"), flipped))
    odd = open_pairs(str(tmp_path / "old.parquet"), str(tmp_path / "fewer.parquet"))
    with pytest.raises(errors.InputError, match="more vectors|Got id"):
        fit_dataset(odd, "orthogonal", engine=LocalEngine(), check=False)


def test_a_map_of_token_vectors(tmp_path, here):
    save(tmp_path / "old.parquet", KINDS["lists"])
    new = pa.ListArray.from_arrays(ENDS.astype("i4"), pa.FixedSizeListArray.from_arrays(X[:, ::-1].ravel(), 6))
    save(tmp_path / "new.parquet", new)
    facts = json.loads(here("fit", "old.parquet", "new.parquet", "-o", "map", "--json").ends(0).out)
    assert facts["paired_by"].startswith("id")
    here("transform", "map", "old.parquet", "-o", "out.parquet", "--normalize", "no").ends(0)
    np.testing.assert_allclose(read_embeddings(tmp_path / "out.parquet").vectors, X[:, ::-1], atol=0.1)
