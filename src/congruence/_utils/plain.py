"""Results that can be written as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any


class PlainData:
    """Base of data classes whose fields are plain data."""

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain data."""
        return asdict(self)  # type: ignore[call-overload]
