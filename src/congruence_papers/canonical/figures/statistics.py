"""Statistics of the data sets, for comparison with the paper's tables 1 and 2."""

from __future__ import annotations

import numpy as np

from congruence_papers.canonical.data import Collection
from congruence_papers.job import Job

__all__ = ["run_statistics", "run_templates"]

RESAMPLED = "nothing: these are counts"


def run_statistics(job: Job[Collection]) -> None:
    """Count the classes, training images and test images."""
    for collection in job.data:
        counts = {
            "classes": len(collection.classes),
            "train_images": int(collection.train.sum()),
            "test_images": int((~collection.train).sum()),
        }
        for metric, count in counts.items():
            job.results.add({"data": collection.name, "metric": metric, "quantity": "count"}, count)
        job.tick()


def run_templates(job: Job[Collection]) -> None:
    """Count the templates, and list the prompts of the first class."""
    listed = {}
    for collection in job.data:
        first = np.flatnonzero(collection.prompt_labels == 0)
        count = len(np.unique(collection.prompt_templates))
        job.results.add({"data": collection.name, "metric": "templates", "quantity": "count"}, count)
        listed[collection.name] = [collection.texts[k] for k in first.tolist()] if collection.texts else []
        job.tick()
    job.extra["templates"] = listed
