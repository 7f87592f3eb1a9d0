"""Progress bars for long operations, on standard error and only if that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class Bar:
    """A bar that is shown."""

    def __init__(self, shown: Progress, task: TaskID):
        self._shown, self._task = shown, task

    def advance(self, count: int) -> None:
        """Count so many more as done."""
        self._shown.advance(self._task, count)

    def show(self, done: int, note: str = "") -> None:
        """Set how many are done, and what stands behind the bar."""
        self._shown.update(self._task, completed=done, note=note)


@contextmanager
def progress_bar(label: str, total: int, *, done: int = 0, quiet: bool = False) -> Iterator[Bar | None]:
    """Show a progress bar while the block runs; give None when it is quiet, or standard error is no terminal.

    Parameters
    ----------
    label : str
        What is being done. Shown as it is: brackets in it are no markup.
    total : int
    done : int, default=0
        How many of them an earlier run has done.
    quiet : bool, default=False
    """
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from congruence._utils.display import visible

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        yield Bar(shown, shown.add_task(visible(label), total=total, completed=done, note=""))
