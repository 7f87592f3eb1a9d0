"""Strips of a matrix, shared out among threads that each compute alone.

A library of linear algebra splits every operation among its threads and waits for the slowest of them, some hundred times in a solve. Where another
process keeps a core busy, a thread is put aside for milliseconds again and again, and the others wait, spinning, in operations of a tenth
of one. Here a thread takes a strip, does all that is to be done with it, and takes the next: one that is put aside delays its own
strip, and one that does not come to run at all delays nothing. What a strip gives does not depend on who computed it, and results are put together in
the order of the strips: they are the same to the bit for any number of threads above one, and for tensors for one as well.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from types import TracebackType
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from congruence._utils.arrays import device, is_tensor, to_numpy
from congruence._utils.typing import Array

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

T = TypeVar("T")

#: Entries of a matrix from which a second thread pays: below, an iteration takes no longer than it takes to wake one.
LEAST = 2**19
#: Up to so many terms OpenBLAS adds up a product of two vectors on the thread that asks for it.
ALONE = 8192


class Crew:
    """Threads for the strips of one matrix, for the time of a ``with`` block.

    Only the threads that belong to it compute on one thread each: what torch may use elsewhere, and in other threads, is left as it is.

    Parameters
    ----------
    like : array or tensor
        Of the library, and on the device, of the matrix.
    entries : int
        Of the matrix.
    held : bool
        Whether strips are small. Otherwise, and on a device with a memory of its own, all is done as the library does it.

    Attributes
    ----------
    size : int
        Threads, that of the caller included.
    apart : bool
        Whether the library's own products are to be avoided, since they would use threads of their own: NumPy's, unless it has one.
    """

    def __init__(self, like: Array, entries: int, held: bool = True) -> None:
        self._tensors = is_tensor(like)
        own = held and "cpu" in str(device(like))
        available = threads(self._tensors) if own else 1
        self.size = available if entries >= LEAST else 1
        self.apart = available > 1 and not self._tensors
        self._limits = available > 1 and self._tensors
        self._pool: ThreadPoolExecutor | None = None
        self._exit = ExitStack()

    def __enter__(self) -> Crew:
        if self._limits:
            self._exit.enter_context(_openmp().limit(limits=1))
        if self.size > 1:
            self._pool = ThreadPoolExecutor(self.size - 1, "congruence-strips", _alone if self._limits else None)
            self._exit.callback(self._pool.shutdown)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool = None
        self._exit.close()

    def each(
        self, work: Callable[[slice], T], parts: Sequence[slice], then: Callable[[slice, T], None] | None = None
    ) -> Iterator[T]:
        """Return what ``work`` gives for the parts, in their order; alone, each when it is asked for.

        Parameters
        ----------
        work : callable
        parts : sequence of slice
        then : callable, optional
            Called with a part and what ``work`` gave for it, in the order of the parts, one at a time and by the same thread, before that takes
            another part: for sums too large to be kept for every part.

        Raises
        ------
        Exception
            The first that ``work`` or ``then`` raised, once no thread is in them any more.
        """
        if self._pool is None or len(parts) < 2:
            for part in parts:
                result = work(part)
                if then is not None:
                    then(part, result)
                yield result
            return
        shared = _Shared(work, parts, then)
        yield from shared.run(
            self._pool, _undifferentiated(shared.take) if self._tensors else shared.take, self.size - 1
        )


#: All by the thread that asks, as its library does it.
ONE = Crew(np.empty(0), 0, held=False)


class _Shared(Generic[T]):
    """One round of strips: who has time takes the next."""

    def __init__(
        self, work: Callable[[slice], T], parts: Sequence[slice], then: Callable[[slice, T], None] | None
    ) -> None:
        self._work, self._then = work, then
        self._left = deque(enumerate(parts))  # whose popleft is safe between threads
        self._results: dict[int, T] = {}
        self._turn, self._next, self._failed = threading.Condition(), 0, False

    def run(self, pool: ThreadPoolExecutor, helps: Callable[[], None], helpers: int) -> Iterator[T]:
        asked: list[Future[None]] = [pool.submit(helps) for _ in range(min(helpers, len(self._left) - 1))]
        try:
            self.take()
        finally:
            # A helper that has not begun is not waited for; one that has is in its last part.
            begun = [helper for helper in asked if not helper.cancel()]
            errors = [helper.exception() for helper in begun]
        for error in errors:
            if error is not None:
                raise error
        return iter([self._results[number] for number in range(len(self._results))])

    def take(self) -> None:
        try:
            while True:
                try:
                    number, part = self._left.popleft()
                except IndexError:
                    return
                self._results[number] = result = self._work(part)
                if self._then is not None:
                    with self._turn:
                        while self._next != number and not self._failed:
                            self._turn.wait()
                        if self._failed:
                            return
                        self._then(part, result)
                        self._next += 1
                        self._turn.notify_all()
        except BaseException:
            self._left.clear()
            with self._turn:
                self._failed = True
                self._turn.notify_all()
            raise


def threads(tensors: bool) -> int:
    """Return how many threads a library would use now for what this thread asks of it."""
    if tensors:
        import torch

        return int(torch.get_num_threads())
    return int(min((library["num_threads"] for library in _blas().info()), default=1))


@lru_cache(maxsize=1)
def _blas() -> ThreadpoolController:
    """Return NumPy's libraries; looking for them takes milliseconds."""
    from threadpoolctl import ThreadpoolController  # which scikit-learn requires

    return ThreadpoolController().select(user_api="blas")


@lru_cache(maxsize=1)
def _openmp() -> ThreadpoolController:
    """Return torch's OpenMP. Its number of threads is that of the thread that sets it, and no other's."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="openmp")


@contextmanager
def alone(*arrays: object) -> Iterator[None]:
    """Let torch compute on this thread alone if one of the arrays is its own: for short operations, which waiting would make long."""
    if any(is_tensor(array) for array in arrays) and threads(True) > 1:
        with _openmp().limit(limits=1):
            yield
    else:
        yield


def _alone() -> None:
    """Let torch compute on this thread alone, for as long as the thread lives."""
    threads(True)  # at the first question in a thread torch sets the number itself
    _openmp().limit(limits=1)


def _undifferentiated(take: Callable[[], None]) -> Callable[[], None]:
    """Return ``take`` for another thread: without a graph, as whoever asks computes, and in its inference mode.

    Both are a thread's own, and a new thread differentiates. Strips of a differentiable function's forward pass would join its graph there, and two
    threads that write into one tensor then meet an error, now and again.
    """
    import torch

    inference = torch.is_inference_mode_enabled()

    def help_() -> None:
        with torch.inference_mode() if inference else torch.no_grad():
            take()

    return help_


def times_columns(K: Array, b: Array, apart: bool) -> Array:
    """Return K b; ``apart`` with NumPy's own loops, or sums that its BLAS leaves to this thread."""
    if not apart:
        return K @ b
    entries, vector = to_numpy(K), to_numpy(b)
    out = np.zeros(len(entries), entries.dtype)
    for start in range(0, len(vector), ALONE):
        part = slice(start, start + ALONE)
        out += np.vecdot(entries[:, part], vector[part])
    return out


def times_rows(K: Array, a: Array, apart: bool) -> Array:
    """Return Kᵀ a in the same way."""
    return np.asarray(np.einsum("ij,i->j", to_numpy(K), to_numpy(a))) if apart else K.T @ a
