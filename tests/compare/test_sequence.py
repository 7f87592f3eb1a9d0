import re

import numpy as np
import pytest

from congruence.compare.pairing import check_pairing, warn_pairing
from congruence.datasets import load_sample
from congruence.errors import DuplicateWarning, UnpairedError


@pytest.fixture
def names(lvis):
    return lvis["text_openai_vitb32"], lvis["text_eva02_b16"]  # sorted by name


@pytest.mark.parametrize(("lag", "n"), [(1, 100), (-1, 100), (7, 100), pytest.param(-30, 300, marks=pytest.mark.long)])
@pytest.mark.parametrize("sort", [True, False])
def test_a_file_that_is_off_is_found_with_its_lag(names, lag, n, sort):
    X, Y = names
    if not sort:
        order = np.random.default_rng(0).permutation(len(X))
        X, Y = X[order], Y[order]
    first = max(lag, 0), max(-lag, 0)
    report = check_pairing(X[first[0] : first[0] + n], Y[first[1] : first[1] + n])
    assert report.state == "shifted"
    assert report.lags[-1][1] == lag
    assert report.lags[-1][0] <= abs(lag)
    assert report.share_wrong > 0.9
    assert not report.looks_paired
    assert report.decided
    pairs = report.realigned()
    assert np.mean(pairs[:, 0] + first[0] == pairs[:, 1] + first[1]) > 0.98
    assert len(pairs) >= n - abs(lag) - 2
    with pytest.raises(UnpairedError, match=re.escape(f"{'+' if lag > 0 else '−'} {abs(lag)} of the other side")):
        warn_pairing(report, strict=True)


@pytest.mark.parametrize(
    "columns",
    [
        ("text_openai_vitb32", "text_eva02_b16"),
        pytest.param(("image_openai_vitb32_avg5", "text_eva02_b16"), marks=pytest.mark.long),
    ],
)
def test_a_row_lost_on_each_side(lvis, columns):
    X, Y = (lvis[name][:601] for name in columns)
    report = check_pairing(np.delete(X, 40, axis=0), np.delete(Y, 555, axis=0))
    assert report.state == "shifted"
    (begin, one), (end, zero) = report.lags
    assert (one, zero) == (1, 0)
    assert abs(begin - 40) <= 3
    assert abs(end - 555) <= 3
    assert report.share_wrong == pytest.approx(515 / 600, abs=0.02)


@pytest.mark.long
def test_photos_in_class_folders(shared):
    with np.load(shared("caltech101_unimodal.npz"), allow_pickle=False) as data:
        order = np.argsort(data["label"], kind="stable")
        X, Y = (data[name][order].astype(np.float32) for name in ("image_effnet_lite0", "image_mobilenet_v2"))
    whole = check_pairing(X, Y)
    assert whole.state == "paired"
    assert (whole.realigned() == np.arange(len(X))[:, None]).all()
    ((begin, lag),) = check_pairing(X[1:], Y[:-1]).lags
    assert (begin <= 2, lag) == (True, 1)


def make(kind, X, Y, rng, n):
    if kind == "copies":
        rows = np.repeat(np.arange(n), rng.integers(1, 10, n))[:n]
        return X[rows], Y[rows]
    if kind == "near copies":
        rows = np.repeat(np.arange(n), 12)[:n]
        return [Z[rows] + 0.1 * Z.std() * rng.standard_normal((n, Z.shape[1])) for Z in (X, Y)]
    if kind == "six items":
        rows = np.repeat(np.arange(6), -(-n // 6))[:n]
        return [Z[rows] + 0.05 * Z.std() * rng.standard_normal((n, Z.shape[1])) for Z in (X, Y)]
    if kind == "noisy":
        return [Z[:n] + 0.7 * Z.std() * rng.standard_normal((n, Z.shape[1])) for Z in (X, Y)]
    if kind == "periodic":
        rows = np.arange(n) % 40
        return [Z[rows] + 0.3 * Z.std() * rng.standard_normal((n, Z.shape[1])) for Z in (X, Y)]
    return X[:n], Y[:n]


@pytest.mark.parametrize(
    "kind", ["plain", "copies", "near copies", "six items", "noisy", pytest.param("periodic", marks=pytest.mark.long)]
)
def test_true_pairs_in_any_order_are_not_accused(names, kind):
    for seed in range(3):
        rng = np.random.default_rng(seed)
        start = int(rng.integers(0, 700))
        X, Y = make(kind, *(Z[start:] for Z in names), rng, int(rng.choice([60, 150, 400])))
        assert check_pairing(X, Y, permutations=99).state != "shifted"


@pytest.mark.long
def test_long_files_are_compared_in_stretches(shared):
    with np.load(shared("caltech101_unimodal.npz"), allow_pickle=False) as data:
        X, Y = (data[name].astype(np.float32) for name in ("image_effnet_lite0", "image_mobilenet_v2"))
    report = check_pairing(np.delete(X, 4000, axis=0), Y[:-1])
    ((begin, lag),) = report.lags
    assert lag == 1
    assert 3000 < begin <= 5000  # between stretches it is not known better
    whole = check_pairing(X, Y)
    assert whole.state == "paired"
    assert (whole.realigned() == np.arange(len(X))[:, None]).all()


@pytest.mark.long
def test_of_many_pairs_all_are_looked_at():
    """Of 20,000 pairs 5,000 are tested; rows out of step between the stretches, and wrong pairs, are found as well."""
    n, rng = 20_000, np.random.default_rng(0)
    X = np.repeat(rng.standard_normal((n // 2, 64), dtype=np.float32), 2, axis=0)
    X += 0.3 * rng.standard_normal(X.shape, dtype=np.float32)
    turn = np.linalg.qr(rng.standard_normal((64, 64)))[0].astype(np.float32)
    Y = X @ turn + 0.3 * rng.standard_normal(X.shape, dtype=np.float32)
    assert check_pairing(X, Y).state == "paired"
    steps = check_pairing(np.delete(X, 8700, axis=0), np.delete(Y, 9700, axis=0)).lags
    assert [lag for _, lag in steps] == [1, 0]
    assert 8500 < steps[0][0] < 9700
    wrong = rng.choice(n, 200, replace=False)
    Y[wrong] = Y[np.roll(wrong, 1)]
    report = check_pairing(X, Y)
    named = np.array(report.suspects, int)
    assert np.isin(named, wrong).all()
    assert len(named) > 180
    assert report.state == "paired"


def other_order(kind, n, Y):
    rows = np.arange(n)
    if kind == "first half reversed":
        return np.concatenate([rows[: n // 2][::-1], rows[n // 2 :]])
    if kind == "blocks exchanged":
        return np.concatenate([rows[n // 4 : n // 2], rows[: n // 4], rows[n // 2 :]])
    Z = Y[:n] - Y[:n].mean(axis=0)  # half of the rows exchanged with near neighbors
    near = np.argsort(-(Z @ Z.T), axis=1)[:, 1]
    for i in range(n):
        j = near[i]
        if rows[i] == i and rows[j] == j and i != j and np.count_nonzero(rows != np.arange(n)) < n / 2:
            rows[i], rows[j] = rows[j], rows[i]
    return rows


@pytest.mark.parametrize("kind", ["first half reversed", "blocks exchanged", "neighbors exchanged"])
@pytest.mark.parametrize("sort", [True, pytest.param(False, marks=pytest.mark.long)])
def test_half_wrong_files_are_found_and_put_right(names, kind, sort):
    n, (X, Y) = 400, names
    if not sort:
        order = np.random.default_rng(0).permutation(len(X))
        X, Y = X[order], Y[order]
    wrong = other_order(kind, n, Y)
    report = check_pairing(X[:n], Y[wrong])
    assert not report.looks_paired
    assert report.decided
    assert 0.3 < report.share_wrong < 0.7
    pairs = report.realigned()
    assert np.mean(wrong[pairs[:, 1]] == pairs[:, 0]) > 0.95
    with pytest.raises(UnpairedError):
        warn_pairing(report, strict=True)


def test_copies_of_few_items_are_too_few_and_counted(names):
    rng = np.random.default_rng(0)
    rows = np.repeat(np.arange(6), 100)
    X, Y = (Z[rows] + 0.05 * Z.std() * rng.standard_normal((600, Z.shape[1])) for Z in names)
    report = check_pairing(X, Y)
    assert report.state == "too few"
    assert report.distinct == (6, 6, 6)
    assert "6 pairs" in report.sentence
    with pytest.warns(DuplicateWarning, match="about 6 are distinct"), pytest.raises(UnpairedError):
        warn_pairing(report, strict=True)
    assert check_pairing(*(Z[:200] for Z in names)).distinct[2] == 200


@pytest.mark.parametrize("kind", ["grid", "uniform"])
def test_items_of_two_dimensions_are_no_copies(kind):
    """Neighbors on a grid are nearer than copies of other items are, and as far from each other as all neighbors."""
    rng = np.random.default_rng(0)
    plane = np.stack(np.divmod(np.arange(400.0), 20), axis=1) if kind == "grid" else 20 * rng.random((400, 2))
    X = np.hstack([plane, np.zeros((400, 14))]) + 0.01 * rng.standard_normal((400, 16))
    Y = X @ np.linalg.qr(rng.standard_normal((16, 16)))[0]
    assert min(check_pairing(X, Y, permutations=99).distinct) >= 360
    twice = [np.repeat(Z[:200], 2, axis=0) for Z in (X, Y)]
    assert 190 <= min(check_pairing(*twice, permutations=99).distinct) <= 200


@pytest.mark.long
def test_a_lag_that_is_likely_but_not_sure_is_no_yes(shared):
    """A third of photos and captions exchanged as blocks: at least "cannot tell", and not "paired"."""
    with np.load(shared("coco500_openai_vitb16.npz"), allow_pickle=False) as data:
        rows = np.argsort(data["image"][:, 0])
        X, Y = data["image"][rows], data["text"][rows]
    order = np.concatenate([np.arange(150, 210), np.arange(150), np.arange(210, 500)])
    assert check_pairing(X, Y).looks_paired
    assert not check_pairing(X, Y[order]).looks_paired


@pytest.mark.parametrize("start", [300, 1300])
def test_a_half_in_step_shows_the_other(start):
    """Each item is there three times, with noise; maps of all pairs fit both halves, and find no better pairing."""
    sample, n, rng = load_sample("emoji"), 400, np.random.default_rng(start)
    rows, other = start + np.repeat(np.arange(n), 3)[:n], np.arange(n)
    other[: n // 2] = other[: n // 2][::-1]
    X, Y = (np.asarray(side["text"])[rows].astype(np.float32) for side in (sample.source, sample.target))
    X, Y = (Z + 0.3 * Z.std() * rng.standard_normal(Z.shape).astype(Z.dtype) for Z in (X, Y))
    assert not check_pairing(X, Y[other]).looks_paired
