"""A sequence of progress bars."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

__all__ = ["Bars"]


class Bars:
    """A sequence of progress bars; a context manager."""

    def __init__(self, quiet: bool) -> None:
        self._quiet, self._stack = quiet, ExitStack()
        self._advance: Callable[[int], None] | None = None

    def __enter__(self) -> Bars:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def begin(self, words: str, total: int) -> None:
        """Show a new bar for a pass over the rows."""
        from congruence.cli._base import progress

        self.close()
        self._advance = self._stack.enter_context(progress(words, total, self._quiet))

    def advance(self, count: int) -> None:
        """Advance the current bar."""
        if self._advance is not None:
            self._advance(count)

    @contextmanager
    def shown(self, words: str, total: int) -> Iterator[Callable[[int], None] | None]:
        """Show a bar while the block runs, and yield a function that advances it."""
        self.begin(words, total)
        try:
            yield self._advance
        finally:
            self.close()

    def close(self) -> None:
        """Remove the current bar."""
        self._stack.close()
        self._advance = None
