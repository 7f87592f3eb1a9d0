"""Quantize vectors to the type in which they are stored, and measure the effect on search results."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from congruence._utils.top_k import tie_shares
from congruence.embeddings import normalize_rows
from congruence.errors import ParameterError

QUERIES = 200  # maximum number of queries with which the recall of a type is measured

#: Relative tolerance of a component, by element type: matrix products of blocks of different sizes are rounded
#: differently, by up to 1.2 × 2⁻²⁰ of a row's largest component in float32 (256 components).
_ROUNDING = {"float32": 2.0**-18, "float16": 2.0**-10}

_NEAR_HALF = 0.01  # tolerance, in int8 steps, within which a value halfway between two codes may be stored as either


class Quantizer:
    """Convert vectors to the form in which a database stores them, and back.

    int8 is ``round((x - low) / step - 128)``, clipped to -128 to 127, with ``step = (high - low) / 255`` and ``ranges``
    (2, dim) of the smallest and the largest value of each component; binary is one bit, ``x > 0``. Same as
    sentence-transformers' ``quantize_embeddings``, except that the latter truncates instead of rounding.
    """

    def __init__(self, element_type: str, dim: int, ranges: ArrayLike | None = None, name: str = "ranges") -> None:
        """``ranges`` may also have one number for all components instead of a row."""
        self.element_type, self.dim = element_type, dim
        self.ranges: np.ndarray | None = None
        if ranges is None:
            return
        if element_type != "int8":
            raise ParameterError(
                f"Got {name} for {element_type} vectors; expected them for int8.", f"Leave out `{name}=…`."
            )
        try:
            rows: Any = ranges
            bounds = np.stack([np.broadcast_to(np.asarray(row, np.float64), dim) for row in rows])
        except (TypeError, ValueError, OverflowError):
            bounds = np.empty(0)
        if bounds.shape != (2, dim) or not np.isfinite(bounds).all() or not (bounds[0] < bounds[1]).all():
            raise ParameterError(
                f"Got {name} of shape {bounds.shape}; expected (2, {dim}): the smallest and the largest.",
                f"Pass `{name}=…` as they were computed for quantize_embeddings.",
            )
        self.ranges = bounds

    @property
    def coded(self) -> bool:
        """Whether stored values are codes: int8 or bits."""
        return self.element_type in ("int8", "binary")

    def calibrated(self, sample: np.ndarray) -> Quantizer:
        """Return a quantizer with one range, symmetric about 0, that holds a sample (n, dim).

        With the same step for all components, the codes can be searched directly.
        """
        if self.element_type != "int8" or self.ranges is not None:
            return self
        largest = float(np.abs(sample).max()) or 1.0
        return Quantizer("int8", self.dim, np.repeat([[-largest * 128 / 127], [largest]], self.dim, axis=1))

    def _steps(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the step of each component, and the code of 0."""
        if self.ranges is None:
            return np.full(self.dim, 1 / 127, np.float32), np.zeros(self.dim, np.float32)
        step = (self.ranges[1] - self.ranges[0]) / 255
        return step.astype(np.float32), np.round(-self.ranges[0] / step - 128, 6).astype(np.float32)

    def encode(self, vectors: np.ndarray) -> np.ndarray:
        """Return the values to store: −128 to 127 for int8, 1 and −1 for bits, otherwise the vectors."""
        if self.element_type == "binary":
            return np.where(vectors > 0, np.float32(1), np.float32(-1))
        if self.element_type != "int8":
            return vectors
        step, zero = self._steps()
        codes = np.asarray(vectors / step, np.float32)
        codes += zero
        np.rint(codes, out=codes)
        np.clip(codes, -128, 127, out=codes)
        return codes

    def decode(self, codes: np.ndarray) -> np.ndarray:
        """Return the vectors that stored values represent; int8 without ranges is divided by 127."""
        if self.element_type != "int8":
            return codes
        step, zero = self._steps()
        return np.asarray((codes - zero) * step, np.float32)

    def clipped(self, vectors: np.ndarray) -> float:
        """Return the share of the components of vectors, shape (b, dim), that lie outside the ranges."""
        if self.ranges is None or not vectors.size:
            return 0.0
        margin = (self.ranges[1] - self.ranges[0]) / 510  # half a step, within which values are only rounded
        return float(np.mean((vectors < self.ranges[0] - margin) | (vectors > self.ranges[1] + margin)))

    def differs(self, stored: np.ndarray, wanted: np.ndarray) -> np.ndarray:
        """Return for each stored vector whether it differs from the mapped one, not encoded, by more than rounding."""
        size = np.abs(wanted).max(axis=1, keepdims=True)
        if self.element_type == "binary":
            same = (stored > 0) == (wanted > 0)
            return np.asarray(~(same | (np.abs(wanted) <= _ROUNDING["float32"] * size)).all(axis=1))
        if self.element_type == "int8":
            step, zero = self._steps()
            exact = np.clip(wanted / step + zero, -128, 127)
            return np.asarray(~(np.abs(stored - exact) <= 0.5 + _NEAR_HALF).all(axis=1))
        near = np.abs(stored - wanted) <= _ROUNDING[self.element_type] * np.maximum(size, 2.0**-14)
        return np.asarray(~near.all(axis=1))

    def describe(self) -> str:
        """Return a description of how queries must be quantized; empty if there is nothing to do."""
        if self.element_type == "binary":
            return "bits: 1 where a component is above 0"
        if self.element_type != "int8" or self.ranges is None:
            return ""
        if (np.ptp(self.ranges, axis=1) == 0).all():
            return f"int8: round(x / {self._steps()[0][0]:.6g}), within -128 to 127"
        return "int8: by the range of each component"

    def plain_ranges(self) -> list[float | list[float]] | None:
        """Return the ranges as plain data: one number a bound, or a list if components differ."""
        if self.ranges is None:
            return None
        return [float(row[0]) if np.ptp(row) == 0 else row.tolist() for row in self.ranges]


def similarities(queries: np.ndarray, vectors: np.ndarray, distance: str | None) -> np.ndarray:
    """Return similarities that rank the rows as the database's distance does, shape (queries, rows)."""
    rows = normalize_rows(vectors) if distance == "cosine" else vectors
    similar = queries @ rows.T
    if distance == "l2":
        similar -= np.einsum("ij,ij->i", rows, rows)[None, :] / 2
    return np.asarray(similar)


def recall_of(exact: np.ndarray, stored: np.ndarray, distance: str | None, k: int = 10) -> float | None:
    """Return the recall of the ``k`` nearest of quantized rows, by at most 200 of them; None below 4 ``k`` rows."""
    if len(exact) < 4 * k:
        return None
    chosen = np.zeros(len(exact), bool)
    chosen[np.linspace(0, len(exact) - 1, min(QUERIES, len(exact) // 4)).astype(int)] = True
    near = []
    for rows in (exact, stored):
        queries = normalize_rows(rows[chosen]) if distance == "cosine" else rows[chosen]
        near.append(similarities(queries, rows[~chosen], distance))
    least = np.partition(near[0], -k, axis=1)[:, -k, None]  # of rows that tie for the last place any is right
    return float((tie_shares(near[1], k) * (near[0] >= least)).sum(axis=1).mean() / k)
