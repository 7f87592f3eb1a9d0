"""JAM's losses on controls without image–text information, and their transfer between tasks."""

from __future__ import annotations

from typing import Any

from congruence_papers.jam.baselines import BASELINES
from congruence_papers.jam.controls import CONTROLS, control_data
from congruence_papers.jam.data import JAMData
from congruence_papers.jam.fitted import fit_method
from congruence_papers.jam.protocol import in_task, limits, pair_name, split, tasks, training
from congruence_papers.jam.transfer import measure_transfer
from congruence_papers.job import Job

__all__ = ["run_controls", "run_transfer"]


def run_controls(job: Job[JAMData]) -> None:
    """Fit and evaluate on the data and on each control, with everything else equal."""
    for data in job.data:
        for control in job["controls"]:
            if control == "unrelated" and any(text not in data.unrelated for _, text in data.encoders):
                job.add_note(f"{data.name} has no unrelated texts: {CONTROLS[control]} is left out.")
                continue
            for seed in job.seeds:
                own = control_data(data, control, seed)
                for task in tasks(job, own):
                    for encoders in own.encoders:
                        parts = split(job, own, task, seed, encoders)
                        for method in job["methods"]:
                            fitted = fit_method(method, parts, training(job, own), seed)
                            line: dict[str, Any] = {
                                "data": data.name,
                                "series": BASELINES[method],
                                "part": CONTROLS[control],
                            }
                            scores = fitted.measure(parts.items, parts.test, seed)[task]
                            job.add_scores({**line, "pair": in_task(task, pair_name(data, encoders))}, scores)
                        job.tick()


def run_transfer(job: Job[JAMData]) -> None:
    """Fit on each task and on all tasks together, and evaluate on every task, which gives one matrix per method."""
    for data in job.data:
        for seed in job.seeds:
            for encoders in data.encoders:
                for method in job["methods"]:
                    transferred = measure_transfer(
                        data,
                        method,
                        seed,
                        encoders=encoders,
                        training=training(job, data),
                        most=limits(job, data),
                    )
                    for recall in transferred:
                        line = {
                            "data": data.name,
                            "pair": in_task(recall.task, pair_name(data, encoders)),
                            "series": BASELINES[method],
                            "part": f"fitted on {recall.fitted_on}",
                        }
                        job.add_scores(line, {"binary_recall": recall.binary, "five_way_recall": recall.choice})
                job.tick()
