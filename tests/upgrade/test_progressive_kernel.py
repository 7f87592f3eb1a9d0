"""Plans without texts: the kernel map of the mapped rows, and their factor beside native ones."""

from dataclasses import replace

import numpy as np
import pytest

from congruence import KernelMap, Progressive, fit
from congruence.embeddings import normalize_rows
from congruence.errors import CorruptFileError
from congruence.upgrade.progressive import by_queries
from congruence.upgrade.progressive.refit import Correction, Known, Refit, balance, unused, without


def world(n=400, seed=0, noise=0.3):
    """Unit rows of two models, of which the new one is a curved function of the old, on a cone; and other pairs."""
    rng = np.random.default_rng(seed)
    hidden, (a, b) = rng.standard_normal((n + 60, 4)), rng.standard_normal((2, 4, 24))
    errors = noise * rng.standard_normal((2, n + 60, 24))
    old = normalize_rows(hidden @ a + 2 + errors[0])
    new = normalize_rows(np.sin(hidden @ b) @ rng.standard_normal((24, 24)) + 3 + errors[1])
    return old[:n], new[:n], (old[n:], new[n:])


OLD, NEW, PAIRS = world()
MAPPINGS = {name: fit(*PAIRS, name, check=False) for name in ("orthogonal", "kernel")}


def run(name, share=0.4, size=40, **given):
    plan = Progressive(MAPPINGS[name], OLD, **given)
    for ids in plan.batches(size, share=share):
        plan.update(ids, NEW[ids])
    return plan


def cosine(rows, which):
    """Mean cosine off the mean, which tells rows apart."""
    mean = NEW.mean(axis=0)
    sides = (normalize_rows(without(side[which] - mean, mean)) for side in (rows, NEW))
    return float(np.einsum("ij,ij->i", *sides).mean())


@pytest.mark.parametrize("name", MAPPINGS)
def test_mapped_rows_are_nearer_to_the_new_model_than_by_linear_ridge(name):
    plan = run(name, search="items")
    assert plan.correction_.kind == "kernel"
    assert plan.correction_.kernel.added == (name == "orthogonal")
    linear = Refit(MAPPINGS[name], None, 1.0)
    rows = np.flatnonzero(plan.embedded)
    known = Known(OLD[rows], NEW[rows], np.ones(len(rows)), np.ones(len(rows), bool))
    before = linear.transform(OLD, linear.fit([known], len(rows), linear.first(), choose=True))
    first = np.asarray(MAPPINGS[name].transform(OLD))
    assert cosine(plan.store(), ~plan.embedded) > cosine(before, ~plan.embedded) + 0.02
    assert cosine(plan.store(), ~plan.embedded) > cosine(first, ~plan.embedded) + 0.1


def test_the_map_of_a_kernel_map_is_that_of_its_pairs_and_the_new_rows():
    plan = Progressive(MAPPINGS["kernel"], OLD, tolerance=0)
    plan.update(np.arange(50), NEW[:50])
    fitted = KernelMap().fit(
        *(np.vstack([first, more]) for first, more in zip(PAIRS, (OLD[:50], NEW[:50]), strict=True))
    )
    np.testing.assert_allclose(plan.mapped(np.arange(50, 60)), fitted.transform(OLD[50:60]), atol=1e-5)
    assert plan.correction_.kernel.factor == 1  # no row was drawn at random


def test_native_rows_win_as_often_as_their_share():
    """With the factor, among natives and mapped rows alike; half the way is used."""
    rng = np.random.default_rng(1)
    mean = np.zeros(16)
    mean[0] = 0.6
    rest = 0.8 * normalize_rows(np.c_[np.zeros(600), rng.standard_normal((600, 15))])
    native = mean + rest
    mapped = mean + 1.3 * normalize_rows(rest + 0.02 * rng.standard_normal((600, 16))) * 0.8
    found = balance(native, mapped, mean, 600, 10)
    assert found == pytest.approx(1 / 1.3, rel=0.03)
    assert balance(native, native, mean, 600, 10) == pytest.approx(1)
    scale = mean + found * without(mapped, mean)
    scores = native @ np.where(np.arange(600)[:, None] % 3, scale, native).T
    np.fill_diagonal(scores, -1)
    won = np.mean(np.argsort(-scores, axis=1)[:, :10] % 3 == 0)
    assert won == pytest.approx(1 / 3, abs=0.03)


def test_lists_scale_mapped_rows_items_do_not_and_all_have_unit_norm():
    old, new, pairs = world(noise=1.0)
    mapping, plans = KernelMap().fit(*pairs), []
    for search in ("lists", "items"):
        plan = Progressive(mapping, old, search=search)
        for ids in plan.batches(160, share=0.4):
            plan.update(ids, new[ids])
        plans.append(plan)
    lists, items = plans
    assert 0.5 < lists.correction_.kernel.factor < 1 == items.correction_.kernel.factor
    for plan in (lists, items, run("orthogonal")):
        np.testing.assert_allclose(np.linalg.norm(plan.store(), axis=1), 1, atol=1e-5)
    _, mean, filler, _, _ = lists.correction_.kernel
    ours = lists.refit.transform(old, lists.correction_)
    plain = items.refit.transform(old, replace(lists.correction_, kernel=lists.correction_.kernel._replace(factor=1.0)))
    sides = (without(side - np.outer(side @ filler, filler), mean) for side in (ours, plain))
    ours, plain = (np.linalg.norm(side, axis=1) for side in sides)
    np.testing.assert_allclose(ours, lists.correction_.kernel.factor * plain, atol=1e-3)


def test_what_fills_the_norm_is_no_direction_of_the_new_model():
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((200, 10)) @ np.diag([*np.ones(9), 1e-3]) + np.eye(10)[0]
    found = unused(rows, rows.mean(axis=0))
    assert np.linalg.norm(found) == pytest.approx(1)
    assert np.std(rows @ found) < 0.3 * np.min(np.std(rows[:, :9], axis=0))
    assert found @ rows.mean(axis=0) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("name", MAPPINGS)
def test_a_plan_continues_with_its_kernel(name, tmp_path):
    plan = run(name, search="items" if name == "kernel" else "lists")
    plan.save(tmp_path / "plan")
    again = Progressive.load(tmp_path / "plan", MAPPINGS[name], OLD)
    assert np.array_equal(again.store(), plan.store())
    assert (again.search, again.correction_.facts()) == (plan.search, plan.correction_.facts())
    arrays, facts = plan.correction_.arrays(), plan.correction_.facts()
    for missing in ("landmarks", "filler"):
        with pytest.raises(KeyError, match="kernel"):
            Correction.restore({key: array for key, array in arrays.items() if missing not in key}, facts)
    with pytest.raises(CorruptFileError):
        Progressive.load(tmp_path / "plan", MAPPINGS[name], OLD[::-1])


def test_a_quarter_of_each_batch_is_random_and_a_log_orders_the_rest():
    queries = NEW[:5]
    plan = Progressive(MAPPINGS["kernel"], OLD, order=by_queries(queries, k=3))
    ids = next(plan.batches(80))
    assert len(ids) == 80
    drawn = plan.states.drawn
    assert drawn == 20
    mapped = plan.mapped()
    ranks = np.argsort(np.argsort(-(queries @ mapped.T), axis=1), axis=1)
    use = (3 / (3 + ranks)).sum(axis=0)
    chosen = np.setdiff1d(ids[drawn:], [])
    rest = np.setdiff1d(np.arange(400), ids)
    assert use[chosen].min() >= use[rest].max()


@pytest.mark.parametrize("n", [2, 3, 10])
def test_few_pairs_equal_rows_and_half_precision_end_in_unit_rows(n):
    mapping = KernelMap().fit(PAIRS[0][:n], PAIRS[1][:n])
    old = OLD[np.arange(400) // 4]
    plan = Progressive(mapping, old.astype(np.float16))
    for ids in plan.batches(30, budget=90):
        plan.update(ids, NEW[ids // 4])
    np.testing.assert_allclose(np.linalg.norm(plan.store(), axis=1), 1, atol=1e-4)
