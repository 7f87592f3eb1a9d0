"""What every database of vectors does in a migration, and what several backends share."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeAlias, TypeVar
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import numpy as np
import pyarrow as pa

from congruence._utils.ahead import run_ahead
from congruence._utils.engine import Engine
from congruence._utils.validation import check_choice
from congruence.databases import _refusals as refusals
from congruence.embeddings import Space
from congruence.errors import (
    CongruenceError,
    DatabaseError,
    DatabaseUnavailableError,
    IdError,
    MigrationError,
    ParameterError,
)
from congruence.io import SPACE_KEY, read_space

BATCH = 4096  # default number of rows per block of a scan

#: Maximum time to build an index, and interval between checks of its state, in seconds.
INDEX_SECONDS, LOOK_SECONDS = 3600.0, 0.5

#: Suffixes of a second column or collection: new vectors before the switch, old ones after it.
NEW, OLD = "__congruence_new", "__congruence_old"

_ELEMENT_BITS = {"float32": 32, "float16": 16, "int8": 8, "binary": 1}

MARK_KEY = "congruence.migration"  # metadata key of the data that a migration stores with the new vectors

#: Which vectors: those from before the migration ("old"), or the mapped ones ("new"), before and after the switch.
VectorSide: TypeAlias = Literal["old", "new"]

#: Position of a scan: plain data that JSON can represent, meaningful only to the database that returned it.
Cursor: TypeAlias = "int | str | list[int | str]"

Name: TypeAlias = str | None  # name of a table, column or file, or a condition, that users may leave out

_T = TypeVar("_T")


# ---- addresses -------------------------------------------------------------------------------------------------------

#: Names of parameters of a URL or connection string whose values are never shown.
_SECRET = re.compile(r"pass(?!file)|pwd|secret|token|api[_-]?key|credential", re.IGNORECASE)

_HIDDEN = "***"

#: What clients say of a full disk.
_FULL = re.compile(r"no space left|disk is full|disk quota|not enough (disk )?space", re.IGNORECASE)


@dataclass(frozen=True)
class Address:
    """Address of a database, as given and as shown in messages, without the secrets, which ``hide`` removes."""

    text: str = field(repr=False)  # a URL or a path; never printed
    shown: str
    scheme: str  # in lower case; empty for a path
    secrets: tuple[str, ...] = field(default=(), repr=False)

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse a URL or path; any string is accepted."""
        match = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", text)
        if match is None:
            return cls(text, text, "")
        scheme = match[1].lower()
        try:
            parts = urlsplit(text)
            password, query = parts.password, parse_qsl(parts.query, keep_blank_values=True)
        except ValueError:  # e.g. an unclosed bracket: no part of the address is known to be safe to show
            credentials = re.match(r"[^:]*://[^:@/]*:(.*)@", text)
            return cls(text, f"{scheme}://{_HIDDEN}", scheme, (text, *([credentials[1]] if credentials else [])))
        secrets = [value for name, value in query if _SECRET.search(name) and value]
        netloc = parts.netloc
        if password is not None:
            user, _, host = netloc.rpartition("@")
            netloc = f"{user.partition(':')[0]}:{_HIDDEN}@{host}"
            secrets += [password, unquote(password), quote(unquote(password), safe="")]
        hidden = [(name, _HIDDEN if _SECRET.search(name) else value) for name, value in query]
        # Not with urlunsplit, which omits the slashes of an empty host.
        shown = f"{parts.scheme}://{netloc}{parts.path}{'?' if hidden else ''}{urlencode(hidden, safe='*/')}"
        return cls(text, shown, scheme, tuple(dict.fromkeys(filter(None, secrets))))

    def hide(self, text: str) -> str:
        """Replace the secrets in a text, such as a client's error message, by ``***``."""
        return hide_secrets(text.replace(self.text, self.shown), self.secrets)


def hide_secrets(text: str, secrets: tuple[str, ...]) -> str:
    """Replace each secret in a text by ``***``, except those of one or two characters, which would match everywhere."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) > 2:
            text = text.replace(secret, _HIDDEN)
    return text


def with_key(address: Address, variable: str) -> tuple[Address, str | None]:
    """Return an address that hides a key, and the key, from an environment variable; the address may have no secret."""
    if address.secrets:
        raise ParameterError(
            f"{address.shown} has a secret in it, and addresses end up in shell histories and logs.",
            f"Set the environment variable {variable} instead.",
        )
    key = os.environ.get(variable) or None
    return (address if key is None else replace(address, secrets=(key,))), key


def folder_in(address: Address) -> Path:
    """Return the path of a folder or file in an address ``scheme://path``."""
    parts = urlsplit(address.text)
    return Path(unquote(f"{parts.netloc}{parts.path}")).expanduser()


# ---- interface -------------------------------------------------------------------------------------------------------


class Stage(StrEnum):
    """State of the migration of a column, as shown by the database itself."""

    UNTOUCHED = "untouched"  # there are only old vectors
    PREPARED = "prepared"  # some or all new vectors are stored next to the old ones, which readers see
    SWITCHED = "switched"  # readers see the new vectors; the old ones are kept


@dataclass(frozen=True)
class Capabilities:
    """Capabilities of a kind of database."""

    container: str  # where the new vectors are written: column, named vector, table, collection or file
    #: Whether a reader sees either all old or all new vectors, so that a kill cannot leave an intermediate state.
    atomic_switch: bool = True
    #: Whether other clients may add, change and delete rows while the new vectors are written.
    concurrent_writes: bool = True
    #: Whether deleting a row also deletes its new vector, because both are in the same row.
    follows_deletes: bool = False
    searches: bool = True  # whether the database can search (``Database.search``)
    #: Whether new vectors can be written while readers see them, as when rows are re-embedded batch by batch.
    writes_after_switch: bool = True
    #: Whether several processes can read and write at the same time, each a range of rows; the database can be pickled.
    shared: bool = False
    filters: str = ""  # language of the condition that selects rows (``rows``); empty if partial runs are not possible
    #: The types, among float32, float16, int8 and binary, in which new vectors can be stored.
    element_types: tuple[str, ...] = ("float32",)


@dataclass(frozen=True)
class DatabaseInfo:
    """Description of the vectors to be migrated."""

    place: str  # the database and table, without credentials
    rows: int  # number of rows with a vector that satisfy the condition (``rows``)
    dim: int
    element_type: str = "float32"  # float32, float16, int8 or binary
    rows_without: int = 0  # number of rows without a vector; nothing is written for them
    distance: str | None = None  # cosine, dot or l2: the distance of the index, or of the column if it declares one
    index: str | None = None  # short description of the index over the old vectors: kind and parameters
    id_type: str = "text"  # int, text or uuid
    space: Space = field(default_factory=Space)  # model, modality and norm, as far as the database stores them


class Block(NamedTuple):
    """A block of rows from a scan, which continues after ``cursor``.

    ``ids`` are int64, uint64 or large_string, shape (b,), UUIDs as text. ``vectors`` are float32, shape (b, dim),
    C-contiguous: int8 values are whole numbers from -128 to 127, and bits are 1 and -1. ``modalities`` are
    large_string, shape (b,).
    """

    ids: pa.Array
    vectors: np.ndarray
    modalities: pa.Array | None
    cursor: Cursor


class PairedBlock(NamedTuple):
    """A block of rows with old vectors, shape (b, dim), and new ones, (b, dim_new), zeros unless ``has_new``."""

    ids: pa.Array
    old: np.ndarray
    new: np.ndarray
    has_new: np.ndarray
    modalities: pa.Array | None


class NewBlock(NamedTuple):
    """A block of rows with new vectors, shape (b, dim_new): those that readers see after the switch.

    ``has_old`` says which have an old vector, and ``same`` which have the fields of the row with the old vector.
    """

    ids: pa.Array
    vectors: np.ndarray
    has_old: np.ndarray
    same: np.ndarray


#: Function from a block of rows with both vectors to a mask of the rows to write, shape (b,), and the new vectors of
#: these rows.
Change: TypeAlias = Callable[[PairedBlock], tuple[np.ndarray, np.ndarray] | None]


class RowRange(NamedTuple):
    """A range of rows, the unit of work of a pass; what ``start`` and ``stop`` count depends on the database."""

    name: str  # for messages
    start: int = 0
    stop: int | None = None  # excluded; None for all following rows

    @classmethod
    def numbered(cls, unit: str, start: int, stop: int) -> RowRange:
        """Return a range of rows or of other units that are numbered from 0."""
        return cls(f"{unit} {start} to {stop - 1}", start, stop)


#: Description, as plain data, of a file with new vectors that is not yet part of the database.
WrittenFile: TypeAlias = dict[str, Any]


ALL_STEPS = ("run", "switch", "rollback", "drop-old")  # all steps that a plan predicts

#: The stage at which a step is taken, and the steps whose obstacles it refuses: it must not lead where none goes on.
STEPS = {
    "switch": (Stage.PREPARED, ("switch", "rollback", "drop-old")),
    "discard": (Stage.PREPARED, ("discard",)),
    "rollback": (Stage.SWITCHED, ("rollback",)),
    "drop-old": (Stage.SWITCHED, ("drop-old",)),
}


class NewVectors(NamedTuple):
    """What ``prepare`` made: width, element type, and the note that it stored with the new vectors."""

    dim: int
    element_type: str
    note: dict[str, str]

    def space(self, old: Space) -> Space:
        """Return the space of new vectors in the place of those of a space; unknown if that is."""
        if old == Space():
            return old
        return Space(self.note.get("model") or None, self.note.get("revision"), old.modality, self.dim)


class Database(ABC):
    """Vectors in a database that is open for a migration; a context manager.

    The options are those of ``congruence.databases.open_database``. For each subclass
    ``tests/databases/database_contract.py`` checks that the old vectors, other columns and ids stay until ``drop_old``;
    that each method can be repeated, also after a kill, when ``stage`` reports the true state; and that names are
    quoted in statements. No message and no attribute contains a password or key.
    """

    kind: ClassVar[str]  # name in ``congruence.databases.DATABASES``
    capabilities: Capabilities
    #: Types of the client's errors that are worth a retry after a pause.
    transient: tuple[type[Exception], ...] = (ConnectionError, TimeoutError)
    searches_by: ClassVar[str | None] = None  # distance of a search where neither the column nor an index declares one
    #: Whether the first pass goes by ranges, and knows which rows are written. Otherwise it scans, and is resumed after
    #: a cursor.
    by_ranges: ClassVar[bool] = False
    #: Whether a scan may pass over rows while others are written, as these move.
    rows_move: ClassVar[bool] = False
    _address: Address  # without its secrets
    _subject: Any  # the table, collection or file, for messages
    _folder: Path | None = None  # with the database's files, if they are on this machine
    _rows: Any = None  # condition that selects rows, as the backend uses it
    engine: Engine | None = None  # that may write new files; set by a migration
    condition: Name = None  # that selects rows, as the user wrote it
    #: Maps a block of old vectors; set by a migration for the rows that still change while a database is switched.
    rest: Callable[[Block], np.ndarray] | None = None
    #: Whether a rollback may leave rows that are written meanwhile without an old vector; set by a migration.
    leaves_bare = True
    #: Whether the rows that a condition leaves out may have vectors of other widths, which the database itself copies.
    mixes_widths: bool = False

    def __init__(
        self,
        address: Address,
        *,
        table: Name = None,
        column: Name = None,
        ids: Name = None,
        modality_column: Name = None,
        rows: Name = None,
    ) -> None:
        self._address, self.condition = address, rows
        try:
            self._connect(address, table, column, ids, modality_column, rows)
            self.stage()  # refuses what has a name of ours, and no migration created
        except BaseException:
            with suppress(AttributeError):  # of what was not opened
                self.close()
            raise

    def _connect(self, address: Address, table: Name, column: Name, ids: Name, modality: Name, rows: Name) -> None:
        """Open the database, and find the table and its columns; ``close`` is called after an error."""
        raise NotImplementedError

    def _translate(self, error: Exception) -> CongruenceError | None:
        """Return this library's error for an error of the client; None if the exception is a bug."""
        return None

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Translate the client's errors."""
        try:
            yield
        except CongruenceError:
            raise
        except BaseException as error:
            if type(error).__name__ == "PanicException":  # of a client in Rust, and no Exception
                raise refusals.refusal("damaged", self._address.shown, str(error)[:500]) from None
            if not isinstance(error, Exception):
                raise
            if _FULL.search(str(error)):
                raise refusals.refusal("full disk", self._address.shown, self._address.hide(str(error))) from error
            ours = self._translate(error)
            if ours is None:
                raise
            raise ours from error

    def _call(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a method of the client, and translate its errors."""
        with self._errors():
            return call(*args, **kwargs)

    @abstractmethod
    def info(self) -> DatabaseInfo:
        """Return a description of the old vectors."""

    def identify(self, place: str) -> str:
        """Return a place, as in ``DatabaseInfo``, as it is called by every user and from every working folder."""
        scheme, _, rest = place.rpartition("://")
        if scheme and self._folder is None:
            return f"{scheme}://{re.sub(r'^[^/?# ]*@', '', rest)}"
        return f"{scheme}{'://' if scheme else ''}{os.path.realpath(os.path.expanduser(rest))}"

    def free_bytes(self) -> int | None:
        """Return the free bytes on the database's disk, if it is on this machine."""
        return None if self._folder is None else shutil.disk_usage(self._folder).free

    def bytes_needed(self, info: DatabaseInfo, dim: int, element_type: str) -> int:
        """Return the bytes that a migration takes on the database's disk at most; measured by ``bench_migrate.py``."""
        return info.rows * bytes_a_row(dim, element_type)

    def version(self) -> object | None:
        """Return a value that differs from an earlier one of this object if another client has written in between.

        What this object itself wrote may change it, too. None: the database cannot tell.
        """
        return None

    @abstractmethod
    def stage(self) -> Stage:
        """Return the state of the migration, read from the database now."""

    @property
    def bare_rows(self) -> bool:
        """Whether a row may be without a vector, as one that is added after the switch is after a rollback."""
        return False

    @property
    def exact(self) -> bool:
        """Whether the old vectors are read as they are stored: float64 is read as float32."""
        return True

    def note(self) -> Mapping[str, str]:
        """Return the note that ``prepare`` stored with the new vectors; empty if there is none."""
        return {} if self.stage() is Stage.UNTOUCHED else self._made().note

    @abstractmethod
    def scan(self, side: VectorSide = "old", *, after: Cursor | None = None, batch: int = BATCH) -> Iterator[Block]:
        """Yield the rows that have a vector, each once, in an order that is stable while no client writes."""

    @abstractmethod
    def fetch(self, ids: pa.Array, side: VectorSide = "old") -> Block:
        """Return the rows of these ids that exist and have a vector, in any order."""

    @abstractmethod
    def count(self, side: VectorSide = "old") -> int:
        """Return how many rows have a vector."""

    def unmapped(self, *, after: Cursor | None = None, batch: int = BATCH) -> Iterator[Block]:
        """Yield old rows as ``scan`` does; if ``rows_move``, only those without a new vector."""
        return self.scan("old", after=after, batch=batch)

    def spread(self, rows: int, n: int) -> Iterator[Block]:
        """Yield at least ``n`` of about ``rows`` old rows from all over: tables are often sorted."""
        step, seen = max(rows // n, 1), 0
        for block in self.scan("old"):
            picked = np.arange(-seen % step, len(block.ids), step)
            seen += len(block.ids)
            kinds = None if block.modalities is None else block.modalities.take(pa.array(picked))
            yield block._replace(ids=block.ids.take(pa.array(picked)), vectors=block.vectors[picked], modalities=kinds)

    def without_condition(self) -> Self:
        """Return this database, on the same connection, with all rows selected."""
        if self._rows is None:
            return self
        self.flush()
        other = copy(self)
        other._rows = None
        return other

    def repeated_ids(self) -> list[str]:
        """Return up to ten ids that several rows have; empty if the database itself prevents repeated ids."""
        return []

    @abstractmethod
    def write(self, ids: pa.Array, vectors: np.ndarray) -> None:
        """Store new vectors (b, dim), as in a ``Block``, of rows from ``scan``; deleted rows are skipped."""

    def rehearse(self, ids: pa.Array, vectors: np.ndarray, element_type: str) -> Iterator[tuple[str, str, str]]:
        """Try the whole migration with some rows, undo it, and yield checks of a plan: name, outcome and details."""
        return iter(())

    def time_write(self, vectors: np.ndarray, element_type: str) -> float | None:
        """Return the seconds that writing vectors, shape (b, dim), to a temporary copy takes; None if there is none."""
        return None

    @abstractmethod
    def delete(self, ids: pa.Array) -> None:
        """Remove the new vectors of rows that other clients have deleted from the old side."""

    def as_stored(self, vectors: np.ndarray) -> np.ndarray:
        """Return new vectors, shape (b, dim), as they will be read back, up to rounding: some databases scale them."""
        return vectors

    def flush(self) -> None:  # noqa: B027 - most write at once
        """Make everything written so far durable, so that killing the process loses none of it."""

    def build_index(self) -> str | None:
        """Build an index over the new vectors like the one over the old vectors; return a description, or None."""
        return None

    def search(self, queries: np.ndarray, k: int, side: VectorSide = "new") -> list[pa.Array]:
        """Return the ids of the ``k`` nearest rows of each query (q, dim), as in a block, by the database's search."""
        raise ParameterError(f"A search of {self.kind} has no index to use.", "Search the vectors that scan returns.")

    # ---- the steps of a migration, from what a backend provides ------------------------------------------------------

    @abstractmethod
    def _made(self) -> NewVectors:
        """Return what ``prepare`` made; called only if there are new vectors."""

    @abstractmethod
    def _create(self, new: NewVectors) -> None:
        """Create the column, table, collection or file for the new vectors, and store their description."""

    @abstractmethod
    def _show_new(self) -> None:
        """Make readers see the new vectors; they see the old ones."""

    @abstractmethod
    def _show_old(self) -> None:
        """Make readers see the old vectors; they see the new ones."""

    @abstractmethod
    def _remove_old(self) -> None:
        """Remove the old vectors, and the description of the new ones, which readers see."""

    @abstractmethod
    def _remove_new(self) -> None:
        """Remove the new vectors, which readers do not see, with their description."""

    def _change(self, change: Callable[[], _T]) -> _T:
        """Run a function that reads the state and changes it: in a transaction, or again after a conflict."""
        return self._call(change)

    def _complete(self) -> None:  # noqa: B027 - most need nothing
        """Complete what ``prepare`` made, which a kill may have interrupted."""

    def obstacles(self, new: NewVectors, steps: Collection[str] = ALL_STEPS) -> list[tuple[str, str]]:
        """Return what stands in the way of the steps that are left, each with its step; nothing is changed.

        Those of other ``steps`` need not be found.
        """
        return []

    def check_step(self, step: str) -> None:
        """Raise MigrationError if what others made since the run stands in the way of a step; nothing is changed."""
        at, asked = STEPS[step]
        if self.stage() is at:
            found = [one for one in self.obstacles(self._made(), asked) if one[0] in asked]
            steps, words = (sep.join(dict.fromkeys(one[k] for one in found)) for k, sep in enumerate((", ", "; ")))
            refusals.refuse(found, "in the way", self._subject, found=words, steps=steps)

    def check(self, new: NewVectors) -> None:
        """Raise an error if a name, a setting or a right stands in the way of all steps; nothing is changed."""
        if self._folder is not None:
            refusals.check_writable(self._folder)

    def check_unchanged(self) -> None:  # noqa: B027 - rows that others change are repaired, except in files
        """Raise MigrationError if others have written what no later step can repair."""

    def changed_since_switch(self) -> bool:
        """Return whether others may have written rows since the switch; only files can tell without reading all."""
        return True

    def foresee(self, obstacles: Sequence[tuple[str, str]], back: bool) -> Iterator[tuple[str, str, str]]:
        """Yield what will become of each later step, as checks of a plan; ``back``: whether the map has an inverse."""
        kept = ["keep"] * self.bare_rows + ["map-back"] * back
        files = not self.capabilities.writes_after_switch
        switch = f"in {'one step' if self.capabilities.atomic_switch else 'several steps'} for readers"
        if not self.capabilities.concurrent_writes:
            switch += "; refused if another program has written since the run"
        rollback = f"rows of {self._subject} written after the switch stay with --new-rows {' or '.join(kept)}"
        if files or not kept:
            why = "it exchanges whole files" if files else "no row may be without a vector, and the map has no inverse"
            rollback = f"refused once a row of {self._subject} was written after the switch: {why}"
        drop = "refused while rows have an old vector only" if self.bare_rows else "the old vectors are removed"
        for step, possible in (("switch", switch), ("rollback", rollback), ("drop-old", drop)):
            against = "; ".join(words for name, words in obstacles if name == step)
            yield step, "bad" if against else "good", f"the table has {against}" if against else possible

    def _missing(self) -> int:
        """Return how many rows, selected or not, have an old vector and no new one: readers would lose it."""
        everything = self.without_condition()
        return everything.count("old") - sum(int(block.has_old.sum()) for block in everything.scan_new())

    def _losing(self) -> int:
        """Return how many of the rows that readers see after the switch have an old vector and no new one."""
        return sum(int(seen.sum()) for _, seen in self.without_condition().without_new())

    def prepare(self, dim: int, element_type: str = "float32", note: Mapping[str, str] | None = None) -> None:
        """Create the column, table, collection or file for the new vectors, next to the old ones.

        Raises MigrationError if there are already new vectors with another width, element type or note, and
        DatabaseError if something stands in the way of a later step.
        """
        check_choice(element_type, self.capabilities.element_types, "element_type")
        wanted = NewVectors(int(dim), element_type, {str(key): str(value) for key, value in (note or {}).items()})

        def create() -> None:
            stage = self.stage()
            refusals.refuse(stage is Stage.SWITCHED, "switched", self._subject)
            if stage is Stage.UNTOUCHED:
                self.check(wanted)
                against = "; ".join(words for _, words in self.obstacles(wanted))
                refusals.refuse(against, "obstacles", self._subject, found=against)
                self._create(wanted)
            elif (made := self._made()) != wanted:
                have, want = (f"{dim} × {kind} with the note {note}" for dim, kind, note in (made, wanted))
                raise MigrationError(
                    f"{self._subject} already has new vectors, of another map or other settings: {have}, not {want}.",
                    "Discard them first.",
                )
            self._complete()

        self._change(create)

    def switch(self) -> None:
        """Make readers see the new vectors under the name of the old ones. Does nothing if readers already see them."""
        self.flush()

        def show() -> None:
            self._complete()
            refusals.refuse((n := self._missing()) > 0, "missing", self._subject, n=n)
            self._show_new()

        self._take_step("switch", show, (Stage.UNTOUCHED, "untouched"))

    def rollback(self) -> None:
        """Make readers see the old vectors again, bit for bit; the new ones are kept. Does nothing if they see them."""
        self.flush()
        self._take_step("rollback", self._show_old)

    def drop_old(self) -> None:
        """Remove the old vectors after the switch, for good; refused if rows would lose their only one."""
        self.flush()

        def remove() -> None:
            refusals.refuse(n := self._losing(), "losing", self._subject, n=n)
            self._remove_old()

        self._take_step("drop-old", remove, (Stage.UNTOUCHED, "not switched"), (Stage.PREPARED, "not switched"))

    def discard(self) -> None:
        """Remove the new vectors before the switch, restoring the original state. Raises MigrationError after it."""
        self._take_step("discard", self._remove_new, (Stage.SWITCHED, "switched"))

    def _take_step(self, step: str, take: Callable[[], None], *refused: tuple[Stage, str]) -> None:
        """Take a step at its stage, or refuse it at others, in one change."""

        def change() -> None:
            stage = self.stage()
            for other, why in refused:
                refusals.refuse(stage is other, why, self._subject)
            if stage is STEPS[step][0]:
                self.check_step(step)
                take()

        self._change(change)

    def tidy(self) -> None:  # noqa: B027 - most remove everything in one step
        """Remove what a last step that was killed has left; there are no longer two sides."""

    def _pairs(self, side: VectorSide, batch: int) -> Iterator[tuple[Block, np.ndarray, np.ndarray, np.ndarray]]:
        """Yield rows of a side, their vectors of the other or zeros, which have one, and which the same fields."""
        for block in self.scan(side, batch=batch):
            found = self.fetch(block.ids, "new" if side == "old" else "old")
            width = found.vectors.shape[1] or self._made().dim  # of no rows a backend need not know it
            others = np.zeros((len(block.ids), width), np.float32)
            if len(found.ids):
                others[rows_of(found.ids, block.ids)] = found.vectors
            yield block, others, within(found.ids, block.ids), np.ones(len(block.ids), bool)

    def scan_pairs(self, *, batch: int = BATCH) -> Iterator[PairedBlock]:
        """Yield the old side's rows with their new vectors; those whose other fields have changed count as without."""
        for block, new, has_new, same in self._pairs("old", batch):
            yield PairedBlock(block.ids, block.vectors, new, has_new & same, block.modalities)

    def scan_new(self, *, batch: int = BATCH) -> Iterator[NewBlock]:
        """Yield the rows that have a new vector."""
        for block, _, has_old, same in self._pairs("new", batch):
            yield NewBlock(block.ids, block.vectors, has_old, same)

    def exist(self, ids: pa.Array, side: VectorSide) -> np.ndarray:
        """Return which rows exist on a side, with a vector or without, bool of shape (b,)."""
        if self.capabilities.follows_deletes:
            return np.ones(len(ids), bool)
        return within(self.fetch(ids, side).ids, ids)

    def without_new(self, *, batch: int = BATCH) -> Iterator[tuple[pa.Array, np.ndarray]]:
        """Yield the ids of rows with an old vector and no new one, and which of these rows exist on the new side."""
        for block, _, has_new, _ in self._pairs("old", batch):
            if not has_new.all():
                ids = block.ids.filter(pa.array(~has_new))
                yield ids, self.exist(ids, "new")

    def put_old(self, ids: pa.Array, vectors: np.ndarray | None) -> None:
        """Give rows, as readers of the new side see them, old vectors (b, dim), or none, before a rollback."""
        raise NotImplementedError

    def forget_old(self, ids: pa.Array) -> None:
        """Remove the old vectors, and the copies, of rows that were deleted after the switch, before a rollback."""
        raise NotImplementedError

    def orphans(self, *, batch: int = BATCH) -> Iterator[pa.Array]:
        """Yield the ids of new vectors whose rows were deleted."""
        if self.capabilities.follows_deletes:
            return
        for block in self.scan("new", batch=batch):
            deleted = ~within(self.fetch(block.ids, "old").ids, block.ids)
            if deleted.any():
                yield block.ids.filter(pa.array(deleted))

    # ---- the passes of a migration -----------------------------------------------------------------------------------

    def ranges(self, most: int) -> Iterator[RowRange]:
        """Yield ranges that cover all current rows; of about ``most`` rows each, if they are written by ranges."""
        yield RowRange("all rows")

    def revise(self, rows: RowRange, batch: int, change: Change) -> list[WrittenFile]:
        """Write what a function returns for a range of rows, maybe again, read in blocks of at most ``batch`` rows.

        Returns files that ``take`` must make part of the database. Reading, computing and writing overlap.
        """
        reader = self.reader()

        def changed() -> Iterator[tuple[PairedBlock, tuple[np.ndarray, np.ndarray] | None]]:
            for block in run_ahead(reader.scan_pairs(batch=batch)):
                yield block, change(block)

        try:
            for block, result in run_ahead(changed()):
                if result is not None:
                    which, vectors = result
                    self.write(block.ids if which.all() else block.ids.filter(pa.array(which)), vectors)
            self.flush()
        finally:
            if reader is not self:
                reader.close()
        return []

    def take(self, files: Sequence[WrittenFile]) -> int:
        """Make all that was written durable; return how many files no longer fit, as others have changed their rows."""
        self.flush()
        return 0

    def reader(self) -> Self:
        """Return an object that can scan in another thread while this one writes, on a new connection if need be."""
        return self

    @abstractmethod
    def close(self) -> None:
        """Release connections and files."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def bytes_a_row(dim: int, element_type: str) -> int:
    """Return the size of a vector in bytes."""
    return -(-dim * _ELEMENT_BITS[element_type] // 8)


# ---- rows ------------------------------------------------------------------------------------------------------------


def rows_of(ids: pa.Array, among: pa.Array) -> np.ndarray:
    """Return the position of each id in ``among``, ndarray of int64; -1 if it is missing."""
    import pyarrow.compute as pc

    if not len(ids) or not len(among):
        return np.full(len(ids), -1)
    try:
        positions = pc.index_in(ids.cast(among.type), value_set=among)
    except pa.ArrowInvalid as error:
        raise IdError(
            f"The ids are of type {ids.type}, not {among.type}.", "Pass ids in the type that a scan returns."
        ) from error
    return np.asarray(positions.fill_null(-1).to_numpy(zero_copy_only=False), np.int64)


def within(ids: pa.Array, all_ids: pa.Array) -> np.ndarray:
    """Return which of ``all_ids`` are among ``ids``, bool of shape (b,)."""
    found = np.zeros(len(all_ids), bool)
    found[rows_of(ids, all_ids)] = True
    return found


def repeated(ids: pa.Array) -> list[str]:
    """Return up to ten ids that occur several times."""
    import pyarrow.compute as pc

    counted = pc.value_counts(ids)
    return [str(id_) for id_ in counted.filter(pc.greater(counted.field(1), 1)).field(0)[:10].to_pylist()]


def owned(ids: pa.Array) -> pa.Array:
    """Return a copy of the ids. A client's column would keep its whole batch in memory, vectors included."""
    return ids.take(pa.array(np.arange(len(ids))))


def texts(values: Iterable[object]) -> pa.Array:
    """Return values as an array of strings, with None for None."""
    return pa.array([None if value is None else str(value) for value in values], pa.large_string())


def as_ids(column: pa.Array) -> pa.Array:
    """Convert a column to ids as in a block: int64, uint64 or large_string; 16 bytes become the text of a UUID."""
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if column.type == pa.binary(16):
        return texts(uuid.UUID(bytes=value) for value in column.to_pylist())
    if pa.types.is_uint64(column.type):
        return column
    return column.cast(pa.int64() if pa.types.is_integer(column.type) else pa.large_string())


UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")  # A UUID as text


def matrix_of(array: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return fixed-size lists as a matrix, and a mask of the rows that are not null; null numbers become NaN."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    width, values = array.type.list_size, array.values
    rows = slice(array.offset, array.offset + len(array))
    kind = np.dtype(values.type.to_pandas_dtype())
    flat = np.frombuffer(values.buffers()[1] or b"", kind, len(values), values.offset * kind.itemsize).reshape(
        -1, width
    )[rows]
    has = np.ones(len(array), bool) if not array.null_count else array.is_valid().to_numpy(zero_copy_only=False)
    if values.null_count:
        valid = values.is_valid().to_numpy(zero_copy_only=False).reshape(-1, width)[rows]
        if not valid[has].all():
            if kind.kind != "f":
                raise DatabaseError(
                    "A vector has missing bytes.", "Fill them in, or exclude these rows with a condition."
                )
            flat = np.where(valid, flat, kind.type("nan"))
    return flat, has


#: Which bit of a byte holds the first component: the highest ("big"), as in NumPy and PostgreSQL, or the lowest, as in
#: sqlite-vec.
BitOrder: TypeAlias = Literal["big", "little"]


def pack(vectors: np.ndarray, order: BitOrder = "big") -> np.ndarray:
    """Pack vectors, shape (b, dim), into bits, uint8 of shape (b, ceil(dim / 8)): 1 for components above 0."""
    return np.packbits(vectors > 0, axis=1, bitorder=order)


def unpack(packed: np.ndarray, dim: int, order: BitOrder = "big") -> np.ndarray:
    """Unpack bits, shape (b, ceil(dim / 8)), into vectors of 1 and -1, float32 of shape (b, dim)."""
    bits = np.unpackbits(packed, axis=1, count=dim, bitorder=order).astype(np.float32)
    bits *= 2
    bits -= 1
    return bits


# ---- what several backends do ----------------------------------------------------------------------------------------


def quoted(*names: str) -> str:
    """Return a name, or one in a schema, as a quoted SQL identifier."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def json_in(text: str) -> dict[str, Any]:
    """Return a JSON object in a comment, note or property; empty for any other text."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def mark_in(text: object) -> dict[str, Any]:
    """Return the data that a migration stored as JSON in the metadata of a collection; empty for any other metadata."""
    mark = json_in(str(text))
    return mark if isinstance(mark.get("note"), dict) else {}


def own_metadata(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the metadata of a collection that are about neither a space nor a migration."""
    return {key: value for key, value in (metadata or {}).items() if key not in (SPACE_KEY, MARK_KEY)}


def metadata_for_new(metadata: Mapping[str, Any] | None, mark: object) -> dict[str, Any]:
    """Return the metadata of a collection for its copy with new vectors: without the old space, with a mark."""
    return {**own_metadata(metadata), MARK_KEY: mark}


def space_in(metadata: Mapping[str, object] | str | None, place: object) -> Space:
    """Return the space in metadata or in a comment, or an unknown space if there is none."""
    if isinstance(metadata, str):
        metadata = json_in(metadata)
    facts = (metadata or {}).get(SPACE_KEY)
    text = facts if isinstance(facts, str) else json.dumps(facts) if facts else None
    return read_space(text, f"the metadata of {place}")


def wait_until_indexed(pending: Callable[[], object], name: str) -> None:
    """Wait until a collection that a server indexes by itself has nothing left to index."""
    until = time.monotonic() + INDEX_SECONDS
    while pending():
        if time.monotonic() > until:
            raise DatabaseUnavailableError(
                f"{name} is still being indexed after {INDEX_SECONDS / 60:g} minutes.",
                "Wait until it is indexed, then run this step again.",
            )
        time.sleep(LOOK_SECONDS)


def files_version(paths: Iterable[Path]) -> list[tuple[str, int, int, int]] | None:
    """Return what differs once one of the files was written to; None if they do not hold still."""
    for _ in range(5):
        try:
            found = [(path.name, one.st_ino, one.st_size, one.st_mtime_ns) for path in paths for one in [path.stat()]]
        except OSError:
            return None
        # A file's time advances in steps of up to 10 ms, in which a second write would not change it.
        if all(time.time_ns() - changed > 50_000_000 for *_, changed in found):
            return found
        time.sleep(0.06)
    return None


def time_scratch(
    parent: Path, make: Callable[[Path, int], Database], vectors: np.ndarray, element_type: str
) -> float | None:
    """Return the seconds that writing vectors to a temporary database takes; None if it cannot be created."""
    try:
        with (
            tempfile.TemporaryDirectory(prefix=".congruence-", dir=parent, ignore_cleanup_errors=True) as folder,
            make(Path(folder), len(vectors)) as scratch,
        ):
            scratch.prepare(vectors.shape[1], element_type)
            for _ in scratch.scan():  # as in a migration, rows are read before they are written
                pass
            started = time.perf_counter()
            scratch.write(pa.array(np.arange(len(vectors))), vectors)
            scratch.flush()
            return time.perf_counter() - started
    except OSError:
        return None
