"""Split files of the CoOp repository: ``{"train": [[path, label, class name], …], "val": …, "test": …}``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from congruence.errors import CorruptFileError, FileError
from congruence_papers.image_sets.base import ImageFiles
from congruence_papers.image_sets.download import Resource, check_recorded
from congruence_papers.image_sets.prompts import TEMPLATES

#: The splits that every split file contains.
SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class CoopSplits:
    """The contents of a CoOp split file, validated."""

    classes: tuple[str, ...]
    items: dict[str, list[tuple[str, int]]]


def coop_resource(file: str, drive_id: str, folder: str) -> Resource:
    """Return the download of a split file; it is hosted on Google Drive, without a published checksum."""
    return Resource(
        url=f"https://drive.google.com/uc?export=download&id={drive_id}",
        path=f"{folder}/{file}",
        creates=f"{folder}/{file}",
        check=read_coop,
    )


def read_coop(path: str | Path) -> CoopSplits:
    """Read and validate a CoOp split file.

    References
    ----------
    Zhou et al. (2022), "Learning to Prompt for Vision-Language Models"; the authors' repository defines and distributes
    the splits.
    """

    def damaged(what: str) -> CorruptFileError:
        return CorruptFileError(
            f"Got {what} in {path}; expected a split file of CoOp, {{'train': [[path, label, class], …], "
            "'val', 'test'}.",
            "Download it again.",
        )

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
    return CoopSplits(tuple(names[label].replace("_", " ") for label in range(len(names))), items)


def open_coop(name: str, split: str, file: Path, images: Path, instead: str) -> ImageFiles:
    """Open one split of a data set as listed in a CoOp split file."""
    if not file.is_file():
        raise FileError(
            f"Got no {file.name} in {file.parent}; expected the split file of CoOp, which the split {split!r} "
            "comes from.",
            f"Download it (congruence datasets {name} --download, or by hand from the links in CoOp's "
            f"DATASETS.md, github.com/KaiyangZhou/CoOp), or use {instead}.",
        )
    check_recorded(file)
    splits = read_coop(file)
    ids, labels = zip(*splits.items[split], strict=True) if splits.items[split] else ((), ())
    return ImageFiles(name, split, splits.classes, TEMPLATES[name], ids, labels, images)
