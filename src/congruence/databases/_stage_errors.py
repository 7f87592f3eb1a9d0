"""Errors of methods that are called at the wrong stage of a migration."""

from __future__ import annotations

from congruence.errors import MigrationError

__all__ = ["already_switched", "no_new_vectors", "not_switched"]


def no_new_vectors(place: str) -> MigrationError:
    """Return the error of a method that needs new vectors, if there are none."""
    return MigrationError(f"Got no new vectors in {place}; expected some. Run the migration first.")


def already_switched(place: str) -> MigrationError:
    """Return the error of a method that is possible only before the switch."""
    return MigrationError(
        f"Got {place}, which is already switched to the new vectors; expected it not switched. Roll back first."
    )


def not_switched(place: str) -> MigrationError:
    """Return the error of a method that is possible only after the switch."""
    return MigrationError(
        f"Got {place}, which is not switched; expected readers to see the new vectors. Switch it first."
    )
