"""Readers return rows or raise an error of this library's hierarchy, whatever a file contains; see also tests/fuzz."""

import json
import sys
import zipfile

import h5py
import lance
import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from written import KEEPS_IDS, WRITTEN, write

from congruence import OrthogonalMap, Space, errors
from congruence.embed.inputs import open_items
from congruence.io import contents, matrices, open_sink, open_source, parse_spec, read_column, read_embeddings, suffixes
from congruence.io.ids import column_texts

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True, scope="module")
def _little_patience():
    """A damaged file may make libhdf5 loop forever; the tests use a shorter time limit than large files need."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("congruence.io.hdf5._PATIENCE", 5.0)
        yield


IDS = [f"i{k}" for k in range(40)]
X = RNG.standard_normal((40, 4)).astype(np.float32)


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors", ".parquet", ".h5"])
def test_every_truncation_is_noticed(suffix, tmp_path):
    path = write(tmp_path / f"v{suffix}", X, ids=IDS)
    raw = path.read_bytes()
    for keep in np.linspace(0, len(raw) - 1, 60).astype(int):
        path.write_bytes(raw[:keep])
        with pytest.raises(errors.CorruptFileError):
            read_embeddings(path)


def test_a_truncated_array_is_refused_before_memory_is_asked_for(tmp_path):
    with open(tmp_path / "a.npy", "wb") as stream:
        header = {"descr": "<f4", "fortran_order": False, "shape": (10**12, 768)}
        np.lib.format.write_array_header_1_0(stream, header)
    for read in (open_source, read_embeddings):
        with pytest.raises(errors.CorruptFileError, match="truncated"):
            read(tmp_path / "a.npy")
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.write(tmp_path / "a.npy", "v.npy")
    with pytest.raises(errors.CorruptFileError, match="truncated"):
        open_source(tmp_path / "a.npz")
    header = json.dumps({"v": {"dtype": "F32", "shape": [10**12, 768], "data_offsets": [0, 8]}}).encode()
    (tmp_path / "a.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(errors.CorruptFileError, match="invalid shape, data type, or offset"):
        open_source(tmp_path / "a.safetensors")


def test_numbers_of_any_length_take_linear_time(tmp_path, here):
    text = "9" * 100_000 + "x"
    (tmp_path / "a.csv").write_text(f"id,v0,v1\na,1,{text}\n")
    with pytest.raises(errors.DtypeError, match="column 'v1'"):
        open_source(tmp_path / "a.csv")
    (tmp_path / "a.vec").write_text(f"a 1 {text}\nb 1 2\n")
    with pytest.raises(errors.CongruenceError):
        read_embeddings(tmp_path / "a.vec")


def test_texts_that_are_not_unicode_in_json(tmp_path, here):
    (tmp_path / "a.json").write_text('[{"a": "\\ud800", "vector": [1, 2.5]}]')
    assert contents(tmp_path / "a.json") == {"vectors": "1 × 2", "a": "1"}


def test_folders_and_files_in_each_others_place(tmp_path):
    (tmp_path / "d.txt").mkdir()
    with pytest.raises(errors.FileError, match="folder"):
        read_column(tmp_path / "d.txt")
    with pytest.raises(errors.ParameterError, match="no .npy, .parquet or .arrow parts"):
        open_source(tmp_path)


def test_a_bad_description_of_the_space(tmp_path):
    write(tmp_path / "a.npy", X)
    facts = [{"dim": "x"}, {"dim": True}, {"modality": "smell"}, {"model": 3}, {"normalized": "yes"}, {"revision": [1]}]
    for text in ("[1]", "{", *map(json.dumps, facts)):
        (tmp_path / "a.npy.space.json").write_text(text)
        with pytest.raises(errors.CorruptFileError, match=r"description of the space.*a\.npy\.space\.json"):
            read_embeddings(tmp_path / "a.npy")
    (tmp_path / "a.npy.space.json").write_text('{"dim": 9}')
    with pytest.raises(errors.CongruenceError, match="a space with dim=9"):
        read_embeddings(tmp_path / "a.npy")
    (tmp_path / "a.npy.space.json").write_bytes(b"\xff\xfe{")
    with pytest.raises(errors.CorruptFileError):
        read_embeddings(tmp_path / "a.npy")


@pytest.mark.parametrize("suffix", WRITTEN)
def test_sinks_refuse_what_was_not_announced(suffix, tmp_path):
    path = tmp_path / f"v{suffix}"
    for block in (X[:, :3], X[:, [0, 1, 2, 3, 0]], X[:, 0], np.vstack([X, X[:1]])):
        with pytest.raises(errors.ShapeError, match="40 × 4"), open_sink(path, n=40, dim=4) as sink:
            sink.write(None, block)
    for ids in (None, pa.array(IDS[:3]), pa.array([*IDS[:-1], None])):
        with pytest.raises(errors.IdError, match="one per row"), open_sink(path, n=40, dim=4, has_ids=True) as sink:
            sink.write(ids, X)
    with pytest.raises(errors.DtypeError, match="range of float16"), open_sink(path, n=1, dim=1, dtype="f2") as sink:
        sink.write(None, np.array([[1e6]]))
    for n, dim in ((0, 4), (4, 0), (-1, 4), (2.5, 4)):
        with pytest.raises(errors.ParameterError):
            open_sink(path, n=n, dim=dim)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", KEEPS_IDS)
def test_ids_are_left_out_when_not_announced_or_not_asked_for(suffix, tmp_path):
    assert not read_embeddings(write(tmp_path / f"n{suffix}", X, ids=IDS), ids=False).has_ids
    with open_sink(tmp_path / f"o{suffix}", n=40, dim=4) as sink:
        sink.write(pa.array(IDS), X)
    assert not open_source(tmp_path / f"o{suffix}").has_ids


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".csv", ".jsonl"])
def test_the_description_beside_a_file_shares_its_fate(suffix, tmp_path):
    path, beside = tmp_path / f"v{suffix}", tmp_path / f"v{suffix}.space.json"
    write(path, X, space=Space("one"))
    before = beside.read_text()
    with pytest.raises(KeyboardInterrupt), open_sink(path, n=9, dim=4, space=Space("two"), force=True) as sink:
        sink.write(None, X[:5])
        raise KeyboardInterrupt
    assert beside.read_text() == before
    write(path, X, space=Space("two"), force=True)
    assert open_source(path).space == Space("two")
    assert sorted(p.name for p in tmp_path.iterdir()) == [path.name, beside.name]
    write(path, X, force=True)
    assert not beside.exists()


def test_parts_must_add_up_and_may_be_taken_from_a_source(tmp_path):
    with pytest.raises(errors.ParameterError, match="39 rows in total"):
        write(tmp_path / "o", X, parts=[("a", 30), ("b", 9)])
    (tmp_path / "in").mkdir()
    np.save(tmp_path / "in" / "img_emb_0.npy", X)
    write(tmp_path / "out", X, parts=open_source(tmp_path / "in").parts)
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["img_emb_0.npy", "space.json"]
    write(tmp_path / "cut", X, parts=open_source(tmp_path / "in" / "img_emb_0.npy").parts)
    assert sorted(p.name for p in (tmp_path / "cut").iterdir()) == ["part_0.npy", "space.json"]


def test_keys_may_hold_slashes_and_colons(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["g/v"], file["g/names"], file["w"] = X, IDS, X
    assert read_embeddings(f"{tmp_path}/a.h5:g/v", ids="g/names").ids.tolist() == IDS
    assert open_source(f"{tmp_path}/a.h5:/g/v").n == 40
    np.savez(tmp_path / "a.npz", **{"x/y": X, "c:d": X[:7]})
    assert open_source(f"{tmp_path}/a.npz:x/y").n == 40
    assert open_source(f"{tmp_path}/a.npz:c:d").n == 7
    assert parse_spec("no/such.h5:g/v") == ("no/such.h5", "g/v")
    assert parse_spec("C:\\x.npz:k") == ("C:\\x.npz", "k")
    assert parse_spec("x.npy:") == ("x.npy:", None)
    assert parse_spec("C:\\x.npz") == ("C:\\x.npz", None)
    assert parse_spec("dir/x.npy") == ("dir/x.npy", None)
    np.save(tmp_path / "a:b.npy", X)
    assert parse_spec(tmp_path / "a:b.npy") == (str(tmp_path / "a:b.npy"), None)
    assert open_source(tmp_path / "a:b.npy").n == 40


def test_a_missing_key_lists_what_there_is(tmp_path):
    write(tmp_path / "a.safetensors", X)
    write(tmp_path / "a.h5", X, ids=IDS)
    for suffix in (".safetensors", ".h5"):
        with pytest.raises(errors.ParameterError, match=r"vectors \(40, 4\)"):
            open_source(f"{tmp_path}/a{suffix}:z")
    with pytest.raises(errors.ParameterError, match=r"vector fixed_size_list<.*float.*>\[4\]"):
        open_source(f"{write(tmp_path / 'a.parquet', X)}:z")
    for path in (write(tmp_path / "b.parquet", X, ids=IDS), write(tmp_path / "b.csv", X, ids=IDS)):
        with pytest.raises(errors.ParameterError, match="'z'"):
            open_source(path, ids="z")
        with pytest.raises(errors.ParameterError, match="'z'"):
            read_column(f"{path}:z")


def test_ids_that_cannot_be(tmp_path):
    write(tmp_path / "a.npy", X)
    (tmp_path / "n.txt").write_text("\n".join(IDS))
    assert read_embeddings(tmp_path / "a.npy", ids=tmp_path / "n.txt").ids.tolist() == IDS
    np.save(tmp_path / "n.npy", np.arange(40))
    assert read_embeddings(tmp_path / "a.npy", ids=str(tmp_path / "n.npy")).ids.tolist() == list(range(40))
    (tmp_path / "n.txt").write_text("a\nb\n")
    with pytest.raises(errors.IdError, match="2 ids for 40 rows"):
        open_source(tmp_path / "a.npy", ids=tmp_path / "n.txt")
    with pytest.raises(errors.ParameterError, match="holds one array"):
        open_source(tmp_path / "a.npy", ids="names")
    with pytest.raises(errors.FileError, match=r"No file at nothing\.txt"):
        open_source(tmp_path / "a.npy", ids="nothing.txt")
    with pytest.raises(errors.ParameterError, match="ids=True"):
        open_source(tmp_path / "a.npy", ids=True)
    np.savez(tmp_path / "a.npz", v=X, ids=np.array(IDS, dtype=object))
    with pytest.raises(errors.DtypeError, match="pickle"):
        open_source(tmp_path / "a.npz")
    assert not open_source(tmp_path / "a.npz", ids=False).has_ids
    np.savez(tmp_path / "b.npz", v=X, ids=np.array([f"ü{k}".encode() for k in range(40)]))
    assert read_embeddings(tmp_path / "b.npz").ids[0] == "ü0"
    pq.write_table(pa.table({"id": [b"\xff"], "v": [[1.0]]}), tmp_path / "c.parquet")
    with pytest.raises(errors.CorruptFileError):
        read_embeddings(tmp_path / "c.parquet")


def test_columns_that_cannot_be(tmp_path):
    np.save(tmp_path / "a.npy", np.array(IDS))
    for spec, error in (
        (f"{tmp_path}/a.npy:k", errors.ParameterError),
        (f"{write(tmp_path / 'b.npy', X)}", errors.ShapeError),
        (f"{write(tmp_path / 'c.npz', X)}:vectors", errors.ParameterError),
        (f"{tmp_path}/none.csv:k", errors.FileError),
    ):
        with pytest.raises(error):
            read_column(spec)
    (tmp_path / "a.txt").write_text("a\x0cb\nc\u2028d\n\n", encoding="utf-8")
    assert read_column(tmp_path / "a.txt").tolist() == ["a\x0cb", "c\u2028d", ""]
    with pytest.raises(errors.ParameterError, match="expected none"):
        read_column(f"{tmp_path}/a.txt:k")


@pytest.mark.parametrize("suffix", [".parquet", ".lance"])
def test_a_row_of_a_table_is_named_by_number_and_id(suffix, tmp_path):
    def save(**columns):
        path, table = tmp_path / f"{len(list(tmp_path.iterdir()))}{suffix}", pa.table(columns)
        pq.write_table(table, path) if suffix == ".parquet" else lance.write_dataset(table, path)
        return path

    for rows, kind, words in (
        ([[1.0, 2.0], [3.0]], pa.list_(pa.float64()), r"1 numbers in row 1 \(id 'b'\)"),
        ([[1.0, 2.0], None], pa.list_(pa.float32(), 2), r"missing vector in row 1 \(id 'b'\)"),
        ([[1.0, 2.0], [1.0, None]], pa.list_(pa.float64()), r"missing numbers in row 1 \(id 'b'\)"),
        ([[1.0, 2.0], [1.0, None]], pa.list_(pa.float32(), 2), r"missing numbers in row 1 \(id 'b'\)"),
        ([None, [1.0]], pa.list_(pa.float64()), "missing vector in row 0"),
        ([[], [1.0]], pa.list_(pa.float64()), "empty vector in row 0"),
    ):
        path = save(id=["a", "b"], v=pa.array(rows, kind))
        with pytest.raises(errors.ShapeError, match=words):
            read_embeddings(path)
    with pytest.raises(errors.DtypeError, match="lists of string"):
        open_source(save(v=[["a"]]))


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("1.5,2\n3,4\n", errors.ParameterError, "numbers in the first line"),
        ("id,note,v0\na,x,1\n", errors.DtypeError, "'x' in line 2, column 'note'"),
        ("v0,v1\n1,2\n3\n", errors.ShapeError, "1 cells in line 3"),
        (",a,b\n0,1,2\n", errors.ParameterError, "without a name"),
        ("id,a\nx,1_0\n", errors.DtypeError, "'1_0' in line 2, column 'a'"),
        ('id,a\n"x\ny",1\nz,?\n', errors.DtypeError, "'[?]' in line 4"),
        ("id,a\n", errors.ShapeError, "no vectors"),
        ("", errors.ShapeError, "is empty"),
    ],
)
def test_a_csv_that_cannot_be(text, error, words, tmp_path):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(error, match=words):
        read_embeddings(tmp_path / "a.csv")


def test_a_csv_of_a_spreadsheet_and_of_pandas(tmp_path):
    (tmp_path / "a.csv").write_text("\ufeffid,a\nx,1\n", encoding="utf-8")
    assert read_embeddings(tmp_path / "a.csv").ids.tolist() == ["x"]
    (tmp_path / "a.csv").write_text("0,1\n1,2\n")
    assert read_embeddings(tmp_path / "a.csv").vectors.tolist() == [[1, 2]]
    (tmp_path / "a.csv").write_text("id,a,b\nx,1,2\n")
    assert read_embeddings(tmp_path / "a.csv", ids=False).vectors.tolist() == [[1, 2]]
    (tmp_path / "a.csv").write_text("a,b\n1,2\n3\n")
    with pytest.raises(errors.ShapeError, match="line 3"):
        read_column(f"{tmp_path}/a.csv:b")


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ('{"vector": [true, 1]}', errors.DtypeError),
        ('{"vector": [1' + "0" * 400 + "]}", errors.DtypeError),
        ('{"id": null, "vector": [1]}', errors.IdError),
        ('{"x": [1], "y": [1]}', errors.ParameterError),
        ('{"vector": ' + "[" * 100_000, errors.CorruptFileError),
        ('{"vector": []}', errors.ShapeError),
    ],
)
def test_a_jsonl_that_cannot_be(line, error, tmp_path):
    (tmp_path / "a.jsonl").write_text(line + "\n")
    with pytest.raises(error):
        read_embeddings(tmp_path / "a.jsonl")


def test_metadata_belongs_to_the_part_of_its_number(tmp_path):
    for name in ("img_emb", "metadata"):
        (tmp_path / name).mkdir()
    for k in (0, 2):
        np.save(tmp_path / f"img_emb/img_emb_{k:02}.npy", X)
    tables = [pa.table({"path": [f"{part}-{name}" for name in IDS]}) for part in range(3)]
    for k in (0, 2):
        pq.write_table(tables[k], tmp_path / f"metadata/metadata_{k}.parquet")
    assert open_source(f"{tmp_path}:img_emb", ids="path").read().ids[40] == "2-i0"
    (tmp_path / "metadata/metadata_2.parquet").unlink()
    pq.write_table(tables[1], tmp_path / "metadata/metadata_1.parquet")
    with pytest.raises(errors.ParameterError, match="metadata_1.parquet"):
        open_source(f"{tmp_path}:img_emb", ids="path")


def test_ids_in_some_parts_only(tmp_path):
    pq.write_table(pa.table({"v": list(X), "id": IDS}), tmp_path / "a_0.parquet")
    pq.write_table(pa.table({"v": list(X)}), tmp_path / "a_1.parquet")
    with pytest.raises(errors.IdError, match="and none in"):
        open_source(tmp_path)
    assert open_source(tmp_path, ids=False).n == 80


@pytest.fixture
def endless(tmp_path):
    """A file whose string heap names an object of nearly 2⁶⁴ bytes: libhdf5 then never returns from reading a
    string.
    """
    path = tmp_path / "endless.h5"
    with h5py.File(path, "w") as file:
        file["v"] = np.ones((40, 4), np.float32)
        file.create_dataset("ids", data=[f"row-{i}" for i in range(40)], dtype=h5py.string_dtype())
    raw = bytearray(path.read_bytes())
    heap = raw.index(b"GCOL")
    raw[heap + 24 : heap + 32] = (2**64 - 16).to_bytes(8, "little")
    path.write_bytes(raw)
    return path


@pytest.mark.long
def test_strings_that_never_end_are_given_up(endless, monkeypatch):
    monkeypatch.setattr("congruence.io.hdf5._PATIENCE", 1.0)
    with pytest.raises(errors.CorruptFileError, match="could not be read within 1 seconds"):
        read_embeddings(endless)
    with pytest.raises(errors.CorruptFileError, match="could not be read within"):
        read_embeddings(f"{endless}:v", ids="ids")
    assert read_embeddings(f"{endless}:v", ids=False).vectors.shape == (40, 4)


def test_strings_of_fixed_length_need_no_process(tmp_path, monkeypatch):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["v"] = np.ones((3, 4), np.float32)
        file["ids"] = np.array([name.encode() for name in "äbc"], h5py.string_dtype("utf-8", 4))
    monkeypatch.setattr("congruence.io.hdf5.read_strings", None)
    assert read_embeddings(tmp_path / "a.h5").ids.tolist() == ["ä", "b", "c"]
    assert open_source(write(tmp_path / "b.h5", X, space=Space("ä"))).space == Space("ä")


def test_values_in_other_files_are_not_followed(tmp_path):
    (tmp_path / "secret.bin").write_bytes(np.arange(8, dtype=np.float32).tobytes())
    with h5py.File(tmp_path / "outside.h5", "w") as file:
        file.create_dataset("v", (2, 4), np.float32, external=[(str(tmp_path / "secret.bin"), 0, 32)])
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["v"] = np.ones((2, 4), np.float32)
    with h5py.File(tmp_path / "virtual.h5", "w") as file:
        layout = h5py.VirtualLayout((2, 4), np.float32)
        layout[:] = h5py.VirtualSource(tmp_path / "other.h5", "v", (2, 4))
        file.create_virtual_dataset("v", layout)
    for name in ("outside", "virtual"):
        with pytest.raises(errors.CorruptFileError, match="are stored in other files"):
            read_embeddings(tmp_path / f"{name}.h5")


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".feather"])
def test_a_name_that_stands_for_several_columns_is_refused(suffix, tmp_path):
    table = pa.Table.from_arrays([pa.array([[1.0, 2.0]]), pa.array(["a"]), pa.array(["b"])], names=["v", "x", "x"])
    path = tmp_path / f"a{suffix}"
    pq.write_table(table, path) if suffix == ".parquet" else pa.feather.write_feather(table, path, version=2)
    for read in (lambda: read_embeddings(path), lambda: read_column(f"{path}:x")):
        with pytest.raises(errors.ParameterError, match="several columns named 'x'"):
            read()


@pytest.mark.parametrize("order", ["<", ">"])
def test_text_beyond_unicode_is_damage(order, tmp_path):
    ids = np.array([f"item {k}" for k in range(5)], f"{order}U6")
    ids.view(f"{order}u4")[8] = 0x7FFFFFFF
    np.savez(tmp_path / "a.npz", vectors=np.eye(5), ids=ids)
    for read, what in ((read_embeddings, ""), (read_column, ":ids")):
        with pytest.raises(errors.CorruptFileError, match="beyond Unicode"):
            read(f"{tmp_path}/a.npz{what}")


def test_a_message_stays_short_whatever_the_file_says(tmp_path):
    name = "n" * 60_000
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr(f"{name}.npy", b"x")
    data = (tmp_path / "a.npz").read_bytes()
    (tmp_path / "a.npz").write_bytes(data.replace(b"n" * 60_000, b"m" * 60_000, 1))  # the two names of an entry differ
    with pytest.raises(errors.CongruenceError) as caught:
        read_embeddings(tmp_path / "a.npz")
    assert len(str(caught.value)) < 2000
    (tmp_path / "items.csv").write_text(f"id,{'c' * 60_000}\n1,2\n")
    with pytest.raises(errors.CongruenceError) as caught:
        open_items(tmp_path / "items.csv")
    assert len(str(caught.value)) < 2000


def test_a_name_in_hdf5_that_is_no_text(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["vectors"] = np.eye(3)
        file[b"\xff\xfe"] = np.eye(4)
    assert open_source(f"{tmp_path}/a.h5:vectors").n == 3
    assert len(matrices(tmp_path / "a.h5")) == 2


def test_labels_that_are_no_text_are_damage():
    offsets = pa.py_buffer(np.array([0, 1], np.int32))
    for column in (
        pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(b"\xff")]),
        pa.DictionaryArray.from_arrays(pa.array([0, 13], pa.int32()), pa.array(["a"]), safe=False),
    ):
        with pytest.raises(errors.CorruptFileError, match="not text"):
            column_texts(column, "c")


@pytest.mark.parametrize("key", ["k" * 5000, f"{'k' * 300}:{'k' * 300}"])
def test_a_key_may_be_longer_than_a_name(tmp_path, key):
    np.savez(tmp_path / "a.npz", **{key: np.eye(3)})
    assert parse_spec(f"{tmp_path / 'a.npz'}:{key}") == (str(tmp_path / "a.npz"), key)
    assert len(read_embeddings(f"{tmp_path / 'a.npz'}:{key}")) == 3


@pytest.mark.parametrize("suffix", [".feather", ".arrow"])
def test_a_damaged_name_of_a_column_is_a_damaged_file(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    with open_sink(path, n=2, dim=2, dtype=np.dtype("f4"), has_ids=False) as sink:
        sink.write(None, np.eye(2, dtype="f4"))
    path.write_bytes(path.read_bytes().replace(b"vector", b"vecto\xe4"))
    for read in (matrices, read_embeddings):
        with pytest.raises(errors.CorruptFileError, match="damaged"):
            read(path)


@pytest.mark.parametrize("suffix", [suffix for suffix in suffixes() if suffix])
def test_a_missing_file_comes_before_a_missing_library(suffix, tmp_path, here, monkeypatch):
    for module in ("zarr", "h5py", "torch", "faiss", "lance"):
        monkeypatch.setitem(sys.modules, module, None)
    OrthogonalMap().fit(X, X[:, ::-1]).save(tmp_path / "map")
    for command in ("inspect {}", "transform map {} -o out.npy", "transform map {}:v -o out.npy"):
        done = here(command.format(f"nowhere{suffix}")).ends(2)
        assert f"No file at nowhere{suffix}" in done.err
