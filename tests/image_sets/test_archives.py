"""Archives unpack to plain files below their folder, whole or not at all."""

import io
import os
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest

from congruence.errors import CorruptFileError, FileError, ParameterError, StorageError
from congruence_papers.image_sets import archives
from congruence_papers.image_sets.archives import extract


def tar(path: Path, members: dict[str, bytes | tarfile.TarInfo], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as out:
        for name, content in members.items():
            if isinstance(content, tarfile.TarInfo):
                out.addfile(content)
            else:
                info = tarfile.TarInfo(name)
                info.size = len(content)
                out.addfile(info, io.BytesIO(content))
    return path


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def zipped(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        for name, content in members.items():
            out.writestr(name, content)
    return path


def files(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture
def into(tmp_path):
    folder = tmp_path / "deep" / "into"
    folder.mkdir(parents=True)
    return folder


GOOD = {"d/a.txt": b"one", "d/e/b.bin": bytes(range(256)) * 50, "./c": b""}


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz", "zip"])
def test_archives_unpack_to_what_went_in(mode, tmp_path, into):
    path = tmp_path / "x.bin"
    archive = zipped(path, {"d/": b"", **GOOD}) if mode == "zip" else tar(path, GOOD, mode)
    assert extract(archive, into) == 3
    assert files(into) == {"d/a.txt": b"one", "d/e/b.bin": GOOD["d/e/b.bin"], "c": b""}


def test_only_what_is_wanted(tmp_path, into):
    assert extract(tar(tmp_path / "x", GOOD), into, keep=("d/*.txt", "c")) == 2
    assert sorted(files(into)) == ["c", "d/a.txt"]


def test_folders_of_one_name_become_one(tmp_path, into):
    (into / "d").mkdir()
    (into / "d" / "split.json").write_text("mine")
    (into / "d" / "a.txt").write_text("old")
    extract(tar(tmp_path / "x", GOOD), into)
    found = files(into)
    assert found["d/split.json"] == b"mine"
    assert found["d/a.txt"] == b"one"


def test_modes_and_owners_of_strangers_are_not_taken_over(tmp_path, into):
    info = tarfile.TarInfo("run")
    info.mode, info.uid = 0o6777, 12345
    extract(tar(tmp_path / "x", {"run": info}), into)
    found = (into / "run").stat()
    assert not found.st_mode & (stat.S_ISUID | stat.S_ISGID | stat.S_IXUSR)
    assert found.st_uid == os.getuid()


@pytest.mark.parametrize("name", ["../out", "a/../../out", "/abs/out", "..", "C:/out", "a\\..\\out"])
@pytest.mark.parametrize("make", [tar, zipped])
def test_no_path_leads_out(make, name, tmp_path, into):
    archive = make(tmp_path / "x", {"fine": b"1", name: b"evil"})
    before = sorted(p for p in tmp_path.rglob("*"))
    with pytest.raises(CorruptFileError, match="Do not use this archive|damaged"):
        extract(archive, into)
    assert sorted(p for p in tmp_path.rglob("*")) == before


def linked(path: Path) -> Path:
    info = zipfile.ZipInfo("odd")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(path, "w") as out:
        out.writestr(info, "/etc/passwd")
    return path


def altered(path: Path) -> Path:
    data = bytearray(zipped(path, {"a": os.urandom(500)}).read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    return path


def doubled(path: Path) -> Path:
    with tarfile.open(path, "w") as out:
        for name in ("a", "./a"):
            out.addfile(tarfile.TarInfo(name), io.BytesIO())
    return path


def odd(kind: bytes, target: str = ""):
    return lambda path: tar(path, {"fine": b"1", "odd": special("odd", kind, target)})


SUSPECT = {
    "a link outside": (odd(tarfile.SYMTYPE, "/etc/passwd"), "link or device 'odd'"),
    "a link inside": (odd(tarfile.SYMTYPE, "fine"), "link or device 'odd'"),
    "a hard link": (odd(tarfile.LNKTYPE, "fine"), "link or device 'odd'"),
    "a character device": (odd(tarfile.CHRTYPE), "link or device 'odd'"),
    "a block device": (odd(tarfile.BLKTYPE), "link or device 'odd'"),
    "a pipe": (odd(tarfile.FIFOTYPE), "link or device 'odd'"),
    "a link in a zip": (linked, "link or device"),
    "one name twice": (doubled, "twice"),
    "a file in the place of a folder": (lambda path: tar(path, {"a": b"1", "a/b": b"2"}), None),
    "an altered byte": (altered, "damaged"),
}


@pytest.mark.parametrize("what", SUSPECT)
def test_archives_of_strangers_are_refused_whole(what, tmp_path, into):
    make, words = SUSPECT[what]
    with pytest.raises(CorruptFileError, match=words):
        extract(make(tmp_path / "x"), into)
    assert list(into.iterdir()) == []


def test_a_file_written_through_a_link_in_the_archive(tmp_path, into):
    """The classic: a link to a folder outside, then a file below it."""
    outside = tmp_path / "outside"
    outside.mkdir()
    archive = tar(tmp_path / "x", {"l": special("l", tarfile.SYMTYPE, str(outside)), "l/evil": b"1"})
    with pytest.raises(CorruptFileError):
        extract(archive, into)
    assert list(outside.iterdir()) == []


def test_a_link_that_is_there_already_is_replaced_not_followed(tmp_path, into):
    outside = tmp_path / "outside"
    outside.mkdir()
    (into / "d").symlink_to(outside)
    with pytest.raises((CorruptFileError, StorageError)):
        extract(tar(tmp_path / "x", {"d/evil": b"1"}), into)
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("make", [tar, zipped])
def test_bombs_stop_before_they_are_written(make, tmp_path, into):
    archive = make(tmp_path / "x", {f"{k}": b"\0" * 1000 for k in range(10)})
    assert extract(archive, into, max_bytes=10_000, max_files=10) == 10
    for limits in ({"max_bytes": 9_999}, {"max_files": 9}, {"max_bytes": 9_999, "keep": ("none",)}):
        empty = tmp_path / "empty"
        empty.mkdir(exist_ok=True)
        with pytest.raises(CorruptFileError, match="more than"):
            extract(archive, empty, **limits)
        assert list(empty.iterdir()) == []
    for wrong in ({"max_bytes": 0}, {"max_files": 1.5}):
        with pytest.raises(ParameterError):
            extract(archive, into, **wrong)


@pytest.mark.parametrize("make", [tar, zipped])
def test_every_truncation_leaves_nothing_behind(make, tmp_path, into):
    whole = make(tmp_path / "whole", {"a": os.urandom(500), "b": os.urandom(500)}).read_bytes()
    cut = tmp_path / "cut"
    for length in [*range(0, len(whole), 37), len(whole) - 1]:
        cut.write_bytes(whole[:length])
        with pytest.raises(CorruptFileError, match="damaged"):
            extract(cut, into)
        assert list(into.iterdir()) == []


def test_nothing_to_unpack_and_nowhere_to_do_it(tmp_path, into):
    with pytest.raises(FileError, match="Check the path"):
        extract(tmp_path / "none.tar", into)
    with pytest.raises(FileError, match="Check the path"):
        extract(tar(tmp_path / "x", GOOD), tmp_path / "nowhere")


def test_a_full_disk_is_said_and_leaves_nothing(tmp_path, into, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(archives.shutil, "copyfileobj", full)
    with pytest.raises(StorageError, match="No space left"):
        extract(tar(tmp_path / "x", GOOD), into)
    assert list(into.iterdir()) == []
