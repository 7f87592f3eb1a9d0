"""The journal of a job: which fragments are finished, so that a job resumes after its driver was killed and no row is written twice.

The journal is written next to the output. It contains a plan, which is written with a digest when the job begins, and receipts of finished fragments,
which the driver collects and writes in segments with digests. A fragment counts once, however often it was processed: a second attempt replaces the output file
of the first, and only the first receipt is kept.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from congruence.engines.dataset import Fragment
from congruence.engines.places import Place
from congruence.errors import CorruptFileError, OutputExistsError, VersionError


FORMAT, FORMAT_VERSION = "congruence-fragments", 1

#: Number of receipts, and of seconds, after which a segment is written: the work that a killed driver repeats. Object stores charge for each segment.
MOST_RECEIPTS = 256
SECONDS, _SECONDS_LOCAL = 20.0, 1.0


@dataclass(frozen=True)
class Receipt:
    """Record that a fragment's output is in place.

    ``bad``: number of rows left out, and written to the quarantine; ``size``: size of the output file in bytes;
    ``path``: path of the output file in its folder; empty if no file was written, or if the format keeps its own list
    of files (Lance); ``lance``: metadata of the fragments of a Lance data set, to be committed.
    """

    fragment: str
    rows: int
    bad: int = 0
    size: int = 0
    path: str = ""
    lance: list[Any] = field(default_factory=list)

    def to_dict(self) -> dict[str, object]:
        """Return the receipt as plain data."""
        return {**vars(self), "lance": list(self.lance)}


@dataclass(frozen=True)
class Plan:
    """Description of a job, which a later run compares with its own to recognize the job.

    ``identity``: the digests and options on which the output depends, as plain data.
    """

    kind: str
    identity: Mapping[str, object]
    fragments: tuple[Fragment, ...]

    def to_dict(self) -> dict[str, object]:
        """Return the plan as plain data."""
        return {
            "kind": self.kind,
            "identity": dict(self.identity),
            "fragments": [fragment.to_dict() for fragment in self.fragments],
        }

    @property
    def digest(self) -> str:
        """SHA-256 of the plan."""
        return _digest(self.to_dict())


class Journal:
    """The receipts of one job.

    ``finished``: receipts by the name of the fragment; ``resumed``: number of fragments that an earlier run had
    finished; ``again``: number of receipts that were ignored, because the fragment already had one or is not in the
    plan; ``damaged``: number of segments that were damaged or belong to another plan; their fragments are processed
    again.
    """

    def __init__(self, place: Place, plan: Plan) -> None:
        self.place, self.plan, self._digest = place, plan, plan.digest
        self.finished: dict[str, Receipt] = {}
        self.resumed = self.again = self.damaged = 0
        self._names = {fragment.name for fragment in plan.fragments}
        self._waiting: list[Receipt] = []
        self._segment, self._run = 0, uuid.uuid4().hex[:8]  # two runs must not overwrite each other's segments
        self._seconds = _SECONDS_LOCAL if place.local else SECONDS
        self._flushed = time.monotonic()

    def open(self, *, restart: bool = False) -> Journal:
        """Start the job, or resume what an earlier run of it has finished.

        ``restart``: discard a journal here that is damaged or belongs to another job.
        """
        content = self.place.child("plan.json").read()
        if content is not None:
            stored = self._checked(content, "plan.json")
            if stored is not None and stored.get("digest") == self._digest:
                self._read_segments()
                return self
            if not restart:
                if stored is None:
                    raise CorruptFileError(
                        f"Got a journal whose plan is damaged, {self.place.shown}; expected an intact one. Remove the folder, or pass force=True to start over."
                    )
                raise OutputExistsError(
                    f"Got the journal of another job at {self.place.shown}, whose fragments, map or encoder, or options differ; expected the journal of this job. "
                    "Pass force=True to start over, or pass another output."
                )
            self.place.remove()
        self.place.child("plan.json").write(with_digest({"digest": self._digest, "plan": self.plan.to_dict()}))
        return self

    def keep(self, sizes: Mapping[str, int]) -> None:
        """Discard receipts whose file is missing or has another size.

        ``sizes``: sizes of the output files by path.
        """
        for name, receipt in list(self.finished.items()):
            if receipt.path and sizes.get(receipt.path) != receipt.size:
                del self.finished[name]
        self.resumed = len(self.finished)

    def pending(self) -> list[Fragment]:
        """Return the fragments without a receipt."""
        return [fragment for fragment in self.plan.fragments if fragment.name not in self.finished]

    def add(self, receipt: Receipt) -> bool:
        """Record that a fragment is finished; return False if it already was."""
        if receipt.fragment not in self._names or receipt.fragment in self.finished:
            self.again += 1
            return False
        self.finished[receipt.fragment] = receipt
        self._waiting.append(receipt)
        if len(self._waiting) >= MOST_RECEIPTS or time.monotonic() - self._flushed >= self._seconds:
            self.flush()
        return True

    def flush(self) -> None:
        """Write the buffered receipts. Raises StorageError."""
        if self._waiting:
            self._segment += 1
            facts = {"digest": self._digest, "receipts": [receipt.to_dict() for receipt in self._waiting]}
            self.place.child(f"done-{self._segment:06d}-{self._run}.json").write(with_digest(facts))
            self._waiting = []
        self._flushed = time.monotonic()

    @property
    def rows(self) -> int:
        """Rows written so far."""
        return sum(receipt.rows for receipt in self.finished.values())

    @property
    def bad(self) -> int:
        """Rows left out so far."""
        return sum(receipt.bad for receipt in self.finished.values())

    def receipts(self) -> list[Receipt]:
        """Return the receipts in the order of the plan."""
        finished = self.finished
        return [finished[fragment.name] for fragment in self.plan.fragments if fragment.name in finished]

    def _read_segments(self) -> None:
        names = [name for name in self.place.files() if re.fullmatch(r"done-\d{6,12}-[0-9a-f]{8}\.json", name)]
        with ThreadPoolExecutor(16) as pool:
            contents = list(pool.map(lambda name: self.place.child(name).read(), names))
        for name, content in zip(names, contents, strict=True):
            self._segment = max(self._segment, int(name.split("-")[1]))
            facts = None if content is None else self._checked(content, name)
            receipts = None if facts is None or facts.get("digest") != self._digest else _as_receipts(facts)
            if receipts is None:
                self.damaged += 1
                continue
            for receipt in receipts:
                if receipt.fragment in self._names:
                    self.finished.setdefault(receipt.fragment, receipt)
        self.resumed = len(self.finished)

    def _checked(self, content: bytes, name: str) -> dict[str, object] | None:
        """Return the facts in a file, or None if the file is damaged. Raises VersionError."""
        try:
            stored = json.loads(content)
            facts, digest, version = stored["facts"], stored["digest"], stored["format_version"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        if isinstance(version, int) and version > FORMAT_VERSION:
            raise VersionError(
                f"Got {self.place.shown}/{name} of version {version}; expected at most {FORMAT_VERSION}. Resume with the version of congruence that began the job."
            )
        return facts if isinstance(facts, dict) and digest == _digest(facts) else None


def _as_receipts(facts: Mapping[str, object]) -> list[Receipt] | None:
    """Return the receipts of a segment, or None if they are malformed."""
    kinds = {"fragment": str, "rows": int, "bad": int, "size": int, "path": str, "lance": list}
    rows = facts.get("receipts")
    if not isinstance(rows, list):
        return None
    for row in rows:
        if not isinstance(row, dict) or set(row) != set(kinds):
            return None
        if any(type(row[name]) is not kind for name, kind in kinds.items()) or min(row["rows"], row["bad"]) < 0:
            return None
    return [Receipt(**row) for row in rows]


def _digest(facts: object) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def with_digest(facts: Mapping[str, object]) -> bytes:
    """Return the content of a file of the journal: facts as JSON, with the digest by which damage is noticed."""
    stored = {"format": FORMAT, "format_version": FORMAT_VERSION, "digest": _digest(facts), "facts": facts}
    return json.dumps(stored).encode()
