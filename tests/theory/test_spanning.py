"""Definition 5.4 and κ_S against closed forms, and κ_S against all vertices of the polytope it is a maximum over."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial import HalfspaceIntersection

import congruence.theory.spanning as spanning
from congruence.theory import anchors_needed, covered_subspace, kappa, sym_spanning
from congruence.theory.spanning import features, pack, quadratic_forms, unpack


def sphere(n: int, d: int, seed: int = 0) -> np.ndarray:
    X = np.random.default_rng(seed).standard_normal((n, d))
    return X / np.linalg.norm(X, axis=1, keepdims=True)


def frame(d: int) -> np.ndarray:
    """The basis vectors and the sums of two of them, scaled to the sphere."""
    pairs = [(np.eye(d)[i] + np.eye(d)[j]) / np.sqrt(2) for i in range(d) for j in range(i)]
    return np.array([*np.eye(d), *pairs])


def on_a_cone(n: int, M: np.ndarray, seed: int = 0) -> np.ndarray:
    """Unit vectors with xᵀ M x = 0: the components along positive eigenvalues scaled to balance the others."""
    values, V = np.linalg.eigh(M)
    X = np.random.default_rng(seed).standard_normal((n, len(M)))
    up = values > 0
    X[:, up] *= np.sqrt(-(X[:, ~up] ** 2 @ values[~up]) / (X[:, up] ** 2 @ values[up]))[:, None]
    X = X @ V.T
    return X / np.linalg.norm(X, axis=1, keepdims=True)


@pytest.mark.parametrize("d", [1, 2, 3, 7])
def test_a_basis_with_its_sums_spans(d):
    found = sym_spanning(frame(d))
    assert found.n == found.dimension == anchors_needed(d)
    assert found.spans
    assert found.exact
    assert found.rank == anchors_needed(d)
    assert not sym_spanning(np.eye(d)).spans or d == 1


@given(st.integers(2, 8), st.integers(0, 10**6))
def test_generic_rows_span_from_d_times_d_plus_one_over_two(d, seed):
    S = sphere(anchors_needed(d), d, seed)
    assert sym_spanning(S).spans
    assert not sym_spanning(S[:-1]).spans
    assert sym_spanning(S[:-1]).rank == len(S) - 1
    assert sym_spanning(np.vstack([S[:-1], S[:1]])).rank == len(S) - 1


def test_rows_on_a_cone_do_not_span():
    M = np.diag([1.0, 2, -1, -3, 0.5])
    S = on_a_cone(200, M)
    found = sym_spanning(S)
    assert not found.spans
    assert found.rank == 14
    assert abs(np.sum(found.witness * M)) / np.linalg.norm(M) == pytest.approx(1, abs=1e-8)
    assert np.abs(quadratic_forms(S, found.witness)).max() < 1e-10


def test_sigma_min_is_numpys():
    S = sphere(300, 9)
    s = np.linalg.svd(np.array([pack(np.outer(x, x)) for x in S]), compute_uv=False)
    found = sym_spanning(S)
    np.testing.assert_allclose([found.sigma_max, found.sigma_min], [s[0], s[-1]])
    assert np.linalg.norm(quadratic_forms(S, found.witness)) == pytest.approx(s[-1])
    R = np.linalg.qr(np.random.default_rng(1).standard_normal((9, 9)))[0]
    assert sym_spanning(S @ R).sigma_min == pytest.approx(s[-1])


def test_rows_in_many_blocks_are_one_matrix(monkeypatch):
    S = sphere(300, 5)
    whole = sym_spanning(S)
    monkeypatch.setattr(spanning, "blocks", lambda n, *_, **__: [slice(k, k + 15) for k in range(0, n, 15)])
    np.testing.assert_allclose(sym_spanning(S).sigma_min, whole.sigma_min)


@pytest.mark.parametrize("seed", [0, 1])
def test_without_features_the_smallest_singular_value_is_the_same(monkeypatch, seed):
    S = sphere(400, 10, seed) * np.arange(1, 11) ** -0.7 + 0.1
    whole = sym_spanning(S)
    monkeypatch.setattr(spanning, "DENSE", 20)
    found = sym_spanning(S, random_state=seed)
    assert found.spans
    assert not found.exact
    assert found.sigma_min == pytest.approx(whole.sigma_min, rel=1e-5)
    assert found.sigma_min >= whole.sigma_min * (1 - 1e-12)
    assert found.sigma_max == pytest.approx(whole.sigma_max, rel=1e-5)


def test_without_features_a_cone_and_a_hyperplane_are_found(monkeypatch):
    monkeypatch.setattr(spanning, "DENSE", 20)
    S = on_a_cone(400, np.diag([1.0, 2, -1, -3, 0.5, 1]))
    flat = sphere(400, 6) * [1, 1, 1, 1, 1, 0]
    for rows in (S, flat):
        found = sym_spanning(rows)
        assert not found.spans
        assert not found.exact
        assert found.rank <= 20
        assert np.abs(quadratic_forms(rows, found.witness)).max() < 1e-6


def test_too_few_rows_leave_a_map_that_is_no_rotation():
    S = sphere(60, 30)
    found = sym_spanning(S)
    assert (found.spans, found.rank, found.exact, found.sigma_min) == (False, 60, True, 0)
    values, V = np.linalg.eigh(np.eye(30) + 0.9 * found.witness / np.linalg.norm(found.witness, 2))
    A = V * np.sqrt(values) @ V.T
    np.testing.assert_allclose(np.linalg.norm(S @ A, axis=1), 1, atol=1e-12)
    assert np.linalg.norm(A.T @ A - np.eye(30), 2) == pytest.approx(0.9)


def test_too_few_rows_of_which_some_repeat(monkeypatch):
    S = sphere(40, 20)
    S = np.vstack([S, S[:7]])
    found = sym_spanning(S)
    assert (found.rank, found.exact) == (40, True)
    monkeypatch.setattr(spanning, "_FEATURES", 10)
    bound = sym_spanning(S)
    assert (bound.rank, bound.exact) == (40, False)
    monkeypatch.setattr(spanning, "DENSE", 10)
    assert sym_spanning(S).rank <= 10
    assert sym_spanning(S).witness is None


def test_inside_a_subspace_fewer_rows_do():
    hidden = np.linalg.qr(np.random.default_rng(2).standard_normal((50, 4)))[0].T
    S = sphere(10, 4) @ hidden
    assert not sym_spanning(S).spans
    assert sym_spanning(covered_subspace(S).coordinates(S)).spans


def test_the_tolerance_is_the_callers():
    S = sphere(6, 3)
    found = sym_spanning(S)
    assert not sym_spanning(S, rtol=1.01 * found.sigma_min / found.sigma_max).spans
    assert sym_spanning(S, rtol=0.99 * found.sigma_min / found.sigma_max).spans
    near = on_a_cone(100, np.diag([1.0, 1, -1, -1]))
    assert not sym_spanning(near.astype(np.float16)).spans
    assert not sym_spanning(near.astype(np.float32)).spans


def by_vertices(S: np.ndarray) -> float:
    """Maximise ‖M‖₂, which is convex, over the vertices of {M : |uᵀMu| ≤ 1}, found by Qhull."""
    T = features(S)
    faces = np.vstack([np.c_[T, -np.ones(len(T))], np.c_[-T, -np.ones(len(T))]])
    vertices = HalfspaceIntersection(faces, np.zeros(T.shape[1])).intersections
    return max(np.linalg.norm(unpack(m, S.shape[1]), 2) for m in vertices)


@pytest.mark.parametrize("n", [3, 4, 5, 8, 9])
def test_lines_at_equal_angles(n):
    # M = aI + b·reflection sees a + b cos(2θ − φ) in direction θ and has norm |a| + |b|. The directions 2θ are n equal
    # steps round the circle; φ midway between two of them is worst. For even n its opposite is midway as well, for odd
    # n it is a direction.
    angle = np.arange(n) * np.pi / n
    c = np.cos(np.pi / n)
    expected = 1 / c if n % 2 == 0 else (3 - c) / (1 + c)
    S = np.c_[np.cos(angle), np.sin(angle)]
    assert by_vertices(S) == pytest.approx(expected)
    assert kappa(S).lower == kappa(S).upper == pytest.approx(expected)


@pytest.mark.parametrize(("d", "expected"), [(2, 3.0), (3, None)])
def test_kappa_of_a_basis_with_its_sums(d, expected):
    S = frame(d)
    true = by_vertices(S)
    assert expected is None or true == pytest.approx(expected)
    assert kappa(S, starts=20).lower == pytest.approx(true)


@pytest.mark.parametrize(("n", "d"), [(3, 2), (7, 2), (40, 2), (6, 3), (9, 3), (14, 3)])
@pytest.mark.parametrize("seed", range(2))
def test_bounds_enclose_the_maximum_over_all_vertices(n, d, seed):
    S = sphere(n, d, seed)
    true = by_vertices(S)
    found = kappa(S, starts=30)
    assert found.lower == pytest.approx(true)
    assert found.lower <= true * (1 + 1e-9)
    assert true <= found.upper * (1 + 1e-9)
    assert found.certified


@pytest.mark.parametrize("spread", [np.pi, 1.0, 0.1])
def test_the_plane_is_exact(spread):
    rng = np.random.default_rng(int(10 * spread))
    for n in (3, 4, 5, 12, 40):
        angle = rng.uniform(0, spread, n)
        S = np.c_[np.cos(angle), np.sin(angle)]
        found = kappa(S)
        assert found.exact
        assert found.lower == pytest.approx(by_vertices(S), rel=1e-6)
        assert np.abs(quadratic_forms(S, found.witness)).max() == pytest.approx(1)
        assert np.linalg.norm(found.witness, 2) == pytest.approx(found.upper)
        assert abs(found.direction @ found.witness @ found.direction) == pytest.approx(found.upper)


def test_many_anchors_in_the_plane():
    angle = np.random.default_rng(0).uniform(0, np.pi, 100_000)
    assert kappa(np.c_[np.cos(angle), np.sin(angle)]).upper == pytest.approx(1, abs=1e-6)


def test_the_upper_bound_is_never_above_that_of_the_least_singular_value_and_often_below():
    ratios = []
    for n, d, seed in ((6, 3, 1), (60, 3, 1), (18, 5, 1), (72, 8, 1)):
        S = sphere(n, d, seed)
        found = kappa(S, starts=1)
        ratios.append(found.upper * spanning.sym_spanning(S).sigma_min / np.sqrt(n))
        assert found.certified
        assert found.lower <= found.upper
    assert max(ratios) <= 1
    assert sorted(round(ratio, 1) for ratio in ratios) == [0.7, 0.8, 0.9, 1.0]


@pytest.mark.parametrize("programmes", [True, False])
def test_the_lower_bound_is_witnessed_and_the_upper_one_never_beaten(monkeypatch, programmes):
    if not programmes:
        monkeypatch.setattr(spanning, "_LP_FEATURES", 0)
    S = sphere(80, 6)
    found = kappa(S, starts=4)
    assert 1 <= found.lower <= found.upper
    assert np.abs(quadratic_forms(S, found.witness)).max() == pytest.approx(1)
    assert np.linalg.norm(found.witness, 2) == pytest.approx(found.lower)
    assert abs(found.direction @ found.witness @ found.direction) == pytest.approx(found.lower)
    rng = np.random.default_rng(0)
    for M in rng.standard_normal((500, 6, 6)):
        M = M + M.T
        assert np.linalg.norm(M, 2) / np.abs(quadratic_forms(S, M)).max() <= found.upper


def test_least_squares_come_near_the_programmes(monkeypatch):
    S = sphere(80, 6)
    best = kappa(S).lower
    plain = max(np.linalg.norm(spanning.sym_spanning(S).witness, 2), 1)
    monkeypatch.setattr(spanning, "_LP_FEATURES", 0)
    without = kappa(S)
    assert 0.4 * best < without.lower <= best
    assert without.lower > plain


def test_without_features_the_upper_bound_is_an_estimate(monkeypatch):
    S = sphere(90, 6)
    known, plain = kappa(S), np.sqrt(90) / spanning.sym_spanning(S).sigma_min
    monkeypatch.setattr(spanning, "DENSE", 20)
    found = kappa(S)
    assert not found.certified
    assert not found.exact
    assert 1 <= found.lower <= known.lower
    assert found.upper == pytest.approx(plain, rel=1e-4)


def test_the_theorem_it_stands_in():
    # ‖AᵀA − I‖₂ ≤ κ · max |‖Au‖² − 1|: true with the upper bound, and attained by the witness at the lower one.
    S = sphere(60, 5)
    found = kappa(S)
    rng = np.random.default_rng(1)
    for t in (0.01, 0.3, 1.0):
        A = np.eye(5) + t * rng.standard_normal((5, 5))
        worst = np.abs(np.sum((S @ A.T) ** 2, axis=1) - 1).max()
        assert np.linalg.norm(A.T @ A - np.eye(5), 2) <= found.upper * worst
    values, V = np.linalg.eigh(np.eye(5) + 0.1 / found.lower * found.witness)
    A = V * np.sqrt(values) @ V.T
    worst = np.abs(np.sum((S @ A.T) ** 2, axis=1) - 1).max()
    assert np.linalg.norm(A.T @ A - np.eye(5), 2) == pytest.approx(found.lower * worst)


def test_more_anchors_and_a_rotation():
    S = sphere(12, 3)
    R = np.linalg.qr(np.random.default_rng(1).standard_normal((3, 3)))[0]
    found = kappa(S, starts=15).lower
    assert kappa(S @ R, starts=15).lower == pytest.approx(found)
    assert by_vertices(S) <= by_vertices(S[:8])
    assert found <= kappa(S[:8], starts=1).upper


def test_infinite_where_the_anchors_do_not_span():
    for S in (sphere(5, 3), np.vstack([sphere(5, 3)] * 3)):
        found = kappa(S)
        assert found.lower == found.upper == np.inf
        assert found.exact
        assert np.abs(quadratic_forms(S, found.witness)).max() < 1e-12
        assert np.linalg.norm(found.witness) == pytest.approx(1)


def test_plain_data_and_one_dimension():
    data = json.loads(json.dumps(sym_spanning(sphere(5, 2)).to_dict()))
    assert (data["spans"], np.shape(data["witness"])) == (True, (2, 2))
    data = json.loads(json.dumps(kappa(sphere(8, 3)).to_dict()))
    assert (data["exact"], data["certified"]) == (False, True)
    found = kappa([[1.0], [-1.0]])
    assert (found.lower, found.upper, found.exact) == (1, 1, True)
