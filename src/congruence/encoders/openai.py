"""``openai:<model>``: embeddings over HTTP, from OpenAI or any server with the same interface."""

from __future__ import annotations

from urllib.parse import urlsplit

import numpy as np

from congruence._utils.optional import require
from congruence.encoders._base import Encoder, EncoderOptions, fingerprint
from congruence.encoders._items import Item
from congruence.errors import DatabaseUnavailableError, InputError, ParameterError, ShapeError

#: Limits of one request. A token has at least one byte, so that the request stays below OpenAI's 300,000 tokens.
REQUEST_ITEMS, REQUEST_BYTES = 2048, 300_000

#: Times that the library repeats a request after 408, 409, 429, 5xx or a lost connection, waiting longer each time.
RETRIES = 6


class OpenAIEncoder(Encoder):
    """A model of texts behind OpenAI's interface, through the official library, with its retries and waits.

    The key is read from ``OPENAI_API_KEY`` and the address from ``OPENAI_BASE_URL``, by the library alone. The servers
    do not say which weights they run: the fingerprint holds the address, the model's name and ``revision``. Without
    ``normalize``, rows are taken to have unit norm if those of a sample have.

    - ``tokens``: Number of tokens that the server has counted so far.
    """

    def __init__(self, options: EncoderOptions) -> None:
        modality = options.check(("text",), "layer", "pooling", "description")
        self._library = library = require("openai", extra="openai")
        try:
            self._client = library.OpenAI(max_retries=RETRIES)
        except library.OpenAIError:
            problem = f"No key for {options.name!r} in the environment."
            raise ParameterError(problem, "Set OPENAI_API_KEY (to any text for a server without keys).") from None
        place = urlsplit(str(self._client.base_url))
        self._host, self._name, self.tokens = place.hostname or "the server", options.path, 0
        self._describe(options, modality, normalize=bool(options.normalize), revision=options.revision)
        sample = self._vectors([self._sample(), "another"])
        if options.normalize is None:
            unit = bool(np.allclose(np.linalg.norm(sample, axis=1), 1, atol=1e-3))
            self._describe(options, modality, normalize=unit, revision=options.revision)
        self._set_dim(sample)
        address = f"{place.scheme}://{self._host}:{place.port}{place.path}"  # without a name and password
        self.fingerprint = fingerprint(adapter="openai", address=address, space=self.space.to_dict())

    def _embed(self, items: list[Item]) -> np.ndarray:
        rows: list[np.ndarray] = []
        start, size = 0, 0
        for k, item in enumerate(items):
            size += len(item.encode("utf-8", "surrogatepass"))
            if k > start and (k - start == REQUEST_ITEMS or size > REQUEST_BYTES):
                rows += self._request(items[start:k])
                start, size = k, len(item.encode("utf-8", "surrogatepass"))
        return np.stack(rows + self._request(items[start:]))

    def _request(self, texts: list[str]) -> list[np.ndarray]:
        """Return the vectors of one request, in the order of the texts."""
        library = self._library
        try:
            answer = self._client.embeddings.create(model=self._name, input=texts, encoding_format="float")
        except library.APIStatusError as error:
            said = f"{self._host} answered {error.status_code} for {self.space.model!r} ({self._said(error)})."
            if error.status_code in (401, 403):
                raise ParameterError(said, "Set OPENAI_API_KEY to a key that is valid there.") from None
            if error.status_code == 404:
                raise ParameterError(said, "Check the model's name and OPENAI_BASE_URL.") from None
            if error.status_code in (400, 413, 422):  # a text that is too long, for example
                raise InputError(said, "Shorten the text, or leave it out.") from None
            raise DatabaseUnavailableError(said, "Run again later; what was encoded is kept.") from None
        except (library.OpenAIError, ValueError) as error:  # no connection, or no answer in JSON
            said = f"{self._host} gave no answer for {self.space.model!r} ({self._said(error)})."
            raise DatabaseUnavailableError(said, "Check OPENAI_BASE_URL, and run again later.") from None
        data = answer.data or []
        if sorted(one.index for one in data) != list(range(len(texts))):
            problem = f"{self._host} returned {len(data)} vectors for {len(texts)} texts, or wrong numbers of texts."
            raise ShapeError(problem, "Use a server that returns each text's vector with its index.")
        self.tokens += getattr(answer.usage, "prompt_tokens", 0) or 0
        try:
            return [np.asarray(one.embedding, dtype=np.float32) for one in sorted(data, key=lambda one: one.index)]
        except (TypeError, ValueError):
            problem = f"{self._host} returned something other than numbers for {self.space.model!r}."
            raise ShapeError(problem, "Use a server that returns lists of numbers.") from None

    def _said(self, error: Exception) -> str:
        """Return an error's message, shortened, without the key."""
        text = " ".join(str(getattr(error, "message", error)).split())
        for secret in (self._client.api_key, urlsplit(str(self._client.base_url)).password):
            text = text.replace(secret, "…") if secret else text
        return text[:200]
