"""LazySearch over arrays: what it answers, what it encodes, and what it refuses."""

import shutil
import threading
import time

import numpy as np
import pytest

from congruence import Embeddings, LazySearch, Space, errors, fit
from congruence.embeddings import normalize_rows

N, D, E, K = 900, 24, 32, 10


@pytest.fixture(scope="module")
def world():
    """Two models of one set of items in topics, a map from few pairs, and queries of the new model."""
    rng = np.random.default_rng(4)
    topics = rng.normal(size=(12, D)) + 1
    topic = rng.integers(12, size=N + 300)
    items = topics[topic] + 0.5 * rng.normal(size=(N + 300, D))
    turn = np.linalg.qr(rng.normal(size=(E, E)))[0][:D]
    old = normalize_rows(items).astype(np.float32)
    bent = rng.normal(size=(12, E))[topic]  # what no rotation can map
    own = normalize_rows(rng.normal(size=(len(items), E)))  # and what nothing can
    new = normalize_rows(items) @ turn + 0.4 * normalize_rows(bent) + 0.2 * own
    new = normalize_rows(new).astype(np.float32)
    mapping = fit(old[N : N + 60], new[N : N + 60], check=False)
    return old[:N], new[:N], mapping, new[N + 100 :]


class Model:
    """An encoder that remembers what it was asked for."""

    def __init__(self, new, broken=()):
        self.new, self.asked, self.broken = new, [], set(broken)

    def __call__(self, rows):
        rows = [int(row) for row in rows]
        if self.broken & set(rows):
            raise OSError("404")
        self.asked += rows
        return self.new[rows]


def overlap(ids, queries, new):
    true = np.argsort(-(queries @ new.T), axis=1)[:, :K]
    return np.mean([len(set(map(int, a)) & set(b)) for a, b in zip(ids, true.tolist(), strict=True)]) / K


def test_lists_are_those_of_the_new_model_for_a_few_encodings_and_better_than_the_maps(world):
    old, new, mapping, queries = world
    alone = np.argsort(-(queries @ mapping.transform(old).T), axis=1)[:, :K]
    found = []
    for query in queries[:60]:  # each with nothing re-embedded before
        model = Model(new)
        search = LazySearch(old, mapping, model, budget=20, check=False)
        ids, scores, own = search.search(query, k=K)
        assert own.all()
        np.testing.assert_allclose(scores, new[ids] @ query, atol=1e-5)
        assert len(model.asked) == len(set(model.asked)) == 20
        assert search.reembedded_share_ == 20 / N
        found.append(ids)
    lazy, plain = overlap(found, queries[:60], new), overlap(alone[:60], queries[:60], new)
    assert lazy > plain + 0.1
    without = []
    for query in queries[:60]:  # the first twenty of the map's list, without the correction between rounds
        first = np.argsort(-(mapping.transform(old) @ query))[:20]
        without.append(first[np.argsort(-(new[first] @ query))[:K]])
    assert lazy > overlap(without, queries[:60], new)


def test_nothing_is_encoded_twice_and_what_is_known_is_kept_and_saved(world, tmp_path):
    old, new, mapping, queries = world
    model = Model(new)
    search = LazySearch(old, mapping, model, budget=10)
    first = search.search(queries[:20])
    again = search.search(queries[:20])
    assert len(model.asked) == len(set(model.asked)) == search.counts_["encoded"] == search.rows.n_native
    assert overlap(again.ids, queries[:20], new) >= overlap(first.ids, queries[:20], new)
    search.save(tmp_path / "lazy")
    with pytest.raises(errors.OutputExistsError):
        search.save(tmp_path / "lazy")
    other = Model(new)
    loaded = LazySearch.load(tmp_path / "lazy", old, mapping, other, limit=0)
    assert loaded.reembedded_share_ == search.reembedded_share_
    np.testing.assert_allclose(loaded.rows.vectors[model.asked], new[model.asked], atol=1e-6)
    assert loaded.search(queries[:5]).ids.shape == (5, K)
    assert not other.asked
    changed = old.copy()
    row = int(search.rows.native[0])
    changed[row] = old[row + 1]
    rest = LazySearch.load(tmp_path / "lazy", changed, mapping, other)
    rest.search(queries[0])
    assert rest.counts_["skipped"] == 1
    assert row not in rest.rows.native
    with pytest.raises(errors.SpaceMismatchError, match="not those of the new model"):  # nor are those in the folder
        LazySearch.load(tmp_path / "lazy", old, mapping, lambda rows: np.roll(new, 7, axis=1)[rows]).search(queries[40])
    with pytest.raises(errors.FileError):
        LazySearch.load(tmp_path / "none", old, mapping, other)


def test_ids_files_and_known_rows(world, tmp_path):
    old, new, mapping, queries = world
    names = [f"item-{row}" for row in range(N)]
    asked = []

    def encode(ids):
        asked.extend(ids)
        return Embeddings(new, ids=names).take(ids)

    known = names[:30], new[:30]
    search = LazySearch(Embeddings(old, ids=names), mapping, encode, known=known)
    ids, _, own = search.search(queries[0])
    assert own.all()
    assert set(ids) <= set(names)
    assert len([one for one in asked if one in names[:30]]) == 20  # of the check
    np.save(tmp_path / "old.npy", old)
    model = Model(new)
    plain = LazySearch(tmp_path / "old.npy", mapping, model, check=False).search(queries[0])
    assert plain.ids.dtype.kind == "i"
    with pytest.raises(errors.IdError):
        LazySearch(old, mapping, model, known=([N], new[:1]))


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda new: np.roll(new, 1, axis=0), "another order"),
        (lambda new: np.random.default_rng(0).normal(size=new.shape), "not those of the new model"),
        (lambda new: np.repeat(new[:1], len(new), axis=0), "not those of the new model"),
        (lambda new: new[:, :-1], "shape"),
    ],
)
def test_an_encoder_of_another_model_width_or_order_is_refused_before_anything_is_kept(world, wrong, said, known):
    old, new, mapping, queries = world
    rows = np.arange(N - 40, N)

    def encode(ids):
        return wrong(new[ids])

    search = LazySearch(old, mapping, encode, known=(rows, new[rows]) if known else None)
    with pytest.raises((errors.SpaceMismatchError, errors.ShapeError), match=said):
        search.search(queries[0])
    assert search.rows.n_native == 40 * known


def test_a_row_that_cannot_be_encoded_stays_mapped_and_is_counted(world):
    old, new, mapping, queries = world
    broken = np.argsort(-(mapping.transform(old) @ queries[0]))[:4].tolist()
    model = Model(new, broken)
    search = LazySearch(old, mapping, model, check=False)
    for _ in range(5):
        _, _, own = search.search(queries[0])
        assert own.all()
    assert search.counts_["failed"] == 4
    assert isinstance(search.error_, OSError)
    assert not set(broken) & set(search.rows.native.tolist())

    def some(rows):  # None for what is gone
        return [None if row in broken else new[row] for row in rows.tolist()]

    search = LazySearch(old, mapping, some, check=False)
    search.search(queries[0])
    assert search.counts_["failed"] == 4


def test_an_encoder_that_does_not_answer_leaves_an_answer_by_the_map(world):
    old, new, mapping, queries = world
    calls = []

    def down(rows):
        calls.append(len(rows))
        raise ConnectionError("down")

    search = LazySearch(old, mapping, down)
    ids, scores, own = search.search(queries[:3])
    near = mapping.transform(old) @ queries[:3].T
    assert ids.tolist() == np.argsort(-near, axis=0)[:K].T.tolist()  # the map's
    np.testing.assert_allclose(scores, np.take_along_axis(near.T, ids, axis=1), atol=1e-5)
    assert not own.any()
    assert search.counts_["errors"] == 1
    assert search.counts_["failed"] == 0
    assert len(calls) == 11
    free = threading.Event()

    def slow(rows):
        free.wait(20)
        return new[rows]

    search = LazySearch(old, mapping, slow, timeout=0.05, check=False)
    assert not search.search(queries[0]).reembedded.any()
    assert search.counts_["late"] == 1
    free.set()
    search.timeout = 20
    assert search.search(queries[0]).reembedded.all()  # what came late was kept
    assert search.rows.n_native >= 50
    search.close()


def test_limits_of_encodings(world, monkeypatch):
    old, new, mapping, queries = world
    model = Model(new)
    search = LazySearch(old, mapping, model, limit=25, check=False)
    assert search.search(queries[:2]).ids.shape == (2, K)
    search.search(queries[2:9])
    assert len(model.asked) == 25
    # rows by which the encoder is checked count too
    for limit, budget in ((15, 30), (25, 30), (None, 3), (None, 10), (None, 30)):
        search = LazySearch(old, mapping, model := Model(new), limit=limit)
        assert search.reembed(queries, budget=budget) == len(model.asked) == min(limit or budget, budget)
        search = LazySearch(old, mapping, model := Model(new), limit=limit)
        search.search(queries)
        assert limit is None or len(model.asked) == limit
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    search = LazySearch(old, mapping, Model(new), rate=5, check=False)
    monkeypatch.setattr(search._stopped, "wait", lambda seconds: now.__setitem__(0, now[0] + seconds))
    search.search(queries[0])
    assert now[0] == pytest.approx(40 / 5)  # the fifth ten began after the first forty
    with pytest.raises(errors.ParameterError):
        LazySearch(old, mapping, model, rate=0)
    with pytest.raises(errors.ParameterError):
        LazySearch(old, mapping, model, mode="later")
    with pytest.raises(errors.ShapeError):
        search.search(queries[:, :-1])


def test_in_the_background_the_next_answer_is_better(world):
    old, new, mapping, queries = world
    with LazySearch(old, mapping, Model(new), mode="background", check=False) as search:
        before = search.search(queries[:40])
        search.join()
        after = search.search(queries[:40])
    assert not before.reembedded.all()
    assert overlap(after.ids, queries[:40], new) > overlap(before.ids, queries[:40], new) + 0.1
    search = LazySearch(old, mapping, lambda rows: new[rows, :-1], mode="background")
    search.search(queries[0])
    with pytest.raises(errors.ShapeError):
        search.join()


def test_the_estimated_agreement_is_near_the_true_one_and_rises(world):
    old, new, mapping, queries = world
    with LazySearch(old, mapping, Model(new), mode="background", check=False) as search:
        assert np.isnan(search.agreement_)
        first = search.search(queries[:60], k=K)
        search.join()
        assert search.agreement_ == pytest.approx(overlap(first.ids, queries[:60], new), abs=0.15)
        before = search.agreement_
        for _ in range(4):
            search.search(queries[:60], k=K)
            search.join()
        assert search.agreement_ > before + 0.2


def test_a_stopped_search_answers_by_what_is_known_and_ends_at_once(world):
    old, new, mapping, queries = world
    free, model = threading.Event(), Model(new)

    def slow(rows):
        free.wait(20)
        return model(rows)

    with LazySearch(old, mapping, slow, mode="background", rate=1, check=False) as search:
        for start in range(0, 100, 2):
            search.search(queries[start : start + 2])
        assert search.queued_ == 50
        search.stop()
        free.set()
        search.join()  # with a rate of 1 all of them take an hour
        assert len(model.asked) <= 20  # the batch that was being encoded
        assert search.rows.n_native == len(model.asked)
        assert search.search(queries[0]).ids.shape == (K,)
        search.join()
        assert search.queued_ == 0


def test_a_full_queue_counts_what_it_leaves_out(world):
    old, new, mapping, queries = world
    free = threading.Event()
    search = LazySearch(old, mapping, lambda rows: free.wait(20) and new[rows], mode="background", check=False)
    for query in queries[:70]:
        assert search.search(query).ids.shape == (K,)
    assert 3 <= search.counts_["left"] <= 6
    search.stop()
    free.set()
    search.close()


def test_a_width_that_changes_later_is_an_error_of_the_encoder(world):
    old, new, mapping, queries = world
    width = [E]
    search = LazySearch(old, mapping, lambda rows: new[rows, : width[0]], budget=10)
    search.search(queries[0])
    width[0] -= 1
    assert search.search(queries[1]).ids.shape == (K,)
    assert search.counts_["errors"] == 1
    assert isinstance(search.error_, errors.ShapeError)


@pytest.mark.parametrize("named", [False, True])
def test_two_searches_of_one_file_share_a_folder(world, tmp_path, named):
    old, new, mapping, queries = world
    rows = Embeddings(old, ids=[f"item {row}" for row in range(N)]) if named else old
    models = Model(new), Model(new)

    def search_by(model, index=rows):
        by_id = lambda ids: model([one.split()[1] for one in ids])  # noqa: E731
        return LazySearch(index, mapping, by_id if named else model, budget=20, journal=tmp_path / "kept", check=False)

    one, two = map(search_by, models)
    for query in queries[:10]:
        one.search(query)
        two.search(query)
    done = models[0].asked + models[1].asked
    assert len(done) == len(set(done)) == two.rows.n_native > 100
    later = search_by(Model(new))  # as after a kill
    assert later.rows.n_native == len(done)
    np.testing.assert_allclose(later.rows.vectors[done], new[done], atol=1e-6)
    changed = old.copy()
    changed[done[0]] = old[(done[0] + 1) % N]
    assert search_by(Model(new), Embeddings(changed, ids=rows.ids) if named else changed).rows.n_native == len(done) - 1
    shutil.rmtree(tmp_path / "kept")  # while both are open
    assert one.search(queries[11]).reembedded.all()
    assert search_by(Model(new)).rows.n_native > 0


@pytest.mark.parametrize("budget", [20, 100])
def test_a_query_that_is_asked_again_costs_little(world, budget):
    old, new, mapping, queries = world
    model = Model(new)
    search = LazySearch(old, mapping, model, budget=budget, check=False, refit=False)
    asked = []
    for _ in range(4):
        search.search(queries[0])
        asked.append(len(model.asked))
    assert asked[0] == budget
    assert asked[-1] <= 1.5 * budget


def test_a_log_is_reembedded_by_expected_use(world):
    old, new, mapping, queries = world
    log, unseen = queries[:30], queries[30:]
    model = Model(new)
    search = LazySearch(old, mapping, model, limit=180, check=False)
    assert search.reembed(log, budget=180) == len(set(model.asked)) == 180
    own = search.search(log).ids
    rng = np.random.default_rng(0)
    rows = rng.choice(N, 180, replace=False)
    at_random = LazySearch(old, mapping, model, known=(rows, new[rows]), limit=0, check=False).search(log).ids
    assert overlap(own, log, new) > overlap(at_random, log, new) + 0.05
    assert overlap(search.search(unseen).ids, unseen, new) > 0.2


def test_a_refit_maps_the_other_rows_anew(world):
    old, new, mapping, queries = world
    search = LazySearch(old, mapping, Model(new), check=False)
    far = np.linalg.norm(search.rows.vectors - new, axis=1)
    search.search(queries[:20])
    assert search.rows.fitted_at >= 100
    rest = np.setdiff1d(np.arange(N), search.rows.native)
    near = np.linalg.norm(search.rows.vectors - new, axis=1)
    assert near[rest].mean() < far[rest].mean()


def test_an_encoder_needs_items(world):
    old, new, mapping, queries = world
    from congruence.embeddings import Space
    from congruence.encoders import Encoder

    class Reads(Encoder):
        space = Space("new", None, "text", E, True)
        fingerprint = "reads"

        def encode(self, items, batch_size=64, callback=None):
            yield np.stack([new[int(str(item).removeprefix("text "))] for item in items])

    reads = object.__new__(type("Plain", (Reads,), {name: None for name in Reads.__abstractmethods__}))
    search = LazySearch(old, mapping, reads, items=[f"text {row}" for row in range(N)])
    assert search.search(queries[0]).reembedded.all()
    with pytest.raises(errors.ParameterError, match="items"):
        LazySearch(old, mapping, reads)
    with pytest.raises(errors.ParameterError, match="map"):
        LazySearch(old, None, Model(new))


@pytest.mark.parametrize("lag", [0, 1, -1, 7])
def test_an_encoder_that_is_off_by_some_rows_of_a_sorted_index_is_refused(lag):
    rng = np.random.default_rng(7)
    items = np.repeat(rng.normal(size=(30, D)), 30, axis=0) + 0.5 * rng.normal(size=(N, D))  # in folders by class
    old = normalize_rows(items).astype(np.float32)
    turned = items @ np.linalg.qr(rng.normal(size=(E, E)))[0][:D]
    new = normalize_rows(turned + 0.2 * rng.normal(size=(N, E))).astype(np.float32)
    search = LazySearch(old, fit(old[::9], new[::9], check=False), lambda rows: new[(rows + lag) % N], budget=10)
    if lag == 0:
        assert search.search(new[5], k=1).ids[0] == 5
        return
    with pytest.raises(errors.SpaceMismatchError, match=f"of other rows, {abs(lag)} "):
        search.search(new[5])
    assert search.reembedded_share_ == 0


def test_queries_of_the_old_model_are_refused_where_both_have_one_width():
    rng = np.random.default_rng(0)
    rows = normalize_rows(rng.normal(size=(80, 8))).astype(np.float32)
    old, new = (Embeddings(rows, space=Space(model=name, normalized=True)) for name in ("old", "new"))
    search = LazySearch(old, fit(old, new, check=False), lambda numbers: rows[numbers], budget=10)
    assert search.search(new, k=1).ids[3, 0] == 3
    with pytest.raises(errors.SpaceMismatchError, match="'old'"):
        search.search(old)
    with pytest.raises(errors.SpaceMismatchError, match="'old'"):
        search.reembed(old, budget=5)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 0.0, None])
def test_rows_that_the_encoder_does_not_encode_are_counted(world, bad):
    old, new, mapping, queries = world

    def encode(rows):
        wrong = None if bad is None else np.full(E, bad)
        return [new[row] if row % 7 else wrong for row in map(int, rows)]

    search = LazySearch(old, mapping, encode, budget=40)
    hits = search.search(queries[:3], k=K)
    assert search.counts_["failed"] > 0
    assert search.error_ is None
    assert f"{search.counts_['failed']} rows" in search.trouble()
    assert np.isfinite(hits.scores).all()
    assert not hits.reembedded[np.vectorize(int)(hits.ids) % 7 == 0].any()


def test_an_encoder_that_returns_nothing_is_refused(world):
    old, _, mapping, queries = world
    with pytest.raises(errors.ShapeError, match="from encode"):
        LazySearch(old, mapping, lambda rows: None).search(queries[:1])
