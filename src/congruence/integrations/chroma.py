"""Chroma (extra ``chroma``): an embedding function of a new model for a collection filled with an old model.

https://docs.trychroma.com/docs/embeddings/embedding-functions
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from congruence._utils.optional import require
from congruence.errors import ParameterError
from congruence.integrations.texts import BridgeLike, EncoderLike, TextVectors

require("chromadb", extra="chroma")

from chromadb.api.types import Documents, EmbeddingFunction  # noqa: E402
from chromadb.utils.embedding_functions import register_embedding_function  # noqa: E402


class CongruenceEmbeddingFunction(EmbeddingFunction[Documents]):
    """Chroma embedding function that maps texts through an encoder and a bridge.

    Parameters are as for ``TextVectors``. A collection stores the name of the function and, if they were passed as
    strings or paths, the encoder and the bridge. A process that opens the collection must import this module first.
    Nothing else is read from the configuration, and no code in it is run. Chroma refuses to open a collection with a
    function other than the stored one; such a collection can be queried by ``query_embeddings``.
    """

    def __init__(self, encoder: EncoderLike, bridge: BridgeLike = None, **options: Any) -> None:
        self._arguments: dict[str, Any] = {"encoder": encoder, "bridge": bridge, **options}
        self._vectors  # noqa: B018  # what does not match is refused here

    @cached_property
    def _vectors(self) -> TextVectors:
        return TextVectors(**self._arguments)

    def __call__(self, input: Documents) -> list[np.ndarray]:
        """Return the vectors of documents, shape (dim,), mapped as rows of the store."""
        return list(self._vectors(input, "store"))

    def embed_query(self, input: Documents) -> list[np.ndarray]:
        """Return the vectors of queries, shape (dim,)."""
        return list(self._vectors(input))

    @staticmethod
    def name() -> str:
        """Return the name under which collections store the function."""
        return "congruence"

    def default_space(self) -> str:
        """Return the distance of a new collection: the cosine distance."""
        return "cosine"

    def get_config(self) -> dict[str, object]:
        """Return the names and paths from which the function can be rebuilt; without them ``NotImplemented``, which
        Chroma does not save.
        """
        config: dict[str, Any] | None = self._vectors.config()
        return NotImplemented if config is None else config

    @staticmethod
    def validate_config(config: Mapping[str, object]) -> None:
        """Check that a configuration belongs to this function."""
        texts = all(isinstance(value, str) for value in config.values())
        if not texts or set(config) - {"encoder", "bridge", "modality"} or "encoder" not in config:
            raise ParameterError(
                f"Got a saved embedding function with {', '.join(sorted(map(str, config))) or 'nothing'}; "
                "expected strings for encoder and, optionally, bridge and modality.",
                "Create the function again: CongruenceEmbeddingFunction(encoder=…, bridge=…).",
            )

    @staticmethod
    def build_from_config(config: dict[str, Any]) -> CongruenceEmbeddingFunction:
        """Build the function from the configuration in a collection; its model is loaded at the first text."""
        CongruenceEmbeddingFunction.validate_config(config)
        function = CongruenceEmbeddingFunction.__new__(CongruenceEmbeddingFunction)
        function._arguments = dict(config)
        return function


register_embedding_function(CongruenceEmbeddingFunction)  # not as a decorator, which returns None in chromadb 1.0.0
