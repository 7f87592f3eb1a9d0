from __future__ import annotations

import os
import subprocess
import sys

import pytest

import congruence._atomic as atomic
from congruence._atomic import atomic_path
from congruence.errors import FileError, OutputExistsError


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def test_a_file_appears_at_the_end_and_not_before(tmp_path):
    with atomic_path(tmp_path / "a.txt") as temporary:
        assert temporary.parent == tmp_path
        assert temporary.name.startswith(".a.txt.")
        assert temporary.name.endswith(".tmp")
        temporary.write_text("x")
        assert not (tmp_path / "a.txt").exists()
    assert (tmp_path / "a.txt").read_text() == "x"
    assert names(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("directory", [False, True])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_whatever_happens_nothing_stays_behind(directory, error, tmp_path):
    with pytest.raises(error), atomic_path(tmp_path / "a", directory=directory) as temporary:
        (temporary / "part" if directory else temporary).write_text("half")
        raise error
    assert names(tmp_path) == []


@pytest.mark.parametrize("directory", [False, True])
def test_what_exists_is_refused_before_any_work_and_replaced_by_force(directory, tmp_path):
    def put(text, force=False):
        with atomic_path(tmp_path / "a", force=force, directory=directory) as temporary:
            (temporary / "part" if directory else temporary).write_text(text)

    def got():
        return (tmp_path / "a" / "part" if directory else tmp_path / "a").read_text()

    put("one")
    with pytest.raises(OutputExistsError), atomic_path(tmp_path / "a", directory=directory):
        pytest.fail("entered")
    with pytest.raises(KeyboardInterrupt), atomic_path(tmp_path / "a", force=True, directory=directory):
        raise KeyboardInterrupt
    assert got() == "one"
    put("two", force=True)
    assert got() == "two"
    assert names(tmp_path) == ["a"]


def test_a_folder_that_cannot_be_swapped_comes_back(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "old").write_text("kept")
    real, calls = os.replace, []

    def failing(source, target):
        calls.append(target)
        if len(calls) == 2:
            raise KeyboardInterrupt
        real(source, target)

    monkeypatch.setattr(atomic.os, "replace", failing)
    with pytest.raises(KeyboardInterrupt), atomic_path(tmp_path / "a", force=True, directory=True) as temporary:
        (temporary / "new").write_text("x")
    assert len(calls) == 3
    assert (tmp_path / "a" / "old").read_text() == "kept"
    assert names(tmp_path) == ["a"]


def test_dangling_links_count_as_taken(tmp_path):
    (tmp_path / "a").symlink_to(tmp_path / "nowhere")
    with pytest.raises(OutputExistsError), atomic_path(tmp_path / "a"):
        pytest.fail("entered")
    with atomic_path(tmp_path / "a", force=True, directory=True) as temporary:
        (temporary / "part").write_text("x")
    assert names(tmp_path) == ["a"]


def test_a_missing_parent_and_a_folder_in_the_way(tmp_path):
    with pytest.raises(FileError, match="no folder"), atomic_path(tmp_path / "no" / "a"):
        pytest.fail("entered")
    (tmp_path / "d").mkdir()
    with pytest.raises(OutputExistsError, match="folder"), atomic_path(tmp_path / "d", force=True):
        pytest.fail("entered")


FULL = """
import resource, signal, sys
from congruence._atomic import atomic_path
from congruence.errors import StorageError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
directory = sys.argv[2] == "True"
try:
    with atomic_path(sys.argv[1], directory=directory) as temporary:
        with open(temporary / "part" if directory else temporary, "wb") as file:
            file.write(bytes(100_000))
except StorageError as error:
    print("refused:", error)
"""


@pytest.mark.parametrize("directory", [False, True])
def test_a_real_refusal_by_the_system(directory, tmp_path):
    arguments = [sys.executable, "-c", FULL, tmp_path / "a", str(directory)]
    out = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert out.stdout.startswith("refused: Got a refusal"), out.stderr[-1000:]
    assert str(tmp_path / "a") in out.stdout
    assert names(tmp_path) == []


def test_other_errors_of_the_system_pass_unchanged(tmp_path):
    with pytest.raises(FileNotFoundError), atomic_path(tmp_path / "a"):
        open(tmp_path / "not there")
    assert names(tmp_path) == []


def test_a_folder_that_cannot_be_synced_is_no_failure(tmp_path, monkeypatch):
    real = atomic._sync

    def sync(path):
        if path.is_dir():
            raise OSError(22, "no fsync on folders here")
        real(path)

    monkeypatch.setattr(atomic, "_sync", sync)
    with atomic_path(tmp_path / "a") as temporary:
        temporary.write_text("x")
    assert (tmp_path / "a").read_text() == "x"
