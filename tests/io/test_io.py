import json
import sys
import zipfile

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from written import KEEPS_IDS, WRITTEN, as_held, write, write_large

from congruence import Space, errors
from congruence.io import matrices, open_sink, open_source, read_column, read_embeddings
from fresh import run_fresh

RNG = np.random.default_rng(0)
SUFFIXES = WRITTEN
SPACE = Space("model/x", "rev", "image")


def gather(source, after=0, batch=5):
    blocks = list(source.scan(after, batch))
    assert all(len(block) <= batch for _, block in blocks)
    assert all(block.flags.c_contiguous and block.flags.writeable for _, block in blocks)
    ids = [name for names, _ in blocks if names is not None for name in names.to_pylist()]
    return ids, np.concatenate([block for _, block in blocks]) if blocks else np.empty((0, source.dim))


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_what_is_written_is_read(suffix, dtype, tmp_path):
    if as_held(suffix, dtype) is None:
        with pytest.raises(errors.DtypeError, match="holds float32"):
            open_sink(tmp_path / f"v{suffix}", n=1, dim=1, dtype=dtype)
        return
    X = RNG.standard_normal((23, 6)).astype(dtype)
    ids = [f"Bild {k} ü" for k in range(23)] if suffix in KEEPS_IDS else None
    source = open_source(write(tmp_path / f"v{suffix}", X, ids, space=SPACE))
    assert (source.n, source.dim, source.has_ids) == (23, 6, ids is not None)
    assert source.space == SPACE
    names, back = gather(source)
    assert names == (ids or [])
    assert back.dtype == as_held(suffix, dtype)
    assert np.array_equal(back.astype(dtype), X)
    for after in (0, 1, 7, 22, 23):
        assert np.array_equal(gather(source, after)[1].astype(dtype), X[after:])
        assert gather(source, after)[0] == (ids or [])[after:]
    embeddings = source.read()
    assert np.array_equal(embeddings.vectors.astype(dtype), X)
    assert embeddings.has_ids == (ids is not None)
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith(".")) == []


@pytest.mark.parametrize("suffix", SUFFIXES)
@given(n=st.integers(1, 30), d=st.integers(1, 5), after=st.integers(0, 30), batch=st.integers(1, 12))
def test_a_scan_may_start_anywhere_in_any_steps(suffix, n, d, after, batch, tmp_path_factory):
    X = np.random.default_rng(n * d).standard_normal((n, d)).astype(np.float32)
    path = write(
        tmp_path_factory.mktemp("s") / f"v{suffix}",
        X,
        parts=[("a_1.npy", n // 3), ("a_2.npy", n - n // 3)] if n > 3 else None,
    )
    assert np.array_equal(gather(open_source(path), min(after, n), batch)[1].astype(np.float32), X[after:])


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_output_is_whole_or_absent(suffix, tmp_path):
    X = RNG.standard_normal((10, 3)).astype(np.float32)
    path = tmp_path / f"v{suffix}"
    sink = open_sink(path, n=10, dim=3)
    with pytest.raises(RuntimeError, match="half way"), sink:
        sink.write(None, X[:5])
        raise RuntimeError("half way")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(errors.StorageError, match="5 of 10 announced"), open_sink(path, n=10, dim=3) as sink:
        sink.write(None, X[:5])
    assert list(tmp_path.iterdir()) == []
    write(path, X)
    with pytest.raises(errors.OutputExistsError, match="force=True"), open_sink(path, n=10, dim=3):
        pytest.fail("an existing output must be refused before anything is written")
    with pytest.raises(KeyboardInterrupt), open_sink(path, n=10, dim=3, force=True) as sink:
        sink.write(None, X[:5] * 0)
        raise KeyboardInterrupt
    assert np.array_equal(gather(open_source(path))[1].astype(np.float32), X)
    write(path, X * 2, force=True)
    assert np.array_equal(gather(open_source(path))[1].astype(np.float32), X * 2)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


FULL_DISK = """
import resource, signal, sys
import numpy as np
from congruence.errors import StorageError
from congruence.io import open_sink
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
X = np.random.default_rng(0).standard_normal((4096, 64)).astype(np.float32)
try:
    with open_sink(sys.argv[1], n=len(X) * 20, dim=64) as sink:
        for _ in range(20):
            sink.write(None, X)
except StorageError as error:
    print("refused:", error)
"""


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_full_disk_leaves_nothing_behind(suffix, tmp_path):
    path = tmp_path / f"v{suffix}"
    run = run_fresh(FULL_DISK, path)
    assert f"refused: Got an error from the disk while writing {path} (" in run.stdout, run.stderr[-2000:]
    assert list(tmp_path.iterdir()) == []


def test_numpys_own_files_in_every_order_and_type(tmp_path):
    X = RNG.standard_normal((17, 5))
    arrays = {"c": X, "fortran": np.asfortranarray(X), "big": X.astype(">f4"), "half": X.astype("f2")}
    arrays |= {"ints": (X * 10).astype(np.int8), "bool": X > 0}
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
        expected = array.astype(float) if array.dtype.kind in "ib" else array
        for after in (0, 4):
            assert np.array_equal(gather(open_source(tmp_path / f"{name}.npy"), after)[1], expected[after:])
        np.savez(tmp_path / f"{name}.npz", v=array)
        np.savez_compressed(tmp_path / f"{name}_deflated.npz", v=array, one_dimensional=X[0])
        for stem in (name, f"{name}_deflated"):
            for after in (0, 4):
                assert np.array_equal(gather(open_source(tmp_path / f"{stem}.npz:v"), after)[1], expected[after:])


def test_the_only_matrix_needs_no_name(tmp_path):
    X = RNG.standard_normal((4, 3))
    np.savez(tmp_path / "a.npz", v=X, names=np.array(list("abcd")))
    assert open_source(tmp_path / "a.npz").n == 4
    assert read_embeddings(tmp_path / "a.npz", ids="names").ids.tolist() == list("abcd")
    np.savez(tmp_path / "b.npz", v=X, w=X, ids=np.array(list("abcd")))
    with pytest.raises(errors.ParameterError, match=r"contains v \(4, 3\), w \(4, 3\), ids \(4,\)"):
        open_source(tmp_path / "b.npz")
    with pytest.raises(errors.ParameterError, match="'z'"):
        open_source(f"{tmp_path}/b.npz:z")
    assert read_embeddings(f"{tmp_path}/b.npz:w").ids.tolist() == list("abcd")
    assert not read_embeddings(f"{tmp_path}/b.npz:w", ids=False).has_ids


def test_safetensors_of_the_reference_library(tmp_path):
    torch = pytest.importorskip("torch", reason="the lowest versions are tested without torch")
    from safetensors.numpy import load_file, save_file
    from safetensors.torch import save_file as save_torch

    X = RNG.standard_normal((9, 4)).astype(np.float32)
    for dtype in (np.float16, np.float32, np.float64, np.int32):
        save_file({"v": X.astype(dtype), "n": np.arange(9)}, tmp_path / "a.safetensors")
        assert np.array_equal(gather(open_source(tmp_path / "a.safetensors"))[1], X.astype(dtype))
    bfloat = torch.tensor(X).to(torch.bfloat16)
    save_torch({"v": bfloat}, tmp_path / "b.safetensors")
    out = gather(open_source(tmp_path / "b.safetensors"))[1]
    assert out.dtype == np.float32
    assert np.array_equal(out, bfloat.float().numpy())
    assert read_column(f"{tmp_path}/a.safetensors:n").tolist() == [str(k) for k in range(9)]
    write(tmp_path / "c.safetensors", X)
    assert np.array_equal(load_file(tmp_path / "c.safetensors")["vectors"], X)


def test_our_files_open_elsewhere(tmp_path):
    X = RNG.standard_normal((9, 4)).astype(np.float32)
    ids = list("abcdefghi")
    assert np.array_equal(np.load(write(tmp_path / "a.npy", X)), X)
    with np.load(write(tmp_path / "a.npz", X, ids)) as data:
        assert np.array_equal(data["vectors"], X)
        assert data["ids"].tolist() == ids
    table = pq.read_table(write(tmp_path / "a.parquet", X, ids))
    assert table.schema.field("vector").type == pa.list_(pa.float32(), 4)
    frame = pd.read_parquet(tmp_path / "a.parquet")
    assert np.array_equal(np.stack(frame["vector"]), X)
    assert frame["id"].tolist() == ids
    assert np.array_equal(pd.read_csv(write(tmp_path / "a.csv", X, ids))["v1"].to_numpy(np.float32), X[:, 1])
    frame = pd.read_json(write(tmp_path / "a.jsonl", X, ids), lines=True)
    assert np.array_equal(np.stack(frame["vector"]).astype("f4"), X)
    import h5py

    with h5py.File(write(tmp_path / "a.h5", X, ids)) as file:
        assert np.array_equal(file["vectors"][:], X)
        assert file["ids"].asstr()[0] == "a"


@pytest.mark.parametrize("kind", ["fixed", "variable", "large"])
@pytest.mark.parametrize("value", [pa.float16(), pa.float32(), pa.float64(), pa.int64()])
def test_parquet_lists_of_every_kind_sliced_and_grouped(kind, value, tmp_path):
    X = (RNG.standard_normal((50, 4)) * 5).astype(value.to_pandas_dtype())
    X[:, 0] = 1  # whole numbers could all be 0
    flat = pa.array(X.reshape(-1), value)
    if kind == "fixed":
        lists = pa.FixedSizeListArray.from_arrays(flat, 4)
    else:
        offsets = np.arange(0, 201, 4)
        maker = pa.ListArray if kind == "variable" else pa.LargeListArray
        lists = maker.from_arrays(pa.array(offsets, pa.int32() if kind == "variable" else pa.int64()), flat)
    table = pa.table({"key": pa.array(range(50)), "v": lists, "id": pa.array([f"i{k}" for k in range(50)])}).slice(10)
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=7)
    source = open_source(tmp_path / "a.parquet")
    for after in (0, 6, 7, 20, 39):
        ids, back = gather(source, after)
        assert np.array_equal(back, X[10 + after :])
        assert ids == [f"i{k}" for k in range(10 + after, 50)]
    assert read_embeddings(tmp_path / "a.parquet", ids="key").ids[0] == 10


def test_csv_and_jsonl_edited_by_hand(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('id,note,v0,v1\n"a, b",x,1,2\nc,y,3,4e-1\n')
    assert read_embeddings(f"{path}:v").ids.tolist() == ["a, b", "c"]
    assert read_embeddings(f"{path}:v", ids="note").ids.tolist() == ["x", "y"]
    assert read_embeddings(f"{path}:v").vectors.tolist() == [[1, 2], [3, 0.4]]
    assert read_column(f"{path}:note").tolist() == ["x", "y"]
    path = tmp_path / "a.jsonl"
    path.write_text('{"id": 7, "embedding": [1, 2]}\n\n{"id": 8, "embedding": [3, 4]}\n')
    assert read_embeddings(path).ids.tolist() == [7, 8]
    for line, error, words in (
        ('{"id": 9, "embedding": [1]}', errors.ShapeError, "1 numbers in line 4"),
        ('{"id": 9, "embedding": "x"}', errors.DtypeError, "line 4"),
        ('{"id": 9}', errors.ParameterError, "'embedding'"),
        ('{"embedding": [1, 2]}', errors.IdError, r"missing in 1 row \(2\)"),
        ("{", errors.CorruptFileError, "Line 4"),
        ("[1]", errors.CorruptFileError, "not a JSON object"),
    ):
        path.write_text('{"id": 7, "embedding": [1, 2]}\n\n{"id": 8, "embedding": [3, 4]}\n' + line)
        with pytest.raises(error, match=words):
            read_embeddings(path)


def test_parts_come_in_natural_order_and_keep_their_names(tmp_path):
    X = RNG.standard_normal((33, 4)).astype(np.float32)
    folder = tmp_path / "in"
    folder.mkdir()
    for k in range(11):
        np.save(folder / f"part_{k}.npy", X[3 * k : 3 * k + 3])
    source = open_source(folder)
    assert np.array_equal(gather(source)[1], X)
    assert source.parts[10] == ("part_10.npy", 3)
    out = write(tmp_path / "out", X * 2, parts=source.parts)
    assert sorted(p.name for p in out.iterdir()) == sorted([*(f"part_{k}.npy" for k in range(11)), "space.json"])
    assert np.array_equal(np.load(out / "part_10.npy"), X[30:] * 2)
    np.save(folder / "part_5.npy", X[:3, :2])
    with pytest.raises(errors.ShapeError, match=r"width 2 in .*part_5"):
        open_source(folder)


def test_the_layout_of_clip_retrieval(tmp_path):
    X = RNG.standard_normal((5, 4)).astype(np.float16)
    for name in ("img_emb", "text_emb", "metadata"):
        (tmp_path / name).mkdir()
    for k, rows in enumerate((slice(0, 3), slice(3, 5))):
        np.save(tmp_path / f"img_emb/img_emb_{k}.npy", X[rows])
        np.save(tmp_path / f"text_emb/text_emb_{k}.npy", -X[rows])
        frame = pd.DataFrame({"image_path": [f"{i}.jpg" for i in range(5)][rows], "caption": "c"})
        frame.to_parquet(tmp_path / f"metadata/metadata_{k}.parquet")
    image = read_embeddings(f"{tmp_path}:img_emb", ids="image_path")
    assert image.ids.tolist() == [f"{i}.jpg" for i in range(5)]
    assert np.array_equal(image.vectors, X)
    assert np.array_equal(read_embeddings(tmp_path / "text_emb", ids="image_path").vectors, -X)
    assert gather(open_source(f"{tmp_path}:img_emb", ids="image_path"), 2, 2)[0] == ["2.jpg", "3.jpg", "4.jpg"]
    with pytest.raises(errors.ParameterError, match="img_emb .*metadata .*text_emb"):
        open_source(tmp_path)
    np.save(tmp_path / "img_emb/img_emb_1.npy", X[3:4])
    with pytest.raises(errors.ShapeError, match="2 rows in .* and 1 in"):
        open_source(f"{tmp_path}:img_emb", ids="image_path")


def test_what_the_caller_knows_of_the_space_wins(tmp_path):
    write(tmp_path / "a.npy", np.eye(3), space=SPACE)
    source = open_source(tmp_path / "a.npy", space=Space("other"))
    assert (source.space.model, source.space.modality) == ("other", "image")
    write(tmp_path / "a.npy", np.eye(3), force=True)
    assert open_source(tmp_path / "a.npy").space == Space()  # no description of the file that was replaced


def test_arrays_that_need_pickle_are_never_loaded(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (pytest.fail, ("a pickle was executed",))

    np.save(tmp_path / "a.npy", np.array([[Bomb()]], dtype=object), allow_pickle=True)
    with pytest.raises(errors.DtypeError, match="objects"):
        read_embeddings(tmp_path / "a.npy")
    with pytest.raises(errors.DtypeError, match="pickle"):
        read_column(tmp_path / "a.npy")
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.write(tmp_path / "a.npy", "v.npy")
        archive.write(tmp_path / "a.npy", "names.npy")
    with pytest.raises(errors.DtypeError, match="objects"):
        read_embeddings(f"{tmp_path}/a.npz:v")


def test_arrays_that_are_no_embeddings(tmp_path):
    shapes, types = [np.ones(3), np.ones((2, 2, 2)), np.ones((0, 3))], [np.array([["a"]]), np.ones((2, 2), complex)]
    for array in (*shapes, *types):
        np.save(tmp_path / "a.npy", array)
        np.savez(tmp_path / "a.npz", v=array)
        for spec in (f"{tmp_path}/a.npy", f"{tmp_path}/a.npz:v"):
            with pytest.raises(errors.ShapeError if array.dtype == np.float64 else errors.DtypeError):
                open_source(spec)


def test_missing_files_and_unknown_kinds(tmp_path):
    for suffix in SUFFIXES[:-1]:
        with pytest.raises(errors.FileError, match="No file at"):
            open_source(tmp_path / f"none{suffix}")
    with pytest.raises(errors.ParameterError, match=r"one of \.npy, \.npz"):
        open_source(tmp_path / "a.pkl")
    with pytest.raises(errors.ParameterError):
        read_column(tmp_path / "a.pkl")
    np.save(tmp_path / "a.npy", np.eye(3))
    with pytest.raises(errors.ParameterError, match="holds one array"):
        open_source(f"{tmp_path}/a.npy:key")
    with pytest.raises(errors.FileError, match="No folder"), open_sink(tmp_path / "no/where.npy", n=1, dim=1):
        pytest.fail("there is no such folder")
    with pytest.raises(errors.DtypeError):
        open_sink(tmp_path / "a.npy", n=1, dim=1, dtype=np.int32)


@pytest.mark.parametrize(("suffix", "module", "extra"), [(".h5", "h5py", "hdf5"), (".lance", "lance", "lance")])
def test_some_formats_need_an_extra(suffix, module, extra, tmp_path, monkeypatch):
    path = write(tmp_path / f"a{suffix}", np.eye(3))
    assert suffix in SUFFIXES
    monkeypatch.setitem(sys.modules, module, None)
    for call in (lambda: open_source(path), lambda: write(tmp_path / f"b{suffix}", np.eye(3))):
        with pytest.raises(errors.MissingExtraError, match=rf"congruence\[{extra}\]"):
            call()
    assert list(tmp_path.iterdir()) == [path]


SCAN = """
import re, sys
from congruence.io import open_source
source = open_source(sys.argv[1])
peak = lambda: int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
before = peak()
rows = sum(len(block) for _, block in source.scan())
print(rows, peak() - before)
"""


@pytest.mark.long
@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors", ".parquet", ".h5", ".lance"])
def test_a_scan_needs_little_memory(suffix, tmp_path):
    path = tmp_path / f"v{suffix}"
    # Parquet keeps a row group or so (64 MB) and its decoded pages, Lance what it reads ahead; the others hold a block
    # or two.
    limit = {".parquet": 150_000, ".lance": 250_000}.get(suffix, 60_000)
    blocks = write_large(path, limit)  # a file larger than what reading it may take
    out = run_fresh(SCAN, path).stdout.split()
    assert int(out[0]) == 4096 * blocks
    assert int(out[1]) < limit


def test_real_archives(lvis_path):
    source = open_source(f"{lvis_path}:text_eva02_b16", ids="names")
    assert (source.n, source.dim, source.dtype) == (1203, 512, np.float32)
    embeddings = source.read()
    assert embeddings.space.normalized
    with np.load(lvis_path, allow_pickle=False) as data:
        assert np.array_equal(embeddings.vectors, data["text_eva02_b16"])
        assert json.dumps(embeddings.ids.tolist()) == json.dumps(data["names"].tolist())


def test_matrices_are_named_in_natural_order(tmp_path):
    import h5py
    import lance
    from safetensors.numpy import save_file

    X = RNG.standard_normal((6, 3))
    arrays = {"layer_10": X, "layer_2": 2 * X, "deep/layer_1": 3 * X, "ids": np.arange(6), "cube": np.ones((2, 2, 2))}
    np.savez(tmp_path / "a.npz", **{key: array for key, array in arrays.items() if "/" not in key})
    save_file(arrays, tmp_path / "a.safetensors", metadata={"made": "here"})
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for key, array in arrays.items():
            file[key] = array
    table = pa.table({"id": list("abcdef"), "layer_10": list(X), "layer_2": list(2 * X)})
    pq.write_table(table, tmp_path / "a.parquet")
    lance.write_dataset(table, tmp_path / "ä b%20.lance")
    deep_ones = {"a.safetensors", "a.h5"}
    for name in ("a.npz", "a.safetensors", "a.h5", "a.parquet", "ä b%20.lance"):
        deep = ["deep/layer_1"] if name in deep_ones else []
        found = matrices(tmp_path / name)
        assert list(found) == [*deep, "layer_2", "layer_10"]
        np.testing.assert_array_equal(read_embeddings(found["layer_2"]).vectors, 2 * X)
        assert list(matrices(f"{tmp_path / name}:layer_1*")) == ["layer_10"]
        assert matrices(f"{tmp_path / name}:layer_2") == {"layer_2": f"{tmp_path / name}:layer_2"}
        with pytest.raises(errors.ParameterError, match=r"no matrix that matches 'x\*'.*layer_10"):
            matrices(f"{tmp_path / name}:x*")


def test_matrices_of_a_folder_are_its_files(tmp_path):
    X = RNG.standard_normal((6, 3))
    for name in ("b10.npy", "b9.npy"):
        np.save(tmp_path / name, X)
    pd.DataFrame(X).to_csv(tmp_path / "b9.csv", index=False)
    (tmp_path / "space.json").write_text("{}")
    (tmp_path / "README").write_text("words")
    (tmp_path / ".hidden.npy").write_text("")
    assert list(matrices(tmp_path)) == ["b9.csv", "b9.npy", "b10"]
    assert list(matrices(f"{tmp_path}:*.npy")) == ["b9.npy"]
    assert matrices(tmp_path / "b10.npy") == {"b10": str(tmp_path / "b10.npy")}
    with pytest.raises(errors.ParameterError, match="no matrix"):
        matrices(f"{tmp_path}:none*")
    with pytest.raises(errors.FileError):
        matrices(tmp_path / "none.npz")
    with pytest.raises(errors.ParameterError, match="matrices"):
        matrices(tmp_path / "notes.md")


def test_a_damaged_npz_member_is_noticed(tmp_path):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, v=np.arange(40_000.0).reshape(-1, 8))
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 255
    path.write_bytes(bytes(raw))
    with pytest.raises(errors.CorruptFileError):
        read_embeddings(path)


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors", ".parquet", ".h5", ".csv", ".jsonl"])
def test_rubbish_is_refused(suffix, tmp_path):
    path = tmp_path / f"v{suffix}"
    path.write_bytes(bytes(range(128, 256)) * 40)
    with pytest.raises((errors.CorruptFileError, errors.ShapeError, errors.DtypeError)):
        read_embeddings(path)
