"""Records: facts as JSON, with the digest by which damage is noticed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np


def digest_of(content: object, arrays: Mapping[str, np.ndarray] | None = None) -> str:
    """Return the SHA-256 of plain data, independent of the order of its keys, and of named arrays."""
    text = json.dumps(content, sort_keys=True, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    digest = hashlib.sha256(text.encode())
    for name, array in sorted((arrays or {}).items()):
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def to_record(facts: Mapping[str, object], *, indent: int | None = None) -> bytes:
    """Return the content of a file that holds these facts and their digest."""
    return json.dumps({**facts, "digest": digest_of(facts)}, indent=indent).encode() + b"\n"


def from_record(raw: bytes) -> dict[str, Any]:
    """Return the facts of a record; ValueError if it is damaged or was edited."""
    try:
        facts: dict[str, Any] = json.loads(raw.decode("utf-8"))
        same = facts.pop("digest") == digest_of(facts)
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise ValueError("no record") from error
    if not same:
        raise ValueError("wrong digest")
    return facts
