"""Locations of data sets: local paths and object-store URLs, read and written in the same way on every machine."""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import IO, Any
from urllib.parse import parse_qs, urlencode, urlsplit, urlunsplit

import pyarrow as pa

from congruence._utils.lance_urls import aws_endpoint, lance_location
from congruence._utils.optional import require
from congruence._utils.refusals import describe_refusal, is_refusal
from congruence.errors import FileError, ParameterError, StorageError


#: Bytes of an object that are kept in memory before a temporary file is used.
_SPOOL = 64 * 2**20

#: Bytes copied at a time.
_PIECE = 8 * 2**20


def is_url(path: str) -> bool:
    """Return whether a path is a URL."""
    return "://" in path


@dataclass(frozen=True)
class Place:
    """A file or folder: an absolute local path, or a URL. It is plain text, so that it can be sent to workers.

    Credentials come from each worker's own environment, where the cloud's libraries look for them.

    ``uri``: ``/data/part.parquet``, ``s3://bucket/folder?endpoint_override=http://localhost:9000``, ``gs://…``,
    ``abfs://…``, or another scheme that fsspec knows.
    """

    uri: str

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> Place:
        """Return the place of a path or URL."""
        text = os.fspath(path)
        if text.startswith("file://"):
            text = text[len("file://") :]
        return cls(text.rstrip("/") if is_url(text) else os.path.abspath(text))

    @property
    def local(self) -> bool:
        """Whether the place is a local path, on a file system that can rename."""
        return not is_url(self.uri)

    @property
    def name(self) -> str:
        """Last part of the path."""
        return urlsplit(self.uri).path.rsplit("/", 1)[-1] if not self.local else os.path.basename(self.uri)

    @property
    def shown(self) -> str:
        """The path for messages and records, without credentials and options."""
        if self.local:
            return self.uri
        parts = urlsplit(self.uri)
        return urlunsplit((parts.scheme, parts.netloc.rsplit("@", 1)[-1], parts.path, "", ""))

    def child(self, name: str) -> Place:
        """Return a place in this folder."""
        return self._with(lambda path: f"{path.rstrip('/')}/{name}")

    def with_suffix(self, suffix: str) -> Place:
        """Return the place whose name has this suffix added."""
        return self._with(lambda path: path.rstrip("/") + suffix)

    @property
    def parent(self) -> Place:
        """The folder that contains this place."""
        return Place(os.path.dirname(self.uri)) if self.local else self._with(lambda path: path.rpartition("/")[0])

    def _with(self, change: Callable[[str], str]) -> Place:
        if self.local:
            return Place(change(self.uri))
        parts = urlsplit(self.uri)
        return Place(urlunsplit(parts._replace(path=change(parts.path))))

    # ------------------------------------------------------------------ files

    def open(self) -> pa.NativeFile:
        """Open the file for reading at any position. Raises FileError."""
        filesystem, path = _resolve(self.uri)
        with _file_errors(self, "reading"):
            return filesystem.open_input_file(path)

    def read(self) -> bytes | None:
        """Return the content of a small file; None if there is none. Raises FileError."""
        filesystem, path = _resolve(self.uri)
        with _file_errors(self, "reading"):
            try:
                with filesystem.open_input_stream(path) as file:
                    content: bytes = file.read()
                    return content
            except FileNotFoundError:
                return None

    def exists(self) -> bool:
        """Return whether there is a file or folder; an object store has a folder if it has an object below that path. Raises FileError."""
        import pyarrow.fs

        filesystem, path = _resolve(self.uri)
        with _file_errors(self, "looking at"):
            return bool(filesystem.get_file_info(path).type != pyarrow.fs.FileType.NotFound)

    def is_folder(self) -> bool:
        """Return whether there is a folder. Raises FileError."""
        import pyarrow.fs

        filesystem, path = _resolve(self.uri)
        with _file_errors(self, "looking at"):
            return bool(filesystem.get_file_info(path).type == pyarrow.fs.FileType.Directory)

    def files(self) -> dict[str, int]:
        """Return the sizes of all files below this folder by relative path, sorted; empty if there is no folder. Raises FileError."""
        import pyarrow.fs

        filesystem, path = _resolve(self.uri)
        with _file_errors(self, "listing"):
            entries = filesystem.get_file_info(pyarrow.fs.FileSelector(path, allow_not_found=True, recursive=True))
        start = (
            len(path.strip("/")) + 1
        )  # some file systems return paths with a leading slash that the request did not have
        files = sorted((entry for entry in entries if entry.is_file), key=lambda entry: entry.path)
        return {entry.path.lstrip("/")[start:]: int(entry.size) for entry in files}

    @contextmanager
    def writing(self) -> Iterator[IO[bytes]]:
        """Yield a file to write to, whose content appears at this place only if the block ends without an error.

        A local file is written under a temporary name and renamed. The content of an object is collected on this machine first, since
        otherwise a block that fails would leave an object with part of the content.
        """
        with _file_errors(self, "writing"):
            if self.local:
                os.makedirs(os.path.dirname(self.uri), exist_ok=True)
                temporary = os.path.join(os.path.dirname(self.uri), f".{self.name[:60]}.{uuid.uuid4().hex[:12]}.tmp")
                try:
                    with open(temporary, "wb") as file:
                        yield file
                        file.flush()
                        os.fsync(file.fileno())
                    os.replace(temporary, self.uri)
                except BaseException:
                    with suppress(OSError):
                        os.unlink(temporary)
                    raise
                return
            filesystem, path = _resolve(self.uri)
            with tempfile.SpooledTemporaryFile(_SPOOL) as spooled:
                yield spooled
                spooled.seek(0)
                with filesystem.open_output_stream(path) as out:
                    while piece := spooled.read(_PIECE):
                        out.write(piece)

    def write(self, content: bytes) -> None:
        """Write a small file, completely or not at all. Raises StorageError."""
        with self.writing() as file:
            file.write(content)

    def remove(self) -> None:
        """Remove a file or folder, if there is one. Raises StorageError."""
        import pyarrow.fs

        filesystem, path = _resolve(self.uri)
        with _file_errors(self, "removing"):
            kind = filesystem.get_file_info(path).type
            if kind == pyarrow.fs.FileType.Directory:
                filesystem.delete_dir(path)
            elif kind == pyarrow.fs.FileType.File:
                filesystem.delete_file(path)

    def move_to(self, other: Place) -> None:
        """Rename a local folder to a path that does not exist, or is an empty folder. Raises StorageError."""
        with _file_errors(self, "renaming"):
            os.makedirs(os.path.dirname(other.uri), exist_ok=True)
            if os.path.isdir(other.uri) and not os.listdir(other.uri):
                os.rmdir(other.uri)
            os.rename(self.uri, other.uri)

    def drop_temporary(self) -> None:
        """Remove the temporary files that killed writers left in a local folder."""
        if self.local:
            for folder, _, names in os.walk(self.uri):
                for name in names:
                    if name.startswith(".") and name.endswith(".tmp"):
                        with suppress(OSError):
                            os.unlink(os.path.join(folder, name))

    # ------------------------------------------------------------------ Lance

    @property
    def lance(self) -> tuple[str, dict[str, str] | None]:
        """URI and storage options for Lance."""
        if self.local:
            return self.uri, None
        return lance_location(self.uri)


@lru_cache(maxsize=64)
def _connect(base: str) -> object:
    """Return the file system of a scheme, host and options, created once per process. Raises ParameterError for an unknown scheme."""
    import pyarrow.fs

    try:
        return pyarrow.fs.FileSystem.from_uri(base)[0]
    except pa.ArrowInvalid as error:
        scheme = urlsplit(base).scheme
        fsspec = require("fsspec", extra="ray")
        if scheme not in fsspec.available_protocols():
            raise ParameterError(
                f"Got a URL of scheme {scheme!r} ({error}); expected file, s3, gs, abfs, hdfs or one that fsspec knows. Pass a URL with one of these."
            ) from None
        return pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(fsspec.filesystem(scheme)))


def _resolve(uri: str) -> tuple[Any, str]:
    """Return the file system and the path in it."""
    import pyarrow.fs

    if not is_url(uri):
        return _local(), uri
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
    if isinstance(filesystem, pyarrow.fs.LocalFileSystem):
        return filesystem, parts.path
    bucket = parts.netloc.rsplit("@", 1)[-1]
    return filesystem, f"{bucket}{parts.path}".rstrip("/")


@lru_cache(maxsize=1)
def _local() -> object:
    import pyarrow.fs

    return pyarrow.fs.LocalFileSystem()


@contextmanager
def _file_errors(place: Place, doing: str) -> Iterator[None]:
    """Convert the errors of a file system to FileError or StorageError."""
    kind = FileError if doing in ("reading", "listing", "looking at") else StorageError
    try:
        yield
    except (FileError, StorageError):
        raise
    except FileNotFoundError as error:
        raise FileError(f"Got no file at {place.shown}; expected one. Check the path.") from error
    except (OSError, pa.ArrowException) as error:
        if isinstance(error, OSError) and is_refusal(error):
            raise kind(describe_refusal(error, f"while {doing} {place.shown}")) from error
        raise kind(
            f"Got an error while {doing} {place.shown} ({str(error)[:300]}); expected access. Check the URL, its endpoint_override and the "
            "credentials in the environment of every machine."
        ) from error
