"""The process of a server: its key, its address, and how it stops (extra ``serve``)."""

from __future__ import annotations

import ipaddress
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from congruence._utils.optional import require
from congruence.errors import FileError, ParameterError

if TYPE_CHECKING:
    from fastapi import FastAPI

SHORTEST_KEY = 16  # minimum number of characters of a key; a shorter one could be guessed
CONNECTIONS = 1024  # maximum number of concurrent connections; uvicorn refuses further ones before it reads from them


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached only from this machine."""
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_host(host: str, api_key: str | None) -> None:
    """Refuse a server without a key that other machines can reach."""
    if api_key is None and not is_loopback(host):
        problem = f"Got `host={host!r}` without a key, so that everyone on the network could use the model."
        raise ParameterError(problem, "Pass `api_key_env=` or `api_key_file=`, or `host='127.0.0.1'`.")


def read_key(env: str | None = None, file: str | Path | None = None) -> str | None:
    """Return the key that clients must send, from an environment variable or a file; None if neither is named."""
    if env is not None and file is not None:
        raise ParameterError("Got `api_key_env=` and `api_key_file=`; expected at most one of them.", "Leave out one.")
    if env is not None:
        if env not in os.environ:
            raise ParameterError(f"Got `api_key_env={env!r}`, which is not set.", "Export it first.")
        key, where = os.environ[env].strip(), f"the variable {env}"
    elif file is not None:
        try:
            key, where = Path(file).read_text(encoding="utf-8").strip(), f"the file {file}"
        except (OSError, ValueError) as error:
            problem = f"The key cannot be read from {file} ({type(error).__name__})."
            raise FileError(problem, "Check the path and the permissions.") from None
    else:
        return None
    if len(key) < SHORTEST_KEY or not (key.isascii() and key.isprintable()) or " " in key:
        raise ParameterError(
            f"Got a key of {len(key)} characters in {where}; expected at least {SHORTEST_KEY}, of printable ASCII "
            "without spaces.",
            "Create one with: python -c 'import secrets; print(secrets.token_urlsafe())'.",
        )
    return key


def listen(host: str, port: int) -> socket.socket:
    """Open a listening socket, which reserves the address while the server loads its model; port 0 is a free one."""
    if not 0 <= port <= 65535:
        raise ParameterError(argument="port", got=port, expected="0 to 65535", fix="Pass `port=0` for a free one.")
    name = host.strip("[]")
    try:
        family = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        return socket.create_server((name, port), family=family, backlog=CONNECTIONS)
    except OSError as error:
        problem = f"Got {host} and `port={port}`, which cannot be taken ({os.strerror(error.errno or 0)})."
        raise ParameterError(problem, "Pass another port, or `port=0` for a free one.") from None


def serve(
    app: FastAPI, listening: socket.socket, *, timeout: float = 30.0, on_ready: Callable[[], object] | None = None
) -> None:
    """Run an application until SIGTERM or SIGINT, and let the requests in progress finish.

    They may take ``timeout`` seconds, unless a second SIGINT arrives; ``on_ready`` is called when connections are
    accepted.
    """
    uvicorn = require("uvicorn", extra="serve")

    class Server(uvicorn.Server):  # type: ignore[name-defined]
        should_exit: bool

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets=sockets)
            if self.started and on_ready is not None:
                on_ready()

        def handle_exit(self, number: int, frame: object) -> None:
            """Stop after a signal; uvicorn's own method would raise it again once the server has stopped."""
            if self.should_exit and number == signal.SIGINT:
                self.force_exit = True
            self.should_exit = True

    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,  # the access log would contain the query strings of requests
        server_header=False,
        proxy_headers=False,
        limit_concurrency=CONNECTIONS,
        timeout_graceful_shutdown=max(1, round(timeout)),
    )
    with listening:
        Server(config).run(sockets=[listening])
