"""Downloads of known files: over https, resumable, verified before they are renamed, and never repeated.

Not by pooch (as of 1.9): it starts over where a download stopped, follows a redirect to http, and writes what arrives without a limit.
Its ``Unzip`` and ``Untar`` call ``extractall`` in place, without a limit on bytes or files, and below Python 3.12 without a filter of members:
what :mod:`congruence.datasets.archives` refuses or undoes would be on the disk.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from congruence._utils.atomic import atomic_path
from congruence.datasets.archives import extract, remove_left_over
from congruence.errors import CongruenceError, CorruptFileError, FileError, StorageError

__all__ = ["Resource", "by_hand", "check_recorded", "fetch", "install", "record"]

#: Schemes that are followed, also by a redirect.
SCHEMES = ("https",)

#: Seconds without a byte after which a server counts as gone.
TIMEOUT = 60.0

#: Where a file is whose size nobody publishes, it may have this many bytes.
SMALL = 32 * 2**20

_BLOCK = 2**18


@dataclass(frozen=True)
class Resource:
    """A file to fetch, and what to do with it.

    Attributes
    ----------
    url : str or None
        None for a file that comes out of an archive.
    path : str
        Where it goes, below the root.
    creates : str
        What is there when all is done, below the root; then nothing is fetched.
    into : str or None
        Folder to unpack it in, below the root; None if it is no archive.
    keep : tuple of str
        Patterns of the members wanted; all by default.
    size : int or None
        In bytes.
    md5, sha256 : str or None
        Published checksums. Without any, the checksum of the first download is recorded beside the file (*trust on
        first use*): later changes are noticed, a wrong first download is not, but for what ``check`` sees.
    check : callable, optional
        Reads the file and raises if it is not what it should be.
    inner : Resource, optional
        An archive in this archive, which is unpacked next.
    """

    url: str | None
    path: str
    creates: str
    into: str | None = None
    keep: tuple[str, ...] = ()
    size: int | None = None
    md5: str | None = None
    sha256: str | None = None
    check: Callable[[Path], object] | None = None
    inner: Resource | None = None

    @property
    def published(self) -> bool:
        """Whether a checksum was published."""
        return self.md5 is not None or self.sha256 is not None


def install(resource: Resource, root: str | Path, callback: Callable[[int], object] | None = None) -> bool:
    """Download a resource and unpack it, unless this was already done.

    Parameters
    ----------
    resource : Resource
    root : path-like
        Made if it does not exist.
    callback : callable, optional
        Called with the number of bytes of each block received.

    Returns
    -------
    bool
        False if everything was there already.

    Raises
    ------
    FileError
        No answer, or an incomplete one: the message says what to put where by hand.
    CorruptFileError, StorageError
        If a file is damaged, or the output cannot be written.
    """
    root = Path(root).expanduser()
    if resource.into is not None and (root / resource.into).is_dir():
        remove_left_over(root / resource.into)
    if (root / resource.creates).exists():
        return False
    target = root / resource.path
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"Got no folder {target.parent} ({error.strerror}); expected to create it. Pass another root=…."
        ) from error
    if resource.inner is None or not (root / resource.inner.path).exists():
        fetch(resource, target, callback)
        if resource.into is not None:
            extract(target, root / resource.into, keep=resource.keep)
    if resource.inner is not None:
        install(resource.inner, root)
    if not (root / resource.creates).exists():
        raise CorruptFileError(
            f"Got no {resource.creates} out of {target}; expected it in the archive. Download it again."
        )
    return True


def fetch(resource: Resource, target: str | Path, callback: Callable[[int], object] | None = None) -> None:
    """Download a file to ``target``, or verify an existing one.

    What arrives is kept as ``<target>.part`` until it is whole, so that the next attempt goes on where this one stopped.

    Parameters
    ----------
    resource : Resource
    target : path-like
        In an existing folder.
    callback : callable, optional
        Called with the number of bytes of each block received.

    Raises
    ------
    FileError
        No answer, or an incomplete one.
    CorruptFileError
        The file is not the one that was published; it is removed, unless it lay there before.
    StorageError
        If the output cannot be written.
    """
    target = Path(target)
    if not target.exists():
        if resource.url is None:
            raise FileError(
                f"Got no file at {target}; expected it in the archive that comes before it. Delete what was unpacked, and download again."
            )
        part = target.with_name(target.name + ".part")
        resumed = part.exists() and part.stat().st_size > 0
        # What lay there may be the beginning of another file: then once more from the start, and no further.
        for last in (False, True) if resumed else (True,):
            try:
                _receive(resource, target, part, callback)
                _verify(resource, part)
                break
            except CorruptFileError:
                part.unlink(missing_ok=True)
                if last:
                    raise
        with open(part, "rb") as file:
            os.fsync(file.fileno())
        os.replace(part, target)
        if not resource.published:
            record(target)
    else:
        _verify(resource, target)


def by_hand(resource: Resource, target: Path) -> str:
    """Return instructions on what to download and where to put it, for users without a network."""
    facts = [f"{resource.size} bytes"] if resource.size is not None else []
    facts += [f"{kind} {value}" for kind, value in (("sha256", resource.sha256), ("md5", resource.md5)) if value]
    known = f" ({', '.join(facts)})" if facts else ""
    return f"fetch {resource.url}{known} elsewhere, put it at {target} and run this again"


def record(path: Path) -> None:
    """Write the SHA-256 of a file beside it, as ``sha256sum`` does."""
    with atomic_path(_record_of(path), force=True) as temporary:
        temporary.write_text(f"{_digest(path, 'sha256')}  {path.name}\n", encoding="utf-8")


def check_recorded(path: Path) -> None:
    """Refuse a file that changed since :func:`record`; one without a record passes.

    Raises
    ------
    CorruptFileError
        If a file is damaged.
    """
    beside = _record_of(path)
    if beside.is_file() and beside.read_text(encoding="utf-8", errors="replace").split()[:1] != [
        _digest(path, "sha256")
    ]:
        raise CorruptFileError(
            f"Got another {path.name} than was downloaded to {path.parent}; expected the checksum in {beside.name}. "
            f"Download it again, or delete {beside.name} if you changed it on purpose."
        )


def _record_of(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def _digest(path: Path, kind: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()


def _verify(resource: Resource, path: Path) -> None:
    size = path.stat().st_size
    if resource.size is not None and size != resource.size:
        raise CorruptFileError(
            f"Got {size} bytes in {path} from {resource.url}; expected {resource.size}. Delete it and download it again."
        )
    for kind, expected in (("md5", resource.md5), ("sha256", resource.sha256)):
        if expected is not None and (got := _digest(path, kind)) != expected:
            raise CorruptFileError(
                f"Got {path} with {kind} {got} from {resource.url}; expected {expected}. Delete it and download it "
                "again, and do not use it if that repeats."
            )
    if resource.check is not None:
        resource.check(path)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follow redirects, but to no other scheme."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        _check_scheme(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _check_scheme(url: str) -> None:
    scheme = urllib.parse.urlsplit(url).scheme.lower()
    if scheme not in SCHEMES:
        raise FileError(
            f"Got the address {url}; expected {' or '.join(SCHEMES)}, which cannot be altered on the way. Use an https address."
        )


def _receive(resource: Resource, target: Path, part: Path, callback: Callable[[int], object] | None) -> None:
    """Bring ``part`` to its full length."""
    url = resource.url or ""
    limit = SMALL if resource.size is None else resource.size
    _check_scheme(url)
    have = part.stat().st_size if part.exists() else 0
    if have and have == resource.size:
        return
    if have > limit:
        part.unlink()
        have = 0
    headers = {"User-Agent": "congruence", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    opener = urllib.request.build_opener(_Redirects)
    try:
        with opener.open(urllib.request.Request(url, headers=headers), timeout=TIMEOUT) as answer:
            begin, total = _range(answer, have)
            if total is not None and (total > limit or (resource.size is not None and total != resource.size)):
                raise CorruptFileError(
                    f"Got a file of {total} bytes at {url}; expected {'at most ' if resource.size is None else ''}{limit}. "
                    f"Check the address, or {by_hand(resource, target)}."
                )
            done = _write(answer, part, begin, limit, url, callback)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # nothing is left to send, or the file is another: begin again
            part.unlink()
            _receive(resource, target, part, callback)
            return
        raise FileError(
            f"Got the answer {error.code} {error.reason} from {url}; expected the file. Check the address, or {by_hand(resource, target)}."
        ) from error
    except CongruenceError:
        raise
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error or type(error).__name__
        raise FileError(
            f"Got no answer from {url} ({reason}); expected a connection. "
            f"Run this again (it resumes where it stopped), or {by_hand(resource, target)}."
        ) from error
    expected = resource.size if total is None else total
    if expected is not None and done < expected:
        raise FileError(
            f"Got {done} of {expected} bytes from {url}; expected them all. Run this again: it resumes where it stopped."
        )


def _range(answer: http.client.HTTPResponse, have: int) -> tuple[int, int | None]:
    """Return where an answer begins in the file, and how long the file is."""
    length = answer.headers.get("Content-Length", "")
    if answer.status == 206:
        span = answer.headers.get("Content-Range", "")  # bytes 100-199/200
        begin, _, total = span.removeprefix("bytes ").partition("/")
        if begin.split("-")[0] == str(have):
            return have, int(total) if total.isdigit() else None
        raise http.client.HTTPException(f"a range that was not asked for: {span!r}")
    return 0, int(length) if length.isdigit() else None


def _write(
    answer: http.client.HTTPResponse,
    part: Path,
    begin: int,
    limit: int,
    url: str,
    callback: Callable[[int], object] | None,
) -> int:
    """Write the body of an answer behind the first ``begin`` bytes; return the length reached."""
    try:
        file = open(part, "r+b" if begin else "wb")
    except OSError as error:
        raise _refused(part, error) from error
    with file:
        file.seek(begin)
        done = begin
        if callback is not None:
            callback(begin)
        while block := answer.read(_BLOCK):
            done += len(block)
            if done > limit:
                raise CorruptFileError(
                    f"Got more than {limit} bytes from {url}; expected no more. Check the address, and do not use the file."
                )
            try:
                file.write(block)
                file.flush()  # or a full disk would speak up later, from where it looks like the network
            except OSError as error:
                raise _refused(part, error) from error
            if callback is not None:
                callback(len(block))
    return done


def _refused(path: Path, error: OSError) -> StorageError:
    return StorageError(
        f"Got a refusal from the disk while writing {path} ({error.strerror}); expected space and permission. "
        "Free space, or pass another root=…, and run this again: it resumes where it stopped."
    )
