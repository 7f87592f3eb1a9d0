"""κ_S against closed forms, and against all vertices of the polytope it is a maximum over."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.spatial import HalfspaceIntersection

import congruence.theory.spanning as spanning
from congruence.errors import InputError, NotFiniteError, ParameterError, ShapeError, ZeroRowError
from congruence.theory import kappa
from congruence.theory.spanning import features, quadratic_forms, unpack


def sphere(n: int, d: int, seed: int = 0) -> np.ndarray:
    X = np.random.default_rng(seed).standard_normal((n, d))
    return X / np.linalg.norm(X, axis=1, keepdims=True)


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
def test_a_basis_with_its_sums(d, expected):
    pairs = [(np.eye(d)[i] + np.eye(d)[j]) / np.sqrt(2) for i in range(d) for j in range(i)]
    S = np.array([*np.eye(d), *pairs])
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
        assert found.in_words() == f"κ is {found.lower:.3g}."
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
    assert "at least" in found.in_words()


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
    assert "estimate" in found.in_words()


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


def test_one_dimension_is_exact():
    found = kappa([[1.0], [-1.0]])
    assert (found.lower, found.upper, found.exact) == (1, 1, True)
    assert found.in_words() == "κ is 1."


def test_infinite_where_the_anchors_do_not_span():
    for S in (sphere(5, 3), np.vstack([sphere(5, 3)] * 3)):
        found = kappa(S)
        assert found.lower == found.upper == np.inf
        assert found.exact
        assert np.abs(quadratic_forms(S, found.witness)).max() < 1e-12
        assert np.linalg.norm(found.witness) == pytest.approx(1)
        assert "infinite" in found.in_words()


def test_bad_rows_are_refused():
    with pytest.raises(InputError, match="norm 2"):
        kappa(2 * np.eye(2))
    with pytest.raises(NotFiniteError):
        kappa([[np.nan, 1.0]])
    with pytest.raises(ZeroRowError):
        kappa(np.zeros((2, 2)))
    with pytest.raises(ShapeError):
        kappa(np.empty((0, 3)))
    with pytest.raises(ParameterError):
        kappa(np.eye(2), starts=0)
    with pytest.raises(ParameterError):
        kappa(np.eye(2), rtol=-1)


def test_plain_data():
    data = json.loads(json.dumps(kappa(sphere(8, 3)).to_dict()))
    assert data["exact"] is False
    assert data["certified"] is True
