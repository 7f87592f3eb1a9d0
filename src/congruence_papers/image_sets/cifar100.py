"""CIFAR-100 in its binary version; the Python version is a pickle, which this library does not read."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from congruence.errors import CorruptFileError, FileError
from congruence_papers.image_sets.base import Entry, ImagePixels, read_lines
from congruence_papers.image_sets.download import Resource
from congruence_papers.image_sets.prompts import TEMPLATES

_RECORD = 2 + 3 * 32 * 32  # coarse label, fine label, then red, green and blue, each by row


def open_cifar100(folder: Path, split: str) -> ImagePixels:
    """Open ``train`` or ``test`` of CIFAR-100, with the 100 fine labels."""
    names = read_lines(folder / "fine_label_names.txt", "the class names of cifar-100-binary.tar.gz")
    path = folder / f"{split}.bin"
    if not path.is_file():
        raise FileError(
            f"Got no {path.name} in {folder}; expected the binary version of CIFAR-100.",
            "Extract cifar-100-binary.tar.gz (the Python version is a pickle and is not read).",
        )
    size = path.stat().st_size
    if size == 0 or size % _RECORD:
        raise CorruptFileError(
            f"Got {size} bytes in {path}; expected whole records of {_RECORD}.",
            "Extract cifar-100-binary.tar.gz again.",
        )
    records = np.memmap(path, dtype=np.uint8, mode="r").reshape(-1, _RECORD)
    labels = records[:, 1].astype(np.int64)
    if labels.max() >= len(names):
        raise CorruptFileError(
            f"Got label {labels.max()} in {path}; expected 0 to {len(names) - 1}.",
            "Extract cifar-100-binary.tar.gz again.",
        )
    pixels = records[:, 2:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    ids = [f"{split}/{i:05d}" for i in range(len(records))]
    classes = [name.replace("_", " ") for name in names]
    return ImagePixels("cifar100", split, classes, TEMPLATES["cifar100"], ids, labels, pixels)


ENTRY = Entry(
    name="cifar100",
    title="CIFAR-100",
    classes=100,
    splits={"train": 50_000, "test": 10_000},
    templates=TEMPLATES["cifar100"],
    folders=("cifar-100-binary", "cifar100"),
    markers=(("fine_label_names.txt", "train.bin"), ("fine_label_names.txt", "test.bin")),
    open=open_cifar100,
    resources=(
        Resource(
            url="https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
            path="cifar-100-binary.tar.gz",
            into=".",
            creates="cifar-100-binary",
            size=168_513_733,
            md5="03b5dce01913d631647c71ecec9e9cb8",
            sha256="58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
        ),
    ),
    splits_from="official",
)
