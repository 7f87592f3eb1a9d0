"""The tables of docs/ray.md: a data set mapped by Ray, and runs that were killed."""

from __future__ import annotations

from typing import Any

from measured.blocks import Block, table
from measured.jobs import JOBS

_WORDS = {
    "plain": "Ray Data alone: `read_parquet().write_parquet()`",
    "ray": "`transform --engine ray`",
    "local": "`transform`, one process",
}


def runs(results: list[Any]) -> str:
    """Rows a second, processor seconds and the growth of the driver, of every way."""
    size = results[0]
    rows = []
    for what, words in _WORDS.items():
        ours = [one for one in size["runs"] if one["what"] == what]
        seconds, processor = (sum(one[key] for one in ours) / len(ours) for key in ("seconds", "processor"))
        start = sum(one["start_processor"] for one in ours) / len(ours)
        rows.append(
            [
                words,
                f"{size['rows'] / seconds:,.0f}",
                f"{seconds:.0f} s",
                f"{processor:.0f} s",
                "–" if what == "local" else f"{start:.1f} s",
                f"{max(one['driver_mb'] for one in ours):.0f} MB",
            ]
        )
    head = ["way", "rows/s", "by the clock", "processor", "start of Ray, processor", "driver grew by"]
    return table(head, rows)


def kills(results: list[Any]) -> str:
    """What became of killed runs."""
    found = results[1]["kills"]
    rows = []
    for whom in ("driver", "worker"):
        ours = [one for one in found if one["killed"] == whom]
        rows.append(
            [
                f"the {whom}",
                str(len(ours)),
                str(sum(one["ended_by_itself"] for one in ours)),
                str(sum(one["lost"] for one in ours)),
                str(sum(one["doubled"] for one in ours)),
            ]
        )
    return table(["killed with SIGKILL", "runs", "ended without being begun again", "rows lost", "rows doubled"], rows)


BLOCKS = {
    "engines": Block(runs, JOBS["engines"]),
    "engines-kills": Block(kills, JOBS["engines"]),
}
