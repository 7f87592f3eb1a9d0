"""A thread pool for the strips of a matrix, in which each thread computes a whole strip single-threaded.

A linear algebra library splits every operation among its threads and waits for the slowest, which another process may
have preempted. Here a preempted thread delays only its own strip. Results are combined in the order of the strips: they
are bitwise identical for any number of threads above one, and for tensors also for one thread.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import cache
from types import TracebackType
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from congruence._utils.arrays import device, is_tensor
from congruence._utils.typing import Array

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

T = TypeVar("T")

#: Minimum number of matrix entries for which a second thread pays off: with fewer, an iteration takes no longer than
#: waking a thread.
LEAST = 2**19
#: Maximum number of terms for which OpenBLAS computes a dot product on the calling thread alone.
DOT_TERMS = 8192


class StripPool:
    """Thread pool for the strips of one matrix of ``entries`` numbers, like ``like``; active inside a ``with`` block.

    Inside, each of its ``size`` threads, the caller's included, runs torch single-threaded. If strips are not ``held``
    in memory, or are on a device with its own, the caller's thread does all the work, with the library's
    multithreading. ``avoid_blas``: whether products of small NumPy strips would start threads of their own.
    """

    def __init__(self, like: Array, entries: int, held: bool = True) -> None:
        self._tensors = is_tensor(like)
        own = held and "cpu" in str(device(like))
        available = threads(self._tensors) if own else 1
        self.size = available if entries >= LEAST else 1
        self.avoid_blas = own and threads(False) > 1
        self._limit_torch = available > 1 and self._tensors
        self._pool: ThreadPoolExecutor | None = None
        self._exit = ExitStack()

    def __enter__(self) -> StripPool:
        if self._limit_torch:
            self._exit.enter_context(_controller("openmp").limit(limits=1))
        if self.size > 1:
            initializer = _limit_torch_to_one_thread if self._limit_torch else None
            self._pool = ThreadPoolExecutor(self.size - 1, "congruence-strips", initializer)
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
        """Yield the results of ``work`` for the parts, in their order. ``then`` is called with each and its result, in
        the order of the parts, one call at a time: for sums too large to be kept for every part. What either raises is
        raised after all threads have returned.
        """
        if self._pool is None or len(parts) < 2:
            for part in parts:
                result = work(part)
                if then is not None:
                    then(part, result)
                yield result
            return
        queue = _Queue(work, parts, then)
        helper = _without_gradients(queue.process) if self._tensors else queue.process
        yield from queue.run(self._pool, helper, self.size - 1)


#: Runs everything on the caller's thread, with the library's own multithreading.
CALLING_THREAD = StripPool(np.empty(0), 0, held=False)


class _Queue(Generic[T]):
    """A queue of strips from which idle threads take the next."""

    def __init__(
        self, work: Callable[[slice], T], parts: Sequence[slice], then: Callable[[slice, T], None] | None
    ) -> None:
        self._work, self._then = work, then
        self._left = deque(enumerate(parts))  # deque.popleft is thread-safe
        self._results: dict[int, T] = {}
        self._turn, self._next, self._failed = threading.Condition(), 0, False

    def run(self, pool: ThreadPoolExecutor, helper: Callable[[], None], helpers: int) -> Iterator[T]:
        """Process all strips here and in up to ``helpers`` threads of the pool, and return the results in order."""
        submitted: list[Future[None]] = [pool.submit(helper) for _ in range(min(helpers, len(self._left) - 1))]
        try:
            self.process()
        finally:
            # Cancel helpers that have not started, and wait for the others: each is working on its last part.
            started = [future for future in submitted if not future.cancel()]
            errors = [future.exception() for future in started]
        for error in errors:
            if error is not None:
                raise error
        return iter([self._results[number] for number in range(len(self._results))])

    def process(self) -> None:
        """Process strips until the queue is empty, or another thread has failed."""
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
    """Return the number of threads that torch (``tensors``) or NumPy's BLAS would now use in this thread."""
    if tensors:
        import torch

        return int(torch.get_num_threads())
    return int(min((library["num_threads"] for library in _controller("blas").info()), default=1))


@cache
def _controller(api: str) -> ThreadpoolController:
    """Return a controller of the loaded libraries of an API; a limit of "openmp" applies to the calling thread only."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api=api)


@contextmanager
def single_threaded(*arrays: object) -> Iterator[None]:
    """Make torch single-threaded here if an array is a tensor: waiting for threads would slow short operations."""
    if any(is_tensor(array) for array in arrays) and threads(True) > 1:
        with _controller("openmp").limit(limits=1):
            yield
    else:
        yield


def _limit_torch_to_one_thread() -> None:
    """Make torch single-threaded in the calling thread, for the thread's lifetime."""
    threads(True)  # the first query in a thread makes torch set the number itself, so query before setting the limit
    _controller("openmp").limit(limits=1)


def _without_gradients(process: Callable[[], None]) -> Callable[[], None]:
    """Return ``process`` for a worker thread, without gradients, and in inference mode if the caller's thread is."""
    import torch

    inference = torch.is_inference_mode_enabled()

    def helper() -> None:
        with torch.inference_mode() if inference else torch.no_grad():
            process()

    return helper


def times_columns(K: np.ndarray, b: np.ndarray, avoid_blas: bool) -> np.ndarray:
    """Return K b; with ``avoid_blas``, from dot products that BLAS computes on the calling thread alone."""
    if not avoid_blas:
        return K @ b
    out = np.zeros(len(K), K.dtype)
    for start in range(0, len(b), DOT_TERMS):
        part = slice(start, start + DOT_TERMS)
        out += np.vecdot(K[:, part], b[part])
    return out


def times_rows(K: np.ndarray, a: np.ndarray, avoid_blas: bool) -> np.ndarray:
    """Return Kᵀ a; with ``avoid_blas``, by NumPy's own loops."""
    return np.einsum("ij,i->j", K, a) if avoid_blas else K.T @ a
