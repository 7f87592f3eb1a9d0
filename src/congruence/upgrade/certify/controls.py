"""Scores that need no correct map: of chance, of a constant and of a random rotation. A certified map should exceed them."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np

from congruence.evaluation.controls import cosine_controls
from congruence.maps import OrthogonalMap
from congruence.synthetic import random_rotation
from congruence.upgrade.certify.evaluation_set import EvaluationSet
from congruence.upgrade.certify.overlap import list_hits, ranked
from congruence.upgrade.certify.strategies import Side, similarities, unit_rows
from congruence.upgrade.certify.two_way import TwoWay

__all__ = ["measure_controls"]


def measure_controls(model: TwoWay, rotation: OrthogonalMap, items: EvaluationSet) -> dict[str, dict[str, float]]:
    """Return the scores of chance, of a constant and of a random rotation about the correct means.

    Parameters
    ----------
    model : TwoWay
    rotation : OrthogonalMap
        A rotation about the means; the random rotation uses the same means.
    items : EvaluationSet

    Returns
    -------
    dict of str to dict of str to float
        By measure of overlap: ``"chance"`` (a random list) and ``"random_rotation"``. By ``"cosine/<modality>"``: those of
        :func:`~congruence.evaluation.controls.cosine_controls`.
    """
    tables, rows, ranking = items.tables, items.compared, items.ranking
    k = items.list_length(len(rows))
    out: dict[str, dict[str, float]] = {}
    for search in items.searches if k > 0 else ():
        own = search.role == "items"
        there = rotation.for_modality(tables.store_modality)
        turn = random_rotation(model.d_source, model.d_target, random_state=items.random_state)
        store = (tables.source[tables.store_modality][rows] - there.source_mean_) @ turn + there.target_mean_
        judge = similarities("re-embed", model, items, search)
        near = Side(search.target).unit(ranking, search.queries_of(rows)) @ unit_rows(store, ranking).T
        chance = k / (len(rows) - own), _graded_chance(ranked(judge, own, ranking.hubness), k, own)
        found = list_hits(search, near, judge, k, ranking.hubness)
        for (measure, hits), by_chance in zip(found.items(), chance, strict=True):
            out[measure] = {"chance": float(by_chance), "random_rotation": float(hits.score.mean())}
    for name, target in tables.target.items():
        known = cosine_controls(model.to_target(name), tables.source[name], target, random_state=items.random_state)
        out[f"cosine/{name}"] = {key: value for key, value in asdict(known).items() if value is not None}
    return out


def _graded_chance(judge: np.ndarray, k: int, own: bool) -> float:
    """Return the expected graded overlap of a list of random rows."""
    n = judge.shape[1]
    mean = judge.mean(axis=1, where=judge > -np.inf)
    last = np.partition(judge, -k, axis=1)[:, -k]
    worth = np.minimum((judge - mean[:, None]) / np.maximum(last - mean, 1e-12)[:, None], 1.0)
    if own:
        np.fill_diagonal(worth, 0.0)
    return float(worth.sum() / (n - own) / len(judge))
