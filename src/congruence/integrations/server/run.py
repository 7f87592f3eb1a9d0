"""The server as a process: its address, its key, and how it stops."""

from __future__ import annotations

import ipaddress
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from congruence._utils.optional import require
from congruence.errors import FileError, ParameterError

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI

__all__ = ["LOOPBACK", "check_host", "is_loopback", "listen", "read_key", "serve"]

#: Host names to which a server without a key responds.
LOOPBACK = ("localhost", "127.0.0.1", "::1")

#: Minimum number of characters of a key; a shorter one could be guessed.
SHORTEST_KEY = 16

#: Maximum number of concurrent connections; uvicorn refuses further ones before it reads from them.
CONNECTIONS = 1024


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached only from this machine."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_host(host: str, api_key: str | None) -> None:
    """Check that a server that other machines can reach has a key.

    Raises
    ------
    ParameterError
        If there is no key, and the address is not a loopback address.
    """
    if api_key is None and not is_loopback(host):
        raise ParameterError(
            f"Got host={host!r} without a key, so that everyone on the network could use the model; expected a key "
            "or an address of this machine. Pass api_key_env=… or api_key_file=…, or host='127.0.0.1'."
        )


def read_key(env: str | None = None, file: str | None = None) -> str | None:
    """Return the key that clients must send, from the environment or a file; None if neither is named.

    Parameters
    ----------
    env : str, optional
        Name of an environment variable.
    file : path-like, optional
        Path of a file that contains only the key.

    Returns
    -------
    str or None

    Raises
    ------
    ParameterError
        If both are named, the variable is not set, or the key is shorter than 16 characters, contains spaces or is not
        printable ASCII.
    FileError
        If the file cannot be read.
    """
    if env is None and file is None:
        return None
    if env is not None and file is not None:
        raise ParameterError("Got api_key_env=… and api_key_file=…; expected at most one of them. Leave out one.")
    if env is not None:
        if env not in os.environ:
            raise ParameterError(
                f"Got api_key_env={env!r}, which is not set; expected a variable that contains the key. Export "
                "it first."
            )
        key, where = os.environ[env].strip(), f"the variable {env}"
    else:
        try:
            key, where = Path(str(file)).read_text(encoding="utf-8").strip(), f"the file {file}"
        except (OSError, ValueError) as error:
            raise FileError(
                f"Got no key from {file} ({type(error).__name__}); expected a text file that contains the key. "
                "Check the path and the permissions."
            ) from None
    if len(key) < SHORTEST_KEY or not (key.isascii() and key.isprintable()) or " " in key:
        raise ParameterError(
            f"Got a key of {len(key)} characters in {where}; expected at least {SHORTEST_KEY}, of printable ASCII "
            "without spaces. Create one with: python -c 'import secrets; print(secrets.token_urlsafe())'."
        )
    return key


def listen(host: str, port: int) -> socket.socket:
    """Open a listening socket, so that the address is reserved while the server loads its model.

    Parameters
    ----------
    host : str
    port : int
        0 selects a free port.

    Returns
    -------
    socket.socket
        Connections are queued until the server runs.

    Raises
    ------
    ParameterError
        If the port is out of range, or the address is in use or not one of this machine.
    """
    if not 0 <= port <= 65535:
        raise ParameterError(f"Got port={port}; expected 0 to 65535. Pass port=8000, or 0 for a free one.")
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
            f"Got host={host!r} and port={port}, which cannot be taken ({error.strerror}); expected a free address "
            "of this machine. Pass another port=…, or port=0 for a free one."
        ) from None
    return listening


def serve(
    app: FastAPI, listening: socket.socket, *, timeout: float = 30.0, on_ready: Callable[[], object] | None = None
) -> None:
    """Run an application until SIGTERM or SIGINT, and let the requests in progress finish.

    Parameters
    ----------
    app : fastapi.FastAPI
        As returned by :func:`create_app`.
    listening : socket.socket
        Listening socket, as returned by :func:`listen`; closed at the end.
    timeout : float, default=30
        Seconds that requests in progress may take after a signal. After a second SIGINT they are not waited for.
    on_ready : callable, optional
        Called when connections are accepted.

    Raises
    ------
    MissingExtraError
        If an optional dependency is not installed.
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
