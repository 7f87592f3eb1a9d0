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
from typing import NamedTuple, TypeAlias

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

#: A text that is encoded when the model is loaded, so that an encoder and a bridge that do not match are refused then.
SAMPLE = "a text"


class _Loaded(NamedTuple):
    """Encoder and bridge in memory, the space of the encoder's vectors, and the width of those that are returned."""

    encode: Callable[[list[str]], np.ndarray]
    model: Encoder | None
    bridge: Bridge | None
    space: Space
    dim: int = 0


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
    lazy : bool, default=False
        Load the encoder and the bridge at the first text.
    """

    def __init__(
        self,
        encoder: EncoderLike,
        bridge: BridgeLike = None,
        *,
        modality: str = "text",
        batch_size: int = 32,
        check: bool = True,
        lazy: bool = False,
    ) -> None:
        check_positive(batch_size, "batch_size", integer=True)
        if not isinstance(encoder, (str, Encoder)) and not callable(encoder):
            raise ParameterError(
                f"Got {type(encoder).__name__} for encoder; expected a name such as 'sentence-transformers:…', "
                "an encoder, or a callable from a list of texts to an array.",
                "Pass encoder=model.encode for a model of sentence-transformers.",
            )
        self._encoder, self._bridge, self._check = encoder, bridge, check
        self.modality, self.batch_size = modality, batch_size
        self._lock = threading.RLock()
        self._ready: _Loaded | None = None
        if not lazy:
            self._load()

    def _load(self) -> _Loaded:
        """Load the encoder and the bridge, if this has not been done, and test them on a sample."""
        if self._ready is None:  # checked without the lock, which is held while texts are encoded
            with self._lock:
                if self._ready is None:
                    self._ready = self._with_width(self._open())
        return self._ready

    def _open(self) -> _Loaded:
        bridge = self._bridge
        if isinstance(bridge, Map):
            bridge = Bridge(bridge)
        elif bridge is not None and not isinstance(bridge, Bridge):
            bridge = Bridge.load(Path(bridge))
        model = load_encoder(self._encoder, "text") if isinstance(self._encoder, str) else self._encoder
        if not isinstance(model, Encoder):
            return _Loaded(partial(_encode_checked, model), None, bridge, Space() if bridge is None else bridge.source)
        if model.space.modality not in (None, "text"):
            raise ModalityError(
                f"Got an encoder of {model.space.modality}s, {model.space.model!r}; expected an encoder of texts.",
                "Load the model's text encoder: load_encoder(name, 'text').",
            )
        if bridge is not None:
            space = model.space if self._check else Space(dim=model.space.dim)
            check_space(space, bridge.source, bridge.target, modality=False)
        return _Loaded(partial(model.encode_all, batch_size=self.batch_size), model, bridge, model.space)

    def _with_width(self, loaded: _Loaded) -> _Loaded:
        return loaded._replace(dim=self._rows(loaded, [SAMPLE], "query").shape[1])

    def _rows(self, loaded: _Loaded, texts: list[str], role: str) -> np.ndarray:
        order = sorted(range(len(texts)), key=lambda k: len(texts[k]), reverse=True)
        encoded = loaded.encode([texts[k] for k in order])
        out = np.empty_like(encoded)
        out[order] = encoded
        return out if loaded.bridge is None else loaded.bridge.transform(out, self.modality, role)

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
            loaded = self._load()
            return self._rows(loaded, items, role) if items else np.empty((0, loaded.dim), np.float32)

    def lists(self, texts: Sequence[str], role: str = "query") -> list[list[float]]:
        """Return the vectors of texts as lists of numbers; see ``__call__``."""
        rows: list[list[float]] = self(texts, role).tolist()
        return rows

    def count_tokens(self, texts: list[str]) -> list[int]:
        """Return the number of tokens of each text that the model reads, or of words if it cannot count them."""
        with self._lock:
            model = self._load().model
            counts = None if model is None else model.count_tokens(texts)
        return [len(text.split()) for text in texts] if counts is None else counts

    @property
    def dim(self) -> int:
        """Width of the vectors."""
        return self._load().dim

    @property
    def space(self) -> Space:
        """Space of the vectors, as far as it is known."""
        loaded = self._load()
        return replace(loaded.space, dim=loaded.dim) if loaded.bridge is None else loaded.bridge.target

    @property
    def name(self) -> str:
        """Name of the model in whose space the vectors are, or of the bridge's folder if it is unknown."""
        folder = Path(self._bridge).name if isinstance(self._bridge, (str, os.PathLike)) else ""
        return self.space.model or folder or "congruence"

    @property
    def fingerprint(self) -> str:
        """Hex digest of the vector of a sample text, which identifies the combination of encoder and bridge."""
        rounded = np.round(self([SAMPLE])[0].astype(np.float64), 4) + 0.0  # no -0.0
        return hashlib.sha256(rounded.tobytes()).hexdigest()[:16]

    def unmapped(self) -> TextVectors:
        """Return the same encoder without the bridge; that the two match has been checked."""
        other = copy.copy(self)
        other._bridge, other._ready = None, self._with_width(self._load()._replace(bridge=None))
        return other

    def config(self) -> dict[str, str] | None:
        """Return the names and paths to rebuild this object from; None if it was built from objects in memory."""
        encoder, bridge = self._encoder, self._bridge
        if not isinstance(encoder, str) or not isinstance(bridge, (str, os.PathLike, type(None))):
            return None
        return {"encoder": encoder, "modality": self.modality} | (
            {} if bridge is None else {"bridge": os.fspath(bridge)}
        )


def _encode_checked(encode: Callable[[list[str]], object], texts: list[str]) -> np.ndarray:
    """Encode texts with a user's function, and check that it returns one row per text."""
    rows = np.asarray(encode(texts), dtype=np.float32)
    if rows.ndim != 2 or len(rows) != len(texts) or not rows.shape[1]:
        raise ShapeError(
            f"Got shape {rows.shape} from the encoder for {len(texts)} texts; expected a row for each.",
            "Pass a callable that returns an array of shape (n, dim).",
        )
    return rows
