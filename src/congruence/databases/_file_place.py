"""What stands beside a file or folder of vectors during a migration, and how the two change places."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from congruence._utils.atomic import atomic_path
from congruence._utils.lock import locked
from congruence._utils.refusals import say_refusal
from congruence._utils.rename import exchange
from congruence.databases._base import Stage
from congruence.errors import CorruptFileError, FileError, MigrationError, StorageError

__all__ = ["EXCHANGES", "FilePlace", "Record", "fingerprint"]

#: Whether the system has one call that exchanges two names; some file systems refuse it all the same.
EXCHANGES = sys.platform in ("linux", "darwin")

_FORMAT, _FORMAT_VERSION = "congruence-migration", 1
_NAME = "migration.json"

#: Bytes read at the beginning, in the middle and at the end of a file to know it again.
_SAMPLE = 16 * 1024


def fingerprint(path: Path) -> str:
    """Return a digest by which a file, or a folder of files, is known again: names, sizes, and ranges of the contents.

    Raises
    ------
    FileError
        It cannot be read.
    """
    try:
        return _digest(path)
    except OSError as error:
        raise FileError(say_refusal(error, f"while reading {path}")) from error


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    files = sorted(one for one in path.rglob("*") if one.is_file()) if path.is_dir() else [path]
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
    """What a migration keeps beside the file it is about.

    Attributes
    ----------
    dim : int
    element_type : str
    note : dict
    rows : int
        Of the original, those without a vector too.
    original : str
        Fingerprint of what readers saw when it began.
    options : dict
        Where ids and modalities come from, for later steps that are not told.
    built : str or None
        Fingerprint of the complete new file or folder; None while it is not built or no longer up to date.
    switched : bool
        What the last switch or rollback left. It decides only where the new file is byte for byte the old one.
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
    """A file or folder, and the hidden folder beside it in which the new vectors are.

    The folder is ``.NAME.congruence``. In it, ``other/NAME`` is the complete new file before the switch and the original after it: what lies
    there is the one fact that says how far the migration is.

    Parameters
    ----------
    path : path-like
        What readers open; a link is followed.

    Raises
    ------
    FileError
        Nothing is there.
    StorageError
        What a killed switch left cannot be put in order.

    Attributes
    ----------
    path, folder, other : Path
        What readers open, the folder beside, and the file or folder in it that changes places with the first.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).resolve()
        self.folder = self.path.with_name(f".{self.path.name}.congruence")
        self.other = self.folder / "other" / self.path.name
        self._aside = self.folder / "aside"
        self._dropped = self.path.with_name(f".{self.path.name}.congruence-dropped")
        self._recover()
        if not self.path.exists():
            beside = f", or put back {self.other}" if self.other.exists() else ""
            raise FileError(f"Got no file or folder at {path}; expected one. Check the path{beside}.")

    def _recover(self) -> None:
        """Finish what was killed: a removal, or an exchange on a file system that needs several renames for it."""
        try:
            if self._dropped.is_dir():
                shutil.rmtree(self._dropped)
            if os.path.lexists(self._aside):
                with locked(
                    self.folder,
                    f"Got {self.path}, which another process switches now; expected it at rest. Try again when that is done.",
                ):
                    os.rename(self._aside, self.other if self.path.exists() else self.path)
        except OSError as error:
            raise StorageError(say_refusal(error, f"while putting {self.path} in order")) from error

    # ---- the record --------------------------------------------------------------------------------------------------

    def record(self) -> Record | None:
        """Return the record, or None where there is no migration. Raises CorruptFileError, FileError."""
        path = self.folder / _NAME
        try:
            told = json.loads(path.read_bytes())
            if told["format"] != _FORMAT or told["format_version"] != _FORMAT_VERSION:
                raise ValueError("another format")
            record = Record(**told)
            sizes = (record.dim, record.rows)
            if not all(type(one) is int and one > 0 for one in sizes) or record.element_type not in (
                "float32",
                "float16",
            ):
                raise ValueError("values that no record has")
            for words in (record.note, record.options):
                if not isinstance(words, dict) or not all(isinstance(one, str) for one in words.values()):
                    raise ValueError("words of another form")
            return record
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise FileError(say_refusal(error, f"while reading {path}")) from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CorruptFileError(
                f"Got a damaged record of a migration, {path} ({error}); expected one as this library writes it. "
                f"Restore it; {self.path} and what lies beside it are whole."
            ) from error

    def keep(self, record: Record) -> None:
        """Replace the record. Raises StorageError."""
        with atomic_path(self.folder / _NAME, force=True) as temporary:
            temporary.write_text(json.dumps(asdict(record), indent=1) + "\n", encoding="utf-8")

    def begin(self, record: Record) -> Path:
        """Make the folder, not yet under its name; :meth:`begun` gives it that. Raises StorageError."""
        made = self.path.with_name(f".{self.path.name}.congruence-begun")
        try:
            if made.exists():  # of a process that was killed here
                shutil.rmtree(made)
            (made / self.other.parent.name).mkdir(parents=True)
            (made / _NAME).write_text(json.dumps(asdict(record), indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise StorageError(say_refusal(error, f"while making a folder beside {self.path}")) from error
        return made

    def begun(self, made: Path) -> None:
        """Give the folder that :meth:`begin` made its name, in one step. Raises StorageError."""
        try:
            os.rename(made, self.folder)
        except OSError as error:
            raise StorageError(say_refusal(error, f"while making {self.folder}")) from error

    # ---- how far it is -----------------------------------------------------------------------------------------------

    def stage(self) -> Stage:
        """Return how far the migration is: switched, if the original lies beside."""
        record = self.record()
        if record is None:
            return Stage.UNTOUCHED
        if not self.other.exists() or fingerprint(self.other) != record.original:
            return Stage.BESIDE
        return Stage.SWITCHED if record.switched or fingerprint(self.path) != record.original else Stage.BESIDE

    def check_unchanged(self, record: Record) -> None:
        """Refuse to go on where others have written to the original. Raises MigrationError."""
        if fingerprint(self.path) != record.original:
            raise MigrationError(
                f"Got {self.path}, which was written to since the migration began; expected it unchanged. "
                "Discard the new vectors (discard), and begin again."
            )

    def swap(self, switched: bool) -> None:
        """Let what readers open and what lies beside change places.

        One system call does it where the system and the file system know one (Linux, macOS, local disks). Elsewhere there are two
        renames, between which readers find nothing: the next to open it undoes a switch that was killed there.

        Raises
        ------
        StorageError
            If the output cannot be written.
        """
        try:
            if not exchange(self.path, self.other):
                with locked(
                    self.folder, f"Got {self.path}, which another process switches; expected one. Wait for it."
                ):
                    os.rename(self.path, self._aside)
                    os.rename(self.other, self.path)
                    os.rename(self._aside, self.other)
            for folder in (self.path.parent, self.other.parent):
                _sync(folder)
        except OSError as error:
            raise StorageError(say_refusal(error, f"while switching {self.path}")) from error
        record = self.record()
        assert record is not None
        record.switched = switched
        self.keep(record)

    def remove(self) -> None:
        """Remove the folder beside and all in it; in one step it no longer counts. Raises StorageError."""
        try:
            if self.folder.is_dir():
                os.rename(self.folder, self._dropped)
                shutil.rmtree(self._dropped)
        except OSError as error:
            raise StorageError(say_refusal(error, f"while removing {self.folder}")) from error


def _sync(folder: Path) -> None:
    with suppress(OSError):  # some systems cannot sync a folder
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
