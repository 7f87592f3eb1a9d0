"""The interface of every writer of vectors."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

import numpy as np
import pyarrow as pa

from congruence._utils.atomic import atomic_path, has_marker
from congruence.embeddings import Space
from congruence.errors import DtypeError, IdError, OutputExistsError, ShapeError, StorageError
from congruence.stores._columns import Columns, Rows
from congruence.stores._space_file import is_space, sidecar, space_json
from congruence.stores.ids import clean_ids


class Sink(ABC):
    """A writer of vectors; the output appears at the end of the ``with`` block if it is complete, and not at all otherwise.

    Parameters
    ----------
    path : path-like
    n, dim : int
        Number of rows and columns that will be written.
    dtype : numpy.dtype
        Data type of the output.
    has_ids : bool
        Whether ids will be written.
    space : Space
        Description of the vectors, stored with them.
    force : bool
        Replace an existing file.
    id_type : pyarrow.DataType, optional
        Type in which ids are written: int64, uint64 or, by default, string.
    parts : list of (str, int), optional
        Names and row counts of the source's parts, for sinks that use the same parts.
    atomic : bool, default=True
        Whether the file appears only once complete. False for the parts of a folder that is atomic itself.
    columns : list of Columns, optional
        Columns of the source to keep, one entry per part of a folder.
    column_out : str, optional
        Name of the column of vectors; the source's column of vectors is then kept unchanged.

    Attributes
    ----------
    left_out : list of str
        Columns that the format cannot hold.
    """

    #: Whether the output is a folder.
    directory: ClassVar[bool] = False
    #: Whether the space is written to a file next to the output, because the format cannot hold it.
    sidecar: ClassVar[bool] = False
    #: Whether the format can hold ids, and whether it can hold the other columns of a table.
    keeps_ids: ClassVar[bool] = True
    keeps_columns: ClassVar[bool] = False

    def __init__(
        self,
        path: str | Path,
        *,
        n: int,
        dim: int,
        dtype: np.dtype,
        has_ids: bool,
        space: Space,
        force: bool,
        id_type: pa.DataType | None = None,
        parts: list[tuple[str, int]] | None = None,
        atomic: bool = True,
        columns: list[Columns] | None = None,
        column_out: str | None = None,
    ) -> None:
        self.path = Path(path)
        self.n, self.dim, self.dtype = n, dim, np.dtype(dtype)
        self.has_ids, self.space, self.force = has_ids, space, force
        self.id_type = id_type or pa.string()
        self.source_parts, self.atomic = parts, atomic
        self.columns, self.column_out = columns or [], column_out
        self.rows = 0
        self._stack = ExitStack()
        self.left_out = self._leave_out()

    def _leave_out(self) -> list[str]:
        """Return the names of the columns that the format cannot hold."""
        ids = set() if self.keeps_columns or not (self.keeps_ids and self.has_ids) else {one.id for one in self.columns}
        kinds = {f.name: f.type for one in self.columns for f in one.schema if f.name != one.vector}
        return [name for name, kind in kinds.items() if name not in ids and not self._holds(kind)]

    def _holds(self, kind: pa.DataType) -> bool:
        """Return whether the format can hold a column of this type in addition to the vectors."""
        return self.keeps_columns

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            place = self.path
            if self.atomic:
                if self.sidecar:
                    self._check_sidecar()
                if self.sidecar and self.space != Space():  # entered first, so that it appears last
                    description = stack.enter_context(atomic_path(sidecar(self.path), force=True))
                    description.write_text(space_json(self.space) + "\n", encoding="utf-8")
                place = stack.enter_context(
                    atomic_path(self.path, force=self.force, directory=self.directory, foreign=self.why_foreign)
                )
            self._open(place, stack)
            self._stack = stack.pop_all()
        return self

    def _check_sidecar(self) -> None:
        """Check that no foreign file lies in the place of the space description. Raises OutputExistsError."""
        described = sidecar(self.path)
        if os.path.lexists(described) and (described.is_symlink() or not has_marker(described, is_space)):
            raise OutputExistsError(
                f"Got a file {described} that is not a space description; expected no such file, since it would be read together with {self.path}. Move it, or pass another path."
            )

    @staticmethod
    def why_foreign(folder: Path) -> str | None:
        """Return why an existing folder must not be replaced, or None if it may be; for sinks that write folders."""
        return "this library did not write"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if kind is None:
            try:
                if self.rows != self.n:
                    raise StorageError(
                        f"Got {self.rows} of {self.n} announced rows for {self.path}; expected all of them. Write every row before closing the sink. Nothing was left behind."
                    )
                self._finish()
            except BaseException as late:
                self._stack.__exit__(type(late), late, late.__traceback__)
                raise
        suppressed = self._stack.__exit__(kind, error, trace)
        if kind is None and self.atomic and self.sidecar and self.space == Space():
            sidecar(self.path).unlink(missing_ok=True)  # it described the file that was replaced
        return suppressed

    def write(self, ids: pa.Array | None, vectors: np.ndarray, rows: Rows | None = None) -> None:
        """Append rows.

        Parameters
        ----------
        ids : pyarrow.Array of text or integers, or None
            One per row if the sink was opened with ``has_ids``; ignored otherwise. Integers become text if ``id_type`` is a text type.
        vectors : ndarray, shape (b, dim)
        rows : pyarrow.RecordBatch or list of dict, optional
            The same rows of the source's table (:meth:`Source.scan_table`); required if the sink was opened with ``columns`` and its
            format keeps them.

        Raises
        ------
        ShapeError
            If the width or the number of rows is not as announced, or ``rows`` are required and do not match the vectors.
        IdError
            If ids were announced and are missing or not one per row; if integers were announced and ids are text; or if a value cannot be an id.
        DtypeError
            If a finite number is too large for the dtype of the file.
        """
        if vectors.ndim != 2 or vectors.shape[1] != self.dim or self.rows + len(vectors) > self.n:
            raise ShapeError(
                f"Got a block of shape {vectors.shape} after {self.rows} rows of {self.path}; expected the {self.n} × "
                f"{self.dim} that were announced. Pass the right n= and dim= to open_sink."
            )
        if self.has_ids and (ids is None or len(ids) != len(vectors) or ids.null_count):
            raise IdError(
                f"Got {'no' if ids is None else len(ids) - ids.null_count} ids for {len(vectors)} rows of {self.path}; "
                "expected one per row, as announced. Pass an id for each row, or has_ids=False."
            )
        if self.columns and self.keeps_columns and (rows is None or len(rows) != len(vectors)):
            raise ShapeError(
                f"Got {'no' if rows is None else len(rows)} rows of the table for {len(vectors)} vectors of {self.path}; expected "
                "one per vector, as announced. Pass the rows, or open the sink without columns=."
            )
        names = self._as_announced(ids) if self.has_ids and ids is not None else None
        try:
            with np.errstate(over="raise"):
                block = np.ascontiguousarray(vectors, dtype=self.dtype)
        except FloatingPointError as error:
            raise DtypeError(
                f"Got numbers beyond the range of {self.dtype} for {self.path}; expected smaller ones. Pass a wider dtype=…, 'float32' or 'float64'."
            ) from error
        self._write(names, block, rows)
        self.rows += len(block)

    def _as_announced(self, ids: pa.Array) -> pa.Array:
        names = clean_ids(ids, str(self.path), self.rows)
        try:
            return names.cast(self.id_type)
        except pa.ArrowInvalid:
            raise IdError(
                f"Got ids of type {names.type} for {self.path}; expected {self.id_type}, as announced. Pass the right id_type= to open_sink."
            ) from None

    @abstractmethod
    def _open(self, temporary: Path, stack: ExitStack) -> None:
        """Open the temporary file, and register everything that must be closed on the stack."""

    @abstractmethod
    def _write(self, ids: pa.Array | None, vectors: np.ndarray, rows: Rows | None = None) -> None: ...

    def _finish(self) -> None:  # noqa: B027 - most formats have nothing left to write
        """Write the end of the file."""
