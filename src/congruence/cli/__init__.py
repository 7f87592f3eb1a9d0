"""The command line: one module per command; reports go to standard output, everything else to standard error.

Exit codes: 0 success; 1 a negative verdict; 2 invalid input, or a failure of the machine (one sentence); 70 a bug; 74
standard output cannot be written; 128 plus the number of a signal; 141 the reader of the output has closed it. See
docs/reliability.md.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from contextvars import ContextVar
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

from congruence._utils.atomic import published
from congruence._utils.display import visible
from congruence._utils.process import start_command
from congruence.cli._base import (
    check_not_input,
    number,
    print_json,
    print_table,
    progress,
    refuse_passwords,
    say,
    say_error,
    spelling,
)
from congruence.cli._ending import (
    OutputLostError,
    Shielded,
    Stopped,
    discard_output,
    explain,
    guarded,
    named_by,
    stoppable,
)
from congruence.cli._options import PlainValues

__all__ = [
    "app",
    "check_not_input",
    "main",
    "number",
    "print_json",
    "print_table",
    "progress",
    "say",
    "say_error",
]  # the program, and what commands that other packages add may use

#: Line breaks and tabs are kept in messages, because messages of other libraries have several lines.
LINES = "\n\t"

#: The program with all commands.
app: typer.Typer


class _Group(PlainValues, TyperGroup):
    """A group of commands."""


class _Command(PlainValues, TyperCommand):
    """A command whose messages name its flags."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        _context.set(ctx)
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Stopped(signal.SIGINT) from None
        except (EOFError, BrokenPipeError) as error:
            raise Shielded from error

    def tell(self, problem: Any) -> str:
        """Return the message of an error or warning of the library, with this command's own flags."""
        settable: frozenset[str] = frozenset()
        if any("--set" in option.opts for option in self.params):
            from congruence.train import METHODS

            settable = frozenset(name for method in METHODS.values() for name in method().get_params())
        return str(problem.message(*spelling(self.params, settable)))


#: Context of the command that is running or ran last: its options name the flags in messages, and which outputs were
#: written.
_context: ContextVar[Any] = ContextVar("_context", default=None)


def _version(show: bool) -> None:
    if show:
        from congruence import __version__

        print(__version__)
        raise typer.Exit


def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Switch a search index to another embedding model without re-encoding everything.

    For a demonstration, run: congruence demo.
    """


#: Commands in the order of the help, grouped by purpose; the four commands of an upgrade come first. Each is
#: ``command`` in the module of its name.
GROUPS = {
    "Upgrade a model": ("certify", "fit", "migrate", "bridge"),
    "Around an upgrade": (
        *("demo", "anchors", "embed", "transform", "evaluate", "inspect", "export", "search"),
        *("serve", "report", "doctor", "drift", "exposure", "info", "plan"),
    ),
    "Research": ("similarity", "match", "shift", "train"),
}

COMMANDS = tuple(name for names in GROUPS.values() for name in names)


def _added() -> dict[str, EntryPoint]:
    """Return the commands that packages add as entry points of the group ``congruence.commands``, by name."""
    return {point.name: point for point in sorted(entry_points(group="congruence.commands"), key=lambda one: one.name)}


_GROUP_OF = {name: group for group, names in GROUPS.items() for name in names}


def _build(names: Sequence[str] | None = None, *, frames: bool = True) -> typer.Typer:
    """Return the program with the given commands, by default all, whose modules are imported here."""
    names = (*COMMANDS, *_added()) if names is None else names
    program = typer.Typer(
        name="congruence",
        cls=_Group,
        help=_root.__doc__,
        no_args_is_help=True,
        add_completion=len(names) > 1,  # only the whole program offers completion, not a process that runs one command
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    program.callback()(_root)
    for name in names:
        command = import_module(f"congruence.cli.{name}").command if name in COMMANDS else _added()[name].load()
        program.command(name, cls=_Command, rich_help_panel=_GROUP_OF.get(name, "Research"))(command)
    if frames:
        from congruence.cli import frame

        group = typer.Typer(
            cls=_Group,
            help="Many models in one coordinate frame: fit it, add models, and extract maps.",
            no_args_is_help=True,
        )
        for name, function in (("fit", frame.fit), ("add", frame.add), ("map", frame.take)):
            group.command(name, cls=_Command)(function)
        program.add_typer(group, name="frame", rich_help_panel="Research")
    return program


def __getattr__(name: str) -> Any:
    """Build the program with all commands on request; a process that runs a single command does not need the others."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()["app"] = program = _build()
    return program


@cache
def _program(command: str) -> Any:
    """Return the program with this command only (reading the options of all commands takes 0.1 s), or with all if there
    is no such command.
    """
    if command in COMMANDS or (command and command in _added()):
        return typer.main.get_command(_build((command,), frames=False))
    return typer.main.get_command(_build(() if command == "frame" else None))


def main() -> None:
    """Run the command line; every failure ends with one sentence and an exit code."""
    import warnings

    def tell(problem: object) -> str:
        context = _context.get()
        return context.command.tell(problem) if context and hasattr(problem, "message") else str(problem)

    def show(message: Warning | str, *_: object, **__: object) -> None:
        text = tell(message)
        print(f"warning: {visible(text, keep=LINES)}", file=sys.stderr)

    start_command()
    warnings.showwarning = show
    written: list[Path] = []
    published.set(written)
    _context.set(None)
    with guarded():
        try:
            try:
                with stoppable():
                    refuse_passwords(sys.argv[1:])
                    _program(sys.argv[1] if len(sys.argv) > 1 else "")(prog_name="congruence")
            except SystemExit as end:
                if not end.code:
                    sys.stdout.flush()  # here, while a failure can still be reported
                raise
        except SystemExit:
            raise
        except BaseException as error:
            cause = error.__cause__ if isinstance(error, Shielded) else error
            message, code = explain(cause or error, named_by(_context.get(), written), tell)
            if message:
                print(f"error: {visible(message, keep=LINES)}", file=sys.stderr)
            with suppress(OutputLostError):
                sys.stdout.flush()
            if isinstance(error, OutputLostError):
                discard_output()
            sys.exit(code)
