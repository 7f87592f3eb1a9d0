"""Strips shared out among threads: the same results for any number of them, and nothing changed for anybody else."""

import threading

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from congruence.errors import NotFiniteError
from congruence.transport import _kernel, _strip_pool, klot, klot_features, sinkhorn, solve_teacher


@pytest.fixture(autouse=True)
def many_small_strips(monkeypatch):
    monkeypatch.setattr(_strip_pool, "LEAST", 0)
    monkeypatch.setattr(_kernel, "HELD_BYTES", 20 * 90 * 8)
    monkeypatch.setattr(_kernel, "COMPUTED_BYTES", 20 * 90 * 8)


@pytest.fixture(params=[1, 2, 5])
def n_threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def vectors(dtype=torch.float32):
    torch.manual_seed(0)
    X, TX = normalize(torch.randn(2, 120, 8, dtype=dtype), dim=2)
    Y, TY = (normalize(side[:90] + 0.4 * torch.randn(90, 8, dtype=dtype), dim=1) for side in (X, TX))
    return X.requires_grad_(), Y.requires_grad_(), TX, TY


FEW = 30  # iterations: as good as more at telling who computed what


def dense(X, Y, TX, TY):
    A = (X @ Y.T).detach().requires_grad_()
    value, info = klot(A, TX @ TY.T, 0.05, 0.02, FEW, return_info=True)
    return value, info, *torch.autograd.grad(value, A)


def features(X, Y, TX, TY, memory=2**30, max_iter=FEW, tolerance=1e-3):
    value, info = klot_features(X, Y, TX, TY, 0.05, 0.02, max_iter, tolerance, memory=memory, return_info=True)
    return value, info, *torch.autograd.grad(value, (X, Y))


def half_held(X, Y, TX, TY, **options):
    return features(X, Y, TX, TY, memory=60 * 90 * X.itemsize, **options)


def taught(X, Y, TX, TY):
    value, info = klot_features(X, Y, TX, TY, max_iter=FEW, teacher=solve_teacher(TX, TY, 0.02, FEW), return_info=True)
    return value, info, *torch.autograd.grad(value, (X, Y))


def with_threads(n, ask):
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        return ask()
    finally:
        torch.set_num_threads(before)


@pytest.mark.long
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("way", [dense, features, taught])
def test_klot_is_the_same_to_the_bit_for_any_number_of_threads(way, dtype):
    value, info, *slopes = with_threads(1, lambda: way(*vectors(dtype)))
    assert all(slope.abs().max() > 0 for slope in slopes)
    for n in (2, 5):
        for _ in range(3):  # who takes which strip is not always the same
            again, other, *others = with_threads(n, lambda: way(*vectors(dtype)))
            assert torch.equal(again, value)
            assert (other.gradient_error, other.difference) == (info.gradient_error, info.difference)
            assert torch.equal(other.teacher.u, info.teacher.u)
            assert all(torch.equal(*pair) for pair in zip(slopes, others, strict=True))


def test_long_sums_are_the_same_too(monkeypatch):
    """Over strips as large as they are: some libraries split long sums by their number of threads."""
    monkeypatch.setattr(_kernel, "HELD_BYTES", 2**20)
    A, T = (0.2 * torch.randn(2, 600, 900, generator=torch.Generator().manual_seed(0))).unbind()
    one, two = (with_threads(n, lambda: klot(A, T, 0.05, 0.05)) for n in (1, 2))
    assert one == two


def test_strips_that_are_computed_each_time_are_equal_but_for_rounding(n_threads):
    exact = {"max_iter": 2000, "tolerance": 1e-12}
    value, _, *slopes = half_held(*vectors(torch.float64), **exact)
    expected, _, *others = with_threads(1, lambda: features(*vectors(torch.float64), **exact))
    assert torch.isclose(value, expected, rtol=1e-12)
    assert all(torch.allclose(*pair, atol=1e-11) for pair in zip(slopes, others, strict=True))


@pytest.mark.parametrize("way", ["dense", "vectors", "half held"])
def test_numpy_is_equal_but_for_rounding(way, monkeypatch):
    X, Y, _, _ = (side.detach().numpy() for side in vectors(torch.float64))
    given = {"affinity": X @ Y.T} if way == "dense" else {"X": X, "Y": Y}
    given |= {"memory": 60 * 90 * 8} if way == "half held" else {}
    found = {}
    for n in (1, 3):
        monkeypatch.setattr(_strip_pool, "threads", lambda tensors, n=n: n)
        monkeypatch.setattr(_strip_pool, "DOT_TERMS", 32)
        found[n] = sinkhorn(epsilon=0.02, **given)
    assert found[1].n_iter == found[3].n_iter
    np.testing.assert_allclose(found[1].u, found[3].u, atol=1e-11)
    np.testing.assert_allclose(found[1].v, found[3].v, atol=1e-11)


def test_numbers_of_threads_are_what_they_were(n_threads):
    dense(*vectors())
    features(*vectors())
    half_held(*vectors())
    assert torch.get_num_threads() == n_threads
    seen = []
    thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert seen == [n_threads]


def test_also_after_an_error(n_threads, monkeypatch):
    X, Y, TX, TY = vectors()
    bad = (X @ Y.T).detach()
    bad[3, 4] = torch.nan
    with pytest.raises(NotFiniteError):
        klot(bad, TX @ TY.T)
    assert torch.get_num_threads() == n_threads
    calls = []

    def broken(L):
        calls.append(threading.current_thread())
        if len(calls) == 9:
            raise ZeroDivisionError
        return exponential(L)

    exponential = _kernel.exponential
    monkeypatch.setattr(_kernel, "exponential", broken)
    with pytest.raises(ZeroDivisionError):
        klot((X @ Y.T).detach(), TX @ TY.T)
    assert torch.get_num_threads() == n_threads
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("congruence-strips")]


@pytest.mark.long
def test_two_threads_may_ask_at_once():
    expected = with_threads(2, lambda: dense(*vectors()))
    found, counts = [], []

    def ask(n):
        torch.get_num_threads()  # at the first question in a thread torch takes the number that any thread set last
        torch.set_num_threads(n)
        for _ in range(5):
            found.append(dense(*common))
        counts.append((n, torch.get_num_threads()))

    common = vectors()
    before = torch.get_num_threads()
    threads = [threading.Thread(target=ask, args=(n,)) for n in (2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.set_num_threads(before)
    assert sorted(counts) == [(2, 2), (3, 3)]
    assert len(found) == 10
    assert all(torch.equal(value, expected[0]) and torch.equal(slope, expected[2]) for value, _, slope in found)


def test_while_strips_are_shared_out_nobody_else_is_limited():
    limited, other = [], []

    def ask_elsewhere():
        torch.ones(2).sum()
        other.append(torch.get_num_threads())

    with with_threads(3, lambda: _strip_pool.StripPool(torch.ones(1), 1)) as pool:
        thread = threading.Thread(target=ask_elsewhere)
        thread.start()
        thread.join()
        gate = threading.Barrier(pool.size, timeout=30)  # every thread takes one

        def work(part):
            gate.wait()
            limited.append(torch.get_num_threads())

        list(pool.each(work, [slice(0, 1)] * pool.size))
    assert pool.size == 3
    assert limited == [1, 1, 1]
    assert other == [torch.get_num_threads()]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_strips_are_not_differentiated_in_any_thread(mode):
    """Threads begin with a graph.

    What two of them write into one tensor would otherwise be in it, and fail now and again.
    """
    Y = torch.ones(2, 2, requires_grad=True)
    found = []
    with with_threads(3, lambda: _strip_pool.StripPool(torch.ones(1), 1)) as pool:
        gate = threading.Barrier(pool.size, timeout=30)

        def work(part):
            gate.wait()
            found.append(((torch.ones(2, 2) @ Y).requires_grad, torch.is_inference_mode_enabled()))

        with mode():
            list(pool.each(work, [slice(0, 1)] * pool.size))
    assert found == [(False, mode is torch.inference_mode)] * 3


def test_under_inference_mode(n_threads):
    X, Y, TX, TY = (side.detach() for side in vectors())
    for loss, sides in ((klot, (X @ Y.T, TX @ TY.T)), (klot_features, (X, Y, TX, TY))):
        with torch.inference_mode():
            found, _ = loss(*sides, max_iter=FEW, return_info=True)
        assert torch.equal(found, loss(*sides, max_iter=FEW, return_info=True)[0])
