"""SugarCrepe: images with a correct caption and one that is wrong in a detail (Hsieh et al., 2023)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from congruence._utils.validation import check_choice, check_seed
from congruence.errors import CorruptFileError, FileError, ParameterError
from congruence.splits import Split

#: The seven kinds of wrong captions, each in its own JSON file.
CATEGORIES = ("add_att", "add_obj", "replace_att", "replace_obj", "replace_rel", "swap_att", "swap_obj")

_FIELDS = ("filename", "caption", "negative_caption")


@dataclass(frozen=True)
class SugarCrepe:
    """Items of SugarCrepe; many share an image.

    ``ids`` are ``category/key``, with the keys of the files; those of ``swap_obj`` are not contiguous. ``filenames``
    are images of COCO's ``val2017``, which are not part of SugarCrepe.
    """

    ids: np.ndarray
    categories: np.ndarray
    filenames: np.ndarray
    captions: np.ndarray
    negative_captions: np.ndarray

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def images(self) -> np.ndarray:
        """The distinct file names, sorted."""
        return np.unique(self.filenames)

    @property
    def tasks(self) -> np.ndarray:
        """The task of each item: the part of its category before ``_``."""
        return np.array([category.partition("_")[0] for category in self.categories.tolist()])

    def take(self, rows: np.ndarray | slice | Sequence[int]) -> SugarCrepe:
        """Return some of the items, selected by a mask or by row numbers."""
        return SugarCrepe(**{name: column[rows] for name, column in vars(self).items()})

    def split_by_image(self, train: float = 0.7, random_state: int = 0) -> tuple[SugarCrepe, SugarCrepe]:
        """Return two parts of the items such that no image is in both, the first with the share ``train`` of images.

        For JAM's 70–15–15 split (Yoon, Yue and Kim, 2025), split twice: ``train, rest = data.split_by_image(0.7)`` and
        ``validation, test = rest.split_by_image(0.5)``.
        """
        check_seed(random_state)
        if not isinstance(train, (int, float)) or not 0 < train < 1:
            expected, fix = "a share between 0 and 1", "Pass `train=0.8`, for example."
            raise ParameterError(argument="train", got=train, expected=expected, fix=fix)
        images = self.images
        n_rest = len(images) - round(train * len(images))
        if not 0 < n_rest < len(images):
            fix = "Pass `train=…` closer to 0.5."
            raise ParameterError(f"Got `train={train!r}`, which leaves one part empty.", fix)
        rule = Split.choose(images, n_rest, random_state)
        held_out = np.isin(self.filenames, images[rule.held_out(images)])
        return self.take(~held_out), self.take(held_out)


def load_sugarcrepe(folder: str | Path, categories: Sequence[str] = CATEGORIES) -> SugarCrepe:
    """Read the annotation files of SugarCrepe (Hsieh et al., 2023), ``add_att.json`` and so on, from a folder like
    ``data`` of github.com/RAIVNLab/sugar-crepe; all seven categories have 7,511 items over 1,560 images.
    """
    folder = Path(folder).expanduser()
    if isinstance(categories, str) or not categories:
        fix = "Pass `categories=['swap_att']`, for example."
        raise ParameterError(argument="categories", got=categories, expected="a list of their names", fix=fix)
    rows: list[tuple[str, ...]] = []
    for category in dict.fromkeys(check_choice(category, CATEGORIES, "category") for category in categories):
        path = folder / f"{category}.json"
        if not path.is_file():
            problem = f"No {path.name} in {folder}, of the annotation files of SugarCrepe."
            raise FileError(problem, "Copy it from the folder data of github.com/RAIVNLab/sugar-crepe.")
        rows += _read(path, category)
    return SugarCrepe(*(np.array(column, dtype=str) for column in zip(*rows, strict=True)))


def _read(path: Path, category: str) -> list[tuple[str, ...]]:
    def damaged(what: str) -> CorruptFileError:
        return CorruptFileError(
            f"Got {what} in {path}; expected key → filename, caption, negative_caption.", "Download it again."
        )

    try:
        data = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise damaged(f"invalid JSON ({error})") from error
    if not isinstance(data, dict) or not data:
        raise damaged("no items")
    rows = []
    for key, item in data.items():
        if not isinstance(item, dict) or not all(isinstance(item.get(f), str) and item[f].strip() for f in _FIELDS):
            raise damaged(f"the item {key!r} with a missing or empty text")
        rows.append((f"{category}/{key}", category, *(item[field] for field in _FIELDS)))
    return rows
