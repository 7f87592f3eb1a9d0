"""Tables in docs/ray.md: a data set mapped on Ray, compared with Ray's own read and write and with the local command."""

from __future__ import annotations

from typing import Any

import numpy as np

from measured.blocks import Block, table
from measured.jobs import JOBS

WORDS = {
    "plain": "plain Ray",
    "ray": "`transform --engine ray`",
    "local": "`transform`",
}


def _total(run: dict[str, Any], what: str = "seconds") -> float:
    """Return the cost of a run, including the start of Ray."""
    return run[f"start_{what}"] + run[what]


def _spread(values: list[float], digits: int) -> str:
    low, high = min(values), max(values)
    words = f"{low:.{digits}f}"
    return words if words == f"{high:.{digits}f}" else f"{words} … {high:.{digits}f}"


def times(results: list[Any]) -> str:
    """Return for each method the seconds, rows per second relative to the others in the same round, CPU time and the driver's memory."""
    lines = []
    for one in results:
        found = one["results"]
        rounds = {method: [run for run in found["runs"] if run["what"] == method] for method in WORDS}
        for method, words in WORDS.items():
            runs = rounds[method]
            ratios = [
                ""
                if other == method or method == "plain"
                else _spread(
                    [_total(theirs) / _total(ours) for ours, theirs in zip(runs, rounds[other], strict=True)], 2
                )
                for other in ("plain", "local")
            ]
            lines.append(
                [
                    f"{found['rows']:,} rows, {words}",
                    "" if method == "local" else _spread([run["start_seconds"] for run in runs], 1),
                    _spread([run["seconds"] for run in runs], 1),
                    *ratios,
                    f"{np.mean([_total(run, 'processor') for run in runs]):.0f}",
                    f"{max(run['driver_mb'] for run in runs):.0f}",
                ]
            )
    columns = [
        "method",
        "start, s",
        "map, s",
        "speed / plain Ray",
        "speed / `transform`",
        "CPU time, s",
        "driver memory, MB",
    ]
    return table(columns, lines)


def kills(results: list[Any]) -> str:
    """Return the rows lost or duplicated after kills of drivers and of workers."""
    found = results[0]["results"]["kills"]
    lines = []
    for whom in ("driver", "worker"):
        runs = [one for one in found if one["killed"] == whom]
        ended = sum(one["ended_by_itself"] for one in runs)
        counts = (len(runs), ended, *(sum(one[key] for one in runs) for key in ("lost", "doubled")))
        lines.append([whom, *map(str, counts)])  # zeros are printed, too
    return table(["process killed", "runs", "runs finished without a restart", "rows lost", "rows duplicated"], lines)


BLOCKS = {"engines": Block(times, JOBS["engines"]), "engines-kills": Block(kills, JOBS["engines-kills"])}
