"""A migration whose executor an engine makes: the bits of one process, nothing lost to kills, and files only."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from engine_data import FILES, MAP, ROWS, Dying, Killed, Pickled, X, count_mapped, migrate, read_parts, write_parts

from congruence.databases import open_database
from congruence.engines import EngineExecutor, LocalEngine
from congruence.errors import CorruptFileError, MigrationError, NotFiniteError, ParameterError
from congruence.upgrade.migrate import Migration
from congruence.upgrade.migrate.passes import SAMPLE_IDS


def same_files(ours, theirs):
    """Compare all columns to the bit, the schemas and the row groups."""
    for part in sorted(theirs.iterdir()):
        files = [pq.ParquetFile(folder / part.name) for folder in (ours, theirs)]
        tables = [file.read() for file in files]
        assert tables[0].equals(tables[1])
        assert tables[0].schema.equals(tables[1].schema, check_metadata=True)
        assert files[0].metadata.num_row_groups == files[1].metadata.num_row_groups == 3


@pytest.fixture
def both(tmp_path):
    return write_parts(tmp_path / "a" / "photos"), write_parts(tmp_path / "b" / "photos")


def test_the_files_are_those_of_one_process_to_the_bit(both, tmp_path, monkeypatch):
    ours, theirs = both
    old = read_parts(ours)
    monkeypatch.chdir(tmp_path)
    result = migrate("a/photos", tmp_path / "ja", EngineExecutor(Pickled()))
    migrate(theirs, tmp_path / "jb")
    assert result["verify"].passed
    same_files(ours, theirs)
    with Migration(open_database("a/photos"), journal=tmp_path / "ja", executor=EngineExecutor(Pickled())) as one:
        assert one.rollback()["identical"] is True
    assert read_parts(ours).equals(old)


def test_large_files_are_divided_between_row_groups(tmp_path):
    where = tmp_path / "photos.parquet"
    pq.write_table(read_parts(write_parts(tmp_path / "parts")), where, row_group_size=100)
    files = open_database(str(where))
    assert list(files.ranges(250)) == [(0, 300), (300, 600), (600, 900), (900, 1200)]
    assert list(files.ranges(FILES * ROWS)) == [(0, 1200)]
    seen = []

    class Counted(LocalEngine):
        def run(self, work, fragments):
            seen.extend(one.name for one in fragments)
            return super().run(work, fragments)

    executor = EngineExecutor(Counted(), range_bytes=250 * 4 * X.shape[1])
    assert migrate(where, tmp_path / "journal", executor)["verify"].passed
    assert seen[:4] == ["rows 0 to 299", "rows 300 to 599", "rows 600 to 899", "rows 900 to 1199"]
    found = np.stack(pq.read_table(where)["vector"].to_pylist())
    np.testing.assert_allclose(found, MAP.transform(X), rtol=0, atol=2e-6)


@pytest.mark.parametrize("after", range(FILES))
@pytest.mark.parametrize("then", ["engine", "one process"])
def test_a_killed_driver_loses_nothing(both, tmp_path, after, then):
    ours, theirs = both
    journal = tmp_path / "ja"
    with pytest.raises(Killed):
        migrate(ours, journal, EngineExecutor(Dying(after)), steps=("run",))
    assert json.loads((journal / "journal.json").read_text())["state"] == "filling"
    executor = EngineExecutor(LocalEngine()) if then == "engine" else None
    result = migrate(ours, journal, executor, resume=True)
    assert result["verify"].passed
    kept = json.loads((journal / "journal.json").read_text())
    assert kept["rows"] == FILES * ROWS
    assert len(set(kept["sample"])) == SAMPLE_IDS
    migrate(theirs, tmp_path / "jb")
    same_files(ours, theirs)


def test_a_stretch_that_is_done_is_not_mapped_again(both, tmp_path, monkeypatch):
    ours, _ = both
    with pytest.raises(Killed):
        migrate(ours, tmp_path / "j", EngineExecutor(Dying(2, unseen=False)), steps=("run",))
    mapped, executor = count_mapped(monkeypatch), EngineExecutor(LocalEngine())
    with Migration(open_database(str(ours)), MAP, journal=tmp_path / "j", executor=executor) as one:
        one.executor.fill(one, one.journal)
    assert sum(mapped) == (FILES - 3) * ROWS  # three ranges were done: two told of, and the one after which it died


def test_what_others_change_is_written_again(both, tmp_path):
    """A new vector that is wrong, and one that is missing, are found by the pass before the switch."""
    ours, _ = both
    migrate(ours, tmp_path / "j", steps=("run", "verify"))
    database = open_database(str(ours))
    ids = pa.array([5, 700])
    database.write(ids, np.full((2, MAP.d_out), 0.5, np.float32))
    database.delete(pa.array([5]))
    database.close()
    with Migration(open_database(str(ours)), journal=tmp_path / "j", executor=EngineExecutor(Pickled())) as one:
        one.switch()
        assert [found["written"] for found in one.journal.passes[-2:]] == [2, 0]
    found = np.stack(read_parts(ours)["vector"].to_pylist())
    np.testing.assert_allclose(found[[5, 700]], MAP.transform(X[[5, 700]]), rtol=0, atol=2e-6)


def test_bad_rows_are_named_with_their_stretch_and_nothing_is_shown(tmp_path):
    vectors = X.copy()
    vectors[2 * ROWS + 7, 3] = np.nan
    where = write_parts(tmp_path / "photos", vectors)
    before = [part.read_bytes() for part in sorted(where.iterdir())]
    with pytest.raises(NotFiniteError, match=r"607.*The fragment is rows 600 to 899"):
        migrate(where, tmp_path / "j", EngineExecutor(LocalEngine()), steps=("run",))
    assert [part.read_bytes() for part in sorted(where.iterdir())] == before
    (where / "part-1.parquet").write_bytes((where / "part-1.parquet").read_bytes()[:-200])
    with pytest.raises(CorruptFileError, match=r"part-1\.parquet"):
        open_database(str(where))


def test_rows_without_a_vector_stay_without_one(tmp_path):
    table = read_parts(write_parts(tmp_path / "parts"))
    lists = [None if k % 100 == 3 else row for k, row in enumerate(table["vector"].to_pylist())]
    where = tmp_path / "photos.parquet"
    table = table.set_column(1, "vector", pa.array(lists, pa.list_(pa.float32(), X.shape[1])))
    pq.write_table(table, where, row_group_size=150)
    executor = EngineExecutor(LocalEngine(), range_bytes=200 * 4 * X.shape[1])
    assert migrate(where, tmp_path / "j", executor)["verify"].passed
    found = pq.read_table(where)["vector"].to_pylist()
    assert [k for k, row in enumerate(found) if row is None] == list(range(3, FILES * ROWS, 100))


def test_only_files_of_tables_and_only_maps(tmp_path):
    np.save(tmp_path / "photos.npy", X)
    with pytest.raises(ParameterError, match="Got npy for an engine; expected Parquet or Arrow files"):
        Migration(open_database(str(tmp_path / "photos.npy")), MAP, executor=EngineExecutor(LocalEngine()))
    where = write_parts(tmp_path / "photos")
    executor = EngineExecutor(LocalEngine())
    with Migration(open_database(str(where)), MAP, journal=tmp_path / "j", executor=executor) as migration:
        migration.mapper.native = object()
        with pytest.raises(MigrationError, match="a migration with re-embedded rows for an engine"):
            migration.executor.repair(migration)


def test_the_command_refuses_steps_that_no_engine_makes(here, tmp_path):
    MAP.save(tmp_path / "map")
    write_parts(tmp_path / "photos")
    for words, said in (
        (("verify", "--engine", "ray"), "--engine ray for verify; expected it for run, switch or rollback"),
        (("--address", "auto"), "--address for --engine local"),
        (("--engine", "spark"), "spark"),
        (("--engine", "ray", "--progressive", "--encode", "new.npz", "--share", ".1"), "--engine ray for reembed"),
    ):
        ended = here("migrate", "photos", *words, "--map", "map", "--yes")
        assert ended.code == 2
        assert said in ended.err
