"""The table of docs/serve.md: what the bridge costs in the server. Times: compared with their record only."""

from __future__ import annotations

from typing import Any

from measured.blocks import Block, table
from measured.jobs import JOBS


def serving(results: list[Any]) -> str:
    (one,) = results
    found = one["results"]
    plain = found["no bridge"]
    rows = []
    ways = {
        "bridge": "bridge",
        "no bridge": "no bridge (`--space source`)",
        "window 0.003": "bridge, a free encoder waits 3 ms for more texts",
    }
    for way, words in ways.items():
        here = found[way]
        times = [f"{1000 * here[key]:,.0f} ms ({here[key] / plain[key]:.2f} ×)" for key in ("p50", "p99")]
        cpu = f"{1000 * here['cpu']:.2f} ms ({here['cpu'] / plain['cpu']:.2f} ×)"
        rows.append([words, *times, f"{here['per_second']:.1f}", cpu, f"{here['errors']} of {here['requests']}"])
    return table(["server", "p50", "p99", "requests a second", "processor time a request", "errors"], rows)


BLOCKS = {"serve": Block(serving, JOBS["serve"])}
