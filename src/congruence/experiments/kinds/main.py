"""One map, or several kinds of map, fitted on one modality and measured on both (figures 4, 7, 11–15, 32–34, 41–52)."""

from __future__ import annotations

import importlib.util

import numpy as np

from congruence.experiments.kinds._base import (
    Job,
    anchor_rows,
    draw,
    fit_modality,
    fit_on,
    means,
    pair_name,
    test_part,
    view,
)
from congruence.experiments.measure import measure, references

RESAMPLED = "the anchors: each draw takes {share:.0%} of the training rows; the test part is fixed"


def run(job: Job) -> None:
    """Fit every method on draws of the anchors and measure on the test part."""
    methods = list(job["methods"])
    if "mlp" in methods and importlib.util.find_spec("torch") is None:
        methods.remove("mlp")
        job.remark("The perceptron was left out: it needs PyTorch (pip install 'congruence[train]').")
    for collection in job.collections:
        held = test_part(collection)
        for pair in collection.pairs:
            modality = fit_modality(job, collection, pair)
            rows = anchor_rows(collection, modality)
            what = {"data": collection.name, "pair": pair_name(collection, pair)}
            everything = view(held, pair, means(collection, pair, modality, rows))
            job.ledger.note_references(what, references(everything, job.config.metrics))
            for seed in job.seeds:
                anchors = draw(job, rows, job["share"], np.random.default_rng([seed, 11]))
                for method in methods:
                    carry, centres = fit_on(job, collection, pair, modality, anchors, method, seed=seed)
                    found = measure(carry, view(held, pair, centres), job.config.metrics)
                    job.ledger.note_all({**what, "series": method}, found)
                job.tick()
