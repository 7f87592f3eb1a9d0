"""Collection of measured values, one per draw, with their means and standard deviations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np

from congruence.errors import ParameterError
from congruence_papers.plain import Row

__all__ = ["Results"]

_Key: TypeAlias = tuple[str | None, str | None, str | None, str | None, float | None, str, str]


class Results:
    """Measured values, grouped by the columns that identify them.

    Examples
    --------
    >>> results = Results()
    >>> results.add({"data": "sample", "metric": "text_cosine", "quantity": "after"}, 0.5)
    >>> results.add({"data": "sample", "metric": "text_cosine", "quantity": "after"}, 0.7)
    >>> row = results.rows()[0]
    >>> round(row["mean"], 3), round(row["sd"], 3), row["n"]
    (0.6, 0.141, 2)
    """

    def __init__(self) -> None:
        self._values: dict[_Key, list[float]] = {}

    def add(self, what: Mapping[str, object], value: float) -> None:
        """Add one value.

        Parameters
        ----------
        what : mapping
            The columns that identify the value; see :data:`congruence_papers.plain.COLUMNS`.
        value : float

        Raises
        ------
        ParameterError
            If ``what`` lacks a metric or a quantity, or a column has a value of the wrong type: ``x`` is a number, all others are text.
        """
        self._values.setdefault(_key(what), []).append(float(value))

    def add_all(self, what: Mapping[str, object], values: Mapping[str, float], quantity: str = "after") -> None:
        """Add one value per metric."""
        for metric, value in values.items():
            self.add({**what, "metric": metric, "quantity": quantity}, value)

    def add_references(self, what: Mapping[str, object], values: Mapping[str, Mapping[str, float]]) -> None:
        """Add reference values, which do not depend on the map, by metric and quantity."""
        for metric, by_quantity in values.items():
            for quantity, value in by_quantity.items():
                self.add({**what, "metric": metric, "quantity": quantity}, value)

    def rows(self) -> list[Row]:
        """Return one row per group of values: its columns, mean, standard deviation, n and the values.

        The standard deviation is over draws, with n − 1 in the denominator, and None for a single value.
        """
        out: list[Row] = []
        for (data, pair, series, part, x, metric, quantity), values in self._values.items():
            sd = float(np.std(values, ddof=1)) if len(values) > 1 else None
            out.append(
                {
                    "data": data,
                    "pair": pair,
                    "series": series,
                    "part": part,
                    "x": x,
                    "metric": metric,
                    "quantity": quantity,
                    "mean": float(np.mean(values)),
                    "sd": sd,
                    "n": len(values),
                    "values": values,
                }
            )
        return out


def _key(what: Mapping[str, object]) -> _Key:
    """Return the identifying columns of a value, in the order of :data:`congruence_papers.plain.COLUMNS`. Raises ParameterError."""
    data, pair, series, part = (_text(what, column) for column in ("data", "pair", "series", "part"))
    metric, quantity, x = _text(what, "metric"), _text(what, "quantity"), what.get("x")
    if metric is None or quantity is None:
        raise ParameterError(f"Got a value of {dict(what)}; expected a metric and a quantity. Pass both in what.")
    if not (x is None or isinstance(x, (int, float))):
        raise ParameterError(f"Got x={x!r} of a value; expected a number or None. Pass x as a number.")
    return data, pair, series, part, x, metric, quantity


def _text(what: Mapping[str, object], column: str) -> str | None:
    value = what.get(column)
    if not (value is None or isinstance(value, str)):
        raise ParameterError(f"Got {column}={value!r} of a value; expected text or None. Pass {column} as text.")
    return value
