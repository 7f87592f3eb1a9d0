"""Table in docs/serve.md: the cost of the bridge in the server. Times are compared with their record only."""

from __future__ import annotations

from typing import Any

from measured.blocks import Block, table
from measured.jobs import JOBS


def serving(results: list[Any]) -> str:
    (one,) = results
    found = one["results"]
    rows = []
    ways = {
        "bridge": "bridge",
        "no bridge": "no bridge (`--space source`)",
        "window 0.003": "bridge, a free encoder waits 3 ms for more texts",
    }
    for way, words in ways.items():
        here = found[way]
        times = []
        for key, digits in (("p50", 0), ("p99", 0), ("cpu", 2)):
            low, middle, high = here["ratios"][key]
            beside = f" ({middle:.2f} ×; {low:.2f} … {high:.2f})" * (way != "no bridge")
            times.append(f"{1000 * here[key]:,.{digits}f} ms{beside}")
        errors = f"{here['errors']} of {here['requests']}"
        rows.append([words, *times[:2], f"{here['per_second']:.1f}", times[2], errors])
    return table(["server", "p50", "p99", "requests a second", "processor time a request", "errors"], rows)


BLOCKS = {"serve": Block(serving, JOBS["serve"])}
