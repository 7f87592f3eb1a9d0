"""An iterator that reads ahead in its own thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_Item = TypeVar("_Item")


def run_ahead(items: Iterator[_Item], depth: int = 2) -> Iterator[_Item]:
    """Run an iterator in a thread of its own, at most ``depth`` items ahead, so that reading and computing overlap."""

    def step() -> tuple[_Item] | None:
        for item in items:
            return (item,)
        return None

    pool = ThreadPoolExecutor(1)
    try:
        waiting = deque(pool.submit(step) for _ in range(depth))
        while (found := waiting.popleft().result()) is not None:
            waiting.append(pool.submit(step))
            yield found[0]
    finally:
        pool.shutdown(cancel_futures=True)
