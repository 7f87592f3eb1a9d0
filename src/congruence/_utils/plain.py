"""Plain data, which can be written as JSON or YAML."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from types import NoneType
from typing import Any, ClassVar


def as_plain(value: object, *, strict: bool = False) -> Any:
    """Return a value as mappings with text as keys, lists, and numbers of Python.

    With ``strict`` as every parser of JSON accepts it: NaN and infinity become null.

    >>> import numpy as np
    >>> as_plain({1: (np.float32(0.5), float("nan"))}, strict=True)
    {'1': [0.5, None]}
    """
    if isinstance(value, Mapping):
        return {str(key): as_plain(inner, strict=strict) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_plain(inner, strict=strict) for inner in value]
    if type(value) not in (str, int, float, bool, NoneType):
        import numpy as np  # imported here: commands that need no numbers start without it

        if isinstance(value, np.generic):
            value = value.item()
    return None if strict and isinstance(value, float) and not math.isfinite(value) else value


class PlainData:
    """Base of data classes whose fields are plain data or arrays; ``_also`` names properties to write with them."""

    _also: ClassVar[tuple[str, ...]] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain data."""
        fields: dict[str, Any] = asdict(self, dict_factory=_plain)  # type: ignore[call-overload]
        return fields | _plain([(name, getattr(self, name)) for name in self._also])


def _plain(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return fields with arrays as lists, and with text as keys of mappings (levels of quantiles are numbers)."""
    import numpy as np

    out = dict(fields)
    for name, value in fields:
        if isinstance(value, np.ndarray):
            out[name] = value.tolist()
        elif isinstance(value, dict):
            out[name] = {f"{key:g}" if isinstance(key, float) else key: entry for key, entry in value.items()}
    return out
