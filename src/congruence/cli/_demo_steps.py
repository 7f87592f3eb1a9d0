"""Steps that the demos of both samples share."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from congruence.upgrade.migrate import Migration

__all__ = ["has_lancedb", "print_rollback", "verify_and_switch"]


def has_lancedb() -> bool:
    """Return whether the extra ``lancedb`` is installed."""
    return all(find_spec(name) is not None for name in ("lancedb", "lance"))


def verify_and_switch(migration: Migration) -> None:
    """Verify the new vectors and switch to them. Raises MigrationError if they fail verification."""
    from congruence.errors import MigrationError

    verification = migration.verify()
    if not verification.passed:
        raise MigrationError(
            f"Got new vectors that do not verify ({'; '.join(verification.problems)}); expected vectors that "
            "verify. Please report this."
        )
    migration.switch()


def print_rollback(identical: bool, same_lists: bool) -> None:
    """Print whether a rollback restored the vectors and the search results."""
    restored = "bit for bit the old vectors, and the same results" if identical and same_lists else "NOT the same"
    print(f"Rolled back: {restored}.")
