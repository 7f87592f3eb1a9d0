"""A migration that an engine runs: the bits of one process, nothing lost to kills, and files only."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from engine_data import (
    FILES,
    MAP,
    ROWS,
    Dying,
    Killed,
    Pickled,
    X,
    count_mapped,
    migrate,
    read_parts,
    table,
    write_parts,
)

from congruence.databases import open_database
from congruence.engines import LocalEngine
from congruence.errors import MigrationError, NotFiniteError, ParameterError
from congruence.upgrade.migrate import Migration
from congruence.upgrade.migrate.passes import SAMPLE_IDS

ONE_EACH = {"range_bytes": 4 * X.shape[1] * ROWS}  # one file or fragment per task


def same_files(ours, theirs):
    """Compare all columns to the bit, the schemas and the row groups."""
    for part in sorted(theirs.iterdir()):
        files = [pq.ParquetFile(folder / part.name) for folder in (ours, theirs)]
        tables = [file.read() for file in files]
        assert tables[0].equals(tables[1])
        assert tables[0].schema.equals(tables[1].schema, check_metadata=True)
        assert files[0].metadata.num_row_groups == files[1].metadata.num_row_groups == 3


def contents(where, column="vector"):
    """Return the rows in the order of their ids, with the vectors of a column."""
    if where.suffix == ".lance":
        import lance

        return lance.dataset(str(where)).to_table(columns=["id", "title", column]).sort_by("id")
    return read_parts(where)


def check(where):
    """Every row has what the map gives of its old vector."""
    found = contents(where)
    assert found["id"].to_pylist() == list(range(FILES * ROWS))
    np.testing.assert_allclose(np.stack(found["vector"].to_pylist()), MAP.transform(X), rtol=0, atol=2e-6)


@pytest.fixture(params=["parquet", pytest.param("lance", marks=pytest.mark.long)])
def make(request, tmp_path):
    """Return a function that writes four files or fragments of 300 rows under a name."""

    def write(name, vectors=X):
        if request.param == "parquet":
            return write_parts(tmp_path / name / "photos", vectors)
        lance = pytest.importorskip("lance")
        lance.write_dataset(table(vectors=vectors), str(tmp_path / f"{name}.lance"), max_rows_per_file=ROWS)
        return tmp_path / f"{name}.lance"

    return write


def test_it_ends_as_in_one_process(make, tmp_path, monkeypatch):
    ours, theirs = make("a"), make("b")
    old = contents(ours)
    monkeypatch.chdir(tmp_path)
    relative = ours.relative_to(tmp_path)
    result = migrate(relative, tmp_path / "ja", Pickled(), migration={"range_bytes": 4 * X.shape[1] * 2 * ROWS})
    migrate(theirs, tmp_path / "jb")
    assert result["verify"].passed
    assert contents(ours).equals(contents(theirs))
    if ours.is_dir() and ours.suffix != ".lance":
        same_files(ours, theirs)
    check(ours)
    with Migration(open_database(relative), journal=tmp_path / "ja", engine=Pickled()) as one:
        assert one.journal.rows == FILES * ROWS
        assert one.rollback()["identical"] is True
    assert contents(ours).equals(old)


@pytest.mark.parametrize("after", range(FILES))
@pytest.mark.parametrize("then", ["engine", "one process"])
def test_a_killed_driver_loses_nothing(make, tmp_path, monkeypatch, after, then):
    where, journal = make("a"), tmp_path / "ja"

    def dead(self, files):
        raise Killed  # a dead process commits nothing

    monkeypatch.setattr(type(open_database(where)), "take", dead)
    with pytest.raises(Killed):
        migrate(where, journal, Dying(after), steps=("run",), migration=ONE_EACH)
    monkeypatch.undo()
    assert json.loads((journal / "journal.json").read_text())["state"] == "filling"
    result = migrate(where, journal, LocalEngine() if then == "engine" else None, resume=True, migration=ONE_EACH)
    assert result["verify"].passed
    kept = json.loads((journal / "journal.json").read_text())
    assert kept["rows"] == FILES * ROWS
    assert len(set(kept["sample"])) == SAMPLE_IDS
    check(where)


def test_a_range_that_is_done_is_not_mapped_again(make, tmp_path, monkeypatch):
    """Of files, also the one that was written before the driver heard of it; what it heard of a table is committed."""
    where = make("a")
    with pytest.raises(Killed):
        migrate(where, tmp_path / "j", Dying(2), steps=("run",), migration=ONE_EACH)
    mapped = count_mapped(monkeypatch)
    with Migration(open_database(where), MAP, journal=tmp_path / "j", engine=LocalEngine()) as one:
        one.passes.fill(one.journal, one.folder)
    assert sum(mapped) == (FILES - (2 if where.suffix == ".lance" else 3)) * ROWS


def test_what_others_change_is_written_again(make, tmp_path):
    """A new vector that is wrong, and one that is missing, are found by the pass before the switch."""
    where = make("a")
    migrate(where, tmp_path / "j", steps=("run", "verify"))
    with open_database(where) as database:
        database.write(pa.array([5, 700]), np.full((2, MAP.d_out), 0.5, np.float32))
        database.delete(pa.array([5]))
        database.flush()
    with Migration(open_database(where), journal=tmp_path / "j", engine=Pickled()) as one:
        one.switch()
        assert [found["written"] for found in one.journal.passes[-2:]] == [2, 0]
    check(where)


def test_bad_rows_are_named_with_their_range_and_nothing_is_shown(make, tmp_path):
    vectors = X.copy()
    vectors[2 * ROWS + 7, 3] = np.nan
    where = make("a", vectors)
    with pytest.raises(NotFiniteError, match="607"):
        migrate(where, tmp_path / "j", LocalEngine(), steps=("run",), migration=ONE_EACH)
    np.testing.assert_array_equal(np.stack(contents(where)["vector"].to_pylist()), vectors)
    if where.suffix == ".lance":  # the fragments before have their vectors, and the broken one left no file
        import lance

        data = lance.dataset(str(where))
        assert data.count_rows("vector__congruence_new IS NOT NULL") == 2 * ROWS
        named = {file.path for one in data.get_fragments() for file in one.data_files()}
        assert {path.name for path in (where / "data").iterdir()} == named
        return
    (where / "part-1.parquet").write_bytes((where / "part-1.parquet").read_bytes()[:-200])
    with pytest.raises(MigrationError, match=r"part-1\.parquet"):
        open_database(where)


def test_large_files_are_divided_between_row_groups(tmp_path):
    where = tmp_path / "photos.parquet"
    pq.write_table(read_parts(write_parts(tmp_path / "parts")), where, row_group_size=100)
    files = open_database(str(where))
    assert [one[1:] for one in files.ranges(250)] == [(0, 300), (300, 600), (600, 900), (900, 1200)]
    assert [one[1:] for one in files.ranges(FILES * ROWS)] == [(0, 1200)]
    seen = []

    class Counted(LocalEngine):
        def run(self, work, fragments):
            seen.extend(one.name for one in fragments)
            return super().run(work, fragments)

    size = {"range_bytes": 250 * 4 * X.shape[1]}
    assert migrate(where, tmp_path / "journal", Counted(), migration=size)["verify"].passed
    assert seen[:4] == ["rows 0 to 299", "rows 300 to 599", "rows 600 to 899", "rows 900 to 1199"]
    found = np.stack(pq.read_table(where)["vector"].to_pylist())
    np.testing.assert_allclose(found, MAP.transform(X), rtol=0, atol=2e-6)


def test_rows_without_a_vector_stay_without_one(tmp_path):
    table = read_parts(write_parts(tmp_path / "parts"))
    lists = [None if k % 100 == 3 else row for k, row in enumerate(table["vector"].to_pylist())]
    where = tmp_path / "photos.parquet"
    table = table.set_column(1, "vector", pa.array(lists, pa.list_(pa.float32(), X.shape[1])))
    pq.write_table(table, where, row_group_size=150)
    size = {"range_bytes": 200 * 4 * X.shape[1]}
    assert migrate(where, tmp_path / "j", LocalEngine(), migration=size)["verify"].passed
    found = pq.read_table(where)["vector"].to_pylist()
    assert [k for k, row in enumerate(found) if row is None] == list(range(3, FILES * ROWS, 100))


def test_only_files_of_tables_and_only_maps(tmp_path):
    np.save(tmp_path / "photos.npy", X)
    with pytest.raises(ParameterError, match="Got npy for an engine; expected Parquet or Arrow files"):
        Migration(open_database(str(tmp_path / "photos.npy")), MAP, engine=LocalEngine())
    where = write_parts(tmp_path / "photos")
    with Migration(open_database(str(where)), MAP, journal=tmp_path / "j", engine=LocalEngine()) as migration:
        migration.mapper.native = object()
        with pytest.raises(MigrationError, match="a migration with re-embedded rows for an engine"):
            migration.passes.repair()


def test_the_command_refuses_steps_that_no_engine_makes(here, tmp_path):
    MAP.save(tmp_path / "map")
    write_parts(tmp_path / "photos")
    for words, said in (
        (("verify", "--set", "engine=ray"), "engine"),
        (("run", "--map", "map", "--set", "address=auto"), "engine"),
        (("run", "--map", "map", "--set", "engine=spark"), "spark"),
    ):
        here("migrate", "photos", *words).refused(said)
