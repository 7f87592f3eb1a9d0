"""Checks of shape, dtype, finiteness and pairing.

Some messages contain a phrase that scikit-learn's ``check_estimator`` looks for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar

import numpy as np

from congruence._utils.arrays import blocks, is_tensor, namespace, to_numpy
from congruence._utils.columns import refuse_sparse, to_rows
from congruence._utils.display import short
from congruence._utils.typing import Array, ArrayT, Ids, RowsLike
from congruence.errors import (
    DtypeError,
    InputError,
    NotFiniteError,
    ParameterError,
    ShapeError,
    TooFewAnchorsError,
    ZeroRowError,
)

_T = TypeVar("_T")


def name_rows(rows: np.ndarray, ids: Ids | RowNames | None = None, limit: int = 5) -> str:
    """Return a short list of row numbers, shape (k,), or of the ids of these rows: ``"'cat', 'dog' and 3 more"``."""
    rows = np.asarray(rows)
    shown = [short(repr(str(ids[i]))) if ids is not None else str(int(i)) for i in rows[:limit]]
    return ", ".join(shown) + (f" and {len(rows) - limit} more" if len(rows) > limit else "")


class RowNames:
    """Names of a block's rows for messages: ids, or row numbers in the file, from a first one or given for each."""

    def __init__(self, ids: Ids | None, numbers: int | Sequence[int] | np.ndarray) -> None:
        self._ids, self._numbers = ids, numbers

    def __getitem__(self, row: int) -> str:
        if self._ids is not None:
            return str(self._ids[int(row)])
        return f"row {self._numbers + int(row) if isinstance(self._numbers, int) else self._numbers[row]}"


def find_bad_rows(X: np.ndarray, *, allow_zero_rows: bool = False) -> dict[type[InputError], np.ndarray]:
    """Return in one pass the rows, shape (n, d), with NaN or infinity, and those of zeros (unless d is 1), by error."""
    n, d = X.shape
    allow_zero_rows = allow_zero_rows or d == 1  # in one dimension zero is an ordinary value
    bad, zero = [np.empty(0, int)], [np.empty(0, int)]
    for part in blocks(n, d * max(X.dtype.itemsize, 4), budget=4 * 2**20):
        block = X[part]
        if block.dtype == np.float16:
            block = block.astype(np.float32)
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            squared = np.einsum("ij,ij->i", block, block)
        # The square of a huge but finite row overflows, and that of a tiny one vanishes: check such rows exactly.
        suspects = np.flatnonzero(~np.isfinite(squared))
        bad.append(suspects[~np.isfinite(block[suspects]).all(axis=1)] + part.start)
        if not allow_zero_rows:
            null = np.flatnonzero(squared == 0)
            zero.append(null[~block[null].any(axis=1)] + part.start)
    return {NotFiniteError: np.concatenate(bad), ZeroRowError: np.concatenate(zero)}


def bad_rows_error(kind: type[InputError], count: int, n: int, name: str, rows: str) -> InputError:
    """Return the error for ``count`` of ``n`` rows, which ``rows`` names."""
    if kind is NotFiniteError:
        problem = f"Got NaN or inf in {count} of {n} rows of {name} ({rows}); expected finite numbers."
        return NotFiniteError(problem, "Remove or re-encode these items.")
    return ZeroRowError(
        f"Got all zeros in {count} of {n} rows of {name} ({rows}); expected encodings; a zero row usually means that "
        "encoding the item failed.",
        ("Re-encode or drop these items.", "Pass `allow_zero_rows=True` where the vectors are read."),
    )


def check_rows(X: np.ndarray, name: str, *, ids: Ids | RowNames | None = None, allow_zero_rows: bool = False) -> None:
    """Check that no row, shape (n, d), contains NaN or infinity or is all zeros (unless d is 1)."""
    for kind, rows in find_bad_rows(X, allow_zero_rows=allow_zero_rows).items():
        if rows.size:
            words = f"{'ids' if ids is not None else 'rows'} {name_rows(rows, ids)}"
            raise bad_rows_error(kind, len(rows), len(X), name, words)


def as_matrix(
    X: RowsLike | None,
    name: str,
    *,
    ids: Ids | None = None,
    min_rows: int = 1,
    allow_zero_rows: bool = False,
    numeric_objects: bool = False,
    copy_half: bool = True,
) -> np.ndarray:
    """Return what ``to_rows`` accepts as a finite real matrix, shape (n, d), float32 or float64.

    float16 becomes float32 (unless ``copy_half`` is False), integers and booleans float64, whose rows may be zero.
    ``numeric_objects`` accepts an object array in which every entry is a number, as scikit-learn requires.
    """
    A = to_rows(X, name)
    if A.dtype == object and numeric_objects:
        try:
            A = A.astype(np.float64)
        except (TypeError, ValueError) as error:
            problem = f"Got objects that are not numbers in {name}; expected float16, float32 or float64 (an entry or "
            problem += "argument must be a string or a number that reads as one, here a real number)."
            raise DtypeError(problem, "Build one numeric array.") from error
    if A.dtype.kind == "c":
        problem = f"Got complex numbers for {name}. Complex data not supported; expected real vectors."
        raise DtypeError(problem, "Pass the real part or the modulus.")
    if A.dtype.kind not in "fiub":
        kinds = {
            "O": ("an object array", "Stack the vectors into one numeric array (ragged rows have different widths)."),
            **dict.fromkeys("USV", (f"text or bytes ({A.dtype})", "Pass the numbers here, and the ids as `ids=…`.")),
        }
        got, fix = kinds.get(A.dtype.kind, (f"dtype {A.dtype}", f"Call {name}.astype(np.float32)."))
        raise DtypeError(f"Got {got} for {name}; expected float16, float32 or float64.", fix)
    if A.ndim != 2:
        problem = f"Got {name} with {A.ndim} axes, shape {A.shape}; expected 2 axes (items, dimensions)."
        raise ShapeError(problem, f"Reshape your data: pass {name}.reshape(1, -1) for a single item.")
    n, d = A.shape
    if d == 0:
        problem = f"Got {name} with 0 feature(s) (shape=({n}, 0)) while a minimum of 1 is required."
        raise ShapeError(problem, "Expected vectors with at least one dimension. Read another key or column.")
    if n == 0:
        fix = "Pass more rows, or read another key or column."
        raise ShapeError(f"Got {name} with 0 rows and {d} columns; expected at least {min_rows}.", fix)
    if n < min_rows:
        problem = f"Got {n} sample{'' if n == 1 else 's'} of {name}; expected at least {min_rows}."
        raise TooFewAnchorsError(problem, "Pass more rows.")
    if A.dtype.kind != "f":
        A = A.astype(np.float64)
        allow_zero_rows = True  # encoders return floats, so a zero row of integers is not a failed encoding
    elif A.dtype == np.float16 and copy_half:
        A = A.astype(np.float32)
    elif A.dtype.itemsize > 8 or not A.dtype.isnative:
        A = A.astype(np.float64 if A.dtype.itemsize >= 8 else A.dtype.newbyteorder("="))
    check_rows(A, name, ids=ids, allow_zero_rows=allow_zero_rows)
    return A


def as_native(X: RowsLike, name: str, *, min_rows: int = 1) -> Array:
    """Return ``X``, (n, d), checked as in ``as_matrix``, zero rows allowed; a tensor keeps its device and graph."""
    refuse_sparse(X, name)
    if is_tensor(X) and X.ndim == 2 and X.shape[0] >= max(min_rows, 1) and X.shape[1] > 0:
        xp, A = namespace(X), X.detach()
        if xp.isdtype(A.dtype, ("bool", "integral", "real floating")):
            if math.isfinite(float(xp.sum(A))):  # takes a fortieth of the time of looking at each number
                return X
            # The result is fetched once, at the end, so that a GPU does not wait for the host in between.
            parts = blocks(A.shape[0], 8 * A.shape[1])
            if bool(xp.all(xp.stack([xp.all(xp.isfinite(A[part, :])) for part in parts]))):
                return X
    # A tensor that gets here is invalid, or of a type that only the NumPy checks cover.
    checked = as_matrix(X, name, min_rows=min_rows, allow_zero_rows=True, copy_half=False)
    return X if is_tensor(X) else checked


def check_scale(X: Array, name: str, *, squares: bool = True) -> None:
    """Check that sums of the entries, or of their ``squares``, neither overflow nor underflow; of float32, by some."""
    bits = 8 * X.dtype.itemsize
    if bits < 64 and not squares:
        return
    top = _largest(X[:: max(1, len(X) // 1000)] if bits < 64 else X)
    most = _largest_squared(bits) if squares else 1e300
    if top and not 1 / most <= top <= most:
        what = f"{'overflow' if top > most else 'vanish'} in sums{' of squares' if squares else ''} of float{bits}"
        problem = f"Got {name} whose largest number is {top:.1e}; expected one between {1 / most:.0e} and {most:.0e}"
        raise NotFiniteError(f"{problem}, since others {what}.", f"Divide {name} by {top:.0e}.")


def _largest(X: Array) -> float:
    """Return the largest absolute value."""
    X = X.detach() if is_tensor(X) else X
    return max(float(X.max()), -float(X.min()))


def _largest_squared(bits: int) -> float:
    """Return the number up to which products of two sides' squares can be summed."""
    return 1e15 if bits < 64 else 1e70


def in_range(X: ArrayT) -> ArrayT:
    """Return X (n, d) times a power of two, if sums of products of squares would overflow or vanish without it.

    No digit is lost. For what does not depend on the scale of either side.
    """
    if not namespace(X).isdtype(X.dtype, "real floating"):
        return X
    top, most = _largest(X), _largest_squared(8 * X.dtype.itemsize)
    if not top or 1 / most <= top <= most:
        return X
    power = -math.frexp(top)[1]
    return X * 2.0 ** (power // 2) * 2.0 ** (power - power // 2)  # one factor could overflow or vanish itself


def refuse_overflow(Z: ArrayT, X: Array, name: str) -> ArrayT:
    """Return mapped rows ``Z``, shape (n, d_out), after checking that those of ``X``, (n, d), did not overflow."""
    xp, A = (namespace(Z), Z.detach()) if is_tensor(Z) else (np, Z)
    for part in blocks(A.shape[0], 8 * A.shape[1]):
        good = xp.isfinite(A[part, :])
        if not bool(good.all()):
            overflowed = np.flatnonzero(~to_numpy(good).all(axis=1)) + part.start
            problem = f"Got {len(overflowed)} rows of {name} that overflow {X.dtype} when they are mapped (rows "
            fix = f"Divide {name} by its largest number, or pass it as float64."
            raise NotFiniteError(f"{problem}{name_rows(overflowed)}); expected finite results.", fix)
    return Z


def check_same_rows(n_source: int, n_target: int, source: str = "the first", target: str = "the second") -> None:
    """Check that two arrays paired by row have the same number of rows."""
    if n_source != n_target:
        raise ShapeError(
            f"Got {n_source} rows of {source} and {n_target} rows of {target}; expected the same number, "
            "paired by row.",
            ("Pass `ids=…` for both, to pair rows by id.", "Pass `congruence.Embeddings` with ids for both."),
        )


def check_same_width(A: np.ndarray, B: np.ndarray) -> None:
    """Check that two matrices, shapes (n, d) and (m, d), have the same width, as vectors of one space do."""
    if A.shape[1] != B.shape[1]:
        problem = f"Got widths {A.shape[1]} and {B.shape[1]}; expected vectors of one space."
        raise ShapeError(problem, "Map one side into the other space first.")


def check_width(d: int, expected: int, owner: str, other: int | None = None, remedy: str = "Apply the inverse") -> None:
    """Check that vectors have the width that a fitted map expects, and not that of its other side."""
    if d != expected:
        hint = "Use the model the map was fitted on"
        if other is not None and d == other:
            hint = f"{remedy}: these look like vectors of the map's other side"
        raise ShapeError(f"X has {d} features, but {owner} is expecting {expected} features as input. {hint}.")


def check_choice(value: _T, choices: Iterable[_T], name: str) -> _T:
    """Return ``value`` if it is one of ``choices``."""
    choices = list(choices)
    if value not in choices:
        near = get_close_matches(str(value), [one for one in choices if isinstance(one, str)], 1)
        fix = f"Pass `{name}={near[0]!r}`." if near else ""
        raise ParameterError(argument=name, got=value, expected=f"one of {', '.join(map(repr, choices))}", fix=fix)
    return value


def check_positive(value: _T, name: str, *, zero: bool = False, integer: bool = False) -> _T:
    """Return ``value`` if it is a positive finite number (with ``zero``, also 0; with ``integer``, an integer)."""
    kind = (int, np.integer) if integer else (int, float, np.integer, np.floating)
    number: Any = value  # used as a number only after the type check
    good = isinstance(value, kind) and not isinstance(value, bool) and np.isfinite(number)
    if not good or number < 0 or (number == 0 and not zero):
        expected = f"{'an integer' if integer else 'a number'} {'≥' if zero else '>'} 0"
        raise ParameterError(argument=name, got=value, expected=expected)
    return value


def check_seed(value: int, name: str = "random_state") -> int:
    """Return ``value`` if it is a valid seed for NumPy and torch: an integer from 0 to 2⁶³ − 1."""
    check_positive(value, name, zero=True, integer=True)
    if value >= 2**63:
        raise ParameterError(argument=name, got=value, expected="an integer below 2**63")
    return value
