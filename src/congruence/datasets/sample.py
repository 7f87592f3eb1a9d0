"""The bundled samples: pairs of small dual encoders, trained apart, on pictures that neither was trained on."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

from congruence._utils.validation import check_choice
from congruence.datasets.bundle import Bundle, read_bundle
from congruence.errors import CorruptFileError, FileError

__all__ = ["SAMPLES", "Sample", "load_sample", "open_bundle"]

_DATA = Path(__file__).parent / "data"


@dataclass(frozen=True)
class Sample:
    """A sample's file in an installed package, and the SHA-256 of it."""

    path: Path
    sha256: str


#: The samples by name, the main one first.
SAMPLES: Mapping[str, Sample] = MappingProxyType(
    {
        "photos": Sample(_DATA / "photos.parquet", "0e375fab3423f02b87ff7e2fc683aeddeacb59fcec496eae5a7ab27a53c4be95"),
        "emoji": Sample(_DATA / "emoji.parquet", "2b83475b5245c06bccf08d59760cf134644efe0261ed60753c425fbe91982401"),
    }
)

#: What ``open_bundle`` also knows the emoji as: there was one sample before there were two.
_OTHER_NAMES = {"sample": "emoji"}


def load_sample(name: str = "photos") -> Bundle:
    """Load a bundled sample: both models' embeddings of the same pictures and texts.

    Parameters
    ----------
    name : {"photos", "emoji"}, default="photos"
        ``"photos"``: 1,500 photos of Caltech-101 in an old and a new model of a photo library, searched by the names of 100 classes
        (``examples/train_photos``). ``"emoji"``: 1,595 emoji and their captions, a fine-grained pair of small models (``examples/train_pair``).

    Returns
    -------
    Bundle
        ``source`` is the old model. Both have the kinds ``"image"``, ``"text"`` (one row a class) and ``"prompt"`` (single wordings), the emoji
        also ``"edit"`` (captions in which only the class was edited). ``info`` holds provenance, each model's own scores, licences and attributions.

    Raises
    ------
    ParameterError
        Unknown name.
    FileError, CorruptFileError
        The installation is incomplete or damaged.

    Examples
    --------
    >>> from congruence.datasets import load_sample
    >>> photos = load_sample()
    >>> photos.source["image"].vectors.shape, photos.target["text"].vectors.shape
    ((1500, 256), (100, 256))
    """
    sample = SAMPLES[check_choice(name, SAMPLES, "sample")]
    _verify(sample)
    return read_bundle(sample.path)


def open_bundle(data: str | Path) -> Bundle:
    """Load a sample by its name, or read a bundle from a file.

    Parameters
    ----------
    data : str or path-like
        ``photos``, ``emoji`` (also ``sample``), or a path.

    Returns
    -------
    Bundle

    Raises
    ------
    FileError, CorruptFileError, InputError
        As :func:`load_sample` and :func:`read_bundle`.
    """
    name = _OTHER_NAMES.get(str(data), str(data))
    if name in SAMPLES:
        return load_sample(name)
    if not Path(data).exists():
        raise FileError(
            f"Got no file at {data}; expected a bundle (.parquet), or the name of a sample ({', '.join(SAMPLES)}). Check the path or the name."
        )
    return read_bundle(data)


@cache
def _verify(sample: Sample) -> None:
    if not sample.path.is_file():
        raise FileError(
            f"Got no sample at {sample.path}; expected it in the installed package. Install congruence again."
        )
    digest = hashlib.sha256(sample.path.read_bytes()).hexdigest()
    if digest != sample.sha256:
        raise CorruptFileError(
            f"Got a sample with checksum {digest[:12]}…; expected {sample.sha256[:12]}…. Install congruence again."
        )
