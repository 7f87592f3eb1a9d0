"""Locations of files and folders: local paths and object-store URLs, read and written in the same way everywhere."""

from __future__ import annotations

import io
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import IO, Any
from urllib.parse import parse_qs, quote, urlencode, urlsplit, urlunsplit

import pyarrow as pa
import pyarrow.fs

from congruence._utils.atomic import atomic_path
from congruence._utils.optional import require
from congruence._utils.refusals import describe_refusal, is_refusal
from congruence.errors import CongruenceError, FileError, MissingExtraError, ParameterError, StorageError
from congruence.io.reading import missing_file

#: Bytes of an object that are kept in memory before a temporary file is used.
_SPOOL = 64 * 2**20

#: Bytes copied at a time.
_PIECE = 8 * 2**20

#: Bytes per read from an object store: at 30 ms per request, half a gigabyte per second.
READ_BYTES = 16 * 2**20

#: Seconds after which a read that failed is tried again.
_WAITS = (0.2, 0.6, 1.8, 5.4)

#: Status of answers, among those that blame the request, after which it is repeated.
_LATER = (408, 425, 429)

#: Schemes of HTTP, in whose file system a path is a URL.
_HTTP = ("http", "https")

#: Full addresses by their form without credentials and options, under which they are known everywhere else.
_ADDRESSES: dict[str, str] = {}


def is_url(path: str) -> bool:
    """Return whether a path is a URL."""
    return "://" in path


def split_url(spec: str) -> tuple[Location, str | None]:
    """Split a URL and a key, which is after the last colon of the path."""
    parts = urlsplit(spec)
    folder, slash, last = parts.path.rpartition("/")
    name, colon, key = last.partition(":")
    return Location.of(urlunsplit(parts._replace(path=f"{folder}{slash}{name}"))), (key if colon and key else None)


@dataclass(frozen=True)
class Location:
    """A file or folder: an absolute local path, or a URL. It is plain text, so that it can be sent to workers.

    Credentials come from each worker's own environment, where the cloud's libraries look for them. A URL is
    ``s3://bucket/folder?endpoint_override=http://localhost:9000``, ``gs://…``, ``abfs://…``, or one of another scheme
    that fsspec knows.
    """

    uri: str

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> Location:
        """Return the location of a path or URL."""
        text = os.fspath(path).removeprefix("file://")
        text = _ADDRESSES.get(text, text)
        return cls(text.rstrip("/") if is_url(text) else os.path.abspath(text))

    @property
    def local(self) -> bool:
        """Whether it is a local path, on a file system that can rename."""
        return not is_url(self.uri)

    @property
    def name(self) -> str:
        """Last part of the path."""
        return os.path.basename(self.uri) if self.local else urlsplit(self.uri).path.rsplit("/", 1)[-1]

    @property
    def shown(self) -> str:
        """The path for messages and records, without credentials and options."""
        if self.local:
            return self.uri
        parts = urlsplit(self.uri)
        return urlunsplit((parts.scheme, parts.netloc.rsplit("@", 1)[-1], parts.path, "", ""))

    @property
    def parent(self) -> Location:
        """The folder that contains this location."""
        return Location(os.path.dirname(self.uri)) if self.local else self._with(lambda path: path.rpartition("/")[0])

    def child(self, name: str) -> Location:
        """Return a location in this folder; itself for an empty name."""
        return self._with(lambda path: f"{path.rstrip('/')}/{name}") if name else self

    def with_suffix(self, suffix: str) -> Location:
        """Return the location whose name has this suffix added."""
        return self._with(lambda path: path.rstrip("/") + suffix)

    def _with(self, change: Callable[[str], str]) -> Location:
        if self.local:
            return Location(change(self.uri))
        parts = urlsplit(self.uri)
        return Location(urlunsplit(parts._replace(path=change(parts.path))))

    @property
    def lance(self) -> tuple[str, dict[str, str] | None]:
        """URI and storage options for Lance."""
        return (self.uri, None) if self.local else _lance_location(self.uri)

    def open(self) -> pa.NativeFile:
        """Open the file for reading at any position; a read of a remote one is repeated when the connection is cut."""
        if self.local:
            with self._files("reading") as (filesystem, path):
                return filesystem.open_input_file(path)
        return pa.PythonFile(_RemoteFile(self), mode="r")

    def read(self, most: int | None = None) -> bytes | None:
        """Return the content of a small file, or its first ``most`` bytes; None if there is none."""
        with self._files("reading") as (filesystem, path):
            try:
                with filesystem.open_input_stream(path) as file:
                    content: bytes = file.read(most)
                    return content
            except FileNotFoundError:
                return None

    def _kind(self, doing: str = "looking at") -> str:
        return _repeated(self, doing, lambda filesystem, path: str(filesystem.get_file_info(path).type.name))

    def exists(self) -> bool:
        """Return whether there is a file or folder; an object store has a folder if an object is below that path."""
        return self._kind() != "NotFound"

    def is_folder(self) -> bool:
        """Return whether there is a folder."""
        return self._kind() == "Directory"

    def files(self) -> dict[str, int]:
        """Return the sizes of all files below this folder by relative path, sorted; empty if there is no folder."""
        with self._files("listing") as (filesystem, path):
            if self.local:  # Arrow fails at names that are not UTF-8
                walked = os.walk(path, onerror=_raise, followlinks=True) if os.path.isdir(path) else ()
                paths = [os.path.join(folder, name) for folder, _, names in walked for name in names]
                found = {os.path.relpath(file, path): os.path.getsize(file) for file in paths if os.path.isfile(file)}
                return {name.replace(os.sep, "/"): found[name] for name in sorted(found)}
            entries = filesystem.get_file_info(pa.fs.FileSelector(path, allow_not_found=True, recursive=True))
        # Some file systems return paths with a leading slash that the request did not have.
        start = len(path.strip("/")) + 1
        files = sorted((entry for entry in entries if entry.is_file), key=lambda entry: entry.path)
        return {entry.path.lstrip("/")[start:]: int(entry.size) for entry in files}

    @contextmanager
    def writing(self, *, part: bool = False) -> Iterator[IO[bytes]]:
        """Yield a file to write to, whose content appears here only if the block ends without an error.

        A local file is written by ``atomic_path``, which explains ``part``. The content of an object is collected on
        this machine first, since otherwise a block that fails would leave an object with part of the content.
        """
        with self._files("writing") as (filesystem, path):
            if not self.local:
                with tempfile.SpooledTemporaryFile(_SPOOL) as spooled:
                    yield spooled
                    spooled.seek(0)
                    with filesystem.open_output_stream(path) as out:
                        while piece := spooled.read(_PIECE):
                            out.write(piece)
                return
            os.makedirs(os.path.dirname(self.uri), exist_ok=True)
            with atomic_path(self.uri, force=True, part=part) as temporary, open(temporary, "wb") as file:
                yield file

    def write(self, content: bytes) -> None:
        """Write a small file, completely or not at all."""
        with self.writing() as file:
            file.write(content)

    def remove(self) -> None:
        """Remove a file or folder, if there is one."""
        kind = self._kind("removing")
        with self._files("removing") as (filesystem, path):
            if kind != "NotFound":
                (filesystem.delete_dir if kind == "Directory" else filesystem.delete_file)(path)

    def move_to(self, other: Location) -> None:
        """Rename a local folder to a path that does not exist, or is an empty folder."""
        with self._files("renaming"):
            os.makedirs(os.path.dirname(other.uri), exist_ok=True)
            if os.path.isdir(other.uri) and not os.listdir(other.uri):
                os.rmdir(other.uri)
            os.rename(self.uri, other.uri)

    def drop_temporary(self) -> None:
        """Remove the temporary files that killed writers left in a local folder."""
        for folder, _, names in os.walk(self.uri):
            for name in names:
                if name.startswith(".") and name.endswith(".tmp"):
                    with suppress(OSError):
                        os.unlink(os.path.join(folder, name))

    @contextmanager
    def _files(self, doing: str) -> Iterator[tuple[Any, str]]:
        """Yield the file system and the path in it; its errors become FileError or StorageError."""
        kind = FileError if doing in ("reading", "listing", "looking at") else StorageError
        try:
            yield _resolve(self.uri)
        except (FileError, StorageError):
            raise
        except FileNotFoundError as error:
            if isinstance(why := _cause(error), FileNotFoundError) or _status(why) in (404, 410):
                raise missing_file(self.shown) from error
            problem = f"Got an error while {doing} {self.shown} ({_words(why)})."
            raise kind(problem, "Check the URL, the network, and the credentials in the environment.") from None
        except (OSError, pa.ArrowException) as error:
            if is_refusal(error):
                raise kind(describe_refusal(error, f"while {doing} {self.shown}")) from error
            problem = f"Got an error while {doing} {self.shown} ({_words(error)})."
            if self.local:
                raise kind(problem, "Check the path and its permissions.") from error
            fix = "Check the URL, its endpoint_override and the credentials in the environment of every machine."
            raise kind(problem, fix) from None  # the error may name the whole address
        except Exception as error:
            if self.local or isinstance(error, CongruenceError):
                raise
            # Clients of HTTP have errors of their own.
            problem = f"Got an error while {doing} {self.shown} ({_words(error)})."
            raise kind(problem, "Check the URL, the network, and the credentials in the environment.") from None


def _repeated(place: Location, doing: str, action: Callable[[Any, str], Any]) -> Any:
    """Return what an action on a file system and a path returns; a remote one is repeated if it fails for a while."""
    for wait in (*(() if place.local else _WAITS), None):
        try:
            return action(*_resolve(place.uri))
        except Exception as error:
            if wait is None or _is_final(error):
                with place._files(doing):  # makes it one of this library's
                    raise
            time.sleep(wait)
    return None


class _RemoteFile(io.RawIOBase):
    """A remote file, in which a read that failed is repeated from where it stopped, after waits that become longer."""

    def __init__(self, place: Location) -> None:
        self._place, self._at = place, 0
        self._file: Any = None
        self._size: int = self._repeat(lambda file: file.size())

    def _repeat(self, action: Callable[[Any], Any]) -> Any:
        def act(filesystem: Any, path: str) -> Any:
            self._file = self._file or filesystem.open_input_file(path)
            try:
                return action(self._file)
            except Exception:
                self._file = None
                raise

        return _repeated(self._place, "reading", act)

    def _next(self, file: Any, size: int) -> bytes:
        file.seek(self._at)
        got: bytes = file.read(size)
        if not got and size:
            raise OSError(f"it ends at byte {self._at:,} of {self._size:,}")
        return got

    def read(self, size: int | None = -1) -> bytes:
        most = self._size - self._at
        wanted, parts = most if size is None or size < 0 else min(size, most), []
        while wanted > 0:
            parts.append(self._repeat(lambda file, size=wanted: self._next(file, size)))  # type: ignore[misc]
            self._at, wanted = self._at + len(parts[-1]), wanted - len(parts[-1])
        return b"".join(parts)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at


def _cause(error: BaseException) -> BaseException:
    """Return why a file is said to be missing: clients of HTTP say so whatever the server answers."""
    while isinstance(error, FileNotFoundError) and error.__cause__ is not None:
        error = error.__cause__
    return error


def _status(error: BaseException) -> int:
    """Return the status of an answer that an error stands for, or 0."""
    status = getattr(error, "status", None) or getattr(getattr(error, "response", None), "status_code", 0)
    return status if isinstance(status, int) else 0


def _is_final(error: BaseException) -> bool:
    """Return whether a read fails however often it is repeated."""
    error = _cause(error)
    refused = 400 <= _status(error) < 500 and _status(error) not in _LATER
    final = (FileNotFoundError, PermissionError, NotImplementedError, ValueError, CongruenceError)
    return refused or isinstance(error, final) or "ACCESS_DENIED" in str(error)


def _words(error: BaseException) -> str:
    """Return why a read failed, without users, passwords and options of addresses, among which tokens may be."""
    if status := _status(error):
        return f"the server answers {status}"
    text = re.sub(r"\?[^\s'\")]*", "", re.sub(r"(\w://)[^/\s@]*@", r"\1", str(error)[:600]))
    return re.sub(r"\b\w+: \d{3}, message=|[<>'\"]", "", text)[:300] or type(error).__name__


def fetched(url: str, streams: Callable[[str], bool]) -> str:
    """Return the path under which a remote file is read: of a copy on this machine, unless its format ``streams``.

    The copy is kept until this process ends. The name of what is streamed has no credentials.
    """
    place = Location.of(url)
    if streams(place.name):
        _ADDRESSES[place.shown] = place.uri
        return place.shown
    with place._files("reading") as (filesystem, path):
        facts = filesystem.get_file_info(path)
    if facts.type.name == "Directory":
        raise FileError(f"{place.shown} is a folder.", "Pass one of its files, or map it with `congruence transform`.")
    return _copied(place, str(facts.mtime), facts.size)[1]


@cache
def _copied(place: Location, _changed: str, size: int | None) -> tuple[tempfile.TemporaryDirectory[str], str]:
    folder = tempfile.TemporaryDirectory(prefix="congruence-")
    free = shutil.disk_usage(folder.name).free
    if (size or 0) > free:
        problem = f"{place.shown} has {size:,} bytes, and {os.path.dirname(folder.name)} has {free:,} left."
        raise FileError(problem, "Free space, or set TMPDIR to another disk.")
    path = os.path.join(folder.name, quote(place.name, safe=" ()[]{}+=,;"))
    with place.open() as stream, open(path, "wb") as file:
        while piece := stream.read(_PIECE):
            file.write(piece)
    return folder, path


def _raise(error: OSError) -> None:
    raise error


class _Handler(pa.fs.FSSpecHandler):
    """A file system of fsspec, whose errors say more of a file than that it is missing."""

    def get_file_info(self, paths: list[str]) -> list[pa.fs.FileInfo]:
        found: list[pa.fs.FileInfo] = super().get_file_info(paths)
        for one in found:
            if one.type.name == "NotFound":
                try:
                    self.fs.info(one.path)
                except FileNotFoundError as error:
                    if not isinstance(_cause(error), FileNotFoundError) and _status(_cause(error)) not in (404, 410):
                        raise
        return found

    def open_input_file(self, path: str) -> pa.PythonFile:
        return pa.PythonFile(self.fs.open(path, mode="rb"), mode="r")


@lru_cache(maxsize=64)
def _connect(base: str) -> object:
    """Return the file system of a scheme, host and options, created once per process."""
    try:
        return pa.fs.FileSystem.from_uri(base)[0]
    except pa.ArrowInvalid as error:
        scheme = urlsplit(base).scheme
        fsspec = require("fsspec", extra="remote")
        if scheme not in fsspec.available_protocols():
            fix = "Pass a URL of file, s3, gs, abfs, hdfs or a scheme that fsspec knows."
            raise ParameterError(f"Got a URL of scheme {scheme!r} ({error}).", fix) from None
        # Proxies and passwords (~/.netrc) are read from where all programs look for them.
        options = {"client_kwargs": {"trust_env": True}} if scheme in _HTTP else {}
        try:
            return pa.fs.PyFileSystem(_Handler(fsspec.filesystem(scheme, **options)))
        except ImportError as missing:
            problem = f"Got a URL of scheme {scheme!r} without what reads it ({missing})."
            raise MissingExtraError(problem, "Run pip install 'congruence[remote]'.") from missing


def _resolve(uri: str) -> tuple[Any, str]:
    """Return the file system and the path in it."""
    if not is_url(uri):
        return _connect("file:///"), uri
    parts = urlsplit(uri)
    if parts.scheme in _HTTP:
        return _connect(f"{parts.scheme}://"), uri
    query = parse_qs(parts.query)
    if parts.scheme == "s3" and "endpoint_override" not in query and (endpoint := _aws_endpoint()):
        query["endpoint_override"] = [endpoint]
    if parts.scheme in ("gs", "gcs"):
        query.setdefault("retry_limit_seconds", ["30"])  # else a quarter of an hour passes without a network
    if (endpoint := query.get("endpoint_override", [""])[-1]) and "://" in endpoint:
        scheme, host = endpoint.split("://", 1)
        query["endpoint_override"], query["scheme"] = [host.rstrip("/")], [scheme]
    # One connection per bucket, because the region is looked up by bucket.
    base = urlunsplit((parts.scheme, parts.netloc, "", urlencode(query, doseq=True), ""))
    filesystem = _connect(base)
    if isinstance(filesystem, pa.fs.LocalFileSystem):
        return filesystem, parts.path
    bucket = parts.netloc.rsplit("@", 1)[-1]
    return filesystem, f"{bucket}{parts.path}".rstrip("/")


def _aws_endpoint() -> str | None:
    """Return the endpoint in AWS environment variables, which Arrow does not read; None if there is none."""
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")


def _lance_location(uri: str) -> tuple[str, dict[str, str] | None]:
    """Return a URL's address without its query, and Lance's options from the query and the environment."""
    parts = urlsplit(uri)
    query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
    options: dict[str, str] = {}
    endpoint = query.get("endpoint_override") or _aws_endpoint()
    if parts.scheme == "s3" and endpoint:
        use_http = query.get("scheme", "") == "http" or endpoint.startswith("http://")
        host = endpoint.split("://", 1)[-1]
        options["aws_endpoint"] = f"{'http' if use_http else 'https'}://{host}"
        options["allow_http"] = str(use_http).lower()
    if query.get("region"):
        options["aws_region"] = query["region"]
    return urlunsplit(parts._replace(query="")), options or None
