"""LlamaIndex (extra ``llama-index``): embeddings of a new model for an index filled with an old model.

https://developers.llamaindex.ai/python/framework/module_guides/models/embeddings
"""

from __future__ import annotations

import asyncio
import os

from congruence._utils.optional import require
from congruence.integrations.texts import BridgeLike, EncoderLike, TextVectors

require("llama_index.core", extra="llama-index")

from llama_index.core.base.embeddings.base import BaseEmbedding  # noqa: E402
from llama_index.core.bridge.pydantic import Field, PrivateAttr  # noqa: E402


class CongruenceEmbedding(BaseEmbedding):
    """LlamaIndex embedding that maps texts through an encoder and a bridge.

    Parameters are as for ``TextVectors``; ``embed_batch_size`` is the number of texts that LlamaIndex passes at a time,
    and ``**settings`` are parameters of the base class: ``callback_manager``, ``num_workers``, …

    The field ``fingerprint`` is a digest of the vector of a sample text. Pipelines cache results by an embedding's
    fields, so without it two bridges with the same name would get each other's vectors.
    """

    encoder: str | None = Field(default=None, description="Name of the encoder, if it was given by name.")
    bridge: str | None = Field(default=None, description="Path of the bridge, if it was given by path.")
    modality: str = Field(default="text", description="Modality whose means the bridge uses.")
    fingerprint: str = Field(default="", description="Digest of the vector of a sample text.")
    _vectors: TextVectors = PrivateAttr()

    def __init__(
        self,
        encoder: EncoderLike,
        bridge: BridgeLike = None,
        *,
        modality: str = "text",
        embed_batch_size: int = 32,
        check: bool = True,
        **settings: object,
    ) -> None:
        vectors = TextVectors(encoder, bridge, modality=modality, batch_size=embed_batch_size, check=check)
        identity = {"model_name": vectors.name, "fingerprint": vectors.fingerprint}
        super().__init__(
            **{**settings, **identity},  # the output of to_dict, which LlamaIndex passes as settings, contains them too
            embed_batch_size=embed_batch_size,
            encoder=encoder if isinstance(encoder, str) else None,
            bridge=os.fspath(bridge) if isinstance(bridge, (str, os.PathLike)) else None,
            modality=modality,
        )
        self._vectors = vectors

    @classmethod
    def class_name(cls) -> str:
        """Return the name under which LlamaIndex serializes the class."""
        return "CongruenceEmbedding"

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return self._vectors.lists(texts, "store")

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._vectors.lists([text], "store")[0]

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._vectors.lists([query])[0]

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return await asyncio.to_thread(self._vectors.lists, texts, "store")

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return (await self._aget_text_embeddings([text]))[0]

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return (await asyncio.to_thread(self._vectors.lists, [query]))[0]
