"""int8 and bits: stored values, the vectors they represent, rejected ranges, and the effect on searches."""

import numpy as np
import pytest

from congruence.errors import ParameterError
from congruence.upgrade.migrate.quantize import Quantizer, recall_of

RNG = np.random.default_rng(0)
DIM = 16
X = RNG.normal(size=(200, DIM)).astype(np.float32)
X /= np.linalg.norm(X, axis=1, keepdims=True)
RANGES = np.vstack([X.min(axis=0), X.max(axis=0)])


def test_int8_by_ranges_is_that_of_sentence_transformers_within_a_step():
    """Its formula, which truncates; outside the ranges it wraps around, while this library clips."""
    starts, steps = RANGES[0], (RANGES[1] - RANGES[0]) / 255
    theirs = ((X - starts) / steps - 128).astype(np.int8)
    ours = Quantizer("int8", DIM, RANGES).encode(X)
    assert np.abs(ours - theirs).max() <= 1
    assert (ours.min(), ours.max()) == (-128, 127)
    assert np.abs(Quantizer("int8", DIM, RANGES).encode(9 * X)).max() == 128
    back = Quantizer("int8", DIM, RANGES).decode(ours)
    assert (np.abs(back - X) <= 0.501 * steps).all()


def test_a_sample_gives_one_step_for_all_components():
    quantizer = Quantizer("int8", DIM).calibrated(X)
    largest = np.abs(X).max()
    np.testing.assert_array_equal(quantizer.encode(X), np.rint(X / (largest / 127)))
    np.testing.assert_allclose(quantizer.decode(np.full((1, DIM), 127, np.float32)), largest, rtol=1e-5)
    assert quantizer.describe() == f"int8: round(x / {largest / 127:.6g}), within -128 to 127"
    assert quantizer.calibrated(5 * X) is quantizer
    assert Quantizer("binary", DIM).calibrated(X).ranges is None
    assert (quantizer.clipped(X), quantizer.clipped(10 * X)) == (
        0,
        pytest.approx(np.mean(10 * np.abs(X) > largest), abs=0.02),
    )
    for one in (quantizer, Quantizer("int8", DIM, RANGES)):
        np.testing.assert_array_equal(Quantizer("int8", DIM, one.plain_ranges()).encode(X), one.encode(X))


def test_codes_differ_by_more_than_what_rounding_can_do():
    int8 = Quantizer("int8", DIM, [[-128] * DIM, [127] * DIM])
    wanted = np.full((4, DIM), 3, np.float32)
    wanted[0, 5] = 7.5  # either neighbor is right
    wanted[1, 5] = 7.4
    wanted[2, 5] = 900  # clipped
    found = int8.encode(wanted)
    assert not int8.differs(found, wanted).any()
    found[:, 5] = [7, 8, 126, 4]
    assert int8.differs(found, wanted).tolist() == [False, True, True, True]
    found[0, 5] = 8
    assert not int8.differs(found, wanted)[0]
    bits = Quantizer("binary", DIM)
    wanted = X[:3].copy()
    wanted[0, 2] = 1e-8
    found = bits.encode(wanted)
    assert set(np.unique(found)) == {-1, 1}
    found[0, 2] *= -1
    found[1, 2] *= -1
    assert bits.differs(found, wanted).tolist() == [False, True, False]


def test_recall_is_measured_between_rows_and_other_rows():
    rows = RNG.normal(size=(800, 64)).astype(np.float32)
    assert recall_of(rows, rows, "cosine") == 1
    assert recall_of(rows, rows * 3, "cosine") == 1
    assert recall_of(rows[:39], rows[:39], None) is None
    int8, bits = Quantizer("int8", 64).calibrated(rows), Quantizer("binary", 64)
    kept = [recall_of(rows, one.encode(rows), "cosine") for one in (int8, bits)]
    assert kept[0] > 0.95 > 0.6 > kept[1] > 0.2
    other = recall_of(rows, RNG.normal(size=rows.shape).astype(np.float32), "l2")
    assert other < 0.05  # by chance 10 of 600
    scaled = rows * np.linspace(1, 5, len(rows), dtype=np.float32)[:, None]
    assert recall_of(rows, scaled, "l2") < 0.9
    assert recall_of(rows, scaled, "cosine") == 1


@pytest.mark.parametrize(
    ("element_type", "dim", "ranges", "match"),
    [
        ("int8", 4, [[0] * 4], r"ranges of shape \(1, 4\); expected \(2, 4\)"),
        ("int8", 4, [[0] * 4, [0, 1, 1, 1]], "smallest and the largest"),
        ("int8", 4, [[0] * 4, [np.nan, 1, 1, 1]], "smallest and the largest"),
        ("int8", 4, "text", "smallest and the largest"),
        ("float16", 4, [[0] * 4, [1] * 4], "expected them for int8"),
    ],
)
def test_what_does_not_fit_is_refused(element_type, dim, ranges, match):
    with pytest.raises(ParameterError, match=match):
        Quantizer(element_type, dim, ranges)


def test_ranges_that_no_journal_holds_are_refused():
    one_number = [[1], {"a": 1}, [1, 0], [float("nan"), 1], [0, float("inf")], [0, 10**400], ["a", "b"]]
    for result in (*one_number, [[], []], [[0, 0], [1]], [[0] * 3, 1], [[0] * 4, [1, 1, 1, None]]):
        with pytest.raises(ValueError, match="ranges"):
            Quantizer("int8", 4, result)
    np.testing.assert_array_equal(Quantizer("int8", 4, [[0] * 4, 1]).ranges, Quantizer("int8", 4, [0, 1]).ranges)
