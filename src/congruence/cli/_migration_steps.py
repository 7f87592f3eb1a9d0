"""The actions of ``migrate``, with the confirmations they ask for and the lines they print."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from congruence.cli._bars import Bars
    from congruence.databases import Database
    from congruence.embeddings import Embeddings
    from congruence.engines import EngineExecutor
    from congruence.upgrade.migrate import Migration, Plan, Verification

__all__ = [
    "confirm_plan",
    "discard",
    "drop_old",
    "local_executor",
    "make_executor",
    "rollback",
    "run",
    "shell_command",
    "switch",
    "thresholds",
    "verify",
]


def shell_command(where: str, action: str, **options: str | None) -> str:
    """Return the shell command for a later step: the address without its secrets, and the options that identify the
    vectors.
    """
    import shlex

    from congruence.databases import Address

    address = Address.parse(where)
    words = ["congruence", "migrate", address.shown if address.secrets else where, action]
    for name, value in options.items():
        words += [] if value is None else [f"--{name}", value]
    return shlex.join(words)


def make_executor(
    engine: str, address: str | None, workers: int | None, action: str, *, reembeds: bool
) -> EngineExecutor | None:
    """Return what runs a migration's passes on another engine; None for this process.

    Raises ParameterError for actions that an engine cannot run.
    """
    from congruence.cli._engines import make_engine, runs_by_fragments
    from congruence.errors import ParameterError

    if not runs_by_fragments(engine, "", "", {"--address": address, "--workers": workers}):
        return None
    if reembeds or action not in ("run", "switch", "rollback"):
        raise ParameterError(
            f"Got --engine {engine} for {'reembed' if reembeds else action}; expected --engine with run, "
            "switch or rollback only. Leave it out."
        )
    from congruence.engines import EngineExecutor

    return EngineExecutor(make_engine(engine, address, workers, 0))


def local_executor(database: Database, *, reembeds: bool) -> EngineExecutor | None:
    """Return what runs the passes in this process for a database that accepts whole files only, else None.

    Raises ParameterError for reembed.
    """
    from congruence.databases import Partitioned
    from congruence.errors import ParameterError

    if not isinstance(database, Partitioned) or not database.whole_files_only:
        return None
    if reembeds:
        raise ParameterError(
            f"Got {database.info().place} in an object store, whose rows cannot be re-embedded; expected a "
            "table in a local folder. Copy the table to a local folder, and re-embed rows there."
        )
    from congruence.engines import EngineExecutor, LocalEngine

    return EngineExecutor(LocalEngine())


def run(
    migration: Migration, bars: Bars, *, certificate: Mapping[str, object] | None, resume: bool, anyway: bool
) -> None:
    """Write the new vectors next to the old ones; if this fails, report where the journal is."""
    from congruence.cli._base import say_error

    try:
        migration.run(
            certificate=certificate,
            resume=resume,
            anyway=anyway,
            callback=bars.advance,
            stage=lambda label: bars.begin(label, migration.info.rows),
        )
    except BaseException:
        bars.close()
        if migration.journal is not None and migration.folder.exists():
            say_error(f"The journal is in {migration.folder}. Run the command again with --resume to continue.")
        raise


def verify(
    migration: Migration, bars: Bars, as_json: bool, *, heldout: Embeddings | None, least_recall: float
) -> Verification:
    """Verify the new vectors, and return the result."""
    from congruence.cli._migration import print_quantization, print_verification

    bars.begin("verifying", migration.info.rows)
    verification = migration.verify(heldout=heldout, least_recall=least_recall, callback=bars.advance)
    bars.close()
    if not as_json:
        print_verification(verification)
        print_quantization(migration)
    return verification


def switch(migration: Migration, bars: Bars, as_json: bool) -> dict[str, object]:
    """Switch readers to the new vectors, and return the report as plain data."""
    from congruence.cli._base import say

    bars.begin("comparing", migration.info.rows)
    result = migration.switch(callback=bars.advance)
    bars.close()
    if not as_json:
        say(
            f"switched: readers see the new vectors of {result['rows']:,} rows. The old ones are kept: "
            "rollback restores them, drop-old removes them"
        )
        say(f"summary: {migration.folder / 'summary.json'}")
    return result


def rollback(migration: Migration, as_json: bool) -> dict[str, object]:
    """Switch readers back to the old vectors, and return the report as plain data."""
    from congruence.cli._base import say

    result = migration.rollback()
    if not as_json:
        state = {True: "bit for bit as before", False: "changed by others since", None: "not compared"}[
            result["identical"]
        ]
        say(f"rolled back: readers see the old vectors of {result['rows']:,} rows, {state}")
    return result


def drop_old(migration: Migration, as_json: bool, *, yes: bool) -> dict[str, object]:
    """Remove the old vectors after confirmation, and return the report as plain data."""
    from congruence.cli._base import say

    if not yes:
        _ask("Remove the old vectors for good?")
    migration.drop_old()
    if not as_json:
        say("removed the old vectors")
    return {"dropped": True}


def discard(migration: Migration, as_json: bool, *, yes: bool) -> dict[str, object]:
    """Remove the new vectors after confirmation, and return the report as plain data."""
    from congruence.cli._base import say

    if not yes:
        _ask("Remove the new vectors?")
    migration.discard()
    if not as_json:
        say("removed the new vectors")
    return {"discarded": True}


def thresholds(
    migration: Migration,
    as_json: bool,
    values: Sequence[float],
    *,
    queries: Embeddings | None,
    queries_old: Embeddings | None,
    among: str | None,
) -> None:
    """Translate thresholds of the old model, and print the results."""
    from congruence.cli._base import print_json
    from congruence.cli._thresholds import print_thresholds

    fitted = migration.fit_thresholds(queries, queries_old, among=among)
    translated = [fitted.translate(value) for value in values]
    if as_json:
        facts = fitted.describe()
        print_json({"action": "thresholds", **facts, "thresholds": [row.to_dict() for row in translated]})
    else:
        print_thresholds(translated)


def confirm_plan(plan: Plan) -> None:
    """Ask for confirmation of a plan. Raises ParameterError if standard input is not a terminal."""
    _ask(f"Write {plan.rows:,} new vectors next to the old ones?")


def _ask(question: str) -> None:
    """Ask for confirmation, and exit with 1 if it is denied.

    Raises ParameterError if standard input is not a terminal.
    """
    import sys

    from congruence.errors import ParameterError

    if not sys.stdin.isatty():
        raise ParameterError(
            "Got no terminal to ask for confirmation before data are changed; expected a terminal, or --yes. "
            "Pass --yes to confirm in advance."
        )
    if not typer.confirm(question, err=True):
        raise typer.Exit(1)
