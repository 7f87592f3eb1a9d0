"""Small data sets in the layout of the official archives, with distinguishable pictures."""

import json
from pathlib import Path

import numpy as np


def colour(k: int) -> tuple[int, int, int]:
    return (40 + 7 * k) % 256, (200 + 11 * k) % 256, (90 + 29 * k) % 256


def picture(path: Path, k: int, size: tuple[int, int] = (6, 4)) -> None:
    """Write a picture of one color; Pillow detects the format from the content, so any suffix works."""
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour(k)).save(path, format="PNG")


def write_lines(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_json(path: Path, data: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


BREEDS = ("Abyssinian", "american_bulldog", "Maine_Coon")


def pets(home: Path) -> Path:
    """Three breeds; of each, 1–3 are trainval and 4–5 are test. CoOp's validation is the third."""
    trainval, test = ["#Image CLASS-ID SPECIES BREED ID"], []
    split: dict[str, list] = {"train": [], "val": [], "test": []}
    for label, breed in enumerate(BREEDS):
        for k in range(1, 6):
            picture(home / "images" / f"{breed}_{k}.jpg", 5 * label + k)
            (trainval if k < 4 else test).append(f"{breed}_{k} {label + 1} 1 {label + 1}")
            part = "train" if k < 3 else "val" if k < 4 else "test"
            split[part].append([f"{breed}_{k}.jpg", label, breed.lower()])
    write_lines(home / "annotations" / "trainval.txt", trainval)
    write_lines(home / "annotations" / "test.txt", test)
    for part in split.values():
        part.reverse()  # CoOp's order is a shuffled one
    write_json(home / "split_zhou_OxfordPets.json", split)
    return home


def caltech101(home: Path) -> Path:
    folders = ("BACKGROUND_Google", "Faces", "Faces_easy", "airplanes", "car_side")
    for f, folder in enumerate(folders):
        for k in range(1, 5):
            picture(home / "101_ObjectCategories" / folder / f"image_{k:04d}.jpg", 4 * f + k)
    split: dict[str, list] = {"train": [], "val": [], "test": []}
    for label, (folder, name) in enumerate((("Faces", "face"), ("airplanes", "airplane"), ("car_side", "car_side"))):
        for k, part in zip(range(1, 5), ("train", "train", "val", "test"), strict=True):
            split[part].append([f"{folder}/image_{k:04d}.jpg", label, name])
    write_json(home / "split_zhou_Caltech101.json", split)
    return home


def dtd(home: Path) -> Path:
    names = ("banded", "polka-dotted")
    split: dict[str, list] = {"train": [], "val": [], "test": []}
    for label, name in enumerate(names):
        for k in range(6):
            picture(home / "images" / name / f"{name}_{k:04d}.jpg", 6 * label + k)
            part = ("train", "train", "train", "val", "test", "test")[k]
            split[part].append([f"{name}/{name}_{k:04d}.jpg", label, name])
    for number in (1, 2):
        for p, part in enumerate(("train", "val", "test")):
            rows = [f"{name}/{name}_{(2 * p + number + j) % 6:04d}.jpg" for name in names for j in range(2)]
            write_lines(home / "labels" / f"{part}{number}.txt", rows)
    write_json(home / "split_zhou_DescribableTextures.json", split)
    return home


def gradient(height: int, width: int, k: int) -> np.ndarray:
    """A picture in which every pixel, row, column and channel differs from its mirror image."""
    row, column = np.mgrid[:height, :width]
    return np.stack([row + k, 2 * column, row + column], axis=-1).astype(np.uint8)


CIFAR_NAMES = ("apple", "aquarium_fish", "baby")


def cifar100(home: Path) -> Path:
    """Records written byte by byte, as the format is described: coarse, fine, red by rows, green, blue."""
    home.mkdir(parents=True, exist_ok=True)
    write_lines(home / "fine_label_names.txt", list(CIFAR_NAMES))
    for split, n in (("train", 6), ("test", 3)):
        data = bytearray()
        for k in range(n):
            image = gradient(32, 32, k)
            data += bytes([9, k % 3])
            for channel in range(3):
                for row in range(32):
                    for column in range(32):
                        data.append(int(image[row, column, channel]))
        (home / f"{split}.bin").write_bytes(data)
    return home


def stl10(home: Path) -> Path:
    """The same with columns first, and labels apart, from 1."""
    home.mkdir(parents=True, exist_ok=True)
    write_lines(home / "class_names.txt", ["airplane", "bird"])
    for split, n in (("train", 4), ("test", 2)):
        data = bytearray()
        for k in range(n):
            image = gradient(96, 96, k)
            for channel in range(3):
                for column in range(96):
                    data += bytes(image[:, column, channel].tolist())
        (home / f"{split}_X.bin").write_bytes(data)
        (home / f"{split}_y.bin").write_bytes(bytes(k % 2 + 1 for k in range(n)))
    return home


#: Builder, and the name of the folder in the official archive or in CoOp's instructions.
LAYOUTS = {
    "pets": (pets, "oxford_pets"),
    "cifar100": (cifar100, "cifar-100-binary"),
    "caltech101": (caltech101, "caltech-101"),
    "stl10": (stl10, "stl10_binary"),
    "dtd": (dtd, "dtd"),
}
