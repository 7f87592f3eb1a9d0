"""Recall on SugarCrepe's questions, against a loop over items and on the real captions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from congruence.datasets import SugarCrepe, load_sugarcrepe
from congruence.errors import NotFiniteError, ParameterError, ShapeError, TooFewAnchorsError, ZeroRowError
from congruence.evaluation.compositional import distractors, same_words, sugarcrepe_recall, text_only_recall


def make_items(n=40, seed=0, images=15):
    rng = np.random.default_rng(seed)
    kinds = ("add_obj", "replace_att", "replace_rel", "swap_att")
    return SugarCrepe(
        np.array([f"x/{i}" for i in range(n)]),
        np.array([kinds[i % 4] for i in range(n)]),
        np.array([f"{i}.jpg" for i in rng.integers(images, size=n)]),
        np.array([f"a cat {i % 30} and a dog" for i in range(n)]),
        np.array([f"a dog {i % 30} and a cat" if i % 8 == 3 else f"a cow {i} and a dog" for i in range(n)]),
    )


def rows(n, seed, d=6, step=None):
    A = np.random.default_rng(seed).normal(size=(n, d))
    return A if step is None else np.round(A / step) * step + step / 2


def naive(items, V, P, N, which, others):
    def cosine(a, b):
        return a @ b / np.linalg.norm(a) / np.linalg.norm(b)

    hits = []
    for i in np.flatnonzero(which):
        scores = [cosine(V[i], P[i]), cosine(V[i], N[i]), *(cosine(V[i], P[j]) for j in others[i])]
        hits.append(np.argmax(scores) == 0)
    return np.mean(hits)


def test_it_is_the_share_of_right_choices_by_task_and_by_category():
    items = make_items(80)
    V, P, N = (rows(80, seed) for seed in range(3))
    right, wrong = rows(80, 0, d=1)[:, 0], rows(80, 1, d=1)[:, 0]
    drawn = distractors(items, 5, random_state=1)  # of the task, for its categories too
    found = {one.task: one for one in sugarcrepe_recall(items, V, P, N, random_state=1)}
    texts = {one.task: one for one in text_only_recall(items, right, wrong, random_state=1)}
    # add and swap have items of one category: their own lines say the same.
    tasks = ["replace", "add", "swap", "swap, order only", "swap, other words"]
    assert list(found) == list(texts) == [*tasks, "replace, attribute", "replace, relation"]
    which = {task: np.char.startswith(items.categories, task) for task in ("replace", "add", "swap")}
    which["replace, attribute"] = items.categories == "replace_att"
    which["replace, relation"] = items.categories == "replace_rel"
    for task, chosen in which.items():
        assert found[task].n == chosen.sum()
        assert found[task].binary == pytest.approx(naive(items, V, P, N, chosen, np.empty((80, 0), int)))
        assert found[task].choice == pytest.approx(naive(items, V, P, N, chosen, drawn))
        assert texts[task].binary == pytest.approx(np.mean(right[chosen] > wrong[chosen]))
        best = [right[i] > max(wrong[i], *right[drawn[i]]) for i in np.flatnonzero(chosen)]
        assert texts[task].choice == pytest.approx(np.mean(best))
    parts = [found[f"swap, {part}"] for part in ("order only", "other words")]
    assert sum(part.n for part in parts) == found["swap"].n
    assert sum(part.n * part.binary for part in parts) == pytest.approx(found["swap"].n * found["swap"].binary)


def test_scores_of_texts_alone_tie_and_are_checked():
    items = make_items(80)
    same = text_only_recall(items, np.ones(80), np.ones(80))[0]
    assert (same.binary, same.choice, same.ties) == (0.5, 0.2, same.n)
    with pytest.raises(NotFiniteError, match="scores of negative"):
        text_only_recall(items, np.ones(80), np.full(80, np.nan))
    with pytest.raises(ShapeError, match="79"):
        text_only_recall(items, np.ones(79), np.ones(80))


@given(st.integers(0, 99), st.sampled_from([None, 1.0]), st.integers(2, 6))
def test_more_options_are_never_easier(seed, step, options):
    """On a coarse grid many cosines are equal."""
    items = make_items(48, seed)
    V, P, N = (rows(48, seed + part, d=2, step=step) for part in range(3))
    for one in sugarcrepe_recall(items, V, P, N, options=options, random_state=seed):
        assert 0 <= one.choice <= one.binary <= 1
        if options == 2:
            assert one.choice == one.binary


def test_a_bag_of_words_is_at_chance_where_only_the_order_differs():
    items = make_items(80)
    names = sorted({word for text in (*items.captions, *items.negative_captions) for word in text.split()})
    vectors = dict(zip(names, np.random.default_rng(0).normal(size=(len(names), 12)).astype(np.float32), strict=True))

    def bag(texts):
        return np.array([np.sum([vectors[word] for word in text.split()], axis=0, dtype=np.float32) for text in texts])

    P, N = bag(items.captions), bag(items.negative_captions)
    found = {one.task: one for one in sugarcrepe_recall(items, P, P, N)}
    order = found["swap, order only"]
    assert (order.binary, order.ties) == (0.5, order.n)
    assert found["swap, other words"].binary == 1.0
    assert found["replace"].choice == 1.0


def test_distractors_are_other_captions_of_other_images_of_the_same_task():
    items = make_items(80)
    drawn = distractors(items, 5, random_state=3)
    assert drawn.shape == (80, 3)
    for i, others in enumerate(drawn):
        texts = {items.captions[i], items.negative_captions[i], *items.captions[others]}
        assert len(texts) == 5
        assert items.filenames[i] not in items.filenames[others]
        assert {items.categories[j].split("_")[0] for j in others} == {items.categories[i].split("_")[0]}
    np.testing.assert_array_equal(drawn, distractors(items, 5, random_state=3))
    assert (drawn != distractors(items, 5, random_state=4)).any()


def test_random_embeddings_are_at_chance():
    items = make_items(1200, images=400)
    items = SugarCrepe(
        items.ids, np.full(1200, "add_att"), items.filenames, items.ids, np.char.add(items.ids, " wrong")
    )
    (found,) = sugarcrepe_recall(items, *(rows(1200, seed, d=30) for seed in range(3)))
    assert found.binary == pytest.approx(0.5, abs=4 * np.sqrt(0.25 / 1200))
    assert found.choice == pytest.approx(0.2, abs=4 * np.sqrt(0.16 / 1200))


def test_the_real_captions(shared):
    items = load_sugarcrepe(shared("sugarcrepe/swap_obj.json").parent)
    order = same_words(items)
    swap = np.char.startswith(items.categories, "swap")
    assert not order[~swap].any()
    assert (order.sum(), swap.sum()) == (574, 911)
    assert distractors(items.take(np.arange(0, 7511, 10))).shape == (752, 3)


def test_what_is_refused():
    items = make_items(40)
    V = rows(40, 0)
    with pytest.raises(ShapeError, match="items"):
        sugarcrepe_recall(items, V[1:], V, V)
    with pytest.raises(ShapeError):
        sugarcrepe_recall(items, V, V[:, 1:], V)
    with pytest.raises(ZeroRowError):
        sugarcrepe_recall(items, 0 * V, V, V)
    with pytest.raises(ParameterError, match="options"):
        sugarcrepe_recall(items, V, V, V, options=1)
    with pytest.raises(TooFewAnchorsError, match="to draw"):
        sugarcrepe_recall(items, V, V, V, options=30)
