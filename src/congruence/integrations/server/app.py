"""The server as an application that an ASGI server runs, or that another application mounts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from congruence._utils.optional import require
from congruence._utils.validation import check_choice, check_positive
from congruence._version import __version__
from congruence.errors import ParameterError
from congruence.integrations._texts import BridgeLike, EncoderLike, TextVectors
from congruence.integrations.server.guard import Guard
from congruence.integrations.server.protocol import Limits

if TYPE_CHECKING:
    from fastapi import FastAPI

__all__ = ["SPACES", "create_app"]

#: Whose vectors are served: the index's model's, through the bridge, or the encoder's own.
SPACES = ("target", "source")


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
    """Make an application with OpenAI's ``POST /v1/embeddings``, whose vectors are in the space of an index.

    Parameters
    ----------
    bridge : path-like, Bridge, Map or None
        From the encoder's space to the index's. None serves the encoder's own vectors.
    encoder : str, Encoder or callable
        ``"sentence-transformers:<name or path>"`` and the like, or a callable from a list of texts to an array, shape (n, dim).
    modality : str, default="text"
        Modality whose means are used, for a bridge that has means for several modalities.
    space : {"target", "source"}, default="target"
        "target": vectors in the index's space. "source": those of the encoder, which is still refused if it does not fit the bridge.
    names : sequence of str, optional
        What clients may send as ``model``, the first of which answers name; by default the model in whose space the vectors are.
    api_key : str, optional
        Required as ``Authorization: Bearer`` by everything but ``/healthz``.
    allowed_hosts : sequence of str, optional
        Names and addresses under which the server may be spoken to; all by default. A server on loopback without a key needs them, or
        a page in a browser could reach it under a name of its own.
    limits : Limits, optional
    window : float, default=0
        Seconds for which a free encoder waits for more texts. Those that come while it is busy are encoded together in any case.
    batch_size : int, default=32
        Texts that the encoder reads at a time.
    check : bool, default=True
        Compare the encoder's name, revision and norm with those of the map's source; widths are compared in any case.

    Returns
    -------
    fastapi.FastAPI
        To be run by an ASGI server, or mounted in another application.

    Raises
    ------
    ParameterError
        Another ``space``, no name, an empty key, or a limit or window that is not positive.
    SpaceMismatchError, DirectionError, ModalityError
        If the encoder's vectors do not belong to the bridge's source space.
    FileError, MissingExtraError
        If a file cannot be read, or an optional dependency is not installed.

    Notes
    -----
    One thread encodes; requests that wait for it are encoded together, at most ``limits.max_batch`` texts at a time. A request whose
    client has gone, or whose time is up, is not encoded. What was sent is neither repeated in an answer nor written to a log.

    References
    ----------
    .. [1] OpenAI API reference, "Create embeddings". https://platform.openai.com/docs/api-reference/embeddings
    """
    fastapi = require("fastapi", extra="serve")
    limits = limits or Limits()
    for name in ("max_batch", "max_body", "max_chars", "max_waiting"):
        check_positive(getattr(limits, name), name, integer=True)
    check_positive(limits.timeout, "timeout")
    check_choice(space, SPACES, "space")
    if not 0 <= window < limits.timeout:
        raise ParameterError(
            f"Got window={window!r}; expected seconds from 0 to the time limit, {limits.timeout:g}. Pass window=0.002, or 0 for none."
        )
    if api_key is not None and not api_key:
        raise ParameterError(
            "Got an empty api_key; expected a secret. Pass api_key=secrets.token_urlsafe(), or None for no key."
        )
    vectors = TextVectors(encoder, bridge, modality=modality, batch_size=batch_size, check=check)
    if space == "source":
        vectors = vectors.unmapped()
    served = tuple(names) if names is not None else (vectors.name,)
    if not served or not all(isinstance(name, str) and name for name in served):
        raise ParameterError(
            "Got no name in names; expected at least one. Pass names=[…] with what clients send as model."
        )
    from congruence.integrations.server.routes import Service, add_routes  # they are FastAPI's

    service = Service(vectors, served, limits, window)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.batcher.reopen()
        yield
        await asyncio.to_thread(service.batcher.close)

    # The pages of /docs would load scripts from elsewhere.
    app: FastAPI = fastapi.FastAPI(
        title="congruence", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None
    )
    add_routes(app, service)
    app.state.service = service
    app.add_middleware(Guard, metrics=service.metrics, api_key=api_key, hosts=allowed_hosts)
    return app
