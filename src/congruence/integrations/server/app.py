"""The embedding server as an ASGI application."""

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

#: Spaces that can be served: that of the index, through the bridge, or the encoder's own.
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
    """Return an application with OpenAI's ``POST /v1/embeddings``, which returns vectors in the space of an index.

    Parameters
    ----------
    bridge : path-like, Bridge, Map or None
        Map from the encoder's space to that of the index. None serves the encoder's own vectors.
    encoder : str, Encoder or callable
        ``"sentence-transformers:<name or path>"`` and the like, or a callable from a list of texts to an array, shape
        (n, dim).
    modality : str, default="text"
        Modality whose means are used, for a bridge that has means for several modalities.
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
    batch_size : int, default=32
        Number of texts that the encoder processes at a time.
    check : bool, default=True
        Compare the encoder's name, revision and norm with those of the map's source; widths are always compared.

    Returns
    -------
    fastapi.FastAPI
        ASGI application, to run or to mount in another application.

    Raises
    ------
    ParameterError
        If ``space`` is unknown, there is no name, the key is empty, or a limit or the window is out of range.
    SpaceMismatchError, DirectionError, ModalityError
        If the encoder's vectors do not belong to the bridge's source space.
    FileError, MissingExtraError
        If a file cannot be read, or an optional dependency is not installed.

    Notes
    -----
    One thread encodes; waiting requests are encoded together, at most ``limits.max_batch`` texts at a time. Requests
    whose client has disconnected or whose time limit has passed are not encoded. The contents of requests never appear
    in responses or logs.

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
            f"Got window={window!r}; expected seconds from 0 to the time limit, {limits.timeout:g}. Pass "
            "window=0.002, or 0 for none."
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
            "Got no names, or an empty one; expected at least one name. Pass names=[…] with the values that "
            "clients send as model."
        )
    from congruence.integrations.server.routes import Service, add_routes  # imports FastAPI

    service = Service(vectors, served, limits, window)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.batcher.reopen()
        yield
        await asyncio.to_thread(service.batcher.close)

    # The /docs pages would load scripts from other sites.
    app: FastAPI = fastapi.FastAPI(
        title="congruence", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None
    )
    add_routes(app, service)
    app.state.service = service
    app.add_middleware(Guard, metrics=service.metrics, api_key=api_key, hosts=allowed_hosts)
    return app
