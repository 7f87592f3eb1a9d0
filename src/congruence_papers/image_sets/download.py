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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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

Callback = Callable[[int], object] | None


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
    def checksums(self) -> dict[str, str]:
        """The published checksums, by kind."""
        return {kind: value for kind, value in (("sha256", self.sha256), ("md5", self.md5)) if value}


def install(resource: Resource, root: str | Path, callback: Callback = None) -> bool:
    """Download a resource and unpack it, unless this was already done."""
    root = Path(root).expanduser()
    if resource.into is not None and (root / resource.into).is_dir():
        remove_left_over(root / resource.into)
    if (root / resource.creates).exists():
        return False
    target = root / resource.path
    with _disk(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
    if resource.inner is None or not (root / resource.inner.path).exists():
        fetch(resource, target, callback)
        if resource.into is not None:
            extract(target, root / resource.into, keep=resource.keep)
    if resource.inner is not None:
        install(resource.inner, root)
    if not (root / resource.creates).exists():
        raise CorruptFileError(f"{target} is without {resource.creates}.", "Delete it and download it again.")
    return True


def fetch(resource: Resource, target: str | Path, callback: Callback = None) -> None:
    """Download a file to ``target``, or verify an existing one.

    Data are written to ``<target>.part`` until the download is complete, so that the next attempt can resume it.
    """
    target = Path(target)
    if target.exists():
        _verify(resource, target)
        return
    if resource.url is None:
        raise FileError(f"Got no file at {target}.", "Delete the unpacked files, and download the archive again.")
    part = target.with_name(target.name + ".part")
    resumed = part.exists() and part.stat().st_size > 0
    # An existing partial file may belong to another version: if it fails the check, download once more from the start.
    for last in (False, True) if resumed else (True,):
        try:
            _receive(resource, resource.url, target, part, callback)
            _verify(resource, part)
            break
        except CorruptFileError:
            part.unlink(missing_ok=True)
            if last:
                raise
        except BaseException as error:
            if not isinstance(error, Exception) and part.exists():
                error.add_note(f"What was received is kept in {part}; repeat the command to continue.")
            raise
    with open(part, "rb") as file:
        os.fsync(file.fileno())
    os.replace(part, target)
    if not resource.checksums:  # trust on first use: keep its checksum, in the format of ``sha256sum``
        with atomic_path(_record_of(target), force=True) as temporary:
            temporary.write_text(f"{_digest(target, 'sha256')}  {target.name}\n", encoding="utf-8")


def check_recorded(path: Path) -> None:
    """Check that a file has not changed since its download; a file without a recorded checksum passes."""
    recorded = _record_of(path)
    if recorded.is_file():
        expected = recorded.read_text(encoding="utf-8", errors="replace").split()[:1]
        if expected != [_digest(path, "sha256")]:
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
    for kind, expected in resource.checksums.items():
        if (got := _digest(path, kind)) != expected:
            raise CorruptFileError(
                f"Got {path} with {kind} {got} from {resource.url}; expected {expected}.", "Do not use the file."
            )
    if resource.check is not None:
        resource.check(path)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follow redirects, but only to allowed schemes."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        _check_scheme(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _check_scheme(url: str) -> None:
    if urllib.parse.urlsplit(url).scheme.lower() not in SCHEMES:
        raise FileError(f"Got the address {url}; expected {' or '.join(SCHEMES)}.", "Use an https address.")


def _receive(resource: Resource, url: str, target: Path, part: Path, callback: Callback) -> None:
    facts = [f"{resource.size} bytes"] if resource.size is not None else []
    facts += [f"{kind} {value}" for kind, value in resource.checksums.items()]
    by_hand = f"fetch {url} ({', '.join(facts) or 'of unknown size'}) elsewhere, put it at {target} and run this again"
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
                expected = f"at most {limit}" if resource.size is None else str(limit)
                raise CorruptFileError(
                    f"Got a file of {total} bytes at {url}; expected {expected}.", f"Check the address, or {by_hand}."
                )
            done = _write(answer, part, begin, limit, url, callback)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # the partial file is complete or belongs to another version: start again
            part.unlink()
            _receive(resource, url, target, part, callback)
            return
        raise FileError(
            f"Got HTTP status {error.code} ({error.reason}) from {url}.", f"Check it, or {by_hand}."
        ) from error
    except CongruenceError:
        raise
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error or type(error).__name__
        raise FileError(
            f"Got no answer from {url} ({reason}).", f"Run this again (it resumes where it stopped), or {by_hand}."
        ) from error
    expected_size = resource.size if total is None else total
    if expected_size is not None and done < expected_size:
        raise FileError(f"Got {done} of {expected_size} bytes from {url}.", "Run again: it resumes where it stopped.")


def _range(answer: http.client.HTTPResponse, have: int) -> tuple[int, int | None]:
    """Return the offset at which a response starts, and the length of the file if it is known."""
    length = answer.headers.get("Content-Length", "")
    if answer.status == 206:
        span = answer.headers.get("Content-Range", "")  # bytes 100-199/200
        begin, _, length = span.removeprefix("bytes ").partition("/")
        if begin.split("-")[0] != str(have):
            raise http.client.HTTPException(f"a range that was not requested: {span!r}")
    return have if answer.status == 206 else 0, int(length) if length.isdigit() else None


def _write(answer: Any, part: Path, begin: int, limit: int, url: str, callback: Callback) -> int:
    """Write the body of a response after the first ``begin`` bytes; return the total length."""
    with _disk(part):
        file = open(part, "r+b" if begin else "wb")
    with file:
        file.seek(begin)
        done = begin
        if callback is not None:
            callback(begin)
        while block := answer.read(_BLOCK):
            done += len(block)
            if done > limit:
                raise CorruptFileError(f"Got more than {limit} bytes from {url}.", "Check the address.")
            with _disk(part):
                file.write(block)
                file.flush()  # otherwise a full disk would raise later, where it would look like a network error
            if callback is not None:
                callback(len(block))
    return done


@contextmanager
def _disk(path: Path) -> Iterator[None]:
    """Raise errors of the disk as StorageError, to tell them from those of the network."""
    try:
        yield
    except OSError as error:
        words = f"Got an error from the disk while writing {path} ({error.strerror})."
        raise StorageError(words, "Free space, or pass another `root=…`.") from error
