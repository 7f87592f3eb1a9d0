"""LangChain (extra ``langchain``): embeddings of a new model for a vector store filled with an old model.

https://docs.langchain.com/oss/python/integrations/text_embedding
"""

from __future__ import annotations

from typing import Any

from congruence._utils.optional import require
from congruence.integrations.texts import BridgeLike, EncoderLike, TextVectors

require("langchain_core", extra="langchain")

from langchain_core.embeddings import Embeddings  # noqa: E402


class CongruenceEmbeddings(Embeddings):
    """LangChain embeddings that map texts through an encoder and a bridge.

    Parameters are as for ``TextVectors``. Documents that are added through this class are mapped as rows of the store
    (``Map.transform``, ``role="store"``). The asynchronous methods of the base class run these methods in a thread.
    """

    def __init__(self, encoder: EncoderLike, bridge: BridgeLike = None, **options: Any) -> None:
        self._vectors = TextVectors(encoder, bridge, **options)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return the vectors of documents."""
        return self._vectors.lists(texts, "store")

    def embed_query(self, text: str) -> list[float]:
        """Return the vector of a query."""
        return self._vectors.lists([text])[0]
