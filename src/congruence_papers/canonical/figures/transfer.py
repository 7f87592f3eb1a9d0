"""Fit on one data set and evaluate on another without refitting (figures 6, 28–31)."""

from __future__ import annotations

import numpy as np

from congruence.errors import InputError
from congruence_papers.canonical.anchors import (
    add_references,
    anchor_rows,
    both_rows,
    draw_anchors,
    fit_modality,
    fit_on,
    fitted_once,
    means,
    pair_name,
    test_part,
    view,
)
from congruence_papers.canonical.baselines import fit_modality_map
from congruence_papers.canonical.data import Collection
from congruence_papers.canonical.metrics import measure
from congruence_papers.job import Job

__all__ = ["run"]

RESAMPLED = "the anchors: each draw takes {share:.0%} of the training rows; the test parts are fixed"


def run(job: Job[Collection]) -> None:
    """Fit on each data set and evaluate on both."""
    for first, second in _couples(job.data):
        for pair in first.pairs:
            for fitted in (first, second):
                modality = fit_modality(job, fitted, pair)
                for seed in job.seeds[:1] if fitted_once(modality, "orthogonal") else job.seeds:
                    anchors = draw_anchors(job, fitted, modality, job["share"], np.random.default_rng([seed, 13]))
                    for evaluated in (first, second):
                        _measure(job, fitted, evaluated, pair, modality, anchors, seed)
                    job.tick()
            for evaluated in (first, second):
                centers = means(evaluated, pair, modality, anchor_rows(evaluated, modality))
                what = {"data": evaluated.name, "pair": pair_name(evaluated, pair)}
                add_references(job, what, view(test_part(evaluated), pair, centers))


def _couples(collections: list[Collection]) -> list[tuple[Collection, Collection]]:
    """Return pairs of data sets with the same models, or the two groups of classes if there is only one data set. Raises InputError for three or more."""
    couples = []
    by_models: dict[tuple[str, ...], list[Collection]] = {}
    for collection in collections:
        by_models.setdefault(tuple(model.name for model in collection.models), []).append(collection)
    for same in by_models.values():
        if len(same) == 1:
            couples.append(same[0].split_domains())
        elif len(same) == 2:
            couples.append((same[0], same[1]))
        else:
            raise InputError(f"Got {len(same)} data sets for a transfer; expected two. Pass data=… with two names.")
    return couples


def _measure(
    job: Job[Collection],
    fitted: Collection,
    evaluated: Collection,
    pair: tuple[int, int],
    modality: str,
    anchors: np.ndarray,
    seed: int,
) -> None:
    """Add the scores on one data set of a map fitted on another or the same, with each of the configured means."""
    evaluated_means = means(evaluated, pair, modality, anchor_rows(evaluated, modality))
    for which in job["means"]:
        if fitted is evaluated and which != job["means"][0]:
            continue
        if which == "evaluated" and fitted is not evaluated:
            source, target = both_rows(fitted, pair, modality)
            mapping = fit_modality_map("orthogonal", source[anchors], target[anchors], evaluated_means, seed=seed)
            centers = evaluated_means
        else:
            mapping, centers = fit_on(job, fitted, pair, modality, anchors, seed=seed)
        what = {
            "data": evaluated.name,
            "pair": pair_name(evaluated, pair),
            "series": f"fitted on {fitted.name}",
            "part": "in domain" if fitted is evaluated else f"means of the data {which}",
        }
        scores = measure(mapping, view(test_part(evaluated), pair, centers), job.config.metrics)
        job.results.add_all(what, scores)
