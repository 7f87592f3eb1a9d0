"""``congruence info``: what this installation is made of, for a bug report."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["command"]


def command(
    devices: Annotated[
        bool, typer.Option("--devices/--no-devices", help="Ask torch for its devices, which takes seconds.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Report as JSON.")] = False,
) -> None:
    """Show versions, extras, threads, memory and devices; paste it into a bug report. It names no user, host or path."""
    from congruence.cli._base import print_json, say
    from congruence.system import system_info

    facts = system_info(devices=devices)
    if as_json:
        print_json(facts.to_dict())
        return
    for line in str(facts).splitlines():
        say(line)
