"""The page of the command line, generated from the program that typer builds."""

from __future__ import annotations

import re
from typing import Any

import typer.main

__all__ = ["page", "section"]

_INTRODUCTION = """# Commands

This page is generated from the code and has the text of `congruence COMMAND --help`. Reports go to standard output (`--json` for programs), progress to standard
error. Exit codes: 0: success; 1: a check or verdict is negative; 2: bad input, or an error of the operating system, with a one-sentence message; 70: a bug; 74:
standard output cannot be written; 128 plus the number of a signal ([reliability](reliability.md)). Shells complete commands and options ([install](install.md#completion)).
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
    """Return the names and commands in the order of the help; commands in groups have their full names."""
    commands = []
    for name, command in group.commands.items():
        if getattr(command, "commands", None):
            commands += _commands(command, f"{before}{name} ")
        elif not command.hidden:
            commands.append((f"{before}{name}", command))
    return commands


def section(name: str, command: Any) -> str:
    """Return the section of one command: usage, description, arguments and options.

    Parameters
    ----------
    name : str
        Name of the command, as typed after ``congruence``.
    command : typer.core.TyperCommand

    Returns
    -------
    str
    """
    shown = [param for param in command.params if not getattr(param, "hidden", False) and param.name != "help"]
    arguments = [param for param in shown if param.param_type_name == "argument"]
    options = [param for param in shown if param.param_type_name == "option"]
    usage = " ".join(["congruence", name, *map(_usage, arguments), *(["[OPTIONS]"] if options else [])])
    lines = [f"## congruence {name} {{: #congruence-{name.replace(' ', '-')} }}", "", "```text", usage, "```", ""]
    lines += [*_escape(command.help or "").strip().splitlines(), ""]
    if arguments:
        lines += ["| argument | |", "| --- | --- |"]
        lines += [f"| `{_name(argument)}` | {_cell(argument.help or '')} |" for argument in arguments]
        lines += [""]
    if options:
        lines += ["| option | | default |", "| --- | --- | --- |"]
        lines += [f"| {_flags(option)} | {_cell(option.help or '')} | {_default(option)} |" for option in options]
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
    """Return an option's flags, longest first, and the type of its value."""
    flags = sorted(option.opts, key=len, reverse=True)
    text = ", ".join(f"`{flag}`" for flag in flags)
    if option.secondary_opts:
        text += " / " + ", ".join(f"`{flag}`" for flag in option.secondary_opts)
    kind = "" if option.is_flag else f" {option.metavar or _kind(option)}"
    return text + kind + (" (required)" if option.required else "") + (", repeatable" if option.multiple else "")


def _kind(option: Any) -> str:
    """Return the type of an option's value as the help shows it."""
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
