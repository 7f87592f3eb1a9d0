"""Describable Textures: 47 classes of textures (Cimpoi et al., 2014)."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from congruence.errors import CorruptFileError
from congruence_papers.image_sets.base import Entry, ImageFiles, read_lines
from congruence_papers.image_sets.coop import SPLITS, coop_resource, open_coop
from congruence_papers.image_sets.download import Resource
from congruence_papers.image_sets.prompts import TEMPLATES

_SPLIT_FILE = "split_zhou_DescribableTextures.json"


def open_dtd(folder: Path, split: str) -> ImageFiles:
    """Open a split of DTD: CoOp's ``train``, ``val``, ``test``, or the official ``train1`` … ``test10``."""
    if split in SPLITS:
        return open_coop(
            "dtd", split, folder / _SPLIT_FILE, folder / "images", "an official split, 'train1' to 'test10'"
        )
    path = folder / "labels" / f"{split}.txt"
    ids = read_lines(path, "a list of images of dtd-r1.0.1.tar.gz")
    for line in ids:  # banded/banded_0002.jpg
        if len(PurePosixPath(line).parts) != 2 or line.startswith((".", "/")) or "\\" in line:
            raise CorruptFileError(
                f"Got the line {line!r} in {path}; expected class/image.", "Extract the archive again."
            )
    folders = [line.split("/")[0] for line in ids]
    classes = sorted(set(folders))
    labels = [classes.index(name) for name in folders]
    names = [name.replace("_", " ") for name in classes]
    return ImageFiles("dtd", split, names, TEMPLATES["dtd"], ids, labels, folder / "images")


ENTRY = Entry(
    name="dtd",
    title="Describable Textures",
    classes=47,
    splits={"train": 2820, "val": 1128, "test": 1692, **{f"{part}{k}": 1880 for k in range(1, 11) for part in SPLITS}},
    templates=TEMPLATES["dtd"],
    folders=("dtd", "dtd/dtd"),
    markers=(("images", "labels/train1.txt"), ("images", _SPLIT_FILE)),
    open=open_dtd,
    resources=(
        Resource(
            url="https://www.robots.ox.ac.uk/~vgg/data/dtd/download/dtd-r1.0.1.tar.gz",
            path="dtd-r1.0.1.tar.gz",
            into=".",
            creates="dtd/images",
            size=625_239_812,
            md5="fff73e5086ae6bdbea199a49dfb8a4c1",
            sha256="e42855a52a4950a3b59612834602aa253914755c95b0cff9ead6d07395f8e205",
        ),
        coop_resource(_SPLIT_FILE, "1u3_QfB467jqHgNXC00UIzbLZRQCg2S7x", "dtd"),
    ),
    splits_from="CoOp; train1 … test10: official",
)
