"""An OpenAI-compatible server of vectors in an index's space (extra ``serve``)."""

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
from typing import Any

import numpy as np

from congruence._utils.optional import require
from congruence._utils.validation import check_choice, check_positive
from congruence._version import __version__
from congruence.errors import ParameterError
from congruence.integrations.batching import Batcher, StoppedError
from congruence.integrations.texts import BridgeLike, EncoderLike, TextVectors

require("fastapi", extra="serve")

from fastapi import FastAPI, Request, Response  # noqa: E402
from fastapi.responses import JSONResponse  # noqa: E402
from starlette.exceptions import HTTPException  # noqa: E402
from starlette.requests import ClientDisconnect  # noqa: E402

#: Host names to which a server without a key responds.
LOOPBACK = ("localhost", "127.0.0.1", "::1")

#: Paths with metrics of their own; all other paths are counted together as "other".
PATHS = ("/v1/embeddings", "/v1/models", "/healthz", "/metrics")

#: Responses with more numbers than this are serialized in another thread, so that other requests do not have to wait.
MANY = 50_000

_log = logging.getLogger("congruence.serve")


@dataclass(frozen=True)
class Limits:
    """Limits on the size, number and duration of requests.

    ``max_batch``: texts per request, and per call of the encoder; ``max_body``: bytes of a request; ``max_chars``:
    characters of a text; ``max_waiting``: requests in progress (being read, waiting or being encoded), after which
    further ones are told to retry; ``timeout``: seconds after which a request without vectors is refused.
    """

    max_batch: int = 256
    max_body: int = 2 * 2**20
    max_chars: int = 32768
    max_waiting: int = 256
    timeout: float = 30.0


def create_app(
    bridge: BridgeLike,
    encoder: EncoderLike,
    *,
    modality: str = "text",
    space: str = "target",
    names: Sequence[str] | None = None,
    api_key: str | None = None,
    allowed_hosts: Sequence[str] | None = None,
    limits: Limits | None = None,
    window: float = 0.0,
    batch_size: int = 32,
    check: bool = True,
) -> FastAPI:
    """Return an application with OpenAI's ``POST /v1/embeddings``, which returns vectors in the space of an index.

    Parameters
    ----------
    bridge, encoder, modality, batch_size, check
        As for ``TextVectors``, whose errors are raised for an encoder that does not match the bridge.
    space : {"target", "source"}, default="target"
        "target": serve vectors in the space of the index. "source": serve the encoder's vectors; the encoder must still
        match the bridge.
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

    Notes
    -----
    One thread encodes; waiting requests are encoded together, at most ``limits.max_batch`` texts at a time. Requests
    whose client has disconnected or whose time limit has passed are not encoded. The contents of requests never appear
    in responses or logs. API: https://platform.openai.com/docs/api-reference/embeddings
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
    vectors = TextVectors(encoder, bridge, modality=modality, batch_size=batch_size, check=check)
    if space == "source":
        vectors = vectors.unmapped()
    served = tuple(names) if names is not None else (vectors.name,)
    if not served or not all(isinstance(name, str) and name for name in served):
        raise ParameterError("A name of the model is missing or empty.", "Pass `names=[…]`, as clients send them.")
    service = Service(vectors, served, limits, window)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.batcher.reopen()
        yield
        await asyncio.to_thread(service.batcher.close)

    # The /docs pages would load scripts from other sites.
    app = FastAPI(title="congruence", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.add_api_route("/v1/embeddings", service.embeddings, methods=["POST"], response_model=None, openapi_extra=SCHEMA)
    app.add_api_route("/v1/models", service.models)
    app.add_api_route("/v1/models/{name:path}", service.model)
    app.add_api_route("/healthz", service.health, response_model=None)
    app.add_api_route("/metrics", service.numbers, response_model=None)
    app.add_exception_handler(RequestError, _refuse)
    app.add_exception_handler(HTTPException, _refuse)
    app.state.service = service
    app.add_middleware(_Guard, metrics=service.metrics, api_key=api_key, hosts=allowed_hosts)
    return app


# ------------------------------------------------------------------ OpenAI's protocol

_TEXT = {"type": "string"}
_FIELDS = {
    "model": _TEXT,
    "input": {"anyOf": [_TEXT, {"type": "array", "items": _TEXT, "minItems": 1}]},
    "encoding_format": {"enum": ["float", "base64", None], "default": "float"},
    "dimensions": {"type": "integer"},
}
_BODY = {"schema": {"type": "object", "required": ["model", "input"], "properties": _FIELDS}}

#: Schema of a request's body, for the application's OpenAPI document.
SCHEMA = {"requestBody": {"required": True, "content": {"application/json": _BODY}}}

#: Error types of the API by HTTP status, and headers; the type of any other status is ``invalid_request_error``.
KINDS = {401: "authentication_error", 408: "timeout_error", 500: "server_error", 503: "overloaded_error"}
KINDS[504] = KINDS[408]
HEADERS = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "1"}}
HEADERS[408] = {"Connection": "close"}  # the rest of the body may still arrive

#: Refusals by code: HTTP status, field of the request, what is wrong, and what to send. None repeats what was sent.
REFUSALS: dict[str, tuple[int, str | None, str, str]] = {
    "invalid_json": (400, None, "The body is not JSON.", "Send JSON in UTF-8."),
    "invalid_body": (400, None, "The body is {}.", 'Send an object: {{"model": …, "input": …}}.'),
    "model_missing": (400, "model", "The name of the model is missing.", "Send one of {} as model."),
    "model_not_found": (
        *(404, "model", "This model is not served; expected {}."),
        "Send one of these as model, or start the server with your client's name (--model-name).",
    ),
    "invalid_encoding": (
        *(400, "encoding_format", "The encoding_format is unknown."),
        "Send 'float' or 'base64', or leave it out.",
    ),
    "invalid_dimensions": (400, "dimensions", "Mapped vectors cannot be truncated; expected {}.", "Omit dimensions."),
    "invalid_input": (400, "input", "The input is {}.", "Send a text, or a list of texts."),
    "too_many_inputs": (400, "input", "Got {} texts; expected at most {}.", "Send them in several requests."),
    "invalid_text": (400, "input", "Input {} is {}.", "Send texts."),
    "empty_text": (400, "input", "Input {} is an empty text.", "Leave it out."),
    "input_too_long": (413, "input", "Got {} characters as input {}; expected at most {}.", "Send it in parts."),
    "invalid_unicode": (400, "input", "Input {} contains half of a surrogate pair.", "Send Unicode in UTF-8."),
    "tokens_not_supported": (
        *(400, "input", "The input is token ids, and another model's tokens mean nothing here."),
        "Send the text itself (LangChain: OpenAIEmbeddings with check_embedding_ctx_length=False).",
    ),
    "overloaded": (503, None, "More than {} requests are in progress.", "Send it again in a second."),
    "stopping": (503, None, "The server is stopping.", "Send it again in a second."),
    "not_json": (415, None, "The content type is not JSON.", "Send Content-Type: application/json."),
    "compressed": (415, None, "The body is compressed.", "Send it without Content-Encoding."),
    "body_too_large": (413, None, "The body is too large; expected at most {} bytes.", "Send fewer or shorter texts."),
    "body_timeout": (408, None, "The body is incomplete after {:g} s.", "Send it again."),
    "timeout": (504, None, "The texts were not encoded within {:g} s.", "Send fewer, or fewer requests at a time."),
    "closed": (499, None, "The client closed the connection.", "Wait for the answer."),
    "invalid_request": (400, None, "The request is invalid.", "See /openapi.json."),
    "unknown_path": (404, None, "This path does not exist.", "Set the client's base_url to …/v1; see /openapi.json."),
    "wrong_method": (
        *(405, None, "This method does not fit the path."),
        "Send POST to /v1/embeddings, and GET to all others.",
    ),
    "wrong_host": (
        *(421, None, "The host name is not one of this machine."),
        "Send to localhost, or start the server with a key.",
    ),
    "invalid_api_key": (401, None, "The key is missing or wrong.", "Send it as Authorization: Bearer …."),
    "internal_error": (500, None, "The server failed.", "Look for request {} in its log."),
}

#: JSON types in words.
_JSON_TYPES = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "missing or null"}


class RequestError(ParameterError):
    """A request is refused: with a key of ``REFUSALS``, its HTTP status and the field of the request."""

    code: str = "invalid_request"
    status: int = 400
    param: str | None = None


def refusal(code: str, *values: object) -> RequestError:
    """Return a refusal by its key in ``REFUSALS``; ``values`` are the numbers and names in its message."""
    status, param, problem, fix = REFUSALS[code]
    error = RequestError(problem.format(*values), fix.format(*values))
    error.code, error.status, error.param = code, status, param
    return error


def read_request(body: bytes, *, limits: Limits, names: Sequence[str], dim: int) -> tuple[list[str], bool]:
    """Return the texts of a request, and whether the vectors are wanted as base64 of little-endian float32.

    ``names``: names that the request may send as ``model``.
    """
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        raise refusal("invalid_json") from None
    if not isinstance(content, dict):
        raise refusal("invalid_body", _kind(content))
    model, texts, dimensions = (content.get(key) for key in ("model", "input", "dimensions"))
    if model not in names:
        raise refusal("model_not_found" if isinstance(model, str) else "model_missing", _either(names))
    if (encoding := content.get("encoding_format")) not in (None, "float", "base64"):  # clients send null, too
        raise refusal("invalid_encoding")
    if dimensions is not None and not (_is_token(dimensions) and dimensions == dim):
        raise refusal("invalid_dimensions", dim)
    items = [texts] if isinstance(texts, str) else texts
    if not isinstance(items, list) or not items:
        raise refusal("invalid_input", _kind(texts))
    if any(_is_token(item) or isinstance(item, list) for item in items):
        raise refusal("tokens_not_supported")
    if len(items) > limits.max_batch:
        raise refusal("too_many_inputs", len(items), limits.max_batch)
    for k, text in enumerate(items):
        if not isinstance(text, str):
            raise refusal("invalid_text", k, _kind(text))
        if not text:
            raise refusal("empty_text", k)
        if len(text) > limits.max_chars:
            raise refusal("input_too_long", len(text), k, limits.max_chars)
        if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
            raise refusal("invalid_unicode", k)
    return items, encoding == "base64"


def _either(names: Sequence[str]) -> str:
    return " or ".join(map(repr, names))


def _is_token(item: object) -> bool:
    return isinstance(item, int) and not isinstance(item, bool)


def _kind(item: object) -> str:
    """Return the JSON type of a value in words, without the value itself."""
    return "an empty list" if item == [] else _JSON_TYPES.get(type(item), "a number")


def _answer(vectors: np.ndarray, tokens: int, *, model: str, as_base64: bool) -> bytes:
    """Return the body of a successful response for vectors, shape (n, dim)."""
    rows = np.ascontiguousarray(vectors, dtype="<f4")
    encoded: list[object] = [base64.b64encode(row).decode("ascii") for row in rows] if as_base64 else rows.tolist()
    data = [{"object": "embedding", "index": k, "embedding": row} for k, row in enumerate(encoded)]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    response = {"object": "list", "data": data, "model": model, "usage": usage}
    return json.dumps(response, separators=(",", ":"), allow_nan=False).encode()


async def _refuse(_: Request, error: Any) -> Response:
    """Return a refusal in the API's form; starlette's own are those of paths and methods."""
    given = None
    if isinstance(error, HTTPException):
        given, status = error.headers, error.status_code
        error = refusal({404: "unknown_path", 405: "wrong_method"}.get(status, "invalid_request"))
        error.status = status
    kind = KINDS.get(error.status, "invalid_request_error")
    content = {"message": str(error), "type": kind, "param": error.param, "code": error.code}
    return JSONResponse({"error": content}, error.status, given or HEADERS.get(error.status))


# ------------------------------------------------------------------ requests


class Service:
    """The request handlers for one encoder, with its batcher and metrics.

    ``names``: names of the model that clients may send; responses contain the first; ``window``: seconds for which the
    ``Batcher`` waits for more texts.
    """

    def __init__(self, vectors: TextVectors, names: Sequence[str], limits: Limits, window: float) -> None:
        self.vectors, self.names, self.limits = vectors, names, limits
        self.metrics = Metrics()

        def encoded(texts: int, seconds: float) -> None:
            self.metrics.texts.observe(texts)
            self.metrics.encoding.observe(seconds)

        encode = lambda texts: (vectors(texts), vectors.count_tokens(texts))  # noqa: E731
        self.batcher = Batcher(encode, max_batch=limits.max_batch, window=window, callback=encoded)
        self.metrics.waiting.set_function(lambda: self.batcher.waiting)
        self._active = 0
        self._began = int(time.time())

    async def embeddings(self, request: Request) -> Response:
        """Encode the texts of a request and return their vectors."""
        if self._active >= self.limits.max_waiting:
            raise refusal("overloaded", self.limits.max_waiting)
        self._active += 1
        self.metrics.active.set(self._active)
        try:
            deadline = asyncio.get_running_loop().time() + self.limits.timeout
            body = await self._read(request, deadline)
            texts, as_base64 = read_request(body, limits=self.limits, names=self.names, dim=self.vectors.dim)
            vectors, tokens = await self._wait(request, texts, deadline)
            self.metrics.tokens.inc(tokens)
            write = partial(_answer, vectors, tokens, model=self.names[0], as_base64=as_base64)
            content = await asyncio.to_thread(write) if vectors.size > MANY else write()
        except ClientDisconnect:
            raise refusal("closed") from None
        finally:
            self._active -= 1
            self.metrics.active.set(self._active)
        return Response(content, media_type="application/json")

    async def models(self) -> dict[str, object]:
        """List the names of the model."""
        return {"object": "list", "data": [await self.model(name) for name in self.names]}

    async def model(self, name: str) -> dict[str, object]:
        """Describe the model by one of its names."""
        if name not in self.names:
            raise refusal("model_not_found", _either(self.names))
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
            raise refusal("not_json")
        if request.headers.get("content-encoding", "identity").lower() != "identity":
            raise refusal("compressed")
        length = request.headers.get("content-length", "")
        size, body = int(length[:19]) if length.isdecimal() else 0, bytearray()
        chunks = request.stream()
        try:
            async with asyncio.timeout_at(deadline):
                while size <= self.limits.max_body and (chunk := await anext(chunks, None)) is not None:
                    body += chunk
                    size = max(size, len(body))
        except TimeoutError:
            raise refusal("body_timeout", self.limits.timeout) from None
        if size > self.limits.max_body:
            raise refusal("body_too_large", self.limits.max_body)
        return bytes(body)

    async def _wait(self, request: Request, texts: list[str], deadline: float) -> tuple[np.ndarray, int]:
        """Return the vectors of texts and their number of tokens, unless the deadline passes, the client disconnects or
        the server stops first.
        """
        try:
            result = asyncio.wrap_future(self.batcher.submit(texts))
        except StoppedError:
            raise refusal("stopping") from None
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
        raise refusal("timeout", self.limits.timeout)


async def _disconnect(request: Request) -> None:
    """Return once the client has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


class _Guard:
    """ASGI middleware that checks keys and host names, sets request ids, counts requests, and keeps contents out of
    error messages.

    ``api_key``: required key, compared in constant time; None requires no key; ``hosts``: accepted values of the
    ``Host`` header, without port; None accepts all.
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
                await (await _refuse(Request(scope), refusal("internal_error", request_id)))(scope, receive, sending)
        finally:
            label = next((known for known in PATHS if path == known or path.startswith(f"{known}/")), "other")
            self._metrics.requests.labels(label, str(status)).inc()
            self._metrics.seconds.labels(label).observe(time.monotonic() - began)

    def _check(self, headers: Mapping[bytes, bytes]) -> None:
        host = headers.get(b"host", b"").strip().lower()  # without the port, and the brackets of an IPv6 address
        host = host[1:].partition(b"]")[0] if host.startswith(b"[") else host.partition(b":")[0]
        if self._hosts is not None and host not in self._hosts:
            raise refusal("wrong_host")
        if self._key is not None and not hmac.compare_digest(headers.get(b"authorization", b""), self._key):
            raise refusal("invalid_api_key")


class Metrics:
    """Metrics for Prometheus, in a registry of their own, so that two servers in one process stay separate."""

    def __init__(self) -> None:
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
        self.content_type: str = library.CONTENT_TYPE_LATEST
        self.page: Callable[[], bytes] = partial(library.generate_latest, own)
