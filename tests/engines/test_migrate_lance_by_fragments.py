"""A LanceDB table that an engine migrates: files of the column, committed where nobody has changed their rows."""

import json

import numpy as np
import pyarrow as pa
import pytest
from engine_data import FILES, MAP, ROWS, Dying, Killed, Pickled, X, count_mapped, migrate, table

from congruence.databases import open_database
from congruence.engines import EngineExecutor, LocalEngine
from congruence.errors import DatabaseError, FileError, NotFiniteError, ParameterError
from congruence.upgrade.migrate import Migration

lance = pytest.importorskip("lance")

pytestmark = pytest.mark.long

N = FILES * ROWS


def write_table(where, vectors=X, rows=ROWS):
    lance.write_dataset(table(vectors=vectors), str(where), max_rows_per_file=rows)
    return where


def rows_of(where, column="vector"):
    """Return the ids and the vectors of a table, in the order of the ids; null is a row of NaN."""
    read = lance.dataset(str(where)).to_table(columns=["id", column]).sort_by("id")
    kind = read.schema.field(column).type
    width = kind.shape[0] if isinstance(kind, pa.BaseExtensionType) else kind.list_size
    vectors = [np.full(width, np.nan) if row is None else row for row in read[column].to_pylist()]
    return read["id"].to_numpy(), np.array(vectors, np.float32)


def check(where, old=X, column="vector"):
    """Every row has what the map gives of its old vector."""
    ids, new = rows_of(where, column)
    np.testing.assert_allclose(new, MAP.transform(old[ids]), rtol=0, atol=2e-6)
    return ids


def column_files(where):
    """Return the files on the disk, and those that the latest version names."""
    named = {file.path for one in lance.dataset(str(where)).get_fragments() for file in one.data_files()}
    return {path.name for path in (where / "data").iterdir()}, named


class Meanwhile(LocalEngine):
    """While its first pass has reported one range, another program changes the table."""

    def __init__(self, where, change):
        self.where, self.change = where, change

    def run(self, work, fragments):
        for result in super().run(work, fragments):
            change, self.change = self.change, None
            if change is not None:
                change(lance.dataset(str(self.where)))
            yield result


def test_it_ends_as_in_one_process(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    where = write_table(tmp_path / "photos.lance")
    result = migrate("photos.lance", "journal", EngineExecutor(Pickled(), range_bytes=4 * X.shape[1] * 2 * ROWS))
    assert result["verify"].passed
    assert check(where).tolist() == list(range(N))
    kept = json.loads((tmp_path / "journal" / "journal.json").read_text())
    assert kept["rows"] == N
    with Migration(open_database("photos.lance"), journal="journal", executor=EngineExecutor(Pickled())) as one:
        assert one.rollback()["identical"] is True
    np.testing.assert_array_equal(rows_of(where)[1], X)
    assert lance.dataset(str(where)).to_table(columns=["id", "title"]).equals(table().drop(["vector"]))


@pytest.mark.parametrize("after", [0, FILES - 1])
@pytest.mark.parametrize("then", ["engine", "one process"])
def test_a_killed_driver_loses_nothing(tmp_path, monkeypatch, after, then):
    where, one_each = write_table(tmp_path / "photos.lance"), {"range_bytes": 1}

    def dead(self, files):
        raise Killed  # a dead process commits nothing

    monkeypatch.setattr(type(open_database(str(where))), "take", dead)
    with pytest.raises(Killed):
        migrate(where, tmp_path / "j", EngineExecutor(Dying(after), **one_each), steps=("run",))
    monkeypatch.undo()
    executor = EngineExecutor(LocalEngine(), **one_each) if then == "engine" else None
    assert migrate(where, tmp_path / "j", executor, resume=True)["verify"].passed
    assert len(check(where)) == N


def test_what_is_committed_is_not_mapped_again(tmp_path, monkeypatch):
    where = write_table(tmp_path / "photos.lance")
    with pytest.raises(Killed):  # an interrupt: what was told is committed
        migrate(where, tmp_path / "j", EngineExecutor(Dying(2), range_bytes=1), steps=("run",))
    mapped, executor = count_mapped(monkeypatch), EngineExecutor(LocalEngine())
    with Migration(open_database(str(where)), MAP, journal=tmp_path / "j", executor=executor) as one:
        one.executor.fill(one, one.journal)
    assert sum(mapped) == (FILES - 2) * ROWS


def update(data):
    changed = np.ones(X.shape[1], np.float32) / np.sqrt(X.shape[1])
    data.update({"vector": "[" + ", ".join(map(str, changed)) + "]"}, where="id = 5 OR id = 905")


SEVEN = table(0, 7).set_column(0, "id", pa.array(np.arange(N, N + 7)))
CHANGES = {
    "rows are deleted": lambda data: data.delete("id IN (3, 4, 350, 1199)"),
    "rows are updated": update,
    "rows are added": lambda data: lance.write_dataset(SEVEN, data.uri, mode="append"),
    "a column is added": lambda data: data.add_columns(pa.field("more", pa.int32())),
    "fragments are compacted": lambda data: data.optimize.compact_files(target_rows_per_fragment=10 * N),
    "a vector is missing": lambda data: data.update({"vector": "NULL"}, where="id = 7"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_others_change_the_table_meanwhile(tmp_path, name):
    """Files written for rows as they were are committed where these still stand, and the others removed."""
    where = write_table(tmp_path / "photos.lance")
    engine = Meanwhile(where, CHANGES[name])
    assert migrate(where, tmp_path / "j", EngineExecutor(engine, range_bytes=1))["verify"].passed
    assert engine.change is None
    old = rows_of(where, "vector__congruence_old")
    ids, new = rows_of(where)
    np.testing.assert_array_equal(ids, old[0])
    there = ~np.isnan(old[1][:, 0])
    assert there.all() == (name != "a vector is missing")
    np.testing.assert_allclose(new[there], MAP.transform(old[1][there]), rtol=0, atol=2e-6)
    gone = {"rows are deleted": 4, "rows are added": -7}.get(name, 0)
    assert len(ids) == N - gone


def test_small_fragments_share_a_stretch_and_a_file_of_rows_that_moved_is_removed(tmp_path):
    where = write_table(tmp_path / "photos.lance")
    database = open_database(str(where))
    each = [(k, k + 1) for k in range(FILES)]
    for rows, stretches in ((2 * ROWS, [(0, 2), (2, 4)]), (2 * ROWS - 1, each), (1, each), (10 * N, [(0, 4)])):
        assert list(database.ranges(rows)) == stretches
    database.prepare(MAP.d_out)
    ((start, stop),) = database.ranges(10 * N)
    files = database.revise(start, stop, 128, lambda block: (~block.has_new, MAP.transform(block.old)))
    assert [one["fragment"] for one in files] == [0, 1, 2, 3]
    json.dumps(files)
    lance.dataset(str(where)).optimize.compact_files(target_rows_per_fragment=2 * ROWS)
    before, _ = column_files(where)
    assert database.take(files) == FILES
    after, named = column_files(where)
    assert before - after == {one["file"]["path"] for one in files}
    assert named <= after
    assert database.count("new") == 0


def test_rows_that_are_deleted_or_have_no_vector(tmp_path):
    """They stay so at a fragment's start, between others and at its end, also where some vectors are written again."""
    where = tmp_path / "photos.lance"
    holes = {0, 1, 299, 300, 450, 899, 1199}
    lists = [None if k in (2, 298, 600, 1198) else row.tolist() for k, row in enumerate(X)]
    whole = table().set_column(1, "vector", pa.array(lists, pa.list_(pa.float32(), X.shape[1])))
    lance.write_dataset(whole, str(where), max_rows_per_file=ROWS)
    lance.dataset(str(where)).delete(f"id IN ({', '.join(map(str, sorted(holes)))})")
    migrate(where, tmp_path / "j", EngineExecutor(LocalEngine()), steps=("run", "verify"))
    database = open_database(str(where))
    wrong = pa.array([250, 1100])
    database.write(wrong, np.full((2, MAP.d_out), 0.5, np.float32))
    database.delete(pa.array([251]))
    database.flush()
    with Migration(open_database(str(where)), journal=tmp_path / "j", executor=EngineExecutor(Pickled())) as one:
        one.switch()
        assert [found["written"] for found in one.journal.passes[-2:]] == [3, 0]
    ids, new = rows_of(where)
    assert set(range(N)) - set(ids.tolist()) == holes
    without = np.isin(ids, [2, 298, 600, 1198])
    assert np.isnan(new[without]).all()
    np.testing.assert_allclose(new[~without], MAP.transform(X[ids[~without]]), rtol=0, atol=2e-6)


def test_rows_before_the_first_that_changes_are_copied(tmp_path):
    """In blocks of 64 rows one of the fifth changes, behind rows that are deleted or have no vector yet."""
    where = write_table(tmp_path / "photos.lance")
    lance.dataset(str(where)).delete("id IN (0, 63, 64, 130)")
    database = open_database(str(where))
    database.prepare(MAP.d_out)
    some = np.setdiff1d(np.arange(ROWS), [0, 7, 63, 64, 130, 290])
    database.write(pa.array(some), MAP.transform(X[some]))
    database.flush()

    def change(block):
        which = np.asarray(block.ids) == 290
        return (which, MAP.transform(block.old[which])) if which.any() else None

    for start, stop in list(database.ranges(1)):
        assert database.take(database.revise(start, stop, 64, change)) == 0
    ids, new = rows_of(where, "vector__congruence_new")
    there = np.isin(ids, [*some, 290])
    np.testing.assert_allclose(new[there], MAP.transform(X[ids[there]]), rtol=0, atol=2e-6)
    assert np.isnan(new[~there]).all()


@pytest.mark.parametrize("element", ["float16", "binary"])
def test_other_kinds_of_numbers(tmp_path, element):
    found = []
    for name, executor in (("a", EngineExecutor(Pickled())), ("b", None)):
        where = write_table(tmp_path / f"{name}.lance")
        migrate(where, tmp_path / name, executor, steps=("run",), migration={"element_type": element})
        rows = lance.dataset(str(where)).to_table(columns=["vector__congruence_new"])
        found.append(np.array(rows.column(0).to_pylist(), np.float32))
    assert len(found[0]) == N
    np.testing.assert_allclose(*found, rtol=0, atol=1e-3)


def test_bad_input(tmp_path):
    vectors = X.copy()
    vectors[2 * ROWS + 7, 3] = np.nan
    where = write_table(tmp_path / "photos.lance", vectors)
    files = column_files(where)[0]
    with pytest.raises(NotFiniteError, match=r"607.*The fragment is fragments 2 to 2"):
        migrate(where, tmp_path / "j", EngineExecutor(LocalEngine(), range_bytes=1), steps=("run",))
    on_disk, named = column_files(where)
    assert on_disk - files == named - files  # of the fragments before, and nothing of the broken one
    database = open_database(str(write_table(tmp_path / "few.lance")), rows="id < 100")
    with pytest.raises(ParameterError, match="condition 'id < 100' for an engine"):
        Migration(database, MAP, journal=tmp_path / "k", executor=EngineExecutor(LocalEngine())).run()


PHOTOS = "s3://bucket/shop/photos.lance"


@pytest.fixture
def shop(bucket, monkeypatch):
    """Options to open a table in the bucket."""
    endpoint = f"http://127.0.0.1:{bucket.server_port}"
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
    options = {"aws_endpoint": endpoint, "allow_http": "true"}
    lance.write_dataset(table(), PHOTOS, max_rows_per_file=ROWS, storage_options=options)
    return options


def in_bucket(options):
    return lance.dataset(PHOTOS, storage_options=options).to_table().sort_by("id")


def test_a_table_in_an_object_store_by_the_command(shop, here, tmp_path):
    """From the plan to the way back, killed between, with another's change; no file is beside the table's own."""
    MAP.save(tmp_path / "map")
    with pytest.raises(Killed):
        executor = EngineExecutor(Dying(1), range_bytes=1)
        migrate(PHOTOS, tmp_path / "journal", executor, steps=("run",))
    lance.dataset(PHOTOS, storage_options=shop).delete("id = 700")
    for words in (("--map", "map", "--resume", "--yes"), ("verify",), ("switch",)):
        ended = here("migrate", PHOTOS, *words, "--journal", "journal")
        assert ended.code == 0, ended.err
    found = in_bucket(shop)
    ids = found["id"].to_numpy()
    assert ids.tolist() == [k for k in range(N) if k != 700]
    np.testing.assert_allclose(np.stack(found["vector"].to_numpy()), MAP.transform(X[ids]), rtol=0, atol=2e-6)
    ended = here("migrate", PHOTOS, "rollback", "--journal", "journal")
    assert ended.code == 0, ended.err
    np.testing.assert_array_equal(np.stack(in_bucket(shop)["vector"].to_numpy()), X[ids])
    assert "127.0.0.1" not in (tmp_path / "journal" / "journal.json").read_text()


def test_what_an_object_store_cannot_do_is_said(shop, here, tmp_path):
    with pytest.raises(DatabaseError, match=r"s3://.*cannot be written one by one.*Migrate with an engine"):
        Migration(open_database(PHOTOS), MAP, journal=tmp_path / "j").run()
    with pytest.raises(ParameterError, match=r"URL ends in \.lance"):
        open_database("s3://bucket/shop")
    with pytest.raises((FileError, DatabaseError), match=r"s3://bucket/none\.lance"):
        open_database("s3://bucket/none.lance")
    np.savez(tmp_path / "new.npz", ids=np.arange(N), vectors=MAP.transform(X))
    ended = here("migrate", PHOTOS, "reembed", "--encode", "new.npz", "--share", "0.1")
    assert ended.code == 2
    assert "in an object store, where rows cannot be re-embedded" in ended.err
