"""Collections from folders of embeddings that others have computed, in the layouts in which people have them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from congruence import check_pairing
from congruence.errors import FileError, IdError, InputError, ParameterError, ShapeError
from congruence.io import open_source, read_column, read_embeddings
from congruence.metrics import zero_shot_accuracy
from congruence_papers.canonical.data import Collection, Model
from congruence_papers.core import check_embedded
from congruence_papers.features import find_embeddings
from congruence_papers.image_sets import DATASETS

#: Widths of the paper's models.
WIDTHS = dict.fromkeys(("openai-b32", "openai-b16", "laion400m-b32"), 512)
WIDTHS |= dict.fromkeys(("openai-l14", "siglip", "flava"), 768)

#: Columns of a table that name the class of a row, and that hold its vector, in the order in which they are tried.
LABELS = ("label", "labels", "class", "class_name")
VECTORS = ("{}_embedding", "{}_embeddings", "{}_embeds", "{}_emb", "{}_features")


@dataclass
class Rows:
    """Vectors (n, d) with classes (n,), names or numbers as text, and ids if there are any."""

    vectors: np.ndarray
    labels: np.ndarray
    ids: np.ndarray | None = None
    place: str = field(kw_only=True)

    def __post_init__(self) -> None:
        self.labels = self.labels.astype(str)
        check_embedded(self.vectors, f"vectors in {self.place}")
        if len(self.vectors) != len(self.labels):
            raise ShapeError(
                f"Got {len(self.vectors)} vectors and {len(self.labels)} labels in {self.place}.", "Save both again."
            )


#: Images to fit on, images to measure on, and prompts.
Parts = tuple[Rows, Rows, Rows]


@dataclass(frozen=True)
class Layout:
    """How a tool lays out a folder: files by which it is known, what it must hold (one of each), and its reader."""

    marks: tuple[str, ...]
    holds: tuple[tuple[str, ...], ...]
    read: Callable[[Path], Parts]

    def missing(self, place: Path) -> list[str]:
        """Return what a folder lacks."""
        return [" or ".join(names) for names in self.holds if not any(any(place.glob(name)) for name in names)]


def read_folders(file: str | Path, groups: Sequence[Sequence[str]], sets: Sequence[str]) -> list[Collection]:
    """Return each data set by each group of models, from ``FILE/MODEL/DATA``.

    All that is missing is named before anything is read.
    """
    root, lacking = Path(file).expanduser(), list[str]()
    if not root.is_dir():
        raise FileError(f"Got no folder at {root}.", "Pass the folder of the models' embeddings as `file=…`.")
    found: dict[tuple[str, str], tuple[Layout, Path]] = {}
    for model in dict.fromkeys(name for group in groups for name in group):
        for data in sets:
            places = (root / model / data, root / model / "caches" / data, root / data / model)
            place = next((one for one in places if one.is_dir()), None)
            if place is None:
                lacking.append(f"{model}/{data}")
                continue
            marked = (one for one in LAYOUTS if any(any(place.glob(mark)) for mark in one.marks))
            layout = next(marked, LAYOUTS[-1])
            lacking += [f"{place.relative_to(root)}/{name}" for name in layout.missing(place)]
            found[model, data] = layout, place
    if lacking:
        raise FileError(
            f"Missing in {root}: {', '.join(lacking)}.",
            "Add them, or name only models and data that are there (`models=…`, `data=…`).",
        )
    read = {key: _checked(layout.read(place), place, *key) for key, (layout, place) in found.items()}
    return [_collection([(name, read[name, data]) for name in group], data) for group in groups for data in sets]


def _checked(parts: Parts, place: Path, model: str, data: str) -> Parts:
    """Refuse embeddings that are of another model or data set, and name classes by ``classes.txt``."""
    train, test, prompts = parts
    widths = [part.vectors.shape[1] for part in parts]
    wanted = WIDTHS.get(model, widths[1])
    if widths != [wanted] * 3:
        problem = f"Got {widths[0]} and {widths[1]} dimensions of images and {widths[2]} of prompts in {place}"
        raise ShapeError(f"{problem}; expected {wanted} of {model}.", f"Put the embeddings of {model} there.")
    listed = read_column(place / "classes.txt").astype(str) if (place / "classes.txt").is_file() else None
    names, counts = np.unique([] if listed is None else listed, return_counts=True)
    if (counts > 1).any():
        again = names[counts > 1]
        problem = f"Got {len(again)} names more than once in {place / 'classes.txt'} ({str(again[0])!r}, …)."
        raise InputError(problem, "Give each class a name of its own.")
    for part in parts:
        if listed is not None and np.char.isdecimal(part.labels).all():
            numbers = part.labels.astype(int)
            if numbers.max() >= len(listed):
                problem = f"Got class {numbers.max()} in {part.place}, and {len(listed)} names in classes.txt."
                raise InputError(problem, "Write one name for each class, in order.")
            part.labels = listed[numbers]
    unnamed = np.setdiff1d(np.concatenate([train.labels, test.labels]), prompts.labels)
    if len(unnamed):
        raise InputError(f"No prompt for {len(unnamed)} classes in {place} ({unnamed[0]!r}, …).", "Add prompts.")
    entry, classes = DATASETS.get(data), len(np.unique(prompts.labels))
    if entry and entry.splits and (classes, len(test.labels)) != (entry.classes, entry.splits["test"]):
        wanted_counts = f"{data} has {entry.classes} and {entry.splits['test']}"
        problem = f"Got {classes} classes and {len(test.labels)} test images in {place}; {wanted_counts}."
        raise InputError(problem, "Embed all of them, or give this data set a name of its own.")
    return parts


def _collection(models: Sequence[tuple[str, Parts]], data: str) -> Collection:
    """Return models side by side, after checking that their rows are of the same items."""
    (name, first), *others = models
    train, test, prompts = first
    names = np.unique(prompts.labels)
    classes = sorted(names, key=int) if np.char.isdecimal(names).all() else names.tolist()
    number = {one: k for k, one in enumerate(classes)}
    order = np.argsort([number[one] for one in prompts.labels], kind="stable")
    built = [Model.unit(name, np.concatenate([train.vectors, test.vectors]), prompts.vectors[order])]
    for other, parts in others:
        images = [own.vectors[_same_rows(known, own)] for known, own in zip(first[:2], parts[:2], strict=True)]
        own = parts[2]
        if sorted(own.labels) != sorted(prompts.labels):
            raise InputError(f"Got other prompts in {own.place} than in {prompts.place}.", "Embed the same prompts.")
        if own.ids is None or prompts.ids is None or {*own.ids} != {*prompts.ids}:
            rows = np.argsort([number[one] for one in own.labels], kind="stable")
        else:
            rows = _same_rows(prompts, own)[order]
        built.append(Model.unit(other, np.concatenate(images), own.vectors[rows]))
    labels = np.array([number[one] for one in (*train.labels, *test.labels)])
    known = train.ids is not None and test.ids is not None
    ids = np.concatenate([train.ids, test.ids]) if known else np.arange(len(labels)).astype(str)
    prompt_labels = np.array([number[one] for one in prompts.labels])[order]
    collection = Collection(
        data,
        tuple(built),
        tuple(classes),
        ids.astype(str),
        labels,
        np.arange(len(labels)) < len(train.labels),
        prompt_labels,
        np.arange(len(prompt_labels)) - np.searchsorted(prompt_labels, prompt_labels),
        texts=() if prompts.ids is None else tuple(map(str, prompts.ids[order])),
        captions={i: classes[k] for i, k in zip(ids.astype(str).tolist(), labels.tolist(), strict=True)},
        title=DATASETS[data].title if data in DATASETS and data != "folder" else data,
    )
    _check_prompts(collection, [parts[2].place for _, parts in models])
    return collection


def _same_rows(first: Rows, other: Rows) -> np.ndarray:
    """Return another model's rows in the order of the first's: by id, else row by row if they look paired."""
    both = f"{first.place} and {other.place}"
    if first.ids is not None and other.ids is not None:
        row = {one: k for k, one in enumerate(other.ids.tolist())}
        lost = [one for one in first.ids.tolist() if one not in row]
        if lost or len(row) != len(first.ids):
            example = f" ({lost[0]!r}, …)" if lost else ""
            raise IdError(
                f"{len(lost)} of {len(first.ids)} ids differ between {both}{example}.", "Embed the same items."
            )
        rows = np.array([row[one] for one in first.ids.tolist()])
    elif len(other.labels) == len(first.labels):
        rows = np.arange(len(first.labels))
    else:
        problem = f"Got {len(first.labels)} and {len(other.labels)} rows in {both}."
        raise ShapeError(problem, "Embed the same items.")
    differ = np.flatnonzero(first.labels != other.labels[rows])
    if len(differ):
        problem = f"Labels of {both} differ in {len(differ)} rows, the first in row {differ[0]}."
        raise InputError(problem, "Embed the same items in the same order.")
    report = check_pairing(first.vectors, other.vectors[rows])
    if not report.looks_paired:
        raise InputError(f"Rows of {both} belong to other items: {report.sentence}", "Embed them in the same order.")
    return rows


def _check_prompts(data: Collection, places: Sequence[str]) -> None:
    """Refuse prompts that do not tell a model's own images apart: of another model, or in another order."""
    test, chance = ~data.train, 1 / len(data.classes)
    for model, prototypes, place in zip(data.models, data.prototypes, places, strict=True):
        assert model.images is not None
        assert prototypes is not None
        accuracy = zero_shot_accuracy(model.images[test], prototypes, data.labels[test])
        if chance < 1 and accuracy < chance + 4 * (chance * (1 - chance) / test.sum()) ** 0.5:
            problem = f"Prompts in {place} classify images of {model.name} at {accuracy:.3f}; chance is {chance:.3f}"
            raise InputError(f"{problem}.", "Put prompts of the same model there, in the order of the classes.")


# ------------------------------------------------------------------ layouts


def _tip_adapter(place: Path) -> Parts:
    """Read features and labels by split, the cache's keys (d, n) without ``train``, and text weights (d, k)."""

    def matrix(path: Path) -> np.ndarray:
        return read_embeddings(path, ids=False, allow_zero_rows=True).vectors

    def split(name: str) -> Rows:
        labels = read_column(f"{place / f'{name}_l.pt'}:tensor")
        return Rows(matrix(place / f"{name}_f.pt"), labels, place=f"{place}/{name}_f.pt")

    def most(pattern: str) -> Path:
        return max(place.glob(pattern), key=lambda path: (len(path.name), path.name))

    if (place / "train_f.pt").is_file():
        train = split("train")
    else:
        keys = most("keys_*shots.pt")
        values = matrix(keys.with_name(keys.name.replace("keys", "values"))).argmax(axis=1)
        train = Rows(matrix(keys).T, values, place=str(keys))
    weights = most("*weights*.pt")
    prompts = matrix(weights).T
    return train, split("test"), Rows(prompts, np.arange(len(prompts)), place=str(weights))


def _clip_retrieval(place: Path) -> Parts:
    """Read three outputs of clip-retrieval; a class is a column of the metadata, or the folder of an image."""

    def part(name: str, kind: str, column: str) -> Rows:
        home = place / name
        ids = read_column(f"{home}/metadata:{column}")
        vectors = read_embeddings(f"{home}:{kind}", ids=False).vectors
        return Rows(vectors, _labels(f"{home}/metadata:", ids), ids, place=f"{home}/{kind}")

    train, test = (part(name, "img_emb", "image_path") for name in ("train", "test"))
    return train, test, part("prompts", "text_emb", "caption")


def _tables(place: Path) -> Parts:
    """Read a data set of three splits, or three files of any format, such as ``congruence embed`` writes."""

    def part(name: str, modality: str) -> Rows:
        path = find_embeddings(place, name)
        home, column = (f"{place}:{name}", "/") if path is None else (str(path), ":")
        rows = read_embeddings(_vectors(home, column, modality))
        ids = np.array([str(one) for one in rows.ids]) if rows.has_ids else None
        return Rows(rows.vectors, _labels(home + column, ids, len(rows.vectors)), ids, place=home)

    return part("train", "image"), part("test", "image"), part("prompts", "text")


def _vectors(home: str, separator: str, modality: str) -> str:
    """Return the spec of the vectors of a table: the only column, else one named after the modality."""
    for spec in (home, *(home + separator + name.format(modality) for name in VECTORS)):
        with suppress(ParameterError):
            open_source(spec)
            return spec
    return home  # the reader's own message lists the columns


def _labels(columns: str, ids: np.ndarray | None, n: int = 0) -> np.ndarray:
    """Return the class of each row: a column of its table, else what its id begins with, else its number."""
    for name in LABELS:
        try:
            return read_column(columns + name)
        except (InputError, ParameterError):
            continue
    if ids is None:
        return np.arange(n)
    separators = "/" if any("/" in one for one in ids) else "#" if any("#" in one for one in ids) else ":"
    if separators == "/":  # of an image, the folder
        return np.array([Path(one).parent.name for one in ids])
    return np.array([one.rpartition(separators)[0] or one for one in ids])


#: What ``FILE/MODEL/DATA`` may be: the first with a mark that is found, else the last.
LAYOUTS = (
    Layout(
        ("*_f.pt",),
        (
            ("test_f.pt",),
            ("test_l.pt",),
            ("train_f.pt", "keys_*shots.pt"),
            ("train_l.pt", "values_*shots.pt"),
            ("*weights*.pt",),
        ),
        _tip_adapter,
    ),
    Layout(
        ("*/img_emb", "*/text_emb"),
        (
            ("train/img_emb/*.npy",),
            ("train/metadata/*.parquet",),
            ("test/img_emb/*.npy",),
            ("test/metadata/*.parquet",),
            ("prompts/text_emb/*.npy",),
            ("prompts/metadata/*.parquet",),
        ),
        _clip_retrieval,
    ),
    Layout(
        (),
        tuple((f"{name}*", f"data/{name}-*") for name in ("train", "test", "prompts")),
        _tables,
    ),
)
