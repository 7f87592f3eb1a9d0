"""Files as databases: kills at every step that changes a name, and writes by other programs."""

import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from database_contract import lists
from database_contract import run as fill_new
from lazy_module import LazyModule
from processes import fork

from congruence import errors
from congruence.databases import Stage, _files, open_database

pytestmark = pytest.mark.long

faiss = LazyModule("faiss")

N, D, E = 23, 4, 3

X = np.random.default_rng(0).normal(size=(N, D)).astype(np.float32)


def table_of(vectors, ids=None):
    return pa.table({"id": np.arange(len(vectors)) if ids is None else ids, "v": lists(vectors)})


def make(folder, kind):
    if kind == "npy":
        np.save(folder / "v.npy", X)
        (folder / "v.npy.space.json").write_text('{"model": "old"}')
        return folder / "v.npy"
    if kind == "parquet":
        pq.write_table(table_of(X), folder / "v.parquet")
        return folder / "v.parquet"
    where = folder / "aside"
    where.mkdir()
    for k in range(2):
        pq.write_table(table_of(X)[10 * k :][: 10 + 3 * k], where / f"part-{k}.parquet")
    return where


def shown(where):
    """The vectors that a reader sees."""
    if where.suffix == ".npy":
        return np.load(where)
    return np.stack(pq.read_table(where)["v"].to_pylist()).astype(np.float32)


def bits(where):
    files = sorted(where.rglob("*")) if where.is_dir() else [where]
    return [one.read_bytes() for one in files if one.is_file()]


def forward(where):
    """Fill, switch, roll back and switch again, from any state; return whether the migration had to start again."""
    with open_database(where) as database:
        if database.stage() is not Stage.SWITCHED:
            fill_new(database, E, note={"model": "new"})
            database.switch()
        database.rollback()
        database.switch()


def run(where, at, exchanges, count):
    """Raise Killed before call number ``at`` that changes a name; without an exchange, several renames replace it."""
    from congruence._utils import atomic
    from congruence.databases import _files as place

    def watched(call):
        def inner(*arguments, **options):
            if count.value == at:
                os.kill(os.getpid(), signal.SIGKILL)
            count.value += 1
            return call(*arguments, **options)

        return inner

    if exchanges:
        place.exchange = watched(place.exchange)
        atomic.rename_exclusive = watched(atomic.rename_exclusive)
        os.replace, os.unlink = watched(os.replace), watched(os.unlink)
    else:
        place.exchange = lambda one, other: False
    os.rename = watched(os.rename)
    forward(where)


@pytest.mark.parametrize("exchanges", [True, False], ids=["exchange", "renames"])
@pytest.mark.parametrize("kind", ["npy", "folder"])
def test_killed_at_every_name(tmp_path, kind, exchanges):
    first = tmp_path / "first"
    first.mkdir()
    name = make(first, kind).name
    before = bits(first / name)
    whole = shutil.copytree(first, tmp_path / "whole")
    code, total = fork(run, whole / name, -1, exchanges)
    assert code == 0
    assert total >= 10
    for at in range(total):
        folder = shutil.copytree(first, tmp_path / f"killed-{at}")
        where = folder / name
        assert fork(run, where, at, exchanges)[0] == -signal.SIGKILL
        if where.exists():  # what readers find is old or new, and whole
            assert shown(where).shape in ((N, D), (N, E))
        else:
            assert not exchanges
        with open_database(where) as database:
            stage = database.stage()
            assert (shown(where).shape == (N, E)) == (stage is Stage.SWITCHED)
            np.testing.assert_array_equal(np.concatenate([block.vectors for block in database.scan()]), X)
            if kind == "npy":
                result = database.info().space.model
                described = folder / "v.npy.space.json"
                assert result == "old"
                assert ('"new"' in described.read_text()) == (stage is Stage.SWITCHED)
        forward(where)
        np.testing.assert_array_equal(shown(where), X[:, :E])
        with open_database(where) as database:
            database.rollback()
            assert bits(where) == before
            database.discard()
            assert database.stage() is Stage.UNTOUCHED
        assert {one.name for one in folder.iterdir()} == {one.name for one in first.iterdir()}
        shutil.rmtree(folder)


def fill(database, dim=E, change=0.0):
    database.prepare(dim)
    for block in database.scan():
        database.write(block.ids, np.ascontiguousarray(block.vectors[:, :dim]) + np.float32(change))


@pytest.mark.parametrize("kind", ["npy", "parquet", "folder"])
def test_a_map_that_changes_nothing_switches_and_rolls_back_too(tmp_path, kind):
    where = make(tmp_path, kind)
    with open_database(where) as database:
        fill(database, D)
        database.switch()
        assert database.stage() is Stage.SWITCHED
    with open_database(where) as database:
        database.rollback()
        assert database.stage() is Stage.PREPARED
        database.switch()
        database.drop_old()
        assert database.stage() is Stage.UNTOUCHED
    np.testing.assert_array_equal(shown(where), X)


@pytest.mark.parametrize("kind", ["npy", "parquet", "folder"])
def test_an_original_that_is_put_back_after_the_switch_is_not_taken_for_the_new_file(tmp_path, kind):
    where = make(tmp_path, kind)
    copy = shutil.copytree if where.is_dir() else shutil.copy
    saved = copy(where, tmp_path / "saved")
    with open_database(where) as database:
        fill(database)
        database.switch()
    (shutil.rmtree if where.is_dir() else os.unlink)(where)
    copy(saved, where)
    before = bits(where)
    with pytest.raises(errors.MigrationError, match="original again") as refused:
        open_database(where)
    assert bits(where) == before
    (hidden,) = tmp_path.glob(".*.congruence")
    assert str(hidden) in str(refused.value)
    shutil.rmtree(hidden)  # as the error advises
    with open_database(where) as database:
        fill(database)
        database.switch()
    np.testing.assert_array_equal(shown(where), X[:, :E])


def test_what_others_write_after_the_switch_is_shown_again_by_the_second(tmp_path):
    where = make(tmp_path, "parquet")
    before = bits(where)
    with open_database(where) as database:
        fill(database)
        database.switch()
    added = np.concatenate([X[:, :E], np.ones((1, E), np.float32)])
    pq.write_table(table_of(added), where)
    with open_database(where) as database:
        assert database.stage() is Stage.SWITCHED
        database.rollback()
        assert bits(where) == before
        database.switch()
    assert len(shown(where)) == N + 1


def test_a_switch_without_all_rows_and_writes_after_it_are_refused(tmp_path):
    where = make(tmp_path, "npy")
    with open_database(where) as database:
        database.prepare(E)
        with pytest.raises(errors.MigrationError, match=f"{N} rows .*no new vector"):
            database.switch()
        ids = next(iter(database.scan())).ids
        shuffled = ids.take(pa.array(np.random.default_rng(1).permutation(N)))
        database.write(shuffled, X[shuffled.to_numpy()][:, :E])  # ids in no order
        database.write(pa.array([N + 5]), X[:1, :E])  # of no row
        where.chmod(0o440)
        database.switch()
        assert where.stat().st_mode & 0o777 == 0o440
        with pytest.raises(errors.MigrationError, match="Roll back first"):
            database.write(ids, X[:, :E])
    np.testing.assert_array_equal(shown(where), X[:, :E])


def test_numbers_beyond_halves_are_refused(tmp_path):
    np.save(tmp_path / "h.npy", X.astype(np.float16))
    with open_database(tmp_path / "h.npy") as database:
        database.prepare(E, "float16")
        block = next(iter(database.scan()))
        with pytest.raises(errors.CongruenceError, match="beyond the range of float16"):
            database.write(block.ids, 1e6 * block.vectors[:, :E])


def test_a_disk_without_room_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    where = make(tmp_path, "npy")
    with open_database(where) as database:
        monkeypatch.setattr(type(database), "free_bytes", lambda self: 100)
        with pytest.raises(errors.StorageError, match="100 bytes free"):
            database.prepare(E)
        assert database.stage() is Stage.UNTOUCHED
    assert not list(tmp_path.glob(".*"))


def test_where_ids_are_is_remembered(tmp_path):
    where = make(tmp_path, "npy")
    (tmp_path / "ids.txt").write_text("\n".join(f"n{k}" for k in range(N)))
    with open_database(where, ids=str(tmp_path / "ids.txt")) as database:
        fill(database)
        assert database.info().id_type == "text"
    with open_database(where) as database:
        assert database.fetch(pa.array(["n3"]), "new").vectors.tolist() == X[3:4, :E].tolist()
    (tmp_path / "ids.txt").write_text("\n".join(["twice"] * 2 + [f"n{k}" for k in range(N - 2)]))
    with open_database(where) as database:
        assert database.repeated_ids() == ["twice"]
    (tmp_path / "ids.txt").write_text("one")
    with pytest.raises(errors.IdError, match=f"1 ids for {N} rows"):
        open_database(where)


def test_what_is_refused(tmp_path):
    where = make(tmp_path, "parquet")
    text = pa.table({"id": [1], "name": ["x"]})
    pq.write_table(text, tmp_path / "text.parquet")
    np.savez(tmp_path / "v.npz", X)
    for path, options, error in [
        (tmp_path / "none.npy", {}, errors.FileError),
        (tmp_path / "text.parquet", {}, errors.ParameterError),
        (tmp_path / "text.parquet", {"column": "name"}, errors.DatabaseError),
        (where, {"rows": "id > 3"}, errors.ParameterError),
        (tmp_path / "v.npz", {}, errors.ParameterError),
        (tmp_path / "empty", {}, errors.ParameterError),
    ]:
        (tmp_path / "empty").mkdir(exist_ok=True)
        with pytest.raises(error):
            open_database(path, **options)
    for name in ("bad.parquet", "bad.arrow", "bad.npy", "bad.faiss"):
        (tmp_path / name).write_bytes(b"x" * 5000)
        with pytest.raises(errors.CorruptFileError):
            open_database(tmp_path / name)
    with open_database(where) as database:
        database.prepare(E)
    (tmp_path / ".v.parquet.congruence" / "migration.json").write_text('{"format": "other"}')
    with pytest.raises(errors.CorruptFileError, match="record of a migration.* damaged"):
        open_database(where)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("vectors.npy", lambda raw: b"x" * len(raw)),
        ("vectors.npy", lambda raw: raw[:-1]),
        ("vectors.npy", lambda raw: raw.replace(b"<f4", b"<i4")),
        ("written.bin", lambda raw: raw[:-1]),
    ],
)
def test_damaged_new_vectors_are_named_with_what_to_do(tmp_path, name, change):
    where = make(tmp_path, "parquet")
    with open_database(where) as database:
        fill(database)
    file = tmp_path / ".v.parquet.congruence" / name
    whole = file.read_bytes()
    file.write_bytes(change(whole))
    with open_database(where) as database, pytest.raises(errors.CorruptFileError, match="Discard them"):
        database.count("new")
    file.write_bytes(whole)
    with open_database(where) as database:  # cut while it is open
        assert database.count("new") == N
        file.write_bytes(whole[:10])
        with pytest.raises(errors.CorruptFileError, match="Discard them"):
            list(database.scan("new"))


def test_a_link_is_followed_and_a_folder_that_readers_search_shows_no_new_file(tmp_path):
    (tmp_path / "real").mkdir()
    where = make(tmp_path / "real", "parquet")
    link = tmp_path / "link.parquet"
    link.symlink_to(where)
    with open_database(link) as database:
        fill(database)
        database.build_index()
        assert pq.read_table(where.parent).num_rows == N  # as Arrow reads a folder
        database.switch()
        assert link.is_symlink()
        assert shown(link).shape == (N, E)
        database.drop_old()
    assert [one.name for one in where.parent.iterdir()] == [where.name]


def test_a_file_that_is_gone_is_said_with_where_its_original_is(tmp_path):
    where = make(tmp_path, "npy")
    with open_database(where) as database:
        fill(database)
    where.rename(tmp_path / "aside.npy")
    with pytest.raises(errors.FileError, match=r"Check the path\.$"):  # the other file is the new one
        open_database(where)
    (tmp_path / "aside.npy").rename(where)
    with open_database(where) as database:
        database.switch()
    where.unlink()
    with pytest.raises(errors.FileError, match=r"put back .*\.v\.npy\.congruence/other/v\.npy"):
        open_database(where)


class OfAnother:
    """What a file's state is if it belongs to another user and group."""

    def __init__(self, state):
        self.state, self.st_uid, self.st_gid = state, state.st_uid + 1, state.st_gid + 2

    def __getattr__(self, name):
        return getattr(self.state, name)


@pytest.mark.parametrize("kind", ["parquet", "npy", "folder"])
def test_owner_and_rights_are_those_that_readers_had_before_each_exchange(tmp_path, kind, monkeypatch):
    where, asked, stat = make(tmp_path, kind), [], Path.stat
    monkeypatch.setattr(os, "chown", lambda path, *ids: asked.append((path, *ids)))

    def of_another(path, **options):
        found = stat(path, **options)
        return OfAnother(found) if path == where else found

    def rights():
        return stat(where).st_mode & 0o777

    with open_database(where) as database:
        monkeypatch.setattr(Path, "stat", of_another)
        database.prepare(E)
        for block in database.scan():
            database.write(block.ids, block.vectors[:, :E])
        database.build_index()
        where.chmod(0o700)
        asked.clear()
        database.switch()
        assert asked[0] == (database._place.other, os.getuid() + 1, os.getgid() + 2)
        assert rights() == 0o700
        where.chmod(0o750)
        database.rollback()
        assert rights() == 0o750


def test_a_file_whose_owner_the_new_one_cannot_have_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    where = make(tmp_path, "npy")

    def refuse(source, target):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(_files, "copy_mode", refuse)
    with open_database(where) as database, pytest.raises(errors.StorageError, match="belongs to user"):
        database.prepare(E)
    assert sorted(path.name for path in tmp_path.iterdir() if "congruence" in path.name) == []


def test_further_names_of_a_file_are_announced(tmp_path):
    where = make(tmp_path, "npy")
    with open_database(where) as database:
        assert list(database.rehearse(None, None, "float32")) == []
        os.link(where, tmp_path / "backup.npy")
        ((check, outcome, words),) = database.rehearse(None, None, "float32")
        assert (check, outcome) == ("links", "unknown")
        assert "2 names" in words
