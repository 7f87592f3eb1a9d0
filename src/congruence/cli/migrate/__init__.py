"""``congruence migrate``: move the vectors of a live database to a new model, one step after the other."""

from __future__ import annotations

import sys
from typing import Any

import typer

from congruence.errors import ParameterError

#: Commands in the order of the help, by the module that has them.
ACTIONS = dict.fromkeys(("plan", "run"), "migrate.begin")
ACTIONS |= dict.fromkeys(
    ("status", "verify", "switch", "reembed", "rollback", "drop-old", "discard", "finish"), "migrate.later"
)


def _check(ctx: Any, url: str) -> str:
    """Refuse an action in the place of the address."""
    if url in ACTIONS:
        from congruence.cli.migrate._step import shell_command

        following = [*sys.argv[sys.argv.index(url) + 1 :], "URL"][0]
        if following in ("--help", "-h"):
            ctx.command.get_command(ctx, url).main(["--help"], prog_name=f"congruence migrate URL {url}")
        where = "URL" if following[:1] == "-" else following
        raise ParameterError(
            f"Got the action {url} in place of the database, which comes first.", f"Type: {shell_command(where, url)}"
        )
    return url


def command(
    url: str = typer.Argument(
        ...,
        callback=_check,
        help="URL or path of the database, as its own clients write it: photos/items.lance, "
        "postgresql://user@host/db, http://localhost:6333, photos.duckdb, photos.parquet, …",
    ),
) -> None:
    """Move a live database to a new model: plan, run, verify, switch; then re-embed, roll back or finish.

    Example: congruence migrate library/photos.lance run --from checked

    New vectors are written next to the old ones. Readers see them only after switch, and rollback restores the old
    ones, bit for bit. Every step after run needs the address alone: the rest is in the journal, a folder migration-…
    """
