"""Dynamic batching: requests that wait for the model are encoded together."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

__all__ = ["Batcher", "Encoded", "StoppedError"]


class StoppedError(RuntimeError):
    """The batcher accepts no more texts because its server is stopping."""


@dataclass(frozen=True, eq=False)
class Encoded:
    """The result of one request.

    Attributes
    ----------
    vectors : ndarray of float32, shape (n, dim)
    tokens : int
        Number of tokens of all its texts.
    """

    vectors: np.ndarray
    tokens: int


@dataclass(eq=False)
class _Request:
    texts: list[str]
    result: Future[Encoded] = field(default_factory=Future)


class Batcher:
    """Encodes texts in one thread, and batches the texts of requests that wait at the same time.

    Parameters
    ----------
    encode : callable
        Takes a list of texts; returns their vectors, shape (n, dim), and the number of tokens of each.
    max_batch : int
        Maximum number of texts per call; a request with more is encoded alone, in one call.
    window : float
        Seconds for which an idle model waits for more texts. With 0 it does not wait; texts that arrived while it was
        busy are still batched.
    callback : callable, optional
        Called after each successful call of ``encode`` with the number of texts and the seconds it took.
    """

    def __init__(
        self,
        encode: Callable[[list[str]], tuple[np.ndarray, list[int]]],
        *,
        max_batch: int,
        window: float,
        callback: Callable[[int, float], object] | None = None,
    ) -> None:
        self._encode, self._max, self._window, self._callback = encode, max_batch, window, callback
        self._queue: deque[_Request] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._open = True

    @property
    def waiting(self) -> int:
        """Number of texts that are not being encoded yet."""
        with self._changed:
            return sum(len(request.texts) for request in self._queue)

    @property
    def open(self) -> bool:
        """Whether texts are accepted."""
        return self._open

    def submit(self, texts: list[str]) -> Future[Encoded]:
        """Queue the texts of a request.

        Parameters
        ----------
        texts : list of str

        Returns
        -------
        Future of Encoded
            If it is cancelled before its batch starts, its texts are not encoded.

        Raises
        ------
        StoppedError
            If the batcher was closed.
        """
        request = _Request(texts)
        with self._changed:
            if not self._open:
                raise StoppedError
            if self._thread is None:  # not in __init__: a server may fork after it was constructed
                self._thread = threading.Thread(target=self._work, name="congruence-encoder", daemon=True)
                self._thread.start()
            self._queue.append(request)
            self._changed.notify()
        return request.result

    def close(self) -> None:
        """Accept no more texts, and return once those in the queue are encoded."""
        with self._changed:
            self._open = False
            thread, self._thread = self._thread, None
            self._changed.notify()
        if thread is not None:
            thread.join()

    def reopen(self) -> None:
        """Accept texts again after :meth:`close`."""
        with self._changed:
            self._open = True

    def _work(self) -> None:
        while batch := self._next():
            self._run(batch)

    def _next(self) -> list[_Request]:
        """Wait for the next batch of requests and return it; it is empty once the batcher is closed and the queue is
        done.
        """
        with self._changed:
            while True:
                while not self._queue and self._open:
                    self._changed.wait()
                deadline = time.monotonic() + self._window
                while self._open and sum(len(r.texts) for r in self._queue) < self._max:
                    if (remaining := deadline - time.monotonic()) <= 0 or not self._changed.wait(remaining):
                        break
                batch: list[_Request] = []
                size = 0
                while self._queue and (not batch or size + len(self._queue[0].texts) <= self._max):
                    request = self._queue.popleft()
                    if request.result.set_running_or_notify_cancel():
                        batch.append(request)
                        size += len(request.texts)
                if batch or (not self._open and not self._queue):
                    return batch

    def _run(self, batch: list[_Request]) -> None:
        texts = [text for request in batch for text in request.texts]
        began = time.monotonic()
        try:
            vectors, tokens = self._encode(texts)
        except BaseException as error:
            if len(batch) == 1:
                batch[0].result.set_exception(error)
                return
            for request in batch:  # one of them may be at fault: encode each alone, so that the others succeed
                self._run([request])
            return
        if self._callback is not None:
            self._callback(len(texts), time.monotonic() - began)
        start = 0
        for request in batch:
            stop = start + len(request.texts)
            request.result.set_result(Encoded(vectors[start:stop], sum(tokens[start:stop])))
            start = stop
