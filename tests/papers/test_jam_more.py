"""JAM beyond the paper's tables: transfer, controls, the weight of the reconstruction, pairs of layers, towers."""

from dataclasses import replace

import numpy as np
import pytest

from congruence.errors import InputError, ParameterError
from congruence_papers import Experiment, panels, run
from congruence_papers.jam import fit_method, open_sample
from congruence_papers.jam.experiments import pareto_front, reconstruction_errors
from congruence_papers.jam.methods import Fitted, control_data, dual_as_encoders

pytestmark = pytest.mark.long


def own(kind: str, **parameters: object) -> Experiment:
    options = {"metrics": ("five_way_recall",), "sample_data": ("synthetic",), "parameters": parameters}
    return Experiment("own", "t", "4", kind, "none", **options)


def only(data, text, captions, negatives, **options):
    sides = {"captions": {text: {"late": captions}}, "negatives": {text: {"late": negatives}}}
    return replace(data, **sides, encoders=(), unrelated={}, **options)


def rowwise(F, G):
    return np.einsum("ij,ij->i", *(rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (F, G)))


@pytest.fixture(scope="module")
def made():
    return open_sample("synthetic", variant="layers")


def test_one_division_of_the_images_holds_for_every_task(made):
    parts = made.split_tasks(5, most={"validation": 20})
    assert list(parts) == ["replace", "add", "swap", "all"]
    names = {task: set(own.items.filenames.tolist()) for task, own in parts.items()}
    for task, own in parts.items():
        seen = set(own.train.groups.tolist()) | set(own.validation[3].tolist())
        assert not any(seen & asked for asked in names.values()), task
        assert len(own.validation[0]) == 20
    for task in made.tasks:
        rows = parts[task].rows
        assert set(made.task_of[rows]) == {task}
        np.testing.assert_array_equal(parts[task].test[1], made.captions[parts[task].encoders[1]]["late"][rows])
    assert len(parts["all"].train) == len(parts["add"].train) == 140
    # The same where a task has fewer images than the others: a rank among its own images would divide them elsewhere.
    some = np.flatnonzero((made.task_of != "add") | (np.arange(len(made.items)) % 2 == 0))
    text = made.encoders[0][1]
    sides = (side[text]["late"][some] for side in (made.captions, made.negatives))
    fewer = only(made, text, *sides, items=made.items.take(some), dual={})
    parts = fewer.split_tasks(5)
    for one in parts.values():
        for other in parts.values():
            assert not {*one.train.groups.tolist(), *one.validation[3].tolist()} & {*other.items.filenames.tolist()}


def test_what_texts_tell_of_one_task_does_not_transfer():
    """Wrong captions are told by one column in one task and by its negative in another, and by nothing in the third."""
    data = open_sample("synthetic")
    text = data.encoders[0][1]
    sign = np.select([data.task_of == "replace", data.task_of == "add"], [1.0, -1.0], 0.0)
    noise = np.random.default_rng(0).standard_normal((2, *data.captions[text]["late"].shape)).astype(np.float32)
    noise[:, :, 0] = 9 * sign, -9 * sign
    config = replace(own("jam_transfer", methods=["text_only"]), metrics=("binary_recall", "five_way_recall"))
    rows = run(config, collections=[only(data, text, *noise)], seeds=1).results["rows"]
    found, choice = (
        {(row["part"].split()[-1], row["pair"].partition(":")[0]): row["mean"] for row in rows if row["metric"] == name}
        for name in config.metrics
    )
    assert found["replace", "replace"] == found["add", "add"] == 1.0
    assert found["replace", "add"] == found["add", "replace"] == 0.0
    assert found["replace", "swap"] == pytest.approx(0.5, abs=0.35)
    assert {fitted_on for fitted_on, _ in found} == {"replace", "add", "swap", "all"}
    assert all(choice[pair] <= found[pair] for pair in found)


def test_captions_of_other_images_stay_together_and_leave_their_image(made):
    other = control_data(made, "others", 3)
    image = made.encoders[0][0]
    before, after = made.images[image]["late"], other.images[image]["late"]
    np.testing.assert_array_equal(np.sort(before, axis=0), np.sort(after, axis=0))
    assert not (before == after).all(axis=1).any()
    assert other.captions is made.captions
    assert not other.dual
    # All layers of an image move together.
    moved = [int(np.flatnonzero((before == row).all(1))[0]) for row in after]
    np.testing.assert_array_equal(other.images[image]["early"], made.images[image]["early"][moved])


def test_controls_leave_what_they_should_be_able_to_tell():
    """CCA finds captions of the image in the data alone; texts tell what they told, but for unrelated ones."""
    data = open_sample("synthetic")
    found = {}
    for control in ("none", "noise", "others", "unrelated"):
        own = control_data(data, control, 5)
        parts = own.split("add", 5)
        for method in ("cca", "text_only"):
            values = fit_method(method, parts, data.sizes["training"]).measure(parts.items, parts.test)["add"]
            found[control, method] = values["five_way_recall"], values["binary_recall"]
    assert found["none", "cca"][0] > 0.6
    # Thirty items: four standard deviations of a share of 0.2 are 0.29.
    for control in ("noise", "others", "unrelated"):
        assert found[control, "cca"][0] < 0.5, control
    assert found["noise", "text_only"] == found["others", "text_only"] == found["none", "text_only"]
    assert found["none", "text_only"][1] > 0.8
    assert abs(found["unrelated", "text_only"][1] - 0.5) < 4 * (0.25 / 30) ** 0.5


def test_controls_refuse(made):
    assert control_data(made, "none") is made
    with pytest.raises(ParameterError, match="control"):
        control_data(made, "silence")
    with pytest.raises(InputError, match="no unrelated texts"):
        control_data(replace(made, unrelated={}), "unrelated")
    with pytest.raises(ParameterError, match="dual encoder"):
        dual_as_encoders(made, "clip")
    config = own("jam_controls", controls=["unrelated"], methods=["cca"])
    outcome = run(config, collections=[replace(made, unrelated={})], quick=True)
    assert "unrelated texts is left out" in outcome.results["notes"][0]


def test_the_front_is_what_nothing_dominates():
    rng = np.random.default_rng(0)
    for _ in range(20):
        cost, gain = rng.integers(0, 6, (2, 15)).astype(float)  # with ties
        at_least = (cost[:, None] <= cost) & (gain[:, None] >= gain)
        want = (~(at_least & ((cost[:, None] < cost) | (gain[:, None] > gain))).any(axis=0)).tolist()
        assert pareto_front(cost, gain).tolist() == want


def test_errors_of_reconstruction_are_shares_of_the_variance(made):
    parts = made.split("add", 5)

    class Halfway:
        """Reconstructs images as the training mean, and texts halfway to it."""

        def reconstruct(self, rows):
            return np.broadcast_to(parts.train.source.mean(0), rows.shape)

        def reconstruct_target(self, rows):
            return (rows + parts.train.target.mean(0)) / 2

    found = reconstruction_errors(Halfway(), parts)
    assert found["image_error"] == pytest.approx(1.0)
    assert found["text_error"] == pytest.approx(0.25)
    with pytest.raises(InputError, match="cannot reconstruct"):
        reconstruction_errors(object(), parts)


def test_a_weight_of_reconstruction_lowers_its_error_and_the_figure_marks_the_front():
    pytest.importorskip("torch")
    config = own("jam_reconstruction", tasks=["add"], weights=[0.0, 10.0])
    config = replace(config, metrics=("five_way_recall", "image_error", "text_error"))
    results = run(config, seeds=1).results
    found = {(row["metric"], row["x"]): row["mean"] for row in results["rows"]}
    assert found["image_error", 10.0] < found["image_error", 0.0]
    assert found["text_error", 10.0] < found["text_error", 0.0]
    (front,) = results["extra"]["fronts"]
    assert front["on_front"] == pareto_front(*(np.array(front[key]) for key in ("error", "recall"))).tolist()
    assert front["recall"] == [found["five_way_recall", weight] for weight in (0.0, 10.0)]
    last = panels(results)[-1]
    assert last["title"].startswith("Pareto front of Spread, add")
    shown = {one["name"]: one["x"] for one in last["series"]}
    assert sorted(x for xs in shown.values() for x in xs) == sorted(front["error"])
    assert len(shown["on the Pareto front"]) == sum(front["on_front"])


def test_two_weights_are_a_schedule_and_stand_beside_those_kept(made):
    pytest.importorskip("torch")
    training = {"hidden": [16], "latent": 8, "max_epochs": 3}
    config = own("jam_reconstruction", tasks=["add"], weights=[0.55, [1.0, 0.1]], training=training)
    results = run(config, collections=[made], seeds=1).results
    rows = {row["series"]: row for row in results["rows"]}
    assert [(name, row["x"]) for name, row in rows.items()] == [("Spread", 0.55), ("Spread, λ 1 → 0.1", 0.55)]
    parts = made.split("add", 5)
    # JAM's own default is the paper's schedule.
    alone = fit_method("spread", parts, training, 5).measure(parts.items, parts.test, 5)["add"]
    assert rows["Spread, λ 1 → 0.1"]["mean"] == pytest.approx(alone["five_way_recall"])
    assert results["extra"]["fronts"][0]["weights"] == [0.55, [1.0, 0.1]]
    assert any("1 → 0.1" in note or "0.55" in note for note in results["notes"])


def test_a_division_may_take_another_layer_of_each_encoder(made):
    parts = made.split("add", 5, layer=("early", "late"))
    image, text = made.encoders[0]
    np.testing.assert_array_equal(parts.test[0], made.images[image]["early"][made.image_of[parts.rows]])
    np.testing.assert_array_equal(parts.test[2], made.negatives[text]["late"][parts.rows])
    with pytest.raises(ParameterError, match="layer"):
        made.split("add", 5, layer=("early", "first"))


def test_heads_are_trained_on_the_rows_that_leave_the_towers(made):
    pytest.importorskip("torch")
    parts = made.split("add", 5)
    training = made.sizes["training"]
    alone, both = (fit_method(name, parts, training) for name in ("towers", "towers_con"))
    assert isinstance(both, Fitted)
    assert both.towers is not None
    V, P, N = parts.test
    inner = both.towers.transform(V)
    np.testing.assert_allclose(inner, alone.mapping.transform(V), rtol=1e-5)  # the same towers
    assert both.mapping.facts_["n_pairs"] == len(parts.train)
    # Trained on right captions, they know the images of captions they never saw.
    assert alone.measure(parts.items, parts.test)["add"]["five_way_recall"] > 0.4
    image = both.mapping.transform(inner)
    texts = (both.mapping.transform_target(both.towers.transform_target(rows)) for rows in (P, N))
    right, wrong = (rowwise(image, rows) for rows in texts)
    assert both.measure(parts.items, parts.test)["add"]["binary_recall"] == np.mean(right > wrong)


def test_the_towers_of_a_dual_encoder_take_the_place_of_encoders(made):
    own = dual_as_encoders(made, "made-up dual encoder")
    parts = own.split("add", 5)
    assert parts.encoders == ("made-up dual encoder", "made-up dual encoder")
    V, P, _ = made.dual["made-up dual encoder"]
    np.testing.assert_allclose(parts.test[0], V[made.image_of[parts.rows]], rtol=1e-6)
    np.testing.assert_allclose(parts.test[1], P[parts.rows], rtol=1e-6)
    np.testing.assert_array_equal(parts.rows, made.split("add", 5).rows)
