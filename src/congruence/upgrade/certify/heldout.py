"""Scores of the four strategies on held-out items, which the map was not fitted on."""

from __future__ import annotations

import numpy as np

from congruence.upgrade.certify.evaluation_set import EvaluationSet
from congruence.upgrade.certify.measured import Measured
from congruence.upgrade.certify.overlap import influence_of, list_hits, with_texts
from congruence.upgrade.certify.scoring import score
from congruence.upgrade.certify.strategies import cosines, similarities, vectors_of
from congruence.upgrade.certify.two_way import TwoWay

__all__ = ["score_heldout"]


def score_heldout(model: TwoWay, items: EvaluationSet) -> Measured:
    """Score items that are not anchors: tasks, cosines, and the overlap of result lists.

    Parameters
    ----------
    model : TwoWay
        Fitted on all anchors.
    items : EvaluationSet

    Returns
    -------
    Measured
    """
    tables, groups = items.tables, items.groups
    out = Measured(mapped=model.to_target(tables.store_modality).transform(tables.source[tables.store_modality]))
    for name, hits in score(vectors_of(model, items), items, np.arange(tables.n)).items():
        out.add(name, hits.score, hits.influence, groups)
    for modality in tables.target:
        values = cosines(model, tables, modality, np.arange(len(tables.ids[modality])))
        out.add(f"cosine/{modality}", values, values, groups)
    k = items.list_length(len(items.compared))
    model = with_texts(model, items)
    for search in items.searches if k > 0 else ():
        inside = groups[items.compared] if search.paired and groups is not None else None
        judge = similarities("re-embed", model, items, search)
        for strategy in search.strategies:
            near = similarities(strategy, model, items, search)
            for measure, hits in list_hits(search, near, judge, k, items.ranking.hubness).items():
                out.add(f"{measure}/{strategy}", hits.score, influence_of(hits, search), inside)
    return out
