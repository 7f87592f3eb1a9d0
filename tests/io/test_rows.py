"""Rows drawn from files: every row once per epoch, the same rows at the same step, in bounded memory, and no thread is
left running.
"""

import gc
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from written import KEEPS_IDS, WRITTEN, as_held, write, write_large

from congruence import errors
from congruence.io import StreamedRows, open_rows, open_source
from congruence.train import ArrayRows, Rows
from congruence.train.rows import as_rows
from fresh import run_fresh

RNG = np.random.default_rng(0)


def numbered(n, d=3):
    """Rows whose first entry is their number, from 1."""
    X = RNG.standard_normal((n, d)).astype(np.float32)
    X[:, 0] = np.arange(1, n + 1)
    return X


def readers():
    return [thread for thread in threading.enumerate() if thread.name.startswith("congruence: rows")]


@pytest.fixture(scope="module", autouse=True)
def little_to_collect():
    gc.freeze()  # a collection of all of torch's objects takes a second, of what these tests make a moment


@pytest.fixture(autouse=True)
def no_thread_stays():
    yield
    gc.collect()
    until = time.monotonic() + 10
    while readers() and time.monotonic() < until:
        time.sleep(0.01)
    assert readers() == []


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """Files of 1 to 40 rows, by number."""
    home = tmp_path_factory.mktemp("rows")
    return {n: write(home / f"{n}.npy", numbered(n)) for n in range(1, 41)}


@given(n=st.integers(1, 40), pool=st.integers(1, 45), size=st.integers(1, 60), seed=st.integers(0, 9))
def test_every_row_once_an_epoch(n, pool, size, seed, stores):
    X = np.load(stores[n])
    rows = StreamedRows(open_source(stores[n]), pool)
    steps = -(-3 * n // size)
    drawn = np.concatenate([rows.batch(step, size, seed) for step in range(steps)])
    rows.close()
    for epoch in range(3):
        part = drawn[epoch * n : epoch * n + n]
        np.testing.assert_array_equal(part[part[:, 0].argsort()], X)


@pytest.mark.long
@given(
    n=st.integers(2, 40),
    pool=st.integers(1, 45),
    size=st.integers(1, 30),
    steps=st.lists(st.integers(0, 40), min_size=1, max_size=6),
)
def test_a_batch_depends_on_step_and_seed_alone(n, pool, size, steps, stores):
    ran = StreamedRows(open_source(stores[n]), pool)
    in_turn = [ran.batch(step, size, 5) for step in range(max(steps) + 1)]
    seeking = StreamedRows(open_source(stores[n]), pool)
    for step in steps:  # from anywhere to anywhere
        np.testing.assert_array_equal(seeking.batch(step, size, 5), in_turn[step])
    ran.close()
    seeking.close()


def test_orders_differ_between_epochs_seeds_and_stretches(tmp_path):
    rows = StreamedRows(open_source(write(tmp_path / "a.npy", numbered(4000))), 1000)
    orders = [rows.batch(epoch, 4000, seed)[:, 0] for epoch in range(2) for seed in range(2)]
    rows.close()
    for i, order in enumerate(orders):
        chunks = (order - 1) // 1000
        assert [len(set(chunks[k : k + 1000])) for k in range(0, 4000, 1000)] == [1] * 4
        within = [(order - 1)[k : k + 1000] % 1000 for k in range(0, 4000, 1000)]
        for j in range(4):  # as likely to rise as to fall, and not the order of another chunk
            assert abs((np.diff(within[j]) > 0).mean() - 0.5) < 0.06
            assert (within[j] == within[j - 1]).mean() < 0.02
        assert all((order == other).mean() < 0.02 for other in orders[:i])


@pytest.mark.parametrize("suffix", WRITTEN)
@pytest.mark.parametrize("dtype", [np.float32, *(pytest.param(one, marks=pytest.mark.long) for one in ("f2", "f8"))])
def test_every_format(suffix, dtype, tmp_path):
    if as_held(suffix, dtype) is None:
        return
    X = numbered(53).astype(dtype)
    ids = [f"i{k}" for k in range(53)] if suffix in KEEPS_IDS else None
    rows = StreamedRows(open_source(write(tmp_path / f"v{suffix}", X, ids)), 10)
    assert isinstance(rows, Rows)
    assert as_rows(rows, "rows") is rows
    assert (len(rows), rows.dim) == (53, 3)
    batch = rows.batch(0, 53, 1)
    rows.close()
    assert batch.dtype == np.float32
    np.testing.assert_array_equal(batch[batch[:, 0].argsort()].astype(dtype), X.astype(np.float32).astype(dtype))
    scanned = list(rows.scan())
    assert [start for start, _ in scanned] == np.cumsum([0, *(len(block) for _, block in scanned)])[:-1].tolist()
    single = np.concatenate([block for _, block in scanned])
    np.testing.assert_array_equal(single.astype(dtype), X.astype(np.float32).astype(dtype))
    numbers = [52, 0, 7, 7, 31]
    np.testing.assert_array_equal(rows.take(numbers), single[numbers])
    for size in (1, 5, 52, 53, 99):
        sample = rows.sample(size)
        assert len(sample) == min(size, 53)
        assert len(set(sample[:, 0])) == len(sample)
        assert set(sample[:, 0]) <= set(single[:, 0])


@pytest.mark.parametrize("suffix", WRITTEN)
def test_rows_by_number(suffix, tmp_path, monkeypatch):
    monkeypatch.setattr("congruence.io._base.BATCH", 8)  # so that far is far
    X = numbered(200)
    names = [f"i{k}" for k in range(200)] if suffix in KEEPS_IDS else None
    source = open_source(write(tmp_path / f"v{suffix}", X, names))
    for wanted in ([0], [199], [5, 3, 3, 190, 60, 61, 199, 0], np.arange(200)[::-1], RNG.integers(0, 200, 90), []):
        ids, rows = source.take(wanted)
        np.testing.assert_array_equal(rows.astype(np.float32), X[np.asarray(wanted, int)])
        assert (None if ids is None else ids.to_pylist()) == (
            [names[k] for k in wanted] if names and len(wanted) else None
        )
    for wanted in ([200], [-1], [[1]], [0.5]):
        with pytest.raises(errors.ParameterError, match="row number"):
            source.take(wanted)


def test_half_precision_is_held_as_such_and_handed_out_as_single(tmp_path):
    rows = StreamedRows(open_source(write(tmp_path / "a.npy", numbered(9).astype(np.float16))), 4)
    assert rows.batch(0, 4, 0).dtype == np.float32
    assert rows._held[1].dtype == np.float16
    rows.close()
    wide = StreamedRows(open_source(write(tmp_path / "b.npy", np.full((9, 2), 1e30))), 4, dtype=np.float32)
    assert wide.batch(0, 4, 0).max() == np.float32(1e30)
    wide.close()


@pytest.mark.parametrize("by_map", [False, True])
def test_bad_rows_are_named_when_they_are_read(by_map, tmp_path):
    for value, error in ((np.nan, errors.NotFiniteError), (np.inf, errors.NotFiniteError), (0, errors.ZeroRowError)):
        X = numbered(50)
        X[33] = value
        path = tmp_path / f"{value}.npy"
        rows = open_rows(write(path, X), memory=96) if by_map else StreamedRows(open_source(write(path, X)), 10)
        with pytest.raises(error, match=r"in 1 of .*row 33'"):
            for step in range(50):
                rows.batch(step, 1, 0)
        with pytest.raises(error, match=r"row 33'"):
            list(rows.scan())
        with pytest.raises(error, match=r"row 33'"):
            rows.take([2, 33])
        path.unlink()
    X[33] = 0
    rows = StreamedRows(open_source(write(tmp_path / "a.parquet", X, [f"cat {k}" for k in range(50)])), 10)
    for read in (lambda: rows.take([33]), lambda: rows.batch(0, 50, 0)):
        with pytest.raises(errors.ZeroRowError, match="'cat 33'"):
            read()


def test_an_error_met_ahead_is_raised_where_its_rows_are_needed(tmp_path):
    X = numbered(40)
    X[10:20] = np.nan
    seed = next(s for s in range(99) if np.random.default_rng([s, 0]).permutation(4)[:2].tolist() == [0, 1])
    rows = StreamedRows(open_source(write(tmp_path / "a.npy", X)), 10)
    for step in range(2):
        assert np.isfinite(rows.batch(step, 5, seed)).all()
    for _ in range(2):  # and again, when asked again
        with pytest.raises(errors.NotFiniteError):
            rows.batch(2, 5, seed)
    assert np.isfinite(rows.batch(0, 5, seed)).all()
    rows.close()


@pytest.mark.parametrize(
    "suffix", [".npy", *(pytest.param(one, marks=pytest.mark.long) for one in (".npz", ".safetensors", ".h5"))]
)
def test_a_file_cut_while_in_use(suffix, tmp_path):
    path = write(tmp_path / f"v{suffix}", numbered(3000))
    rows = StreamedRows(open_source(path), 500)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(errors.CorruptFileError):
        rows.batch(0, 3000, 0)
    with pytest.raises(errors.CorruptFileError):
        rows.take([2999])
    path.unlink()
    with pytest.raises(errors.FileError):
        rows.batch(0, 3000, 0)


def test_fewer_rows_than_said(tmp_path):
    source = open_source(write(tmp_path / "v.npy", numbered(30)))
    source.n = 35
    source.scan = lambda after=0, batch=9: iter([(None, numbered(30)[after:])] if after < 30 else [])
    with pytest.raises(errors.CorruptFileError, match="30 of 35 rows"):
        StreamedRows(source, 20).batch(0, 35, 0)
    with pytest.raises(errors.CorruptFileError, match=r"rows in .*35|is truncated"):
        source.take([34])


def test_bad_parameters(tmp_path):
    path = write(tmp_path / "v.npy", numbered(30))
    for pool in (0, -1, 2.5):
        with pytest.raises(errors.ParameterError, match="pool"):
            StreamedRows(open_source(path), pool)
    for dtype in (np.float64, np.int32):
        with pytest.raises(errors.DtypeError, match="float16 or float32"):
            StreamedRows(open_source(path), dtype=dtype)
    with pytest.raises(errors.ParameterError, match="memory"):
        open_rows(path, memory=0)
    write(tmp_path / "w.npy", np.full((4, 2), 1e300))
    with pytest.raises(errors.DtypeError, match="range of float32"):
        StreamedRows(open_source(tmp_path / "w.npy")).batch(0, 2, 0)
    write(tmp_path / "x.npy", np.full((4, 2), 1e-300))
    with pytest.raises(errors.ZeroRowError):
        StreamedRows(open_source(tmp_path / "x.npy")).batch(0, 2, 0)


def test_closing_and_forgetting_end_the_reading(tmp_path):
    path = write(tmp_path / "v.npy", numbered(4000))
    first = int(np.random.default_rng((0, 0)).permutation(4)[0]) * 1000

    for end in (StreamedRows.close, lambda rows: None):
        source = open_source(path)
        plain, read = source.scan, []

        def slow(after=0, batch=None, plain=plain, read=read):
            for block in plain(after, 10):
                if read or after != first:
                    read.append(block)
                    time.sleep(0.05)
                yield block

        source.scan = slow
        rows = StreamedRows(source, 1000)
        rows.batch(0, 10, 0)
        (thread,) = readers()
        end(rows)
        del rows
        gc.collect()
        thread.join(20)
        assert not thread.is_alive()
        assert len(read) <= 20  # of 100 blocks


def test_what_a_store_is_opened_as(tmp_path):
    X = numbered(50)
    path = write(tmp_path / "v.npy", X)
    read = open_rows(path)
    assert isinstance(read, ArrayRows)
    assert not isinstance(read._rows, np.memmap)
    mapped = open_rows(path, memory=599)  # of 600 bytes
    assert isinstance(mapped._rows, np.memmap)
    for step in range(9):
        np.testing.assert_array_equal(mapped.batch(step, 7, 3), read.batch(step, 7, 3))
    np.testing.assert_array_equal(mapped.sample(9), read.sample(9))
    np.testing.assert_array_equal(np.concatenate([block for _, block in mapped.scan()]), X)
    np.save(tmp_path / "f.npy", np.asfortranarray(X))
    np.save(tmp_path / "i.npy", np.arange(1, 61).reshape(20, 3))
    for other in (write(tmp_path / "v.parquet", X), tmp_path / "f.npy", tmp_path / "i.npy"):
        streamed = open_rows(other, memory=240)
        assert isinstance(streamed, StreamedRows)
        assert streamed._size == 240 // (2 * streamed.dim * open_source(other).dtype.itemsize)
        streamed.close()
    with pytest.raises(errors.NotFiniteError):
        open_rows(write(tmp_path / "n.npy", X * np.nan))
    with pytest.raises(errors.ZeroRowError, match="'a'"):
        open_rows(write(tmp_path / "n.parquet", X[:2] * 0, list("ab")))


def test_training_takes_them_and_refuses_another_width(tmp_path):
    pytest.importorskip("torch")
    from congruence.train import SAIL

    A, B = RNG.standard_normal((2, 20, 3))
    rows = [StreamedRows(open_source(write(tmp_path / f"{k}.npy", numbered(50))), 10) for k in range(2)]
    train = SAIL(negatives=True, n_components=2, max_steps=5, batch_size=40, validate_every=5)
    first, again = (train.fit(A, B, unpaired=rows, verbose=False).transform(A) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    with pytest.raises(errors.ShapeError, match="3"):
        train.fit(np.ones((20, 4)), B, unpaired=rows, verbose=False)
    for side in rows:
        side.close()


@pytest.mark.parametrize("given", [ArrayRows, lambda X: ArrayRows(X, "X"), None], ids=["array", "mapped", "read"])
def test_numbers_beyond_float32_are_never_infinite(given, tmp_path):
    X = np.ones((5, 3))
    X[0, 1] = 1e300
    np.save(tmp_path / "a.npy", X)
    rows = given(X) if given else open_rows(tmp_path / "a.npy")
    for read in (lambda: rows.take([0]), lambda: rows.batch(0, 5, 0)):
        with pytest.raises(errors.DtypeError, match="range of float32"):
            read()
    np.testing.assert_array_equal(rows.take([1]), np.ones((1, 3)))


DRAW = """
import re, sys
from congruence.io import StreamedRows, open_source
peak = lambda: int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
source = open_source(sys.argv[1])
next(source.scan(batch=1))  # what the reader itself imports
rows = StreamedRows(source, 4096 * 4)
before = peak()
n = sum(len(rows.batch(step, 4096, 0)) for step in range(int(sys.argv[2])))
print(n, peak() - before, flush=True)
"""


@pytest.mark.long
@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors", ".parquet", ".h5", ".lance"])
def test_an_epoch_needs_two_stretches(suffix, tmp_path):
    path = tmp_path / f"v{suffix}"
    # Two chunks are 32 MB, two batches 8, a few blocks 4 each; Parquet holds a row group (64 MB) and its pages,
    # and zipfile seeks by reading 16 MB at a time.
    limit = {".parquet": 190_000, ".lance": 250_000, ".npz": 150_000}.get(suffix, 70_000)
    blocks = write_large(path, limit)  # a file larger than what reading it may take
    steps = blocks * 6 // 5
    out = run_fresh(DRAW, path, str(steps)).stdout.split()
    assert int(out[0]) == 4096 * steps
    assert int(out[1]) < limit
