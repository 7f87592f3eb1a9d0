"""Any folder with one folder of images per class: ``root/<split>/<class>/*``, or ``root/<class>/*`` as the split
``all``.
"""

from __future__ import annotations

import os
from pathlib import Path

from congruence.errors import FileError, ParameterError
from congruence_papers.image_sets.base import Entry, ImageFiles
from congruence_papers.image_sets.prompts import TEMPLATES

#: Suffixes of the files that count as images.
IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"})


def list_classes(
    folder: Path, root: Path, *, leave_out: frozenset[str] = frozenset()
) -> tuple[list[str], list[str], list[int]]:
    """List the images in each class folder, including its subfolders, in the order of their names."""
    if not folder.is_dir():
        raise FileError(f"Got no folder {folder}; expected one with a folder for each class.", "Check the path.")
    names = sorted(
        p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith(".") and p.name not in leave_out
    )
    if not names:
        raise FileError(
            f"Got no folders in {folder}; expected one for each class.",
            "Sort the images into one folder for each class.",
        )
    ids: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(names):
        before = len(ids)
        for parent, subfolders, files in os.walk(folder / name):
            subfolders.sort()
            for file in sorted(files):
                if Path(file).suffix.lower() in IMAGE_SUFFIXES and not file.startswith("."):
                    ids.append((Path(parent) / file).relative_to(root).as_posix())
        if len(ids) == before:
            raise FileError(
                f"Got no image in {folder / name}; expected some in each class folder.",
                "Remove this folder, or add images.",
            )
        labels += [label] * (len(ids) - before)
    return names, ids, labels


def open_folder(folder: Path, split: str) -> ImageFiles:
    """Open a folder of class folders; the classes are named after them."""
    if not split or split in (".", "..") or "/" in split or "\\" in split:
        raise ParameterError(
            argument="split",
            got=split,
            expected="the name of a folder, or 'all'",
            fix="Pass `split='all'` for all images.",
        )
    parent = folder if split == "all" else folder / split
    if not parent.is_dir():
        raise FileError(
            f"Got no folder {parent}; expected the split {split!r} with a folder for each class.",
            ("Create it.", "Pass `split='all'` if the class folders are in the root itself."),
        )
    names, ids, labels = list_classes(parent, folder)
    return ImageFiles("folder", split, [n.replace("_", " ") for n in names], TEMPLATES["folder"], ids, labels, folder)


ENTRY = Entry(
    name="folder",
    title="any folder of class folders",
    classes=None,
    splits={},
    templates=TEMPLATES["folder"],
    folders=(),
    markers=((".",),),
    open=open_folder,
)
