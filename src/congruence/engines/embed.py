"""Encode a data set of many files, one task per fragment; each worker loads the encoder once."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from congruence._utils.validation import check_positive
from congruence.embed.batches import Run, encode_batch, read_batches
from congruence.embeddings import Space
from congruence.encoders import Encoder, load_encoder
from congruence.engines._base import Engine
from congruence.engines.bad_rows import quarantine_schema, quarantined
from congruence.engines.dataset import Fragment
from congruence.engines.items import ItemSet
from congruence.engines.jobs import collect_bad, quarantine_place, run_pending
from congruence.engines.journal import Journal, Plan
from congruence.engines.outputs import Output, write_fragment, write_parquet
from congruence.engines.transform import DataSetReport
from congruence.errors import CorruptFileError, ModalityError, ParameterError, SpaceMismatchError
from congruence.stores.ids import arrow_ids
from congruence.stores.layout import TableLayout


#: Number of items read at a time, rounded up to whole batches.
_READ = 1024


@dataclass(frozen=True)
class EncoderSpec:
    """The name and options of an encoder; sent to the workers, which open the encoder themselves.

    Parameters
    ----------
    name, modality, device, dtype, revision, layer, pooling, normalize, safetensors_only
        See :func:`congruence.encoders.load_encoder`.
    """

    name: str
    modality: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    revision: str | None = None
    layer: int | str | None = None
    pooling: str | None = None
    normalize: bool | None = None
    safetensors_only: bool = True

    def open(self) -> Encoder:
        """Return the encoder, which is loaded once per process."""
        return _open(self)


@lru_cache(maxsize=1)  # models are large
def _open(spec: EncoderSpec) -> Encoder:
    return load_encoder(**asdict(spec))


@dataclass(frozen=True)
class EmbedDataSetReport(DataSetReport):
    """Summary of a call to :func:`embed_dataset`.

    Attributes
    ----------
    output, engine, rows, dim, dtype, fragments, resumed, bad_rows, bad_rows_file, normalized, seconds
        As in :class:`DataSetReport`.
    fingerprint : str
        Fingerprint of the encoder, which is the same on all workers.
    space : dict
        Space of the vectors.
    """

    fingerprint: str
    space: dict[str, Any]


def embed_dataset(
    encoder: EncoderSpec,
    data: ItemSet,
    output: str,
    *,
    engine: Engine,
    batch_size: int = 64,
    bad_rows: str | None = None,
    force: bool = False,
    callback: Callable[[int], object] | None = None,
) -> EmbedDataSetReport:
    """Encode a data set into a data set of ids and vectors, fragment by fragment; after an interruption, the same call resumes.

    Each fragment of the output has the name of the fragment it was read from, and the rows in the same order. The calling process needs neither the
    model nor its library: one worker reports what the encoder is, and all others must have the same one.

    Parameters
    ----------
    encoder : EncoderSpec
    data : ItemSet
        See :func:`congruence.engines.open_itemset`.
    output : str
        Folder of Parquet files, or a ``.lance`` data set; a local path or a URL.
    engine : Engine
    batch_size : int, default=64
        Number of items per batch.
    bad_rows : str, optional
        Parquet file for rows that cannot be encoded; without it, the first such row stops the job.
    force : bool, default=False
        Replace an output that an engine wrote, and discard the journal of another job.
    callback : callable, optional
        Called with the number of rows of each finished fragment.

    Returns
    -------
    EmbedDataSetReport

    Raises
    ------
    ParameterError, ModalityError, OutputExistsError
        If an option is invalid, the modality does not fit, or the output exists. Raised before anything is written.
    FileError, CorruptFileError, InputError, StorageError
        If an item cannot be used or ids are repeated in a fragment, which the message names; or if no item can be encoded.
    SpaceMismatchError
        If a worker has another model, or another precision, under the same name.
    """
    started = time.perf_counter()
    check_positive(batch_size, "batch_size", integer=True)
    if encoder.layer == "all":
        raise ParameterError(
            "Got layer='all' for a data set; expected one layer. Pass layer=… with its number, or embed local files."
        )
    out = Output.of(output)
    out.prepare(data.place, force=force)
    quarantine = quarantine_place(bad_rows, force=force)
    facts = next(iter(engine.run(_DescribeWork(encoder), data.fragments[:1])))
    space, fingerprint = Space.from_dict(facts["space"]), str(facts["fingerprint"])
    if space.modality != data.modality:
        raise ModalityError(
            f"Got {data.modality}s ({data.place.shown}) for an encoder of {space.modality}s; expected items of the encoder's modality. Pass modality={data.modality!r} to the encoder."
        )
    assert space.dim is not None
    layout = TableLayout(
        None,
        dim=space.dim,
        dtype=np.dtype(np.float32),
        has_ids=True,
        id_type=data.id_type,
        space=space,
        column_out=None,
        path=out.place.shown,
    )
    identity = {
        "source": data.place.shown,
        "version": data.version,
        "output": out.place.shown,
        "fingerprint": fingerprint,
        "space": facts["space"],
        "column": data.column,
        "id_column": data.id_column,
        "bad_rows": bad_rows is not None,
    }
    with out.locked():
        journal = Journal(out.journal, Plan("embed", identity, data.fragments)).open(restart=force)
        journal.keep(out.sizes())
        if callback is not None and journal.resumed:
            callback(journal.rows + journal.bad)
        work = _EmbedWork(
            encoder,
            fingerprint,
            data.without_fragments(),
            _first_rows(data),
            layout,
            out,
            batch_size,
            bad_rows is not None,
        )
        run_pending(engine, work, journal, callback)
        if quarantine is not None:
            collect_bad(out, journal, quarantine, quarantine_schema(data.schema))
        if quarantine is not None and not journal.rows:
            raise CorruptFileError(
                f"Got {journal.bad} items in {data.place.shown}, none of which can be encoded; expected at least one that can. See the reasons in {quarantine.shown}, and pass "
                "other items or another encoder."
            )
        out.publish(journal, layout.schema)
    return EmbedDataSetReport(
        out.place.shown,
        engine.name,
        journal.rows,
        space.dim,
        "float32",
        len(data.fragments),
        journal.resumed,
        journal.bad,
        None if quarantine is None or not journal.bad else quarantine.shown,
        bool(space.normalized),
        time.perf_counter() - started,
        fingerprint,
        space.to_dict(),
    )


def _first_rows(data: ItemSet) -> dict[str, int]:
    """Return the row number of each fragment's first row in the data set; empty if the ids are not row numbers."""
    if not data.counts_rows:
        return {}
    ends = np.cumsum([fragment.rows for fragment in data.fragments]).tolist()
    return {fragment.name: end - fragment.rows for fragment, end in zip(data.fragments, ends, strict=True)}


@dataclass(frozen=True)
class _DescribeWork:
    """Reports the encoder that a worker opens."""

    encoder: EncoderSpec

    def __call__(self, fragment: Fragment) -> dict[str, object]:
        """Return the encoder's space and fingerprint; the fragment is not read."""
        encoder = self.encoder.open()
        return {"space": encoder.space.to_dict(), "fingerprint": encoder.fingerprint}


@dataclass(frozen=True)
class _EmbedWork:
    """Encodes one fragment; sent to the workers.

    ``fingerprint``: fingerprint that the encoder must have; ``data``: the data set without its fragments;
    ``first_rows``: row number of each fragment's first row by the name of the fragment; empty if the ids are not row
    numbers; ``quarantine``: quarantine bad rows instead of stopping.
    """

    encoder: EncoderSpec
    fingerprint: str
    data: ItemSet
    first_rows: dict[str, int]
    layout: TableLayout
    output: Output
    batch_size: int
    quarantine: bool

    def __call__(self, fragment: Fragment) -> dict[str, object]:
        """Encode a fragment, write it, and return its receipt as plain data."""
        encoder = self.encoder.open()
        if encoder.fingerprint != self.fingerprint:
            raise SpaceMismatchError(
                f"Got {self.encoder.name!r} with the fingerprint {encoder.fingerprint[:12]} on a worker; expected {self.fingerprint[:12]}, as on the first worker. Install the same "
                "weights on every machine. If not all machines have a GPU, pass device=… and dtype=…."
            )
        ids = self.data.ids(fragment, self.first_rows.get(fragment.name, 0))
        bad_batches: list[pa.RecordBatch] = []
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            batches = self._batches(encoder, fragment, ids, pool, bad_batches)
            receipt = write_fragment(self.output, fragment.name, self.layout, batches, kept=False)
        if bad_batches:
            place = self.output.quarantine.child(f"{fragment.name}.parquet")
            write_parquet(place, bad_batches[0].schema, iter(bad_batches))
        return {**receipt.to_dict(), "bad": sum(map(len, bad_batches))}

    def _batches(
        self,
        encoder: Encoder,
        fragment: Fragment,
        ids: np.ndarray,
        pool: ThreadPoolExecutor,
        bad_batches: list[pa.RecordBatch],
    ) -> Iterator[pa.RecordBatch]:
        size = -(-_READ // self.batch_size) * self.batch_size
        on_error = "skip" if self.quarantine else "fail"
        for start, piece in self.data.batches(fragment, self.data.schema.names, size):
            items = self.data.items(piece, ids[start : start + len(piece)], fragment)
            run = Run(encoder, items, self.batch_size, on_error, None, pool, None, alternative="bad_rows='bad.parquet'")
            vectors: dict[int, np.ndarray] = {}
            for batch in read_batches(run, range(len(piece))):
                vectors |= encode_batch(run, batch)
            if run.failures:
                rows = np.setdiff1d(np.arange(len(piece)), list(vectors))
                reasons = [failure["error"] for failure in run.failures]
                schema = quarantine_schema(self.data.schema)
                bad_batches.append(quarantined(piece, rows, reasons, fragment.start + start, items.name, schema))
            if vectors:
                encoded_ids = arrow_ids(items.ids[list(vectors)]).cast(self.layout.schema.field("id").type)
                yield self.layout.fill(encoded_ids, np.stack(list(vectors.values())))
