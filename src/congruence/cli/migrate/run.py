"""``congruence migrate URL run``: write the new vectors next to the old ones, and verify them."""

from __future__ import annotations

from typing import Any

import typer

from congruence.cli._base import Bars, say_error
from congruence.cli._options import option, settable, with_groups
from congruence.cli.migrate._begin import SETTINGS, Beginning, BeginOptions, print_plan
from congruence.cli.migrate._step import Step, ask, opened
from congruence.cli.migrate._verify import print_verification, verify


@with_groups
def command(
    ctx: typer.Context,
    *,
    options: BeginOptions,
    settings: dict[str, Any] = settable(**SETTINGS),
    yes: bool = option(False, "Do not ask before anything is written.", "--yes", "-y"),
) -> None:
    """Write the new vectors next to the old ones, and verify them; run it again to continue after an interruption.

    Example: congruence migrate library/photos.lance run --from checked --yes
    """
    from congruence.upgrade.migrate.plan import refuse

    beginning = Beginning(options, settings)
    with opened(ctx, options.journal, given=beginning.given, begin=beginning) as step:
        if step.migration.journal is None:
            planned = beginning.plan(step)
            if not options.as_json:
                print_plan(planned)
            refuse(planned, anyway=beginning.given.get("anyway", False))
            ask(f"Write {planned.rows:,} new vectors next to the old ones?", yes)
        with Bars(options.as_json) as bars:
            _write(step, beginning, bars)
            verification = verify(step.migration, bars, least_recall=beginning.given.get("least_recall", 0.9))
        if not options.as_json:
            print_verification(verification, step.migration)
        step.report("run", verification.to_dict(), [], options.as_json)
        if not verification.passed:
            raise typer.Exit(1)


def _write(step: Step, beginning: Beginning, bars: Bars) -> None:
    """Write the new vectors; if this fails, report how to continue."""
    migration, resume = step.migration, step.migration.journal is not None
    if not resume:
        step.keep(**beginning.kept)
    try:
        migration.run(
            certificate=beginning.certificate,
            **beginning.flags(step),
            resume=resume,
            anyway=beginning.given.get("anyway", False),
            rate=beginning.given.get("rate"),
            callback=bars.advance,
            stage=lambda label: bars.begin(label, migration.info.rows),
        )
    except BaseException:
        bars.close()
        if migration.journal is None:
            step.forget()
        elif migration.journal.state not in ("switched", "dropped"):
            say_error(f"The journal is in {migration.folder}. To continue: {step.command('run')}")
        raise
