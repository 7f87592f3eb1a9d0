"""Draw the rows on which two spaces are compared, if only a sample is used."""

from __future__ import annotations

import numpy as np

from congruence._utils.validation import check_positive
from congruence.errors import ParameterError

__all__ = ["FEWEST_ROWS", "draw_rows"]

#: Minimum number of rows on which spaces are compared.
FEWEST_ROWS = 8


def draw_rows(n: int, max_rows: int | None, rng: np.random.Generator) -> np.ndarray | None:
    """Return the numbers of at most ``max_rows`` of n rows, drawn at random, ascending; None if all rows are used.

    Raises
    ------
    ParameterError
        If ``max_rows`` is not an integer, or is below 8.
    """
    if max_rows is None:
        return None
    if check_positive(max_rows, "max_rows", integer=True) < FEWEST_ROWS:
        raise ParameterError(
            f"Got max_rows={max_rows}; expected at least {FEWEST_ROWS}. Pass max_rows={FEWEST_ROWS} or more."
        )
    return np.sort(rng.choice(n, max_rows, replace=False)) if n > max_rows else None
