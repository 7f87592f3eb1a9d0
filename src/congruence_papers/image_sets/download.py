"""Downloads of known files over https: resumable, verified before the final rename, and never repeated.

pooch (as of 1.9) is not used, because it restarts an interrupted download from the beginning, follows redirects to
http, and does not limit the size of a download. Its ``Unzip`` and ``Untar`` call ``extractall`` in place, without a
limit on bytes or files and, below Python 3.12, without a member filter, so files that
``congruence_papers.image_sets.archives`` refuses or removes would be written to the disk.
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

from congruence.errors import CongruenceError, CorruptFileError, FileError, StorageError
from congruence.persist import atomic_path
from congruence_papers.image_sets.archives import extract, remove_left_over

#: Allowed URL schemes, also after a redirect.
SCHEMES = ("https",)

#: Seconds without data after which a connection is given up.
TIMEOUT = 60.0

#: Largest allowed number of bytes of a file whose size is not published.
SMALL = 32 * 2**20

_BLOCK = 2**18


@dataclass(frozen=True)
class Resource:
    """A file to download, and how to verify and unpack it."""

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
    """Download a resource and unpack it, unless this was already done."""
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
            f"Got no folder {target.parent} ({error.strerror}); expected to create it.", "Pass another `root=…`."
        ) from error
    if resource.inner is None or not (root / resource.inner.path).exists():
        fetch(resource, target, callback)
        if resource.into is not None:
            extract(target, root / resource.into, keep=resource.keep)
    if resource.inner is not None:
        install(resource.inner, root)
    if not (root / resource.creates).exists():
        raise CorruptFileError(f"{target} is without {resource.creates}.", "Delete it and download it again.")
    return True


def fetch(resource: Resource, target: str | Path, callback: Callable[[int], object] | None = None) -> None:
    """Download a file to ``target``, or verify an existing one.

    Data are written to ``<target>.part`` until the download is complete, so that the next attempt can resume it.
    """
    target = Path(target)
    if not target.exists():
        if resource.url is None:
            raise FileError(f"Got no file at {target}.", "Delete the unpacked files, and download the archive again.")
        part = target.with_name(target.name + ".part")
        resumed = part.exists() and part.stat().st_size > 0
        # An existing partial file may belong to another version: if it fails the check, download once more from the
        # start.
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
    """Write the SHA-256 of a file next to it, in the format of ``sha256sum``."""
    with atomic_path(_record_of(path), force=True) as temporary:
        temporary.write_text(f"{_digest(path, 'sha256')}  {path.name}\n", encoding="utf-8")


def check_recorded(path: Path) -> None:
    """Check that a file has not changed since ``record``; a file without a record passes."""
    recorded = _record_of(path)
    if recorded.is_file() and recorded.read_text(encoding="utf-8", errors="replace").split()[:1] != [
        _digest(path, "sha256")
    ]:
        raise CorruptFileError(
            f"Got {path}, which has changed since it was downloaded; expected the checksum in {recorded.name}.",
            f"Download it again, or delete {recorded.name} if you changed it on purpose.",
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
            f"Got {size} bytes in {path} from {resource.url}; expected {resource.size}.", "Download it again."
        )
    for kind, expected in (("md5", resource.md5), ("sha256", resource.sha256)):
        if expected is not None and (got := _digest(path, kind)) != expected:
            raise CorruptFileError(
                f"Got {path} with {kind} {got} from {resource.url}; expected {expected}.", "Do not use the file."
            )
    if resource.check is not None:
        resource.check(path)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follow redirects, but only to allowed schemes."""

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
        raise FileError(f"Got the address {url}; expected {' or '.join(SCHEMES)}.", "Use an https address.")


def _receive(resource: Resource, target: Path, part: Path, callback: Callable[[int], object] | None) -> None:
    """Download the rest of the file into ``part``."""
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
                    f"Got a file of {total} bytes at {url}; expected "
                    f"{'at most ' if resource.size is None else ''}{limit}.",
                    f"Check the address, or {by_hand(resource, target)}.",
                )
            done = _write(answer, part, begin, limit, url, callback)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # the partial file is complete or belongs to another version: start again
            part.unlink()
            _receive(resource, target, part, callback)
            return
        raise FileError(
            f"Got HTTP status {error.code} ({error.reason}) from {url}.", f"Check it, or {by_hand(resource, target)}."
        ) from error
    except CongruenceError:
        raise
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error or type(error).__name__
        raise FileError(
            f"Got no answer from {url} ({reason}).",
            f"Run this again (it resumes where it stopped), or {by_hand(resource, target)}.",
        ) from error
    expected = resource.size if total is None else total
    if expected is not None and done < expected:
        raise FileError(f"Got {done} of {expected} bytes from {url}.", "Run this again: it resumes where it stopped.")


def _range(answer: http.client.HTTPResponse, have: int) -> tuple[int, int | None]:
    """Return the offset at which a response starts, and the length of the file if it is known."""
    length = answer.headers.get("Content-Length", "")
    if answer.status == 206:
        span = answer.headers.get("Content-Range", "")  # bytes 100-199/200
        begin, _, total = span.removeprefix("bytes ").partition("/")
        if begin.split("-")[0] == str(have):
            return have, int(total) if total.isdigit() else None
        raise http.client.HTTPException(f"a range that was not requested: {span!r}")
    return 0, int(length) if length.isdigit() else None


def _write(
    answer: http.client.HTTPResponse,
    part: Path,
    begin: int,
    limit: int,
    url: str,
    callback: Callable[[int], object] | None,
) -> int:
    """Write the body of a response after the first ``begin`` bytes; return the total length."""
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
                    f"Got more than {limit} bytes from {url}.", "Check the address; do not use the file."
                )
            try:
                file.write(block)
                file.flush()  # otherwise a full disk would raise later, where it would look like a network error
            except OSError as error:
                raise _refused(part, error) from error
            if callback is not None:
                callback(len(block))
    return done


def _refused(path: Path, error: OSError) -> StorageError:
    return StorageError(
        f"Got an error from the disk while writing {path} ({error.strerror}).", "Free space, or pass another `root=…`."
    )
