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
from congruence.encoders import ENCODED, SUFFIXES
from congruence.errors import FileError, ParameterError, ShapeError
from congruence.io import find_format, parse_spec, read_column, read_ids

if TYPE_CHECKING:
    from congruence._utils.typing import Ids


_PATHS = ("path", "file", "filename", "file_name")

#: Names of the columns that are used by default: for texts, for paths of other items, and (below) for ids. Without a
#: modality, a column of paths whose name does not tell it is one of images.
COLUMNS = {
    "text": ("text", "caption", "sentence", "title"),
    "audio": ("audio", "audio_path", *_PATHS),
    "video": ("video", "video_path", *_PATHS),
    "image": ("image", "image_path", *_PATHS),
}
ID_COLUMNS = ("id", "ids")


@dataclass(frozen=True, eq=False)
class Items:
    """Items to embed, each read only when it is needed."""

    name: str  # where the items come from, for reports
    modality: str
    ids: np.ndarray  # (n,), unique
    fetch: Callable[[int], object]  # from a row number to a text, a ``Path``, bytes, or a decoded item
    #: From a row number to a string that changes when the item does, as far as it can tell without reading it.
    stamp: Callable[[int], str]

    @classmethod
    def of_texts(cls, name: str, ids: Ids, texts: list[str]) -> Items:
        """Return texts as items."""
        return cls(name, "text", as_ids(ids, len(texts)), texts.__getitem__, texts.__getitem__)

    @classmethod
    def of_files(cls, name: str, ids: Ids, base: Path, paths: list[str], modality: str = "image") -> Items:
        """Return files, with paths relative to a folder, as items."""

        def stamp(row: int) -> str:
            try:
                status = (base / paths[row]).stat()
            except (OSError, ValueError):  # ValueError: a path with a NUL character
                return "missing"
            return f"{status.st_size} {status.st_mtime_ns}"

        return cls(name, modality, as_ids(ids, len(paths)), lambda row: base / paths[row], stamp)

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
        A folder of files with a suffix in ``congruence.encoders.SUFFIXES``, searched recursively (without ``modality``,
        its images if it has any); the folder of SugarCrepe's JSON files, for its captions; a ``.csv``, ``.jsonl`` or
        ``.parquet`` with a column of texts or of paths (relative to the table's folder; of a video, also of a folder of
        frames); a ``.txt`` with one text per line; or the name of an image data set (an entry point of the group
        ``congruence.image_sets``), for its images or its prompts.
    modality, column, id_column
        By default the only column with a name in ``COLUMNS``, which also tells the modality, and ``id`` or ``ids``.
        Without ids, the id of a file is its path, that of a text its row number, that of a prompt ``class:template``.
    split, root
        Split of a data set, and the folder that contains its folder, or that folder itself. The splits of SugarCrepe
        are ``"captions"`` and ``"negatives"``, which have the same ids.
    """
    if modality is not None:
        check_choice(modality, ENCODED, "modality")
    path = Path(spec).expanduser()
    if path.is_file() and path.suffix.lower() != ".txt":
        return _table(path, modality, column, id_column)
    if path.is_file() or path.is_dir():
        captions = path.is_dir() and any((path / f"{category}.json").is_file() for category in datasets.CATEGORIES)
        texts = captions or path.is_file()
        if column or id_column or (modality is not None and (modality == "text") != texts):
            what = "texts" if texts else "images, audio or videos"
            fix = "Leave out `modality=…` and the columns, or pass a table (.csv, .jsonl or .parquet)."
            raise ParameterError(f"Got `modality={modality!r}` or a column for {path}, which has {what} only.", fix)
        return _sugarcrepe(path, split) if captions else _lines(path) if texts else _folder(path, modality)
    if path.suffix or len(path.parts) > 1 or parse_spec(spec)[1]:
        problem = f"Got nothing at {spec}; expected a folder, a table, or the name of a data set."
        raise FileError(problem, "Check the path.")
    return _dataset(str(spec), modality, split, root)


def _sugarcrepe(path: Path, split: str) -> Items:
    """Return one of the two captions of every item, under the item's id."""
    check_choice(split, ("captions", "negatives"), "split")
    data = datasets.load_sugarcrepe(path)
    texts = (data.captions if split == "captions" else data.negative_captions).tolist()
    return Items.of_texts(f"{path}:{split}", data.ids, texts)


def _folder(path: Path, modality: str | None) -> Items:
    files = []
    for parent, folders, names in os.walk(path):
        folders[:] = [name for name in folders if not name.startswith(".")]
        files += [Path(parent, name) for name in names if not name.startswith(".")]
    found = {kind: [file for file in files if file.suffix.lower() in SUFFIXES[kind]] for kind in SUFFIXES}
    modality = modality or next((kind for kind in SUFFIXES if found[kind]), "image")
    if not found[modality]:
        listed = ", ".join(SUFFIXES[modality])
        raise FileError(f"Got no {modality} in {path}.", f"Pass a folder with files ending in {listed}.")
    ids = sorted(file.relative_to(path).as_posix() for file in found[modality])
    return Items.of_files(str(path), ids, path, ids, modality)


def _lines(path: Path) -> Items:
    texts = _read(read_column(path), path)
    return Items.of_texts(str(path), id_texts(np.arange(len(texts))), texts)


def _read(values: np.ndarray, path: Path) -> list[str]:
    if not len(values):
        raise ShapeError(f"No rows in {path}.", "Pass a file with rows.")
    return list(values.tolist())


def _table(path: Path, modality: str | None, column: str | None, id_column: str | None) -> Items:
    if path.suffix.lower() not in (".csv", ".jsonl", ".parquet"):
        expected = "a folder of images, audio or video, a .csv, .jsonl, .parquet or .txt, or a data set's name"
        raise ParameterError(f"Got {str(path)!r}; expected {expected}.", "Convert the file to one of these.")
    kind = find_format(path)
    names = [*(kind.shapes or kind.listing)(str(path))]
    column, modality = choose_column(path, names, column, modality)
    name, values = f"{path}:{column}", _read(read_column(f"{path}:{column}"), path)
    id_column = id_column or next((name for name in ID_COLUMNS if name in names), None)
    if id_column:
        ids: Ids = read_ids(f"{path}:{id_column}")
    else:
        ids = id_texts(np.arange(len(values))) if modality == "text" else values
    if modality == "text":
        return Items.of_texts(name, ids, values)
    return Items.of_files(name, ids, path.parent, values, modality)


def choose_column(path: Path | str, names: list[str], column: str | None, modality: str | None) -> tuple[str, str]:
    """Determine the column to embed and its modality."""
    listed = short(", ".join(names), 300) or "none"
    if column is not None and column not in names:
        expected = f"one of those in {path}: {listed}"
        raise ParameterError(argument="column", got=column, expected=expected, fix="Pass one of these.")
    kinds = (modality,) if modality else tuple(COLUMNS)
    known = {name: kind for kind in kinds for name in COLUMNS[kind] if name in names}
    if column is None:
        if len(known) != 1:
            problem = f"Got {path} with the columns {listed}, {len(known) or 'none'} of which have a default name."
            raise ParameterError(problem, "Pass `column=…` and `modality=…`.")
        column = next(iter(known))
    if modality is None and column not in known:
        problem = f"The name of the column {column!r} of {path} does not say what it contains."
        raise ParameterError(problem, f"Pass `modality=…` with one of {', '.join(ENCODED)}.")
    return column, modality or known[column]


def _dataset(name: str, modality: str | None, split: str, root: str | Path | None) -> Items:
    openers = {point.name: point for point in entry_points(group="congruence.image_sets")}
    if name not in openers:
        known = ", ".join(sorted(openers)) or "none is installed"
        fix = f"Check the path, or pass the name of a data set ({known})."
        raise FileError(f"No folder, table or data set {name}.", fix)
    if root is None:
        problem = f"Got the data set {name!r} without its folder; expected the folder that contains it."
        raise ParameterError(problem, "Pass `root=…`.")
    data = openers[name].load()(name, root=Path(root).expanduser(), split=split)
    label = f"{name}:{split}"
    if modality == "text":
        prompts = data.prompts()
        texts = [text for _, _, text in prompts]
        return Items.of_texts(f"{name}:{split}:prompts", [f"{a}:{template}" for a, template, _ in prompts], texts)
    return Items(label, "image", as_ids(data.ids), data.image, lambda row: str(data.ids[row]))
