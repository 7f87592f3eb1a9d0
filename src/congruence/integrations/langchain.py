"""LangChain (extra ``langchain``): embeddings of a new model for a vector store filled with an old model."""

from __future__ import annotations

from congruence._utils.optional import require
from congruence.integrations._texts import BridgeLike, EncoderLike, TextVectors

require("langchain_core", extra="langchain")

from langchain_core.embeddings import Embeddings  # noqa: E402


class CongruenceEmbeddings(Embeddings):
    """LangChain embeddings that map texts through an encoder and a bridge.

    Parameters
    ----------
    encoder : str, Encoder or callable
        ``"sentence-transformers:<name or path>"`` and the like, or a callable from a list of texts to an array, shape
        (n, dim).
    bridge : path-like, Bridge, Map or None
        Maps the encoder's vectors to the space of the vectors in the store. None returns the encoder's own vectors.
    modality : str, default="text"
        Modality whose means are used, for a bridge that has means for several modalities.
    batch_size : int, default=32
        Number of texts that the encoder processes at a time.
    check : bool, default=True
        Compare the encoder's name, revision and norm with those of the map's source; widths are always compared.

    Raises
    ------
    SpaceMismatchError, DirectionError, ModalityError
        If the encoder's vectors do not belong to the bridge's source space.
    ParameterError, FileError, MissingExtraError
        If a parameter has an invalid value; a file cannot be read; or an optional dependency is not installed.

    Notes
    -----
    Documents that are added through this class are mapped in the same way as queries. The asynchronous methods of the
    base class run these methods in a thread.

    References
    ----------
    .. [1] https://docs.langchain.com/oss/python/integrations/text_embedding
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

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return the vectors of documents.

        Parameters
        ----------
        texts : list of str

        Returns
        -------
        list of list of float
        """
        return self._vectors.lists(texts)

    def embed_query(self, text: str) -> list[float]:
        """Return the vector of a query.

        Parameters
        ----------
        text : str

        Returns
        -------
        list of float
        """
        return self._vectors.lists([text])[0]
