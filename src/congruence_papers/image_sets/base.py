"""One split of a labeled image data set, and the description of a data set in the table of known ones."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from congruence.errors import CorruptFileError, FileError, IdError, InputError, MissingExtraError, ParameterError
from congruence_papers.core import check_choice
from congruence_papers.image_sets.download import Resource

if TYPE_CHECKING:
    from PIL import Image

#: Exceptions that Pillow raises for files that are not images, or are truncated.
_NO_IMAGE = (OSError, ValueError, SyntaxError, EOFError, LookupError, ArithmeticError, struct.error)


def _pillow() -> Any:
    """Return Pillow's module for images."""
    try:
        return import_module("PIL.Image")
    except ImportError as error:
        raise MissingExtraError("Images need Pillow.", "Run pip install 'congruence[images]'.") from error


class ImageDataset:
    """One split of a labeled image data set; images are read when needed.

    Parameters
    ----------
    name, split : str
    classes : sequence of str
        Class names; a label is an index into them.
    templates : sequence of str
        Prompts with ``{}`` in place of the class name.
    ids : sequence of str
        One unique id per image; for image files the path below ``source``.
    labels : array_like of int, shape (n,)
        From 0 to ``len(classes) − 1``.
    source : path-like or ndarray, shape (n, height, width, 3)
        Folder of the image files, or the images in one array, such as a memory-mapped binary file.

    Attributes
    ----------
    ids : ndarray of str, shape (n,)
    labels : ndarray of int64, shape (n,)
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
        pillow = _pillow()
        if isinstance(self._source, np.ndarray):
            return pillow.fromarray(np.ascontiguousarray(self._source[i]))
        path = self.path(int(i))
        if not path.is_file():
            raise FileError(f"No image at {path} any more.", "Restore it, or open the data set again.")
        try:
            with pillow.open(path) as file:
                return file.convert("RGB")
        except (*_NO_IMAGE, pillow.DecompressionBombError, MemoryError) as error:
            raise CorruptFileError(
                f"No readable image in {path} ({error or 'too large for memory'}).", "Copy it again."
            ) from error

    def prompts(self, *, single: bool = False) -> list[tuple[int, int, str]]:
        """Return the texts of all classes, each with the index of its class and of its template, ordered by class.

        ``single`` uses the first template only, as the paper's Table 2: "we use a single template per class for
        evaluation".
        """
        templates = self.templates[:1] if single else self.templates
        return [
            (c, t, template.replace("{}", name))
            for c, name in enumerate(self.classes)
            for t, template in enumerate(templates)
        ]


#: The classes of a split, and the ids, labels and source of its images.
Contents = tuple[Sequence[str], Sequence[str], ArrayLike, Path | np.ndarray]


@dataclass(frozen=True)
class Entry:
    """Description of a known data set: ``folders`` are names that its folder may have, ``markers`` groups of files, of
    which it contains all of one, and ``read`` reads a split.
    """

    name: str
    title: str
    classes: int | None
    splits: Mapping[str, int]
    templates: tuple[str, ...]
    folders: tuple[str, ...]
    markers: tuple[tuple[str, ...], ...]
    read: Callable[[Path, str], Contents]
    resources: tuple[Resource, ...] = ()
    splits_from: str = ""

    def locate(self, root: str | Path) -> Path | None:
        """Return the folder below ``root`` (or ``root`` itself) that holds this data set, or None."""
        root = Path(root).expanduser()
        for folder in (*(root / name for name in self.folders), root):
            if any(all((folder / name).exists() for name in group) for group in self.markers):
                return folder
        return None

    def check_split(self, split: str) -> str:
        """Return the name of a split after checking that it exists."""
        return check_choice(split, self.splits, "split") if self.splits else split

    def open(self, folder: Path, split: str) -> ImageDataset:
        """Open a split in the data set's folder; underscores in the names of classes become spaces."""
        classes, ids, labels, source = self.read(folder, split)
        names = [name.replace("_", " ") for name in classes]
        return ImageDataset(self.name, split, names, self.templates, ids, labels, source)
