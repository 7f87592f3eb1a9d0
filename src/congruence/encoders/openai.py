"""``openai:<model>``: embeddings over HTTP, from OpenAI or any server with the same interface."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from congruence._utils.optional import require
from congruence.encoders._base import Encoder, EncoderOptions, fingerprint
from congruence.encoders._items import Item
from congruence.errors import CongruenceError, DatabaseUnavailableError, InputError, ParameterError, ShapeError

#: Limits of one request. A token has at least one byte, so that a request stays below OpenAI's 300,000 tokens.
REQUEST_ITEMS, REQUEST_BYTES = 2048, 300_000

#: Times that the library repeats a request after 408, 409, 429, 5xx or a lost connection, waiting longer each time.
RETRIES = 6

_KEY = "Set OPENAI_API_KEY to a key that is valid there; any text for a server without keys."

#: Error and advice by status; of any other status, that the server is not available.
_REFUSED: dict[int | None, tuple[type[CongruenceError], str]] = {
    **dict.fromkeys((401, 403), (ParameterError, _KEY)),
    404: (ParameterError, "Check the model's name and OPENAI_BASE_URL."),
    **dict.fromkeys((400, 413, 422), (InputError, "Shorten the text, or leave it out.")),
}


class OpenAIEncoder(Encoder):
    """A model of texts behind OpenAI's interface, through the official library, with its retries and waits.

    The library reads the key from ``OPENAI_API_KEY`` and the address from ``OPENAI_BASE_URL``. A server does not say
    which weights it runs: the fingerprint holds the address, the model's name and ``revision``. Without ``normalize``,
    rows are taken to have unit norm if that of a sample has. ``tokens`` is the number the server has counted.
    """

    tokens = 0

    def __init__(self, options: EncoderOptions) -> None:
        modality = options.check(("text",), "layer", "pooling", "description")
        self._library = require("openai", extra="openai")
        try:
            self._client = self._library.OpenAI(max_retries=RETRIES)
        except self._library.OpenAIError:
            raise ParameterError(f"No key for {options.name!r} in the environment.", _KEY) from None
        self._place, self._name = urlsplit(str(self._client.base_url)), options.path
        self._describe(options, modality, normalize=bool(options.normalize), revision=options.revision)
        unit = bool(abs(np.linalg.norm(self._set_dim()) - 1) < 1e-3)
        self.space = replace(self.space, normalized=unit if options.normalize is None else options.normalize)
        address = f"{self._place.hostname}:{self._place.port}{self._place.path}"  # without a name and password
        self.fingerprint = fingerprint(adapter="openai", address=address, space=self.space.to_dict())

    def _embed(self, items: list[Item]) -> Any:
        rows: list[np.ndarray] = []
        start = size = 0
        for k, length in enumerate(len(item.encode("utf-8", "surrogatepass")) for item in items):
            if k > start and (k - start == REQUEST_ITEMS or size + length > REQUEST_BYTES):
                rows += self._request(items[start:k])
                start, size = k, 0
            size += length
        return rows + self._request(items[start:])

    def _request(self, texts: list[str]) -> list[np.ndarray]:
        """Return the vectors of one request, in the order of the texts."""
        try:
            answer = self._client.embeddings.create(model=self._name, input=texts, encoding_format="float")
            found = {one.index: np.asarray(one.embedding, dtype=np.float32) for one in answer.data}
        except (self._library.OpenAIError, ValueError, TypeError, AttributeError) as error:
            status = getattr(error, "status_code", None)
            kind, advice = _REFUSED.get(status, (DatabaseUnavailableError, "Run again later to resume."))
            said = " ".join(str(getattr(error, "message", error)).replace(self._client.api_key, "…").split())
            what = f"{status or 'no embeddings'} for {self.space.model!r} ({said[:200]})"
            raise kind(f"{self._place.hostname} answered {what}.", advice) from None  # the cause knows the key
        if found.keys() != set(range(len(texts))) or len(answer.data) != len(texts):
            count = f"{len(answer.data)} vectors for {len(texts)} texts, or wrong indexes"
            problem = f"{self._place.hostname} returned {count}."
            raise ShapeError(problem, "Use a server that returns each text's vector with its index.")
        self.tokens += getattr(answer.usage, "prompt_tokens", 0) or 0
        return [found[k] for k in range(len(texts))]
