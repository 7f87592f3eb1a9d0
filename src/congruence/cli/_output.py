"""What commands print and write: reports, progress, and checks of outputs before the work starts."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from congruence._utils.atomic import atomic_path, check_output
from congruence._utils.display import visible, visible_json
from congruence._utils.optional import require
from congruence._utils.plain import as_plain
from congruence._utils.progress import progress_bar
from congruence.cli._ending import knows_unicode
from congruence.errors import ParameterError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from congruence.io import Source
    from congruence.maps import Map


#: Reports of steps that are printed together, as one document.
_GATHERED: list[object] | None = None


@contextmanager
def gathered(wanted: bool = True) -> Iterator[list[object]]:
    """Keep what ``print_json`` gets while the block runs, instead of printing it, if that is wanted."""
    global _GATHERED
    _GATHERED = [] if wanted else None
    try:
        yield [] if _GATHERED is None else _GATHERED
    finally:
        _GATHERED = None


def print_json(data: object) -> None:
    """Print plain data as JSON that every parser accepts: NaN and infinity become null."""
    if _GATHERED is not None:
        _GATHERED.append(data)
        return
    text = json.dumps(as_plain(data, strict=True), indent=2, ensure_ascii=not knows_unicode(), allow_nan=False)
    print(visible_json(text))


#: What the sides of a map are called on the command line, of a bridge for queries, and of a joint-space map.
OLD_NEW, FIRST_SECOND = {"source": "old", "target": "new"}, {"source": "first", "target": "second"}
NEW_OLD = {"source": "new", "target": "old"}


def sides_of(mapping: Map) -> dict[str, str]:
    """Return what the sides of a map are called."""
    return OLD_NEW if mapping.sides == ("source",) else FIRST_SECOND


def side_words(text: str, words: Mapping[str, str] = OLD_NEW) -> str:
    """Return a name of the library, e.g. of a score, with the words of the command line for the sides."""
    return re.sub("(?<![a-z])(source|target)(?![a-z])", lambda found: words[found[0]], text)


def by_side(data: Any, words: Mapping[str, str] = OLD_NEW) -> Any:
    """Return plain data whose keys, and names of what is compared, have the words of the command line for the sides."""
    if isinstance(data, (list, tuple)):
        return [by_side(value, words) for value in data]
    if not isinstance(data, dict):
        return data
    out = {side_words(key, words): by_side(value, words) for key, value in data.items()}
    return out | {name: side_words(out[name], words) for name in ("query", "against") if isinstance(out.get(name), str)}


def say(*lines: str) -> None:
    """Print lines that may contain names and ids; control characters in them are escaped."""
    for line in lines:
        print(visible(line))


def say_error(text: str) -> None:
    """Print a line on standard error; control characters in it are escaped."""
    print(visible(text), file=sys.stderr, flush=True)


def number(value: float | None, digits: int = 3) -> str:
    """Format a number for a table; an unknown value is a dash."""
    return "–" if value is None else f"{value:.{digits}f}"


def print_table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """Print a table on standard output; columns of numbers are right-aligned, except the first column.

    Title, columns and cells are treated as data: rich markup in them is shown literally and control characters are
    escaped. In a narrow terminal text wraps, and numbers are never broken.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(visible(title), style="bold") if title else None,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_header=any(columns),
    )
    for k, column in enumerate(columns):
        numeric = k > 0 and all(row[k][:1] in "–-+0123456789" for row in rows if row[k])
        words = [word for row in rows for word in row[k].split()]
        table.add_column(
            Text(visible(column)),
            justify="right" if numeric else "left",
            no_wrap=not sys.stdout.isatty(),
            overflow="fold",
            min_width=max(map(len, words), default=0) if numeric else None,
        )
    for row in rows:
        table.add_row(*(Text(visible(cell)) for cell in row))
    if sys.stdout.isatty():
        Console(highlight=False).print(table)
        return
    # A pipe has no width: a table written to a file is as wide as its longest row, and nothing is truncated.
    wide = Console(width=100_000, highlight=False)
    with wide.capture() as captured:
        wide.print(table)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def print_facts(title: str, facts: Mapping[str, object]) -> None:
    """Print names and values as a table, without the values that are None; decimals are rounded as by ``number``."""
    known = {name: value for name, value in facts.items() if value is not None}
    print_table(title, ["", ""], [[name, number(v) if isinstance(v, float) else str(v)] for name, v in known.items()])


def report_as(as_json: bool, data: object, title: str, facts: Mapping[str, object]) -> None:
    """Print plain data as JSON, or facts as a table."""
    print_json(data) if as_json else print_facts(title, facts)


@contextmanager
def progress(label: str, total: int, quiet: bool) -> Iterator[Callable[[int], None] | None]:
    """Show a progress bar on standard error while the block runs, if standard error is a terminal."""
    with progress_bar(label, total, quiet=quiet) as bar:
        yield None if bar is None else bar.advance


def check_out(out: str | None, *inputs: Source | str, force: bool, kind: str = "file") -> None:
    """Check before the work starts that an output, if there is one, can be written, and that it is none of the inputs.

    ``kind``: a file; a table (.csv or .parquet), a plot or a page, which matplotlib draws, or the folder of a map.
    """
    from congruence.io import check_output_place, open_source

    if out is None:
        return
    if kind == "table" and not out.lower().endswith((".csv", ".parquet")):
        raise ParameterError(f"Got --out {out}; expected a .csv or .parquet file.", "Pass --out rows.csv, for example.")
    if kind == "plot":
        from congruence.report.pictures import check_suffix

        check_suffix(out)
    if kind == "map":
        from congruence.persist import check_map_output

        check_map_output(out, force=force)
    else:
        check_output(out, force=force)
    if kind == "page":
        require("matplotlib", extra="plot")
    for source in inputs:
        if force or not isinstance(source, str):
            check_output_place(open_source(source, ids=False) if isinstance(source, str) else source, out)


@contextmanager
def checkpoint_folder(out: str, checkpoint: str | None) -> Iterator[Path]:
    """Yield the folder given by ``--checkpoint``, or by default one next to the output that is removed on success."""
    from pathlib import Path

    from congruence.train.checkpoint import named_folder, own_folder

    if checkpoint is not None:
        with named_folder(Path(checkpoint)) as folder:
            yield folder
        return
    with own_folder(Path(f"{out.rstrip('/')}.checkpoint")) as folder:
        yield folder
    if folder.is_dir() and any(folder.iterdir()):
        print(f"note: {folder} contains files that are not checkpoints, so it was not removed.", file=sys.stderr)


def write_table(table: pa.Table, out: str, *, force: bool) -> None:
    """Write a table atomically, in the format that its name specifies."""
    import pyarrow.csv

    from congruence.io.parquet import write_parquet

    # Opened here, so that errors of the operating system are reported in its own words and not in Arrow's.
    with atomic_path(out, force=force) as temporary, open(temporary, "wb") as file:
        if out.lower().endswith(".csv"):
            pyarrow.csv.write_csv(table, file)
        else:
            write_parquet(file, table.schema, table.to_batches())


class Bars(ExitStack):
    """Shows one progress bar at a time; as a context manager, it removes the last one."""

    def __init__(self, quiet: bool) -> None:
        super().__init__()
        self._quiet = quiet
        self._advance: Callable[[int], None] | None = None

    def begin(self, label: str, total: int) -> None:
        """Show a new bar instead of the current one."""
        self.close()
        self._advance = self.enter_context(progress(label, total, self._quiet))

    def advance(self, count: int) -> None:
        """Advance the current bar."""
        if self._advance is not None:
            self._advance(count)
