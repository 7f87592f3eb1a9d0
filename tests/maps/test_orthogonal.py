import warnings

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ortho_group

from congruence import LinearMap, OrthogonalMap, Space, errors, load
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


@given(st.integers(0, 10**6))
def test_rotating_either_side_rotates_the_map(seed):
    p = rigid_problem(50, 6, noise=0.2, random_state=seed)
    A, B = ortho_group.rvs(6, random_state=seed), ortho_group.rvs(6, random_state=seed + 1)
    m = OrthogonalMap().fit(p.X, p.Y)
    turned = OrthogonalMap().fit(p.X @ A, p.Y @ B)
    np.testing.assert_allclose(turned.transform(p.X @ A), m.transform(p.X) @ B, atol=1e-8)


@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_scaling_either_model_changes_neither_rotation_nor_gains(a, b):
    p = rigid_problem(50, 6, noise=0.2, random_state=0)
    m, scaled = OrthogonalMap().fit(p.X, p.Y), OrthogonalMap().fit(a * p.X, b * p.Y)
    np.testing.assert_allclose(scaled.rotation_, m.rotation_, atol=1e-9)


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


def test_impossible_options_are_refused():
    p = rigid_problem(20, 4, 5, random_state=0)
    wrongs = {"allow_reflection": (False, "for widths 4 and 5"), "shrinkage": ("best", "'auto', 'full'")}
    for name, (value, words) in (wrongs | {"shrinkage_strength": (-1, "shrinkage_strength")}).items():
        with pytest.raises(errors.ParameterError, match=words):
            OrthogonalMap(**{name: value}).fit(p.X, p.Y)
    with pytest.raises(errors.ParameterError, match="shrinkage"):
        OrthogonalMap(allow_reflection=False, shrinkage="covered").fit(p.X, p.X)
    moments = {"image": CrossMoments.of(p.X, p.X)}
    with pytest.raises(errors.ParameterError, match="shrinkage"):
        OrthogonalMap.from_moments(moments, allow_reflection=False, shrinkage="covered")
    with pytest.raises(errors.TooFewAnchorsError, match="no moments"):
        OrthogonalMap.from_moments({})
    with pytest.raises(errors.ParameterError, match="at least 10"):
        OrthogonalMap(shrinkage="cv").fit(p.X[:9], p.Y[:9])
    with pytest.raises(errors.ParameterError, match="needs the rows"):
        OrthogonalMap(shrinkage="cv").partial_fit(p.X, p.Y)


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


def test_unrelated_means_are_left_out():
    for seed in range(20):
        p = rigid_problem(30, 80, offset=2.0, random_state=seed)
        assert OrthogonalMap().fit(p.X, p.Y).mean_directions_ == 0


def test_the_full_spectrum_fills_in_and_says_so():
    p = rigid_problem(10, 30, random_state=7)
    with pytest.warns(errors.DegenerateWarning, match="cover 9 of 30"):
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
    with pytest.raises(errors.ShapeError, match="not 4"):
        m.partial_fit(p.X, p.Y[:, :3])
    with pytest.raises(errors.InputError):
        _ = OrthogonalMap().partial_fit(p.X[:1], p.Y[:1]).rotation_


def test_a_bad_batch_changes_nothing():
    p = rigid_problem(60, 4, random_state=1)
    m = OrthogonalMap()
    spoiled = p.X[:20].copy()
    spoiled[3] = np.nan
    for _ in range(2):
        with pytest.raises(errors.InputError):
            m.partial_fit(spoiled, p.Y[:20])
    m.partial_fit(p.X[:30], p.Y[:30])
    with pytest.raises(errors.InputError):
        m.partial_fit(spoiled, p.Y[:20])
    m.partial_fit(p.X[30:], p.Y[30:])
    np.testing.assert_allclose(m.rotation_, OrthogonalMap().fit(p.X, p.Y).rotation_, atol=1e-12)


def test_weights_act_like_repeated_rows_and_zero_like_absence():
    p = rigid_problem(60, 5, noise=0.4, random_state=10)
    w = np.random.default_rng(1).integers(0, 4, 60)
    weighted = OrthogonalMap().fit(p.X, p.Y, sample_weight=w)
    repeated = OrthogonalMap().fit(np.repeat(p.X, w, axis=0), np.repeat(p.Y, w, axis=0))
    np.testing.assert_allclose(weighted.rotation_, repeated.rotation_, atol=1e-10)
    with pytest.raises(errors.InputError, match="negative"):
        OrthogonalMap().fit(p.X, p.Y, sample_weight=-w)
    with pytest.raises(errors.ShapeError, match="sample_weight"):
        OrthogonalMap().fit(p.X, p.Y, sample_weight=w[:-1])


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
    with pytest.raises(errors.InputError, match="modality of shape"):
        OrthogonalMap().fit(X, Y, modality=names[:-1])
    with pytest.raises(errors.ParameterError, match="'image', 'text'"):
        OrthogonalMap().fit(X, Y, modality="sound")


def test_merging_unlike_maps_is_refused():
    p = rigid_problem(50, 4, random_state=1)
    m = OrthogonalMap().fit(p.X, p.Y)
    chosen = OrthogonalMap(shrinkage="cv").fit(p.X, p.Y)
    for words, one, other in (
        ("same", m, OrthogonalMap(center=False).fit(p.X, p.Y)),
        ("in two steps", m, LinearMap().fit(p.X, p.Y)),
        ("composed", m, m.then(m)),
        ("needs the rows", chosen, chosen),
    ):
        with pytest.raises(errors.ParameterError, match=words):
            one.merge(other)
    with pytest.raises(errors.ParameterError, match="composed"):
        m.then(m).partial_fit(p.X, p.Y)


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
    with pytest.raises(errors.ShapeError, match="source_mean of width 5"):
        m.recenter(np.ones(5))
    with pytest.raises(errors.ModalityError, match="means for image"):
        m.for_modality("text")


def test_a_missing_target_mean_carries_the_gap():
    p = rigid_problem(200, 6, random_state=3)
    m = OrthogonalMap().fit(p.X, p.Y, modality="image")
    gap = np.arange(6.0)
    text = m.recenter(m.source_mean_ + gap, modality="text")
    np.testing.assert_allclose(text.target_mean_, m.target_mean_ + gap @ m.rotation_)
    Z = np.random.default_rng(0).standard_normal((5, 6))
    np.testing.assert_allclose(text.transform(Z), m.transform(Z), atol=1e-12)


def test_an_unnamed_map_serves_any_modality():
    p = rigid_problem(50, 4, random_state=1)
    m = OrthogonalMap().fit(p.X, p.Y)
    assert m.for_modality("text") is m
    assert OrthogonalMap(center=False).fit(p.X, p.Y, modality="image").for_modality("text").rotation_.shape == (4, 4)


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


def test_composition_keeps_every_mean_right():
    p = rigid_problem(100, 4, 6, noise=0.1, random_state=5)
    q = rigid_problem(100, 6, 9, noise=0.1, random_state=6)
    first = OrthogonalMap().fit(p.X, p.Y, modality="image").recenter(p.X + 1, p.Y - 1, modality="text")
    second = OrthogonalMap().fit(q.X, q.Y, modality="image").recenter(q.X - 2, q.Y + 2, modality="text")
    first, second = (one.for_modality("image") for one in (first, second))
    both = first.then(second)
    np.testing.assert_allclose(both.transform(p.X), second.transform(first.transform(p.X)), atol=1e-12)
    for name in ("image", "text"):
        direct = both.for_modality(name).transform(p.X)
        stepwise = second.for_modality(name).transform(first.for_modality(name).transform(p.X))
        np.testing.assert_allclose(direct, stepwise, atol=1e-12)
    assert both.rank_ == 4
    np.testing.assert_allclose(both.covered_share(p.X), 1)
    with pytest.raises(errors.ShapeError):
        second.then(first)
    first.target_space_, second.source_space_ = Space("b"), Space("c")
    with pytest.raises(errors.SpaceMismatchError):
        first.then(second)


def test_saved_maps_keep_all_means(tmp_path):
    p = rigid_problem(100, 5, noise=0.1, random_state=6)
    m = OrthogonalMap().fit(p.X[:50], p.Y[:50], modality="image").recenter(p.X, modality="text")
    again = load(m.save(tmp_path / "m"))
    assert again.modality_ == "text"
    for name in ("image", "text"):
        np.testing.assert_array_equal(again.for_modality(name).transform(p.X), m.for_modality(name).transform(p.X))
    composed = load(m.then(m).save(tmp_path / "c"))
    np.testing.assert_array_equal(composed.transform(p.X), m.then(m).transform(p.X))


def test_constant_anchors_are_refused():
    with pytest.raises(errors.InputError, match="do not vary together"):
        OrthogonalMap().fit(np.ones((5, 3)), np.random.default_rng(0).standard_normal((5, 3)))


def test_transposed_arrays_survive_saving(tmp_path):
    """safetensors scrambles arrays that are not contiguous; the inverse's rotation is a transposed view."""
    p = rigid_problem(100, 5, 7, random_state=6)
    back = OrthogonalMap().fit(p.X, p.Y).inverse()
    back.rotation_ = np.asfortranarray(back.rotation_)
    np.testing.assert_array_equal(load(back.save(tmp_path / "b")).rotation_, back.rotation_)
