"""The official openai library against a server on this machine that answers, and fails, like four services."""

import io
import json
import logging
import time
from dataclasses import replace
from email.utils import formatdate

import numpy as np
import pytest
from stand_in_openai import KEY, serving, vector

from congruence import read_embeddings
from congruence.embed import embed, open_items
from congruence.encoders import load_encoder
from congruence.encoders import openai as adapter
from congruence.errors import DatabaseUnavailableError, InputError, NotFiniteError, ParameterError, ShapeError

pytest.importorskip("openai", reason="needs the openai library")
from openai import _base_client as base_client

TEXTS = ["a cat", "dogs", "a banana", "", "one more text"]


@pytest.fixture(scope="module", params=adapter.SERVICES)
def running(request):
    with serving() as server, pytest.MonkeyPatch.context() as patch:
        name, service = request.param, adapter.SERVICES[request.param]
        path = "" if name == "cohere" else "/v1"
        patch.setenv(service.url_variable, f"http://127.0.0.1:{server.server_port}{path}")
        patch.setenv(service.key, KEY)
        patch.setenv("OPENAI_ORG_ID", "org-of-openai")
        server.service = name
        yield server, load_encoder(f"{name}:small")


@pytest.fixture
def name(running):
    return running[0].service


@pytest.fixture
def encoder(running):
    server, encoder = running
    server.requests, server.headers, server.faults, server.change, server.fails_at = [], [], [], None, None
    encoder._client.max_retries = 2
    return encoder


@pytest.fixture
def server(running, encoder):
    return running[0]


def expected(texts):
    return np.array([vector(text) for text in texts], np.float32)


def test_vectors_and_facts(running, server, name):
    prompt = {"cohere": "search_query", "voyage": "query"}.get(name, "query: ")
    before = prompt if name in ("openai", "gemini") else ""
    encoder = load_encoder(f"{name}:small", revision="2024-01", prompt=prompt)
    np.testing.assert_allclose(encoder.encode_all(TEXTS, 2), expected([before + text for text in TEXTS]), rtol=1e-6)
    facts = {"model": f"{name}:small", "revision": "2024-01", "modality": "text", "dim": 4, "normalized": True}
    assert encoder.space.to_dict() == {**facts, "prompt": prompt}
    assert encoder.tokens == sum(len(f"{before}{text}".split()) for text in ["a text", *TEXTS])
    assert {body.get("input_type") for body in server.requests} == {None if before else prompt}
    assert ("org-of-openai" in str(server.headers)) == (name == "openai")
    other = load_encoder(f"{name}:small", normalize=False)
    assert other.space.normalized is False
    assert len({encoder.fingerprint, other.fingerprint, running[1].fingerprint}) == 3


def test_the_kind_of_input_is_one_that_the_service_knows(server, name):
    kinds = adapter.SERVICES[name].kinds
    assert load_encoder(f"{name}:small").space.prompt == (kinds or [None])[0]
    if kinds:
        with pytest.raises(ParameterError, match="prompt.*one of .*query"):
            load_encoder(f"{name}:small", prompt="query: ")


def test_requests_are_within_the_limits(server, encoder, monkeypatch):
    monkeypatch.setattr(encoder, "service", replace(encoder.service, items=3, size=10))
    texts = ["éé", "12345", "1", "1", "1", "1", "1", "12345678901234", "x"]
    np.testing.assert_allclose(encoder.encode_all(texts), expected(texts), rtol=1e-6)
    sent = [body[encoder.service.texts] for body in server.requests]
    assert sent == [["éé", "12345", "1"], ["1", "1", "1"], ["1"], ["12345678901234"], ["x"]]


@pytest.mark.parametrize("fault", [429, 500, 503, "drop"])
def test_what_passes_is_tried_again(server, encoder, fault):
    server.faults[:] = [fault]
    np.testing.assert_allclose(encoder.encode_all(TEXTS), expected(TEXTS), rtol=1e-6)
    assert len(server.requests) == 2


@pytest.mark.parametrize("after", [lambda: "7", lambda: formatdate(time.time() + 7, usegmt=True)])
def test_a_busy_server_says_when_to_ask_again(server, encoder, monkeypatch, after):
    waits: list[float] = []
    monkeypatch.setattr(base_client.time, "sleep", waits.append)
    server.faults[:] = [(429, after())]
    np.testing.assert_allclose(encoder.encode_all(TEXTS), expected(TEXTS), rtol=1e-6)
    assert [4 < wait <= 7 for wait in waits] == [True]


def ask_officially(name, url):
    """Ask for the vectors of ``TEXTS`` by the service's own library."""
    if name == "openai":
        client = pytest.importorskip("openai").OpenAI(api_key=KEY, base_url=f"{url}/v1")
        return [one.embedding for one in client.embeddings.create(input=TEXTS, model="small").data]
    if name == "voyage":
        client = pytest.importorskip("voyageai").Client(api_key=KEY, base_url=f"{url}/v1")
        return client.embed(TEXTS, model="small", input_type="document", truncation=False).embeddings
    if name == "cohere":
        client = pytest.importorskip("cohere").ClientV2(api_key=KEY, base_url=url)
        options = {"input_type": "search_document", "embedding_types": ["float"], "truncate": "NONE"}
        return client.embed(texts=TEXTS, model="small", **options).embeddings.float_
    genai = pytest.importorskip("google.genai")
    with genai.Client(api_key=KEY, http_options={"base_url": url}) as client:
        return [one.values for one in client.models.embed_content(model="small", contents=TEXTS).embeddings]


def test_the_official_library_of_each_service_asks_the_same(server, name):
    """Address, key and body, up to the form of the numbers; Gemini's own has another interface, and the same texts."""
    encoder = load_encoder(f"{name}:small", prompt="document" if name == "voyage" else None)
    ours = encoder.encode_all(TEXTS)
    theirs = ask_officially(name, f"http://127.0.0.1:{server.server_port}")
    np.testing.assert_allclose(theirs, ours, rtol=1e-6)
    bodies = [{key: value for key, value in body.items() if value is not None} for body in server.requests[-2:]]
    heads = [{key.lower(): value for key, value in head.items()} for head in server.headers[-2:]]
    assert [head["content-type"] for head in heads] == ["application/json"] * 2
    if name == "gemini":
        requests = bodies[1]["requests"]
        assert [one["content"]["parts"] for one in requests] == [[{"text": text}] for text in bodies[0]["input"]]
        assert {one["model"] for one in requests} == {f"models/{bodies[0]['model']}"}
        assert heads[0]["authorization"] == f"Bearer {heads[1]['x-goog-api-key']}"
        return
    forms = [body.pop("encoding_format", "float") for body in bodies]
    assert forms[0] == "float"
    assert bodies[0] == bodies[1]
    assert [(head["path"], head["authorization"]) for head in heads] == [(heads[0]["path"], f"Bearer {KEY}")] * 2


def test_keys_that_another_server_made_go_there(monkeypatch):
    monkeypatch.delenv("VOYAGE_BASE_URL", raising=False)
    asked = []
    monkeypatch.setattr(
        adapter.OpenAIEncoder, "_set_dim", lambda self: asked.append(self._place.hostname) or np.ones(4)
    )
    for key in ("pa-123", "al-123"):
        monkeypatch.setenv("VOYAGE_API_KEY", key)
        load_encoder("voyage:small")
    assert asked == ["api.voyageai.com", "ai.mongodb.com"]


def test_a_key_as_it_stands_in_a_file(server, name, monkeypatch):
    service = adapter.SERVICES[name]
    monkeypatch.setenv(service.key, f" {KEY}\n")
    load_encoder(f"{name}:small")
    for key in ("\n", "se\ncret", "kľúč"):
        monkeypatch.setenv(service.key, key)
        with pytest.raises(ParameterError, match=f"No key.*{service.key}") as caught:
            load_encoder(f"{name}:small")
        assert "cret" not in str(caught.value)
        assert "kľúč" not in str(caught.value)


def test_another_model_behind_the_name_in_the_middle_of_a_run(server, encoder, tmp_path):
    (tmp_path / "t.txt").write_text("\n".join(f"text {k}" for k in range(200)))
    items, out = open_items(tmp_path / "t.txt"), tmp_path / "o.parquet"
    server.change = lambda data: [
        {**one, "embedding": one["embedding"] * (1 + (len(server.requests) > 3))} for one in data
    ]
    with pytest.raises(ShapeError, match="8"):
        embed(encoder, items, out, batch_size=50)
    assert not out.exists()
    server.change = None
    report = embed(encoder, items, out, batch_size=50)
    assert (report.resumed, report.rows) == (150, 200)


@pytest.mark.parametrize(
    ("faults", "error", "message"),
    [
        ([429] * 9, DatabaseUnavailableError, "429.*later"),
        ([500] * 9, DatabaseUnavailableError, "500"),
        ([401], ParameterError, "401.*{key}"),
        ([404], ParameterError, "404.*{url}"),
        ([400], InputError, "400"),
    ],
)
def test_what_does_not_pass_is_one_sentence_without_the_key(server, encoder, faults, error, message):
    server.faults[:] = faults
    handler, logger = logging.StreamHandler(log := io.StringIO()), logging.getLogger("openai")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        message = message.format(key=encoder.service.key, url=encoder.service.url_variable)
        with pytest.raises(error, match=message) as caught:
            encoder.encode_all(TEXTS)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
    assert caught.value.__cause__ is None
    assert "HTTP" in log.getvalue()
    for said in (str(caught.value), log.getvalue(), repr(encoder), json.dumps(encoder.space.to_dict())):
        assert KEY not in said


def test_a_wrong_key_or_none_is_said_before_any_work(server, name, monkeypatch):
    key = adapter.SERVICES[name].key
    monkeypatch.setenv(key, "sk-wrong-42")
    with pytest.raises(ParameterError, match=f"40[01].*{key}") as caught:
        load_encoder(f"{name}:small")
    assert "sk-wrong-42" not in str(caught.value)
    monkeypatch.delenv(key)
    with pytest.raises(ParameterError, match=f"No key.*{key}"):
        load_encoder(f"{name}:small")


def test_no_server_is_one_sentence(server, encoder):
    encoder._client.max_retries = 0
    server.faults[:] = ["drop"]
    with pytest.raises(DatabaseUnavailableError, match="127.0.0.1 answered no embeddings"):
        encoder.encode_all(TEXTS)


def test_shuffled_answers_come_in_order(server, encoder, name):
    if name == "cohere":
        pytest.skip("its answers have no index: they are in the order of the texts")
    server.change = lambda data: data[::-1]
    np.testing.assert_allclose(encoder.encode_all(TEXTS), expected(TEXTS), rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda data: data[:-1], ShapeError),
        (lambda data: [{**one, "index": 0} for one in data], ShapeError),
        (lambda data: [{**one, "embedding": one["embedding"][:3]} for one in data], ShapeError),
        (lambda data: [*data[:-1], {**data[-1], "embedding": [1.0]}], ShapeError),
        (lambda data: [{**one, "embedding": ["x"] * 4} for one in data], DatabaseUnavailableError),
        (lambda data: [{**one, "embedding": [float("nan")] * 4} for one in data], NotFiniteError),
        (lambda data: None, DatabaseUnavailableError),
    ],
)
def test_wrong_answers_are_refused(server, encoder, name, change, error):
    if name == "cohere" and change([{"index": 1, "embedding": [1] * 4}]) == [{"index": 0, "embedding": [1] * 4}]:
        pytest.skip("its answers have no index")
    server.change = change
    with pytest.raises(error):
        encoder.encode_all(TEXTS)


def test_a_run_resumes_and_no_file_holds_the_key(server, encoder, tmp_path):
    encoder._client.max_retries = 0
    texts = [f"text {k} {'a' * (k % 7)}" for k in range(300)]
    (tmp_path / "t.txt").write_text("\n".join(texts))
    items, out = open_items(tmp_path / "t.txt"), tmp_path / "o.parquet"
    server.faults[:] = [None] * 7 + [500]
    with pytest.raises(DatabaseUnavailableError, match="500"):
        embed(encoder, items, out, batch_size=30, cache=tmp_path / "cache")
    for file in tmp_path.rglob("*"):
        assert file.is_dir() or KEY.encode() not in file.read_bytes()
    report = embed(encoder, items, out, batch_size=30)
    assert (report.resumed, report.encoded) == (210, 90)
    got = read_embeddings(out)
    np.testing.assert_allclose(got.vectors, expected(texts), rtol=1e-6)
    assert got.space == encoder.space


def test_a_text_that_is_refused_is_found_and_left_out(server, encoder, tmp_path):
    (tmp_path / "t.txt").write_text("cat\ntoo long\ndog\n")
    report = embed(encoder, open_items(tmp_path / "t.txt"), tmp_path / "o.parquet", on_error="skip")
    assert (report.rows, [one["id"] for one in report.failures]) == (2, ["1"])
    assert "context length" in report.failures[0]["error"]


@pytest.mark.long
def test_a_failure_at_item_7301_loses_nothing(server, encoder, tmp_path):
    encoder._client.max_retries = 0
    texts = [f"text {k}" for k in range(8000)]
    (tmp_path / "t.txt").write_text("\n".join(texts))
    server.fails_at = "text 7301"
    with pytest.raises(DatabaseUnavailableError, match="500.*later to resume"):
        embed(encoder, open_items(tmp_path / "t.txt"), tmp_path / "o.parquet")
    server.fails_at = None
    report = embed(encoder, open_items(tmp_path / "t.txt"), tmp_path / "o.parquet")
    assert report.resumed >= 7296 - 64
    np.testing.assert_allclose(read_embeddings(tmp_path / "o.parquet").vectors, expected(texts), rtol=1e-6)
    assert not [file for file in tmp_path.rglob("*") if file.is_file() and KEY.encode() in file.read_bytes()]


def test_the_command_says_what_it_may_cost(here, server, name, tmp_path):
    if name != "openai":
        pytest.skip("once is enough")
    (tmp_path / "t.txt").write_text("\n".join(["twenty bytes of text"] * 100))
    ran = here("embed", "openai:small", "t.txt", "-o", "o.parquet", "--set", "price=0.5", "--set", "prompt=of: ").ends(
        0
    )
    assert "about 600 tokens" in ran.err
    assert read_embeddings(tmp_path / "o.parquet").space.prompt == "of: "
    refused = here("embed", "openai:small", "t.txt", "-o", "p.parquet", "--set", "price=x").refused("price")
    assert KEY not in refused.err
