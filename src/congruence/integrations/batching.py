"""Encode the texts of requests that wait at the same time together, in one thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeAlias

import numpy as np

#: The texts of a request, and its result: their vectors, and the number of all their tokens.
_Waiting: TypeAlias = "tuple[list[str], Future[tuple[np.ndarray, int]]]"


class StoppedError(RuntimeError):
    """The batcher accepts no more texts because its server is stopping."""


class Batcher:
    """Encodes texts in one thread, and the texts of requests that wait at the same time together.

    ``encode`` takes a list of texts, and returns their vectors, shape (n, dim), and the number of tokens of each;
    ``max_batch`` is the largest number of texts per call, except for a larger request, which is encoded alone;
    ``window``, the seconds for which an idle model waits for more texts.
    """

    def __init__(
        self, encode: Callable[[list[str]], tuple[np.ndarray, list[int]]], *, max_batch: int, window: float
    ) -> None:
        self._encode, self._max, self._window = encode, max_batch, window
        self._queue: deque[_Waiting] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self.open = True

    @property
    def waiting(self) -> int:
        """Number of texts that are not being encoded yet."""
        with self._changed:
            return sum(len(texts) for texts, _ in self._queue)

    def submit(self, texts: list[str]) -> Future[tuple[np.ndarray, int]]:
        """Queue the texts of a request, and return their future vectors, shape (n, dim), and number of tokens.

        If the result is cancelled before its batch starts, the texts are not encoded.
        """
        result: Future[tuple[np.ndarray, int]] = Future()
        with self._changed:
            if not self.open:
                raise StoppedError
            if self._thread is None:  # not in __init__: a server may fork after it was constructed
                # A daemon, for which a forced exit does not wait; an executor's threads are joined even then.
                self._thread = threading.Thread(target=self._work, name="congruence-encoder", daemon=True)
                self._thread.start()
            self._queue.append((texts, result))
            self._changed.notify()
        return result

    def close(self) -> None:
        """Accept no more texts, and return once those in the queue are encoded."""
        with self._changed:
            self.open, thread, self._thread = False, self._thread, None
            self._changed.notify()
        if thread is not None:
            thread.join()

    def _work(self) -> None:
        """Encode the requests that wait, as many at a time as fit in a batch, until the batcher is closed."""
        while True:
            batch: list[_Waiting] = []
            with self._changed:
                self._changed.wait_for(lambda: self._queue or not self.open)
                if not self._queue:
                    return
                self._changed.wait_for(lambda: not self.open or self.waiting >= self._max, self._window)
                room = self._max
                while self._queue and (not batch or len(self._queue[0][0]) <= room):
                    texts, result = self._queue.popleft()
                    if result.set_running_or_notify_cancel():
                        batch.append((texts, result))
                        room -= len(texts)
            if batch:
                self._run(batch)

    def _run(self, batch: list[_Waiting]) -> None:
        joined = [text for texts, _ in batch for text in texts]
        try:
            vectors, tokens = self._encode(joined)
        except BaseException as error:
            if len(batch) == 1:
                batch[0][1].set_exception(error)
                return
            for request in batch:  # one of them may be at fault: encode each alone, so that the others succeed
                self._run([request])
            return
        start = 0
        for texts, result in batch:
            rows = slice(start, start + len(texts))
            result.set_result((vectors[rows], sum(tokens[rows])))
            start = rows.stop
