"""Statistical similarity of matching and non-matching pairs, and the sizes of JAM's autoencoders."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from congruence.metrics import cca, cknna, linear_cka, rbf_cka, svcca
from congruence.train.autoencoder import autoencoder, count
from congruence_papers.jam.data import JAMData
from congruence_papers.jam.protocol import in_task, pair_name, tasks
from congruence_papers.job import Job

if TYPE_CHECKING:
    from typing import SupportsFloat

__all__ = ["cases", "measure_statistics", "run_sizes", "run_statistics"]

RESAMPLED = "the images, and one item of each"

#: Number of components for CCA and for the other measures, and number of neighbors, as in the paper.
CCA_RANK, RANK, NEIGHBORS = 50, 10, 10
_QUICK_ROWS = 120


def run_statistics(job: Job[JAMData]) -> None:
    """Measure matching pairs, hard non-matches and easy non-matches (figure 1, tables 6 to 8)."""
    for data in job.data:
        for encoders in data.encoders:
            for task in tasks(job, data):
                for seed in job.seeds:
                    for case, (V, T) in cases(job, data, encoders, task, seed).items():
                        line = {"data": data.name, "pair": in_task(task, pair_name(data, encoders)), "part": case}
                        for metric, value in measure_statistics(V, T, job.config.metrics).items():
                            job.results.add({**line, "metric": metric, "quantity": "after"}, value)
                    job.tick()


def cases(
    job: Job[JAMData], data: JAMData, encoders: tuple[str, str], task: str, seed: int
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return paired images and texts for each case of matching and non-matching pairs, with one random item per image."""
    rng = np.random.default_rng([seed, 37])
    own = rng.permutation(np.flatnonzero(data.task_of == task))
    _, first = np.unique(data.items.filenames[own], return_index=True)
    most = _QUICK_ROWS if job.quick else job["rows"]
    own = rng.permutation(own[first])[:most]
    V = data.images[encoders[0]]["late"][data.image_of[own]]
    P, N = (side[encoders[1]]["late"][own] for side in (data.captions, data.negatives))
    cases = {"match": (V, P), "hard non-match": (V, N), "easy: captions of other images": (V, np.roll(P, 1, axis=0))}
    for encoder, case in zip(encoders, ("easy: noise for images", "easy: other texts"), strict=True):
        if encoder in data.unrelated:
            unrelated = rng.permutation(data.unrelated[encoder])[: len(own)]
            n = len(unrelated)
            cases[case] = (unrelated, P[:n]) if encoder == encoders[0] else (V[:n], unrelated)
    return cases


def measure_statistics(V: np.ndarray, T: np.ndarray, metrics: list[str]) -> dict[str, float]:
    """Return the requested similarity measures of paired rows, computed as in the paper."""
    V, T = (rows.astype(np.float64) for rows in (V, T))
    A, B = _leading(V), _leading(T)
    measures: dict[str, Callable[[], SupportsFloat]] = {
        "cca_linear": lambda: cca(V, T, components="first", rank=CCA_RANK),
        "cca_kernel": lambda: cca(V, T, components="first", rank=CCA_RANK, reduce="kernel"),
        "cka_linear": lambda: linear_cka(A, B, estimator="biased"),
        "cka_rbf": lambda: rbf_cka(A, B, estimator="biased"),
        "svcca": lambda: svcca(V, T, keep=RANK),
        "cknna": lambda: cknna(A, B, NEIGHBORS, definition="jam"),
    }
    return {name: float(measure()) for name, measure in measures.items() if name in metrics}


def _leading(rows: np.ndarray) -> np.ndarray:
    """Return the scores on the leading principal components."""
    centered = rows - rows.mean(axis=0)
    U, s, _ = np.linalg.svd(centered, full_matrices=False)
    return np.asarray(U[:, :RANK] * s[:RANK])


def run_sizes(job: Job[JAMData]) -> None:
    """Count the parameters and operations of an autoencoder for the width of each backbone and of each encoder of the data (table 12)."""
    rng = np.random.default_rng(0)
    widths: dict[tuple[str | None, str], int] = {(None, name): width for name, width in job["widths"].items()}
    for data in job.data:
        for side in (data.images, data.captions):
            widths |= {(data.name, name): layers["late"].shape[1] for name, layers in side.items()}
    for (where, name), width in widths.items():
        encoder, decoder = autoencoder(width, rng)
        cost = count(encoder) + count(decoder)
        for metric, value in (("parameters", cost.parameters), ("mflops", cost.flops)):
            job.results.add(
                {"data": where, "pair": f"{name} ({width})", "metric": metric, "quantity": "value"}, value / 1e6
            )
    job.tick()
