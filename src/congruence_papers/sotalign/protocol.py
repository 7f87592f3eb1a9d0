"""Helpers shared by SOTAlign's kinds of figure: sizes, splits, tuning, and rows of the results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from congruence.train.retrieval import chance_recall
from congruence_papers.job import Job
from congruence_papers.sotalign.baselines import BASELINES, choose, combinations, fit_baseline
from congruence_papers.sotalign.data import Parts, SOTAlignData
from congruence_papers.sotalign.metrics import measure_heads

__all__ = ["RESAMPLED", "TUNING_SEEDS", "add_chance", "measure_baseline", "size", "split", "training", "tuned"]

RESAMPLED = "the split: pairs, unpaired rows, validation rows and test rows"

#: Seeds of the tuning splits, which are not used for reported results.
TUNING_SEEDS = (1000, 1001, 1002)

#: Sizes used if neither the configuration nor the data specify them.
PAPER_SIZES: dict[str, object] = {
    "pairs": 10_000,
    "pairs_sweep": [100, 300, 1000, 3000, 10_000, 30_000, 100_000],
    "unpaired": 1_000_000,
    "unpaired_sweep": [10_000, 30_000, 100_000, 300_000, 1_000_000],
    "validation": 5000,
    "test": 5000,
    "training": {},
}
#: Parameters of training that are replaced in a quick run.
QUICK_TRAINING = {
    "n_components": 8,
    "max_steps": 2,
    "validate_every": 2,
    "max_iter": 5,
    "unpaired_batch": 64,
    "spectral_steps": 2,
    "n_spectral_components": 8,
}


def size(job: Job[SOTAlignData], data: SOTAlignData, key: str) -> Any:
    """Return a size from the configuration, else from the data, else from the paper."""
    return job.size(data, key, PAPER_SIZES[key])


def training(job: Job[SOTAlignData], data: SOTAlignData) -> dict[str, Any]:
    """Return the parameters shared by all trained methods."""
    return {**size(job, data, "training"), **(QUICK_TRAINING if job.quick else {})}


def split(job: Job[SOTAlignData], data: SOTAlignData, seed: int, pairs: int | None = None, **options: Any) -> Parts:
    """Draw a split with the sizes of this run."""
    options.setdefault("unpaired", size(job, data, "unpaired"))
    options.setdefault("overlap", job["overlap"])
    return data.split(
        pairs or size(job, data, "pairs"),
        validation=size(job, data, "validation"),
        test=size(job, data, "test"),
        seed=seed,
        **options,
    )


def tuned(job: Job[SOTAlignData], data: SOTAlignData, names: list[str], pairs: int) -> dict[str, dict[str, object]]:
    """Choose the parameters of baselines for a number of pairs, once, on tuning splits; without tuning, the first combination of each."""
    if not job["tune"] or job.quick:
        return {name: combinations(name)[0] for name in names}
    splits = [split(job, data, seed, pairs) for seed in TUNING_SEEDS]
    chosen = {}
    for name in names:
        chosen[name], trials = choose(name, splits, training(job, data), data.classes)
        job.extra.setdefault("tuning", []).append(
            {
                "data": data.name,
                "pairs": pairs,
                "method": name,
                "chosen": chosen[name],
                "trials": [{"tried": tried, "found": scores} for tried, scores in trials],
            }
        )
        job.tick()
    return chosen


def measure_baseline(
    job: Job[SOTAlignData],
    data: SOTAlignData,
    name: str,
    parts: Parts,
    seed: int,
    what: Mapping[str, object],
    tried: Mapping[str, object] | None = None,
) -> dict[str, float]:
    """Fit a baseline to a split, add the configuration's metrics to the results, and return all metrics."""
    mapping = fit_baseline(name, parts, training(job, data), tried, seed)
    scores = measure_heads(mapping, parts.test, data.classes)
    line = {"data": data.name, "series": BASELINES[name].words, **what}
    for metric in job.config.metrics:
        if metric in scores:
            job.results.add({**line, "metric": metric, "quantity": "after"}, scores[metric])
    teacher = getattr(mapping, "teacher_", None)
    if teacher is not None:
        teacher_score = measure_heads(teacher, parts.test, data.classes)["mean_r1"]
        if scores["mean_r1"] < teacher_score:
            _note_below_teacher(job, line, seed, scores["mean_r1"], teacher_score)
    return scores


def _note_below_teacher(
    job: Job[SOTAlignData], line: Mapping[str, object], seed: int, score: float, teacher_score: float
) -> None:
    """Note that the heads score below their teacher: one note per cell of the table, listing the draws."""
    where = ", ".join(str(value) for key, value in line.items() if key != "series" and value is not None)
    start = f"{line['series']} ({where}) retrieves worse than its linear teacher on the test rows, by MeanR@1: "
    earlier = next((note for note in job.notes if note.startswith(start)), None)
    draw = f"draw {seed}, {score:.3f} against {teacher_score:.3f}"
    if earlier is None:
        job.add_note(f"{start}{draw}.")
    else:
        job.notes[job.notes.index(earlier)] = f"{earlier.removesuffix('.')}; {draw}."


def add_chance(job: Job[SOTAlignData], data: SOTAlignData, parts: Parts, what: Mapping[str, object]) -> None:
    """Add the scores of a random ranking."""
    heldout = parts.test
    values: dict[str, float] = {}
    for k in (1, 5, 10):
        for direction, queries, gallery in (
            ("i2t", heldout.image_labels, heldout.text_labels),
            ("t2i", heldout.text_labels, heldout.image_labels),
        ):
            values[f"{direction}_r{k}"] = chance_recall(queries, gallery, k)
        values[f"mean_r{k}"] = (values[f"i2t_r{k}"] + values[f"t2i_r{k}"]) / 2
    if data.classes:
        values["zero_shot"] = 1 / len(np.unique(heldout.text_labels))
    for metric in job.config.metrics:
        if metric in values:
            job.results.add({"data": data.name, **what, "metric": metric, "quantity": "chance"}, values[metric])
