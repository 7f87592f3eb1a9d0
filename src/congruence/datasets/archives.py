"""Unpack tar and zip archives safely: only plain files below one folder, and a limited number of them."""

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

from congruence._utils.owner import find_left_over, temporary_beside
from congruence._utils.validation import check_positive
from congruence.errors import CongruenceError, CorruptFileError, FileError, StorageError

__all__ = ["extract", "remove_left_over"]

#: The largest of the known archives unpacks to 3.1 GB in nine files, the most numerous to some 9,000 files.
MAX_BYTES = 16 * 2**30
MAX_FILES = 200_000

_DAMAGE = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    ValueError,
    RuntimeError,
    FileExistsError,  # a file in the place of a folder, or of another spelling of its name
    NotADirectoryError,
)


def extract(
    archive: str | Path,
    into: str | Path,
    *,
    keep: Sequence[str] = (),
    max_bytes: int = MAX_BYTES,
    max_files: int = MAX_FILES,
) -> int:
    """Unpack a tar or zip archive completely, or not at all.

    Members are written as new plain files (no owner, no mode, no time) into a folder beside their place, and moved when
    all are there. What is in the way is replaced.

    Parameters
    ----------
    archive : path-like
        ``.tar``, with any compression Python reads, or ``.zip``; told apart by content.
    into : path-like
        An existing folder.
    keep : sequence of str
        Patterns of the members wanted, with ``*`` and ``?``; all by default.
    max_bytes, max_files : int
        The archive is refused beyond, wanted or not.

    Returns
    -------
    int
        Files written.

    Raises
    ------
    FileError
        There is no such archive or folder.
    CorruptFileError
        Damaged; or a member is a link or device, or has an absolute path or one with ``..``; or there is too much.
    StorageError
        The disk is full, or refuses.
    """
    archive, into = Path(archive), Path(into)
    check_positive(max_bytes, "max_bytes", integer=True)
    check_positive(max_files, "max_files", integer=True)
    for path, what in ((archive, archive.is_file()), (into, into.is_dir())):
        if not what:
            raise FileError(f"Got nothing at {path}; expected an archive. Check the path.")
    written = total = 0
    taken: set[str] = set()
    try:
        with _temporary_in(into) as temporary:
            with _members(archive) as members:
                for count, (name, size, source) in enumerate(members, start=1):
                    total += size
                    if total > max_bytes or count > max_files:
                        raise CorruptFileError(
                            f"Got more than {max_bytes} bytes or {max_files} members in {archive}; "
                            "expected less in a data set. Do not use this archive: download it from its official source."
                        )
                    place = _place(name, archive)
                    if source is None or (keep and not any(fnmatchcase(place, pattern) for pattern in keep)):
                        continue
                    if place in taken:
                        raise CorruptFileError(
                            f"Got {name} twice in {archive}; expected each file once. Do not use this archive: download it from its official source."
                        )
                    taken.add(place)
                    target = temporary / place
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with source() as stream, open(target, "xb") as out:
                        shutil.copyfileobj(stream, out, 2**20)
                    if target.stat().st_size != size:
                        raise CorruptFileError(
                            f"Got {target.stat().st_size} of {size} bytes of {name} in {archive}; expected them all. "
                            "Download it again."
                        )
                    written += 1
            _merge(temporary, into)
    except CongruenceError:
        raise
    except _DAMAGE as error:
        raise CorruptFileError(
            f"Got a damaged archive, {archive} ({error}); expected a complete one. Download it again."
        ) from error
    except OSError as error:
        if error.errno is None:  # gzip and bz2 say so of bytes that are not theirs
            raise CorruptFileError(
                f"Got a damaged archive, {archive} ({error}); expected a complete one. Download it again."
            ) from error
        raise StorageError(
            f"Got a refusal from the disk while unpacking {archive} ({error.strerror}); expected space and permission. "
            "Free space, or pass another folder. Nothing was left behind."
        ) from error
    return written


def remove_left_over(folder: Path) -> None:
    """Remove what killed processes left in a folder while unpacking an archive."""
    for left in find_left_over(folder / "unpacking"):
        shutil.rmtree(left, ignore_errors=True)


@contextmanager
def _temporary_in(folder: Path) -> Iterator[Path]:
    """Give a hidden folder that goes when the block ends; those of killed runs go first."""
    remove_left_over(folder)
    temporary = temporary_beside(folder / "unpacking")
    temporary.mkdir()
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


#: Name, size and a way to read it (none for a folder).
_Member = tuple[str, int, Callable[[], IO[bytes]] | None]


@contextmanager
def _members(archive: Path) -> Iterator[Iterator[_Member]]:
    """Open an archive and go through its members."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as zipped:
            yield _zip_members(zipped, archive)
    else:
        with tarfile.open(archive, mode="r:*") as tarred:
            yield _tar_members(tarred, archive)
            if tarred.fileobj is not None:  # gzip's checksum lies behind what tar reads
                while tarred.fileobj.read(2**20):
                    if tarred.fileobj.tell() > 2 * MAX_BYTES:
                        raise CorruptFileError(
                            f"Got no end of {archive}; expected one. Do not use this archive: download it from its official source."
                        )


def _zip_members(zipped: zipfile.ZipFile, archive: Path) -> Iterator[_Member]:
    for member in zipped.infolist():
        kind = stat.S_IFMT(member.external_attr >> 16)
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise _special(member.filename, archive)
        yield member.filename, member.file_size, None if member.is_dir() else partial(zipped.open, member)


def _tar_members(tarred: tarfile.TarFile, archive: Path) -> Iterator[_Member]:
    for member in tarred:
        if not (member.isreg() or member.isdir()):
            raise _special(member.name, archive)
        if hasattr(tarfile, "data_filter"):  # a second opinion, from Python 3.11.4 on; ours below is stricter
            tarfile.data_filter(member, str(archive.parent))
        yield member.name, member.size, None if member.isdir() else partial(_read, tarred, member)


def _read(tarred: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    stream = tarred.extractfile(member)
    assert stream is not None  # that is how links and folders come out, and neither comes here
    return stream


def _special(name: str, archive: Path) -> CorruptFileError:
    return CorruptFileError(
        f"Got the link or device {name!r} in {archive}; expected plain files and folders. Do not use this archive: download it from its official source."
    )


def _place(name: str, archive: Path) -> str:
    """Return where a member goes, below the folder; refuse every name that leads out of it."""
    parts = PurePosixPath(name).parts
    if name.startswith("/") or ".." in parts or "\\" in name or "\0" in name or any(":" in part for part in parts):
        raise CorruptFileError(
            f"Got the path {name!r} in {archive}; expected paths below the archive's folder. Do not use this archive: download it from its official source."
        )
    return "/".join(parts)


def _merge(source: Path, target: Path) -> None:
    """Move everything in a folder into another; folders of one name become one."""
    for path in sorted(source.iterdir()):
        place = target / path.name
        if path.is_dir() and place.is_dir() and not place.is_symlink():
            _merge(path, place)
        else:
            os.replace(path, place)
