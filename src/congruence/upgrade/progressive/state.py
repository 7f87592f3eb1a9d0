"""The state of a plan's rows: which were requested, and their new vectors, which are saved once, part by part."""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from congruence import persist
from congruence.errors import CorruptFileError
from congruence.io import ArraySource, Source
from congruence.io.safetensors_file import SafetensorsSource

STATE = "state"  # subfolder of a plan that contains its state
_PART = re.compile(r"vectors-[0-9a-f]{16}")  # subfolders that contain new vectors
_OWN = re.compile(rf"{STATE}|inputs-[0-9a-f]{{16}}|{_PART.pattern}")


def why_no_plan(folder: Path) -> str | None:
    """Return why a folder must not be replaced by a plan; None if it is one, even an interrupted one."""
    for entry in folder.iterdir():
        own = entry.is_dir() and _OWN.fullmatch(entry.name) and not persist.why_no_map(entry)
        if not own and not entry.name.startswith("."):
            return f"contains files that do not belong to a plan ({entry.name})"
    return None


def inputs_of(digest: str) -> str:
    """Return the name of the subfolder with ids and texts of a plan whose inputs have this digest."""
    name = f"inputs-{digest[:16]}"
    if not _OWN.fullmatch(name):
        raise ValueError(f"inputs {digest!r}")
    return name


def sweep(folder: Path, kept: Collection[str]) -> None:
    """Remove parts that the state does not name, and what killed writers left."""
    unused = {path for path in folder.iterdir() if _OWN.fullmatch(path.name) and path.name not in kept}
    unused |= {folder / path.name.removeprefix(".").rsplit(".", 2)[0] for path in folder.glob(".*.tmp")}
    for path in unused:
        with suppress(OSError):
            persist.remove_folder(path, kept=path.name in kept)


@dataclass(eq=False)
class _Part:
    rows: np.ndarray  # (b,)
    surprise: np.ndarray  # (b,)
    vectors: Source  # (b, width)
    start: int  # position of its first row among all received
    name: str  # of its folder, once it is saved


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
        self._add(np.array(rows), surprise, ArraySource(vectors), f"vectors-{secrets.token_hex(8)}")

    def _add(self, rows: np.ndarray, surprise: np.ndarray, vectors: Source, name: str) -> None:
        first = self._at[rows] < 0
        self.rows = np.concatenate([self.rows, rows[first]])
        self.surprise = np.concatenate([self.surprise, surprise[first]])
        self._at[rows] = self._count + np.arange(len(rows), dtype=np.int32)
        self._parts.append(_Part(rows, surprise, vectors, self._count, name))
        self._count += len(rows)

    def save(self, folder: Path) -> list[str]:
        """Write the parts that are not in this folder yet, and return the names of all in order."""
        for part in self._parts:
            if not (folder / part.name).exists():
                arrays = {"row": part.rows, "surprise": part.surprise}
                arrays["vector"] = part.vectors.take(np.arange(len(part.rows)))[1]
                persist.write_folder(folder / part.name, arrays, {"kind": "re-embedded rows"}, "# Re-embedded rows\n")
            part.vectors = _open(folder / part.name)
        return [part.name for part in self._parts]

    def load(self, folder: Path, names: Iterable[str]) -> None:
        """Add the rows of parts that ``save`` wrote. Raises CorruptFileError, or ValueError if they do not fit."""
        for name in names:
            if not isinstance(name, str) or not _PART.fullmatch(name):
                raise ValueError(f"a part {name!r}")
            arrays = read_part(folder / name)
            rows, vectors, surprise = (arrays[key] for key in ("row", "vector", "surprise"))
            if rows.dtype != np.int64 or vectors.dtype != np.float32 or rows.ndim != 1 or surprise.shape != rows.shape:
                raise ValueError(f"arrays of another type in {name}")
            if vectors.shape != (len(rows), self.width) or not np.isfinite(vectors).all():
                raise ValueError(f"vectors of another form in {name}")
            if len(np.unique(rows)) < len(rows) or not ((rows >= 0) & (rows < len(self._at))).all():
                raise ValueError(f"other rows in {name}")
            self._add(rows, surprise.astype(float), _open(folder / name), name)


def _open(part: Path) -> Source:
    return SafetensorsSource(part / persist.WEIGHTS, "vector")


def read_part(folder: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a subfolder of a plan."""
    try:
        if folder.is_dir():
            return persist.read_folder(folder)[0]
    except CorruptFileError:
        pass
    problem = f"{folder} is missing, truncated or was edited."
    raise CorruptFileError(problem, "Restore the folder of the plan from a backup.")


#: Roles of a row: not requested; chosen by the order; random, for the fit; random, for the meter.
WAITING, SELECTED, LEARN, METER = range(4)


class RowStates:
    """State of each row of the store.

    Random rows come from the front of one permutation. Every second one is the meter's: neither the fit nor the order
    uses its new vector until the order reaches it, when it is *due* and counts as a chosen row. So chosen rows do not
    depend on which rows the meter has, and its rows that are not due are a simple random sample of the mapped rows.
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
    def eligible(self) -> np.ndarray:
        """Mask of the rows that the order may choose, shape (n,)."""
        return ~self.due & (self.role != LEARN) & (self.role != SELECTED)

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
