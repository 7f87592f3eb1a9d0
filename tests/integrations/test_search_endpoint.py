"""``POST /v1/search``: an index that is re-embedded by use, behind a real server."""

from __future__ import annotations

import signal
import threading
from itertools import pairwise

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_serve_command import result, start
from test_server import refused, running
from toy_models import TEXTS, Toy, new_model, old_model

import congruence
from congruence import Embeddings, LazySearch, Space, errors
from congruence.integrations.server import create_app

pytestmark = pytest.mark.heavy
ASKED = ["a cat that sleeps", "the owl in a tree", "frogs in the snow", "bees all day", "a dog at night"]


@pytest.fixture(scope="module")
def index(old_rows):
    return Embeddings(old_rows, ids=TEXTS, space=Space("old-model", None, "text", normalized=True))


@pytest.fixture(scope="module")
def ahead(index, new_rows):
    """A map of the index from few rows, which knows less than half of the directions."""
    new = Embeddings(new_rows, ids=TEXTS, space=Space("toy:new", "1", "text", normalized=True))
    some = TEXTS[:: len(TEXTS) // 11]
    with pytest.warns(errors.ProjectionWarning):  # from 24 to 16 directions
        return congruence.fit(index.take(some), new.take(some), method="orthogonal", check=False)


def ask(server, texts=ASKED, **more):
    body = {"model": "toy:new", "input": texts, **more}
    response = server.http.post(f"{server.url}/v1/search", json=body)
    assert response.status_code == 200, response.text
    return [one["hits"] for one in response.json()["data"]]


def test_answers_come_at_once_and_heal(index, ahead, new_rows):
    free, calls = threading.Event(), []

    def encode(texts):
        calls.append(len(texts))
        assert free.wait(20)
        return new_model(texts)

    with (
        LazySearch(index, ahead, encode, mode="background", budget=20, check=False) as search,
        running(create_app(None, Toy(), lazy=search)) as server,
    ):
        first = ask(server, k=5)
        assert [len(hits) for hits in first] == [5] * 5
        assert not any(hit["reembedded"] for hits in first for hit in hits)
        assert server.metric("congruence_lazy_queued ") == 1
        assert server.metric("congruence_lazy_reembedded_share ") == 0
        free.set()
        search.join()
        second = ask(server, k=5)
        assert all(hit["reembedded"] for hits in second for hit in hits)
        queries = new_model(ASKED)
        for hits, query in zip(second, queries, strict=True):
            for hit in hits:
                assert hit["score"] == pytest.approx(float(new_model([hit["id"]])[0] @ query), abs=1e-5)
            assert all(a["score"] >= b["score"] for a, b in pairwise(hits))
        search.join()
        assert server.metric("congruence_lazy_encoded ") == sum(calls)
        assert server.metric("congruence_lazy_reembedded_share ") == pytest.approx(sum(calls) / len(TEXTS))
        assert server.metric("congruence_lazy_queued ") == 0
        agrees = np.mean([len({h["id"] for h in a} & {h["id"] for h in b}) / 5 for a, b in zip(first, second)])  # noqa: B905
        assert agrees - 0.1 <= server.metric("congruence_lazy_agreement ") <= 1
        vectors = server.post({"model": "toy:new", "input": ASKED}).json()["data"]
        np.testing.assert_allclose([one["embedding"] for one in vectors], queries, atol=1e-6)


def test_what_cannot_be_searched(index, ahead, bridge):
    with LazySearch(index, ahead, new_model, mode="background") as search:
        with running(create_app(None, Toy(), lazy=search)) as server:
            for wrong in (0, 1001, "3", 2.5, True):
                response = server.http.post(
                    f"{server.url}/v1/search", json={"model": "toy:new", "input": "x", "k": wrong}
                )
                assert response.status_code == 400
                assert refused(response)["param"] == "k"
        with pytest.raises(errors.DirectionError, match="'old-model'"):
            create_app(bridge, Toy(), lazy=search)
        with pytest.raises(errors.DirectionError, match="24-d"):
            create_app(None, old_model, lazy=search)
        with pytest.raises(errors.SpaceMismatchError, match="'another'"):
            other = Toy()
            other.space = Space("another", "1", "text", 16, True)
            create_app(None, other, lazy=search)
    with running(create_app(bridge, Toy())) as server:
        assert server.http.post(f"{server.url}/v1/search", json={}).status_code == 404


def test_an_encoder_of_another_model_is_switched_off_and_searches_go_on(index, ahead):
    def turned(texts):
        return new_model(texts)[:, ::-1]

    with (
        LazySearch(index, ahead, turned, mode="background") as search,
        running(create_app(None, Toy(), lazy=search)) as server,
    ):
        for _ in range(4):
            assert len(ask(server, "a cat that sleeps")[0]) == 10
            for one in list(search._waiting):
                one.exception()  # waits for it
        assert search.reembedded_share_ == 0
        assert search.queued_ == 0


@pytest.mark.parametrize("how", ["gone", "down", "narrow"])
def test_an_encoder_that_fails_is_counted_and_searches_go_on(index, ahead, how):
    bad = {text for text in TEXTS if "cat" in text}
    healthy = [True]

    def encode(texts):
        if not healthy[0] and how == "down":
            raise ConnectionError
        if how == "gone":
            return [None if text in bad else row for text, row in zip(texts, new_model(texts), strict=True)]
        return new_model(texts)[:, : 16 if healthy[0] else 15]

    with (
        LazySearch(index, ahead, encode, mode="background", budget=20) as search,
        running(create_app(None, Toy(), lazy=search)) as server,
    ):
        assert search.check()
        healthy[0] = False
        for _ in range(3):
            assert len(ask(server, "a cat that sleeps", k=7)[0]) == 7
            search.join()
        if how == "gone":
            assert 0 < server.metric("congruence_lazy_failed ") <= len(bad)
            assert not bad & {TEXTS[row] for row in search.rows.native}
        else:
            assert server.metric("congruence_lazy_errors ") > 0
            assert search.rows.n_native == search.counts_["encoded"] <= 20  # those of the check
        assert search.error_ is None or how != "gone"


def test_many_clients_at_a_time(index, ahead):
    with (
        LazySearch(index, ahead, new_model, mode="background", budget=10) as search,
        running(create_app(None, Toy(), lazy=search)) as server,
    ):
        found = []
        threads = [threading.Thread(target=lambda k=k: found.append(ask(server, TEXTS[7 * k], k=3))) for k in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        search.join()
        assert len(found) == 40
        assert search.counts_["encoded"] == search.rows.n_native
        assert search.counts_["left"] == 0


def test_an_encoder_of_another_model_is_refused_before_the_server_listens(here, index, ahead, toy, new_rows, tmp_path):
    np.savez(tmp_path / "old.npz", vectors=index.vectors, ids=TEXTS)
    np.savez(tmp_path / "other.npz", vectors=new_rows[:, ::-1], ids=TEXTS)
    ahead.save(tmp_path / "map")
    words = ("--encoder", toy, "--index", "old.npz", "--encode", "other.npz", "--port", "0")
    here("bridge serve", "map", *words).refused("not those of the new model")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.long
def test_a_server_that_is_killed_keeps_what_it_encoded(index, ahead, tmp_path, number):
    pytest.importorskip("lancedb")
    import lancedb

    from congruence import migrate

    rows = pa.table({"id": TEXTS, "vector": pa.FixedSizeListArray.from_arrays(index.vectors.ravel(), index.dim)})
    table = lancedb.connect(str(tmp_path)).create_table("texts", rows)
    migrate(str(tmp_path / "texts.lance"), ahead, switch=True, modality="text", journal=tmp_path / "journal")
    pq.write_table(pa.table({"id": TEXTS, "text": TEXTS}), tmp_path / "items.parquet")
    index_words = ("--index", str(tmp_path / "texts.lance"), "--encode", "toy:new")
    settings = ("--set", f"items={tmp_path / 'items.parquet'}", "--set", "rate=20")
    words = (*index_words, *settings, "--budget", "10")

    def metrics(url: str) -> dict[str, float]:
        page = httpx.get(url.replace("/v1", "/metrics")).text
        lines = [line.split() for line in page.splitlines() if line.startswith("congruence_lazy")]
        return {name: float(value) for name, value in lines}

    process = start(tmp_path / "journal", *words)
    facts = result(process)
    try:
        for text in TEXTS[::5][:60]:
            body = {"model": "toy:new", "input": text, "k": 3}
            assert len(httpx.post(f"{facts['url']}/search", json=body, timeout=20).json()["data"][0]["hits"]) == 3
        while (before := metrics(facts["url"]))["congruence_lazy_encoded"] < 40:
            pass
        assert before["congruence_lazy_queued"] > 10  # twenty a second
        process.send_signal(number)
        _, err = process.communicate(timeout=20)  # the queue is not waited for
        assert err == ""
        assert process.returncode == (0 if number == signal.SIGTERM else -number)
    finally:
        process.kill()
        process.communicate()
    process = start(tmp_path / "journal", *words)
    try:
        after = metrics(result(process)["url"])
        share = before["congruence_lazy_reembedded_share"]
        assert share <= after["congruence_lazy_reembedded_share"] <= share + 30 / len(TEXTS)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
    finally:
        process.kill()
        process.communicate()
    table.checkout_latest()
    held = {row["id"]: np.array(row["vector"], np.float32) for row in table.search().limit(len(TEXTS)).to_list()}
    own = [np.abs(held[text] - new).max() < 1e-5 for text, new in zip(TEXTS, new_model(TEXTS), strict=True)]
    assert sum(own) == round(after["congruence_lazy_reembedded_share"] * len(TEXTS))
