"""A whole migration in one call."""

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
    """Map the vectors of a database beside the old ones, verify them, and, if asked, switch.

    Parameters
    ----------
    where : str or path-like
        As its users write it; see :func:`congruence.databases.open_database`.
    mapping : Map
    journal, modality, element_type
        As of :class:`Migration`.
    switch : bool, default=False
        Switch if it verifies.
    resume : bool, default=False
    callback : callable, optional
        Called with the number of rows of each block.
    **options
        Of :func:`congruence.databases.open_database`: ``table``, ``column``, ``ids``, ``modality_column``, ``rows``.

    Returns
    -------
    dict
        :meth:`Migration.status`.

    Raises
    ------
    MigrationError
        A check is bad, or what was written does not verify.
    CongruenceError
        As of the steps.
    """
    database = open_database(where, **options)
    with Migration(database, mapping, journal=journal, modality=modality, element_type=element_type) as migration:
        migration.run(resume=resume, callback=callback)
        found = migration.verify(callback=callback)
        if not found.passed:
            raise MigrationError(
                f"Got new vectors that do not verify ({'; '.join(found.problems)}); expected them to. Pass resume=True, or discard them."
            )
        if switch:
            migration.switch(callback=callback)
        return migration.status()
