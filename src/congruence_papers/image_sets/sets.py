"""How each image data set is read from its folder and where it is downloaded, with the prompt templates of Table 2 of
Gupta et al. (2026).
"""

from __future__ import annotations

import json
import os
from pathlib import Path, PurePosixPath

import numpy as np

from congruence.errors import CorruptFileError, FileError, ParameterError
from congruence_papers.image_sets.base import Entry, ImageDataset
from congruence_papers.image_sets.download import Resource, check_recorded

_SHOTS = (
    *("a photo of {a} {}.", "a blurry photo of {a} {}.", "a black and white photo of {a} {}."),
    *("a low contrast photo of {a} {}.", "a high contrast photo of {a} {}.", "a bad photo of {a} {}."),
    *("a good photo of {a} {}.", "a photo of {a} small {}.", "a photo of {a} big {}."),
)
_FORMS = (
    *(
        "a photo of {a} {}.",
        "a painting of {a} {}.",
        "{a} plastic {}.",
        "a sculpture of {a} {}.",
        "a sketch of {a} {}.",
    ),
    *("a tattoo of {a} {}.", "{a} toy {}.", "a rendition of {a} {}.", "{a} embroidered {}.", "{a} cartoon {}."),
    *("{a} {} in a video game.", "{a} plushie {}.", "{a} origami {}.", "art of {a} {}.", "graffiti of {a} {}."),
    *("a drawing of {a} {}.", "a doodle of {a} {}."),
)


def _with_articles(*templates: str) -> tuple[str, ...]:
    """Return all templates with "a" for ``{a}``, then all with "the"."""
    filled = [template.replace("{a}", article) for article in ("a", "the") for template in templates]
    # The CLIP repository writes "a embroidered" and "a origami"; Table 2 does not.
    return tuple(text.replace("a embroidered", "an embroidered").replace("a origami", "an origami") for text in filled)


#: Templates by data set, in the order of Table 2, with ``{}`` for the class name; ``folder`` uses CLIP's basic one.
TEMPLATES: dict[str, tuple[str, ...]] = {
    "pets": ("a photo of a {}, a type of pet.",),
    "cifar100": _with_articles(*_SHOTS),
    "caltech101": _with_articles(*_FORMS),
    "stl10": _with_articles("a photo of {a} {}."),
    "dtd": _with_articles(*(f"a photo of {{a}} {{}} {noun}." for noun in ("texture", "pattern", "thing", "object"))),
    "folder": ("a photo of a {}.",),
}


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


def coop_resource(file: str, drive_id: str, folder: str) -> Resource:
    """Return the download of a split file; it is hosted on Google Drive, without a published checksum."""
    return Resource(
        url=f"https://drive.google.com/uc?export=download&id={drive_id}",
        path=f"{folder}/{file}",
        creates=f"{folder}/{file}",
        check=read_coop,
    )


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


def open_coop(name: str, split: str, file: Path, images: Path, instead: str) -> ImageDataset:
    """Open one split of a data set as listed in a CoOp split file."""
    if not file.is_file():
        raise FileError(
            f"Got no {file.name} in {file.parent}; expected the split file of CoOp, which the split {split!r} "
            "comes from.",
            f"Download it (congruence datasets {name} --download, or by hand from the links in CoOp's "
            f"DATASETS.md, github.com/KaiyangZhou/CoOp), or use {instead}.",
        )
    check_recorded(file)
    classes, items = read_coop(file)
    ids, labels = zip(*items[split], strict=True) if items[split] else ((), ())
    return ImageDataset(name, split, classes, TEMPLATES[name], ids, labels, images)


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


def open_folder(folder: Path, split: str) -> ImageDataset:
    """Open a folder of class folders; the classes are named after them."""
    if not split or split in (".", "..") or "/" in split or "\\" in split:
        raise ParameterError(
            argument="split", got=split, expected="the name of a folder, or 'all'", fix="Pass `split='all'`."
        )
    parent = folder if split == "all" else folder / split
    if not parent.is_dir():
        raise FileError(f"Got no folder {parent} of the split {split!r}.", ("Create it.", "Pass `split='all'`."))
    names, ids, labels = list_classes(parent, folder)
    return ImageDataset("folder", split, [n.replace("_", " ") for n in names], TEMPLATES["folder"], ids, labels, folder)


FOLDER = Entry(
    name="folder",
    title="any folder of class folders",
    classes=None,
    splits={},
    templates=TEMPLATES["folder"],
    folders=(),
    markers=((".",),),
    open=open_folder,
)


# ---------- Oxford-IIIT Pets: 37 breeds of cats and dogs (Parkhi et al., 2012)

_PETS_SPLITS = "split_zhou_OxfordPets.json"


def open_pets(folder: Path, split: str) -> ImageDataset:
    """Open a split of Oxford-IIIT Pets."""
    split_file = folder / _PETS_SPLITS
    if split in SPLITS and (split != "test" or split_file.is_file()):
        return open_coop("pets", split, split_file, folder / "images", "the official split 'trainval' or 'test'")
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
        label, name = int(fields[1]) - 1, breed.lower().replace("_", " ")
        if names.setdefault(label, name) != name:
            raise _damaged(
                f"Got two breeds of class {label + 1} in {path}, {names[label]} and {name}.", "annotations.tar.gz"
            )
        ids.append(f"{fields[0]}.jpg")
        labels.append(label)
    if sorted(names) != list(range(len(names))):
        raise _damaged(f"The classes in {path} do not run from 1 to {len(names)}.", "annotations.tar.gz")
    classes = [names[label] for label in range(len(names))]
    return ImageDataset("pets", split, classes, TEMPLATES["pets"], ids, labels, folder / "images")


PETS = Entry(
    name="pets",
    title="Oxford-IIIT Pets",
    classes=37,
    splits={"train": 2944, "val": 736, "test": 3669, "trainval": 3680},
    templates=TEMPLATES["pets"],
    folders=("oxford_pets", "oxford-iiit-pet", "pets"),
    markers=(("images", "annotations/trainval.txt"), ("images", _PETS_SPLITS)),
    open=open_pets,
    resources=(
        Resource(
            url="https://www.robots.ox.ac.uk/~vgg/data/pets/data/images.tar.gz",
            path="oxford_pets/images.tar.gz",
            into="oxford_pets",
            creates="oxford_pets/images",
            size=791_918_971,
            md5="5c4f3ee8e5d25df40f4fd59a7f44e54c",
            sha256="67195c5e1c01f1ab5f9b6a5d22b8c27a580d896ece458917e61d459337fa318d",
        ),
        Resource(
            url="https://www.robots.ox.ac.uk/~vgg/data/pets/data/annotations.tar.gz",
            path="oxford_pets/annotations.tar.gz",
            into="oxford_pets",
            creates="oxford_pets/annotations",
            size=19_173_078,
            md5="95a8c909bbe2e81eed6a22bccdf3f68f",
            sha256="52425fb6de5c424942b7626b428656fcbd798db970a937df61750c0f1d358e91",
        ),
        coop_resource(_PETS_SPLITS, "1501r8Ber4nNKvmlFVQZ8SeUHTcdTTEqs", "oxford_pets"),
    ),
    splits_from="CoOp (test: official); trainval: official",
)


# ---------- Describable Textures: 47 classes (Cimpoi et al., 2014)

_DTD_SPLITS = "split_zhou_DescribableTextures.json"


def open_dtd(folder: Path, split: str) -> ImageDataset:
    """Open a split of DTD: CoOp's ``train``, ``val``, ``test``, or the official ``train1`` … ``test10``."""
    if split in SPLITS:
        return open_coop(
            "dtd", split, folder / _DTD_SPLITS, folder / "images", "an official split, 'train1' to 'test10'"
        )
    path = folder / "labels" / f"{split}.txt"
    ids = read_lines(path, "a list of images of dtd-r1.0.1.tar.gz")
    for line in ids:  # banded/banded_0002.jpg
        if len(PurePosixPath(line).parts) != 2 or line.startswith((".", "/")) or "\\" in line:
            raise _damaged(f"Got the line {line!r} in {path}; expected class/image.", "the archive")
    folders = [line.split("/")[0] for line in ids]
    classes = sorted(set(folders))
    labels = [classes.index(name) for name in folders]
    names = [name.replace("_", " ") for name in classes]
    return ImageDataset("dtd", split, names, TEMPLATES["dtd"], ids, labels, folder / "images")


DTD = Entry(
    name="dtd",
    title="Describable Textures",
    classes=47,
    splits={"train": 2820, "val": 1128, "test": 1692, **{f"{part}{k}": 1880 for k in range(1, 11) for part in SPLITS}},
    templates=TEMPLATES["dtd"],
    folders=("dtd", "dtd/dtd"),
    markers=(("images", "labels/train1.txt"), ("images", _DTD_SPLITS)),
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
        coop_resource(_DTD_SPLITS, "1u3_QfB467jqHgNXC00UIzbLZRQCg2S7x", "dtd"),
    ),
    splits_from="CoOp; train1 … test10: official",
)


# ---------- Caltech-101 (Fei-Fei et al., 2004) as in CoOp: 100 classes, without the background and the cropped faces

_CALTECH101_SPLITS = "split_zhou_Caltech101.json"
_IMAGES = "101_ObjectCategories"
_LEFT_OUT = frozenset({"BACKGROUND_Google", "Faces_easy"})
#: Class names of the folders that CoOp renames; for other folders it replaces underscores by spaces.
_RENAMED = {"airplanes": "airplane", "Faces": "face", "Leopards": "leopard", "Motorbikes": "motorbike"}


def open_caltech101(folder: Path, split: str) -> ImageDataset:
    """Open a split of Caltech-101; ``all`` contains every image of the 100 classes, since the archive has no splits."""
    images = folder / _IMAGES
    if split in SPLITS:
        return open_coop(
            "caltech101", split, folder / _CALTECH101_SPLITS, images, "the split 'all', which contains every image"
        )
    names, ids, labels = list_classes(images, images, leave_out=_LEFT_OUT)
    classes = [_RENAMED.get(name, name.replace("_", " ")) for name in names]
    return ImageDataset("caltech101", split, classes, TEMPLATES["caltech101"], ids, labels, images)


CALTECH101 = Entry(
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
        coop_resource(_CALTECH101_SPLITS, "1hyarUivQE36mY6jSomru6Fjd-JzwcCzN", "caltech-101"),
    ),
    splits_from="CoOp; all: no split",
)


# ---------- CIFAR-100

_CIFAR100_RECORD = 2 + 3 * 32 * 32  # coarse label, fine label, then red, green and blue, each by row


def open_cifar100(folder: Path, split: str) -> ImageDataset:
    """Open ``train`` or ``test`` of CIFAR-100, with the 100 fine labels."""
    names = read_lines(folder / "fine_label_names.txt", "the class names of cifar-100-binary.tar.gz")
    path = folder / f"{split}.bin"
    if not path.is_file():
        raise FileError(
            f"Got no {path.name} in {folder}.", "Extract cifar-100-binary.tar.gz (the Python version is a pickle)."
        )
    size = path.stat().st_size
    if size == 0 or size % _CIFAR100_RECORD:
        raise _damaged(
            f"Got {size} bytes in {path}; expected records of {_CIFAR100_RECORD}.", "cifar-100-binary.tar.gz"
        )
    records = np.memmap(path, dtype=np.uint8, mode="r").reshape(-1, _CIFAR100_RECORD)
    labels = records[:, 1].astype(np.int64)
    if labels.max() >= len(names):
        raise _damaged(
            f"Got label {labels.max()} in {path}; expected 0 to {len(names) - 1}.", "cifar-100-binary.tar.gz"
        )
    pixels = records[:, 2:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    ids = [f"{split}/{i:05d}" for i in range(len(records))]
    classes = [name.replace("_", " ") for name in names]
    return ImageDataset("cifar100", split, classes, TEMPLATES["cifar100"], ids, labels, pixels)


CIFAR100 = Entry(
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


# ---------- STL-10: ten classes of 96 × 96 photos (Coates et al., 2011)

_STL10_RECORD = 3 * 96 * 96  # red, green and blue, each by column


def open_stl10(folder: Path, split: str) -> ImageDataset:
    """Open ``train`` (5,000 images; the paper's Table 1 prints 50,000) or ``test`` of STL-10."""
    classes = read_lines(folder / "class_names.txt", "the class names of stl10_binary.tar.gz")
    images, labelled = folder / f"{split}_X.bin", folder / f"{split}_y.bin"
    for path in (images, labelled):
        if not path.is_file():
            raise FileError(f"Got no {path.name} in {folder}; expected it there.", "Extract stl10_binary.tar.gz.")
    labels = np.fromfile(labelled, dtype=np.uint8).astype(np.int64) - 1  # counted from 1 in the file
    size = images.stat().st_size
    if not len(labels) or size != _STL10_RECORD * len(labels):
        raise _damaged(
            f"Got {size} bytes in {images}; expected {_STL10_RECORD} bytes per image, {len(labels)} in all.",
            "stl10_binary.tar.gz",
        )
    if labels.min() < 0 or labels.max() >= len(classes):
        raise _damaged(f"Got other labels in {labelled}; expected 1 to {len(classes)}.", "stl10_binary.tar.gz")
    pixels = np.memmap(images, dtype=np.uint8, mode="r").reshape(-1, 3, 96, 96).transpose(0, 3, 2, 1)
    ids = [f"{split}/{i:05d}" for i in range(len(labels))]
    return ImageDataset("stl10", split, classes, TEMPLATES["stl10"], ids, labels, pixels)


STL10 = Entry(
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


#: Every image data set, by the name that commands and ``open_dataset`` use.
DATASETS: dict[str, Entry] = {entry.name: entry for entry in (PETS, CIFAR100, CALTECH101, STL10, DTD, FOLDER)}
