"""The image data sets of the papers: opened from a folder, or downloaded, with class names and prompt templates."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from congruence.errors import CorruptFileError, FileError, ParameterError
from congruence_papers.core import check_choice
from congruence_papers.image_sets.download import Callback, Resource, install
from congruence_papers.image_sets.sets import DATASETS, Entry, ImageDataset

__all__ = ["DATASETS", "Entry", "ImageDataset", "download_dataset", "open_dataset"]


def open_dataset(
    name: str, root: str | Path, split: str = "test", download: bool = False, *, complete: bool = True
) -> ImageDataset:
    """Open one split of a labeled image data set, a key of ``DATASETS``, in ``root`` or its folder there.

    Splits are ``train``, ``val`` (if there is one) and ``test``, and those that ``congruence lab datasets NAME`` lists;
    for ``folder`` a folder in the root, or ``all``. ``complete`` requires the published number of images and classes.
    Raises FileError if the data set is not found (the message says which files to put where), and CorruptFileError if
    a file is damaged, or the split is incomplete.

    Examples
    --------
    >>> from congruence_papers.image_sets import DATASETS
    >>> sorted(DATASETS)
    ['caltech101', 'cifar100', 'dtd', 'folder', 'pets', 'stl10']
    >>> DATASETS["pets"].templates
    ('a photo of a {}, a type of pet.',)
    """
    entry = DATASETS[check_choice(name, DATASETS, "data set")]
    if entry.splits:
        check_choice(split, entry.splits, "split")
    if download:
        download_dataset(name, root)
    folder = entry.locate(root)
    if folder is None:
        raise FileError(_missing(entry, Path(root)))
    classes, ids, labels, source = entry.read(folder, split)
    names = [one.replace("_", " ") for one in classes]
    data = ImageDataset(name, split, names, entry.templates, ids, labels, source)
    published = (entry.splits.get(split), entry.classes)
    if complete and entry.splits and (len(data), len(data.classes)) != published:
        raise CorruptFileError(
            f"Got {len(data)} images of {len(data.classes)} classes in {name}, {split}, at {folder}; expected "
            f"{published[0]} of {published[1]}.",
            ("Extract the archive again.", "Pass `complete=False` for an incomplete split."),
        )
    return data


def download_dataset(name: str, root: str | Path, callback: Callback = None) -> list[str]:
    """Download, verify and unpack the missing files of a data set; return the files and folders that were created.

    An interrupted download is resumed; an archive in its place is verified and unpacked without a network. ``callback``
    is called with the number of bytes of each block received.
    """
    entry = DATASETS[check_choice(name, DATASETS, "data set")]
    if not entry.resources:
        raise ParameterError(f"Got nothing to download for {name}.", "Pass the folder of the files as `root=…`.")
    root = Path(root).expanduser()
    existing = entry.locate(root)
    created = []
    for resource in entry.resources:
        if existing is not None:  # its name may differ from that of a new download
            resource = _moved(resource, entry.folders[0], existing.absolute())
        if install(resource, root, callback):
            created.append(str(root / resource.creates))
    return created


def _moved(resource: Resource, name: str, folder: Path) -> Resource:
    """Return a resource that is installed in ``folder`` instead of the folder ``name`` below the root."""

    def moved(path: str) -> str:
        return str(folder / Path(path).relative_to(name)) if Path(path).is_relative_to(name) else path

    into = None if resource.into is None else moved(resource.into)
    return replace(resource, path=moved(resource.path), creates=moved(resource.creates), into=into)


def _missing(entry: Entry, root: Path) -> str:
    """Return the message for a data set that was not found, which says which files to put where."""
    if not entry.resources:
        return f"Got no folder {root}; expected one with a folder for each class. Check the path."
    folder = root / entry.folders[0]
    files = " and ".join(f"{Path(r.path).name} from {r.url}" for r in entry.resources if r.url is not None)
    return (
        f"Got no {entry.title} in {root}; expected {', '.join(entry.markers[0])} in it or in {folder}. "
        f"Run congruence lab datasets {entry.name} --root {root} --download, "
        f"or unpack {files}."
    )
