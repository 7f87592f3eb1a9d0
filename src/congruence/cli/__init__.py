"""The command line: one module per command; reports go to standard output, everything else to standard error.

Exit codes stand in the help of the program and in docs/reference/reliability.md.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from inspect import cleandoc
from pathlib import Path
from typing import Any

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

from congruence._utils.atomic import published
from congruence._utils.display import visible
from congruence._utils.process import start_command
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
from congruence.cli._input import refuse_passwords, spelling
from congruence.cli._options import PlainValues, with_groups
from congruence.cli._output import number, print_json, print_table, progress, say, say_error
from congruence.errors import ParameterError

#: The program, and what commands that other packages add may use.
__all__ = ["app", "main", "number", "print_json", "print_table", "progress", "say", "say_error"]

LINES = "\n\t"  # line breaks and tabs are kept in messages, because messages of other libraries have several lines

#: A line break with the spaces around it.
_BREAK = r"\s*[\n\r]\s*"

#: The program with all commands.
app: TyperGroup


class _Group(PlainValues, TyperGroup):
    """A group of commands, each of which is imported when it is asked for: reading the options of all takes 0.2 s."""

    #: Panel and module of each command, in the order of the help.
    commands_in: Mapping[str, tuple[str | None, str]] = {}

    #: Commands that packages add as entry points of this group, by name.
    added: Mapping[str, EntryPoint] = {}

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands."""
        return [*self.commands_in, *self.added]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the words name. An old word, or one of another group, is answered with the command to
        type.
        """
        names = self.list_commands(ctx)
        if args[0] in names or args[0][:1] == "-" or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        path = [*_typed(ctx), *_arguments(ctx)]
        meant = _MEANT.get(" ".join([*path[1:], args[0]])) or _same_name(args[0])
        near = get_close_matches(args[0], names, 1)
        words = ["congruence", meant] if meant else [*path, *(near or ["--help"])]
        raise ParameterError(
            f"There is no command {' '.join([*path, args[0]])}.",
            f"Type: {' '.join([*words, *map(shlex.quote, args[1:] if meant or near else ())])}",
        )

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Read the words; without any, show the help."""
        if not args and not ctx.resilient_parsing:
            print(ctx.get_help())
            ctx.exit(2)
        return super().parse_args(ctx, args)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command of that name, or None."""
        if cmd_name in self.added:
            return _command(cmd_name, self.added[cmd_name].load())
        if cmd_name not in self.commands_in:
            return None
        panel, path = self.commands_in[cmd_name]
        module = import_module(f"{__name__}.{path}")
        if own := getattr(module, cmd_name.replace("-", "_"), None):
            return _command(cmd_name, own, panel)
        group = _group(cmd_name, module.command, panel)
        group.commands_in = {name: (None, where) for name, where in module.ACTIONS.items()}
        if points := getattr(module, "ENTRY_POINTS", None):  # which reads a file of every installed package
            group.added = {point.name: point for point in sorted(entry_points(group=points), key=lambda one: one.name)}
        return group


class _Command(PlainValues, TyperCommand):
    """A command whose messages name its flags."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Read the options. One that is a setting is answered with what to type."""
        known = {flag for option in self.get_params(ctx) for flag in (*option.opts, *option.secondary_opts)}
        words = args[: args.index("--")] if "--" in args else args
        for word, following in zip(words, [*args[1:], "-"], strict=False):
            flag, _, value = word.partition("=")
            if flag[:2] != "--" or flag in known or ctx.resilient_parsing:
                continue
            if says := _as_setting(flag[2:].replace("-", "_"), value, following, self._settable()):
                raise ParameterError(f"There is no option {flag} of {' '.join(_typed(ctx))}.", f"Type: {says}")
        try:
            return super().parse_args(ctx, args)
        except _UsageError as error:
            error.ctx = error.ctx or ctx  # which the parser of the words does not know
            if listed := getattr(self.callback, "without_value", {}).get(getattr(error, "option_name", None)):
                raise listed() from None
            raise

    def invoke(self, ctx: Any) -> Any:
        """Run the command, unless an output of it is one of the files that it reads."""
        _context.set(ctx)
        _check_outputs(ctx.params)
        try:
            return super().invoke(ctx)
        except (KeyboardInterrupt, typer.Abort) as error:
            stopped = Stopped(signal.SIGINT)
            for note in getattr(error, "__notes__", ()):
                stopped.add_note(note)
            raise stopped from None
        except (EOFError, BrokenPipeError) as error:
            raise Shielded from error

    def tell(self, problem: Any) -> str:
        """Return the message of an error or warning of the library, with this command's own flags."""
        see = f"See: {' '.join(_typed(_context.get()))} --help"
        names = getattr(self.callback, "argument_names", None)
        return str(problem.message(*spelling(self.params, self._settable(), names), see))

    def _settable(self) -> Mapping[str, Any]:
        """Return what ``--set`` accepts."""
        known: Any = getattr(self.callback, "settable", {})
        return known() if callable(known) else known


def _as_setting(name: str, value: str, following: str, settable: Mapping[str, Any]) -> str | None:
    """Return what to type instead of an unknown option that is a setting; None if it is none."""
    if name in settable:
        if settable[name] is bool or isinstance(settable[name], bool):
            value = value or "true"
        elif following[:1] != "-":
            value = value or following
        return f"--set {shlex.quote(f'{name}=' + (value or 'VALUE'))}"
    off = name.removeprefix("no_")
    return f"--set {off}=false" if off in settable else None


def _check_outputs(given: Mapping[str, Any]) -> None:
    """Check that no output is a file that another option or argument names, not even through a link."""
    for name in ("out", "plot", "report"):
        if given.get("force") is False or not isinstance(out := given.get(name), str) or not os.path.isfile(out):
            continue  # without --force no file is replaced
        for value in (value for other, value in given.items() if other != name):
            for text in [value] if isinstance(value, str) else value if isinstance(value, (list, tuple)) else ():
                for path in (str(text), *re.split("[=,:]", str(text))):  # of NAME=FILE, OLD,NEW and FILE:COLUMN
                    if os.path.isfile(path) and os.path.samefile(out, path):
                        raise ParameterError(f"The output {out} is the source {path}.", f"Pass another --{name}.")


def _typed(ctx: Any) -> list[str]:
    """Return the names of a command and of its groups, with the arguments that were typed between them."""
    return [ctx.info_name] if ctx.parent is None else [*_typed(ctx.parent), *_arguments(ctx.parent), ctx.info_name]


def _arguments(ctx: Any) -> list[str]:
    """Return the arguments of a command that were typed."""
    names = [one.name for one in ctx.command.params if one.param_type_name == "argument"]
    return [ctx.params[name] for name in names if name in ctx.params]


_UsageError: Any = typer.BadParameter.__base__  # what typer raises for words that are no command


def _refusal(error: Any) -> ParameterError:
    """Return an error of typer as one of this library, with what to type."""
    if error.ctx is None:
        return ParameterError(error.format_message())
    path, command = _typed(error.ctx), error.ctx.command
    said = " ".join(error.format_message().split()).rstrip(".")
    if isinstance(command, _Group) and (given := _arguments(error.ctx)):
        first, *others = command.list_commands(error.ctx)
        return ParameterError(f"{said}.", f"Type: {shlex.join([*path, *given, first])} (or {', '.join(others)})")
    example = said.startswith("Missing") and re.search(r"Example: (.*)", command.help or "")
    return ParameterError(
        f"{said}.", f"Type, for example: {example[1]}" if example else f"Type: {shlex.join(path)} --help"
    )


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
    """Change the embedding model of a vector index without encoding everything again.

    Example: congruence demo

    Reports go to standard output (as JSON with --json), progress and messages to standard error; NO_COLOR=1 turns off
    colors. Exit codes: 0 success; 1 done, and the answer is no (check, lab doctor and lab drift: only with
    --exit-code); 2 invalid input or a failure of the machine, said in one sentence with what to type; 70 a bug; 74 the
    report cannot be written; 128 plus the number of a signal; 141 the reader of the report is gone. For tab completion,
    run: congruence --install-completion
    """


#: Commands in the order of the help, grouped by purpose. Each is the function of its name in the module of its name. A
#: module without this function is a group: ``ACTIONS`` has the module of each of its commands, and ``command`` takes
#: what they share.
PANELS = {
    "Change the model of an index": ("demo", "check", "migrate", "bridge", "embed"),
    "Building blocks": ("fit", "transform", "inspect", "search", "train", "report"),
    "Measurements and research": ("lab",),
}


#: What other words mean, by the command that they follow.
_MEANT = {"certify": "check", "serve": "bridge serve", "export": "bridge export", "bridge index": "bridge search"}


def _same_name(name: str) -> str | None:
    """Return the command of a group that has this name, if there is one."""
    program = _program(complete=False)
    for group in ("lab", "bridge", "migrate URL"):
        if name in program.get_command(None, group.split()[0]).list_commands(None):
            return f"{group} {name}"
    return None


def _command(name: str, function: Callable[..., None], panel: str | None = None) -> Any:
    """Return a command."""
    program = typer.Typer(add_completion=False)
    program.command(name, cls=_Command, rich_help_panel=panel, help=_paragraphs(function))(with_groups(function))
    return typer.main.get_command(program)


def _paragraphs(function: Callable[..., None]) -> str:
    """Return the docstring of a command with one line per paragraph: the terminal breaks them."""
    return re.sub(r"(?<!\n)\n(?!\n)", " ", cleandoc(function.__doc__ or ""))


def _group(name: str, function: Callable[..., None], panel: str | None = None, **options: Any) -> Any:
    """Return a group without commands; ``function`` takes what all its commands share."""
    program = typer.Typer(name=name, **{"add_completion": False, **options})
    program.callback(cls=_Group, help=_paragraphs(function))(function)
    group = typer.main.get_command(program)
    group.rich_help_panel = panel  # type: ignore[attr-defined]
    return group


def _program(*, complete: bool) -> Any:
    """Return the program, with or without the options that install completion, whose reading takes 0.1 s."""
    settings = {"help_option_names": ["-h", "--help"]}
    program = _group("congruence", _root, add_completion=complete, context_settings=settings)
    program.commands_in = {name: (panel, name) for panel, names in PANELS.items() for name in names}
    return program


def __getattr__(name: str) -> Any:
    """Build the program on request: tests and completion want it, ``main`` makes its own."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()["app"] = program = _program(complete=True)
    return program


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
                    program = _program(complete=not sys.argv[1:] or sys.argv[1].startswith("-"))
                    code = program(prog_name="congruence", standalone_mode=False)
                if not code:
                    sys.stdout.flush()  # here, while a failure can still be reported
                sys.exit(code)
            except _UsageError as error:
                raise _refusal(error) from None
        except SystemExit:
            raise
        except BaseException as error:
            cause = error.__cause__ if isinstance(error, Shielded) else error
            cause = cause or error
            message, code = explain(cause, named_by(_context.get(), written, cause), tell)
            if message:
                # One line, whatever names a file holds and another library says.
                print(f"error: {visible(re.sub(_BREAK, ' ', message), keep=LINES)}", file=sys.stderr)
            with suppress(OutputLostError):
                sys.stdout.flush()
            if isinstance(error, OutputLostError):
                discard_output()
            sys.exit(code)
