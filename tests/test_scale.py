"""Numbers that cannot be squared or mapped, masked values, old kinds of arrays: refused in one sentence."""

import warnings

import numpy as np
import pytest

import congruence
from congruence import Embeddings, LinearMap, OrthogonalMap
from congruence.compare.matching import match_test
from congruence.compare.pairing import check_pairing
from congruence.compare.spaces import compare_spaces
from congruence.embeddings import normalize_rows
from congruence.errors import DtypeError, InputError, NotFiniteError, ParameterError, ShapeError
from congruence.maps import METHODS
from congruence.metrics import (
    BETWEEN_SPACES,
    METRICS,
    cca,
    cross_kernel_cka,
    fit_cca,
    linear_cka,
    paired_distance,
    rbf_cka,
)
from congruence.synthetic import random_rotation, rigid_problem
from congruence.transport import random_frames

P = rigid_problem(40, 5, 5, noise=0.1, random_state=0)
X, Y = P.X.astype(np.float64), P.Y.astype(np.float64)
LINEAR = [name for name in METHODS if name != "mlp"]

#: What fits or measures with squares of what it is given.
SQUARING = {
    **{name: METHODS[name]().fit for name in LINEAR},
    "fit": congruence.fit,
    "check_pairing": check_pairing,
    "match_test": lambda A, B: match_test(A, B, draws=2, permutations=2, components=3),
    "paired_distance": paired_distance,
}


@pytest.mark.parametrize("scale", [1e155, 1e300, 1e-160, 1e-300])
@pytest.mark.parametrize("name", SQUARING)
def test_numbers_whose_squares_overflow_or_vanish_are_refused(name, scale):
    with pytest.raises(NotFiniteError, match=r"whose largest number is \d.*Divide \w+ by"):
        SQUARING[name](X * scale, Y)
    with pytest.raises(NotFiniteError, match="whose largest number is"):
        SQUARING[name](X, Y * scale)


@pytest.mark.parametrize("scale", [1e69, 1e-69])
@pytest.mark.parametrize("name", LINEAR)
def test_up_to_there_maps_are_what_they_are_at_any_scale(name, scale):
    for ours, theirs in ((scale, 1), (1, scale), (scale, scale), (scale, 1 / scale)):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            usual, scaled = METHODS[name](), METHODS[name]().fit(X * ours, Y * theirs)
            moved = scaled.transform(X * ours)
        if name in ("linear", "orthogonal"):
            moved /= theirs if name == "linear" else max(ours, theirs)
        if name == "linear":
            assert np.allclose(moved, usual.fit(X, Y).transform(X))
        assert np.isfinite(moved).all()
        assert all(np.isfinite(array).all() for array in scaled.state().values())


def test_canonical_directions_go_up_to_where_sums_overflow():
    fit_cca(X * 1e160, Y)
    with pytest.raises(NotFiniteError, match="whose largest number is"):
        fit_cca(X * 1e307, Y)


@pytest.mark.parametrize(
    ("dtype", "scale"), [("f4", 1e20), ("f4", 1e-20), ("f4", 1e37), ("f4", 1e-30), ("f8", 1e200), ("f8", 1e-200)]
)
@pytest.mark.parametrize("name", BETWEEN_SPACES)
@pytest.mark.filterwarnings("error")
def test_what_compares_two_spaces_does_not_depend_on_their_scale(name, dtype, scale):
    A, B = X.astype(dtype), Y.astype(dtype)
    scaled, metric = A * np.dtype(dtype).type(scale), METRICS[name].fn
    near = {"abs": 1e-5 if dtype == "f4" else 1e-12}
    assert metric(scaled, B) == pytest.approx(metric(A, B), **near)
    assert metric(B, scaled) == pytest.approx(metric(B, A), **near)
    usual, other = (compare_spaces(side, B, [name], permutations=5, halves=2)[0] for side in (A, scaled))
    assert other.value == pytest.approx(usual.value, **near)
    assert other.held_out == (usual.held_out and pytest.approx(usual.held_out, **near))


@pytest.mark.parametrize(("dtype", "scale"), [("f4", 1e20), ("f4", 1e-30), ("f8", 1e200)])
@pytest.mark.filterwarnings("error")
def test_other_forms_of_kernel_alignment_do_not_either(dtype, scale):
    torch = pytest.importorskip("torch")
    A, B = X.astype(dtype), Y.astype(dtype)
    large = A * np.dtype(dtype).type(scale)
    for one, other in (
        (
            linear_cka(A, B, estimator="minibatch", batch_size=20),
            linear_cka(large, B, estimator="minibatch", batch_size=20),
        ),
        (rbf_cka(A, B, bandwidth=2.0), rbf_cka(large, B * np.dtype(dtype).type(scale), bandwidth=2 * scale)),
        (cross_kernel_cka(A, B, A[:, :3], B[:, :3]), cross_kernel_cka(large, B, A[:, :3], B[:, :3])),
        (linear_cka(A, B), float(linear_cka(torch.tensor(large), torch.tensor(B)))),
    ):
        assert other == pytest.approx(one, abs=1e-5)
    rows = torch.tensor(large, requires_grad=True)
    linear_cka(rows, torch.tensor(B)).backward()
    assert torch.isfinite(rows.grad).all()


@pytest.mark.parametrize("name", ["linear", "orthogonal"])
def test_rows_that_overflow_when_they_are_mapped_are_refused(name):
    """The target's numbers are larger than float32 holds, which the source's rows come in."""
    mapped = METHODS[name]().fit(X, Y * 1e40)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(NotFiniteError, match="that overflow float32 when they are mapped"):
            mapped.transform(X.astype(np.float32))


@pytest.mark.parametrize("name", ["procrustes", "cca"])
def test_heads_refuse_what_overflows_on_either_side(name, monkeypatch):
    mapped = METHODS[name]().fit(X, Y)
    for side in ("_map", "_map_target"):
        monkeypatch.setattr(mapped, side, lambda rows: np.full((len(rows), 2), np.inf, np.float32))
    for transform in (mapped.transform, mapped.transform_target):
        with pytest.raises(NotFiniteError, match="that overflow float32 when they are mapped"):
            transform(X.astype(np.float32))


def test_torch_rows_that_overflow_are_refused_too():
    torch = pytest.importorskip("torch")
    mapped = LinearMap().fit(X, Y * 1e40)
    with pytest.raises(NotFiniteError, match="overflow"):
        mapped.transform(torch.tensor(X, dtype=torch.float32))
    assert torch.isfinite(mapped.transform(torch.tensor(X))).all()


@pytest.mark.parametrize("scale", [1e-310, 1e-170, 1.0, 1e155, 1e300])
def test_unit_rows_of_numbers_of_any_size(scale):
    A = X * scale if scale > 1e-300 else np.full((3, 5), scale)
    assert np.allclose(np.linalg.norm(normalize_rows(A), axis=1), 1)
    assert np.allclose(np.linalg.norm(Embeddings(A).normalize().vectors, axis=1), 1)


def test_unit_rows_of_huge_tensors_keep_their_gradient():
    torch = pytest.importorskip("torch")
    A = torch.tensor(X * 1e200, requires_grad=True)
    unit = normalize_rows(A)
    assert torch.allclose(torch.linalg.vector_norm(unit, dim=1), torch.ones(40, dtype=torch.float64))
    small = torch.tensor(X, requires_grad=True)
    for rows in (A, small):
        normalize_rows(rows)[:, 0].sum().backward()
    assert torch.allclose(A.grad * 1e200, small.grad)


def masked():
    out = np.ma.array(X.copy())
    out[3] = np.ma.masked
    out[5, 1] = np.ma.masked
    out.data[3] = 1e6  # what lies under a mask is by convention garbage
    return out


TAKING = {
    **SQUARING,
    "Embeddings": lambda A, _: Embeddings(A),
    "cca": cca,
    "transform": lambda A, _: OrthogonalMap().fit(X, Y).transform(A),
}


@pytest.mark.parametrize("name", TAKING)
def test_what_lies_under_a_mask_is_not_used(name):
    with pytest.raises(DtypeError, match="masked values in 2 of 40 rows"):
        TAKING[name](masked(), Y)
    TAKING[name](np.ma.array(X), Y)  # nothing is masked


@pytest.mark.parametrize("name", TAKING)
def test_rows_of_different_widths_are_named(name):
    ragged = [list(row) for row in X]
    ragged[2] = ragged[2][:3]
    with pytest.raises((ShapeError, InputError), match=r"rows of different widths .*row 2: 3"):
        TAKING[name](ragged, Y)


@pytest.mark.parametrize("name", LINEAR)
def test_a_matrix_of_numpy_is_an_array(name):
    warnings.simplefilter("ignore", PendingDeprecationWarning)  # NumPy's, of np.matrix
    fitted, same = METHODS[name]().fit(X, Y), METHODS[name]()
    out = same.fit(np.matrix(X), np.matrix(Y)).transform(np.matrix(X))
    assert type(out) is np.ndarray
    assert (out == fitted.transform(X)).all()


@pytest.mark.parametrize("seed", [-1, 2**63, 1.5, True, "1"])
def test_seeds(seed):
    for draw in (
        random_rotation,
        lambda d, random_state: random_frames(d, d, random_state),
        lambda d, random_state: congruence.fit(X, Y, random_state=random_state),
    ):
        with pytest.raises(ParameterError, match=r"Got random_state=.*expected an integer"):
            draw(3, random_state=seed)
    with pytest.raises(ParameterError, match=r"Got random_state=.*expected an integer"):
        OrthogonalMap(shrinkage="cv", random_state=seed).fit(X, Y)
