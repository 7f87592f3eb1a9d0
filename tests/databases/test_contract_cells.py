"""The tables of docs/reference/databases.md say what the contract's tests check."""

import re
from pathlib import Path

from database_contract import BETWEEN, BY_PLAN, CELLS

STEPS = ("switch", "rollback", "drop-old", "discard")
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "databases.md"


def test_the_tables_say_what_is_tested():
    said: dict[str, dict[str, str]] = {}
    heads: list[str] = []
    between: dict[str, set[tuple[str | None, ...]]] = {}
    for line in PAGE.read_text(encoding="utf-8").split(":::")[0].splitlines():
        if made := re.fullmatch(r"- ([\w-]+), ((?:kept|refused).*?): (.*)", line):
            cells = dict.fromkeys(STEPS, made[2])
            if " at " in made[2]:
                cells = {
                    step: word
                    for word, at in re.findall(r"(\w+) at ([^,]*(?:, (?!kept|refused)[^,]*)*)", made[2])
                    for step in re.split(", | and ", at)
                }
            between.setdefault(made[1], set()).update((one, *map(cells.get, STEPS)) for one in made[3].split("; "))
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if not cells or set(cells[0]) == {"-"}:
            continue
        if cells[0] == "database":
            heads = cells[1:]
            continue
        row = zip(heads, cells[1:], strict=True)
        words = {head: {"plan": BY_PLAN}.get(cell, cell) for head, cell in row if cell != "–"}
        for kind in CELLS if cells[0] == "each" else [cells[0]]:
            said[kind] = said.get(kind, {}) | words
    assert said == CELLS
    assert between == {kind: {*made.values()} for kind, made in BETWEEN.items()}
