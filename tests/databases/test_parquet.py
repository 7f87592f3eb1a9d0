"""Parquet and Arrow data sets: the contract on files that pyarrow writes, and special cases."""

import json
from pathlib import Path
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from database_contract import DIM, NASTY, DatabaseContract, UserRow, lists, run
from failing_files import FailingFiles

from congruence import Space
from congruence.databases import open_database
from congruence.errors import CongruenceError, ParameterError


def as_table(ids, vectors, others, column, id_column, missing=()):
    kind = pa.int64() if isinstance(ids[0], int) else pa.large_string()
    lists = [None if k in missing else row for k, row in enumerate(vectors.tolist())]
    names = pa.array(ids, kind)
    if kind != pa.int64() and len(ids[0]) == 36:
        names = pa.array([UUID(one).bytes for one in ids], pa.uuid())
    column_of_vectors = pa.array(lists, pa.list_(pa.float32(), vectors.shape[1]))
    kinds = pa.array(others["kind"]).dictionary_encode()
    return pa.table({id_column: names, "kind": kinds, column: column_of_vectors, "title": others["title"]})


class TestParquet(FailingFiles, DatabaseContract):
    kind = "parquet"
    id_types = ("int", "text", "uuid")
    needed = (".photos.parquet.congruence-begun",)

    def make(self, folder, ids, vectors, others, *, table="items", column="embedding", id_column="id"):
        where = folder / "photos.parquet"
        pq.write_table(as_table(ids, vectors, others, column, id_column), where, row_group_size=60)
        return str(where)

    def open(self, where, *, table=None, **options):
        return super().open(where, table=None if table in (NASTY, "items") else table, **options)

    def read(self, where):
        return pq.read_table(where)

    def user_rows(self, where, *, table="items", column="embedding", id_column="id"):
        found = self.read(where).to_pylist()
        return {
            row[id_column] if isinstance(row[id_column], int | str) else str(row[id_column]): UserRow(
                None if row[column] is None else np.array(row[column], np.float32).tobytes(),
                {"kind": row["kind"], "title": row["title"]},
            )
            for row in found
        }

    def user_add(self, where, one, vector, others, *, table="items", column="embedding", id_column="id"):
        given = None if vector is None else vector.tobytes()
        self.save(where, {**self.user_rows(where), one: UserRow(given, others)}, column, id_column)

    def user_delete(self, where, one, *, table="items", id_column="id"):
        rows = self.user_rows(where)
        del rows[one]
        self.save(where, rows, "embedding", id_column)

    def give(self, where, situation):
        rows = self.read(where)
        field, place = rows.schema.field("embedding"), rows.schema.get_field_index("embedding")
        vectors = rows["embedding"].combine_chunks()
        if situation == "two columns":
            rows = rows.append_column("second", vectors)
        elif situation == "comment":
            rows = rows.set_column(place, field.with_metadata({"of": "the photo"}), vectors)
        elif situation == "type":
            wide = vectors.cast(pa.list_(pa.float64(), DIM))
            rows = rows.set_column(place, "embedding", wide)
        elif situation == "NOT NULL":
            rows = rows.set_column(place, field.with_nullable(False), vectors)
        self.write(rows, Path(where))

    def said(self, where):
        schema = self.read(where).schema
        return str(schema), schema.metadata, [field.metadata for field in schema]

    def rules(self, where):
        field = self.read(where).schema.field("embedding")
        return str(field.type), field.nullable, field.metadata

    def empty(self, where):
        self.write(self.read(where).slice(0, 0), Path(where))

    def save(self, where, rows, column, id_column):
        width = max(len(row.vector) // 4 for row in rows.values() if row.vector)
        vectors = [np.zeros(width) if row.vector is None else np.frombuffer(row.vector, "f4") for row in rows.values()]
        missing = [k for k, row in enumerate(rows.values()) if row.vector is None]
        columns = {key: [row.others[key] for row in rows.values()] for key in ("kind", "title")}
        self.write(as_table([*rows], np.stack(vectors), columns, column, id_column, missing=missing), Path(where))

    def write(self, table, where):
        pq.write_table(table, where)


class TestArrowFolder(TestParquet):
    """Two files, of which the second is a stream, and files that are not data."""

    slow = True
    id_types = ("text",)
    needed = (".photos.congruence-begun",)

    def make(self, folder, ids, vectors, others, *, table="items", column="embedding", id_column="id"):
        rows = as_table(ids, vectors, others, column, id_column)
        where = folder / "photos"
        (where / "sub").mkdir(parents=True)
        (where / "README").write_text("mine")
        half = len(rows) // 2
        with pa.ipc.new_file(where / "part-9.arrow", rows.schema) as writer:
            writer.write_table(rows.slice(0, half), 30)
        with pa.ipc.new_stream(where / "sub" / "part-10.arrow", rows.schema) as writer:
            writer.write_table(rows.slice(half), 40)
        return str(where)

    def read(self, where):
        with (
            pa.ipc.open_file(f"{where}/part-9.arrow") as first,
            pa.ipc.open_stream(f"{where}/sub/part-10.arrow") as second,
        ):
            assert Path(where, "README").read_text() == "mine"
            return pa.concat_tables([first.read_all(), second.read_all()], promote_options="permissive")

    def write(self, table, where):
        (where / "sub" / "part-10.arrow").unlink(missing_ok=True)
        with pa.ipc.new_file(where / "part-9.arrow", table.schema) as writer:
            writer.write_table(table)
        with pa.ipc.new_stream(where / "sub" / "part-10.arrow", table.schema):
            pass


def small(folder, **options):
    vectors = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
    others = {"kind": ["image"] * 9, "title": [f"t{k}" for k in range(9)]}
    table = as_table(list(range(9)), vectors, others, "v", "id")
    pq.write_table(table, folder / "s.parquet", **options)
    return folder / "s.parquet", table, vectors


def migrate(where, dim=3, element_type="float32", note=None, **options):
    with open_database(where, **options) as database:
        run(database, dim, element_type, note)
        database.switch()


def test_codecs_row_groups_metadata_and_permissions_are_kept(tmp_path):
    where, table, _ = small(tmp_path)
    features = {"v": {"feature": {"dtype": "float32"}, "length": 4, "_type": "Sequence"}}
    metadata = {"mine": "kept", "congruence.space": json.dumps({"model": "old", "dim": 4})}
    metadata["huggingface"] = json.dumps({"info": {"features": features}})
    table = table.replace_schema_metadata(metadata)
    codecs = {"id": "none", "kind": "zstd", "title": "gzip", "v.list.element": "snappy"}
    pq.write_table(table, where, row_group_size=4, compression=codecs, use_dictionary=["title"])
    where.chmod(0o640)
    with open_database(where) as database:
        assert database.info().space == Space(model="old", dim=4)
    migrate(where, element_type="float16", note={"model": "new", "map": "abc"})
    file = pq.ParquetFile(where)
    metadata = file.schema_arrow.metadata
    assert metadata[b"mine"] == b"kept"
    assert json.loads(metadata[b"congruence.space"]) == {"model": "new", "dim": 3}
    assert json.loads(metadata[b"huggingface"])["info"]["features"]["v"]["length"] == 3
    assert [file.metadata.row_group(k).num_rows for k in range(3)] == [4, 4, 1]
    columns = [file.metadata.row_group(0).column(j) for j in range(4)]
    assert [one.compression for one in columns] == ["UNCOMPRESSED", "ZSTD", "UNCOMPRESSED", "GZIP"]
    assert ["RLE_DICTIONARY" in one.encodings for one in columns] == [False, False, False, True]
    assert file.schema_arrow.field("v").type == pa.list_(pa.field("element", pa.float16()), 3)
    assert file.read().drop_columns(["v"]).equals(table.drop_columns(["v"]))
    assert where.stat().st_mode & 0o777 == 0o640
    with open_database(where) as database:
        assert database.note() == {"model": "new", "map": "abc"}
        assert database.info().space.model == "old"
        database.drop_old()
        assert database.note() == {}
        assert (database.info().space.model, database.info().element_type) == ("new", "float16")


def test_one_of_several_columns_of_lists_of_any_length_without_ids(tmp_path):
    vectors = [[1.0, 2.0], None, [3.0, 4.0]]
    a, b = pa.array(vectors, pa.large_list(pa.float64())), pa.array([[1.0]] * 3, pa.list_(pa.float32()))
    table = pa.table({"a": a, "b": b, "tags": [["x"], [], None], "thing": [{"q": 1}, None, {"q": 3}]})
    stated = pa.field("a", a.type, metadata={"congruence.space": '{"model": "old", "dim": 2}'})
    pq.write_table(table.set_column(0, stated, a), tmp_path / "s.parquet")
    with pytest.raises(ParameterError, match=r"2 columns of vectors .*\('a', 'b'\)"):
        open_database(tmp_path / "s.parquet")
    where = f"{tmp_path / 's.parquet'}:a"
    with open_database(where) as database:
        info = database.info()
        assert (info.place, info.rows, info.rows_without, info.dim, info.id_type) == (where, 2, 1, 2, "int")
        assert [block.ids.to_pylist() for block in database.scan(batch=1)] == [[0], [2]]
    migrate(where, dim=1, note={"model": "new"})
    found = pq.read_table(tmp_path / "s.parquet")
    spaces = [json.loads((found.schema.field(name).metadata or {}).get(b"congruence.space", b"{}")) for name in "ab"]
    assert [spaces, b"congruence.space" in (found.schema.metadata or {})] == [[{"model": "new", "dim": 1}, {}], False]
    assert found["a"].to_pylist() == [[1.0], None, [3.0]]
    assert found["a"].type.value_type == pa.float64()
    assert pa.types.is_large_list(found["a"].type)
    assert found.drop_columns(["a"]).equals(table.drop_columns(["a"]))


def test_a_table_of_vectors_alone(tmp_path):
    vectors = np.arange(12, dtype=np.float32).reshape(4, 3)
    table = pa.table({"v": lists(vectors)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=3)
    pa.feather.write_feather(table, tmp_path / "a.feather", compression="lz4")
    for name in ("a.parquet", "a.feather"):
        migrate(tmp_path / name, dim=2)
    assert pq.read_table(tmp_path / "a.parquet")["v"].to_pylist() == vectors[:, :2].tolist()
    assert pa.feather.read_table(tmp_path / "a.feather")["v"].to_pylist() == vectors[:, :2].tolist()


def test_what_is_no_data_set_is_refused(tmp_path):
    where, table, _ = small(tmp_path)
    for name, change, match in [
        ("ids", table.set_column(0, "id", pa.array([None, *range(8)])), "Row 0 .*without id"),
        ("dates", table.set_column(0, "id", pa.array([0.5] * 9)), "of type double"),
        ("ragged", table.set_column(2, "v", pa.array([[1.0]] * 8 + [[1.0, 2.0]])), "another number of them than 1"),
        ("holes", table.set_column(2, "v", pa.array([[1.0, None]] * 9)), "missing numbers"),
    ]:
        pq.write_table(change, tmp_path / f"{name}.parquet")
        with pytest.raises(CongruenceError, match=match):
            list(open_database(tmp_path / f"{name}.parquet").scan())
    folder = tmp_path / "set"
    (folder / "_hidden").mkdir(parents=True)
    pq.write_table(table, folder / "a.parquet")
    pq.write_table(table, folder / "_hidden" / "b.parquet")  # not data, as Spark has it
    assert open_database(folder).count() == 9
    for name, change, match in [
        ("b.parquet", table.drop_columns(["v"]), "without exactly one column 'v'"),
        ("b.parquet", table.set_column(0, "id", pa.array(["x"] * 9)), r"several types .*\(int, text\)"),
        ("b.arrow", table, "both Parquet and Arrow"),
    ]:
        if name.endswith("parquet"):
            pq.write_table(change, folder / name)
        else:
            (folder / "b.parquet").unlink()
            pa.feather.write_feather(change, folder / name)
        with pytest.raises(CongruenceError, match=match):
            open_database(folder)
    (folder / "b.arrow").unlink()
    for name in ("state.json", "dataset_info.json"):
        (folder / name).write_text("{}")
    with pytest.raises(CongruenceError, match="datasets library"):
        open_database(folder)
    data = where.read_bytes()
    where.write_bytes(data[:200] + bytes(400) + data[600:])
    with pytest.raises(CongruenceError):
        list(open_database(where).scan())


def test_a_column_whose_name_begins_like_that_of_the_vectors(tmp_path):
    vectors = [[1.0, 2.0, 3.0, 4.0]] * 3 + [None] * 3
    table = pa.table({"v": pa.array(vectors, pa.list_(pa.float32(), 4)), "v.x": [0.5] * 6})
    pq.write_table(table, tmp_path / "s.parquet")
    with open_database(tmp_path / "s.parquet") as database:
        assert (database.info().rows, database.info().rows_without) == (3, 3)
    migrate(tmp_path / "s.parquet", dim=2)
    found = pq.read_table(tmp_path / "s.parquet")
    assert found["v"].to_pylist() == [[1.0, 2.0]] * 3 + [None] * 3
    assert found["v.x"].equals(table["v.x"])
