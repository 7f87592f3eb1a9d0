"""Sliced Wasserstein distances against POT, an assignment solver, and what is known of them."""

import json

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from congruence.errors import CongruenceError, NotFiniteError, ParameterError, ShapeError, ZeroRowError
from congruence.transport import distribution_shift, random_frames, sliced_wasserstein_sphere
from congruence.transport.sliced import circle_costs, circular_cost, linear_cost


def cloud(n, d, seed=0, lean=0.0):
    Z = np.random.default_rng(seed).standard_normal((n, d)) + lean
    return Z / np.linalg.norm(Z, axis=1, keepdims=True)


def assigned(s, t, p):
    """The cost by the assignment of least cost, atoms repeated until both sides have as many."""
    count = np.lcm(len(s), len(t))
    gap = np.abs(np.repeat(s, count // len(s))[:, None] - np.repeat(t, count // len(t)))
    C = np.minimum(gap % 1, 1 - gap % 1) ** p
    return C[linear_sum_assignment(C)].mean()


@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 5), (13, 1), (5, 5), (6, 4), (7, 9), (10, 30), (30, 10), (16, 12)])
@pytest.mark.parametrize("p", [1, 1.5, 2, 3])
def test_a_circle_against_the_assignment_of_least_cost(n, m, p):
    rng = np.random.default_rng(n + 100 * m)
    cases = [
        (rng.random((9, n)), rng.random((9, m))),
        (rng.random((9, n)).round(1), rng.random((9, m)).round(1)),  # ties and duplicates
        (rng.random((9, n)) * 0.1, (rng.random((9, m)) * 0.1 + 0.95) % 1),  # across the cut
        (np.full((9, n), 0.3), np.full((9, m), 0.9)),
    ]
    for u, v in cases:
        u, v = np.sort(u, axis=1), np.sort(v, axis=1)
        expected = [assigned(s, t, p) for s, t in zip(u, v, strict=True)]
        np.testing.assert_allclose(circular_cost(u, v, p), expected, atol=1e-13)


def test_the_linear_variant_pairs_through_the_uniform_distribution():
    """The definition, integrated numerically: arcs between F⁻¹(x − mean + 1/2) of both sides."""
    rng = np.random.default_rng(0)
    x = (np.arange(400_000) + 0.5) / 400_000
    for n, m in [(1, 1), (7, 7), (5, 12), (40, 9)]:
        u, v = np.sort(rng.random((2, n)), axis=1), np.sort(rng.random((2, m)) ** 2, axis=1)
        for s, t, found in zip(u, v, linear_cost(u, v), strict=True):
            q = [side[np.floor((x - side.mean() + 0.5) % 1 * len(side)).astype(int)] for side in (s, t)]
            gap = np.abs(q[0] - q[1])
            assert found == pytest.approx(np.mean(np.minimum(gap, 1 - gap) ** 2), abs=1e-4)
        assert (linear_cost(u, v) >= circular_cost(u, v, 2) - 1e-14).all()


@pytest.mark.parametrize(("n", "m", "d"), [(20, 20, 3), (50, 30, 50), (11, 40, 2), (200, 200, 10), (1, 9, 3)])
@pytest.mark.parametrize("p", [1, 2, 3])
def test_circular_against_pot(n, m, d, p):
    ot = pytest.importorskip("ot")
    X, Y, U = cloud(n, d), cloud(m, d, 1, lean=0.3), random_frames(20, d, 2)
    Y[: m // 3] = X[0]  # duplicates, and ties between the sides
    expected = ot.sliced_wasserstein_sphere(X, Y, n_projections=20, p=p, projections=U)
    assert sliced_wasserstein_sphere(X, Y, p=p, projections=U) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("n", "m", "d"), [(20, 20, 3), (50, 30, 50), (11, 40, 2), (300, 200, 10), (1, 9, 3)])
def test_linear_on_a_grid_against_pot(n, m, d, monkeypatch):
    """Equal to POT's, once its quantiles are read from the cdf: it passes one with a leading zero, which is off by one
    atom.
    """
    ot = pytest.importorskip("ot")
    from ot.lp import solver_circle

    X, Y, U = cloud(n, d), cloud(m, d, 1, lean=0.3), random_frames(20, d, 2)
    found = sliced_wasserstein_sphere(X, Y, variant="linear", grid=100, projections=U)
    published = ot.linear_sliced_wasserstein_sphere(X, Y, n_projections=20, projections=U)
    assert published == pytest.approx(found, abs=1 / min(n, m))
    quantile = solver_circle.quantile_function
    monkeypatch.setattr(
        solver_circle, "quantile_function", lambda q, cdf, x: quantile(q, cdf[1:] if len(cdf) > len(x) else cdf, x)
    )
    corrected = ot.linear_sliced_wasserstein_sphere(X, Y, n_projections=20, projections=U)
    assert found == pytest.approx(corrected, abs=1e-9)


@pytest.mark.long
def test_the_grid_tends_to_the_integral():
    X, Y = cloud(30, 4), cloud(20, 4, 1, lean=0.5)
    exact = sliced_wasserstein_sphere(X, Y, variant="linear")
    errors = [abs(sliced_wasserstein_sphere(X, Y, variant="linear", grid=grid) - exact) for grid in (100, 100_000)]
    assert errors[1] < 1e-6 < errors[0] < 1e-2


@pytest.mark.parametrize("options", [{}, {"p": 1}, {"p": 3}, {"variant": "linear"}, {"variant": "linear", "grid": 100}])
def test_two_points_of_a_circle(options):
    for angle in (0.1, 1.0, 3.0, 4.0, 6.0):
        turn = np.array([[np.cos(angle), np.sin(angle)]])
        expected = min(angle, 2 * np.pi - angle) / (2 * np.pi)
        assert sliced_wasserstein_sphere([[1.0, 0.0]], turn, **options) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("options", [{"p": 1}, {"p": 2}, {"variant": "linear"}])
def test_it_is_a_distance(options):
    U = random_frames(15, 6, 3)
    sides = [cloud(12, 6), cloud(18, 6, 1, lean=0.4), cloud(7, 6, 2, lean=-0.4)]

    def distance(a, b):
        return sliced_wasserstein_sphere(a, b, projections=U, **options)

    x, y, z = sides
    assert distance(x, y) == pytest.approx(distance(y, x), abs=1e-12)
    assert distance(x, z) <= distance(x, y) + distance(y, z)
    for side in sides:
        order = np.random.default_rng(0).permutation(len(side))
        assert distance(side, side[order]) == pytest.approx(0, abs=1e-12)
        assert distance(side, np.repeat(side, 3, axis=0)) == pytest.approx(0, abs=1e-9)  # the same measure
        moved = side.copy()
        moved[0] = -moved[0]
        assert distance(side, moved) > 0.01


@pytest.mark.parametrize("variant", ["circular", "linear"])
def test_rotating_everything_changes_nothing(variant):
    X, Y, U = cloud(40, 5), cloud(30, 5, 1, lean=0.4), random_frames(10, 5)
    Q = np.linalg.qr(np.random.default_rng(4).standard_normal((5, 5)))[0]
    before = sliced_wasserstein_sphere(X, Y, variant=variant, projections=U)
    after = sliced_wasserstein_sphere(X @ Q, Y @ Q, variant=variant, projections=Q.T @ U)
    assert after == pytest.approx(before, abs=1e-12)


def test_precisions_batches_and_libraries_agree():
    torch = pytest.importorskip("torch")
    X, Y = cloud(300, 20), cloud(170, 20, 1, lean=0.3)
    exact = sliced_wasserstein_sphere(X, Y, n_projections=33)

    for dtype, tolerance in ((np.float32, 1e-6), (np.float16, 1e-3)):
        found = sliced_wasserstein_sphere(X.astype(dtype), Y.astype(dtype), n_projections=33)
        assert found == pytest.approx(exact, abs=tolerance)
    tensor = torch.tensor(X, requires_grad=True)
    assert sliced_wasserstein_sphere(tensor, torch.tensor(Y), n_projections=33) == exact
    assert sliced_wasserstein_sphere(X, Y, n_projections=33, random_state=1) != exact


def test_rows_of_any_length_have_a_direction_when_asked():
    X, Y = cloud(30, 4), cloud(20, 4, 1, lean=0.5)
    expected = sliced_wasserstein_sphere(X, Y)
    for scale in (3.0, 1e-200, 1e200, np.logspace(-300, 300, 30)[:, None]):
        A = X * scale
        before = A.copy()
        assert sliced_wasserstein_sphere(A, Y, normalize=True) == pytest.approx(expected, abs=1e-12)
        np.testing.assert_array_equal(A, before)
        with pytest.raises(ParameterError, match="not on the unit sphere"):
            sliced_wasserstein_sphere(A, Y)


def test_frames_are_orthonormal_and_prefer_no_direction():
    U = random_frames(20_000, 4, 0)
    np.testing.assert_allclose(np.einsum("nij,nik->njk", U, U), np.broadcast_to(np.eye(2), (20_000, 2, 2)), atol=1e-14)
    planes = np.einsum("nij,nkj->nik", U, U)  # the mean projector on a uniform plane is 2/d
    np.testing.assert_allclose(planes.mean(axis=0), np.eye(4) / 2, atol=0.01)
    np.testing.assert_allclose(U.mean(axis=0), 0, atol=0.015)
    np.testing.assert_allclose((U**4).mean(axis=0), 3 / (4 * 6), atol=0.005)  # of a uniform direction: 3/(d(d + 2))
    np.testing.assert_array_equal(random_frames(3, 4, 7), random_frames(3, 4, 7))


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"X": cloud(5, 3) * 1.01}, ParameterError, "norm 1.01"),
        ({"X": cloud(5, 4)}, ShapeError, "widths 4 of X"),
        ({"X": np.ones((5, 1))}, ShapeError, "width 1"),
        ({"X": cloud(5, 3)[0]}, ShapeError, "axes"),
        ({"X": np.empty((0, 3))}, ShapeError, "0 rows"),
        ({"X": np.full((5, 3), np.nan)}, NotFiniteError, "NaN"),
        ({"X": np.zeros((5, 3))}, ZeroRowError, "zeros"),
        ({"X": np.zeros((5, 3), dtype=int), "normalize": True}, ZeroRowError, "row 0"),
        ({"p": 0.5}, ParameterError, "at least 1"),
        ({"p": np.inf}, ParameterError, "p=inf"),
        ({"n_projections": 0}, ParameterError, "n_projections"),
        ({"variant": "round"}, ParameterError, "'circular', 'linear'"),
        ({"variant": "linear", "p": 1}, ParameterError, "p=2"),
        ({"variant": "linear", "grid": 0}, ParameterError, "grid"),
        ({"grid": 100}, ParameterError, "grid=100"),
        ({"projections": np.zeros((4, 2, 3))}, ShapeError, r"\(N, 3, 2\)"),
        ({"projections": np.full((4, 3, 2), "a")}, ShapeError, "expected numbers"),
        ({"projections": np.ones((4, 3, 2))}, ParameterError, "orthonormal"),
        ({"projections": np.full((4, 3, 2), np.nan)}, ParameterError, "not orthonormal"),
    ],
)
def test_bad_input(change, error, words):
    arguments = {"X": cloud(5, 3), "Y": cloud(6, 3), **change}
    with pytest.raises(error, match=words):
        sliced_wasserstein_sphere(arguments.pop("X"), arguments.pop("Y"), **arguments)
    with pytest.raises(ParameterError, match="great circle"):
        random_frames(5, 1)


def test_the_shift_is_the_sum_of_its_parts():
    X, A, Y, B = cloud(60, 5), cloud(40, 5, 1, 0.3), cloud(50, 7, 2), cloud(45, 7, 3, 0.5)
    shift = distribution_shift(X, A, Y, B, n_projections=30, repeats=4)
    assert shift.total.value == pytest.approx(shift.image.value + shift.text.value)
    assert shift.total.floor == pytest.approx(shift.image.floor + shift.text.floor)
    exact = sliced_wasserstein_sphere(X, A, n_projections=4000)
    assert shift.image.value == pytest.approx(exact, rel=0.1)
    assert shift.image.sd > 0
    alone = distribution_shift(X, A, n_projections=30, repeats=4)
    assert alone.text is None
    assert alone.total == alone.image
    assert distribution_shift(X, A, n_projections=30, repeats=1).image.sd == 0
    assert distribution_shift(X, A, Y, B, n_projections=30, repeats=4) == shift
    assert distribution_shift(X, A, Y, B, n_projections=30, repeats=4, random_state=1) != shift
    json.dumps(shift.to_dict())


def test_two_samples_of_one_collection_are_at_the_floor():
    X = cloud(400, 6, 0, 0.5)
    same = distribution_shift(X[:250], X[250:], n_projections=100, repeats=5).total
    assert same.value == pytest.approx(same.floor, rel=0.2)
    far = distribution_shift(X, cloud(150, 6, 1, 0.0), n_projections=100, repeats=5).total
    assert far.value > 3 * far.floor


def test_the_floor_is_the_distance_after_exchanging_rows():
    X, Y, U = cloud(30, 5), cloud(20, 5, 1, 0.4), random_frames(10, 5)
    order = np.random.default_rng(0).permutation(50)
    pool = np.concatenate([X, Y])[order]
    both = circle_costs(X, Y, U, linear_cost, order=order)
    np.testing.assert_allclose(both[0], circle_costs(X, Y, U, linear_cost)[0])
    np.testing.assert_allclose(both[1], circle_costs(pool[:30], pool[30:], U, linear_cost)[0], atol=1e-12)


def test_rows_are_drawn_only_from_larger_collections():
    X, A = cloud(500, 4), cloud(30, 4, 1, 0.3)
    few = distribution_shift(X, A, n_projections=20, repeats=3, max_rows=30)
    assert few != distribution_shift(X, A, n_projections=20, repeats=3)
    assert few.image.floor > distribution_shift(X, A, n_projections=20, repeats=3).image.floor  # fewer rows, more noise
    steps = []
    distribution_shift(X, A, n_projections=2, repeats=3, callback=steps.append)
    assert steps == [1, 1, 1]


def test_the_shift_refuses():
    X, A = cloud(9, 4), cloud(8, 4)
    for options in ({"Y": X}, {"B": X}, {"repeats": 0}, {"max_rows": 0}, {"n_projections": 0}, {"variant": "x"}):
        with pytest.raises(ParameterError):
            distribution_shift(X, A, **options)
    with pytest.raises(CongruenceError, match="of Y and 4 of B"):
        distribution_shift(X, A, cloud(9, 5), A)


def test_the_command(here, tmp_path):
    X, A, Y, B = cloud(60, 5), cloud(40, 5, 1, 0.3), cloud(50, 7, 2), cloud(45, 7, 3, 0.5)
    np.savez(tmp_path / "a.npz", image=X, text=Y)
    np.savez(tmp_path / "b.npz", image=A, text=B)
    few = ["--set", "n_projections=20", "--set", "repeats=3", "--set", "max_rows=45"]
    texts = ["--texts", "a.npz:text,b.npz:text"]
    result = here("lab shift", "a.npz:image", "b.npz:image", *texts, *few, "--json").ends(0)
    data = json.loads(result.out)
    expected = distribution_shift(X, A, Y, B, n_projections=20, repeats=3, max_rows=45).to_dict()
    assert {key: data[key] for key in expected} == expected
    assert data["rows"] == {"first": 45, "second": 40, "first_texts": 45, "second_texts": 45}
    table = here("lab shift", "a.npz:image", "b.npz:image", *texts, *few).out
    assert all(word in table for word in ("images", "texts", "total", "floor", f"{expected['total']['value']:.4f}"))
    alone = here("lab shift", "a.npz:image", "b.npz:image", *few, "--set", "variant=linear").out
    assert "vectors" in alone
    assert "texts" not in alone
