"""The command line: one file a command, reports on standard output, everything else on standard error.

Exit codes: 0 fine, 1 a verdict says no, 2 bad input (one sentence, nothing written).
"""

from __future__ import annotations

import os
import sys

import typer

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

app = typer.Typer(
    name="congruence",
    help="Find the rigid motion between two embedding spaces, and carry vectors across it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("fit")(fit.command)
app.command("transform", cls=transform.Command)(transform.command)
app.command("evaluate")(evaluate.command)
app.command("inspect")(inspect.command)
app.command("export")(export.command)
app.command("certify")(certify.command)
app.command("similarity")(similarity.command)
app.command("match")(match.command)
app.command("negatives")(negatives.command)
app.command("shift")(shift.command)
app.command("embed")(embed.command)
app.command("train")(train.command)
app.command("report")(report.command)
app.command("datasets")(datasets.command)
app.command("reproduce")(reproduce.command)
app.command("demo")(demo.command)


def _version(show: bool) -> None:
    if show:
        from congruence import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Find the rigid motion between two embedding spaces, and carry vectors across it."""


def main() -> None:
    """Run the command line; errors of this library become one sentence and exit code 2."""
    import warnings

    from congruence.errors import CongruenceError

    def show(message: Warning | str, *_: object, **__: object) -> None:
        print(f"warning: {message}", file=sys.stderr)

    warnings.showwarning = show
    try:
        app()
    except CongruenceError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("error: interrupted; nothing was written.", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output went away: not our failure
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
