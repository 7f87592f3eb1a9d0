"""``congruence migrate URL status``: where the migration stands, and what is left to do."""

from __future__ import annotations

from typing import Any

import typer

from congruence.cli._options import Json
from congruence.cli.migrate._step import Journal, opened

#: What is left to do, by state.
_LEFT = {
    "filling": "finish the run, then switch and finish",
    "filled": "verify, switch and finish",
    "verified": "switch and finish",
    "switched": "finish, once you are sure: this removes the old vectors; until then, rollback restores them",
    "rolled back": "verify and switch again, or finish, which removes the new vectors",
    "dropped": "nothing; the journal's folder can be removed",
}


def command(
    ctx: typer.Context,
    journal: Journal = None,
    as_json: Json = False,
) -> None:
    """Say where the migration stands, what readers see, and what is left to do.

    Example: congruence migrate library/photos.lance status
    """
    with opened(ctx, journal) as step:
        status = step.migration.status()
        step.report("status", status, [] if as_json else _lines(status), as_json)


def _lines(status: dict[str, Any]) -> list[str]:
    """Return the state of a migration in words, after its events."""
    from congruence.upgrade.migrate.journal import SEEN

    rows = f"{status['rows_mapped']:,} of {status['rows']:,} rows are mapped"
    if "reembedded" in status:
        rows += f", and {status['reembedded']:,} of these are re-embedded"
    return [
        *(f"{event['at'].replace('T', ' ')}  {event['what']}" for event in status["events"]),
        f"{status['place']}: readers see {SEEN[status['state']]}. {rows}.",
        f"Left to do: {_LEFT[status['state']]}.",
    ]
