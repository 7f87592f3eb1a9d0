"""The output of a job: written fragment by fragment, and moved into place as a whole at the end."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from congruence._utils.lock import locked
from congruence._utils.optional import require
from congruence.engines.journal import Journal, Receipt
from congruence.engines.places import Place
from congruence.errors import OutputExistsError, ParameterError, StorageError
from congruence.stores.layout import TableLayout, parquet_options

__all__ = ["MANIFEST", "Output", "map_digest", "write_fragment", "write_parquet"]

#: Names the files of a finished output; what reads a folder of Parquet passes over names with an underscore.
MANIFEST = "_manifest.json"

FORMAT, FORMAT_VERSION = "congruence-dataset", 1

#: Rows, and bytes of vectors, of a row group.
_GROUP_ROWS, _GROUP_BYTES = 65_536, 64 * 2**20


@dataclass(frozen=True)
class Output:
    """The place a job writes to.

    A local output stands in ``<out>.partial`` until it is whole, and is then renamed. An object store cannot rename: there fragments are
    written in place, and the manifest, or for Lance the commit of the data set, says that they are all there.

    Attributes
    ----------
    place : Place
    kind : str
        "parquet" or "lance".
    """

    place: Place
    kind: str

    @classmethod
    def of(cls, path: str) -> Output:
        """Return the output that a path names: a data set of Lance by its suffix, else a folder of Parquet. Raises ParameterError."""
        place = Place.of(path)
        suffix = place.name.rpartition(".")[2].lower() if "." in place.name else ""
        if suffix in ("npy", "npz", "safetensors", "arrow", "feather", "csv", "jsonl", "h5", "hdf5"):
            raise ParameterError(
                f"Got {place.shown} for the output of an engine; expected a folder of Parquet, or a .lance data set. Pass a path without .{suffix}."
            )
        return cls(place, "lance" if suffix == "lance" else "parquet")

    @property
    def working(self) -> Place:
        """Folder of the journal and, on a local disk, of the output until it is whole."""
        return self.place.beside(".partial")

    @property
    def journal(self) -> Place:
        """Folder of the journal."""
        return self.working.child("journal")

    @property
    def quarantine(self) -> Place:
        """Folder of the rows that were left out, until they are put together."""
        return self.working.child("bad")

    @property
    def stage(self) -> Place:
        """Where fragments are written."""
        return self.working.child("data") if self.place.local else self.place

    def prepare(self, source: Place, *, force: bool) -> None:
        """Refuse an output that must not be written; with ``force`` one of ours may be replaced.

        Raises
        ------
        ParameterError
            The output is what is read, or lies in it, or around it.
        OutputExistsError
            If the output already exists.
        """
        ours, theirs = f"{self.place.shown}/", f"{source.shown}/"
        if ours.startswith(theirs) or theirs.startswith(ours):
            raise ParameterError(
                f"Got an output that is what is read, or lies in or around it: {self.place.shown} and {source.shown}; expected another place. Choose another name."
            )
        if self.place.local and not self.place.exists():
            return
        if not self.place.local and not self.is_finished():
            if self.working.child("journal").child("plan.json").exists() or not self.place.exists():
                return
            raise OutputExistsError(
                f"Got objects at {self.place.shown} that no job of this library wrote; expected none. Pass another output, or move them away."
            )
        if not self.is_finished():
            raise OutputExistsError(
                f"Got a folder at {self.place.shown} that no engine wrote; expected a free path. Pass another path, or move the folder away."
            )
        if self.place.local and not self.stage.exists():
            self.working.remove()  # of a run that was killed after its last step
        if not force:
            raise OutputExistsError(
                f"Got an output path that exists, {self.place.shown}; expected a new one. Pass force=True to replace it."
            )
        if not self.place.local and self.kind == "parquet":  # fragments of other names would stay
            self.place.remove()

    def is_finished(self) -> bool:
        """Return whether there is a complete output of this kind."""
        if self.kind == "lance":
            return bool(self.place.child("_versions").exists())
        content = self.place.child(MANIFEST).read() if self.place.exists() else None
        try:
            return content is not None and json.loads(content).get("format") == FORMAT
        except (ValueError, AttributeError):
            return False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep a local output for this run; an object store knows no locks, and there two runs write the same names with the same content.

        Raises
        ------
        FileError
            Another run is at work.
        """
        if not self.place.local:
            yield
            return
        folder = Path(self.working.uri)
        folder.mkdir(parents=True, exist_ok=True)
        message = f"Got an output that another run writes, {self.place.shown}; expected one run. Wait for it, or pass another path."
        with locked(folder, message):
            yield
        with suppress(OSError):  # of a run that has not begun
            folder.rmdir()

    def sizes(self) -> dict[str, int]:
        """Return the sizes of the fragments' files by path."""
        return self.stage.files() if self.kind == "parquet" else {}

    def publish(self, journal: Journal, schema: pa.Schema) -> None:
        """Put the output into its place.

        Raises
        ------
        StorageError
            A fragment is missing; or the disk refuses.
        """
        receipts, sizes = journal.receipts(), self.sizes()
        gone = [one.path for one in receipts if one.path and sizes.get(one.path) != one.size]
        if gone or journal.pending():
            raise StorageError(
                f"Got {len(receipts) - len(gone)} of {len(journal.plan.fragments)} fragments in {self.stage.shown}; expected all of them: others were removed or changed "
                "meanwhile. Run this again, with nothing else at work there."
            )
        if self.kind == "lance":
            self._commit(receipts, schema)
        else:
            known = {one.path for one in receipts if one.rows}
            for path in sizes:
                if (
                    path.endswith(".parquet") and path not in known
                ):  # of another plan, or of a fragment that was all bad
                    self.stage.child(path).remove()
            files = [{"path": one.path, "rows": one.rows, "size": one.size} for one in receipts if one.rows]
            facts = {"format": FORMAT, "format_version": FORMAT_VERSION, "rows": journal.rows, "files": files}
            self.stage.child(MANIFEST).write(json.dumps(facts).encode())
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
        fragments = [FragmentMetadata.from_json(json.dumps(one)) for receipt in receipts for one in receipt.lance]
        lance.LanceDataset.commit(uri, lance.LanceOperation.Overwrite(schema, fragments), storage_options=options)
        known = {f"data/{file['path']}" for receipt in receipts for one in receipt.lance for file in one["files"]}
        if self.place.local:  # what attempts left that were killed, or done twice
            for path in self.stage.files():
                if path.startswith("data/") and path not in known:
                    self.stage.child(path).remove()


def write_fragment(
    output: Output, name: str, layout: TableLayout, batches: Iterator[pa.RecordBatch], *, kept: bool
) -> Receipt:
    """Write the fragment of a job's output that a task has made; a second attempt replaces what the first has written.

    Parameters
    ----------
    output : Output
    name : str
    layout : TableLayout
    batches : iterator of pyarrow.RecordBatch
        What it raises leaves nothing in place.
    kept : bool
        Columns of a source are in it.

    Returns
    -------
    Receipt
        Without the rows that were left out.

    Raises
    ------
    StorageError
        If the output cannot be written.
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
    raised: list[BaseException] = []

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal rows
        try:
            for batch in batches:
                rows += len(batch)
                yield batch
        except BaseException as error:  # Arrow's stream would hand it on as text
            raised.append(error)
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
        if raised:
            raise raised[0] from None
        raise
    return Receipt(name, rows, lance=[one.to_json() for one in written] if rows else [])


def map_digest(arrays: dict[str, Any]) -> str:
    """Return the SHA-256 of a map's arrays, by which a job knows its map."""
    found = hashlib.sha256()
    for key in sorted(arrays):
        array = arrays[key]
        found.update(f"{key} {array.dtype} {array.shape}".encode())
        found.update(array.tobytes())
    return found.hexdigest()
