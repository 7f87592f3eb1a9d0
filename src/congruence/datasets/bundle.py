"""Both models' embeddings of the same items, with classes, texts and thumbnails, in one Parquet file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import DTypeLike

from congruence._utils.arrays import as_dtype
from congruence._utils.atomic import atomic_path
from congruence._utils.ids import id_texts, is_in, text_keys
from congruence.embeddings import Embeddings, Space
from congruence.errors import InputError
from congruence.io.parquet import ParquetTable, write_parquet
from congruence.io.reading import reading
from congruence.io.tables import ARROW_DAMAGE, TableSource

KINDS = {"image": "image", "text": "text", "prompt": "text", "edit": "text"}  # kinds of rows, and the modality of each

_INFO_KEY = b"congruence_bundle"
#: Exceptions that Arrow, JSON and NumPy raise for damaged files.
_DAMAGE = (*ARROW_DAMAGE, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError)

_TEXT_COLUMNS = ("class", "label", "text", "before")


@dataclass(frozen=True)
class Bundle:
    """Embeddings of the same items by two models, with the classes, texts and thumbnails of the items.

    A row has a kind: ``"image"``, ``"text"`` (one caption per class), ``"prompt"`` (several texts per class) or
    ``"edit"`` (a caption in which only the class was changed). Ids are unique within a kind. They are strings; integers
    are converted.

    - ``source``, ``target``: Embeddings by kind.
    - ``classes``: By kind: the class of each id. An id that is not listed is its own class.
    - ``labels``: A coarser label of each class.
    - ``texts``: By kind: the text of each id (for an image, its caption).
    - ``before``: For each edit, the class named before the edit.
    - ``thumbnails``: For each image id, a small PNG, JPEG or WebP.
    - ``info``: Title, provenance and licenses, as plain data.
    """

    source: dict[str, Embeddings]
    target: dict[str, Embeddings]
    classes: dict[str, dict[str, str]] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    texts: dict[str, dict[str, str]] = field(default_factory=dict)
    before: dict[str, str] = field(default_factory=dict)
    thumbnails: dict[str, bytes] = field(default_factory=dict)
    info: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("source", "target"):
            object.__setattr__(self, name, {kind: rows.by_text() for kind, rows in getattr(self, name).items()})
        for name in ("classes", "texts"):
            object.__setattr__(self, name, {kind: text_keys(known) for kind, known in getattr(self, name).items()})
        for name in ("before", "thumbnails"):
            object.__setattr__(self, name, text_keys(getattr(self, name)))

    def side(self, which: str) -> dict[str, Embeddings]:
        """Return the images and texts of one side, ``"source"`` or ``"target"``, for ``congruence.evaluate``."""
        return {kind: rows for kind, rows in getattr(self, which).items() if kind in ("image", "text")}

    def class_of(self, kind: str, ids: np.ndarray) -> np.ndarray:
        """Return the class of each id, shape (n,), of a kind."""
        known = self.classes.get(kind, {})
        return np.array([known.get(i, i) for i in id_texts(ids).tolist()], dtype=object)

    def take(self, keep: Mapping[str, np.ndarray]) -> Bundle:
        """Return the bundle with only the ids to keep of some kinds; other kinds are kept completely."""

        def cut(rows: dict[str, Embeddings]) -> dict[str, Embeddings]:
            return {kind: own.take(is_in(own.ids, keep[kind])) if kind in keep else own for kind, own in rows.items()}

        return replace(self, source=cut(self.source), target=cut(self.target))


def write_bundle(path: str | Path, bundle: Bundle, *, dtype: DTypeLike = np.float16, force: bool = False) -> None:
    """Write a bundle as one Parquet file (``.parquet``), atomically, with vectors of this dtype."""
    if Path(path).suffix.lower() != ".parquet":
        raise InputError(f"Got {path} for a bundle; expected a name ending in .parquet.", f"Pass {path}.parquet.")
    unknown = sorted({*bundle.source, *bundle.target} - {*KINDS})
    if unknown:
        raise InputError(f"Got the kind {unknown[0]!r}; expected one of {', '.join(KINDS)}.", "Use one of these.")
    columns: dict[str, list[object]] = {name: [] for name in ("kind", "id", *_TEXT_COLUMNS, "thumbnail")}
    vectors: dict[str, list[np.ndarray | None]] = {"source": [], "target": []}
    for kind in KINDS:
        sides = {"source": bundle.source.get(kind), "target": bundle.target.get(kind)}
        ids = list(dict.fromkeys(i for rows in sides.values() if rows is not None for i in rows.ids.tolist()))
        for i in ids:
            columns["kind"].append(kind)
            columns["id"].append(i)
            columns["class"].append(bundle.classes.get(kind, {}).get(i))
            columns["label"].append(bundle.labels.get(bundle.classes.get(kind, {}).get(i, i)))
            columns["text"].append(bundle.texts.get(kind, {}).get(i))
            columns["before"].append(bundle.before.get(i) if kind == "edit" else None)
            columns["thumbnail"].append(bundle.thumbnails.get(i) if kind == "image" else None)
        for side, rows in sides.items():
            by_id = {} if rows is None else dict(zip(rows.ids.tolist(), rows.vectors, strict=True))
            vectors[side] += [by_id[i].astype(dtype) if i in by_id else None for i in ids]
    arrays = {
        name: pa.array(rows, pa.binary() if name == "thumbnail" else pa.string()) for name, rows in columns.items()
    }
    facts: dict[str, object] = {"info": bundle.info}
    for side in vectors:
        space = next((items.space for items in getattr(bundle, side).values()), Space())
        facts[side] = replace(space, modality=None).to_dict()
        width = next((len(row) for row in vectors[side] if row is not None), 1)
        arrays[side] = pa.array(vectors[side], pa.list_(pa.from_numpy_dtype(as_dtype(dtype)), width))
    table = pa.table(arrays).replace_schema_metadata({_INFO_KEY: json.dumps(facts, ensure_ascii=False)})
    with atomic_path(path, force=force) as temporary, open(temporary, "wb") as file:
        codec = {"compression": "zstd", "compression_level": 9, "use_dictionary": False}
        write_parquet(file, table.schema, table.to_batches(), **codec)


def read_bundle(path: str | Path) -> Bundle:
    """Read a bundle from a Parquet file written by ``write_bundle``. Only ``kind``, ``id``, ``source`` and ``target``
    are required; ``class``, ``label``, ``text``, ``before`` and ``thumbnail`` may be missing, and so may the vector of
    a row on one side.
    """
    with reading(path, *_DAMAGE):
        found = ParquetTable(path)
        table = pa.Table.from_batches([piece for _, piece in found.pieces()], found.schema)
        facts = json.loads((table.schema.metadata or {}).get(_INFO_KEY, b"{}"))
        missing = [name for name in ("kind", "id", "source", "target") if name not in table.column_names]
        if missing:
            raise InputError(
                f"{path} is without the columns {', '.join(missing)}.",
                ("Write it with `congruence.datasets.write_bundle`.", "Pass a sample: photos or emoji."),
            )
        plain = {
            name: table.column(name).to_pylist() for name in table.column_names if name not in ("source", "target")
        }
        kinds = np.array(plain["kind"], dtype=object)
        unknown = sorted({str(kind) for kind in kinds.tolist()} - {*KINDS})
        if unknown:
            raise InputError(f"Got the kind {unknown[0]!r} in {path}.", f"Correct it to one of {', '.join(KINDS)}.")
        source, target = (_side(found, table, side, kinds, facts.get(side)) for side in ("source", "target"))

    def given(column: str) -> list[tuple[str, str, Any, str | None]]:
        """Return kind, id, value and class of each row that has a value in the column."""
        nothing = [None] * len(table)
        columns = plain["kind"], plain["id"], plain.get(column, nothing), plain.get("class", nothing)
        return [row for row in zip(*columns, strict=True) if row[2] is not None]

    by_kind: dict[str, dict[str, dict[str, str]]] = {"class": {}, "text": {}}
    for column, known in by_kind.items():
        for kind, i, value, _ in given(column):
            known.setdefault(kind, {})[i] = value
    labels = {own_class or i: label for _, i, label, own_class in given("label")}
    before, thumbnails = ({i: value for _, i, value, _ in given(name)} for name in ("before", "thumbnail"))
    return Bundle(source, target, by_kind["class"], labels, by_kind["text"], before, thumbnails, facts.get("info", {}))


def _side(
    found: ParquetTable, table: pa.Table, side: str, kinds: np.ndarray, facts: Mapping[str, object]
) -> dict[str, Embeddings]:
    """Return the embeddings of one side by kind; rows without a vector on this side are left out."""
    column = table.column(side).combine_chunks()
    present = column.is_valid().to_numpy(zero_copy_only=False)
    if not present.any():
        return {}
    reader = TableSource(found.name, side, False, table=found, dim=1)
    reader.dim = len(column[int(present.argmax())])  # the first row may be without a vector
    vectors = reader.vectors(column.drop_null())
    position = np.cumsum(present) - 1
    names = np.array(table.column("id").to_pylist(), dtype=object)
    out = {}
    for kind, modality in KINDS.items():
        rows = np.flatnonzero(present & (kinds == kind))
        if len(rows):
            space = Space.from_dict({**(facts or {}), "modality": modality, "dim": None})
            out[kind] = Embeddings(vectors[position[rows]], ids=names[rows], space=space)
    return out
