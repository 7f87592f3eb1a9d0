"""Any model as functions from items to vectors, one per modality."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from congruence.embeddings import Space
from congruence.encoders._base import Encoder, fingerprint
from congruence.encoders._items import ENCODED, Item
from congruence.errors import ParameterError, ShapeError


class TowerEncoder(Encoder):
    """One tower of a model that is given as a function from a list of decoded items to their vectors, (b, dim).

    The function gets texts with the prompt before them, RGB images, pairs of samples and ``rate``, lists of ``frames``
    images, and items of any other modality as they are. The name and revision identify its vectors in files and caches;
    change the revision when the weights or the preparation change. The first item encoded alone tells the width, unless
    ``dim`` does. In the first batch, one item is encoded twice, to refuse a function that returns another order.
    """

    def __init__(
        self,
        function: Callable[[list[Any]], Any],
        modality: str,
        *,
        name: str,
        revision: str,
        normalize: bool = False,
        prompt: str | None = None,
        dim: int | None = None,
        rate: int = Encoder.rate,
        frames: int = Encoder.frames,
    ) -> None:
        if prompt and modality != "text":
            raise ParameterError(f"Got `prompt={prompt!r}` for {modality} items.", "Leave out `prompt=…`.")
        self.rate, self.frames, self._prompt, self._function = rate, frames, prompt or "", function
        self.space, self._ordered = Space(name, revision, modality, dim, normalize, prompt), False
        if dim is None:
            if modality not in ENCODED:
                raise ParameterError(f"Got no width of the vectors of {modality} items.", "Pass `dim=…`.")
            self._set_dim()
        sizes = {"rate": rate, "frames": frames}
        self.fingerprint = fingerprint(adapter="tower", space=self.space.to_dict(), **sizes)

    def _embed(self, items: list[Item]) -> np.ndarray:
        vectors = np.asarray(self._function(items))
        if len(items) > 1 and not self._ordered and vectors.ndim == 2 and len(vectors) == len(items):
            alone = np.asarray(self._function(items[-1:])).reshape(1, -1)
            far = np.linalg.norm(vectors - alone, axis=1)
            if far.min() < far[-1] / 4 and far[-1] > 0.01 * np.linalg.norm(alone):
                problem = f"{self.space.model!r} returned vectors in another order than the items."
                raise ShapeError(problem, "Return one vector per item, in the same order.")
            self._ordered = True
        return vectors


def load_towers(functions: Mapping[str, Callable[[list[Any]], Any]], **options: Any) -> dict[str, TowerEncoder]:
    """Return an encoder per modality of a model given as ``{"image": f, "text": g, "audio": h}``.

    Parameters
    ----------
    functions : mapping
        From a modality (``congruence.embeddings.MODALITIES``) to a function from a list of decoded items to vectors.
    **options
        ``name`` and ``revision`` of the model; ``normalize``, ``prompt`` (of texts), ``dim``, ``rate``, ``frames``; see
        ``TowerEncoder``.

    Examples
    --------
    >>> import numpy as np
    >>> from congruence.encoders import load_towers
    >>> count = lambda texts: np.array([[len(text), text.count(" ")] for text in texts])
    >>> towers = load_towers({"text": count}, name="counts", revision="1")
    >>> towers["text"].encode_all(["a b", "c"])
    array([[3., 1.],
           [1., 0.]], dtype=float32)
    """
    prompt = options.pop("prompt", None)
    return {
        modality: TowerEncoder(one, modality, prompt=prompt if modality == "text" else None, **options)
        for modality, one in functions.items()
    }
