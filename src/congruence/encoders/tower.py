"""Any model as functions from items to vectors, one per modality."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from congruence._utils.validation import check_positive
from congruence.encoders._base import Encoder, EncoderOptions, fingerprint
from congruence.encoders._items import Item
from congruence.errors import ParameterError, ShapeError


class TowerEncoder(Encoder):
    """One tower of a model that is given as functions; see ``load_towers``."""

    def __init__(
        self, function: Callable[[list[Any]], Any], options: EncoderOptions, dim: int | None, rate: int, frames: int
    ) -> None:
        if not callable(function):
            got = f"Got {type(function).__name__} for the tower of {options.modality}."
            raise ParameterError(got, "Pass a function from a list of items to an array.")
        for name, value in {"dim": dim, "rate": rate, "frames": frames}.items():
            if value is not None:
                check_positive(value, name, integer=True)
        self.rate, self.frames, self._function, self._ordered = rate, frames, function, False
        self._describe(options, options.modality, normalize=False, revision=options.revision)
        self.space = replace(self.space, dim=dim or self._set_dim().shape[1])
        self.fingerprint = fingerprint(adapter="tower", space=self.space.to_dict(), rate=rate, frames=frames)

    def _embed(self, items: list[Item]) -> Any:
        return self._function(items)

    def _vectors(self, items: list[Item]) -> np.ndarray:
        vectors = super()._vectors(items)
        if len(items) > 1 and not self._ordered:  # in the first batch, the last item is encoded once more
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
    prompt: str | None = None,
    dim: int | None = None,
    rate: int = Encoder.rate,
    frames: int = Encoder.frames,
    **options: Any,
) -> dict[str, TowerEncoder]:
    """Return an encoder per modality of a model given as functions, ``{"image": f, "text": g, "audio": h}``.

    A function gets a list of RGB images, of texts with the prompt before them, of pairs of samples and ``rate``, of
    lists of ``frames`` images, or of items of another modality as they are, and returns an array (items, dimensions).
    Name and revision identify vectors in files and caches: change the revision when the weights or the preparation
    change. One item encoded alone tells the width, unless ``dim`` does. ``normalize=True`` scales rows to unit norm.
    """
    named = EncoderOptions(name, revision=revision, **options)
    towers = {}
    for modality, function in functions.items():
        own = replace(named, modality=modality, prompt=prompt if modality == "text" else None)
        towers[modality] = TowerEncoder(function, own, dim, rate, frames)
    return towers
