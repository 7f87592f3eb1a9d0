"""One split of a labeled image data set, and how each known data set is read from its folder.

``sets.json`` says where each is downloaded, and has the prompt templates of Table 2 of Gupta et al. (2026).
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from congruence.errors import CorruptFileError, FileError, IdError, InputError, MissingExtraError, ParameterError
from congruence_papers.image_sets.download import Resource, check_recorded

if TYPE_CHECKING:
    from PIL import Image

#: Exceptions that Pillow raises for files that are not images, or are truncated.
_NO_IMAGE = (OSError, ValueError, SyntaxError, EOFError, LookupError, ArithmeticError, struct.error, MemoryError)


class ImageDataset:
    """One split of a labeled image data set; images are read when needed.

    ``classes`` are names, which labels (n,) index; ``templates`` are prompts with ``{}`` in place of the name; ``ids``
    (n,) are unique, and for image files the paths below ``source``: the folder of the files, or the images in one
    array, shape (n, height, width, 3), such as a memory-mapped binary file.
    """

    def __init__(
        self,
        name: str,
        split: str,
        classes: Sequence[str],
        templates: Sequence[str],
        ids: Sequence[str],
        labels: ArrayLike,
        source: str | Path | np.ndarray,
    ) -> None:
        self.name, self.split = name, split
        self.classes, self.templates = tuple(classes), tuple(templates)
        self.ids = np.array([str(i) for i in ids], dtype=str)
        self.labels = np.array(labels, dtype=np.int64)
        self._source = source if isinstance(source, np.ndarray) else Path(source)
        n = len(self.ids)
        if n == 0 or self.labels.shape != (n,):
            raise InputError(f"Got {n} ids and {self.labels.size} labels in {name}.", "Pass one label per image.")
        invalid = np.flatnonzero((self.labels < 0) | (self.labels >= len(self.classes)))
        if invalid.size:
            raise InputError(
                f"Got label {self.labels[invalid[0]]} ({self.ids[invalid[0]][:80]}), not 0 to {len(self.classes) - 1}.",
                "Correct this label, or add its class.",
            )
        values, counts = np.unique(self.ids, return_counts=True)
        if len(values) < n:
            raise IdError(f"Got the id {str(values[counts > 1][0])!r} twice in {name}.", "Remove the duplicate.")
        for template in self.templates:
            if template.count("{}") != 1:
                raise InputError(f"{template!r} needs one {{}} for the class name.", "Write 'a photo of a {}.'")
        if isinstance(self._source, Path):
            # Path.is_file raises for names that are too long.
            missing = [i for i in self.ids.tolist() if not os.path.isfile(self._source / i)]
            if missing:
                raise FileError(
                    f"{len(missing)} of {n} images of {name} are missing below {source}, {missing[0][:80]} first.",
                    "Extract the archive again.",
                )

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.split!r}, {len(self)} images, {len(self.classes)} classes)"

    def path(self, i: int) -> Path:
        """Return the path of the file of image ``i``."""
        assert isinstance(self._source, Path)
        return self._source / str(self.ids[i])

    def image(self, i: int) -> Image.Image:
        """Return image ``i`` in RGB as stored, neither resized nor rotated: the input of the paper's encoders."""
        if not isinstance(i, (int, np.integer)) or not 0 <= i < len(self):
            raise ParameterError(f"Got image {i!r}; expected 0 to {len(self) - 1}.", "Pass a number in this range.")
        try:
            pillow: Any = import_module("PIL.Image")
        except ImportError as error:
            raise MissingExtraError("Images need Pillow.", "Run pip install 'congruence[images]'.") from error
        if isinstance(self._source, np.ndarray):
            return pillow.fromarray(np.ascontiguousarray(self._source[i]))
        path = self.path(int(i))
        if not path.is_file():
            raise FileError(f"No image at {path} any more.", "Restore it, or open the data set again.")
        try:
            with pillow.open(path) as file:
                return file.convert("RGB")
        except (*_NO_IMAGE, pillow.DecompressionBombError) as error:
            raise CorruptFileError(
                f"No readable image in {path} ({error or 'too large for memory'}).", "Copy it again."
            ) from error

    def prompts(self, *, single: bool = False) -> list[tuple[int, int, str]]:
        """Return the texts of all classes, each with the index of its class and of its template, ordered by class.

        ``single`` uses the first template only, as the paper's Table 2: "we use a single template per class for
        evaluation".
        """
        templates = list(enumerate(self.templates[:1] if single else self.templates))
        return [(c, t, words.replace("{}", name)) for c, name in enumerate(self.classes) for t, words in templates]


#: The classes of a split, and the ids, labels and source of its images.
Contents = tuple[Sequence[str], Sequence[str], ArrayLike, "Path | np.ndarray"]


@dataclass(frozen=True)
class Entry:
    """A known data set: names of its folder, groups of files of which it has all of one, and a reader of its splits."""

    name: str
    read: Callable[[Path, str], Contents]
    title: str
    classes: int | None
    splits: Mapping[str, int]
    splits_from: str
    templates: tuple[str, ...]
    folders: tuple[str, ...]
    markers: tuple[tuple[str, ...], ...]
    resources: tuple[Resource, ...] = ()

    def locate(self, root: str | Path) -> Path | None:
        """Return the folder below ``root`` (or ``root`` itself) that holds this data set, or None."""
        root = Path(root).expanduser()
        for folder in (*(root / name for name in self.folders), root):
            if any(all((folder / name).exists() for name in group) for group in self.markers):
                return folder
        return None


def _read_lines(path: Path, what: str) -> list[str]:
    if not path.is_file():
        raise FileError(f"Got no file at {path}; expected {what}.", "Extract the archive so that this file exists.")
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except UnicodeDecodeError as error:
        raise _damaged(f"{path} is not UTF-8 text; expected {what}.") from error
    if not any(lines):
        raise _damaged(f"Got an empty file at {path}; expected {what}.")
    return [line for line in lines if line]


def _damaged(what: str, archive: str = "the archive") -> CorruptFileError:
    return CorruptFileError(what, f"Extract {archive} again.")


# ---------- splits of CoOp

#: The splits that every split file contains.
SPLITS = ("train", "val", "test")


def read_coop(path: str | Path) -> tuple[list[str], dict[str, list[tuple[str, int]]]]:
    """Return the classes, and images with labels by split, of a split file of CoOp (Zhou et al. 2022)."""

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
    items: dict[str, list[tuple[str, int]]] = {split: [] for split in SPLITS}
    for split, row in ((part, row) for part in SPLITS for row in data[part]):
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
    return [names[label] for label in range(len(names))], items


def _by_coop(name: str, split: str, file: Path, images: Path, instead: str) -> Contents:
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
    folders = [p for p in folder.iterdir() if p.is_dir() and not p.name.startswith(".") and p.name not in leave_out]
    names = sorted(p.name for p in folders)
    if not names:
        raise FileError(f"Got no folders in {folder}.", "Sort the images into one folder for each class.")
    ids: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(names):
        for parent, subfolders, files in os.walk(folder / name):
            subfolders.sort()
            shown = [f for f in sorted(files) if Path(f).suffix.lower() in IMAGE_SUFFIXES and not f.startswith(".")]
            ids += [(Path(parent) / file).relative_to(root).as_posix() for file in shown]
        if len(ids) == len(labels):
            raise FileError(f"Got no image in {folder / name}.", "Remove this folder, or add images.")
        labels += [label] * (len(ids) - len(labels))
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
    archive, path = "annotations.tar.gz", folder / "annotations" / f"{split}.txt"
    names: dict[int, str] = {}
    ids, labels = [], []
    for line in _read_lines(path, f"the list of images in {archive}"):
        if line.startswith("#"):
            continue
        # Abyssinian_100 1 1 1: image, class from 1, species, breed within the species
        image, *numbers = line.split()
        breed, _, number = image.rpartition("_")
        if len(numbers) != 3 or not breed or not all(field.isdigit() for field in (number, *numbers)):
            raise _damaged(f"Got the line {line!r} in {path}; expected image, class, species and breed.", archive)
        label, name = int(numbers[0]) - 1, breed.lower()
        if names.setdefault(label, name) != name:
            raise _damaged(f"Got two breeds of class {label + 1} in {path}, {names[label]} and {name}.", archive)
        ids.append(f"{image}.jpg")
        labels.append(label)
    if sorted(names) != list(range(len(names))):
        raise _damaged(f"The classes in {path} do not run from 1 to {len(names)}.", archive)
    return [names[label] for label in range(len(names))], ids, labels, folder / "images"


def read_dtd(folder: Path, split: str) -> Contents:
    """Return a split of DTD, 47 textures (Cimpoi et al., 2014): CoOp's, or an official one of ten partitions."""
    if split in SPLITS:
        coop = folder / "split_zhou_DescribableTextures.json"
        return _by_coop("dtd", split, coop, folder / "images", "an official split, 'train1' to 'test10'")
    path = folder / "labels" / f"{split}.txt"
    ids = _read_lines(path, "a list of images of dtd-r1.0.1.tar.gz")
    for line in ids:  # banded/banded_0002.jpg
        if len(PurePosixPath(line).parts) != 2 or line.startswith((".", "/")) or "\\" in line:
            raise _damaged(f"Got the line {line!r} in {path}; expected class/image.")
    classes, labels = np.unique([line.split("/")[0] for line in ids], return_inverse=True)
    return classes.tolist(), ids, labels, folder / "images"


#: Folders of Caltech-101 that CoOp leaves out, and the class names of those that it renames.
_LEFT_OUT = frozenset({"BACKGROUND_Google", "Faces_easy"})
_RENAMED = {"airplanes": "airplane", "Faces": "face", "Leopards": "leopard", "Motorbikes": "motorbike"}


def read_caltech101(folder: Path, split: str) -> Contents:
    """Return a split of Caltech-101 (Fei-Fei et al., 2004) as in CoOp; ``all`` has every image of the 100 classes."""
    images = folder / "101_ObjectCategories"
    if split in SPLITS:
        coop = folder / "split_zhou_Caltech101.json"
        return _by_coop("caltech101", split, coop, images, "the split 'all', which contains every image")
    names, ids, labels = list_classes(images, images, leave_out=_LEFT_OUT)
    return [_RENAMED.get(name, name) for name in names], ids, labels, images


def _binary(path: Path, extract: str) -> np.ndarray:
    if not path.is_file():
        raise FileError(f"Got no {path.name} in {path.parent}; expected it there.", f"Extract {extract}.")
    return np.memmap(path, np.uint8, "r") if path.stat().st_size else np.empty(0, np.uint8)


def read_cifar100(folder: Path, split: str) -> Contents:
    """Return a split of CIFAR-100, with the 100 fine labels."""
    archive, record = "cifar-100-binary.tar.gz", 2 + 3 * 32 * 32  # coarse label, fine label, then the colors by row
    classes = _read_lines(folder / "fine_label_names.txt", f"the class names of {archive}")
    path = folder / f"{split}.bin"
    content = _binary(path, f"{archive} (the Python version is a pickle)")
    if not len(content) or len(content) % record:
        raise _damaged(f"Got {len(content)} bytes in {path}; expected records of {record}.", archive)
    records = content.reshape(-1, record)
    labels = records[:, 1].astype(np.int64)
    if labels.max() >= len(classes):
        raise _damaged(f"Got label {labels.max()} in {path}; expected 0 to {len(classes) - 1}.", archive)
    ids = [f"{split}/{i:05d}" for i in range(len(labels))]
    return classes, ids, labels, records[:, 2:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)


def read_stl10(folder: Path, split: str) -> Contents:
    """Return a split of STL-10, ten classes of 96 × 96 photos (Coates et al., 2011): 5,000 to train on, not 50,000."""
    archive, record = "stl10_binary.tar.gz", 3 * 96 * 96  # the colors, each by column
    classes = _read_lines(folder / "class_names.txt", f"the class names of {archive}")
    images, labeled = folder / f"{split}_X.bin", folder / f"{split}_y.bin"
    pixels, labels = (_binary(path, archive) for path in (images, labeled))
    labels = labels.astype(np.int64) - 1  # counted from 1 in the file
    if not len(labels) or len(pixels) != record * len(labels):
        wanted = f"{record} bytes per image, {len(labels)} in all"
        raise _damaged(f"Got {len(pixels)} bytes in {images}; expected {wanted}.", archive)
    if labels.min() < 0 or labels.max() >= len(classes):
        raise _damaged(f"Got other labels in {labeled}; expected 1 to {len(classes)}.", archive)
    ids = [f"{split}/{i:05d}" for i in range(len(labels))]
    return classes, ids, labels, pixels.reshape(-1, 3, 96, 96).transpose(0, 3, 2, 1)


def _resource(facts: Mapping[str, Any]) -> Resource:
    inner = _resource(facts["inner"]) if "inner" in facts else None
    check = None if "size" in facts else read_coop
    return Resource(**{**facts, "keep": tuple(facts.get("keep", ())), "inner": inner, "check": check})


def _entries() -> dict[str, Entry]:
    readers = (read_pets, read_cifar100, read_caltech101, read_stl10, read_dtd, read_folder)
    described = json.loads(Path(__file__).with_name("sets.json").read_bytes())
    entries = {}
    for (name, facts), read in zip(described.items(), readers, strict=True):
        facts |= {key: tuple(facts[key]) for key in ("templates", "folders")}
        facts |= {"markers": tuple(map(tuple, facts["markers"]))}
        facts |= {"resources": tuple(map(_resource, facts.get("resources", ())))}
        entries[name] = Entry(name, read, **facts)
    return entries


#: Every image data set, by the name that commands and ``open_dataset`` use.
DATASETS = _entries()
