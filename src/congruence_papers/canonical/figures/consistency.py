"""Cycle and composition consistency of maps fitted on independent subsets of the anchors (figures 35–40)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from congruence.errors import InputError
from congruence_papers.canonical.anchors import (
    add_references,
    anchor_rows,
    draw_subset,
    fit_modality,
    fit_on,
    means,
    pair_name,
    test_part,
    view,
)
from congruence_papers.canonical.baselines import ModalityMap
from congruence_papers.canonical.data import Collection
from congruence_papers.canonical.metrics import measure
from congruence_papers.job import Job

__all__ = ["run_composition", "run_cycle"]

RESAMPLED = "the anchors of every map independently: {share:.0%} of the training rows each"


def run_cycle(job: Job[Collection]) -> None:
    """Map from A to B and back with two independently fitted maps, and compare the result with A."""
    for collection in job.data:
        heldout = test_part(collection)
        for a, b in collection.pairs:
            modality = fit_modality(job, collection, (a, b))
            what = {"data": collection.name, "pair": pair_name(collection, (a, b, a))}
            own = means(collection, (a, a), modality, anchor_rows(collection, modality))
            source_view = view(heldout, (a, a), own)
            add_references(job, what, source_view)
            for seed in job.seeds:
                forward = _fit(job, collection, (a, b), modality, seed, 0)
                backward = _fit(job, collection, (b, a), modality, seed, 1)
                scores = measure(_compose(forward, backward), source_view, job.config.metrics)
                job.results.add_all({**what, "series": "round trip"}, scores)
                job.tick()


def run_composition(job: Job[Collection]) -> None:
    """Compare the composed map A → B → C with the direct map A → C, for every chain of the data."""
    for collection in job.data:
        if len(collection.models) < 3:
            raise InputError(
                f"Got {len(collection.models)} models for a composition; expected three. Pass models='a/b/c', three names."
            )
        heldout = test_part(collection)
        for a, b, c in collection.chains:
            modality = fit_modality(job, collection, (a, c))
            what = {"data": collection.name, "pair": pair_name(collection, (a, b, c))}
            ends = view(heldout, (a, c), means(collection, (a, c), modality, anchor_rows(collection, modality)))
            add_references(job, what, ends)
            for seed in job.seeds:
                first = _fit(job, collection, (a, b), modality, seed, 0)
                second = _fit(job, collection, (b, c), modality, seed, 1)
                direct = _fit(job, collection, (a, c), modality, seed, 2)
                for name, mapping in (("composed", _compose(first, second)), ("direct", direct)):
                    job.results.add_all({**what, "series": name}, measure(mapping, ends, job.config.metrics))
                job.tick()


def _compose(first: ModalityMap, second: ModalityMap) -> Callable[[str, np.ndarray], np.ndarray]:
    """Return the map that applies one map after the other."""
    return lambda modality, rows: second(modality, first(modality, rows))


def _fit(
    job: Job[Collection], collection: Collection, pair: tuple[int, int], modality: str, seed: int, number: int
) -> ModalityMap:
    """Fit the map with this number on its own random subset of the anchors."""
    rng = np.random.default_rng([seed, 17, number])
    anchors = draw_subset(job, collection, modality, job["share"], rng)
    return fit_on(job, collection, pair, modality, anchors, seed=seed)[0]
