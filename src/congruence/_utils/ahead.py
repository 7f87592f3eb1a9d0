"""An iterator that reads ahead in its own thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import TypeVar

_Item = TypeVar("_Item")


def run_ahead(items: Iterator[_Item], depth: int = 2) -> Iterator[_Item]:
    """Run an iterator in a thread of its own, at most ``depth`` items ahead.

    Reading, products and writing all release the interpreter's lock, so the stages overlap.
    """
    waiting: queue.Queue[tuple[_Item] | BaseException | None] = queue.Queue(depth)
    stop = threading.Event()

    def offer(entry: tuple[_Item] | BaseException | None) -> bool:
        while not stop.is_set():
            try:
                waiting.put(entry, timeout=0.1)
                return True
            except queue.Full:
                pass
        return False

    def work() -> None:
        try:
            for item in items:
                if not offer((item,)):
                    return
            offer(None)
        except BaseException as error:  # handed to the consumer, which raises it
            offer(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        while True:
            entry = waiting.get()
            if entry is None:
                return
            if isinstance(entry, BaseException):
                raise entry
            yield entry[0]
    finally:
        stop.set()
        thread.join()
