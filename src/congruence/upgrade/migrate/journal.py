"""The journal of a migration, a small file with its state that is replaced atomically at each step, and its summary."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np
import pyarrow as pa

from congruence._utils.records import digest_of, from_record, to_record
from congruence._version import __version__
from congruence.databases import Cursor, Stage, check_writable
from congruence.errors import CorruptFileError, FileError, MigrationError
from congruence.io.locations import Location
from congruence.upgrade.migrate.quantize import Quantizer

_MOST_BYTES = 4 * 2**20  # maximum size of a journal in bytes; apart from counts it contains at most a thousand ids
_MOST_PLACE = 4096  # maximum number of characters in the name of a database and table
_NAME = "journal.json"
_KINDS: dict[str, type] = {"str": str, "int": int, "bool": bool, "list": list, "dict": dict, "None": NoneType}

#: What readers see, by state of the migration.
SEEN = {
    "filling": "the old vectors; the new ones are being written",
    "filled": "the old vectors; the new ones are written but not yet verified",
    "verified": "the old vectors; the new ones are written and verified",
    "switched": "the new vectors; the old ones are kept",
    "rolled back": "the old vectors again; the new ones are kept",
    "dropped": "the new vectors; the old ones were removed",
}

#: The step to which other steps are refused, by state.
FIRST = {"filling": "run", "filled": "verify", "verified": "switch", "switched": "rollback", "rolled back": "verify"}

DROPPING = "dropping the old vectors"  # event before that step, which a kill may separate from its result
PROGRESSIVE = "progressive"  # folder next to the journal with the re-embedded rows


def default_folder(place: str) -> Path:
    """Return a database's default journal: in the current folder, named after it without its password."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", place.rstrip("/").rsplit("/", 1)[-1]).strip("-")[:40] or "database"
    return Path(f"migration-{name}-{hashlib.sha256(place.encode()).hexdigest()[:8]}")


def check_folder(folder: Path) -> None:
    """Raise StorageError if a journal cannot be written in a folder, which may not exist yet."""
    check_writable(next(path for path in (folder, *folder.absolute().parents) if path.is_dir()))


def make_folder(folder: Path) -> None:
    """Create the folder of a journal."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(
            f"The journal's folder {folder} cannot be created ({error.strerror}).", "Pass another `journal=…`."
        ) from error


def hashes(ids: pa.Array, vectors: np.ndarray, size: int = 8) -> np.ndarray:
    """Return a digest of id and vector (b, dim) of each row, uint64 of shape (b,), or (b, size / 8) if longer."""
    flat, width = np.ascontiguousarray(vectors, np.float32).tobytes(), vectors.shape[1] * 4
    digests = b"".join(
        # Hashed in one call: a second update would take as long as a row of 512 numbers.
        hashlib.blake2b(b"%b\0%b" % (str(name).encode(), flat[k : k + width]), digest_size=size).digest()
        for name, k in zip(ids.to_pylist(), range(0, len(ids) * width, width), strict=True)
    )
    found = np.frombuffer(digests, "<u8")
    return found if size == 8 else found.reshape(-1, size // 8)


_STEP = np.uint64(0x9E3779B97F4A7C15)  # of the sequence whose mixed terms are the weights of ``row_digests``


def _mixed(words: np.ndarray) -> np.ndarray:
    """Return words, uint64, each mixed by the finalizer of MurmurHash3, in place."""
    for shift, factor in ((33, 0xFF51AFD7ED558CCD), (33, 0xC4CEB9FE1A85EC53)):
        words ^= words >> np.uint64(shift)
        words *= np.uint64(factor)
    words ^= words >> np.uint64(33)
    return words


@lru_cache(8)
def _weights(n: int) -> np.ndarray:
    return _mixed(np.arange(1, n + 1, dtype=np.uint64) * _STEP) | np.uint64(1)


def id_digests(ids: pa.Array) -> np.ndarray:
    """Return a digest of the text of each id, uint64 of shape (b,)."""
    texts = ids.cast(pa.large_string())
    if not len(texts):
        return np.empty(0, np.uint64)
    ends = np.frombuffer(texts.buffers()[1], np.int64)[texts.offset : texts.offset + len(texts) + 1]
    data = np.frombuffer(texts.buffers()[2] or b"", np.uint8)[ends[0] : ends[-1]]
    starts, sizes = ends[:-1] - ends[0], np.diff(ends)
    weights = _weights(1 << int(sizes.max()).bit_length())
    sums = np.zeros(len(data) + 1, np.uint64)  # running, modulo 2⁶⁴: also right for empty texts
    np.cumsum((data + np.uint64(1)) * weights[np.arange(len(data)) - np.repeat(starts, sizes)], out=sums[1:])
    return _mixed(sums[starts + sizes] - sums[starts])


def row_digests(ids: pa.Array, vectors: np.ndarray) -> np.ndarray:
    """Return a digest of id and vector (b, dim) of each row, uint64 of shape (b,), against accidents.

    Multilinear hashing (Lemire and Kaser 2014) of the vector's 32-bit words, then mixed: sums over rows tell rows apart
    that have exchanged their vectors. Ten times as fast as ``hashes``, of which files of earlier versions consist.
    """
    words = np.ascontiguousarray(vectors, np.float32).view(np.uint32)
    weights = _weights(words.shape[1])
    sums = id_digests(ids) + np.einsum("ij,j->i", words, weights) + _STEP  # not 0 for zeros without a name
    # Bits and whole numbers differ in the high halves of their words, whose products have only 33 or 48 bits.
    coded = np.flatnonzero(words[:, :1].astype(np.uint16) == 0)
    sums[coded] += np.einsum("ij,j->i", words[coded] >> np.uint32(16), weights)
    return _mixed(sums)


def pair_digests(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Return a digest of the digests of old and new rows, uint64 of shape (b,)."""
    return _mixed(old * _STEP + new)


def is_among(digests: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Return which digests (b,) are among others, which are sorted, bool of shape (b,)."""
    if not len(known):
        return np.zeros(len(digests), bool)
    places = np.minimum(np.searchsorted(known, digests), len(known) - 1)
    return np.asarray(known[places] == digests)


@dataclass
class Journal:
    """The state of a migration."""

    place: str  # database, table and column, without credentials
    map_digest: str
    dim: int
    element_type: str
    normalize: bool  # whether rows are of unit norm after mapping
    scale: bool  # whether they are scaled before
    modality: str | None  # of all rows, if no column states it
    ranges: list[float | list[float]] | None = None  # int8: smallest and largest value
    old_ranges: list[float | list[float]] | None = None
    condition: str | None = None  # that selects the rows to map; the others keep their vectors
    allow_unknown: bool = False  # whether rows of no model that the map knows are mapped
    state: str = "filling"
    cursor: Cursor | None = None  # where the first pass continues
    rows: int = 0  # written by the first pass
    resumed: int = 0
    sample: list[int | str] = field(default_factory=list)  # ids for verification, drawn uniformly
    passes: list[dict[str, Any]] = field(default_factory=list)  # results of the latest repairs
    verification: dict[str, object] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    events: list[dict[str, str]] = field(default_factory=list)
    version: str = __version__
    token: str = ""  # stored with the new vectors, which are those of this journal alone; empty in older journals

    def log(self, words: str) -> None:
        """Add an event with the current time."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self.events.append({"at": now, "what": words})

    def write(self, folder: Path) -> None:
        """Replace the journal in its folder."""
        Location.of(folder / _NAME).write(to_record(asdict(self), indent=1))

    def write_summary(self, folder: Path) -> None:
        """Write ``summary.json`` next to the journal."""
        Location.of(folder / "summary.json").write(json.dumps(summarize(self), indent=1).encode() + b"\n")

    @classmethod
    def read(cls, folder: Path) -> Journal | None:
        """Return the journal in a folder, or None if there is none."""
        path = folder / _NAME
        raw = Location.of(path).read(_MOST_BYTES + 1)
        if raw is None:
            return None
        try:
            if len(raw) > _MOST_BYTES:
                raise ValueError("too long")
            content = from_record(raw)
            if not set(content) <= set(cls.__dataclass_fields__):
                raise ValueError("other values")
            journal = cls(**content)
            journal._check()
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
            raise CorruptFileError(
                f"The journal {path} is damaged or was edited.", "Restore it, or discard and begin in another folder."
            ) from error
        return journal

    def _check(self) -> None:
        """Raise ValueError for values that no migration writes."""
        for one in fields(self):
            names = re.sub(r"\[.*\]", "", str(one.type)).split(" | ")
            if "Cursor" not in names and type(getattr(self, one.name)) not in [_KINDS[name] for name in names]:
                raise ValueError(f"wrong type of {one.name}")
        Quantizer(self.element_type, self.dim, self.ranges)
        widths = [len(bound) for bound in self.old_ranges or () if isinstance(bound, list)]
        Quantizer("int8", max(widths, default=1), self.old_ranges)
        cursor = self.cursor if isinstance(self.cursor, list) else [] if self.cursor is None else [self.cursor]
        counts = {"rows": int, "written": int, "removed": int, "old": str}
        if not (
            self.state in SEEN
            and len(self.place) <= _MOST_PLACE
            and self.dim >= 1
            and all(0 <= number < 2**63 for number in (self.dim, self.rows, self.resumed))
            and all(_has(event, {"at": str, "what": str}) for event in self.events)
            and all(_has(one, counts) for one in self.passes)
            # A string, or a 64-bit integer, signed or unsigned.
            and all(type(i) is str or (type(i) is int and -(2**63) <= i < 2**64) for i in (*self.sample, *cursor))
        ):
            raise ValueError("invalid values")

    def require_state(self, *states: str, to: str) -> None:
        """Raise MigrationError if the migration is in none of the states in which a step is possible."""
        if self.state not in states:
            step = self.first()
            raise MigrationError(
                f"This migration is {self.state}; to {to}, it has to be {' or '.join(states)}.",
                f"Run `{step}` first." if step else "It is complete: remove its folder, or pass another `journal=…`.",
            )

    def first(self) -> str | None:
        """Return the step that comes first: after a verification that failed, for example since the application has
        written, the run that repairs it; None if there is none.
        """
        failed = self.state == "filled" and self.verification.get("passed") is False
        return "run" if failed else FIRST.get(self.state)

    def sync(self, stage: Stage) -> None:
        """Update the state to that of the database; they differ if the process was killed between the two."""
        if stage is Stage.SWITCHED and self.state in ("verified", "rolled back"):
            self.state = "switched"
            self.log("found switched")
        elif stage is Stage.PREPARED and self.state == "switched":
            self.state = "rolled back"
            self.log("found rolled back")
        elif stage is Stage.UNTOUCHED and self.state == "switched":
            if not self.events or self.events[-1]["what"] != DROPPING:
                raise MigrationError(
                    f"{self.place} has neither the old nor the new vectors of this migration: it was created again, "
                    "restored, or changed by another program.",
                    "Remove the journal's folder, and begin again.",
                )
            self.state = "dropped"
            self.log("found without the old vectors")
        elif stage is Stage.UNTOUCHED and self.state != "dropped":
            if self.state != "filling":
                self.log("found without new vectors: started again")
            self.state, self.cursor, self.rows, self.sample = "filling", None, 0, []


def _has(content: object, kinds: Mapping[str, type]) -> bool:
    """Return whether a value is a dict with exactly these keys and types of values."""
    return isinstance(content, dict) and {key: type(value) for key, value in content.items()} == dict(kinds)


#: Environment variable with a key: the summary is then signed with it (HMAC-SHA256).
SIGNING_KEY = "CONGRUENCE_SIGNING_KEY"


def summarize(journal: Journal) -> dict[str, Any]:
    """Return rows, checksums, the map's digest and all events, with a SHA-256; signed if there is a key."""
    last = journal.passes[-1] if journal.passes else {}
    same = ("place", "element_type", "ranges", "state", "verification", "resumed", "passes", "version", "events")
    summary: dict[str, Any] = {name: getattr(journal, name) for name in same}
    summary |= {"map": journal.map_digest, "rows": last.get("rows", journal.rows), "checksum_old": last.get("old")}
    summary["checksum_new"] = journal.verification.get("checksum_new")
    summary["sha256"] = digest_of(summary)
    if key := os.environ.get(SIGNING_KEY):
        summary["hmac_sha256"] = hmac.new(key.encode(), summary["sha256"].encode(), "sha256").hexdigest()
    return summary
