"""Records: facts as JSON, with the digest by which damage is noticed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def digest_of(content: object) -> str:
    """Return the SHA-256 of plain data, independent of the order of its keys."""
    text = json.dumps(content, sort_keys=True, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


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
