"""The benchmark of SOTAlign on images: its pools and cuts, and a teacher's lesson against POT's plan."""

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

import sotalign_images as benchmark
from congruence.embeddings import normalize_rows
from congruence.synthetic import unimodal_problem
from congruence_papers import SOTAlignData


def world(noise: float = 0.3) -> SOTAlignData:
    made = unimodal_problem(300, 24, 20, latent=8, noise=noise, nuisance=0.3, random_state=1)
    items = np.arange(300)
    sizes = {"test": 60, "validation": 40}
    return SOTAlignData("world", {"look": made.images}, {"read": made.texts}, items, items, sizes=sizes)


def drawn(data: SOTAlignData, pairs: int = 30) -> benchmark.Drawn:
    return benchmark.Drawn(data, pairs, seed=0, width=16)


def test_the_cut_is_scikit_learn_s_projection_of_rows_that_are_not_measured_on():
    decomposition = pytest.importorskip("sklearn.decomposition")
    one = drawn(world())
    known = normalize_rows(np.concatenate([one.everything.images, one.everything.unpaired_images]).astype(float))
    fitted = decomposition.PCA(16).fit(known)
    wanted = fitted.transform(normalize_rows(one.everything.test.images.astype(float)))
    found = one.parts.test.images
    np.testing.assert_allclose(np.abs(found), np.abs(wanted), atol=1e-4)  # up to the signs of directions


def test_a_lesson_is_the_mass_of_pot_s_plan_on_partners():
    ot = pytest.importorskip("ot")
    one = drawn(world())
    teacher = benchmark.best_linear(one)
    found = benchmark.lesson(one, teacher)
    (images, a), (texts, b) = one.everything.partners
    image, text = one.cuts
    X, Y = normalize_rows(teacher.transform(image(images[a]))), normalize_rows(teacher.transform_target(text(texts[b])))
    n = len(a)
    weights, options = np.full(n, 1 / n), {"method": "sinkhorn_log", "numItermax": 5000, "stopThr": 1e-4}
    plan = ot.sinkhorn(weights, weights, 1 - X @ Y.T, reg=0.01, **options)
    # It converges; ours stops after 30 iterations.
    assert found["plan"] == pytest.approx(100 * np.trace(plan), abs=1.5)
    nearest = 50 * sum((K.argmax(1) == np.arange(n)).mean() for K in (X @ Y.T, Y @ X.T))
    assert found["nearest"] == pytest.approx(nearest, abs=1e-3)
