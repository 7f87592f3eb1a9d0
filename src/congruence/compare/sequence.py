"""Find rows of two files that are out of step: a file shifted by some rows, or rows lost or inserted on one side.

If the order of the rows means something (sorted names, photos by class), rows out of step resemble each other, and the
test of ``pairing`` finds a link. The right link is stronger than those to a row's neighbors in the file.
"""

from __future__ import annotations

import numpy as np

from congruence.linalg.procrustes import half_svd, rotation_from_svd

#: Largest number of rows by which a file is searched to be out of step.
_WINDOW = 50

#: Rows compared, in this many stretches of the file if it has more.
_ROWS, _STRETCHES = 2000, 8

#: Coordinates of the search for a common lag.
_WIDTH = 64

#: What a change of the lag costs, in standard deviations of the cosines of rows that do not belong together.
_CHANGE = 12.0

#: Probability that other lags look better than none by chance, on coordinates by which they were not chosen.
_LEVEL = 1e-3

#: Directions (as the participation ratio counts them) over which rows out of step must spread.
_FEWEST_DIRECTIONS = 5

_FOLDS = 5


def find_lags(X: np.ndarray, Y: np.ndarray) -> list[tuple[int, int]]:
    """Return where centered rows X (n, d) and Y (n, e) are out of step, as (first row, lag): from this row of X on, row
    i of X belongs to row i + lag of Y. Empty if they are in step, or if it cannot be told.

    A rotation is fitted on the given pairs, and on those of the lag at which the sides are most alike. Held-out rows
    are compared with all rows nearby, and the best sequence of lags is found by dynamic programming, by every second
    principal coordinate of Y. It must be better than no lag by the others, whose noise is uncorrelated with these.
    """
    n = len(X)
    window = min(_WINDOW, n // 4)
    lags = np.arange(-window, window + 1)
    rows = np.arange(n)
    if n > _ROWS:
        starts = np.linspace(0, n - _ROWS // _STRETCHES, _STRETCHES).astype(int)
        rows = (starts[:, None] + np.arange(_ROWS // _STRETCHES)).ravel()
    X, Y = _principal(X, rows), _principal(Y, rows)
    common = int(lags[np.argmax([_likeness(X, Y, rows, int(lag)) for lag in lags])])
    given = _evidence(X, Y, rows, np.zeros(len(rows), int), lags)
    best, found = -np.inf, np.zeros(len(rows), int)
    for start in {0, common}:
        path = np.full(len(rows), start)
        for step in range(4):
            # Half of the evidence is from a map of the given pairs, so that no path looks better by what it was fitted
            # on.
            table = given if not path.any() else (given + _evidence(X, Y, rows, path, lags)) / 2
            value = table.sum(axis=0)[np.arange(len(rows)), path + window].sum() - _CHANGE * np.count_nonzero(
                np.diff(path, prepend=0)
            )
            if value > best and _chance(table[1], path, window, X[rows]) < _LEVEL:
                best, found = value, path
            new = lags[_best_path(table[0])]
            if step == 3 or (new == path).all():
                break
            path = new
    changes = np.flatnonzero(np.diff(found, prepend=0))
    return [(int(rows[k]), int(found[k])) for k in changes]


def _principal(Z: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return principal coordinates, largest first."""
    Z = Z - Z[rows].mean(axis=0)
    return Z @ np.linalg.eigh(Z[rows].T @ Z[rows])[1][:, ::-1]


def _likeness(X: np.ndarray, Y: np.ndarray, rows: np.ndarray, lag: int) -> float:
    """Return the squared cross-covariance of leading coordinates of comparable size, less what chance gives."""
    i = rows[(rows + lag >= 0) & (rows + lag < len(Y))]
    sides = X[i, :_WIDTH], Y[i + lag, : 2 * _WIDTH : 2]
    x, y = (side / np.sqrt((side**2).mean(axis=0) + 3 * (side**2).mean() + 1e-300) for side in sides)
    m = len(i)
    return float(((x.T @ y / m) ** 2).sum() - (x**2).sum() * (y**2).sum() / m**3)


def _evidence(X: np.ndarray, Y: np.ndarray, rows: np.ndarray, path: np.ndarray, lags: np.ndarray) -> np.ndarray:
    """Return standardized cosines of held-out mapped rows with the rows of Y at each lag, by even and by odd
    coordinates, shape (2, rows, lags); 0 beyond the ends of the file.
    """
    out = np.zeros((2, len(rows), len(lags)))
    partner = rows + path
    inside = (partner >= 0) & (partner < len(Y))
    near = rows[:, None] + lags
    beyond = (near < 0) | (near >= len(Y))
    near = np.clip(near, 0, len(Y) - 1)
    for part in np.array_split(np.arange(len(rows)), _FOLDS):
        train = np.setdiff1d(np.flatnonzero(inside), part)
        if len(train) < 2:
            continue
        x, y = X[rows[train]], Y[partner[train]]
        rotation = rotation_from_svd(half_svd((x - x.mean(axis=0)).T @ (y - y.mean(axis=0)), max_rank=len(train) - 1))
        mapped, low, high = (X[rows[part]] - x.mean(axis=0)) @ rotation, near[part].min(), near[part].max() + 1
        target = Y[low:high] - y.mean(axis=0)
        for half in range(2):
            a, b = (
                Z[:, half::2] / (np.linalg.norm(Z[:, half::2], axis=1, keepdims=True) + 1e-300)
                for Z in (mapped, target)
            )
            for piece in np.array_split(np.arange(len(part)), -(-len(part) // 100)):
                columns = near[part[piece]] - low
                first, last = columns.min(), columns.max() + 1
                out[half, part[piece]] = np.take_along_axis(a[piece] @ b[first:last].T, columns - first, axis=1)
    out[:, beyond] = 0.0
    return out / np.maximum(out[:, ~beyond].std(axis=1), 1e-12)[:, None, None]


def _best_path(table: np.ndarray) -> np.ndarray:
    """Return the columns (n,) with the largest sum over rows, less ``_CHANGE`` for each change, also at the start."""
    n, count = table.shape
    total = np.full(count, -_CHANGE)
    total[count // 2] = 0.0
    came_from = np.empty((n, count), np.intp)
    for i in range(n):
        top = int(np.argmax(total))
        stays = total >= total[top] - _CHANGE
        came_from[i] = np.where(stays, np.arange(count), top)
        total = np.where(stays, total, total[top] - _CHANGE) + table[i]
    path = np.empty(n, np.intp)
    column = int(np.argmax(total))
    for i in reversed(range(n)):
        path[i] = column
        column = int(came_from[i, column])
    return path


def _chance(table: np.ndarray, path: np.ndarray, window: int, X: np.ndarray) -> float:
    """Return the probability that a path's rows have so much more evidence than without a lag, by a t-test."""
    moved = np.flatnonzero(path)
    gain = table[moved, path[moved] + window] - table[moved, window]
    if len(gain) < max(10, len(path) / 20) or gain.mean() <= 0:
        return 1.0
    # What differs between two items is no evidence about files of copies of them.
    spectrum = np.linalg.svd(X[moved], compute_uv=False) ** 2
    if spectrum.sum() ** 2 < _FEWEST_DIRECTIONS * (spectrum**2).sum():
        return 1.0
    # Neighbors in a file of near-copies gain alike: there are fewer items than rows (a first-order process).
    centered = gain - gain.mean()
    alike = float(np.clip(centered[1:] @ centered[:-1] / max(centered @ centered, 1e-300), 0, 0.98))
    items = max(len(gain) * (1 - alike) / (1 + alike), 3.0)
    # With t = √df · tan φ, Student's density is that of cos φ to the power df − 1: no need to import SciPy for it.
    angle = np.arctan2(gain.mean() * np.sqrt(items), max(gain.std(), 1e-12) * np.sqrt(items - 1))
    angles = np.linspace(-np.pi / 2, np.pi / 2, 20001)
    density = np.cos(angles) ** (items - 2)
    return float(density[angles >= angle].sum() / density.sum())
