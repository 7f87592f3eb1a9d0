"""The bridge: queries of a new model over an index that stays as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from congruence._inputs import as_embeddings, as_pair
from congruence._utils.display import as_html, as_text
from congruence._utils.ids import is_in
from congruence._utils.typing import Labels, RowsLike
from congruence._utils.validation import check_positive, check_same_rows, check_width
from congruence.embeddings import Pairs
from congruence.errors import ParameterError
from congruence.evaluation.judgments import judge
from congruence.evaluation.thresholds import Translation, fit_thresholds
from congruence.metrics.hubness import Hubness
from congruence.upgrade.bridge._searching import CANDIDATES, BridgedSearch
from congruence.upgrade.bridge.saved import read_bridge, write_bridge
from congruence.upgrade.bridge.scores import BridgeScores, evaluate_bridge

__all__ = ["Bridge"]


class Bridge(BridgedSearch):
    """A new model's queries over an index of an old model's vectors, which are not rewritten.

    Parameters
    ----------
    mapping : Map
        Fitted, **from the queries' model to the index's**: ``congruence.fit(new, old)``. A map that was fitted from the index's model to
        the new one has the other direction in ``mapping.inverse()``, if it is a rotation.
    normalize : {"auto", True, False}, default="auto"
        Scale bridged queries to unit norm; "auto" does so if the index's rows had unit norm at the fit, as
        :func:`congruence.transform_file` does.
    modality : str, optional
        Modality of queries that do not say one. A map that knows several has means for each, and no query can do without.

    Attributes
    ----------
    map : Map
    source, target : Space
        Of the queries and of the index.
    normalize, modality
        As given.
    thresholds : Thresholds or None
        What :meth:`fit_thresholds` found.

    Raises
    ------
    ParameterError
        No fitted map; or one that maps both models into a joint space, in which the index's rows are not.
    ModalityError
        The map does not know ``modality``.

    Warns
    -----
    NormWarning
        ``normalize="auto"``, and the map does not say whether the index's rows had unit norm.

    Examples
    --------
    >>> from congruence import Bridge, fit
    >>> from congruence.synthetic import rigid_problem
    >>> anchors = rigid_problem(n=200, d_source=8, d_target=12, random_state=0)
    >>> bridge = Bridge(fit(anchors.X, anchors.Y))
    >>> bridge.transform(anchors.X[0]).shape
    (12,)
    """

    # ------------------------------------------------------------------ how well it finds

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
        """Measure what the bridge finds, beside the old model, two stages, the re-embedded index and chance.

        Parameters
        ----------
        queries : Embeddings or array_like, shape (m, d_source)
            Of the new model; none that the map was fitted on.
        index : Embeddings or array_like, shape (n, d_target)
            Of the old model.
        queries_old : Embeddings or array_like, shape (m, d_target), optional
            The queries in the old model, for its own line; paired by id, or by position.
        index_new : Embeddings or array_like, shape (n, d_source), optional
            The index's items in the new model, for the lines of two-stage search and of the re-embedded index. If ids are missing among it, the
            second stage does without these.
        qrels : mapping of str to mapping of str to float, optional
            Grade by query id and document id (:func:`congruence.evaluation.judgments.read_qrels`).
        labels : (sequence of length m, sequence of length n), optional
            Class of each query and of each row of the index, instead. Without either, the row with the query's id is relevant.
        at : sequence of int, default=(1, 10)
            Where lists are cut for recall.
        mode : {"any", "share"}, default="any"
            What recall counts: queries with a relevant row among the k, or the share of relevant rows found.
        candidates : int, default=100
            Rows that the first of two stages finds.
        modality : str, optional
            As for :meth:`transform`.
        center, hubness, bank
            As for :meth:`search`, and for every other line too, so that they compare: each by its own queries and rows, in the first of two
            stages only. ``bank`` are queries of the new model; the old model's line takes its own queries instead.

        Returns
        -------
        BridgeScores

        Raises
        ------
        InputError
            No query has a relevant row, or ids are needed and missing.
        ShapeError, DtypeError, NotFiniteError, ZeroRowError, ParameterError, IdError
        DirectionError, SpaceMismatchError, ModalityError
            As :meth:`transform`.
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
        """Learn which cut-off of bridged queries lets through what a cut-off of the old model did.

        Parameters
        ----------
        queries : Embeddings or array_like, shape (m, d_source)
            Queries in the new model, best none that the map was fitted on.
        queries_old : Embeddings or array_like, shape (m, d_target)
            The same in the old model; paired by id, or by position.
        index : Embeddings or array_like, shape (n, d_target)
            Rows of the index, or a sample of them.
        qrels, labels : optional
            What is relevant, as for :meth:`evaluate`; by default the row with the query's id, and no row where there are no ids.
        modality : str, optional
            As for :meth:`transform`.
        folds : int, default=5
            Of the cross-validation, over queries.
        random_state : int, default=0
            Of the folds and of resampled queries; and of the sample, of more than 2,000 queries or 4 million pairs.

        Returns
        -------
        Self

        Raises
        ------
        TooFewAnchorsError
            Fewer than two queries a fold.
        ShapeError, DtypeError, NotFiniteError, ZeroRowError, InputError, ParameterError
        DirectionError, SpaceMismatchError, ModalityError
            As :meth:`transform`.

        Notes
        -----
        Scores are cosines with rows of the index. A cut-off is translated to the score above which there is the same share of irrelevant pairs: so
        the false-positive rate stays. A regression of one score on the other shrinks towards the mean and moves the rate (docs/bridge.md has numbers).
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
        """Return the cut-off for bridged queries that stands for one of the old model, and how well it does.

        Parameters
        ----------
        threshold : float
            A cosine of the old model.

        Returns
        -------
        Translation
            Its ``value`` is the new cut-off; false-positive rate and recall before and after are beside it.

        Raises
        ------
        ParameterError
            No thresholds were fitted; or no irrelevant pair had such a score.
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
            The folder to make.
        force : bool, default=False
            Replace an existing folder.

        Returns
        -------
        Path

        Raises
        ------
        OutputExistsError, StorageError
        """
        return write_bridge(self, path, force=force)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a bridge, or a map as a bridge with the usual parameters. Nothing in the folder is executed.

        Parameters
        ----------
        path : path-like
            What :meth:`save`, or :meth:`congruence.maps.Map.save`, wrote.

        Returns
        -------
        Bridge

        Raises
        ------
        FileError, CorruptFileError, VersionError
        ParameterError
            The folder holds a map that no bridge can be made of.
        """
        return read_bridge(cls, path)

    def describe(self) -> dict[str, Any]:
        """Return what is known about the bridge as plain data."""
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
