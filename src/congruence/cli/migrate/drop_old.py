"""``congruence migrate URL drop-old``: remove the old vectors."""

from __future__ import annotations

import typer

from congruence.cli._options import Json
from congruence.cli.migrate._remove import remove
from congruence.cli.migrate._step import Journal, Yes


def command(
    ctx: typer.Context,
    yes: Yes = False,
    journal: Journal = None,
    as_json: Json = False,
) -> None:
    """Remove the old vectors after the switch. This cannot be undone.

    Example: congruence migrate library/photos.lance drop-old --yes
    """
    remove(ctx, journal, yes, as_json, "old")
