"""Encoders ``onnx:<path>``: any graph that onnxruntime can run, with a short description of its inputs."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from congruence._utils.optional import require
from congruence._utils.validation import check_choice
from congruence.encoders._base import POOLINGS, Encoder, EncoderOptions, fingerprint, loading, pool
from congruence.encoders._items import Item
from congruence.errors import CorruptFileError, FileError, ParameterError, ShapeError

if TYPE_CHECKING:
    from PIL import Image


#: Entries of a description and their defaults. ``mean`` and ``std`` apply to pixels multiplied by ``scale``.
DEFAULTS: dict[str, dict[str, Any]] = {
    "image": {
        "size": 224,  # size of the input: one number, or [height, width]
        "resize": "shortest",  # scale the shorter side and crop the center; or "squash": resize without cropping
        "resize_to": None,  # length of the shorter side before the crop, if larger than the size
        "interpolation": "bicubic",
        "layout": "NCHW",
        "scale": 1 / 255,
        "mean": [0.0, 0.0, 0.0],
        "std": [1.0, 1.0, 1.0],
        "prefix": 0,  # number of tokens before the patch tokens, which mean pooling leaves out
    },
    "text": {
        "tokenizer": "tokenizer.json",  # file of the tokenizers library, in the folder of the graph
        "max_length": 512,
        "padding": "longest",  # or "max_length"
    },
}
_COMMON: dict[str, Any] = {"input": None, "output": None, "pooling": None, "normalize": False}
_CHOICES = {
    "pooling": (None, *POOLINGS),
    "resize": ("shortest", "squash"),
    "interpolation": ("bicubic", "bilinear", "lanczos", "nearest", "box", "hamming"),
    "layout": ("NCHW", "NHWC"),
    "padding": ("longest", "max_length"),
}
_TYPES = {"float": "f4", "float16": "f2", "double": "f8", "int64": "i8", "int32": "i4", "uint8": "u1"}


class OnnxEncoder(Encoder):
    """An ONNX graph, described by ``description`` or by a JSON file of the same name in its folder: the ``modality``
    and what differs from ``DEFAULTS``. Texts are passed as ``input_ids``, ``attention_mask`` and ``token_type_ids``, as
    far as the graph has these inputs.
    """

    def __init__(self, options: EncoderOptions) -> None:
        if options.dtype not in ("auto", "float32"):
            problem = f"Got `dtype={options.dtype!r}`; the graph has its own precision."
            raise ParameterError(problem, "Leave out `dtype=…`.")
        graph = Path(options.path).expanduser()
        if not graph.is_file():
            raise FileError(f"No graph at {graph}.", "Check the path.")
        facts = _description(options, graph)
        modality = options.check((facts["modality"],), "layer", "revision")
        self._facts = facts
        runtime = require("onnxruntime", extra="onnx")
        with loading(options):
            self._session = runtime.InferenceSession(str(graph), providers=_providers(runtime, options.device))
        self._inputs = {item.name: item for item in self._session.get_inputs()}
        self._output = _choose(facts["output"], [item.name for item in self._session.get_outputs()], "output", graph)
        tokens = self._load_tokenizer(graph) if modality == "text" else ""
        if modality == "image":
            self._image = _choose(facts["input"], list(self._inputs), "input", graph)
        weights = f"sha256:{_graph_digest(graph)}"
        self._describe(options, modality, normalize=bool(facts["normalize"]), revision=weights[:19])
        self._set_dim()
        known = {"prompt": self._prompt} if self._prompt else {}
        self.fingerprint = fingerprint(
            adapter="onnx",
            weights=weights,
            description=facts,
            tokenizer=tokens,
            normalize=self.space.normalized,
            **known,
        )

    def _load_tokenizer(self, graph: Path) -> str:
        """Load the tokenizer, and return the SHA-256 of its file."""
        library = require("tokenizers", extra="onnx")
        file = graph.parent / self._facts["tokenizer"]
        if not file.is_file():
            fix = f"Add an entry tokenizer with its path to the description of {graph}."
            raise FileError(f"No tokenizer at {file}.", fix)
        text = file.read_text(encoding="utf-8")
        tokenizer = library.Tokenizer.from_str(text)
        length = int(self._facts["max_length"])
        tokenizer.enable_truncation(length)
        padding = tokenizer.padding or {}
        known = [token for token in ("[PAD]", "<pad>") if tokenizer.token_to_id(token) is not None]
        pad = padding.get("pad_token") or next(iter(known), None)
        tokenizer.enable_padding(
            pad_id=padding.get("pad_id", 0 if pad is None else tokenizer.token_to_id(pad)),
            pad_token=pad or "[PAD]",
            length=length if self._facts["padding"] == "max_length" else None,
        )
        self._tokenizer = tokenizer
        return hashlib.sha256(text.encode()).hexdigest()

    def count_tokens(self, texts: list[str]) -> list[int] | None:
        """Return the number of tokens of each text that the graph processes, after truncation."""
        return [
            sum(item.attention_mask) for item in self._tokenizer.encode_batch([self._prompt + text for text in texts])
        ]

    def _embed(self, items: list[Item]) -> np.ndarray:
        mask: np.ndarray | None = None
        if self.space.modality == "image":
            feed = {self._image: np.stack([self._pixels(item) for item in items])}
        else:
            encoded = self._tokenizer.encode_batch(items)
            mask = np.array([item.attention_mask for item in encoded])
            every = {
                "input_ids": np.array([item.ids for item in encoded]),
                "attention_mask": mask,
                "token_type_ids": np.array([item.type_ids for item in encoded]),
            }
            feed = {name: every[name] for name in every if name in self._inputs}
        kinds = {name: self._inputs[name].type.removeprefix("tensor(").removesuffix(")") for name in feed}
        feed = {name: value.astype(_TYPES.get(kinds[name], "f4")) for name, value in feed.items()}
        return self._pool(self._run(feed, len(items)), mask)

    def _run(self, feed: dict[str, np.ndarray], n: int) -> np.ndarray:
        """Run the graph; in padded batches if it was exported with a fixed batch size."""
        fixed = self._inputs[next(iter(feed))].shape[0] if feed else None
        size = fixed if isinstance(fixed, int) and fixed > 0 else n
        out = []
        for start in range(0, n, size):
            piece = {name: value[start : start + size] for name, value in feed.items()}
            count = len(next(iter(piece.values())))
            padded = {name: np.concatenate([v, np.repeat(v[-1:], size - count, axis=0)]) for name, v in piece.items()}
            out.append(np.asarray(self._session.run([self._output], padded)[0])[:count])
        return np.concatenate(out).astype(np.float32)

    def _pool(self, out: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
        pooling = self._facts["pooling"]
        if out.ndim == 4 and sum(side > 1 for side in out.shape[1:]) <= 1:  # pooled, with a height and width of 1
            out = out.reshape(len(out), -1)
        if out.ndim == 2 and pooling is None:
            return out
        if out.ndim != 3 or pooling is None:
            problem = f"Got an output {self._output!r} of shape {out.shape} with `pooling={pooling!r}`."
            raise ShapeError(problem, f"Set another output, or a pooling of {', '.join(POOLINGS)}, in the description.")
        return pool(out, mask, pooling, self._facts.get("prefix", 0))

    def _pixels(self, image: Image.Image) -> np.ndarray:
        """Resize, crop and standardize one image."""
        pil = require("PIL.Image", extra="images")
        facts = self._facts
        height, width = (facts["size"],) * 2 if isinstance(facts["size"], int) else facts["size"]
        resample = pil.Resampling[facts["interpolation"].upper()]
        if facts["resize"] == "squash":
            image = image.resize((width, height), resample)
        else:
            scale = (facts["resize_to"] or min(height, width)) / min(image.size)
            scale = max(scale, height / image.height, width / image.width)
            image = image.resize((round(image.width * scale), round(image.height * scale)), resample)
            left, top = (image.width - width) // 2, (image.height - height) // 2
            image = image.crop((left, top, left + width, top + height))
        mean, std = (np.array(facts[key], dtype=np.float32) for key in ("mean", "std"))
        pixels: np.ndarray = (np.asarray(image, dtype=np.float32) * np.float32(facts["scale"]) - mean) / std
        return pixels.transpose(2, 0, 1) if facts["layout"] == "NCHW" else pixels


def _description(options: EncoderOptions, graph: Path) -> dict[str, Any]:
    """Return the description, read from a file if necessary, with defaults filled in and choices checked."""
    description = options.description
    own = graph.with_suffix(".json")
    if description is None and not own.is_file():
        description = {"modality": options.modality}
    elif description is None or isinstance(description, (str, os.PathLike)):
        file = Path(description or own)
        try:
            description = json.loads(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise FileError(f"No description at {file} ({error}).", "Check the path.") from error
        except ValueError as error:
            raise CorruptFileError(f"The description {file} is not JSON ({error}).", "Correct it.") from error
    modality = description.get("modality") if isinstance(description, Mapping) else None
    if not isinstance(description, Mapping) or not isinstance(modality, str) or modality not in DEFAULTS:
        problem = f"Got no modality for {options.name!r}; expected 'image' or 'text' in its description."
        raise ParameterError(problem, f"Add the entry modality to {own.name} next to the graph.")
    known = {"modality": None, **_COMMON, **DEFAULTS[modality]}
    if unknown := sorted(set(description) - set(known)):
        problem = f"Got {', '.join(unknown)} in the description of {options.name!r}."
        raise ParameterError(problem, f"Leave only {', '.join(known)}.")
    facts = {**known, **description}
    if options.pooling is not None:
        facts["pooling"] = options.pooling
    for name, choices in _CHOICES.items():
        if name in facts:
            check_choice(facts[name], choices, name)
    return facts


def _providers(runtime: ModuleType, device: str) -> list[str]:
    providers = {"cuda": "CUDAExecutionProvider", "cpu": "CPUExecutionProvider"}
    available = {name: one for name, one in providers.items() if one in runtime.get_available_providers()}
    if device == "auto":
        return list(available.values())
    return [available[check_choice(device, ["auto", *available], "device")]]


def _choose(name: str | None, names: list[str], what: str, graph: Path) -> str:
    return names[0] if name is None else check_choice(name, names, f"{what} of {graph}")


def _graph_digest(graph: Path) -> str:
    """Return the digest of the graph and of external weight files, which exporters store next to it under its name."""
    digest = hashlib.sha256()
    weights = sorted(p for p in graph.parent.glob("*data*") if p.name.startswith(graph.stem) and p != graph)
    for file in [graph, *weights]:
        with open(file, "rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()
