"""`match` by the formulas of the JAM paper, against programs written from its equations on full matrices, and beside
ours.
"""

from pathlib import Path

import numpy as np
import pytest
import scipy.linalg

from congruence.compare.matching import JAM, match_test, measures
from congruence.metrics import METRICS, cknna, svcca
from congruence_papers.jam.experiments import measure_statistics

COCO = Path(__file__).parents[3] / "shared" / "data" / "coco500_openai_vitb16.npz"
ONCE = {"draws": 1, "permutations": 1, "rows": 20}


def leading(A, k):
    """Coordinates in the leading principal directions (appendix B.3)."""
    A = A.astype(np.float64) - A.mean(axis=0, dtype=np.float64)
    return A @ np.linalg.eigh(A.T @ A)[1][:, ::-1][:, :k]


def centered_kernel(A):
    """K̄ = HKH."""
    H = np.eye(len(A)) - 1 / len(A)
    return H @ (A @ A.T) @ H


def biased_cka(A, B):
    """Equations 3 and 4."""
    K, L = centered_kernel(A), centered_kernel(B)
    hsic = [np.trace(P @ Q) / (len(A) - 1) ** 2 for P, Q in ((K, L), (K, K), (L, L))]
    return hsic[0] / np.sqrt(hsic[1] * hsic[2])


def local_cka(A, B, k=10):
    """Equations 6, 8 and 9."""

    def near(A):
        K = A @ A.T
        np.fill_diagonal(K, -np.inf)
        out = np.zeros_like(K, dtype=bool)
        for row, found in zip(out, np.argsort(-K, axis=1)[:, :k], strict=True):
            row[found] = True
        return out

    def align(A, B):
        return np.sum((near(A) & near(B)) * centered_kernel(A) * centered_kernel(B))

    return align(A, B) / np.sqrt(align(A, A) * align(B, B))


def canonical(A, B):
    """Equations 10 and 13: roots of the eigenvalues of Σxx⁻¹ Σxy Σyy⁻¹ Σyx, largest first."""
    A, B = A - A.mean(axis=0), B - B.mean(axis=0)
    xx, yy, xy = (P.T @ Q / len(A) for P, Q in ((A, A), (B, B), (A, B)))
    squares = scipy.linalg.eigvals(np.linalg.solve(xx, xy) @ np.linalg.solve(yy, xy.T)).real
    return np.sqrt(np.sort(np.clip(squares, 0, 1))[::-1])


def by_the_equations(V, T):
    A, B = leading(V, 10), leading(T, 10)
    return {
        "linear_cka": biased_cka(A, B),
        "cknna": local_cka(A, B),
        "cca": canonical(leading(V, 50), leading(T, 50))[0],
        "svcca": canonical(A, B).mean(),
    }


def pairs(n=120, d=60, e=55, seed=0):
    rng = np.random.default_rng(seed)
    V = rng.standard_normal((n, d)) * np.linspace(2, 0.3, d) + 0.5
    return V, V @ rng.standard_normal((d, e)) / 8 + rng.standard_normal((n, e))


@pytest.mark.parametrize("rows", [120, 70])
def test_the_papers_scores_are_those_of_its_equations(rows):
    V, T = (side[:rows] for side in pairs())
    found = {one.metric: one.match for one in match_test(V, T, definition="jam", **ONCE)}
    assert found == pytest.approx(by_the_equations(V, T), abs=1e-9)


def test_the_papers_figures_take_them_too():
    V, T = pairs()
    names = {"linear_cka": "cka_linear", "cca": "cca_linear"}
    found = measure_statistics(V, T, ["cca_linear", "cka_linear", "svcca", "cknna"])
    assert found == pytest.approx({names.get(k, k): v for k, v in by_the_equations(V, T).items()}, abs=1e-9)


@pytest.mark.skipif(not COCO.exists(), reason="needs the shared data")
def test_coco():
    """The first canonical correlation of CLIP's images and captions is .968, and about .58 where nothing belongs
    together.
    """
    with np.load(COCO) as data:
        V, T = data["image"].astype(np.float64), data["text"].astype(np.float64)
    found = match_test(V, T, **{**ONCE, "permutations": 5})
    shuffled = {(one.metric, one.definition): one for one in found if one.against == "shuffled"}
    expected = by_the_equations(V, T)
    assert {m: one.match for (m, d), one in shuffled.items() if d != "congruence"} == pytest.approx(expected, abs=1e-8)
    assert shuffled["cca", "jam"].match == pytest.approx(0.968, abs=5e-4)
    assert 0.54 < shuffled["cca", "jam"].other < 0.64
    assert shuffled["cca", "congruence"].match == pytest.approx(0.486, abs=5e-4)


def test_both_are_given_and_named():
    found = match_test(*pairs(60, 12, 11), metrics=[*JAM, "mutual_knn"], **ONCE)[::2]
    assert [(one.metric, one.definition, one.formula) for one in found] == [
        ("linear_cka", "jam", "biased"),
        ("linear_cka", "congruence", "debiased"),
        ("cknna", "jam", "eq. 6–9"),
        ("cknna", "congruence", "Huh et al."),
        ("cca", "jam", "first"),
        ("cca", "congruence", "mean"),
        ("svcca", "both", "mean"),
        ("mutual_knn", "congruence", ""),
    ]
    paper, ours = (match_test(*pairs(60, 12, 11), definition=which, **ONCE)[::2] for which in ("jam", "congruence"))
    assert sorted((one.metric, one.match) for one in (*paper, *ours)) == sorted(
        [(one.metric, one.match) for one in found[:7]] + [("svcca", found[6].match)]
    )


@pytest.mark.parametrize("metric", JAM)
@pytest.mark.parametrize("shapes", [((70, 8), (70, 6)), ((30, 40), (30, 5)), ((30, 40), (30, 50))])
def test_reordering_is_preparing_reordered_rows(metric, shapes):
    rng = np.random.default_rng(0)
    X, Y = (rng.standard_normal(shape) for shape in shapes)
    order = rng.permutation(len(X))
    for one in measures(metric, components=False, normalize=True):
        first, second = one.metric.prepare(X, "X"), one.metric.prepare(Y, "Y")
        moved = one.metric.compare(first, one.metric.reorder(second, order))
        assert moved == pytest.approx(one.metric.compare(first, one.metric.prepare(Y[order], "Y")), abs=1e-9)


def test_rows_and_columns_may_be_scaled_as_in_the_code_of_huh():
    """Against rows and columns scaled by hand; columns with no principal axes of their own, so that the scale
    matters.
    """
    V, T = pairs(90, 14, 13)
    T[:, 4] *= 30

    def unit(A):
        return A / np.linalg.norm(A, axis=1, keepdims=True)

    def scaled(A):
        return (A - A.mean(axis=0)) / A.std(axis=0)

    assert cknna(V, T, normalize=True) == pytest.approx(cknna(unit(V), unit(T)))
    assert cknna(V, T, normalize=True) != pytest.approx(cknna(V, T), abs=1e-3)
    for keep in (5, 0.9):
        assert svcca(V, T, keep=keep, standardize=True) == pytest.approx(svcca(scaled(V), scaled(T), keep=keep))
    assert svcca(V, T, keep=5, standardize=True) != pytest.approx(svcca(V, T, keep=5), abs=1e-3)
    assert svcca(V * 1e-200, T, standardize=True) == pytest.approx(svcca(V, T, standardize=True))
    options = {"metrics": ["cknna", "svcca"], "normalize": True, "standardize": True, "definition": "congruence"}
    few = [one.match for one in match_test(V, T, components=5, **options, **ONCE)[::2]]
    A, B = leading(V, 5), leading(T, 5)
    assert few == pytest.approx(
        [cknna(unit(A), unit(B)), canonical(leading(scaled(V), 5), leading(scaled(T), 5)).mean()]
    )
    whole = [one.match for one in match_test(V, T, components=None, **options, **ONCE)[::2]]
    assert whole == pytest.approx([cknna(V, T, normalize=True), svcca(V, T, standardize=True)])
    assert METRICS["cknna"].fn(V, T) == cknna(V, T) != cknna(V, T, normalize=True)  # off by default
