"""``congruence migrate URL switch``: make readers see the new vectors."""

from __future__ import annotations

from typing import Any

import typer

from congruence.cli._base import Bars
from congruence.cli._options import Json, settable, with_groups
from congruence.cli.migrate._step import ENGINE, Journal, opened


@with_groups
def command(
    ctx: typer.Context,
    settings: dict[str, Any] = settable(**ENGINE),
    journal: Journal = None,
    as_json: Json = False,
) -> None:
    """Make readers see the new vectors, after repairing what others changed since the run; the old ones are kept.

    Example: congruence migrate library/photos.lance switch
    """
    with opened(ctx, journal, given=settings) as step:
        with Bars(as_json) as bars:
            bars.begin("comparing", step.migration.info.rows)
            result = step.migration.switch(callback=bars.advance)
        lines = [
            f"Readers see the new vectors of {result['rows']:,} rows. The old ones are kept: rollback restores them.",
            f"Summary: {step.migration.folder / 'summary.json'}",
        ]
        step.report("switch", result, lines, as_json)
