"""Protections of stored vectors, from which an outsider then learns less, and the matching transformations of queries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from congruence.embeddings import normalize_rows
from congruence.errors import ParameterError
from congruence.synthetic import random_rotation

__all__ = ["PROTECTIONS", "Protected", "check_protection", "protect"]

#: Protections by name, and whether each takes a number.
PROTECTIONS = {"none": False, "rotation": False, "noise": True, "pca": True, "int8": False, "binary": False}

_Transform = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Protected:
    """A store after a protection.

    Attributes
    ----------
    rows : ndarray, shape (n, k)
        The rows as stored, which an outsider may obtain.
    query : callable
        Transformation of queries by the owner, from (m, d) to (m, k): rotated and reduced as the rows are, in full precision and without noise.
    """

    rows: np.ndarray
    query: _Transform


def check_protection(spec: str, width: int) -> list[tuple[str, float]]:
    """Return the steps of a protection as (name, number) pairs.

    Parameters
    ----------
    spec : str
        One of :data:`PROTECTIONS`, with ``=number`` if it takes one; several are joined by ``+`` and applied in that order.
    width : int
        Width of the store.

    Returns
    -------
    list of (str, float)

    Raises
    ------
    ParameterError
        If a name is unknown, or a number is missing, superfluous or out of range.
    """
    steps = []
    for part in spec.split("+"):
        name, equals, text = part.strip().partition("=")
        if name not in PROTECTIONS:
            raise ParameterError(
                f"Got protection {part!r}; expected one of {', '.join(PROTECTIONS)}. Name one of these, for example noise=0.5 or pca=64."
            )
        try:
            value = float(text) if equals else np.nan
        except ValueError:
            value = np.nan
        if PROTECTIONS[name] != bool(equals) or (equals and not (np.isfinite(value) and value > 0)):
            needed = "a positive number after it" if PROTECTIONS[name] else "no number"
            raise ParameterError(
                f"Got protection {part!r}; expected {name} with {needed}. Write {name}{'=0.5' if name == 'noise' else '=64' * PROTECTIONS[name]}."
            )
        if name == "pca" and not (value == int(value) and value <= width):
            raise ParameterError(
                f"Got protection {part!r} for vectors of width {width}; expected a whole number of directions, at most the width. Write pca={max(width // 4, 1)}, for example."
            )
        steps.append((name, value))
    return steps


def protect(rows: np.ndarray, spec: str, rng: np.random.Generator) -> Protected:
    """Apply a protection to a store.

    Parameters
    ----------
    rows : ndarray, shape (n, d)
    spec : str
        See :func:`check_protection`.

        * ``none``
        * ``rotation``: a random rotation known only to the owner.
        * ``noise=s``: independent Gaussian noise, with an average length of s times that of the row.
        * ``pca=k``: the k directions with most of the rows' variance.
        * ``int8``: 255 levels per dimension, scaled to its largest absolute value.
        * ``binary``: the sign of each dimension.
    rng : numpy.random.Generator
        For rotations and noise.

    Returns
    -------
    Protected

    Raises
    ------
    ParameterError
        As for :func:`check_protection`, or if ``pca`` keeps more directions than the steps before it leave.
    """
    out, matrices = rows, []
    for name, value in check_protection(spec, rows.shape[1]):
        if name == "rotation":
            Q = random_rotation(out.shape[1], random_state=int(rng.integers(2**31))).astype(out.dtype)
            out = out @ Q
            matrices.append(Q)
        elif name == "noise":
            lengths = np.linalg.norm(out, axis=1, keepdims=True)
            noise = rng.standard_normal(out.shape, dtype=np.float32) / np.sqrt(out.shape[1])
            out = out + (value * lengths * noise).astype(out.dtype)
        elif name == "pca":
            if value > out.shape[1]:
                raise ParameterError(
                    f"Got protection pca={value:g} after a step that leaves {out.shape[1]} directions; expected at most as many. Use only the smaller pca=…."
                )
            gram = out.T.astype(np.float64) @ out
            V = np.linalg.eigh(gram)[1][:, ::-1][:, : int(value)].astype(out.dtype)
            out = out @ V
            matrices.append(V)
        elif name == "int8":
            step = np.maximum(np.abs(out).max(axis=0), np.finfo(out.dtype).tiny) / 127
            out = np.round(out / step) * step
        elif name == "binary":
            out = np.where(out > 0, 1, -1).astype(out.dtype)

    def query(queries: np.ndarray) -> np.ndarray:
        for matrix in matrices:
            queries = queries @ matrix
        return queries

    return Protected(normalize_rows(out), query)
