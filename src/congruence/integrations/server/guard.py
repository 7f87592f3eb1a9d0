"""Middleware in front of every route: access control, metrics, and error responses that do not reveal what was sent."""

from __future__ import annotations

import hmac
import json
import logging
import time
import traceback
import uuid
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any, TypeAlias

from congruence.integrations.server.metrics import Metrics
from congruence.integrations.server.protocol import error_body

__all__ = ["Guard"]

#: Paths with metrics of their own; all other paths are counted together as "other".
PATHS = ("/v1/embeddings", "/v1/models", "/healthz", "/metrics")

#: Paths answered without a key and under any host name: load balancers request them, and the answers reveal nothing.
OPEN = ("/healthz",)

_log = logging.getLogger("congruence.serve")

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Application: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


class Guard:
    """ASGI middleware that checks keys and host names, sets request ids, counts requests, and keeps contents out of
    error messages.

    Parameters
    ----------
    app : ASGI application
    metrics : Metrics
    api_key : str or None
        Required key, compared in constant time; None requires no key.
    hosts : sequence of str or None
        Accepted values of the ``Host`` header, without port; None accepts all.
    """

    def __init__(self, app: Application, *, metrics: Metrics, api_key: str | None, hosts: Sequence[str] | None) -> None:
        self.app, self._metrics = app, metrics
        self._key = None if api_key is None else b"Bearer " + api_key.encode()
        self._hosts = None if hosts is None else {host.lower().encode() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse one request, or pass it on to the application."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = uuid.uuid4().hex
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        began, status = time.monotonic(), 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                extra = [(b"x-request-id", request_id.encode()), (b"cache-control", b"no-store")]
                message = {**message, "headers": [*message.get("headers", ()), *extra]}
            await send(message)

        try:
            refused = None if path in OPEN else self._refusal(dict(scope["headers"]))
            if refused is None:
                await self.app(scope, receive, sending)
            else:
                await _respond(sending, *refused)
        except Exception as error:
            # An error message may quote a text, so it goes neither to the client nor to the log.
            frames = "".join(traceback.format_tb(error.__traceback__))
            _log.error("request %s failed: %s\n%s", request_id, type(error).__name__, frames)
            if not status:
                message = f"Got an internal error; expected vectors. Look for request {request_id} in the server's log."
                await _respond(sending, 500, error_body(message, 500, code="internal_error"))
        finally:
            label = next((known for known in PATHS if path == known or path.startswith(f"{known}/")), "other")
            self._metrics.answered(label, status, time.monotonic() - began)

    def _refusal(self, headers: dict[bytes, bytes]) -> tuple[int, dict[str, object], list[tuple[bytes, bytes]]] | None:
        if self._hosts is not None and _host(headers.get(b"host", b"")) not in self._hosts:
            message = (
                "Got a request for an unknown host name; expected a name of this machine. Send it to localhost, "
                "or start the server with a key."
            )
            return 421, error_body(message, 421, code="wrong_host"), []
        authorization = headers.get(b"authorization", b"")
        if self._key is not None and not hmac.compare_digest(authorization, self._key):
            message = "Got a missing or wrong key; expected the server's key. Send it as Authorization: Bearer …."
            return 401, error_body(message, 401, code="invalid_api_key"), [(b"www-authenticate", b"Bearer")]
        return None


def _host(value: bytes) -> bytes:
    """Return the host of a Host header, without the port and the brackets of an IPv6 address."""
    value = value.strip().lower()
    if value.startswith(b"["):
        return value[1:].partition(b"]")[0]
    return value.partition(b":")[0]


async def _respond(
    send: Send, status: int, body: Mapping[str, object], headers: Sequence[tuple[bytes, bytes]] = ()
) -> None:
    content = json.dumps(body).encode()
    fixed = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*fixed, *headers]})
    await send({"type": "http.response.body", "body": content})
