"""Near-duplicates are found, kept together, and do not lend each other their scores."""

import numpy as np
import pytest

from congruence import Embeddings
from congruence.upgrade.certify.design import EvaluationSet, deal, make_tables, near_duplicates
from congruence.upgrade.certify.estimates import mean_interval
from congruence.upgrade.certify.recipe import MapRecipe
from congruence.upgrade.certify.scoring import cosines, cross_fit, score_heldout


def tables(source, target):
    ids = [f"item {i}" for i in range(len(source))]
    return make_tables(*({"image": Embeddings(rows, ids=ids)} for rows in (source, target)), None, what="queries")


def grouped(groups, size, d=40, seed=0):
    """Two models that agree on what the members of a group share, and on nothing else."""
    rng = np.random.default_rng(seed)
    own = np.repeat(np.arange(groups), size)
    return [
        rng.standard_normal((groups, d))[own] + 0.05 * rng.standard_normal((groups * size, d)) for _ in range(2)
    ], own


def test_near_duplicates_are_found_and_others_are_not():
    (source, target), own = grouped(25, 4)
    found = near_duplicates(tables(source, target))
    np.testing.assert_array_equal(found[:, None] == found, own[:, None] == own)
    rng = np.random.default_rng(0)
    for d in (8, 64):
        apart = rng.standard_normal((300, d))
        assert len(np.unique(near_duplicates(tables(apart, apart)))) > 270
    clusters = 3 * rng.standard_normal((5, 16))[rng.integers(5, size=300)] + rng.standard_normal((300, 16))
    assert len(np.unique(near_duplicates(tables(clusters, clusters)))) > 290
    small = [near_duplicates(tables(*clustered(np.random.default_rng(seed), 120)[0])) for seed in range(4)]
    assert np.mean([len(np.unique(groups)) for groups in small]) > 110


def clustered(rng, n, width=24, d=32, noise=0.1):
    """Rows of two models about tight clusters, of which the k-th is 1/k as large as the first."""
    shares = 1 / np.arange(1, 21)
    centers = rng.standard_normal((20, width))
    bases = [rng.standard_normal((width, d)) / np.sqrt(width) for _ in range(2)]

    def draw(n):
        rows = centers[rng.choice(20, n, p=shares / shares.sum())] + 0.3 * rng.standard_normal((n, width))
        return [rows @ base + noise * rng.standard_normal((n, d)) for base in bases]

    return draw(n), draw(400)


def test_many_copies_of_one_row_do_not_hide_other_near_duplicates():
    (source, target), own = grouped(25, 4)
    rng = np.random.default_rng(1)
    copies = [rng.standard_normal(40) + 1e-4 * rng.standard_normal((12, 40)) for _ in range(2)]
    found = near_duplicates(tables(np.vstack([source, copies[0]]), np.vstack([target, copies[1]])))[:100]
    np.testing.assert_array_equal(found[:, None] == found, own[:, None] == own)


@pytest.mark.parametrize("runs", [4, pytest.param(10, marks=pytest.mark.long)])
def test_rows_of_small_clusters_are_scored_by_maps_that_know_their_cluster(runs):
    """Held out together, each would be scored by a map that does not: 0.08 too low, and in one interval of seven."""
    rng = np.random.default_rng(0)
    heldout, wrong = [], []
    for seed in range(runs):
        rows, others = clustered(rng, 120)
        anchors = tables(*rows)
        groups = near_duplicates(anchors)
        items, recipe = EvaluationSet(anchors, groups=groups), MapRecipe(["image"], "orthogonal", random_state=seed)
        got = cross_fit(items, recipe, recipe.choose(anchors, np.arange(120)))
        scores = got.scores["cosine/image"]
        model = recipe.fit(anchors, np.arange(120))
        truth = cosines(model, EvaluationSet(tables(*others)), "image", np.arange(400)).mean()
        low, high = mean_interval(scores.mean(), scores.influence, groups=groups)
        heldout.append(low <= truth <= high)
        wrong.append(scores.mean() - truth)
    assert np.mean(heldout) > 0.5
    assert abs(np.mean(wrong)) < 0.025


def test_dealing_keeps_groups_together():
    rng = np.random.default_rng(0)
    groups = rng.integers(30, size=100)
    part = deal(groups, 5, rng)
    assert all(len(np.unique(part[groups == g])) == 1 for g in np.unique(groups))
    assert np.ptp(np.bincount(part)) <= 4
    assert np.ptp(np.bincount(deal(np.arange(103), 10, rng))) == 1


@pytest.mark.long
def test_a_twin_among_the_anchors_lends_no_score():
    """Groups unrelated across models: nothing carries over to new ones, but a map fitted on a twin knows the item."""
    (source, target), _ = grouped(300, 4, d=120)
    whole = tables(source[:240], target[:240])
    groups = near_duplicates(whole)
    assert len(np.unique(groups)) == 60
    recipe = MapRecipe(["image"], "orthogonal")
    choice = recipe.choose(whole, np.arange(240))
    apart = cross_fit(EvaluationSet(whole, groups=groups), recipe, choice)
    split = cross_fit(EvaluationSet(whole), recipe, choice)
    model = recipe.fit(whole, np.arange(240))
    parts = [EvaluationSet(tables(source[k : k + 240], target[k : k + 240])) for k in range(240, 1200, 240)]
    truth = np.mean([score_heldout(model, part).scores["own@1/stored"].mean() for part in parts])
    cosine = [m.scores["cosine/image"].mean() for m in (apart, split)]
    assert apart.scores["own@1/stored"].mean() == pytest.approx(truth, abs=0.03)
    assert cosine[0] < 0.1 < 0.3 < cosine[1]
