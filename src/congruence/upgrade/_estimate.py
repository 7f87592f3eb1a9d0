"""A number and how far it can be trusted: of certificates, and of a progressive migration's meter."""

from __future__ import annotations

from dataclasses import asdict, dataclass

__all__ = ["Estimate"]


@dataclass(frozen=True)
class Estimate:
    """A number and the interval about it.

    Attributes
    ----------
    value, low, high : float
        The estimate and its 95 % interval.
    n : int
        Items it was measured on.
    """

    value: float
    low: float
    high: float
    n: int

    def to_dict(self) -> dict[str, float]:
        """Return all fields as plain data."""
        return asdict(self)
