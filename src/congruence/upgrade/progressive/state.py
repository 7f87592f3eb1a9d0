"""The state of a plan's rows (which were requested, and their new vectors), and the files in which it is saved.

Vectors and maps are in files that are written once and named by their digest; only the small state is rewritten by each
save.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from congruence._utils.atomic import atomic_path, find_left_over, why_foreign
from congruence._utils.refusals import describe_refusal
from congruence.errors import CorruptFileError, FileError
from congruence.persist import CARD, CONFIG, FORMAT, WEIGHTS

STATE = "state"  # subfolder of a plan that contains its state

#: Names of these files: the first 40 hexadecimal digits of the SHA-256 of their content.
_NAME = re.compile(r"[0-9a-f]{40}\.(npy|safetensors|json)")


def write_piece(folder: Path, raw: bytes, suffix: str) -> str:
    """Write a file atomically, unless it exists; return its name."""
    name = hashlib.sha256(raw).hexdigest()[:40] + suffix
    if not (folder / name).exists():
        with atomic_path(folder / name, force=True) as temporary:
            temporary.write_bytes(raw)
    return name


def read_piece(folder: Path, name: str, *, keep: bool = True) -> bytes:
    """Return the content of a file, after checking that it is what was saved; without ``keep`` only check it."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise CorruptFileError(
            f"The state in {folder} refers to a file {name!r}.", "Restore the folder of the plan from a backup."
        )
    path = folder / name
    try:
        with open(path, "rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
            stream.seek(0)
            content = stream.read() if keep else b""
    except FileNotFoundError:
        raise CorruptFileError(f"No {name} in {folder}.", "Restore the folder of the plan from a backup.") from None
    except OSError as error:
        raise FileError(describe_refusal(error, f"while reading {path}")) from error
    if digest[:40] != Path(name).stem:
        raise CorruptFileError(f"{path} is truncated or was edited.", "Restore the folder of the plan from a backup.")
    return content


def sweep(folder: Path, kept: Iterable[str]) -> None:
    """Remove files that the state no longer refers to, and temporary files of killed writers."""
    keep = set(kept)
    unused = [path for path in folder.iterdir() if _NAME.fullmatch(path.name) and path.name not in keep]
    for path in folder.glob(".*.tmp"):  # left by a writer that was killed
        unused += find_left_over(folder / path.name.removeprefix(".").rsplit(".", 2)[0])
    for path in unused:
        with suppress(OSError):
            path.unlink()


def why_no_plan(folder: Path) -> str | None:
    """Return why a folder must not be replaced by a plan; None if it is one, even an interrupted one."""
    for entry in folder.iterdir():
        if entry.name == STATE and entry.is_dir():
            if why_foreign(entry, "the state of a plan", CONFIG, FORMAT, lambda name: name in (WEIGHTS, CONFIG, CARD)):
                return f"contains a folder named {STATE!r} that is not the state of a plan"
        elif not (entry.is_file() and (_NAME.fullmatch(entry.name) or entry.name.startswith("."))):
            return f"contains files that do not belong to a plan ({entry.name})"
    return None


@dataclass(eq=False)
class _Part:
    """Rows that arrived, or were saved, together."""

    table: np.ndarray  # (b,), with the fields row, surprise and vector: in memory, or a view of its file
    start: int  # position of its first row among all received
    name: str | None = None  # of its file, if it was saved


class Received:
    """The new vectors received so far, by row of the store.

    ``rows`` (e,) are in the order in which they first arrived, and ``surprise`` (e,) is 1 − cosine between each and the
    mapped vector at that time. Vectors stay in memory after they were written to a file if ``keep`` is set.
    """

    def __init__(self, n: int, width: int, *, keep: bool) -> None:
        self.width, self.keep = width, keep
        self.rows, self.surprise = np.empty(0, np.int64), np.empty(0)
        self._at = np.full(n, -1, np.int32)
        self._parts: list[_Part] = []
        self._count = 0

    def known(self, rows: np.ndarray) -> np.ndarray:
        """Return a mask of the rows that have been received, shape (b,)."""
        return np.asarray(self._at[rows] >= 0)

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Return the latest vectors of received rows, shape (b, width)."""
        at = self._at[rows]
        out = np.empty((len(at), self.width), np.float32)
        part_of = np.searchsorted([part.start for part in self._parts], at, "right") - 1
        for number in np.unique(part_of).tolist():
            here, part = np.flatnonzero(part_of == number), self._parts[number]
            out[here] = part.table["vector"][at[here] - part.start]
        return out

    def add(self, rows: np.ndarray, vectors: np.ndarray, surprise: np.ndarray) -> None:
        """Add distinct rows; those received before get a new vector, and keep their position and their surprise."""
        table = np.empty(len(rows), _table(self.width))
        table["row"], table["surprise"], table["vector"] = rows, surprise, vectors
        self._add(table)

    def _add(self, table: np.ndarray, name: str | None = None) -> None:
        rows = np.array(table["row"])
        first = ~self.known(rows)
        self.rows = np.concatenate([self.rows, rows[first]])
        self.surprise = np.concatenate([self.surprise, table["surprise"][first]])
        self._at[rows] = self._count + np.arange(len(rows), dtype=np.int32)
        self._parts.append(_Part(table, self._count, name))
        self._count += len(rows)

    def save(self, folder: Path) -> list[str]:
        """Write rows that are not in a file of this folder yet, and return the names of all files in order."""
        if fresh := [part for part in self._parts if part.name is None]:
            saved = [part for part in self._parts if part.name is not None]
            self._parts = [*saved, _Part(np.concatenate([part.table for part in fresh]), fresh[0].start)]
        names = []
        for part in self._parts:
            if part.name is None or not (folder / part.name).exists():
                raw = io.BytesIO()
                np.lib.format.write_array(raw, np.asarray(part.table), allow_pickle=False)
                part.name = write_piece(folder, raw.getvalue(), ".npy")
            names.append(part.name)
        return names

    def release(self, folder: Path) -> None:
        """Free saved vectors, and from now on read them from the files of a folder; does nothing if ``keep`` is set."""
        if not self.keep:
            for part in self._parts:
                if part.name is not None:
                    part.table = _open(folder / part.name, self.width)

    def load(self, folder: Path, names: Sequence[str]) -> None:
        """Add the rows of files that ``save`` wrote; a file of another kind raises ValueError."""
        for name in names:
            read_piece(folder, name, keep=False)
            table = _open(folder / name, self.width)
            rows = np.array(table["row"])
            if len(rows) and not 0 <= rows.min() <= rows.max() < len(self._at):
                raise ValueError("rows that the store does not have")
            if len(np.unique(rows)) < len(rows):
                raise ValueError("a file that has a row twice")
            self._add(np.array(table) if self.keep else table, name)


def _table(width: int) -> np.dtype:
    return np.dtype([("row", "<i8"), ("surprise", "<f8"), ("vector", "<f4", (width,))])


def _open(path: Path, width: int) -> np.ndarray:
    table = np.load(path, mmap_mode="r", allow_pickle=False)
    if table.ndim != 1 or table.dtype != _table(width):
        raise ValueError(f"vectors of another form in {path.name}")
    return np.asarray(table)


#: Roles of a row: not requested; chosen by the order; random, for the fit; random, for the meter.
WAITING, SELECTED, LEARN, METER = range(4)


class RowStates:
    """State of each row of the store.

    Random rows come from the front of one permutation of the store. Every second one is the meter's: neither the fit
    nor the order uses its new vector until the order reaches it. It is then *due* and counts as a chosen row. Chosen
    rows therefore do not depend on which rows the meter has, and its rows that are not due are a simple random sample
    of all rows that are neither due nor LEARN.
    """

    def __init__(self, n: int, random_state: int) -> None:
        self.role = np.zeros(n, np.uint8)
        #: Rows that the order has reached, whatever their role.
        self.due = np.zeros(n, bool)
        self.embedded = np.zeros(n, bool)
        self.permutation = (
            np.random.default_rng([random_state, 7]).permutation(n).astype(np.int32 if n < 2**31 else np.int64)
        )
        self.place = 0
        self.drawn = 0

    def draw(self, count: int) -> np.ndarray:
        """Draw the next random rows that were not requested yet; every second one is the meter's."""
        drawn: list[int] = []
        while len(drawn) < count and self.place < len(self.permutation):
            row = int(self.permutation[self.place])
            self.place += 1
            if self.role[row] == WAITING and not self.due[row]:
                self.role[row] = METER if self.drawn % 2 == 0 else LEARN
                self.drawn += 1
                drawn.append(row)
        return np.array(drawn, np.intp)

    @property
    def measured(self) -> np.ndarray:
        """The meter's rows that represent the rows that are still mapped."""
        return np.flatnonzero((self.role == METER) & self.embedded & ~self.due)

    @property
    def shown(self) -> np.ndarray:
        """Mask of the re-embedded rows that the fit and the order may use, shape (n,)."""
        return np.asarray(self.embedded & ((self.role != METER) | self.due))

    @property
    def rest(self) -> int:
        """Number of rows that are still mapped vectors."""
        return int(np.count_nonzero(~self.embedded))
