"""The meter's intervals hold, and the forecast says where re-embedding cannot win."""

import numpy as np
import pytest
from scipy.stats import binomtest

from congruence import OrthogonalMap
from congruence.embeddings import normalize_rows
from congruence.errors import ParameterError
from congruence.synthetic import upgrade_problem
from congruence.upgrade.progressive import Forecast, Progressive, Reading
from congruence.upgrade.progressive.forecast import make_forecast
from congruence.upgrade.progressive.meter import Estimate, rest_interval, support_of
from congruence.upgrade.progressive.order import take_in_order
from congruence.upgrade.progressive.state import LEARN, METER, SELECTED, WAITING, RowStates

WORDS = 40


def start(seed, kind=None, **given):
    p = upgrade_problem(300, 12, random_state=seed, **(kind or {}))
    texts, new_texts = p.source_texts[:WORDS], p.target_texts[:WORDS]
    first = OrthogonalMap().fit(texts, new_texts, modality="text")
    mapping = first.recenter(p.source_images, None, modality="image", offset=0.5)
    known = {"texts": texts, "new_texts": new_texts, "modality": "image", "random_state": seed}
    return p, Progressive(mapping, p.source_images, **{**known, **given})


def run(plan, p, share, size=60):
    for ids in plan.batches(size, share=share):
        plan.update(ids, p.target_images[ids])
    return plan


def test_a_store_without_random_rows_is_not_measured():
    reading = Reading(10, 4, 0, {"cosine": Estimate(np.nan, -1.0, 1.0, 0)})
    assert str(reading) == "40.0 % re-embedded: cosine not measured"


def truth(plan, p):
    """The store's quality by all of the new model's vectors."""
    words, done = p.target_texts[:WORDS], plan.embedded
    mapped = plan.transform(p.source_images)
    near = [np.argsort(-(rows @ words.T), axis=1)[:, :10] for rows in (p.target_images, mapped)]
    kept = {
        "agreement": near[0][:, 0] == near[1][:, 0],
        "overlap@10": (near[0][:, :, None] == near[1][:, None, :]).any(axis=2).mean(axis=1),
        "cosine": np.einsum("ij,ij->i", p.target_images, mapped),
    }
    return {name: float(np.where(done, 1.0, values).mean()) for name, values in kept.items()}


@pytest.mark.long
def test_intervals_of_the_meter_hold_over_many_runs():
    """At least 93 % of nominal 95 %, less two standard errors of so few runs."""
    inside = {"agreement": [], "overlap@10": [], "cosine": []}
    kinds = [{}, {"source_noise": 0.9, "shared": 0.2}, {"shear": 0.5}, {"lost": 0.3}]
    for seed in range(16):
        p, plan = start(seed, kind=kinds[seed % 4], order="entropy", meter_share=0.4)
        run(plan, p, 0.4)
        result, true = plan.meter().store, truth(plan, p)
        for name, values in inside.items():
            values.append(result[name].low - 1e-9 <= true[name] <= result[name].high + 1e-9)
            assert result[name].high - result[name].low < 0.35
    for values in inside.values():
        assert np.mean(values) >= 0.93 - 2 * np.sqrt(0.95 * 0.05 / len(values))


def test_the_sample_is_random_among_mapped_rows_though_the_order_learns():
    """No row is in the sample more often than others that are still mapped, as all of the meter's rows would be."""
    n = 60
    harm = np.linspace(0, 1, n) ** 2
    odds, variances, differences, naive = [], [], [], []
    for seed in range(400):
        states = RowStates(n, seed)
        for _ in range(3):
            random = states.draw(8)
            shown = states.shown
            # Rows near to shown ones of much harm first: the order has learned from new vectors.
            near = np.exp(-np.abs(np.arange(n)[:, None] - np.flatnonzero(shown)) / 4)
            scores = near @ harm[shown] - 0.3 * near.sum(axis=1) + 1e-3 * np.arange(n)
            taken = take_in_order(scores, states.eligible, states.role == METER, 6)
            states.due[taken] = True
            states.role[taken[states.role[taken] == WAITING]] = SELECTED
            states.embedded[random] = states.embedded[taken] = True
        mapped = ~states.due & (states.role != LEARN)
        inside = np.isin(np.arange(n), states.measured)
        share = inside.sum() / mapped.sum()
        odds.append(np.where(mapped, inside - share, 0.0))
        variances.append(np.where(mapped, share * (1 - share), 0.0))
        differences.append(harm[inside].mean() - harm[mapped].mean())
        naive.append(harm[states.role == METER].mean() - harm[mapped].mean())
    variance = np.sum(variances, axis=0)
    often = variance > 10  # some rows are nearly always taken
    assert often.sum() > 30
    deviation = np.sum(odds, axis=0)[often] / np.sqrt(variance[often])
    assert np.abs(deviation).max() < 4.0
    assert np.std(deviation) < 1.3
    z, z_naive = (np.mean(one) / np.std(one) * np.sqrt(400) for one in (differences, naive))
    assert abs(z) < 3.0
    assert abs(z_naive) > 10.0


def test_without_texts_neighbors_are_looked_for_among_the_same_random_rows():
    p, plan = start(0, texts=None, new_texts=None, n_neighbors=2, meter_share=0.5, order="residual")
    seen = []
    for ids in plan.batches(30, share=0.6):
        plan.update(ids, p.target_images[ids])
        seen.append(plan.reference_rows().tolist())
        assert ("overlap@2" in plan.meter().store) == bool(seen[-1])
    assert seen[0] == []  # 8 rows, and 10 are wanted
    assert len(seen[1]) == 10
    assert all(one == seen[1] for one in seen[1:])
    assert (plan.states.role[seen[1]] == LEARN).all()


def test_what_is_asked_for_often_counts_as_often():
    rng = np.random.default_rng(0)
    inside = []
    for seed in range(3):
        weights = rng.lognormal(0, 1, 300)
        p, plan = start(seed, weights=weights, kind={"source_noise": 0.9, "shared": 0.2}, meter_share=0.4)
        run(plan, p, 0.4)
        result, done = plan.meter().store["weighted cosine"], plan.embedded
        kept = np.where(done, 1.0, np.einsum("ij,ij->i", p.target_images, plan.transform(p.source_images)))
        true = np.average(kept, weights=weights)
        assert abs(result.value - true) < abs(true - kept.mean()) + 0.05
        inside.append(result.low <= true <= result.high)
    assert sum(inside) >= 2
    assert result.value != plan.meter().store["cosine"].value
    assert result.n == plan.meter().n_meter


def test_a_cosine_may_be_as_low_as_those_of_re_embedded_rows():
    kept = np.array([0.9, 0.95])
    assert support_of("cosine", kept, np.repeat([0.9, 0.2], 30)) == (pytest.approx(0.8), 1.0)  # the later half
    assert support_of("cosine", kept, np.full(60, 0.01)) == (0.9, 1.0)
    assert support_of("cosine", kept, np.full(30, 0.2)) == (-1.0, 1.0)  # too few
    assert support_of("cosine", np.ones(4), np.zeros(60)) == (-1.0, 1.0)  # all the same
    assert support_of("overlap@10", kept, np.repeat([0.9, 0.2], 30)) == (0.0, 1.0)


def test_identical_models_are_not_known_to_be_identical():
    p, _ = start(0)
    plan = Progressive(OrthogonalMap().fit(p.target_images, p.target_images), p.target_images, order="random")
    for one in run(plan, p, 0.2).meter().store.values():
        assert one.value == pytest.approx(1.0)
        assert one.low < 0.7


@pytest.mark.parametrize("rate", [0.02, 0.3, 0.9])
def test_the_interval_of_the_rest_is_of_a_finite_population(rate):
    rng = np.random.default_rng(0)
    inside, found = [], {}
    for _ in range(600):
        population = rng.permutation(rng.random(200) < rate)
        sample = population[:60]
        if sample.sum() not in found:
            found[sample.sum()] = rest_interval(sample.astype(float), 140)[1:]
        low, high = found[sample.sum()]
        inside.append(low <= population[60:].mean() <= high)
    assert np.mean(inside) >= 0.93
    assert high - low < 0.35


def test_everything_re_embedded_is_exact():
    p, plan = start(0, order="random")
    reading = run(plan, p, None, size=100).meter()
    assert reading.share == 1.0
    assert all(one.value == one.low == one.high == 1.0 for one in reading.store.values())
    assert plan.forecast().verdict == "done"
    assert Reading.from_dict(reading.to_dict()) == reading


def test_accuracies_of_both_models_by_labels():
    p, _ = start(0)
    texts, new_texts = p.source_texts[:WORDS], p.target_texts[:WORDS]
    labels = (p.target_images @ new_texts.T).argmax(axis=1)
    labels[:10] = -1
    plan = run(start(0, labels=labels)[1], p, 0.4)
    reading, known = plan.meter(), labels >= 0
    right = (p.source_images @ texts.T).argmax(axis=1) == labels
    assert reading.old["accuracy"].value == pytest.approx(right[known].mean())
    store = (plan.store() @ new_texts.T).argmax(axis=1) == labels
    # Written rows differ by the tolerance.
    assert reading.store["accuracy"].value == pytest.approx(store[known].mean(), abs=0.02)
    assert reading.new["accuracy"].value == 1.0
    assert "recall@10" in reading.store


def ahead_of(values, order, **given):
    known = {"metric": "agreement", "meter_share": 0.2, "target": 0.95, "further": (0.1, 0.2)}
    known |= {"rate": 50.0, "price": 0.01}
    return make_forecast(np.array(values, float), np.array(order, float), 1000, 100, **{**known, **given})


def test_a_forecast_counts_what_the_order_takes_first():
    order = np.linspace(0, 1, 100)
    harmed = order < 0.1  # the order puts all harm into its first tenth
    result = ahead_of(~harmed, order)
    assert result.value[0] == pytest.approx((100 + 900 * 0.9) / 1000)
    assert result.value[1] > 0.98
    assert result.needed < 0.25 < result.needed_at_random
    assert result.verdict == "re-embed progressively"
    assert result.rows[1:] == [100, 200]
    assert result.minutes[1:] == [2.0, 4.0]
    assert result.price[1:] == [1.0, 2.0]
    assert "10.0 % more" in str(result)
    assert Forecast(**result.to_dict()) == result


def test_the_forecast_says_where_it_cannot_win():
    order = np.linspace(0, 1, 100)
    rng = np.random.default_rng(0)
    assert ahead_of(rng.random(100) < 0.1, order).verdict == "re-embed everything"
    unsure = ahead_of(np.ones(5), order[:5])
    assert unsure.verdict == "no forecast yet"
    assert len(str(unsure).splitlines()) == 1  # no forecast by rows that are too few for a verdict
    assert ahead_of(np.ones(100), order).verdict == "done"
    wide = ahead_of(np.tile([1.0, 1.0, 1.0, 0.0], 8), order[:32], target=0.5)
    assert wide.verdict == "too few measured rows to stop"
    assert wide.high[0] - wide.low[0] > 0.2
    assert ahead_of(np.tile([1.0, 1.0, 1.0, 0.0], 25), order, target=0.5).verdict == "done"
    worse = ahead_of(np.ones(100), order, metric="accuracy", better=(0.9, 0.85))
    assert worse.verdict == "keep the old model"
    assert "0.900" in worse.reason


def test_bad_input_of_a_forecast():
    _, plan = start(0)
    assert plan.forecast().verdict == "no forecast yet"
    for given in ({"rate": 0}, {"price": -1}, {"target": 0}, {"metric": "speed"}):
        with pytest.raises(ParameterError, match=next(iter(given))):
            plan.forecast(**given)


def test_batches_end_where_the_lower_end_reaches_the_target():
    p, plan = start(0, kind={"source_noise": 0.1, "target_noise": 0.1}, order="entropy")
    for ids in plan.batches(30, until=0.8):
        plan.update(ids, p.target_images[ids])
    lows = [one.store["agreement"].low for one in plan.history_]
    assert max(lows[:-1]) < 0.8 <= lows[-1]
    assert plan.history_[0].store["agreement"].value > 0.8  # the estimate alone would have ended them at once
    assert plan.meter().share < 0.8
    with pytest.raises(ParameterError, match="metric"):
        next(plan.batches(30, until=0.8, metric="speed"))


def test_the_picture_shows_stages_forecast_and_models():
    p, plan = start(0)
    ax = run(plan, p, 0.4).plot(metric="agreement")
    lines = {line.get_label(): line for line in ax.get_lines()}
    assert {"new model", "measured", "forecast"} <= set(lines)
    np.testing.assert_allclose(lines["measured"].get_xdata(), [20, 40])
    assert lines["measured"].get_ydata()[-1] == plan.meter().store["agreement"].value
    assert len(ax.collections) == 2


MANY = 10**9


@pytest.mark.parametrize(
    ("m", "weighted"),
    [(5, False), (12, True), *(pytest.param(40, one, marks=pytest.mark.long) for one in (False, True))],
)
def test_the_ends_are_quantiles_of_the_mean_with_exponential_weights(m, weighted):
    """The saddlepoint approximation against 100,000 draws."""
    rng = np.random.default_rng(m)
    x, w = rng.beta(8, 2, m), rng.lognormal(0, 1, m) if weighted else np.ones(m)
    rest = rng.lognormal(0, 1, 1000)
    extra = np.square(rest).sum() / rest.sum() if weighted else 1.0
    given = {"weights": w, "rest_weights": rest} if weighted else {}
    _, low, high = rest_interval(x, MANY, (0.2, 1.0), **given)
    drawn = rng.exponential(size=(100_000, m + 1)) * np.append(w, extra)
    drawn /= drawn.sum(axis=1, keepdims=True)
    assert low == pytest.approx(np.quantile(drawn @ np.append(x, 0.2), 0.025), abs=0.006)
    assert high == pytest.approx(np.quantile(drawn @ np.append(x, 1.0), 0.975), abs=0.006)


@pytest.mark.parametrize(("hits", "m"), [(0, 10), (9, 10), (20, 60), (300, 300)])
def test_rates_of_an_endless_population_have_clopper_and_pearsons_interval(hits, m):
    x = np.repeat([0.0, 1.0], [m - hits, hits])
    exact = binomtest(hits, m).proportion_ci(method="exact")
    assert rest_interval(x, 10**6)[1:] == pytest.approx((exact.low, exact.high), abs=1e-4)
    by_saddlepoint = rest_interval(x, MANY, weights=np.ones(m), rest_weights=np.ones(1))[1:]
    assert by_saddlepoint == pytest.approx((exact.low, exact.high), abs=0.002)


@pytest.mark.parametrize(("hits", "m", "rest"), [(7, 10, 30), (29, 30, 30), (20, 60, 300), (90, 100, 50), (36, 40, 5)])
def test_the_approximation_for_finite_populations_is_near_the_hypergeometric_interval(hits, m, rest):
    x = np.repeat([0.0, 1.0], [m - hits, hits])
    exact = rest_interval(x, rest)[1:]
    near = rest_interval(x, rest, weights=np.ones(m), rest_weights=np.ones(rest))[1:]
    assert near == pytest.approx(exact, abs=1.5 / rest)


def rare(rng, n):
    """Tenths: five rows in a hundred are lost, the others are well kept."""
    x = np.where(rng.random(n) < 0.05, rng.beta(1, 6, n), rng.beta(30, 2, n))
    return np.round(10 * x) / 10


def lumped(rng, n):
    """Nine rows in ten are kept whole."""
    return np.where(rng.random(n) < 0.9, 1.0, np.round(10 * rng.beta(2, 4, n)) / 10)


@pytest.mark.long
@pytest.mark.parametrize(("draw", "m", "rest"), [(rare, 20, 300), (lumped, 25, 300), (lumped, 60, 20)])
def test_intervals_hold_of_skewed_shares(draw, m, rest):
    """Wilson's interval with the sample's variance does not."""
    rng = np.random.default_rng(0)
    inside = []
    for _ in range(100):
        x = draw(rng, m + rest)
        _, low, high = rest_interval(x[:m], rest)
        inside.append(low <= x[m:].mean() <= high)
    assert np.mean(inside) >= 0.93


@pytest.mark.long
@pytest.mark.parametrize("lift", [-0.3, 0.0, 0.2])
def test_weighted_intervals_hold(lift):
    """Rows that are asked for often are kept less often, as often, or more often."""
    rng = np.random.default_rng(0)
    inside = []
    for _ in range(100):
        w = rng.lognormal(0, 1, 320)
        x = np.where(rng.random(320) < 0.8 + lift * (w > 1.5), 1.0, 0.3)
        _, low, high = rest_interval(x[:20], 300, weights=w[:20], rest_weights=w[20:])
        inside.append(low <= np.average(x[20:], weights=w[20:]) <= high)
    assert np.mean(inside) >= 0.93


@pytest.mark.parametrize("value", [0.0, 0.3, 1.0])
def test_equal_values_leave_room_for_others(value):
    """About 3.7/m of the support, as a rate of none has, and none at all says nothing."""
    _, low, high = rest_interval(np.full(50, value), 10**6)
    assert high - low > 0.9 * (1 - 0.025 ** (1 / 50))
    assert low <= value <= high
    _, low, high = rest_interval(np.full(50, 0.9), 10**6, (-1.0, 1.0))
    assert low < 0.9 - 0.1


def test_a_single_row_may_be_anything():
    x = np.array([0.5, 0.6, 0.7])
    assert rest_interval(x, 1)[1:] == pytest.approx((0.0, 1.0))
    assert rest_interval(x[:1], 50) == (0.5, 0.0, 1.0)
    assert np.isnan(rest_interval(x[:0], 50)[0])
    nothing = rest_interval(x, 50, weights=np.zeros(3), rest_weights=np.ones(50))
    assert np.isnan(nothing[0])
    assert nothing[1:] == (0.0, 1.0)


@pytest.mark.long
def test_an_estimate_from_chosen_rows_would_be_biased_and_the_meters_is_not():
    errors, naive = [], []
    for seed in range(8):
        p, plan = start(seed, order="entropy", kind={"source_noise": 0.9, "shared": 0.2})
        chosen = []
        for ids in plan.batches(60, share=0.4):
            plan.update(ids, p.target_images[ids])
            chosen += ids.tolist()
        true, share = truth(plan, p)["cosine"], plan.meter().share
        errors.append(plan.meter().store["cosine"].value - true)
        cosine = np.einsum("ij,ij->i", plan.transform(p.source_images), p.target_images)
        naive.append(share + (1 - share) * cosine[chosen].mean() - true)
    assert abs(np.mean(errors)) < 3 * np.std(errors) / np.sqrt(len(errors)) + 1e-3
    assert abs(np.mean(naive)) > 2 * abs(np.mean(errors))  # rows of the fit flatter it


def test_equal_weights_change_nothing():
    p, plan = start(0, weights=np.full(300, 2.0))
    store = run(plan, p, 0.2).meter().store
    assert store["weighted cosine"].to_dict() == pytest.approx(store["cosine"].to_dict(), abs=1e-6)
    assert store["weighted agreement"].value == pytest.approx(store["agreement"].value)


def test_what_the_map_makes_worse_is_said_where_rows_could_stay_as_they_are():
    rng = np.random.default_rng(0)
    new = normalize_rows(rng.normal(size=(400, 24)))
    old = normalize_rows(new + 0.02 * rng.normal(size=new.shape))  # the same weights in another library

    def reading(mapping, old, new):
        plan = Progressive(mapping, old, random_state=0, tolerance=2.0)  # no refit
        for ids in plan.batches(size=100, share=0.5):
            plan.update(ids, new[ids])
        return plan.meter()

    turned = OrthogonalMap().fit(old[:40], new[rng.permutation(40)])
    found = reading(turned, old, new)
    assert found.unmapped["cosine"].low > 0.6 > found.mapped["cosine"].high
    assert "better left unmapped (cosine" in str(found)
    assert Reading.from_dict(found.to_dict()) == found
    assert "unmapped" not in str(reading(OrthogonalMap().fit(old[:80], new[:80]), old, new))
    narrow = normalize_rows(old[:, :12])
    assert not reading(OrthogonalMap().fit(narrow[:40], new[:40]), narrow, new).unmapped
