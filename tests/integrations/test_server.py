"""The server, by the real ``openai`` client against a real uvicorn: what is answered, and every limit."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import numpy as np
import pytest
import uvicorn
from toy_models import Toy, new_model

from congruence.errors import DirectionError, ParameterError, SpaceMismatchError
from congruence.integrations.batching import Batcher, StoppedError
from congruence.integrations.process import listen
from congruence.integrations.server import LOOPBACK, Limits, create_app

pytestmark = pytest.mark.heavy
TEXTS = ["a cat sleeps", "the owl that sings", "frogs"]
SECRET = "a text that nobody else may read"


@pytest.fixture(scope="module", autouse=True)
def client_library():
    """Import when the first test runs: collecting imports a module in every process."""
    global openai
    import openai


class Served:
    """A running server, and clients for it."""

    def __init__(self, port: int, app) -> None:
        self.port, self.service = port, app.state.service
        self.url = f"http://127.0.0.1:{port}"
        self.http = httpx.Client(verify=False, timeout=20)  # which reads the certificates of the world otherwise

    def client(self, key: str = "any", retries: int = 0, path: str = "/v1") -> openai.OpenAI:
        return openai.OpenAI(base_url=self.url + path, api_key=key, max_retries=retries, http_client=self.http)

    def get(self, path: str, **headers) -> httpx.Response:
        return self.http.get(self.url + path, headers=headers)

    def post(self, body, **headers) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"content-type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}}
        return self.http.post(f"{self.url}/v1/embeddings", content=content, headers=headers)

    def raw(self, header: str, body: bytes = b"", *, closed: bool = False) -> tuple[bytes, bytes | None]:
        """Return the status line of a request, and what follows the first answer if the server closes."""
        lines = ["POST /v1/embeddings HTTP/1.1", "Host: x", "Content-Type: application/json", header, "", ""]
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as client:
            client.sendall("\r\n".join(lines).encode() + body)
            return client.recv(4096).split(b"\r\n")[0], client.recv(4096) if closed else None

    def metric(self, line: str, **headers) -> float:
        page = self.get("/metrics", **headers).text
        return next((float(row.rpartition(" ")[2]) for row in page.splitlines() if row.startswith(line)), 0.0)


@contextmanager
def running(app) -> Iterator[Served]:
    taken = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [taken]})
    thread.start()
    try:
        until(lambda: server.started)
        served = Served(taken.getsockname()[1], app)
        yield served
        served.http.close()
    finally:
        server.should_exit = True
        thread.join()
        taken.close()


@pytest.fixture(scope="module")
def served(bridge):
    with running(create_app(bridge, Toy(), names=["old-model", "text-embedding-3-small"])) as server:
        yield server


def until(condition) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "waited for nothing"
        time.sleep(0.005)


class Slow:
    """An encoder that waits until it is let go, and notes what it was given."""

    def __init__(self) -> None:
        self.free, self.begun, self.calls = threading.Event(), threading.Event(), []

    def __call__(self, texts):
        self.calls.append(list(texts))
        if any("slow" in text for text in texts):
            self.begun.set()
            self.free.wait(10)
        if "bad" in texts:
            raise ValueError
        return new_model(texts)

    @contextmanager
    def busy(self, server: Served) -> Iterator[None]:
        """Encode a slow text for one client until the block ends."""
        first = threading.Thread(target=server.post, args=({"model": "old", "input": "slow"},))
        first.start()
        assert self.begun.wait(5)
        yield
        self.free.set()
        first.join()

    def hold_up(self, server: Served, texts: list[str]) -> dict[str, httpx.Response]:
        """Ask for a slow text and, once it is being encoded, for others; let it go, and return all answers."""
        answers: dict[str, httpx.Response] = {}

        def ask(text: str) -> None:
            answers[text] = server.post({"model": "old", "input": text})

        threads = [threading.Thread(target=ask, args=(text,)) for text in texts]
        with self.busy(server):
            for thread in threads:
                thread.start()
            until(lambda: server.service.batcher.waiting == len(threads))
        for thread in threads:
            thread.join()
        return answers


@pytest.fixture
def slow():
    encoder = Slow()
    yield encoder
    encoder.free.set()


def refused(response: httpx.Response) -> dict:
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"].endswith(".")
    return body["error"]


# ------------------------------------------------------------------ what is answered


def test_the_openai_client_gets_vectors_of_the_index(served, bridge):
    want = bridge.transform(new_model(TEXTS), "text")
    client = served.client()
    for form in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}):
        answered = client.embeddings.create(model="old-model", input=TEXTS, **form)
        rows = [one.embedding for one in answered.data]
        if form.get("encoding_format") == "base64":
            rows = [np.frombuffer(base64.b64decode(row), "<f4") for row in rows]
        np.testing.assert_allclose(rows, want, atol=1e-6)
        assert [one.index for one in answered.data] == [0, 1, 2]
        assert (answered.usage.prompt_tokens, answered.usage.total_tokens) == (5 + 6 + 3, 5 + 6 + 3)
    one = client.embeddings.create(model="text-embedding-3-small", input=TEXTS[1], dimensions=24, user="me")
    null = served.post({"model": "old-model", "input": TEXTS, "encoding_format": None, "dimensions": None})
    np.testing.assert_allclose([one["embedding"] for one in null.json()["data"]], want, atol=1e-6)
    np.testing.assert_allclose(one.data[0].embedding, want[1], atol=1e-6)
    assert one.model == "old-model"


def test_models_health_and_numbers(served):
    client = served.client()
    assert [model.id for model in client.models.list()] == ["old-model", "text-embedding-3-small"]
    assert client.models.retrieve("text-embedding-3-small").owned_by == "congruence"
    with pytest.raises(openai.NotFoundError, match="not served"):
        client.models.retrieve("gpt")
    assert served.get("/healthz").json() == {"status": "ok"}
    before = served.metric('congruence_requests_total{path="/v1/embeddings",status="200"}')
    tokens = served.metric("congruence_tokens_total")
    client.embeddings.create(model="old-model", input=TEXTS)
    assert served.metric('congruence_requests_total{path="/v1/embeddings",status="200"}') == before + 1
    assert served.metric("congruence_tokens_total") == tokens + 14
    served.get("/a/path/of/a/stranger")
    page = served.get("/metrics")
    assert "stranger" not in page.text
    assert page.headers["content-type"].startswith("text/plain; version=")
    assert "/v1/embeddings" in served.get("/openapi.json").json()["paths"]


def test_the_source_space_is_the_encoders_own(bridge, new_rows):
    with running(create_app(bridge, Toy(), space="source")) as server:
        answered = server.client().embeddings.create(model="toy:new", input=TEXTS)
        np.testing.assert_allclose([one.embedding for one in answered.data], new_model(TEXTS), atol=1e-6)


def test_an_application_can_be_mounted_in_another(bridge):
    from fastapi import FastAPI

    outer = FastAPI()
    inner = create_app(bridge, new_model, names=["old"], api_key="a key of some length")
    outer.mount("/vectors", inner)
    outer.state.service = inner.state.service
    with running(outer) as server:
        client = server.client("a key of some length", path="/vectors/v1")
        assert len(client.embeddings.create(model="old", input="a cat").data[0].embedding) == 24
        assert server.get("/vectors/healthz").status_code == 200
        assert server.get("/vectors/v1/models").status_code == 401
        page = server.get("/vectors/metrics", authorization="Bearer a key of some length")
        assert 'path="/v1/embeddings",status="200"} 1.0' in page.text
        inner.state.service.batcher.close()


# ------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("body", "status", "param", "said"),
    [
        (b"{", 400, None, "not JSON"),
        (b"[" * 100_000, 400, None, "not JSON"),
        (b"[]", 400, None, "The body is empty"),
        ({"input": "x"}, 404, "model", "'old-model' or"),
        ({"model": "other", "input": "x"}, 404, "model", "'old-model' or 'text-embedding-3-small'"),
        ({"model": "old-model"}, 400, "input", "missing or null"),
        ({"model": "old-model", "input": []}, 400, "input", "is empty"),
        ({"model": "old-model", "input": ["a", None]}, 400, "input", "Input 1"),
        ({"model": "old-model", "input": ["a", ""]}, 400, "input", "Input 1"),
        ({"model": "old-model", "input": ["a", "\ud800b"]}, 400, "input", "surrogate"),
        ({"model": "old-model", "input": [5, 6, 7]}, 400, "input", "Send the text itself"),
        ({"model": "old-model", "input": [[5, 6], [7]]}, 400, "input", "check_embedding_ctx_length=False"),
        ({"model": "old-model", "input": "x", "encoding_format": "int8"}, 400, "encoding_format", "'float' or"),
        ({"model": "old-model", "input": "x", "dimensions": 8}, 400, "dimensions", "expected 24"),
        ({"model": "old-model", "input": ["x"] * 257}, 400, "input", "Got 257 texts; expected at most 256"),
        ({"model": "old-model", "input": "x" * 32769}, 413, "input", "at most 32768"),
    ],
)  # fmt: skip
def test_requests_that_cannot_be_answered(served, body, status, param, said):
    response = served.post(body)
    error = refused(response)
    assert (response.status_code, error["param"]) == (status, param)
    assert said in error["message"]


def test_paths_methods_and_types(served):
    assert "base_url" in refused(served.get("/embeddings"))["message"]
    other = served.get("/v1/embeddings")
    assert other.status_code == 405
    assert "POST" in refused(other)["message"]
    plain = served.post({"model": "old-model", "input": "x"}, content_type="text/plain")
    assert (plain.status_code, "application/json" in refused(plain)["message"]) == (415, True)
    packed = served.post(b"\x1f\x8b", content_encoding="gzip")
    assert (packed.status_code, "compressed" in refused(packed)["message"]) == (415, True)


# ------------------------------------------------------------------ sizes


def test_a_body_is_refused_by_its_length_before_it_is_read(bridge):
    with running(create_app(bridge, new_model, names=["old"], limits=Limits(max_body=1000))) as server:
        assert b" 413 " in server.raw("Content-Length: 1001")[0]  # it sent no body at all
        with pytest.raises(openai.APIStatusError, match="at most 1000 bytes") as caught:
            server.client().embeddings.create(model="old", input="x" * 100_000)
        assert caught.value.status_code == 413
        fits = b'{"model":"old","input":"%s"}' % (b"x" * 970)
        assert len(fits) <= 1000
        assert server.post(fits).status_code == 200


def test_a_body_without_a_length_is_read_no_further_than_the_limit(bridge):
    with running(create_app(bridge, new_model, names=["old"], limits=Limits(max_body=1000))) as server:
        sent = []

        def endless():
            for _ in range(50):
                sent.append(1)
                yield b"x" * 100

        where = f"{server.url}/v1/embeddings"
        response = server.http.post(where, content=endless(), headers={"content-type": "application/json"})
        assert response.status_code == 413
        answer, _ = server.raw("Transfer-Encoding: chunked", b"400\r\n" + b"x" * 0x400 + b"\r\n")
        assert b" 413 " in answer  # in the middle of it


# ------------------------------------------------------------------ time and load


def test_the_time_of_a_request_is_limited(bridge, slow):
    with running(create_app(bridge, slow, names=["old"], limits=Limits(timeout=0.15))) as server:
        late = server.post({"model": "old", "input": "slow"})
        assert late.status_code == 504
        assert refused(late)["type"] == "timeout_error"
        waited = server.post({"model": "old", "input": "never encoded"})  # behind it in line
        assert waited.status_code == 504
        slow.free.set()
        assert server.post({"model": "old", "input": "later"}).status_code == 200
        assert ["never encoded"] not in slow.calls


def test_a_body_that_does_not_come_is_not_waited_for(bridge):
    with running(create_app(bridge, new_model, names=["old"], limits=Limits(timeout=0.15))) as server:
        answer, then = server.raw("Content-Length: 100", b"{", closed=True)
        assert b" 408 " in answer
        assert then == b""


def test_a_full_line_asks_to_come_again(bridge, slow):
    with running(create_app(bridge, slow, names=["old"], limits=Limits(max_waiting=2))) as server:
        answers: list[httpx.Response] = []
        body = {"model": "old", "input": "slow"}
        second = threading.Thread(target=lambda: answers.append(server.post(body)))
        with slow.busy(server):
            second.start()
            until(lambda: server.service.batcher.waiting == 1)
            full = server.post(body)
            assert full.status_code == 503
            assert full.headers["retry-after"] == "1"
            assert refused(full)["code"] == "overloaded"
            assert server.get("/healthz").status_code == 200  # loaded, but alive
        second.join()
        assert [answer.status_code for answer in answers] == [200]


def test_a_client_that_left_costs_nothing(bridge, slow):
    with running(create_app(bridge, slow, names=["old"])) as server:
        with slow.busy(server):
            with pytest.raises(httpx.ReadTimeout):
                server.http.post(f"{server.url}/v1/embeddings", json={"model": "old", "input": "left"}, timeout=0.1)
            until(lambda: server.service._active == 1)
        assert server.post({"model": "old", "input": "after"}).status_code == 200
        assert ["left"] not in slow.calls


def test_requests_that_wait_are_encoded_together(bridge, slow):
    with running(create_app(bridge, slow, names=["old"], limits=Limits(max_batch=4))) as server:
        answers = slow.hold_up(server, [f"text {k}" for k in range(6)])
        assert [len(call) for call in slow.calls[-3:]] == [1, 4, 2]
        for text, answer in answers.items():
            vector = answer.json()["data"][0]["embedding"]
            np.testing.assert_allclose(vector, bridge.transform(new_model([text])[0], "text"), atol=1e-5)
        assert server.metric("congruence_batch_texts_sum") == 7


# ------------------------------------------------------------------ keys and names


def test_a_key_is_needed_where_there_is_one(bridge):
    key = "correct horse battery staple"
    with running(create_app(bridge, new_model, names=["old"], api_key=key)) as server:
        assert len(server.client(key).embeddings.create(model="old", input="x").data) == 1
        for wrong in ("correct horse battery stapl", key + "x", key.upper(), "ключ".encode().decode("latin-1")):
            response = server.post({"model": "old", "input": SECRET}, authorization=f"Bearer {wrong}".encode("latin-1"))
            assert response.status_code == 401
            assert response.headers["www-authenticate"] == "Bearer"
            assert refused(response)["code"] == "invalid_api_key"
            assert wrong not in response.text
        with pytest.raises(openai.AuthenticationError):
            server.client("wrong").models.list()
        for path in ("/metrics", "/openapi.json", "/v1/models", "/nothing"):
            assert server.get(path).status_code == 401
        assert server.get("/healthz").status_code == 200
        answered = 'congruence_requests_total{path="/v1/embeddings",status="200"}'
        assert server.metric(answered, authorization=f"Bearer {key}") == 1


def test_keys_are_compared_in_constant_time(bridge, monkeypatch):
    from congruence.integrations import server as module

    compared = []
    monkeypatch.setattr(module.hmac, "compare_digest", lambda a, b: compared.append((a, b)) or False)
    with running(create_app(bridge, new_model, names=["old"], api_key="the right key of all")) as server:
        assert server.post({}, authorization="Bearer the right key of all").status_code == 401
    assert compared == [(b"Bearer the right key of all",) * 2]


def test_a_page_in_a_browser_cannot_reach_a_server_on_loopback(bridge):
    """DNS rebinding: a stranger's name that leads to 127.0.0.1 is the page's own origin."""
    with running(create_app(bridge, new_model, names=["old"], allowed_hosts=LOOPBACK)) as server:
        for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", ""):
            assert server.post({"model": "old", "input": "x"}, host=host).status_code == 421
        for host in ("localhost", f"127.0.0.1:{server.port}", "[::1]:8000", "LOCALHOST:1"):
            assert server.post({"model": "old", "input": "x"}, host=host).status_code == 200


# ------------------------------------------------------------------ nothing is repeated


@pytest.fixture
def records():
    """Give the records of every logger as they come; pytest's own recorder costs every other test a little."""
    found: list[logging.LogRecord] = []
    handler, root = logging.Handler(), logging.getLogger()
    handler.emit = found.append
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield found
    root.removeHandler(handler)
    root.setLevel(before)


def test_failures_tell_neither_client_nor_log_what_was_sent(bridge, records):
    def encode(texts):
        if any(SECRET in text for text in texts):
            raise ValueError(f"cannot read {texts}")
        return new_model(texts)

    with running(create_app(bridge, encode, names=["old"])) as server:
        response = server.post({"model": "old", "input": SECRET})
        assert response.status_code == 500
        name = response.headers["x-request-id"]
        assert name in refused(response)["message"]
        logged = "\n".join(record.getMessage() for record in records if record.name == "congruence.serve")
        assert name in logged
        assert "ValueError" in logged
        assert "in encode" in logged  # where, for whoever has to mend it
        for body in (
            {"model": "old", "input": [SECRET, 3]},
            {"model": SECRET, "input": "x"},
            {"model": "old", "input": [SECRET, ""]},
            {"model": "old", "input": {SECRET: SECRET}},
            {"model": "old", "input": "x", "encoding_format": SECRET},
            {"model": "old", "input": "x", "dimensions": SECRET},
            f'{{"model": "old", "input": "{SECRET}'.encode(),
        ):
            bad = server.post(body)
            assert 400 <= bad.status_code < 500
            assert "may read" not in bad.text
        assert "may read" not in server.get(f"/v1/models/{SECRET}").text
        assert "may read" not in server.get(f"/{SECRET}").text
    for record in records:
        assert SECRET not in record.getMessage() + str(record.exc_info)


def test_one_bad_text_does_not_fail_those_encoded_with_it(bridge, slow):
    with running(create_app(bridge, slow, names=["old"])) as server:
        answers = slow.hold_up(server, ["good", "bad"])
    assert {text: answer.status_code for text, answer in answers.items()} == {"good": 200, "bad": 500}


# ------------------------------------------------------------------ what is checked when it is made


def test_what_does_not_fit_is_refused_at_the_start(bridge):
    with pytest.raises(DirectionError):
        create_app(bridge, lambda texts: np.ones((len(texts), 24)) / 24**0.5)
    with pytest.raises(SpaceMismatchError, match="unit rows"):
        create_app(bridge, lambda texts: 7 * new_model(texts), space="source")
    limits = [
        {"limits": Limits(**{name: value})} for name, value in (("max_batch", 0), ("max_body", -1), ("timeout", 0))
    ]
    for bad in ({"space": "both"}, {"api_key": ""}, {"names": []}, {"names": [""]}, {"window": -1.0}, *limits):
        with pytest.raises(ParameterError):
            create_app(bridge, new_model, **bad)


def test_a_batcher_ends_what_is_in_line_and_takes_no_more():
    free = threading.Event()

    def encode(texts):
        free.wait(5)
        return np.zeros((len(texts), 2), np.float32), [1] * len(texts)

    batcher = Batcher(encode, max_batch=2, window=0.0)
    results = [batcher.submit([str(k)]) for k in range(5)]
    assert results[4].cancel()
    closing = threading.Thread(target=batcher.close)
    closing.start()
    until(lambda: not batcher.open)
    with pytest.raises(StoppedError):
        batcher.submit(["late"])
    free.set()
    closing.join()
    assert [result.result()[1] for result in results[:4]] == [1] * 4
    batcher.open = True
    assert batcher.submit(["again"]).result(5)[0].shape == (1, 2)
    batcher.close()


HANGING = """
import sys, threading, time, urllib.request, json
import numpy as np
from congruence import Bridge, OrthogonalMap
from congruence.embeddings import normalize_rows
from congruence.integrations.process import listen, serve
from congruence.integrations.server import create_app

def encode(texts):
    if "hang" in texts:
        print("encoding", flush=True)
        time.sleep(60)
    return np.eye(8, dtype=np.float32)[: len(texts)]

taken = listen("127.0.0.1", 0)
url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1/embeddings"
body = json.dumps({"model": "m", "input": "hang"}).encode()
ask = lambda: urllib.request.urlopen(urllib.request.Request(url, body, {"content-type": "application/json"}))
rows = normalize_rows(np.random.default_rng(0).standard_normal((40, 8)))
app = create_app(Bridge(OrthogonalMap().fit(rows, rows)), encode, names=["m"])
serve(app, taken, timeout=60, on_ready=threading.Thread(target=ask, daemon=True).start)
"""


@pytest.mark.long
def test_a_second_interrupt_does_not_wait_for_a_model_that_hangs():
    with subprocess.Popen([sys.executable, "-c", HANGING], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        try:
            assert server.stdout.readline() == b"encoding\n"
            server.send_signal(signal.SIGINT)
            time.sleep(0.2)  # signals that wait for delivery together count once
            server.send_signal(signal.SIGINT)
            assert server.wait(20) == 0
        finally:
            server.kill()


def test_a_window_waits_for_more():
    sizes = []

    def encode(texts):
        sizes.append(len(texts))
        return np.zeros((len(texts), 2), np.float32), [1] * len(texts)

    batcher = Batcher(encode, max_batch=3, window=30.0)
    for result in [batcher.submit([str(k)]) for k in range(3)]:  # the third fills it: nobody waits half a minute
        result.result(5)
    assert sizes == [3]
    batcher.close()


def test_one_thread_encodes(bridge):
    toy = Toy()
    with running(create_app(bridge, toy, names=["old"])) as server, ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda k: server.post({"model": "old", "input": f"{k}"}), range(8)))
    assert toy.threads == {threading.main_thread().name, "congruence-encoder"}  # the sample; the rest


def test_concurrent_answers_do_not_mix(served, bridge):
    texts = [f"{text} {k}" for k in range(20) for text in TEXTS]

    async def ask():
        plain = httpx.AsyncClient(verify=False, timeout=20)
        async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="any", http_client=plain) as client:
            return await asyncio.gather(*(client.embeddings.create(model="old-model", input=text) for text in texts))

    rows = [one.data[0].embedding for one in asyncio.run(ask())]
    np.testing.assert_allclose(rows, bridge.transform(new_model(texts), "text"), atol=1e-6)


@pytest.mark.long
def test_the_openai_client_comes_again(bridge, slow):
    app = create_app(bridge, slow, names=["old"], limits=Limits(max_waiting=1))
    with running(app) as server, slow.busy(server):
        threading.Timer(0.2, slow.free.set).start()
        assert len(server.client(retries=2).embeddings.create(model="old", input="a cat").data) == 1
