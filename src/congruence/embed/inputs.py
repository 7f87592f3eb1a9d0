"""The items to embed: a folder of images, a column of a table, or a data set by name."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from congruence import datasets
from congruence._utils.display import short
from congruence._utils.ids import as_ids, id_texts
from congruence._utils.validation import check_choice
from congruence.errors import FileError, ParameterError, ShapeError
from congruence.io import find_format, parse_spec, read_column, read_ids
from congruence.io.id_columns import first_record

if TYPE_CHECKING:
    from congruence._utils.typing import Ids


#: Suffixes of the files that count as images in a folder.
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm")

#: Names of the columns that are used by default: for texts, for paths of images, and (below) for ids.
COLUMNS = {
    "text": ("text", "caption", "sentence", "title"),
    "image": ("image", "path", "file", "filename", "file_name", "image_path"),
}
ID_COLUMNS = ("id", "ids")


@dataclass(frozen=True, eq=False)
class Items:
    """Items to embed, each read only when it is needed.

    - ``name``: Where the items come from, for reports.
    - ``ids``, shape (n,): Unique ids.
    - ``fetch``: Function from a row number to a text, a ``Path``, bytes or a ``PIL.Image``.
    - ``stamp``: Function from a row number to a string that changes when the item does, as far as it can tell without
      reading it.
    """

    name: str
    modality: str
    ids: np.ndarray
    fetch: Callable[[int], object]
    stamp: Callable[[int], str]

    def __len__(self) -> int:
        return len(self.ids)


def open_items(
    spec: str | Path,
    *,
    modality: str | None = None,
    column: str | None = None,
    id_column: str | None = None,
    split: str = "test",
    root: str | Path | None = None,
) -> Items:
    """Open the items to embed.

    Parameters
    ----------
    spec : str or path-like
        A folder of images, searched recursively; the folder of SugarCrepe's JSON files, for its captions; a ``.csv``,
        ``.jsonl`` or ``.parquet`` with a column of texts or of paths (relative to the table's folder); a ``.txt`` with
        one text per line; or the name of an image data set (an entry point of the group ``congruence.image_sets``), for
        its images or its prompts.
    modality : {"image", "text"}, optional
        By default determined by the folder or by the column's name; for a data set, images.
    column : str, optional
        Column of the texts or paths. By default, the table must have exactly one column of ``COLUMNS``, which is
        used.
    id_column : str, optional
        Column of the ids; by default ``id`` or ``ids``. Without one, the id of an image is its path, and that of a text
        its row number. The id of a data set's prompt is ``class:template``, both as numbers.
    split : str, default="test"
        Split of a data set; for SugarCrepe ``"captions"`` or ``"negatives"``, which have the same ids.
    root : path-like, optional
        Folder that contains the data set's folder, or that folder itself.

    Raises
    ------
    FileError, CorruptFileError
        If nothing exists at the path, a folder has no images, or a table cannot be read.
    ParameterError, InputError
        If an option is invalid, the column or the modality is missing or ambiguous, a table has no rows, or ids are
        repeated.
    """
    if modality is not None:
        check_choice(modality, ("image", "text"), "modality")
    path = Path(spec).expanduser()
    if path.is_dir():
        if any((path / f"{category}.json").is_file() for category in datasets.CATEGORIES):
            return _sugarcrepe(path, modality, column or id_column, split)
        return _folder(path, modality, column or id_column)
    if path.is_file():
        return _table(path, modality, column, id_column)
    if path.suffix or len(path.parts) > 1 or parse_spec(spec)[1]:
        raise FileError(
            f"Got nothing at {spec}; expected images, a table, or the name of a data set.", "Check the path."
        )
    return _dataset(str(spec), modality, split, root)


def _sugarcrepe(path: Path, modality: str | None, column: str | None, split: str) -> Items:
    """Return one of the two captions of every item, under the item's id."""
    if modality == "image" or column:
        raise ParameterError(
            f"Got `modality='image'` or a column for {path}, the folder of SugarCrepe's captions.",
            "Leave out `modality=…` and the columns. For the images, embed COCO's val2017.",
        )
    check_choice(split, ("captions", "negatives"), "split")
    data = datasets.load_sugarcrepe(path)
    texts = (data.captions if split == "captions" else data.negative_captions).tolist()
    return Items(f"{path}:{split}", "text", as_ids(data.ids, len(texts)), texts.__getitem__, texts.__getitem__)


def _folder(path: Path, modality: str | None, column: str | None) -> Items:
    if modality == "text" or column:
        raise ParameterError(
            f"Got `modality='text'` or a column for a folder of images, {path}.",
            "Pass a table or a .txt file for texts, or leave out `modality=…` and the columns.",
        )
    images = []
    for parent, folders, files in os.walk(path):
        folders[:] = [name for name in folders if not name.startswith(".")]
        images += [Path(parent, name) for name in files if not name.startswith(".")]
    images = [image for image in images if image.suffix.lower() in IMAGE_SUFFIXES]
    if not images:
        raise FileError(f"Got no image in {path}.", f"Pass a folder with files ending in {', '.join(IMAGE_SUFFIXES)}.")
    ids = sorted(file.relative_to(path).as_posix() for file in images)
    return _files(str(path), ids, path, ids)


def _files(name: str, ids: Ids, base: Path, paths: list[str]) -> Items:
    def stamp(row: int) -> str:
        try:
            status = (base / paths[row]).stat()
        except (OSError, ValueError):  # ValueError: a path with a NUL character
            return "missing"
        return f"{status.st_size} {status.st_mtime_ns}"

    return Items(name, "image", as_ids(ids, len(paths)), lambda row: base / paths[row], stamp)


def _table(path: Path, modality: str | None, column: str | None, id_column: str | None) -> Items:
    suffix = path.suffix.lower()
    if suffix not in (".csv", ".jsonl", ".parquet", ".txt"):
        raise ParameterError(
            f"Got {str(path)!r}; expected a folder of images, a .csv, .jsonl, .parquet or .txt, or a data set's name.",
            "Convert the file to one of these.",
        )
    if suffix == ".txt":
        if modality == "image" or column or id_column:
            raise ParameterError(
                f"Got `modality='image'` or a column for {path}, which has one text per line.",
                "Leave them out, or write a table (.csv, .jsonl or .parquet).",
            )
        values, modality = read_column(path), "text"
    else:
        shapes = find_format(path).shapes
        names = list(first_record(path) if shapes is None else shapes(str(path)))
        column, modality = choose_column(path, names, column, modality)
        values = read_column(f"{path}:{column}")
        id_column = id_column or next((name for name in ID_COLUMNS if name in names), None)
    if not len(values):
        raise ShapeError(f"No rows in {path}.", "Pass a file with rows.")
    texts = values.tolist()
    if id_column:
        ids = read_ids(f"{path}:{id_column}")
    else:
        ids = values if modality == "image" else id_texts(np.arange(len(values)))
    name = f"{path}:{column}" if column else str(path)
    if modality == "image":
        return _files(name, ids, path.parent, texts)
    return Items(name, "text", as_ids(ids, len(texts)), texts.__getitem__, texts.__getitem__)


def choose_column(path: Path | str, names: list[str], column: str | None, modality: str | None) -> tuple[str, str]:
    """Determine the column to embed and its modality."""
    listed = short(", ".join(names), 300) or "none"
    if column is not None and column not in names:
        raise ParameterError(
            argument="column", got=column, expected=f"one of those in {path}: {listed}", fix="Pass one of these."
        )
    kinds = (modality,) if modality else ("text", "image")
    known = {name: kind for kind in kinds for name in COLUMNS[kind] if name in names}
    if column is None:
        if len(known) != 1:
            raise ParameterError(
                f"Got {path} with the columns {listed}, {len(known) or 'none'} of which have a default name.",
                "Pass `column=…` and `modality=…`.",
            )
        column = next(iter(known))
    if modality is None and column not in known:
        raise ParameterError(
            f"The name of the column {column!r} of {path} does not say whether it contains texts or image paths.",
            "Pass `modality='image'` or `modality='text'`.",
        )
    return column, modality or known[column]


def _dataset(name: str, modality: str | None, split: str, root: str | Path | None) -> Items:
    openers = {point.name: point for point in entry_points(group="congruence.image_sets")}
    if name not in openers:
        raise FileError(
            f"No folder, table or data set {name}.",
            f"Check the path, or pass the name of a data set ({', '.join(sorted(openers)) or 'none is installed'}).",
        )
    if root is None:
        raise ParameterError(
            f"Got the data set {name!r} without its folder; expected the folder that contains it.", "Pass `root=…`."
        )
    data = openers[name].load()(name, root=Path(root).expanduser(), split=split)
    label = f"{name}:{split}"
    if modality == "text":
        prompts = data.prompts()
        texts = [text for _, _, text in prompts]
        ids = [f"{label}:{template}" for label, template, _ in prompts]
        return Items(f"{label}:prompts", "text", as_ids(ids), texts.__getitem__, texts.__getitem__)
    return Items(label, "image", as_ids(data.ids), data.image, lambda row: str(data.ids[row]))
