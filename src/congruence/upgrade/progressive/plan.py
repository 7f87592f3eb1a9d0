"""A progressive migration: choose the next batch of rows to encode, refit the map, and estimate the quality of the store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np

from congruence._utils.ids import as_ids, id_rows
from congruence._utils.typing import Ids, RowsLike
from congruence._utils.validation import (
    as_matrix,
    check_choice,
    check_positive,
    check_same_rows,
    check_seed,
    check_width,
    name_rows,
)
from congruence.errors import IdError, InputError, ParameterError, ShapeError
from congruence.maps import HeadsMap, Map
from congruence.stores import Source
from congruence.upgrade.progressive import saving
from congruence.upgrade.progressive._front import take_front
from congruence.upgrade.progressive._inputs import (
    near_duplicate_cosine,
    open_store,
    read_labels,
    read_texts,
    read_weights,
    row_limit,
    squared_norm,
)
from congruence.upgrade.progressive._lazy import RowsOnDisk, by_block
from congruence.upgrade.progressive._received import Received
from congruence.upgrade.progressive._row_states import LEARN, METER, SELECTED, WAITING, RowStates
from congruence.upgrade.progressive._stage import Stage
from congruence.upgrade.progressive._sums import Sums
from congruence.upgrade.progressive._written import Update, Written
from congruence.upgrade.progressive.learned import OrderSelection
from congruence.upgrade.progressive.meter import Reading
from congruence.upgrade.progressive.order import BY_TEXTS, ORDERS, Order
from congruence.upgrade.progressive.refit import FEWEST_CHOOSING, Correction, Refit
from congruence.upgrade.progressive.texts import Gate, unit

__all__ = ["Progressive", "Update"]

#: The kind of map and its penalty are chosen again each time the number of rows has grown by this factor.
AGAIN = 1.5


class Progressive(Stage):
    """Re-embed a store progressively: map all of it at once, then encode the rows the map is least sure of, and refit.

    Parameters
    ----------
    mapping : Map
        A first map from the old model to the new one, fitted on any data available; texts alone are enough.
    old : Embeddings, array_like or Source, shape (n, d_old)
        The store. Without ids, row numbers are used as ids. For stores larger than memory: an array or Embeddings over a memory-mapped file, a
        :class:`congruence.stores.Source`, or with ``stream=True`` anything that supports slices and increasing row numbers (HDF5, Zarr).
    texts, new_texts : array_like, shapes (m, d_old) and (m, d_new), optional
        The same texts in both models: a vocabulary, tags or a query log. Used by the orders and the fit, and by the meter to measure retrieval.
    labels : array_like of int, shape (n,), optional
        Index of each row's own text, −1 if unknown; the meter then also estimates accuracies.
    weights : array_like, shape (n,), optional
        How often each row is requested. The order multiplies its rank of a row by the weight, and the meter also reports weighted quality.
    order : str, callable, or "auto", default="auto"
        A key of :data:`ORDERS`, a :class:`Mixture`, or a function of a :class:`View`. "auto" is "entropy" if the texts of most rows are known, else
        "random", until the random rows show that another order is better at finding rows that mapping degrades.
    meter_share : float, default=0.2
        Share of random rows in each batch. Every second random row is reserved for the meter; the others are used to choose the map and the order.
    clip : float, default=3.0
        Random rows represent all rows that were not chosen by the order. Their weight in the fit is set accordingly, but to at most this many times
        the weight of a chosen row. 1 fits without weights.
    tolerance : float, default=0.002
        Rows whose mapped vector moves by less than this (1 − cosine) need not be mapped again.
    n_neighbors : int, default=10
        k of ``overlap@k`` and ``recall@k``.
    modality : str, optional
        Modality of the store, for maps that have means by modality.
    stream : bool, optional
        Read and map rows one block at a time whenever they are needed, and refit from sums; results are equal up to rounding. The default for
        rows on disk. False reads them into memory, which is several times faster.
    random_state : int, default=0

    Attributes
    ----------
    history_ : list of Reading
        Readings of the meter, one per stage.
    correction_ : Correction
        The current map.
    order_ : str
        The order used for the next batch.

    Raises
    ------
    ShapeError, DtypeError, NotFiniteError, ZeroRowError, IdError, ParameterError
        If an argument cannot be used.
    InputError
        If texts of one model only, or labels without texts, are passed.

    Notes
    -----
    For an array in memory, unit rows, mapped rows and new vectors are kept in memory as well. For a stream, memory holds 12 bytes per row besides the ids,
    sums of d² numbers, while a batch is chosen the orders' scores (with texts about 100 bytes per row at k = 10), and new vectors until :meth:`save` has
    written them. Texts are compared with rows one block at a time. Orders use at most 16,384 re-embedded rows. Rows are compared by cosine: mapped rows
    and the rows that :meth:`store` returns have unit norm.

    Examples
    --------
    >>> import numpy as np
    >>> from congruence import fit
    >>> from congruence.synthetic import upgrade_problem
    >>> from congruence.upgrade.progressive import Progressive
    >>> p = upgrade_problem(n=300, d_source=16, random_state=0)
    >>> first = fit(p.source_texts[:60], p.target_texts[:60], check=False)
    >>> plan = Progressive(first, p.source_images, texts=p.source_texts[:60], new_texts=p.target_texts[:60])
    >>> for ids in plan.batches(size=30, share=0.2):
    ...     update = plan.update(ids, p.target_images[ids])
    >>> plan.meter().n_embedded
    60
    """

    history_: list[Reading]
    correction_: Correction
    order_: str

    def __init__(
        self,
        mapping: Map,
        old: RowsLike | Source | RowsOnDisk,
        *,
        texts: RowsLike | None = None,
        new_texts: RowsLike | None = None,
        labels: RowsLike | None = None,
        weights: RowsLike | None = None,
        order: str | Order = "auto",
        meter_share: float = 0.2,
        clip: float = 3.0,
        tolerance: float = 0.002,
        n_neighbors: int = 10,
        modality: str | None = None,
        stream: bool | None = None,
        random_state: int = 0,
    ) -> None:
        if isinstance(order, str):
            check_choice(order, ("auto", *ORDERS), "order")
        for value, name in ((meter_share, "meter_share"), (clip, "clip"), (n_neighbors, "n_neighbors")):
            check_positive(value, name, integer=name == "n_neighbors")
        if meter_share > 1 or clip < 1:
            raise ParameterError(
                f"Got meter_share={meter_share} and clip={clip}; expected at most 1, and at least 1. Pass meter_share=0.2 and clip=3.0, for example."
            )
        check_positive(tolerance, "tolerance", zero=True)
        if isinstance(mapping, HeadsMap):
            raise ParameterError(
                f"Got a {type(mapping).__name__}, which maps both models into a third space; expected a map into the new model's. Pass an OrthogonalMap, for example."
            )
        store = open_store(old, stream)
        mapping = mapping.for_modality(modality or store.modality)
        check_width(store.rows.shape[1], mapping.n_features_in_, "Progressive", mapping.d_target)
        self.ids, self._has_ids, n = store.ids, store.has_ids, len(store.rows)
        self._old, self._unit = store.rows, by_block(store.rows, unit, store.rows.shape[1])
        self.texts = read_texts(texts, new_texts, mapping, self._unit)
        if self.texts is None and (labels is not None or (isinstance(order, str) and order in BY_TEXTS)):
            argument = "labels" if labels is not None else f"order={order!r}"
            raise InputError(
                f"Got {argument} without texts; expected the texts of both models. Pass texts=… and new_texts=…."
            )
        self.labels = None if labels is None else read_labels(labels, n, len(self.texts or ()))
        self.weights = None if weights is None else read_weights(weights, n)
        self.order, self.meter_share, self.clip, self.tolerance = order, meter_share, clip, tolerance
        self.n_neighbors = n_neighbors if self.texts is None else min(n_neighbors, len(self.texts))
        self.random_state = check_seed(random_state)
        gate = None if self.texts is None else Gate.fit(self._unit, self.texts)
        self.refit = Refit(mapping, self.texts, squared_norm(self._old), gate)
        self._row_states = RowStates(n, random_state)
        self.new_vectors = Received(n, mapping.d_target, keep=isinstance(self._old, np.ndarray))
        self._sums = None if isinstance(self._old, np.ndarray) else Sums(self.refit, self._old, self.new_vectors)
        self._near = near_duplicate_cosine(self._unit, random_state)
        self._selection = OrderSelection("entropy" if self.refit.most_are_known else "random", self.texts is not None)
        self._chosen_at, self._views, self._resumed = 0, 0, False
        self.correction_ = self.refit.first()
        self._map()
        in_memory = self._mapped.copy() if isinstance(self._mapped, np.ndarray) else None
        self.written = Written(self.refit, self._old, self.correction_, in_memory)
        self.order_ = (
            self._selection.current_order() if order == "auto" else order if isinstance(order, str) else "given"
        )
        self.history_ = []

    def __repr__(self) -> str:
        done = int(np.count_nonzero(self._row_states.embedded))
        return f"Progressive({done:,} of {len(self):,} rows re-embedded, order={self.order_!r})"

    # ------------------------------------------------------------------ batches

    def batches(
        self,
        size: int = 1000,
        *,
        budget: int | None = None,
        share: float | None = None,
        until: float | None = None,
        metric: str = "agreement",
    ) -> Iterator[np.ndarray]:
        """Yield batches of ids to encode, until a budget is spent or the target quality is reached.

        Parameters
        ----------
        size : int, default=1000
        budget, share : optional
            Total number of rows to re-embed, or share of the store, including rows re-embedded earlier.
        until : float, optional
            Stop when the lower end of the meter's interval for the store's ``metric`` (its 97.5 % confidence bound, not the estimate) reaches this value.
        metric : str, default="agreement"
            A key of :attr:`Reading.store`; without texts, ``"cosine"`` replaces the default.

        Yields
        ------
        ndarray
            Ids, each once. Pass their vectors to :meth:`update` before the next batch. Omitted rows are requested again only by a loaded plan's first batch.

        Raises
        ------
        ParameterError
            If a size, budget, share or target is not positive, both a budget and a share are given, or the metric is unknown.
        """
        check_positive(size, "size", integer=True)
        limit = row_limit(len(self), budget, share)
        if until is not None:
            check_positive(until, "until")
        if self.texts is None and metric == "agreement":
            metric = "cosine"
        if self._resumed and len(self.missing):  # requested before the interruption
            yield self.missing
        self._resumed = False
        while True:
            room = limit - int(np.count_nonzero(self._row_states.role))
            if until is not None and self.history_:
                check_choice(metric, self.history_[-1].store, "metric")
                if self.history_[-1].store[metric].low >= until:
                    return
            rows = self._next(min(size, room)) if room > 0 else np.empty(0, np.intp)
            if not len(rows):
                return
            yield self.ids[rows]

    def _next(self, size: int) -> np.ndarray:
        """Choose this many further rows: random ones, and the first ones of the order."""
        states = self._row_states
        random = states.draw(min(size, max(1, round(self.meter_share * size))))
        self._views += 1
        view = self._view(size)
        scores = self._score(view)
        learn = random[states.role[random] == LEARN]
        if self.order == "auto":
            self._selection.record(learn, view)
        eligible = ~states.due & (states.role != LEARN) & (states.role != SELECTED)
        taken = take_front(
            scores, eligible, states.role == METER, size - len(random), self._unit, view.native, self._near
        )
        states.due[taken] = True
        selected = taken[states.role[taken] == WAITING]
        states.role[selected] = SELECTED
        return np.concatenate([random, selected])

    # ------------------------------------------------------------------ updates

    def update(self, ids: Ids, vectors: RowsLike) -> Update:
        """Add the new model's vectors of some rows, refit the map, and return which rows to map again.

        Parameters
        ----------
        ids : sequence of str or int
            Ids of a batch, of part of it, or of other rows, which count as chosen by the order. The meter's sample cannot account for the rule by which you
            chose such rows: if many are of one kind, the sample no longer represents the remaining rows.
        vectors : array_like, shape (len(ids), d_new)
            Vectors of rows that were passed before are replaced.

        Returns
        -------
        Update

        Raises
        ------
        IdError
            If an id is not in the store, or is passed twice.
        ShapeError
            If there are no vectors, not one per id, or their width differs from the map's.
        DtypeError, NotFiniteError, ZeroRowError
            If the vectors cannot be used.
        """
        names = as_ids(ids)
        rows = id_rows(self.ids, names)
        if (rows < 0).any():
            unknown = np.flatnonzero(rows < 0)
            raise IdError(
                f"Got {len(unknown)} ids that the store does not have ({name_rows(unknown, names)}); expected ids of the store. Pass ids=… of a batch."
            )
        Y = as_matrix(vectors, "vectors", ids=names)
        check_same_rows(len(names), len(Y), "ids", "vectors")
        if Y.shape[1] != self._mapped.shape[1]:
            raise ShapeError(
                f"Got {Y.shape[1]}-d vectors; expected {self._mapped.shape[1]}-d ones, of the map's target. Pass vectors=… of the new model."
            )
        Y = unit(Y).astype(np.float32)
        states = self._row_states
        if self._sums is not None:
            self._sums.remove(rows[self.new_vectors.known(rows)])
        self.new_vectors.add(rows, Y, 1 - np.einsum("ij,ij->i", Y, self._mapped[rows], dtype=np.float64))
        unrequested = rows[states.role[rows] == WAITING]
        states.role[unrequested], states.due[unrequested] = SELECTED, True
        states.embedded[rows] = True
        if self.order == "auto":
            self._selection.finish(dict(zip(rows.tolist(), Y, strict=True)), self._mapped, self.texts, self.n_neighbors)  # type: ignore[arg-type]
        self._fit()
        reading = self._read()
        if self.history_ and self.history_[-1].n_embedded == reading.n_embedded:
            self.history_.pop()
        self.history_.append(reading)
        return self._changed()

    def _fit(self) -> None:
        """Refit the map on the re-embedded rows, and map all rows with it."""
        native = self.new_vectors.rows[self._shown()]
        if not len(native):
            return
        states = self._row_states
        random = states.role[native] == LEARN
        weight = 1.0
        if random.any():
            stands_for = (len(self) - int(states.due.sum())) / int(random.sum())
            weight = float(np.clip(stands_for, 1.0, self.clip))
        choose = len(native) >= AGAIN * self._chosen_at
        if self._sums is not None:
            self._sums.add_new(native, random)
            self.correction_ = self._sums.fit(native[random], weight, self.correction_, choose=choose)
        else:
            new, weights = self.new_vectors.take(native).astype(np.float64), np.where(random, weight, 1.0)
            self.correction_ = self.refit.fit(self._old[native], new, weights, random, self.correction_, choose=choose)
        if choose and np.count_nonzero(random) >= FEWEST_CHOOSING:
            self._chosen_at = len(native)
        self._map()

    def _changed(self) -> Update:
        waits = ~self._row_states.embedded
        rows, moved = self.written.advance(self.correction_, self._mapped, waits, self.tolerance)
        return Update(self.ids[rows], moved, int(np.count_nonzero(waits)))

    # ------------------------------------------------------------------ saving

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return arrays and plain data from which :meth:`from_state` can resume, given the same inputs."""
        return saving.state(self)

    @classmethod
    def from_state(
        cls,
        state: tuple[Mapping[str, np.ndarray], Mapping[str, object]],
        mapping: Map,
        old: RowsLike | Source | RowsOnDisk,
        **inputs: object,
    ) -> Self:
        """Resume a plan.

        Parameters
        ----------
        state : (mapping of str to ndarray, mapping)
            From :meth:`state`.
        mapping, old
            As for the plan that was saved.
        **inputs
            ``texts``, ``new_texts``, ``labels`` and ``weights`` as before, and ``order`` if it was a function. Other parameters come from the state.

        Returns
        -------
        Progressive

        Raises
        ------
        CorruptFileError
            If the state is damaged, or belongs to another store, map or texts.
        ParameterError
            If a parameter is passed that the state contains.
        """
        return saving.restore(cls, state, mapping, old, inputs)

    def save(self, path: str | Path, *, force: bool = False) -> Path:
        """Save to a folder: the state, rewritten atomically, plus new vectors and maps added since the last save. Raises OutputExistsError, StorageError."""
        return saving.save(self, path, force=force)

    @classmethod
    def load(cls, path: str | Path, mapping: Map, old: RowsLike | Source | RowsOnDisk, **inputs: object) -> Self:
        """Resume a plan saved with :meth:`save`; see :meth:`from_state`. Raises FileError, CorruptFileError, VersionError."""
        return saving.load(cls, path, mapping, old, inputs)
