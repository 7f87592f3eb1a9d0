"""Proposition C.19 where its assumption holds, where it does not, and the condition that needs none."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import congruence.theory.margins as module
from arrays import unit
from congruence import OrthogonalMap
from congruence.theory import class_margins


def rotation(d: int, d_target: int, rng: np.random.Generator) -> np.ndarray:
    return np.linalg.qr(rng.standard_normal((d_target, d)))[0].T


def exact_models(rng, *, K, d, d_target, r, outside):
    """Make two models that agree on the anchors' span (Assumption C.17), and each its own way outside it."""
    basis = np.linalg.qr(rng.standard_normal((d, d)))[0]
    Q = rotation(d, d_target, rng)
    image = basis[:r] @ Q
    rest = np.linalg.svd(image)[2][r:]
    weight = np.sqrt(rng.uniform(0, outside, size=(K, 1))) if r < d else np.zeros((K, 1))
    inside = unit(rng.standard_normal((K, r))) * np.sqrt(1 - weight**2)
    G = inside @ basis[:r]
    if r < d:
        G = G + weight * unit(rng.standard_normal((K, d - r))) @ basis[r:]
    G_target = inside @ image
    if len(rest):
        G_target = G_target + weight * unit(rng.standard_normal((K, len(rest)))) @ rest
    F = unit(rng.standard_normal((2 * r, r))) @ basis[:r]
    return F, G, G_target, Q


def by_definition(F, G, G_target, Q):
    """Definition C.18 with projectors and loops."""
    P = np.linalg.pinv(F) @ F
    P_image = Q.T @ P @ Q
    u, w, w_target = G @ P, G - G @ P, G_target - G_target @ P_image
    K = len(G)
    gamma = [u[c] @ u[c] - max(u[c] @ u[k] for k in range(K) if k != c) for c in range(K)]
    eta = [max(abs(w[c] @ Q @ w_target[k]) for k in range(K)) for c in range(K)]
    e = G_target @ P_image - u @ Q
    slack = [max(abs(u[c] @ Q @ e[k]) for k in range(K)) for c in range(K)]
    return gamma, eta, slack, np.linalg.norm(e, axis=1).max()


def test_every_quantity_is_its_definition():
    rng = np.random.default_rng(0)
    F, G, G_target, Q = rng.standard_normal((3, 6)), *unit(rng.standard_normal((2, 7, 6))), rotation(6, 6, rng)
    G_target = np.c_[G_target, np.ones(7)]
    Q = np.c_[Q, np.zeros(6)]
    found = class_margins(F, G, G_target, Q)
    gamma, eta, slack, rho = by_definition(F, G, G_target, Q)
    np.testing.assert_allclose(found.margins, gamma, atol=1e-12)
    np.testing.assert_allclose(found.residuals, eta, atol=1e-12)
    np.testing.assert_allclose(found.errors, slack, atol=1e-12)
    assert (found.gamma, found.eta, found.rho) == pytest.approx((min(gamma), max(eta), rho))
    assert found.retrieved.tolist() == (G @ Q @ G_target.T).argmax(axis=1).tolist()


def test_the_proposition_never_fails_where_its_assumption_holds():
    rng = np.random.default_rng(1)
    counts = {"safe & right": 0, "safe & wrong": 0, "unsafe & right": 0, "unsafe & wrong": 0}
    held = 0
    for _ in range(250):
        d = int(rng.integers(2, 9))
        K, d_target, r = int(rng.integers(2, 7)), d + int(rng.integers(0, 3)), int(rng.integers(1, d + 1))
        models = exact_models(rng, K=K, d=d, d_target=d_target, r=r, outside=rng.uniform(0, 1))
        found = class_margins(*models)
        assert found.rho < 1e-10
        np.testing.assert_allclose(found.errors, 0, atol=1e-10)
        if found.holds:
            held += 1
            assert found.safe.all()
            assert found.right.all()
        for what, number in found.confusion().items():
            counts[what] += number
    assert held > 25
    assert counts["safe & wrong"] == 0
    assert counts["safe & right"] > 250
    assert counts["unsafe & wrong"] > 25  # the condition is not always met, and then retrieval can fail
    assert counts["unsafe & right"] > 25


def test_what_is_certified_is_right_in_any_two_models():
    rng = np.random.default_rng(2)
    certified = {"safe & right": 0, "safe & wrong": 0, "unsafe & right": 0, "unsafe & wrong": 0}
    plain_wrong = 0
    for _ in range(250):
        d = int(rng.integers(2, 9))
        K, r = int(rng.integers(2, 7)), int(rng.integers(1, d + 1))
        F, G, G_target, Q = exact_models(rng, K=K, d=d, d_target=d + 1, r=r, outside=rng.uniform(0, 1))
        G_target = unit(G_target + rng.uniform(0, 1.5) * unit(rng.standard_normal(G_target.shape)))
        found = class_margins(F, G, G_target, Q)
        assert (found.certified_within() <= found.certified).all()
        assert (found.certified <= found.certified_by_difference).all()
        assert (found.certified <= found.safe).all()
        assert (found.certified_by_difference <= found.right).all()
        assert (found.certified_within(2 * found.rho + 1e-6) <= found.certified_within()).all()
        plain_wrong += found.confusion()["safe & wrong"]
        for what, number in found.confusion(found.certified).items():
            certified[what] += number
    assert certified["safe & wrong"] == 0
    assert certified["safe & right"] > 40
    assert plain_wrong > 8  # γ_c > 2η_c alone is not enough once the assumption is off


def test_large_residuals_break_retrieval():
    # Two classes a little apart inside the span; outside it the target has exchanged them.
    a = 0.1
    G = unit(np.array([[1, a, 1.0], [1, -a, -1.0]]))
    G_target = unit(np.array([[1, a, -1.0], [1, -a, 1.0]]))
    found = class_margins(np.eye(3)[:2], G, G_target, np.eye(3), names=["cat", "dog"])
    scale = 2 + a**2
    assert found.rho == pytest.approx(0, abs=1e-15)
    assert found.gamma == pytest.approx(2 * a**2 / scale)
    assert found.eta == pytest.approx(1 / scale)
    assert not found.holds
    assert found.retrieved.tolist() == [1, 0]
    assert sorted(found.breaking()) == ["cat", "dog"]
    assert found.confusion() == {"safe & right": 0, "safe & wrong": 0, "unsafe & right": 0, "unsafe & wrong": 2}
    assert "guarantees nothing" in found.in_words()
    assert "guarantees every class" in class_margins(np.eye(3), np.eye(3), np.eye(3), np.eye(3)).in_words()
    data = json.loads(json.dumps(found.to_dict()))
    assert (data["holds"], data["confusion"], data["breaking"]) == (False, found.confusion(), found.breaking())


def test_equal_prompts_are_not_safe():
    rng = np.random.default_rng(3)
    G = unit(rng.standard_normal((5, 4)))[[0, 1, 2, 3, 4, 2]]
    found = class_margins(np.eye(4), G, G, np.eye(4))
    assert found.breaking() == ["2", "5"] or found.breaking() == ["5", "2"]
    assert found.confusion()["safe & right"] == 4


@given(st.integers(0, 10**6))
def test_turning_either_model_changes_nothing(seed):
    rng = np.random.default_rng(seed)
    F, G, G_target, Q = exact_models(rng, K=5, d=5, d_target=6, r=3, outside=0.5)
    G_target = unit(G_target + 0.2 * rng.standard_normal(G_target.shape))
    R, R_target = rotation(5, 5, rng), rotation(6, 6, rng)
    one, two = class_margins(F, G, G_target, Q), class_margins(F @ R, G @ R, G_target @ R_target, R.T @ Q @ R_target)
    for name in ("margins", "residuals", "errors", "offsets", "inside"):
        np.testing.assert_allclose(getattr(two, name), getattr(one, name), atol=1e-10)


def test_blocks_do_not_matter(monkeypatch):
    rng = np.random.default_rng(4)
    F, G, G_target, Q = exact_models(rng, K=60, d=5, d_target=6, r=3, outside=0.5)
    G_target = unit(G_target + 0.2 * rng.standard_normal(G_target.shape))
    whole = class_margins(F, G, G_target, Q)
    monkeypatch.setattr(module, "blocks", lambda n, *_: [slice(k, min(k + 7, n)) for k in range(0, n, 7)])
    parts = class_margins(F, G, G_target, Q)
    assert parts.retrieved.tolist() == whole.retrieved.tolist()
    for name in ("margins", "residuals", "errors", "offsets"):
        np.testing.assert_allclose(getattr(parts, name), getattr(whole, name), atol=1e-14)


def test_with_a_fitted_rotation_in_single_precision():
    rng = np.random.default_rng(5)
    F, G, G_target, Q = exact_models(rng, K=30, d=6, d_target=8, r=6, outside=0)
    fitted = OrthogonalMap(center=False, shrinkage="full").fit(G.astype(np.float32), G_target.astype(np.float32))
    found = class_margins(F, G, G_target, fitted.rotation_)
    assert found.rho < 1e-5
    assert found.certified.any()
    np.testing.assert_allclose(found.margins, class_margins(F, G, G_target, Q).margins, atol=1e-6)


def test_the_span_can_be_cut():
    rng = np.random.default_rng(6)
    F, G, G_target, Q = exact_models(rng, K=4, d=5, d_target=5, r=4, outside=0.5)
    assert class_margins(F, G, G_target, Q).rank == 4
    assert class_margins(F, G, G_target, Q, rank=2).rank == 2
    assert class_margins(F, G, G_target, Q, rtol=0.999).rank == 1
