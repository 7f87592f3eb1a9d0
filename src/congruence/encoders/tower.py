"""Any model as functions from items to vectors, one per modality."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from congruence.encoders._base import Encoder, EncoderOptions, fingerprint
from congruence.encoders._items import Item
from congruence.errors import ShapeError


class TowerEncoder(Encoder):
    """One tower of a model that is given as a function from a list of decoded items to their vectors; ``load_towers``.

    In the first batch, one item is encoded twice, to refuse a function that returns another order.
    """

    def __init__(
        self, function: Callable[[list[Any]], Any], options: EncoderOptions, dim: int | None, rate: int, frames: int
    ) -> None:
        self.rate, self.frames, self._function, self._ordered = rate, frames, function, False
        self._describe(options, options.modality, normalize=bool(options.normalize), revision=options.revision)
        self.space = replace(self.space, dim=dim or self._set_dim().shape[1])
        self.fingerprint = fingerprint(adapter="tower", space=self.space.to_dict(), rate=rate, frames=frames)

    def _embed(self, items: list[Item]) -> np.ndarray:
        vectors: np.ndarray = self._function(items)
        return vectors

    def _vectors(self, items: list[Item]) -> np.ndarray:
        vectors = super()._vectors(items)
        if len(items) > 1 and not self._ordered:
            alone = super()._vectors(items[-1:])
            far = np.linalg.norm(vectors - alone, axis=1)
            if far.min() < far[-1] / 4 and far[-1] > 0.01 * np.linalg.norm(alone):
                problem = f"{self.space.model!r} returned vectors in another order than the items."
                raise ShapeError(problem, "Return one vector per item, in the same order.")
            self._ordered = True
        return vectors


def load_towers(
    functions: Mapping[str, Callable[[list[Any]], Any]],
    *,
    name: str,
    revision: str,
    normalize: bool = False,
    prompt: str | None = None,
    dim: int | None = None,
    rate: int = Encoder.rate,
    frames: int = Encoder.frames,
) -> dict[str, TowerEncoder]:
    """Return an encoder per modality of a model given as functions, ``{"image": f, "text": g, "audio": h}``.

    The functions get lists of RGB images, of texts with the prompt before them, of pairs of samples and ``rate``, of
    lists of ``frames`` images, or of items of another modality as they are, and return arrays (items, dimensions). The
    name and revision identify the vectors in files and caches: change the revision when the weights or the preparation
    change. An item encoded alone tells the width, unless ``dim`` does.

    Examples
    --------
    >>> import numpy as np
    >>> from congruence.encoders import load_towers
    >>> count = lambda texts: np.array([[len(text), text.count(" ")] for text in texts])
    >>> towers = load_towers({"text": count}, name="counts", revision="1")
    >>> towers["text"].encode_all(["a b", "c d e"])
    array([[3., 1.],
           [5., 2.]], dtype=float32)
    """
    towers = {}
    for modality, function in functions.items():
        prefix = prompt if modality == "text" else None
        options = EncoderOptions(name, modality, revision=revision, normalize=normalize, prompt=prefix)
        towers[modality] = TowerEncoder(function, options, dim, rate, frames)
    return towers
