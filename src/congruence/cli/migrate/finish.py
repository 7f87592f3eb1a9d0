"""``congruence migrate URL finish``: remove the vectors that readers do not see."""

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
    """Remove the vectors that readers do not see: after a switch the old ones (drop-old), else the new ones (discard).

    Example: congruence migrate library/photos.lance finish --yes
    """
    remove(ctx, journal, yes, as_json)
