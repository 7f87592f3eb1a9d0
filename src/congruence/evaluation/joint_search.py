"""Search rows of one model with rows of the other, through a joint-space map."""

from __future__ import annotations

import numpy as np

from congruence._utils.arrays import normalize_rows, to_numpy
from congruence._utils.typing import RowsLike
from congruence._utils.validation import check_choice, check_positive
from congruence.errors import ParameterError
from congruence.maps import HeadsMap
from congruence.maps.heads import SIDES
from congruence.metrics.hubness import CSLS
from congruence.metrics.search import nearest


def searched_rows(mapping: HeadsMap, gallery: RowsLike, *, side: str = "source", hubness: str = "auto") -> np.ndarray:
    """Return mapped rows (n, d_out) whose inner products with unit mapped queries of a ``side`` are the scores of
    ``search``; with CSLS, of width d_out + 1, for queries that have one more entry of 1.
    """
    check_choice(side, SIDES, "side")
    check_choice(hubness, ("auto", "csls", "none"), "hubness")
    asked = SIDES.index(side)
    G = normalize_rows(to_numpy((mapping.transform, mapping.transform_target)[1 - asked](gallery)))
    if hubness == "none" or (hubness == "auto" and mapping.facts_.get("hubness") != "csls"):
        return G
    if mapping.banks_ is None:
        raise ParameterError(
            "Got `hubness='csls'` for a map without rows to compute densities.",
            "Fit a SelfTrainedMap, or pass `hubness='none'`.",
        )
    return np.column_stack([G, -CSLS().of(mapping.banks_[asked].astype(G.dtype), G).shift.astype(G.dtype)])


def search(
    mapping: HeadsMap, queries: RowsLike, gallery: RowsLike, k: int = 10, *, side: str = "source", hubness: str = "auto"
) -> tuple[np.ndarray, np.ndarray]:
    """Return the row numbers (m, k) of the k nearest gallery rows of each query, and their similarities, nearest first.
    ``queries`` and ``gallery`` are unmapped rows of the two models, ``side`` the model of the queries. "csls" subtracts
    from each cosine half the gallery row's density among the queries of the map's ``banks_``, so that the result of a
    query does not depend on the others; "auto" does so if the map chose it when it was fitted.
    """
    check_positive(k, "k", integer=True)
    G = searched_rows(mapping, gallery, side=side, hubness=hubness)
    asked = (mapping.transform, mapping.transform_target)[SIDES.index(side)]
    Q = normalize_rows(to_numpy(asked(queries)))
    if G.shape[1] > Q.shape[1]:
        Q = np.column_stack([Q, np.ones(len(Q), Q.dtype)])
    rows = nearest(Q, min(k, len(G)), G)
    return rows, np.stack([np.einsum("ij,ij->i", Q, G[column]) for column in rows.T], axis=1)
