import warnings

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ortho_group

from congruence import OrthogonalMap, Space, errors
from congruence.embeddings import Embeddings
from congruence.linalg.moments import CrossMoments
from congruence.linalg.shrinkage import CV_STRENGTHS, SHRINKAGES
from congruence.synthetic import random_rotation, rigid_problem


@pytest.mark.parametrize("shrinkage", SHRINKAGES)
@pytest.mark.parametrize(("d_source", "d_target"), [(12, 12), (12, 20)])
def test_exact_data_give_back_the_exact_rotation(shrinkage, d_source, d_target):
    p = rigid_problem(300, d_source, d_target, random_state=1)
    m = OrthogonalMap(shrinkage=shrinkage, shrinkage_strength=1e-13 if shrinkage == "soft" else None).fit(p.X, p.Y)
    np.testing.assert_allclose(m.rotation_, p.rotation, atol=1e-10)
    np.testing.assert_allclose(m.transform(p.X), p.Y, atol=1e-10)
    np.testing.assert_allclose(m.inverse_transform(p.Y), p.X, atol=1e-10)
    assert m.rank_ == d_source
    assert m.facts_["is_isometry"]


@pytest.mark.parametrize("parameters", [{}, {"identity": 0.1}])
@pytest.mark.parametrize("n", [300, 30, 12])  # the fewest are decomposed by a sketch
def test_a_map_to_compare_has_half_of_the_digits(n, parameters):
    p = rigid_problem(n, 40, noise=0.3, random_state=3)
    moments = {"": CrossMoments.of(p.X, p.Y)}
    exact, half = (OrthogonalMap.from_moments(moments, half=half, **parameters) for half in (False, True))
    np.testing.assert_allclose(half.rotation_, exact.rotation_, atol=1e-7)
    assert half.rank_ == exact.rank_
    with pytest.raises(errors.InputError, match="do not vary together"):
        OrthogonalMap.from_moments({"": CrossMoments.of(p.X, p.Y * 0 + p.Y[0])}, half=True, **parameters)


def test_the_papers_solution_is_scipys():
    p = rigid_problem(80, 10, noise=0.3, random_state=2)
    X, Y = p.X - p.X.mean(0), p.Y - p.Y.mean(0)
    expected, scale = scipy.linalg.orthogonal_procrustes(X, Y)
    m = OrthogonalMap(shrinkage="full").fit(p.X, p.Y)
    np.testing.assert_allclose(m.rotation_, expected, atol=1e-12)
    assert m.singular_values_.sum() * 80 == pytest.approx(scale)
    raw = OrthogonalMap(center=False, shrinkage="full").fit(p.X, p.Y)
    np.testing.assert_allclose(raw.rotation_, scipy.linalg.orthogonal_procrustes(p.X, p.Y)[0], atol=1e-12)
    assert not raw.source_mean_.any()
    assert not raw.target_mean_.any()


@given(st.integers(2, 9), st.integers(2, 9), st.integers(0, 10**6))
def test_the_rotation_is_semi_orthogonal_and_nothing_beats_it(d_source, d_target, seed):
    rng = np.random.default_rng(seed)
    X, Y = rng.standard_normal((60, d_source)), rng.standard_normal((60, d_target))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.ProjectionWarning)
        m = OrthogonalMap(shrinkage="full").fit(X, Y)
    k = min(d_source, d_target)
    gram = m.rotation_ @ m.rotation_.T if d_source <= d_target else m.rotation_.T @ m.rotation_
    np.testing.assert_allclose(gram, np.eye(k), atol=1e-12)
    X, Y = X - X.mean(0), Y - Y.mean(0)
    rival = random_rotation(d_source, d_target, random_state=seed)
    assert np.sum((X @ m.rotation_) * Y) >= np.sum((X @ rival) * Y) - 1e-9
    if d_source <= d_target:
        assert np.linalg.norm(X @ m.rotation_ - Y) <= np.linalg.norm(X @ rival - Y) + 1e-9


@given(st.integers(0, 10**6), st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_turning_and_scaling_either_side_turns_the_map_and_scales_nothing(seed, a, b):
    p = rigid_problem(50, 6, noise=0.2, random_state=seed)
    A, B = ortho_group.rvs(6, random_state=seed), ortho_group.rvs(6, random_state=seed + 1)
    m = OrthogonalMap().fit(p.X, p.Y)
    moved = OrthogonalMap().fit(a * p.X @ A, b * p.Y @ B)
    np.testing.assert_allclose(moved.rotation_, A.T @ m.rotation_ @ B, atol=1e-8)
    np.testing.assert_allclose(moved.target_mean_, b * m.target_mean_ @ B, atol=1e-8 * b)


def test_downwards_it_is_a_projection_and_says_so():
    p = rigid_problem(200, 9, 5, random_state=4)
    with pytest.warns(errors.ProjectionWarning, match="loses 4 dimensions"):
        m = OrthogonalMap(shrinkage="full").fit(p.X, p.Y)
    assert m.facts_["is_projection"]
    assert not m.facts_["is_isometry"]
    np.testing.assert_allclose(m.rotation_.T @ m.rotation_, np.eye(5), atol=1e-12)


def test_proper_rotations_have_determinant_one():
    p = rigid_problem(100, 7, random_state=5)
    mirrored = p.Y.copy()
    mirrored[:, 0] *= -1
    signs = set()
    for Y in (p.Y, mirrored):
        free = OrthogonalMap(shrinkage="full").fit(p.X, Y)
        proper = OrthogonalMap(allow_reflection=False).fit(p.X, Y)
        signs.add(round(np.linalg.det(free.rotation_)))
        assert np.linalg.det(proper.rotation_) == pytest.approx(1)
        np.testing.assert_allclose(proper.rotation_ @ proper.rotation_.T, np.eye(7), atol=1e-12)
    assert signs == {1, -1}


def test_a_proper_map_is_the_best_of_the_proper_ones():
    p = rigid_problem(100, 3, noise=0.5, random_state=6)
    Y = p.Y * [1, 1, -1]
    m = OrthogonalMap(allow_reflection=False).fit(p.X, Y)
    X, Y = p.X - p.X.mean(0), Y - Y.mean(0)
    best, _ = scipy.spatial.transform.Rotation.align_vectors(Y, X)  # Kabsch: rotations of 3-space only
    np.testing.assert_allclose(m.rotation_, best.as_matrix().T, atol=1e-6)


def test_few_anchors_probe_only_what_they_span():
    p = rigid_problem(10, 30, random_state=7)
    m = OrthogonalMap(shrinkage="covered").fit(p.X, p.Y)
    assert m.rank_ == 9
    # Thm C.16: on the covered subspace the true rotation is found exactly, and nothing is said of the rest.
    basis = np.linalg.svd(p.X - p.X.mean(0))[2][:9]
    np.testing.assert_allclose(basis @ m.rotation_, basis @ p.rotation, atol=1e-8)
    rest = np.linalg.svd(p.X - p.X.mean(0))[2][9:]
    np.testing.assert_allclose(rest @ m.rotation_, 0, atol=1e-8)
    np.testing.assert_allclose(m.covered_share(basis + m.source_mean_), 1, atol=1e-8)
    np.testing.assert_allclose(m.covered_share(rest + m.source_mean_), 0, atol=1e-8)
    assert m.covered_share(m.source_mean_[None])[0] == 1


def test_corresponding_means_count_as_a_direction():
    """A rotation about the origin carries means onto means, so they are one pair more than centering leaves."""
    p = rigid_problem(30, 80, offset=0.0, random_state=7)
    shift = 3 * np.random.default_rng(0).standard_normal(80)
    X, Y = p.X + shift, (p.X + shift) @ p.rotation
    m = OrthogonalMap().fit(X, Y, modality="text")
    assert (m.rank_, m.mean_directions_) == (29, 1)
    np.testing.assert_allclose(X @ m.rotation_, Y, atol=1e-8)  # the mean itself is now carried by the rotation
    s = np.linalg.svd(m.rotation_, compute_uv=False)
    np.testing.assert_allclose(s[:30], 1, atol=1e-8)
    np.testing.assert_allclose(s[30:], 0, atol=1e-8)
    np.testing.assert_allclose(m.covered_share(X * 2), 1, atol=1e-8)
    # A second modality of the same models is carried far better: the gap between the means is no longer lost.
    other = np.random.default_rng(1).standard_normal((50, 80)) + 3 * shift
    lost = OrthogonalMap(shrinkage="covered").fit(X, Y)
    error, without = (np.linalg.norm(one.transform(other) - other @ p.rotation) for one in (m, lost))
    assert error < 0.5 * without
    assert m.inverse().mean_directions_ == 1
    assert OrthogonalMap(shrinkage="covered").fit(X, Y).mean_directions_ == 0
    both = np.vstack([X, X[:20] + 2]), np.vstack([Y, (X[:20] + 2) @ p.rotation])
    two = OrthogonalMap().fit(*both, modality=["text"] * 30 + ["image"] * 20)
    assert two.mean_directions_ >= 1
    np.testing.assert_allclose(X @ two.rotation_, Y, atol=1e-8)
    for seed in range(20):  # unrelated means are left out
        p = rigid_problem(30, 80, offset=2.0, random_state=seed)
        assert OrthogonalMap().fit(p.X, p.Y).mean_directions_ == 0


def test_the_full_spectrum_fills_in_and_says_so():
    p = rigid_problem(10, 30, random_state=7)
    with pytest.warns(errors.DegenerateWarning, match="span 9 of 30"):
        m = OrthogonalMap(shrinkage="full").fit(p.X, p.Y)
    np.testing.assert_allclose(m.rotation_ @ m.rotation_.T, np.eye(30), atol=1e-12)
    covered = OrthogonalMap(shrinkage="covered").fit(p.X, p.Y)
    Z = np.random.default_rng(0).standard_normal((20, 30))
    np.testing.assert_allclose(m.covered_share(Z), covered.covered_share(Z), atol=1e-8)


def test_rank_counts_real_directions_only():
    p = rigid_problem(300, 20, rank=6, random_state=8)
    m = OrthogonalMap().fit(p.X, p.Y)
    assert m.rank_ == 6
    repeated = OrthogonalMap().fit(np.repeat(p.X[:4], 50, axis=0), np.repeat(p.Y[:4], 50, axis=0))
    assert repeated.rank_ == 3


@pytest.mark.parametrize("n", [20, 60, 200, 600])
def test_no_competitor_beats_the_default_on_noisy_decaying_data(n):
    """The default must not be clearly worse than any fixed choice, at any number of anchors."""
    distances = {}
    for seed in range(12):
        p = rigid_problem(n + 300, 100, noise=0.03, decay=0.7, random_state=seed)
        for shrinkage in ("auto", "full", "covered"):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", errors.DegenerateWarning)
                m = OrthogonalMap(shrinkage=shrinkage).fit(p.X[:n], p.Y[:n])
            distance = np.linalg.norm(m.transform(p.X[n:]) - p.Y[n:]) / np.linalg.norm(p.Y[n:] - p.target_mean)
            distances.setdefault(shrinkage, []).append(distance)
    default = np.array(distances.pop("auto"))
    for rival in distances.values():
        difference = default - np.array(rival)
        assert difference.mean() <= 2 * difference.std(ddof=1) / np.sqrt(12) + 1e-12


def test_cross_validation_prefers_no_filter_on_clean_data_and_some_on_noise():
    clean = rigid_problem(200, 10, random_state=0)
    assert OrthogonalMap(shrinkage="cv").fit(clean.X, clean.Y).facts_["mean_gain"] > 0.999
    noisy = rigid_problem(120, 60, noise=0.3, decay=1.5, random_state=0)
    m = OrthogonalMap(shrinkage="cv").fit(noisy.X, noisy.Y)
    assert m.cv_strength_ > 0
    assert m.facts_["mean_gain"] < 0.9
    again = OrthogonalMap(shrinkage="cv").fit(noisy.X, noisy.Y)
    assert np.array_equal(m.cv_scores_, again.cv_scores_)
    more = {"modality": ["image", "text"] * 60, "sample_weight": np.ones(120)}
    both = OrthogonalMap(shrinkage="cv").fit(noisy.X, noisy.Y, **more)
    assert both.cv_strength_ in CV_STRENGTHS


def test_shards_in_any_order_give_the_same_map():
    p = rigid_problem(500, 12, 15, noise=0.1, random_state=9)
    whole = OrthogonalMap().fit(p.X, p.Y)
    streamed = OrthogonalMap()
    for part in np.array_split(np.random.default_rng(0).permutation(500), 7):
        streamed.partial_fit(p.X[part], p.Y[part])
    merged = OrthogonalMap().fit(p.X[300:], p.Y[300:]).merge(OrthogonalMap().fit(p.X[:300], p.Y[:300]))
    for m in (streamed, merged):
        np.testing.assert_allclose(m.rotation_, whole.rotation_, atol=1e-10)
        np.testing.assert_allclose(m.target_mean_, whole.target_mean_, atol=1e-12)
        assert m.n_pairs_ == 500


def test_partial_fit_takes_single_pairs_but_the_map_needs_two():
    p = rigid_problem(50, 4, random_state=1)
    m = OrthogonalMap()
    for x, y in zip(p.X, p.Y, strict=True):
        m.partial_fit(x[None], y[None])
    np.testing.assert_allclose(m.rotation_, p.rotation, atol=1e-9)
    with pytest.raises(errors.InputError):
        _ = OrthogonalMap().partial_fit(p.X[:1], p.Y[:1]).rotation_


def test_weights_act_like_repeated_rows_and_zero_like_absence():
    p = rigid_problem(60, 5, noise=0.4, random_state=10)
    w = np.random.default_rng(1).integers(0, 4, 60)
    weighted = OrthogonalMap().fit(p.X, p.Y, sample_weight=w)
    repeated = OrthogonalMap().fit(np.repeat(p.X, w, axis=0), np.repeat(p.Y, w, axis=0))
    np.testing.assert_allclose(weighted.rotation_, repeated.rotation_, atol=1e-10)


def test_modalities_are_centered_apart_and_their_covariances_add():
    rng = np.random.default_rng(2)
    R = random_rotation(6, random_state=2)
    parts = {}
    for name, shift in (("image", 3.0), ("text", -2.0)):
        X = rng.standard_normal((40, 6)) + shift
        parts[name] = (X, (X - X.mean(0)) @ R + rng.standard_normal(6))
    X = np.vstack([parts["image"][0], parts["text"][0]])
    Y = np.vstack([parts["image"][1], parts["text"][1]])
    names = ["image"] * 40 + ["text"] * 40
    joint = OrthogonalMap().fit(X, Y, modality=names)
    np.testing.assert_allclose(joint.rotation_, R, atol=1e-9)
    for name, (a, b) in parts.items():
        np.testing.assert_allclose(joint.for_modality(name).transform(a), b, atol=1e-9)
    # Centered together, the gap between the modalities would be taken for signal.
    assert np.abs(OrthogonalMap().fit(X, Y).rotation_ - R).max() > 1e-3
    cross = sum((a - a.mean(0)).T @ (b - b.mean(0)) for a, b in parts.values()) / 80
    np.testing.assert_allclose(joint.singular_values_, np.linalg.svd(cross, compute_uv=False), atol=1e-12)
    order = np.random.default_rng(0).permutation(80)
    shuffled = OrthogonalMap().fit(X[order], Y[order], modality=np.array(names)[order])
    np.testing.assert_allclose(shuffled.rotation_, joint.rotation_, atol=1e-10)


def test_recentering_keeps_the_rotation_and_swaps_the_means():
    p = rigid_problem(200, 6, random_state=3)
    m = OrthogonalMap().fit(p.X, p.Y, modality="image")
    a, b = np.arange(6.0), np.ones(6)
    text = m.recenter(a, b, modality="text")
    np.testing.assert_allclose(text.transform(a[None]), b[None], atol=1e-12)
    assert text.rotation_ is m.rotation_
    assert (text.source_space_.modality, m.source_space_.modality) == ("text", "image")
    np.testing.assert_allclose(text.for_modality("image").transform(p.X), m.transform(p.X))
    rows = np.random.default_rng(0).standard_normal((9, 6))
    np.testing.assert_allclose(m.recenter(rows, Embeddings(rows)).source_mean_, rows.mean(0))
    guessed = m.recenter(m.source_mean_ + a, modality="text")  # the gap is mapped as rows are
    np.testing.assert_allclose(guessed.target_mean_, m.target_mean_ + a @ m.rotation_)
    np.testing.assert_allclose(guessed.transform(rows), m.transform(rows), atol=1e-12)
    unnamed = OrthogonalMap().fit(p.X, p.Y)
    assert unnamed.for_modality("text") is unnamed


def test_the_inverse_is_the_fit_the_other_way_round():
    p = rigid_problem(80, 5, 5, noise=0.3, random_state=4)
    m = OrthogonalMap().fit(p.X, p.Y, modality="image")
    m.source_space_, m.target_space_ = Space("a"), Space("b")
    back = m.inverse()
    other = OrthogonalMap().fit(p.Y, p.X)
    np.testing.assert_allclose(back.rotation_, other.rotation_, atol=1e-10)
    expected = (p.Y - m.target_mean_) @ m.rotation_.T + m.source_mean_
    np.testing.assert_allclose(back.transform(p.Y), expected, atol=1e-12)
    assert (back.source_space_.model, back.target_space_.model) == ("b", "a")
    np.testing.assert_allclose(back.inverse().transform(p.X), m.transform(p.X), atol=1e-12)
    np.testing.assert_allclose(back.merge(back).rotation_, back.rotation_, atol=1e-10)
    p = rigid_problem(80, 4, 7, random_state=4)
    up = OrthogonalMap().fit(p.X, p.Y)
    np.testing.assert_allclose(up.inverse().transform(up.transform(p.X)), p.X, atol=1e-10)
    assert up.inverse().facts_["is_projection"]
    np.testing.assert_allclose(up.then(up.inverse()).transform(p.X), p.X, atol=1e-9)


def test_a_composed_map_knows_what_both_cover_and_only_what_fits_is_composed():
    p, q = rigid_problem(100, 4, 6, noise=0.1, random_state=5), rigid_problem(100, 6, 9, noise=0.1, random_state=6)
    first, second = OrthogonalMap().fit(p.X, p.Y), OrthogonalMap().fit(q.X, q.Y)
    both = first.then(second)
    np.testing.assert_allclose(both.transform(p.X), second.transform(first.transform(p.X)), atol=1e-12)
    assert both.rank_ == 4
    np.testing.assert_allclose(both.covered_share(p.X), 1)
    first.target_space_, second.source_space_ = Space("b"), Space("c")
    with pytest.raises(errors.SpaceMismatchError):
        first.then(second)


@pytest.mark.parametrize("condition", [1e2, 1e7])
def test_the_rotation_is_scipys_whichever_decomposition_is_used(condition):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 24)) * np.geomspace(1, condition**-0.5, 24)
    Y = X @ np.linalg.qr(rng.standard_normal((24, 24)))[0]
    ours = OrthogonalMap(shrinkage="full").fit(X, Y)
    A, B = X - X.mean(axis=0), Y - Y.mean(axis=0)
    np.testing.assert_allclose(ours.rotation_, scipy.linalg.orthogonal_procrustes(A, B)[0], atol=1e-8)
    np.testing.assert_allclose(ours.singular_values_, np.linalg.svd(A.T @ B / 400)[1], rtol=1e-8)
