"""Results that can be written as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, ClassVar

import numpy as np


class PlainData:
    """Base of data classes whose fields are plain data or arrays; ``_also`` names properties to write with them."""

    _also: ClassVar[tuple[str, ...]] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain data."""
        fields: dict[str, Any] = asdict(self, dict_factory=_plain)  # type: ignore[call-overload]
        return fields | _plain([(name, getattr(self, name)) for name in self._also])


def _plain(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return fields with arrays as lists, and with text as keys of mappings (levels of quantiles are numbers)."""
    out = dict(fields)
    for name, value in fields:
        if isinstance(value, np.ndarray):
            out[name] = value.tolist()
        elif isinstance(value, dict):
            out[name] = {f"{key:g}" if isinstance(key, float) else key: entry for key, entry in value.items()}
    return out
