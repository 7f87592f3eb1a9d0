"""Unpack tar and zip archives safely: regular files, inside one folder, within limits on bytes and files."""

from __future__ import annotations

import lzma
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO

from congruence.errors import CongruenceError, CorruptFileError, FileError, StorageError
from congruence.persist import find_left_over, temporary_path
from congruence_papers.core import check_number

#: Limits well above the known archives: the largest unpacks to 3.1 GB, the one with most files to about 9,000.
MAX_BYTES = 16 * 2**30
MAX_FILES = 200_000

_DAMAGE = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, ValueError, RuntimeError),
    # Two members whose paths conflict, as a file and a folder or on a case-insensitive file system.
    *(FileExistsError, NotADirectoryError),
)

#: Name, size and a function that opens it (None for a folder).
_Member = tuple[str, int, Callable[[], "IO[bytes] | None"] | None]


def extract(
    archive: str | Path,
    into: str | Path,
    *,
    keep: Sequence[str] = (),
    max_bytes: int = MAX_BYTES,
    max_files: int = MAX_FILES,
) -> int:
    """Unpack a tar or zip archive completely, or not at all, as new regular files; existing files are replaced."""
    archive, into = Path(archive), Path(into)
    check_number(max_bytes, "max_bytes", integer=True)
    check_number(max_files, "max_files", integer=True)
    if not archive.is_file() or not into.is_dir():
        raise FileError(f"There is no archive {archive}, or no folder {into}.", "Check the path.")
    written: set[str] = set()
    total = 0
    try:
        with _temporary_in(into) as temporary:
            with _members(archive) as members:
                for count, (name, size, source) in enumerate(members, start=1):
                    total += size
                    if total > max_bytes or count > max_files:
                        raise _suspect(archive, f"more than {max_bytes} bytes or {max_files} members")
                    place = _place(name, archive)
                    if source is None or (keep and not any(fnmatchcase(place, pattern) for pattern in keep)):
                        continue
                    if place in written:
                        raise _suspect(archive, f"{name} twice")
                    written.add(place)
                    target = temporary / place
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with source() as stream, open(target, "xb") as out:  # type: ignore[union-attr]
                        shutil.copyfileobj(stream, out, 2**20)
                    if target.stat().st_size != size:
                        raise CorruptFileError(f"Got not all of {name} in {archive}.", "Download it again.")
            _merge(temporary, into)
    except CongruenceError:
        raise
    except (*_DAMAGE, OSError) as error:
        # gzip and bz2 raise an OSError without a number for data in another format.
        if isinstance(error, _DAMAGE) or error.errno is None:
            raise CorruptFileError(f"Got a damaged archive, {archive} ({error}).", "Download it again.") from error
        raise StorageError(
            f"Got an error from the disk while unpacking {archive} ({error.strerror}).", "Free space; nothing was left."
        ) from error
    return len(written)


def remove_left_over(folder: Path) -> None:
    """Remove what killed processes left in a folder while unpacking an archive."""
    for left_over in find_left_over(folder / "unpacking"):
        shutil.rmtree(left_over, ignore_errors=True)


@contextmanager
def _temporary_in(folder: Path) -> Iterator[Path]:
    """Yield a hidden temporary folder, removed when the block ends; first remove those of killed runs."""
    remove_left_over(folder)
    temporary = temporary_path(folder / "unpacking")
    temporary.mkdir()
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def _members(archive: Path) -> Iterator[Iterator[_Member]]:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as zipped:
            yield _zip_members(zipped, archive)
    else:
        with tarfile.open(archive, mode="r:*") as tarred:
            yield _tar_members(tarred, archive)
            if tarred.fileobj is not None:  # read to the end, since gzip verifies its checksum there
                while tarred.fileobj.read(2**20):
                    if tarred.fileobj.tell() > 2 * MAX_BYTES:
                        raise _suspect(archive, "no end")


def _zip_members(zipped: zipfile.ZipFile, archive: Path) -> Iterator[_Member]:
    for member in zipped.infolist():
        if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise _suspect(archive, f"the link or device {member.filename!r}")
        yield member.filename, member.file_size, None if member.is_dir() else partial(zipped.open, member)


def _tar_members(tarred: tarfile.TarFile, archive: Path) -> Iterator[_Member]:
    for member in tarred:
        if not (member.isreg() or member.isdir()):
            raise _suspect(archive, f"the link or device {member.name!r}")
        if hasattr(tarfile, "data_filter"):  # from Python 3.11.4 on; the checks below are stricter
            tarfile.data_filter(member, str(archive.parent))
        yield member.name, member.size, None if member.isdir() else partial(tarred.extractfile, member)


def _suspect(archive: Path, what: str) -> CorruptFileError:
    return CorruptFileError(f"Got {what} in {archive}.", "Do not use this archive: get it from its source.")


def _place(name: str, archive: Path) -> str:
    """Return the relative path of a member. Raises CorruptFileError for a name that leads out of the folder."""
    parts = PurePosixPath(name).parts
    if name.startswith("/") or ".." in parts or "\\" in name or "\0" in name or any(":" in part for part in parts):
        raise _suspect(archive, f"the path {name!r}, which leads out of its folder,")
    return "/".join(parts)


def _merge(source: Path, target: Path) -> None:
    """Move the contents of a folder into another, merging folders of the same name."""
    for path in sorted(source.iterdir()):
        place = target / path.name
        if path.is_dir() and place.is_dir() and not place.is_symlink():
            _merge(path, place)
        else:
            os.replace(path, place)
