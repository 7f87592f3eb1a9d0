"""Made-up scenes whose wrong captions say more of the scene or nothing, and JAM's losses by the number of pairs."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from congruence.errors import TooFewAnchorsError
from congruence_papers import EXPERIMENTS, panels, run
from congruence_papers.jam.data import CONTEXTS, synthetic_context

pytestmark = pytest.mark.long


def own(pairs):
    training = {"hidden": [16], "latent": 8, "max_epochs": 2, "device": "cpu"}
    parameters = {"tasks": ["replace"], "pairs": pairs, "training": training}
    return replace(EXPERIMENTS["jam-context"], name="own", metrics=("five_way_recall",), parameters=parameters)


@pytest.fixture(scope="module")
def scenes():
    return synthetic_context(600)


def test_only_another_view_helps_to_read_captions(scenes):
    """R² of scikit-learn's ridge from texts to images, on wrong captions too: under a strong penalty they are noise."""
    images = scenes.images["made-up images"]["late"][scenes.image_of]
    captions = scenes.captions[CONTEXTS[0]]["late"]
    wrong = [scenes.negatives[name]["late"] for name in CONTEXTS]

    def scores(penalty: float) -> np.ndarray:
        found = []
        for seed in range(5):
            rows = np.random.default_rng(seed).permutation(400)[:64]
            taught = [captions[rows], *(np.vstack([captions[rows], N[rows]]) for N in wrong)]
            fitted = [Ridge(penalty * len(T) / 64).fit(T, np.tile(images[rows], (len(T) // 64, 1))) for T in taught]
            found.append([one.score(captions[400:], images[400:]) for one in fitted])
        return np.mean(found, axis=0)

    alone, another, same, other = scores(3.0)
    assert another > alone + 0.05
    assert alone > same > other
    alone, another, same, other = scores(30.0)
    assert alone > another > same > other


def test_losses_by_the_number_of_pairs_are_compared_item_by_item(scenes):
    pytest.importorskip("torch")
    results = run(own([16, 32]), collections=[scenes], seeds=2).results
    rows = [row for row in results["rows"] if row["metric"] == "five_way_recall"]
    losses = ("Con", "NegCon", "Spread")
    wanted = {(f"replace: {name}", loss, n) for name in CONTEXTS for loss in losses for n in (16, 32)}
    assert {(row["pair"], row["series"], row["x"]) for row in rows} == wanted
    tests = results["extra"]["item_tests"]
    assert len(tests) == 3 * 2 * 3 * 2  # encoders, numbers of pairs, pairs of losses, metrics
    mean = {(row["pair"], row["series"], row["x"]): row["mean"] for row in rows}
    one = next(t for t in tests if (t["first"], t["second"], t["metric"]) == ("Spread", "Con", "five_way_recall"))
    pair, _, n = one["pair"].removesuffix(" pairs").rpartition(", ")
    gap = mean[pair, "Spread", int(n)] - mean[pair, "Con", int(n)]
    assert one["difference"] == pytest.approx(gap, abs=1e-9)
    drawn = panels(results)
    assert [panel["label"] for panel in drawn] == [f"pairs trained on ({name})" for name in CONTEXTS]
    assert all([line["name"] for line in panel["series"]] == ["Con", "NegCon", "Spread"] for panel in drawn)


def test_bad_numbers_of_pairs(scenes):
    pytest.importorskip("torch")
    with pytest.raises(TooFewAnchorsError, match=r"Got 420 pairs of synthetic, not 500"):
        run(own([16, 500]), collections=[scenes], seeds=1)
