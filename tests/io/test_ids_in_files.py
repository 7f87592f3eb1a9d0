"""Ids in files: integers stay integers, text is unchanged, and missing or too long ids are refused."""

import csv
import json
import tracemalloc

import h5py
import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import congruence
from congruence._utils.ids import MAX_ID_BYTES
from congruence.errors import CorruptFileError, IdError
from congruence.io import open_sink, open_source, read_column, read_embeddings, read_ids

RNG = np.random.default_rng(0)
TABLES = [".parquet", ".arrow", ".lance", ".csv", ".jsonl"]
KEEPING = [*TABLES, ".npz", ".h5", ""]
TYPED = [suffix for suffix in KEEPING if suffix != ".csv"]  # in which numbers are not text


def save(path, ids, vectors=None):
    """Write a file without this library; None is written as the format's missing value."""
    vectors = RNG.standard_normal((len(ids), 2)) if vectors is None else vectors
    suffix = path.suffix
    if suffix in (".parquet", ".arrow", ".lance"):
        table = pa.table({"id": pa.array(ids), "v": pa.array(list(vectors), pa.list_(pa.float64(), vectors.shape[1]))})
        if suffix == ".parquet":
            pq.write_table(table, path)
        elif suffix == ".lance":
            lance.write_dataset(table, path)
        else:
            with pa.ipc.new_file(path, table.schema) as file:
                file.write_table(table)
    elif suffix == ".csv":
        with open(path, "w", newline="", encoding="utf-8") as stream:
            rows = [["" if i is None else i, *v] for i, v in zip(ids, vectors.tolist(), strict=True)]
            csv.writer(stream).writerows([["id", *(f"v{j}" for j in range(vectors.shape[1]))], *rows])
    elif suffix == ".jsonl":
        lines = [json.dumps({"id": i, "v": v}) for i, v in zip(ids, vectors.tolist(), strict=True)]
        path.write_text("\n".join(lines) + "\n")
    elif suffix == ".npz":
        np.savez(path, v=vectors, ids=np.array(ids))
    else:
        with h5py.File(path, "w") as file:
            file["v"] = vectors
            if isinstance(ids[0], str):
                file.create_dataset("ids", data=ids, dtype=h5py.string_dtype())
            else:
                file["ids"] = np.array(ids)
    return f"{path}:v"


def write(path, ids, *, force=False):
    """Write a file through this library."""
    kind = None if ids.type == pa.large_string() else ids.type
    with open_sink(path, n=len(ids), dim=2, has_ids=True, id_type=kind, force=force) as sink:
        for start in range(0, len(ids), 7):
            part = ids.slice(start, 7)
            sink.write(part, np.ones((len(part), 2)))
    return path


def peak_of(work):
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
ODD = [*"\0\r\n\x1a\ufeff\U0010ffff\"',7aé", "07", "nan", "None", "null", "=1"]
ODD += ["a\0", "a\0\0", " 7", "7 ", "\r\n", "e\u0301"]


@pytest.mark.parametrize("suffix", KEEPING)
def test_any_text_is_read_as_it_was_written(suffix, tmp_path):
    examples = 3 if suffix == ".h5" else 8  # reading its strings takes a process

    @settings(max_examples=examples)
    @given(st.lists(TEXTS, unique=True, max_size=60))
    def check(texts):
        ids = list(dict.fromkeys([*ODD, *texts]))
        path = write(tmp_path / f"v{suffix}", pa.array(ids, pa.large_string()), force=True)
        assert read_embeddings(path).ids.tolist() == ids

    check()


@pytest.mark.parametrize("suffix", TYPED)
@pytest.mark.parametrize("kind", [pa.int64(), pa.uint64()])
def test_numbers_are_read_as_they_were_written(suffix, kind, tmp_path):
    top = 2**63 - 1 if kind == pa.int64() else 2**64 - 1
    ids = [top, 0, 7, 2**53 + 1]
    back = read_embeddings(write(tmp_path / f"v{suffix}", pa.array(ids, kind))).ids
    assert back.dtype == kind.to_pandas_dtype()
    assert back.tolist() == ids


@pytest.mark.parametrize("suffix", [".npz", ".h5"])
def test_text_stored_as_bytes_is_checked(suffix, tmp_path):
    path = write(tmp_path / f"v{suffix}", pa.array(["a\0", "b"], pa.large_string()))
    assert read_ids(f"{path}:ids").to_pylist() == read_column(f"{path}:ids").tolist() == ["a\0", "b"]
    for data, offsets in (([97, 98], [0, 3, 2]), ([97, 98], [0, 1]), ([97, 98], [0, 1, 3]), ([255, 98], [0, 1, 2])):
        arrays = {"v": np.eye(2), "ids_utf8": np.array(data, np.uint8), "ids_offsets": np.array(offsets)}
        if suffix == ".npz":
            np.savez(path, **arrays)
        else:
            with h5py.File(path, "w") as file:
                for name, values in arrays.items():
                    file[name] = values
        if len(offsets) == 2:  # of another number of rows: not of these vectors
            assert not read_embeddings(f"{path}:v").has_ids
        else:
            with pytest.raises(CorruptFileError, match="damaged"):
                read_embeddings(f"{path}:v")


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl", ".npz", ".h5", ".lance", ".csv"])
def test_ids_keep_their_type_through_transform_and_join_with_text(suffix, tmp_path, here):
    rng = np.random.default_rng(0)
    X, order = rng.standard_normal((40, 2)), rng.permutation(40)
    Y = X @ np.array([[0.0, 1.0], [-1.0, 0.0]])
    numbers = save(tmp_path / f"a{suffix}", list(range(40)), X)
    texts = save(tmp_path / "b.csv", [str(k) for k in order], Y[order])
    done = here("fit", numbers, texts, "-o", "map", "--json", "--set", "check=false")
    assert done.code == 0, done.err
    facts = json.loads(done.out)
    assert (facts["n_pairs"], facts["paired_by"]) == (40, "id")
    np.testing.assert_allclose(congruence.load(tmp_path / "map").transform(X), Y, atol=1e-6)
    kept = [str(k) for k in range(40)] if suffix == ".csv" else list(range(40))
    for out in ("out.npz", "out.h5", "out.parquet"):
        assert here("transform", "map", numbers, "-o", out).code == 0
        assert read_embeddings(tmp_path / out).ids.tolist() == kept


def test_numbers_and_texts_of_several_parts_become_texts(tmp_path):
    for k, ids in enumerate(([1, 2], ["a", "b"])):
        save(tmp_path / f"part_{k}.parquet", ids)
    source = open_source(tmp_path)
    assert source.id_type == pa.string()
    assert source.read().ids.tolist() == ["1", "2", "a", "b"]
    assert [ids.to_pylist() for ids, _ in source.scan(0, 4)] == [["1", "2"], ["a", "b"]]


@pytest.mark.parametrize("suffix", TABLES)
@pytest.mark.parametrize("numbers", [False, True])
def test_missing_ids_are_counted_and_named(suffix, numbers, tmp_path, here):
    ids = [k if numbers else f"i{k}" for k in range(6000)]
    ids[3] = ids[5] = ids[5999] = None
    spec = save(tmp_path / f"a{suffix}", ids)
    with pytest.raises(IdError, match=r"missing in 3 rows \(3, 5, 5999\)"):
        read_embeddings(spec)
    done = here("fit", spec, save(tmp_path / f"other{suffix}", ids), "-o", "map")
    assert done.code == 2
    assert "missing in 3 rows (3, 5, 5999)" in done.err
    with pytest.raises(IdError, match=r"missing in 3 rows \(3, 5, 5999\)"):
        read_ids(f"{tmp_path}/a{suffix}:id")
    assert not read_embeddings(spec, ids=False).has_ids


@pytest.mark.parametrize("suffix", [".npz", ".h5"])
@pytest.mark.parametrize(
    ("ids", "words"),
    [
        (["a", "", "b"], r"missing in 1 row \(1\)"),
        ([1.0, np.nan, 3.0], r"missing in 1 row \(1\) \(pandas then converts"),
        ([1.0, 2.0, 3.0], "row 0 is 1.0, float"),
        ([True, False, True], "is True, bool"),
    ],
)
def test_arrays_that_are_no_ids_are_refused(suffix, ids, words, tmp_path, here):
    spec = save(tmp_path / f"a{suffix}", ids)
    with pytest.raises(IdError, match=words):
        read_embeddings(spec)
    done = here("fit", spec, save(tmp_path / f"other{suffix}", ids), "-o", "map")
    assert (done.code, done.out) == (2, "")


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (pa.array([1.0, None]), r"missing in 1 row \(1\) \(pandas then converts"),
        (pa.array([1.0, 2.0]), "ids of type double"),
        (pa.array([True, False]), "ids of type bool"),
        (pa.array([{"a": 1}, {"a": 2}]), "ids of type struct"),
        (pa.array(["a", ""]), r"missing in 1 row \(1\)"),
        (pa.array(["a", None]).dictionary_encode(), r"missing in 1 row \(1\)"),
        (pa.array(["a", ""]).dictionary_encode(), r"missing in 1 row \(1\)"),
        (pa.array(["a", "x" * (MAX_ID_BYTES + 1)]).dictionary_encode(), r"65,537 bytes in UTF-8 \(row 1 of"),
    ],
)
def test_columns_that_are_no_ids_are_refused(column, words, tmp_path):
    table = pa.table({"id": column, "v": pa.array([[1.0], [2.0]])})
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(IdError, match=words):
        read_embeddings(tmp_path / "a.parquet")
    with pytest.raises(IdError, match=words):
        read_ids(f"{tmp_path}/a.parquet:id")


@pytest.mark.long
@pytest.mark.parametrize("suffix", [*TABLES, ".npz", ".h5"])
def test_an_endless_id_is_refused_without_the_memory_for_it_in_every_row(suffix, tmp_path, here):
    n, limit = 20_000, 100e6 if suffix in (".csv", ".jsonl") else 40e6  # which hold their lines as Python's objects
    ids = [f"{k:05d}" for k in range(n - 1)] + ["x" * 10**6]
    spec = save_packed(tmp_path / "a.npz", ids) if suffix == ".npz" else save(tmp_path / f"a{suffix}", ids)

    def read():
        with pytest.raises(IdError, match=r"65,536"):
            read_embeddings(spec)

    assert peak_of(read) < limit  # 74.5 GiB as strings of a fixed width
    done = here("fit", spec, save(tmp_path / "other.csv", [*ids[:-1], "x"]), "-o", "map")
    assert done.code == 2
    assert "65,536" in done.err


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".lance", ".npz", ".h5"])
def test_a_long_id_costs_its_own_length(suffix, tmp_path):
    n = 20_000
    ids = pa.array([f"{k:05d}" for k in range(n - 1)] + ["é" * 30_000], pa.large_string())
    path = tmp_path / f"a{suffix}"

    def work():
        with open_sink(path, n=n, dim=2, has_ids=True) as sink:
            sink.write(ids, np.ones((n, 2)))
        assert read_embeddings(path).ids.tolist()[-1] == "é" * 30_000

    assert peak_of(work) < 30e6  # 2.4 GB as strings of a fixed width
    assert sum(file.stat().st_size for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file()) < 3e6


def save_packed(path, ids, vectors=None):
    encoded = [text.encode() for text in ids]
    offsets = np.cumsum([0, *map(len, encoded)])
    data = np.frombuffer(b"".join(encoded), np.uint8)
    np.savez(path, v=np.ones((len(ids), 2)) if vectors is None else vectors, ids_utf8=data, ids_offsets=offsets)
    return f"{path}:v"


@pytest.mark.long
@pytest.mark.parametrize("suffix", [".npz", ".h5"])
@pytest.mark.parametrize("kind", ["U", "S"])
def test_wide_arrays_of_strings_are_read_in_pieces(suffix, kind, tmp_path):
    ids = np.array([*map(str, range(1999)), "x" * 10_000], kind)
    path = tmp_path / f"a{suffix}"
    if suffix == ".npz":
        np.savez_compressed(path, v=np.ones((2000, 2)), ids=ids)
    else:
        with h5py.File(path, "w") as file:
            file["v"] = np.ones((2000, 2))
            file.create_dataset("ids", data=ids.astype("S"), chunks=(50,), compression="gzip")
    found = []
    assert peak_of(lambda: found.append(read_embeddings(f"{path}:v").ids)) < 16e6  # 20 MB, or 80
    assert found[0].tolist() == ids.astype(str).tolist()


def test_what_is_written_can_be_read(tmp_path):
    for ids, kind, words in (
        (pa.array(["a", ""]), None, r"missing in 1 row \(1\)"),
        (pa.array(["a", "x" * (MAX_ID_BYTES + 1)]), None, "65,537 bytes"),
        (pa.array(["a", "b"]), pa.int64(), "expected int64, as announced"),
        (pa.array([1.5, 2.5]), None, "ids of type double"),
    ):
        with (
            pytest.raises(IdError, match=words),
            open_sink(tmp_path / "a.npz", n=2, dim=1, has_ids=True, id_type=kind) as sink,
        ):
            sink.write(ids, np.ones((2, 1)))
        assert not (tmp_path / "a.npz").exists()


@pytest.mark.parametrize(("name", "text"), [("a.jsonl", '{"id": "\\ud800", "v": [1, 2]}\n'), ("a.csv", "id,v0\n,1\n")])
def test_half_a_character_and_an_empty_text_are_no_ids(name, text, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(IdError):
        read_embeddings(f"{tmp_path / name}:v" if name == "a.jsonl" else tmp_path / name)


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl", ".lance", ".npz"])
def test_ids_that_differ_by_a_nul_at_the_end_are_different(suffix, tmp_path):
    ids = [f"{k // 2}{chr(0) * (k % 2)}" for k in range(40)]
    path = (save_packed if suffix == ".npz" else save)(tmp_path / f"a{suffix}", ids)
    assert read_embeddings(path).ids.tolist() == ids
