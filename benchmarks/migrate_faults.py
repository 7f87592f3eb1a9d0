"""Fault injection for migrations: interrupt them in many ways, and count rows that are lost, duplicated, wrong or
changed.

``python benchmarks/migrate_faults.py lancedb --rows 200000 --points states``. The table contains CLIP vectors of LVIS
(texts and images from ../shared/data, 512-d, two modalities), repeated with a little noise so that no two rows are
equal. A first run without a fault records its steps: before and after each call that changes something (prepare, write,
flush, the journal of each state, the index, switch, rollback, and the commits below them).

- ``--fault kill``: for the first, a middle and the last occurrence of each step, a separate process runs the migration
  on a fresh copy of the table and is killed there with SIGKILL; another process resumes and completes it. ``--points
  states`` uses only the states of the journal and the commits. ``--chain`` kills a single migration at each kind of
  step in turn: each process resumes what the last one left, switches again after a rollback, and is killed at the next
  step. ``--random N`` adds N kills after a uniformly drawn amount of processor time, by a signal that is not handled.
  After each kill, the rows that readers see are read.
- ``--fault disk-full``: on a separate file system (needs root), which is filled at a step; then space is freed, and the
  migration is resumed.
- ``--fault server-restart``: the server is stopped immediately, as by ``pg_ctl stop -m immediate``, and restarted, at
  each kind of step of one run.
- ``--fault concurrent-writes``: another process adds, changes and deletes rows during the run, and again between
  verification and switch.
- ``--fault duplicate-ids``: some ids occur twice.

Rows are counted with the database's own client. A row is lost if it has no new vector, duplicated if it occurs twice,
wrong if its new vector is not the mapped current old vector, and changed if its old vector differs in any bit from what
its user wrote. Readers see a mixture if they read neither only old vectors nor only new ones.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from common import arguments, write_json
from fault_databases import KINDS, Kind
from fault_process import STEPS, Task, change, migrate, write_meanwhile, writes

os.environ.setdefault("LANCE_LOG", "error")  # it warns at each commit that replacing a column's file is a new feature

LVIS = "../shared/data/lvis1203_clip.npz"

COUNTED = ("lost", "doubled", "wrong", "changed originals")

#: Each migration runs in a fork of a process that has imported only what migrations need.
CONTEXT = multiprocessing.get_context("forkserver")


def vectors(n: int) -> tuple[np.ndarray, np.ndarray, Any]:
    """Return rows of the old model, repeated with noise, the modality of each, and a map to the new model."""
    import congruence
    from congruence.embeddings import normalize_rows

    with np.load(LVIS, allow_pickle=False) as data:
        images, texts = (data[key].astype(np.float32) for key in ("image_openai_vitb32_avg5", "text_openai_vitb32"))
        target = data["text_openai_vitb16"].astype(np.float32)
    mapping = congruence.OrthogonalMap().fit(texts[:900], target[:900], modality="text")
    # The data has no images of the new model; to test how rows are written, any mean will do.
    mapping = mapping.recenter(images.mean(axis=0), target.mean(axis=0), modality="image")
    rng = np.random.default_rng(0)
    base = np.concatenate([images, texts])
    kinds = np.repeat(["image", "text"], [len(images), len(texts)])
    which = np.arange(n) % len(base)
    rows = base[which] + np.float32(0.02) * rng.standard_normal((n, base.shape[1]), np.float32)
    return normalize_rows(rows), kinds[which], mapping


# ---- what is counted
# -----------------------------------------------------------------------------------------------------


@dataclass
class Bench:
    """A table, its rows and their expected new vectors, and copies of it on which migrations are interrupted."""

    kind: Kind
    scratch: Path
    ids: np.ndarray
    rows: np.ndarray
    kinds: np.ndarray
    mapping: Any
    disk: Path | None = None
    totals: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        from congruence.upgrade.migrate.mapper import RowMapper

        self.mapper = RowMapper(self.mapping)
        self.row_of = np.argsort(self.ids)
        self.first = self.scratch / "first"
        self.result = self.scratch / "error.json"

    def map(self, ids: np.ndarray, rows: np.ndarray, kinds: np.ndarray) -> np.ndarray:
        return self.mapper(pa.array(ids), rows, pa.array(kinds.tolist(), pa.large_string()))

    def make(self, ids: np.ndarray | None = None) -> None:
        """Create the table that is copied; its original rows are read back through the client, which may round."""
        self.first.mkdir()
        self.kind.make(self.first, self.ids if ids is None else ids, self.rows, self.kinds)
        if ids is None:
            for some, rows in self.kind.read(self.first, "old"):
                self.rows[self.row_of[some]] = rows
            self.wanted = self.map(self.ids, self.rows, self.kinds)

    def copy(self) -> Path:
        place = (self.disk or self.scratch) / f"copy{self.totals['copies']}"
        self.totals["copies"] += 1
        self.kind.copy(self.first, place)
        self.mapping.save(place / "map")
        return place

    def start(self, place: Path, *hooks: tuple[str, int, str], **task: Any) -> Any:
        self.result.unlink(missing_ok=True)
        given = (self.kind.application(place), Task(place, hooks=hooks, **task), self.result)
        process = CONTEXT.Process(target=migrate, args=given)
        process.start()
        return process

    def error(self) -> tuple[str, str]:
        """Return the type and the message of the error with which the last process ended."""
        name, said = json.loads(self.result.read_text()) if self.result.exists() else ("none of ours", "")
        return name, said

    def finish(self, place: Path, *hooks: tuple[str, int, str], **task: Any) -> None:
        """Resume a migration, which must succeed."""
        process = self.start(place, *hooks, **task)
        process.join()
        if process.exitcode:
            raise SystemExit(f"ended with {process.exitcode}: {self.error()}")

    def seen(self, place: Path) -> str:
        """Return what readers see: ``old`` or ``new`` if they see the old or the new vectors of all rows, ``nothing``,
        or ``mixed``.
        """
        count, sides = 0, {"old", "new"}
        try:
            for ids, rows in self.kind.read(place, "shown"):
                at = self.row_of[ids]
                sides -= {"old"} if "old" in sides and differ(rows, self.rows[at]) else set()
                sides -= {"new"} if "new" in sides and others(rows, self.wanted[at]) else set()
                count += len(ids)
        except Exception as error:
            print(f"readers: {type(error).__name__} {error}", flush=True)
            found = "nothing"
        else:
            found = sides.pop() if len(sides) == 1 and count == len(self.ids) else "mixed"
        self.totals[f"readers saw {found}"] += 1
        return found

    def count(
        self, place: Path, ids: np.ndarray, rows: np.ndarray, wanted: np.ndarray, *, switched: bool = False
    ) -> None:
        """Add the numbers of lost, duplicated, wrong and changed rows to the totals, compared with the expected
        rows.
        """
        row_of = np.full(int(ids.max()) + 1, -1)
        row_of[ids] = np.arange(len(ids))
        for side, expected, wrong, word in (
            ("old", rows, differ, "changed originals"),
            ("new", wanted, others, "wrong"),
        ):
            found = np.zeros(len(ids), int)
            for some, block in self.kind.read(place, side, switched):
                at = np.where(some < len(row_of), row_of[np.minimum(some, len(row_of) - 1)], -1)
                there = at >= 0
                self.totals["doubled"] += int((~there).sum())  # rows that should not exist
                np.add.at(found, at[there], 1)
                self.totals[word] += wrong(block[there], expected[at[there]])
            self.totals["lost"] += int((found == 0).sum())
            self.totals["doubled"] += int((found > 1).sum())

    def count_all(self, place: Path) -> None:
        self.count(place, self.ids, self.rows, self.wanted)

    def report(self, what: str) -> None:
        print(f"{what}: { {key: self.totals[key] for key in COUNTED} }", flush=True)


def differ(rows: np.ndarray, expected: np.ndarray) -> int:
    """Count rows that differ in any bit."""
    rows, expected = (np.ascontiguousarray(one, np.float32).view(np.uint32) for one in (rows, expected))
    return int((rows != expected).any(axis=1).sum()) if rows.shape == expected.shape else len(rows)


def others(rows: np.ndarray, expected: np.ndarray) -> int:
    """Count rows that differ by more than rounding."""
    from congruence.upgrade.migrate.quantize import Quantizer

    differs = Quantizer("float32", expected.shape[1]).differs
    return int(differs(rows, expected).sum()) if rows.shape == expected.shape else len(rows)


# ---- the faults
# ----------------------------------------------------------------------------------------------------------


def kill(bench: Bench, options: argparse.Namespace) -> dict[str, Any]:
    bench.make()
    place, trace = bench.copy(), bench.scratch / "trace"
    bench.finish(place, trace=trace)
    bench.count_all(place)
    bench.kind.remove(place)
    lines = [one.split(" ", 1) for one in trace.read_text().splitlines()]
    steps, total = [name for _, name in lines], float(lines[-1][0])
    bench.report(f"no fault, {len(steps)} steps, {total:.1f} s of processor time")
    one_migration = bench.copy() if options.chain else None
    points: list[tuple[str, dict[str, Any]]] = []
    for name, number in chosen(steps, options.points, options.chain):
        points.append((f"{name} {number}", {"hooks": ((name, number, "kill"),)}))
    for seconds in np.sort(np.random.default_rng(2).uniform(0, total, options.random)):
        points.append((f"after {seconds:.2f} s", {"seconds": float(seconds)}))
    for what, task in points:
        place = one_migration or bench.copy()
        process = bench.start(place, *task.pop("hooks", ()), again=options.chain, **task)
        process.join()
        # A run that is slightly faster than the traced one may end before the signal arrives.
        bench.totals["kills"] += process.exitcode in (-signal.SIGKILL, -signal.SIGPROF)
        found = bench.seen(place)
        if one_migration is None:
            bench.finish(place)
            bench.count_all(place)
            bench.kind.remove(place)
        bench.report(f"{what} (ended with {process.exitcode}), readers see {found}")
    if one_migration is not None:
        bench.finish(one_migration)
        bench.count_all(one_migration)
    for ids, rows in bench.kind.read(bench.first, "old"):  # the copies share files with it
        bench.totals["changed originals"] += differ(rows, bench.rows[bench.row_of[ids]])
    return {"steps": len(steps), "points": len(points), "kills": bench.totals["kills"]}


def chosen(steps: list[str], which: str, chain: bool) -> list[tuple[str, int]]:
    """Return the steps at which to kill, each with its occurrence number among steps of the same name."""
    points: list[tuple[str, int]] = []
    for name in dict.fromkeys(steps):
        last, what = steps.count(name) - 1, name.split(" ", 1)[1]
        if which == "all" or name == "after journal filling":
            numbers = sorted({0, (last + 1) // 2, last})
        elif what.startswith("journal") and what != "journal filling":
            numbers = [0]
        else:
            numbers = [] if what in STEPS or what == "journal filling" else [(last + 1) // 2]
        # In a chain, every process performs each step for the first time.
        points += [(name, number) for number in (numbers[:1] and [0] if chain else numbers)]
    return points


@contextmanager
def disk(path: Path, size: str) -> Iterator[Path]:
    """Mount a separate file system in memory. Needs root."""
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)], check=True)
    try:
        path.chmod(0o755)
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def disk_full(bench: Bench, options: argparse.Namespace) -> dict[str, Any]:
    from congruence.upgrade.migrate.journal import Journal

    assert bench.disk is not None
    bench.make()
    errors: Counter[str] = Counter()
    points = [("after write", 1), ("before flush", 2), ("before build_index", 0), ("before switch", 0)]
    for name, number in points:
        place = bench.copy()
        process = bench.start(place, (name, number, "fill"))
        process.join()
        error, said = bench.error()
        errors[error] += 1
        server = getattr(bench.kind, "server", None)
        stopped = server is not None and server.process.poll() is not None
        (bench.disk / "ballast").unlink()
        if stopped:
            bench.totals["server stopped"] += 1
            server.start()
        found = bench.seen(place)
        journal = Journal.read(place / "journal")
        bench.totals["journals"] += journal is not None
        print(f"{name}: {process.exitcode} {error}: {said}; readers see {found}, server stopped: {stopped}", flush=True)
        bench.finish(place)
        bench.count_all(place)
        bench.report(f"full {name} (ended with {process.exitcode})")
        bench.kind.remove(place)
    kept = {key: bench.totals[key] for key in ("journals", "server stopped")}
    return {"points": len(points), "errors": dict(errors), **kept}


def server_restart(bench: Bench, options: argparse.Namespace) -> dict[str, Any]:
    bench.make()
    place = bench.copy()
    names = [f"{when} {step}" for step in STEPS for when in ("before", "after")]
    process = bench.start(place, *((name, 1 if "write" in name or "flush" in name else 0, "restart") for name in names))
    while process.is_alive():
        if (place / "restart").exists():
            (place / "restart").unlink()
            bench.kind.restart()
            bench.totals["restarts"] += 1
        time.sleep(0.002)
    if process.exitcode:
        raise SystemExit(f"ended with {process.exitcode}: {bench.error()}")
    bench.count_all(place)
    passes = json.loads((place / "journal" / "journal.json").read_text())["passes"]
    bench.report(f"{bench.totals['restarts']} restarts")
    return {"restarts": bench.totals["restarts"], "repaired": sum(one["written"] for one in passes)}


def concurrent_writes(bench: Bench, options: argparse.Namespace) -> dict[str, Any]:
    bench.make()
    place, n = bench.copy(), len(bench.ids)
    other = np.roll(bench.rows, 1, axis=0) * np.float32(-1)
    writer = CONTEXT.Process(target=write_meanwhile, args=(bench.kind.application(place), place, n, other[: n // 2]))
    writer.start()
    bench.finish(place, until="verified")
    writer.join()
    during = writes(place)
    for k in range(during, during + 20):  # between verification and switch
        change(bench.kind, place, n, k, other)
    bench.finish(place, until="switched")
    done = np.arange(during + 20)
    rows, kinds = bench.rows.copy(), bench.kinds.copy()
    rows[bench.row_of[2 * done]] = other[2 * done + 1]
    left = np.ones(n, bool)
    left[bench.row_of[2 * done + 1]] = False
    ids = np.concatenate([bench.ids[left], n + done])
    rows = np.concatenate([rows[left], other[2 * done]])
    wanted = bench.map(ids, rows, np.concatenate([kinds[left], np.full(len(done), "text")]))
    bench.count(place, ids, rows, wanted, switched=True)
    bench.finish(place)  # its rollback compares checksums
    bench.count(place, ids, rows, wanted)
    passes = json.loads((place / "journal" / "journal.json").read_text())["passes"]
    repaired = {key: sum(one[key] for one in passes) for key in ("written", "removed")}
    bench.report(f"{3 * len(done)} writes, {repaired}")
    return {"writes during the run": 3 * during, "before the switch": 60, **repaired}


def duplicate_ids(bench: Bench, options: argparse.Namespace) -> dict[str, Any]:
    ids = bench.ids.copy()
    ids[1::100] = ids[::100][: len(ids[1::100])]
    bench.make(ids)
    place = bench.copy()
    before = digest(place)
    process = bench.start(place)
    process.join()
    error, said = bench.error()
    untouched = digest(place) == before and not (place / "journal").exists()
    print(f"{process.exitcode} {error}: {said}; untouched: {untouched}", flush=True)
    return {"repeated": int(len(ids) - len(np.unique(ids))), "error": error, "untouched": untouched}


def digest(place: Path) -> str:
    """Return a digest of all files of a folder and their names."""
    result = hashlib.sha256()
    for path in sorted(one for one in place.rglob("*") if one.is_file()):
        result.update(str(path.relative_to(place)).encode() + path.read_bytes())
    return result.hexdigest()


FAULTS = {
    "kill": kill, "disk-full": disk_full, "server-restart": server_restart, "concurrent-writes": concurrent_writes,
    "duplicate-ids": duplicate_ids,
}  # fmt: skip


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("kind", choices=sorted(KINDS))
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--fault", choices=sorted(FAULTS), default="kill")
    parser.add_argument("--points", choices=("all", "states"), default="all", help="steps to kill at")
    parser.add_argument("--chain", action="store_true", help="kill a single migration repeatedly")
    parser.add_argument("--random", type=int, default=0, help="number of further kills at random times")
    options = parser.parse_args()
    rows, kinds, mapping = vectors(options.rows)
    ids = np.random.default_rng(1).permutation(options.rows)
    CONTEXT.set_forkserver_preload(["fault_process", "congruence.upgrade.migrate", *KINDS[options.kind].modules])
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        scratch = Path(folder)
        scratch.chmod(0o755)
        full = options.fault == "disk-full"
        room = stack.enter_context(disk(scratch / "disk", "1G")) if full else None
        kind = KINDS[options.kind](room)
        stack.callback(kind.close)
        bench = Bench(kind, scratch, ids, rows, kinds, mapping, room)
        result = FAULTS[options.fault](bench, options)
        saw = {key: value for key, value in bench.totals.items() if key.startswith("readers saw")}
    results = {"kind": options.kind, "rows": options.rows, "fault": options.fault, **result, **saw}
    results |= {key: bench.totals[key] for key in COUNTED}
    print(results)
    write_json(options, results)


if __name__ == "__main__":
    main()
