"""Table in docs/serve.md: the cost of the bridge in the server. Times are compared with their record only."""

from __future__ import annotations

from typing import Any

from measured.blocks import Block, table
from measured.jobs import JOBS


def serving(results: list[Any]) -> str:
    (run,) = results
    rows = []
    servers = {
        "bridge": "bridge",
        "no bridge": "no bridge (`--space source`)",
        "window 0.003": "bridge, batching window 3 ms",
    }
    for key, words in servers.items():
        server = run["results"][key]
        times = []
        for measure, digits in (("p50", 0), ("p99", 0), ("cpu", 2)):
            low, middle, high = server["ratios"][measure]
            ratio = f" ({middle:.2f}; {low:.2f} … {high:.2f})" * (key != "no bridge")
            times.append(f"{1000 * server[measure]:,.{digits}f}{ratio}")
        errors = f"{server['errors']} of {server['requests']}"
        rows.append([words, *times[:2], f"{server['per_second']:.1f}", times[2], errors])
    header = ["server", "p50 (ms)", "p99 (ms)", "requests per second", "CPU time per request (ms)", "errors"]
    return table(header, rows)


BLOCKS = {"serve": Block(serving, JOBS["serve"])}
