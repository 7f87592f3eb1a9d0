"""Requests that wait for one model are encoded together."""

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
    """The batcher takes no more texts: its server is being stopped."""


@dataclass(frozen=True, eq=False)
class Encoded:
    """What one request gets.

    Attributes
    ----------
    vectors : ndarray of float32, shape (n, dim)
    tokens : int
        Of all its texts.
    """

    vectors: np.ndarray
    tokens: int


@dataclass(eq=False)
class _Waiting:
    texts: list[str]
    result: Future[Encoded] = field(default_factory=Future)


class Batcher:
    """Encodes texts on one thread, those of several requests at once where they wait for it together.

    Parameters
    ----------
    encode : callable
        From a list of texts to their vectors, shape (n, dim), and the number of tokens of each.
    max_batch : int
        Most texts of one call; a request with more is encoded alone.
    window : float
        Seconds for which a free model waits for more texts. 0 takes those that came while it was busy.
    callback : callable, optional
        Called after each call with the number of its texts and the seconds it took.
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
        self._line: deque[_Waiting] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._open = True

    @property
    def waiting(self) -> int:
        """Texts that no call has begun with."""
        with self._changed:
            return sum(len(request.texts) for request in self._line)

    @property
    def open(self) -> bool:
        """Whether texts are taken."""
        return self._open

    def submit(self, texts: list[str]) -> Future[Encoded]:
        """Put the texts of a request in line.

        Parameters
        ----------
        texts : list of str

        Returns
        -------
        Future of Encoded
            Cancelled before its turn, it costs nothing.

        Raises
        ------
        StoppedError
            After :meth:`close`.
        """
        request = _Waiting(texts)
        with self._changed:
            if not self._open:
                raise StoppedError
            if self._thread is None:  # not before: a server may fork after it was made
                self._thread = threading.Thread(target=self._work, name="congruence-encoder", daemon=True)
                self._thread.start()
            self._line.append(request)
            self._changed.notify()
        return request.result

    def close(self) -> None:
        """Take no more texts, and return when those in line are encoded."""
        with self._changed:
            self._open = False
            thread, self._thread = self._thread, None
            self._changed.notify()
        if thread is not None:
            thread.join()

    def reopen(self) -> None:
        """Take texts again after :meth:`close`."""
        with self._changed:
            self._open = True

    def _work(self) -> None:
        while batch := self._next():
            self._run(batch)

    def _next(self) -> list[_Waiting]:
        """Return the next requests to encode; none when there will be no more."""
        with self._changed:
            while True:
                while not self._line and self._open:
                    self._changed.wait()
                deadline = time.monotonic() + self._window
                while self._open and sum(len(r.texts) for r in self._line) < self._max:
                    if (left := deadline - time.monotonic()) <= 0 or not self._changed.wait(left):
                        break
                batch: list[_Waiting] = []
                size = 0
                while self._line and (not batch or size + len(self._line[0].texts) <= self._max):
                    request = self._line.popleft()
                    if request.result.set_running_or_notify_cancel():
                        batch.append(request)
                        size += len(request.texts)
                if batch or (not self._open and not self._line):
                    return batch

    def _run(self, batch: list[_Waiting]) -> None:
        texts = [text for request in batch for text in request.texts]
        began = time.monotonic()
        try:
            vectors, tokens = self._encode(texts)
        except BaseException as error:
            if len(batch) == 1:
                batch[0].result.set_exception(error)
                return
            for request in batch:  # one of them is bad: the others do not pay for it
                self._run([request])
            return
        if self._callback is not None:
            self._callback(len(texts), time.monotonic() - began)
        start = 0
        for request in batch:
            stop = start + len(request.texts)
            request.result.set_result(Encoded(vectors[start:stop], sum(tokens[start:stop])))
            start = stop
