"""Progress bars, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

__all__ = ["Bars"]


class Bars:
    """One progress bar after the other; a context manager."""

    def __init__(self, quiet: bool) -> None:
        self._quiet, self._stack = quiet, ExitStack()
        self._advance: Callable[[int], None] | None = None

    def __enter__(self) -> Bars:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def begin(self, words: str, total: int) -> None:
        """Show a bar of its own for a walk."""
        from congruence.cli._base import progress

        self.close()
        self._advance = self._stack.enter_context(progress(words, total, self._quiet))

    def advance(self, count: int) -> None:
        """Move the bar that is shown."""
        if self._advance is not None:
            self._advance(count)

    @contextmanager
    def shown(self, words: str, total: int) -> Iterator[Callable[[int], None] | None]:
        """Show a bar while the block runs, and give what moves it."""
        self.begin(words, total)
        try:
            yield self._advance
        finally:
            self.close()

    def close(self) -> None:
        """Remove the bar that is shown."""
        self._stack.close()
        self._advance = None
