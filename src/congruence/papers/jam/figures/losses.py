"""JAM: losses beside each other, the curriculum over layers, statistical measures of matching and other pairs, and sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from congruence.errors import InputError
from congruence.experiments.joint import JOINT_METHODS, LAYERS, JointData, fit_joint, measure_joint
from congruence.experiments.kinds._base import Job
from congruence.experiments.kinds._joining import in_task, note_order, pair_name, remember, split, tasks, training
from congruence.metrics import cca, cknna, linear_cka, rbf_cka, svcca
from congruence.train.autoencoder import autoencoder, count

RESAMPLED_STATISTICS = "the images, and the item of each"

#: Dimensions of the paper's measures, and neighbours.
CCA_RANK, RANK, NEIGHBOURS = 50, 10, 10
_QUICK_ROWS = 120


def run_losses(job: Job) -> None:
    """Train with every loss on every task, and measure dual encoders beside (tables 2 and 3)."""
    for data in job.joint:
        for task in tasks(job, data):
            for seed in job.seeds:
                for encoders in data.encoders:
                    parts = split(job, data, task, seed, encoders)
                    for method in job["methods"]:
                        mapping = fit_joint(method, parts, training(job, data), seed)
                        line = {"data": data.name, "pair": pair_name(data, encoders), "series": JOINT_METHODS[method]}
                        found = measure_joint(mapping, parts.items, parts.test, seed)
                        more = remember(job, {**line, "task": task, "seed": seed}, mapping)
                        _note(job, line, found, more, task)
                        job.tick()
                _note_dual(job, data, task, seed)
    note_order(job)


def run_layers(job: Job) -> None:
    """Train with Spread and an α that grows, on early, middle and late layers (figures 4 and 5)."""
    for data in job.joint:
        if data.layers != LAYERS:
            raise InputError(
                f"Got {data.name} with the layers {', '.join(data.layers)}; expected early, mid and late of every encoder. Run congruence embed with --layer all."
            )
        for task in tasks(job, data):
            for layer in LAYERS:
                for seed in job.seeds:
                    for encoders in data.encoders:
                        parts = split(job, data, task, seed, encoders, layer)
                        options = {**training(job, data), "alpha": tuple(job["alpha"])}
                        mapping = fit_joint("spread", parts, options, seed)
                        line = {"data": data.name, "pair": pair_name(data, encoders), "series": layer}
                        more = remember(job, {**line, "task": task, "seed": seed}, mapping)
                        _note(job, line, measure_joint(mapping, parts.items, parts.test, seed), more, task)
                        job.tick()


def _note(
    job: Job, line: dict[str, Any], found: dict[str, dict[str, float]], more: dict[str, float], task: str
) -> None:
    """Note the measures of a task, and of its parts; the task stands before the pair, so that a figure has a group of bars for each."""
    for part, values in found.items():
        what = {**line, "pair": in_task(part, line["pair"])}
        for metric, value in {**values, **(more if part == task else {})}.items():
            if metric in job.config.metrics:
                job.ledger.note({**what, "metric": metric, "quantity": "after"}, value)


def _note_dual(job: Job, data: JointData, task: str, seed: int) -> None:
    """Measure dual encoders on the same items, which no training of theirs depends on."""
    if not data.dual:
        return
    rows = data.split(task, seed, most={"test": data.sizes.get("test", 0)}).rows
    for name, (V, P, N) in data.dual.items():
        found = measure_joint(None, data.items.take(rows), (V[data.image_of[rows]], P[rows], N[rows]), seed)
        _note(job, {"data": data.name, "pair": "dual encoders", "series": name}, found, {}, task)


# ------------------------------------------------------------------ statistics


def run_statistics(job: Job) -> None:
    """Measure pairs that match, that do not, and that nearly do (figure 1, tables 6 to 8)."""
    for data in job.joint:
        for encoders in data.encoders:
            for task in tasks(job, data):
                for seed in job.seeds:
                    for case, (V, T) in _cases(job, data, encoders, task, seed).items():
                        line = {"data": data.name, "pair": in_task(task, pair_name(data, encoders)), "part": case}
                        for metric, value in _measures(V, T, job.config.metrics).items():
                            job.ledger.note({**line, "metric": metric, "quantity": "after"}, value)
                    job.tick()


def _cases(
    job: Job, data: JointData, encoders: tuple[str, str], task: str, seed: int
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return images and texts by how they belong together, one item of each image drawn."""
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
            strange = rng.permutation(data.unrelated[encoder])[: len(own)]
            n = len(strange)
            cases[case] = (strange, P[:n]) if encoder == encoders[0] else (V[:n], strange)
    return cases


def _measures(V: np.ndarray, T: np.ndarray, wanted: list[str]) -> dict[str, float]:
    V, T = (rows.astype(np.float64) for rows in (V, T))
    A, B = _leading(V), _leading(T)
    every: dict[str, Callable[[], Any]] = {
        "cca_linear": lambda: cca(V, T, components="first", rank=CCA_RANK),
        "cca_kernel": lambda: cca(V, T, components="first", rank=CCA_RANK, reduce="kernel"),
        "cka_linear": lambda: linear_cka(A, B, estimator="biased"),
        "cka_rbf": lambda: rbf_cka(A, B, estimator="biased"),
        "svcca": lambda: svcca(V, T, keep=RANK),
        "cknna": lambda: cknna(A, B, NEIGHBOURS, definition="jam"),
    }
    return {name: float(measure()) for name, measure in every.items() if name in wanted}


def _leading(rows: np.ndarray) -> np.ndarray:
    """Return the leading principal components."""
    centred = rows - rows.mean(axis=0)
    U, s, _ = np.linalg.svd(centred, full_matrices=False)
    return np.asarray(U[:, :RANK] * s[:RANK])


# ------------------------------------------------------------------ sizes


def run_sizes(job: Job) -> None:
    """Count parameters and operations of an autoencoder beside each backbone, and beside each encoder of the data (table 12)."""
    rng = np.random.default_rng(0)
    widths: dict[tuple[str | None, str], int] = {(None, name): width for name, width in job["widths"].items()}
    for data in job.joint:
        for side in (data.images, data.captions):
            widths |= {(data.name, name): layers["late"].shape[1] for name, layers in side.items()}
    for (where, name), width in widths.items():
        encoder, decoder = autoencoder(width, rng)
        cost = count(encoder) + count(decoder)
        for metric, value in (("parameters", cost.parameters), ("mflops", cost.flops)):
            job.ledger.note(
                {"data": where, "pair": f"{name} ({width})", "metric": metric, "quantity": "value"}, value / 1e6
            )
    job.tick()
