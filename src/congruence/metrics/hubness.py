"""Hubs: gallery rows that stand near to many queries, and so come first where they should not. Two corrections of cosines.

Both subtract one number from the cosines with each gallery row, read off a bank of queries. They cost one product of the bank and the
gallery, O(|bank| n d), once for a gallery; a query then costs what it costs without. Blocks of gallery rows are looked at, never an
m × n array.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from congruence._utils.arrays import blocks
from congruence._utils.validation import check_choice, check_positive
from congruence.errors import ParameterError, ShapeError
from congruence.linalg.csls import mean_of_largest

__all__ = ["CSLS", "HUBNESS", "Correction", "Hubness", "QBNorm", "as_hubness", "means_of"]


@dataclass(frozen=True)
class Correction:
    """What a correction subtracts from cosines.

    Attributes
    ----------
    shift : ndarray of float64, shape (n,)
        For each gallery row.
    hubs : ndarray of bool, shape (n,), or None
        Only queries whose nearest row by plain cosine is one of these are corrected; all of them where it is None.
    """

    shift: np.ndarray
    hubs: np.ndarray | None = None

    def apply(self, similarity: np.ndarray) -> np.ndarray:
        """Subtract it in place.

        Parameters
        ----------
        similarity : ndarray, shape (m, n)
            Cosines of some queries and the whole gallery; −inf where a query may not find a row.

        Returns
        -------
        ndarray
            ``similarity`` itself.
        """
        shift = self.shift.astype(similarity.dtype)
        if self.hubs is None:
            similarity -= shift
        else:
            led = self.hubs[np.argmax(similarity, axis=1)]
            np.subtract(similarity, shift, out=similarity, where=led[:, None])
        return similarity


class Hubness(ABC):
    """A correction, as the argument ``hubness`` of every retrieval measure takes it."""

    name: ClassVar[str]

    @abstractmethod
    def shift(self, cosines: np.ndarray) -> np.ndarray:
        """Return what to subtract from each column.

        Parameters
        ----------
        cosines : ndarray, shape (b, n)
            Bank by gallery rows; −inf where a query of the bank may not find a row.

        Returns
        -------
        ndarray of float64, shape (n,)
        """

    def of(self, bank: np.ndarray, gallery: np.ndarray, *, exclude_self: bool = False) -> Correction:
        """Read the correction off a bank of queries, a block of gallery rows at a time.

        Parameters
        ----------
        bank : ndarray, shape (b, d)
        gallery : ndarray, shape (n, d)
            Unit rows on both sides.
        exclude_self : bool, default=False
            Query i of the bank does not see gallery row i.

        Returns
        -------
        Correction
        """
        shift = np.empty(len(gallery))
        best, first = np.full(len(bank), -np.inf), np.zeros(len(bank), dtype=np.intp)
        # A block and what is computed from it stand side by side.
        for part in blocks(len(gallery), 2 * len(bank) * gallery.dtype.itemsize):
            cosines = (gallery[part] @ bank.T).T  # laid out so that a column, which is searched, is contiguous
            if exclude_self:
                rows = np.arange(part.start, part.stop)
                cosines[rows, rows - part.start] = -np.inf
            shift[part] = self.shift(cosines)
            if self._selects:
                here = np.argmax(cosines, axis=1)
                value = cosines[np.arange(len(bank)), here]
                nearer = value > best
                best[nearer], first[nearer] = value[nearer], here[nearer] + part.start
        return Correction(shift, self._hubs(first, len(gallery)))

    def of_matrix(self, cosines: np.ndarray) -> Correction:
        """Return the correction of a whole matrix of cosines, whose queries are the bank.

        Parameters
        ----------
        cosines : ndarray, shape (m, n)

        Returns
        -------
        Correction
        """
        return Correction(self.shift(cosines), self._hubs(np.argmax(cosines, axis=1), cosines.shape[1]))

    #: Whether only queries that are led to a hub are corrected.
    _selects: ClassVar[bool] = False

    def _hubs(self, first: np.ndarray, n: int) -> np.ndarray | None:
        """Return the rows that are the nearest of a query of the bank, where that matters."""
        return np.isin(np.arange(n), first) if self._selects else None


@dataclass(frozen=True)
class CSLS(Hubness):
    """Cross-domain similarity local scaling: ``2 cos(q, g) − r(q) − r(g)``.

    ``r(g)`` is the mean cosine of a gallery row with its nearest queries of the bank. ``r(q)`` is the same for all rows that a
    query is compared with, so the order is that of ``cos(q, g) − r(g)/2``, which is what is computed.

    Parameters
    ----------
    n_neighbors : int, default=10
        Queries that r(g) is the mean over; all of them where the bank has fewer.

    Raises
    ------
    ParameterError

    References
    ----------
    Conneau et al. (2018), "Word translation without parallel data", §2.3.
    """

    name: ClassVar[str] = "csls"
    n_neighbors: int = 10

    def __post_init__(self) -> None:
        check_positive(self.n_neighbors, "n_neighbors", integer=True)

    def shift(self, cosines: np.ndarray) -> np.ndarray:
        """Return half the mean of each column's largest entries; see :class:`Hubness`."""
        return mean_of_largest(cosines, self.n_neighbors, axis=0) / 2  # exclude_self may leave −inf


@dataclass(frozen=True)
class QBNorm(Hubness):
    """Query-bank normalization with the dynamic inverted softmax.

    A query's similarities become ``exp(cos(q, g)/T) / Σ_b exp(cos(b, g)/T)``, b over the bank, if its nearest row by plain cosine is
    also the nearest of a query of the bank, and stay plain cosines otherwise. The order is that of ``cos(q, g) − T log Σ_b exp(cos(b, g)/T)``,
    which is what is computed.

    Parameters
    ----------
    temperature : float, default=0.05
        T, one over the paper's β of 20.

    Raises
    ------
    ParameterError

    References
    ----------
    Bogolin et al. (2022), "Cross modal retrieval with querybank normalisation", §3.2 (dynamic inverted softmax, k = 1). Smith et al. (2017), "Offline
    bilingual word vectors, orthogonal transformations and the inverted softmax".
    """

    name: ClassVar[str] = "qb_norm"
    temperature: float = 0.05
    _selects: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_positive(self.temperature, "temperature")

    def shift(self, cosines: np.ndarray) -> np.ndarray:
        """Return each column's log-sum-exp, in units of a cosine; see :class:`Hubness`."""
        top = cosines.max(axis=0)
        top = np.where(np.isfinite(top), top, 0)  # a bank of one query that may not find the row
        total = np.exp((cosines - top) / self.temperature).sum(axis=0, dtype=np.float64)
        return np.asarray(top + self.temperature * np.log(np.maximum(total, np.finfo(np.float64).tiny)))


#: Corrections by the name that ``hubness`` takes.
HUBNESS: dict[str, type[Hubness]] = {"csls": CSLS, "qb_norm": QBNorm}


def as_hubness(hubness: str | Hubness | None) -> Hubness | None:
    """Return the correction that a name stands for, with its default parameters.

    Parameters
    ----------
    hubness : str or Hubness or None

    Returns
    -------
    Hubness or None

    Raises
    ------
    ParameterError
        An unknown name; the message lists the known ones.
    """
    if hubness is None or isinstance(hubness, Hubness):
        return hubness
    return HUBNESS[check_choice(hubness, HUBNESS, "hubness")]()


def means_of(
    center: bool | tuple[object, object] | None, queries: np.ndarray, gallery: np.ndarray
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Return what centering subtracts from queries and from gallery rows.

    Parameters
    ----------
    center : bool or tuple or None
        True for each side's own mean; or two vectors, of which None stands for the side's own mean.
    queries : ndarray, shape (m, d)
        Rows whose mean stands for that of queries: the bank where there is one.
    gallery : ndarray, shape (n, d)

    Returns
    -------
    ndarray of float64, shape (d,), or None
    ndarray of float64, shape (d,), or None

    Raises
    ------
    ParameterError
        One row has no mean but itself.
    ShapeError
    """
    if center is None or center is False:
        return None, None
    given = (None, None) if center is True else tuple(center)
    out = []
    for mean, rows, name in zip(given, (queries, gallery), ("queries", "gallery rows"), strict=True):
        if mean is None:
            if len(rows) < 2:
                raise ParameterError(
                    f"Got {len(rows)} {name} to center by their own mean; expected two at least. Pass their mean in center=(…, …), or a bank of queries in bank=…."
                )
            out.append(rows.mean(axis=0, dtype=np.float64))
            continue
        mean = np.asarray(mean, dtype=np.float64)
        if mean.shape != rows.shape[1:]:
            raise ShapeError(
                f"Got a mean of shape {mean.shape} for {name} of width {rows.shape[1]}; expected one vector of that width. Pass center=True, or two vectors."
            )
        out.append(mean)
    return out[0], out[1]
