"""Chroma (extra ``chroma``): an embedding function of a new model for a collection filled with an old model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from congruence._utils.optional import require
from congruence.errors import ParameterError
from congruence.integrations._texts import BridgeLike, EncoderLike, TextVectors

require("chromadb", extra="chroma")

from chromadb.api.types import Documents, EmbeddingFunction  # noqa: E402
from chromadb.utils.embedding_functions import register_embedding_function  # noqa: E402

__all__ = ["CongruenceEmbeddingFunction"]

#: Entries of a saved configuration, all of them texts.
KEYS = ("encoder", "bridge", "modality")


class CongruenceEmbeddingFunction(EmbeddingFunction[Documents]):
    """Chroma's ``EmbeddingFunction``: texts through an encoder and a bridge.

    Parameters
    ----------
    encoder : str, Encoder or callable
        ``"sentence-transformers:<name or path>"`` and the like, or a callable from a list of texts to an array, shape (n, dim).
    bridge : path-like, Bridge, Map or None
        From the encoder's space to that of the vectors in the collection. None gives the encoder's own vectors.
    modality : str, default="text"
        Modality whose means are used, for a bridge that has means for several modalities.
    batch_size : int, default=32
        Texts that an encoder reads at a time.
    check : bool, default=True
        Compare the encoder's name, revision and norm with those of the map's source; widths are compared in any case.

    Raises
    ------
    SpaceMismatchError, DirectionError, ModalityError
        If the encoder's vectors do not belong to the bridge's source space.
    ParameterError, FileError, MissingExtraError
        If a parameter has an invalid value; a file cannot be read; or an optional dependency is not installed.

    Notes
    -----
    A collection remembers the function by ``name()`` and, where encoder and bridge were given by name and path, by these; a process that
    opens it has to import this module first. Nothing else is read from the configuration, and loading runs no code from it. Chroma refuses
    to open a collection with another function than the one it remembers: query such a one by ``query_embeddings``.

    References
    ----------
    .. [1] https://docs.trychroma.com/docs/embeddings/embedding-functions
    """

    def __init__(
        self,
        encoder: EncoderLike,
        bridge: BridgeLike = None,
        *,
        modality: str = "text",
        batch_size: int = 32,
        check: bool = True,
    ) -> None:
        self._vectors = TextVectors(encoder, bridge, modality=modality, batch_size=batch_size, check=check)

    def __call__(self, input: Documents) -> list[np.ndarray]:
        """Return the vectors of texts.

        Parameters
        ----------
        input : list of str

        Returns
        -------
        list of ndarray of float32, shape (dim,)
        """
        return list(self._vectors(input))

    @staticmethod
    def name() -> str:
        """Return the name under which collections store the function."""
        return "congruence"

    def default_space(self) -> str:
        """Return the distance for a new collection: mapped vectors are compared by angle."""
        return "cosine"

    def get_config(self) -> dict[str, object]:
        """Return names and paths that build the function again; ``NotImplemented``, which Chroma does not save, where it has none."""
        saved: dict[str, Any] | None = self._vectors.config()
        return NotImplemented if saved is None else saved

    @staticmethod
    def validate_config(config: Mapping[str, object]) -> None:
        """Refuse a configuration that does not belong to this function.

        Raises
        ------
        ParameterError
            If a parameter has an invalid value.
        """
        odd = sorted(set(config) - set(KEYS))
        if odd or "encoder" not in config or not all(isinstance(value, str) for value in config.values()):
            raise ParameterError(
                f"Got a saved embedding function with {', '.join(sorted(map(str, config))) or 'nothing'}; expected texts under encoder, and "
                "under bridge and modality if need be. Make the function anew: CongruenceEmbeddingFunction(encoder=…, bridge=…)."
            )

    @staticmethod
    def build_from_config(config: dict[str, Any]) -> CongruenceEmbeddingFunction:
        """Build the function that a collection stores; its model is loaded with the first text.

        Raises
        ------
        ParameterError
            If a parameter has an invalid value.
        """
        CongruenceEmbeddingFunction.validate_config(config)
        made = CongruenceEmbeddingFunction.__new__(CongruenceEmbeddingFunction)
        made._vectors = TextVectors(
            config["encoder"], config.get("bridge"), modality=config.get("modality", "text"), lazy=True
        )
        return made


register_embedding_function(CongruenceEmbeddingFunction)  # no decorator: that of chromadb 1.0.0 gives None
