"""A table keeps its columns through ``transform_file``; what is read is never written over."""

import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from congruence import OrthogonalMap, Space
from congruence.errors import ColumnsWarning, DtypeError, ParameterError, ShapeError
from congruence.io import open_sink, open_source, read_embeddings
from congruence.synthetic import rigid_problem
from congruence.upgrade.transform import transform_file

N = 40
P = rigid_problem(N, 4, 6, noise=0.1, random_state=0)
MAP = OrthogonalMap().fit(P.X, P.Y)
MAPPED = MAP.transform(P.X.astype("f4"))
LISTS = {
    "fixed": pa.list_(pa.field("item", pa.float32(), nullable=False), 4),
    "list": pa.list_(pa.float32()),
    "large": pa.large_list(pa.field("element", pa.float32())),
}


def a_table(kind="fixed"):
    """Every kind of column that users have beside their vectors, with nulls, metadata, and vectors in the middle."""
    days = pd.date_range("2020-01-01", periods=N, tz="Europe/Berlin")
    columns = {
        "path": pa.array([f"p{k}" if k % 7 else None for k in range(N)], pa.large_string()),
        "taken_at": pa.array(days, pa.timestamp("ns", "Europe/Berlin")),
        "embedding": pa.array([row.tolist() for row in P.X.astype("f4")], LISTS[kind]),
        "id": pa.array(range(10**15, 10**15 + N), pa.int64()),
        "class": pa.array([("cat", "dog", None)[k % 3] for k in range(N)]).dictionary_encode(),
        "tags": pa.array([["a"] * (k % 3) for k in range(N)], pa.list_(pa.string())),
        "box": pa.array([{"x": k, "y": 0.5} for k in range(N)]),
        "price": pa.array([None] * N, pa.decimal128(10, 2)),
        "thumb": pa.array([bytes([k]) for k in range(N)], pa.binary()),
    }
    fields = [pa.field(name, array.type, metadata={"note": name}) for name, array in columns.items()]
    return pa.table(list(columns.values()), pa.schema(fields, metadata={"made": "by hand", "version": "3"}))


def save(table, path, rows=None):
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=rows or 11)
    elif path.suffix == ".lance":
        pytest.importorskip("lance").write_dataset(table, path, max_rows_per_group=11)
    else:
        pyarrow.feather.write_feather(table, path, chunksize=rows or 11)
    return path


def load(path):
    if path.suffix == ".parquet":
        return pq.read_table(path)
    if path.suffix == ".lance":
        return pytest.importorskip("lance").dataset(path).to_table()
    return pyarrow.feather.read_table(path)


def same_but(got, expected, *names):
    """Names, order, types, metadata and values agree; of the columns named all but the type and the values."""
    assert got.schema.names == expected.schema.names
    for ours, theirs in zip(got.schema, expected.schema, strict=True):
        assert without_space(ours.metadata) == without_space(theirs.metadata)
        assert ours.nullable == theirs.nullable
        if theirs.name not in names:
            assert ours.type == theirs.type
            assert got.column(theirs.name).to_pylist() == expected.column(theirs.name).to_pylist()
    assert without_space(got.schema.metadata) == without_space(expected.schema.metadata)


def without_space(metadata):
    return {key: value for key, value in (metadata or {}).items() if key != b"congruence.space"}


def vectors(table, name="embedding"):
    return np.array(table.column(name).to_pylist(), dtype="f8")


@pytest.mark.parametrize("kind", LISTS)
@pytest.mark.parametrize("suffix", [".parquet", ".feather", ".arrow"])
def test_a_table_stays_the_table_it_was(suffix, kind, tmp_path):
    source = open_source(f"{save(a_table(kind), tmp_path / f'in{suffix}')}:embedding")
    table = load(tmp_path / f"in{suffix}")  # Parquet has its own name for what is in a list
    transform_file(MAP, source, tmp_path / f"out{suffix}", normalize=False)
    out = load(tmp_path / f"out{suffix}")
    same_but(out, table, "embedding")
    np.testing.assert_allclose(vectors(out), MAPPED, atol=1e-6)
    now, then = out.schema.field("embedding").type, table.schema.field("embedding").type
    assert now.value_field == then.value_field
    assert now == (pa.list_(then.value_field, 6) if kind == "fixed" else then)
    assert open_source(tmp_path / f"out{suffix}").space.dim == 6  # "tags" holds no numbers: no key is needed


@pytest.mark.parametrize(("one", "other"), [(".parquet", ".arrow"), (".arrow", ".parquet"), (".parquet", "")])
def test_columns_pass_between_formats(one, other, tmp_path):
    source = open_source(f"{save(a_table(), tmp_path / f'in{one}')}:embedding")
    transform_file(MAP, source, tmp_path / f"out{other}", dtype="f2", normalize=True)
    file = tmp_path / "out/part_0.parquet" if other == "" else tmp_path / f"out{other}"
    out = load(file)
    same_but(out, a_table(), "embedding")
    assert out.schema.field("embedding").type.value_type == pa.float16()
    np.testing.assert_allclose(np.linalg.norm(vectors(out), axis=1), 1, atol=1e-3)


def test_lance_keeps_columns(tmp_path):
    table = a_table().drop_columns(["class", "price"])
    save(table, tmp_path / "in.lance")
    stored = load(tmp_path / "in.lance")
    transform_file(MAP, open_source(f"{tmp_path}/in.lance:embedding"), tmp_path / "out.lance", normalize=False)
    out = load(tmp_path / "out.lance")
    same_but(out, stored, "embedding")
    np.testing.assert_allclose(vectors(out), MAPPED, atol=1e-6)


def test_pandas_reads_back_its_frame_with_index_and_types(tmp_path):
    frame = pd.DataFrame(
        {"when": pd.date_range("2020", periods=N), "kind": pd.Categorical(["x", "y"] * (N // 2)), "v": list(P.X)},
        index=pd.Index([f"r{k}" for k in range(N)], name="key"),
    )
    frame.to_parquet(tmp_path / "in.parquet")
    transform_file(MAP, open_source(tmp_path / "in.parquet"), tmp_path / "out.parquet", normalize=False)
    out = pd.read_parquet(tmp_path / "out.parquet")
    pd.testing.assert_frame_equal(out.drop(columns="v"), pd.read_parquet(tmp_path / "in.parquet").drop(columns="v"))
    np.testing.assert_allclose(np.stack(out["v"]), MAP.transform(P.X), atol=1e-12)


TEXT = st.text('ab.ü,"\n', max_size=3)
VALUES = {
    pa.int8(): st.integers(-128, 127), pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.bool_(): st.booleans(), pa.string(): TEXT, pa.binary(): st.binary(), pa.date32(): st.dates(),
    pa.time64("us"): st.times(), pa.list_(pa.int64()): st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3),
    pa.null(): st.none(),
}  # fmt: skip


@settings(max_examples=25)
@given(data=st.data())
def test_whatever_the_columns_are_they_stay(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("t")
    n = data.draw(st.integers(1, 9))
    names = data.draw(st.lists(TEXT.filter(len), unique=True, max_size=4))
    columns = {}
    for name in names:
        kind = data.draw(st.sampled_from(list(VALUES)))
        columns[name] = pa.array(data.draw(st.lists(st.none() | VALUES[kind], min_size=n, max_size=n)), kind)
    at = data.draw(st.integers(0, len(columns)))
    items = list(columns.items())
    items.insert(at, ("v", pa.array(P.X[:n].tolist(), pa.list_(pa.float64(), 4))))
    table = pa.table(dict(items))
    suffix = data.draw(st.sampled_from([".parquet", ".arrow"]))
    save(table, folder / f"in{suffix}", data.draw(st.integers(1, 5)))
    transform_file(MAP, open_source(f"{folder}/in{suffix}:v"), folder / f"out{suffix}", normalize=False)
    same_but(load(folder / f"out{suffix}"), table, "v")


def test_the_mapped_vectors_may_stand_beside_the_old(tmp_path):
    table = a_table()
    marked = table.replace_schema_metadata({"congruence.space": json.dumps({"model": "a"}), "made": "by hand"})
    source = open_source(f"{save(marked, tmp_path / 'in.parquet')}:embedding")
    mapping = OrthogonalMap().fit(P.X, P.Y)
    mapping.target_space_ = Space("b", None, None, 6, False)
    transform_file(mapping, source, tmp_path / "out.parquet", column_out="new")
    out = load(tmp_path / "out.parquet")
    same_but(out.drop_columns("new"), marked)
    assert out.schema.names[-1] == "new"
    np.testing.assert_allclose(vectors(out, "new"), MAPPED, atol=1e-6)
    # Each column says of itself where it comes from.
    assert open_source(f"{tmp_path}/out.parquet:embedding").space.model == "a"
    assert open_source(f"{tmp_path}/out.parquet:new").space.model == "b"
    for name in ("path", "embedding"):
        with pytest.raises(ParameterError, match=f"column_out='{name}'.*unused name"):
            transform_file(MAP, source, tmp_path / "no.parquet", column_out=name)
    with pytest.raises(ParameterError, match="named columns"):
        transform_file(MAP, source, tmp_path / "no.npy", column_out="new")
    assert not list(tmp_path.glob("no*"))


def test_parts_keep_the_columns_each_has(tmp_path):
    (tmp_path / "in").mkdir()
    first, second = a_table().slice(0, 15), a_table().slice(15).drop_columns(["box"])
    second = second.append_column("extra", pa.array(range(25)))
    save(first, tmp_path / "in/part_1.parquet")
    save(second, tmp_path / "in/part_2.parquet")
    source = open_source(f"{tmp_path}/in:embedding")
    transform_file(MAP, source, tmp_path / "out", normalize=False)
    for name, table in (("part_1", first), ("part_2", second)):
        same_but(load(tmp_path / f"out/{name}.parquet"), table, "embedding")
    np.testing.assert_allclose(read_embeddings(tmp_path / "out").vectors, MAPPED, atol=1e-6)
    with pytest.raises(ParameterError, match=r"box .*extra \(int64\).*folder of parts"):
        transform_file(MAP, source, tmp_path / "one.parquet")


def test_csv_keeps_the_text_of_every_other_column(tmp_path):
    frame = pd.DataFrame(P.X, columns=[f"e{j}" for j in range(4)])
    frame.insert(0, "zip", [f"0{k}" for k in range(N)])
    frame.insert(1, "note", ['say "a, b"\n', ""] * (N // 2))
    frame["id"] = range(N)
    frame.to_csv(tmp_path / "in.csv", index=False)
    transform_file(MAP, open_source(f"{tmp_path}/in.csv:e"), tmp_path / "out.csv", normalize=False)
    out, old = (pd.read_csv(tmp_path / name, dtype=str, keep_default_na=False) for name in ("out.csv", "in.csv"))
    assert list(out) == ["zip", "note", *[f"e{j}" for j in range(6)], "id"]
    pd.testing.assert_frame_equal(out[["zip", "note", "id"]], old[["zip", "note", "id"]])
    np.testing.assert_array_equal(read_embeddings(f"{tmp_path}/out.csv:e").vectors, MAP.transform(P.X))
    transform_file(MAP, open_source(f"{tmp_path}/in.csv:e"), tmp_path / "two.csv", normalize=False, column_out="new")
    two = pd.read_csv(tmp_path / "two.csv", dtype=str, keep_default_na=False)
    assert list(two) == [*old, *[f"new_{j}" for j in range(6)]]
    np.testing.assert_array_equal(two[[f"e{j}" for j in range(4)]].astype(float), P.X)
    transform_file(MAP, open_source(f"{tmp_path}/in.csv:e"), tmp_path / "out.parquet", normalize=False)
    assert load(tmp_path / "out.parquet").schema.names == ["zip", "note", "e", "id"]
    assert load(tmp_path / "out.parquet").column("zip").to_pylist() == old["zip"].tolist()


def test_jsonl_keeps_every_field_as_it_is(tmp_path):
    records = [{"id": k, "embedding": P.X[k].tolist(), "any": [1, "a", {"b": None}]} for k in range(N)]
    records = [{**record, **({"rare": 1.5} if k % 2 else {"x": "ü"})} for k, record in enumerate(records)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    source = open_source(tmp_path / "in.jsonl")
    transform_file(MAP, source, tmp_path / "out.jsonl", normalize=False)
    out = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [list(record) for record in out] == [list(record) for record in records]
    assert [{**record, "embedding": 0} for record in out] == [{**record, "embedding": 0} for record in records]
    np.testing.assert_array_equal([record["embedding"] for record in out], MAP.transform(P.X))
    with pytest.raises(DtypeError, match="different types in 'any'"):
        transform_file(MAP, source, tmp_path / "out.parquet")
    for record in records:
        del record["any"]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    transform_file(MAP, open_source(tmp_path / "in.jsonl"), tmp_path / "out.parquet", normalize=False)
    assert load(tmp_path / "out.parquet").schema.field("id").type == pa.int64()
    assert load(tmp_path / "out.parquet").column("rare").to_pylist() == [r.get("rare") for r in records]


@pytest.mark.parametrize(
    ("suffix", "left"),
    [
        (".npy", "path, taken_at, id, class, tags, box, price, thumb"),
        (".npz", "path, taken_at, class, tags, box, price, thumb"),
        (".csv", "tags, box, thumb"),
        (".jsonl", "thumb"),
    ],
)
def test_what_has_no_room_is_named(suffix, left, tmp_path):
    source = open_source(f"{save(a_table(), tmp_path / 'in.parquet')}:embedding")
    with pytest.warns(ColumnsWarning, match=f"left out: {left}. Write"):
        report = transform_file(MAP, source, tmp_path / f"out{suffix}", normalize=False)
    assert report.left_out == left.split(", ")
    if suffix == ".csv":
        out = pd.read_csv(tmp_path / "out.csv", keep_default_na=False)
        assert list(out)[:3] == ["path", "taken_at", "embedding_0"]
        assert out["class"].tolist()[:3] == ["cat", "dog", ""]
        assert np.array_equal(read_embeddings(f"{tmp_path}/out.csv:embedding_").vectors.astype("f4"), MAPPED)
    if suffix == ".jsonl":
        line = json.loads((tmp_path / "out.jsonl").read_text().splitlines()[0])
        assert line["taken_at"].startswith("2020-01-01")
        assert (line["box"], line["path"], line["id"]) == ({"x": 0, "y": 0.5}, None, 10**15)


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_rows_without_a_vector_are_named(suffix, tmp_path):
    kind = pa.list_(pa.float64(), 4)
    rows = [None if k in (3, 7) else row for k, row in enumerate(P.X.tolist())]
    table = pa.table({"id": [f"i{k}" for k in range(N)], "v": pa.array(rows, kind)})
    try:
        path = save(table, tmp_path / f"in{suffix}", N)
    except pa.ArrowNotImplementedError:
        pytest.skip("this version of Arrow cannot write such a Parquet file")
    with pytest.raises(ShapeError, match=r"2 missing vectors in rows 3, 7 \(id 'i3', 'i7'\)"):
        transform_file(MAP, open_source(path), tmp_path / "out.parquet")
    assert not (tmp_path / "out.parquet").exists()


#: Other names of the source, or places around or inside it: the output, and the source.
SAME = {
    "same": ("in.parquet", "in.parquet"),
    "relative": ("parts/../in.parquet", "in.parquet"),
    "symlink": ("link.parquet", "in.parquet"),
    "read through a symlink": ("in.parquet", "link.parquet"),
    "hard link": ("hard.parquet", "in.parquet"),
    "folder": ("parts", "parts"),
    "part": ("parts/a.parquet", "parts"),
    "linked part": ("in.parquet", "linked"),
    "into the folder": ("parts/new.parquet", "parts"),
    "around": ("parts", "parts/a.parquet"),
}


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("how", SAME)
def test_the_input_is_never_the_output(how, force, tmp_path):
    for folder in ("parts", "linked"):
        (tmp_path / folder).mkdir()
    names = ("in.parquet", "parts/a.parquet", "linked/a.parquet")
    files = [save(a_table(), tmp_path / name) for name in names]
    for name in ("link.parquet", "linked/b.parquet"):
        (tmp_path / name).symlink_to(files[0])
    (tmp_path / "hard.parquet").hardlink_to(files[0])
    before = [path.read_bytes() for path in files]
    output, source = SAME[how]
    place = Path(os.path.relpath(tmp_path)) if how == "relative" else tmp_path
    with pytest.raises(ParameterError, match="the source"):
        transform_file(MAP, open_source(f"{tmp_path / source}:embedding"), place / output, force=force)
    assert [path.read_bytes() for path in files] == before


def test_nor_is_the_file_of_the_ids(tmp_path):
    np.save(tmp_path / "in.npy", P.X)
    (tmp_path / "names.csv").write_text("name\n" + "\n".join(f"n{k}" for k in range(N)))
    source = open_source(tmp_path / "in.npy", ids=f"{tmp_path}/names.csv:name")
    with pytest.raises(ParameterError, match="the source"):
        transform_file(MAP, source, tmp_path / "names.csv", force=True)
    transform_file(MAP, source, tmp_path / "out.csv", normalize=False)
    assert read_embeddings(tmp_path / "out.csv").ids[1] == "n1"


def test_wide_columns_do_not_fill_the_memory(tmp_path):
    """Blocks are cut by the bytes of whole rows, not of the vectors alone."""
    photos = [os.urandom(400_000) for _ in range(N)]
    table = pa.table({"v": pa.array(P.X.tolist(), pa.list_(pa.float64(), 4)), "photo": photos})
    save(table, tmp_path / "in.parquet", 10)
    seen = []
    transform_file(MAP, open_source(tmp_path / "in.parquet"), tmp_path / "out.parquet", callback=seen.append)
    assert max(seen) <= 25
    assert load(tmp_path / "out.parquet").column("photo").equals(table.column("photo"))


def test_a_growing_dictionary_reaches_an_arrow_file(tmp_path):
    """Row groups of Parquet have dictionaries of their own, an Arrow file has one a column."""
    words = pa.chunked_array([pa.array(one).dictionary_encode() for one in (["a", "b", None], ["b", "c", "a"])])
    table = pa.table({"word": words, "v": pa.array(P.X[:6].tolist(), pa.list_(pa.float64(), 4))})
    save(table, tmp_path / "in.parquet", 3)
    source = open_source(tmp_path / "in.parquet")
    with open_sink(tmp_path / "out.arrow", n=6, dim=4, dtype="f8", columns=source.columns) as sink:
        for ids, block, rows in source.scan_table(batch=3):
            sink.write(ids, block, rows)
            sink._groups.flush()
    assert load(tmp_path / "out.arrow").column("word").to_pylist() == ["a", "b", None, "b", "c", "a"]
