"""The bundled sample: two small dual encoders, trained apart, on pictures neither was trained on."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from congruence.datasets.bundle import Bundle, read_bundle
from congruence.errors import CorruptFileError, FileError

__all__ = ["SAMPLE_PATH", "SAMPLE_SHA256", "load_sample"]

#: Where the sample lies in an installed package.
SAMPLE_PATH = Path(__file__).parent / "data" / "emoji.parquet"

#: SHA-256 of the file.
SAMPLE_SHA256 = "2b83475b5245c06bccf08d59760cf134644efe0261ed60753c425fbe91982401"


def load_sample() -> Bundle:
    """Load the bundled sample.

    Two dual encoders trained independently of each other on emoji pictures (``examples/train_pair``), and their
    embeddings of pictures by a third vendor, which neither was trained on: one image and one caption a class,
    several prompts a class for fits on text, and captions in which only the class was edited.

    Returns
    -------
    Bundle
        ``info`` holds provenance, each model's own retrieval, licences and attributions.

    Raises
    ------
    FileError, CorruptFileError
        The installation is incomplete or damaged.

    Examples
    --------
    >>> from congruence.datasets import load_sample
    >>> sample = load_sample()
    >>> sorted(sample.source)
    ['edit', 'image', 'prompt', 'text']
    """
    _verify(SAMPLE_PATH)
    return read_bundle(SAMPLE_PATH)


@cache
def _verify(path: Path) -> None:
    if not path.is_file():
        raise FileError(f"Got no sample at {path}; expected it in the installed package. Install congruence again.")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != SAMPLE_SHA256:
        raise CorruptFileError(
            f"Got a sample with checksum {digest[:12]}…; expected {SAMPLE_SHA256[:12]}…. Install congruence again."
        )
