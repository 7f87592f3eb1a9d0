"""A new model's queries over an index of an old model's vectors, none of which is rewritten."""

from __future__ import annotations

from congruence.upgrade.bridge._bridge import Bridge
from congruence.upgrade.bridge.loading import load
from congruence.upgrade.bridge.mixed import MixedResult, search_mixed

__all__ = ["Bridge", "MixedResult", "load", "search_mixed"]
