"""Locations of files and folders: local paths and object-store URLs, read and written in the same way everywhere."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import IO, Any
from urllib.parse import parse_qs, urlencode, urlsplit, urlunsplit

import pyarrow as pa
import pyarrow.fs

from congruence._utils.atomic import atomic_path
from congruence._utils.lance_urls import aws_endpoint, lance_location
from congruence._utils.optional import require
from congruence._utils.refusals import describe_refusal, is_refusal
from congruence.errors import FileError, ParameterError, StorageError
from congruence.io.reading import missing_file

#: Bytes of an object that are kept in memory before a temporary file is used.
_SPOOL = 64 * 2**20

#: Bytes copied at a time.
_PIECE = 8 * 2**20


def is_url(path: str) -> bool:
    """Return whether a path is a URL."""
    return "://" in path


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
        return (self.uri, None) if self.local else lance_location(self.uri)

    def open(self) -> pa.NativeFile:
        """Open the file for reading at any position."""
        with self._files("reading") as (filesystem, path):
            return filesystem.open_input_file(path)

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
        with self._files(doing) as (filesystem, path):
            return str(filesystem.get_file_info(path).type.name)

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
        resolved = _resolve(self.uri)
        try:
            yield resolved
        except (FileError, StorageError):
            raise
        except FileNotFoundError as error:
            raise missing_file(self.shown) from error
        except (OSError, pa.ArrowException) as error:
            if is_refusal(error):
                raise kind(describe_refusal(error, f"while {doing} {self.shown}")) from error
            fix = "Check the URL, its endpoint_override and the credentials in the environment of every machine."
            problem = f"Got an error while {doing} {self.shown} ({str(error)[:300]})."
            raise kind(problem, "Check the path and its permissions." if self.local else fix) from error


def _raise(error: OSError) -> None:
    raise error


@lru_cache(maxsize=64)
def _connect(base: str) -> object:
    """Return the file system of a scheme, host and options, created once per process."""
    try:
        return pa.fs.FileSystem.from_uri(base)[0]
    except pa.ArrowInvalid as error:
        scheme = urlsplit(base).scheme
        fsspec = require("fsspec", extra="ray")
        if scheme not in fsspec.available_protocols():
            fix = "Pass a URL of file, s3, gs, abfs, hdfs or a scheme that fsspec knows."
            raise ParameterError(f"Got a URL of scheme {scheme!r} ({error}).", fix) from None
        return pa.fs.PyFileSystem(pa.fs.FSSpecHandler(fsspec.filesystem(scheme)))


def _resolve(uri: str) -> tuple[Any, str]:
    """Return the file system and the path in it."""
    if not is_url(uri):
        return _connect("file:///"), uri
    parts = urlsplit(uri)
    query = parse_qs(parts.query)
    if parts.scheme == "s3" and "endpoint_override" not in query and (endpoint := aws_endpoint()):
        query["endpoint_override"] = [endpoint]
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
