"""Relevance judgments of queries: from a TREC file, from classes or from ids."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from congruence._utils.display import short
from congruence._utils.ids import id_texts
from congruence._utils.refusals import describe_refusal
from congruence._utils.typing import Labels
from congruence._utils.validation import check_choice, check_same_rows
from congruence.embeddings import Embeddings
from congruence.errors import FileError, InputError


@dataclass(frozen=True, eq=False)
class Judgments:
    """The relevant rows of an index for each query, ascending, their positive grades, and notes on other judgments."""

    rows: list[np.ndarray]
    grades: list[np.ndarray]
    notes: list[str] = field(default_factory=list)

    @property
    def judged(self) -> np.ndarray:
        """Mask of the queries that have a relevant row, ndarray of bool, shape (m,)."""
        return np.array([len(rows) > 0 for rows in self.rows])

    def take(self, queries: np.ndarray) -> Judgments:
        """Return the judgments of some queries, by number."""
        return Judgments([self.rows[q] for q in queries], [self.grades[q] for q in queries], self.notes)


def read_qrels(path: str | Path) -> dict[str, dict[str, int]]:
    """Read relevance judgments in TREC format: grades by query and document; 0 and below mean not relevant."""
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8; expected TREC qrels.", "Save it as UTF-8.") from error
    except OSError as error:
        raise FileError(describe_refusal(error, f"while reading {path}")) from error
    out: dict[str, dict[str, int]] = {}
    for number, line in enumerate(text.split("\n"), 1):
        parts = line.split()
        if not parts:
            continue
        if len(parts) != 4:
            raise InputError(
                f"Got line {number} of {path} with {len(parts)} fields ({short(line.strip(), 60)!r}).",
                "Write q1 0 d7 1, for example.",
            )
        query, _, document, grade = parts
        if not re.fullmatch(r"[+-]?[0-9]{1,9}", grade):
            raise InputError(
                f"Got the grade {short(grade, 20)!r} in line {number} of {path}.",
                "Write a whole number, above 0 if relevant.",
            )
        known = out.setdefault(query, {})
        if document in known:
            raise InputError(
                f"Document {short(document, 60)!r} is judged twice for one query (line {number}).", "Remove a line."
            )
        known[document] = int(grade)
    if not out:
        raise InputError(f"No judgments in {path}.", "Pass a file with lines of query, 0, document and grade.")
    return out


def judge(
    queries: Embeddings,
    index: Embeddings,
    *,
    qrels: Mapping[str, Mapping[str, float]] | None = None,
    labels: tuple[Labels, Labels] | None = None,
) -> Judgments:
    """Find the relevant rows of an index for each query: with its id, or by ``qrels``, or of its class (``labels``)."""
    if qrels is not None and labels is not None:
        raise InputError("Got qrels and labels; expected one of the two.", "Leave out `qrels=…` or `labels=…`.")
    notes = []
    m = len(queries)
    if labels is not None:
        check_same_rows(m, len(labels[0]), "queries", "labels[0]")
        check_same_rows(len(index), len(labels[1]), "index", "labels[1]")
        ours, theirs = (np.asarray(side).astype(str) for side in labels)
        names, code = np.unique(theirs, return_inverse=True)
        members = np.split(np.argsort(code, kind="stable"), np.cumsum(np.bincount(code, minlength=len(names)))[:-1])
        place = {name: k for k, name in enumerate(names.tolist())}
        none = np.empty(0, dtype=np.intp)
        rows = [members[place[name]] if name in place else none for name in ours.tolist()]
        grades = [np.ones(len(relevant)) for relevant in rows]
    elif not (queries.has_ids and index.has_ids):
        raise InputError("Got queries or an index without ids.", "Pass both with `ids=…`, or `labels=…` of all rows.")
    else:
        at = {name: row for row, name in enumerate(id_texts(index.ids).tolist())}
        asked = id_texts(queries.ids).tolist()
        grade_of: Mapping[str, Mapping[str, float]] = {name: {name: 1} for name in asked} if qrels is None else qrels
        rows, grades, absent = [], [], 0
        for name in asked:
            wanted = {doc: grade for doc, grade in grade_of.get(name, {}).items() if grade > 0}
            found = sorted((at[doc], float(grade)) for doc, grade in wanted.items() if doc in at)
            absent += len(wanted) - len(found)
            rows.append(np.array([row for row, _ in found], dtype=np.intp))
            grades.append(np.array([grade for _, grade in found]))
        if absent and qrels is not None:
            notes.append(f"{absent} relevant judgments name documents that are not in the index; they were left out.")
        if qrels is not None and (unasked := len(set(qrels) - set(asked))):
            notes.append(f"{unasked} judged queries are not among the queries.")
    judged = sum(len(relevant) > 0 for relevant in rows)
    if not judged:
        fix = "Check that the ids agree."
        if qrels is None and labels is None:
            fix = "Pass `labels=…` with both sides' classes, or `qrels=…`: without these, a query's row has its id."
        raise InputError(f"No query has a relevant row ({m} queries, {len(index)} rows).", fix)
    if judged < m:
        notes.append(f"{m - judged} of {m} queries have no relevant row in the index; they were left out.")
    return Judgments(rows, grades, notes)


#: What recall measures: whether at least one relevant row is among the k, or the share of relevant rows found.
MODES = ("any", "share")


def _names(at: Sequence[int], ndcg_at: int) -> list[str]:
    return [*(f"recall@{k}" for k in at), f"ndcg@{ndcg_at}"]


def _ideal(grades: np.ndarray, discounts: np.ndarray) -> float:
    best = np.sort(grades)[::-1][: len(discounts)]
    return float(best @ discounts[: len(best)])


def ranked_scores(
    found: np.ndarray, judgments: Judgments, *, at: Sequence[int] = (1, 10), ndcg_at: int = 10, mode: str = "any"
) -> dict[str, np.ndarray]:
    """Score ranked lists of rows ``found`` (m, k), best first: ``"recall@1"``, …, ``"ndcg@10"`` of each query. nDCG
    (Järvelin and Kekäläinen 2002) is Σᵢ gᵢ / log₂(i + 1) over its best possible value, with the grade itself as g, as
    in trec_eval and scikit-learn. Rows without a judgment count as not relevant; every query must have a relevant row.
    """
    check_choice(mode, MODES, "mode")
    discounts = 1 / np.log2(np.arange(2, ndcg_at + 2))
    out = {name: np.zeros(len(found)) for name in _names(at, ndcg_at)}
    for q, (rows, grades) in enumerate(zip(judgments.rows, judgments.grades, strict=True)):
        place = np.minimum(np.searchsorted(rows, found[q]), len(rows) - 1)
        gains = np.where(rows[place] == found[q], grades[place], 0.0)
        for k in at:
            hits = int(np.count_nonzero(gains[:k]))
            out[f"recall@{k}"][q] = hits / len(rows) if mode == "share" else float(hits > 0)
        top = gains[:ndcg_at]
        out[f"ndcg@{ndcg_at}"][q] = float(top @ discounts[: len(top)]) / _ideal(grades, discounts)
    return out


def expected_scores(
    judgments: Judgments, n: int, *, at: Sequence[int] = (1, 10), ndcg_at: int = 10, mode: str = "any"
) -> dict[str, float]:
    """Return the expected scores of n rows in random order; the parameters are those of ``ranked_scores``."""
    discounts = 1 / np.log2(np.arange(2, ndcg_at + 2))
    out = dict.fromkeys(_names(at, ndcg_at), 0.0)
    m = len(judgments.rows)
    for rows, grades in zip(judgments.rows, judgments.grades, strict=True):
        for k in at:
            draws = np.arange(min(k, n))
            missed = float(np.prod(np.maximum(n - len(rows) - draws, 0) / (n - draws)))
            out[f"recall@{k}"] += (min(k, n) / n if mode == "share" else 1 - missed) / m
        out[f"ndcg@{ndcg_at}"] += float(grades.sum() / n * discounts[:n].sum()) / _ideal(grades, discounts) / m
    return out
