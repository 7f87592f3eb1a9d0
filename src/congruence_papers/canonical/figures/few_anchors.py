"""Fit on N classes, and evaluate on seen and unseen classes (figures 5, 16–27)."""

from __future__ import annotations

import numpy as np

from congruence_papers.canonical.anchors import add_references, anchor_rows, fit_modality, fit_on, pair_name, view
from congruence_papers.canonical.data import Collection
from congruence_papers.canonical.metrics import measure
from congruence_papers.job import Job

__all__ = ["run"]

RESAMPLED = "the N classes fitted on"


def run(job: Job[Collection]) -> None:
    """Draw N classes, fit on all of their training rows, and evaluate on seen and unseen classes separately."""
    for collection in job.data:
        k = len(collection.classes)
        for pair in collection.pairs:
            modality = fit_modality(job, collection, pair)
            labels = collection.labels if modality == "image" else collection.prompt_labels
            pool = np.unique(labels[anchor_rows(collection, modality)])
            for n in _steps(job, collection, len(pool)):
                for seed in job.seeds:
                    chosen = np.sort(np.random.default_rng([seed, n]).choice(pool, n, replace=False))
                    anchors = anchor_rows(collection, modality, chosen)
                    mean_classes = chosen if job["means"] == "seen" else np.arange(k)
                    parts = {"seen": chosen, "unseen": _unseen(collection, chosen)}
                    for method in job["methods"]:
                        mapping, centers = fit_on(
                            job, collection, pair, modality, anchors, method, classes=mean_classes, seed=seed
                        )
                        for part, classes in parts.items():
                            what = {"data": collection.name, "pair": pair_name(collection, pair), "part": part, "x": n}
                            if not len(classes):
                                continue
                            part_view = view(collection, pair, centers, classes=classes, every_image=modality == "text")
                            scores = measure(mapping, part_view, job.config.metrics)
                            job.results.add_all({**what, "series": method}, scores)
                            if method == job["methods"][0]:
                                add_references(job, what, part_view)
                    job.tick()


def _unseen(collection: Collection, chosen: np.ndarray) -> np.ndarray:
    """Return the evaluated classes that were not fitted on; if the data hold classes out, these are the same for every N."""
    return np.setdiff1d(np.flatnonzero(collection.heldout_classes), chosen)


def _steps(job: Job[Collection], collection: Collection, most: int) -> list[int]:
    """Return the numbers of classes to fit on, below ``most``."""
    steps = sorted({n for n in (collection.steps or job["classes"]) if n < most})
    return steps[:: max(1, len(steps) // 3)] if job.quick else steps
