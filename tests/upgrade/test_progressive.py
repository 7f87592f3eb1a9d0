"""The plan of a progressive migration: batches, refits, bad input, and what is saved."""

import numpy as np
import pytest

from congruence import Embeddings, OrthogonalMap, ProcrustesHeads, errors, persist
from congruence.datasets import load_sample
from congruence.embeddings import normalize_rows
from congruence.errors import CorruptFileError, IdError, InputError, ParameterError, ShapeError
from congruence.synthetic import upgrade_problem
from congruence.upgrade.progressive import ORDERS, Progressive, View, fit_origin_scale
from congruence.upgrade.progressive.texts import Scale, TextFacts

WORDS = 40


def texts_of(problem):
    return {"texts": problem.source_texts[:WORDS], "new_texts": problem.target_texts[:WORDS], "modality": "image"}


def start(problem, mapping, **given):
    return Progressive(mapping, problem.source_images, **{**texts_of(problem), **given})


def run(plan, problem, size=40, **given):
    for ids in plan.batches(size, **given):
        plan.update(ids, problem.target_images[ids])
    return plan


def flattest(view):
    return view.facts()[0].entropy


def quality(plan, problem):
    return float(np.einsum("ij,ij->i", plan.store(), problem.target_images).mean())


def test_a_plan_maps_everything_then_gets_better_with_each_batch(problem, mapping):
    plan = start(problem, mapping)
    result = [quality(plan, problem)]
    for ids in plan.batches(40, share=0.4):
        assert len(set(ids.tolist())) == len(ids) <= 40
        update = plan.update(ids, problem.target_images[ids])
        assert update.n_waiting == len(plan) - plan.meter().n_embedded
        result.append(quality(plan, problem))
    assert plan.meter().n_embedded == 160
    assert result == sorted(result)
    still = ~plan.embedded
    first = plan.refit.transform(problem.source_images, plan.refit.first())
    cosines = [np.einsum("ij,ij->i", Z[still], problem.target_images[still]).mean() for Z in (first, plan.store())]
    assert cosines[1] > cosines[0] + 0.1


def test_texts_of_the_old_model_correct_the_first_map():
    """On the sample, before any picture is re-embedded, captions find more pictures than by the map alone."""
    sample = load_sample("emoji")
    (X, T), (Y, V) = (
        (side["image"].vectors[:500], side["text"].vectors[:500]) for side in (sample.source, sample.target)
    )
    first = OrthogonalMap().fit(T, V, modality="text").recenter(X, None, modality="image", offset=0.5)
    alone = normalize_rows(first.for_modality("image").transform(X))
    anchored = Progressive(first, X, texts=T, new_texts=V, modality="image").mapped()
    found = []
    for store in (alone, anchored, Y):
        near = V @ store.T
        found.append((np.count_nonzero(near > np.diag(near)[:, None], axis=1) < 10).mean())
    assert found[0] + 0.04 < found[1] < found[2]


@pytest.mark.parametrize(("tolerance", "refits"), [(0.002, True), (2.0, False)])
def test_what_an_update_names_is_all_that_is_to_be_written_again(problem, mapping, tolerance, refits):
    """At every stage the rows of a store that follows the updates are those of the present map."""
    plan, times = start(problem, mapping, tolerance=tolerance), []
    written = plan.mapped()
    for ids in plan.batches(20, share=0.6):
        update = plan.update(ids, problem.target_images[ids])
        written[update.remap] = plan.mapped(update.remap)
        still = np.flatnonzero(~plan.embedded)
        np.testing.assert_allclose(written[still], plan.transform(problem.source_images[still]), atol=1e-6)
        assert len(update.remap) in (0, update.n_waiting)
        times.append(len(update.remap) > 0)
    assert any(times) == refits
    assert not all(times)  # the map is refitted when the re-embedded rows have grown by a share


@pytest.mark.parametrize("order", [*ORDERS, "auto", flattest])
def test_every_order_fills_its_batches_and_asks_for_no_row_twice(problem, mapping, order):
    plan, asked = start(problem, mapping, order=order), []
    for ids in plan.batches(30, budget=90):
        asked += ids.tolist()
        plan.update(ids, problem.target_images[ids])
    assert len(asked) == len(set(asked)) == 90


def test_without_texts_and_without_ids(problem, mapping):
    plan = start(problem, mapping, texts=None, new_texts=None, n_neighbors=3, meter_share=0.5)
    plan = run(plan, problem, share=0.3)
    assert set(plan.meter().store) == {"overlap@3", "cosine"}
    assert plan.order_ in ORDERS


def test_orders_put_first_what_they_are_named_for():
    words = np.eye(3)
    rows = normalize_rows(np.array([[1.0, 0, 0], [1, 0.9, 0], [0.1, 1, 0], [0, 0, 1]]))
    mapped = normalize_rows(np.array([[1.0, 0, 0], [1, 0.9, 0], [1, 0.1, 0], [0, 0, 1]]))
    flat = Scale(np.zeros(3), 1.0)
    facts = TextFacts.of(rows, words, flat), TextFacts.of(mapped, words, flat)
    view = View(rows, mapped, np.array([0]), np.array([0.1]), 2, by_texts=facts)
    assert ORDERS["disagreement"](view).argmax() == 2
    assert ORDERS["margin"](view).argmax() == 1
    assert ORDERS["entropy"](view).argmax() == 1


def test_predicted_residuals_find_the_direction_that_is_mapped_badly():
    rng = np.random.default_rng(0)
    rows = normalize_rows(rng.standard_normal((300, 4)))
    scores = ORDERS["residual"](View(rows, rows, np.arange(100), np.maximum(rows[:100, 0], 0), 3))
    assert np.corrcoef(scores[100:], rows[100:, 0])[0, 1] > 0.9


def test_asked_often_comes_first(problem, mapping):
    weights = np.where(np.arange(400) < 100, 50.0, 1.0)
    plan = start(problem, mapping, weights=weights)
    ids = next(iter(plan.batches(60)))
    assert (ids < 100).sum() >= 48


def test_every_kind_of_bad_vectors_has_its_error(problem, mapping):
    plan = start(problem, mapping)
    good = problem.target_images[:3]
    for ids, vectors, error, said in (
        ([0, 1, 4000], good, IdError, "store lacks 1 of the ids"),
        ([0, 1, 1], good, IdError, "duplicate"),
        ([0, 1, 2], good[:, :5], ShapeError, "Got 5-d vectors; expected 16-d"),
        ([0, 1], good, ShapeError, "same number"),
        ([], np.empty((0, 16)), ShapeError, "0 rows"),
        ([0, 1, 2], np.where(np.arange(16) == 3, np.nan, good), errors.NotFiniteError, None),
        ([0, 1, 2], good * np.array([[1.0], [0.0], [1.0]]), errors.ZeroRowError, None),
    ):
        with pytest.raises(error, match=said):
            plan.update(ids, vectors)
    assert not plan.embedded.any()
    assert plan.history_ == []


def test_rows_that_were_not_asked_for_are_taken_and_rows_left_out_are_named(problem, mapping):
    plan = start(problem, mapping)
    ids = next(iter(plan.batches(20)))
    others = np.setdiff1d(np.arange(400), ids)[:5]
    plan.update(others, problem.target_images[others])
    assert plan.embedded[others].all()
    plan.update(ids[:12], problem.target_images[ids[:12]])
    assert set(plan.missing.tolist()) == set(ids[12:].tolist())
    again = {one for batch in plan.batches(20, budget=60) for one in batch.tolist()}
    assert not again & (set(ids.tolist()) | set(others.tolist()))


def test_bad_parameters(problem, mapping):
    for given, error, message in (
        ({"order": "best"}, ParameterError, "order='best'"),
        ({"meter_share": 1.5}, ParameterError, "meter_share=1.5"),
        ({"tolerance": -1}, ParameterError, "tolerance=-1"),
        ({"weights": [1.0]}, ParameterError, "Got weights"),
        ({"labels": np.full(400, 90)}, ParameterError, "Got labels"),
        ({"labels": np.zeros(3, int)}, ParameterError, "Got labels"),
        ({"new_texts": None}, InputError, "Got texts of one model only"),
        ({"texts": None, "new_texts": None, "order": "entropy"}, InputError, "Got order='entropy' without texts"),
        ({"new_texts": problem.target_texts[:WORDS, :5]}, ShapeError, "5-d new_texts"),
    ):
        with pytest.raises(error, match=message):
            start(problem, mapping, **given)
    with pytest.raises(ParameterError, match="Got budget=3 and share="):
        next(start(problem, mapping).batches(5, budget=3, share=0.1))
    with pytest.raises(ParameterError, match="size=0"):
        next(start(problem, mapping).batches(0))
    with pytest.raises(ShapeError, match="order returned"):
        next(start(problem, mapping, order=lambda view: np.zeros(3)).batches(5))
    with pytest.raises(ParameterError, match="kind procrustes"):
        start(problem, ProcrustesHeads().fit(problem.source_images, problem.target_images))
    with pytest.raises(InputError, match="no measured stage"):
        start(problem, mapping).plot()


def test_rows_that_were_being_encoded_at_a_kill_are_asked_for_again(problem, mapping, tmp_path):
    old = Embeddings(problem.source_images, ids=[f"item {k}" for k in range(400)])
    plan = Progressive(mapping, old, **texts_of(problem))
    for _ in range(2):
        ids = next(plan.batches(20))
        plan.update(ids, problem.target_images[[int(name[5:]) for name in ids]])
    ids = next(plan.batches(20))
    plan.save(tmp_path / "plan")
    loaded = Progressive.load(tmp_path / "plan", mapping, old, **texts_of(problem))
    assert [one.to_dict() for one in loaded.history_] == [one.to_dict() for one in plan.history_]
    again = loaded.batches(20)
    assert set(next(again).tolist()) == set(ids.tolist())
    assert not set(next(again).tolist()) & set(ids.tolist())


def test_a_state_of_other_data_or_a_damaged_one_is_refused(problem, mapping, tmp_path):
    plan = run(start(problem, mapping), problem, budget=40)
    folder = plan.save(tmp_path / "plan")
    arrays, config = persist.read_folder(folder / "state")
    facts = config["facts"]

    def again(arrays, facts, store=problem.source_images):
        return Progressive.from_state((arrays, facts), mapping, store, folder=folder, **texts_of(problem))

    assert again(arrays, facts).meter() == plan.meter()
    with pytest.raises(CorruptFileError, match="another store, map or texts"):
        again(arrays, facts, problem.source_images[:, ::-1])
    damages = {"role": arrays["role"][:5], "embedded": 1 - arrays["embedded"], "coef": arrays["coef"][:5]}
    for key, value in damages.items():
        with pytest.raises(CorruptFileError, match="damaged"):
            again({**arrays, key: value}, facts)
    wrong = [{k: v for k, v in facts.items() if k != key} for key in facts]
    parts = (["../../etc/passwd"], ["state"], [], ["vectors-0123456789abcdef"], 7)
    wrong += [{**facts, "vectors": vectors} for vectors in parts]
    wrong += [{**facts, "map": other} for other in (None, {**facts["map"], "kind": "another"})]
    for damaged in wrong:
        with pytest.raises(CorruptFileError):
            again(arrays, damaged)
    mapping.save(tmp_path / "map")
    with pytest.raises(CorruptFileError, match="progressive migration"):
        Progressive.load(tmp_path / "map", mapping, problem.source_images, **texts_of(problem))


def test_a_factor_stored_beside_each_row_brings_scores_onto_one_scale(problem, mapping):
    """The example of docs/progressive.md: a column, or longer vectors in an index of inner products."""
    plan = run(start(problem, mapping, meter_share=0.5), problem, share=0.3)
    queries, factor = normalize_rows(problem.target_texts[:WORDS]), plan.origin_scale()
    measured = plan.measured
    top = [
        side[side >= np.quantile(side, 0.99)].mean()
        for side in (queries @ plan.mapped(measured).T, queries @ problem.target_images[measured].T)
    ]
    assert factor == pytest.approx(top[1] / top[0], abs=1e-5) != 1
    factors = np.where(plan.embedded, 1.0, factor)
    scores = (queries @ plan.store().T) * factors
    np.testing.assert_allclose(queries @ (plan.store() * factors[:, None]).T, scores, atol=1e-5)
    rows = np.random.default_rng(0).standard_normal((30, 6))
    for sides, error, said in (
        ((rows, rows[:5], rows[:5]), InputError, "Got 5 measured random rows"),
        ((rows[:, :4], rows, rows), ShapeError, "4-d queries, 6-d mapped"),
    ):
        with pytest.raises(error, match=said):
            fit_origin_scale(*sides)
    with pytest.raises(InputError, match="no texts"):
        start(problem, mapping, texts=None, new_texts=None).origin_scale()


def test_a_forecast_changes_nothing(problem, mapping):
    asked = []
    for look in (False, True):
        plan = start(problem, mapping, order="random")
        for ids in plan.batches(20, budget=60):
            plan.update(ids, problem.target_images[ids])
            if look:
                plan.forecast()
        asked.append(set(np.flatnonzero(plan.embedded).tolist()))
    assert asked[0] == asked[1]


@pytest.mark.parametrize(("noise", "wins"), [(0.1, True), (3.0, False)])
def test_the_first_verdict_is_what_the_run_comes_to(noise, wins):
    """An old model that says too little is told long before half of the store is re-embedded."""
    p = upgrade_problem(400, 16, source_noise=noise, target_noise=0.1, random_state=0)
    first = OrthogonalMap().fit(p.source_texts[:WORDS], p.target_texts[:WORDS], modality="text")
    plan = start(p, first.recenter(p.source_images, None, modality="image", offset=0.5), meter_share=0.5)
    said = []
    for ids in plan.batches(40, share=0.5):
        plan.update(ids, p.target_images[ids])
        verdict = plan.forecast(target=0.9).verdict
        if verdict not in ("no forecast yet", "too few measured rows to stop"):
            said.append((plan.embedded.mean(), verdict))
    near = [(rows @ p.target_texts[:WORDS].T).argmax(axis=1) for rows in (plan.store(), p.target_images)]
    assert ((near[0] == near[1]).mean() >= 0.9) == wins
    share, verdict = said[0]
    assert share <= 0.4
    assert (verdict == "re-embed everything") == (not wins)
