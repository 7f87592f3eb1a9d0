"""Every job beside the best alternative we know: processor time, spread and memory, in one run.

The arms of a row take turns in one process with one BLAS thread, so that other load on the machine affects all alike;
ratios are taken within a round, and their median and range over the rounds are shown; of long jobs there is one
round. Memory is the peak of a first
call above what the process used before. An alternative that does less than ours says so in its name. Jobs whose
alternative is a database or a trainer have benchmarks of their own (``migrate_copies.py``, ``klot.py``,
``bench_train.py``, ``bench_progressive.py``).

``--growth`` measures some jobs at growing sizes instead, and prints the exponents of time and memory in each, and what
ten million and a billion rows would cost by these.
"""

from __future__ import annotations

import ctypes
import gc
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import scipy.linalg
import scipy.stats

import congruence
from common import arguments, current_mb, peak_mb, write_json
from congruence import LinearMap, OrthogonalMap
from congruence.compare.pairing import check_pairing
from congruence.metrics import (
    BETWEEN_SPACES,
    between_spaces,
    cca,
    cknna,
    linear_cka,
    mutual_knn,
    procrustes_distance,
    rbf_cka,
    rsa,
)
from congruence.transport import sliced_wasserstein_sphere

Arms = dict[str, Callable[[], object]]

#: Seconds from which the first calls of a row let one round be enough.
LONG = 30


def spaces(n: int, d: int, e: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return unit float32 rows in clusters, and the same rows turned into ``e`` dimensions, with noise."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d), dtype=np.float32) * np.arange(1, d + 1, dtype=np.float32) ** -0.25
    X += rng.standard_normal((max(2, n // 50), d), dtype=np.float32)[rng.integers(max(2, n // 50), size=n)]
    turn = np.linalg.qr(rng.standard_normal((max(d, e), max(d, e))))[0].astype(np.float32)[:d, :e]
    Y = X @ turn + 0.3 * rng.standard_normal((n, e), dtype=np.float32)
    return tuple(A / np.linalg.norm(A, axis=1, keepdims=True) for A in (X, Y))  # type: ignore[return-value]


# ------------------------------------------------------------------ pages of NumPy


def plain_procrustes(X: np.ndarray, Y: np.ndarray) -> np.ndarray:
    """SciPy in the precision of the rows; it wants equal widths."""
    X = np.pad(X, ((0, 0), (0, Y.shape[1] - X.shape[1])))
    return scipy.linalg.orthogonal_procrustes(X - X.mean(0), Y - Y.mean(0))[0]


def plain_ridge(X: np.ndarray, Y: np.ndarray) -> np.ndarray:
    """One penalty; ours chooses among 61."""
    X, Y = X - X.mean(0), Y - Y.mean(0)
    G = X.T @ X
    G[np.diag_indices_from(G)] += np.trace(G) / len(G)
    return scipy.linalg.solve(G, X.T @ Y, assume_a="pos")


def centered(A: np.ndarray) -> np.ndarray:
    return A - A.mean(0)


def debiased(KL: float, k: np.ndarray, m: np.ndarray, n: int) -> float:
    """The unbiased HSIC from the sum of products, and the row sums, of two kernels with a diagonal of zeros."""
    return (KL + k.sum() * m.sum() / ((n - 1) * (n - 2)) - 2 * (k @ m) / (n - 2)) / (n * (n - 3))


def plain_cka(X: np.ndarray, Y: np.ndarray) -> float:
    """Debiased linear CKA in float32 from the three d × d products."""
    n, X, Y = len(X), centered(X), centered(Y)
    found = []
    for A, B in ((X, Y), (X, X), (Y, Y)):
        a, b = np.einsum("ij,ij->i", A, A), np.einsum("ij,ij->i", B, B)
        products = float(np.square(A.T @ B, dtype=np.float64).sum()) - float(a @ b)
        found.append(debiased(products, -a.astype(float), -b.astype(float), n))
    return float(found[0] / np.sqrt(found[1] * found[2]))


def plain_rbf_cka(X: np.ndarray, Y: np.ndarray, block: int = 512) -> float:
    """Debiased RBF CKA in float32, one pass in blocks; the width from 1,000 rows."""
    n, sides = len(X), []
    for A in (X, Y):
        squares = np.einsum("ij,ij->i", A, A)
        part = A[:: max(1, n // 1000)]
        P = np.einsum("ij,ij->i", part, part)
        width = np.median((P[:, None] + P - 2 * part @ part.T)[np.triu_indices(len(part), 1)])
        sides.append((A, squares, -0.5 / width))
    sums, products = np.zeros((2, n)), np.zeros(3)
    for start in range(0, n, block):
        kernels = []
        for at, (A, squares, factor) in enumerate(sides):
            K = A[start : start + block] @ A.T
            K *= -2
            K += squares
            K += squares[start : start + block, None]
            K *= factor
            np.exp(K, out=K)
            K[np.arange(len(K)), start + np.arange(len(K))] = 0
            sums[at, start : start + block] = K.sum(1)
            kernels.append(K.ravel())
        K, L = kernels
        products += K @ L, K @ K, L @ L
    k, m = sums
    xy, xx, yy = (debiased(p, a, b, n) for p, a, b in zip(products, (k, k, m), (m, k, m), strict=True))
    return float(xy / np.sqrt(xx * yy))


def plain_distance(X: np.ndarray, Y: np.ndarray) -> float:
    """The angular Procrustes distance from singular values."""
    X, Y = centered(X), centered(Y)
    s = np.linalg.svd(X.T @ Y, compute_uv=False).sum()
    return float(np.arccos(min(1.0, s / (np.linalg.norm(X) * np.linalg.norm(Y)))))


def plain_rsa(X: np.ndarray, Y: np.ndarray) -> float:
    """Spearman of the correlation distances; ties, which are rare in floats, in any order."""
    ranks, upper = [], np.triu_indices(len(X), 1)
    for A in (X, Y):
        values = -np.corrcoef(A)[upper].astype(np.float32)
        rank = np.empty(len(values), np.float32)
        rank[np.argsort(values)] = np.arange(len(values), dtype=np.float32)
        rank -= rank.mean(dtype=np.float64)
        ranks.append(rank)
    a, b = ranks
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def plain_cca(X: np.ndarray, Y: np.ndarray, rank: int = 50) -> float:
    """Mean canonical correlation after PCA, by eigenvectors of the covariances."""
    bases = []
    for A in (centered(X), centered(Y)):
        values, vectors = scipy.linalg.eigh(A.T @ A, subset_by_index=[A.shape[1] - rank, A.shape[1] - 1])
        bases.append(A @ (vectors / np.sqrt(values)))
    return float(np.linalg.svd(bases[0].T @ bases[1], compute_uv=False).mean())


def plain_pwcca(X: np.ndarray, Y: np.ndarray) -> float:
    bases = [np.linalg.svd(centered(A), full_matrices=False) for A in (X, Y)]
    U, s, _ = np.linalg.svd(bases[0][0].T @ bases[1][0])
    Hx = bases[0][0] @ U
    weights = np.abs(Hx.T @ centered(X)).sum(1)[: len(s)]
    return float(weights @ s / weights.sum())


def null_of(name: str, X: np.ndarray, Y: np.ndarray, times: int) -> Callable[[], list[float]]:
    """Return a job that scores re-paired rows, as a permutation test does."""
    metric = between_spaces(name)
    orders = [np.random.default_rng(seed).permutation(len(X)) for seed in range(times)]

    def run() -> list[float]:
        A, B = metric.prepare(X, "X"), metric.prepare(Y, "Y")
        return [metric.compare(A, metric.reorder(B, order)) for order in orders]

    return run


def plain_procrustes_null(X: np.ndarray, Y: np.ndarray, times: int) -> list[float]:
    """One product and the singular values alone for each re-pairing."""
    X, Y = centered(X), centered(Y)
    both = np.linalg.norm(X) * np.linalg.norm(Y)
    found = []
    for seed in range(times):
        C = X.T @ Y[np.random.default_rng(seed).permutation(len(X))]
        found.append(float(np.arccos(min(1.0, np.linalg.svd(C, compute_uv=False).sum() / both))))
    return found


def plain_pwcca_null(X: np.ndarray, Y: np.ndarray, times: int) -> list[float]:
    """Whitened once; a re-pairing is one product and one decomposition."""
    (U, s, Vt), (V, _, _) = (np.linalg.svd(centered(A), full_matrices=False) for A in (X, Y))
    found = []
    for seed in range(times):
        left, values, _ = np.linalg.svd(U.T @ V[np.random.default_rng(seed).permutation(len(X))])
        weights = np.abs((left.T * s) @ Vt).sum(1)[: len(values)]
        found.append(float(weights @ values / weights.sum()))
    return found


def flat_faiss(X: np.ndarray, Y: np.ndarray, k: int = 10) -> float:
    import faiss

    faiss.omp_set_num_threads(1)
    tables = []
    for A in (X, Y):
        index = faiss.IndexFlatIP(A.shape[1])
        index.add(A)
        found = index.search(A, k + 1)[1]
        rest = found != np.arange(len(A))[:, None]
        rest[rest.all(1), -1] = False
        tables.append(found[rest].reshape(len(A), k))
    return float(np.mean([len(set(a) & set(b)) for a, b in zip(*map(np.ndarray.tolist, tables), strict=True)]) / k)


# ------------------------------------------------------------------ commands


class Spent(float):
    """Processor seconds that a job itself knows."""


def command(*words: object) -> Callable[[], Spent]:
    """Return a job that runs a program and returns its processor seconds, its start included."""

    # As an installed package, whose modules are compiled already; the first call compiles those of a checkout.
    given = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    given["PYTHONPYCACHEPREFIX"] = str(Path(tempfile.gettempdir(), "compiled"))

    def run() -> Spent:
        before = os.times()
        subprocess.run([sys.executable, *map(str, words)], check=True, stdout=subprocess.DEVNULL, env=given)
        after = os.times()
        return Spent(after.children_user + after.children_system - before.children_user - before.children_system)

    return run


SEARCH = """
import sys, numpy as np
queries, rows = np.load(sys.argv[1]), np.load(sys.argv[2])
scores = queries @ rows.T
top = np.argpartition(scores, -10, axis=1)[:, -10:]
print(np.take_along_axis(top, np.take_along_axis(scores, top, 1).argsort(1), 1)[:, ::-1])
"""
FIT = """
import congruence, numpy as np
rng = np.random.default_rng(0)
X = rng.normal(size=(200, 64))
congruence.fit(X, X @ np.linalg.qr(rng.normal(size=(64, 64)))[0])
"""


# ------------------------------------------------------------------ the table


def jobs(folder: Path, quick: bool) -> Iterator[tuple[str, Callable[[], Arms]]]:
    """Yield the name of each row and what makes its arms; the first arm is ours."""
    small = 10 if quick else 1

    for n, d in ((400, 512), (400, 1024), (2000, 512)):

        def certified(n: int = n, d: int = d) -> Arms:
            X, Y = spaces(n, d, d)
            return {"certify": lambda: congruence.certify(X, Y)}

        yield f"certify, {n:,} × {d}", certified

    for n, d, e in ((5000, 768, 1024), (5000, 512, 512), (100_000 // small, 512, 512)):

        def fitted(n: int = n, d: int = d, e: int = e) -> Arms:
            X, Y = spaces(n, d, e)
            return {
                "fit (choice by folds)": lambda: congruence.fit(X, Y),
                "OrthogonalMap.fit (no choice)": lambda: OrthogonalMap().fit(X, Y),
                "SciPy orthogonal_procrustes": lambda: plain_procrustes(X, Y),
            }

        yield f"fit, {n:,} × {d} → {e}", fitted

        def plainly(n: int = n, d: int = d, e: int = e) -> Arms:
            X, Y = spaces(n, d, e)
            return {
                "OrthogonalMap.fit": lambda: OrthogonalMap().fit(X, Y),
                "SciPy orthogonal_procrustes": lambda: plain_procrustes(X, Y),
            }

        yield f"rotation, {n:,} × {d} → {e}", plainly

    def ridge() -> Arms:
        X, Y = spaces(5000, 768, 1024)
        return {
            "LinearMap.fit (61 penalties)": lambda: LinearMap().fit(X, Y),
            "NumPy (one penalty)": lambda: plain_ridge(X, Y),
        }

    yield "ridge, 5,000 × 768 → 1,024", ridge

    def paired() -> Arms:
        X, Y = spaces(5000, 768, 1024)
        return {"check_pairing": lambda: check_pairing(X, Y)}

    yield "pairing, 5,000 × 768 and 1,024", paired

    pairs = (
        ("linear CKA", 20_000, linear_cka, "NumPy, float32", plain_cka),
        ("RBF CKA", 6000, rbf_cka, "NumPy, float32", plain_rbf_cka),
        ("RBF CKA", 20_000, rbf_cka, "NumPy, float32", plain_rbf_cka),
        ("Procrustes distance", 20_000, procrustes_distance, "NumPy, singular values", plain_distance),
        ("RSA", 2000, rsa, "NumPy, ties in any order", plain_rsa),
        ("CCA, rank 50", 20_000, cca, "SciPy, eigenvectors", plain_cca),
        ("mutual k-NN", 20_000, mutual_knn, "faiss flat", flat_faiss),
        ("CKNNA", 20_000, cknna, "faiss flat (mutual k-NN only)", flat_faiss),
    )
    for name, n, ours, other, theirs in pairs:

        def compared(n: int = n // small, ours=ours, other=other, theirs=theirs) -> Arms:
            X, Y = spaces(n, 512, 512)
            return {ours.__name__: lambda: ours(X, Y), other: lambda: theirs(X, Y)}

        yield f"{name}, {n // small:,} × 512", compared

    for name, theirs in (("procrustes_distance", plain_procrustes_null), ("pwcca", plain_pwcca_null)):

        def null(name: str = name, theirs=theirs) -> Arms:
            X, Y = spaces(1000, 512, 512)
            return {name: null_of(name, X, Y, 20), "NumPy": lambda: theirs(X, Y, 20)}

        yield f"null of {name}, 20 re-pairings of 1,000 × 512", null

    for variant, theirs in (
        ("circular", "sliced_wasserstein_sphere"),
        ("linear", "linear_sliced_wasserstein_sphere"),
    ):

        def sliced(variant: str = variant, theirs: str = theirs) -> Arms:
            import ot

            X, Y = spaces(20_000 // small, 256, 256)
            rng = np.random.default_rng(0)
            frames = np.linalg.qr(rng.standard_normal((100, 256, 2)))[0].astype(np.float32)
            return {
                "sliced_wasserstein_sphere": lambda: sliced_wasserstein_sphere(
                    X, Y, variant=variant, projections=frames
                ),
                "POT": lambda: getattr(ot, theirs)(X, Y, n_projections=100, projections=frames),
            }

        yield f"sliced Wasserstein, {variant}, 100 circles, {20_000 // small:,} × 256", sliced

    def every() -> Arms:
        X, Y = spaces(1000, 1280, 768)
        return {"compare_spaces": lambda: congruence.compare_spaces(X, Y, BETWEEN_SPACES)}

    yield "compare_spaces, all metrics, 200 re-pairings of 1,000 × 1,280 and 768", every

    for n in (1, 100):

        def searched(n: int = n) -> Arms:
            X, Y = spaces(100_000 // small, 512, 512)
            index, asked, bridge = folder / "index.npy", folder / "asked.npy", folder / "bridge"
            np.save(index, Y)
            np.save(asked, X[2000 : 2000 + n])
            OrthogonalMap().fit(X[:2000], Y[:2000]).save(bridge, force=True)
            flags = ("--queries", asked, "--index", index, "--json")
            return {
                "congruence bridge search": command("-m", "congruence", "bridge", "search", bridge, *flags),
                "NumPy script, queries unmapped": command("-c", SEARCH, asked, index),
            }

        yield f"command: {n} queries in {100_000 // small:,} × 512", searched

    yield (
        "first fit in Python",
        lambda: {"congruence.fit": command("-c", FIT), "import numpy": command("-c", "import numpy")},
    )
    bare = command("-c", "import numpy")
    yield "congruence --help", lambda: {"--help": command("-m", "congruence", "--help"), "import numpy": bare}
    yield "congruence --version", lambda: {"--version": command("-m", "congruence", "--version"), "import numpy": bare}


def first(job: Callable[[], object]) -> float:
    """Run a job for the first time and return its peak of memory above what was in use, in MB."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # freed memory that a job reuses would not be counted
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    rest = current_mb()
    job()
    return max(0.0, peak_mb() - rest)


def measured(job: Callable[[], object]) -> float:
    started = time.process_time()
    value = job()
    own = time.process_time() - started
    return value if isinstance(value, Spent) else own


def row(name: str, make: Callable[[], Arms], rounds: int) -> dict[str, object]:
    """Measure the arms of a row and print it, a line for each alternative."""
    arms = make()
    started = time.process_time()
    memory = {arm: first(job) for arm, job in arms.items()}
    if time.process_time() - started > LONG:
        rounds = 1
    seconds: dict[str, list[float]] = {arm: [] for arm in arms}
    for _ in range(rounds):
        for arm, job in arms.items():
            seconds[arm].append(measured(job))
    ours, *others = arms

    def cost(arm: str) -> str:
        return f"{np.median(seconds[arm]):.3g} s, {memory[arm]:.0f} MB"

    for other in others or [""]:
        ratio = np.divide(seconds[ours], seconds[other or ours])
        against = f"{np.median(ratio):.2f} ({ratio.min():.2f} to {ratio.max():.2f})" if other else ""
        print(f"| {name} | {ours}: {cost(ours)} | {other and f'{other}: {cost(other)}'} | {against} |", flush=True)
    return {"job": name, "seconds": seconds, "memory": memory}


# ------------------------------------------------------------------ growth


def migration(X: np.ndarray, Y: np.ndarray) -> Callable[[], None]:
    """Return a migration of a LanceDB table, from plan to switch."""
    import lancedb
    import pyarrow as pa

    from congruence.databases import open_database
    from migrate_copies import lists

    folder = Path(tempfile.mkdtemp(prefix="growth-"))
    table = lancedb.connect(folder).create_table("items", pa.table({"id": range(len(X)), "embedding": lists(X)}))
    del table
    mapping = OrthogonalMap().fit(X[:2000], Y[:2000])

    def run() -> None:
        with congruence.Migration(
            open_database(f"lancedb://{folder}", table="items"), mapping, journal=folder / "journal"
        ) as job:
            job.run()
            job.verify()
            job.switch()
        shutil.rmtree(folder)

    return run


def growth(most: int, only: list[str]) -> Iterator[dict[str, object]]:
    """Yield time and memory of jobs at growing numbers of rows, and at growing widths."""

    def transform(X: np.ndarray, Y: np.ndarray) -> Callable[[], object]:
        mapping = OrthogonalMap().fit(X[:2000], Y[:2000])
        return lambda: mapping.transform(X)

    made: dict[str, Callable[[np.ndarray, np.ndarray], Callable[[], object]]] = {
        "OrthogonalMap.fit": lambda X, Y: lambda: OrthogonalMap().fit(X, Y),
        "fit": lambda X, Y: lambda: congruence.fit(X, Y),
        "transform": transform,
        "migrate": migration,
        "linear CKA": lambda X, Y: lambda: linear_cka(X, Y),
        "mutual k-NN": lambda X, Y: lambda: mutual_knn(X, Y),
        "certify": lambda X, Y: lambda: congruence.certify(X, Y),
    }
    limits = {"mutual k-NN": 30_000, "certify": 4000, "migrate": 300_000}
    for name, job in made.items():
        if not any(part in name for part in only):
            continue
        job(*spaces(2000, 128, 128))()  # what the first call imports is no growth
        small = 3 if name == "certify" else 1  # its rows are pairs, of which there are few
        for axis, sizes in (("rows", [(n // small, 256) for n in (3000, 10_000, 30_000, 100_000, 300_000, 1_000_000)]),
                            ("width", [(10_000 // small**2, d) for d in (128, 256, 512, 1024)])):  # fmt: skip
            points = []
            for n, d in sizes:
                if n > min(most, limits.get(name, most)):
                    continue
                task = job(*spaces(n, d, d))
                spent: list[float] = []
                memory = first(lambda task=task, spent=spent: spent.append(measured(task)))
                points.append((n if axis == "rows" else d, spent[0], memory))
            # Of the larger half, where what every call costs is small.
            at, seconds, memories = map(np.asarray, zip(*points[-3:], strict=True))
            slope = [float(np.polyfit(np.log(at), np.log(np.maximum(y, 1e-3)), 1)[0]) for y in (seconds, memories)]
            cells = ", ".join(f"{a:,}: {s:.2f} s, {m:.0f} MB" for a, s, m in points)
            print(f"| {name} | {axis} | {slope[0]:.2f} | {slope[1]:.2f} | {cells} |", flush=True)
            yield {"job": name, "axis": axis, "points": points, "time": slope[0], "memory": slope[1]}


def costs(one: dict[str, object], rows: int) -> str:
    """Say what so many rows would cost, computed from the largest measured number of rows and the exponents of growth
    (of time at least 1, of memory at least 0).
    """
    n, seconds, memory = one["points"][-1]
    hours = seconds * (rows / n) ** max(one["time"], 1) / 3600
    gigabytes = memory * (rows / n) ** max(one["memory"], 0) / 1000
    said = ", ".join(
        f"{x:,.0f} {unit}" if x >= 100 else f"{x:.2g} {unit}" for x, unit in ((hours, "h"), (gigabytes, "GB"))
    )
    if one["job"] != "transform":
        return said
    return f"{said}; {math.ceil(hours / (16 * 24))} machines of 16 cores for a day"  # the only one that is split


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--only", nargs="+", default=[""], help="rows whose names contain one of these")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows of large jobs")
    parser.add_argument("--growth", action="store_true", help="slopes of time and memory instead of the table")
    parser.add_argument("--most", type=int, default=1_000_000, help="most rows with --growth")
    options = parser.parse_args()
    results: list[dict[str, object]] = []
    if options.growth:
        for one in growth(options.most, options.only):
            results.append(one)
            write_json(options, results)  # so far
        print("\n| job | ten million rows, computed | a billion rows, computed |\n| --- | --- | --- |")
        for one in results:
            if one["axis"] == "rows" and one["points"][-1][0] >= 300_000:  # else it is not for so many
                print(f"| {one['job']} | {costs(one, 10**7)} | {costs(one, 10**9)} |")
        return
    print("| job | ours | alternative | ours ÷ alternative |\n| --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as name:
        for job, make in jobs(Path(name), options.quick):
            if any(part in job for part in options.only):
                results.append(row(job, make, options.rounds))
                write_json(options, results)  # so far
    write_json(options, results)


if __name__ == "__main__":
    main()
