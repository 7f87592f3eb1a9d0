"""The state of a plan's rows: which were requested, and their new vectors, which are saved once, part by part."""

from __future__ import annotations

import re
import secrets
import shutil
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from congruence import persist
from congruence._utils.arrays import blocks
from congruence.errors import CorruptFileError
from congruence.io import ArraySource, Source
from congruence.io.safetensors_file import SafetensorsSource

STATE = "state"  # subfolder of a plan that contains its state

_PART = re.compile(r"vectors-[0-9a-f]{16}")  # subfolders that contain new vectors
_INPUTS = re.compile(r"inputs-[0-9a-f]{16}")  # subfolder that contains ids and texts, in the journal of a migration
_OWN = re.compile(rf"{STATE}|{_INPUTS.pattern}|{_PART.pattern}")
_PART_BYTES = 64 * 2**20  # of the vectors in one of them


def why_no_plan(folder: Path) -> str | None:
    """Return why a folder must not be replaced by a plan; None if it is one, even an interrupted one."""
    for entry in folder.iterdir():
        if entry.name.startswith("."):
            continue
        if not (entry.is_dir() and _OWN.fullmatch(entry.name)):
            return f"contains files that do not belong to a plan ({entry.name})"
        if persist.why_no_map(entry):
            return f"contains a folder named {entry.name!r} that is not part of a plan"
    return None


def inputs_of(digest: str) -> str:
    """Return the name of the subfolder with ids and texts of a plan whose inputs have this digest."""
    name = f"inputs-{digest[:16]}"
    if not _INPUTS.fullmatch(name):
        raise ValueError(f"inputs {digest!r}")
    return name


def sweep(folder: Path, kept: Collection[str]) -> None:
    """Remove parts that the state does not name, and what killed writers left."""
    unused = [path for path in folder.iterdir() if _OWN.fullmatch(path.name) and path.name not in kept]
    for path in folder.glob(".*.tmp"):
        unused += persist.find_left_over(folder / path.name.removeprefix(".").rsplit(".", 2)[0])
    for path in unused:
        with suppress(OSError):
            shutil.rmtree(path)


@dataclass(eq=False)
class _Part:
    """Rows that arrived, or were saved, together."""

    rows: np.ndarray  # (b,)
    surprise: np.ndarray  # (b,)
    vectors: Source  # (b, width)
    start: int  # position of its first row among all received
    name: str | None = None  # of its folder, if it was saved


class Received:
    """The new vectors received so far, by row of the store.

    ``rows`` (e,) are in the order in which they first arrived, and ``surprise`` (e,) is 1 − cosine between each and the
    mapped vector at that time. Vectors are in memory until they are saved, and then read from their files.
    """

    def __init__(self, n: int, width: int) -> None:
        self.width = width
        self.rows, self.surprise = np.empty(0, np.int64), np.empty(0)
        self._at = np.full(n, -1, np.int32)
        self._parts: list[_Part] = []
        self._count = 0

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Return the latest vectors of received rows, shape (b, width)."""
        at = self._at[rows]
        out = np.empty((len(at), self.width), np.float32)
        part_of = np.searchsorted([part.start for part in self._parts], at, "right") - 1
        for number in np.unique(part_of).tolist():
            here, part = np.flatnonzero(part_of == number), self._parts[number]
            out[here] = part.vectors.take(at[here] - part.start)[1]
        return out

    def add(self, rows: np.ndarray, vectors: np.ndarray, surprise: np.ndarray) -> None:
        """Add distinct rows; those received before get a new vector, and keep their position and their surprise."""
        self._add(_Part(np.array(rows), surprise, ArraySource(vectors), self._count))

    def _add(self, part: _Part) -> None:
        first = self._at[part.rows] < 0
        self.rows = np.concatenate([self.rows, part.rows[first]])
        self.surprise = np.concatenate([self.surprise, part.surprise[first]])
        self._at[part.rows] = self._count + np.arange(len(part.rows), dtype=np.int32)
        self._parts.append(part)
        self._count += len(part.rows)

    def save(self, folder: Path) -> list[str]:
        """Write rows that are not in this folder yet, and return the names of all parts in order."""
        parts: list[_Part] = [part for part in self._parts if part.name is not None]
        if fresh := [part for part in self._parts if part.name is None]:
            rows, surprise = (np.concatenate([getattr(p, name) for p in fresh]) for name in ("rows", "surprise"))
            vectors = np.concatenate([part.vectors.take(np.arange(len(part.rows)))[1] for part in fresh])
            for some in blocks(len(rows), 4 * self.width, budget=_PART_BYTES):
                start = fresh[0].start + some.start
                parts.append(_Part(rows[some], surprise[some], ArraySource(vectors[some]), start))
            self._parts = parts
        for part in parts:
            part.name = part.name or f"vectors-{secrets.token_hex(8)}"
            if not (folder / part.name).exists():
                arrays = {"row": part.rows, "surprise": part.surprise}
                arrays["vector"] = part.vectors.take(np.arange(len(part.rows)))[1]
                persist.write_folder(folder / part.name, arrays, {"kind": "re-embedded rows"}, "# Re-embedded rows\n")
            part.vectors = self._open(folder / part.name)
        return [str(part.name) for part in parts]

    def load(self, folder: Path, names: Iterable[str]) -> None:
        """Add the rows of parts that ``save`` wrote. Raises CorruptFileError, or ValueError if they do not fit."""
        for name in names:
            if not isinstance(name, str) or not _PART.fullmatch(name):
                raise CorruptFileError(
                    f"The state in {folder} refers to a part {name!r}.", "Restore the folder of the plan from a backup."
                )
            arrays = read_part(folder / name)
            rows, vectors = arrays["row"], arrays["vector"]
            if rows.dtype != np.int64 or rows.ndim != 1 or vectors.shape != (len(rows), self.width):
                raise ValueError(f"vectors of another form in {name}")
            if len(rows) and not 0 <= rows.min() <= rows.max() < len(self._at):
                raise ValueError("rows that the store does not have")
            if len(np.unique(rows)) < len(rows):
                raise ValueError("a part that has a row twice")
            if vectors.dtype != np.float32 or not np.isfinite(vectors).all():
                raise ValueError("vectors are not finite numbers")
            if arrays["surprise"].shape != rows.shape:
                raise ValueError("a row without its surprise")
            self._add(_Part(rows, arrays["surprise"].astype(float), self._open(folder / name), self._count, name))

    @staticmethod
    def _open(part: Path) -> Source:
        return SafetensorsSource(part / persist.WEIGHTS, "vector")


def read_part(folder: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a subfolder of a plan."""
    try:
        if not folder.is_dir():
            raise CorruptFileError(f"No folder {folder}.", "")
        return persist.read_folder(folder)[0]
    except CorruptFileError as error:
        raise CorruptFileError(
            f"{folder} is missing, truncated or was edited.", "Restore the folder of the plan from a backup."
        ) from error


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
