"""An estimate with its confidence interval, as used by certificates and by the meter of a progressive migration."""

from __future__ import annotations

from dataclasses import asdict, dataclass

__all__ = ["Estimate"]


@dataclass(frozen=True)
class Estimate:
    """An estimate and its confidence interval.

    Attributes
    ----------
    value, low, high : float
        The estimate and its 95 % interval.
    n : int
        Number of items on which it was measured.
    """

    value: float
    low: float
    high: float
    n: int

    def to_dict(self) -> dict[str, float]:
        """Return all fields as plain data."""
        return asdict(self)
