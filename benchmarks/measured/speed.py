"""Times and memory: tables in README and benchmarks/README.md, and KLOT at sizes that take hours. They are compared with their records only."""

from __future__ import annotations

from typing import Any

import numpy as np

from measured import theorems
from measured.blocks import Block, table
from measured.jobs import JOBS

HEADER = ["task (2 cores)", "congruence: time, peak memory", "baseline: time, peak memory"]


def _median(runs: list[dict[str, float]]) -> str:
    seconds = float(np.median([run["seconds"] for run in runs]))
    return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s" if seconds < 100 else f"{seconds:.0f} s"


def _peak(runs: list[dict[str, float]]) -> str:
    """Return the peak memory, minus that of the process before, if it was measured."""
    return f"{max(run['peak_mb'] - run.get('rest_mb', 0) for run in runs):,.0f} MB"


def _rows(results: list[Any]) -> list[list[str]]:
    """Return each job compared with its counterpart in the same run."""
    npy, parquet, fit, klot = (result["results"] for result in results)
    fit = {name: f"{np.median(seconds):.2f} s" for name, seconds in fit.items()}
    solvers = klot[0]["ways"]

    def both(runs: dict[str, Any]) -> list[str]:
        return [f"{_median(runs[who])}, {_peak(runs[who])}" for who in ("ours", "plain")]

    (ours, plain), (ours_table, plain_table) = both(npy), both(parquet)
    features, explicit = (f"{_median(solvers[who])}, {_peak(solvers[who])}" for who in ("features", "plain"))
    return [
        ["transform 1,000,000 × 768 float32, `.npy` to `.npy`", ours, f"NumPy read + product + write: {plain}"],
        ["the same, Parquet with ids", ours_table, f"pyarrow + NumPy, without ids: {plain_table}"],
        ["fit 5,000 pairs 768 → 1024", fit["OrthogonalMap().fit"],
         f"NumPy SVD: {fit['NumPy by hand']}; SciPy `orthogonal_procrustes`, padded: {fit['scipy orthogonal_procrustes, padded']}"],
        ["ridge, 61 penalties by generalized cross-validation", fit["LinearMap(ridge='cv').fit"], f"scikit-learn `Ridge`, one penalty: {fit['sklearn Ridge (one alpha)']}"],
        ["KLOT (divergence of transport plans) and its gradients, 10,000 × 256 per side, 100 iterations, one thread", features, f"log-sum-exp solver with the explicit gradient: {explicit}"],
    ]  # fmt: skip


def jobs(results: list[Any]) -> str:
    return table(HEADER, _rows(results))


def short(results: list[Any]) -> str:
    """Return README's table: reading, mapping and writing, and a fit."""
    rows = _rows(results)
    return table(HEADER, [rows[0], rows[2]])


def metrics(results: list[Any]) -> str:
    """Return the metrics and the sliced distance compared with the published implementations."""
    spaces, even, uneven = (result["results"] for result in results)
    rows = []
    for key, words, rival in (
        ("mutual_knn", "mutual k-NN, 10,000 × 768 float32, k = 10", "full matrices in torch, as published: "),
        ("cknna", "CKNNA, same data", ""),
        ("linear_cka", "debiased linear CKA, same data", ""),
    ):
        found = spaces[key]
        rows.append([words, f"{_median(found['ours'])}, {_peak(found['ours'])}", f"{rival}{_median(found['full'])}, {_peak(found['full'])}"])  # fmt: skip
    for found, words, rival in (
        (even["circular"], "spherical sliced Wasserstein, 20,000 and 20,000 × 256 float32, 100 circles", "POT: "),
        (uneven["circular"], "the same, 20,000 and 10,007", ""),
        (even["linear"], "its linear variant, 20,000 and 20,000", ""),
    ):
        rows.append([words, f"{_median(found['ours'])}, {_peak(found['ours'])}", f"{rival}{_median(found['POT'])}, {_peak(found['POT'])}"])  # fmt: skip
    return table(HEADER, rows)


def klot_10000(results: list[Any]) -> str:
    return theorems.cost()([results[3]])


BLOCKS = {
    "speed": Block(jobs, JOBS["speed"]),
    "speed-short": Block(short, JOBS["speed"]),
    "speed-metrics": Block(metrics, JOBS["speed-metrics"]),
    "klot-5000": Block(theorems.cost(), JOBS["klot-5000"]),
    "klot-10000-short": Block(theorems.cost(), JOBS["klot-10000"]),
    "klot-10000": Block(klot_10000, JOBS["speed"]),
}
