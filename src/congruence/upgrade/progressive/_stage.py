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
from congruence.upgrade.progressive._measure import Rows as Measured
from congruence.upgrade.progressive._measure import losses, picture, read
from congruence.upgrade.progressive._received import Received
from congruence.upgrade.progressive._row_states import LEARN, WAITING, RowStates
from congruence.upgrade.progressive._written import Written
from congruence.upgrade.progressive.calibration import FEWEST, OriginScale, fit_origin_scale
from congruence.upgrade.progressive.forecast import Forecast, make_forecast
from congruence.upgrade.progressive.learned import OrderSelection
from congruence.upgrade.progressive.meter import Reading
from congruence.upgrade.progressive.order import ORDERS, Order, View, quantiles, ranks
from congruence.upgrade.progressive.refit import Correction, Refit
from congruence.upgrade.progressive.texts import Scale, Texts, read_facts

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from congruence.plotting.data import ProgressPicture

__all__ = ["Stage"]

#: Shares of the store for which a forecast is made.
FURTHER = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)

#: Largest number of re-embedded rows used to compute an order; if there are more, a random sample of this size is used.
SEEN = 16_384


class Stage:
    """State of a plan between two updates; set by :class:`Progressive`."""

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
    _written: Written
    _new: Received
    _row_states: RowStates
    _refit: Refit
    _selection: OrderSelection
    _views: int
    _chosen_at: int
    _resumed: bool
    _has_ids: bool
    _inputs: str | None = None
    _pieces: dict[str, str]

    def _map(self) -> None:
        """Map all rows now, or lazily when they are needed."""
        correction, width = self.correction_, self._refit.mapping.d_target
        self._mapped = by_block(self._old, lambda rows: self._refit.transform(rows, correction), width)

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
        return self._refit.transform(X, self.correction_)

    def mapped(self, ids: Ids | None = None) -> np.ndarray:
        """Return mapped rows as they should be written, for some ids or for all rows, shape (m, d_new). Raises IdError."""
        if ids is None:
            return self._written.take(slice(0, len(self)))
        rows = id_rows(self.ids, as_ids(ids))
        if (rows < 0).any():
            raise IdError("Got ids that the store does not have; expected ids of the store. Pass ids=… of its rows.")
        return self._written.take(rows)

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
            yield self.ids[part], self._stored(np.arange(len(self))[part])

    def _stored(self, rows: np.ndarray) -> np.ndarray:
        """Return rows of the current store, by row number."""
        native = self._row_states.embedded[rows]
        out = np.empty((len(rows), self._mapped.shape[1]), np.float32)
        out[native] = self._new.take(rows[native])
        out[~native] = self._written.take(rows[~native])
        return out

    @property
    def embedded(self) -> np.ndarray:
        """Mask of the rows that were re-embedded, shape (n,), bool."""
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

    def _rows(self) -> Measured:
        return Measured(
            self._row_states,
            self._new,
            self._unit,  # type: ignore[arg-type]  # Lazy supports the array operations used here
            self._mapped,  # type: ignore[arg-type]
            self.texts,
            self.labels,
            self.n_neighbors,
            self.weights,
            self._new.surprise[self._shown()],
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
        known = metric or ("accuracy" if "accuracy" in values else next(iter(values)))
        check_choice(known, values, "metric")
        waits = ~states.due & (states.role != LEARN)
        scores = self._score(self._view(1))
        ahead = 1 - ranks(scores[waits], scores[measured])
        loss = values[known]
        return make_forecast(
            1 - loss[np.isfinite(loss)],
            ahead[np.isfinite(loss)],
            len(self),
            int(np.count_nonzero(states.embedded)),
            states.rest,
            metric=known,
            meter_share=self.meter_share,
            target=target,
            further=further,
            support=supports[known],
            rate=rate,
            price=price,
            better=old_new if known == "accuracy" else None,
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
                f"Got {len(rows)} random rows that are measured; expected {FEWEST} or more. Pass more batches to update, or a larger meter_share=…."
            )
        return fit_origin_scale(self.texts.new, self._mapped[rows], self._rows().native(rows), kind)

    def plot(self, ax: Axes | None = None, *, metric: str | None = None) -> Axes:
        """Draw quality against the share re-embedded, with intervals and forecast (:func:`congruence.plotting.draw_progress`)."""
        from congruence.plotting import draw_progress

        return draw_progress(self.picture(metric=metric), ax)

    def picture(self, *, metric: str | None = None, forecast: bool = True) -> ProgressPicture:
        """Return the content of :meth:`plot` as plain data; the forecast, which scores all rows, is optional. Raises InputError before the first update."""
        if not self.history_:
            raise InputError("Got a plan without any update; expected a stage to draw. Call update first.")
        name = metric or next(one for one in ("accuracy", "agreement", "cosine") if one in self.history_[-1].store)
        check_choice(name, self.history_[-1].store, "metric")
        ahead = self.forecast(metric=name) if forecast and name in ("accuracy", "agreement") else None
        return picture(self.history_, name, ahead)

    def _view(self, size: int) -> View:
        place = self._shown()
        if len(place) > SEEN:
            some = np.random.default_rng([self.random_state, 9]).permutation(len(place))[:SEEN]
            place = place[np.sort(some)]
        native = self._new.rows[place]
        facts: tuple[Any, Any] = (None, None)
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
            self._new.surprise[place],
            size,
            self.random_state + self._views,
            *facts,
        )

    def _score(self, view: View) -> np.ndarray:
        if self.order == "auto":
            self.order_ = self._selection.current_order()
        order = ORDERS[self.order_] if isinstance(self.order, str) else self.order
        scores = np.asarray(order(view), dtype=np.float64)
        if scores.shape != (len(self),) or not np.isfinite(scores).all():
            raise ShapeError(
                f"Got scores of shape {scores.shape} from the order, or some that are not finite; expected {len(self)} numbers. Pass order=… that returns one score a row."
            )
        return scores if self.weights is None else quantiles(scores) * self.weights

    def _shown(self) -> np.ndarray:
        """Return the positions, in order of arrival, of the rows that the fit and the order may use."""
        return np.flatnonzero(self._row_states.shown[self._new.rows])
