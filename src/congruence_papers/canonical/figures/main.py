"""Maps of one or more methods, fitted on one modality and evaluated on both (figures 4, 7, 11–15, 32–34, 41–52)."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping

import numpy as np

from congruence_papers.canonical.anchors import (
    add_references,
    anchor_rows,
    draw_anchors,
    fit_modality,
    fit_on,
    fitted_once,
    means,
    pair_name,
    test_part,
    view,
)
from congruence_papers.canonical.data import Collection
from congruence_papers.canonical.metrics import measure
from congruence_papers.job import Job

__all__ = ["run"]

RESAMPLED = "the anchors: each draw takes {share:.0%} of the training rows; the test part is fixed"


def run(job: Job[Collection]) -> None:
    """Fit every method on random draws of the anchors, and evaluate on the test part."""
    methods = list(job["methods"])
    if "mlp" in methods and importlib.util.find_spec("torch") is None:
        methods.remove("mlp")
        job.add_note("The MLP was left out: it needs PyTorch (pip install 'congruence[train]').")
    for collection in job.data:
        heldout = test_part(collection)
        for pair in collection.pairs:
            modality = fit_modality(job, collection, pair)
            rows = anchor_rows(collection, modality)
            what = {"data": collection.name, "pair": pair_name(collection, pair), "part": collection.kind_of(pair)}
            add_references(job, what, view(heldout, pair, means(collection, pair, modality, rows)))
            for number, seed in enumerate(job.seeds):
                anchors = draw_anchors(job, collection, modality, job["share"], np.random.default_rng([seed, 11]))
                for method in methods:
                    if number and fitted_once(modality, method):
                        continue
                    mapping, centers = fit_on(job, collection, pair, modality, anchors, method, seed=seed)
                    scores = measure(mapping, view(heldout, pair, centers), job.config.metrics)
                    job.results.add_all({**what, "series": method}, scores)
                if job["fit"] == "text":
                    _fit_on_images(job, collection, pair, what, seed)
                job.tick()


def _fit_on_images(
    job: Job[Collection], collection: Collection, pair: tuple[int, int], what: Mapping[str, object], seed: int
) -> None:
    """Also fit on images if both models have them, for comparison with the fit on text."""
    if any(collection.models[k].images is None for k in pair):
        return
    anchors = draw_anchors(job, collection, "image", job["share"], np.random.default_rng([seed, 11]))
    mapping, centers = fit_on(job, collection, pair, "image", anchors, seed=seed)
    scores = measure(mapping, view(test_part(collection), pair, centers), job.config.metrics)
    job.results.add_all({**what, "series": "orthogonal, fitted on images"}, scores)
