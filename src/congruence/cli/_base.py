"""What commands share: printing reports, progress bars, and reading inputs as the options say."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from congruence.embeddings import Embeddings, Space


def print_json(data: Any) -> None:
    """Print plain data as JSON that every reader accepts: NaN and infinity become null."""
    print(json.dumps(_plain(data), indent=2, ensure_ascii=False, allow_nan=False))


def _plain(data: Any) -> Any:
    if isinstance(data, dict):
        return {str(key): _plain(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_plain(value) for value in data]
    if isinstance(data, float) and not math.isfinite(data):
        return None
    return data


def number(value: float | None, digits: int = 3) -> str:
    """Write a number for a table; nothing known is a dash."""
    return "–" if value is None else f"{value:.{digits}f}"


def print_table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """Print a table on standard output; the first columns are text, cells that look like numbers align right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_header=any(columns),
    )
    for k, column in enumerate(columns):
        numeric = all(row[k][:1] in "–-+0123456789" for row in rows if row[k])
        table.add_column(column, justify="right" if numeric and k else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    # A pipe has no width of its own: never cut a table that goes to a file.
    width = None if sys.stdout.isatty() else 160
    Console(width=width, highlight=False).print(table)


@contextmanager
def progress(label: str, total: int, quiet: bool) -> Iterator[Callable[[int], None] | None]:
    """Show a progress bar on standard error while the block runs; nothing when it is no terminal."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(label), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda rows: bar.advance(task, rows)


def read(spec: str, ids: str | None, space: Space, allow_zero_rows: bool = False) -> Embeddings:
    """Read embeddings named on the command line."""
    from congruence.stores import read_embeddings

    return read_embeddings(spec, ids=ids, space=space, allow_zero_rows=allow_zero_rows)


def read_groups(spec: str | None) -> Any:
    """Read what ``--groups`` names: labels from a file, None for ``none``, and identical rows when it is left out."""
    from congruence.stores import read_column

    return "identical" if spec is None else None if spec == "none" else read_column(spec)


@contextmanager
def checkpoint_folder(out: str, named: str | None) -> Iterator[Path]:
    """Give a folder for checkpoints: the one named, or one beside the output, which goes when the block ends well.

    A block that fails leaves the checkpoints it wrote, to go on from, and no folder without any.
    """
    import shutil
    from contextlib import suppress
    from pathlib import Path

    place = Path(named or f"{out.rstrip('/')}.checkpoint")
    made = not place.exists()
    place.mkdir(parents=True, exist_ok=True)
    try:
        yield place
    except BaseException:
        if made:
            for folder in [*sorted(place.iterdir()), place]:
                with suppress(OSError):  # it holds something
                    folder.rmdir()
        raise
    if named is None:
        shutil.rmtree(place)
