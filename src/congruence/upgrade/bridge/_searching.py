"""Search an index with bridged queries, in one stage or two."""

from __future__ import annotations

import numpy as np

from congruence._utils.columns import to_rows
from congruence._utils.typing import RowsLike
from congruence._utils.validation import check_positive
from congruence.embeddings import Embeddings
from congruence.errors import ParameterError
from congruence.metrics.hubness import Hubness
from congruence.upgrade.bridge._base import BridgedQueries
from congruence.upgrade.bridge._queries import as_rows
from congruence.upgrade.bridge.search import Lookup, SearchResult, find, rerank_rows

__all__ = ["CANDIDATES", "BridgedSearch"]

#: Number of rows that the first stage of a two-stage search returns, or ten times k if that is more.
CANDIDATES = 100


class BridgedSearch(BridgedQueries):
    """Base class of :class:`congruence.Bridge`: searches with mapped queries."""

    def search(
        self,
        queries: RowsLike,
        index: object,
        k: int = 10,
        *,
        modality: str | None = None,
        candidates: int | None = None,
        rerank: RowsLike | Lookup | None = None,
        metric: str = "cosine",
        center: bool = False,
        hubness: str | Hubness | None = None,
        bank: RowsLike | None = None,
    ) -> SearchResult:
        """Search the unchanged index with queries of the new model.

        Parameters
        ----------
        queries : Embeddings, array_like or tensor, shape (m, d_source) or (d_source,)
        index : Embeddings, array_like of shape (n, d_target), FAISS index, or callable
            The old model's vectors, searched block by block; an object with FAISS's ``search(vectors, n)``; or a function of ``(vectors, n)`` that
            returns ``(scores, ids)``, each of shape (m, n), nearest first.
        k : int, default=10
        modality : str, optional
            As for :meth:`transform`.
        candidates : int, optional
            With ``rerank``: number of rows that the first stage returns; by default 100, or 10 k if that is more.
        rerank : array_like, shape (n, d_source), Embeddings, or callable, optional
            Vectors of the index's items in the new model, by which candidates are ranked again: by row of the index, by id, or as a function of an array
            of ids. Items without a vector (a row of NaN, None from the function, or an id that embeddings do not have) follow those that have one, in
            the order of the first stage.
        metric : {"cosine", "inner", "euclidean"}, default="cosine"
            Metric of the first stage. An index that searches by itself has its own.
        center, hubness, bank
            As for :func:`congruence.metrics.class_retrieval`, in the first stage, for an index given as vectors; ``bank`` holds queries of the new model.

        Returns
        -------
        SearchResult

        Raises
        ------
        ShapeError, DtypeError, NotFiniteError, ZeroRowError, InputError, ParameterError
            If arrays have the wrong shape, are not real numbers, contain NaN or infinity or have a row of zeros; a parameter has an
            invalid value; or the input cannot be used otherwise.
        DirectionError, SpaceMismatchError, ModalityError
            As for :meth:`transform`.
        """
        check_positive(k, "k", integer=True)
        if candidates is not None:
            check_positive(candidates, "candidates", integer=True)
            if rerank is None or candidates < k:
                raise ParameterError(
                    f"Got candidates={candidates} {'without rerank' if rerank is None else f'for k={k}'}; expected k candidates or more, for a second stage. "
                    "Pass rerank=… with the new model's vectors and a larger candidates=…, or leave candidates out."
                )
        if isinstance(queries, Embeddings):
            rows, single, modality = queries.vectors, False, modality or queries.space.modality
            vectors = self.transform(queries, modality).vectors
        else:
            matrix, single = as_rows(queries)
            rows = to_rows(matrix, "queries")
            vectors = self.transform(rows, modality)
        scores, ids = find(
            vectors,
            index,
            k if rerank is None else candidates or max(CANDIDATES, 10 * k),
            metric=metric,
            center=center,
            hubness=hubness,
            bank=None if bank is None else np.asarray(self.transform(bank, modality)),
            source_dim=self.map.n_features_in_,
        )
        if rerank is None:
            result = SearchResult(scores, ids, np.zeros(ids.shape, bool))
        else:
            result = rerank_rows(rows, scores, ids, rerank, k)
        return result.one() if single else result
