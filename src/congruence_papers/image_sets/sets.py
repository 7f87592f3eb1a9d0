"""How each image data set is read from its folder; ``sets.json`` says where it is downloaded, and has the prompt
templates of Table 2 of Gupta et al. (2026).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from congruence.errors import CorruptFileError, FileError, ParameterError
from congruence_papers.image_sets.base import Contents, Entry
from congruence_papers.image_sets.download import Resource, check_recorded


def read_lines(path: Path, what: str) -> list[str]:
    """Return the non-empty lines of a small text file, stripped."""
    if not path.is_file():
        raise FileError(f"Got no file at {path}; expected {what}.", "Extract the archive so that this file exists.")
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except UnicodeDecodeError as error:
        raise CorruptFileError(f"{path} is not UTF-8 text; expected {what}.", "Extract the archive again.") from error
    lines = [line for line in lines if line]
    if not lines:
        raise _damaged(f"Got an empty file at {path}; expected {what}.", "the archive")
    return lines


def _damaged(what: str, archive: str) -> CorruptFileError:
    return CorruptFileError(what, f"Extract {archive} again.")


# ---------- splits of CoOp

#: The splits that every split file contains.
SPLITS = ("train", "val", "test")


def read_coop(path: str | Path) -> tuple[list[str], dict[str, list[tuple[str, int]]]]:
    """Return the classes, and the images with their labels by split, of a CoOp split file, ``{"train": [[path, label,
    class name], …], "val": …, "test": …}`` (Zhou et al. 2022, "Learning to Prompt for Vision-Language Models").
    """

    def damaged(what: str) -> CorruptFileError:
        expected = "a split file of CoOp, {'train': [[path, label, class], …], 'val', 'test'}"
        return CorruptFileError(f"Got {what} in {path}; expected {expected}.", "Download it again.")

    try:
        data: object = json.loads(Path(path).read_bytes())
    except (ValueError, RecursionError) as error:
        raise damaged(f"invalid JSON ({error})") from error
    if not isinstance(data, dict) or not all(isinstance(data.get(split), list) for split in SPLITS):
        raise damaged("no lists train, val and test")
    names: dict[int, str] = {}
    seen: dict[str, str] = {}
    items: dict[str, list[tuple[str, int]]] = {}
    for split in SPLITS:
        items[split] = []
        for row in data[split]:
            if not isinstance(row, list) or [type(value) for value in row] != [str, int, str]:
                raise damaged(f"the entry {row!r} under {split}")
            file, label, name = row
            parts = PurePosixPath(file).parts
            if not parts or file.startswith("/") or ".." in parts or "\\" in file or ":" in parts[0]:
                raise damaged(f"the path {file!r}, which leads outside the image folder,")
            if file in seen:
                raise damaged(f"{file} under {seen[file]} and again under {split}")
            if names.setdefault(label, name) != name:
                raise damaged(f"two names of label {label}, {names[label]} and {name},")
            seen[file] = split
            items[split].append((file, label))
    if sorted(names) != list(range(len(names))) or not names:
        raise damaged(f"labels that do not run from 0 to {len(names) - 1}")
    return [names[label].replace("_", " ") for label in range(len(names))], items


def _by_coop(name: str, split: str, file: Path, images: Path, instead: str) -> Contents:
    """Return one split as listed in a CoOp split file."""
    if not file.is_file():
        raise FileError(
            f"Got no {file.name} in {file.parent}; expected the split file of CoOp, which the split {split!r} "
            "comes from.",
            f"Download it (congruence lab datasets {name} --download, or by hand from the links in CoOp's "
            f"DATASETS.md, github.com/KaiyangZhou/CoOp), or use {instead}.",
        )
    check_recorded(file)
    classes, items = read_coop(file)
    ids, labels = zip(*items[split], strict=True) if items[split] else ((), ())
    return classes, ids, labels, images


# ---------- folders of class folders

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
        raise FileError(f"Got no folders in {folder}.", "Sort the images into one folder for each class.")
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
            raise FileError(f"Got no image in {folder / name}.", "Remove this folder, or add images.")
        labels += [label] * (len(ids) - before)
    return names, ids, labels


def read_folder(folder: Path, split: str) -> Contents:
    """Return a folder of class folders; the classes are named after them."""
    if not split or split in (".", "..") or "/" in split or "\\" in split:
        raise ParameterError(
            argument="split", got=split, expected="the name of a folder, or 'all'", fix="Pass `split='all'`."
        )
    parent = folder if split == "all" else folder / split
    if not parent.is_dir():
        raise FileError(f"Got no folder {parent} of the split {split!r}.", ("Create it.", "Pass `split='all'`."))
    return *list_classes(parent, folder), folder


# ---------- the data sets


def read_pets(folder: Path, split: str) -> Contents:
    """Return a split of Oxford-IIIT Pets, 37 breeds of cats and dogs (Parkhi et al., 2012)."""
    coop = folder / "split_zhou_OxfordPets.json"
    if split in SPLITS and (split != "test" or coop.is_file()):
        return _by_coop("pets", split, coop, folder / "images", "the official split 'trainval' or 'test'")
    path = folder / "annotations" / f"{split}.txt"
    names: dict[int, str] = {}
    ids, labels = [], []
    for line in read_lines(path, "the list of images in annotations.tar.gz"):
        if line.startswith("#"):
            continue
        # Abyssinian_100 1 1 1: image, class from 1, species, breed within the species
        fields = line.split()
        breed, _, number = fields[0].rpartition("_")
        if len(fields) != 4 or not breed or not number.isdigit() or not all(f.isdigit() for f in fields[1:]):
            raise _damaged(
                f"Got the line {line!r} in {path}; expected image, class, species and breed.", "annotations.tar.gz"
            )
        label, name = int(fields[1]) - 1, breed.lower()
        if names.setdefault(label, name) != name:
            raise _damaged(
                f"Got two breeds of class {label + 1} in {path}, {names[label]} and {name}.", "annotations.tar.gz"
            )
        ids.append(f"{fields[0]}.jpg")
        labels.append(label)
    if sorted(names) != list(range(len(names))):
        raise _damaged(f"The classes in {path} do not run from 1 to {len(names)}.", "annotations.tar.gz")
    return [names[label] for label in range(len(names))], ids, labels, folder / "images"


def read_dtd(folder: Path, split: str) -> Contents:
    """Return a split of DTD, 47 textures (Cimpoi et al., 2014): CoOp's, or an official one of ten partitions."""
    if split in SPLITS:
        coop = folder / "split_zhou_DescribableTextures.json"
        return _by_coop("dtd", split, coop, folder / "images", "an official split, 'train1' to 'test10'")
    path = folder / "labels" / f"{split}.txt"
    ids = read_lines(path, "a list of images of dtd-r1.0.1.tar.gz")
    for line in ids:  # banded/banded_0002.jpg
        if len(PurePosixPath(line).parts) != 2 or line.startswith((".", "/")) or "\\" in line:
            raise _damaged(f"Got the line {line!r} in {path}; expected class/image.", "the archive")
    classes, labels = np.unique([line.split("/")[0] for line in ids], return_inverse=True)
    return classes.tolist(), ids, labels, folder / "images"


#: Folders of Caltech-101 that CoOp leaves out, and the class names of those that it renames.
_LEFT_OUT = frozenset({"BACKGROUND_Google", "Faces_easy"})
_RENAMED = {"airplanes": "airplane", "Faces": "face", "Leopards": "leopard", "Motorbikes": "motorbike"}


def read_caltech101(folder: Path, split: str) -> Contents:
    """Return a split of Caltech-101 (Fei-Fei et al., 2004) as in CoOp, without the background and the cropped faces;
    ``all`` contains every image of the 100 classes, since the archive has no splits.
    """
    images = folder / "101_ObjectCategories"
    if split in SPLITS:
        coop = folder / "split_zhou_Caltech101.json"
        return _by_coop("caltech101", split, coop, images, "the split 'all', which contains every image")
    names, ids, labels = list_classes(images, images, leave_out=_LEFT_OUT)
    return [_RENAMED.get(name, name) for name in names], ids, labels, images


def _binary(path: Path, extract: str) -> np.ndarray:
    """Return the bytes of a binary file, memory-mapped."""
    if not path.is_file():
        raise FileError(f"Got no {path.name} in {path.parent}; expected it there.", f"Extract {extract}.")
    return np.memmap(path, np.uint8, "r") if path.stat().st_size else np.empty(0, np.uint8)


def read_cifar100(folder: Path, split: str) -> Contents:
    """Return a split of CIFAR-100, with the 100 fine labels."""
    archive, record = "cifar-100-binary.tar.gz", 2 + 3 * 32 * 32  # coarse label, fine label, then the colors by row
    classes = read_lines(folder / "fine_label_names.txt", f"the class names of {archive}")
    path = folder / f"{split}.bin"
    content = _binary(path, f"{archive} (the Python version is a pickle)")
    if not len(content) or len(content) % record:
        raise _damaged(f"Got {len(content)} bytes in {path}; expected records of {record}.", archive)
    records = content.reshape(-1, record)
    labels = records[:, 1].astype(np.int64)
    if labels.max() >= len(classes):
        raise _damaged(f"Got label {labels.max()} in {path}; expected 0 to {len(classes) - 1}.", archive)
    return classes, _numbers(split, labels), labels, records[:, 2:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)


def read_stl10(folder: Path, split: str) -> Contents:
    """Return a split of STL-10, ten classes of 96 × 96 photos (Coates et al., 2011); the paper's Table 1 prints 50,000
    training images, it has 5,000. The rest of its archive, 2.7 GB, is unlabeled.
    """
    archive, record = "stl10_binary.tar.gz", 3 * 96 * 96  # the colors, each by column
    classes = read_lines(folder / "class_names.txt", f"the class names of {archive}")
    images, labeled = folder / f"{split}_X.bin", folder / f"{split}_y.bin"
    pixels, labels = (_binary(path, archive) for path in (images, labeled))
    labels = labels.astype(np.int64) - 1  # counted from 1 in the file
    if not len(labels) or len(pixels) != record * len(labels):
        wanted = f"{record} bytes per image, {len(labels)} in all"
        raise _damaged(f"Got {len(pixels)} bytes in {images}; expected {wanted}.", archive)
    if labels.min() < 0 or labels.max() >= len(classes):
        raise _damaged(f"Got other labels in {labeled}; expected 1 to {len(classes)}.", archive)
    return classes, _numbers(split, labels), labels, pixels.reshape(-1, 3, 96, 96).transpose(0, 3, 2, 1)


def _numbers(split: str, rows: Iterable[object]) -> list[str]:
    """Return ids for rows of a split."""
    return [f"{split}/{i:05d}" for i, _ in enumerate(rows)]


def _resource(facts: Mapping[str, Any]) -> Resource:
    """Return a download; of the split files of CoOp, which have no published size, the contents are checked."""
    inner = _resource(facts["inner"]) if "inner" in facts else None
    check = None if "size" in facts else read_coop
    return Resource(**{**facts, "keep": tuple(facts.get("keep", ())), "inner": inner, "check": check})


def _entries() -> dict[str, Entry]:
    readers = (read_pets, read_cifar100, read_caltech101, read_stl10, read_dtd, read_folder)
    facts = json.loads(Path(__file__).with_name("sets.json").read_bytes())
    return {
        name: Entry(
            name,
            own["title"],
            own["classes"],
            own["splits"],
            tuple(own["templates"]),
            tuple(own["folders"]),
            tuple(map(tuple, own["markers"])),
            reader,
            tuple(map(_resource, own.get("resources", ()))),
            own["splits_from"],
        )
        for (name, own), reader in zip(facts.items(), readers, strict=True)
    }


#: Every image data set, by the name that commands and ``open_dataset`` use.
DATASETS = _entries()
