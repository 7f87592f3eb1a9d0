"""``congruence lab info``: describe this installation for a bug report."""

from __future__ import annotations

from congruence.cli._base import print_json, say
from congruence.cli._options import Json, option


def command(
    devices: bool = option(True, "List torch's devices, which takes seconds.", "--devices/--no-devices"),
    as_json: Json = False,
) -> None:
    """Show versions, extras, threads, memory and devices, to paste into a bug report.

    Example: congruence lab info

    Contains no user, host or path names.
    """
    from congruence.system import system_info

    facts = system_info(devices=devices)
    if as_json:
        print_json(facts.to_dict())
        return
    for line in str(facts).splitlines():
        say(line)
