"""Encode a data set of many files, one task per fragment; each worker loads the encoder once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pyarrow as pa

from congruence._utils.engine import Engine
from congruence._utils.validation import check_positive
from congruence.embed.run import EncoderRun
from congruence.embeddings import Space
from congruence.encoders import Encoder, EncoderOptions, load_encoder
from congruence.engines.items import ItemSet
from congruence.errors import ModalityError, ParameterError, SpaceMismatchError
from congruence.io.dataset import Fragment
from congruence.io.ids import arrow_ids
from congruence.io.jobs import FragmentWork, Job, JobReport, quarantined
from congruence.io.tables import TableLayout

_READ = 1024  # number of items read at a time, rounded up to whole batches


@lru_cache(maxsize=1)  # models are large
def _open(encoder: EncoderOptions) -> Encoder:
    """Return the encoder, which is loaded once per process."""
    return load_encoder(**asdict(encoder))


@dataclass(frozen=True)
class EmbedDataSetReport(JobReport):
    """Summary of a call to ``embed_dataset``."""

    fingerprint: str = ""  # of the encoder, the same on all workers
    space: dict[str, Any] = field(default_factory=dict)  # of the vectors


def embed_dataset(
    encoder: EncoderOptions,
    data: ItemSet,
    output: str,
    *,
    engine: Engine,
    batch_size: int = 64,
    bad_rows: str | None = None,
    force: bool = False,
    callback: Callable[[int], object] | None = None,
) -> EmbedDataSetReport:
    """Encode a data set into one of ids and vectors; after an interruption, the same call resumes.

    Each fragment of the output has the name of the fragment it was read from, and the rows in the same order. The
    calling process needs neither the model nor its library: one worker reports what the encoder is, and all others must
    have the same one, or SpaceMismatchError is raised.

    Parameters
    ----------
    output : str
        Folder of Parquet files, or a ``.lance`` data set; a local path or a URL.
    bad_rows : str, optional
        Parquet file for rows that cannot be encoded; without it, the first such row stops the job.
    force : bool, default=False
        Replace an output that an engine wrote, and discard the journal of another job.
    callback : callable, optional
        Called with the number of rows of each finished fragment.
    """
    check_positive(batch_size, "batch_size", integer=True)
    if encoder.layer == "all":
        problem = "Got `layer='all'` for a data set; expected one layer."
        raise ParameterError(problem, "Pass `layer=…` with its number, or embed local files.")
    job = Job("embed", data, output, engine=engine, bad_rows=bad_rows, force=force, callback=callback)
    found = next(iter(engine.run(partial(_describe, encoder), data.fragments[:1])))
    space, fingerprint = Space.from_dict(found["space"]), str(found["fingerprint"])
    if space.modality != data.modality:
        problem = f"Got {data.modality} items ({data.place.shown}) for an encoder of {space.modality}."
        raise ModalityError(problem, f"Pass `modality={data.modality!r}` to the encoder.")
    assert space.dim is not None
    dtype, path = np.dtype(np.float32), job.output.place.shown
    work = _EmbedWork(
        data=data.without_fragments(),
        layout=TableLayout(
            None, dim=space.dim, dtype=dtype, has_ids=True, id_type=data.id_type, space=space, path=path
        ),
        output=job.output,
        quarantine=job.quarantine is not None,
        encoder=encoder,
        fingerprint=fingerprint,
        first_rows=data.first_rows if data.counts_rows else {},
        batch_size=batch_size,
    )
    columns = {"column": data.column, "id_column": data.id_column}
    identity = {"fingerprint": fingerprint, "space": found["space"], **columns}
    facts = job.run(work, identity, normalized=bool(space.normalized), may_be_empty=False)
    return EmbedDataSetReport(**facts, fingerprint=fingerprint, space=space.to_dict())


def _describe(options: EncoderOptions, fragment: Fragment) -> dict[str, object]:
    """Return what encoder a worker opens; the fragment is not read."""
    encoder = _open(options)
    return {"space": encoder.space.to_dict(), "fingerprint": encoder.fingerprint}


@dataclass(frozen=True)
class _EmbedWork(FragmentWork):
    """Encodes one fragment, with an encoder that must have the fingerprint."""

    data: ItemSet
    encoder: EncoderOptions
    fingerprint: str
    first_rows: dict[str, int]  # number of each fragment's first row; empty if the ids are not row numbers
    batch_size: int

    def batches(self, fragment: Fragment, bad: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        encoder = _open(self.encoder)
        if encoder.fingerprint != self.fingerprint:
            raise SpaceMismatchError(
                f"Got {self.encoder.name!r} with the fingerprint {encoder.fingerprint[:12]} on a worker; expected "
                f"{self.fingerprint[:12]}, as on the first worker.",
                "Install the same weights on every machine. If not all machines have a GPU, pass `device=…` "
                "and `dtype=…`.",
            )
        ids = self.data.ids(fragment, self.first_rows.get(fragment.name, 0))
        size = -(-_READ // self.batch_size) * self.batch_size
        on_error = "skip" if self.quarantine else "fail"
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            for start, piece in self.data.open(fragment).pieces(self.data.schema.names, 0, size):
                items = self.data.items(piece, ids[start : start + len(piece)], fragment)
                run = EncoderRun(encoder, items, self.batch_size, on_error, pool, alternative="bad_rows='bad.parquet'")
                vectors = run.encode(range(len(piece)))
                if run.failures:
                    rows = np.setdiff1d(np.arange(len(piece)), list(vectors))
                    reasons = [failure["error"] for failure in run.failures]
                    bad.append(quarantined(piece, rows, reasons, fragment.start + start, items.name))
                if vectors:
                    encoded = arrow_ids(items.ids[list(vectors)]).cast(self.layout.schema.field("id").type)
                    yield self.layout.fill(encoded, np.stack(list(vectors.values())))
