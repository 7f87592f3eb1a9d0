"""Times compared with other libraries in one run: with one thread and with two, on an idle machine and next to a
process that keeps a core busy.

Every implementation runs in a long-lived process of its own; imports and a first call are not measured. A round calls
each in turn, and ratios are taken within a round, so that other load on the machine affects all alike; the median over
rounds is reported with the range. Times are wall-clock times, since waiting time is what matters. ``--spinners 1``
starts a process that computes without end. Without spinners, a load average above 0.5 at the start is recorded, and the
run does not count as idle.

``--python .venv-peers/bin/python`` runs all by an interpreter that has the peers besides: POT, geomloss 0.3.1, ott-jax,
isotrieve 0.4.0, drift-spark 0.5.0. Those that are not installed are left out, by name.
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

import bench_klot
import peers
from machine_output import add_json, write_json

ROOT = Path(__file__).resolve().parents[1]
#: Maximum load average at which a run without spinners counts as a run on an idle machine.
IDLE = 0.5
#: Rows, iterations and rounds, chosen so that a run takes a few minutes.
SIZES = ((1000, 100, 3), (4000, 10, 1), (10_000, 3, 1))
NEEDS = {"pot": "ot", "pot_numpy": "ot", "geomloss": "geomloss", "ott": "ott"}


# ------------------------------------------------------------------ what is measured


def load(folder: Path, *names: str) -> list[Any]:
    import torch

    return [torch.from_numpy(np.load(folder / f"{name}.npy")) for name in names]


def ott(X: Any, Y: Any, TX: Any, TY: Any, max_iter: int) -> Any:
    """ott-jax: plans of its log-domain solver, with the explicit gradient."""
    import jax
    import torch
    from ott.geometry import geometry
    from ott.solvers.linear import sinkhorn

    @jax.jit
    def plan(X: Any, Y: Any, epsilon: float) -> Any:
        geom = geometry.Geometry(cost_matrix=-X @ Y.T, epsilon=epsilon)
        problem = sinkhorn.linear_problem.LinearProblem(geom)
        solver = sinkhorn.Sinkhorn(threshold=-1.0, min_iterations=max_iter, max_iterations=max_iter)
        out = solver(problem)
        return (X @ Y.T + out.f[:, None] + out.g) / epsilon

    log_p, log_q = (
        torch.from_numpy(np.array(plan(a.numpy(), b.numpy(), e)))
        for a, b, e in ((X, Y, bench_klot.EPSILON), (TX, TY, bench_klot.EPSILON_TEACHER))
    )
    value, slope = bench_klot.explicit(log_p, log_q)
    return value, slope @ Y, slope.T @ X


def transport(who: str, folder: Path, max_iter: int) -> Callable[[], float]:
    """KLOT's value and its gradients with respect to the vectors."""
    way = {**bench_klot.WAYS, "ott": ott}[who]
    sides = load(folder, "X", "Y", "TX", "TY")
    return lambda: float(way(*(side.clone() for side in sides), max_iter)[0])


def forward(who: str, folder: Path, max_iter: int) -> Callable[[], float]:
    """KLOT's value alone, computed from affinities."""
    from congruence.transport import klot

    X, Y, TX, TY = load(folder, "X", "Y", "TX", "TY")
    A, T = X @ Y.T, TX @ TY.T
    if who == "forward":
        return lambda: float(klot(A, T, max_iter=max_iter))

    def plain() -> float:
        plans = (
            bench_klot.log_plan(M, e, max_iter) for M, e in ((A, bench_klot.EPSILON), (T, bench_klot.EPSILON_TEACHER))
        )
        return float(bench_klot.explicit(*plans)[0])

    return plain


def plans(who: str, folder: Path, max_iter: int) -> Callable[[], float]:
    """One plan of a NumPy matrix, ε = 0.05."""
    A = np.load(folder / "X.npy") @ np.load(folder / "Y.npy").T
    if who == "sinkhorn":
        from congruence.transport import sinkhorn

        return lambda: float(np.sum(sinkhorn(A, bench_klot.EPSILON, max_iter).u))
    import ot

    w = np.full(len(A), 1 / len(A), A.dtype)

    def pot() -> float:
        _, log = ot.bregman.sinkhorn_log(
            w, w, -A, bench_klot.EPSILON, numItermax=max_iter, stopThr=0, warn=False, log=True
        )
        return float(np.sum(log["log_u"]))

    return pot


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
    "forward": forward,
    "transport": transport,
    "plans": plans,
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
    left_out = {who for who, module in NEEDS.items() if not has(options, module)}
    results: list[dict] = []

    def there(*ways: str) -> list[str]:
        return [who for who in ways if who not in left_out]

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if "forward" in options.tables:
            bench_klot.write_problem(folder, 2500, 256)
            results.append(
                measure(options, "forward", ["forward"], folder, 100, options.rounds, rows=2500, iterations=100)
            )
            results.append(measure(options, "forward", ["plain"], folder, 2, 1, rows=2500, iterations=2))
        if "transport" in options.tables:
            for n, iterations, rounds in SIZES:
                if n > options.most:
                    continue
                bench_klot.write_problem(folder, n, 256)
                ways = there("dense", "features", "plain", "pot", "geomloss", "ott")
                about = {"rows": n, "iterations": iterations}
                results.append(
                    measure(options, "transport", ways, folder, iterations, min(rounds, options.rounds), **about)
                )
                results.append(
                    measure(
                        options,
                        "plans",
                        there("sinkhorn", "pot_numpy"),
                        folder,
                        iterations,
                        min(rounds, options.rounds),
                        **about,
                    )
                )
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
    return [{"left_out": sorted(left_out)}, *results]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", nargs="+", choices=["forward", "transport", "neighbors", "certify", "maps"],
                        default=["forward", "transport", "neighbors", "certify", "maps"])  # fmt: skip
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--spinners", type=int, default=0, help="number of processes that each keep a core busy")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of measurements that take less than a second")
    parser.add_argument("--most", type=int, default=10_000, help="number of rows of the largest plans")
    parser.add_argument("--rows", type=int, default=20_000, help="number of rows whose neighbors are searched")
    parser.add_argument("--python", type=Path, default=Path(sys.executable))
    parser.add_argument("--child", nargs=2)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--number", type=int)
    add_json(parser)
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
