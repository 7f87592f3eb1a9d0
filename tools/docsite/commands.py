"""The page of the command line, made of the program that typer builds of the code."""

from __future__ import annotations

import re
from typing import Any

import typer.main

__all__ = ["page", "section"]

_INTRODUCTION = """# Commands

Made of the code: what `congruence COMMAND --help` says. Reports go to standard output (`--json` for programs), progress to standard error. Exit codes: 0 fine; 1 a
verdict says no; 2 bad input, or a machine that refuses, in one sentence; 70 a bug; 74 standard output cannot be written; 128 and the number of a signal
([reliability](reliability.md)). Shells complete commands and options ([install](install.md#completion)).
"""


def page() -> str:
    """Return the page as Markdown."""
    from congruence.cli import app

    program = typer.main.get_command(app)
    lines = [_INTRODUCTION, "| command | does |", "| --- | --- |"]
    sections = []
    for name, command in _commands(program):
        lines.append(f"| [`congruence {name}`](#congruence-{name.replace(' ', '-')}) | {_cell(_summary(command))} |")
        sections.append(section(name, command))
    return "\n".join(lines) + "\n\n" + "\n".join(sections)


def _commands(group: Any, before: str = "") -> list[tuple[str, Any]]:
    """Return the commands in the order of the help, those of groups under their full name."""
    found = []
    for name, command in group.commands.items():
        if getattr(command, "commands", None):
            found += _commands(command, f"{before}{name} ")
        elif not command.hidden:
            found.append((f"{before}{name}", command))
    return found


def section(name: str, command: Any) -> str:
    """Return the section of one command: usage, what it does, arguments and options.

    Parameters
    ----------
    name : str
        As it is typed after ``congruence``.
    command : typer's command

    Returns
    -------
    str
    """
    shown = [one for one in command.params if not getattr(one, "hidden", False) and one.name != "help"]
    arguments = [one for one in shown if one.param_type_name == "argument"]
    options = [one for one in shown if one.param_type_name == "option"]
    usage = " ".join(["congruence", name, *map(_usage, arguments), *(["[OPTIONS]"] if options else [])])
    lines = [f"## congruence {name} {{: #congruence-{name.replace(' ', '-')} }}", "", "```text", usage, "```", ""]
    lines += [*_escape(command.help or "").strip().splitlines(), ""]
    if arguments:
        lines += ["| argument | |", "| --- | --- |"]
        lines += [f"| `{_name(one)}` | {_cell(one.help or '')} |" for one in arguments]
        lines += [""]
    if options:
        lines += ["| option | | default |", "| --- | --- | --- |"]
        lines += [f"| {_flags(one)} | {_cell(one.help or '')} | {_default(one)} |" for one in options]
        lines += [""]
    return "\n".join(lines)


def _summary(command: Any) -> str:
    return re.split(r"\n\s*\n", (command.help or "").strip())[0].replace("\n", " ")


def _name(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def _usage(argument: Any) -> str:
    name = _name(argument) + ("..." if argument.nargs == -1 else "")
    return name if argument.required else f"[{name}]"


def _flags(option: Any) -> str:
    """Return an option's flags, longest first, and the kind of its value."""
    on = sorted(option.opts, key=len, reverse=True)
    text = ", ".join(f"`{flag}`" for flag in on)
    if option.secondary_opts:
        text += " / " + ", ".join(f"`{flag}`" for flag in option.secondary_opts)
    kind = "" if option.is_flag else f" {option.metavar or _kind(option)}"
    return text + kind + (" (required)" if option.required else "") + (", repeatable" if option.multiple else "")


def _kind(option: Any) -> str:
    """Return the kind of an option's value as the help shows it."""
    kind = option.type_descriptor.annotation
    return {"str": "TEXT", "int": "INTEGER", "float": "FLOAT"}.get(kind.__name__, kind.__name__.upper())


def _default(option: Any) -> str:
    value = option.default
    if option.is_flag and option.secondary_opts:
        return f"`{option.opts[0] if value else option.secondary_opts[0]}`"
    if value is None or value is False or callable(value) or (isinstance(value, str | tuple | list) and not value):
        return ""
    return f"`{' '.join(map(str, value)) if isinstance(value, list | tuple) else value}`"


def _escape(text: str) -> str:
    return re.sub(r"([<>*_\\\[\]])", r"\\\1", text)


def _cell(text: str) -> str:
    return _escape(text).replace("|", "\\|").replace("\n", " ")
