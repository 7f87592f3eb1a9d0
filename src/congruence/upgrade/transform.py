"""Map vectors in bounded memory: a file, a folder or a data set, in blocks of rows, in this process or in others."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, DTypeLike

from congruence._utils.ahead import run_ahead
from congruence._utils.arrays import as_dtype
from congruence._utils.engine import Engine, LocalEngine
from congruence._utils.records import digest_of
from congruence._utils.validation import RowNames, check_rows
from congruence.compare.origins import JUDGED, judge
from congruence.embeddings import Space, check_space, has_unit_rows
from congruence.errors import ColumnsWarning, CorruptFileError, InputError, ModalityError, ParameterError
from congruence.io import Source, check_output_place, find_sink, open_sink, open_source, store_as
from congruence.io.columns import TableRows
from congruence.io.dataset import DataSet, Fragment
from congruence.io.jobs import REASONS, FragmentWork, Job, JobReport, find_bad, quarantined
from congruence.io.tables import TableLayout
from congruence.maps import AffineMap, HeadsMap, Map, OrthogonalMap
from congruence.upgrade.stored import CODES, StoredForm


def map_digest(mapping: Map) -> str:
    """Return the SHA-256 of a map's kind, arrays and layers, and of its source and target space."""
    config = mapping.config()
    content = {key: config.get(key) for key in ("kind", "source_space", "target_space")}
    arrays = mapping.product() if isinstance(mapping, AffineMap) and mapping.read_as else mapping.state()
    return digest_of({**content, "layers": config["facts"].get("layers")}, arrays)


_GPU_DEVICES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")  # device files of the drivers of NVIDIA, of WSL and of AMD
BLOCK_BYTES = 8 * 2**20  # bytes of source vectors in a block; a few blocks are in memory at a time
#: Ids, vectors, and the table rows they belong to.
Block: TypeAlias = tuple[pa.Array | None, np.ndarray, TableRows | None]


class BlockMap:
    """A map applied to blocks of rows, with fixed side, means, precision and normalization; engines pickle it.

    ``space`` and ``source_dtype`` are those of the stored vectors, and as attributes ``space`` and ``dtype`` those of
    the mapped ones. With ``device`` "cpu" or "cuda" torch computes the product, with "auto" if it sees a GPU.
    """

    def __init__(
        self,
        mapping: Map,
        space: Space,
        source_dtype: DTypeLike,
        *,
        modality: str | None = None,
        normalize: bool | str = "auto",
        dtype: DTypeLike | None = None,
        side: str | None = None,
        check: bool = True,
        allow_zero_rows: bool = False,
        device: str | None = None,
    ) -> None:
        assert space.dim is not None
        if check and modality and space.modality and modality != space.modality:
            raise ModalityError(
                f"Got `modality={modality!r}` for rows that record {space.modality}.",
                f"Pass `modality={space.modality!r}`, or `check=False` if the record is wrong.",
            )
        wanted = modality or space.modality
        self.mapped = mapping.for_modality(wanted).for_role("store")
        # A width that does not fit is caught here too, before any work.
        known = replace(space, modality=wanted) if check else Space(dim=space.dim)
        self.expected, output, self.head = _sides(self.mapped, known, side)
        mapping.for_modality(wanted, ask=True)
        self.source_dtype = as_dtype(source_dtype)
        self.compute = as_dtype("float64" if self.source_dtype == np.float64 else "float32")
        self.dtype = as_dtype(dtype) if dtype is not None else self.source_dtype
        self.unit = self.mapped.gives_unit_rows(normalize)
        self.dim_in, self.dim = space.dim, self.mapped.d_out
        normalized, role = True if self.unit else None, self.mapped.read_as
        self.space = replace(output, dim=self.dim, modality=wanted, normalized=normalized, role=role)
        self.check, self.allow_zero_rows, self.device = check, allow_zero_rows, device
        self._function: Callable[[np.ndarray], np.ndarray] | None = None

    def rows_of_block(self, row_bytes: int | None = None) -> int:
        """Return the number of rows per block, the same for every kind of run so that all compute the same products."""
        rows = max(256, BLOCK_BYTES // (self.dim_in * self.compute.itemsize))
        return rows if row_bytes is None else max(1, min(rows, BLOCK_BYTES // row_bytes))

    def check_block(self, block: np.ndarray, name: str, names: RowNames | None = None, *, first: bool = False) -> None:
        """Refuse rows of NaN, infinity or zeros, and in the first block norms unlike those at the fit."""
        check_rows(block, name, ids=names, allow_zero_rows=self.allow_zero_rows)
        if first and self.check:
            check_space(Space(normalized=has_unit_rows(block)), self.expected, Space(), modality=False)

    def __call__(self, block: np.ndarray) -> np.ndarray:
        """Map rows (b, d_source) to (b, d_out)."""
        if self._function is None:
            self._function = self._prepare()
        out = self._function(block.astype(self.compute, copy=False))
        return np.asarray(self.mapped.finish(out, self.unit))

    def over(self, blocks: Iterator[Block], name: str, start: int = 0) -> Iterator[Block]:
        """Check and map consecutive blocks, the first of which begins with row ``start``; they are read ahead.

        A file and each fragment of a data set are mapped by this.
        """
        row = start
        for ids, block, rows in run_ahead(blocks):
            self.check_block(block, name, RowNames(ids, row), first=row == start)
            row += len(block)
            yield ids, self(block), rows

    def _prepare(self) -> Callable[[np.ndarray], np.ndarray]:
        mapped = self.mapped
        if self.head is not None or not isinstance(mapped, AffineMap):
            return mapped.transform_target if self.head == "target" else mapped.transform
        # One product, with the matrix converted once, not for each block.
        matrix, offset = np.ascontiguousarray(mapped.matrix, self.compute), mapped.offset.astype(self.compute)
        if self.device is not None and (self.device != "auto" or _sees_gpu()):
            return _torch_function(matrix, offset, "cuda" if self.device == "auto" else self.device)

        def transform(block: np.ndarray) -> np.ndarray:
            out: np.ndarray = block @ matrix
            out += offset
            return out

        return transform

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_function": None}


def _sides(mapped: Map, space: Space, side: str | None) -> tuple[Space, Space, str | None]:
    """Return the vectors' space, the space of the mapped ones, and the head that maps them if there are two."""
    if isinstance(mapped, HeadsMap):
        if mapped.side_of(space, side) == "source":
            return mapped.source_space_, mapped.joint_space(), "source"
        return mapped.target_space_, mapped.joint_space(), "target"
    if side not in (None, "source"):
        raise ParameterError(
            f"Got `side={side!r}` for a map of kind {mapped.kind}, which has one side.",
            "Leave out `side=…`, or invert it.",
        )
    check_space(space, mapped.source_space_, mapped.target_space_, modality=False)
    return mapped.source_space_, mapped.target_space_, None


def _sees_gpu() -> bool:
    """Return whether torch is installed and sees a GPU; torch is not imported on Linux without a device file."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        return False
    if sys.platform == "linux" and not any(map(os.path.exists, _GPU_DEVICES)):
        return False
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.cuda.is_available())


def _torch_function(matrix: np.ndarray, offset: np.ndarray, device: str) -> Callable[[np.ndarray], np.ndarray]:
    """Return the product on a device, in the precision of the matrix: torch rounds to TF32 only if that is enabled."""
    import torch

    factors = torch.from_numpy(offset).to(device), torch.from_numpy(matrix).to(device)

    def transform(block: np.ndarray) -> np.ndarray:
        rows = torch.from_numpy(np.require(block, requirements=["C", "W"])).to(device)
        out: np.ndarray = torch.addmm(factors[0], rows, factors[1]).cpu().numpy()
        return out

    return transform


_RANGES = 32  # of a file, from which rows are judged
_COVERED_ROWS = 1000  # number of rows from which the share of variance that the pairs span is estimated


def _spread(source: Source) -> np.ndarray:
    """Return rows from all over a file or a data set, in few ranges, since a range costs as much as a row."""
    if isinstance(source, DataSet):
        fragments, rows = source.fragments[:: -(-len(source.fragments) // _RANGES) or 1], [np.empty((0, source.dim))]
        for fragment in fragments:
            with suppress(InputError, CorruptFileError):  # the work names damaged rows, or puts them aside
                part = source.open(fragment)
                rows.append(part.take(np.arange(min(part.n, JUDGED // len(fragments))))[1])
        return np.concatenate(rows)
    size = JUDGED // _RANGES
    starts = np.linspace(0, max(source.n - size, 0), _RANGES).astype(int)
    some = (starts[:, None] + np.arange(size)).ravel()
    return source.take(np.arange(source.n) if source.n <= JUDGED else some)[1]


def _with_padding(form: StoredForm, mapping: Map, source: Source) -> StoredForm:
    """Return the form with the columns after those of the model, if they are zeros in rows from all over the file."""
    if form.kind is not None:
        form.dim_in = source.dim * (8 if form.kind.endswith("binary") else 1)
        return form
    more = source.dim - mapping.n_features_in_
    if more > 0 and not isinstance(mapping, HeadsMap) and not _spread(source)[:, -more:].any():
        form.padding, form.width, form.dim_in = more, source.dim, source.dim - more
    return form


@dataclass(frozen=True)
class TransformReport(JobReport):
    """Summary of a call to ``transform_file``."""

    covered_share: float | None = None  # of the first rows' variance, in directions that the pairs span; of a file
    left_out: list[str] = field(default_factory=list)  # columns that the output cannot hold
    padding: int = 0  # columns of zeros after those of the model, which stay
    kept: float | None = None  # share of the ten nearest mapped rows that quantization or the prefix keeps


def transform_file(
    mapping: Map,
    source: str | Path | Source,
    output: str | Path,
    *,
    modality: str | None = None,
    normalize: bool | str = "auto",
    dtype: DTypeLike | None = None,
    force: bool = False,
    check: bool = True,
    allow_zero_rows: bool = False,
    side: str | None = None,
    column_out: str | None = None,
    prefix: int | None = None,
    quantized: str | None = None,
    ranges: ArrayLike | None = None,
    engine: Engine | None = None,
    bad_rows: str | None = None,
    callback: Callable[[int], object] | None = None,
) -> TransformReport:
    """Map a file, a folder of parts or a data set of vectors into another one.

    Rows keep their order and their ids, and tables all columns, with names, types, order and metadata. Columns that the
    output's format cannot hold are named in a ColumnsWarning. The output appears only once it is complete. A data set
    is mapped fragment by fragment, in this process or by an engine; after an interruption, the same call resumes. With
    the same number of BLAS threads the numbers are those of a file, bit for bit.

    Parameters
    ----------
    mapping : Map
        A fitted map; to map back, pass its ``inverse()``.
    source : path-like or Source
        See ``congruence.io.open_source``, which opens a path, and ``congruence.engines.open_dataset`` for a data
        set.
    output : path-like
        The suffix determines the format (``congruence.io.FORMATS``). Never the source itself. For a data set: a folder
        of Parquet files, or a ``.lance`` data set; a path or a URL.
    modality : str, optional
        Modality whose means are used; by default the source's own modality, or that which the rows clearly are of.
    normalize : {"auto", True, False}, default="auto"
        Scale the mapped rows to unit norm; "auto" does so if the target's rows had unit norm at the fit.
    dtype : dtype, optional
        float16, float32 or float64; by default the source's.
    force : bool, default=False
        Replace an existing output; for a data set, one that this library wrote, and discard the journal of another job.
    check : bool, default=True
        Refuse vectors that are known to belong to another space than the map's source, or look as if some do.
    side : {"source", "target"}, optional
        Which head of a joint-space map to use; by default the one whose space the vectors belong to.
    column_out : str, optional
        Write the mapped vectors to a new column of this name, and keep the source's column of vectors.
    prefix : int, optional
        Of a new model trained for it (Matryoshka): write only so many of the first columns.
    quantized : {"int8", "uint8", "binary", "ubinary"}, optional
        The source has such codes (``congruence.upgrade.stored.dequantize``); so has the output. Of a file that can hold
        them: ``.npy``, ``.npz``, HDF5, Parquet, Arrow, Lance.
    ranges : array_like, shape (2, d), optional
        The least and the largest number of each column that the codes of ``quantized`` stand for. Those of the output
        are written beside it, to ``<output>.ranges.npy``.
    engine, bad_rows : optional
        For a data set: where its fragments are mapped, and a Parquet file for rows with invalid vectors; without it,
        the first such row stops the job.
    callback : callable, optional
        Called with the number of rows of each block or fragment after it is written.

    Raises
    ------
    SpaceMismatchError, DirectionError, ModalityError
        If the vectors do not belong to the map's source; raised before anything is written.
    CorruptFileError, InputError
        If the source or a vector is damaged or invalid; no partial output is left, but finished fragments are kept.
    """
    started = time.perf_counter()
    if not isinstance(mapping, Map):
        problem = f"Got {type(mapping).__name__} for the map, which comes first; expected a fitted map."
        raise InputError(problem, "Read a saved one with `congruence.load(path)`.")
    source = source if isinstance(source, Source) else open_source(source)
    name = source.table.name if isinstance(source, DataSet) else source.path
    wanted = modality or source.space.modality
    form = StoredForm(quantized, None if ranges is None else np.asarray(ranges), prefix=prefix)
    if isinstance(source, DataSet):
        if not form.plain:
            given = f"prefix={prefix!r}" if prefix is not None else f"quantized={quantized!r}"
            raise ParameterError(f"Got `{given}` for a data set.", "Map its files one by one.")
    else:
        check_output_place(source, output)
        form = _with_padding(form, mapping, source)
    judged = None
    if check and mapping.origins_ is not None and not isinstance(mapping, HeadsMap):
        judged = judge(mapping, form.decode(_spread(source), name), wanted)
        modality = wanted or judged.modality
        if judged.outcome == "ask" or (judged.outcome == "bad" and modality is None):
            judged.refuse(name)
    function = BlockMap(
        mapping,
        replace(source.space, dim=form.dim_in or source.dim),
        np.float32 if quantized else source.dtype,
        modality=modality,
        normalize=normalize,
        dtype=dtype,
        side=side,
        check=check,
        allow_zero_rows=allow_zero_rows,
        device="auto" if isinstance(source, DataSet) else None,
    )
    if judged is not None:
        judged.refuse(name, "`check=False` maps them all.")
    table: dict[str, Any] = {
        "dim": form.dim_out(function.dim),
        "dtype": CODES[quantized] if quantized else function.dtype,
        "has_ids": source.has_ids,
        "id_type": source.id_type,
        "space": function.space if form.plain else form.space_out(function.space),
        "column_out": column_out,
    }
    if isinstance(source, DataSet):
        engine = engine or LocalEngine()
        job = Job(
            "transform", source.table, str(output), engine=engine, bad_rows=bad_rows, force=force, callback=callback
        )
        layout = TableLayout(source.columns[0], path=name, **table)
        to, size = (layout, job.output, bad_rows is not None), function.rows_of_block(source.row_bytes)
        work = _TransformWork(*to, source.without_fragments(), function, size)
        identity = {
            "map": map_digest(function.mapped),
            "column": source.column,
            "column_out": column_out,
            "dtype": function.dtype.name,
            "unit": function.unit,
            "head": function.head,
            "allow_zero_rows": allow_zero_rows,
        }
        return TransformReport(**job.run(work, identity, normalized=function.unit, may_be_empty=True))
    if engine is not None or bad_rows is not None:
        name, value = ("bad_rows", bad_rows) if engine is None else ("engine", engine.name)
        raise ParameterError(
            f"Got `{name}={value!r}` for {source.path}; expected a data set.",
            f"Leave it out, or pass `congruence.engines.open_dataset({source.path!r})`.",
        )
    several = any(one.multi for one in source.columns)
    if several and find_sink(output).keeps_columns:  # vectors of a row stay together
        if not find_sink(output).keeps_lists:
            fix = "Write a .parquet or .arrow, or an .npz with a row for each vector."
            raise ParameterError(f"Got several vectors a row in {source.path}, which {output} cannot hold.", fix)
        table["n"] = source.table_rows
    table = {"n": source.n, **table}
    sink = open_sink(output, force=force, parts=source.parts, columns=source.columns, facts=source.facts, **table)
    if sink.left_out:
        warnings.warn(
            ColumnsWarning(
                f"{output} cannot hold these columns, which are left out: {', '.join(sink.left_out)}.",
                "Write a .parquet to keep them.",
            ),
            stacklevel=2,
        )
    rows = function.rows_of_block(source.row_bytes if sink.keeps_columns else None)
    sample: list[np.ndarray] = []

    def scan() -> Iterator[Block]:
        scanned = source.scan_table(batch=rows) if sink.keeps_columns else source.scan(batch=rows)
        for ids, stored, *others in scanned:
            block = form.decode(stored, source.path)
            if not sample:  # kept until it is known to be free of NaN
                sample.append(block[:_COVERED_ROWS].copy())
            yield ids, block, others[0] if others else None

    with sink:
        for ids, block, others in run_ahead(function.over(scan(), source.path)):
            sink.write(ids, form.encode(block, function.unit), others)
            if callback is not None:
                callback(len(block))
    if form.ranges_out is not None:
        with open_sink(f"{output}.ranges.npy", n=2, dim=form.ranges_out.shape[1], dtype="f8", force=True) as beside:
            beside.write(None, form.ranges_out)
    covered = None
    if sample and isinstance(mapping, OrthogonalMap):
        covered = float(mapping.for_modality(wanted or modality).covered_share(sample[0]).mean())
    return TransformReport(
        output=str(output),
        rows=source.n,
        dim=sink.dim,
        dtype=np.dtype(sink.dtype).name,
        normalized=function.unit,
        seconds=time.perf_counter() - started,
        covered_share=covered,
        left_out=sink.left_out,
        padding=form.padding,
        kept=form.kept,
    )


@dataclass(frozen=True)
class _TransformWork(FragmentWork):
    """Maps one fragment, in blocks of ``block`` rows."""

    data: DataSet
    function: BlockMap
    block: int

    def batches(self, fragment: Fragment, bad: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        name = self.data.table.path_of(fragment)
        for ids, block, rows in self.function.over(self._blocks(fragment, name, bad), name, fragment.start):
            yield self.layout.fill(ids, store_as(block, self.function.dtype, self.output.place.shown), rows)

    def _blocks(self, fragment: Fragment, name: str, bad: list[pa.RecordBatch]) -> Iterator[Block]:
        """Yield the blocks of a fragment, with a quarantine without their bad rows."""
        source = self.data.open(fragment)
        for row, piece in source.table.pieces(None, 0, self.block):
            start = fragment.start + row
            valid = self._valid(piece, start, name, bad) if self.quarantine else piece
            if len(valid):
                yield *source.block(valid, start), valid

    def _valid(self, piece: pa.RecordBatch, start: int, name: str, bad: list[pa.RecordBatch]) -> pa.RecordBatch:
        """Return the valid rows of a batch, and add the others to ``bad``."""
        column = piece.column(self.data.columns[0].vector)
        code = find_bad(column, self.data.dim, allow_zero_rows=self.function.allow_zero_rows)
        if not code.any():
            return piece
        rows = np.flatnonzero(code)
        bad.append(quarantined(piece, rows, [REASONS[k] for k in code[rows]], start, name))
        return piece.filter(pa.array(code == 0))
