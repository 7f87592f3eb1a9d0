"""Helpers shared by JAM's kinds of figure: sizes, tasks, training parameters, labels, and records of runs and of the order of the losses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from congruence.errors import InputError
from congruence_papers.jam.data import LAYERS, TASKS, JAMData, JAMParts
from congruence_papers.job import Job

if TYPE_CHECKING:
    from congruence.maps import Map

__all__ = [
    "RESAMPLED",
    "check_layers",
    "in_task",
    "limits",
    "pair_name",
    "paper_seeds",
    "record_order",
    "record_run",
    "split",
    "tasks",
    "training",
]

RESAMPLED = (
    "the split of the images into training, validation and test (70–15–15), the initial weights, and the distractors"
)

#: Parameters of training and numbers of items that are replaced in a quick run.
QUICK_TRAINING = {"hidden": (16,), "latent": 8, "max_epochs": 2, "validate_every": 1}
QUICK_MOST = {"train": 64, "validation": 64, "test": 0}

#: Seeds used in the paper; further seeds count up from the last.
PAPER_SEEDS = (5, 42, 55)

#: The order of the losses in the paper, best first.
PAPER_ORDER = ("Spread", "NegCon", "Con")


def paper_seeds(draws: int) -> list[int]:
    """Return the paper's seeds, followed by further seeds if more draws are requested."""
    return [*PAPER_SEEDS, *range(PAPER_SEEDS[-1] + 1, PAPER_SEEDS[-1] + 1 + draws)][:draws]


def training(job: Job[JAMData], data: JAMData) -> dict[str, Any]:
    """Return the parameters of JAM that differ from its defaults."""
    return {**(job.size(data, "training") or {}), **(QUICK_TRAINING if job.quick else {})}


def tasks(job: Job[JAMData], data: JAMData) -> list[str]:
    """Return the configuration's tasks for which the data have items. Raises InputError if there are none."""
    present = [task for task in job["tasks"] if task in data.tasks]
    if not present:
        raise InputError(
            f"Got {data.name} without items of {', '.join(job['tasks'])}; expected at least one of these tasks. Pass data with items of these tasks."
        )
    return present


def check_layers(data: JAMData) -> None:
    """Raise InputError unless every encoder has early, middle and late layers."""
    if data.layers != LAYERS:
        raise InputError(
            f"Got {data.name} with the layers {', '.join(data.layers)}; expected early, mid and late of every encoder. Run congruence embed with --layer all."
        )


def split(
    job: Job[JAMData],
    data: JAMData,
    task: str,
    seed: int,
    encoders: tuple[str, str],
    layer: str | tuple[str, str] = "late",
) -> JAMParts:
    """Split a task's items, with the sizes of this run."""
    return data.split(task, seed, encoders=encoders, layer=layer, most=limits(job, data))


def limits(job: Job[JAMData], data: JAMData) -> dict[str, int]:
    """Return the maximum number of items of each part of a split; 0 means no limit."""
    most = {part: job.size(data, part) or 0 for part in ("train", "validation", "test")}
    return {**QUICK_MOST, "test": most["test"]} if job.quick else most


def pair_name(data: JAMData, encoders: tuple[str, str]) -> str:
    """Format a pair of encoders; the image encoder is included only if there are several, to keep bar labels short."""
    return " – ".join(encoders) if len({image for image, _ in data.encoders}) > 1 else encoders[1]


def in_task(task: str, pair: str) -> str:
    """Prefix a pair of encoders with a task or part of a task."""
    return f"{task}: {pair}"


def record_run(job: Job[JAMData], what: Mapping[str, object], mapping: Map) -> dict[str, float]:
    """Record a training run of JAM, and return its best epoch and the α at that epoch."""
    facts = getattr(mapping, "facts_", None) or {}
    if "reconstruction_error" not in facts:  # not trained by JAM
        return {}
    per_epoch = -(-facts["n_pairs"] // facts["training"]["batch_size"])
    best = facts["best_step"]
    at_best = {} if best is None else {"epoch_at_best": best / per_epoch}
    if "spread_mix_at_best" in facts:
        at_best["alpha_at_best"] = facts["spread_mix_at_best"]
    job.extra.setdefault("runs", []).append(
        {
            **what,
            "pairs": facts["n_pairs"],
            "steps": facts["steps"],
            "best_step": best,
            **at_best,
            "validation": mapping.scores_.get("validation_source_to_target_recall_at_1"),
            "reconstruction_error": facts["reconstruction_error"],
            "training": facts["training"],
        }
    )
    return at_best


def record_order(job: Job[JAMData]) -> None:
    """Record for each combination of data, pair, task and metric whether the mean scores follow the paper's order of the losses."""
    means_by_task: dict[tuple[object, ...], dict[str, float]] = {}
    for row in job.results.rows():
        task = str(row["pair"]).partition(":")[0]
        if row["series"] in PAPER_ORDER and task in TASKS and row["metric"] in ("binary_recall", "five_way_recall"):
            means_by_task.setdefault((row["data"], row["pair"], row["metric"]), {})[row["series"]] = row["mean"]
    lines: list[dict[str, Any]] = []
    for (data, pair, metric), means in means_by_task.items():
        if set(means) == set(PAPER_ORDER):
            order = sorted(means, key=lambda name: -means[name])
            holds = bool(np.all(np.diff([means[name] for name in PAPER_ORDER]) < 0))
            lines.append({"data": data, "pair": pair, "metric": metric, "order": order, "as_paper": holds})
    if lines:
        job.extra["order"] = lines
        words = " > ".join(PAPER_ORDER)
        job.add_note(
            f"{words} for {sum(line['as_paper'] for line in lines)} of {len(lines)} tasks and measures, by the means."
        )
