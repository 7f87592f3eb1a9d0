"""Search an old model's index with a new model's queries; the index is not rewritten."""

from __future__ import annotations

from congruence.upgrade.bridge.bridge import Bridge, load
from congruence.upgrade.bridge.mixed import MixedResult, search_mixed

__all__ = ["Bridge", "MixedResult", "load", "search_mixed"]
