"""A progressive migration between two updates: the content of the store, its quality, and the next rows to encode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from congruence._utils.ids import as_ids, id_rows
from congruence._utils.typing import Ids, RowsLike
from congruence._utils.validation import as_matrix, check_choice, check_positive, check_width
from congruence.errors import IdError, InputError, ShapeError
from congruence.upgrade.progressive._lazy import Rows, by_block, row_blocks
from congruence.upgrade.progressive._measure import ScoredRows, losses, picture, read
from congruence.upgrade.progressive._received import Received
from congruence.upgrade.progressive._row_states import LEARN, WAITING, RowStates
from congruence.upgrade.progressive._written import Written
from congruence.upgrade.progressive.calibration import FEWEST, OriginScale, fit_origin_scale
from congruence.upgrade.progressive.forecast import Forecast, make_forecast
from congruence.upgrade.progressive.learned import OrderSelection
from congruence.upgrade.progressive.meter import Reading
from congruence.upgrade.progressive.order import ORDERS, Order, View, quantiles, ranks
from congruence.upgrade.progressive.refit import Correction, Refit
from congruence.upgrade.progressive.texts import Scale, TextFacts, Texts, read_facts

if TYPE_CHECKING:
    from matplotlib.axes import Axes


__all__ = ["Stage"]

#: Shares of the store for which a forecast is made.
FURTHER = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)

#: Largest number of re-embedded rows used to compute an order; if there are more, a random sample of this size is used.
SEEN = 16_384


class Stage:
    """State of a plan between two updates; set by :class:`Progressive`.

    Attributes
    ----------
    new_vectors : Received
        The new model's vectors of the rows re-embedded so far.
    refit : Refit
        Applies a correction to rows of the old model, and fits one.
    written : Written
        The map with which each mapped row was written to the store.
    """

    ids: np.ndarray
    texts: Texts | None
    labels: np.ndarray | None
    weights: np.ndarray | None
    order: str | Order
    meter_share: float
    n_neighbors: int
    random_state: int
    history_: list[Reading]
    correction_: Correction
    order_: str
    _old: Rows
    _unit: Rows
    _mapped: Rows
    written: Written
    new_vectors: Received
    _row_states: RowStates
    refit: Refit
    _selection: OrderSelection
    _views: int
    _chosen_at: int
    _resumed: bool
    _has_ids: bool
    _inputs: str | None = None

    def _map(self) -> None:
        """Map all rows with the current map: now, or for a stream whenever they are read."""
        correction, width = self.correction_, self.refit.mapping.d_target
        self._mapped = by_block(self._old, lambda rows: self.refit.transform(rows, correction), width)

    def __len__(self) -> int:
        return len(self.ids)

    # ------------------------------------------------------------------ content of the store

    def transform(self, rows: RowsLike) -> np.ndarray:
        """Map rows of the old model, from the store or not, with the current map.

        Parameters
        ----------
        rows : array_like, shape (m, d_old)

        Returns
        -------
        ndarray of float32, shape (m, d_new)
            Unit rows.
        """
        X = as_matrix(rows, "rows")
        check_width(X.shape[1], self._old.shape[1], "Progressive.transform", self._mapped.shape[1])
        return self.refit.transform(X, self.correction_)

    def mapped(self, ids: Ids | None = None) -> np.ndarray:
        """Return mapped rows as they should be written, for some ids or for all rows, shape (m, d_new). Raises IdError."""
        if ids is None:
            return self.written.take(slice(0, len(self)))
        rows = id_rows(self.ids, as_ids(ids))
        if (rows < 0).any():
            raise IdError("Got ids that the store does not have; expected ids of the store. Pass ids=… of its rows.")
        return self.written.take(rows)

    def store(self) -> np.ndarray:
        """Return the current store: new vectors for re-embedded rows, mapped vectors for the others, shape (n, d_new)."""
        out = np.empty((len(self), self._mapped.shape[1]), np.float32)
        start = 0
        for _, rows in self.scan():
            out[start : start + len(rows)] = rows
            start += len(rows)
        return out

    def scan(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the current store one block at a time: ids, and new vectors for re-embedded rows or mapped vectors for the others."""
        for part in row_blocks(self._old):
            yield self.ids[part], self.stored(np.arange(len(self))[part])

    def stored(self, rows: np.ndarray) -> np.ndarray:
        """Return the rows of :meth:`store` with these numbers, shape (b, d_new)."""
        native = self._row_states.embedded[rows]
        out = np.empty((len(rows), self._mapped.shape[1]), np.float32)
        out[native] = self.new_vectors.take(rows[native])
        out[~native] = self.written.take(rows[~native])
        return out

    def mark_written(self) -> None:
        """Record that all mapped rows are now stored as the current map maps them, including those that moved little."""
        self.written.mark_written(self._mapped)

    @property
    def embedded(self) -> np.ndarray:
        """Mask of the rows that were re-embedded, ndarray of bool, shape (n,)."""
        return self._row_states.embedded.copy()

    @property
    def measured(self) -> np.ndarray:
        """Ids of the random rows from which the meter estimates the quality of rows that are still mapped."""
        return np.asarray(self.ids[self._row_states.measured])

    @property
    def missing(self) -> np.ndarray:
        """Ids that were requested but not yet passed to :meth:`update`."""
        return np.asarray(self.ids[(self._row_states.role != WAITING) & ~self._row_states.embedded])

    # ------------------------------------------------------------------ quality of the store

    def meter(self) -> Reading:
        """Return the current quality of the store, estimated from random rows that neither the fit nor the order has used."""
        return self.history_[-1] if self.history_ else self._read()

    def _rows(self) -> ScoredRows:
        return ScoredRows(
            self._row_states,
            self.new_vectors,
            self._unit,  # type: ignore[arg-type]  # Lazy supports the array operations used here
            self._mapped,  # type: ignore[arg-type]
            self.texts,
            self.labels,
            self.n_neighbors,
            self.weights,
            self.new_vectors.surprise[self._shown()],
        )

    def _read(self) -> Reading:
        return read(self._rows())

    def forecast(
        self,
        *,
        target: float = 0.99,
        metric: str | None = None,
        further: Sequence[float] = FURTHER,
        rate: float | None = None,
        price: float | None = None,
    ) -> Forecast:
        """Forecast what further re-embedding gains and costs, and whether it can reach a target.

        Parameters
        ----------
        target : float, default=0.99
            Target value of ``metric``; with labels, as a share of the new model's accuracy.
        metric : str, optional
            "accuracy" (relative to the new model's; the default with labels), "agreement" (the default with texts), or "overlap@k" with this plan's k.
        further : sequence of float
            Shares of the store for which to forecast.
        rate, price : float, optional
            Rows encoded per minute, and price per row.

        Returns
        -------
        Forecast

        Raises
        ------
        ParameterError
            If the metric is unknown, or a rate, price or target is not positive.
        """
        for value, name in ((target, "target"), (rate, "rate"), (price, "price")):
            if value is not None:
                check_positive(value, name)
        states = self._row_states
        measured = states.measured
        values, supports, old_new = losses(self._rows())
        metric = metric or ("accuracy" if "accuracy" in values else next(iter(values)))
        check_choice(metric, values, "metric")
        waits = ~states.due & (states.role != LEARN)
        scores = self._score(self._view(1))
        ahead = 1 - ranks(scores[waits], scores[measured])
        loss = values[metric]
        return make_forecast(
            1 - loss[np.isfinite(loss)],
            ahead[np.isfinite(loss)],
            len(self),
            int(np.count_nonzero(states.embedded)),
            states.rest,
            metric=metric,
            meter_share=self.meter_share,
            target=target,
            further=further,
            support=supports[metric],
            rate=rate,
            price=price,
            better=old_new if metric == "accuracy" else None,
        )

    def origin_scale(self, kind: str = "query") -> OriginScale:
        """Fit how to convert scores of mapped rows to the scale of native rows, on the meter's rows (:func:`fit_origin_scale`).

        Raises
        ------
        InputError
            If there are fewer than 20 random rows, or no texts to score with.
        ParameterError
            If ``kind`` is unknown.
        """
        if self.texts is None:
            raise InputError(
                "Got no texts to score rows with; expected some. Pass texts=… and new_texts=…, or call fit_origin_scale with queries."
            )
        rows = self._row_states.measured
        if len(rows) < FEWEST:
            raise InputError(
                f"Got {len(rows)} measured random rows; expected {FEWEST} or more. Pass more batches to update, or a larger meter_share=…."
            )
        return fit_origin_scale(self.texts.new, self._mapped[rows], self._rows().native(rows), kind)

    def plot(self, ax: Axes | None = None, *, metric: str | None = None) -> Axes:
        """Draw quality against the share re-embedded, with intervals and forecast (:func:`congruence.plotting.draw_progress`)."""
        from congruence.plotting import draw_progress

        return draw_progress(self.picture(metric=metric), ax)

    def picture(self, *, metric: str | None = None, forecast: bool = True) -> dict[str, Any]:
        """Return the content of :meth:`plot` as plain data; the forecast, which scores all rows, is optional. Raises InputError before the first update."""
        if not self.history_:
            raise InputError("Got a plan without any update; expected a measured stage to plot. Call update first.")
        name = metric or next(key for key in ("accuracy", "agreement", "cosine") if key in self.history_[-1].store)
        check_choice(name, self.history_[-1].store, "metric")
        ahead = self.forecast(metric=name) if forecast and name in ("accuracy", "agreement") else None
        return picture(self.history_, name, ahead)

    def _view(self, size: int) -> View:
        """Return what the order may use to choose this many rows."""
        positions = self._shown()
        if len(positions) > SEEN:
            sample = np.random.default_rng([self.random_state, 9]).permutation(len(positions))[:SEEN]
            positions = positions[np.sort(sample)]
        native = self.new_vectors.rows[positions]
        facts: tuple[TextFacts, TextFacts] | tuple[None, None] = (None, None)
        if self.texts is not None:
            scale = Scale.of(self._mapped, self.texts.new)
            facts = (
                read_facts(self._unit, self.texts.old, self.texts.scale, self.n_neighbors),
                read_facts(self._mapped, self.texts.new, scale, self.n_neighbors),
            )
        return View(
            self._unit,  # type: ignore[arg-type]  # Lazy supports the array operations that orders use
            self._mapped,  # type: ignore[arg-type]
            native,
            self.new_vectors.surprise[positions],
            size,
            self.random_state + self._views,
            *facts,
        )

    def _score(self, view: View) -> np.ndarray:
        """Return the scores of all rows by the order, weighted. Raises ShapeError."""
        if self.order == "auto":
            self.order_ = self._selection.current_order()
        order = ORDERS[self.order_] if isinstance(self.order, str) else self.order
        scores = np.asarray(order(view), dtype=np.float64)
        if scores.shape != (len(self),) or not np.isfinite(scores).all():
            raise ShapeError(
                f"Got scores of shape {scores.shape} from the order, or some that are not finite; expected {len(self)} numbers. Pass order=… that returns one score per row."
            )
        return scores if self.weights is None else quantiles(scores) * self.weights

    def _shown(self) -> np.ndarray:
        """Return the positions, in order of arrival, of the rows that the fit and the order may use."""
        return np.flatnonzero(self._row_states.shown[self.new_vectors.rows])
