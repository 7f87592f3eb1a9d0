"""The command line: one file a command, reports on standard output, everything else on standard error.

Exit codes: 0 fine, 1 a verdict says no, 2 bad input (one sentence, nothing written).
"""

from __future__ import annotations

import os
import sys
from contextvars import ContextVar
from typing import Any

import typer
from typer.core import TyperCommand

from congruence._display import visible
from congruence.cli import (
    certify,
    datasets,
    demo,
    embed,
    evaluate,
    export,
    fit,
    inspect,
    match,
    negatives,
    report,
    reproduce,
    shift,
    similarity,
    train,
    transform,
)
from congruence.cli._base import name_flags
from congruence.cli._signals import Stopped, stoppable

#: What a message may hold besides words: those of other libraries have lines.
LINES = "\n\t"


class _Command(TyperCommand):
    """A command whose errors name its flags where the library names arguments."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command, and let errors of this library pass with their messages rewritten."""
        from congruence.errors import CongruenceError

        running = _running.set(self)
        try:
            return super().invoke(ctx)
        except CongruenceError as error:
            text = self.as_typed(error)
            error.args = (text,)
            if isinstance(error, ImportError):  # which prints this instead
                error.msg = text
            raise
        finally:
            _running.reset(running)

    def as_typed(self, message: object) -> str:
        """Return the message of an error or warning as this command should show it."""
        settable: frozenset[str] = frozenset()
        if any("--set" in option.opts for option in self.params):
            from congruence.train import METHODS

            settable = frozenset(name for method in METHODS.values() for name in method._get_param_names())
        return name_flags(str(message), self.params, settable)


class _TransformCommand(_Command):
    """Lets ``--normalize`` alone mean ``--normalize yes``, as it did before it took a value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert the value where there is none."""
        given = []
        for arg, following in zip(args, [*args[1:], ""], strict=True):
            given += [arg, "yes"] if arg == "--normalize" and following not in transform.NORMALIZE else [arg]
        return super().parse_args(ctx, given)


#: The command that is running, for the messages of warnings.
_running: ContextVar[_Command | None] = ContextVar("_running", default=None)

app = typer.Typer(
    name="congruence",
    help="Find the rigid motion between two embedding spaces, and map vectors across it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("fit", cls=_Command)(fit.command)
app.command("transform", cls=_TransformCommand)(transform.command)
app.command("evaluate", cls=_Command)(evaluate.command)
app.command("inspect", cls=_Command)(inspect.command)
app.command("export", cls=_Command)(export.command)
app.command("certify", cls=_Command)(certify.command)
app.command("similarity", cls=_Command)(similarity.command)
app.command("match", cls=_Command)(match.command)
app.command("negatives", cls=_Command)(negatives.command)
app.command("shift", cls=_Command)(shift.command)
app.command("embed", cls=_Command)(embed.command)
app.command("train", cls=_Command)(train.command)
app.command("report", cls=_Command)(report.command)
app.command("datasets", cls=_Command)(datasets.command)
app.command("reproduce", cls=_Command)(reproduce.command)
app.command("demo", cls=_Command)(demo.command)


def _version(show: bool) -> None:
    if show:
        from congruence import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Find the rigid motion between two embedding spaces, and map vectors across it."""


def main() -> None:
    """Run the command line; errors of this library become one sentence and exit code 2."""
    import warnings

    from congruence.errors import CongruenceError

    def show(message: Warning | str, *_: object, **__: object) -> None:
        command = _running.get()
        text = str(message) if command is None else command.as_typed(message)
        print(f"warning: {visible(text, keep=LINES)}", file=sys.stderr)

    warnings.showwarning = show
    try:
        with stoppable():
            app()
    except Stopped as stopped:
        print("error: stopped by a signal; nothing was written.", file=sys.stderr)
        sys.exit(stopped.code)
    except CongruenceError as error:
        print(f"error: {visible(str(error), keep=LINES)}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("error: interrupted; nothing was written.", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output went away: not our failure
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
