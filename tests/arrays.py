"""What many tests do with rows."""

import numpy as np


def unit(rows):
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def spoiled(rows, where, value):
    """Return a copy of which one row or number is another."""
    rows = rows.copy()
    rows[where] = value
    return rows
