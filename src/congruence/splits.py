"""Held-out items chosen by their ids, so that any command can find them again."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from congruence.errors import ParameterError, TooFewAnchorsError


@dataclass(frozen=True)
class Split:
    """A rule that says of every id, alone, whether it is held out.

    An id is held out when the 64-bit hash of the seed and the id lies below a threshold. The rule does not depend on
    the order or the number of items, so a map can carry it in two numbers and ``evaluate`` finds the same
    items in any file.

    Attributes
    ----------
    seed : int
    threshold : int
        Hashes below it are held out.
    """

    seed: int
    threshold: int

    @classmethod
    def choose(cls, ids: np.ndarray, holdout: float | int, seed: int = 0) -> Split:
        """Choose the rule that holds out a share, or an exact number, of these ids.

        Parameters
        ----------
        ids : ndarray of str, shape (n,)
        holdout : float or int
            Below 1 a share; from 1 on a number of items.
        seed : int, default=0

        Returns
        -------
        Split

        Raises
        ------
        ParameterError
            Negative, or not a whole number from 1 on.
        TooFewAnchorsError
            Fewer than two items would be left to fit on.
        """
        n = len(ids)
        if n < 2:
            raise TooFewAnchorsError(f"Got {n} pairs; expected at least 2. Pass more pairs.")
        if not np.isfinite(holdout) or holdout < 0 or (holdout >= 1 and holdout != int(holdout)):
            raise ParameterError(
                f"Got holdout={holdout!r}; expected a share below 1 or a whole number of items. Pass holdout=0.2, for example."
            )
        count = round(holdout * n) if holdout < 1 else int(holdout)
        if n - count < 2:
            raise TooFewAnchorsError(
                f"Got {count} of {n} pairs to hold out; expected at least two left. Pass a smaller holdout=…."
            )
        if count == 0:
            return cls(seed, 0)
        hashes = np.sort(_hashes(ids, seed))
        return cls(seed, int(hashes[count]))

    def held_out(self, ids: np.ndarray) -> np.ndarray:
        """Say which of these ids are held out.

        Parameters
        ----------
        ids : ndarray of str, shape (m,)

        Returns
        -------
        ndarray of bool, shape (m,)
        """
        return _hashes(ids, self.seed) < np.uint64(self.threshold)

    def to_dict(self) -> dict[str, Any]:
        """Return the rule as plain data; the threshold as text, since JSON readers round large integers."""
        return {**asdict(self), "threshold": str(self.threshold)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Split:
        """Read :meth:`to_dict`'s output."""
        return cls(int(data["seed"]), int(data["threshold"]))


def _hashes(ids: np.ndarray, seed: int) -> np.ndarray:
    prefix = f"{seed}:".encode()
    digests = (hashlib.blake2b(prefix + str(i).encode(), digest_size=8).digest() for i in ids)
    return np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64)
