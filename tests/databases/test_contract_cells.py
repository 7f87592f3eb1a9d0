"""The tables of docs/reference/databases.md say what the contract's tests check."""

import re
from pathlib import Path

from database_contract import BETWEEN, BY_PLAN, CELLS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "databases.md"


def test_the_tables_say_what_is_tested():
    said: dict[str, dict[str, str]] = {}
    heads: list[str] = []
    between: dict[str, list[tuple[str | None, ...]]] = {}
    for line in PAGE.read_text(encoding="utf-8").split(":::")[0].splitlines():
        if everywhere := re.fullmatch(r"- ([\w-]+), (kept|refused): (.*)", line):
            kind, what, made = everywhere.groups()
            between.setdefault(kind, []).extend((one, *[what] * 4) for one in made.split("; "))
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if not cells or set(cells[0]) == {"-"}:
            continue
        if cells[0] in ("database", "made"):
            heads = cells[1:]
            continue
        if heads[0] == "switch":
            kind, _, what = cells[0].partition(": ")
            between.setdefault(kind, []).append((what, *(None if cell == "–" else cell for cell in cells[1:])))
            continue
        row = zip(heads, cells[1:], strict=True)
        words = {head: {"plan": BY_PLAN}.get(cell, cell) for head, cell in row if cell != "–"}
        for kind in CELLS if cells[0] == "each" else [cells[0]]:
            said[kind] = said.get(kind, {}) | words
    assert said == CELLS
    wanted = {kind: {*made.values()} for kind, made in BETWEEN.items()}
    assert {kind: {*made} for kind, made in between.items()} == wanted
