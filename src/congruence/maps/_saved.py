"""Checks of a saved map before it is loaded.

Checksums show that a folder is unchanged since it was saved, not that it holds a valid map: whoever changes a file can recompute them.
Shapes, dtypes, finite numbers and parameters are therefore checked, and the facts against the arrays. Every check
raises ``ValueError`` or ``TypeError``, which :func:`congruence.load` converts to ``CorruptFileError``.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from congruence.embeddings import MODALITIES

if TYPE_CHECKING:
    from congruence.maps._base import Map

#: Tolerance of the checks of an isometry, per direction. When fitting, gains within 1e-5 of 1 count as 1.
TOLERANCE = 1e-4

#: Number of random rows on which rotations and maps are tested.
_TEST_ROWS = 8


def check_config(kind: type[Map], config: Mapping[str, Any]) -> None:
    """Check the parameters, facts, scores and spaces in the configuration of a saved map.

    Raises
    ------
    TypeError
        If an entry is missing or has the wrong type.
    ValueError
        If a parameter is unknown, ``n_pairs`` is negative, or ``is_isometry`` is given for a map that is not orthogonal.
    """
    for key in ("parameters", "facts", "scores", "source_space", "target_space"):
        if not isinstance(config.get(key), dict):
            raise TypeError(f"{key} is not a mapping")
    check_parameters(kind, config["parameters"])
    for side in ("source_space", "target_space"):
        space = config[side]
        for key, types in {"model": str, "revision": str, "modality": str, "dim": int, "normalized": bool}.items():
            value = space.get(key)
            if value is not None and type(value) is not types:
                raise TypeError(f"{key} of {side} has type {type(value).__name__}")
    count(config["facts"], "n_pairs", missing=0)
    if kind.kind != "orthogonal" and "is_isometry" in config["facts"]:
        raise ValueError("is_isometry is given for a map that is not orthogonal")
    _check_scores(config["scores"])


def check_parameters(kind: type, parameters: Mapping[str, object]) -> None:
    """Check the type of each parameter against that of its default: a number, a string or a boolean.

    Raises
    ------
    TypeError
        If a parameter has the wrong type.
    ValueError
        If a parameter is unknown.
    """
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(kind).parameters.items()
        if parameter.default is not inspect.Parameter.empty
    }
    if unknown := sorted(set(parameters) - set(defaults)):
        raise ValueError(f"unknown parameters: {', '.join(unknown[:3])}")
    for name, value in parameters.items():
        default = defaults[name]
        if isinstance(default, bool):
            valid = isinstance(value, bool)
        elif isinstance(default, str):  # a string or a number, such as ridge="cv" or 0.1
            valid = isinstance(value, str) or is_number(value)
        else:
            valid = value is None or is_number(value)
        if not valid:
            raise TypeError(f"parameter {name} has type {type(value).__name__}")


def _check_scores(scores: Mapping[str, object]) -> None:
    heldout = {key: value for key, value in scores.items() if key.startswith("held_out_")}
    for key, value in heldout.items():
        if value is not None and not is_number(value):
            raise TypeError(f"score {key} has type {type(value).__name__}")
    pairing = scores.get("pairing")
    if pairing is not None and not (
        isinstance(pairing, dict) and isinstance(pairing.get("suspects"), list) and "looks_paired" in pairing
    ):
        raise TypeError("scores of the pairing are not in the expected form")


def is_number(value: object) -> bool:
    """Return whether a value is a finite number that fits a float."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) <= sys.float_info.max


def number(facts: Mapping[str, Any], name: str) -> float:
    """Return a finite number from the facts.

    Raises
    ------
    TypeError
        If the fact is missing or not a finite number.
    """
    if not is_number(facts.get(name)):
        raise TypeError(f"{name} is not a finite number")
    return float(facts[name])


def count(facts: Mapping[str, object], name: str, *, missing: int | None = None, most: int = 2**63 - 1) -> int:
    """Return a whole number from the facts; ``missing`` if there is none.

    Raises
    ------
    TypeError
        If it is not a whole number.
    ValueError
        If it is negative or above ``most``.
    """
    value = facts.get(name, missing)
    if value is None and missing is not None:
        value = missing
    if type(value) is not int:
        raise TypeError(f"{name} is not a whole number")
    if not 0 <= value <= most:
        raise ValueError(f"{name} is out of range")
    return value


def check_arrays(arrays: Mapping[str, np.ndarray], shapes: Mapping[str, str], *, free: tuple[str, ...] = ()) -> None:
    """Check that the arrays are exactly those of a map.

    Parameters
    ----------
    arrays : mapping of str to ndarray
    shapes : mapping of str to str
        A letter for each axis; the same letter stands for the same length everywhere, and no length is 0.
    free : tuple of str
        Names of arrays that do not affect mapped rows: they may be empty or contain NaN.

    Raises
    ------
    ValueError
        If an array is missing or superfluous, has another shape or dtype, or contains NaN or infinity.
    """
    if set(arrays) != set(shapes):
        odd = sorted(set(arrays) ^ set(shapes))
        raise ValueError(f"missing or unexpected arrays: {', '.join(odd[:3])}")
    lengths: dict[str, int] = {}
    for name, letters in shapes.items():
        array = arrays[name]
        if array.dtype not in (np.float32, np.float64):
            raise ValueError(f"{name} has dtype {array.dtype}")
        if array.ndim != len(letters) or (not array.size and name not in free):
            raise ValueError(f"{name} has shape {array.shape}, which is empty or does not have {len(letters)} axes")
        for letter, length in zip(letters, array.shape, strict=True):
            if lengths.setdefault(letter, length) != length:
                raise ValueError(f"{name} has shape {array.shape}, which does not fit the other arrays")
        if name not in free and not np.isfinite(array).all():
            raise ValueError(f"{name} contains NaN or infinity")


def check_orthonormal(frame: np.ndarray, name: str) -> None:
    """Check that a matrix has orthonormal columns, or rows if it has more columns than rows.

    Tested on random rows, at a cost proportional to the size of the matrix: for E = frameᵀ frame − I, the expected
    squared norm of its product with a standard normal row is its squared Frobenius norm (Freivalds' check, with a tolerance).

    Raises
    ------
    ValueError
        If it does not.
    """
    tall = frame if frame.shape[0] >= frame.shape[1] else frame.T
    rows = np.random.default_rng(0).standard_normal((_TEST_ROWS, tall.shape[1]))
    with np.errstate(over="ignore", invalid="ignore"):
        error = float(np.linalg.norm((rows @ tall.T) @ tall - rows)) / math.sqrt(rows.size)
    if not error <= TOLERANCE:
        raise ValueError(f"{name} is not orthonormal")


def check_rotation(
    arrays: Mapping[str, np.ndarray],
    facts: Mapping[str, object],
    moments: Mapping[str, Mapping[str, np.ndarray]],
    means: Mapping[str, Mapping[str, np.ndarray]],
) -> None:
    """Check that the arrays of an orthogonal map fit each other and agree with its facts.

    Parameters
    ----------
    arrays : mapping of str to ndarray
        All arrays of the map.
    facts : mapping
    moments, means : mapping of str to mapping
        Arrays of each modality, by the name of the modality and of the array.

    Raises
    ------
    TypeError
        If a fact has the wrong type.
    ValueError
        If an array is missing or superfluous, or the arrays contradict each other or the facts.
    """
    shapes = {"rotation": "io", "source_mean": "i", "target_mean": "o", "singular_values": "s", "gains": "s"}
    for name in means:
        shapes |= {f"means.{name}.source": "i", f"means.{name}.target": "o"}
    for name, parts in moments.items():
        part_shapes = {"totals": "4", "source_mean": "i", "target_mean": "o", "cross": "io"}
        part_shapes |= {"gram": "ii"} if "gram" in parts else {}
        shapes |= {f"moments.{name}.{part}": letters for part, letters in part_shapes.items()}
    check_arrays(arrays, shapes)
    if unknown := (set(means) - set(MODALITIES)) | (set(moments) - {*MODALITIES, ""}):
        raise ValueError(f"arrays of unknown modalities: {', '.join(sorted(unknown))}")
    for parts in moments.values():
        # Total weight, number of rows, and the scatter of both sides; all are 0 for a modality whose weights are all 0.
        if parts["totals"].shape != (4,) or (parts["totals"] < 0).any() or parts["totals"][1] % 1:
            raise ValueError("the totals of the moments are not valid sums")
    if moments and not sum(float(parts["totals"][0]) for parts in moments.values()) > 0:
        raise ValueError("the moments have no weight")
    _check_claims(arrays["rotation"], arrays["gains"], arrays["singular_values"], facts)


def given_rows(
    facts: Mapping[str, object], means: Mapping[str, object], moments: Mapping[str, object]
) -> dict[str, tuple[float | None, float | None]]:
    """Return the number of rows behind the means that were passed to a map, by modality.

    Earlier versions did not save it; for their maps, means without moments count as passed.

    Raises
    ------
    TypeError, ValueError
        If ``mean_rows`` is not a table of two numbers ≥ 0, or None, for modalities with means.
    """
    mean_rows = facts.get("mean_rows")
    if mean_rows is None:
        return {name: (None, None) for name in means if name not in moments}
    if not isinstance(mean_rows, dict) or not set(mean_rows) <= set(means):
        raise ValueError("mean_rows names means that the map does not have")
    for counts in mean_rows.values():
        if not isinstance(counts, list) or len(counts) != 2 or any(n is not None and not is_number(n) for n in counts):
            raise TypeError("mean_rows contains values that are not pairs of numbers")
        if any(n is not None and n < 0 for n in counts):
            raise ValueError("mean_rows contains a negative number")
    return {name: (counts[0], counts[1]) for name, counts in mean_rows.items()}


def _check_claims(rotation: np.ndarray, gains: np.ndarray, singular: np.ndarray, facts: Mapping[str, object]) -> None:
    d_source, d_target = rotation.shape
    directions = min(rotation.shape)
    if len(gains) != directions or (singular < 0).any():
        raise ValueError("gains or singular values do not match the rotation")
    if (gains < 0).any() or (gains > 1 + TOLERANCE).any():
        raise ValueError("gains are not between 0 and 1")
    extra = count(facts, "mean_directions", most=directions)
    count(facts, "n_pairs")
    count(facts, "rank", most=directions)
    undamped = bool(np.allclose(gains, 1))
    claims = {
        "directions": directions,
        "is_isometry": d_source <= d_target and undamped,
        "is_projection": d_source > d_target,
    }
    for name, value in claims.items():
        if facts.get(name) != value or type(facts.get(name)) is not type(value):
            raise ValueError(f"{name} is {facts.get(name)!r}, but {value} according to the arrays")
    if abs(number(facts, "mean_gain") - float(gains.mean())) > TOLERANCE:
        raise ValueError("mean_gain does not match the gains")
    modality = facts.get("modality")
    if modality is not None and modality not in MODALITIES:
        raise ValueError("the modality is unknown")
    if undamped:
        check_orthonormal(rotation, "the rotation")
    # The singular values of the rotation are the gains, and 1 for the directions of the means; their squares sum to its squared norm.
    squared_norm = float(np.square(rotation).sum())
    if not abs(squared_norm - float(np.square(gains).sum()) - extra) <= TOLERANCE * directions:
        raise ValueError("gains do not match the rotation")


def check_restored(mapping: Map) -> None:
    """Check that the widths of a map's spaces match its arrays, and that it does not map ordinary rows to NaN or infinity.

    Raises
    ------
    ValueError
        If a width differs, or a mapped row is not finite.
    """
    rng = np.random.default_rng(0)
    sides = (
        ("source", mapping.source_space_.dim, mapping.n_features_in_, mapping.transform),
        ("target", mapping.target_space_.dim, mapping.d_target, mapping.transform_target),
    )
    for side, dim, width, transform in sides:
        if dim is not None and dim != width:
            raise ValueError(f"the {side} space has {dim} dimensions, but the arrays have {width}")
        # Finite arrays can still overflow, in products or when float64 values are multiplied with float32 rows.
        with np.errstate(all="ignore"):
            out = transform(rng.standard_normal((_TEST_ROWS, width)).astype(np.float32))
        if not np.isfinite(out).all():
            raise ValueError(f"the arrays contain numbers so large that rows of the {side} become NaN or infinity")
