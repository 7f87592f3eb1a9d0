"""Progress bars, one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager


class Bars:
    """Shows one progress bar at a time; as a context manager, it removes the last one."""

    def __init__(self, quiet: bool) -> None:
        self._quiet, self._stack = quiet, ExitStack()
        self._advance: Callable[[int], None] | None = None

    def __enter__(self) -> Bars:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def begin(self, label: str, total: int) -> None:
        """Show a new bar instead of the current one."""
        from congruence.cli._base import progress

        self.close()
        self._advance = self._stack.enter_context(progress(label, total, self._quiet))

    def advance(self, count: int) -> None:
        """Advance the current bar."""
        if self._advance is not None:
            self._advance(count)

    @contextmanager
    def shown(self, label: str, total: int) -> Iterator[Callable[[int], None] | None]:
        """Show a bar while the block runs, and yield a function that advances it; None if no bar is shown."""
        self.begin(label, total)
        try:
            yield self._advance
        finally:
            self.close()

    def close(self) -> None:
        """Remove the current bar."""
        self._stack.close()
        self._advance = None
