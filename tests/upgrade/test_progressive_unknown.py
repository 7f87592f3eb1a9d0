"""What a progressive map does with rows whose own text is not among the known ones."""

import numpy as np
import pytest

from congruence import OrthogonalMap
from congruence.embeddings import normalize_rows
from congruence.upgrade.progressive import Progressive
from congruence.upgrade.progressive.progressive import read_texts
from congruence.upgrade.progressive.refit import Refit
from congruence.upgrade.progressive.texts import Gate

CLASSES, D = 40, 24
KNOWN = np.arange(CLASSES) < CLASSES // 2


class Classes:
    """Photos of classes in two models that agree up to a rotation and noise, and the classes' names."""

    def __init__(self, noise=0.6, n=800):
        rng = np.random.default_rng(0)
        turn = np.linalg.qr(rng.standard_normal((D, D)))[0]
        self.label = rng.integers(CLASSES, size=n)
        names = normalize_rows(rng.standard_normal((CLASSES, D)))
        shared = names[self.label] + noise * 0.6 * rng.standard_normal((n, D)) / np.sqrt(D)

        def model(side, rows):
            return normalize_rows(rows + noise * rng.standard_normal(rows.shape) / np.sqrt(D)) @ side

        self.old, self.new = model(np.eye(D), shared), model(turn, shared)
        self.texts, self.new_texts = model(np.eye(D), names), model(turn, names)

    def plan(self, known, **given):
        """Return a plan whose first map is fitted on the known names, which are its texts unless told otherwise."""
        first = OrthogonalMap().fit(self.texts[known], self.new_texts[known], modality="text")
        first = first.recenter(self.old, None, modality="image", offset=0.5)
        texts = {"texts": self.texts[known], "new_texts": self.new_texts[known]}
        return Progressive(first, self.old, modality="image", **{**texts, **given})

    def found(self, store, rows):
        """Return the share of some rows whose nearest name is their own."""
        return float(((store[rows] @ self.new_texts.T).argmax(axis=1) == self.label[rows]).mean())


@pytest.fixture(scope="module")
def photos():
    return Classes()


def go(plan, photos, share, size=40):
    for ids in plan.batches(size, share=share):
        plan.update(ids, photos.new[ids])
    return plan


def test_rows_of_unknown_texts_are_not_drawn_to_known_ones(photos):
    """They are found as often as with the first map alone, or nearly so, and rows of known texts more often."""
    other = ~KNOWN[photos.label]
    plan, alone = photos.plan(KNOWN), photos.plan(KNOWN, texts=None, new_texts=None)
    found, without = plan.store(), alone.store()
    assert photos.found(found, other) >= photos.found(without, other) - 0.02
    assert photos.found(found, ~other) > photos.found(without, ~other) + 0.01
    assert plan.correction_.gate.share == pytest.approx((~other).mean(), abs=0.05)


def test_with_all_texts_known_the_gate_is_open(photos):
    every = photos.plan(np.ones(CLASSES, bool))
    refit = every.refit
    texts_only = Refit(refit.mapping, every.texts, refit.size)
    before = texts_only.transform(photos.old, texts_only.first())
    rows = np.ones(len(photos.old), bool)
    assert photos.found(every.store(), rows) >= photos.found(before, rows) - 0.005


def test_texts_that_cannot_be_told_apart_have_no_gate(photos):
    """Of near-synonyms the second-best is as near as the best, and says what a wrong text's score is like no more."""
    rng = np.random.default_rng(1)
    synonyms = np.repeat(photos.texts, 4, axis=0)
    synonyms = normalize_rows(synonyms + 0.3 * rng.standard_normal(synonyms.shape) / np.sqrt(D))
    texts = read_texts(synonyms, synonyms @ np.eye(D), photos.plan(KNOWN).refit.mapping, photos.old.astype(np.float32))
    assert Gate.fit(photos.old, texts) is None
    assert Gate.fit(np.repeat(photos.old[:1], 9, axis=0), texts) is None


def test_random_rows_close_the_gate_only_where_that_is_sure():
    """A tie keeps the first kind; a kind whose cosines are higher on all rows takes over."""
    refit = Refit(None, Classes(n=60).plan(KNOWN).texts, 1.0, Gate(1.0, 0.0, 0.5))
    table = np.zeros((3, 5, 20, 2))
    table[..., 1] += 0.01 * np.random.default_rng(0).standard_normal((3, 5, 20))
    assert refit.decide(table).kind == "gated"
    table[2, :, :, 0] += 1.0  # known texts alone do not decide
    assert refit.decide(table).kind == "gated"
    table[2, :, :, 1] += 0.1
    chosen = refit.decide(table)
    assert (chosen.kind, chosen.gate) == ("plain", None)


def test_a_gated_plan_is_the_same_as_a_stream_and_after_a_pause(photos, tmp_path):
    memory = go(photos.plan(KNOWN), photos, 0.2)
    assert memory.correction_.kind == "gated"
    np.save(tmp_path / "old.npy", photos.old.astype(np.float32))
    disk = Classes()
    disk.old = np.load(tmp_path / "old.npy", mmap_mode="r")
    stream = go(disk.plan(KNOWN), photos, 0.2)
    np.testing.assert_allclose(stream.correction_.plain_coef, memory.correction_.plain_coef, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(stream.store(), memory.store(), atol=1e-5)
    memory.save(tmp_path / "plan")
    known = {"texts": photos.texts[KNOWN], "new_texts": photos.new_texts[KNOWN], "modality": "image"}
    again = Progressive.load(tmp_path / "plan", memory.refit.mapping, photos.old, **known)
    assert again.correction_.facts() == memory.correction_.facts()
    np.testing.assert_array_equal(again.transform(photos.old), memory.transform(photos.old))


def test_auto_begins_with_random_rows_where_texts_say_little(photos):
    assert photos.plan(KNOWN, texts=None, new_texts=None).order_ == "random"
    assert photos.plan(KNOWN).order_ == "random"
    assert photos.plan(np.ones(CLASSES, bool)).order_ == "entropy"
