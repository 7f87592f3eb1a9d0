"""``congruence migrate URL discard``: remove the new vectors."""

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
    """Remove the new vectors, as long as readers do not see them.

    Example: congruence migrate library/photos.lance discard --yes
    """
    remove(ctx, journal, yes, as_json, "new")
