"""The routes of the server, and the handling of a request.

Import this module only if FastAPI is installed: FastAPI reads its annotations at run time.
"""

import asyncio
import time
from collections.abc import Sequence
from functools import partial

import numpy as np
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from congruence.integrations._texts import TextVectors
from congruence.integrations.server.batching import Batcher, Encoded, StoppedError
from congruence.integrations.server.metrics import Metrics
from congruence.integrations.server.protocol import Limits, RequestError, answer, error_body, read_request

__all__ = ["Service", "add_routes"]

#: Responses with more numbers than this are serialized in another thread, so that other requests do not have to wait.
MANY = 50_000

#: Schema of a request's body, for the application's OpenAPI document.
SCHEMA = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["model", "input"],
                    "properties": {
                        "model": {"type": "string"},
                        "input": {
                            "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]
                        },
                        "encoding_format": {"enum": ["float", "base64"], "default": "float"},
                        "dimensions": {"type": "integer"},
                        "user": {"type": "string"},
                    },
                }
            }
        },
    }
}


class Service:
    """The request handlers for one encoder, with its batcher and metrics.

    Parameters
    ----------
    vectors : TextVectors
    names : sequence of str
        Names of the model that clients may send; responses contain the first.
    limits : Limits
    window : float
        Seconds for which the :class:`Batcher` waits for more texts.
    """

    def __init__(self, vectors: TextVectors, names: Sequence[str], limits: Limits, window: float) -> None:
        self.vectors, self.names, self.limits = vectors, names, limits
        self.metrics = Metrics()
        self.batcher = Batcher(self._encode, max_batch=limits.max_batch, window=window, callback=self.metrics.encoded)
        self.metrics.watch(self.batcher)
        self._active = 0
        self._began = int(time.time())

    def _encode(self, texts: list[str]) -> tuple[np.ndarray, list[int]]:
        return self.vectors(texts), self.vectors.count_tokens(texts)

    # ------------------------------------------------------------------ routes

    async def embeddings(self, request: Request) -> Response:
        """Encode the texts of a request and return their vectors."""
        if self._active >= self.limits.max_waiting:
            raise RequestError(
                f"Got more than {self.limits.max_waiting} concurrent requests; expected at most that many. "
                "Send it again in a second.",
                status=503,
                code="overloaded",
                retry_after=1,
            )
        self._active += 1
        self.metrics.active(self._active)
        try:
            deadline = asyncio.get_running_loop().time() + self.limits.timeout
            body = await self._read(request, deadline)
            parsed = read_request(body, limits=self.limits, names=self.names, dim=self.vectors.dim)
            encoded = await self._wait(request, parsed.texts, deadline)
            self.metrics.used(encoded.tokens)
            write = partial(answer, encoded.vectors, encoded.tokens, model=self.names[0], as_base64=parsed.base64)
            content = await asyncio.to_thread(write) if encoded.vectors.size > MANY else write()
        finally:
            self._active -= 1
            self.metrics.active(self._active)
        return Response(content, media_type="application/json")

    async def models(self) -> dict[str, object]:
        """List the names of the model."""
        return {"object": "list", "data": [self._card(name) for name in self.names]}

    async def model(self, name: str) -> dict[str, object]:
        """Describe the model by one of its names."""
        if name not in self.names:
            raise RequestError(
                f"Got a model that is not served; expected {' or '.join(map(repr, self.names))}. Request one of these.",
                status=404,
                code="model_not_found",
                param="model",
            )
        return self._card(name)

    async def health(self) -> Response:
        """Report whether the server accepts requests."""
        ready = self.batcher.open
        return JSONResponse({"status": "ok" if ready else "stopping"}, 200 if ready else 503)

    async def numbers(self) -> Response:
        """Return the metrics for Prometheus."""
        return Response(self.metrics.page(), headers={"content-type": self.metrics.content_type})

    # ------------------------------------------------------------------ steps

    def _card(self, name: str) -> dict[str, object]:
        return {"id": name, "object": "model", "created": self._began, "owned_by": "congruence"}

    async def _read(self, request: Request, deadline: float) -> bytes:
        """Return the body of a request; stop reading at the size limit or the deadline. Raises RequestError."""
        most = self.limits.max_body
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        # A web page may send requests with some other types to any address without a preflight request.
        if kind != "application/json":
            raise RequestError(
                "Got an unsupported content type; expected JSON. Send Content-Type: application/json.", status=415
            )
        if request.headers.get("content-encoding", "identity").lower() != "identity":
            raise RequestError(
                "Got a compressed body; expected a plain one. Send it without Content-Encoding.", status=415
            )
        length = request.headers.get("content-length", "")
        body = bytearray()
        try:
            if length.isdecimal() and int(length[:19]) > most:
                raise _TooLargeError
            async with asyncio.timeout_at(deadline):
                async for chunk in request.stream():
                    if len(body) + len(chunk) > most:
                        raise _TooLargeError
                    body += chunk
        except _TooLargeError:
            raise RequestError(
                f"Got a body that is too large; expected at most {most} bytes. Send fewer or shorter texts in "
                "a request.",
                status=413,
                code="body_too_large",
            ) from None
        except TimeoutError:
            raise RequestError(
                f"Got an incomplete body after {self.limits.timeout:g} s; expected all of it by then. Send it again.",
                status=408,
                code="timeout",
            ) from None
        except ClientDisconnect:
            raise _closed() from None
        return bytes(body)

    async def _wait(self, request: Request, texts: list[str], deadline: float) -> Encoded:
        """Return the encoded texts.

        Raises RequestError if the deadline passes or the client disconnects first, or the server is stopping.
        """
        try:
            result = asyncio.wrap_future(self.batcher.submit(texts))
        except StoppedError:
            raise RequestError(
                "Got a request while the server is stopping; expected a running server. Send it again in a second.",
                status=503,
                code="stopping",
                retry_after=1,
            ) from None
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
            f"Got no vectors in {self.limits.timeout:g} s; expected them sooner. Send fewer texts, or fewer "
            "concurrent requests.",
            status=504,
            code="timeout",
        )


class _TooLargeError(Exception):
    """The body of a request exceeds the size limit."""


async def _disconnect(request: Request) -> None:
    """Return once the client has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _closed() -> RequestError:
    return RequestError("Got a closed connection; expected it to stay open. Wait for the answer.", status=499)


def _refuse(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    body = error_body(str(error), error.status, code=error.code, param=error.param)
    headers = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
    if error.status == 408:  # the rest of the body may still arrive
        headers["Connection"] = "close"
    return JSONResponse(body, error.status, headers=headers)


def _no_route(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = {
        404: "Got an unknown path; expected /v1/embeddings, /v1/models, /healthz or /metrics. Set the client's "
        "base_url to …/v1.",
        405: "Got an unsupported method; expected POST for /v1/embeddings and GET for the rest. Send the request "
        "with that method.",
    }.get(error.status_code, "Got an invalid request; expected one that the API defines. See /openapi.json.")
    return JSONResponse(error_body(message, error.status_code), error.status_code, headers=error.headers)


def add_routes(app: FastAPI, service: Service) -> None:
    """Add the routes of a service, and its error handlers, to an application."""
    app.add_api_route("/v1/embeddings", service.embeddings, methods=["POST"], response_model=None, openapi_extra=SCHEMA)
    app.add_api_route("/v1/models", service.models, methods=["GET"])
    app.add_api_route("/v1/models/{name:path}", service.model, methods=["GET"])
    app.add_api_route("/healthz", service.health, methods=["GET"], response_model=None)
    app.add_api_route("/metrics", service.numbers, methods=["GET"], response_model=None)
    app.add_exception_handler(RequestError, _refuse)
    app.add_exception_handler(HTTPException, _no_route)
