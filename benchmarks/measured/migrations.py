"""Tables in docs/migrate.md: a migration compared with copies and with other packages. Times are compared with their record only."""

from __future__ import annotations

from typing import Any

import numpy as np

from measured.blocks import Block, table
from measured.jobs import JOBS

_NAMES = {"lancedb": "LanceDB", "duckdb": "DuckDB", "sqlite-vec": "sqlite-vec", "pgvector": "PostgreSQL"}

_METHODS = {
    "copy": "copy",
    "copy in the server": "copy by SQL alone",
    "mapped copy": "copy with a matrix product",
    "fill": "writing",
    "fill and comparing": "writing and one comparing pass",
    "whole": "complete: plan, run, verify, switch",
}


def _median(found: dict[str, Any], method: str, key: str) -> float:
    return float(np.median([one[method][key] for one in found["rounds"]]))


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value < 10 else f"{value:.1f} s"


def _about(one: dict[str, Any]) -> str:
    given = one["arguments"]
    return f"{_NAMES[given['kind']]}, {given['rows']:,} × {given['dim']}"


def speed(results: list[Any]) -> str:
    """Return each method compared with the copy in the same round."""
    rows = []
    for one in results:
        found = one["results"]
        for method, words in _METHODS.items():
            if method not in found["ratios"]:
                continue
            ratios = []
            for key in ("cpu", "seconds"):
                low, middle, high = found["ratios"][method][key]
                ratios.append("1" if method == "copy" else f"{middle:.2f} ({low:.2f} … {high:.2f})")
            cpu, memory = _seconds(_median(found, method, "cpu")), f"{_median(found, method, 'mb'):,.0f} MB"
            rows.append([_about(one) if method == "copy" else "", words, cpu, *ratios, memory])
    header = ["CPU time", "speed / copy, CPU time", "speed / copy, wall time", "peak memory"]
    return table(["database, rows × dimensions", "method", *header], rows)


def peers(results: list[Any]) -> str:
    """Return other packages compared with a whole migration of the same rows."""
    rows = []
    for one in results:
        found = one["results"]
        for package in sorted(found["rounds"][0], key=lambda name: name != "whole"):
            shown = [_seconds(_median(found, package, key)) for key in ("cpu", "seconds")]
            times = []
            for key in ("cpu", "seconds"):
                each = [1 / ratio for ratio in found["ratios"][package][key]]
                times.append("1" if package == "whole" else f"{each[1]:.1f} ({each[2]:.1f} … {each[0]:.1f})")
            name = "congruence, complete" if package == "whole" else package
            rows.append([_about(one) if package == "whole" else "", name, *shown, *times])
    header = ["CPU time", "wall time", "CPU time / ours", "wall time / ours"]
    return table(["database, rows × dimensions", "package", *header], rows)


def memory(results: list[Any]) -> str:
    """Return the peak memory of writing and of comparing, minus that of the process before."""
    rows = []
    for one in results:
        found = one["results"]
        peaks = [f"{_median(found, part, 'mb'):,.0f} MB" for part in ("fill", "comparing")]
        given = one["arguments"]
        rows.append([_about(one), f"{given['rows'] * given['dim'] * 4 / 2**20:,.0f} MB", *peaks])
    return table(["database, rows × dimensions", "size of the vectors", "memory, writing", "memory, comparing"], rows)


BLOCKS = {
    "migrate-speed": Block(speed, JOBS["migrate-speed"]),
    "migrate-peers": Block(peers, JOBS["migrate-peers"]),
    "migrate-memory": Block(memory, JOBS["migrate-memory"]),
}
