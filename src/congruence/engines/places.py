"""Locations of data sets: local paths and object-store URLs, read and written in the same way on every machine."""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Iterator
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

__all__ = ["Place", "is_url"]

#: Bytes of an object that wait in memory before they go to a temporary file.
_SPOOL = 64 * 2**20

#: Bytes copied at a time.
_PIECE = 8 * 2**20


def is_url(path: str) -> bool:
    """Say whether a path names another machine's storage."""
    return "://" in path


@dataclass(frozen=True)
class Place:
    """A file or folder: an absolute local path, or a URL. Plain text, so that it can be sent to workers.

    Credentials come from each worker's own environment, as its cloud's libraries read them.

    Parameters
    ----------
    uri : str
        ``/data/part.parquet``, ``s3://bucket/folder?endpoint_override=http://localhost:9000``, ``gs://…``, ``abfs://…``, or another
        scheme that fsspec knows.
    """

    uri: str

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> Place:
        """Return the place that a user's path or URL names."""
        text = os.fspath(path)
        if text.startswith("file://"):
            text = text[len("file://") :]
        return cls(text.rstrip("/") if is_url(text) else os.path.abspath(text))

    @property
    def local(self) -> bool:
        """Whether it is on a file system that can rename."""
        return not is_url(self.uri)

    @property
    def name(self) -> str:
        """Last part of the path."""
        return urlsplit(self.uri).path.rsplit("/", 1)[-1] if not self.local else os.path.basename(self.uri)

    @property
    def shown(self) -> str:
        """The path for messages and records: without credentials and options."""
        if self.local:
            return self.uri
        parts = urlsplit(self.uri)
        return urlunsplit((parts.scheme, parts.netloc.rsplit("@", 1)[-1], parts.path, "", ""))

    def child(self, name: str) -> Place:
        """Return a place inside of this one."""
        return self._with(lambda path: f"{path.rstrip('/')}/{name}")

    def with_suffix(self, suffix: str) -> Place:
        """Return the place of this name with a suffix."""
        return self._with(lambda path: path.rstrip("/") + suffix)

    @property
    def parent(self) -> Place:
        """The folder that this place lies in."""
        return Place(os.path.dirname(self.uri)) if self.local else self._with(lambda path: path.rpartition("/")[0])

    def _with(self, change: Any) -> Place:
        if self.local:
            return Place(change(self.uri))
        parts = urlsplit(self.uri)
        return Place(urlunsplit(parts._replace(path=change(parts.path))))

    # ------------------------------------------------------------------ files

    def open(self) -> pa.NativeFile:
        """Open the file for reading at any position. Raises FileError."""
        filesystem, path = _resolve(self.uri)
        with _refusals(self, "reading"):
            return filesystem.open_input_file(path)

    def read(self) -> bytes | None:
        """Return the content of a small file; None if there is none. Raises FileError."""
        filesystem, path = _resolve(self.uri)
        with _refusals(self, "reading"):
            try:
                with filesystem.open_input_stream(path) as file:
                    content: bytes = file.read()
                    return content
            except FileNotFoundError:
                return None

    def exists(self) -> bool:
        """Say whether there is a file or folder; an object store has a folder where an object lies below it."""
        import pyarrow.fs

        filesystem, path = _resolve(self.uri)
        with _refusals(self, "looking at"):
            return bool(filesystem.get_file_info(path).type != pyarrow.fs.FileType.NotFound)

    def is_folder(self) -> bool:
        """Say whether there is a folder."""
        import pyarrow.fs

        filesystem, path = _resolve(self.uri)
        with _refusals(self, "looking at"):
            return bool(filesystem.get_file_info(path).type == pyarrow.fs.FileType.Directory)

    def files(self) -> dict[str, int]:
        """Return the sizes of all files below this folder by their path in it, sorted; none where there is no folder."""
        import pyarrow.fs

        filesystem, path = _resolve(self.uri)
        with _refusals(self, "listing"):
            found = filesystem.get_file_info(pyarrow.fs.FileSelector(path, allow_not_found=True, recursive=True))
        start = len(path.strip("/")) + 1  # some file systems give paths a slash that they were not asked with
        return {
            one.path.lstrip("/")[start:]: int(one.size) for one in sorted(found, key=lambda f: f.path) if one.is_file
        }

    @contextmanager
    def writing(self) -> Iterator[IO[bytes]]:
        """Yield a file whose content appears, complete, when the block ends without an error, and not otherwise.

        A local file is written under a temporary name and renamed. For an object store it waits on this machine first: what is put there
        by a block that failed would be a whole object with half of the content.

        Raises
        ------
        StorageError
            If the output cannot be written.
        """
        with _refusals(self, "writing"):
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
        """Write a small file, whole or not at all. Raises StorageError."""
        with self.writing() as file:
            file.write(content)

    def remove(self) -> None:
        """Remove a file or folder, if there is one. Raises StorageError."""
        import pyarrow.fs

        filesystem, path = _resolve(self.uri)
        with _refusals(self, "removing"):
            kind = filesystem.get_file_info(path).type
            if kind == pyarrow.fs.FileType.Directory:
                filesystem.delete_dir(path)
            elif kind == pyarrow.fs.FileType.File:
                filesystem.delete_file(path)

    def move_to(self, other: Place) -> None:
        """Rename a local folder to a free name. Raises StorageError."""
        with _refusals(self, "renaming"):
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
        """URI and storage options of a Lance data set here."""
        if self.local:
            return self.uri, None
        return lance_location(self.uri)


@lru_cache(maxsize=64)
def _connect(base: str) -> object:
    """Return the file system of a scheme, host and options, once a process."""
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
        scheme, bare = endpoint.split("://", 1)
        query["endpoint_override"], query["scheme"] = [bare.rstrip("/")], [scheme]
    # The bucket is part of what is asked for its region: one connection a bucket.
    base = urlunsplit((parts.scheme, parts.netloc, "", urlencode(query, doseq=True), ""))
    filesystem = _connect(base)
    if isinstance(filesystem, pyarrow.fs.LocalFileSystem):
        return filesystem, parts.path
    host = parts.netloc.rsplit("@", 1)[-1]
    return filesystem, f"{host}{parts.path}".rstrip("/")


@lru_cache(maxsize=1)
def _local() -> object:
    import pyarrow.fs

    return pyarrow.fs.LocalFileSystem()


@contextmanager
def _refusals(place: Place, doing: str) -> Iterator[None]:
    """Turn what a file system refuses into errors of ours."""
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
            f"Got a refusal while {doing} {place.shown} ({str(error)[:300]}); expected access. Check the URL, its endpoint_override and the "
            "credentials in the environment of every machine."
        ) from error
