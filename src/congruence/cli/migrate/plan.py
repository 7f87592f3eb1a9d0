"""``congruence migrate URL plan``: what a run would do and cost."""

from __future__ import annotations

from typing import Any

import typer

from congruence.cli._base import print_json, say
from congruence.cli._options import settable, with_groups
from congruence.cli.migrate._begin import SETTINGS, Beginning, BeginOptions, print_plan
from congruence.cli.migrate._step import opened
from congruence.errors import MigrationError


@with_groups
def command(ctx: typer.Context, *, options: BeginOptions, settings: dict[str, Any] = settable(**SETTINGS)) -> None:
    """Report what a run would do, and check all that can be checked in advance; nothing is changed.

    Example: congruence migrate library/photos.lance plan --from checked
    """
    from congruence.upgrade.migrate.plan import refuse

    beginning = Beginning(options, settings)
    with opened(ctx, options.journal, given=beginning.given, begin=beginning) as step:
        if (journal := step.migration.journal) is not None:
            raise MigrationError(
                f"This migration has already begun and is {journal.state} ({step.migration.folder}).",
                f"Type: {step.command('status')}",
            )
        planned = beginning.plan(step)
        following = step.command("run", *options.words(settings))
        print_json({**planned.to_dict(), "next": following}) if options.as_json else print_plan(planned)
        refuse(planned, anyway=True)
        if planned.refused:
            raise typer.Exit(1)  # the certificate advises against it
        if not options.as_json:
            say(f"Next: {following}")
