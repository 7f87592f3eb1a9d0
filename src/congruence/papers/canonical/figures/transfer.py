"""Fit on one data set and evaluate on another without refitting (figures 6, 28–31)."""

from __future__ import annotations

import numpy as np

from congruence.errors import InputError
from congruence.papers.canonical.anchors import (
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
from congruence.papers.canonical.baselines import fit_modality_map
from congruence.papers.canonical.data import Collection
from congruence.papers.canonical.metrics import measure
from congruence.papers.job import Job

__all__ = ["run"]

RESAMPLED = "the anchors: each draw takes {share:.0%} of the training rows; the test parts are fixed"


def run(job: Job[Collection]) -> None:
    """Fit on each data set and evaluate on each, its own included."""
    for first, second in _couples(job.data):
        for pair in first.pairs:
            for home in (first, second):
                modality = fit_modality(job, home, pair)
                for seed in job.seeds[:1] if fitted_once(modality, "orthogonal") else job.seeds:
                    anchors = draw_anchors(job, home, modality, job["share"], np.random.default_rng([seed, 13]))
                    for away in (first, second):
                        _measure(job, home, away, pair, modality, anchors, seed)
                    job.tick()
            for away in (first, second):
                centers = means(away, pair, modality, anchor_rows(away, modality))
                what = {"data": away.name, "pair": pair_name(away, pair)}
                add_references(job, what, view(test_part(away), pair, centers))


def _couples(collections: list[Collection]) -> list[tuple[Collection, Collection]]:
    """Return pairs of data sets: those with the same models, or the two groups of classes if there is only one."""
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
    home: Collection,
    away: Collection,
    pair: tuple[int, int],
    modality: str,
    anchors: np.ndarray,
    seed: int,
) -> None:
    there = means(away, pair, modality, anchor_rows(away, modality))
    for which in job["means"]:
        if home is away and which != job["means"][0]:
            continue
        if which == "evaluated" and home is not away:
            source, target = both_rows(home, pair, modality)
            mapping = fit_modality_map("orthogonal", source[anchors], target[anchors], there, seed=seed)
            centers = there
        else:
            mapping, centers = fit_on(job, home, pair, modality, anchors, seed=seed)
        what = {
            "data": away.name,
            "pair": pair_name(away, pair),
            "series": f"fitted on {home.name}",
            "part": "in domain" if home is away else f"means of the data {which}",
        }
        found = measure(mapping, view(test_part(away), pair, centers), job.config.metrics)
        job.results.add_all(what, found)
