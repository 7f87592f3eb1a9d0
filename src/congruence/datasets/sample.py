"""The bundled samples: images that neither of two small, independently trained dual encoders was trained on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from congruence._utils.validation import check_choice
from congruence.datasets.bundle import Bundle, read_bundle
from congruence.errors import FileError, InputError

_DATA = Path(__file__).parent / "data"


#: Files of the samples by name; the first one is the default.
SAMPLES: Mapping[str, Path] = MappingProxyType({name: _DATA / f"{name}.parquet" for name in ("photos", "emoji")})

#: Aliases accepted by ``open_bundle``: the emoji sample was called ``sample`` when it was the only one.
_OTHER_NAMES = {"sample": "emoji"}


def load_sample(name: str = "photos") -> Bundle:
    """Load a bundled sample: embeddings of the same images and texts by two models, ``source`` being the old one.

    ``"photos"``: 1,500 photos of Caltech-101 and the names of 100 classes (``examples/train_photos``). ``"emoji"``:
    1,595 emoji, each a class, and their captions (``examples/train_pair``). Both have the kinds ``"image"``, ``"text"``
    (one row per class) and ``"prompt"`` (several texts per class); the emoji also ``"edit"`` (only the class is
    edited). ``info`` holds the provenance, the scores of each model alone, licenses and attributions.

    >>> from congruence.datasets import load_sample
    >>> photos = load_sample()
    >>> photos.source["image"].vectors.shape, photos.target["text"].vectors.shape
    ((1500, 256), (100, 256))
    """
    path = SAMPLES[check_choice(name, SAMPLES, "sample")]
    if not path.is_file():
        raise FileError(f"No sample at {path} in the package.", "Install congruence again.")
    return read_bundle(path)


def open_bundle(data: str | Path) -> Bundle:
    """Load a sample by name (``photos`` or ``emoji``, also called ``sample``), or read a bundle from a file."""
    name = _OTHER_NAMES.get(str(data), str(data))
    if name in SAMPLES:
        return load_sample(name)
    if not Path(data).exists():
        raise FileError(
            f"Got no file at {data}; expected a bundle (.parquet), or the name of a sample ({', '.join(SAMPLES)}).",
            "Check the path or the name.",
        )
    if Path(data).suffix != ".parquet" and not _is_parquet(data):
        raise InputError(
            f"{data} is no bundle; expected a .parquet of both models' embeddings, or the name of a sample.",
            ("Write one with `congruence.datasets.write_bundle`.", f"Pass a sample: {' or '.join(SAMPLES)}."),
        )
    return read_bundle(data)


def _is_parquet(path: str | Path) -> bool:
    if not Path(path).is_file():
        return False
    with open(path, "rb") as file:
        return file.read(4) == b"PAR1"
