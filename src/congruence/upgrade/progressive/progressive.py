"""A progressive migration: choose the next rows to encode, refit the map, and estimate the store's quality."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa

from congruence import persist
from congruence._utils.arrays import blocks, normalize_rows
from congruence._utils.atomic import check_output
from congruence._utils.ids import as_ids, id_rows
from congruence._utils.typing import Ids, RowsLike
from congruence._utils.validation import (
    RowNames,
    as_matrix,
    check_choice,
    check_positive,
    check_rows,
    check_same_rows,
    check_seed,
    check_width,
    name_rows,
)
from congruence.embeddings import as_embeddings
from congruence.errors import CorruptFileError, IdError, InputError, ParameterError, ShapeError
from congruence.io import ArraySource, RowsByNumber, Source
from congruence.maps import HeadsMap, Map
from congruence.upgrade.progressive.forecast import Forecast, make_forecast
from congruence.upgrade.progressive.meter import (
    Estimate,
    Reading,
    combine,
    fit_origin_scale,
    rest_interval,
    support_of,
)
from congruence.upgrade.progressive.order import BY_TEXTS, ORDERS, Order, View, take_in_order
from congruence.upgrade.progressive.refit import FEWEST_CHOOSING, Correction, Known, Refit
from congruence.upgrade.progressive.state import (
    LEARN,
    METER,
    SELECTED,
    STATE,
    WAITING,
    Received,
    RowStates,
    inputs_of,
    sweep,
    why_no_plan,
)
from congruence.upgrade.progressive.texts import Gate, TextFacts, Texts, overlap

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GROWTH = 1.25  # growth of the number of re-embedded rows at which the map is fitted, and all rows written, again
CLIP = 3.0  # largest weight, in the fit, of random rows, which represent all rows that the order did not choose
FURTHER = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)  # shares of the store for which a forecast is made
REFERENCES = 5  # without texts, neighbors are searched among this many times k random rows, the same at every stage

#: Largest number of rows from which an order chooses a batch, of re-embedded rows that it knows, and of rows on which
#: the distance between two maps is measured; of larger stores, random ones.
POOL, SEEN, MOVED = 16_384, 4096, 4096

SEARCHES = ("lists", "items")  # what users look for: the first rows for a query, or one row

KIND = "progressive"  # ``kind`` of a plan in ``config.json``; that of a map is its method

#: Arrays of ``RowStates``, and parameters of the plan, that are part of the saved state.
_STATES = ("role", "due", "embedded")
PARAMETERS = ("meter_share", "tolerance", "n_neighbors", "random_state", "search")


@dataclass(frozen=True, eq=False)
class Update:
    """Rows to write again after an update."""

    remap: np.ndarray  # ids whose vectors ``Progressive.mapped`` replaces: all mapped rows after a refit, else none
    n_waiting: int  # rows that are still mapped


class Progressive:
    """Re-embed a store progressively: map all of it at once, then encode the rows the map is least sure of, and refit.

    Parameters
    ----------
    mapping : Map
        A first map from the old model to the new one, fitted on any data available; texts alone are enough.
    old : Embeddings, array_like or Source, shape (n, d_old)
        The store; without ids, row numbers are used. Larger than memory: a memory-mapped array, a
        ``congruence.io.Source``, or anything with slices and increasing row numbers (HDF5, Zarr).
    texts, new_texts : array_like, shapes (m, d_old) and (m, d_new), optional
        The same texts in both models, for the orders, the fit and the meter: a fixed list that all searches come from.
        Mapped rows are drawn to these texts, so that searches for others lose.
    labels : array_like of int, shape (n,), optional
        Index of each row's own text, −1 if unknown; the meter then also estimates accuracies.
    weights : array_like, shape (n,), optional
        How often each row is requested, by which its rank in the order is multiplied; also for weighted quality.
    order : str, callable, or "auto", default="auto"
        A key of ``ORDERS``, or a function of a ``View``. "auto" is "entropy" if the texts of most rows are known, else
        "random".
    meter_share : float, default=0.25
        Share of random rows in each batch. Every second one is reserved for the meter; the others choose the map.
    tolerance : float, default=0.002
        A refitted map that moves no mapped row by more than this (1 − cosine) does not replace the present one.
    n_neighbors : int, default=10
        k of ``overlap@k`` and ``recall@k``, and length of the lists.
    search : {"lists", "items"}, default="lists"
        What users look for. Without texts, "lists" scales mapped rows so that native ones do not crowd them out of the
        first k, at the cost of searches for one item.

    Notes
    -----
    ``history_`` has the meter's readings, one per stage; ``order_`` is the order of the batches, ``correction_`` the
    map. Memory holds 12 bytes per row besides the ids, two sets of sums of d² numbers during a refit, at most 20,480
    rows while a batch is chosen, and new vectors until ``save`` has written them. Mapped rows have unit norm.

    Examples
    --------
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

    def __init__(
        self,
        mapping: Map,
        old: RowsLike | Source | RowsByNumber,
        *,
        texts: RowsLike | None = None,
        new_texts: RowsLike | None = None,
        labels: RowsLike | None = None,
        weights: RowsLike | None = None,
        order: str | Order = "auto",
        meter_share: float = 0.25,
        tolerance: float = 0.002,
        n_neighbors: int = 10,
        search: str = "lists",
        modality: str | None = None,
        random_state: int = 0,
    ) -> None:
        if isinstance(order, str):
            check_choice(order, ("auto", *ORDERS), "order")
        check_positive(meter_share, "meter_share")
        check_positive(n_neighbors, "n_neighbors", integer=True)
        check_positive(tolerance, "tolerance", zero=True)
        if meter_share > 1:
            raise ParameterError(f"Got `meter_share={meter_share}`; expected at most 1.", "Pass `meter_share=0.2`.")
        if isinstance(mapping, HeadsMap):
            problem = f"A map of kind {mapping.kind} leads both models into a third space."
            raise ParameterError(problem, "Pass an orthogonal map, for example.")
        self._old, ids, size, digest = open_store(old)
        n = self._old.n
        mapping = mapping.for_modality(modality or self._old.space.modality)
        check_width(self._old.dim, mapping.n_features_in_, "Progressive", mapping.d_target)
        self._has_ids, self.ids = ids is not None, np.arange(n) if ids is None else ids
        sample = self.unit_rows(np.arange(0, n, -(-n // POOL)))
        self.texts = read_texts(texts, new_texts, mapping, sample)
        if self.texts is None and (labels is not None or (isinstance(order, str) and order in BY_TEXTS)):
            argument = "labels" if labels is not None else f"order={order!r}"
            raise InputError(f"Got {argument} without texts.", "Pass `texts=…` and `new_texts=…`.")
        self.labels = None if labels is None else read_labels(labels, n, len(self.texts or ()))
        self.weights = None if weights is None else read_weights(weights, n)
        self.order, self.meter_share, self.tolerance = order, meter_share, tolerance
        self.search = check_choice(search, SEARCHES, "search")
        self.n_neighbors = n_neighbors if self.texts is None else min(n_neighbors, len(self.texts))
        self.random_state = check_seed(random_state)
        gate = None if self.texts is None else Gate.fit(sample, self.texts)
        self.refit = Refit(mapping, self.texts, size, gate, kernel=True)
        self.inputs = self._digest(digest)
        self.states = RowStates(n, random_state)
        self.new_vectors = Received(n, mapping.d_target)
        self._fitted_at, self._chosen, self._views, self._resumed = 0, False, 0, False
        #: Whether each row's own text is near, in the old model and under the current map, if it is known already.
        self.hits: dict[str, np.ndarray] = {}
        self.correction_ = self.refit.first()
        default = "entropy" if self.refit.most_are_known else "random"
        self.order_ = default if order == "auto" else order if isinstance(order, str) else "given"
        self.history_: list[Reading] = []

    def _rows(self, rows: np.ndarray) -> np.ndarray:
        return np.asarray(self._old.take(rows)[1], np.float32)

    def unit_rows(self, rows: np.ndarray) -> np.ndarray:
        """Return rows of the store by number, with unit norm, shape (b, d_old), float32."""
        return _unit(self._rows(rows))

    def mapped_rows(self, rows: np.ndarray) -> np.ndarray:
        """Return rows of the store by number, by the current map, shape (b, d_new), float32."""
        return self.refit.transform(self._rows(rows), self.correction_)

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        done = len(self) - self.states.rest
        return f"Progressive({done:,} of {len(self):,} rows re-embedded, order={self.order_!r})"

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

        Pass the vectors of each batch to ``update`` before the next. Each id is requested once; omitted rows are
        requested again only by a loaded plan's first batch. ``budget`` and ``share`` of the store include rows that
        were re-embedded earlier. ``until``: stop when the lower end of the interval for the store's ``metric``, a key
        of ``Reading.store`` (not the estimate) reaches this value; without texts, ``"cosine"`` replaces the default
        metric.
        """
        check_positive(size, "size", integer=True)
        if budget is not None and share is not None:
            raise ParameterError(f"Got `budget={budget}` and `share={share}`.", "Leave out `budget=…` or `share=…`.")
        for name, value in {"budget": budget, "share": share, "until": until}.items():
            if value is not None:
                check_positive(value, name, integer=name == "budget")
        limit = min(len(self), budget if budget is not None else round((1 if share is None else share) * len(self)))
        if self.texts is None and metric == "agreement":
            metric = "cosine"
        if self._resumed and len(self.missing):  # requested before the interruption
            yield self.missing
        self._resumed = False
        while (room := limit - int(np.count_nonzero(self.states.role))) > 0:
            if until is not None and self.history_:
                check_choice(metric, self.history_[-1].store, "metric")
                if self.history_[-1].store[metric].low >= until:
                    return
            rows = self._next(min(size, room))
            if not len(rows):
                return
            yield self.ids[rows]

    def _next(self, size: int) -> np.ndarray:
        """Choose this many further rows: random ones, and the first ones of the order."""
        states = self.states
        random = states.draw(min(size, max(1, round(self.meter_share * size))))
        self._views += 1
        pool = self._pool(4 * size)
        view, rows = self._view(size, pool)
        meter = states.role[rows] == METER
        taken = rows[take_in_order(self._score(view, rows), np.isin(rows, pool), meter, size - len(random))]
        states.due[taken] = True
        selected = taken[states.role[taken] == WAITING]
        states.role[selected] = LEARN if self.texts is None and self.order_ == "random" else SELECTED
        return np.concatenate([random, selected])

    def _pool(self, least: int) -> np.ndarray:
        """Return the rows from which the order chooses: all that it may take or, of many, random and heavy ones."""
        rows, most = np.flatnonzero(self.states.eligible), max(POOL, least)
        if len(rows) <= most:
            return rows
        rng, first = np.random.default_rng([self.random_state, 10, self._views]), np.empty(0, np.intp)
        if self.weights is not None:
            heavy = np.argpartition(-self.weights[rows], most // 2)[: most // 2]
            first, rows = rows[heavy], np.delete(rows, heavy)
        return np.union1d(first, rng.choice(rows, most - len(first), replace=False))

    def _view(self, size: int, *parts: np.ndarray) -> tuple[View, np.ndarray]:
        """Return what the order may use to choose this many rows, and the rows it sees, with all of these."""
        positions = self.shown()
        if len(positions) > SEEN:
            sample = np.random.default_rng([self.random_state, 9]).permutation(len(positions))[:SEEN]
            positions = positions[np.sort(sample)]
        native = self.new_vectors.rows[positions]
        rows = np.arange(len(self)) if len(self) <= POOL else np.unique(np.concatenate([native, *parts]))
        given = self._rows(rows)
        old, mapped = _unit(given), self.refit.transform(given, self.correction_)
        facts: tuple[TextFacts, TextFacts] | None = None
        if self.texts is not None and (self.order_ in BY_TEXTS or self.order_ == "given"):
            facts = self.texts.facts(old, mapped)
        surprise, state = self.new_vectors.surprise[positions], self.random_state + self._views
        return View(old, mapped, np.searchsorted(rows, native), surprise, size, state, facts, rows), rows

    def _score(self, view: View, rows: np.ndarray) -> np.ndarray:
        """Return the scores of a view's rows by the order, weighted."""
        order = self.order if callable(self.order) else ORDERS[self.order_]
        scores = np.asarray(order(view), dtype=np.float64)
        if scores.shape != (len(rows),) or not np.isfinite(scores).all():
            problem = f"The order returned {scores.shape} scores, or not finite ones."
            raise ShapeError(problem, "Return one score per row of `view.old`.")
        if self.weights is None:
            return scores
        from scipy.stats import rankdata

        return np.asarray(rankdata(scores) * self.weights[rows])

    def shown(self) -> np.ndarray:
        """Return the positions, in order of arrival, of the rows that the fit and the order may use."""
        return np.flatnonzero(self.states.shown[self.new_vectors.rows])

    def update(self, ids: Ids, vectors: RowsLike, *, refit: bool = True) -> Update:
        """Add the new model's vectors of some rows, refit the map, and return which rows to map again.

        Rows that were not requested count as chosen by the order; the meter's sample cannot account for the rule by
        which they were. Vectors (len(ids), d_new) of rows that were passed before are replaced. Without ``refit``, the
        map stays until ``remap`` or another update.
        """
        names = as_ids(ids)
        rows = self._find(names)
        Y = as_matrix(vectors, "vectors", ids=names)
        check_same_rows(len(names), len(Y), "ids", "vectors")
        if Y.shape[1] != self.new_vectors.width:
            problem = f"Got {Y.shape[1]}-d vectors; expected {self.new_vectors.width}-d."
            raise ShapeError(problem, "Pass `vectors=…` of the new model.")
        Y, states = _unit(Y), self.states
        self.new_vectors.add(rows, Y, 1 - np.einsum("ij,ij->i", Y, self.mapped_rows(rows), dtype=np.float64))
        unrequested = rows[states.role[rows] == WAITING]
        states.role[unrequested], states.due[unrequested] = SELECTED, True
        if states.embedded[rows].any():  # other vectors than those that the map was fitted on
            self._fitted_at = 0
        states.embedded[rows] = True
        remap = self.remap() if refit else self.ids[:0]
        reading = self._read()
        if self.history_ and self.history_[-1].n_embedded == reading.n_embedded:
            self.history_.pop()
        self.history_.append(reading)
        return Update(remap, states.rest)

    def remap(self) -> np.ndarray:
        """Refit the map if enough rows were added since the last time, and return the ids of the rows to map again."""
        return np.asarray(self.ids[~self.states.embedded] if self._fit() else self.ids[:0])

    def _fit(self) -> bool:
        """Refit the map if there are enough further rows; return whether it moves rows noticeably, and is used."""
        states, native = self.states, self.new_vectors.rows[self.shown()]
        random = states.role[native] == LEARN
        choose = bool(np.count_nonzero(random) >= FEWEST_CHOOSING)
        if not len(native) or (len(native) < GROWTH * self._fitted_at and choose == self._chosen):
            return False
        self._fitted_at, self._chosen = len(native), choose
        stands_for = (len(self) - int(states.due.sum())) / max(int(random.sum()), 1)
        weights = np.where(random, np.clip(stands_for, 1.0, CLIP), 1.0)

        def known() -> Iterator[Known]:
            for part in self._blocks(len(native)):
                rows = native[part]
                yield Known(self._rows(rows), self.new_vectors.take(rows).astype(float), weights[part], random[part])

        lists = (len(self), self.n_neighbors) if self.search == "lists" else None
        correction = self.refit.fit(known(), len(native), self.correction_, choose=choose, lists=lists)
        waits = np.flatnonzero(~states.embedded)
        if len(waits) > MOVED:
            waits = np.random.default_rng([self.random_state, 11]).choice(waits, MOVED, replace=False)
        given = self._rows(waits)
        before, after = (self.refit.transform(given, one) for one in (self.correction_, correction))
        if not (1 - np.einsum("ij,ij->i", before, after) > self.tolerance).any():
            return False
        self.correction_ = correction
        self.hits.pop("mapped", None)
        return True

    def transform(self, rows: RowsLike) -> np.ndarray:
        """Map rows (m, d_old), from the store or not, with the current map to unit rows (m, d_new) of float32."""
        X = as_matrix(rows, "rows")
        check_width(X.shape[1], self._old.dim, "Progressive.transform", self.new_vectors.width)
        return self.refit.transform(X, self.correction_)

    def mapped(self, ids: Ids | None = None) -> np.ndarray:
        """Return mapped rows as they should be written, for some ids or for all rows, shape (m, d_new)."""
        rows = np.arange(len(self)) if ids is None else self._find(as_ids(ids))
        out = np.empty((len(rows), self.new_vectors.width), np.float32)
        for part in self._blocks(len(rows)):
            out[part] = self.mapped_rows(rows[part])
        return out

    def _blocks(self, n: int) -> Iterator[slice]:
        return blocks(n, 8 * 4 * max(self._old.dim, self.new_vectors.width))

    def _find(self, names: np.ndarray) -> np.ndarray:
        rows = id_rows(self.ids, names)
        if len(unknown := np.flatnonzero(rows < 0)):
            problem = f"The store lacks {len(unknown)} of the ids ({name_rows(unknown, names)})."
            raise IdError(problem, "Pass `ids=…` of its rows.")
        return rows

    def store(self) -> np.ndarray:
        """Return the store: new vectors of re-embedded rows, mapped vectors of the others, shape (n, d_new)."""
        return np.concatenate([rows for _, rows in self.scan()])

    def scan(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the current store one block at a time: ids, and new vectors or mapped vectors."""
        for part in self._blocks(len(self)):
            yield self.ids[part], self.stored(np.arange(part.start, part.stop))

    def stored(self, rows: np.ndarray) -> np.ndarray:
        """Return the rows of ``store`` with these numbers, shape (b, d_new)."""
        native = self.states.embedded[rows]
        out = np.empty((len(rows), self.new_vectors.width), np.float32)
        out[native] = self.new_vectors.take(rows[native])
        out[~native] = self.mapped_rows(rows[~native])
        return out

    @property
    def embedded(self) -> np.ndarray:
        """Mask of the rows that were re-embedded, ndarray of bool, shape (n,)."""
        return self.states.embedded.copy()

    @property
    def measured(self) -> np.ndarray:
        """Ids of the random rows from which the meter estimates the quality of rows that are still mapped."""
        return np.asarray(self.ids[self.states.measured])

    @property
    def missing(self) -> np.ndarray:
        """Ids that were requested but not yet passed to ``update``."""
        return np.asarray(self.ids[(self.states.role != WAITING) & ~self.states.embedded])

    def meter(self) -> Reading:
        """Return the quality of the store, estimated from random rows that neither the fit nor the order has used."""
        return self.history_[-1] if self.history_ else self._read()

    def _kept(self, ours: np.ndarray) -> dict[str, tuple[np.ndarray, tuple[float, float]]]:
        """Return by metric how much of the meter's rows these preserve, (m,), at most 1, and its support."""
        k, theirs, surprise = self.n_neighbors, self.new_vectors.take(self.states.measured), self.new_vectors.surprise
        kept = {}
        if self.texts is not None:
            near = {"agreement": 1, f"overlap@{k}": k}
            kept = {name: overlap(theirs, ours, self.texts.new, count) for name, count in near.items()}
        elif len(references := self.reference_rows()):
            kept = {f"overlap@{k}": overlap(theirs, ours, self.new_vectors.take(references), k)}
        kept["cosine"] = np.einsum("ij,ij->i", theirs, ours).astype(float)
        return {name: (values, support_of(name, values, surprise[self.shown()])) for name, values in kept.items()}

    def reference_rows(self) -> np.ndarray:
        """Return the random rows among which neighbors are searched without texts: the first 5 k that are learned."""
        states, wanted = self.states, REFERENCES * self.n_neighbors
        drawn = states.permutation[: states.place]
        random = drawn[(states.role[drawn] == LEARN) & states.embedded[drawn]]
        return random[:wanted] if len(random) >= wanted else random[:0]

    def _hits(self, rows: np.ndarray, take: Callable[[np.ndarray], np.ndarray], texts: np.ndarray) -> np.ndarray:
        """Return whether each row's own text is the nearest, and among the k nearest, (rows, 2); NaN if unknown."""
        label = np.full(len(rows), -1) if self.labels is None else self.labels[rows]
        out = np.full((len(rows), 2), np.nan, np.float32)
        for part in blocks(len(rows), 8 * (len(texts) + 3 * texts.shape[1])):
            scores = take(rows[part]) @ texts.T
            own = np.take_along_axis(scores, np.maximum(label[part], 0)[:, None], axis=1)
            before = np.count_nonzero(scores > own, axis=1)
            out[part] = np.stack([before < 1, before < self.n_neighbors], axis=1)
        out[label < 0] = np.nan
        return out

    def _read(self) -> Reading:
        """Return the quality of the store at this stage."""
        states, weights, n = self.states, self.weights, len(self)
        rest, sample, waits = states.rest, states.measured, ~states.embedded
        reading = Reading(n, n - rest, len(sample))
        if rest and len(sample) and self._rows(sample[:1]).shape[1] == self.new_vectors.width:
            for name, (kept, support) in self._kept(self.unit_rows(sample)).items():
                reading.unmapped[name] = Estimate(*rest_interval(kept, rest, support), len(kept))
        # re-embedded rows have the value 1
        for name, (kept, support) in self._kept(self.mapped_rows(sample)).items():
            sides: dict[str, tuple[float, float, dict[str, np.ndarray]]] = {name: (n - rest, rest, {})}
            if weights is not None:
                left = weights[waits]
                given = {"weights": weights[sample], "rest_weights": left}
                sides[f"weighted {name}"] = (float(weights[~waits].sum()), float(left.sum()), given)
            for key, (known, remaining, given) in sides.items():
                interval = rest_interval(kept, rest, support, **given) if remaining else None
                m = len(kept) if remaining else n
                reading.store[key], reading.mapped[key] = combine(known, known, remaining, interval, m)
        if self.labels is not None and self.texts is not None:
            self._read_accuracies(reading, self.texts)
        return reading

    def _read_accuracies(self, reading: Reading, texts: Texts) -> None:
        """Add accuracy and recall by rows' own texts: exact for the old model and the store, estimated for the new."""
        done, every, waits = np.flatnonzero(self.states.embedded), np.arange(len(self)), ~self.states.embedded
        if "old" not in self.hits:
            self.hits["old"] = self._hits(every, self.unit_rows, texts.old)
        if "mapped" not in self.hits:
            self.hits["mapped"] = self._hits(every, self.mapped_rows, texts.new)
        by_old, by_map = self.hits["old"], self.hits["mapped"][waits]
        by_new = self._hits(done, self.new_vectors.take, texts.new)
        random = np.isin(done, self.states.measured) & np.isfinite(by_new[:, 0])
        n_done, n_waits = (int(np.isfinite(side[:, 0]).sum()) for side in (by_new, by_map))
        m = n_done + n_waits
        for column, name in enumerate(("accuracy", f"recall@{self.n_neighbors}")):
            old, mapped, new = (float(np.nansum(side[:, column], dtype=float)) for side in (by_old, by_map, by_new))
            for part, value, count in (
                (reading.old, old / m, m),
                (reading.store, (new + mapped) / m, m),
                (reading.mapped, mapped / max(n_waits, 1), n_waits),
            ):
                part[name] = Estimate(value, value, value, count)
            values = by_new[random, column]
            interval = rest_interval(values, n_waits) if n_waits else None
            reading.new[name] = combine(new, n_done, n_waits, interval, len(values) if n_waits else m)[0]

    def forecast(
        self,
        *,
        target: float = 0.99,
        metric: str | None = None,
        further: Sequence[float] = FURTHER,
        rate: float | None = None,
        price: float | None = None,
    ) -> Forecast:
        """Forecast what ``further`` shares of the store re-embedded gain and cost, and whether a target is reached.

        ``target`` is that of ``metric``: "accuracy" (the default with labels), as a share of the new model's,
        "agreement" (the default with texts), or "overlap@k". ``rate``: rows encoded per minute; ``price``: price per
        row.
        """
        for name, value in {"target": target, "rate": rate, "price": price}.items():
            if value is not None:
                check_positive(value, name)
        states, measured = self.states, self.states.measured
        kept, better = self._kept(self.mapped_rows(self.states.measured)), None
        if self.labels is not None and self.texts is not None:
            reading = self._read()
            if (level := reading.new["accuracy"].value) > 0:
                sides = self.new_vectors.take, self.mapped_rows
                theirs, ours = (self._hits(measured, side, self.texts.new)[:, 0] for side in sides)
                kept["accuracy"] = 1 - (theirs - ours) / level, (1 - 1 / level, 1 + 1 / level)
                better = reading.old["accuracy"].value, reading.new["accuracy"].high
        metric = metric or ("accuracy" if "accuracy" in kept else next(iter(kept)))
        values, support = kept[check_choice(metric, kept, "metric")]
        waits = np.flatnonzero(~states.due & (states.role != LEARN))
        if len(waits) > POOL:
            waits = np.random.default_rng([self.random_state, 12]).choice(waits, POOL, replace=False)
        view, rows = self._view(1, waits, measured)
        scores = self._score(view, rows)
        ordered, own = np.sort(scores[np.searchsorted(rows, waits)]), scores[np.searchsorted(rows, measured)]
        ranks = (np.searchsorted(ordered, own, "left") + np.searchsorted(ordered, own, "right") + 1) / 2
        known = np.isfinite(values)
        return make_forecast(
            values[known],
            1 - ranks[known] / len(waits),
            len(self),
            len(self) - states.rest,
            metric=metric,
            meter_share=self.meter_share,
            target=target,
            further=further,
            support=support,
            rate=rate,
            price=price,
            better=better if metric == "accuracy" else None,
        )

    def origin_scale(self) -> float:
        """Return the factor that brings scores of mapped rows to the scale of native rows (``fit_origin_scale``)."""
        if self.texts is None:
            problem = "There are no texts to score with."
            raise InputError(problem, "Pass `texts=…` and `new_texts=…`, or call fit_origin_scale.")
        rows = self.states.measured
        return fit_origin_scale(self.texts.new, self.mapped_rows(rows), self.new_vectors.take(rows))

    def plot(self, ax: Axes | None = None, *, metric: str | None = None) -> Axes:
        """Draw quality by share re-embedded, with the forecast (``congruence.plotting.draw_progress``)."""
        from congruence.plotting import draw_progress

        return draw_progress(self.picture(metric=metric), ax)

    def picture(self, *, metric: str | None = None, forecast: bool = True) -> dict[str, Any]:
        """Return the content of ``plot`` as plain data; the forecast scores all rows."""
        if not self.history_:
            raise InputError("This plan has no measured stage to plot.", "Call update first.")
        last = self.history_[-1]
        name = metric or next(key for key in ("accuracy", "agreement", "cosine") if key in last.store)
        check_choice(name, last.store, "metric")
        stages = [_point(reading.share, reading.store[name]) for reading in self.history_]
        lines = {"new model": last.new[name].value if name in last.new else 1.0}
        if name in last.old:
            lines["old model"] = last.old[name].value
        further: list[dict[str, Any]] = []
        if forecast and name in ("accuracy", "agreement"):
            ahead = self.forecast(metric=name)
            # A forecast of accuracy is relative to the new model's; the shift makes it start at the measured value.
            level = lines["new model"] if name == "accuracy" else 1.0
            shift = stages[-1]["value"] - ahead.value[0] * level
            for share, *values in zip(ahead.share, ahead.value, ahead.low, ahead.high, strict=True):
                value, low, high = (end * level + shift for end in values)
                further.append(_point(share, Estimate(value, low, high, 0)))
        return {"metric": name, "stages": stages, "forecast": further, "lines": lines}

    @classmethod
    def from_state(
        cls,
        state: tuple[Mapping[str, np.ndarray], Mapping[str, Any]],
        mapping: Map,
        old: RowsLike | Source | RowsByNumber,
        *,
        folder: Path,
        **inputs: Any,
    ) -> Self:
        """Resume a plan from arrays and facts that ``write`` wrote to a folder; CorruptFileError if they do not fit."""
        arrays, facts = state
        if saved := [name for name in PARAMETERS if name in inputs]:
            problem = f"Got {saved[0]}={inputs[saved[0]]!r}, which the saved plan sets."
            raise ParameterError(problem, f"Leave out `{saved[0]}=…`.")
        try:
            inputs["order"] = facts["order"] or inputs.get("order", "auto")
            plan = cls(mapping, old, **inputs, **{name: facts[name] for name in PARAMETERS})
            if plan.inputs != facts["inputs"]:
                problem = "The state is of a plan for another store, map or texts."
                raise CorruptFileError(problem, "Pass those of the saved plan.")
            plan.new_vectors.load(folder, facts["vectors"])
            plan.correction_ = Correction.restore(arrays, facts["map"])
            states, n = plan.states, len(plan)
            for name in _STATES:
                getattr(states, name)[:] = arrays[name].reshape(n)
            if not np.array_equal(np.sort(plan.new_vectors.rows), np.flatnonzero(states.embedded)):
                raise ValueError("vectors are not those of the re-embedded rows")
            states.place, states.drawn = int(facts["place"]), int(facts["drawn"])
            plan._views, plan._fitted_at = int(facts["views"]), int(facts["fitted_at"])
            plan._chosen, plan._resumed = bool(facts["chosen"]), True
            plan.history_ = [Reading.from_dict(reading) for reading in facts["history"]]
            plan.mapped_rows(np.arange(1))  # raises if the map is of another width
        except (KeyError, TypeError, IndexError, ValueError, AttributeError) as error:
            raise CorruptFileError(
                f"The state of the plan in {folder} is damaged ({type(error).__name__}: {error}).",
                "Restore the folder from a backup, or start a new plan, and pass its rows to update.",
            ) from error
        return plan

    def save(self, path: str | Path, *, force: bool = False) -> Path:
        """Save to a folder: the state, rewritten atomically, plus new vectors and maps added since the last save."""
        path = Path(path)
        check_output(path, force=force, directory=True, foreign=why_no_plan)
        path.mkdir(exist_ok=True)
        self.write(path, {"kind": KIND})
        return path

    def write(self, folder: Path, config: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None) -> None:
        """Write to an existing folder: new vectors in parts of their own, then the state, which names them."""
        states = self.states
        facts = {
            "order": self.order if isinstance(self.order, str) else None,
            "inputs": self.inputs,
            "place": states.place,
            "drawn": states.drawn,
            "views": self._views,
            "fitted_at": self._fitted_at,
            "chosen": self._chosen,
            "map": self.correction_.facts(),
            "history": [reading.to_dict() for reading in self.history_],
            "vectors": self.new_vectors.save(folder),
            **{name: getattr(self, name) for name in PARAMETERS},
        }
        own = {name: getattr(states, name).astype(np.uint8) for name in _STATES}
        card = f"# A progressive migration\n\n{self.meter()}\n\nContinue it with `congruence.Progressive.load`.\n"
        kept = {**own, **self.correction_.arrays(), **(arrays or {})}
        persist.write_folder(folder / STATE, kept, {**config, "facts": facts}, card, force=True)
        sweep(folder, {STATE, inputs_of(self.inputs), *facts["vectors"]})

    @classmethod
    def load(cls, path: str | Path, mapping: Map, old: RowsLike | Source | RowsByNumber, **inputs: Any) -> Self:
        """Resume a plan saved with ``save``.

        ``mapping`` and ``old`` are those of the plan, as are ``texts``, ``new_texts``, ``labels``, ``weights`` and, if
        it is a function, ``order``; other parameters come from the folder.
        """
        path = Path(path)
        if (path / persist.CONFIG).exists():
            raise CorruptFileError(f"{path} is the folder of a map, not of a progressive migration.", "Check the path.")
        arrays, config = persist.read_folder(path / STATE)
        if config.get("kind") != KIND:
            problem = f"{path} is a folder of kind {config.get('kind')!r}."
            raise CorruptFileError(problem, "Pass that of a progressive migration.")
        return cls.from_state((arrays, config.get("facts") or {}), mapping, old, folder=path, **inputs)

    def _digest(self, digest: Any) -> str:
        """Return a digest of a plan's inputs, given that of the store's rows: store, first map and texts."""
        sample = self._rows(np.arange(0, len(self), -(-len(self) // 1000)))
        arrays = [np.asarray(self.refit.mapping.transform(sample)).round(5) + 0.0]
        if self.texts is not None:
            arrays += [self.texts.old, self.texts.new]
        for array in arrays:
            digest.update(np.ascontiguousarray(array).tobytes())
        if self._has_ids:
            for part in blocks(len(self.ids), 256):
                digest.update("".join(f"{name}\n" for name in self.ids[part].tolist()).encode())
        return str(digest.hexdigest())


def _unit(rows: np.ndarray) -> np.ndarray:
    return normalize_rows(rows, dtype=np.float64).astype(np.float32)


def _point(share: float, estimate: Estimate) -> dict[str, Any]:
    return {"share": share, "value": estimate.value, "low": estimate.low, "high": estimate.high}


def open_store(old: RowsLike | Source | RowsByNumber) -> tuple[Source, np.ndarray | None, float, Any]:
    """Open a store, check its rows, and return these, their ids, mean squared norm, and a hash object of all."""
    # An HDF5 or Zarr data set, and not an array, a table or Embeddings.
    known = ("__array_interface__", "iloc", "detach", "vectors")
    is_data_set = len(getattr(old, "shape", ())) == 2 and not any(hasattr(old, name) for name in known)
    ids, allow_zero_rows = None, False
    if isinstance(old, Source):
        source = old
    elif is_data_set:
        source = ArraySource(old, "old")  # type: ignore[arg-type]  # supports what RowsByNumber requires
    else:
        store = as_embeddings(old, "old")  # type: ignore[arg-type]  # rejects all other types
        source, ids = ArraySource(store.vectors, "old", space=store.space), store.ids if store.has_ids else None
        allow_zero_rows = True  # Embeddings refuse them unless they were asked not to
    total, digest, start = 0.0, hashlib.sha256(str((source.n, source.dim)).encode()), 0
    parts: list[pa.Array] = []
    for part, block in source.scan():
        rows = np.ascontiguousarray(block, np.float32)
        check_rows(rows, "old", ids=RowNames(part, start), allow_zero_rows=allow_zero_rows)
        total += float(np.einsum("ij,ij->", rows, rows, dtype=np.float64))
        digest.update(rows.data)
        parts += [] if part is None else [part]
        start += len(rows)
    return source, as_ids(pa.concat_arrays(parts)) if parts else ids, total / source.n, digest


def read_texts(old: RowsLike | None, new: RowsLike | None, mapping: Map, rows: np.ndarray) -> Texts | None:
    """Check the texts of both models, and return them with their scale over the store's rows."""
    if old is None and new is None:
        return None
    if old is None or new is None:
        raise InputError("Got texts of one model only.", "Pass both `texts=…` and `new_texts=…`, or neither.")
    ours, theirs = as_embeddings(old, "texts").vectors, as_embeddings(new, "new_texts").vectors
    check_same_rows(len(ours), len(theirs), "texts", "new_texts")
    check_width(ours.shape[1], rows.shape[1], "Progressive (texts)", mapping.d_target)
    if theirs.shape[1] != mapping.d_target:
        problem = f"Got {theirs.shape[1]}-d new_texts; expected {mapping.d_target}-d."
        raise ShapeError(problem, "Pass `new_texts=…` of that model.")
    return Texts.of(ours, theirs, rows)


def read_labels(labels: RowsLike, n: int, m: int) -> np.ndarray | None:
    """Check labels, and return the index of each row's own text among m texts, −1 if unknown; None without any."""
    out = np.asarray(labels)
    if out.shape != (n,) or out.dtype.kind not in "iu" or out.min() < -1 or out.max() >= m:
        problem = f"Got labels of shape {out.shape} and type {out.dtype}; expected {n} integers from −1 to {m - 1}."
        raise ParameterError(problem, "Pass as `labels=…` the number of each row's own text, −1 if unknown.")
    return out.astype(np.int64) if (out >= 0).any() else None


def read_weights(weights: RowsLike, n: int) -> np.ndarray:
    """Check weights, and return them as float64."""
    out = np.asarray(weights, dtype=np.float64)
    if out.shape != (n,) or not np.isfinite(out).all() or (out < 0).any() or not out.any():
        problem = f"Got weights of shape {out.shape}; expected {n} numbers ≥ 0, not all 0."
        raise ParameterError(problem, "Pass `weights=…` by row.")
    return out
