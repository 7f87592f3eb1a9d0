"""Re-embed the rows of a migrated database that the map is least sure of, until the target quality is reached."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeAlias, cast

import numpy as np
import pyarrow as pa

from congruence._utils.arrays import blocks
from congruence._utils.ids import id_rows, id_texts, same_ids
from congruence._utils.refusals import describe_refusal
from congruence._utils.typing import RowsLike
from congruence._utils.validation import as_matrix
from congruence.embeddings import Embeddings, as_embeddings
from congruence.errors import (
    CongruenceError,
    CorruptFileError,
    MigrationError,
    ParameterError,
    ShapeError,
    StorageError,
)
from congruence.upgrade.migrate.journal import hashes
from congruence.upgrade.migrate.migration import Migration
from congruence.upgrade.migrate.native import EncodedRows, NativeRows, read_native, save_plan
from congruence.upgrade.migrate.passes import rows_per_block
from congruence.upgrade.migrate.written import Marks
from congruence.upgrade.progressive import Order, Progressive

#: Function from row ids to the new model's vectors of these rows, array_like of shape (len(ids), d_new).
Encode: TypeAlias = Callable[[list[str]], RowsLike]

#: Maximum size in bytes of old vectors that are kept in memory with the mapped rows; larger ones are copied to a file
#: next to the journal.
IN_MEMORY = 64 * 2**20

SCRATCH = "old-vectors.tmp"  # name of that file, which is unlinked right after it is opened if the system allows this
ROWS_PER_UPDATE = 65_536  # number of re-embedded rows passed to a new plan at a time
CHUNK = 256  # number of rows encoded between two writes to disk, i.e. the most that is lost if the process is killed.


def reembed(
    migration: Migration,
    encode: Encode,
    *,
    texts: RowsLike | None = None,
    new_texts: RowsLike | None = None,
    among: str | None = None,
    order: str | Order = "auto",
    size: int = 1000,
    budget: int | None = None,
    share: float | None = None,
    until: float | None = None,
    random_state: int = 0,
    callback: Callable[[int], object] | None = None,
    stage: Callable[[str], object] | None = None,
) -> Progressive:
    """Encode the rows that the map is least sure of with the new model, refit the map, and map the others again.

    After each batch the database holds the new model's own vectors for the rows encoded so far, and mapped vectors for
    the others, which are written again when the map is refitted. Search stays available. All state is in the journal's
    folder: if the process is killed, call the function again to resume; rows already saved are not encoded again.

    Parameters
    ----------
    migration : Migration
        A migration whose run is complete, preferably switched, so that readers benefit from each batch.
    encode : callable
        Function from a list of ids, as strings, to an array of shape (len(ids), dim_new); called with at most 256 ids
        at a time.
    texts, new_texts : array_like, shapes (m, dim_old) and (m, dim_new), optional
        The same texts in both models: a vocabulary, tags or a query log. See
        ``congruence.upgrade.progressive.Progressive``.
    among : str, optional
        Modality of the rows to re-embed, if the table has a column of modalities; rows of other modalities are not
        changed.
    order, random_state
        As for ``congruence.upgrade.progressive.Progressive``.
    size, budget, share, until
        Rows per batch, and when to stop, as for ``Progressive.batches``; by default all rows are re-embedded.
    callback : callable, optional
        Called with the number of rows encoded.
    stage : callable, optional
        Called with a sentence at each stage.

    Raises
    ------
    MigrationError
        If the run is not complete, or the database is switched and does not accept writes after that (files).
    DatabaseUnavailableError, CorruptFileError
        If the database, the disk or the journal fails.

    Notes
    -----
    Up to 64 MB of old vectors are kept in memory twice, together with the mapped vectors. Larger tables are copied to a
    file next to the journal, which needs 4 bytes × rows × dimensions of disk space and is removed with the plan; memory
    then contains only the ids, as strings, and what ``congruence.Progressive`` keeps for a stream.
    """
    tell = stage or (lambda words: None)
    if not migration.mapper.unit:
        raise ParameterError(
            "Batches are chosen by cosines of unit rows.", "Start the migration with `normalize=True`."
        )
    with migration._at_work() as journal:
        journal.require_state("filled", "verified", "switched", "rolled back", to="re-embed")
        if journal.condition is not None:
            raise MigrationError(
                "This migration is of some rows, and re-embedding chooses among all.", "Migrate all rows first."
            )
        if journal.state == "switched" and not migration.database.capabilities.writes_after_switch:
            raise MigrationError(
                f"This migration is switched, and {migration.database.kind} keeps the new vectors in one "
                "complete file.",
                "Roll back, re-embed, then verify and switch.",
            )
        tell("reading the old vectors")
        table = _Table(migration, texts, new_texts, among, order, random_state)
        table.save()
        tell("updating all rows to match the plan")
        plan, changed = table.plan, table.repair()
        for batch in plan.batches(size, budget=budget, share=share, until=until):
            table.encode(encode, batch, callback)
            fresh = table.known(batch)
            if not fresh.all():
                words = f"{np.count_nonzero(~fresh):,} rows have changed, but not their new vectors: they stay mapped"
                journal.log(words)
                tell(words)
            batch = batch[fresh]
            if not len(batch):
                continue
            update = plan.update(batch, table.encoded.take(batch.tolist()))
            table.save()
            table.write(np.concatenate([id_rows(plan.ids, batch), id_rows(plan.ids, update.remap)]))
            changed = True
            reading = plan.meter()
            journal.log(f"re-embedded {len(batch):,}, remapped {len(update.remap):,}; {reading}")
            journal.write(migration.folder)
            tell(f"{reading}; {len(update.remap):,} rows mapped again")
        if changed:
            table.save(forecast=True)
            migration.retry(migration.database, migration.database.build_index)
            if journal.state in ("verified", "rolled back"):
                journal.state = "filled"
            journal.write(migration.folder)
    return plan


class _Table:
    """The rows of a migration and their plan, kept equal in memory, in the journal's folder and in the database."""

    def __init__(
        self,
        migration: Migration,
        texts: RowsLike | None,
        new_texts: RowsLike | None,
        among: str | None,
        order: str | Order,
        random_state: int,
    ) -> None:
        self.migration = migration
        saved = read_native(migration.folder, migration.mapper.map)
        facts = saved[1] if saved else {}
        self.among = facts["among"] if facts and among is None else among
        self.modality = self.among or migration.mapper.modality
        self.ids, self.digests, old = _read_side(migration, self.among)
        if facts:
            self.ids, self.digests, old = _in_order(migration, self.ids, self.digests, old, facts["ids"])
        inputs: dict[str, Any] = {"texts": texts, "new_texts": new_texts}
        if texts is None and new_texts is None:
            inputs = {name: facts.get(name) for name in inputs}
        store = Embeddings(old, ids=id_texts(self.ids.to_pylist()), allow_zero_rows=True)
        mapping, plan = migration.mapper.map.for_modality(self.modality), None
        self.encoded, same = EncodedRows(migration.folder, migration.mapper.dim), np.empty(0, bool)
        if saved is not None:
            place = id_rows(store.ids, saved[0].ids)
            same = (place >= 0) & (self.digests[place] == saved[0].digests)
            self.encoded.keep(saved[0], np.flatnonzero((place >= 0) & ~same))  # to know the vector when it comes again
        if facts and same.all() and same_ids(store.ids, facts["ids"]):
            with suppress(CorruptFileError):  # the vectors or texts have changed since then
                state, folder = facts["state"], facts["folder"]
                plan = Progressive.from_state(state, mapping, store, folder=folder, order=order, **inputs)
        self.plan = plan or Progressive(mapping, store, order=order, random_state=random_state, **inputs)
        if saved and plan is None:  # the rows have changed: start a new plan from those re-embedded so far
            native, remaining = saved[0], np.flatnonzero(same)
            for start in range(0, len(remaining), ROWS_PER_UPDATE):
                part = remaining[start : start + ROWS_PER_UPDATE]
                self.plan.update(native.ids[part], native.take(part))
        self.texts: tuple[np.ndarray, np.ndarray] | None = None
        if inputs["texts"] is not None:
            ours, theirs = (as_embeddings(inputs[name], name).vectors for name in inputs)
            self.texts = ours, theirs
        if not facts:  # left over from a migration that was discarded
            names = self.plan.ids[self.known(self.plan.ids)]
            for start in range(0, len(names), ROWS_PER_UPDATE):
                part = names[start : start + ROWS_PER_UPDATE]
                self.plan.update(part, self.encoded.take(part.tolist()))

    def save(self, *, forecast: bool = False) -> None:
        """Save the plan in the journal's folder, and pass its vectors and maps to the migration."""
        native = self.migration.mapper.native = NativeRows.of(self.plan, self.digests, self.among)
        facts = native.digests, self.among, self.modality, self.texts
        save_plan(self.plan, self.migration.folder, *facts, forecast=forecast)
        self.encoded.forget(self.plan.ids[self.plan.embedded].tolist())

    def known(self, ids: np.ndarray) -> np.ndarray:
        """Return which rows are encoded as they are now, bool of shape (b,)."""
        return self.encoded.has(ids.tolist(), self.digests[id_rows(self.plan.ids, ids)])

    def encode(self, encode: Encode, batch: np.ndarray, callback: Callable[[int], object] | None) -> None:
        """Encode the rows of a batch that are not known.

        A row that has changed stays unknown if the encoder returns its earlier vector, as from a file of that time.
        """
        missing, dim = batch[~self.known(batch)], self.migration.mapper.dim
        for start in range(0, len(missing), CHUNK):
            ids = missing[start : start + CHUNK]
            vectors = as_matrix(encode(ids.tolist()), "encode", ids=ids)
            if vectors.shape != (len(ids), dim):
                raise ShapeError(
                    f"Got vectors of shape {vectors.shape} from encode; expected ({len(ids)}, {dim}).",
                    "Return one vector of the new model per id, in the same order.",
                )
            new = np.array([not self.encoded.holds(name, row) for name, row in zip(ids, vectors, strict=True)])
            digests = self.digests[id_rows(self.plan.ids, ids[new])]
            self.encoded.add(ids[new].tolist(), digests, vectors[new].astype(np.float32))
            if callback is not None:
                callback(len(ids))

    def write(self, rows: np.ndarray) -> None:
        """Write the plan's current vectors of these rows to the database, except those that the application wrote."""
        migration = self.migration
        database, marks, step = migration.database, migration.marks, rows_per_block(migration.mapper.dim)
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            names = self.ids.take(pa.array(part))
            if marks is not None:  # also what it wrote while rows were encoded
                theirs = migration.retry(database, partial(self._theirs, names))
                part, names = part[~theirs], names.filter(pa.array(~theirs))
                if not len(part):
                    continue
            vectors = self.plan.stored(part)
            migration.retry(database, partial(database.write, names, migration.mapper.new.encode(vectors)))
            if marks is not None:  # as they are read back
                migration.retry(database, database.flush)
                stored = migration.retry(database, partial(database.fetch, names, "new"))
                wanted = database.as_stored(vectors[_places(names, stored.ids)])
                ours = ~migration.mapper.new.differs(stored.vectors, wanted)
                marks.add(hashes(stored.ids.filter(pa.array(ours)), stored.vectors[ours]))
        migration.retry(database, database.flush)
        if marks is not None:
            marks.write(migration.folder)

    def _theirs(self, names: pa.Array) -> np.ndarray:
        """Return which rows have a new vector that the application wrote after a switch, bool of shape (b,)."""
        marks = cast(Marks, self.migration.marks)
        old, new = (self.migration.database.fetch(names, side) for side in ("old", "new"))
        place = _places(new.ids, old.ids)
        both, found = place >= 0, np.zeros(len(names), bool)
        ids = old.ids.filter(pa.array(both))
        found[_places(names, ids)] = marks.theirs(ids, old.vectors[both], new.vectors[place[both]])
        return found

    def repair(self) -> bool:
        """Write all rows that differ from the plan, if they fit the map; return whether there were any."""
        migration, marks = self.migration, self.migration.marks
        passes = replace(migration.passes, engine=None)
        found = passes.repair(marks=marks, write=False)
        changed = bool(found["written"])
        if changed:
            migration._judge(found["sample"])
            found = passes.repair(marks=marks)
            if marks is not None:
                found = passes.repair(marks=marks)  # reads back what was written
        if marks is not None:
            marks.add(found["marks"])
            marks.write(migration.folder)
        return changed


def _places(ids: pa.Array, wanted: pa.Array) -> np.ndarray:
    """Return the position of each wanted id, −1 if it is not there."""
    return id_rows(id_texts(ids.to_pylist()), id_texts(wanted.to_pylist()))


def _read_side(migration: Migration, among: str | None) -> tuple[pa.Array, np.ndarray, np.ndarray]:
    """Return ids, digests and old vectors of the rows to re-embed; vectors of large tables as a memory map."""
    ids: list[pa.Array] = []
    digests: list[np.ndarray] = []
    rows: list[np.ndarray] = []
    seen: set[str] = set()
    info, path = migration.info, migration.folder / SCRATCH
    large = 4 * info.rows * info.dim > IN_MEMORY

    def pass_over(out: IO[bytes] | None) -> None:
        ids.clear()
        digests.clear()
        rows.clear()
        if out is not None:
            out.seek(0)
            out.truncate()
        for block in migration.database.scan("old", batch=rows_per_block(info.dim)):
            # A copy, because a slice of the client's column would keep its whole batch in memory, vectors included.
            names, vectors = block.ids.take(pa.array(np.arange(len(block.ids)))), block.vectors
            if among is None:
                seen.update([] if block.modalities is None else block.modalities.unique().to_pylist())
            elif block.modalities is None:
                raise ParameterError(
                    f"Got `among={among!r}`, but no such column.", "Pass `modality_column=…`, or leave out `among=…`."
                )
            else:
                kept = np.array([name == among for name in block.modalities.to_pylist()], bool)
                names, vectors = names.filter(pa.array(kept)), vectors[kept]
            ids.append(names)
            digests.append(hashes(names, vectors))
            vectors = np.ascontiguousarray(migration.mapper.rows(vectors), np.float32)
            if out is None:
                rows.append(vectors)
            else:
                out.write(vectors.tobytes())

    if large:
        with _removed_on_error(path), open(path, "wb") as out:
            migration.retry(migration.database, lambda: pass_over(out))
    else:
        migration.retry(migration.database, lambda: pass_over(None))
    n = sum(map(len, ids))
    if len(seen) > 1:
        raise ParameterError(
            f"The table has rows of {', '.join(sorted(seen))}; one is re-embedded at a time.",
            f"Pass `among={sorted(seen)[0]!r}`, for example.",
        )
    if n < 2:
        raise ParameterError(
            f"Got {n} rows{'' if among is None else f' of {among}'}; expected at least 2.", "Pass another `among=…`."
        )
    old = _memory_map(path, n, info.dim) if large else np.concatenate(rows)
    return pa.concat_arrays(ids), np.concatenate(digests), old


def _memory_map(path: Path, n: int, dim: int) -> np.ndarray:
    """Return the rows of a file, which is removed when they are no longer used."""
    rows = np.memmap(path, np.float32, "r", shape=(n, dim))
    with suppress(OSError):  # some systems cannot remove an open file
        path.unlink()
    return rows


def _in_order(
    migration: Migration, ids: pa.Array, digests: np.ndarray, old: np.ndarray, known: np.ndarray
) -> tuple[pa.Array, np.ndarray, np.ndarray]:
    """Return the rows in the order of a plan with the same rows, since some databases change the order after writes."""
    names = id_texts(ids.to_pylist())
    place = id_rows(names, known)
    if len(names) != len(known) or (place < 0).any() or (place == np.arange(len(place))).all():
        return ids, digests, old
    ids, digests = ids.take(pa.array(place)), digests[place]
    if not isinstance(old, np.memmap):
        return ids, digests, old[place]
    path = migration.folder / f"ordered-{SCRATCH}"
    with _removed_on_error(path), open(path, "wb") as out:
        for part in blocks(len(place), 4 * old.shape[1]):
            out.write(old[place[part]].tobytes())
    return ids, digests, _memory_map(path, *old.shape)


@contextmanager
def _removed_on_error(path: Path) -> Iterator[None]:
    """Translate write errors of the disk, and remove the file after an error."""
    try:
        yield
    except BaseException as error:
        path.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None and not isinstance(error, CongruenceError):
            raise StorageError(describe_refusal(error, f"from the disk while writing {path}")) from error
        raise
