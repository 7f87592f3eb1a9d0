"""An OpenAI-compatible server of vectors in an index's space (extra ``serve``)."""

from __future__ import annotations

import asyncio
import base64
import hmac
import ipaddress
import json
import logging
import os
import signal
import socket
import threading
import time
import traceback
import uuid
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, MutableMapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from congruence._utils.optional import require
from congruence._utils.validation import check_choice, check_positive
from congruence._version import __version__
from congruence.errors import FileError, ParameterError
from congruence.integrations.texts import BridgeLike, EncoderLike, TextVectors

require("fastapi", extra="serve")

from fastapi import FastAPI, Request, Response  # noqa: E402
from fastapi.responses import JSONResponse  # noqa: E402
from starlette.exceptions import HTTPException  # noqa: E402
from starlette.requests import ClientDisconnect  # noqa: E402

if TYPE_CHECKING:
    import uvicorn

#: Host names to which a server without a key responds.
LOOPBACK = ("localhost", "127.0.0.1", "::1")

#: Minimum number of characters of a key; a shorter one could be guessed.
SHORTEST_KEY = 16

#: Maximum number of concurrent connections; uvicorn refuses further ones before it reads from them.
CONNECTIONS = 1024

#: Paths with metrics of their own; all other paths are counted together as "other".
PATHS = ("/v1/embeddings", "/v1/models", "/healthz", "/metrics")

#: Responses with more numbers than this are serialized in another thread, so that other requests do not have to wait.
MANY = 50_000

_log = logging.getLogger("congruence.serve")


@dataclass(frozen=True)
class Limits:
    """Limits on the size, number and duration of requests.

    ``max_batch``: maximum number of texts per request, and per call of the encoder; ``max_body``: maximum size of a
    request's body, in bytes; ``max_chars``: maximum number of characters per text; ``max_waiting``: maximum number of
    requests in progress (being read, waiting or being encoded); further ones are refused and told to retry;
    ``timeout``: seconds after which a request that has no vectors yet is answered with an error.
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
        As for ``TextVectors``.
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

    Returns
    -------
    fastapi.FastAPI
        ASGI application, to run or to mount in another application.

    Raises
    ------
    SpaceMismatchError, DirectionError, ModalityError
        If the encoder's vectors do not belong to the bridge's source space.

    Notes
    -----
    One thread encodes; waiting requests are encoded together, at most ``limits.max_batch`` texts at a time. Requests
    whose client has disconnected or whose time limit has passed are not encoded. The contents of requests never appear
    in responses or logs.

    References
    ----------
    .. [1] OpenAI API reference, "Create embeddings". https://platform.openai.com/docs/api-reference/embeddings
    """
    limits = limits or Limits()
    for name in ("max_batch", "max_body", "max_chars", "max_waiting"):
        check_positive(getattr(limits, name), name, integer=True)
    check_positive(limits.timeout, "timeout")
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
    app.add_api_route("/v1/models", service.models, methods=["GET"])
    app.add_api_route("/v1/models/{name:path}", service.model, methods=["GET"])
    app.add_api_route("/healthz", service.health, methods=["GET"], response_model=None)
    app.add_api_route("/metrics", service.numbers, methods=["GET"], response_model=None)
    app.add_exception_handler(RequestError, _refuse)
    app.add_exception_handler(HTTPException, _no_route)
    app.state.service = service
    app.add_middleware(_Guard, metrics=service.metrics, api_key=api_key, hosts=allowed_hosts)
    return app


# ------------------------------------------------------------------ OpenAI's protocol

_TEXT = {"type": "string"}
_FIELDS = {
    "model": _TEXT,
    "input": {"anyOf": [_TEXT, {"type": "array", "items": _TEXT, "minItems": 1}]},
    "encoding_format": {"enum": ["float", "base64"], "default": "float"},
    "dimensions": {"type": "integer"},
    "user": _TEXT,
}

#: Schema of a request's body, for the application's OpenAPI document.
SCHEMA = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": {"type": "object", "required": ["model", "input"], "properties": _FIELDS}}
        },
    }
}

#: Error types of the API by HTTP status; the type of any other status is ``invalid_request_error``.
KINDS = {
    401: "authentication_error",
    408: "timeout_error",
    500: "server_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class RequestError(ParameterError):
    """A request is refused. The message never contains what was sent.

    ``code``: machine-readable code, as in the API's errors; ``param``: field of the request that the error is about.
    """

    def __init__(
        self, problem: str, fix: str = "", status: int = 400, code: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(problem, fix)
        self.status, self.code, self.param = status, code, param


def read_request(body: bytes, *, limits: Limits, names: Sequence[str], dim: int) -> tuple[list[str], bool]:
    """Return the texts of a request, and whether the vectors are wanted as base64 of little-endian float32.

    ``names``: names that the request may send as ``model``.
    """
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        raise RequestError("The body is not JSON.", "Send JSON in UTF-8.", code="invalid_json") from None
    if not isinstance(content, dict):
        raise RequestError(f"The body is {_kind(content)}.", 'Send an object: {"model": …, "input": …}.')
    if not isinstance(content.get("model"), str):
        raise RequestError("The name of the model is missing.", f"Send {names[0]!r} as model.", param="model")
    if content["model"] not in names:
        fix = "Send one of these as model, or start the server with your client's name (congruence serve --model-name)."
        raise _not_served(names, fix)
    if (encoding := content.get("encoding_format", "float")) not in ("float", "base64"):
        raise RequestError(
            "The encoding_format is unknown.", "Send 'float' or 'base64', or leave it out.", param="encoding_format"
        )
    dimensions = content.get("dimensions")
    if dimensions is not None and (type(dimensions) is not int or dimensions != dim):
        raise RequestError(
            f"Got other dimensions; expected {dim}, since mapped vectors cannot be truncated.",
            "Omit dimensions.",
            param="dimensions",
        )
    texts = content.get("input")
    items = [texts] if isinstance(texts, str) else texts
    if not isinstance(items, list) or not items:
        raise RequestError(f"The input is {_kind(texts)}.", "Send a text, or a list of texts.", param="input")
    if len(items) > limits.max_batch and not _is_token(items[0]):
        raise RequestError(
            f"Got {len(items)} texts; expected at most {limits.max_batch} in a request.",
            "Send them in several requests.",
            code="too_many_inputs",
            param="input",
        )
    for k, text in enumerate(items):
        _check_text(text, k, limits.max_chars)
    return items, encoding == "base64"


def _check_text(text: object, k: int, most: int) -> None:
    if _is_token(text) or isinstance(text, list):
        raise RequestError(
            "The input is token ids, and another model's tokens mean nothing here.",
            "Send the text itself (LangChain: OpenAIEmbeddings with check_embedding_ctx_length=False).",
            code="tokens_not_supported",
            param="input",
        )
    if not isinstance(text, str):
        raise RequestError(f"Input {k} is {_kind(text)}.", "Send texts.", param="input")
    if not text:
        raise RequestError(f"Input {k} is an empty text.", "Leave it out.", param="input")
    if len(text) > most:
        raise RequestError(
            f"Got {len(text)} characters as input {k}; expected at most {most}.",
            "Send it in parts.",
            413,
            "input_too_long",
            "input",
        )
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise RequestError(f"Input {k} contains half of a surrogate pair.", "Send Unicode in UTF-8.", param="input")


def _not_served(names: Sequence[str], fix: str) -> RequestError:
    problem = f"This model is not served; expected {' or '.join(map(repr, names))}."
    return RequestError(problem, fix, status=404, code="model_not_found", param="model")


def _is_token(item: object) -> bool:
    return isinstance(item, int) and not isinstance(item, bool)


def _kind(item: object) -> str:
    """Return the JSON type of a value in words, without the value itself."""
    if item == []:
        return "an empty list"
    kinds = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "missing or null"}
    return kinds.get(type(item), "a number")


def _answer(vectors: np.ndarray, tokens: int, *, model: str, as_base64: bool) -> bytes:
    """Return the body of a successful response for vectors, shape (n, dim)."""
    rows = np.ascontiguousarray(vectors, dtype="<f4")
    encoded: list[object] = [base64.b64encode(row).decode("ascii") for row in rows] if as_base64 else rows.tolist()
    data = [{"object": "embedding", "index": k, "embedding": row} for k, row in enumerate(encoded)]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    response = {"object": "list", "data": data, "model": model, "usage": usage}
    return json.dumps(response, separators=(",", ":"), allow_nan=False).encode()


def _error_body(message: str, status: int, *, code: str | None = None, param: str | None = None) -> dict[str, object]:
    kind = KINDS.get(status, "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _refuse(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    headers = {"Retry-After": "1"} if error.status == 503 else {}
    if error.status == 408:  # the rest of the body may still arrive
        headers["Connection"] = "close"
    body = _error_body(str(error), error.status, code=error.code, param=error.param)
    return JSONResponse(body, error.status, headers=headers)


def _no_route(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = {
        404: "This path does not exist. Set the client's base_url to …/v1; see /openapi.json.",
        405: "This method does not fit the path. Send POST to /v1/embeddings, and GET to all others.",
    }.get(error.status_code, "The request is invalid. See /openapi.json.")
    return JSONResponse(_error_body(message, error.status_code), error.status_code, headers=error.headers)


# ------------------------------------------------------------------ requests


class Service:
    """The request handlers for one encoder, with its batcher and metrics.

    ``names``: names of the model that clients may send; responses contain the first; ``window``: seconds for which the
    ``Batcher`` waits for more texts.
    """

    def __init__(self, vectors: TextVectors, names: Sequence[str], limits: Limits, window: float) -> None:
        self.vectors, self.names, self.limits = vectors, names, limits
        self.metrics = Metrics()
        encode = lambda texts: (vectors(texts), vectors.count_tokens(texts))  # noqa: E731
        self.batcher = Batcher(encode, max_batch=limits.max_batch, window=window, callback=self.metrics.encoded)
        self.metrics.waiting.set_function(lambda: self.batcher.waiting)
        self._active = 0
        self._began = int(time.time())

    async def embeddings(self, request: Request) -> Response:
        """Encode the texts of a request and return their vectors."""
        if self._active >= self.limits.max_waiting:
            raise RequestError(
                f"More than {self.limits.max_waiting} requests are in progress.",
                "Send it again in a second.",
                503,
                "overloaded",
            )
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
        finally:
            self._active -= 1
            self.metrics.active.set(self._active)
        return Response(content, media_type="application/json")

    async def models(self) -> dict[str, object]:
        """List the names of the model."""
        return {"object": "list", "data": [self._card(name) for name in self.names]}

    async def model(self, name: str) -> dict[str, object]:
        """Describe the model by one of its names."""
        if name not in self.names:
            raise _not_served(self.names, "Request one of these.")
        return self._card(name)

    async def health(self) -> Response:
        """Report whether the server accepts requests."""
        ready = self.batcher.open
        return JSONResponse({"status": "ok" if ready else "stopping"}, 200 if ready else 503)

    async def numbers(self) -> Response:
        """Return the metrics for Prometheus."""
        return Response(self.metrics.page(), headers={"content-type": self.metrics.content_type})

    def _card(self, name: str) -> dict[str, object]:
        return {"id": name, "object": "model", "created": self._began, "owned_by": "congruence"}

    async def _read(self, request: Request, deadline: float) -> bytes:
        """Return the body of a request; stop reading at the size limit or the deadline."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        # A web page may send requests with some other types to any address without a preflight request.
        if kind != "application/json":
            raise RequestError("The content type is not JSON.", "Send Content-Type: application/json.", status=415)
        if request.headers.get("content-encoding", "identity").lower() != "identity":
            raise RequestError("The body is compressed.", "Send it without Content-Encoding.", status=415)
        most = self.limits.max_body
        too_large = RequestError(
            f"The body is too large; expected at most {most} bytes.",
            "Send fewer or shorter texts in a request.",
            413,
            "body_too_large",
        )
        length = request.headers.get("content-length", "")
        if length.isdecimal() and int(length[:19]) > most:
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout_at(deadline):
                async for chunk in request.stream():
                    if len(body) + len(chunk) > most:
                        raise too_large
                    body += chunk
        except TimeoutError:
            raise RequestError(
                f"The body is incomplete after {self.limits.timeout:g} s.", "Send it again.", status=408, code="timeout"
            ) from None
        except ClientDisconnect:
            raise _closed() from None
        return bytes(body)

    async def _wait(self, request: Request, texts: list[str], deadline: float) -> tuple[np.ndarray, int]:
        """Return the vectors of texts and their number of tokens, unless the deadline passes, the client disconnects or
        the server stops first.
        """
        try:
            result = asyncio.wrap_future(self.batcher.submit(texts))
        except StoppedError:
            raise RequestError("The server is stopping.", "Send it again in a second.", 503, "stopping") from None
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
            raise _closed()
        raise RequestError(
            f"The texts were not encoded within {self.limits.timeout:g} s.",
            "Send fewer texts, or fewer concurrent requests.",
            504,
            "timeout",
        )


async def _disconnect(request: Request) -> None:
    """Return once the client has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _closed() -> RequestError:
    return RequestError("The client closed the connection.", "Wait for the answer.", status=499)


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
            refused = None if path == "/healthz" else self._refusal(dict(scope["headers"]))
            if refused is None:
                await self.app(scope, receive, sending)
            else:
                await refused(scope, receive, sending)
        except Exception as error:
            # An error message may quote a text, so it goes neither to the client nor to the log.
            frames = "".join(traceback.format_tb(error.__traceback__))
            _log.error("request %s failed: %s\n%s", request_id, type(error).__name__, frames)
            if not status:
                message = f"The server failed. Look for request {request_id} in its log."
                await JSONResponse(_error_body(message, 500, code="internal_error"), 500)(scope, receive, sending)
        finally:
            label = next((known for known in PATHS if path == known or path.startswith(f"{known}/")), "other")
            self._metrics.requests.labels(label, str(status)).inc()
            self._metrics.seconds.labels(label).observe(time.monotonic() - began)

    def _refusal(self, headers: Mapping[bytes, bytes]) -> Response | None:
        host = headers.get(b"host", b"").strip().lower()  # without the port, and the brackets of an IPv6 address
        host = host[1:].partition(b"]")[0] if host.startswith(b"[") else host.partition(b":")[0]
        if self._hosts is not None and host not in self._hosts:
            message = "The host name is not one of this machine. Send to localhost, or start the server with a key."
            return JSONResponse(_error_body(message, 421, code="wrong_host"), 421)
        if self._key is not None and not hmac.compare_digest(headers.get(b"authorization", b""), self._key):
            message = "The key is missing or wrong. Send it as Authorization: Bearer …."
            body = _error_body(message, 401, code="invalid_api_key")
            return JSONResponse(body, 401, headers={"www-authenticate": "Bearer"})
        return None


class Metrics:
    """Metrics of one server for Prometheus, in a registry of their own, so that two servers in one process stay
    separate.
    """

    def __init__(self) -> None:
        library = require("prometheus_client", extra="serve")
        self._registry = library.CollectorRegistry()
        counter, histogram, gauge = (
            partial(kind, registry=self._registry) for kind in (library.Counter, library.Histogram, library.Gauge)
        )
        timer = partial(histogram, buckets=(0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30))
        self.requests = counter("congruence_requests", "Requests answered.", ["path", "status"])
        self.seconds = timer("congruence_request_seconds", "Seconds until a request was answered.", ["path"])
        self.active = gauge("congruence_active_requests", "Embedding requests being read, waiting or being encoded.")
        self.texts = histogram(
            "congruence_batch_texts", "Texts per call of the encoder.", buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256)
        )
        self.encoding = timer("congruence_encode_seconds", "Seconds per call of the encoder and the bridge.")
        self.waiting = gauge("congruence_waiting_texts", "Texts waiting for the encoder.")
        self.tokens = counter("congruence_tokens", "Tokens of all texts encoded for requests.")
        self.content_type: str = library.CONTENT_TYPE_LATEST
        self.page: Callable[[], bytes] = partial(library.generate_latest, self._registry)

    def encoded(self, texts: int, seconds: float) -> None:
        """Record one call of the encoder."""
        self.texts.observe(texts)
        self.encoding.observe(seconds)


# ------------------------------------------------------------------ requests that wait are encoded together


class StoppedError(RuntimeError):
    """The batcher accepts no more texts because its server is stopping."""


@dataclass(eq=False)
class _Request:
    texts: list[str]
    result: Future[tuple[np.ndarray, int]] = field(default_factory=Future)  # vectors (n, dim), and all their tokens


class Batcher:
    """Encodes texts in one thread, and batches the texts of requests that wait at the same time.

    ``encode``: takes a list of texts; returns their vectors, shape (n, dim), and the number of tokens of each;
    ``max_batch``: maximum number of texts per call, except for a larger request, which is encoded alone; ``window``:
    seconds for which an idle model waits for more texts; ``callback``: called after each call of ``encode`` with the
    number of texts and the seconds it took.
    """

    def __init__(
        self,
        encode: Callable[[list[str]], tuple[np.ndarray, list[int]]],
        *,
        max_batch: int,
        window: float,
        callback: Callable[[int, float], object] | None = None,
    ) -> None:
        self._encode, self._max, self._window, self._callback = encode, max_batch, window, callback
        self._queue: deque[_Request] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._open = True

    @property
    def waiting(self) -> int:
        """Number of texts that are not being encoded yet."""
        with self._changed:
            return sum(len(request.texts) for request in self._queue)

    @property
    def open(self) -> bool:
        """Whether texts are accepted."""
        return self._open

    def submit(self, texts: list[str]) -> Future[tuple[np.ndarray, int]]:
        """Queue the texts of a request.

        Returns: if it is cancelled before its batch starts, its texts are not encoded.
        """
        request = _Request(texts)
        with self._changed:
            if not self._open:
                raise StoppedError
            if self._thread is None:  # not in __init__: a server may fork after it was constructed
                self._thread = threading.Thread(target=self._work, name="congruence-encoder", daemon=True)
                self._thread.start()
            self._queue.append(request)
            self._changed.notify()
        return request.result

    def close(self) -> None:
        """Accept no more texts, and return once those in the queue are encoded."""
        with self._changed:
            self._open = False
            thread, self._thread = self._thread, None
            self._changed.notify()
        if thread is not None:
            thread.join()

    def reopen(self) -> None:
        """Accept texts again after ``close``."""
        with self._changed:
            self._open = True

    def _work(self) -> None:
        while batch := self._next():
            self._run(batch)

    def _next(self) -> list[_Request]:
        """Wait for the next batch of requests and return it; it is empty once the batcher is closed and the queue is
        done.
        """
        with self._changed:
            while True:
                while not self._queue and self._open:
                    self._changed.wait()
                deadline = time.monotonic() + self._window
                while self._open and sum(len(r.texts) for r in self._queue) < self._max:
                    if (remaining := deadline - time.monotonic()) <= 0 or not self._changed.wait(remaining):
                        break
                batch: list[_Request] = []
                size = 0
                while self._queue and (not batch or size + len(self._queue[0].texts) <= self._max):
                    request = self._queue.popleft()
                    if request.result.set_running_or_notify_cancel():
                        batch.append(request)
                        size += len(request.texts)
                if batch or (not self._open and not self._queue):
                    return batch

    def _run(self, batch: list[_Request]) -> None:
        texts = [text for request in batch for text in request.texts]
        began = time.monotonic()
        try:
            vectors, tokens = self._encode(texts)
        except BaseException as error:
            if len(batch) == 1:
                batch[0].result.set_exception(error)
                return
            for request in batch:  # one of them may be at fault: encode each alone, so that the others succeed
                self._run([request])
            return
        if self._callback is not None:
            self._callback(len(texts), time.monotonic() - began)
        start = 0
        for request in batch:
            stop = start + len(request.texts)
            request.result.set_result((vectors[start:stop], sum(tokens[start:stop])))
            start = stop


# ------------------------------------------------------------------ the process


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached only from this machine."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_host(host: str, api_key: str | None) -> None:
    """Check that a server that other machines can reach has a key. Raises ParameterError."""
    if api_key is None and not is_loopback(host):
        raise ParameterError(
            f"Got `host={host!r}` without a key, so that everyone on the network could use the model.",
            "Pass `api_key_env=` or `api_key_file=`, or `host='127.0.0.1'`.",
        )


def read_key(env: str | None = None, file: str | Path | None = None) -> str | None:
    """Return the key that clients must send, from an environment variable or a file; None if neither is named.

    Raises ParameterError if both are named, the variable is not set, or the key is shorter than 16 characters or not
    printable ASCII; FileError if the file cannot be read.
    """
    if env is None and file is None:
        return None
    if env is not None and file is not None:
        raise ParameterError("Got `api_key_env=` and `api_key_file=`; expected at most one of them.", "Leave out one.")
    if env is not None:
        if env not in os.environ:
            raise ParameterError(f"Got `api_key_env={env!r}`, which is not set.", "Export it first.")
        key, where = os.environ[env].strip(), f"the variable {env}"
    else:
        try:
            key, where = Path(str(file)).read_text(encoding="utf-8").strip(), f"the file {file}"
        except (OSError, ValueError) as error:
            problem = f"The key cannot be read from {file} ({type(error).__name__})."
            raise FileError(problem, "Check the path and the permissions.") from None
    if len(key) < SHORTEST_KEY or not (key.isascii() and key.isprintable()) or " " in key:
        raise ParameterError(
            f"Got a key of {len(key)} characters in {where}; expected at least {SHORTEST_KEY}, of printable ASCII "
            "without spaces.",
            "Create one with: python -c 'import secrets; print(secrets.token_urlsafe())'.",
        )
    return key


def listen(host: str, port: int) -> socket.socket:
    """Open a listening socket, so that the address is reserved while the server loads its model.

    ``port``: 0 selects a free one. Connections are queued until the server runs. Raises ParameterError if the port is
    out of range, or the address is in use or not one of this machine.
    """
    if not 0 <= port <= 65535:
        raise ParameterError(argument="port", got=port, expected="0 to 65535", fix="Pass `port=0` for a free one.")
    name = host.strip("[]")
    try:
        family = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        listening = socket.socket(family)
        try:
            if os.name == "posix":  # on Windows, this option would let two servers use the same address
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((name, port))
            listening.listen(CONNECTIONS)  # two sockets that are only bound could share the address
        except BaseException:
            listening.close()
            raise
    except OSError as error:
        raise ParameterError(
            f"Got {host} and `port={port}`, which cannot be taken ({error.strerror}).",
            "Pass another port, or `port=0` for a free one.",
        ) from None
    return listening


def serve(
    app: FastAPI, listening: socket.socket, *, timeout: float = 30.0, on_ready: Callable[[], object] | None = None
) -> None:
    """Run an application until SIGTERM or SIGINT, and let the requests in progress finish.

    ``listening``: as returned by ``listen``; closed at the end; ``timeout``: seconds that requests in progress may
    take after a signal, unless a second SIGINT arrives; ``on_ready``: called when connections are accepted.
    """
    uvicorn = require("uvicorn", extra="serve")

    class Server(uvicorn.Server):  # type: ignore[name-defined]
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets=sockets)
            if self.started and on_ready is not None:
                on_ready()

    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,  # the access log would contain the query strings of requests
        server_header=False,
        proxy_headers=False,
        limit_concurrency=CONNECTIONS,
        timeout_graceful_shutdown=max(1, round(timeout)),
    )
    server = Server(config)
    with listening, _stopping(server):
        server.run(sockets=[listening])


@contextmanager
def _stopping(server: uvicorn.Server) -> Iterator[None]:
    """Let signals stop the server even before uvicorn handles them; the signals that uvicorn raises again when it has
    stopped have no effect.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        server.should_exit = True

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
