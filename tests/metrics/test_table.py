"""What METRICS declares is true: what is declared holds on random data, what is not declared fails somewhere."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ortho_group

from congruence.errors import DtypeError, InputError, NotFiniteError, ParameterError, ShapeError, TooFewAnchorsError
from congruence.metrics import INVARIANCES, METRICS, cca, fit_cca

#: More columns than CCA's reduction keeps, or it would be invariant to more than it promises.
N, D = 150, 60
#: Holding one of these is holding the other.
IMPLIED = {"joint rotation": "rotation", "isotropic scaling": "row scaling"}


def spaces(seed):
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((N, D)) * np.linspace(2, 0.2, D) + 0.3
    return rng, A, A @ ortho_group.rvs(D, random_state=seed) + 0.5 * rng.standard_normal((N, D))


def change(what, rng, A, B):
    """Return both sides changed in a way that leaves them what they are, in the sense of ``what``."""
    R, S = (ortho_group.rvs(D, random_state=int(rng.integers(2**31))) for _ in range(2))
    order = rng.permutation(N)
    w = rng.uniform(0.5, 2, (N, 1))
    return {
        "rotation": lambda: (A @ R, B @ S),
        "isotropic scaling": lambda: (3 * A, B / 7),
        "translation": lambda: (A + rng.standard_normal(D), B - rng.standard_normal(D)),
        "invertible linear": lambda: (A @ (np.eye(D) + 0.1 * R), B @ (np.diag(rng.uniform(0.5, 2, D)) @ S)),
        "joint permutation": lambda: (A[order], B[order]),
        "joint rotation": lambda: (A @ R, B @ R),
        "row scaling": lambda: (A * w, B),
        "symmetry": lambda: (B, A),
    }[what]()


def declared(metric, what):
    return what in metric.invariances or IMPLIED.get(what) in metric.invariances


@pytest.mark.parametrize("name", METRICS)
def test_range_and_direction(name):
    metric = METRICS[name]
    assert metric.name == name
    assert metric.fn.__name__ == name
    low, high = metric.range
    for seed in range(5):
        rng, A, B = spaces(seed)
        if metric.one_space:  # nothing has been carried across yet
            B = A + 0.5 * rng.standard_normal((N, D))
        values = [metric.fn(A, A), metric.fn(A, B), metric.fn(A, B[rng.permutation(N)])]
        assert all(low - 1e-12 <= value <= high + 1e-12 for value in values)
        assert values == sorted(values, reverse=metric.larger_is_closer)
        best = high if metric.larger_is_closer else low
        if np.isfinite(best) and name != "cycle_knn":  # a neighbor need not be mutual, not even in one space
            assert values[0] == pytest.approx(best, abs=1e-6)


CELLS = [(name, what) for name in METRICS for what in INVARIANCES]


@pytest.mark.parametrize(("name", "what"), [cell for cell in CELLS if declared(METRICS[cell[0]], cell[1])])
@settings(max_examples=3)
@given(seed=st.integers(0, 10**6))
def test_declared_invariances_hold(name, what, seed):
    metric, (rng, A, B) = METRICS[name], spaces(seed)
    assert metric.fn(*change(what, rng, A, B)) == pytest.approx(metric.fn(A, B), abs=1e-7)


@pytest.mark.parametrize(("name", "what"), [cell for cell in CELLS if not declared(METRICS[cell[0]], cell[1])])
def test_what_is_not_declared_does_not_hold(name, what):
    metric, differences = METRICS[name], []
    for seed in range(3):
        rng, A, B = spaces(seed)
        differences.append(abs(metric.fn(*change(what, rng, A, B)) - metric.fn(A, B)))
    assert max(differences) > 1e-6


@pytest.mark.parametrize("name", METRICS)
def test_other_widths_are_refused_only_within_one_space(name):
    metric = METRICS[name]
    _, A, B = spaces(0)
    if metric.one_space:
        with pytest.raises(ValueError, match="widths"):
            metric.fn(A, B[:, :40])
    else:
        assert np.isfinite(metric.fn(A, B[:, :40]))


@pytest.mark.parametrize("name", METRICS)
def test_half_precision_strides_and_torch(name):
    torch = pytest.importorskip("torch")
    metric = METRICS[name]
    _, A, B = spaces(0)
    value = metric.fn(A, B)
    assert float(metric.fn(torch.tensor(A), torch.tensor(B))) == pytest.approx(value, abs=1e-9)
    half = A.astype(np.float16)
    assert metric.fn(half, B) == pytest.approx(metric.fn(half.astype(np.float64), B), abs=1e-5)
    wide = np.empty((2 * N, D))
    wide[::2] = A
    assert metric.fn(wide[::2], np.asfortranarray(B)) == pytest.approx(value, abs=1e-9)


def spoiled(A):
    A = A.copy()
    A[2, 1] = np.nan
    return A


BAD = {
    "NaN": (spoiled, NotFiniteError),
    "a row less": (lambda A: A[:-1], ShapeError),
    "no rows": (lambda A: A[:0], ShapeError),
    "no columns": (lambda A: A[:, :0], ShapeError),
    "one vector": (lambda A: A[0], ShapeError),
    "text": (lambda A: A.astype(str), DtypeError),
    "complex numbers": (lambda A: A + 0j, DtypeError),
}
CALLS = {name: metric.fn for name, metric in METRICS.items()} | {
    "cca without reduction": lambda A, B: cca(A, B, reduce=None),
    "kernel cca": lambda A, B: cca(A, B, reduce="kernel", rank=3),
    "fit_cca": fit_cca,
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("name", CALLS)
def test_bad_rows_are_refused_on_either_side(name, case):
    (spoil, error), (_, A, B) = BAD[case], spaces(0)
    for sides in ((spoil(A), B), (A, spoil(B))):
        with pytest.raises(error):
            CALLS[name](*sides)


@pytest.mark.parametrize("name", CALLS)
def test_a_tensor_beside_an_array_and_a_single_pair_are_refused(name):
    torch = pytest.importorskip("torch")
    _, A, B = spaces(0)
    for sides in ((torch.tensor(A), B), (A, torch.tensor(B))):
        if "cca" in name.replace("fit_cca", "") or name in ("linear_cka", "rbf_cka", "procrustes_distance"):
            with pytest.raises(DtypeError, match="one library"):
                CALLS[name](*sides)
    if name not in ("paired_cosine", "paired_distance"):
        with pytest.raises(TooFewAnchorsError):
            CALLS[name](A[:1], B[:1])


def edges():
    rng = np.random.default_rng(0)
    A, B = rng.standard_normal((2, 40, 12))
    wide = rng.standard_normal((2, 14, 30))
    first = np.arange(12) < 4
    return {
        "fewer rows than columns": (*wide,),
        "ties": (rng.integers(-1, 2, (40, 12)), rng.integers(0, 3, (40, 12))),
        "duplicated rows": (A[rng.integers(0, 9, 40)], B[rng.integers(0, 9, 40)]),
        "constant columns": (np.where(first, 3.0, A), np.where(first, 0.0, B)),
        "half precision": ((4e3 * A).astype(np.float16), B.astype(np.float16)),
        "strides": (np.repeat(A, 2, axis=0)[::2], np.asfortranarray(B)),
        "reversed": (A[::-1, ::-1], B[::-1]),
        "other widths": (A, B[:, :5]),
        "k = n − 1": (A[:11], B[:11]),
        "k > n − 1": (A[:4], B[:4]),
        "one column": (A[:, :1], B[:, :1]),
        "a row of zeros": (np.vstack([np.zeros(12), A[1:]]), B),
        "equal rows": (np.ones((40, 12)), B),
    }


#: Who refuses an edge, and in what words. All others have a value there.
REFUSED = {
    "other widths": dict.fromkeys(("paired_cosine", "paired_distance"), "widths 12 and 5"),
    "k > n − 1": dict.fromkeys(
        ("cknna", "mutual_knn", "cycle_knn", "lcs_knn", "edit_knn"), "n_neighbors=10 for 4 rows"
    ),
    "one column": {"rsa": "X has equal entries"},
    "a row of zeros": {"paired_cosine": "X is all zeros", "rsa": "X has equal entries"},
    "equal rows": {
        "rsa": "X has equal entries",
        "cknna": "not positive",
        **dict.fromkeys(("linear_cka", "rbf_cka", "cca", "svcca", "pwcca", "procrustes_distance"), "equal"),
    },
}


@pytest.mark.parametrize("edge", edges())
@pytest.mark.parametrize("name", METRICS)
@pytest.mark.filterwarnings("error")
def test_edges_have_a_value_or_a_reason_in_numpy_and_torch(name, edge):
    pytest.importorskip("torch")
    from pretend_gpu import PretendGPU

    metric, (A, B) = METRICS[name], edges()[edge]
    with PretendGPU() as gpu:
        there = [gpu.put(side.T.copy()).T for side in (A, B)]
        here = [side.cpu() for side in there]
        assert not here[0].is_contiguous() or A.shape[1] == 1
        if reason := REFUSED.get(edge, {}).get(name):
            for sides in ((A, B), here, there):
                with pytest.raises((InputError, ParameterError), match=reason):
                    metric.fn(*sides)
            return
        value = metric.fn(A, B)
        assert metric.range[0] - 1e-12 <= value <= metric.range[1] + 1e-12
        assert value == pytest.approx(metric.fn(A.astype(float), B.astype(float)), abs=1e-5)
        for sides in (here, there):
            assert float(metric.fn(*sides)) == pytest.approx(value, abs=1e-9)
