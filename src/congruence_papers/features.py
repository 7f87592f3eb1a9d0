"""Embeddings that experiments read: files of the sample data, folders by encoder, and a cache of what was embedded."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from congruence.embed import Items, VectorCache
from congruence.embed.run import EncoderRun
from congruence.errors import CorruptFileError, FileError, InputError, ParameterError
from congruence.io import suffixes
from congruence_papers.core import check_embedded

if TYPE_CHECKING:
    from congruence.encoders import Encoder

T = TypeVar("T")

#: File name of each data set.
FILES = {
    "lvis": "lvis1203_clip.npz",
    "imagenet1000": "imagenet1000_unimodal.npz",
    "caltech101": "caltech101_unimodal.npz",
    "clip": "clip_rn50_vitb32.npz",
}

#: Array names of the unimodal encoders in ``imagenet1000`` and ``caltech101``, by encoder name.
IMAGE_ENCODERS = {"EfficientNet-Lite0": "image_effnet_lite0", "MobileNet-v2": "image_mobilenet_v2"}
TEXT_ENCODERS = {"MPNet": "text_mpnet", "MiniLM-L6": "text_minilm_l6"}


def open_npz(name: str, file: str | Path | None, build: Callable[[Mapping[str, np.ndarray]], T]) -> T:
    """Return what ``build`` makes of the arrays in the file of ``name``, a key of ``FILES``, or in its folder."""
    if file is None:
        raise ParameterError(f"Got no file for {name}, which is {FILES[name]}.", "Pass `file=…`.")
    path = Path(file).expanduser()
    path = path / FILES[name] if path.is_dir() else path
    if not path.is_file():
        raise FileError(f"Got no file at {path}; expected {FILES[name]}.", "Check the path.")
    try:
        with np.load(path, allow_pickle=False) as data:
            arrays = {key: data[key] for key in data.files}
        for key, rows in arrays.items():
            if rows.dtype.kind == "f" and rows.ndim > 1:
                check_embedded(rows.reshape(-1, rows.shape[-1]), f"{key} in {path}")
        return build(arrays)
    except (InputError, ParameterError):
        raise
    except (ValueError, OSError, LookupError, TypeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise CorruptFileError(f"{path} cannot be used as {name} ({error}).", f"Pass {FILES[name]}.") from error


def encoder_pairs(models: Sequence[str]) -> list[tuple[str, str]]:
    """Return the image and the text encoder of each name such as ``"dinov2/minilm"``."""
    pairs = []
    for spec in models:
        names = spec.split("/")
        if len(names) != 2 or not all(names):
            raise ParameterError(f"{spec!r} is no image/text pair of encoders.", "Pass `models='dinov2/minilm'`, say.")
        pairs.append((names[0], names[1]))
    return pairs


def find_embeddings(folder: Path, name: str) -> Path | None:
    """Return the embeddings called ``name`` in an encoder's folder: a folder, or a file of any format; None without."""
    paths = [folder / f"{name}{suffix}" for suffix in ("", *(s for s in suffixes() if s))]
    return next((path for path in paths if path.exists()), None)


def embed_rows(
    encoder: Encoder, items: Sequence[object], names: Sequence[str], cache: Path | None, batch_size: int
) -> np.ndarray:
    """Return the vectors of all items, shape (n, …); those in the cache, found by name, are not computed again."""
    if cache is None:
        return encoder.encode_all(items, batch_size)
    if not len(items):
        raise InputError("This part of the data set has no items.", "Extract it again, or pass another split.")
    modality = encoder.space.modality or "other"
    named = Items("the data set", modality, np.array(names, dtype=object), items.__getitem__, lambda row: "")
    store = VectorCache(cache.expanduser(), encoder.fingerprint, encoder.space.dim or 0)
    with ThreadPoolExecutor(1) as pool:
        keys = EncoderRun(encoder, named, batch_size, "fail", pool).finish(range(len(items)), store)["key"]
    vectors = store.get(keys.astype(str).tolist())
    return np.stack([vectors[key] for key in keys.astype(str).tolist()])
