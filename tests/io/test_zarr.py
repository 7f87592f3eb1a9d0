"""Zarr: arrays and groups of both versions of the format are read right; hostile ones are refused in a sentence."""

import json
import os
import shutil

import numpy as np
import pytest

from congruence import OrthogonalMap, errors
from congruence.io import contents, matrices, open_source, read_column, read_embeddings

zarr = pytest.importorskip("zarr")

RNG = np.random.default_rng(2)
X = RNG.standard_normal((40, 6)).astype(np.float32)
IDS = [f"ü{k}" for k in range(40)]


def write_group(path, version):
    group = zarr.open_group(str(path), mode="w", zarr_format=version)
    group.create_array("obsm/pca", data=X, chunks=(7, 3))
    group.create_array("other", data=X.astype(np.float16)[:, :2])
    group.create_array("numbers", data=np.arange(40))
    texts = group.create_array("ids", shape=(40,), dtype=str, chunks=(9,))
    texts[:] = np.array(IDS, object)
    return path


@pytest.mark.parametrize("version", [2, 3])
def test_a_group_and_an_array(version, tmp_path, here):
    path = write_group(tmp_path / "a.zarr", version)
    source = open_source(f"{path}:obsm/pca")
    found = source.read()
    np.testing.assert_array_equal(found.vectors, X)
    assert found.ids.tolist() == IDS
    np.testing.assert_array_equal(np.concatenate([b for _, b in source.scan(7, 5)]), X[7:])
    np.testing.assert_array_equal(source.take([39, 3])[1], X[[39, 3]])
    assert open_source(f"{path}:other", ids="numbers").read().ids.tolist() == [*range(40)]
    assert contents(path) == {"ids": "40", "numbers": "40", "obsm/pca": "40 × 6", "other": "40 × 2"}
    assert [*matrices(path)] == ["obsm/pca", "other"]
    assert read_column(f"{path}:ids").tolist() == IDS
    assert "obsm/pca (40, 6)" in here("inspect", f"{path}:nothing").ends(2).err
    OrthogonalMap().fit(X, X[:, ::-1]).save(tmp_path / "map")
    here("transform", "map", f"{path}:obsm/pca", "-o", "out.parquet", "--normalize", "no").ends(0)
    np.testing.assert_allclose(read_embeddings(tmp_path / "out.parquet").vectors, X[:, ::-1], atol=1e-5)
    zarr.save_array(str(tmp_path / "one.zarr"), X, zarr_format=version)
    np.testing.assert_array_equal(read_embeddings(tmp_path / "one.zarr").vectors, X)


def test_what_a_zarr_must_not_do(tmp_path, here):
    numcodecs = pytest.importorskip("numcodecs")

    class Runs:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "was_run"),)

    path = write_group(tmp_path / "a.zarr", 2)
    facts = json.loads((path / "ids" / ".zarray").read_text())
    facts["filters"] = [{"id": "pickle", "protocol": 5}]
    (path / "ids" / ".zarray").write_text(json.dumps(facts | {"compressor": None, "chunks": [40]}))
    shutil.rmtree(path / "ids" / "c", ignore_errors=True)
    (path / "ids" / "0").write_bytes(numcodecs.Pickle().encode(np.array([Runs()] * 40, object)))
    with pytest.raises(errors.CongruenceError, match="pickled|damaged"):
        read_column(f"{path}:ids")
    assert not (tmp_path / "was_run").exists()
    shutil.rmtree(path)
    write_group(path, 3)
    OrthogonalMap().fit(X, X[:, ::-1]).save(tmp_path / "map")
    meta = path / "obsm" / "pca" / "zarr.json"
    good = json.loads(meta.read_text())
    for change in (
        {"shape": [10**13, 6], "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [10**13, 6]}}},
        {"shape": [10**9, 6]},
        {"shape": [-1, 6]},
        {"data_type": "nothing"},
        {"data_type": "complex64"},
        {"codecs": []},
        {"node_type": "group"},
    ):
        meta.write_text(json.dumps(good | change))
        done = here("transform", "map", f"{path}:obsm/pca", "-o", "out.npy").ends(2)
        assert len(done.err.strip().splitlines()) == 1
        assert not (tmp_path / "out.npy").exists()
    meta.write_text(json.dumps(good))
    chunk = next(file for file in (path / "obsm" / "pca" / "c").rglob("*") if file.is_file())
    raw = chunk.read_bytes()
    for data in (raw[:-3], b"", raw[:4] + b"\xff" * 8 + raw[12:]):
        chunk.write_bytes(data)
        here("transform", "map", f"{path}:obsm/pca", "-o", "out.npy").ends(2)
        assert not (tmp_path / "out.npy").exists()
    assert "No file at" in here("inspect", "none.zarr").ends(2).err
