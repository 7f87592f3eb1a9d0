"""Refuse to start a migration whose plan has a failed check."""

from __future__ import annotations

from congruence.errors import IdError, MigrationError, SpaceMismatchError
from congruence.upgrade.migrate.passes import check_room
from congruence.upgrade.migrate.plan import Plan

__all__ = ["refuse"]


def refuse(plan: Plan, *, anyway: bool = False) -> None:
    """Raise an error for the first bad check of a plan.

    Parameters
    ----------
    plan : Plan
    anyway : bool, default=False
        Ignore a certificate that advises against mapping; all other checks still apply.

    Raises
    ------
    MigrationError
        If there already are new vectors, or the certificate advises against mapping.
    IdError
        If several rows have the same id.
    StorageError
        If the disk has no room for the new vectors.
    SpaceMismatchError
        If the rows look like the new model's, or like rows that are already mapped.
    """
    for one in plan.checks:
        if one["outcome"] != "bad":
            continue
        if one["check"] == "stage":
            raise MigrationError(
                f"Got {plan.place}, where {one['detail']}, without the journal of that migration; expected only old vectors. "
                "Pass journal=… with its folder, or remove the new vectors with the database's own client."
            )
        if one["check"] == "ids":
            raise IdError(f"Got {plan.place}, where {one['detail']}; expected each id once. Make the ids unique first.")
        if one["check"] == "certificate":
            if not anyway:
                raise MigrationError(
                    f"Got a certificate that advises against mapping ({one['detail']}); expected one that supports it. Follow its advice, or pass anyway=True."
                )
        elif one["check"] == "disk":
            check_room(plan.free_bytes, plan.bytes_new)
        elif one["check"] == "origin":
            raise SpaceMismatchError(
                f"Got {plan.place}, where {one['detail']}; expected the old model's rows. Use a map from the model of these rows."
            )
