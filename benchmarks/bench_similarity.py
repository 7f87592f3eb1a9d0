"""mutual_knn, CKNNA and debiased CKA, compared with their published implementation on full n × n matrices in torch.

The full forms follow Huh et al.'s code step by step: the whole Gram matrix sorted for mutual k-NN; the whole Gram
matrices, copies without their diagonals, masks and products for CKNNA. Both run alternately, each in a separate
process, so that its peak memory can be measured; "at rest" is the memory of the imports and the data alone. At n =
20,000 the full forms need about 20 GB.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import numpy as np

from common import arguments, in_process, in_turn, print_measured, ratios, write_json

GOALS = {"time": 3.0, "memory": 10.0}


def ours(folder: Path, what: str, k: int) -> None:
    from congruence.metrics import cknna, linear_cka, mutual_knn

    X, Y = np.load(folder / "X.npy"), np.load(folder / "Y.npy")
    if what == "linear_cka":
        print_measured(lambda: linear_cka(X, Y))
    else:
        measure = {"mutual_knn": mutual_knn, "cknna": cknna}[what]
        print_measured(lambda: measure(X, Y, k))


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

    print_measured({"mutual_knn": mutual_knn, "cknna": cknna, "linear_cka": linear_cka}[what])


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--dim", type=int, default=768)
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="3,000 rows")
    parser.add_argument("--child")
    parser.add_argument("--what")
    parser.add_argument("--folder", type=Path)
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
            given = ("--what", what, "--folder", folder, "--k", options.k)
            arms = {who: partial(in_process, __file__, "--child", who, *given) for who in ("full", "ours")}
            results = in_turn(arms, options.repeat)
            found[what] = results
            for who, runs in results.items():
                seconds = np.median([r["seconds"] for r in runs])
                peak, rest = (max(r[key] for r in runs) for key in ("peak_mb", "rest_mb"))
                print(
                    f"  {what:10s} {who}  {runs[0]['value']:.6f}   median {seconds:6.1f} s   "
                    f"peak memory {peak:6.0f} MB, at rest {rest:4.0f} MB"
                )
            verdicts = []
            for key, entry in (("time", "seconds"), ("memory", "peak_mb")):
                ratio, goal = float(np.median(ratios(results, "full", entry))), GOALS[key]
                verdicts.append(
                    f"{key} {ratio:.1f} times less (goal {goal:.0f}: {'met' if ratio >= goal else 'missed'})"
                )
            print(f"  {what:10s} ours: " + ", ".join(verdicts))
    write_json(options, found)


if __name__ == "__main__":
    main()
