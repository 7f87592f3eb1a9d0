"""Any folder with one folder of images per class: ``root/<split>/<class>/*``, or ``root/<class>/*`` as the split ``all``."""

from __future__ import annotations

import os
from pathlib import Path

from congruence.errors import FileError, ParameterError
from congruence_papers.image_sets.base import Entry, ImageFiles
from congruence_papers.image_sets.prompts import TEMPLATES

__all__ = ["ENTRY", "list_classes", "open_folder"]

#: Suffixes of the files that count as images.
IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"})


def list_classes(
    folder: Path, root: Path, *, leave_out: frozenset[str] = frozenset()
) -> tuple[list[str], list[str], list[int]]:
    """List the images in each class folder, including its subfolders, in the order of their names.

    Parameters
    ----------
    folder : Path
        Folder of the class folders; hidden folders are ignored.
    root : Path
        Folder that the ids are relative to.
    leave_out : frozenset of str
        Names of folders that are not classes.

    Returns
    -------
    names : list of str
        Names of the class folders.
    ids : list of str
        Paths of the images, relative to ``root``.
    labels : list of int
        Index into ``names`` for each image.

    Raises
    ------
    FileError
        If there is no such folder or no class folder, or a class folder has no image.
    """
    if not folder.is_dir():
        raise FileError(f"Got no folder {folder}; expected one with a folder for each class. Check the path.")
    names = sorted(
        p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith(".") and p.name not in leave_out
    )
    if not names:
        raise FileError(
            f"Got no folders in {folder}; expected one for each class. Sort the images into one folder for each class."
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
                f"Got no image in {folder / name}; expected some in each class folder. Remove this folder, or add images."
            )
        labels += [label] * (len(ids) - before)
    return names, ids, labels


def open_folder(folder: Path, split: str) -> ImageFiles:
    """Open a folder of class folders; the classes are named after them.

    Parameters
    ----------
    folder : Path
    split : str
        Name of the folder in ``folder`` that contains the class folders; ``all`` if they are in ``folder`` itself.

    Returns
    -------
    ImageFiles

    Raises
    ------
    ParameterError
        If ``split`` is not the name of a folder.
    FileError
        If there is no such folder or no class folder, or a class folder has no image.
    """
    if not split or split in (".", "..") or "/" in split or "\\" in split:
        raise ParameterError(
            f"Got split={split!r}; expected the name of a folder, or 'all'. Pass split='all' for all images."
        )
    parent = folder if split == "all" else folder / split
    if not parent.is_dir():
        raise FileError(
            f"Got no folder {parent}; expected the split {split!r} with a folder for each class. "
            "Create it, or pass split='all' if the class folders are in the root itself."
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
