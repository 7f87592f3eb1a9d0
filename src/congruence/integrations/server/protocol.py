"""OpenAI's embeddings protocol: parse and validate requests, and write responses and errors."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from congruence.errors import ParameterError

__all__ = ["EmbeddingRequest", "Limits", "RequestError", "answer", "error_body", "read_request"]

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

    Parameters
    ----------
    message : str
    status : int, default=400
        HTTP status.
    code : str, optional
        Machine-readable code, as in the API's errors.
    param : str, optional
        Field of the request that the error is about.
    retry_after : int, optional
        Seconds after which a retry may succeed.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        code: str | None = None,
        param: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.param, self.retry_after = status, code, param, retry_after


@dataclass(frozen=True)
class Limits:
    """Limits on the size, number and duration of requests.

    Parameters
    ----------
    max_batch : int, default=256
        Maximum number of texts per request, and per call of the encoder.
    max_body : int, default=2097152
        Maximum size of a request's body, in bytes.
    max_chars : int, default=32768
        Maximum number of characters per text.
    max_waiting : int, default=256
        Maximum number of requests in progress (being read, waiting or being encoded); further ones are refused and told
        to retry.
    timeout : float, default=30
        Seconds after which a request that has no vectors yet is answered with an error.
    """

    max_batch: int = 256
    max_body: int = 2 * 2**20
    max_chars: int = 32768
    max_waiting: int = 256
    timeout: float = 30.0


@dataclass(frozen=True)
class EmbeddingRequest:
    """A parsed request: its texts, and whether the vectors are wanted as base64 of little-endian float32."""

    texts: list[str]
    base64: bool


def read_request(body: bytes, *, limits: Limits, names: Sequence[str], dim: int) -> EmbeddingRequest:
    """Parse and validate the body of ``POST /v1/embeddings``.

    Parameters
    ----------
    body : bytes
    limits : Limits
    names : sequence of str
        Names that the request may send as ``model``.
    dim : int
        Width of the vectors.

    Returns
    -------
    EmbeddingRequest

    Raises
    ------
    RequestError
        If the body is not JSON of the expected form, or asks for something the server does not support or allow.
    """
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        raise RequestError(
            "Got a body that is not JSON; expected an object with model and input. Send JSON in UTF-8.",
            code="invalid_json",
        ) from None
    if not isinstance(content, dict):
        raise RequestError(
            f'Got {_kind(content)} as the body; expected an object with model and input. Send {{"model": …, '
            '"input": …}.'
        )
    _check_model(content, names)
    if (encoding := content.get("encoding_format", "float")) not in ("float", "base64"):
        raise RequestError(
            "Got an unknown encoding_format; expected 'float' or 'base64'. Send one of these, or omit encoding_format.",
            param="encoding_format",
        )
    if content.get("dimensions") is not None and (
        type(content["dimensions"]) is not int or content["dimensions"] != dim
    ):
        raise RequestError(
            f"Got other dimensions than the model's; expected {dim}, since mapped vectors cannot be truncated. "
            "Omit dimensions.",
            param="dimensions",
        )
    return EmbeddingRequest(_texts(content, limits), encoding == "base64")


def _check_model(content: Mapping[str, object], names: Sequence[str]) -> None:
    if not isinstance(content.get("model"), str):
        raise RequestError(f"Got no model; expected the name of a model. Send {names[0]!r} as model.", param="model")
    if content["model"] not in names:
        raise RequestError(
            f"Got a model that is not served; expected {' or '.join(map(repr, names))}. Send one of these as "
            "model, or start the server with the name your client sends (congruence serve --model-name).",
            status=404,
            code="model_not_found",
            param="model",
        )


def _texts(content: Mapping[str, object], limits: Limits) -> list[str]:
    texts = content.get("input")
    items = [texts] if isinstance(texts, str) else texts
    if not isinstance(items, list) or not items:
        raise RequestError(
            f"Got {_kind(texts)} as input; expected a text or a list of texts. Send at least one text.", param="input"
        )
    if len(items) > limits.max_batch and not _is_token(items[0]):
        raise RequestError(
            f"Got {len(items)} texts; expected at most {limits.max_batch} in a request. Send them in several requests.",
            code="too_many_inputs",
            param="input",
        )
    for k, text in enumerate(items):
        if _is_token(text) or isinstance(text, list):
            raise RequestError(
                "Got token ids as input; expected texts, since another model's tokens mean nothing here. Send the "
                "text itself (LangChain: OpenAIEmbeddings with check_embedding_ctx_length=False).",
                code="tokens_not_supported",
                param="input",
            )
        if not isinstance(text, str):
            raise RequestError(f"Got {_kind(text)} as input {k}; expected a text. Send strings.", param="input")
        if not text:
            raise RequestError(
                f"Got an empty text as input {k}; expected at least one character. Leave it out.", param="input"
            )
        if len(text) > limits.max_chars:
            raise RequestError(
                f"Got {len(text)} characters as input {k}; expected at most {limits.max_chars}. Send it in parts.",
                status=413,
                code="input_too_long",
                param="input",
            )
        if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
            raise RequestError(
                f"Got half of a surrogate pair in input {k}; expected Unicode text. Send it in UTF-8.", param="input"
            )
    return items


def _is_token(item: object) -> bool:
    return isinstance(item, int) and not isinstance(item, bool)


def _kind(item: object) -> str:
    """Return the JSON type of a value in words, without the value itself."""
    kinds = {
        dict: "an object",
        list: "an empty list" if item == [] else "a list",
        str: "a text",
        bool: "true or false",
        type(None): "nothing",
    }
    return kinds.get(type(item), "a number")


def answer(vectors: np.ndarray, tokens: int, *, model: str, as_base64: bool) -> bytes:
    """Return the body of a successful response.

    Parameters
    ----------
    vectors : ndarray, shape (n, dim)
    tokens : int
        Number of tokens of all texts.
    model : str
    as_base64 : bool
        Write vectors as base64 of little-endian float32, which the ``openai`` client requests; otherwise as lists of
        numbers.

    Returns
    -------
    bytes
    """
    rows = np.ascontiguousarray(vectors, dtype="<f4")
    encoded: list[object] = [base64.b64encode(row).decode("ascii") for row in rows] if as_base64 else rows.tolist()
    data = [{"object": "embedding", "index": k, "embedding": row} for k, row in enumerate(encoded)]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    response = {"object": "list", "data": data, "model": model, "usage": usage}
    return json.dumps(response, separators=(",", ":"), allow_nan=False).encode()


def error_body(message: str, status: int, *, code: str | None = None, param: str | None = None) -> dict[str, object]:
    """Return the body of an error response in the API's format.

    Parameters
    ----------
    message : str
    status : int
        HTTP status, which determines the error's type.
    code, param : str, optional

    Returns
    -------
    dict
    """
    return {
        "error": {"message": message, "type": KINDS.get(status, "invalid_request_error"), "param": param, "code": code}
    }
