"""The output of a job: written fragment by fragment, and moved into place as a whole at the end."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from congruence._utils.lock import locked
from congruence._utils.optional import require
from congruence.engines.journal import Journal, Receipt
from congruence.engines.places import Place
from congruence.errors import OutputExistsError, ParameterError, StorageError
from congruence.stores.layout import TableLayout, parquet_options


#: Lists the files of a finished output. Readers of Parquet folders skip names that begin with an underscore.
MANIFEST = "_manifest.json"

FORMAT, FORMAT_VERSION = "congruence-dataset", 1

#: Number of rows, and of bytes, at which a row group is written.
_GROUP_ROWS, _GROUP_BYTES = 65_536, 64 * 2**20


@dataclass(frozen=True)
class Output:
    """The output of a job.

    A local output is written to ``<out>.partial``, and renamed when it is complete. Object stores cannot rename: there, fragments are written
    in place, and the output is complete when the manifest is written (for Lance, when the data set is committed).
    """

    place: Place
    kind: str

    @classmethod
    def of(cls, path: str) -> Output:
        """Return the output at a path: a Lance data set if the path ends in ``.lance``, otherwise a folder of Parquet files. Raises ParameterError."""
        place = Place.of(path)
        suffix = place.name.rpartition(".")[2].lower() if "." in place.name else ""
        if suffix in ("npy", "npz", "safetensors", "arrow", "feather", "csv", "jsonl", "h5", "hdf5"):
            raise ParameterError(
                f"Got {place.shown} for the output of an engine; expected a folder of Parquet files or a .lance data set. Pass a path without .{suffix}."
            )
        return cls(place, "lance" if suffix == "lance" else "parquet")

    @property
    def working(self) -> Place:
        """Folder of the journal and, for a local output, of the fragments until the output is complete."""
        return self.place.with_suffix(".partial")

    @property
    def journal(self) -> Place:
        """Folder of the journal."""
        return self.working.child("journal")

    @property
    def quarantine(self) -> Place:
        """Folder of the rows that were left out, until they are collected in one file."""
        return self.working.child("bad")

    @property
    def stage(self) -> Place:
        """Folder that fragments are written to."""
        return self.working.child("data") if self.place.local else self.place

    def prepare(self, source: Place, *, force: bool) -> None:
        """Check that the output may be written; with ``force``, an output that an engine wrote may be replaced."""
        output_path, source_path = f"{self.place.shown}/", f"{source.shown}/"
        if output_path.startswith(source_path) or source_path.startswith(output_path):
            raise ParameterError(
                f"Got the output {self.place.shown} and the input {source.shown}, which are the same or one inside the other; expected separate paths. Pass another output."
            )
        if self.place.local and not self.place.exists():
            return
        if not self.place.local and not self.is_finished():
            if self.working.child("journal").child("plan.json").exists() or not self.place.exists():
                return
            raise OutputExistsError(
                f"Got objects at {self.place.shown} that congruence did not write; expected none. Pass another output, or move the objects away."
            )
        if not self.is_finished():
            raise OutputExistsError(
                f"Got a file or folder at {self.place.shown} that congruence did not write; expected a free path. Pass another path, or move it away."
            )
        if self.place.local and not self.stage.exists():
            self.working.remove()  # left by a run that was killed after the output was published
        if not force:
            raise OutputExistsError(
                f"Got an output path that exists, {self.place.shown}; expected a new one. Pass force=True to replace it."
            )
        if not self.place.local and self.kind == "parquet":  # fragments with other names would remain
            self.place.remove()

    def is_finished(self) -> bool:
        """Return whether a complete output of this kind exists."""
        if self.kind == "lance":
            return bool(self.place.child("_versions").exists())
        content = self.place.child(MANIFEST).read() if self.place.exists() else None
        try:
            return content is not None and json.loads(content).get("format") == FORMAT
        except (ValueError, AttributeError):
            return False

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock a local output for this run. Object stores have no locks: there, two runs write the same names with the same content."""
        if not self.place.local:
            yield
            return
        folder = Path(self.working.uri)
        folder.mkdir(parents=True, exist_ok=True)
        message = f"Got {self.place.shown}, which another run is writing; expected one run at a time. Wait for it to finish, or pass another path."
        with locked(folder, message):
            yield
        with suppress(OSError):  # succeeds only if nothing was written
            folder.rmdir()

    def sizes(self) -> dict[str, int]:
        """Return the sizes of the fragments' files by path."""
        return self.stage.files() if self.kind == "parquet" else {}

    def publish(self, journal: Journal, schema: pa.Schema) -> None:
        """Write the manifest or commit the data set, and move a local output to its path."""
        receipts, sizes = journal.receipts(), self.sizes()
        lost = [receipt for receipt in receipts if receipt.path and sizes.get(receipt.path) != receipt.size]
        if lost or journal.pending():
            raise StorageError(
                f"Got {len(receipts) - len(lost)} of {len(journal.plan.fragments)} fragments in {self.stage.shown}; expected all of them, but the others were removed or changed "
                "during the run. Run this again, and make sure that no other program writes there."
            )
        if self.kind == "lance":
            self._commit(receipts, schema)
        else:
            written = [receipt for receipt in receipts if receipt.rows]
            known = {receipt.path for receipt in written}
            for path in sizes:  # remove the files of other plans, and of fragments without valid rows
                if path.endswith(".parquet") and path not in known:
                    self.stage.child(path).remove()
            files = [{"path": receipt.path, "rows": receipt.rows, "size": receipt.size} for receipt in written]
            manifest = {"format": FORMAT, "format_version": FORMAT_VERSION, "rows": journal.rows, "files": files}
            self.stage.child(MANIFEST).write(json.dumps(manifest).encode())
        if self.place.local:
            self.stage.drop_temporary()
            if self.place.exists():
                old = self.working.child("old")
                old.remove()
                self.place.move_to(old)
            self.stage.move_to(self.place)
        self.working.remove()

    def _commit(self, receipts: list[Receipt], schema: pa.Schema) -> None:
        lance = require("lance", extra="lance")
        from lance.fragment import FragmentMetadata

        uri, options = self.stage.lance
        written = [metadata for receipt in receipts for metadata in receipt.lance]
        fragments = [FragmentMetadata.from_json(json.dumps(metadata)) for metadata in written]
        lance.LanceDataset.commit(uri, lance.LanceOperation.Overwrite(schema, fragments), storage_options=options)
        known = {f"data/{file['path']}" for metadata in written for file in metadata["files"]}
        if self.place.local:  # remove the files of attempts that were killed or repeated
            for path in self.stage.files():
                if path.startswith("data/") and path not in known:
                    self.stage.child(path).remove()


def write_fragment(
    output: Output, name: str, layout: TableLayout, batches: Iterator[pa.RecordBatch], *, kept: bool
) -> Receipt:
    """Write one fragment of a job's output; a second attempt replaces the file of the first.

    ``batches``: if it raises an error, no file is left in place; ``kept``: whether the batches also contain other
    columns of the source. Returns: without the number of rows left out, which the caller adds.
    """
    if output.kind == "lance":
        return _write_lance(output, name, layout, batches)
    path = f"{name}.parquet"
    rows, size = write_parquet(output.stage.child(path), layout.schema, batches, **parquet_options(layout, kept=kept))
    return Receipt(name, rows, size=size, path=path if rows else "")


def write_parquet(
    place: Place, schema: pa.Schema, batches: Iterator[pa.RecordBatch], **options: object
) -> tuple[int, int]:
    """Write batches as one Parquet file, unless there are none; return its rows and bytes. Raises StorageError."""
    import pyarrow.parquet as pq

    first = next(batches, None)
    if first is None:
        place.remove()
        return 0, 0
    waiting, count, nbytes, rows = [first], len(first), first.nbytes, len(first)
    with place.writing() as file, pq.ParquetWriter(file, schema, **options) as writer:

        def write() -> None:
            writer.write_table(pa.Table.from_batches(waiting, schema), row_group_size=count)

        for batch in batches:
            if count >= _GROUP_ROWS or nbytes >= _GROUP_BYTES:
                write()
                waiting, count, nbytes = [], 0, 0
            waiting.append(batch)
            count, nbytes, rows = count + len(batch), nbytes + batch.nbytes, rows + len(batch)
        write()
        writer.close()
        size = file.tell()
    return rows, size


def _write_lance(output: Output, name: str, layout: TableLayout, batches: Iterator[pa.RecordBatch]) -> Receipt:
    require("lance", extra="lance")
    from lance.fragment import write_fragments

    rows = 0
    errors: list[BaseException] = []

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal rows
        try:
            for batch in batches:
                rows += len(batch)
                yield batch
        except BaseException as error:  # Arrow's stream would keep only its message
            errors.append(error)
            raise

    uri, options = output.stage.lance
    try:
        written = write_fragments(
            pa.RecordBatchReader.from_batches(layout.schema, counted()),
            uri,
            schema=layout.schema,
            mode="create",
            max_rows_per_file=2**31 - 1,
            max_bytes_per_file=2**62,
            storage_options=options,
        )
    except BaseException:
        if errors:
            raise errors[0] from None
        raise
    return Receipt(name, rows, lance=[metadata.to_json() for metadata in written] if rows else [])


def map_digest(arrays: dict[str, np.ndarray]) -> str:
    """Return the SHA-256 of a map's arrays, which identifies the map in the plan of a job."""
    digest = hashlib.sha256()
    for key in sorted(arrays):
        array = arrays[key]
        digest.update(f"{key} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
