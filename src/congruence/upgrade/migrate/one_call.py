"""Run a whole migration in one call."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from congruence.databases import open_database
from congruence.errors import MigrationError
from congruence.maps import Map
from congruence.upgrade.migrate._migration import Migration

__all__ = ["migrate"]


def migrate(
    where: str | Path,
    mapping: Map,
    *,
    journal: str | Path | None = None,
    modality: str | None = None,
    element_type: str | None = None,
    switch: bool = False,
    resume: bool = False,
    callback: Callable[[int], object] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Write mapped vectors next to the old ones of a database, verify them and, with ``switch``, make readers see them.

    Parameters
    ----------
    where : str or path-like
        Address of the database; see :func:`congruence.databases.open_database`.
    mapping : Map
    journal, modality, element_type
        See :class:`Migration`.
    switch : bool, default=False
        Switch if verification passes.
    resume : bool, default=False
        Resume a run that was interrupted.
    callback : callable, optional
        Called with the number of rows of each block.
    **options
        Options of :func:`congruence.databases.open_database`: ``table``, ``column``, ``ids``, ``modality_column``, ``rows``.

    Returns
    -------
    dict
        The result of :meth:`Migration.status`.

    Raises
    ------
    MigrationError
        If a check of the plan is bad, or the new vectors do not pass verification.
    CongruenceError
        If one of the steps fails; see the methods of :class:`Migration`.
    """
    database = open_database(where, **options)
    with Migration(database, mapping, journal=journal, modality=modality, element_type=element_type) as migration:
        migration.run(resume=resume, callback=callback)
        verification = migration.verify(callback=callback)
        if not verification.passed:
            raise MigrationError(
                f"Got new vectors that do not pass verification ({'; '.join(verification.problems)}); expected them to pass. Pass resume=True, or discard them."
            )
        if switch:
            migration.switch(callback=callback)
        return migration.status()
