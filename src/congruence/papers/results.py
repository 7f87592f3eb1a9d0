"""Numbers as they come, a line for each draw, and their means and standard deviations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["KEYS", "Results"]

#: Columns that say what a number is.
KEYS = ("data", "pair", "series", "part", "x", "metric", "quantity")


class Results:
    """Collects values under what they are.

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
        self._values: dict[tuple[object, ...], list[float]] = {}

    def add(self, what: Mapping[str, object], value: float) -> None:
        """Add one value."""
        self._values.setdefault(tuple(what.get(key) for key in KEYS), []).append(float(value))

    def add_all(self, what: Mapping[str, object], values: Mapping[str, float], quantity: str = "after") -> None:
        """Add one value for each metric."""
        for metric, value in values.items():
            self.add({**what, "metric": metric, "quantity": quantity}, value)

    def add_references(self, what: Mapping[str, object], values: Mapping[str, Mapping[str, float]]) -> None:
        """Add what does not depend on the map, for each metric."""
        for metric, found in values.items():
            for quantity, value in found.items():
                self.add({**what, "metric": metric, "quantity": quantity}, value)

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for each thing measured: its keys, mean, standard deviation, n and the values themselves.

        The standard deviation is over draws, with n − 1 in the denominator; None for a single value.
        """
        out = []
        for key, values in self._values.items():
            sd = float(np.std(values, ddof=1)) if len(values) > 1 else None
            row = dict(zip(KEYS, key, strict=True))
            out.append({**row, "mean": float(np.mean(values)), "sd": sd, "n": len(values), "values": values})
        return out
