"""The bridge: search an old model's index with queries of a new model, without changing the index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from congruence._utils.display import as_html, as_text
from congruence._utils.ids import is_in
from congruence._utils.typing import Labels, RowsLike
from congruence._utils.validation import check_positive, check_same_rows, check_width
from congruence.embeddings import Pairs, as_embeddings, as_pair
from congruence.errors import ParameterError
from congruence.evaluation.judgments import judge
from congruence.evaluation.thresholds import Translation, fit_thresholds
from congruence.metrics.hubness import Hubness
from congruence.upgrade.bridge._searching import CANDIDATES, BridgedSearch
from congruence.upgrade.bridge.saved import read_bridge, write_bridge
from congruence.upgrade.bridge.scores import BridgeScores, evaluate_bridge

__all__ = ["Bridge"]


class Bridge(BridgedSearch):
    """Search an index of an old model's vectors with a new model's queries; the index is not rewritten.

    Parameters
    ----------
    mapping : Map
        Fitted **from the queries' model to the index's model**: ``congruence.fit(new, old)``. If a rotation was fitted from the index's model
        to the new one, pass ``mapping.inverse()``.
    normalize : {"auto", True, False}, default="auto"
        Scale bridged queries to unit norm; "auto" does so if the index's rows had unit norm at the fit, as
        :func:`congruence.transform_file` does.
    modality : str, optional
        Modality of queries that do not declare one. Required for such queries if the map has means for several modalities.

    Attributes
    ----------
    map : Map
    source, target : Space
        Spaces of the queries and of the index.
    normalize, modality
        As passed.
    thresholds : Thresholds or None
        Result of :meth:`fit_thresholds`.

    Raises
    ------
    ParameterError
        If ``mapping`` is not a fitted map, or maps both models into a joint space, which does not contain the index's rows.
    ModalityError
        If the map does not know ``modality``.

    Warns
    -----
    NormWarning
        If ``normalize="auto"`` and the map does not record whether the index's rows had unit norm.

    Examples
    --------
    >>> from congruence import Bridge, fit
    >>> from congruence.synthetic import rigid_problem
    >>> anchors = rigid_problem(n=200, d_source=8, d_target=12, random_state=0)
    >>> bridge = Bridge(fit(anchors.X, anchors.Y))
    >>> bridge.transform(anchors.X[0]).shape
    (12,)
    """

    # ------------------------------------------------------------------ evaluation

    def evaluate(
        self,
        queries: RowsLike,
        index: RowsLike,
        *,
        queries_old: RowsLike | None = None,
        index_new: RowsLike | None = None,
        qrels: Mapping[str, Mapping[str, float]] | None = None,
        labels: tuple[Labels, Labels] | None = None,
        at: Sequence[int] = (1, 10),
        mode: str = "any",
        candidates: int = CANDIDATES,
        modality: str | None = None,
        center: bool = False,
        hubness: str | Hubness | None = None,
        bank: RowsLike | None = None,
    ) -> BridgeScores:
        """Measure retrieval through the bridge, next to the old model, two-stage search, the re-embedded index and chance.

        Parameters
        ----------
        queries : Embeddings or array_like, shape (m, d_source)
            Queries in the new model; none that the map was fitted on.
        index : Embeddings or array_like, shape (n, d_target)
            Rows of the index, in the old model.
        queries_old : Embeddings or array_like, shape (m, d_target), optional
            The same queries in the old model, for the old model's line; paired by id, or by position.
        index_new : Embeddings or array_like, shape (n, d_source), optional
            The index's items in the new model, for the lines of two-stage search and of the re-embedded index. The second stage skips
            items whose ids are missing here.
        qrels : mapping of str to mapping of str to float, optional
            Relevance grade by query id and document id (:func:`congruence.evaluation.judgments.read_qrels`).
        labels : (sequence of length m, sequence of length n), optional
            Instead of ``qrels``: class of each query and of each row of the index. Without either, the row with the query's id is relevant.
        at : sequence of int, default=(1, 10)
            Cutoffs k for recall.
        mode : {"any", "share"}, default="any"
            What recall measures: the share of queries with a relevant row among the k, or the share of relevant rows found.
        candidates : int, default=100
            Number of rows that the first stage of two-stage search returns.
        modality : str, optional
            As for :meth:`transform`.
        center, hubness, bank
            As for :meth:`search`. Applied to every other line too, so that lines are comparable: each line uses its own queries and rows, and
            two-stage search applies them in the first stage only. ``bank`` holds queries of the new model; the old model's line uses its own queries.

        Returns
        -------
        BridgeScores

        Raises
        ------
        InputError
            If no query, or none that is in ``queries_old``, has a relevant row, or ids are needed and missing.
        ShapeError, DtypeError, NotFiniteError, ZeroRowError, ParameterError, IdError
            If an argument cannot be used.
        DirectionError, SpaceMismatchError, ModalityError
            As for :meth:`transform`.
        """
        check_positive(candidates, "candidates", integer=True)
        return evaluate_bridge(
            self,
            queries,
            index,
            queries_old=queries_old,
            index_new=index_new,
            qrels=qrels,
            labels=labels,
            at=at,
            mode=mode,
            candidates=candidates,
            modality=modality,
            center=center,
            hubness=hubness,
            bank=bank,
        )

    # ------------------------------------------------------------------ thresholds

    def fit_thresholds(
        self,
        queries: RowsLike,
        queries_old: RowsLike,
        index: RowsLike,
        *,
        qrels: Mapping[str, Mapping[str, float]] | None = None,
        labels: tuple[Labels, Labels] | None = None,
        modality: str | None = None,
        folds: int = 5,
        random_state: int = 0,
    ) -> Self:
        """Learn how to translate score thresholds of the old model into thresholds for bridged queries.

        Parameters
        ----------
        queries : Embeddings or array_like, shape (m, d_source)
            Queries in the new model, preferably none that the map was fitted on.
        queries_old : Embeddings or array_like, shape (m, d_target)
            The same queries in the old model; paired by id, or by position.
        index : Embeddings or array_like, shape (n, d_target)
            Rows of the index, or a sample of them.
        qrels, labels : optional
            Which rows are relevant, as for :meth:`evaluate`; by default the row with the query's id, and none if there are no ids.
        modality : str, optional
            As for :meth:`transform`.
        folds : int, default=5
            Number of cross-validation folds, over queries.
        random_state : int, default=0
            Determines the folds, the resampled queries, and the sample that is used of more than 2,000 queries or 4 million pairs.

        Returns
        -------
        Self

        Raises
        ------
        TooFewAnchorsError
            If there are fewer than two queries per fold.
        ShapeError, DtypeError, NotFiniteError, ZeroRowError, InputError, ParameterError
            If an argument cannot be used.
        DirectionError, SpaceMismatchError, ModalityError
            As for :meth:`transform`.

        Notes
        -----
        Scores are cosines with rows of the index. A threshold is translated to the score above which the share of irrelevant pairs is the same, so
        the false-positive rate is kept. A regression of one score on the other would shrink toward the mean and change the rate (see docs/bridge.md).
        """
        ours, theirs = as_pair(queries, queries_old, ("queries", "queries_old"))
        if not (ours.has_ids and theirs.has_ids):
            check_same_rows(len(ours), len(theirs), "queries", "queries_old")
        rows = as_embeddings(index, "index")
        for side, name in ((theirs, "queries_old"), (rows, "index")):
            check_width(side.dim, self.map.d_out, f"Bridge.fit_thresholds ({name})")
        if labels is not None and ours.has_ids and theirs.has_ids:
            both = is_in(ours.ids, theirs.ids)
            labels = np.asarray(labels[0])[both], labels[1]
        pairs = Pairs.join(ours, theirs)
        judgments = None
        by_id = pairs.source.has_ids and rows.has_ids and bool(is_in(pairs.source.ids, rows.ids).any())
        if qrels is not None or labels is not None or by_id:
            judgments = judge(pairs.source, rows, qrels=qrels, labels=labels)
        bridged = self.transform(pairs.source.vectors, modality or ours.space.modality)
        self.thresholds = fit_thresholds(
            (bridged, rows.vectors),
            (pairs.target.vectors, rows.vectors),
            judgments,
            folds=folds,
            random_state=random_state,
        )
        return self

    def translate(self, threshold: float) -> Translation:
        """Return the threshold for bridged queries that corresponds to one of the old model, and how well it performs.

        Parameters
        ----------
        threshold : float
            A cosine threshold of the old model.

        Returns
        -------
        Translation
            ``value`` is the new threshold; it also holds the false-positive rate and recall before and after.

        Raises
        ------
        ParameterError
            If no thresholds were fitted, or no irrelevant pair had a score this high.
        """
        if self.thresholds is None:
            raise ParameterError(
                "Got a bridge without thresholds; expected them to be fitted. Call bridge.fit_thresholds(queries, queries_old, index) first."
            )
        return self.thresholds.translate(threshold)

    # ------------------------------------------------------------------ on disk

    def save(self, path: str | Path, *, force: bool = False) -> Path:
        """Write the bridge as a folder, in the format of maps: ``model.safetensors``, ``config.json``, ``README.md``.

        Parameters
        ----------
        path : path-like
            The folder to create.
        force : bool, default=False
            Replace an existing folder.

        Returns
        -------
        Path

        Raises
        ------
        OutputExistsError, StorageError
            If the output already exists, or the output cannot be written.
        """
        return write_bridge(self, path, force=force)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Load a bridge, or a saved map as a bridge with default parameters. Nothing in the folder is executed.

        Parameters
        ----------
        path : path-like
            Folder written by :meth:`save` or :meth:`congruence.maps.Map.save`.

        Returns
        -------
        Bridge

        Raises
        ------
        FileError, CorruptFileError, VersionError
            If the folder cannot be read, is damaged, or was written in a newer format.
        ParameterError
            If the folder holds a map that cannot be used in a bridge.
        """
        return read_bridge(cls, path)

    def describe(self) -> dict[str, Any]:
        """Return parameters, spaces, map and thresholds as plain data."""
        return {
            "kind": "bridge",
            "parameters": {"normalize": self.normalize, "modality": self.modality},
            "unit_rows": self._unit,
            "source": self.source.to_dict(),
            "target": self.target.to_dict(),
            "map": self.map.describe(),
            "thresholds": None if self.thresholds is None else self.thresholds.describe(),
        }

    def _shown(self) -> dict[str, str]:
        facts = {"queries": str(self.source), "index": str(self.target)}
        facts["map"] = f"{self.map.kind}, fitted on {self.map.n_pairs_:,} pairs"
        if self.thresholds is not None:
            facts["thresholds"] = f"from {self.thresholds.n_queries:,} queries and {self.thresholds.n_pairs:,} pairs"
        facts["bridged queries"] = "unit rows" if self._unit else "as the map leaves them"
        return facts

    def __repr__(self) -> str:
        return as_text("Bridge", self._shown())

    def _repr_html_(self) -> str:
        return as_html("Bridge", self._shown())
