"""Controls of cosines against rotations drawn in full, on every kind of map, and chance against counting."""

from itertools import combinations

import numpy as np
import pytest

import congruence
from congruence import CCAMap, Embeddings, LinearMap, OrthogonalMap, Space
from congruence.evaluation import evaluate
from congruence.evaluation.controls import chance_at_k, cosine_controls
from congruence.metrics import paired_cosine, paired_distance
from congruence.splits import Split


def haar(width, rng):
    Q, R = np.linalg.qr(rng.standard_normal((width, width)))
    return Q * np.sign(np.diag(R))


def problem(d_source, d_target, n=400, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d_source)) + 1.0
    Y = X @ haar(max(d_source, d_target), rng)[:d_source, :d_target] + 0.3 * rng.standard_normal((n, d_target)) + 1.5
    return X, Y


@pytest.mark.filterwarnings("ignore::congruence.errors.ProjectionWarning")
@pytest.mark.parametrize(("d_source", "d_target"), [(12, 12), (8, 12), (12, 8)])
def test_a_random_rotation_is_the_map_with_a_haar_matrix(d_source, d_target):
    X, Y = problem(d_source, d_target)
    m = OrthogonalMap().fit(X[:200], Y[:200])
    X, Y = X[200:], Y[200:]
    rng = np.random.default_rng(1)
    width = max(d_source, d_target)
    drawn = [
        paired_cosine((X - m.source_mean_) @ haar(width, rng)[:d_source, :d_target] + m.target_mean_, Y)
        for _ in range(400)
    ]
    found = cosine_controls(m, X, Y, draws=50)
    assert found.random_rotation == pytest.approx(np.mean(drawn), abs=4 * np.std(drawn) / 20)
    assert found.constant == pytest.approx(paired_cosine(np.tile(m.target_mean_, (200, 1)), Y))
    assert paired_cosine(m.transform(X), Y) > max(found.constant, found.random_rotation) + 0.02


def test_other_maps_have_their_own_output_turned():
    X, Y = problem(12, 12)
    rng = np.random.default_rng(1)
    linear = LinearMap().fit(X, Y)
    residual = linear.transform(X) - linear.target_mean_
    drawn = [paired_cosine(residual @ haar(12, rng) + linear.target_mean_, Y) for _ in range(200)]
    found = cosine_controls(linear, X, Y, draws=50)
    assert found.random_rotation == pytest.approx(np.mean(drawn), abs=4 * np.std(drawn) / 14)
    assert found.constant == pytest.approx(paired_cosine(np.tile(linear.target_mean_, (400, 1)), Y))

    joint = CCAMap(n_components=6).fit(X, Y)
    ours, theirs = joint.transform(X + 1), joint.transform_target(Y + 1)  # rows whose mean is not that of the fit
    residual = ours - ours.mean(0)
    drawn = [paired_cosine(residual @ haar(6, rng) + theirs.mean(0), theirs) for _ in range(200)]
    found = cosine_controls(joint, X + 1, Y + 1, draws=50)
    assert found.random_rotation == pytest.approx(np.mean(drawn), abs=4 * np.std(drawn) / 14)
    assert found.constant == pytest.approx(paired_cosine(np.tile(theirs.mean(0), (400, 1)), theirs))


def test_a_map_without_means_is_given_those_of_the_rows():
    X, Y = problem(12, 12)
    found = cosine_controls(OrthogonalMap(center=False).fit(X, Y), X, Y)
    assert found.constant == pytest.approx(paired_cosine(np.tile(Y.mean(0), (400, 1)), Y))


def test_what_has_no_control_says_so():
    X, Y = problem(12, 12)
    one = cosine_controls(OrthogonalMap(center=False).fit(X, Y), X[:1], Y[:1])
    assert (one.constant, one.random_rotation) == (None, None)
    centered = Y - Y.mean(0)
    pointless = cosine_controls(OrthogonalMap(center=False).fit(X, centered), X, centered)
    assert pointless.constant is None
    assert abs(pointless.random_rotation) < 0.05


def test_chance_is_counted():
    for matching, n, k in ((2, 6, 3), (1, 5, 2), (4, 6, 3), (0, 4, 2), (3, 3, 5)):
        draws = list(combinations(range(n), min(k, n)))
        assert chance_at_k([matching], n, k) == pytest.approx(np.mean([min(draw) < matching for draw in draws]))
    assert chance_at_k([1, 3], 10) == pytest.approx(0.2)


def test_controls_stand_beside_cosines_and_chance_beside_retrieval():
    X, Y = problem(12, 12)
    ids = [f"c{k}" for k in range(400)]
    source = {m: Embeddings(X + s, ids=ids, space=Space("a", modality=m)) for m, s in (("image", 0), ("text", 1))}
    target = {m: Embeddings(Y + s, ids=ids, space=Space("b", modality=m)) for m, s in (("image", 0), ("text", -1))}
    m = congruence.fit(
        source["image"], target["image"], holdout=100, check=False, means={"text": (source["text"], target["text"])}
    )
    labels = {i: f"group {k % 4}" for k, i in enumerate(ids)}
    scores = evaluate(m, source, target, labels=labels, prompt_labels=labels)
    for row in scores.rows:
        if row.metric in ("cosine", "distance"):
            assert row.chance is None
            assert None not in (row.control_constant, row.control_random_rotation)
        else:
            assert (row.control_constant, row.control_random_rotation) == (None, None)
    image = ("aligned image", "target image")
    assert scores.get("retrieval", *image).chance == pytest.approx(1 / 4)
    assert scores.get("retrieval_other", *image).chance == pytest.approx(99 / 399)
    assert scores.get("zero_shot", "aligned image", "target text").chance == pytest.approx(1 / 4)
    # The text's control is about the text's means, not about those of the images the map was fitted on.
    text = evaluate(m, {"text": source["text"]}, {"text": target["text"]})
    mean = m.modality_means_["text"][1]
    row = text.get("cosine", "aligned text", "target text")
    assert row.control_constant == pytest.approx(paired_cosine(np.tile(mean, (400, 1)), target["text"].vectors))
    row = text.get("distance", "aligned text", "target text")
    assert row.control_constant == pytest.approx(paired_distance(np.tile(mean, (400, 1)), target["text"].vectors))
    heldout = m.scores_
    split = Split.from_dict(heldout["holdout"]).held_out(source["image"].ids)
    expected = cosine_controls(m.for_modality("image"), X[split], Y[split])
    assert heldout["held_out_cosine_constant"] == pytest.approx(expected.constant)
    assert heldout["held_out_cosine_random_rotation"] == pytest.approx(expected.random_rotation)
    assert heldout["held_out_retrieval_chance"] == 1 / 100
    names = [name for name in heldout if name.startswith("held_out_")]
    assert names.index("held_out_retrieval_at_1") < names.index("held_out_cosine")


def test_pairs_of_a_joint_space_have_controls(lvis):
    ids = lvis["names"]
    text = Embeddings(lvis["text_openai_vitb32"], ids=ids, space=Space(modality="text"))
    image = Embeddings(lvis["image_openai_vitb32_avg5"], ids=ids, space=Space(modality="image"))
    m = congruence.fit(image, text, "procrustes", holdout=303, check=False)
    heldout = Split.from_dict(m.scores_["holdout"]).held_out(ids)
    scores = evaluate(m, {"image": image.take(heldout)}, {"text": text.take(heldout)})
    row = scores.get("cosine", "aligned source image", "aligned target text")
    assert row.control_constant == pytest.approx(m.scores_["held_out_cosine_constant"], abs=1e-6)
    assert row.control_random_rotation == pytest.approx(m.scores_["held_out_cosine_random_rotation"], abs=1e-6)
    assert row.after > max(row.control_constant, row.control_random_rotation)
    assert scores.get("recall_at_10", row.query, row.against).chance == pytest.approx(10 / 303)
    assert scores.rows[-1] is row


def test_on_real_models_the_means_alone_make_most_of_the_cosine(lvis):
    """The numbers of the documentation: text to text from one CLIP to another, held-out class names."""
    ids = lvis["names"]
    a, b = (Embeddings(lvis[f"text_{name}"], ids=ids) for name in ("openai_vitb32", "eva02_b16"))
    scores = congruence.fit(a, b, holdout=303, check=False).scores_
    assert scores["held_out_cosine_unmapped"] == pytest.approx(-0.02, abs=0.01)
    assert scores["held_out_cosine"] == pytest.approx(0.93, abs=0.01)
    assert scores["held_out_cosine_constant"] == pytest.approx(0.815, abs=0.01)
    assert scores["held_out_cosine_random_rotation"] == pytest.approx(0.69, abs=0.01)
    assert scores["held_out_retrieval_at_1"] > 0.98 > 0.01 > scores["held_out_retrieval_chance"]
