"""Find rows of two files that belong to other rows than their partners: a file shifted by some rows, rows lost or
inserted on one side, blocks exchanged, parts reversed, partners exchanged one by one.

If the order of the rows means something (sorted names, photos by class), rows out of step resemble each other, and the
test of ``pairing`` finds a link. The right link is stronger than those to a row's neighbors.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from congruence.linalg.procrustes import half_svd, rotation_from_svd

#: Lags that are always tried, and numbers of further lags, and of places about which a part may be reversed.
_WINDOW, _FURTHER = 50, 12

#: Rows compared, in this many stretches of the file if it has more.
_ROWS, _STRETCHES = 2000, 8

#: Largest number of pairings that are tried from one start, each by maps fitted on the last.
_SEARCH = 8

#: Coordinates by which lags are chosen to be tried.
_WIDTH = 48

#: Ridge of the whitening, in mean eigenvalues: leading directions get about the same weight, and noise stays small.
_RIDGE = 3.0

#: What a change of the lag costs, and what an exchange may cost each row, in standard deviations of the cosines of rows
#: that do not belong together: less where rows that resemble each other were exchanged.
_CHANGE, _PRICES = 12.0, (0.5, 1.0, 2.0, 3.0)

#: Share of rows nearest to their partners from which a map of the given pairs shows by itself what is out of step.
_IN_STEP = 0.5

#: What each row of a stretch costs where further lags are looked for.
_RUN = 0.3

#: Probability that another pairing looks better than the given one by chance, on coordinates by which it was not
#: chosen: of one that is told, and of a sequence of lags that makes the given one doubtful.
_LEVEL, _DOUBT = 1e-3, 0.02

#: Directions (as the participation ratio counts them) over which rows out of step must spread.
_FEWEST_DIRECTIONS = 5

#: Least share of exchanges that maps fitted on them find again.
_KEPT = 0.15

_FOLDS = 5


class Step(NamedTuple):
    """From ``row`` of X on, row + t belongs to row ``partner`` + ``step`` · t of Y; ``step`` is 1 or, reversed, −1."""

    row: int
    partner: int
    step: int


def sample_rows(n: int, evidence: np.ndarray | None = None) -> np.ndarray:
    """Return the rows of a file that are compared: all, or stretches spread evenly over it. With the ``evidence`` for
    each pair (n,), one is where this is far less than elsewhere, so that no run of wrong pairs is between them.
    """
    if n <= _ROWS:
        return np.arange(n)
    length = _ROWS // _STRETCHES
    starts = np.linspace(0, n - length, _STRETCHES).astype(int)
    if evidence is not None:
        total = np.cumsum(evidence)
        run = total[length:] - total[:-length]
        low, middle = np.quantile(run, (0.25, 0.5))
        worst = int(np.argmin(run)) + 1
        if run[worst - 1] < middle - 6 * (middle - low):  # four standard deviations
            starts[np.argmin(np.abs(starts - worst))] = worst
    return np.unique(starts[:, None] + np.arange(length))


def find_partners(
    X: np.ndarray, Y: np.ndarray, items: np.ndarray, rows: np.ndarray
) -> tuple[list[Step], np.ndarray, bool]:
    """Return the right pairing of centered ``rows`` of two files, X (n, d) and Y (n, e), if it is another than the
    given one.

    The result is a list of steps if the files are out of step, or the pairs (m, 2) of rows whose partners were
    exchanged, or neither; and whether nothing speaks against the given pairing: rows resemble their partners more than
    those of their neighbors in the file, and as much as by any lags. ``items`` (n,) are labels, equal for near-copies.

    Notes
    -----
    Rotations are fitted on the given pairs and, unless most held-out rows are nearest to their partners by these, on
    those of the lag or the reversal at which the sides are most alike, and, unless the map of the given pairs agrees
    with them, on each half of the file.
    The best sequence of lags and reversals (by dynamic programming), and else the best exchange of partners (by
    assignment), are chosen by every second principal coordinate of Y, over held-out rows. They must be better than the
    given pairing by the other coordinates, whose noise is uncorrelated with these.
    """
    A, B = whiten(X)[0], whiten(Y)[0]
    own = np.arange(len(rows))
    given = _evidence(A, B, own)
    told = float(np.mean(given.sum(axis=0).argmax(axis=1) == own)) >= _IN_STEP
    states, starts = _likely(A, B, given_only=told)
    best, found, doubt, steady = -np.inf, None, 1.0, False
    for k, start in enumerate([*starts, *np.array_split(own, 2)]):
        if k < len(starts):
            path = np.tile(start, (len(rows), 1))
        elif steady or found is not None:
            break
        else:  # a map of all pairs fits those out of step too; a half of the file may have none
            table = _evidence(A, B, np.where((own >= start[0]) & (own <= start[-1]), own, -1))
            path = _best_path(table[0], np.concatenate([states, _runs(table[0])]))
        for step in range(_SEARCH):
            partner = _partners(path)
            table = given if (partner == own).all() else (given + _evidence(A, B, partner)) / 2
            value = np.where(partner < 0, 0.0, table[0][own, partner]).sum() - _CHANGE * len(_begins(path))
            chance = _chance(table[1], partner, A, items)
            doubt = min(doubt, chance)
            if value > best and chance < _LEVEL and _holds(A, B, partner, items):
                best, found = value, path
            more = _runs(table[0]) if step == 0 else np.empty((0, 2), int)
            last, path = path, _best_path(table[0], np.concatenate([states, more]))
            if (path == last).all():
                steady |= k == step == 0
                break
    if found is not None:
        return _steps(found, rows), np.empty((0, 2), int), False
    moved = _exchanges(A, B, given, items, rows)
    return [], moved, doubt > _DOUBT and _nearest(given, items)


def whiten(Z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return principal coordinates of about the same variance, the leading ones first, the squared norm of each, and
    the matrix that gives them of centered rows.
    """
    Z = Z - Z.mean(axis=0)
    values, vectors = np.linalg.eigh((Z.T @ Z).astype(np.float64))
    values = np.maximum(values[::-1], 0)
    shrunk = values + (_RIDGE * values.sum() / min(len(Z) - 1, Z.shape[1]) or 1.0)
    into = (vectors[:, ::-1] / np.sqrt(shrunk)).astype(Z.dtype)
    return Z @ into, (values / shrunk).astype(Z.dtype), into


def _likely(A: np.ndarray, B: np.ndarray, *, given_only: bool) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the states (k, 2) that are tried, and those from which the search starts: ``given_only`` (0, 1).

    A state (c, s) says that row i belongs to row c + s · i. The first is (0, 1), the given pairing. The others are
    small lags and those at which the squared cross-covariance is largest, compared with what chance gives.
    """
    m = len(A)
    window = min(_WINDOW, m // 4)
    lags = [0, *(lag for k in range(1, window + 1) for lag in (k, -k))]
    states, starts = [(lag, 1) for lag in lags], [(0, 1)]
    x, y = A[:, :_WIDTH], B[:, : 2 * _WIDTH : 2]
    for found in () if given_only else (_peaks(_likeness(x, y), 1), _peaks(_likeness(x, y[::-1]), -1)):
        states += [state for state in found if state not in states]
        starts += [state for state in found[:1] if state not in starts]
    return np.array(states), [np.array(state) for state in starts]


def _runs(table: np.ndarray) -> np.ndarray:
    """Return the states (k, 2) with the largest sum of evidence over any stretch of rows, less ``_RUN`` a row."""
    m = len(table)
    found = []
    for step in (1, -1):
        # Diagonals start a new run where the last one's sum is below 0 (Kadane); those that leave the table can be 0.
        run, best = np.zeros(2 * m - 1, np.float32), np.zeros(2 * m - 1, np.float32)
        best[m - 1] = -np.inf
        for i, row in enumerate(table[:, ::step]):
            here = slice(m - 1 - i, 2 * m - 1 - i)
            run[here] = np.maximum(run[here], 0) + row - np.float32(_RUN)
            np.maximum(best[here], run[here], out=best[here])
        found.append(_peaks(best, step))
    return np.array([state for states in found for state in states]).reshape(-1, 2)


def _peaks(height: np.ndarray, step: int) -> list[tuple[int, int]]:
    """Return the states of the highest peaks over lags −(m − 1) to m − 1 of Y, or of Y reversed."""
    m = (len(height) + 1) // 2
    peak = np.flatnonzero((height[1:-1] >= height[:-2]) & (height[1:-1] >= height[2:])) + 1
    peak = peak[np.argsort(-height[peak])][:_FURTHER]
    # Position k is lag k − (m − 1) of y; of the reversed y it is row m − 1 − (i + lag).
    return [(int(k) - (m - 1) if step == 1 else 2 * (m - 1) - int(k), step) for k in peak]


def _likeness(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return ‖Σ_i x_i y_{i+k}ᵀ‖² for all lags k from −(m − 1) to m − 1, as a multiple of what unrelated rows give; 0
    where few rows overlap.
    """
    m = len(x)
    size = 1 << (2 * m - 1).bit_length()
    columns = [np.column_stack([side, (side**2).sum(axis=1)]) for side in (x, y)]
    fx, fy = (np.fft.rfft(side, size, axis=0) for side in columns)
    squares = np.zeros(size)
    for a in range(x.shape[1]):
        squares += (np.fft.irfft(fx[:, a : a + 1].conj() * fy[:, :-1], size, axis=0) ** 2).sum(axis=1)
    chance = np.fft.irfft(fx[:, -1].conj() * fy[:, -1], size)
    lags = np.arange(-(m - 1), m)
    enough = m - np.abs(lags) >= max(20, m // 10)
    return np.where(enough, squares[lags] / np.maximum(chance[lags], 1e-30), 0.0)


def _evidence(A: np.ndarray, B: np.ndarray, partner: np.ndarray, other: np.ndarray | None = None) -> np.ndarray:
    """Return standardized cosines of held-out mapped rows with all rows of B, by even and by odd coordinates, shape
    (2, m, m); ``partner`` (m,) are the rows of B on which the maps are fitted, −1 for none. With another pairing,
    partners of held-out rows by either are held out as well.
    """
    m = len(A)
    out = np.empty((2, m, m), np.float32)
    inside = np.flatnonzero(partner >= 0)
    for part in np.array_split(np.arange(m), _FOLDS):
        train = inside[(inside < part[0]) | (inside > part[-1])]
        if other is not None:
            train = train[~np.isin(partner[train], np.concatenate([partner[part], other[part]]))]
        if len(train) < 2:
            out[:, part] = 0.0
            continue
        x, y = A[train], B[partner[train]]
        rotation = rotation_from_svd(half_svd((x - x.mean(axis=0)).T @ (y - y.mean(axis=0)), max_rank=len(train) - 1))
        mapped, target = (A[part] - x.mean(axis=0)) @ rotation, B - y.mean(axis=0)
        for half in range(2):
            a, b = (
                (Z[:, half::2] / (np.linalg.norm(Z[:, half::2], axis=1, keepdims=True) + 1e-30)).astype(np.float32)
                for Z in (mapped, target)
            )
            np.matmul(a, b.T, out=out[half, part[0] : part[-1] + 1])
    for half in range(2):
        flat = out[half].ravel()
        variance = float(flat @ flat) / flat.size - float(flat.mean()) ** 2
        out[half] /= np.float32(max(variance, 1e-24) ** 0.5)
    return out


def _holds(A: np.ndarray, B: np.ndarray, partner: np.ndarray, items: np.ndarray, *, exchanged: bool = False) -> bool:
    """Return whether another pairing is better also by maps that have seen neither partner: where items come again, a
    map would know the other's noise.
    """
    own = np.arange(len(A))
    table = (_evidence(A, B, own, partner) + _evidence(A, B, partner, own)) / 2
    return _chance(table[1], partner, A, items, exchanged=exchanged) < _LEVEL


def _nearest(table: np.ndarray, items: np.ndarray) -> bool:
    """Return whether rows resemble their partners more than those of the rows before and after them. True if these are
    copies.
    """
    m = len(items)
    own = np.arange(m)
    near: np.ndarray = own[:, None] + np.array([-2, -1, 1, 2])
    near = np.where((near >= 0) & (near < m), near, own[:, None])
    inside = items[near] != items[:, None]
    rows = np.flatnonzero(inside.any(axis=1))
    if len(rows) < 10:
        return True
    total = table.sum(axis=0)
    beside = np.take_along_axis(total, near, axis=1)[rows].mean(axis=1, where=inside[rows])
    lead = total[rows, rows] - beside
    return _tail(lead, _independent(lead)) < 10 * _LEVEL


def _partners(path: np.ndarray) -> np.ndarray:
    """Return the row that each row belongs to by states (m, 2), −1 beyond the ends of the file."""
    partner = path[:, 0] + path[:, 1] * np.arange(len(path))
    return np.where((partner >= 0) & (partner < len(path)), partner, -1)


def _begins(path: np.ndarray) -> np.ndarray:
    """Return the rows at which the state changes, from that of the given pairing."""
    return np.flatnonzero((np.diff(path, axis=0, prepend=[[0, 1]]) != 0).any(axis=1))


def _best_path(table: np.ndarray, states: np.ndarray) -> np.ndarray:
    """Return the states (m, 2) with the largest sum over rows, less ``_CHANGE`` for each change, also at the start."""
    m, count = len(table), len(states)
    columns = states[:, 0] + states[:, 1] * np.arange(m)[:, None]
    inside = (columns >= 0) & (columns < m)
    gains = np.where(inside, np.take_along_axis(table, np.clip(columns, 0, m - 1), axis=1), 0.0)
    total = np.full(count, -_CHANGE)
    total[0] = 0.0
    stays, top = np.empty((m, count), bool), np.empty(m, np.intp)
    for i in range(m):
        top[i] = best = total.argmax()
        least = total[best] - _CHANGE
        np.greater_equal(total, least, out=stays[i])
        np.maximum(total, least, out=total)
        total += gains[i]
    path = np.empty(m, np.intp)
    state = int(np.argmax(total))
    for i in reversed(range(m)):
        path[i] = state
        state = state if stays[i, state] else int(top[i])
    return np.asarray(states[path])


def _steps(path: np.ndarray, rows: np.ndarray) -> list[Step]:
    """Return the steps of a path in rows of the file, without those at its beginning that are as given."""
    partner, found = _partners(path), []
    for some in np.split(np.arange(len(path)), _begins(path))[1:]:
        first, step = rows[some[0]], int(path[some[0], 1])
        some = some[partner[some] >= 0]
        if len(some):
            # Between stretches of a long file a lag in rows compared is not that in rows of the file: most rows decide.
            offsets, counts = np.unique(rows[partner[some]] - step * rows[some], return_counts=True)
            found.append(Step(int(first), int(offsets[np.argmax(counts)] + step * first), step))
    return found


def _exchanges(A: np.ndarray, B: np.ndarray, given: np.ndarray, items: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the pairs (m, 2) of rows whose partners were exchanged, in rows of the file; none if that is not sure."""
    own = np.arange(len(A))
    best, found, moved = _LEVEL / len(_PRICES), 0.0, own
    for price in _PRICES:
        partner = assign(given[0], price)
        if (partner == own).all():
            break  # a higher price moves nothing either
        chance = _chance(given[1], partner, A, items, exchanged=True)
        if chance < best:
            best, found, moved = chance, price, partner
    if not found:
        return np.empty((0, 2), int)
    # Maps of few pairs err alike on rows of one class, by even and by odd coordinates. Fitted on such exchanges they
    # find others.
    table = (given + _evidence(A, B, moved)) / 2
    partner = assign(table[0], found)
    kept = np.count_nonzero((partner == moved) & (moved != own))
    if kept < _KEPT * np.count_nonzero(moved != own) or not _holds(A, B, partner, items, exchanged=True):
        return np.empty((0, 2), int)
    table = (given + _evidence(A, B, partner)) / 2
    partner = assign((table[0] + table[1]) / np.sqrt(2), found)
    rows_moved = np.flatnonzero((partner != own) & (items != items[partner]))
    return np.column_stack([rows[rows_moved], rows[partner[rows_moved]]])


def assign(table: np.ndarray, price: float, least: float = 0.0) -> np.ndarray:
    """Return the partners (m,) with the largest sum over rows, less ``price`` for each other than the given one; these
    if no assignment can gain ``least``.
    """
    own = np.arange(len(table))
    gain = table - np.diag(table)[:, None] - price
    gain[own, own] = 0.0
    if gain.max(axis=1).sum() <= least:  # no assignment gains more than the sum of the best of each row
        return own
    from scipy.optimize import linear_sum_assignment  # its import takes longer than the rest of the check

    return np.asarray(linear_sum_assignment(gain, maximize=True)[1])


def _chance(
    table: np.ndarray, partner: np.ndarray, X: np.ndarray, labels: np.ndarray, *, exchanged: bool = False
) -> float:
    """Return the probability that rows have so much more evidence with other partners than with the given ones, by a
    t-test.
    """
    moved = np.flatnonzero((partner >= 0) & (labels != labels[partner]))
    gain = table[moved, partner[moved]] - table[moved, moved]
    if len(gain) < (8 if exchanged else max(10, len(partner) / 20)) or gain.mean() <= 0:
        return 1.0
    # What differs between two items is no evidence about files of copies of them.
    spectrum = np.linalg.svd(X[moved] - X[moved].mean(axis=0), compute_uv=False) ** 2
    if spectrum.sum() ** 2 < _FEWEST_DIRECTIONS * (spectrum**2).sum():
        return 1.0
    # Two rows that exchange their partners are one event.
    events = len(gain) / 2 if exchanged else _independent(gain)
    return _tail(gain, min(events, len(np.unique(labels[moved]))))


def _independent(gain: np.ndarray) -> float:
    """Return the effective number of values in order: neighbors in a file are alike (a first-order process)."""
    centered = gain - gain.mean()
    alike = float(np.clip(centered[1:] @ centered[:-1] / max(centered @ centered, 1e-30), 0, 0.98))
    return len(gain) * (1 - alike) / (1 + alike)


def _tail(gain: np.ndarray, events: float) -> float:
    """Return the p-value of a mean above 0, by a t-test."""
    events = max(events, 3.0)
    # With t = √df · tan φ, Student's density is that of cos φ to the power df − 1: no need to import SciPy for it.
    angle = np.arctan2(gain.mean() * np.sqrt(events), max(gain.std(), 1e-12) * np.sqrt(events - 1))
    angles = np.linspace(-np.pi / 2, np.pi / 2, 20001)
    density = np.cos(angles) ** (events - 2)
    return float(density[angles >= angle].sum() / density.sum())
