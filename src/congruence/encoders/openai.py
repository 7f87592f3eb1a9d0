"""Embeddings over HTTP: ``openai:``, also any server with this interface, ``cohere:``, ``voyage:``, ``gemini:``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from congruence._utils.optional import require
from congruence.encoders._base import Encoder, EncoderOptions, fingerprint
from congruence.encoders._items import Item
from congruence.errors import CongruenceError, DatabaseUnavailableError, InputError, ParameterError, ShapeError

#: Times that the library repeats a request after 408, 409, 429, 5xx or a lost connection, waiting longer each time.
RETRIES = 6

#: Error and advice by status; of any other status, that the server is not available.
_REFUSED: dict[int | None, tuple[type[CongruenceError], str]] = {
    **dict.fromkeys((401, 403), (ParameterError, "Set {key} to a key that is valid there.")),
    404: (ParameterError, "Check the model's name and {url}."),
    **dict.fromkeys((400, 413, 422), (InputError, "Shorten the text, or leave it out.")),
}


def _by_index(answer: Any) -> list[tuple[int, Any]]:
    return [(one["index"], one["embedding"]) for one in answer["data"]]


@dataclass(frozen=True)
class Service:
    """How a service differs from the others; all take a key as a bearer token, and are asked by the same client.

    A token has at least one byte, so that a request of ``size`` bytes stays below the limit of tokens.
    """

    url: str  # unless the environment variable names another
    url_variable: str
    key: str  # environment variable
    items: int  # most texts of a request
    size: int  # most bytes of a request
    path: str = "/embeddings"
    texts: str = "input"  # name of the texts in a request
    more: Mapping[str, object] = field(default_factory=dict)
    #: Values of ``input_type``, one of which is the prompt; the first is the default.
    kinds: tuple[str | None, ...] = ()
    urls_by_key: Mapping[str, str] = field(default_factory=dict)  # by the first letters of a key, if not ``url``
    vectors: Callable[[Any], list[tuple[int, Any]]] = _by_index  # positions and vectors in an answer
    tokens: Callable[[Any], Any] = lambda answer: answer["usage"]["total_tokens"]


SERVICES: dict[str, Service] = {
    "openai": Service(
        "https://api.openai.com/v1",
        "OPENAI_BASE_URL",
        "OPENAI_API_KEY",
        2048,
        300_000,
        more={"encoding_format": "float"},
        tokens=lambda answer: answer["usage"]["prompt_tokens"],
    ),
    "gemini": Service(
        "https://generativelanguage.googleapis.com/v1beta/openai",
        "GEMINI_BASE_URL",
        "GEMINI_API_KEY",
        100,
        200_000,
        more={"encoding_format": "float"},
    ),
    "voyage": Service(
        "https://api.voyageai.com/v1",
        "VOYAGE_BASE_URL",
        "VOYAGE_API_KEY",
        128,
        120_000,
        more={"truncation": False},
        kinds=(None, "document", "query"),
        urls_by_key={"al-": "https://ai.mongodb.com/v1"},  # from MongoDB Atlas
    ),
    "cohere": Service(
        "https://api.cohere.com",
        "CO_API_URL",
        "CO_API_KEY",
        96,
        200_000,
        path="/v2/embed",
        texts="texts",
        more={"embedding_types": ["float"], "truncate": "NONE"},
        kinds=("search_document", "search_query", "classification", "clustering"),
        vectors=lambda answer: list(enumerate(answer["embeddings"]["float"])),
        tokens=lambda answer: answer["meta"]["billed_units"]["input_tokens"],
    ),
}


class OpenAIEncoder(Encoder):
    """A model of texts behind one of ``SERVICES``, through OpenAI's official library, with its retries and waits.

    Key and address come from the service's environment variables. A server does not say which weights it runs: the
    fingerprint holds the address, the model's name and ``revision``. Without ``normalize``, rows are taken to have unit
    norm if that of a sample has. ``tokens`` is the number the server has counted.
    """

    tokens = 0

    def __init__(self, options: EncoderOptions) -> None:
        modality = options.check(("text",), "layer", "pooling", "description")
        self._library, self._response = require("openai", extra="openai"), require("httpx", extra="openai").Response
        self.service = service = SERVICES[options.name.partition(":")[0]]
        self._key = os.environ.get(service.key, "").strip()
        if not (self._key and self._key.isascii() and self._key.isprintable()):
            advice = f"Set {service.key}; any ASCII text for a server without keys."
            raise ParameterError(f"No key for {options.name!r} in the environment.", advice)
        kinds = service.kinds
        if kinds and options.prompt is None and kinds[0]:
            options = replace(options, prompt=kinds[0])
        if kinds and options.prompt not in kinds:
            known = ", ".join(filter(None, kinds))
            raise ParameterError(argument="prompt", got=options.prompt, expected=f"one of {known}")
        self._body = {"model": options.path, **service.more, **({"input_type": options.prompt} if kinds else {})}
        own_url = service.urls_by_key.get(self._key[:3], service.url)
        url = os.environ.get(service.url_variable) or own_url
        own = {} if service is SERVICES["openai"] else {"organization": "", "project": ""}
        self._client = self._library.OpenAI(api_key=self._key, base_url=url, max_retries=RETRIES, **own)
        self._place = urlsplit(str(self._client.base_url))
        self._describe(options, modality, normalize=bool(options.normalize), revision=options.revision)
        self._prompt = "" if kinds else self._prompt
        unit = bool(abs(np.linalg.norm(self._set_dim()) - 1) < 1e-3)
        self.space = replace(self.space, normalized=unit if options.normalize is None else options.normalize)
        address = f"{self._place.hostname}:{self._place.port}{self._place.path}"  # without a name and password
        self.fingerprint = fingerprint(adapter="openai", address=address, space=self.space.to_dict())

    def _embed(self, items: list[Item]) -> Any:
        rows: list[np.ndarray] = []
        start = size = 0
        for k, length in enumerate(len(item.encode("utf-8", "surrogatepass")) for item in items):
            if k > start and (k - start == self.service.items or size + length > self.service.size):
                rows += self._request(items[start:k])
                start, size = k, 0
            size += length
        return rows + self._request(items[start:])

    def _request(self, texts: list[str]) -> list[np.ndarray]:
        """Return the vectors of one request, in the order of the texts."""
        service = self.service
        try:
            body = {**self._body, service.texts: texts}
            answer = self._client.post(service.path, body=body, cast_to=self._response).json()
            given = [(index, np.asarray(vector, dtype=np.float32)) for index, vector in service.vectors(answer)]
            found = dict(given)
        except (self._library.OpenAIError, ValueError, TypeError, AttributeError, KeyError) as error:
            status = getattr(error, "status_code", None)
            kind, advice = _REFUSED.get(status, (DatabaseUnavailableError, "Run again later to resume."))
            told = getattr(error, "body", None)
            text = told.get("detail") if isinstance(told, dict) else None  # where Voyage says it
            said = " ".join(str(text or getattr(error, "message", error)).replace(self._key, "…").split())
            if status == 400 and "api key" in said.lower():  # Gemini's answer to a wrong one
                kind, advice = _REFUSED[401]
            what = f"{status or 'no embeddings'} for {self.space.model!r} ({said[:200]})"
            advice = advice.format(key=service.key, url=service.url_variable)
            raise kind(f"{self._place.hostname} answered {what}.", advice) from None  # the cause knows the key
        if found.keys() != set(range(len(texts))) or len(given) != len(texts):
            count = f"{len(given)} vectors for {len(texts)} texts, or wrong indexes"
            problem = f"{self._place.hostname} returned {count}."
            raise ShapeError(problem, "Use a server that returns each text's vector with its index.")
        with suppress(KeyError, TypeError):
            self.tokens += service.tokens(answer) or 0
        return [found[k] for k in range(len(texts))]
