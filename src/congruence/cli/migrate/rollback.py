"""``congruence migrate URL rollback``: make readers see the old vectors again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import typer

from congruence.cli._options import Json, option, settable, with_groups
from congruence.cli.migrate._step import ENGINE, Journal, opened

if TYPE_CHECKING:
    from congruence.upgrade.migrate.written import NewRows


@with_groups
def command(
    ctx: typer.Context,
    new_rows: str = option(
        "refuse",
        "What to do with rows written since the switch: refuse the rollback, keep them without an old vector, or "
        "map-back.",
        metavar="[refuse|keep|map-back]",
    ),
    settings: dict[str, Any] = settable(**ENGINE),
    journal: Journal = None,
    as_json: Json = False,
) -> None:
    """Make readers see the old vectors again, bit for bit; the new ones are kept.

    Example: congruence migrate library/photos.lance rollback
    """
    with opened(ctx, journal, given=settings) as step:
        result = step.migration.rollback(new_rows=cast("NewRows", new_rows))
        states = {True: "bit for bit as before", False: "changed by others since", None: "not compared"}
        lines = [f"Rolled back: readers see the old vectors of {result['rows']:,} rows, {states[result['identical']]}."]
        since = [f"{result[name]:,} {name}" for name in ("added", "changed", "deleted") if result[name]]
        if since:
            lines.append(f"Since the switch: {', '.join(since)}.")
        if result["rows_without"]:
            lines.append(f"{result['rows_without']:,} rows have no old vector.")
        step.report("rollback", result, lines, as_json)
