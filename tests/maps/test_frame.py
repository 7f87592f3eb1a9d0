"""Many models in one frame: against pairwise Procrustes, Gower's iteration, SciPy's optimizer and known truth."""

import json
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import expm
from scipy.optimize import minimize

import congruence
from congruence import CanonicalFrame, Embeddings, OrthogonalMap, Space, errors, persist
from congruence.linalg.generalized import generalized_procrustes


def turned(draw, width, to):
    """A random matrix with orthonormal rows (or columns, to a narrower space)."""
    q = np.linalg.qr(draw.standard_normal((max(width, to), min(width, to))))[0]
    return q if width > to else q.T


def world(seed=0, n=60, widths=(8, 8, 8), noise=0.0, inner=None):
    draw = np.random.default_rng(seed)
    inner = inner or min(widths)
    truth = draw.standard_normal((n, inner)) * np.linspace(2, 0.5, inner)

    def rows(width):
        moved = truth @ turned(draw, inner, width) + draw.standard_normal(width)
        return moved + noise * draw.standard_normal((n, width))

    return {name: rows(width) for name, width in zip("abcdef", widths, strict=False)}


def some(models, **rows):
    """The rows of each model that it has, with their numbers as ids."""
    return {name: Embeddings(models[name][list(which)], list(which)) for name, which in rows.items()}


@pytest.mark.filterwarnings("ignore::congruence.errors.ProjectionWarning")
@pytest.mark.parametrize("n", [5, 60])
@pytest.mark.parametrize("options", [{}, {"shrinkage": "covered"}, {"center": False}, {"shrinkage_strength": 1.0}])
def test_two_models_give_their_pairwise_map(n, options):
    rows = world(n=n, widths=(8, 10), noise=0.3)
    frame = CanonicalFrame(**options).fit(rows)
    for one, two in (("a", "b"), ("b", "a")):
        pairwise = OrthogonalMap(**options).fit(rows[one], rows[two])
        ours = frame.map(one, two)
        np.testing.assert_allclose(ours.rotation_, pairwise.rotation_, atol=1e-9)
        np.testing.assert_allclose(ours.transform(rows[one]), pairwise.transform(rows[one]), atol=1e-9)


def test_two_models_with_few_anchors_use_the_direction_of_the_means_as_a_pairwise_map_does():
    draw = np.random.default_rng(1)
    a = draw.standard_normal((14, 20)) + 3
    rows = {"a": a, "b": a @ turned(draw, 20, 20) + 0.05 * draw.standard_normal((14, 20))}
    pairwise = OrthogonalMap().fit(*rows.values())
    assert pairwise.mean_directions_ == 1
    np.testing.assert_allclose(CanonicalFrame().fit(rows).map("a", "b").rotation_, pairwise.rotation_, atol=1e-9)


def test_two_models_that_share_some_rows_give_the_map_of_these_and_of_both_modalities():
    texts, images = world(noise=0.2), world(1, noise=0.2)
    images["b"] = images["a"] @ np.linalg.lstsq(texts["a"], texts["b"], rcond=None)[0]
    rows = {
        "a": {"text": Embeddings(texts["a"][:40], range(40)), "image": Embeddings(images["a"], range(60))},
        "b": {"text": Embeddings(texts["b"][10:], range(10, 60)), "image": Embeddings(images["b"][30:], range(30, 60))},
    }
    stacked = [np.vstack([texts[name][10:40], images[name][30:]]) for name in "ab"]
    pairwise = OrthogonalMap().fit(*stacked, modality=["text"] * 30 + ["image"] * 30)
    mapping = CanonicalFrame().fit(rows).map("a", "b", modality="text")
    np.testing.assert_allclose(mapping.rotation_, pairwise.rotation_, atol=1e-9)
    for modality, data in (("text", texts), ("image", images)):
        ours, theirs = (one.for_modality(modality).transform(data["a"]) for one in (mapping, pairwise))
        np.testing.assert_allclose(ours, theirs, atol=1e-9)


def gower(models, sweeps=300):
    """Gower's iteration as he wrote it: rotate each configuration onto the mean of all."""
    X = [rows - rows.mean(0) for rows in models]
    for _ in range(sweeps):
        mean = np.mean(X, axis=0)
        for k, rows in enumerate(X):
            U, _, Vt = np.linalg.svd(rows.T @ mean)
            X[k] = rows @ U @ Vt
    return sum(np.sum((x - y) ** 2) for x, y in combinations(X, 2))


def loss(frame, models):
    rotated = [(rows - rows.mean(0)) @ frame.models_[name].rotation for name, rows in models.items()]
    return sum(np.sum((x - y) ** 2) for x, y in combinations(rotated, 2))


def test_complete_models_reach_the_loss_of_gowers_iteration():
    models = world(3, n=30, widths=(5, 5, 5, 5), noise=0.8)
    frame = CanonicalFrame(shrinkage="covered", tol=1e-13).fit(models)
    np.testing.assert_allclose(loss(frame, models), gower(list(models.values())), rtol=1e-8)


def test_scipys_optimizer_finds_nothing_better():
    models = world(4, n=25, widths=(3, 3, 3), noise=0.7)
    frame = CanonicalFrame(shrinkage="covered", tol=1e-13).fit(models)
    X = [(rows - rows.mean(0)) @ frame.models_[name].rotation for name, rows in models.items()]

    def moved(angles):
        turned = []
        for rows, (x, y, z) in zip(X, angles.reshape(3, 3), strict=True):
            turned.append(rows @ expm(np.array([[0, x, y], [-x, 0, z], [-y, -z, 0]])))
        return sum(np.sum((x - y) ** 2) for x, y in combinations(turned, 2))

    draw = np.random.default_rng(0)
    starts = [np.zeros(9), *draw.standard_normal((4, 9))]
    best = min(minimize(moved, start, method="BFGS").fun for start in starts)
    np.testing.assert_allclose(loss(frame, models), best, rtol=1e-6)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6), which=st.sampled_from("abc"))
def test_turning_a_model_turns_its_maps_and_nothing_else(seed, which):
    models = world(5, n=20, widths=(6, 5, 6), noise=0.3)
    turn = turned(np.random.default_rng(seed), models[which].shape[1], models[which].shape[1])
    frames = [CanonicalFrame(tol=1e-12).fit(models | extra) for extra in ({}, {which: models[which] @ turn})]
    for one, two in (("a", "b"), ("b", "c"), ("c", "a")):
        before, after = (frame.map(one, two).rotation_ for frame in frames)
        if one == which:
            after = turn @ after
        if two == which:
            after = after @ turn.T
        np.testing.assert_allclose(after, before, atol=1e-4)


def test_the_objective_never_falls_and_its_end_is_stationary():
    draw = np.random.default_rng(6)
    cross = {(m, j): draw.standard_normal((6, 6)) for m, j in combinations(range(4), 2)}
    found = generalized_procrustes(cross, dict.fromkeys(cross, 1.0), [6] * 4, 6, max_iter=3000, tol=1e-15)
    assert found.converged
    assert (np.diff(found.objective) >= -1e-12 * found.objective[-1]).all()
    assert found.objective[-1] > 1.05 * found.objective[0]
    for R, B in zip(found.rotations, found.evidence, strict=True):
        np.testing.assert_allclose(R @ R.T, np.eye(6), atol=1e-12)
        # The optimum of one with the others given.
        np.testing.assert_allclose(R @ B.T, B @ R.T, atol=1e-5 * np.abs(B).max())
        assert np.linalg.eigvalsh(R @ B.T).min() > -1e-5


def test_partly_shared_items_unequal_widths_and_offsets_are_recovered_exactly():
    models = world(7, n=90, widths=(9, 6, 12, 6), inner=6)
    have = some(models, a=range(30), b=range(20, 60), c=[*range(50, 70), 3], d=range(60, 90))
    frame = CanonicalFrame().fit(have)
    assert frame.converged_
    np.testing.assert_allclose(frame.objective_[-1], 1)
    for one in "abcd":
        for two in set("abcd") - {one}:
            np.testing.assert_allclose(frame.map(one, two).transform(models[one]), models[two], atol=1e-8)


def test_directions_that_only_a_later_edge_of_the_tree_needs_are_not_lost():
    """d and e share much; what joins a and b lies outside of what a and e share."""
    models = world(8, n=60, widths=(30,) * 4)
    a, b, d, e = (models[name] for name in "abcd")
    own = {"a": range(20), "b": range(10, 20), "d": range(20, 60), "e": [*range(10), *range(20, 60)]}
    rows = some({"a": a, "b": b, "d": d, "e": e}, **own)
    mapping = CanonicalFrame(shrinkage="covered").fit(rows).map("a", "b")
    np.testing.assert_allclose(mapping.transform(a[10:20]), b[10:20], atol=1e-8)


@pytest.mark.parametrize("shrinkage", ["covered", "full"])
def test_loops_close_on_what_the_models_share(shrinkage):
    models = world(9, n=40, widths=(8, 8, 8), noise=0.5)
    frame = CanonicalFrame(shrinkage=shrinkage).fit(models)
    ab, bc, ca = (frame.map(*pair) for pair in ("ab", "bc", "ca"))
    loop = ab.then(bc).then(ca)
    np.testing.assert_allclose(loop.rotation_, np.eye(8), atol=1e-12)
    np.testing.assert_allclose(loop.transform(models["a"]), models["a"], atol=1e-11)
    np.testing.assert_allclose(ab.then(bc).rotation_, frame.map("a", "c").rotation_, atol=1e-12)


def test_a_loop_through_a_narrower_model_is_a_projection_and_gains_only_shrink():
    frame = CanonicalFrame(shrinkage="covered").fit(world(10, n=40, widths=(8, 5, 8), noise=0.5))
    loop = frame.map("a", "b").then(frame.map("b", "c")).then(frame.map("c", "a")).rotation_
    np.testing.assert_allclose(loop, loop.T, atol=1e-12)
    np.testing.assert_allclose(loop @ loop, loop, atol=1e-12)
    assert round(np.trace(loop)) == 5
    frame = CanonicalFrame().fit(world(10, n=12, widths=(8, 8), noise=0.5))
    loop = frame.map("a", "b").then(frame.map("b", "a")).rotation_
    values = np.linalg.eigvalsh(loop)
    np.testing.assert_allclose(loop, loop.T, atol=1e-12)
    assert 0 < values.min() < 0.999
    assert values.max() <= 1 + 1e-12


def test_a_model_added_later_moves_nothing_and_is_aligned():
    models = world(11, n=80, widths=(8, 6, 10, 8), inner=6, noise=0.05)
    frame = CanonicalFrame().fit(some(models, a=range(40), b=range(30, 60)))
    before = frame.map("a", "b")
    frame.add("c", some(models, c=range(50, 80))["c"])
    frame.add("d", some(models, d=range(60, 80))["d"])  # which shares with c only
    after = frame.map("a", "b")
    for name in ("rotation_", "source_mean_", "target_mean_"):
        np.testing.assert_array_equal(getattr(before, name), getattr(after, name))
    error = frame.map("a", "d").transform(models["a"]) - models["d"]
    assert np.square(error).mean() < 0.02 * models["d"].var(axis=0).mean()


def test_a_chain_goes_on_with_items_that_are_new_to_the_frame():
    models = world(23, n=90, widths=(8, 6, 10), inner=6)
    frame = CanonicalFrame().fit(some(models, a=range(30), b=range(30)))
    before = frame.map("a", "b").rotation_
    with pytest.raises(errors.IdError, match="the frame has"):
        frame.add("c", some(models, c=range(60, 90))["c"])
    frame.extend("b", some(models, b=range(20, 90))["b"]).add("c", some(models, c=range(60, 90))["c"])
    np.testing.assert_array_equal(frame.map("a", "b").rotation_, before)
    np.testing.assert_allclose(frame.map("a", "c").transform(models["a"]), models["c"], atol=1e-4)  # items are float32
    assert frame.describe()["items"] == {"": 90}


def test_inferred_means_stay_when_a_model_brings_the_modality():
    texts, images = world(13), world(14)
    frame = CanonicalFrame().fit({"a": {"text": texts["a"], "image": images["a"]}, "b": {"text": texts["b"]}})
    mapping = frame.map("a", "b", modality="image")
    gap = OrthogonalMap().fit(texts["a"], texts["b"]).recenter(images["a"].mean(0))
    np.testing.assert_allclose(mapping.transform(images["a"]), gap.transform(images["a"]), atol=1e-9)
    assert mapping.facts_["means_from"]["image"] == ["rows", "frame"]
    frame.add("c", {"text": texts["c"], "image": images["c"]})
    np.testing.assert_array_equal(frame.map("a", "b", modality="image").target_mean_, mapping.target_mean_)


def test_a_map_through_the_frame_is_a_map(tmp_path):
    models = world(15, n=50, noise=0.1)
    named = {name: Embeddings(rows, space=Space(f"model-{name}", modality="text")) for name, rows in models.items()}
    mapping = CanonicalFrame().fit(named).map("a", "c")
    assert str(mapping.source_space_).startswith("model-a, text")
    loaded = congruence.load(mapping.save(tmp_path / "map"))
    mapped = [one.transform_embeddings(named["a"]).vectors for one in (loaded, mapping)]
    np.testing.assert_array_equal(*mapped)
    assert congruence.evaluate(loaded, named["a"], named["c"]).to_dict()
    np.testing.assert_allclose(mapping.inverse().rotation_, mapping.rotation_.T)


def test_what_is_saved_is_loaded_to_the_bit_and_can_be_added_to(tmp_path):
    models = world(16, n=50, widths=(6, 8, 7), noise=0.1, inner=6)
    frame = CanonicalFrame(shrinkage_strength=0.2).fit(some(models, a=range(30), b=range(50)))
    loaded = CanonicalFrame.load(frame.save(tmp_path / "frame"))
    assert loaded.get_params() == frame.get_params()
    assert loaded.describe() == frame.describe()
    rows = some(models, c=range(20, 50))["c"]
    one, two = frame.add("c", rows).map("a", "c"), loaded.add("c", rows).map("a", "c")
    np.testing.assert_array_equal(one.rotation_, two.rotation_)
    np.testing.assert_array_equal(one.offset, two.offset)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return CanonicalFrame().fit(world(17, n=20, noise=0.1)).save(tmp_path_factory.mktemp("frame") / "frame")


def test_a_frame_is_not_taken_for_a_map_nor_a_map_for_a_frame(saved, tmp_path):
    with pytest.raises(errors.ParameterError, match=r"Got a frame .*CanonicalFrame\.load"):
        congruence.load(saved)
    rows = world(n=20)
    with pytest.raises(errors.CorruptFileError, match=r"not a frame\. Load it with .congruence\.load"):
        CanonicalFrame.load(OrthogonalMap().fit(rows["a"], rows["b"]).save(tmp_path / "map"))


@pytest.mark.parametrize(
    "damage",
    [
        lambda arrays, facts: arrays.pop("rotation.1"),
        lambda arrays, facts: arrays.update({"rotation.1": 2 * arrays["rotation.1"]}),
        lambda arrays, facts: arrays.update({"rotation.1": arrays["rotation.1"][:, 1:]}),
        lambda arrays, facts: arrays.update({"mean.0.": arrays["mean.0."] * np.nan}),
        lambda arrays, facts: arrays.update({"ends.": arrays["ends."] - 1}),
        lambda arrays, facts: arrays.update({"items.": arrays["items."][:, 1:]}),
        lambda arrays, facts: arrays.update({"more": np.zeros(2)}),
        lambda arrays, facts: facts["models"][1].update(name=facts["models"][0]["name"]),
        lambda arrays, facts: facts["models"][0].update(rank=99),
        lambda arrays, facts: facts["models"][0]["space"].update(dim=3),
        lambda arrays, facts: facts["models"].pop(),
        lambda arrays, facts: facts.update(axes=["smell"]),
        lambda arrays, facts: facts.update(items=3),
        lambda arrays, facts: facts["parameters"].update(center=[]),
        lambda arrays, facts: facts["models"][0].update(means_from={"": "thin air"}),
    ],
)
def test_a_damaged_frame_is_refused(saved, tmp_path, damage):
    arrays, config = persist.read_folder(saved)
    arrays, config = dict(arrays), json.loads(json.dumps(config))
    config["facts"]["parameters"] = config["parameters"]  # where damage can reach them
    damage(arrays, config["facts"])
    config["facts"].pop("parameters")
    keep = {key: config[key] for key in ("kind", "parameters", "facts", "scores")}
    persist.write_folder(tmp_path / "bad", arrays, keep, "")
    with pytest.raises(errors.CorruptFileError, match="parts missing or damaged"):
        CanonicalFrame.load(tmp_path / "bad")


def test_rows_of_zeros_are_left_out():
    models = world(18, n=30)
    failed = models["b"].copy()
    failed[4] = 0
    rows = {"a": models["a"], "b": Embeddings(failed, allow_zero_rows=True), "c": models["c"]}
    np.testing.assert_allclose(CanonicalFrame().fit(rows).map("a", "b").transform(models["a"]), models["b"], atol=1e-8)


def test_adding_exact_data_equals_fitting_on_all():
    models = world(12, n=40, widths=(7, 9, 7), inner=7)
    added = CanonicalFrame().fit({name: models[name] for name in "ab"}).add("c", models["c"])
    np.testing.assert_allclose(added.map("b", "c").transform(models["b"]), models["c"], atol=1e-5)  # items are float32


def test_sweeps_that_end_too_early_are_reported():
    with pytest.warns(errors.ConvergenceWarning, match="max_iter=1"):
        CanonicalFrame(max_iter=1, tol=0).fit(world(19, n=12, noise=1))


def test_a_model_keeps_what_two_narrow_ones_cover_together():
    rng = np.random.default_rng(0)
    items = rng.standard_normal((100, 16))
    items = np.linalg.qr(items - items.mean(axis=0))[0]
    parts = {"a": items, "b": items[:, :8], "c": items[:, 8:]}
    models = {name: rows @ turned(rng, rows.shape[1], rows.shape[1]) for name, rows in parts.items()}
    frame = CanonicalFrame(shrinkage="covered").fit(models)
    for name in "bc":
        np.testing.assert_allclose(frame.map("a", name).transform(models["a"]), models[name], atol=1e-8)
