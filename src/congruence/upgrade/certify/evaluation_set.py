"""The items that a certificate scores, and what can be measured on them: tasks, and searches whose result lists are compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from congruence.evaluation import Ranking
from congruence.upgrade.certify.tables import Tables

__all__ = ["MOST_COMPARED", "PLAIN", "EvaluationSet", "Search"]

#: Cosine similarity, without centering or a correction for hubs.
PLAIN = Ranking()

#: Largest number of stored rows whose result lists are compared: every one of them is compared with all others.
MOST_COMPARED = 2000

#: Largest number of text queries that are used.
_MOST_TEXTS = 2000


@dataclass(frozen=True, eq=False)
class Search:
    """Queries in both models that search the store.

    Attributes
    ----------
    name : str
        Prefix of its measures: ``"overlap"`` or ``"text_overlap"``.
    modality : str
        Modality of the queries.
    source : ndarray, shape (m, d_source), or None
        The queries in the source model, if available.
    target : ndarray, shape (m, d_target)
    role : {"items", "captions", "classes", "apart"}
        The stored items themselves, each excluded from its own list; a caption for each item; a description for each class; or texts of
        other items.
    """

    name: str
    modality: str
    source: np.ndarray | None
    target: np.ndarray
    role: str

    @property
    def paired(self) -> bool:
        """Whether query i and stored row i are the same item, so that both leave a sample together."""
        return self.role in ("items", "captions")

    @property
    def strategies(self) -> tuple[str, ...]:
        """Strategies whose result lists can be compared with those of re-embedding."""
        return ("stored",) if self.source is None else ("keep", "stored", "queries")

    def queries_of(self, rows: np.ndarray) -> np.ndarray:
        """Return the numbers of the queries that are used if only these stored rows are searched: their own, or all."""
        return rows if self.paired else np.arange(len(self.target))


@dataclass(frozen=True, eq=False)
class EvaluationSet:
    """Items with vectors in both models, and how they are scored.

    Attributes
    ----------
    tables : Tables
        The items.
    texts : (ndarray or None, ndarray), shapes (m, d_source) and (m, d_target), or None
        Text queries of other items in the source model (if available) and in the target model, paired by row.
    groups : ndarray of int, shape (n,), or None
        Stored rows whose errors depend on each other, such as near-duplicates.
    n_neighbors : int
        Length of the result lists that are compared.
    ranking : Ranking
        Search variant, the same for all strategies.
    random_state : int
        Determines the sample of rows whose result lists are compared, and the folds of cross-fitting.
    """

    tables: Tables
    texts: tuple[np.ndarray | None, np.ndarray] | None = None
    groups: np.ndarray | None = None
    n_neighbors: int = 10
    ranking: Ranking = PLAIN
    random_state: int = 0

    @cached_property
    def tasks(self) -> dict[str, int]:
        """The tasks that can be measured, the decisive one first, with the number of results that each considers."""
        if self.tables.by_class:
            return {"zero_shot": 1, "zero_shot@5": 5}
        if self.tables.store_modality != self.tables.query_modality:
            return {"recall@1": 1, "recall@10": 10}
        return {"own@1": 1} if self.tables.classes is None else {"same_class@1": 1}

    @cached_property
    def searches(self) -> list[Search]:
        """The searches whose result lists can be compared with those of the re-embedded store; empty if the target model has no vectors of the store."""
        source, target = self.tables.source, self.tables.target
        stored, query = self.tables.store_modality, self.tables.query_modality
        if stored not in target:
            return []
        found = [Search("overlap", stored, source[stored], target[stored], "items")]
        if query != stored:
            role = "classes" if self.tables.by_class else "captions"
            found.append(Search("text_overlap", query, source[query], target[query], role))
        elif self.texts is not None:
            ours, theirs = self.texts
            ours = None if ours is None else ours[:_MOST_TEXTS]
            found.append(Search("text_overlap", "text", ours, theirs[:_MOST_TEXTS], "apart"))
        return found

    def search_of(self, measure: str) -> Search:
        """Return the search that a measure of overlap compares, such as ``"graded_overlap@10"``."""
        name = measure.split("@")[0].removeprefix("graded_")
        return next(search for search in self.searches if search.name == name)

    @cached_property
    def compared(self) -> np.ndarray:
        """The stored rows whose result lists are compared: all, or a random sample of :data:`MOST_COMPARED`."""
        n = self.tables.n
        if n <= MOST_COMPARED:
            return np.arange(n)
        return np.sort(np.random.default_rng(self.random_state).choice(n, MOST_COMPARED, replace=False))

    def list_length(self, n: int) -> int:
        """Return how many results are compared in a store of n rows; below 1, nothing can be compared."""
        return min(self.n_neighbors, n - 2)

    def groups_of(self, fitted: Sequence[str]) -> np.ndarray | None:
        """Return the groups of the rows of the fitted modalities; None if these are only descriptions of classes, which have no groups."""
        return None if self.tables.by_class and self.tables.store_modality not in fitted else self.groups

    def take(self, rows: np.ndarray) -> EvaluationSet:
        """Return some of the stored items."""
        groups = None if self.groups is None else self.groups[rows]
        return replace(self, tables=self.tables.take(rows), groups=groups)
