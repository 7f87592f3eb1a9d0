"""The theorems of Gupta et al. (2026) as functions on arrays: what each promises, and what is measured beside it."""

from __future__ import annotations

from congruence.theory._base import Bound

__all__ = ["Bound"]
