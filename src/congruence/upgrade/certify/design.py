"""What is measured on the given data: the rows that are fitted on and scored, the tasks, and notes for the reader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from congruence._utils.typing import RowsLike
from congruence.embeddings import Embeddings
from congruence.errors import InputError
from congruence.evaluation import Ranking
from congruence.upgrade.certify.anchors import choose_fitted, join_texts, split_texts
from congruence.upgrade.certify.evaluation_set import EvaluationSet
from congruence.upgrade.certify.groups import near_duplicates
from congruence.upgrade.certify.tables import Tables, check_alike, describe_model, make_tables

__all__ = ["Design"]


@dataclass(frozen=True)
class Design:
    """The design of an evaluation: what the given data allow to measure.

    Attributes
    ----------
    anchors : Tables
    items : EvaluationSet
        The items that are scored: those held out, or else the anchors.
    fitted : list of str
        Modalities to fit on.
    models : (str, str)
        Name and width of the source and of the target model.
    """

    anchors: Tables
    items: EvaluationSet
    fitted: list[str]
    models: tuple[str, str]

    @classmethod
    def of(
        cls,
        source: Mapping[str, Embeddings],
        target: Mapping[str, Embeddings],
        queries: tuple[Mapping[str, Embeddings], Mapping[str, Embeddings]] | None,
        text_queries: tuple[RowsLike | None, RowsLike] | None,
        labels: Mapping[str, str] | None,
        fitted: str | None,
        method: str,
        *,
        n_neighbors: int,
        ranking: Ranking,
        random_state: int,
    ) -> Design:
        """Pair the rows, and determine what can be measured.

        Raises
        ------
        InputError
            If the target model has no queries, or the rows cannot be used.
        ModalityError, IdError, ShapeError, SpaceMismatchError, TooFewAnchorsError
            If the rows cannot be paired, or are too few.
        """
        if labels is None and text_queries is None:
            source, target, text_queries = split_texts(source, target)
            if queries is not None and text_queries is not None:
                queries = split_texts(*queries)[:2]
        anchors = make_tables(source, target, labels)
        scored = anchors
        if queries is not None:
            scored = make_tables(*queries, labels, what="queries")
            check_alike(anchors, scored)
        if scored.query_modality not in scored.target:
            raise InputError(
                f"Got no {scored.query_modality} rows in the target model; expected them, since they search the store. Encode some, and pass them as target=…."
            )
        copies = near_duplicates(scored)
        items = EvaluationSet(
            scored,
            None if text_queries is None else join_texts(text_queries, anchors),
            copies if len(np.unique(copies)) < len(copies) else None,
            n_neighbors,
            ranking,
            random_state,
        )
        names = choose_fitted(anchors, fitted, together=method != "linear")
        return cls(anchors, items, names, (describe_model(source), describe_model(target)))

    @property
    def heldout(self) -> bool:
        """Whether the items that are scored are not the anchors."""
        return self.items.tables is not self.anchors

    @property
    def n_anchors(self) -> int:
        """Number of rows of a fitted modality."""
        return len(self.anchors.ids[self.fitted[0]])

    def notes(self) -> list[str]:
        """Return notes a reader needs to interpret the numbers."""
        scored, groups = self.items.tables, self.items.groups
        notes = []
        if self.anchors.dropped:
            notes.append(f"{self.anchors.dropped} rows had no partner with the same id and were left out.")
        notes.append(
            f"Scores are over a gallery of {len(scored.ids[scored.query_modality]) if scored.by_class else scored.n} {'classes' if scored.by_class else 'items'}; "
            "in a larger one all strategies score lower."
        )
        if groups is not None:
            sizes = np.unique(groups, return_counts=True)[1]
            notes.append(
                f"{sizes[sizes > 1].sum():,} items have near-duplicates ({(sizes > 1).sum():,} groups): each group is scored together, by "
                "maps that were not fitted on any of its items, and counts once in the intervals."
            )
        if not self.heldout:
            notes.append(
                "Anchors are scored among each other, each by a map fitted without it. This is right for anchors drawn at random. Anchors chosen by congruence anchors "
                "differ from each other more than other items do, so their scores can be too high: score other items, drawn at random."
            )
        if scored.store_modality not in scored.target:
            notes.append(
                f"The target model has no {scored.store_modality} rows, so the score after re-embedding is unknown."
            )
        if scored.store_modality == scored.query_modality and scored.classes is None:
            notes.append(
                "There are neither captions nor labels, so it is unknown whether the target model is better. The verdict is based on "
                "how often a mapped store returns the items that a re-embedded store would return"
                f"{' for text queries' if self.items.texts is not None else ''}, judged by the target model."
            )
        return notes
