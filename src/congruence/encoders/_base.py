"""What all encoders share: a space, a fingerprint, vectors in the order of the items, and how a torch model is run."""

from __future__ import annotations

import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from congruence._utils.arrays import namespace, to_numpy
from congruence._utils.optional import choose_device, require
from congruence._utils.typing import Array
from congruence._utils.validation import check_choice, check_positive, check_rows
from congruence.embeddings import Space, normalize_rows
from congruence.encoders._items import Item, open_audio, open_image, open_video
from congruence.errors import CongruenceError, DtypeError, FileError, ParameterError, ShapeError

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

#: Ways to reduce the hidden states of an item's tokens to one vector.
POOLINGS = ("cls", "mean", "cls_mean", "last")

#: Precisions of matrix products, which autocast sets; the weights stay in float32.
DTYPES = ("auto", "float32", "float16", "bfloat16")

#: Is called with the number of items of each batch.
Callback: TypeAlias = Callable[[int], object] | None


@dataclass(frozen=True)
class EncoderOptions:
    """What ``congruence.encoders.load_encoder`` loads, and how.

    Parameters
    ----------
    device, dtype
        By default the first available of ``"cuda"``, ``"mps"`` and ``"cpu"``; the precision of matrix products
        (autocast), by default float16 on CUDA, float32 elsewhere.
    revision : str, optional
        Branch, tag or commit on the Hugging Face hub; of ``openai:`` and the like any text that tells versions apart.
    layer : int or "all", optional
        For ``hf:``, the hidden state to pool: 0 for the embeddings, k for the output of block k, -1 for the last.
        ``"all"`` concatenates the pooled vectors of all layers, computed in one pass.
    pooling : {"cls", "mean", "cls_mean", "last"}, optional
        The [CLS] token; the mean of patches or tokens, without padding; both, concatenated; or a text's last token.
    normalize : bool, optional
        Scale rows to unit norm; by default for the towers of dual encoders, and for sentence encoders that do so.
    safetensors_only : bool, default=True
        For ``hf:`` and ``sentence-transformers:``: refuse weights in PyTorch's pickle format.
    description : mapping or path-like, optional
        For ``onnx:``: how to preprocess inputs; by default the JSON file next to the graph.
    prompt : str, optional
        Text to put before each text; for ``sentence-transformers:`` also the name of one of the model's prompts; for
        ``cohere:`` (by default search_document) and ``voyage:`` the ``input_type`` instead.
    """

    name: str
    modality: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    revision: str | None = None
    layer: int | str | None = None
    pooling: str | None = None
    normalize: bool | None = None
    safetensors_only: bool = True
    description: Mapping[str, object] | str | os.PathLike[str] | None = None
    prompt: str | None = None

    def check(self, offered: tuple[str, ...], *refused: str) -> str:
        """Return the modality to encode: the requested one, or the only one; refuse options that are not supported."""
        for name in refused:
            if (value := getattr(self, name)) is not None:
                raise ParameterError(f"{self.name!r} does not support `{name}={value!r}`.", f"Leave out `{name}=…`.")
        modality = offered[0] if self.modality is None and len(offered) == 1 else self.modality
        if modality not in offered:
            fix = f"Pass one of {', '.join(map(repr, offered))}."
            raise ParameterError(f"Got `modality={modality!r}` for {self.name!r}.", fix)
        if self.prompt and modality != "text":
            raise ParameterError(f"Got `prompt={self.prompt!r}` for {modality} items.", "Leave out `prompt=…`.")
        return modality

    @property
    def path(self) -> str:
        """The name without the prefix of its adapter."""
        return self.name.partition(":")[2]

    @property
    def folder(self) -> str | None:
        """The path if it is a folder on this machine; None for a name on a hub."""
        folder = Path(self.path).expanduser()
        if folder.is_dir():
            return str(folder)
        if folder.is_absolute() or self.path.startswith((".", "~")):
            raise FileError(f"No folder at {folder} for {self.name!r}.", "Pass the path of a saved model.")
        return None


class Encoder(ABC):
    """A frozen model that turns items into vectors.

    - ``space``: Name, revision, modality, width, and whether rows are scaled to unit norm.
    - ``fingerprint``: Hexadecimal SHA-256 of everything that determines the vectors: weights, preprocessing, layer,
      pooling, normalization, precision. Together with ``item_digest`` it identifies an embedding.
    - ``n_layers``: Number of layers that are concatenated in each vector; None unless loaded with ``layer="all"``.
    - ``rate``, ``frames``: Samples a second of the audio, and frames of a video, that the model takes.
    """

    space: Space
    fingerprint: str
    n_layers: int | None = None
    rate: int = 48_000
    frames: int = 8
    _prompt: str = ""  # put before each text, unless a library does it

    def encode(self, items: Iterable[Item], batch_size: int = 64, callback: Callback = None) -> Iterator[np.ndarray]:
        """Encode items in order, one batch at a time: float32 of shape (b, dim).

        ``items`` are str; images, audio or videos as a path or the bytes of a file; or, decoded, a ``PIL.Image``, an
        array of samples and its rate, or a list of frames. ``callback`` is called with the number of items of each
        encoded batch. ShapeError, NotFiniteError or ZeroRowError is raised if the model does not return one vector of
        the space's width for each item, or one with NaN, infinity or only zeros (as half precision may).
        """
        check_positive(batch_size, "batch_size", integer=True)
        if isinstance(items, (str, bytes, os.PathLike)):
            raise ParameterError(f"Got a single {type(items).__name__} for items; expected a list.", "Pass [item].")
        return self._batches(iter(items), batch_size, callback)

    def _batches(self, items: Iterator[Item], batch_size: int, callback: Callback) -> Iterator[np.ndarray]:
        start = 0
        while batch := list(islice(items, batch_size)):
            vectors = self._vectors([self.read(item) for item in batch])
            parts = vectors.reshape(len(batch) * (self.n_layers or 1), -1)
            numbers = [str(start + k // (self.n_layers or 1)) for k in range(len(parts))]
            check_rows(parts, f"vectors of {self.space.model}", ids=numbers)
            yield normalize_rows(parts).reshape(vectors.shape) if self.space.normalized else vectors
            start += len(batch)
            if callback is not None:
                callback(len(batch))

    def encode_all(self, items: Iterable[Item], batch_size: int = 64, callback: Callback = None) -> np.ndarray:
        """Encode items and return the vectors, float32 of shape (n, dim); see ``encode``."""
        blocks = list(self.encode(items, batch_size, callback))
        return np.concatenate(blocks) if blocks else np.empty((0, self.space.dim or 0), np.float32)

    def encode_layers(
        self, items: Iterable[Item], batch_size: int = 64, callback: Callback = None
    ) -> Iterator[np.ndarray]:
        """Yield blocks of the vectors of every layer, float32 of shape (b, layers, width), if all were loaded."""
        layers = self.n_layers
        if layers is None:
            raise ParameterError(f"{self.space.model!r} was loaded with one layer.", "Load it with `layer='all'`.")
        return (block.reshape(len(block), layers, -1) for block in self.encode(items, batch_size, callback))

    def layer_space(self, layer: int) -> Space:
        """Return the space of one layer of an encoder loaded with ``layer="all"``."""
        dim = (self.space.dim or 0) // (self.n_layers or 1)
        return replace(self.space, model=(self.space.model or "").replace("layer=all", f"layer={layer}"), dim=dim)

    def count_tokens(self, texts: list[str]) -> list[int] | None:
        """Return the number of tokens of each text that the model processes, after truncation; None if unknown."""
        return None

    def read(self, item: Item) -> Item:
        """Check one item and decode it; one that is decoded already stays as it is."""
        modality = self.space.modality
        if modality == "text" and not isinstance(item, str):
            problem = f"Got {type(item).__name__} as a text for {self.space.model!r}."
            raise DtypeError(problem, "Pass str, or another `modality=…`.")
        if modality == "audio":
            return open_audio(item, self.rate)
        return (
            open_image(item) if modality == "image" else open_video(item, self.frames) if modality == "video" else item
        )

    def _vectors(self, items: list[Item]) -> np.ndarray:
        """Return the vectors of decoded items, as many as there are items and of the space's width."""
        got = self._embed([f"{self._prompt}{item}" for item in items] if self._prompt else items)
        try:
            vectors = np.array(to_numpy(got), dtype=np.float32, order="C")
        except (TypeError, ValueError) as error:
            problem = f"{self.space.model!r} returned no matrix of numbers for {len(items)} items ({error})."
            raise ShapeError(problem, "Return an array, (items, dimensions).") from error
        if vectors.ndim != 2 or not vectors.size or vectors.shape != (len(items), self.space.dim or vectors.shape[1]):
            problem = f"{self.space.model!r} returned an array of shape {vectors.shape} for {len(items)} items"
            expected = f"; expected {(len(items), self.space.dim)}." if self.space.dim else "."
            raise ShapeError(problem + expected, "Use an encoder that returns one vector per item, all of one width.")
        return vectors

    @abstractmethod
    def _embed(self, items: list[Item]) -> np.ndarray:
        """Return raw vectors of decoded items, shape (b, dim)."""

    def _sample(self) -> Item:
        """Return an item from which the width of the vectors is determined."""
        modality = self.space.modality
        if modality == "audio":
            return self.read((np.sin(np.arange(16_000) / 16), 16_000))
        if modality not in ("image", "video"):
            return "a text"
        image = require("PIL.Image", extra="images").new("RGB", (256, 224), (120, 130, 140))
        return self.read(image if modality == "image" else [image])

    def _set_dim(self) -> np.ndarray:
        """Set the width by encoding a sample, and return its vector."""
        vectors = self._vectors([self._sample()])
        self.space = replace(self.space, dim=vectors.shape[1])
        return vectors

    def _describe(
        self, options: EncoderOptions, modality: str | None, *, normalize: bool, revision: str | None
    ) -> None:
        """Set the space; a layer or pooling that was requested becomes part of its name. Options override the norm."""
        requested = {"layer": options.layer, "pooling": options.pooling}
        suffix = "&".join(f"{key}={value}" for key, value in requested.items() if value is not None)
        model = f"{options.name}#{suffix}" if suffix else options.name
        normalize = normalize if options.normalize is None else options.normalize
        self.space = Space(model, revision, modality, None, normalize, options.prompt)
        self._prompt = options.prompt or ""


class TorchEncoder(Encoder):
    """An encoder whose model is a torch module, on ``device``; ``dtype`` is the precision of its matrix products.

    An adapter loads its model, calls ``_set_model`` and ``_set_fingerprint``, and has ``_prepare`` (a model's inputs as
    tensors on the CPU) and ``_forward`` (vectors as a tensor, (b, dim)), or its own ``_embed``.
    """

    def __init__(self, options: EncoderOptions, extra: str) -> None:
        self._torch = require("torch", extra=extra)
        self.device = choose_device(self._torch, options.device)
        check_choice(options.dtype, DTYPES, "dtype")
        fallback = "float16" if self.device.startswith("cuda") else "float32"
        self.dtype = fallback if options.dtype == "auto" else options.dtype

    def _set_model(
        self, options: EncoderOptions, model: Module, modality: str, *, normalize: bool, weights: str = ""
    ) -> None:
        """Move the model to its device, prepare it for inference, and set the space; ``weights`` identifies them."""
        self._weights = weights = weights or weights_digest(model)
        self._model = model.to(self.device).eval().requires_grad_(False)
        revision = weights[:19] if weights.startswith("sha256:") else weights
        self._describe(options, modality, normalize=normalize, revision=revision)

    def _set_fingerprint(self, adapter: str, **facts: object) -> None:
        """Set the width, by encoding a sample, and the fingerprint."""
        self._set_dim()
        own = {"weights": self._weights, "normalize": self.space.normalized, "dtype": self.dtype}
        facts |= {"prefix": self._prompt} if self._prompt else {}
        self.fingerprint = fingerprint(adapter=adapter, **own, **facts)

    def _autocast(self) -> AbstractContextManager[object]:
        """Return the context in which matrix products have the requested precision."""
        if self.dtype == "float32":
            return nullcontext()
        return self._torch.autocast(self.device.split(":")[0], getattr(self._torch, self.dtype))

    def _embed(self, items: list[Item]) -> np.ndarray:
        inputs = self._prepare(items)  # in full precision: autocast is for the model only
        with self._torch.inference_mode(), self._autocast():
            vectors = self._forward({key: value.to(self.device) for key, value in inputs.items()})
        return vectors.float().cpu().numpy()

    def _prepare(self, items: list[Item]) -> dict[str, Tensor]:
        raise NotImplementedError

    def _forward(self, inputs: dict[str, Tensor]) -> Tensor:
        raise NotImplementedError


def pool(states: Array, mask: Array | None, pooling: str, prefix: int) -> Array:
    """Reduce the states of each item's tokens, shape (b, tokens, d), to one vector; see ``load_encoder``.

    ``mask`` (b, tokens) is 0 for padding; ``prefix``: number of an image's tokens before those of its patches.
    """
    xp = namespace(states)
    if pooling == "cls":
        return states[:, 0]
    weight = xp.ones_like(states[..., 0]) if mask is None else xp.astype(mask, states.dtype)
    if pooling == "last":
        places = (weight.cumsum(1) * weight).argmax(1)
        return xp.stack([row[place] for row, place in zip(states, places, strict=True)])
    tokens, weight = states[:, prefix:], weight[:, prefix:]
    mean = (tokens * weight[..., None]).sum(1) / weight.sum(1)[:, None].clip(1)
    return mean if pooling == "mean" else xp.concat([states[:, 0], mean], axis=1)


def fingerprint(**facts: object) -> str:
    """Return the hexadecimal SHA-256 of plain data."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


@contextmanager
def loading(options: EncoderOptions) -> Iterator[None]:
    """Convert any error that a library raises while it loads a model to a FileError that quotes it."""
    try:
        yield
    except CongruenceError:
        raise
    except Exception as error:  # each library has its own exceptions, and some raise plain ValueError or RuntimeError
        reason = " ".join(str(error).split())[:300]
        raise FileError(
            f"Got an error while loading {options.name!r} ({type(error).__name__}: {reason}).",
            "Check the name, the connection and the files; weights are expected in safetensors.",
        ) from error


def weights_digest(model: Module) -> str:
    """Return ``sha256:`` and the hexadecimal digest of a module's weights, with their names, shapes and types."""
    torch = require("torch", extra="train")
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        if hasattr(tensor, "numel"):
            flat = tensor.detach().cpu().contiguous().reshape(-1)
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\0".encode())
            digest.update(flat.view(torch.uint8).numpy())
    return f"sha256:{digest.hexdigest()}"


def tokenizer_digest(tokenizer: Any) -> str:
    """Return the hexadecimal SHA-256 of a tokenizer's description, or of its vocabulary if it is slow."""
    fast = getattr(tokenizer, "backend_tokenizer", None)
    text = fast.to_str() if fast is not None else json.dumps(tokenizer.get_vocab(), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
