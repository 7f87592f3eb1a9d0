"""Records of the jobs that take minutes or hours: run the commands, keep their JSON in ``docs/numbers``."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

from measured.blocks import ROOT, Block, Job

FOLDER = ROOT / "docs" / "numbers"
_CONGRUENCE = "import sys; from congruence.cli import main; sys.exit(main())"


def path_of(job: Job) -> Path:
    return FOLDER / f"{job.name}.json"


def read(job: Job) -> dict[str, Any] | None:
    """Return a job's record, or None if it has not been run."""
    path = path_of(job)
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def results(job: Job) -> list[Any]:
    """Return the results of the job's commands, in order."""
    record = read(job)
    return [run["results"] for run in record["runs"]] if record else []


def stale(job: Job, record: dict[str, Any]) -> bool:
    """Return whether a record was made by other commands than those of the job now."""
    return [run["command"] for run in record["runs"]] != list(job.commands)


def run(command: str, keep: Any) -> dict[str, Any]:
    """Run one command in the root of the repository and return its record."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        words = [str(out) if word == "OUT" else word.replace("SCRATCH", folder) for word in shlex.split(command)]
        started = [sys.executable, "-c", _CONGRUENCE] if words[0] == "congruence" else [sys.executable]
        start, before = time.perf_counter(), _processor()
        done = subprocess.run(
            [*started, *words[1:]],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])},
            capture_output=True,
            text=True,
            check=False,
        )
        seconds, processor = time.perf_counter() - start, _processor() - before
        if done.returncode:
            raise RuntimeError(f"{command} ended with {done.returncode}:\n{done.stderr[-2000:]}")
        if "OUT" in shlex.split(command):
            text = (out / "results.json" if out.is_dir() else out).read_text(encoding="utf-8")
        else:
            text = done.stdout
        given = json.loads(text.replace(folder, "SCRATCH"))  # the folder's name is specific to this run and machine
    return {
        "command": command,
        "seconds": round(seconds, 1),
        "processor_seconds": round(processor, 1),
        "results": keep(given),
    }


def _processor() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _place(command: str) -> Path:
    """Return where a command's results are kept until its job is complete: a name derived from the command and the sources."""
    key = hashlib.sha256(f"{command}\n{_git('rev-parse', 'HEAD:src')}".encode()).hexdigest()
    return ROOT / "build" / "numbers" / f"{key[:20]}.json"


def _once(command: str, keep: Any) -> dict[str, Any]:
    """Run a command, or return its results from before the job was interrupted, since some jobs take hours."""
    place = _place(command)
    if place.is_file():
        return json.loads(place.read_text(encoding="utf-8"))
    done = run(command, keep)
    if not _git("status", "--porcelain", "src"):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps(done), encoding="utf-8")
    return done


def make(job: Job) -> dict[str, Any]:
    """Run all commands of a job."""
    load = os.getloadavg()[0]
    runs = [_once(command, job.keep) for command in job.commands]
    for command in job.commands:
        _place(command).unlink(missing_ok=True)
    from congruence import __version__

    return {
        "job": job.name,
        "date": date.today().isoformat(),
        "congruence": __version__,
        "commit": _git("rev-parse", "--short", "HEAD") + ("+changes" if _git("status", "--porcelain", "src") else ""),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}",
        "threads": os.environ.get("OMP_NUM_THREADS", "all"),
        "load_before": round(load, 1),
        "runs": runs,
    }


def write(job: Job, record: dict[str, Any]) -> None:
    """Write a record, its innermost lists and objects on one line each."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    path_of(job).write_text(dense(record) + "\n", encoding="utf-8")


def dense(value: Any, depth: int = 0) -> str:
    """Return JSON in which values that fit on a line of 160 characters are written on one line."""
    line = json.dumps(value, ensure_ascii=False)
    if len(line) + depth <= 160 or not isinstance(value, dict | list) or not value:
        return line
    pad, end = " " * (depth + 1), " " * depth
    if isinstance(value, dict):
        inner = (f"{json.dumps(k, ensure_ascii=False)}: {dense(v, depth + 1)}" for k, v in value.items())
        return "{\n" + ",\n".join(pad + text for text in inner) + f"\n{end}}}"
    return "[\n" + ",\n".join(pad + dense(v, depth + 1) for v in value) + f"\n{end}]"


def written(block: Block) -> str:
    """Return the current text of a block: measured, or rendered from the record."""
    return block.write(results(block.job)) if block.job else block.write()


def last_run(block: Block) -> str:
    """Return when the numbers of a block were measured."""
    if block.job is None:
        return "by each test"
    record = read(block.job)
    return f"{record['date']}, {record['congruence']} ({record['commit']})" if record else "no record"


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
