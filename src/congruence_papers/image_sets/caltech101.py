"""Caltech-101 as CoOp uses it: 100 classes, without the background and the cropped faces (Fei-Fei et al., 2004)."""

from __future__ import annotations

from pathlib import Path

from congruence_papers.image_sets.base import Entry, ImageFiles
from congruence_papers.image_sets.coop import SPLITS, coop_resource, open_coop
from congruence_papers.image_sets.download import Resource
from congruence_papers.image_sets.folder import list_classes
from congruence_papers.image_sets.prompts import TEMPLATES

_SPLIT_FILE = "split_zhou_Caltech101.json"
_IMAGES = "101_ObjectCategories"
_LEFT_OUT = frozenset({"BACKGROUND_Google", "Faces_easy"})
#: Class names of the folders that CoOp renames; for other folders it replaces underscores by spaces.
_RENAMED = {"airplanes": "airplane", "Faces": "face", "Leopards": "leopard", "Motorbikes": "motorbike"}


def open_caltech101(folder: Path, split: str) -> ImageFiles:
    """Open a split of Caltech-101; ``all`` contains every image of the 100 classes, since the archive has no splits."""
    images = folder / _IMAGES
    if split in SPLITS:
        return open_coop(
            "caltech101", split, folder / _SPLIT_FILE, images, "the split 'all', which contains every image"
        )
    names, ids, labels = list_classes(images, images, leave_out=_LEFT_OUT)
    classes = [_RENAMED.get(name, name.replace("_", " ")) for name in names]
    return ImageFiles("caltech101", split, classes, TEMPLATES["caltech101"], ids, labels, images)


ENTRY = Entry(
    name="caltech101",
    title="Caltech-101",
    classes=100,
    splits={"train": 4128, "val": 1649, "test": 2465, "all": 8242},
    templates=TEMPLATES["caltech101"],
    folders=("caltech-101", "caltech101"),
    markers=((_IMAGES,),),
    open=open_caltech101,
    resources=(
        Resource(
            url="https://data.caltech.edu/records/mzrjq-6wc02/files/caltech-101.zip",
            path="caltech-101.zip",
            into=".",
            creates=f"caltech-101/{_IMAGES}",
            keep=(f"caltech-101/{_IMAGES}.tar.gz",),
            size=137_414_764,
            md5="3138e1922a9193bfa496528edbbc45d0",
            inner=Resource(
                url=None,
                path=f"caltech-101/{_IMAGES}.tar.gz",
                into="caltech-101",
                creates=f"caltech-101/{_IMAGES}",
                size=131_740_031,
                md5="b224c7392d521a49829488ab0f1120d9",
                sha256="af6ece2f339791ca20f855943d8b55dd60892c0a25105fcd631ee3d6430f9926",
            ),
        ),
        coop_resource(_SPLIT_FILE, "1hyarUivQE36mY6jSomru6Fjd-JzwcCzN", "caltech-101"),
    ),
    splits_from="CoOp; all: no split",
)
