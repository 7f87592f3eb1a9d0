"""Ids of items: which values are allowed, when two are equal, and how ids of two sides are matched.

An id is a string or an integer. Two ids are equal if their texts are equal, where the text of an integer is its decimal
digits: 7 in an integer column equals ``"7"`` in a ``.csv``, but not ``"07"``. If both sides have integers, they are
compared as integers, with the same result.
"""

from __future__ import annotations

import datetime
import os
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from congruence._utils.arrays import blocks, is_tensor, to_numpy
from congruence._utils.display import short
from congruence._utils.typing import Ids
from congruence._utils.validation import name_rows
from congruence.errors import IdError

if TYPE_CHECKING:
    import pyarrow as pa

#: Largest size of an id in UTF-8 bytes. Names of items are far shorter; anything longer is a text or an image from the
#: wrong column.
MAX_ID_BYTES = 65_536

_Value = TypeVar("_Value")

#: Other types of ids, which are converted to text.
_NAMES = (uuid.UUID, os.PathLike, datetime.date, datetime.time, np.datetime64)


def as_ids(ids: Ids, n: int | None = None, name: str = "ids") -> np.ndarray:
    """Return unique ids as an array of integers or of str objects, which shares no memory with ``ids``."""
    array = to_ids(ids, name)
    if n is not None and len(array) != n:
        raise IdError(f"Got {len(array)} {name} for {n} rows; expected one id per row.", "Pass as many ids as rows.")
    ordered = None if array.dtype == object else np.sort(array)
    if len(set(array)) < len(array) if ordered is None else (ordered[1:] == ordered[:-1]).any():
        repeated = [value for value, count in Counter(array.tolist()).items() if count > 1]
        problem = f"Got {len(repeated)} duplicate {name} ({name_rows(np.arange(len(repeated)), repeated)})."
        raise IdError(problem, "Remove the duplicates, or give each row its own id.")
    return array


def to_ids(ids: Ids, name: str = "ids") -> np.ndarray:
    """Return ids like ``as_ids``, without checking that they are unique."""
    values = _values(ids, name)
    if isinstance(values, np.ndarray):
        return values
    kinds = set(map(type, values))
    if kinds == {int}:
        return _whole(values)
    if not kinds <= {str}:
        refuse_missing([row for row, value in enumerate(values) if _is_missing(value)], name)
        values = [_plain(value, row, name) for row, value in enumerate(values)]
        if values and all(type(value) is int for value in values):
            return _whole(values)
        values = [str(value) for value in values]
    _check_texts(values, name)
    return _objects(values)


def id_texts(ids: Iterable[object]) -> np.ndarray:
    """Return the texts of ids, shape (n,), by which ids of different types are compared."""
    if isinstance(ids, np.ndarray) and ids.dtype == object:
        return ids
    return _objects(list(map(str, ids.tolist() if isinstance(ids, np.ndarray) else ids)))


def id_rows(ids: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the row of each wanted id (m,) among unique ids (n,), or −1 if it is not found."""
    if not len(ids) or not len(wanted):
        return np.full(len(wanted), -1)
    if ids.dtype != object and ids.dtype == wanted.dtype:
        order = np.argsort(ids, kind="stable")
        rows = order[np.minimum(np.searchsorted(ids, wanted, sorter=order), len(ids) - 1)]
        return np.where(ids[rows] == wanted, rows, -1)
    import pyarrow.compute as pc  # imported late to keep `import congruence` fast

    rows = pc.index_in(_arrow(wanted), value_set=_arrow(ids))
    return rows.fill_null(-1).to_numpy().astype(np.int64)


def is_in(ids: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return for each id whether it is among others, shape (n,); both may contain duplicates."""
    if ids.dtype != object and ids.dtype == others.dtype:
        return np.isin(ids, others)
    import pyarrow.compute as pc

    return pc.is_in(_arrow(ids), value_set=_arrow(others)).to_numpy(zero_copy_only=False)


def same_ids(ids: np.ndarray, others: np.ndarray) -> bool:
    """Return whether two sides have the same ids in the same order."""
    if len(ids) != len(others):
        return False
    if ids.dtype != object and ids.dtype == others.dtype:
        return bool((ids == others).all())
    texts, other_texts = id_texts(ids), id_texts(others)
    # In blocks, since different orders of the same items mostly differ early.
    return all(texts[part].tolist() == other_texts[part].tolist() for part in blocks(len(ids), 4096))


def _arrow(ids: np.ndarray) -> pa.Array:
    """Return the texts of ids as an Arrow array, whose hash tables are faster than those of Python objects."""
    import pyarrow as pa

    return pa.array(ids).cast(pa.large_string()) if ids.dtype.kind in "iu" else pa.array(ids, pa.large_string())


def fits_fixed_width(texts: np.ndarray) -> bool:
    """Return whether NumPy's fixed-width strings store texts without loss, in not much more memory."""
    values = texts.tolist()
    sizes = [*map(len, values)]
    bounded = 4 * len(sizes) * max(sizes, default=0) <= max(2**20, 16 * sum(sizes))
    return bounded and not any(text.endswith("\0") for text in values)


def text_keys(values: Mapping[Any, _Value]) -> dict[str, _Value]:
    """Return a mapping with its keys, which are ids, replaced by their texts."""
    return {str(key): value for key, value in values.items()}


def _values(ids: Any, name: str) -> list[Any] | np.ndarray:
    """Return the caller's ids as an array of integers, or as a list of Python values that are not yet checked."""
    if hasattr(ids, "to_pylist"):  # Arrow
        if ids.null_count or not str(ids.type).startswith(("int", "uint")):
            return ids.to_pylist()
        ids = ids.to_numpy()
    if hasattr(ids, "to_list") and hasattr(ids, "to_arrow"):  # polars
        return ids.to_list()
    if isinstance(ids, (list, tuple)):
        if any(isinstance(value, (list, tuple, np.ndarray)) for value in ids):
            shape: tuple[object, ...] = (len(ids), "…")
            with suppress(ValueError):  # ragged
                shape = np.shape(ids)
            raise _nested(shape, name)
        return list(ids)
    masked = np.ma.getmaskarray(ids) if isinstance(ids, np.ma.MaskedArray) else None
    array = to_numpy(ids) if is_tensor(ids) else np.asarray(ids)
    if array.ndim != 1:
        raise _nested(array.shape, name)
    kind = array.dtype.kind
    if masked is not None:
        refuse_missing(np.flatnonzero(masked), name)
    if kind in "fmM":
        refuse_missing(np.flatnonzero(np.isnan(array) if kind == "f" else np.isnat(array)), name, floats=kind == "f")
    if not len(array) and kind == "f":
        return []  # NumPy converts an empty list to floats
    if kind in "fbcm":
        raise _not_an_id(array[0] if kind == "m" else array[0].item(), 0, name)
    if kind in "iu":
        return array.astype(np.uint64 if kind == "u" and array.dtype.itemsize == 8 else np.int64)
    return np.datetime_as_string(array).tolist() if kind == "M" else array.tolist()


def _nested(shape: tuple[object, ...], name: str) -> IdError:
    return IdError(f"Got {name} with shape {shape}; expected one id per row.", "Pass a flat list.")


def _is_missing(value: object) -> bool:
    """Return whether a value is missing: None, NaN, NaT, NA, masked, or an empty text."""
    if isinstance(value, (str, bytes)):
        return not value
    if value is None or value is np.ma.masked or type(value).__name__ in ("NAType", "MaskedConstant"):
        return True
    different = value != value  # NaN and NaT differ from themselves
    return isinstance(different, (bool, np.bool_)) and bool(different)


def refuse_missing(rows: Sequence[int] | np.ndarray, name: str, *, floats: bool = False) -> None:
    """Raise IdError if there are rows without an id; ``floats`` if they are NaN."""
    if not len(rows):
        return
    hint = " (pandas then converts whole numbers to floats)" if floats else ""
    where = f"{len(rows)} row{'s' if len(rows) > 1 else ''} ({name_rows(np.asarray(rows))}){hint}"
    raise IdError(f"Got {name} missing in {where}; expected an id in each row.", "Fill them in, or drop these rows.")


def _plain(value: object, row: int, name: str) -> str | int:
    if isinstance(value, str):
        return str(value)
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return int(value)
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError as error:
            problem = f"Got {name} in which row {row} is {short(repr(value))} ({error.reason}); expected text in UTF-8."
            raise IdError(problem, "Decode the bytes first.") from None
    if isinstance(value, _NAMES):
        return os.fsdecode(value) if isinstance(value, os.PathLike) else str(value)
    raise _not_an_id(value, row, name)


def _not_an_id(value: object, row: int, name: str) -> IdError:
    why = " (pandas converts whole numbers to floats if some are missing)" if isinstance(value, float) else ""
    problem = f"Got {name} in which row {row} is {short(repr(value))}, {type(value).__name__}{why}."
    return IdError(problem, "Convert the column to integers or to text, or pass another column.")


def _whole(values: list[Any]) -> np.ndarray:
    """Return integers as int64 or uint64 if all fit, otherwise as texts."""
    low, high = min(values), max(values)
    if low >= -(2**63) and high < 2**63:
        return np.array(values, np.int64)
    if low >= 0 and high < 2**64:
        return np.array(values, np.uint64)
    try:
        return _objects(list(map(str, values)))
    except ValueError:  # Python converts at most 4,300 digits
        bits = max(value.bit_length() for value in values)
        problem = f"Got an id of {bits:,} bits; expected whole numbers of at most 4,300 digits."
        raise IdError(problem, "Give this item another id.") from None


def _check_texts(texts: list[str], name: str) -> None:
    """Raise IdError if a text is empty, too long, or cannot be encoded as UTF-8."""
    sizes = np.fromiter(map(len, texts), np.int64, len(texts))
    refuse_missing(np.flatnonzero(sizes == 0), name)
    if (sizes > MAX_ID_BYTES // 4).any() or not "".join(texts).isascii():
        for row, text in enumerate(texts):
            try:
                size = len(text.encode("utf-8"))
            except UnicodeEncodeError:
                problem = f"Got {name} in which row {row} is {short(ascii(text))}, which contains half a character."
                raise IdError(problem, "Give this item another id.") from None
            if size > MAX_ID_BYTES:
                raise too_long(size, row, name)


def too_long(size: int, row: int, name: str) -> IdError:
    """Return the error for an id longer than ``MAX_ID_BYTES``."""
    return IdError(
        f"Got an id of {size:,} bytes in UTF-8 (row {row} of {name}); expected at most {MAX_ID_BYTES:,}.",
        "If this is not the column of ids, name the right one; otherwise give the item a shorter id.",
    )


def _objects(texts: list[str]) -> np.ndarray:
    return np.array(texts, dtype=object)
