"""Corrections of cosines for hubs: gallery rows that are near many queries, also those they do not match.

Both corrections subtract from the cosines with each gallery row a number computed from a bank of queries, by one
product of bank and gallery per gallery, in blocks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from congruence._utils.arrays import blocks
from congruence._utils.validation import check_choice, check_positive
from congruence.linalg.csls import mean_of_largest
from congruence.metrics.search import nearest


@dataclass(frozen=True)
class HubnessCorrection:
    """What is subtracted from cosines, ``shift`` (n,); with ``hubs`` (n,), only for queries nearest to one of these."""

    shift: np.ndarray
    hubs: np.ndarray | None = None

    def correct(self, similarity: np.ndarray) -> np.ndarray:
        """Correct cosines (m, n) with the whole gallery in place; −inf for rows that a query must not retrieve."""
        shift = self.shift.astype(similarity.dtype)
        if self.hubs is None:
            similarity -= shift
        else:
            near_hub = self.hubs[np.argmax(similarity, axis=1)]
            np.subtract(similarity, shift, out=similarity, where=near_hub[:, None])
        return similarity

    def as_inner_products(
        self, queries: np.ndarray, gallery: np.ndarray, *, left_out: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return unit queries and gallery with one more column, whose inner products are the corrected cosines."""
        is_corrected = np.ones(len(queries), queries.dtype)
        if self.hubs is not None:
            is_corrected[:] = self.hubs[nearest(queries, 1, gallery, left_out=left_out)[:, 0]]
        return (np.column_stack([queries, is_corrected]), np.column_stack([gallery, -self.shift.astype(gallery.dtype)]))


class Hubness(ABC):
    """Base of the corrections that the argument ``hubness`` of every retrieval measure accepts."""

    name: ClassVar[str]

    @abstractmethod
    def shift(self, cosines: np.ndarray) -> np.ndarray:
        """Return the number to subtract from each column (n,) of the bank's cosines (b, n), −inf where missing."""

    def of(self, bank: np.ndarray, gallery: np.ndarray, *, exclude_self: bool = False) -> HubnessCorrection:
        """Return the correction by a bank of unit queries (b, d); ``exclude_self`` leaves out row i for query i."""
        shift = np.empty(len(gallery))
        best, first = np.full(len(bank), -np.inf), np.zeros(len(bank), dtype=np.intp)
        # A block and the arrays computed from it are in memory together.
        for part in blocks(len(gallery), 2 * len(bank) * gallery.dtype.itemsize):
            cosines = (gallery[part] @ bank.T).T  # this layout makes columns, which are searched, contiguous
            if exclude_self:
                rows = np.arange(part.start, part.stop)
                cosines[rows, rows - part.start] = -np.inf
            shift[part] = self.shift(cosines)
            if self._selects:
                column = np.argmax(cosines, axis=1)
                value = cosines[np.arange(len(bank)), column]
                nearer = value > best
                best[nearer], first[nearer] = value[nearer], column[nearer] + part.start
        return HubnessCorrection(shift, self._hubs(first, len(gallery)))

    def of_matrix(self, cosines: np.ndarray) -> HubnessCorrection:
        """Return the correction for a complete matrix of cosines (m, n), with its own queries as the bank."""
        return HubnessCorrection(self.shift(cosines), self._hubs(np.argmax(cosines, axis=1), cosines.shape[1]))

    #: Whether only queries whose nearest row is a hub are corrected.
    _selects: ClassVar[bool] = False

    def _hubs(self, first: np.ndarray, n: int) -> np.ndarray | None:
        """Return the rows that are nearest to some query of the bank, if the correction is limited to these."""
        return np.isin(np.arange(n), first) if self._selects else None


@dataclass(frozen=True)
class CSLS(Hubness):
    """Cross-domain similarity local scaling: ``2 cos(q, g) − r(q) − r(g)``, with r the mean cosine with the
    ``n_neighbors`` nearest queries of the bank; the ranking is that of ``cos(q, g) − r(g)/2``.

    Source: Conneau et al. (2018), "Word translation without parallel data", §2.3.
    """

    name: ClassVar[str] = "csls"
    n_neighbors: int = 10

    def __post_init__(self) -> None:
        check_positive(self.n_neighbors, "n_neighbors", integer=True)

    def shift(self, cosines: np.ndarray) -> np.ndarray:
        """Return half the mean of each column's largest entries; see ``Hubness``."""
        return mean_of_largest(cosines, self.n_neighbors, axis=0) / 2  # −inf may be among them, from exclude_self


@dataclass(frozen=True)
class QBNorm(Hubness):
    """Query-bank normalization with the dynamic inverted softmax; ``temperature`` T is by default one over the paper's
    β.

    If the nearest row of a query by plain cosine is also that of some query of the bank, the query's similarities
    become ``exp(cos(q, g)/T) / Σ_b exp(cos(b, g)/T)``, with b over the bank; the ranking is that of ``cos(q, g) − T log
    Σ_b exp(cos(b, g)/T)``. Otherwise they remain plain cosines.

    Source: Bogolin et al. (2022), "Cross modal retrieval with querybank normalisation", §3.2. Smith et al. (2017),
    "Offline bilingual word vectors, orthogonal transformations and the inverted softmax".
    """

    name: ClassVar[str] = "qb_norm"
    temperature: float = 0.05
    _selects: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_positive(self.temperature, "temperature")

    def shift(self, cosines: np.ndarray) -> np.ndarray:
        """Return each column's log-sum-exp, scaled to cosines; see ``Hubness``."""
        top = cosines.max(axis=0)
        top = np.where(np.isfinite(top), top, 0)  # if the only query of the bank must not retrieve the row
        total = np.exp((cosines - top) / self.temperature).sum(axis=0, dtype=np.float64)
        return np.asarray(top + self.temperature * np.log(np.maximum(total, np.finfo(np.float64).tiny)))


#: Corrections by the names that ``hubness`` accepts.
HUBNESS: dict[str, type[Hubness]] = {"csls": CSLS, "qb_norm": QBNorm}


def as_hubness(hubness: str | Hubness | None) -> Hubness | None:
    """Return the correction of this name, with its default parameters."""
    if hubness is None or isinstance(hubness, Hubness):
        return hubness
    return HUBNESS[check_choice(hubness, HUBNESS, "hubness")]()
