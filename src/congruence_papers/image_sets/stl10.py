"""STL-10: ten classes of 96 × 96 photos (Coates et al., 2011)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from congruence.errors import CorruptFileError, FileError
from congruence_papers.image_sets.base import Entry, ImagePixels, read_lines
from congruence_papers.image_sets.download import Resource
from congruence_papers.image_sets.prompts import TEMPLATES

_RECORD = 3 * 96 * 96  # red, green and blue, each by column


def open_stl10(folder: Path, split: str) -> ImagePixels:
    """Open ``train`` (5,000 images; the paper's Table 1 prints 50,000) or ``test`` of STL-10."""
    classes = read_lines(folder / "class_names.txt", "the class names of stl10_binary.tar.gz")
    images, labelled = folder / f"{split}_X.bin", folder / f"{split}_y.bin"
    for path in (images, labelled):
        if not path.is_file():
            raise FileError(f"Got no {path.name} in {folder}; expected it there.", "Extract stl10_binary.tar.gz.")
    labels = np.fromfile(labelled, dtype=np.uint8).astype(np.int64) - 1  # counted from 1 in the file
    size = images.stat().st_size
    if not len(labels) or size != _RECORD * len(labels):
        raise CorruptFileError(
            f"Got {size} bytes in {images} and {len(labels)} labels; expected {_RECORD} bytes per image.",
            "Extract stl10_binary.tar.gz again.",
        )
    if labels.min() < 0 or labels.max() >= len(classes):
        raise CorruptFileError(
            f"Got labels {labels.min() + 1} to {labels.max() + 1} in {labelled}; expected 1 to {len(classes)}.",
            "Extract stl10_binary.tar.gz again.",
        )
    pixels = np.memmap(images, dtype=np.uint8, mode="r").reshape(-1, 3, 96, 96).transpose(0, 3, 2, 1)
    ids = [f"{split}/{i:05d}" for i in range(len(labels))]
    return ImagePixels("stl10", split, classes, TEMPLATES["stl10"], ids, labels, pixels)


ENTRY = Entry(
    name="stl10",
    title="STL-10",
    classes=10,
    splits={"train": 5000, "test": 8000},
    templates=TEMPLATES["stl10"],
    folders=("stl10_binary", "stl10"),
    markers=(("class_names.txt", "train_X.bin"), ("class_names.txt", "test_X.bin")),
    open=open_stl10,
    resources=(
        Resource(
            url="https://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",
            path="stl10_binary.tar.gz",
            into=".",
            creates="stl10_binary",
            # The rest of the archive, 2.7 GB, is unlabeled images.
            keep=("stl10_binary/train_?.bin", "stl10_binary/test_?.bin", "stl10_binary/*.txt"),
            size=2_640_397_119,
            md5="91f7769df0f17e558f3565bffb0c7dfb",
            sha256="f31fd99273a1acb8609c8db427cebb1de3f71de77758cdc0e22956e1289b9866",
        ),
    ),
    splits_from="official",
)
