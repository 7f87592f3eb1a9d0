"""What a migration must not be begun with."""

from __future__ import annotations

from congruence.errors import IdError, MigrationError, SpaceMismatchError
from congruence.upgrade.migrate.passes import check_room
from congruence.upgrade.migrate.plan import Plan

__all__ = ["refuse"]


def refuse(plan: Plan, *, anyway: bool = False) -> None:
    """Raise for the first check of a plan that is bad.

    Parameters
    ----------
    plan : Plan
    anyway : bool, default=False
        Pass over a certificate that speaks against mapping, and over nothing else.

    Raises
    ------
    MigrationError
        There are new vectors already, or the certificate speaks against mapping.
    IdError
        Several rows have one id.
    StorageError
        The disk has no room.
    SpaceMismatchError
        The rows look like the new model's, or like rows mapped already.
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
                    f"Got a certificate that speaks against mapping ({one['detail']}); expected one that speaks for it. Follow it, or pass anyway=True."
                )
        elif one["check"] == "disk":
            check_room(plan.free_bytes, plan.bytes_new)
        elif one["check"] == "origin":
            raise SpaceMismatchError(
                f"Got {plan.place}, where {one['detail']}; expected the old model's rows. Use the map that leads from their model."
            )
