"""LanceDB: the contract on tables that its own client writes, and special cases."""

import contextlib
import threading
import uuid
from pathlib import Path
from pkgutil import resolve_name

import numpy as np
import pyarrow as pa
import pytest
from database_contract import BETWEEN, DIM, DatabaseContract, Killed, UserRow, lists, run
from lazy_module import LazyModule

from congruence.databases import Stage, open_database
from congruence.errors import CongruenceError, CorruptFileError, DatabaseError, MigrationError, ParameterError

pytestmark = pytest.mark.heavy

lance, lancedb = LazyModule("lance"), LazyModule("lancedb")


def connect(where):
    return lancedb.connect(Path(where).parent).open_table(Path(where).stem)


class TestLanceDB(DatabaseContract):
    kind = "lancedb"
    slow = True
    times_writing = True
    any_names = False
    needed = ("embedding__congruence_new", "embedding__congruence_old", "Embedding__Congruence_New")

    def take(self, where, name):
        lance.dataset(where).add_columns({name: "'mine'"})

    def make(self, folder, ids, vectors, others, *, table="items", column="embedding", id_column="id"):
        rows = pa.table({id_column: ids, **others, column: lists(vectors)})
        made = lancedb.connect(folder).create_table(table, rows.slice(0, 100))
        if len(rows) > 100:
            made.add(rows.slice(100))  # another fragment
        return str(folder / f"{table}.lance")

    def user_rows(self, where, *, table="items", column="embedding", id_column="id"):
        found = connect(where).to_arrow()
        names = [name for name in ("kind", "title", "nested") if name in found.column_names]
        return {
            one: UserRow(
                None if vector is None else np.array(vector, np.float32).tobytes(),
                {name: found[name][k].as_py() for name in names},
            )
            for k, (one, vector) in enumerate(zip(found[id_column].to_pylist(), found[column].to_pylist(), strict=True))
        }

    def give(self, where, situation):
        rows = connect(where).to_arrow()
        field = rows.schema.field("embedding")
        vectors, place = rows["embedding"], rows.schema.get_field_index("embedding")
        if situation == "NOT NULL":
            field = field.with_nullable(False)
        elif situation == "comment":
            field = field.with_metadata({"of": "the photo"})
        elif situation == "type":
            field = field.with_type(pa.list_(pa.float64(), DIM))
            vectors = vectors.cast(field.type)
        rows = rows.set_column(place, field, vectors)
        if situation == "two columns":
            rows = rows.append_column("second", vectors)
        lancedb.connect(Path(where).parent).create_table("items", rows, mode="overwrite")

    def traces(self, where):
        data = lance.dataset(where)
        fields = [(one.name, str(one.type), one.nullable, one.metadata or {}) for one in data.schema]
        files = sorted(one.name for one in Path(where).parent.iterdir())
        indices = [(one.name, one.field_names) for one in data.describe_indices()]
        return sorted(fields, key=str), data.schema.metadata or {}, files, indices

    between = BETWEEN["lancedb"]

    def make_between(self, where, what):
        data = lance.dataset(where)
        if what == "index":
            data.create_index("embedding", "IVF_FLAT", num_partitions=2, metric="cosine")
        elif what == "scalar index":
            data.create_scalar_index("kind", "BTREE")
        elif what == "tag":
            data.tags.create("mine", data.version)
        else:
            data.update_field_metadata({"embedding": {"of": "the photo"}})

    def holds(self, where, what):
        data = lance.dataset(where)
        if what == "tag":
            return len(lance.dataset(where, "mine").to_table()) == len(self.user_rows(where))
        if what == "comment":
            return data.schema.field("embedding").metadata[b"of"] == b"the photo"
        return [(what == "index" and "embedding") or "kind"] in [one.field_names for one in data.describe_indices()]

    def rules(self, where):
        field = connect(where).schema.field("embedding")
        metadata = {key: text for key, text in (field.metadata or {}).items() if key != b"congruence.note"}
        return str(field.type), field.nullable, metadata

    def user_add(self, where, one, vector, others, *, table="items", column="embedding", id_column="id"):
        given = pa.array([None if vector is None else vector.tolist()], pa.list_(pa.float32(), DIM))
        rows = pa.table({id_column: [one], **{name: [value] for name, value in others.items()}, column: given})
        connect(where).merge_insert(id_column).when_matched_update_all().when_not_matched_insert_all().execute(
            rows, on_bad_vectors="null"
        )

    def user_delete(self, where, one, *, table="items", id_column="id"):
        connect(where).delete(f"{id_column} = {one!r}")


def small(folder, n=40, dim=DIM, kind=np.float32, **columns):
    """Create a table of two fragments with random vectors; return its address and the vectors."""
    vectors = np.random.default_rng(0).normal(size=(n, dim)).astype(kind)
    rows = pa.table({"id": pa.array(range(n)), "embedding": lists(vectors), **columns})
    table = lancedb.connect(folder).create_table("items", rows.slice(0, n // 2))
    table.add(rows.slice(n // 2))
    return str(folder / "items.lance"), vectors


def fill(database, scale=-1, batch=7):
    for block in database.scan(batch=batch):
        database.write(block.ids, scale * block.vectors)
    database.flush()


def new_of(database):
    """Return all new vectors by id."""
    blocks = list(database.scan("new"))
    return {one: row for part in blocks for one, row in zip(part.ids.to_pylist(), part.vectors, strict=True)}


def test_a_search_that_names_no_column_finds_what_it_found(tmp_path):
    where, vectors = small(tmp_path)

    def found(query):
        return [row["id"] for row in connect(where).search(query).limit(1).to_list()]

    with open_database(where) as database:
        database.prepare(DIM, "float32", {})
        assert found(vectors[3]) == [3]
        fill(database)
        assert found(vectors[3]) == [3]
        database.switch()
        assert found(-vectors[3]) == [3]
        assert found(vectors[3]) != [3]
        database.rollback()
        assert found(vectors[3]) == [3]


def test_an_index_has_no_name_of_ours(tmp_path):
    where, _ = small(tmp_path, n=300)
    for name in ("embedding_idx1", "embedding_idx"):
        if name == "embedding_idx1":
            lance.dataset(where).create_index("embedding", "IVF_FLAT", num_partitions=2, metric="cosine")
        with open_database(where) as database:
            database.prepare(DIM, "float32", {})
            fill(database)
            database.build_index()
            database.switch()
            database.drop_old()
        assert [one.name for one in lance.dataset(where).describe_indices()] == [name]


def test_the_space_of_the_table_goes_with_the_old_vectors(tmp_path):
    where, _ = small(tmp_path)
    lance.dataset(where).update_schema_metadata({"congruence.space": '{"model": "a"}', "mine": "yes"})

    def stated():
        return {key.decode(): text.decode() for key, text in lance.dataset(where).schema.metadata.items()}

    before = stated()
    with open_database(where) as database:
        database.prepare(DIM, "float32", {})
        fill(database)
        database.switch()
        assert stated() == {"mine": "yes"}
        assert database.info().space.model == "a"  # of the old vectors
        database.rollback()
        assert stated() == before
        database.switch()
        database.drop_old()
        assert database.info().space.model is None
    assert stated() == {"mine": "yes"}


def test_an_extension_type_is_kept(tmp_path):
    where, vectors = str(tmp_path / "items.lance"), np.eye(20, DIM, dtype=np.float32)
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(vectors)
    lance.write_dataset(pa.table({"id": range(20), "embedding": tensors}), where)

    def kind():
        field = lance.dataset(where).schema.field("embedding")
        return field.type.extension_name, field.type.shape, field.metadata or {}

    before = kind()
    with open_database(where) as database:
        run(database, 4)
        database.switch()
        database.switch()
        assert kind()[:2] == ("arrow.fixed_shape_tensor", [4])
        database.rollback()
        assert kind() == before
        database.switch()
        database.drop_old()
    assert kind() == ("arrow.fixed_shape_tensor", [4], {})


def test_both_columns_change_their_names_in_one_version(tmp_path):
    where, _ = small(tmp_path)
    with open_database(where) as database:
        database.prepare(DIM, "float32", {})
        fill(database)
        before = lance.dataset(where).version
        database.switch()
    for version in range(before, lance.dataset(where).version + 1):
        names = set(lance.dataset(where, version).schema.names) - {"id"}
        assert names in ({"embedding", "embedding__congruence_new"}, {"embedding", "embedding__congruence_old"})


STEPS = {
    "before a column's file is complete": ("lancedb.ColumnWriter.close", True),
    "when it is complete": ("lancedb.ColumnWriter.close", False),
    "before it is committed": ("lancedb.commit", True),
    "when it is committed": ("lancedb.commit", False),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_kill_while_writing_loses_nothing(tmp_path, monkeypatch, step):
    where, vectors = small(tmp_path)
    name, before = STEPS[step]
    with open_database(where) as database:
        database.prepare(DIM, "float32", {"map": "m"})
        blocks = list(database.scan(batch=8))
        for block in blocks[:2]:
            database.write(block.ids, 3 * block.vectors)
        database.flush()  # these last

    def killed(*arguments, **options):
        if not before:
            function(*arguments, **options)
        raise Killed

    place, _, method = f"congruence.databases.{name}".rpartition(".")
    function = resolve_name(f"{place}.{method}")
    with monkeypatch.context() as patch:
        patch.setattr(resolve_name(place), method, killed)
        database = open_database(where)
        with pytest.raises(Killed):
            for block in database.scan(after=blocks[1].cursor, batch=8):
                database.write(block.ids, 3 * block.vectors)
                database.flush()
    with open_database(where) as database:
        assert database.stage() is Stage.PREPARED
        there = new_of(database)
        assert set(blocks[0].ids.to_pylist() + blocks[1].ids.to_pylist()) <= set(there)
        fill(database, scale=3)
        there = new_of(database)
        assert sorted(there) == list(range(40))
        np.testing.assert_array_equal([there[k] for k in range(40)], 3 * vectors)
        database.switch()
    assert connect(where).to_arrow()["embedding"].to_pylist() == [row.tolist() for row in 3 * vectors]


def test_a_compaction_between_reading_and_writing(tmp_path):
    where, vectors = small(tmp_path)
    with open_database(where) as database:
        database.prepare(DIM, "float32", {})
        blocks = list(database.scan(batch=8))
        for block in blocks[:3]:
            database.write(block.ids, -block.vectors)
        database.flush()
        connect(where).delete("id IN (2, 30)")
        lance.dataset(where).optimize.compact_files()
        for block in blocks[3:]:
            database.write(block.ids, -block.vectors)
        database.flush()
        there = new_of(database)
        assert sorted(there) == [k for k in range(40) if k not in (2, 30)]
        for one, row in there.items():
            np.testing.assert_array_equal(row, -vectors[one])
        # A cursor of before the compaction begins again rather than pass rows over.
        assert sum(len(block.ids) for block in database.scan(after=blocks[-1].cursor)) == 38
        fill(database, scale=2)  # the column is a part of a wider file now
        np.testing.assert_array_equal(new_of(database)[7], 2 * vectors[7])


def test_a_second_writer_at_the_same_time_loses_nothing(tmp_path):
    where, vectors = small(tmp_path, n=60)
    stop, errors, added, gone = threading.Event(), [], [], []

    def add(table, k):
        for _ in range(3):
            table.checkout_latest()
            try:
                table.add(pa.table({"id": [k], "embedding": lists(vectors[:1])}))
                return
            except ValueError as error:
                # In the instant of the switch LanceDB refuses a write whole, and it is to be tried again.
                if "does not match the file schema" not in str(error):
                    raise
        raise AssertionError("refused three times")

    def write():
        table = connect(where)
        for k in range(1000, 1020):
            try:
                add(table, k)
                added.append(k)
                if k % 4 == 0:
                    gone.append(k - 1000)
                    table.delete(f"id = {k - 1000}")
            except Exception as error:
                errors.append(error)
            if k % 7 == 0:
                with contextlib.suppress(RuntimeError):  # a compaction gives way to a write, and is to be tried again
                    table.optimize()
            if stop.is_set():
                return

    with open_database(where) as database:
        database.prepare(DIM, "float32", {})
        writer = threading.Thread(target=write)
        writer.start()
        try:
            for _ in range(50):
                for block in database.scan(batch=10):
                    database.write(block.ids, -block.vectors)
                    database.flush()
                with contextlib.suppress(MigrationError):  # rows added meanwhile have no new vector
                    database.switch()
                    break
            database.rollback()
        finally:
            stop.set()
            writer.join()
        assert not errors
        fill(database)
        there = new_of(database)
        mapped = {one for block in database.scan() for one in block.ids.to_pylist()}
    expected = sorted({*range(60), *added} - set(gone))
    assert sorted(there) == expected == sorted(connect(where).to_arrow()["id"].to_pylist())
    for one, row in there.items():
        # What came between switch and rollback was written as a new vector, and has no old one.
        np.testing.assert_array_equal(row, -vectors[one if one < 1000 else 0] if one in mapped else vectors[0])
    assert mapped >= set(there) - set(added)


def test_rows_that_come_after_the_switch_stay_at_the_rollback(tmp_path):
    where, vectors = small(tmp_path)
    late = connect(where)  # has read the table before the switch
    with open_database(where) as database:
        database.prepare(DIM, "float32", {})
        fill(database)
        database.switch()
        late.add(pa.table({"id": [1000], "embedding": lists(vectors[:1])}))
        new = connect(where)
        new.add(pa.table({"id": [1001], "embedding": lists(vectors[1:2])}))
        rows = {row["id"]: row for row in new.to_arrow().to_pylist()}
        # The late writer's vector is of the old model, and stands among the old ones.
        assert rows[1000]["embedding"] is None
        assert rows[1000]["embedding__congruence_old"] is not None
        assert rows[1001]["embedding__congruence_old"] is None
        (pair,) = [p for p in database.scan_pairs() if 1000 in p.ids.to_pylist()]
        assert not pair.has_new[pair.ids.to_pylist().index(1000)]
        database.rollback()
    rows = {row["id"]: row for row in connect(where).to_arrow().to_pylist()}
    assert len(rows) == 42
    np.testing.assert_array_equal(rows[1000]["embedding"], vectors[0])


def test_the_index_is_built_again_and_follows_the_names(tmp_path):
    where, vectors = small(tmp_path, n=300)
    with open_database(where) as database:
        assert database.info().index is None
        database.prepare(4, "float32", {"map": "abc"})
        assert database.build_index() is None
    lance.dataset(where).create_index("embedding", "IVF_PQ", metric="cosine", num_partitions=1, num_sub_vectors=4)
    with open_database(where) as database:
        info = database.info()
        assert (info.distance, info.index) == ("cosine", "IVF_PQ, cosine, 1 partitions, 4 sub-vectors")
        run(database, 4)
        assert database.build_index() == "IVF_PQ, cosine, 1 partitions, 2 sub-vectors"
        version = lance.dataset(where).version
        database.build_index()
        assert lance.dataset(where).version == version  # it is there
        for side, queries in (("old", vectors), ("new", vectors[:, :4])):
            hits = [k in one.to_pylist() for k, one in enumerate(database.search(queries[:50], 10, side))]
            assert np.mean(hits) > 0.9
        database.switch()
        assert database.info().index.startswith("IVF_PQ")
        database.drop_old()
        assert database.info().index == "IVF_PQ, cosine, 1 partitions, 2 sub-vectors"
    (left,) = lance.dataset(where).list_indices()
    assert left["fields"] == ["embedding"]


def test_bits_are_packed_as_numpy_does_and_found_by_the_users_own_search(tmp_path):
    where, vectors = small(tmp_path, n=300, dim=16)
    lance.dataset(where).create_index("embedding", "IVF_PQ", metric="cosine", num_partitions=1, num_sub_vectors=4)
    packed = np.packbits(vectors > 0, axis=1)
    with open_database(where) as database:
        run(database, 16, "binary")
        assert database.build_index() == "IVF_FLAT, hamming, 1 partitions"
        database.switch()
        table = connect(where)
        assert table.to_arrow()["embedding"].combine_chunks().values.to_pylist() == packed.reshape(-1).tolist()
        found = table.search(packed[7], vector_column_name="embedding").distance_type("hamming").limit(1).to_arrow()
        assert packed[found["id"][0].as_py()].tolist() == packed[7].tolist()
        database.drop_old()
        assert (database.info().element_type, database.info().dim, database.info().distance) == ("binary", 16, None)
        database.prepare(16, "float32", {})
        for block in database.scan():
            database.write(block.ids, vectors[block.ids.to_pylist()])
        assert database.build_index() == "IVF_FLAT, cosine, 1 partitions"
    half = pa.FixedSizeListArray.from_arrays(pa.array([1, None] * 4, pa.uint8()), 2)
    lance.write_dataset(pa.table({"id": range(4), "v": half}), str(tmp_path / "half.lance"))
    with open_database(tmp_path / "half.lance") as database, pytest.raises(DatabaseError, match="missing bytes"):
        list(database.scan())


@pytest.mark.parametrize("version", ["2.0", "stable"])
@pytest.mark.parametrize(("kind", "element_type"), [(np.float16, "float32"), (np.float64, "float16")])
def test_types_of_numbers_and_other_columns(tmp_path, version, kind, element_type):
    n = 30
    vectors = np.random.default_rng(0).normal(size=(n, DIM)).astype(kind)
    empty = pa.array(np.arange(n) % 5 == 0)
    flat = pa.array(vectors.reshape(-1))
    table = pa.table(
        {
            "key": pa.array([bytes([k] * 16) for k in range(n)], pa.uuid()),
            "vec \"tor'": pa.FixedSizeListArray.from_arrays(flat, DIM, mask=empty),
            "nested": [{"a": [k, None], "b": {"c": str(k)}} for k in range(n)],
            "told": pa.array(["a", "b", None] * 10).dictionary_encode(),
            "blob": pa.array([bytes(k) for k in range(n)], pa.large_binary()),
        },
        metadata={"congruence.space": '{"model": "clip", "dim": 8}'},
    )
    data = lance.write_dataset(table, str(tmp_path / "t.lance"), max_rows_per_file=12, data_storage_version=version)
    others = ["key", "nested", "told", "blob"]
    before = data.to_table(columns=others)
    data.delete("_rowaddr = 3")
    with open_database(tmp_path / "t.lance", ids="key", column="vec \"tor'", modality_column="told") as database:
        info = database.info()
        assert (info.rows, info.rows_without, info.id_type, info.space.model) == (23, 6, "uuid", "clip")
        assert info.element_type == ("float16" if kind is np.float16 else "float32")
        database.prepare(DIM, element_type, {})
        database.prepare(DIM, element_type, {})
        fill(database, scale=2, batch=5)
        assert database.count("new") == 23
        there = new_of(database)
        assert (
            there[str(uuid.UUID(bytes=bytes([7] * 16)))].tolist()
            == (2 * vectors[7].astype(np.float32)).astype(element_type).tolist()
        )
        database.switch()
    after = lance.dataset(str(tmp_path / "t.lance"))
    assert after.to_table(columns=others).to_pylist() == [row for k, row in enumerate(before.to_pylist()) if k != 3]
    kept = pa.float16() if element_type == "float16" else pa.float32()
    assert after.schema.field("vec \"tor'").type.value_type == kept


def test_what_is_refused(tmp_path):
    vectors = lists(np.eye(4, dtype=np.float32))
    rows = {"id": [1, 2, 2, 3], "a": vectors, "b": vectors, "c": [[1.0]] * 4}
    database = lancedb.connect(tmp_path)
    database.create_table("items", pa.table(rows))
    where = f"lancedb://{tmp_path}"
    with open_database(where, column="a") as found:
        assert found.repeated_ids() == ["2"]
        with pytest.raises(MigrationError):
            found.switch()
        with pytest.raises(ParameterError, match="cursor"):
            list(found.scan(after="x"))
    for options, says in (
        ({}, "2 columns"),
        ({"column": "c"}, "of type list"),
        ({"column": "a", "ids": "b"}, "ids in"),
        ({"column": "a", "table": "other"}, "items"),
    ):
        with pytest.raises(CongruenceError, match=says):
            open_database(where, **options)
    database.create_table("other", pa.table({"key": [1], "a": vectors[:1]}))
    with pytest.raises(ParameterError, match="'items', 'other'"):
        open_database(where)
    with pytest.raises(ParameterError, match="no column id"):
        open_database(where, table="other")
    with pytest.raises(CongruenceError, match="no Lance table"):
        open_database(tmp_path / "none.lance")
    database.create_table("nulls", pa.table({"id": pa.array([1, None]), "a": vectors[:2]}))
    with pytest.raises(DatabaseError, match="without id"), open_database(where, table="nulls") as found:
        list(found.scan())


def test_damage_is_an_error_of_ours(tmp_path):
    where, _ = small(tmp_path)
    with open_database(where) as database:
        database.prepare(DIM, "float32", {})
        block = next(iter(database.scan(batch=5)))
        database.write(block.ids, block.vectors)
        before = set((Path(where) / "data").iterdir())
        database.flush()
    (file,) = set((Path(where) / "data").iterdir()) - before
    file.write_bytes(file.read_bytes()[:100])
    with open_database(where) as database:
        with pytest.raises(CorruptFileError):
            list(database.scan("new"))
        database.discard()
        assert database.stage() is Stage.UNTOUCHED
    for data in (Path(where) / "data").iterdir():
        data.write_bytes(data.read_bytes()[:50])
    with pytest.raises(CorruptFileError), open_database(where) as database:
        list(database.scan())


def test_what_was_written_later_counts(tmp_path):
    where, vectors = small(tmp_path)
    with open_database(where) as database:
        database.prepare(DIM, "float32", {})
        first, *_ = blocks = list(database.scan(batch=8))
        for block in blocks[:-1]:
            database.write(block.ids[:7], -block.vectors[:7])
            database.write(block.ids[:7], block.vectors[:7])
        database.flush()
        assert lance.dataset(where).count_rows("embedding__congruence_new IS NOT NULL") == 32
        database.write(first.ids, 5 * first.vectors)
        database.write(blocks[-1].ids[:2], blocks[-1].vectors[:2])
        database.flush()
        there = new_of(database)
        np.testing.assert_array_equal([there[k] for k in range(8)], 5 * vectors[:8])
        np.testing.assert_array_equal(there[37], vectors[37])
        assert 39 not in there
        database.delete(first.ids[:3])
        assert database.count("new") == len(there) - 3
