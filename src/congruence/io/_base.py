"""What every format implements: a source that is scanned, and a sink whose output appears when it is complete."""

from __future__ import annotations

import json
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike

from congruence._utils.atomic import atomic_path, has_marker
from congruence._utils.ids import as_ids
from congruence._utils.memory import check_memory
from congruence._utils.validation import check_rows
from congruence.embeddings import Embeddings, Space
from congruence.errors import (
    CorruptFileError,
    DtypeError,
    IdError,
    NotFiniteError,
    OutputExistsError,
    ParameterError,
    ShapeError,
    StorageError,
    ZeroRowError,
)
from congruence.io.reading import (
    PACKED,
    TEXT_BYTES,
    as_column,
    as_row_numbers,
    check_all_rows,
    check_matrix_shape,
    choose,
    missing_key,
    read_exactly,
    reading,
    refuse_key,
    runs_of,
    scan_rows,
    stored_dtype,
    unpack,
)

if TYPE_CHECKING:
    import pyarrow as pa  # imported in functions only, since reading an .npy needs none

    from congruence.io.columns import Columns, TableRows

    Block = tuple[pa.Array | None, np.ndarray, TableRows | None]

#: Default number of rows per block of a scan.
BATCH = 4096

#: Key of the space in the metadata of formats that have metadata.
SPACE_KEY = "congruence.space"

_SPACE_FIELDS = {*Space.__dataclass_fields__}


class Source(ABC):
    """A matrix of vectors in a file, read once from front to back in bounded memory.

    A subclass is a file format (``congruence.io.formats``): its constructor takes a path, a key and ids, and its
    class attributes say what the format can do.
    """

    #: What the part of a spec after the colon refers to; None if a file holds one array.
    key: ClassVar[str | None] = None
    #: Whether the constructor takes the name of the id column, and whether memory does not grow with the rows.
    names_ids: ClassVar[bool] = False
    streams: ClassVar[bool] = True
    #: The class that writes vectors.
    sink: ClassVar[type[Sink] | None] = None
    #: Function of a path and a key that returns labels or ids, one per row (``congruence.io.ids.Column``).
    read_column: ClassVar[Any] = None
    #: Function of a path that returns the shapes of all arrays in a file by key, for formats that hold several.
    shapes: ClassVar[Any] = None
    #: Function of a path that returns the names of what a key can name, each with what it is, for text without shapes.
    listing: ClassVar[Any] = None

    path: str  # name of the source in messages
    _file: str  # that is read, of those that read one
    n: int
    dim: int
    dtype: np.dtype  # of the blocks that ``scan`` yields: float16, float32 or float64
    space: Space = Space()  # as far as the file records it
    files: tuple[Path, ...] = ()  # paths that are read
    parts: list[tuple[str, int]] = []  # noqa: RUF012 - names and row counts of a folder's parts
    table_rows: int | None = None  # rows of a table, of which some may have several vectors
    facts: dict[str, Any] | None = None  # what a VDF folder says of them
    _ids: pa.Array | None = None  # that are read already
    _id_column: str | None = None  # from which ids are read with the vectors

    def _set_file(self, path: str | Path, key: str | None, ids: pa.Array | bool | None) -> None:
        """Set what is known of a file that holds one array before it is read, and ids that are read already."""
        refuse_key(key, path)
        self.path, self._file, self.files = str(path), str(path), (Path(path),)
        self._ids = None if isinstance(ids, bool) else ids
        self.space = read_sidecar(Path(path))

    def _set_matrix(self, shape: tuple[int, ...], stored: np.dtype) -> None:
        self.dtype = stored_dtype(stored, self.path)
        self.n, self.dim = check_matrix_shape(shape, self.path)

    @property
    def has_ids(self) -> bool:
        """Whether the rows have ids."""
        return self._ids is not None or self._id_column is not None

    @property
    def id_type(self) -> pa.DataType:
        """Type of the ids: int64, uint64 or string."""
        import pyarrow as pa

        from congruence.io.ids import id_type_of

        ids = self._slice_ids(0, 0)
        return pa.string() if ids is None else id_type_of(ids.type)

    @property
    def columns(self) -> list[Columns]:
        """Columns of a table other than its vectors, for each part of a folder; empty if the file is not a table."""
        return []

    @property
    def row_bytes(self) -> int:
        """Approximate number of bytes that a row takes in memory with all its columns."""
        return self.dim * self.dtype.itemsize

    def scan(self, after: int = 0, batch: int = BATCH) -> Iterator[tuple[pa.Array | None, np.ndarray]]:
        """Yield blocks of at most ``batch`` rows, starting at row ``after``: ids and vectors.

        Ids are an Arrow array of int64, uint64 or text, or None; vectors a new C-contiguous array, shape (b, dim).
        """
        for ids, block, _ in self._scan(after, batch, table=False):
            yield ids, block

    def scan_table(self, after: int = 0, batch: int = BATCH) -> Iterator[Block]:
        """Yield ids and vectors as ``scan``, and the table's rows with all columns; None if it is no table."""
        return self._scan(after, batch, table=True)

    def _scan(self, after: int, batch: int, *, table: bool) -> Iterator[Block]:
        """Yield ids, vectors and, if ``table``, rows; here without rows, and with ids that are read already."""
        for block in self._blocks(after, batch):
            yield self._slice_ids(after, len(block)), block, None
            after += len(block)

    def _blocks(self, after: int, batch: int) -> Iterator[np.ndarray]:
        """Yield blocks of vectors, for sources that do not read their ids with them."""
        raise NotImplementedError

    def _slice_ids(self, start: int, count: int) -> pa.Array | None:
        return None if self._ids is None else self._ids.slice(start, count)

    def _ids_at(self, rows: np.ndarray) -> pa.Array | None:
        return None if self._ids is None else self._ids.take(rows)

    def take(self, rows: ArrayLike) -> tuple[pa.Array | None, np.ndarray]:
        """Return ids, shape (k,), or None, and vectors, (k, dim), of rows by number, which may repeat, in any order."""
        rows = as_row_numbers(rows, self.n, self.path)
        if not len(rows):
            return None, np.empty((0, self.dim), self.dtype)
        self._check_memory(len(rows))
        wanted, place = np.unique(rows, return_inverse=True)
        ids, vectors = self._take(wanted)
        if np.array_equal(wanted, rows):
            return ids, vectors
        return None if ids is None else ids.take(place), vectors[place]

    def _take(self, wanted: np.ndarray) -> tuple[pa.Array | None, np.ndarray]:
        """Return ids and vectors of rows by increasing numbers; here, each range that contains some is scanned once."""
        out = np.empty((len(wanted), self.dim), dtype=self.dtype)
        names: list[pa.Array] = []
        done = 0
        # Reading over a short gap costs less than starting a new scan.
        for run in np.split(wanted, np.flatnonzero(np.diff(wanted) > BATCH) + 1):
            start, end = int(run[0]), int(run[-1]) + 1
            for ids, block in self.scan(start, min(BATCH, end - start)):
                upto = int(np.searchsorted(wanted, start + len(block)))
                offsets = wanted[done:upto] - start
                out[done:upto] = block[offsets]
                if ids is not None:
                    names.append(ids.take(offsets))
                done, start = upto, start + len(block)
                if start >= end:
                    break
            else:
                check_all_rows(start, self.n, self.path)
        if not names:
            return None, out
        import pyarrow as pa

        return pa.concat_arrays(names), out

    def read(self, *, allow_zero_rows: bool = False) -> Embeddings:
        """Read everything into memory and check it."""
        self._check_memory(self.n)
        vectors = np.empty((self.n, self.dim), dtype=self.dtype)
        names: np.ndarray | None = None
        ids: list[pa.Array] = []
        row = 0
        for part, block in self.scan():
            vectors[row : row + len(block)] = block
            row += len(block)
            if part is not None:
                ids.append(part)
        check_all_rows(row, self.n, self.path)  # otherwise the remaining rows would be uninitialized
        if ids:
            from congruence.io.ids import id_array

            names = id_array(ids)
        try:
            return Embeddings(vectors, ids=names, space=self.space, allow_zero_rows=allow_zero_rows)
        except (NotFiniteError, ZeroRowError):
            # Check again for a message that names the file, since most commands read two.
            known = None if names is None else as_ids(names)
            check_rows(vectors, str(self.path), ids=known, allow_zero_rows=allow_zero_rows)
            raise

    def _check_memory(self, rows: int) -> None:
        check_memory(
            rows * self.dim * self.dtype.itemsize,
            f"{rows:,} × {self.dim:,} {self.dtype} in {self.path}",
            "Pass a file with fewer rows, or use a machine with more memory. Mapping a file (congruence transform, "
            "transform_file) needs memory for only one block of it.",
        )


class RawSource(Source):
    """Source of a file in which the rows stand one after another, as numbers of type ``_stored``, from ``_offset`` on.

    Before each row may stand ``_lead`` numbers more, which ``_converted`` takes off. Rows by number are read one by
    one, so that some of many cost no pass over the file.
    """

    _offset: int
    _stored: np.dtype
    _lead: int = 0

    def _converted(self, rows: np.ndarray) -> np.ndarray:
        """Return rows as they are stored in the source's type."""
        return rows.astype(self.dtype, copy=False)

    def _blocks(self, after: int, batch: int) -> Iterator[np.ndarray]:
        width = self._lead + self.dim
        with reading(self._file), open(self._file, "rb", buffering=0) as stream:
            stream.seek(self._offset + after * width * self._stored.itemsize)
            yield from map(self._converted, scan_rows(stream, self.n - after, width, self._stored, batch, self.path))

    def _take(self, wanted: np.ndarray) -> tuple[pa.Array | None, np.ndarray]:
        out = np.empty((len(wanted), self._lead + self.dim), self._stored)
        size = out.shape[1] * self._stored.itemsize
        with reading(self._file), open(self._file, "rb", buffering=0) as stream:
            for first, end in runs_of(wanted):
                stream.seek(self._offset + int(wanted[first]) * size)
                read_exactly(stream, out[first:end], self.path)
        return self._ids_at(wanted), self._converted(out)


class RowsByNumber(Protocol):
    """What rows can be read from by slice and by increasing row numbers: an array, an HDF5 or a Zarr data set."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Numbers of rows and columns."""

    def __getitem__(self, key: Any, /) -> Any: ...


class ArraySource(Source):
    """Rows of an array, read when they are needed."""

    def __init__(
        self, array: RowsByNumber, name: str = "the array", ids: pa.Array | None = None, space: Space | None = None
    ) -> None:
        self._array, self.path, self._ids = array, name, ids
        (self.n, self.dim), self.dtype = array.shape, np.dtype(getattr(array, "dtype", np.float32))
        self.space = space or Space()

    def _blocks(self, after: int, batch: int) -> Iterator[np.ndarray]:
        for start in range(after, self.n, batch):
            yield np.array(self._array[start : start + batch], order="C")

    def _take(self, wanted: np.ndarray) -> tuple[pa.Array | None, np.ndarray]:
        return self._ids_at(wanted), np.array(self._array[wanted], order="C")


class NamedArrays(Source):
    """Rows of one of several arrays in a file, by default the only matrix; the array ``ids`` may hold their ids.

    A format has ``shapes`` and ``read_array``; its constructor calls ``_choose`` and, at the end, ``_set_ids``.
    """

    key = "key"
    #: Whether the array ``ids`` is read when no ids are named.
    own_ids = True

    @classmethod
    @abstractmethod
    def shapes(cls, path: str | Path) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the arrays in a file by name."""

    @classmethod
    @abstractmethod
    def read_array(cls, path: str | Path, key: str) -> np.ndarray:
        """Read a one-dimensional array: numbers, or texts in an object array."""

    @classmethod
    def read_column(cls, path: str | Path, key: str | None) -> np.ndarray:
        """Read a one-dimensional array, or the texts of ``PACKED`` arrays."""
        columns = {name: shape for name, shape in cls.shapes(path).items() if len(shape) == 1}
        if key is not None and key in columns:
            return cls.read_array(path, key)
        if key is None or _packed(columns, key) is None:
            raise missing_key(key, path, columns)
        data, offsets = (cls.read_array(path, key + part) for part in PACKED)
        return unpack(data, offsets, f"{path}:{key}")

    def _choose(self, path: str | Path, key: str | None, shapes: dict[str, tuple[int, ...]]) -> str:
        self._key = choose(key, shapes, path)
        self._file, self.path, self.files = str(path), f"{path}:{self._key}", (Path(path),)
        return self._key

    def _set_ids(self, ids: pa.Array | bool | None, shapes: dict[str, tuple[int, ...]]) -> None:
        if ids is None and self.own_ids and (shapes.get("ids") == (self.n,) or _packed(shapes, "ids") == self.n):
            from congruence.io.ids import column_ids

            ids = column_ids(self.read_column(self._file, "ids"), f"{self._file}:ids")
        self._ids = None if isinstance(ids, bool) else ids


class SlicedArrays(NamedArrays):
    """Rows of one of several arrays that a library reads by slices; a format has ``_open``."""

    def __init__(self, path: str | Path, key: str | None = None, ids: pa.Array | bool | None = None) -> None:
        with self._open(path) as arrays:
            shapes = {name: tuple(one.shape) for name, one in arrays.items()}
            name = self._choose(path, key and key.strip("/"), shapes)
            array = self._checked(arrays[name], self.path)
            self._set_matrix(tuple(array.shape), np.dtype(array.dtype))
            saved = self._saved_space(array)
        self.space = read_space(saved, path)
        self._set_ids(ids, shapes)

    @classmethod
    @abstractmethod
    def _open(cls, path: str | Path) -> AbstractContextManager[Mapping[str, Any]]:
        """Yield the arrays of a file by name, each with ``shape``, ``dtype`` and rows by slices."""

    @classmethod
    def _checked(cls, array: Any, path: str) -> Any:
        """Return an array that may be read: any chunk of it is read whole."""
        size = math.prod(getattr(array, "chunks", None) or (0,)) * np.dtype(array.dtype).itemsize
        check_memory(size, f"a chunk of {path}", "Write the array with smaller chunks.")
        return array

    def _saved_space(self, array: Any) -> str | bytes:
        saved = getattr(array, "attrs", {}).get(SPACE_KEY, "")
        return saved if isinstance(saved, bytes) else str(saved)

    @classmethod
    def shapes(cls, path: str | Path) -> dict[str, tuple[int, ...]]:
        with cls._open(path) as arrays:
            return {name: tuple(one.shape) for name, one in sorted(arrays.items())}

    @classmethod
    def read_column(cls, path: str | Path, key: str | None) -> np.ndarray:
        return super().read_column(path, key and key.strip("/"))

    @classmethod
    def read_array(cls, path: str | Path, key: str) -> np.ndarray:
        name = f"{path}:{key}"
        with cls._open(path) as arrays:
            array = cls._checked(arrays[key], name)
            check_memory(16 * math.prod(array.shape), f"the entries of {name}", "Pass a smaller array.")
            step = max(1, TEXT_BYTES // max(1, np.dtype(array.dtype).itemsize))
            parts = [as_column(array[start : start + step], name) for start in range(0, array.shape[0], step)]
            return np.concatenate(parts) if parts else np.empty(0, object)

    def _blocks(self, after: int, batch: int) -> Iterator[np.ndarray]:
        with self._open(self._file) as arrays:
            array = arrays[self._key]
            for start in range(after, self.n, batch):
                yield np.array(array[start : min(start + batch, self.n)], self.dtype, order="C")


def _packed(shapes: Mapping[str, tuple[int, ...]], key: str) -> int | None:
    """Return the number of entries of a column stored as ``PACKED`` arrays, or None if there are none."""
    data, offsets = (shapes.get(key + part, ()) for part in PACKED)
    return offsets[0] - 1 if len(data) == len(offsets) == 1 else None


@dataclass(kw_only=True, eq=False)
class Sink(ABC):
    """A writer of vectors; the output appears at the end of the ``with`` block if it is complete, else not at all.

    ``congruence.io.open_sink`` opens one. With ``atomic=False`` the file is written in place: a part of a
    folder that is atomic itself. ``left_out`` lists the columns that the format cannot hold.
    """

    #: Whether the output is a folder.
    directory: ClassVar[bool] = False
    #: Whether the space is written to a file next to the output, because the format cannot hold it.
    sidecar: ClassVar[bool] = False
    #: Whether the format can hold ids, and needs them, and whether it can hold the other columns of a table.
    keeps_ids: ClassVar[bool] = True
    needs_ids: ClassVar[bool] = False
    keeps_columns: ClassVar[bool] = False
    #: Whether a column can hold several vectors a row.
    keeps_lists: ClassVar[bool] = False
    #: Whether the format can hold bytes as numbers, which quantized vectors are.
    keeps_codes: ClassVar[bool] = False
    #: The widest type of numbers that the format can hold.
    widest: ClassVar[type[np.floating[Any]]] = np.float64

    path: Path
    n: int
    dim: int
    dtype: np.dtype
    has_ids: bool = False
    space: Space = Space()  # noqa: RUF009 - frozen
    force: bool = False
    id_type: pa.DataType | None = None
    parts: list[tuple[str, int]] | None = None
    columns: list[Columns] = field(default_factory=list)
    column_out: str | None = None
    facts: dict[str, Any] | None = None
    atomic: bool = True
    rows: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        ids = {one.id for one in self.columns} if self.has_ids and self.keeps_ids and not self.keeps_columns else set()
        kinds = {f.name: f.type for one in self.columns for f in one.schema if f.name != one.vector}
        self.left_out = [name for name, kind in kinds.items() if name not in ids and not self._holds(kind)]

    def _holds(self, kind: pa.DataType) -> bool:
        """Return whether the format can hold a column of this type in addition to the vectors."""
        return self.keeps_columns

    def __enter__(self) -> Self:
        self._context = self._opened()
        self._context.__enter__()
        return self

    def __exit__(self, *error: Any) -> bool | None:
        return self._context.__exit__(*error)

    @contextmanager
    def _opened(self) -> Iterator[None]:
        described = sidecar(self.path)
        with ExitStack() as stack:
            place = self.path
            if self.atomic and self.sidecar:  # for other formats the sidecar's name may even be too long
                own = has_marker(described, lambda facts: {*facts} <= _SPACE_FIELDS) and not described.is_symlink()
                if os.path.lexists(described) and not own:
                    problem = f"The file {described} is not a space description, and would be read with {self.path}."
                    raise OutputExistsError(problem, "Move it, or pass another path.")
                if self.space != Space():  # entered first, so that it appears last
                    description = stack.enter_context(atomic_path(described, force=True))
                    description.write_text(space_json(self.space) + "\n", encoding="utf-8")
            if self.atomic:
                place = stack.enter_context(
                    atomic_path(self.path, force=self.force, directory=self.directory, foreign=self.why_foreign)
                )
            self._open(place, stack)
            yield
            if self.rows != self.n:
                problem = f"Got {self.rows} of {self.n} announced rows for {self.path}. Nothing was left behind."
                raise StorageError(problem, "Write every row before closing the sink.")
            self._finish()
        if self.atomic and self.sidecar and self.space == Space():
            described.unlink(missing_ok=True)  # it described the file that was replaced

    @staticmethod
    def why_foreign(folder: Path) -> str | None:
        """Return why an existing folder must not be replaced, or None if it may be; for sinks that write folders."""
        return "this library did not write"

    def write(self, ids: pa.Array | None, vectors: np.ndarray, rows: TableRows | None = None) -> None:
        """Append vectors, shape (b, dim), with ids, one per row if the sink was opened with ``has_ids``, else ignored.

        ``rows`` are the same rows of the source's table (``Source.scan_table``), if it was opened with ``columns``.
        """
        several = rows is not None and any(one.multi for one in self.columns)
        count, announced = len(rows if several else vectors), f"{self.n} × {self.dim}"  # type: ignore[arg-type]
        if vectors.ndim != 2 or vectors.shape[1] != self.dim or self.rows + count > self.n:
            problem = f"Got a block of shape {vectors.shape} after {self.rows} rows of {self.path}, of {announced}."
            raise ShapeError(problem, "Pass the right `n=…` and `dim=…` to open_sink.")
        if self.has_ids and (ids is None or len(ids) != len(vectors) or ids.null_count):
            got = "no" if ids is None else len(ids) - ids.null_count
            problem = f"Got {got} ids for {count} rows of {self.path}; expected one per row, as announced."
            raise IdError(problem, "Pass an id for each row, or `has_ids=False`.")
        if self.columns and self.keeps_columns and (rows is None or len(rows) != count):
            problem = f"Got {'no' if rows is None else len(rows)} rows of the table for {count} vectors of {self.path}."
            raise ShapeError(problem, "Pass the rows, or open the sink without `columns=…`.")
        names = self._as_announced(ids) if self.has_ids and ids is not None else None
        self._write(names, store_as(vectors, self.dtype, self.path), rows)
        self.rows += count

    def _as_announced(self, ids: pa.Array) -> pa.Array:
        import pyarrow as pa

        from congruence.io.ids import clean_ids

        names = clean_ids(ids, str(self.path), self.rows)
        try:
            return names.cast(self.id_type or pa.string())
        except pa.ArrowInvalid:
            problem = f"Got ids of type {names.type} for {self.path}; expected {self.id_type}, as announced."
            raise IdError(problem, "Pass the right `id_type=…` to open_sink.") from None

    @abstractmethod
    def _open(self, temporary: Path, stack: ExitStack) -> None:
        """Open the temporary file, and register everything that must be closed on the stack."""

    @abstractmethod
    def _write(self, ids: pa.Array | None, vectors: np.ndarray, rows: TableRows | None = None) -> None: ...

    def _finish(self) -> None:  # noqa: B027 - most formats have nothing left to write
        """Write the end of the file."""


class NamedSink(Sink):
    """Writer of the arrays ``vectors`` and, if there are ids, ``ids``; or ``ids_utf8`` and ``ids_offsets``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._names: list[pa.Array] = []
        self._data: Any = None

    def _put_rows(self, vectors: np.ndarray) -> None:
        """Append rows to ``vectors``; here ``_data``, an array that takes slices."""
        self._data[self.rows : self.rows + len(vectors)] = vectors

    @abstractmethod
    def _put(self, name: str, values: np.ndarray) -> None:
        """Write a whole array, after the rows."""

    def _ids_as_held(self, names: np.ndarray) -> dict[str, np.ndarray]:
        """Return the arrays that hold ids, by the end of their names."""
        return {"": names}

    def _write(self, ids: pa.Array | None, vectors: np.ndarray, rows: TableRows | None = None) -> None:
        self._put_rows(vectors)
        if ids is not None:
            self._names.append(ids)

    def _finish(self) -> None:
        if self._names:
            from congruence.io.ids import id_array

            for end, values in self._ids_as_held(id_array(self._names)).items():
                self._put(f"ids{end}", values)


def store_as(vectors: np.ndarray, dtype: np.dtype, path: str | Path) -> np.ndarray:
    """Return rows, shape (b, d), in the data type in which they are stored."""
    try:
        with np.errstate(over="raise"):
            return np.ascontiguousarray(vectors, dtype=dtype)
    except FloatingPointError as error:
        problem = f"Got numbers beyond the range of {dtype} for {path}."
        raise DtypeError(problem, "Pass a wider `dtype=…`, 'float32' or 'float64'.") from error


def check_output_place(source: Source, output: str | Path) -> None:
    """Check that an output is not its source, not even through another path, a link or an enclosing folder."""
    out = Path(output)
    place = out.resolve()
    for file in source.files:
        real = file.resolve()
        same = real == place or (out.exists() and file.exists() and out.samefile(file))
        if same or place.is_relative_to(real) or real.is_relative_to(place):
            what = "is" if same else "lies in" if place.is_relative_to(real) else "contains"
            raise ParameterError(f"The output {output} {what} the source {file}.", "Pass a path outside the source.")


# ------------------------------------------------------------------ the space of a file's vectors


def sidecar(path: Path) -> Path:
    """Return the path of the file that describes the space, for formats that cannot hold metadata."""
    return path / "space.json" if path.is_dir() else path.with_name(path.name + ".space.json")


def space_json(space: Space) -> str:
    """Return a space as JSON."""
    return json.dumps(space.to_dict())


def read_space(text: str | bytes | None, path: str | Path) -> Space:
    """Return the space in a JSON text; an unknown space for None or empty text."""
    if not text:
        return Space()
    try:
        facts = json.loads(text)
        if not isinstance(facts, dict) or not isinstance(facts.get("dim"), (int, type(None))):
            raise TypeError("not an object, or dim is not a whole number")
        return Space.from_dict(facts)
    except (ValueError, TypeError, RecursionError) as error:
        problem = f"The description of the space in {path} cannot be read ({error})."
        raise CorruptFileError(problem, "Remove it, or write it again.") from error


def read_sidecar(path: Path) -> Space:
    """Return the space in the sidecar of a file; an unknown space if there is none."""
    place = sidecar(path)
    return read_space(place.read_bytes(), place) if place.is_file() else Space()
