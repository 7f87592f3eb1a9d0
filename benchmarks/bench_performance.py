"""Times compared with other libraries in one run: with one thread and with two, on an idle machine and next to a
process that keeps a core busy.

Every implementation runs in a long-lived process of its own; imports and a first call are not measured. A round calls
each in turn, and ratios are taken within a round, so that other load on the machine affects all alike; the median over
rounds is reported with the range. Times are wall-clock times, since waiting time is what matters. ``--spinners 1``
starts a process that computes without end. Without spinners, a load average above 0.5 at the start is recorded, and the
run does not count as idle.

``--python .venv-peers/bin/python`` runs all by an interpreter that has the peers besides: isotrieve 0.4.0, drift-spark
0.5.0. Those that are not installed are left out, by name.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import peers
from common import arguments, write_json

ROOT = Path(__file__).resolve().parents[1]
#: Maximum load average at which a run without spinners counts as a run on an idle machine.
IDLE = 0.5


# ------------------------------------------------------------------ what is measured


def load(folder: Path, *names: str) -> list[Any]:
    import torch

    return [torch.from_numpy(np.load(folder / f"{name}.npy")) for name in names]


def neighbors(who: str, folder: Path, k: int) -> Callable[[], float]:
    """mutual_knn, and its definition on full matrices."""
    import torch

    from congruence.metrics import mutual_knn

    X, Y = np.load(folder / "X.npy"), np.load(folder / "Y.npy")
    if who == "mutual_knn":
        return lambda: mutual_knn(X, Y, k)

    def full() -> float:
        tables = []
        for Z in (torch.from_numpy(X), torch.from_numpy(Y)):
            tables.append((Z @ Z.T).fill_diagonal_(-1e8).argsort(dim=1, descending=True)[:, :k].clone())
        masks = [torch.zeros(len(X), len(X), dtype=torch.bool).scatter_(1, table, True) for table in tables]
        return float((masks[0] & masks[1]).sum() / (len(X) * k))

    return full


def certified(who: str, folder: Path, _: int) -> Callable[[], float]:
    from congruence import certify

    X, Y = np.load(folder / "X.npy"), np.load(folder / "Y.npy")
    return lambda: len(str(certify(X, Y, "orthogonal").verdict))


def fitted(who: str, folder: Path, held_out: int) -> Callable[[], float]:
    """Return a function that fits on pairs, maps the held-out rows, and returns the share that finds its own target row
    first.
    """
    X, Y = np.load(folder / "X.npy"), np.load(folder / "Y.npy")
    import congruence

    def run() -> float:
        if who in ("OrthogonalMap", "LinearMap"):
            made = {"OrthogonalMap": congruence.OrthogonalMap, "LinearMap": congruence.LinearMap}[who]()
            transform = made.fit(X[held_out:], Y[held_out:]).transform
        else:
            transform = peers.fitted(who, X[held_out:], Y[held_out:])
        Z = np.asarray(transform(X[:held_out]))
        return float(np.mean((Z @ Y[:held_out].T).argmax(axis=1) == np.arange(held_out)))

    return run


TABLES: dict[str, Callable[[str, Path, int], Callable[[], float]]] = {
    "neighbors": neighbors,
    "certify": certified,
    "maps": fitted,
}


def child(table: str, who: str, folder: Path, number: int) -> None:
    """Run once for every line on standard input."""
    sys.path.remove(str(ROOT / "benchmarks"))  # it contains drift.py, which would hide a peer package of that name
    run = TABLES[table](who, folder, number)
    for line in sys.stdin:
        if line.strip() == "warm" and table in ("neighbors", "certify"):
            print("{}", flush=True)  # too slow to be run twice
            continue
        start, busy = time.perf_counter(), time.process_time()
        value = run()
        print(
            json.dumps({"seconds": time.perf_counter() - start, "cpu": time.process_time() - busy, "value": value}),
            flush=True,
        )


# ------------------------------------------------------------------ problems


def write_spaces(folder: Path, n: int, d: int, latent: int = 64) -> None:
    """Write unit rows in two spaces: a latent times two random matrices, plus noise."""
    rng = np.random.default_rng(0)
    Z = rng.standard_normal((n, latent), dtype=np.float32)
    for name in "XY":
        A = Z @ rng.standard_normal((latent, d), dtype=np.float32) + 6 * rng.standard_normal((n, d), dtype=np.float32)
        np.save(folder / f"{name}.npy", A / np.linalg.norm(A, axis=1, keepdims=True))


# ------------------------------------------------------------------ rounds


class Way:
    """A process that runs one implementation repeatedly."""

    def __init__(self, python: Path, table: str, who: str, folder: Path, number: int, threads: int) -> None:
        flags = "--xla_cpu_multi_thread_eigen=false" if threads == 1 else ""
        one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
        environment = {
            **os.environ,
            **one,
            "PYTHONPATH": str(ROOT / "src"),
            "XLA_FLAGS": flags,
            "PYTHONWARNINGS": "ignore",
        }
        command = [python, __file__, "--child", table, who, "--folder", folder, "--number", str(number)]
        self._process = subprocess.Popen(
            [*map(str, command)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env=environment
        )  # fmt: skip

    def ask(self, what: str = "run") -> dict[str, float] | None:
        """Return seconds, or None if the process has failed."""
        assert self._process.stdin
        assert self._process.stdout
        try:
            print(what, file=self._process.stdin, flush=True)
            line = self._process.stdout.readline()
        except BrokenPipeError:
            return None
        return json.loads(line) if line else None

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


def measure(
    options: argparse.Namespace, table: str, ways: list[str], folder: Path, number: int, rounds: int, **about: object
) -> dict:
    """Return the seconds of every implementation with each number of threads, by round."""
    every = [(who, threads) for who in ways for threads in options.threads]
    running = {key: Way(options.python, table, key[0], folder, number, key[1]) for key in every}
    seconds: dict[str, list[float]] = {}
    values: dict[str, float] = {}
    failed: list[str] = []
    try:
        for key in every:
            if running[key].ask("warm") is None:
                failed.append(f"{key[0]}, threads: {key[1]}")
        for _ in range(rounds):
            for who, threads in every:
                found = running[who, threads].ask()
                if found is not None:
                    seconds.setdefault(f"{who}, {threads}", []).append(found["seconds"])
                    values[who] = found["value"]
    finally:
        for way in running.values():
            way.end()
    result = {**about, "table": table, "first": ways[0], "seconds": seconds, "values": values, "failed": failed}
    show(result)
    return result


def show(result: dict) -> None:
    print("\n" + ", ".join(f"{k} {v}" for k, v in result.items() if k not in ("seconds", "values", "failed", "first")))
    for key, runs in result["seconds"].items():
        who, threads = key.rsplit(", ", 1)
        ratios = np.divide(runs, result["seconds"].get(f"{result['first']}, {threads}", runs))
        print(
            f"  {key:70s} {np.median(runs):8.3f} s ({min(runs):.3f} to {max(runs):.3f})   {np.median(ratios):6.2f} "
            f"× ours ({ratios.min():.2f} to {ratios.max():.2f})   {result['values'][who]:.5g}",
            flush=True,
        )
    for failed in result["failed"]:
        print(f"  {failed}: failed")


def spin() -> None:
    while True:
        pass


def has(options: argparse.Namespace, module: str) -> bool:
    command = [str(options.python), "-c", f"import {module}"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def run(options: argparse.Namespace) -> list[dict]:
    results: list[dict] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if "neighbors" in options.tables:
            write_spaces(folder, options.rows, 256)
            results.append(
                measure(options, "neighbors", ["mutual_knn", "full matrices"], folder, 10, 1, rows=options.rows)
            )
        if "certify" in options.tables:
            write_spaces(folder, 400, 1024)
            results.append(measure(options, "certify", ["certify"], folder, 0, 1, rows=400, dim=1024))
        if "maps" in options.tables:
            write_spaces(folder, 3000, 384)
            ways = [
                "OrthogonalMap",
                "LinearMap",
                *(place for _, package, place in peers.PEERS if has(options, package.split("-")[0])),
            ]
            results.append(measure(options, "maps", ways, folder, 1000, options.rounds, rows=3000, dim=384))
    return results


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--tables", nargs="+", choices=["neighbors", "certify", "maps"],
                        default=["neighbors", "certify", "maps"])  # fmt: skip
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--spinners", type=int, default=0, help="number of processes that each keep a core busy")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of measurements that take less than a second")
    parser.add_argument("--rows", type=int, default=20_000, help="number of rows whose neighbors are searched")
    parser.add_argument("--python", type=Path, default=Path(sys.executable))
    parser.add_argument("--child", nargs=2)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--number", type=int)
    options = parser.parse_args()
    if options.child:
        child(*options.child, options.folder, options.number)
        return
    begin, before = time.perf_counter(), os.getloadavg()[0]
    spinners = [multiprocessing.Process(target=spin, daemon=True) for _ in range(options.spinners)]
    for spinner in spinners:
        spinner.start()
    idle = not spinners and before <= IDLE
    print(
        f"load average at the start {before:.2f}, spinning processes {len(spinners)}"
        + ("" if idle or spinners else ": not an idle machine")
    )
    try:
        found = run(options)
    finally:
        for spinner in spinners:
            spinner.kill()
    about = {
        "load": before,
        "load_at_the_end": os.getloadavg()[0],
        "spinners": len(spinners),
        "idle": idle,
        "cores": len(os.sched_getaffinity(0)),
    }
    print(f"\n{time.perf_counter() - begin:.0f} s in all, load average at the end {os.getloadavg()[0]:.2f}")
    write_json(options, {**about, "tables": found})


if __name__ == "__main__":
    main()
