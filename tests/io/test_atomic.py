import errno
import os
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import congruence._utils.atomic as atomic
from congruence import persist
from congruence._utils.atomic import atomic_path, backup_of, temporary_path
from congruence.errors import FileError, OutputExistsError
from fresh import run_fresh


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def anything(folder):
    """Treat any folder as one that may be replaced."""


def put(path, text, directory=False, **options):
    """Write a file, or a folder with one file."""
    with atomic_path(path, directory=directory, foreign=anything, **options) as temporary:
        (temporary / "part" if directory else temporary).write_text(text)


def got(path):
    return (path / "part" if path.is_dir() else path).read_text()


def refuse(path, match=None, **options):
    """Check that a path is refused before any work, and return the message."""
    with pytest.raises(OutputExistsError, match=match) as refused, atomic_path(path, foreign=anything, **options):
        pytest.fail("entered")
    return str(refused.value)


def save(path, number):
    persist.write_folder(path, {"x": np.full(3, number)}, {"number": number}, "card", force=True)


def loaded(path):
    arrays, config = persist.read_folder(path)
    assert arrays["x"].tolist() == [config["number"]] * 3
    return config["number"]


def test_many_writers_replace_one_file_and_none_leaves_a_part(tmp_path):
    def write(number):
        with atomic_path(tmp_path / "a.txt", force=True, part=True) as temporary:
            temporary.write_text(f"{number}" * 1000)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(10)))
    last = (tmp_path / "a.txt").read_text()
    assert last == last[0] * 1000
    with pytest.raises(ZeroDivisionError), atomic_path(tmp_path / "a.txt", force=True, part=True) as temporary:
        temporary.write_text("half")
        1 / 0  # noqa: B018
    assert (tmp_path / "a.txt").read_text() == last
    assert names(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("directory", [False, True])
def test_what_exists_is_refused_before_any_work_and_replaced_by_force(directory, tmp_path):
    path = tmp_path / "a"
    with atomic_path(path, directory=directory, foreign=anything) as temporary:
        assert temporary.parent == tmp_path
        (temporary / "part" if directory else temporary).write_text("one")
        assert not path.exists()
    refuse(path, "force=True", directory=directory)
    with pytest.raises(KeyboardInterrupt), atomic_path(path, force=True, directory=directory, foreign=anything):
        raise KeyboardInterrupt
    assert got(path) == "one"
    put(path, "two", directory, force=True)
    assert got(path) == "two"
    assert names(tmp_path) == ["a"]


@pytest.mark.parametrize("directory", [False, True])
def test_links_pipes_and_things_of_the_other_kind_are_never_replaced(directory, tmp_path):
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing")
    (tmp_path / "other").write_text("kept") if directory else (tmp_path / "other").mkdir()
    (tmp_path / "same").mkdir() if directory else (tmp_path / "same").write_text("kept")
    (tmp_path / "link").symlink_to(tmp_path / "same")
    os.mkfifo(tmp_path / "pipe")
    before = {name: os.lstat(tmp_path / name) for name in names(tmp_path)}
    for name in ("nowhere", "link", "pipe", "other"):
        for force in (False, True):
            assert "force" not in refuse(tmp_path / name, force=force, directory=directory)
    assert {name: os.lstat(tmp_path / name) for name in names(tmp_path)} == before


def test_what_comes_during_the_work_is_not_replaced(tmp_path):
    def came(folder):
        folder.mkdir()
        (folder / "thesis").write_text("kept")

    for force in (False, True):
        with (
            pytest.raises(OutputExistsError),
            atomic_path(tmp_path / f"a{force}", force=force, directory=True, foreign=lambda folder: "is a thesis"),
        ):
            came(tmp_path / f"a{force}")
        assert (tmp_path / f"a{force}" / "thesis").read_text() == "kept"
    with pytest.raises(OutputExistsError), atomic_path(tmp_path / "b") as temporary:
        temporary.write_text("new")
        (tmp_path / "b").write_text("kept")
    assert (tmp_path / "b").read_text() == "kept"
    assert names(tmp_path) == ["aFalse", "aTrue", "b"]


def test_the_folder_itself_is_no_output(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in (".", "..", "/"):
        refuse(path, "has no file name", directory=True, force=True)


def rename_by(way, monkeypatch):
    """Simulate a system without exclusive renames, without exchanges of names, and without hard links."""
    if way != "system calls":
        monkeypatch.setattr(atomic, "_call", lambda *_: False)
    if way == "claims":

        def refuse(*_):
            raise OSError(errno.EPERM, "no hard links here")

        monkeypatch.setattr(os, "link", refuse)


@pytest.mark.parametrize("way", ["system calls", "links", "claims"])
@pytest.mark.parametrize("directory", [False, True])
def test_of_writers_to_one_path_one_succeeds(way, directory, tmp_path, monkeypatch):
    rename_by(way, monkeypatch)
    barrier = threading.Barrier(4)

    def write(path, text):
        try:
            with atomic_path(path, directory=directory) as temporary:
                (temporary / "part" if directory else temporary).write_text(text)
                barrier.wait(10)  # all have found the path free
        except OutputExistsError:
            return None
        return text

    with ThreadPoolExecutor(4) as pool:
        for number in range(5):
            path = tmp_path / f"a{number}"
            done = [text for text in pool.map(write, [path] * 4, "ABCD") if text]
            assert len(done) == 1
            assert got(path) == done[0]
    assert names(tmp_path) == [f"a{number}" for number in range(5)]


@pytest.mark.parametrize("way", ["system calls", "links"])
def test_readers_find_a_whole_copy_while_it_is_replaced(way, tmp_path, monkeypatch):
    rename_by(way, monkeypatch)
    save(tmp_path / "map", 0)
    over = threading.Event()
    seen = set()

    def read():
        while not over.is_set():
            seen.add(loaded(tmp_path / "map"))

    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(read)
        for number in range(1, 25):
            save(tmp_path / "map", number)
        over.set()
        reader.result()
    assert len(seen) > 1
    assert loaded(tmp_path / "map") == 24


class Fault(BaseException):
    pass


def faulty(monkeypatch, way, step, *, for_ever):
    """Make change number ``step`` to the disk fail: only this one, as after an interrupt, or all later ones too, as
    after a kill.
    """
    count = 0

    def wrap(real):
        def change(*arguments, **options):
            nonlocal count
            count += 1
            if count > step and (for_ever or count == step + 1):
                raise Fault
            return real(*arguments, **options)

        return change

    if way == "system calls":
        monkeypatch.setattr(atomic, "_call", wrap(atomic._call))
    else:
        rename_by(way, monkeypatch)
    for name in ("rename", "replace", "link", "unlink", "remove", "rmdir", "mkdir"):
        monkeypatch.setattr(os, name, wrap(getattr(os, name)))


@pytest.mark.parametrize("for_ever", [False, True], ids=["interrupted", "killed"])
@pytest.mark.parametrize("way", ["system calls", "links"])
def test_a_map_survives_a_fault_at_every_step_of_its_replacement(way, for_ever, tmp_path):
    found = []
    for step in range(30):
        path = tmp_path / str(step) / "map"
        path.parent.mkdir()
        save(path, 1)
        with pytest.MonkeyPatch.context() as patched:
            faulty(patched, way, step, for_ever=for_ever)
            try:
                save(path, 2)
                break
            except Fault:
                pass
        found.append(loaded(path))
        if not for_ever:  # at worst the backup waits for the next writer
            assert set(names(path.parent)) <= {"map", backup_of(path).name}
        with pytest.MonkeyPatch.context() as patched:
            rename_by(way, patched)
            save(path, 3)
        assert loaded(path) == 3
        assert not backup_of(path).exists()
    assert found == sorted(found)  # the old one up to some step, the new one from there on
    assert set(found) == {1, 2}


def test_a_backup_is_only_taken_up_if_it_is_of_the_kind(tmp_path):
    backup = backup_of(tmp_path / "map")
    backup.mkdir()
    (backup / "thesis").write_text("kept")
    with pytest.raises(FileError, match="[Nn]o folder"):
        persist.read_folder(tmp_path / "map")
    save(tmp_path / "map", 1)
    save(tmp_path / "map", 2)
    assert loaded(tmp_path / "map") == 2
    assert (backup / "thesis").read_text() == "kept"


def test_other_errors_of_the_system_pass_unchanged(tmp_path):
    with pytest.raises(FileError, match="No folder"), atomic_path(tmp_path / "no" / "a"):
        pytest.fail("entered")
    with pytest.raises(FileNotFoundError), atomic_path(tmp_path / "a"):
        open(tmp_path / "not there")
    assert names(tmp_path) == []


def test_a_folder_that_cannot_be_synced_is_no_failure(tmp_path, monkeypatch):
    real = atomic.sync

    def sync(path):
        if path.is_dir():
            raise OSError(22, "no fsync on folders here")
        real(path)

    monkeypatch.setattr(atomic, "sync", sync)
    put(tmp_path / "a", "x")
    assert (tmp_path / "a").read_text() == "x"


KILLED = """
import os, signal, sys
from pathlib import Path
from congruence._utils.atomic import atomic_path
blocks = []
for directory in (False, True):
    path = Path(sys.argv[1]) / ("folder" if directory else "file")
    blocks.append(atomic_path(path, directory=directory))
    temporary = blocks[-1].__enter__()
    (temporary / "part" if directory else temporary).write_text("half")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_writer_left_goes_with_the_next_run(tmp_path):
    assert run_fresh(KILLED, tmp_path).returncode == -9
    left = names(tmp_path)
    assert len(left) == 2
    put(tmp_path / "file2", "x")  # of another output: not its business
    assert set(left) < set(names(tmp_path))
    for directory in (False, True):
        put(tmp_path / ("folder" if directory else "file"), "whole", directory)
    assert names(tmp_path) == ["file", "file2", "folder"]


def test_what_may_be_in_work_stays(tmp_path):
    mine = temporary_path(tmp_path / "a")
    process = subprocess.Popen(["true"])
    process.wait()
    dead = mine.name.replace(f"-{os.getpid()}-", f"-{process.pid}-")
    place = mine.name.split(".")[2].split("-")[0]
    elsewhere = dead.replace(place, f"{int(place, 16) ^ 1:08x}")
    for name in (mine.name, dead, elsewhere, ".a.tmp", f"{dead}.txt"):
        (tmp_path / name).write_text("")
    put(tmp_path / "a", "x")
    assert set(names(tmp_path)) == {"a", mine.name, elsewhere, ".a.tmp", f"{dead}.txt"}


def test_names_may_be_as_long_as_the_system_lets_them(tmp_path):
    for name in ("a" * 255, "é" * 127):
        put(tmp_path / name, "x")
        assert (tmp_path / name).read_text() == "x"
    with pytest.raises(FileError, match="256 bytes"), atomic_path(tmp_path / ("a" * 256)):
        pytest.fail("entered")
