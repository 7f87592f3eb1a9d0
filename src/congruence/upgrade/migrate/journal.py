"""The journal of a migration: a small file with its state, replaced atomically at each step."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from congruence._utils.atomic import atomic_path, locked
from congruence._version import __version__
from congruence.databases import Cursor, Stage
from congruence.errors import CorruptFileError, FileError, MigrationError
from congruence.upgrade.migrate.quantize import check_ranges

__all__ = ["PROGRESSIVE", "STATES", "Journal", "default_folder", "digest_of", "lock_folder", "make_folder"]

#: Possible states of a migration.
STATES = ("filling", "filled", "verified", "switched", "rolled back", "dropped")

#: Maximum size of a journal in bytes; apart from counts it contains at most a thousand ids.
_MOST_BYTES = 4 * 2**20

#: Maximum number of characters in the name of a database and table.
_MOST_PLACE = 4096

_NAME = "journal.json"

#: Folder next to the journal with the re-embedded rows.
PROGRESSIVE = "progressive"


def digest_of(content: Mapping[str, object]) -> str:
    """Return the SHA-256 of plain data, independent of the order of its keys."""
    text = json.dumps(content, sort_keys=True, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def default_folder(place: str) -> Path:
    """Return the default folder of a database's journal, in the current folder, named after the database without its password."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", place.rstrip("/").rsplit("/", 1)[-1]).strip("-")[:40] or "database"
    return Path(f"migration-{name}-{hashlib.sha256(place.encode()).hexdigest()[:8]}")


def make_folder(folder: Path) -> None:
    """Create the folder of a journal. Raises FileError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(
            f"Got a folder for the journal that cannot be created, {folder} ({error.strerror}); expected a writable path. Pass another path (journal=…)."
        ) from error


@dataclass
class Journal:
    """The state of a migration.

    Attributes
    ----------
    place : str
        The database, table and column, without credentials.
    map_digest : str
    dim : int
    element_type : str
    normalize, scale : bool
        Whether rows are scaled to unit norm after mapping, and before mapping.
    modality : str or None
        Modality of all rows, if no column states it.
    ranges, old_ranges : list or None
        int8 ranges of the new and the old vectors: smallest and largest value, each a number or a list with one number per component.
    state : str
        One of :data:`STATES`.
    cursor : Cursor or None
        Position at which the first pass continues.
    rows : int
        Number of rows that the first pass has written.
    resumed : int
        How often the first pass was resumed.
    sample : list of int or str
        Ids drawn uniformly from the rows of the first pass, for :meth:`~congruence.upgrade.migrate.Migration.verify`.
    passes : list of dict
        Results of the latest repair passes: numbers of rows, of rows written and removed, and checksum of the old vectors.
    verification, summary : dict
        Latest verification and summary; empty before the first.
    events : list of dict
        Time and description.
    version : str
        Version of congruence that began the migration.
    """

    place: str
    map_digest: str
    dim: int
    element_type: str
    normalize: bool
    scale: bool
    modality: str | None
    ranges: list[float | list[float]] | None = None
    old_ranges: list[float | list[float]] | None = None
    state: str = "filling"
    cursor: Cursor | None = None
    rows: int = 0
    resumed: int = 0
    sample: list[int | str] = field(default_factory=list)
    passes: list[dict[str, Any]] = field(default_factory=list)
    verification: dict[str, object] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    events: list[dict[str, str]] = field(default_factory=list)
    version: str = __version__

    def log(self, words: str) -> None:
        """Add an event with the current time."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self.events.append({"at": now, "what": words})

    def write(self, folder: Path) -> None:
        """Replace the journal in its folder. Raises StorageError."""
        content = asdict(self)
        with atomic_path(folder / _NAME, force=True) as temporary:
            temporary.write_text(
                json.dumps({**content, "digest": digest_of(content)}, indent=1) + "\n", encoding="utf-8"
            )

    @classmethod
    def read(cls, folder: Path) -> Journal | None:
        """Return the journal in a folder, or None if there is none.

        Raises
        ------
        CorruptFileError
            If the journal is damaged or was edited, or the file is not a journal.
        FileError
            If a file cannot be read.
        """
        path = folder / _NAME
        try:
            with path.open("rb") as file:
                raw = file.read(_MOST_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise FileError(
                f"Got a journal that cannot be read, {path} ({error.strerror}); expected one. Check the path and its permissions."
            ) from error
        try:
            if len(raw) > _MOST_BYTES:
                raise ValueError("too long")
            content = json.loads(raw.decode("utf-8"))
            digest = content.pop("digest")
            if digest != digest_of(content) or set(content) != set(cls.__dataclass_fields__):
                raise ValueError("wrong digest")
            journal = cls(**content)
            journal._check()
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
            raise CorruptFileError(
                f"Got a damaged or edited journal, {path}; expected one as congruence wrote it. Restore it, or remove the new vectors "
                "(discard) and begin again in another folder."
            ) from error
        return journal

    def _check(self) -> None:
        """Check that all values are valid. Raises ValueError."""
        kinds = {
            "place": str, "map_digest": str, "dim": int, "element_type": str, "normalize": bool, "scale": bool, "state": str, "rows": int,
            "resumed": int, "sample": list, "passes": list, "verification": dict, "summary": dict, "events": list, "version": str,
        }  # fmt: skip
        for name, kind in kinds.items():
            if type(getattr(self, name)) is not kind:
                raise ValueError(f"wrong type of {name}")
        if self.state not in STATES or self.dim < 1 or self.rows < 0 or not isinstance(self.modality, str | None):
            raise ValueError("invalid values")
        check_ranges(self.ranges, self.dim)
        check_ranges(self.old_ranges)
        if max(self.dim, self.rows, self.resumed) >= 2**63 or self.resumed < 0 or len(self.place) > _MOST_PLACE:
            raise ValueError("invalid values")
        if not all(_has(event, {"at": str, "what": str}) for event in self.events):
            raise ValueError("invalid events")
        if not all(_has(counts, {"rows": int, "written": int, "removed": int, "old": str}) for counts in self.passes):
            raise ValueError("invalid passes")
        cursor = self.cursor if isinstance(self.cursor, list) else [] if self.cursor is None else [self.cursor]
        if not all(_is_id(name) for name in (*self.sample, *cursor)):
            raise ValueError("invalid ids")

    def require_state(self, *states: str, to: str) -> None:
        """Raise MigrationError if the migration is in none of the states in which a step is possible."""
        if self.state not in states:
            raise MigrationError(
                f"Got a migration that is {self.state}; expected one that is {' or '.join(states)} in order to {to}. {_NEXT[self.state]}"
            )

    def sync(self, stage: Stage) -> None:
        """Update the state to that of the database; they differ if the process was killed after it changed one of them."""
        if stage is Stage.SWITCHED and self.state in ("verified", "rolled back"):
            self.state = "switched"
            self.log("found switched")
        elif stage is Stage.PREPARED and self.state == "switched":
            self.state = "rolled back"
            self.log("found rolled back")
        elif stage is Stage.UNTOUCHED and self.state == "switched":
            self.state = "dropped"
            self.log("found without the old vectors")
        elif stage is Stage.UNTOUCHED and self.state in ("filled", "verified", "rolled back"):
            self.state, self.cursor, self.rows, self.sample = "filling", None, 0, []
            self.log("found without new vectors: started again")
        elif stage is Stage.UNTOUCHED and self.state == "filling":
            self.cursor, self.rows, self.sample = None, 0, []


def _has(content: object, kinds: Mapping[str, type]) -> bool:
    """Return whether a value is a dict with exactly these keys and types of values."""
    return isinstance(content, dict) and {key: type(value) for key, value in content.items()} == dict(kinds)


def _is_id(value: object) -> bool:
    """Return whether a value can be an id or part of a cursor: a string, or a 64-bit integer, signed or unsigned."""
    return type(value) is str or (type(value) is int and -(2**63) <= value < 2**64)


#: What to do instead, by state.
_NEXT = {
    "filling": "Finish the run first (resume=True).",
    "filled": "Verify it first (verify).",
    "verified": "Switch it first (switch).",
    "switched": "Roll back first, or drop the old vectors.",
    "rolled back": "Verify and switch again, or discard the new vectors.",
    "dropped": "The migration is complete: remove the journal's folder.",
}


def lock_folder(folder: Path) -> AbstractContextManager[None]:
    """Lock a journal's folder for this run. Raises FileError if another run holds it."""
    return locked(
        folder,
        f"Got a migration that another run is working on ({folder}); expected it to be free. Wait for that run, or stop it.",
    )
