"""LanceDB (extra ``lancedb``): an embedding function of a new model for a table filled with an old model.

https://docs.lancedb.com/embedding
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from congruence._utils.optional import require
from congruence.integrations.texts import TextVectors

require("lancedb", extra="lancedb")

from lancedb.embeddings import TextEmbeddingFunction  # noqa: E402
from lancedb.embeddings.registry import register  # noqa: E402


@register("congruence")
class CongruenceEmbeddingFunction(TextEmbeddingFunction):
    """LanceDB embedding function that maps texts through an encoder and a bridge.

    Create it with ``CongruenceEmbeddingFunction.create(encoder=…, bridge=…)``, like all LanceDB embedding functions.
    The table stores these arguments, and a process that opens the table must import this module first. Parameters are
    as for ``TextVectors``; encoder and bridge are strings, loaded at the first text, or when the width is requested.

    By default, LanceDB retries a failed function seven times with increasing delays, since most functions call remote
    services. This function runs locally, so errors are raised at once.
    """

    encoder: str
    bridge: str | None = None
    modality: str = "text"
    batch_size: int = 32
    check: bool = True
    max_retries: int = 0

    @cached_property
    def _vectors(self) -> TextVectors:
        options = {"modality": self.modality, "batch_size": self.batch_size, "check": self.check}
        return TextVectors(self.encoder, self.bridge, **options)  # type: ignore[arg-type]

    def ndims(self) -> int:
        """Return the width of the vectors."""
        return self._vectors.dim

    def compute_query_embeddings(self, query: str, *args: object, **kwargs: object) -> list[np.ndarray | None]:
        """Return a list with the vector of a query."""
        return self.generate_embeddings(self.sanitize_input(query), "query")

    def generate_embeddings(self, texts: list[str | None] | np.ndarray, role: str = "store") -> list[np.ndarray | None]:
        """Return the vectors of texts, shape (dim,), mapped as rows of the store; None for a missing value."""
        rows = iter(self._vectors([text for text in texts if text is not None], role))
        return [None if text is None else next(rows) for text in texts]

    def compute_query_embeddings_with_retry(self, *args: Any, **kwargs: Any) -> list[np.ndarray | None]:
        """Return a list with the vector of a query, without retries."""
        return list(self.compute_query_embeddings(*args, **kwargs))

    def compute_source_embeddings_with_retry(self, *args: object, **kwargs: object) -> list[np.ndarray | None]:
        """Return the vectors of texts, without retries."""
        return list(self.compute_source_embeddings(*args, **kwargs))
