"""The text on a page between ``<!-- numbers: NAME -->`` and ``<!-- end -->``, the function that writes it, and how it is compared."""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT.parent / "shared" / "data"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "benchmarks" / "README.md"]
_BLOCK = re.compile(r"(<!-- numbers: (?P<name>[a-z0-9-]+) -->\n)(?P<text>.*?)(<!-- end -->)", re.S)
_NUMBER = re.compile(r"[-−]?\d[\d,]*(?:\.\d+)?")
_MEASURED = re.compile(r"\d\.\d|(?<![\w.])\.\d|\de[-−]\d|\d %")


@dataclass(frozen=True)
class Job:
    """Commands that take minutes or hours and output JSON, of which a record is kept in ``docs/numbers``.

    Parameters
    ----------
    name : str
        Name of the record.
    kind : {"minutes", "hours"}
    commands : tuple of str
        Run from the root of the repository. ``OUT`` stands for the JSON file, or the folder with ``results.json``, that the command
        writes; if it does not occur, the JSON is read from standard output. ``SCRATCH`` is a folder that is removed afterwards.
    keep : callable
        Function that takes the JSON of one command and returns the part to keep in the record.
    timing : bool
        Whether the numbers are times or memory, which differ between runs: pages are then compared with the record only.
    """

    name: str
    kind: str
    commands: tuple[str, ...]
    keep: Callable[[Any], Any] = lambda results: results
    timing: bool = False


@dataclass(frozen=True)
class Block:
    """A text on a page and the function that writes it.

    Parameters
    ----------
    write : callable
        Without a job, a function that takes nothing and measures; with a job, it takes the list of the job's results, one per command.
    job : Job or None
        None if measuring takes seconds and is repeated each time.
    data : tuple of str
        Files in ``../shared/data`` that a block without a job reads.
    """

    write: Callable[..., str]
    job: Job | None = None
    data: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        return self.job.kind if self.job else "seconds"

    def missing(self) -> list[str]:
        """Return the missing files: data, and interpreters of other environments than the project's."""
        names = [f"../shared/data/{name}" for name in self.data]
        if self.job:
            names = re.findall(r"\.\./shared/data/[\w.]+|\.venv-[\w/-]+", " ".join(self.job.commands))
        return sorted({name for name in names if not (ROOT / name).exists()})


def blocks(page: Path) -> dict[str, str]:
    """Return the texts of the blocks of a page by name."""
    return {found["name"]: found["text"] for found in _BLOCK.finditer(page.read_text(encoding="utf-8"))}


def replace(page: Path, name: str, text: str) -> None:
    """Replace the text of a block."""
    whole = page.read_text(encoding="utf-8")
    new = _BLOCK.sub(lambda m: m[1] + text + m[4] if m["name"] == name else m[0], whole)
    page.write_text(new, encoding="utf-8")


def loose_tables(page: Path) -> Iterator[str]:
    """Yield the first lines of tables outside of blocks that contain measured numbers: decimals, exponents or percentages."""
    text = _BLOCK.sub("", page.read_text(encoding="utf-8"))
    text = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    for found in re.finditer(r"(?:^\|.*\n)+", text, flags=re.M):
        lines = found[0].splitlines()
        if any(_MEASURED.search(line) for line in lines[2:]):
            yield lines[0]


def same(printed: str, measured: str) -> bool:
    """Compare two texts; numbers may differ by two units in the last digit shown, because of rounding on other processors."""
    if _NUMBER.sub("#", printed) != _NUMBER.sub("#", measured):
        return False
    for a, b in zip(_NUMBER.findall(printed), _NUMBER.findall(measured), strict=True):
        x, y = (float(v.replace(",", "").replace("−", "-")) for v in (a, b))
        unit = 10.0 ** -len(a.partition(".")[2]) if "." in a else 1.0
        if abs(x - y) > 2.001 * unit:
            return False
    return True


def command(*arguments: str) -> str:
    """Return the standard output of a congruence command."""
    from congruence.cli import app

    out = io.StringIO()
    # Warnings go to standard error and are not part of a page.
    with contextlib.redirect_stdout(out), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        app(list(arguments), standalone_mode=False)
    return out.getvalue()


def table(header: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table; an empty cell is one space wide."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join("|" + "".join(f" {cell} |" if cell else " |" for cell in cells) + "\n" for cells in lines)


def shown(value: float | None, digits: int = 3) -> str:
    """Format a number; exactly 1 is printed as 1, a missing one as a dash."""
    return "–" if value is None else "1" if value == 1 else minus(f"{value:.{digits}f}")


def minus(text: str) -> str:
    """Return a text with typographic minus signs."""
    return text.replace("-", "−")


def spread(mean: float, sd: float | None, digits: int = 3) -> str:
    """Format mean ± standard deviation."""
    return minus(f"{mean:.{digits}f}") + ("" if sd is None else f" ± {sd:.{digits}f}")


def compact(mean: float, error: float, digits: int = 3) -> str:
    """Format mean ± error of shares without their leading zeros: ``.753 ± .012``."""
    return minus(" ± ".join(re.sub(r"^(-?)0\.", r"\1.", f"{v:.{digits}f}") for v in (mean, error)))
