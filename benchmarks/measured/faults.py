"""Tables in docs/migrate.md: rows lost, duplicated, wrong or changed after faults during a migration."""

from __future__ import annotations

from collections import Counter
from typing import Any

from measured.blocks import Block, table
from measured.jobs import JOBS

#: Counts of rows in the record, and their names in the tables.
COUNTED = {"lost": "lost", "doubled": "duplicated", "wrong": "wrong", "changed originals": "changed"}
NAMES = {
    "lancedb": "LanceDB",
    "pgvector": "pgvector",
    "duckdb": "DuckDB",
    "qdrant": "Qdrant",
    "sqlite-vec": "sqlite-vec",
    "chroma": "Chroma",
}


def _counted(one: dict[str, Any]) -> list[str]:
    return [str(one[key]) for key in COUNTED]


def _database(one: dict[str, Any]) -> str:
    return f"{NAMES[one['kind']]}, {one['rows']:,} rows"


def kills(results: list[Any]) -> str:
    """Return the results of one migration per database, killed at each kind of step in turn."""
    rows = []
    for one in (result["results"] for result in results):
        saw = [f"{one.get(f'readers saw {side}', 0)} × {side}" for side in ("old", "new")]
        other = one.get("readers saw mixed", 0), one.get("readers saw nothing", 0)
        saw += [f"{count} × {word}" for count, word in zip(other, ("a mixture", "no table"), strict=True) if count]
        rows.append([_database(one), str(one["kills"]), ", ".join(saw), *_counted(one)])
    return table(["database", "kills", "readers saw", *COUNTED.values()], rows)


def _outcome(one: dict[str, Any]) -> str:
    if one["fault"] == "disk-full":
        errors = ", ".join(f"{count} × {name}" for name, count in one["errors"].items())
        return f"{errors}; {one['journals']} of {one['points']} journals readable"
    if one["fault"] == "server-restart":
        return f"{one['restarts']} restarts, run continued; {one['repaired']:,} rows written again"
    if one["fault"] == "concurrent-writes":
        writes = one["writes during the run"] + one["before the switch"]
        return f"{writes:,} writes; {one['written']:,} rows written again, {one['removed']:,} removed"
    return f"{one['error']}; {'nothing' if one['untouched'] else 'SOMETHING'} was written"


def faults(results: list[Any]) -> str:
    """The other faults."""
    names = {"server-restart": "server restarted", "concurrent-writes": "concurrent writes", "disk-full": "disk full"}
    rows = []
    for one in (result["results"] for result in results):
        name = names.get(one["fault"], "duplicate ids")
        rows.append([name, _database(one), _outcome(one), *_counted(one)])
    return table(["fault", "database", "outcome", *COUNTED.values()], rows)


def fuzz(results: list[Any]) -> str:
    """Return the results for malicious journals and maps."""
    total: Counter[str] = Counter()
    for result in results:
        total.update({key: value for key, value in result["results"].items() if key != "slowest"})
    rows = []
    for what in ("journal", "map"):
        counts = [total[f"{what} {outcome}"] for outcome in ("refused", "read, then refused", "read", "finding")]
        rows.append([what, *(f"{count:,}" for count in [sum(counts), *counts])])
    header = ["damaged", "cases", "refused at once", "refused by a later step", "accepted", "other outcome"]
    return table(header, rows)


BLOCKS = {
    "migrate-kills": Block(kills, JOBS["migrate-kills"]),
    "migrate-kills-qdrant": Block(kills, JOBS["migrate-kills-qdrant"]),
    "migrate-faults": Block(faults, JOBS["migrate-faults"]),
    "migrate-fuzz": Block(fuzz, JOBS["migrate-fuzz"]),
}
