"""Threads of the linear algebra on a machine that has other work."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

#: Processes that run or wait for each core, averaged over a minute, from which the machine is busy: more than a process
#: causes that alone uses all cores.
_BUSY = 1.5


@contextmanager
def calm_threads() -> Iterator[None]:
    """Compute in one thread while other processes use the cores.

    A linear algebra library waits for the slowest of its threads in every operation. Where a thread is suspended for
    milliseconds, small operations take many times as long as in one thread.
    """
    # All cores, also if this process may use few: the load is that of the whole machine, in a container, too.
    if not hasattr(os, "getloadavg") or os.getloadavg()[0] <= _BUSY * (os.cpu_count() or 1):
        yield
        return
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1, user_api="blas"):
        yield
