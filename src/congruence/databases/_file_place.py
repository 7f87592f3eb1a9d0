"""The hidden folder next to a file or folder of vectors during a migration, and the exchange of the old and the new version."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from congruence._utils.atomic import atomic_path, exchange, locked
from congruence._utils.refusals import describe_refusal
from congruence.databases._base import Stage
from congruence.errors import CorruptFileError, FileError, MigrationError, StorageError

__all__ = ["EXCHANGES", "FilePlace", "Record", "fingerprint"]

#: Whether the operating system can exchange two names in one call; some file systems still do not support it.
EXCHANGES = sys.platform in ("linux", "darwin")

_FORMAT, _FORMAT_VERSION = "congruence-migration", 1
_NAME = "migration.json"

#: Bytes read at the beginning, in the middle and at the end of a file for its fingerprint.
_SAMPLE = 16 * 1024


def fingerprint(path: Path) -> str:
    """Return a digest that identifies a file or a folder of files, from names, sizes and samples of the contents.

    Raises
    ------
    FileError
        If a file cannot be read.
    """
    try:
        return _digest(path)
    except OSError as error:
        raise FileError(describe_refusal(error, f"while reading {path}")) from error


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    for file in files:
        size = file.stat().st_size
        name = file.relative_to(path).as_posix() if file is not path else ""
        digest.update(f"{name}\0{size}\0".encode("utf-8", "surrogateescape"))
        with open(file, "rb", buffering=0) as stream:
            for start in sorted({0, max(0, size // 2 - _SAMPLE), max(0, size - _SAMPLE)}):
                stream.seek(start)
                digest.update(stream.read(_SAMPLE))
    return digest.hexdigest()


@dataclass
class Record:
    """State of a migration of a file, stored in the hidden folder next to it.

    Attributes
    ----------
    dim : int
    element_type : str
    note : dict
    rows : int
        Number of rows of the original, including those without a vector.
    original : str
        Fingerprint of the file that readers saw when the migration began.
    options : dict
        Sources of ids and modalities, for later steps that are called without them.
    built : str or None
        Fingerprint of the complete new file or folder; None while it is not built or is out of date.
    switched : bool
        Whether the last exchange was a switch. Used only if the new file and the old one are identical, so that fingerprints cannot tell.
    """

    dim: int
    element_type: str
    note: dict[str, str]
    rows: int
    original: str
    options: dict[str, str] = field(default_factory=dict)
    built: str | None = None
    switched: bool = False
    format: str = field(default=_FORMAT)
    format_version: int = field(default=_FORMAT_VERSION)


class FilePlace:
    """A file or folder of vectors, and the hidden folder next to it that contains the new vectors.

    The hidden folder is ``.NAME.congruence``. In it, ``other/NAME`` is the complete new file before the switch and the original after it;
    which of the two it is determines the state of the migration.

    Parameters
    ----------
    path : path-like
        Path that readers open; symbolic links are followed.

    Raises
    ------
    FileError
        If nothing exists at the path, or another process is switching it.
    StorageError
        If an interrupted switch or removal cannot be completed or undone.

    Attributes
    ----------
    path, folder, other : Path
        Path that readers open, the hidden folder next to it, and the file or folder in it that is exchanged with the first.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).resolve()
        self.folder = self.path.with_name(f".{self.path.name}.congruence")
        self.other = self.folder / "other" / self.path.name
        #: Path of the original while files are exchanged by several renames.
        self._renamed = self.folder / "aside"
        self._dropped = self.path.with_name(f".{self.path.name}.congruence-dropped")
        self._recover()
        if not self.path.exists():
            hint = f", or put back {self.other}" if self.other.exists() else ""
            raise FileError(f"Got no file or folder at {path}; expected one. Check the path{hint}.")

    def _recover(self) -> None:
        """Complete an interrupted removal, and undo or complete an interrupted exchange on a file system that needs several renames for it."""
        try:
            if self._dropped.is_dir():
                shutil.rmtree(self._dropped)
            if os.path.lexists(self._renamed):
                with locked(
                    self.folder,
                    f"Got {self.path}, which another process is switching; expected no other process. Try again when it has finished.",
                ):
                    os.rename(self._renamed, self.other if self.path.exists() else self.path)
        except OSError as error:
            raise StorageError(
                describe_refusal(error, f"while repairing an interrupted switch or removal of {self.path}")
            ) from error

    # ---- the record --------------------------------------------------------------------------------------------------

    def record(self) -> Record | None:
        """Return the record, or None if there is no migration. Raises CorruptFileError, FileError."""
        path = self.folder / _NAME
        try:
            facts = json.loads(path.read_bytes())
            if facts["format"] != _FORMAT or facts["format_version"] != _FORMAT_VERSION:
                raise ValueError("another format")
            record = Record(**facts)
            if not all(type(size) is int and size > 0 for size in (record.dim, record.rows)):
                raise ValueError("invalid values")
            if record.element_type not in ("float32", "float16"):
                raise ValueError("invalid values")
            for texts in (record.note, record.options):
                if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
                    raise ValueError("an invalid note or invalid options")
            return record
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise FileError(describe_refusal(error, f"while reading {path}")) from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CorruptFileError(
                f"Got a damaged record of a migration, {path} ({error}); expected one written by this library. "
                f"Restore it from a backup; {self.path} and the vectors next to it are intact."
            ) from error

    def keep(self, record: Record) -> None:
        """Replace the record. Raises StorageError."""
        with atomic_path(self.folder / _NAME, force=True) as temporary:
            temporary.write_text(json.dumps(asdict(record), indent=1) + "\n", encoding="utf-8")

    def begin(self, record: Record) -> Path:
        """Create the folder under a temporary name, which :meth:`publish` replaces by the final one. Raises StorageError."""
        folder = self.path.with_name(f".{self.path.name}.congruence-begun")
        try:
            if folder.exists():  # left by a process that was killed here
                shutil.rmtree(folder)
            (folder / self.other.parent.name).mkdir(parents=True)
            (folder / _NAME).write_text(json.dumps(asdict(record), indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise StorageError(describe_refusal(error, f"while creating a folder next to {self.path}")) from error
        return folder

    def publish(self, folder: Path) -> None:
        """Rename the folder that :meth:`begin` created to its final name, atomically. Raises StorageError."""
        try:
            os.rename(folder, self.folder)
        except OSError as error:
            raise StorageError(describe_refusal(error, f"while creating {self.folder}")) from error

    # ---- state and switch --------------------------------------------------------------------------------------------

    def stage(self) -> Stage:
        """Return the state of the migration: switched if the original is in the hidden folder."""
        record = self.record()
        if record is None:
            return Stage.UNTOUCHED
        if not self.other.exists() or fingerprint(self.other) != record.original:
            return Stage.PREPARED
        return Stage.SWITCHED if record.switched or fingerprint(self.path) != record.original else Stage.PREPARED

    def check_unchanged(self, record: Record) -> None:
        """Raise MigrationError if the original has changed since the migration began."""
        if fingerprint(self.path) != record.original:
            raise MigrationError(
                f"Got {self.path}, which was written to since the migration began; expected it unchanged. "
                "Discard the new vectors (discard), and run the migration again."
            )

    def swap(self, switched: bool) -> None:
        """Exchange the file that readers open and the one in the hidden folder.

        A single system call does this if the operating system and the file system support it (Linux, macOS, local disks). Otherwise
        there are several renames. Between them readers find no file for a moment; if the process is killed there, the next
        :class:`FilePlace` for the path repairs this.

        Parameters
        ----------
        switched : bool
            Whether readers see the new version afterward.

        Raises
        ------
        FileError
            If another process is switching the same file.
        StorageError
            If the files cannot be renamed.
        """
        try:
            if not exchange(self.path, self.other):
                with locked(
                    self.folder,
                    f"Got {self.path}, which another process is switching; expected no other process. Wait for it to finish.",
                ):
                    os.rename(self.path, self._renamed)
                    os.rename(self.other, self.path)
                    os.rename(self._renamed, self.other)
            for folder in (self.path.parent, self.other.parent):
                _sync(folder)
        except OSError as error:
            raise StorageError(describe_refusal(error, f"while switching {self.path}")) from error
        record = self.record()
        assert record is not None
        record.switched = switched
        self.keep(record)

    def remove(self) -> None:
        """Remove the hidden folder and its contents; it is renamed first, which ends the migration atomically. Raises StorageError."""
        try:
            if self.folder.is_dir():
                os.rename(self.folder, self._dropped)
                shutil.rmtree(self._dropped)
        except OSError as error:
            raise StorageError(describe_refusal(error, f"while removing {self.folder}")) from error


def _sync(folder: Path) -> None:
    with suppress(OSError):  # some systems cannot sync a folder
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
