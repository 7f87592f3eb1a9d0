"""The end of a migration: remove the old vectors, or the new ones."""

from __future__ import annotations

from collections.abc import Callable

import typer

from congruence.cli._options import Json
from congruence.cli.migrate._step import Journal, Yes, ask, opened


def remover(action: str, words: str) -> Callable[..., None]:
    """Return the command of an action that removes vectors: drop-old, discard, or finish, which is one of the two."""

    def command(ctx: typer.Context, yes: Yes = False, journal: Journal = None, as_json: Json = False) -> None:
        with opened(ctx, journal) as step:
            migration = step.migration
            state = migration.status()["state"]
            fits = {"switched": "drop-old", "dropped": ""}.get(str(state), "discard")
            doing = (fits or "drop-old") if action == "finish" else action
            side = "old" if doing == "drop-old" else "new"
            if doing == fits:  # else the step refuses, and nothing has to be asked
                ask(
                    f"Remove the {side} vectors of {migration.info.rows:,} rows of {migration.info.place} for good?",
                    yes,
                )
            if doing == "drop-old":
                migration.drop_old()
            else:
                migration.discard()
                step.forget()
            step.report(doing, {"removed": side}, [f"Removed the {side} vectors."], as_json)

    command.__doc__ = f"{words}\n\n    Example: congruence migrate library/photos.lance {action} --yes\n    "
    return command
