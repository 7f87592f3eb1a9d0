"""Retrieval through a bridge, compared with the old model, the re-embedded index and chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from congruence._utils.ids import id_rows
from congruence._utils.typing import Labels, RowsLike
from congruence._utils.validation import check_positive, check_same_rows, check_width
from congruence.embeddings import Embeddings, as_embeddings, as_pair
from congruence.errors import IdError, InputError, ParameterError
from congruence.evaluation.judgments import expected_scores, judge, ranked_scores
from congruence.metrics.hubness import Hubness, as_hubness
from congruence.upgrade.bridge._searching import BridgedSearch
from congruence.upgrade.bridge.search import find

__all__ = ["BridgeScores", "SystemScores", "evaluate_bridge"]

#: Cutoff of nDCG.
NDCG_AT = 10


@dataclass(frozen=True)
class SystemScores:
    """Scores of one way to search.

    Attributes
    ----------
    system : str
        ``"old model"``, ``"bridge"``, ``"two-stage"``, ``"re-embedded"``, ``"unmapped"`` (only if the widths agree) or ``"chance"``.
    scores : dict of str to float
        ``"recall@1"``, …, ``"ndcg@10"``: means over queries.
    errors : dict of str to float
        Standard errors of these means over queries, for the given map and index. Empty for chance.
    """

    system: str
    scores: dict[str, float]
    errors: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class BridgeScores:
    """Result of :meth:`congruence.Bridge.evaluate`: plain data.

    Attributes
    ----------
    systems : list of SystemScores
        All measured on the same queries.
    n_queries, n_rows : int
        Number of queries that have a relevant row, and of rows of the index.
    candidates : int or None
        Number of rows that the first stage of two-stage search returned.
    mode : str
        What recall measures.
    notes : list of str
        Queries and judgments that were left out, and the queries from which a correction was computed.
    center : bool
        Whether queries and index were centered at their own means, for every line.
    hubness : str or None
        Name of the correction for hubs used for every line.
    """

    systems: list[SystemScores]
    n_queries: int
    n_rows: int
    candidates: int | None
    mode: str
    notes: list[str] = field(default_factory=list)
    center: bool = False
    hubness: str | None = None

    def __getitem__(self, system: str) -> dict[str, float]:
        for line in self.systems:
            if line.system == system:
                return line.scores
        raise KeyError(system)

    def to_dict(self) -> dict[str, object]:
        """Return all fields as plain data."""
        return asdict(self)

    def __str__(self) -> str:
        names = list(self.systems[0].scores)
        lines = [f"{self.n_queries:,} queries over {self.n_rows:,} rows".ljust(32) + "".join(f"{n:>11}" for n in names)]
        lines += [f"  {line.system:<30}" + "".join(f"{line.scores[n]:>11.3f}" for n in names) for line in self.systems]
        return "\n".join(lines)


def evaluate_bridge(
    bridge: BridgedSearch,
    queries: RowsLike,
    index: RowsLike,
    *,
    queries_old: RowsLike | None,
    index_new: RowsLike | None,
    qrels: Mapping[str, Mapping[str, float]] | None,
    labels: tuple[Labels, Labels] | None,
    at: Sequence[int],
    mode: str,
    candidates: int,
    modality: str | None,
    center: bool,
    hubness: str | Hubness | None,
    bank: RowsLike | None,
) -> BridgeScores:
    """Evaluate a bridge; see :meth:`congruence.Bridge.evaluate`."""
    for k in at:
        check_positive(k, "at", integer=True)
    at = sorted(set(at))
    if not at:
        raise ParameterError("Got no cutoff in at=…; expected at least one. Pass at=(1, 10).")
    asked = as_embeddings(queries, "queries")
    rows = as_embeddings(index, "index")
    judgments = judge(asked, rows, qrels=qrels, labels=labels)
    notes = list(judgments.notes)
    kept = np.flatnonzero(judgments.judged)
    old = None
    if queries_old is not None:
        old, matched = _matched_rows(asked, queries_old, "queries_old")
        check_width(old.shape[1], rows.dim, "Bridge.evaluate (queries_old)")
        if not matched.all():
            notes.append(f"{int((~matched).sum())} queries are not among those of the old model; they were left out.")
            kept = kept[matched[kept]]
        if not len(kept):
            raise InputError(
                "Got no query of queries_old=… with a relevant row in the index; expected at least one. Pass queries_old=… with the queries that are judged."
            )
    judgments = judgments.take(kept)
    new = None
    if index_new is not None:
        new, matched = _matched_rows(rows, index_new, "index_new")
        if not matched.all():
            notes.append(
                f"{int((~matched).sum())} of {len(rows)} rows have no vector of the new model: two-stage search ranks them after those that have one, and there "
                "is no line for a re-embedded index."
            )
            new[~matched] = np.nan
    depth = min(max(*at, NDCG_AT), len(rows))
    first_stage = max(candidates, depth)
    cutoffs = {"at": at, "ndcg_at": NDCG_AT, "mode": mode}

    def scored(system: str, found: np.ndarray) -> SystemScores:
        by_query = ranked_scores(found, judgments, **cutoffs)  # type: ignore[arg-type]
        errors = {k: float(v.std(ddof=1) / np.sqrt(len(v))) if len(v) > 1 else 0.0 for k, v in by_query.items()}
        return SystemScores(system, {k: float(v.mean()) for k, v in by_query.items()}, errors)

    vectors = asked.vectors[kept]
    correction = as_hubness(hubness)
    corrected: dict[str, Any] = {"center": center, "hubness": correction}
    theirs = {**corrected, "bank": None if bank is None else as_embeddings(bank, "bank").vectors}
    systems = []
    if old is not None:
        systems.append(scored("old model", find(old[kept], rows.vectors, depth, **corrected)[1]))
    unnamed = rows.vectors  # without ids, so that results are row numbers
    ours = {**corrected, "bank": bank, "modality": modality or asked.space.modality}
    systems.append(scored("bridge", bridge.search(vectors, unnamed, depth, **ours).ids))
    if new is not None:
        two_stage = bridge.search(vectors, unnamed, depth, candidates=first_stage, rerank=new, **ours)
        systems.append(scored("two-stage", two_stage.ids))
        if np.isfinite(new).all():
            systems.append(scored("re-embedded", find(vectors, new, depth, **theirs)[1]))
    if asked.dim == rows.dim:
        systems.append(scored("unmapped", find(vectors, rows.vectors, depth, **theirs)[1]))
    systems.append(SystemScores("chance", expected_scores(judgments, len(rows), **cutoffs)))  # type: ignore[arg-type]
    if center or correction:
        notes += _bank_notes(bank is not None, old is not None)
    n_candidates = min(first_stage, len(rows)) if new is not None else None
    name = None if correction is None else correction.name
    return BridgeScores(systems, len(kept), len(rows), n_candidates, mode, notes, center, name)


def _bank_notes(has_bank: bool, has_old: bool) -> list[str]:
    """Return notes on the queries from which the correction was computed."""
    if not has_bank:
        return [
            "Centering and the correction for hubs use the evaluated queries as the bank: the scores are those of queries that arrive together "
            "(transductive). Pass a bank of earlier queries for queries that arrive one by one."
        ]
    return [
        "The bank holds queries of the new model; the old model's line uses its own evaluated queries instead."
    ] * has_old


def _matched_rows(items: Embeddings, other: RowsLike, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return another model's rows of the same items, with zeros for missing rows, and a mask of those present."""
    ours, theirs = as_pair(items, other, ("queries" if name == "queries_old" else "index", name))
    if not (ours.has_ids and theirs.has_ids):
        check_same_rows(len(ours), len(theirs), "queries" if name == "queries_old" else "index", name)
        return np.array(theirs.vectors, dtype=np.result_type(theirs.vectors, np.float32)), np.ones(len(ours), bool)
    place = id_rows(theirs.ids, ours.ids)
    matched = place >= 0
    if not matched.any():
        raise IdError(
            f"Got no id in common between {name} and the {'queries' if name == 'queries_old' else 'index'}; expected the same items. Pass {name}=… with the "
            "same ids."
        )
    out = np.zeros((len(ours), theirs.dim), dtype=np.result_type(theirs.vectors, np.float32))
    out[matched] = theirs.vectors[place[matched]]
    return out, matched
