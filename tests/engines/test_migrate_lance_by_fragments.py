"""A LanceDB table that an engine migrates: files of the column, committed where nobody has changed their rows."""

import json

import numpy as np
import pyarrow as pa
import pytest
from engine_data import FILES, MAP, ROWS, Dying, Killed, Pickled, X, migrate, table

from congruence import OrthogonalMap
from congruence.databases import open_database
from congruence.engines import LocalEngine
from congruence.errors import DatabaseError, FileError, ParameterError
from congruence.upgrade.migrate import Migration

lance = pytest.importorskip("lance")

pytestmark = pytest.mark.long

N = FILES * ROWS
ONE_EACH = {"range_bytes": 1}  # fragments per task


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
    assert migrate(where, tmp_path / "j", engine, migration=ONE_EACH)["verify"].passed
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
        assert [one[1:] for one in database.ranges(rows)] == stretches
    database.prepare(MAP.d_out)
    (whole,) = database.ranges(10 * N)
    files = database.revise(whole, 128, lambda block: (~block.has_new, MAP.transform(block.old)))
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
    migrate(where, tmp_path / "j", LocalEngine(), steps=("run", "verify"))
    database = open_database(str(where))
    wrong = pa.array([250, 1100])
    database.write(wrong, np.full((2, MAP.d_out), 0.5, np.float32))
    database.delete(pa.array([251]))
    database.flush()
    with Migration(open_database(str(where)), journal=tmp_path / "j", engine=Pickled()) as one:
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

    for rows in list(database.ranges(1)):
        assert database.take(database.revise(rows, 64, change)) == 0
    ids, new = rows_of(where, "vector__congruence_new")
    there = np.isin(ids, [*some, 290])
    np.testing.assert_allclose(new[there], MAP.transform(X[ids[there]]), rtol=0, atol=2e-6)
    assert np.isnan(new[~there]).all()


@pytest.mark.parametrize("element", ["float16", "binary"])
def test_other_kinds_of_numbers(tmp_path, element):
    found = []
    for name, engine in (("a", Pickled()), ("b", None)):
        where = write_table(tmp_path / f"{name}.lance")
        migrate(where, tmp_path / name, engine, steps=("run",), migration={"element_type": element})
        rows = lance.dataset(str(where)).to_table(columns=["vector__congruence_new"])
        found.append(np.array(rows.column(0).to_pylist(), np.float32))
    assert len(found[0]) == N
    np.testing.assert_allclose(*found, rtol=0, atol=1e-3)


@pytest.mark.parametrize("engine", [Pickled(), None])
def test_a_condition_leaves_other_rows_as_they_are(tmp_path, engine):
    where = write_table(tmp_path / "few.lance")
    square = OrthogonalMap(center=False).fit(X[:100], X[:100] @ np.linalg.qr(X[:24])[0])
    lance.dataset(str(where)).delete("id = 305")
    condition = "id % 3 = 0 AND id >= 295"
    with Migration(open_database(str(where), rows=condition), square, journal=tmp_path / "k", engine=engine) as one:
        one.run(mixed=True)
        assert one.verify().passed
    ids, new = rows_of(where, "vector__congruence_new")
    chosen = (ids % 3 == 0) & (ids >= 295)
    np.testing.assert_allclose(new[chosen], square.transform(X[ids[chosen]]), rtol=0, atol=2e-6)
    np.testing.assert_array_equal(new[~chosen], X[ids[~chosen]])


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
        migrate(PHOTOS, tmp_path / "journal", Dying(1), steps=("run",), migration=ONE_EACH)
    lance.dataset(PHOTOS, storage_options=shop).delete("id = 700")
    for words in (("run",), ("verify",), ("switch",)):
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


def test_single_rows_in_an_object_store_and_what_is_refused(shop, here, tmp_path):
    """Rows are re-embedded there as in a folder."""
    np.savez(tmp_path / "new.npz", ids=np.arange(N).astype(str), vectors=MAP.transform(X))
    with Migration(open_database(PHOTOS), MAP, journal=tmp_path / "j", normalize=True) as migration:
        migration.run()
    ended = here("migrate", PHOTOS, "reembed", "--journal", "j", "--encode", "new.npz", "--share", "0.1")
    assert ended.code == 0, ended.err
    with pytest.raises(ParameterError, match=r"URL ends in \.lance"):
        open_database("s3://bucket/shop")
    with pytest.raises((FileError, DatabaseError), match=r"s3://bucket/none\.lance"):
        open_database("s3://bucket/none.lance")
