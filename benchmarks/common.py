"""What the benchmarks share: their arguments, results as JSON, arms that run in turn or in processes of their own, and
memory.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")
RECORDS = Path(__file__).parent / "records"
STARTED, LOAD = time.time(), os.getloadavg()[0]


def arguments(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with a benchmark's description and ``--json``, for ``write_json``."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers to this file")
    parser.add_argument("--record", metavar="NAME", help="also write the numbers, the command and its cost to records/")
    return parser


def write_json(options: argparse.Namespace, results: Any) -> None:
    """Write the arguments and the results to the file of ``--json`` and to the record, if given, with infinities and
    NaN as null.
    """
    left_out = ("json", "record", "child", "folder", "python")
    given = {
        name: value for name, value in vars(options).items() if name not in left_out and not isinstance(value, Path)
    }
    content = _plain({"arguments": given, "results": results})
    if options.json is not None:
        _write(options.json, content)
    if options.record is not None:
        _write(RECORDS / f"{options.record}.json", _record(options.record, content))


def _record(name: str, content: Any) -> dict[str, Any]:
    """Return the record of a job with this run in place of an earlier one of the same command."""
    words = sys.argv[1:]
    for flag in ("--record", "--json"):
        if flag in words:
            del words[words.index(flag) : words.index(flag) + 2]
    command = shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *words, "--json", "OUT"])
    spent = os.times()
    run = {
        "command": command,
        "seconds": round(time.time() - STARTED, 1),
        "processor_seconds": round(sum(spent[:4]), 1),
        "results": content,
    }
    file = RECORDS / f"{name}.json"
    runs = json.loads(file.read_text(encoding="utf-8"))["runs"] if file.exists() else []
    at = next((i for i, one in enumerate(runs) if one["command"] == command), len(runs))
    commit = subprocess.run(["git", "rev-parse", "--short=8", "HEAD"], cwd=RECORDS, capture_output=True, text=True)
    return {
        "job": name,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "congruence": version("congruence"),
        "commit": commit.stdout.strip(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}",
        "threads": os.environ.get("OMP_NUM_THREADS", ""),
        "load_before": round(LOAD, 1),
        "runs": [*runs[:at], run, *runs[at + 1 :]],
    }


def _write(file: Path, content: Any) -> None:
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    file.write_text(text + "\n", encoding="utf-8")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, np.ndarray | list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, bool | int | float | str | None) else str(value)


def arrays(path: str | Path) -> dict[str, np.ndarray]:
    """Return the arrays of a .npz file by name."""
    with np.load(path, allow_pickle=False) as data:
        return {key: data[key] for key in data.files}


def unit(rows: np.ndarray, dtype: Any = np.float64) -> np.ndarray:
    """Return rows scaled to unit norm in float64, as another type if one is given."""
    rows = np.asarray(rows, np.float64)
    return np.asarray(rows / np.linalg.norm(rows, axis=-1, keepdims=True), dtype)


def in_turn(arms: Mapping[str, Callable[[], T]], repeat: int) -> dict[str, list[T]]:
    """Return what each arm returns, run in turn, so that other load on the machine affects all alike."""
    found: dict[str, list[T]] = {name: [] for name in arms}
    for _ in range(repeat):
        for name, arm in arms.items():
            found[name].append(arm())
    return found


def in_process(file: str, *given: object, **options: Any) -> dict[str, Any]:
    """Return the JSON that a benchmark prints last when it is run with these arguments in a process of its own."""
    command = [sys.executable, file, *map(str, given)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, **options)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def seconds_of(job: Callable[[], Any]) -> float:
    """Return the seconds that a job takes."""
    start = time.perf_counter()
    job()
    return time.perf_counter() - start


def print_measured(measure: Callable[[], Any]) -> None:
    """Run a job, and print its value, seconds and peak memory, and the memory before it, as JSON for ``in_process``."""
    rest, start = peak_mb(), time.perf_counter()
    value = measure()
    seconds = time.perf_counter() - start
    print(json.dumps({"value": value, "seconds": seconds, "peak_mb": peak_mb(), "rest_mb": rest}))


def ratios(found: Mapping[str, list[dict[str, Any]]], other: str, key: str) -> list[float]:
    """Return how many times more another arm than "ours" takes of something, in each round."""
    return [theirs[key] / ours[key] for theirs, ours in zip(found[other], found["ours"], strict=True)]


class Clock:
    """Measures wall-clock and processor seconds, and memory, of this process and of a server."""

    def __init__(self, server: int | None) -> None:
        self.server = server
        self.parts: dict[str, dict[str, float]] = {}

    def _processor(self) -> float:
        return time.process_time() + (processor_of(self.server) if self.server else 0)

    def __call__(self, name: str, step: Callable[[], Any]) -> Any:
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        rest, seconds, cpu = current_mb(), time.perf_counter(), self._processor()
        found = step()
        self.parts[name] = {
            "seconds": time.perf_counter() - seconds,
            "cpu": self._processor() - cpu,
            "mb": peak_mb() - rest,
        }
        return found


def processor_of(server: int) -> float:
    """Return the processor seconds of a server and its processes, including those that have ended."""
    ticks = 0
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = place.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(place.parent.name) == server:
            ticks += sum(map(int, fields[11:15]))
        elif int(fields[1]) == server:
            ticks += sum(map(int, fields[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def peak_mb() -> float:
    """Return the peak memory of this process; a child's ``ru_maxrss`` would begin at its parent's value."""
    return _status("VmHWM")


def current_mb() -> float:
    """Return the memory in use by this process."""
    return _status("VmRSS")


def _status(name: str) -> float:
    return int(re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024  # type: ignore[index]
