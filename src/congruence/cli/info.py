"""``congruence info``: describe this installation for a bug report."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["command"]


def command(
    devices: Annotated[
        bool, typer.Option("--devices/--no-devices", help="List torch's devices, which takes seconds.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Report as JSON.")] = False,
) -> None:
    """Show versions, extras, threads, memory and devices, to paste into a bug report.

    Contains no user, host or path names.
    """
    from congruence.cli._base import print_json, say
    from congruence.system import system_info

    facts = system_info(devices=devices)
    if as_json:
        print_json(facts.to_dict())
        return
    for line in str(facts).splitlines():
        say(line)
