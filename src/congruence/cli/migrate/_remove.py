"""The end of a migration: remove the old vectors, or the new ones."""

from __future__ import annotations

import typer

from congruence.cli.migrate._step import ask, opened


def remove(ctx: typer.Context, journal: str | None, yes: bool, as_json: bool, which: str | None = None) -> None:
    """Remove the vectors of one model after asking; ``which`` is ``"old"``, ``"new"`` or None for the ones that readers
    do not see.
    """
    with opened(ctx, journal) as step:
        migration = step.migration
        state = migration.status()["state"]
        which = which or ("old" if state in ("switched", "dropped") else "new")
        rows = f"{migration.info.rows:,} rows of {migration.info.place}"
        # Without asking if the step refuses this state anyway.
        if which == "old":
            ask(f"Remove the old vectors of {rows} for good?", yes or state != "switched")
            migration.drop_old()
            step.report("drop-old", {"dropped": True}, ["Removed the old vectors."], as_json)
        else:
            ask(f"Remove the new vectors of {rows}?", yes or state in ("switched", "dropped"))
            migration.discard()
            step.forget()
            step.report("discard", {"discarded": True}, ["Removed the new vectors."], as_json)
