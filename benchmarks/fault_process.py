"""The processes of ``migrate_faults.py``: one that migrates and can be killed at a given step, and one that writes at
the same time.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np

from fault_databases import Kind

STEPS = ("prepare", "write", "revise", "take", "flush", "build_index", "switch", "rollback")


@dataclass(frozen=True)
class Task:
    """Task of a process that runs a migration.

    Attributes
    ----------
    place : Path
        Folder with the map and the journal, and with the table if it consists of files.
    until : {"verified", "switched", "rolled back"}
        Last state to reach.
    hooks : tuple of (str, int, str)
        A step, its occurrence number among steps of the same name, and the action: ``kill``, ``fill`` (the disk), or
        the name of a file to create.
    trace : Path or None
        File to which one line per step is written, with the processor time so far.
    seconds : float
        Processor time after which a signal ends the process; 0 for never.
    again : bool
        Verify and switch again if the migration was rolled back.
    """

    place: Path
    until: str = "rolled back"
    hooks: tuple[tuple[str, int, str], ...] = ()
    trace: Path | None = None
    seconds: float = 0.0
    again: bool = False


def migrate(kind: Kind, task: Task, report: Path) -> None:
    """Run, verify, switch and roll back, starting from the current state; write a CongruenceError to a file, and exit
    with 3.
    """
    from congruence.databases import open_database
    from congruence.errors import CongruenceError
    from congruence.maps import load
    from congruence.upgrade.migrate import Migration, passes
    from congruence.upgrade.migrate import verify as checks
    from congruence.upgrade.migrate.journal import Journal

    passes.CHECKPOINT_SECONDS = 0.0  # write the journal after each block, so that steps do not depend on the clock
    checks.QUERIES = 8
    place = task.place
    seen: Counter[str] = Counter()
    todo = {(name, number): what for name, number, what in task.hooks}
    log = open(task.trace, "a", encoding="utf-8") if task.trace else None

    def step(name: str) -> None:
        if log is not None:
            log.write(f"{time.process_time():.3f} {name}\n")
            log.flush()
        what = todo.get((name, seen[name]))
        seen[name] += 1
        if what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif what == "fill":
            fill_disk(place.parent / "ballast")
        elif what is not None:
            (place / what).touch()

    def watched(name: Callable[..., str], call: Callable[..., Any]) -> Any:
        def run(*arguments: Any, **options: Any) -> Any:
            step(f"before {name(*arguments)}")
            result = call(*arguments, **options)
            step(f"after {name(*arguments)}")
            return result

        return run

    def rest(words: str) -> None:
        """Let the other process write before the first comparing pass; then make it stop, so that a pass can find no
        differences.
        """
        if task.until == "verified" and words == "comparing, pass 1":
            before = writes(place)
            while writes(place) < before + 2:
                time.sleep(0.01)
        elif task.until == "verified" and words == "comparing, pass 2":
            (place / "rest").touch()
            while not (place / "rested").exists():
                time.sleep(0.01)

    if task.seconds:
        signal.setitimer(signal.ITIMER_PROF, task.seconds)
    try:
        database = open_database(kind.where(place), **kind.options())
        for one in STEPS:
            setattr(database, one, watched(lambda *_, one=one: one, getattr(database, one)))
        for one in kind.inner:
            owner, _, name = one.rpartition(".")
            parent = resolve_name(owner)
            setattr(parent, name, watched(lambda *_, name=name: name.strip("_"), getattr(parent, name)))
        Journal.write = watched(lambda journal, _: f"journal {journal.state}", Journal.write)  # type: ignore[method-assign]
        with Migration(database, load(place / "map"), journal=place / "journal") as migration:
            state = migration.status().get("state")
            if state in (None, "filling"):
                migration.run(resume=state is not None, stage=rest)
            if migration.journal.state == "filled" or (state == "rolled back" and task.again):
                found = migration.verify()
                if not found.passed:
                    raise SystemExit(f"does not verify: {found.problems}")
            if migration.journal.state in ("verified", "switched") and task.until != "verified":
                migration.switch()
            if migration.journal.state == "switched" and task.until == "rolled back":
                restored = migration.rollback()
                if not restored["identical"]:
                    raise SystemExit("the old vectors changed")
    except CongruenceError as error:
        report.write_text(json.dumps([type(error).__name__, str(error)]))
        raise SystemExit(3) from error


def fill_disk(path: Path) -> None:
    """Fill the disk to the last byte."""
    with open(path, "wb", buffering=0) as file:
        for size in (2**20, 2**12, 1):
            try:
                while file.write(bytes(size)) == size:
                    pass
            except OSError:
                continue


def writes(place: Path) -> int:
    """Return the number of writes of the other process."""
    log = place / "accepted"
    return len(log.read_text(encoding="utf-8").split()) if log.exists() else 0


def write_meanwhile(application: Kind, place: Path, n: int, rows: np.ndarray) -> None:
    """Write row after row like another application, until told to stop."""
    for k in range(len(rows) // 4):
        if (place / "rest").exists():
            break
        change(application, place, n, k, rows)
        time.sleep(0.05)
    (place / "rested").touch()


def change(application: Kind, place: Path, n: int, k: int, rows: np.ndarray) -> None:
    """Add a row, change the vector of another, delete a third, and record that all three were accepted."""
    application.change(place, [(n + k, rows[2 * k], "text")], [(2 * k, rows[2 * k + 1])], [2 * k + 1])
    with open(place / "accepted", "a", encoding="utf-8") as log:
        log.write(f"{k}\n")
