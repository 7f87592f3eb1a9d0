"""Stores of which a part is re-embedded: the forecast against such stores, and against a progressive migration."""

import numpy as np
import pytest
from certify_data import sides

from congruence import Embeddings, fit
from congruence.embeddings import normalize_rows
from congruence.report import render_certificate
from congruence.synthetic import upgrade_problem
from congruence.upgrade.certify import Criteria, certify
from congruence.upgrade.certify.mixed import SHARES, reached, refit_unseen
from congruence.upgrade.progressive import Progressive
from congruence.upgrade.progressive.refit import Refit

CLASSES = 20


def problem(n, **facts):
    relation = {"source_noise": 1.0, "target_noise": 0.5, "shared": 0.6, "decay": 0.2, "spread": 0.5}
    return upgrade_problem(n, 32, classes=CLASSES, random_state=0, **{**relation, **facts})


def prompts(p):
    own = [p.labels == k for k in range(CLASSES)]
    return [np.stack([side[rows].mean(axis=0) for rows in own]) for side in (p.source_texts, p.target_texts)]


def certified(p, n, **options):
    """Certify the first items by their classes."""
    names = [f"class {k}" for k in range(CLASSES)]
    images, texts = sides(p, slice(0, n), ("image",)), [Embeddings(rows, ids=names) for rows in prompts(p)]
    both = [image | {"text": text} for image, text in zip(images, texts, strict=True)]
    labels = {str(i): names[k] for i, k in enumerate(p.labels[:n])}
    return certify(*both, labels=labels, **{"method": "orthogonal", "seen": True, **options})


@pytest.fixture(scope="module")
def big():
    return problem(1800)


@pytest.fixture(scope="module")
def certificate(big):
    return certified(big, 300, rows=100_000, encode_rate=50.0, price=0.001)


@pytest.mark.long
def test_the_forecast_is_what_a_progressive_migration_of_other_items_reaches(big, certificate):
    ours, theirs = prompts(big)
    mapping = fit(big.source_images[:300], big.target_images[:300], method="orthogonal", modality="image", check=False)
    old, new, own = big.source_images[300:], big.target_images[300:], big.labels[300:]
    ahead = certificate.progressive
    assert ahead["order"] == "entropy"
    gains = []
    for share in (0.1, 0.3):
        plan = Progressive(mapping, old, texts=ours, new_texts=theirs, modality="image")
        at_first = np.mean(np.argmax(plan.store() @ theirs.T, axis=1) == own)
        for batch in plan.batches(size=75, share=share):
            plan.update(batch, new[batch])
        true = np.mean(np.argmax(plan.store() @ theirs.T, axis=1) == own)
        k = SHARES.index(share)
        assert ahead["low"][k] - 0.025 <= true <= ahead["high"][k] + 0.025  # one of twenty misses the truth
        gains.append((true - at_first, ahead["value"][k] - ahead["value"][0]))
    # The interval of a score is wide; what re-embedding adds is known better.
    for true, said in gains:  # at a tenth, and at three tenths
        assert said == pytest.approx(true, abs=0.03)
    assert gains[1][1] > 0.04


def test_the_verdict_names_the_share_and_the_costs(certificate):
    verdict = certificate.verdict
    assert verdict.action == "progressive"
    assert verdict.headline == f"map, then re-embed {verdict.share:.0%}"
    low, high = verdict.share_interval
    assert low <= verdict.share <= (high or 1)
    values = np.array(certificate.progressive["value"])
    assert verdict.share == reached(values, verdict.wanted)
    assert np.interp(verdict.share, SHARES, values) >= verdict.wanted > np.interp(verdict.share - 0.01, SHARES, values)
    costs = {way["strategy"]: way for way in certificate.costs}
    assert list(costs) == ["keep", "leave", "queries", "map", "progressive", "re-embed"]
    some = costs["progressive"]
    assert [way["items"] for way in costs.values()] == [0, 0, 0, 0, round(verdict.share * 1e5), 100_000]
    assert some["minutes"] == pytest.approx(some["items"] / 50 / 60)
    assert some["price"] == pytest.approx(some["items"] / 1000)
    assert some["score"].value == pytest.approx(np.interp(verdict.share, SHARES, values))
    assert costs["map"]["score"] == certificate.strategies["zero_shot"]["stored"]
    page = render_certificate(certificate)
    assert f"--share {verdict.share}." in page
    assert all(f">{value}</td>" in page for value in (f"{some['items']:,}", f"{some['minutes']:,.1f}"))
    assert f"{some['price']:,.2f}" in page


@pytest.mark.long
@pytest.mark.parametrize("retention", [0.8, pytest.param(0.999, marks=pytest.mark.long)])
def test_it_takes_its_draws_from_re_embedding_alone(big, retention, monkeypatch):
    level = Criteria(retention=retention)
    found = certified(big, 200, thresholds=level)
    monkeypatch.setattr("congruence.upgrade.certify.certificate.measure_mixed", lambda *given: None)
    before = certified(big, 200, thresholds=level)
    share = dict(found.verdict.confidence)
    share["re-embed"] = share.get("re-embed", 0) + share.pop("progressive", 0)
    assert {name: value for name, value in share.items() if value} == pytest.approx(before.verdict.confidence)
    assert before.strategies == found.strategies
    assert [way["strategy"] for way in before.costs] == ["keep", "leave", "queries", "map", "re-embed"]
    if retention > 0.9:
        assert "re-embed" in (found.verdict.action, *found.verdict.between)
        sentence, half = found.progressive["sentence"], found.progressive["value"][-1]
        if found.verdict.settled:
            assert f"would be {half:.3f}; the score to reach was {found.verdict.wanted:.3f}" in sentence
            assert sentence in render_certificate(found)


def test_shares_are_whole_percents_upwards():
    values = np.linspace(0.5, 0.9, len(SHARES))
    assert reached(values, 0.4) == 0.01
    assert reached(values, 0.95) is None
    assert reached(values, values[3]) == SHARES[3]
    between = reached(values, values[3] + 0.001)
    assert SHARES[3] < between < SHARES[4]
    assert between * 100 == pytest.approx(round(between * 100))


@pytest.mark.parametrize(
    "kind", ["queries", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("pairs", "labels", "lists"))]
)
def test_each_form_of_data_has_its_forecast(kind):
    p = problem(150)
    options = {"method": "orthogonal", "seen": True}
    if kind == "labels":
        options["labels"] = {str(i): str(k) for i, k in enumerate(p.labels)}
    if kind == "queries":
        options["text_queries"] = p.source_texts[:40], p.target_texts[:40]
    found = certify(*sides(p, modalities=("image", "text") if kind == "pairs" else ("image",)), **options)
    ahead = found.progressive
    # As a plan would: captions of which the scores say that more than half of the pictures have none of their own are
    # no vocabulary.
    assert ahead["order"] == ("entropy" if kind == "queries" else "random")
    assert ahead["value"][0] == pytest.approx(found.strategies[found.task]["stored"].value)
    assert ahead["value"][-1] > ahead["value"][0] - 0.02
    assert (np.diff([ahead[name] for name in ("low", "value", "high")], axis=0) >= 0).all()


def test_a_refit_is_of_other_items_and_helps_where_the_first_map_is_wrong():
    rng = np.random.default_rng(0)
    old = rng.standard_normal((200, 8))
    new = normalize_rows(old @ rng.standard_normal((8, 6)) + 0.1 * rng.standard_normal((200, 6)))
    mapped = normalize_rows(rng.standard_normal((200, 6)) + new)
    part = np.arange(200) % 5

    def again(new, size):
        return refit_unseen(Refit(None, None, 8.0), old, new, mapped, lambda items, n: items[:n], part, [size, 0])

    few, many = again(new, 20), again(new, 200)
    cosine = [np.einsum("ij,ij->i", rows, new).mean() for rows in (many[0], few[20], many[200])]
    assert cosine[0] < cosine[1] < cosine[2]
    np.testing.assert_allclose(many[0], mapped, atol=1e-6)
    other = new.copy()
    other[7] = -other[7]  # not of the first part, by which the penalty is chosen without it
    changed = np.abs(again(other, 200)[200] - many[200]).max(axis=1)
    assert changed[7] < 1e-6 < changed[part != part[7]].min()


@pytest.mark.long
def test_a_large_store_has_more_rows_to_refit_on():
    p = problem(120, shear=0.8, source_noise=0.1, target_noise=0.1)
    images = [{"image": Embeddings(rows)} for rows in (p.source_images, p.target_images)]
    options = {"method": "orthogonal"}
    few, many = (certify(*images, rows=rows, **options).progressive["value"] for rows in (100, 100_000))
    assert few[0] == many[0]  # nothing is re-embedded
    assert many[1] > few[1] + 0.01  # on 2 rows of the small store nothing is refitted


@pytest.mark.long
def test_without_the_stores_size_no_costs_are_made_up():
    costs = certified(problem(120, spread=0.3), 120).costs
    assert [way["items"] for way in costs] == [0, 0, 0, 0, None, None]
    assert {(way["minutes"], way["price"]) for way in costs} == {(None, None)}
