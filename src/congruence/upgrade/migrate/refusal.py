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
    for check in plan.checks:
        if check["outcome"] != "bad":
            continue
        if check["check"] == "stage":
            raise MigrationError(
                f"Got {plan.place}, where {check['detail']}, without the journal of that migration; expected only old vectors. "
                "Pass journal=… with its folder, or remove the new vectors with the database's own client."
            )
        if check["check"] == "ids":
            raise IdError(
                f"Got {plan.place}, where {check['detail']}; expected each id once. Make the ids unique first."
            )
        if check["check"] == "certificate":
            if not anyway:
                raise MigrationError(
                    f"Got a certificate that advises against mapping ({check['detail']}); expected one that supports it. Follow its advice, or pass anyway=True."
                )
        elif check["check"] == "disk":
            check_room(plan.free_bytes, plan.bytes_new)
        elif check["check"] == "origin":
            raise SpaceMismatchError(
                f"Got {plan.place}, where {check['detail']}; expected the old model's rows. Use a map from the model of these rows."
            )
