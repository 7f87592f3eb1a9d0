"""Encode texts as vectors in an index's space; shared by the server and the adapters for other libraries."""

from __future__ import annotations

import copy
import hashlib
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np

from congruence._utils.validation import check_positive
from congruence.embeddings import Space, check_space
from congruence.encoders import Encoder, load_encoder
from congruence.errors import DtypeError, ModalityError, ParameterError, ShapeError
from congruence.maps import Map
from congruence.upgrade.bridge import Bridge

#: An encoder of texts: a name for ``congruence.encoders.load_encoder``, an encoder, or any callable from a list of
#: texts to an array, shape (n, dim).
EncoderLike: TypeAlias = "str | Encoder | Callable[[list[str]], object]"

#: A bridge or map, in memory or as the path of a saved one; None returns the encoder's vectors unchanged.
BridgeLike: TypeAlias = "str | os.PathLike[str] | Bridge | Map | None"

#: A text that is encoded at the begin, so that an encoder and a bridge that do not match are refused then.
SAMPLE = "a text"


class TextVectors:
    """Encode texts with a new model as vectors in the space of an index.

    Texts are sorted by length, since the cost of a batch depends on its longest text. Only one thread encodes at a
    time: tokenizers are not thread-safe, and two threads on one processor are no faster.

    Parameters
    ----------
    encoder : str, Encoder or callable
        ``"sentence-transformers:<name or path>"`` and the like, or a callable from a list of texts to an array, shape
        (n, dim). SpaceMismatchError if its vectors do not belong to the bridge's source space.
    bridge : path-like, Bridge, Map or None
        Maps the encoder's vectors to the space of the index. None returns the encoder's own vectors.
    modality : str, default="text"
        Modality whose means are used, for a bridge that has means for several modalities.
    batch_size : int, default=32
        Number of texts that an ``Encoder`` processes at a time.
    check : bool, default=True
        Compare the encoder's name, revision and norm with those of the map's source; widths are always compared.
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
        check_positive(batch_size, "batch_size", integer=True)
        self._given, self.modality, self._lock = (encoder, bridge), modality, threading.RLock()
        if isinstance(bridge, Map):
            bridge = Bridge(bridge)
        elif bridge is not None and not isinstance(bridge, Bridge):
            bridge = Bridge.load(Path(bridge))
        model = load_encoder(encoder, "text") if isinstance(encoder, str) else encoder
        self._encode: Callable[[list[str]], np.ndarray]
        if isinstance(model, Encoder):
            if model.space.modality not in (None, "text"):
                raise ModalityError(
                    f"Got an encoder of {model.space.modality}s, {model.space.model!r}; expected an encoder of texts.",
                    "Load the model's text encoder: load_encoder(name, 'text').",
                )
            if bridge is not None:
                space = model.space if check else Space(dim=model.space.dim)
                check_space(space, bridge.source, bridge.target, modality=False)
            self._encode, self._own_space = partial(model.encode_all, batch_size=batch_size), model.space
        elif callable(model):
            self._encode, self._own_space = partial(_encode_checked, model), bridge.source if bridge else Space()
        else:
            raise ParameterError(
                f"Got {type(encoder).__name__} for encoder; expected a name such as 'sentence-transformers:…', "
                "an encoder, or a callable from a list of texts to an array.",
                "Pass `encoder=model.encode` for a model of sentence-transformers.",
            )
        self._count = model.count_tokens if isinstance(model, Encoder) else None
        self._set_bridge(bridge)

    def _set_bridge(self, bridge: Bridge | None) -> None:
        """Set the bridge, and test it on a sample, which also tells the width of the vectors."""
        self._bridge = bridge
        self.dim = self._rows([SAMPLE], "query").shape[1]

    def _rows(self, texts: list[str], role: str) -> np.ndarray:
        order = sorted(range(len(texts)), key=lambda k: len(texts[k]), reverse=True)
        encoded = self._encode([texts[k] for k in order])
        out = np.empty_like(encoded)
        out[order] = encoded
        return out if self._bridge is None else self._bridge.transform(out, self.modality, role)

    def __call__(self, texts: Sequence[str], role: str = "query") -> np.ndarray:
        """Return the vectors (n, dim) of texts in the index's space: of queries or, as "store", of new items."""
        if isinstance(texts, str):
            raise DtypeError("Got a single text; expected a list of texts.", "Pass [text] for a single one.")
        items = list(texts)
        for k, item in enumerate(items):
            if not isinstance(item, str):
                raise DtypeError(
                    f"Got {type(item).__name__} as text {k}; expected str.", "Convert it to str, or leave it out."
                )
        with self._lock:
            return self._rows(items, role) if items else np.empty((0, self.dim), np.float32)

    def lists(self, texts: Sequence[str], role: str = "query") -> list[list[float]]:
        """Return the vectors of texts as lists of numbers; see ``__call__``."""
        rows: list[list[float]] = self(texts, role).tolist()
        return rows

    def count_tokens(self, texts: list[str]) -> list[int]:
        """Return the number of tokens of each text that the model reads, or of words if it cannot count them."""
        with self._lock:
            counts = None if self._count is None else self._count(texts)
        return [len(text.split()) for text in texts] if counts is None else counts

    @property
    def space(self) -> Space:
        """Space of the vectors, as far as it is known."""
        return replace(self._own_space, dim=self.dim) if self._bridge is None else self._bridge.target

    @property
    def name(self) -> str:
        """Name of the model in whose space the vectors are, or of the bridge's folder if it is unknown."""
        place = None if self._bridge is None else self._given[1]
        folder = Path(place).name if isinstance(place, (str, os.PathLike)) else ""
        return self.space.model or folder or "congruence"

    @property
    def fingerprint(self) -> str:
        """Hex digest of the vector of a sample text, which identifies the combination of encoder and bridge."""
        rounded = np.round(self([SAMPLE])[0].astype(np.float64), 4) + 0.0  # no -0.0
        return hashlib.sha256(rounded.tobytes()).hexdigest()[:16]

    def unmapped(self) -> TextVectors:
        """Return the same encoder without the bridge; that the two match has been checked."""
        other = copy.copy(self)
        other._set_bridge(None)
        return other

    def config(self) -> dict[str, str] | None:
        """Return the names and paths to rebuild this object from; None if it was built from objects in memory."""
        encoder, bridge = self._given
        if not isinstance(encoder, str) or not isinstance(bridge, (str, os.PathLike, type(None))):
            return None
        return {"encoder": encoder, "modality": self.modality} | (
            {} if bridge is None else {"bridge": os.fspath(bridge)}
        )


def _encode_checked(encode: Callable[[list[str]], object], texts: list[str]) -> np.ndarray:
    """Encode texts with a user's function, and check that it returns one row per text."""
    rows = np.asarray(encode(texts), dtype=np.float32)
    if rows.ndim != 2 or len(rows) != len(texts) or not rows.shape[1]:
        problem = f"Got shape {rows.shape} from the encoder for {len(texts)} texts; expected a row for each."
        raise ShapeError(problem, "Pass a callable that returns an array of shape (n, dim).")
    return rows
