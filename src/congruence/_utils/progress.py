"""Progress bars for long operations, shown on standard error if it is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class Bar:
    """A progress bar that is being displayed."""

    def __init__(self, progress: Progress, task: TaskID):
        self._progress, self._task = progress, task

    def advance(self, count: int) -> None:
        """Add to the number of completed steps."""
        self._progress.advance(self._task, count)

    def show(self, done: int, note: str = "") -> None:
        """Set the number of completed steps, and the note after the bar."""
        self._progress.update(self._task, completed=done, note=note)


@contextmanager
def progress_bar(label: str, total: int, *, done: int = 0, quiet: bool = False) -> Iterator[Bar | None]:
    """Show a progress bar while the block runs; yield None if ``quiet`` or if standard error is no terminal."""
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
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield Bar(progress, progress.add_task(visible(label), total=total, completed=done, note=""))
