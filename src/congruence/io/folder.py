"""A folder of parts, ``.npy``, ``.parquet`` or ``.arrow`` files in natural order, also in the layouts of other tools.

* clip-retrieval writes ``img_emb/img_emb_0.npy``, ``text_emb/text_emb_0.npy`` and ``metadata/metadata_0.parquet`` in
  one folder; ``folder:img_emb`` and ``folder:text_emb`` refer to its two matrices.
* Hugging Face: what ``save_to_disk`` writes, the cache of ``datasets`` and that of the hub, each with its splits.
* VDF, which vector-io exports from databases: ``VDF_META.json`` names the indexes with their files, columns and models.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from congruence._utils.atomic import why_foreign
from congruence.embeddings import Space
from congruence.errors import CongruenceError, FileError, IdError, ParameterError, ShapeError, SpaceMismatchError
from congruence.io._base import Sink, Source, read_sidecar
from congruence.io.arrow import ArrowSource
from congruence.io.columns import Columns, TableRows
from congruence.io.ids import column_ids, common_id_type, join_blocks
from congruence.io.npy import NpySink, NpySource
from congruence.io.parquet import ParquetSink, ParquetSource
from congruence.io.reading import damaged, missing_file, missing_key, natural, reading
from congruence.io.tables import vectors_in

if TYPE_CHECKING:
    from congruence.io._base import Block

#: Number of rows per part if the source has no parts.
PART_ROWS = 1_000_000

#: Format and version in the ``space.json`` of a folder that this library wrote.
FORMAT, FORMAT_VERSION = "congruence-vectors", 1
MARKER = "space.json"

_TABLES = {".parquet": ParquetSource, ".arrow": ArrowSource}

#: The file that describes a VDF folder.
VDF = "VDF_META.json"


def why_no_parts(folder: Path) -> str | None:
    """Return why a folder must not be replaced by a folder of parts, or None if this library wrote it."""

    def holds(name: str) -> bool:
        return name == MARKER or (not name.startswith(".") and name.endswith((".npy", ".parquet")))

    return why_foreign(folder, "parts of vectors", MARKER, FORMAT, holds)


def mark_parts(folder: Path, space: Space) -> None:
    """Write ``space.json``, which marks the folder as this library's and describes the space."""
    facts = {"format": FORMAT, "format_version": FORMAT_VERSION, **space.to_dict()}
    (folder / MARKER).write_text(json.dumps(facts) + "\n", encoding="utf-8")


class FolderSink(Sink):
    """Writer of a folder of parts with the names and sizes of the source's parts, or with up to a million rows each."""

    directory = keeps_columns = keeps_lists = keeps_codes = True
    why_foreign = staticmethod(why_no_parts)
    #: Whether the parts are tables in any case.
    tables = False

    def _open(self, temporary: Path, stack: ExitStack) -> None:
        tables = self.tables or self.has_ids or bool(self.columns) or self.column_out is not None
        self._kind: type[Sink] = ParquetSink if tables else NpySink
        suffix = ".parquet" if tables else ".npy"
        starts = range(0, self.n, PART_ROWS)
        parts = self.parts or [(f"part_{k}", min(PART_ROWS, self.n - start)) for k, start in enumerate(starts)]
        if sum(rows for _, rows in parts) != self.n:
            problem = f"Got parts with {sum(rows for _, rows in parts)} rows in total for {self.path}."
            raise ParameterError(problem, f"Pass `parts=…` whose row counts add up to {self.n}.")
        # If the source is a single table, every part has its columns.
        columns = self.columns if len(self.columns) == len(parts) else self.columns[:1] * len(parts)
        self._plan = [
            (temporary / (Path(name).stem + suffix), rows, columns[k : k + 1]) for k, (name, rows) in enumerate(parts)
        ]
        # The folder's space describes a single column of vectors; with several, each part stores it with the column.
        several = bool(self.columns) and (self.column_out is not None or any(c.other_vectors for c in self.columns))
        self._part_space = self.space if several else Space()
        self._temporary = temporary
        self._part: Sink | None = None
        self._stack_parts = stack.enter_context(ExitStack())

    def _begin(self) -> Sink:
        path, rows, columns = self._plan.pop(0)
        facts = {one.name: getattr(self, one.name) for one in fields(Sink) if one.init}
        own = {"path": path, "n": rows, "space": self._part_space, "columns": columns, "force": False, "atomic": False}
        return self._stack_parts.enter_context(self._kind(**facts | own))

    def _write(self, ids: pa.Array | None, vectors: np.ndarray, rows: TableRows | None = None) -> None:
        several = next((one.vector for one in self.columns if one.multi), None)
        counts = np.ones(len(vectors), int) if several is None else vectors_in(rows, several)
        ends, done = np.cumsum([0, *counts]), 0  # of the vectors of each row
        while done < len(counts):
            if self._part is None:
                self._part = self._begin()
            stop = done + min(len(counts) - done, self._part.n - self._part.rows)
            part, first, last = rows, int(ends[done]), int(ends[stop])
            if rows is not None:
                part = rows[done:stop] if isinstance(rows, list) else rows.slice(done, stop - done)
            self._part.write(None if ids is None else ids.slice(first, last - first), vectors[first:last], part)
            done = stop
            if self._part.rows == self._part.n:
                self._stack_parts.close()
                self._part = None

    def _finish(self) -> None:
        self._stack_parts.close()
        mark_parts(self._temporary, Space() if self.space == self._part_space else self.space)


class VdfSink(FolderSink):
    """Writer of a ``.vdf``: a folder of one index with its parts and what is known of it, as vector-io reads it."""

    tables = True

    @staticmethod
    def why_foreign(folder: Path) -> str | None:
        """Return why a folder must not be replaced, or None if this library wrote it."""
        inner = [one for one in folder.iterdir() if one.name != VDF]
        ours = len(inner) == 1 and inner[0].is_dir() and (folder / VDF).is_file()
        return why_no_parts(inner[0]) if ours else f"holds something else than one index and its {VDF}"

    def _open(self, temporary: Path, stack: ExitStack) -> None:
        self._meta, place = temporary / VDF, temporary / "data"
        place.mkdir()
        super()._open(place, stack)

    def _finish(self) -> None:
        super()._finish()
        first = self.columns[0] if self.columns else None
        facts: dict[str, Any] = self.facts or {"version": "0.1", "author": "congruence", "exported_from": "files"}
        ((name, (known,)),) = facts.get("indexes", {"index": [{"namespace": "", "metric": "Cosine"}]}).items()
        known = known | {"total_vector_count": self.rows, "exported_vector_count": self.rows, "dimensions": self.dim}
        column = self.column_out or (first.vector if first else "vector")
        known |= {"vector_columns": [column], "data_path": "data", "model_name": self.space.model or "NOT_PROVIDED"}
        ids = {"id_column": (first and first.id) or "id"} if self.has_ids else {}
        files = [VDF, *sorted(f"data/{part.name}" for part in self._temporary.glob("*.parquet"))]
        facts = facts | {"indexes": {name: [known]}, "file_structure": files} | ids
        self._meta.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


class FolderSource(Source):
    """Source of the rows of all parts in a folder, in the order of the parts.

    ``key`` is a subfolder of parts (clip-retrieval's ``img_emb`` or ``text_emb``) or one of those in ``layouts``, the
    column of vectors in parts that are tables, or both: ``train/embedding``. ``ids`` are the ids, or the name of their
    column: in the parts themselves if they are tables, else in the ``metadata/`` file of each part; False for none.
    """

    key, names_ids, sink = "img_emb", True, FolderSink

    def __init__(self, path: str | Path, key: str | None = None, ids: pa.Array | str | bool | None = None) -> None:
        folder = Path(path)
        if not folder.is_dir():
            raise missing_file(path)
        with reading(path):
            layout = find_layout(folder, key)
        parts, home, self.facts = layout.parts, layout.home, layout.facts
        if not parts:
            if (folder / "config.json").is_file():
                problem = f"{folder} is the folder of a saved map, not of vectors."
                raise ParameterError(problem, "Pass a file of vectors.")
            under = f" under {key!r}" if key else ""
            problem = f"Got no .npy, .parquet or .arrow parts in {folder}{under}."
            raise ParameterError(problem, "Pass a file of vectors.")
        self.path = f"{path}:{key}" if key else str(path)
        self.files = (parts[0].parent, *parts)
        named = ids if isinstance(ids, (str, bool)) else layout.ids if ids is None else None
        table = _TABLES.get(parts[0].suffix)
        self._sources: list[Source] = [
            NpySource(part) if table is None else table(part, layout.column, named) for part in parts
        ]
        first = self._sources[0]
        for part, source in zip(parts, self._sources, strict=True):
            if source.dim != first.dim:
                problem = f"Got width {source.dim} in {part} and {first.dim} in {parts[0]}."
                raise ShapeError(problem, "Remove the part that does not belong.")
            if ids is None and source.has_ids != first.has_ids:
                with_ids, without = (part, parts[0]) if source.has_ids else (parts[0], part)
                fix = "Pass `ids=False` to read without, or add the missing ids."
                raise IdError(f"Got ids in {with_ids} and none in {without}.", fix)
            if source.space.model and first.space.model and source.space.model != first.space.model:
                models = f"{source.space.model!r} in {part} and of {first.space.model!r} in {parts[0]}"
                raise SpaceMismatchError(f"Got vectors of {models}.", "Put each model's parts in a folder of its own.")
        counts = [source.n if source.table_rows is None else source.table_rows for source in self._sources]
        self.parts, self.table_rows = [(part.name, n) for part, n in zip(parts, counts, strict=True)], sum(counts)
        self.n = sum(source.n for source in self._sources)
        self.dim, self._id_column = first.dim, first._id_column
        self.dtype = np.result_type(*[source.dtype for source in self._sources])
        self._ids = ids if isinstance(ids, pa.Array) else None
        if isinstance(ids, str) and parts[0].suffix == ".npy":
            self._ids = self._metadata_ids(folder, ids)
        own = read_sidecar(home) if home.is_dir() else Space()
        self.space = own if own != Space() else first.space
        if layout.model and not self.space.model:
            self.space = replace(self.space, model=layout.model)

    def _metadata_ids(self, folder: Path, column: str) -> pa.Array:
        """Return the ids from clip-retrieval's metadata files, one file per part, in the order of the parts."""
        home = folder / "metadata" if (folder / "metadata").is_dir() else folder.parent / "metadata"
        tables = list_parts(home, (".parquet",)) if home.is_dir() else []
        self.files = (*self.files, home)
        # ``metadata_7`` belongs to ``img_emb_07``.
        parts = [Path(source.path) for source in self._sources]
        numbers, wanted = ([re.findall(r"0*(\d+)$", path.stem) for path in paths] for paths in (tables, parts))
        if numbers != wanted:
            found = ", ".join(path.name for path in tables[:5]) or "no files"
            problem = f"Got {found} in {home} for {len(parts)} parts; expected one metadata file for each number."
            raise ParameterError(problem, "Add the missing files, or remove those left over.")
        columns = []
        for table, source in zip(tables, self._sources, strict=True):
            names = column_ids(ParquetSource.read_column(str(table), column), f"{table}:{column}")
            if len(names) != source.n:
                problem = f"Got {len(names)} rows in {table} and {source.n} in {source.path}."
                raise ShapeError(problem, "Write the metadata of this part again.")
            columns.append(names)
        return join_blocks(columns)

    @classmethod
    def read_column(cls, path: str | Path, key: str | None) -> pa.ChunkedArray:
        """Read a column of all parts, of those of one split for ``split/column``."""
        with reading(path, pa.ArrowException):
            layout = find_layout(Path(path), key)
            if not layout.parts or layout.parts[0].suffix not in _TABLES:
                raise FileError(
                    f"{path} is a folder without tables, whose columns are read.", "Pass the path of a file."
                )
            parts = [_TABLES[part.suffix].read_column(str(part), layout.column) for part in layout.parts]
            if len({part.type for part in parts}) > 1:  # ids that are numbers in one part and texts in another
                parts = [part.cast(pa.string()) for part in parts]
            return pa.chunked_array([chunk for part in parts for chunk in part.chunks], parts[0].type)

    @property
    def id_type(self) -> pa.DataType:
        return super().id_type if self._ids is not None else common_id_type([one.id_type for one in self._sources])

    @property
    def columns(self) -> list[Columns]:
        own = [one for source in self._sources for one in source.columns]
        if self._ids is not None:
            return [replace(one, id=None) for one in own]
        return [replace(one, schema=self._with_ids(one.id, one.schema)) for one in own]

    def _with_ids(self, name: str | None, table: Any) -> Any:
        """Return a part's schema or rows with the column of ids, ``name``, as text if the ids of another part are."""
        schema = table if isinstance(table, pa.Schema) else table.schema
        if name is None or self.id_type != pa.string() or not pa.types.is_integer(schema.field(name).type):
            return table
        k = schema.get_field_index(name)
        schema = schema.set(k, schema.field(k).with_type(pa.string()))
        return schema if isinstance(table, pa.Schema) else table.cast(schema)

    @property
    def row_bytes(self) -> int:
        return max(source.row_bytes for source in self._sources)

    def _scan(self, after: int, batch: int, *, table: bool) -> Iterator[Block]:
        start = 0
        for source in self._sources:
            row = max(after, start)
            if start + source.n > after:
                name = source.columns[0].id if source.columns else None
                for own, block, rows in source._scan(row - start, batch, table=table):
                    ids = own if own is None else own.cast(self.id_type)
                    ids = ids if self._ids is None else self._slice_ids(row, len(block))
                    kept = rows if self._ids is not None or rows is None else self._with_ids(name, rows)
                    yield ids, block.astype(self.dtype, copy=False), kept
                    row += len(block)
            start += source.n


class VdfSource(FolderSource):
    """Source of the rows of an index in a VDF folder, whose name ends in ``.vdf``."""

    sink = VdfSink


# ------------------------------------------------------------------ which files of a folder hold the rows

#: Suffixes of parts, in the order in which they are looked for.
PARTS = (".npy", ".parquet", ".arrow")


#: The end of the name of one of several files of a split.
_SHARD = re.compile(r"-\d{5}-of-\d{5}$")


@dataclass(frozen=True)
class Layout:
    """The parts of a folder: their files in order, and the column of vectors, that of ids and the model, if known."""

    parts: list[Path]
    home: Path
    column: str | None = None
    ids: str | None = None
    model: str | None = None
    facts: dict[str, Any] | None = None  # of VDF: those of the folder, with the one index only


def list_parts(folder: Path, suffixes: tuple[str, ...] = PARTS) -> list[Path]:
    """Return the parts in a folder in natural order, of the first of these suffixes that there are.

    ``datasets`` writes the results of its own operations, ``cache-….arrow``, beside the rows.
    """
    for suffix in suffixes:
        found = [part for part in folder.glob(f"*{suffix}") if not part.name.startswith((".", "cache-"))]
        if found:
            return sorted(found, key=lambda part: natural(part.name))
    return []


def find_layout(folder: Path, key: str | None) -> Layout:
    """Return the parts of a folder, or of its subfolder, split or index that a key begins with; none if there are none.

    The rest of the key is the column of vectors.
    """
    if (folder / VDF).is_file():
        return _vdf(folder, key)
    if (folder / "snapshots").is_dir():
        folder = _snapshot(folder)
    steps, home = key.split("/") if key else [], folder
    while True:
        while steps and steps[0] and (home / steps[0]).is_dir():
            home /= steps.pop(0)
        parts, inner = list_parts(home), _subfolders(home)
        if parts or len(inner) != 1:
            break
        home /= inner[0]
    splits = _splits(home, parts) if parts else {name: found for name in inner if (found := list_parts(home / name))}
    if steps and steps[0] in splits:
        parts = splits[steps.pop(0)]
    elif len(splits) > 1 or (splits and not parts):
        counts = {name: f"({len(found)} parts)" for name, found in splits.items()}
        raise missing_key(steps[0] if steps else None, home, counts, "split" if parts else "subfolder")
    return Layout(parts, home, "/".join(steps) or None)


def holds_parts(folder: Path) -> bool:
    """Return whether a folder, which may be one of several kinds, holds parts."""
    try:
        return bool(find_layout(folder, None).parts)
    except CongruenceError:  # which of several, or damaged ones
        return True


def _subfolders(folder: Path) -> list[str]:
    """Return the names of a folder's subfolders that may hold parts."""
    return sorted(one.name for one in folder.iterdir() if one.is_dir() and not one.name.startswith("."))


def _splits(home: Path, parts: list[Path]) -> dict[str, list[Path]]:
    """Return the parts by split, as ``train-00000-of-00002`` is of ``train``; nothing where names tell of none."""
    stems = [_SHARD.sub("", part.stem) for part in parts]
    named = all(_SHARD.search(part.stem) for part in parts) or (home / "dataset_info.json").is_file()
    if not named:
        return {}
    found: dict[str, list[Path]] = {}
    for stem, part in zip(stems, parts, strict=True):  # in the cache, the name of the data set comes first
        found.setdefault(stem.rpartition("-")[2], []).append(part)
    return found


def _snapshot(folder: Path) -> Path:
    """Return the folder of the revision of a cached repository that was asked for last."""
    found = _subfolders(folder / "snapshots")
    main = folder / "refs" / "main"
    name = main.read_text(encoding="utf-8", errors="replace").strip()[:100] if main.is_file() else ""
    if name in found or len(found) == 1:
        return folder / "snapshots" / (name if name in found else found[0])
    raise ParameterError(f"Got {len(found)} revisions in {folder / 'snapshots'}.", "Pass the folder of one of them.")


def _vdf(folder: Path, key: str | None) -> Layout:
    """Return the parts of an index, or of one of its namespaces: ``index``, ``index/namespace``."""
    with reading(folder / VDF, AttributeError, KeyError, TypeError, ValueError, RecursionError):
        facts = json.loads((folder / VDF).read_bytes())
        every = [(name, one) for name, spaces in facts["indexes"].items() for one in spaces]
        indexes = {"/".join(filter(None, (name, one.get("namespace")))): (name, one) for name, one in every}
        shapes = {name: (one["exported_vector_count"], one["dimensions"]) for name, (_, one) in indexes.items()}
        named = [name for name in indexes if key is None or key == name or key.startswith(f"{name}/")]
        if not named and len(indexes) == 1:  # then the key is a column
            named, key = [*indexes], f"{next(iter(indexes))}/{key}"
        if not named or (key is None and len(named) > 1):
            raise missing_key(key, folder, shapes, "index")
        name = max(named, key=len)
        index, one = indexes[name]
        columns, data, model = [*map(str, one["vector_columns"])], Path(str(one["data_path"])), str(one["model_name"])
    column = key[len(name) + 1 :] if key and key != name else columns[0] if len(columns) == 1 else None
    for path in (data, Path(*data.parts[1:])):  # older: the folder's name first
        place = folder / path
        if place.exists() and not place.resolve().is_relative_to(folder.resolve()):
            raise damaged(folder / VDF, f"its data path {str(path)[:200]!r} leads out of the folder")
        if parts := [place] if place.is_file() else list_parts(place) if place.is_dir() else []:
            known = None if model in ("", "None", "NOT_PROVIDED", "PLEASE_FILL_IN") else model
            ids = facts.get("id_column")
            kept = facts | {"indexes": {index: [one]}}
            return Layout(parts, place, column, ids if isinstance(ids, str) else None, known, kept)
    raise damaged(folder / VDF, f"no parts are at its data path {str(data)[:200]!r}")
