"""The tables of docs/reference/databases.md say what the contract's tests check."""

from pathlib import Path

from database_contract import BETWEEN, CELLS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "databases.md"


def test_the_tables_say_what_is_tested():
    said: dict[str, dict[str, str]] = {}
    heads: list[str] = []
    between: dict[str, list[tuple[str | None, ...]]] = {}
    for line in PAGE.read_text(encoding="utf-8").split(":::")[0].splitlines():
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
        words = {head: cell for head, cell in zip(heads, cells[1:], strict=True) if cell != "does not exist there"}
        said[cells[0]] = said.get(cells[0], {}) | words
    assert said == CELLS
    assert between == {kind: list(made.values()) for kind, made in BETWEEN.items()}
