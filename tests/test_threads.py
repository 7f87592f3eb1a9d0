"""Two threads are used unless the machine has other work."""

import os

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from congruence import certify
from congruence._utils.threads import calm_threads


def blas_threads():
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


@pytest.mark.parametrize(("load", "threads"), [(0.5, 2), (1.1, 2), (9.0, 1)])
def test_a_busy_machine_gives_one_thread(load, threads, monkeypatch):
    monkeypatch.setattr(os, "getloadavg", lambda: (load * os.cpu_count(), 0.0, 0.0))
    with threadpool_limits(2, user_api="blas"):
        with calm_threads():
            assert blas_threads() == {threads}
        assert blas_threads() == {2}


def test_a_certificate_is_made_in_one_thread_then(monkeypatch):
    monkeypatch.setattr(os, "getloadavg", lambda: (1000.0, 0.0, 0.0))
    X, Y = np.random.default_rng(0).standard_normal((2, 40, 8)).astype(np.float32)
    seen = set()
    with threadpool_limits(2, user_api="blas"):
        certify(X, Y, callback=lambda _: seen.update(blas_threads()))
    assert seen == {1}
