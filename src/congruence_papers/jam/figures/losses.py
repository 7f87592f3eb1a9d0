"""Comparisons of JAM's losses: on every task, by number of training pairs, and with an α curriculum on early, middle and late layers."""

from __future__ import annotations

from typing import Any

from congruence.errors import TooFewAnchorsError
from congruence_papers.jam.baselines import BASELINES, fit_baseline
from congruence_papers.jam.controls import dual_as_encoders
from congruence_papers.jam.data import LAYERS, JAMData
from congruence_papers.jam.fitted import fit_method
from congruence_papers.jam.item_tests import ItemPairs, record_item_tests
from congruence_papers.jam.metrics import measure_recall
from congruence_papers.jam.protocol import (
    check_layers,
    in_task,
    limits,
    pair_name,
    record_order,
    record_run,
    split,
    tasks,
    training,
)
from congruence_papers.job import Job

__all__ = ["run_layers", "run_losses", "run_pairs"]


def run_losses(job: Job[JAMData]) -> None:
    """Train with every loss on every task, and measure dual encoders for comparison (tables 2 and 3)."""
    pairs = ItemPairs()
    for data in job.data:
        for task in tasks(job, data):
            for seed in job.seeds:
                for encoders in data.encoders:
                    parts = split(job, data, task, seed, encoders)
                    for method in job["methods"]:
                        line = {"data": data.name, "pair": pair_name(data, encoders), "series": BASELINES[method]}
                        fitted = fit_method(method, parts, training(job, data), seed)
                        what = {**line, "task": task, "seed": seed}
                        at_best = {} if fitted.mapping is None else record_run(job, what, fitted.mapping)
                        _add(job, line, fitted.measure(parts.items, parts.test, seed), at_best, task)
                        outcomes = fitted.outcomes(parts.items, parts.test, seed)
                        if outcomes is not None:
                            where = (data.name, in_task(task, line["pair"]))
                            pairs.add(where, line["series"], seed, parts.items, outcomes)
                        job.tick()
                _add_dual_encoders(job, data, task, seed)
    record_order(job)
    record_item_tests(job, pairs)


def run_pairs(job: Job[JAMData]) -> None:
    """Train with every loss on increasing numbers of pairs, and compare the losses item by item at each number."""
    pairs = ItemPairs()
    for data in job.data:
        for task in tasks(job, data):
            for seed in job.seeds:
                for encoders in data.encoders:
                    name = pair_name(data, encoders)
                    for n in job["pairs"][:2] if job.quick else job["pairs"]:
                        parts = data.split(task, seed, encoders=encoders, most={**limits(job, data), "train": n})
                        if len(parts.train) < n:
                            raise TooFewAnchorsError(
                                f"Got {len(parts.train)} pairs of {data.name} to train on; expected pairs={n}. Remove larger numbers from pairs."
                            )
                        for method in job["methods"]:
                            fitted = fit_method(method, parts, training(job, data), seed)
                            line = {"data": data.name, "pair": name, "series": BASELINES[method], "part": name, "x": n}
                            _add(job, line, fitted.measure(parts.items, parts.test, seed), {}, task)
                            outcomes = fitted.outcomes(parts.items, parts.test, seed)
                            if outcomes is not None:
                                where = (data.name, in_task(task, f"{name}, {n} pairs"))
                                pairs.add(where, line["series"], seed, parts.items, outcomes)
                    job.tick()
    # One panel per pair of encoders.
    names = dict.fromkeys(pair_name(data, encoders) for data in job.data for encoders in data.encoders)
    job.extra["axes"] = [[name, f"pairs trained on ({name})"] for name in names]
    record_item_tests(job, pairs, every=True)


def run_layers(job: Job[JAMData]) -> None:
    """Train with the Spread loss and a linear α schedule, on early, middle and late layers (figures 4 and 5)."""
    for data in job.data:
        check_layers(data)
        for task in tasks(job, data):
            for layer in LAYERS:
                for seed in job.seeds:
                    for encoders in data.encoders:
                        parts = split(job, data, task, seed, encoders, layer)
                        options = {**training(job, data), "spread_mix": tuple(job["spread_mix"])}
                        mapping = fit_baseline("spread", parts, options, seed)
                        line = {"data": data.name, "pair": pair_name(data, encoders), "series": layer}
                        at_best = record_run(job, {**line, "task": task, "seed": seed}, mapping)
                        _add(job, line, measure_recall(mapping, parts.items, parts.test, seed), at_best, task)
                        job.tick()


def _add(
    job: Job[JAMData], line: dict[str, Any], recalls: dict[str, dict[str, float]], at_best: dict[str, float], task: str
) -> None:
    """Add the metrics of a task and its parts to the results; the pair is prefixed by the task, so that a figure has one group of bars per task."""
    for part, recall in recalls.items():
        job.add_scores({**line, "pair": in_task(part, line["pair"])}, {**recall, **(at_best if part == task else {})})


def _add_dual_encoders(job: Job[JAMData], data: JAMData, task: str, seed: int) -> None:
    """Measure dual encoders on the same test items without training, and JAM trained on the embeddings of their towers."""
    if not data.dual:
        return
    rows = data.split(task, seed, most={"test": data.sizes.get("test", 0)}).rows
    for name, (V, P, N) in data.dual.items():
        line = {"data": data.name, "pair": "dual encoders"}
        recalls = measure_recall(None, data.items.take(rows), (V[data.image_of[rows]], P[rows], N[rows]), seed)
        _add(job, {**line, "series": name}, recalls, {}, task)
        for method in job["dual_methods"]:
            parts = split(job, dual_as_encoders(data, name), task, seed, (name, name))
            mapping = fit_baseline(method, parts, training(job, data), seed)
            recalls = measure_recall(mapping, parts.items, parts.test, seed)
            _add(job, {**line, "series": f"{name}, {BASELINES[method]} on its towers"}, recalls, {}, task)
