"""An OpenAI-compatible server of vectors in an index's space (extra ``serve``).

https://platform.openai.com/docs/api-reference/embeddings
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import logging
import time
import traceback
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, MutableMapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any

import numpy as np

from congruence._utils.optional import require
from congruence._utils.validation import check_choice, check_positive
from congruence._version import __version__
from congruence.embeddings import Space, check_space
from congruence.errors import ParameterError, ShapeError, SpaceMismatchError
from congruence.integrations.batching import Batcher, StoppedError
from congruence.integrations.texts import BridgeLike, EncoderLike, TextVectors
from congruence.upgrade.lazy import LazySearch

require("fastapi", extra="serve")

from fastapi import FastAPI, Request, Response  # noqa: E402
from fastapi.responses import JSONResponse  # noqa: E402
from starlette.exceptions import HTTPException  # noqa: E402
from starlette.requests import ClientDisconnect  # noqa: E402

LOOPBACK = ("localhost", "127.0.0.1", "::1")  # host names to which a server without a key responds

#: Paths with metrics of their own; all other paths are counted together as "other".
PATHS = ("/v1/embeddings", "/v1/search", "/v1/models", "/healthz", "/metrics")

MOST_HITS = 1000  # results of a search

#: Metrics of an index that is re-embedded by use: ``congruence_lazy_…``, counts and attributes of ``LazySearch``.
LAZY = {
    "reembedded_share": "Share of the rows that have the new model's own vectors.",
    "agreement": "Estimated agreement of answers with the new model's own lists, over the last queries.",
    "queued": "Searches whose rows wait to be encoded.",
    "encoded": "Rows encoded by this server.",
    "failed": "Rows that could not be encoded, and stay mapped.",
    "errors": "Calls that the encoder of rows did not answer.",
    "left": "Queries for which nothing is encoded, since the queue was full.",
}

#: Responses with more numbers than this are serialized in another thread, so that other requests do not have to wait.
MANY = 50_000

_log = logging.getLogger("congruence.serve")


@dataclass(frozen=True)
class Limits:
    """Limits on the size, number and duration of requests."""

    max_batch: int = 256  # texts per request, and per call of the encoder
    max_body: int = 2 * 2**20  # bytes of a request
    max_chars: int = 32768  # characters of a text
    max_waiting: int = 256  # requests being read, waiting or being encoded; further ones are told to retry
    timeout: float = 30.0  # seconds after which a request without vectors is refused


def create_app(
    bridge: BridgeLike,
    encoder: EncoderLike,
    *,
    space: str = "target",
    names: Sequence[str] | None = None,
    api_key: str | None = None,
    allowed_hosts: Sequence[str] | None = None,
    limits: Limits | None = None,
    window: float = 0.0,
    lazy: LazySearch | None = None,
    **options: Any,
) -> FastAPI:
    """Return an application with OpenAI's ``POST /v1/embeddings``, which returns vectors in the space of an index.

    One thread encodes; waiting requests are encoded together. Requests whose client has disconnected or whose time
    limit has passed are not encoded. The contents of requests never appear in responses or logs.

    Parameters
    ----------
    bridge, encoder, **options
        As for ``TextVectors``, whose errors are raised for an encoder that does not match the bridge.
    space : {"target", "source"}, default="target"
        Serve vectors in the space of the index, or the encoder's own, which must still match the bridge.
    names : sequence of str, optional
        Accepted values of ``model`` in requests; responses contain the first. By default the name of the model whose
        space is served.
    api_key : str, optional
        Key that requests must send as ``Authorization: Bearer``, except for ``/healthz``.
    allowed_hosts : sequence of str, optional
        Accepted ``Host`` headers, without port; all by default. Set it for a server on loopback without a key;
        otherwise a web page can access the server through a host name that it controls (DNS rebinding).
    limits : Limits, optional
    window : float, default=0
        Seconds that an idle encoder waits for more texts. Texts that arrive while it is busy are always encoded
        together.
    lazy : LazySearch, optional
        Also answer ``POST /v1/search`` from this index of the encoder's space, best in mode "background". It encodes
        nothing further when the application stops; whoever opened it closes it.
    """
    limits = limits or Limits()
    for name, value in vars(limits).items():
        check_positive(value, name, integer=name != "timeout")
    check_choice(space, ("target", "source"), "space")
    if not 0 <= window < limits.timeout:
        expected = f"seconds from 0 to the time limit, {limits.timeout:g}"
        raise ParameterError(argument="window", got=window, expected=expected, fix="Pass `window=0` to wait for none.")
    if api_key == "":
        raise ParameterError("The key is empty.", "Pass `api_key=` a secret, or None for no key.")
    vectors = TextVectors(encoder, bridge, **options)
    if space == "source":
        vectors = vectors.unmapped()
    if lazy is not None:
        known = vectors.space if options.get("check", True) else Space(dim=vectors.dim)
        check_space(known, *lazy.rows.spaces, modality=False)
    served = tuple(names) if names is not None else (vectors.name,)
    if not served or not all(isinstance(name, str) and name for name in served):
        raise ParameterError("A name of the model is missing or empty.", "Pass `names=[…]`, as clients send them.")
    service = Service(vectors, served, limits, window, lazy)
    # The /docs pages would load scripts from other sites.
    app = FastAPI(title="congruence", version=__version__, lifespan=service.lifespan, docs_url=None, redoc_url=None)
    app.add_api_route("/v1/embeddings", service.embeddings, methods=["POST"], response_model=None, openapi_extra=SCHEMA)
    if lazy is not None:
        app.add_api_route("/v1/search", service.search, methods=["POST"], response_model=None, openapi_extra=SCHEMA)
    app.add_api_route("/v1/models", service.models)
    app.add_api_route("/v1/models/{name:path}", service.model)
    app.add_api_route("/healthz", service.health, response_model=None)
    app.add_api_route("/metrics", service.numbers, response_model=None)
    app.add_exception_handler(HTTPException, _refuse)
    app.state.service = service
    app.add_middleware(_Guard, metrics=service.metrics, api_key=api_key, hosts=allowed_hosts)
    return app


_TEXT = {"type": "string"}
_FIELDS = {
    "model": _TEXT,
    "input": {"anyOf": [_TEXT, {"type": "array", "items": _TEXT, "minItems": 1}]},
    "encoding_format": {"enum": ["float", "base64", None], "default": "float"},
    "dimensions": {"type": "integer"},
    "k": {"type": "integer", "default": 10, "minimum": 1, "maximum": MOST_HITS, "description": "Of a search."},
}
_BODY = {"schema": {"type": "object", "required": ["model", "input"], "properties": _FIELDS}}

#: Schema of a request's body, for the application's OpenAPI document.
SCHEMA = {"requestBody": {"required": True, "content": {"application/json": _BODY}}}

#: Error types of the API by HTTP status, and headers; the type of any other status is ``invalid_request_error``.
KINDS = {401: "authentication_error", 408: "timeout_error", 500: "server_error", 503: "overloaded_error"}
KINDS[504] = KINDS[408]
HEADERS = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "1"}}
HEADERS[408] = {"Connection": "close"}  # the rest of the body may still arrive

#: JSON types in words.
_JSON_TYPES = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "missing or null"}


class RequestError(ParameterError):
    """A request is refused: with a code, an HTTP status, and the field of the request."""

    code: str = "invalid_request"
    status: int = 400
    param: str | None = None


def refusal(status: int, code: str, problem: str, fix: str, param: str | None = None) -> RequestError:
    """Return a refusal of a request, or of one of its fields; no message may repeat what was sent."""
    error = RequestError(problem, fix)
    error.status, error.code, error.param = status, code, param
    return error


def read_request(body: bytes, *, limits: Limits, names: Sequence[str], dim: int) -> tuple[list[str], bool, int]:
    """Return a request's texts, whether the vectors are wanted as base64, and the number of results of a search."""

    def wrong(code: str, problem: str, fix: str, param: str | None = "input", status: int = 400) -> RequestError:
        return refusal(status, code, problem, fix, param)

    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        raise wrong("invalid_json", "The body is not JSON.", "Send JSON in UTF-8.", None) from None
    if not isinstance(content, dict):
        raise wrong("invalid_body", f"The body is {_kind(content)}.", 'Send {"model": …, "input": …}.', None)
    texts, encoding, dimensions = (content.get(key) for key in ("input", "encoding_format", "dimensions"))
    if content.get("model") not in names:
        raise _unknown_model(names)
    if encoding not in (None, "float", "base64"):  # clients send null, too
        raise wrong("invalid_encoding", "Unknown encoding.", "Send 'float' or 'base64', or omit it.", "encoding_format")
    if dimensions is not None and (type(dimensions) is not int or dimensions != dim):
        problem = f"Mapped vectors cannot be truncated; expected {dim}."
        raise wrong("invalid_dimensions", problem, "Omit dimensions.", "dimensions")
    if type(k := content.get("k", 10)) is not int or not 1 <= k <= MOST_HITS:
        raise wrong("invalid_k", f"The number of results is not 1 to {MOST_HITS}.", "Send k=10, or omit it.", "k")
    items = [texts] if isinstance(texts, str) else texts
    if not isinstance(items, list) or not items:
        raise wrong("invalid_input", f"The input is {_kind(texts)}.", "Send a text, or a list of texts.")
    if any(type(item) in (int, list) for item in items):
        problem = "The input is token ids, and another model's tokens mean nothing here."
        fix = "Send the text itself (LangChain: OpenAIEmbeddings with check_embedding_ctx_length=False)."
        raise wrong("tokens_not_supported", problem, fix)
    if len(items) > limits.max_batch:
        problem = f"Got {len(items)} texts; expected at most {limits.max_batch}."
        raise wrong("too_many_inputs", problem, "Send them in several requests.")
    for i, text in enumerate(items):
        if not isinstance(text, str) or not text:
            raise wrong("invalid_text", f"Input {i} is {_kind(text)}.", "Send texts that are not empty.")
        if len(text) > limits.max_chars:
            problem = f"Input {i} has {len(text)} characters; expected at most {limits.max_chars}."
            raise wrong("input_too_long", problem, "Send it in parts.", status=413)
        if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
            raise wrong("invalid_unicode", f"Input {i} has half of a surrogate pair.", "Send Unicode in UTF-8.")
    return items, encoding == "base64", k


def _unknown_model(names: Sequence[str]) -> RequestError:
    problem = f"This model is not served; expected {' or '.join(map(repr, names))}."
    fix = "Send one of these as model, or start the server with your client's name (--model-name)."
    return refusal(404, "model_not_found", problem, fix, "model")


def _kind(item: object) -> str:
    """Return the JSON type of a value in words, without the value itself."""
    return "empty" if item in ("", []) else _JSON_TYPES.get(type(item), "a number")


def _answer(vectors: np.ndarray, tokens: int, *, model: str, as_base64: bool) -> bytes:
    """Return the body of a successful response; base64 is of little-endian float32."""
    rows = np.ascontiguousarray(vectors, dtype="<f4")
    encoded: list[object] = [base64.b64encode(row).decode("ascii") for row in rows] if as_base64 else rows.tolist()
    return _body([{"object": "embedding", "embedding": row} for row in encoded], tokens, model)


def _body(items: list[dict[str, Any]], tokens: int, model: str) -> bytes:
    """Return the body of a response with one item for each text."""
    data = [{**item, "index": k} for k, item in enumerate(items)]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    response = {"object": "list", "data": data, "model": model, "usage": usage}
    return json.dumps(response, separators=(",", ":"), allow_nan=False).encode()


async def _refuse(_: Request, error: Any) -> Response:
    """Return a refusal in the API's form."""
    headers = HEADERS
    if isinstance(error, HTTPException):  # of the framework: an unknown path, or a wrong method
        headers = {error.status_code: error.headers}
        fix = "Set the client's base_url to …/v1; send POST to /v1/embeddings, and GET to all others."
        error = refusal(error.status_code, "unknown_path", f"{HTTPStatus(error.status_code).phrase}.", fix)
    kind = KINDS.get(error.status, "invalid_request_error")
    content = {"message": str(error), "type": kind, "param": error.param, "code": error.code}
    return JSONResponse({"error": content}, error.status, headers.get(error.status))


class Service:
    """The request handlers for one encoder, with its batcher and metrics; see ``create_app``."""

    def __init__(
        self, vectors: TextVectors, names: Sequence[str], limits: Limits, window: float, lazy: LazySearch | None
    ) -> None:
        self.vectors, self.names, self.limits, self.lazy = vectors, names, limits, lazy
        self.metrics = Metrics(lazy)
        self.batcher = Batcher(self._encode, max_batch=limits.max_batch, window=window)
        self.metrics.waiting.set_function(lambda: self.batcher.waiting)
        self._active, self._began = 0, int(time.time())

    @asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        """Encode what is in the queue before the application stops."""
        self.batcher.open = True
        yield
        await asyncio.to_thread(self.batcher.close)
        if self.lazy is not None:
            self.lazy.stop()

    def _encode(self, texts: list[str]) -> tuple[np.ndarray, list[int]]:
        began = time.monotonic()
        found = self.vectors(texts), self.vectors.count_tokens(texts)
        self.metrics.texts.observe(len(texts))
        self.metrics.encoding.observe(time.monotonic() - began)
        return found

    async def embeddings(self, request: Request) -> Response:
        """Encode the texts of a request and return their vectors."""
        return await self._answered(request, searches=False)

    async def search(self, request: Request) -> Response:
        """Encode the texts of a request and return the rows of the index nearest to each."""
        return await self._answered(request, searches=True)

    async def _answered(self, request: Request, *, searches: bool) -> Response:
        if self._active >= self.limits.max_waiting:
            problem = f"More than {self.limits.max_waiting} requests are in progress."
            raise refusal(503, "overloaded", problem, "Send it again in a second.")
        self._active += 1
        self.metrics.active.set(self._active)
        try:
            deadline = asyncio.get_running_loop().time() + self.limits.timeout
            body = await self._read(request, deadline)
            texts, as_base64, k = read_request(body, limits=self.limits, names=self.names, dim=self.vectors.dim)
            vectors, tokens = await self._wait(request, texts, deadline)
            self.metrics.tokens.inc(tokens)
            write: Callable[[], bytes] = partial(_answer, vectors, tokens, model=self.names[0], as_base64=as_base64)
            if searches:
                write = partial(self._found, vectors, k, tokens)
            content = await asyncio.to_thread(write) if searches or vectors.size > MANY else write()
        except ClientDisconnect:
            raise refusal(499, "closed", "The client closed the connection.", "Wait for the answer.") from None
        finally:
            self._active -= 1
            self.metrics.active.set(self._active)
        return Response(content, media_type="application/json")

    def _found(self, vectors: np.ndarray, k: int, tokens: int) -> bytes:
        """Return the body of a search's response."""
        assert self.lazy is not None
        for last in (False, False, True):
            try:
                hits = self.lazy.search(vectors, k)
                break
            except (ShapeError, SpaceMismatchError) as error:  # in the background: the encoder is of another model
                if last:
                    raise
                _log.error("nothing is re-embedded any more: %s", error)
                self.lazy.stop()
        found = []
        for row in zip(*(side.tolist() for side in hits), strict=True):
            rows = [dict(zip(("id", "score", "reembedded"), one, strict=True)) for one in zip(*row, strict=True)]
            found.append({"object": "search.result", "hits": [one for one in rows if np.isfinite(one["score"])]})
        return _body(found, tokens, self.names[0])

    async def models(self) -> dict[str, object]:
        """List the names of the model."""
        return {"object": "list", "data": [await self.model(name) for name in self.names]}

    async def model(self, name: str) -> dict[str, object]:
        """Describe the model by one of its names."""
        if name not in self.names:
            raise _unknown_model(self.names)
        return {"id": name, "object": "model", "created": self._began, "owned_by": "congruence"}

    async def health(self) -> Response:
        """Report whether the server accepts requests."""
        return JSONResponse({"status": "ok"}) if self.batcher.open else JSONResponse({"status": "stopping"}, 503)

    async def numbers(self) -> Response:
        """Return the metrics for Prometheus."""
        return Response(self.metrics.page(), headers={"content-type": self.metrics.content_type})

    async def _read(self, request: Request, deadline: float) -> bytes:
        """Return the body of a request; stop reading at the size limit or the deadline."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        # A web page may send requests with some other types to any address without a preflight request.
        if kind != "application/json":
            raise refusal(415, "not_json", "The content type is not JSON.", "Send Content-Type: application/json.")
        if request.headers.get("content-encoding", "identity").lower() != "identity":
            raise refusal(415, "compressed", "The body is compressed.", "Send it without Content-Encoding.")
        length = request.headers.get("content-length", "")
        size, body = int(length[:19]) if length.isdecimal() else 0, bytearray()
        chunks = request.stream()
        try:
            async with asyncio.timeout_at(deadline):
                while size <= self.limits.max_body and (chunk := await anext(chunks, None)) is not None:
                    body += chunk
                    size = max(size, len(body))
        except TimeoutError:
            problem = f"The body is incomplete after {self.limits.timeout:g} s."
            raise refusal(408, "body_timeout", problem, "Send it again.") from None
        if size > self.limits.max_body:
            problem = f"The body is too large; expected at most {self.limits.max_body} bytes."
            raise refusal(413, "body_too_large", problem, "Send fewer or shorter texts.")
        return bytes(body)

    async def _wait(self, request: Request, texts: list[str], deadline: float) -> tuple[np.ndarray, int]:
        """Return vectors and number of tokens, unless the deadline passes, the client leaves or the server stops."""
        try:
            result = asyncio.wrap_future(self.batcher.submit(texts))
        except StoppedError:
            raise refusal(503, "stopping", "The server is stopping.", "Send it again in a second.") from None
        disconnected = asyncio.ensure_future(_disconnect(request))
        try:
            remaining = deadline - asyncio.get_running_loop().time()
            done, _ = await asyncio.wait((result, disconnected), timeout=remaining, return_when=asyncio.FIRST_COMPLETED)
            if result in done:
                return result.result()
        finally:
            disconnected.cancel()
            result.cancel()
        if disconnected in done:
            raise ClientDisconnect
        problem = f"The texts were not encoded within {self.limits.timeout:g} s."
        raise refusal(504, "timeout", problem, "Send fewer, or fewer requests at a time.")


async def _disconnect(request: Request) -> None:
    """Return once the client has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


class _Guard:
    """ASGI middleware that checks keys and hosts, sets request ids, counts requests, and keeps contents out of errors.

    The key is compared in constant time; None requires no key, and no ``hosts`` accept every ``Host`` header.
    """

    def __init__(self, app: Any, *, metrics: Metrics, api_key: str | None, hosts: Sequence[str] | None) -> None:
        self.app, self._metrics = app, metrics
        self._key = None if api_key is None else b"Bearer " + api_key.encode()
        self._hosts = None if hosts is None else {host.lower().encode() for host in hosts}

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Refuse one request, or pass it on to the application."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = uuid.uuid4().hex
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        began, status = time.monotonic(), 0

        async def sending(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                extra = [(b"x-request-id", request_id.encode()), (b"cache-control", b"no-store")]
                message = {**message, "headers": [*message.get("headers", ()), *extra]}
            await send(message)

        try:
            # Load balancers request /healthz without a key and under any name, and the answer reveals nothing.
            if path != "/healthz":
                self._check(dict(scope["headers"]))
            await self.app(scope, receive, sending)
        except RequestError as error:
            await (await _refuse(Request(scope), error))(scope, receive, sending)
        except Exception as error:
            # An error message may quote a text, so it goes neither to the client nor to the log.
            frames = "".join(traceback.format_tb(error.__traceback__))
            _log.error("request %s failed: %s\n%s", request_id, type(error).__name__, frames)
            if not status:
                fix = f"Look for request {request_id} in its log."
                answer = await _refuse(Request(scope), refusal(500, "internal_error", "The server failed.", fix))
                await answer(scope, receive, sending)
        finally:
            label = next((known for known in PATHS if path == known or path.startswith(f"{known}/")), "other")
            self._metrics.requests.labels(label, str(status)).inc()
            self._metrics.seconds.labels(label).observe(time.monotonic() - began)

    def _check(self, headers: Mapping[bytes, bytes]) -> None:
        host = headers.get(b"host", b"").strip().lower()  # without the port, and the brackets of an IPv6 address
        host = host[1:].partition(b"]")[0] if host.startswith(b"[") else host.partition(b":")[0]
        if self._hosts is not None and host not in self._hosts:
            fix = "Send to localhost, or start the server with a key."
            raise refusal(421, "wrong_host", "The host name is not one of this machine.", fix)
        if self._key is not None and not hmac.compare_digest(headers.get(b"authorization", b""), self._key):
            fix = "Send it as Authorization: Bearer …."
            raise refusal(401, "invalid_api_key", "The key is missing or wrong.", fix)


class Metrics:
    """Metrics for Prometheus, in a registry of their own, so that two servers in one process stay separate."""

    def __init__(self, lazy: LazySearch | None) -> None:
        library = require("prometheus_client", extra="serve")
        own = library.CollectorRegistry()
        counter, gauge, histogram = (
            partial(kind, registry=own) for kind in (library.Counter, library.Gauge, library.Histogram)
        )
        timer = partial(histogram, buckets=(0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30))
        sizes = partial(histogram, buckets=[2**k for k in range(9)])
        self.requests = counter("congruence_requests", "Requests answered.", ["path", "status"])
        self.seconds = timer("congruence_request_seconds", "Seconds until a request was answered.", ["path"])
        self.active = gauge("congruence_active_requests", "Embedding requests being read, waiting or being encoded.")
        self.texts = sizes("congruence_batch_texts", "Texts per call of the encoder.")
        self.encoding = timer("congruence_encode_seconds", "Seconds per call of the encoder and the bridge.")
        self.waiting = gauge("congruence_waiting_texts", "Texts waiting for the encoder.")
        self.tokens = counter("congruence_tokens", "Tokens of all texts encoded for requests.")
        if lazy is not None:
            for name, words in LAZY.items():
                read = partial(lazy.counts_.get, name) if name in lazy.counts_ else partial(getattr, lazy, f"{name}_")
                gauge(f"congruence_lazy_{name}", words).set_function(read)
        self.content_type: str = library.CONTENT_TYPE_LATEST
        self.page: Callable[[], bytes] = partial(library.generate_latest, own)
