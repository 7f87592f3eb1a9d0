"""mutual_knn, CKNNA and debiased CKA, compared with their published implementation on full n × n matrices in torch.

The full forms follow Huh et al.'s code step by step: the whole Gram matrix sorted for mutual k-NN; the whole Gram
matrices, copies without their diagonals, masks and products for CKNNA. Both run alternately, each in a separate
process, so that its peak memory can be measured; "at rest" is the memory of the imports and the data alone. At n =
20,000 the full forms need about 20 GB.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from machine_output import add_json, write_json
from process_memory import peak_mb

GOALS = {"time": 3.0, "memory": 10.0}


def report(measure, rest: float) -> None:
    start = time.perf_counter()
    value = measure()
    seconds = time.perf_counter() - start
    print(json.dumps({"value": value, "seconds": seconds, "peak_mb": peak_mb(), "rest_mb": rest}))


def ours(folder: Path, what: str, k: int) -> None:
    from congruence.metrics import cknna, linear_cka, mutual_knn

    X, Y = np.load(folder / "X.npy"), np.load(folder / "Y.npy")
    if what == "linear_cka":
        report(lambda: linear_cka(X, Y), peak_mb())
    else:
        measure = {"mutual_knn": mutual_knn, "cknna": cknna}[what]
        report(lambda: measure(X, Y, k), peak_mb())


def full(folder: Path, what: str, k: int) -> None:
    import torch

    torch.set_grad_enabled(False)
    X, Y = torch.from_numpy(np.load(folder / "X.npy")), torch.from_numpy(np.load(folder / "Y.npy"))
    n = len(X)
    every = torch.arange(n)[:, None]

    def mutual_knn() -> float:
        tables = [(Z @ Z.T).fill_diagonal_(-1e8).argsort(dim=1, descending=True)[:, :k] for Z in (X, Y)]
        masks = [torch.zeros(n, n) for _ in tables]
        for mask, table in zip(masks, tables, strict=True):
            mask[every, table] = 1.0
        return float(((masks[0] * masks[1]).sum(dim=1) / k).mean())

    def hsic(K, L):
        K, L = K.clone().fill_diagonal_(0), L.clone().fill_diagonal_(0)
        middle = K.sum() * L.sum() / ((n - 1) * (n - 2))
        return ((K * L.T).sum() + middle - 2 * (K @ L).sum() / (n - 2)) / (n * (n - 3))

    def align(K, L):
        masks = []
        for G in (K, L):
            places = torch.topk(G.clone().fill_diagonal_(float("-inf")), k, dim=1)[1]
            masks.append(torch.zeros(n, n).scatter_(1, places, 1))
        mask = masks[0] * masks[1]
        return hsic(mask * K, mask * L)

    def cknna() -> float:
        K, L = X @ X.T, Y @ Y.T
        return float(align(K, L) / (align(K, K) * align(L, L)).sqrt())

    def linear_cka() -> float:
        K, L = X @ X.T, Y @ Y.T
        return float(hsic(K, L) / (hsic(K, K) * hsic(L, L)).sqrt())

    report({"mutual_knn": mutual_knn, "cknna": cknna, "linear_cka": linear_cka}[what], peak_mb())


def run(who: str, what: str, folder: Path, k: int) -> dict:
    command = [sys.executable, __file__, "--child", who, "--what", what, "--folder", folder, "--k", str(k)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--dim", type=int, default=768)
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="3,000 rows")
    parser.add_argument("--child")
    parser.add_argument("--what")
    parser.add_argument("--folder", type=Path)
    add_json(parser)
    options = parser.parse_args()
    if options.child:
        {"ours": ours, "full": full}[options.child](options.folder, options.what, options.k)
        return
    n, d = 3000 if options.quick else options.rows, options.dim
    with tempfile.TemporaryDirectory() as name:
        folder, rng = Path(name), np.random.default_rng(0)
        # Clustered unit rows, and the same rows rotated with noise, so that neighborhoods partly agree.
        X = (
            rng.standard_normal((n, d), dtype=np.float32)
            + rng.standard_normal((n // 50, d), dtype=np.float32).repeat(-(-n // (n // 50)), axis=0)[:n]
        )
        Y = X @ np.linalg.qr(rng.standard_normal((d, d)))[0].astype(np.float32)
        Y += 0.5 * rng.standard_normal((n, d), dtype=np.float32)
        for side, A in (("X", X), ("Y", Y)):
            np.save(folder / f"{side}.npy", A / np.linalg.norm(A, axis=1, keepdims=True))
        print(f"{n:,} × {d} float32, k = {options.k}, {options.repeat} runs each, in turn")
        found = {}
        for what in ("mutual_knn", "cknna", "linear_cka"):
            results: dict[str, list[dict]] = {"full": [], "ours": []}
            for _ in range(options.repeat):
                for who, runs in results.items():
                    runs.append(run(who, what, folder, options.k))
            found[what] = results
            for who, runs in results.items():
                seconds = np.median([r["seconds"] for r in runs])
                peak, rest = (max(r[key] for r in runs) for key in ("peak_mb", "rest_mb"))
                print(
                    f"  {what:10s} {who}  {runs[0]['value']:.6f}   median {seconds:6.1f} s   "
                    f"peak memory {peak:6.0f} MB, at rest {rest:4.0f} MB"
                )
            ratios = {
                key: float(
                    np.median([f[entry] / o[entry] for f, o in zip(results["full"], results["ours"], strict=True)])
                )
                for key, entry in (("time", "seconds"), ("memory", "peak_mb"))
            }
            verdicts = [
                f"{key} {ratio:.1f} times less (goal {GOALS[key]:.0f}: {'met' if ratio >= GOALS[key] else 'missed'})"
                for key, ratio in ratios.items()
            ]
            print(f"  {what:10s} ours: " + ", ".join(verdicts))
    write_json(options, found)


if __name__ == "__main__":
    main()
