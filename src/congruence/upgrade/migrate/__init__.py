"""Migrate the vectors of a live database to a new model: plan, write beside, verify, switch, roll back."""

from __future__ import annotations

from congruence.upgrade.migrate.migration import Migration, migrate
from congruence.upgrade.migrate.plan import Plan
from congruence.upgrade.migrate.verify import Verification

__all__ = ["Migration", "Plan", "Verification", "migrate"]
