"""Oxford-IIIT Pets: 37 breeds of cats and dogs (Parkhi et al., 2012)."""

from __future__ import annotations

from pathlib import Path

from congruence.errors import CorruptFileError
from congruence_papers.image_sets.base import Entry, ImageFiles, read_lines
from congruence_papers.image_sets.coop import SPLITS, coop_resource, open_coop
from congruence_papers.image_sets.download import Resource
from congruence_papers.image_sets.prompts import TEMPLATES

_SPLIT_FILE = "split_zhou_OxfordPets.json"


def open_pets(folder: Path, split: str) -> ImageFiles:
    """Open a split of Oxford-IIIT Pets."""
    split_file = folder / _SPLIT_FILE
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
            raise CorruptFileError(
                f"Got the line {line!r} in {path}; expected image, class, species and breed.",
                "Extract annotations.tar.gz again.",
            )
        label, name = int(fields[1]) - 1, breed.lower().replace("_", " ")
        if names.setdefault(label, name) != name:
            raise CorruptFileError(
                f"Got two breeds of class {label + 1} in {path}, {names[label]} and {name}.",
                "Extract annotations.tar.gz again.",
            )
        ids.append(f"{fields[0]}.jpg")
        labels.append(label)
    if sorted(names) != list(range(len(names))):
        raise CorruptFileError(
            f"Got classes in {path} that do not run from 1 to {len(names)}; expected no gap.",
            "Extract annotations.tar.gz again.",
        )
    classes = [names[label] for label in range(len(names))]
    return ImageFiles("pets", split, classes, TEMPLATES["pets"], ids, labels, folder / "images")


ENTRY = Entry(
    name="pets",
    title="Oxford-IIIT Pets",
    classes=37,
    splits={"train": 2944, "val": 736, "test": 3669, "trainval": 3680},
    templates=TEMPLATES["pets"],
    folders=("oxford_pets", "oxford-iiit-pet", "pets"),
    markers=(("images", "annotations/trainval.txt"), ("images", _SPLIT_FILE)),
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
        coop_resource(_SPLIT_FILE, "1501r8Ber4nNKvmlFVQZ8SeUHTcdTTEqs", "oxford_pets"),
    ),
    splits_from="CoOp (test: official); trainval: official",
)
