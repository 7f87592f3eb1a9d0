"""Re-embed the rows of a migrated database that the map is least sure of, until the target quality is reached."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from congruence._utils.arrays import blocks
from congruence._utils.ids import id_rows, id_texts, same_ids
from congruence._utils.refusals import describe_refusal
from congruence._utils.typing import Ids, RowsLike
from congruence._utils.validation import as_matrix, check_choice
from congruence.compare.pairing import check_pairing
from congruence.databases import rows_of
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
from congruence.upgrade.migrate.migration import Migration, of_modality
from congruence.upgrade.migrate.native import EncodedRows, NativeRows, plan_folder, read_native, save_plan
from congruence.upgrade.migrate.passes import rows_per_block
from congruence.upgrade.progressive import Order, Progressive
from congruence.upgrade.progressive.progressive import SEARCHES

if TYPE_CHECKING:
    from congruence.upgrade.migrate.encode import Encode

ROWS_PER_UPDATE = 16_384  # number of re-embedded rows passed to a new plan at a time
CHUNK = 256  # number of rows encoded between two writes to disk, i.e. the most that is lost if the process is killed.
_CHECKED = 64  # fewest rows by which the order of an encoder's vectors is checked


def reembed(
    migration: Migration,
    encode: Encode,
    *,
    texts: RowsLike | None = None,
    new_texts: RowsLike | None = None,
    among: str | None = None,
    order: str | Order = "auto",
    search: str | None = None,
    size: int = 1000,
    budget: int | None = None,
    share: float | None = None,
    until: float | None = None,
    rows: Ids | None = None,
    remap: bool = True,
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
        A migration whose run is complete, preferably switched, so that readers benefit from each batch; files, which
        accept no writes after that, are re-embedded before.
    encode : callable
        Function from a list of at most 256 ids, as strings, to an array of shape (len(ids), dim_new).
    texts, new_texts, order, search, random_state, size, budget, share, until
        As for ``congruence.Progressive`` and its ``batches``; by default all rows are re-embedded.
    rows : ids, optional
        Re-embed these rows, in this order, instead of those that the plan chooses; deleted ones are skipped.
    remap : bool, default=True
        Map the other rows again whenever the map is refitted; otherwise the map stays until a call that does.
    among : str, optional
        Modality of the rows to re-embed, if the table has a column of modalities; others are not changed.
    callback, stage : callable, optional
        Called with the number of rows encoded, and with a sentence at each stage.

    Notes
    -----
    Old vectors are copied to a file in the journal's folder, which needs 4 bytes × rows × dimensions of disk space and
    is removed with the plan; memory contains only the ids, as strings, and what ``congruence.Progressive`` keeps.
    """
    tell = stage or (lambda words: None)
    if not migration.mapper.unit:
        raise ParameterError(
            "Batches are chosen by cosines of unit rows.", "Start the migration with `normalize=True`."
        )
    with migration._at_work("filled", "verified", "switched", "rolled back", to="re-embed") as journal:
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
        migration.database.check_unchanged()
        tell("reading the old vectors")
        table = _Table(migration, texts, new_texts, among, order, search, random_state, remap)
        table.save()
        tell("updating all rows to match the plan")
        plan, changed = table.plan, table.repair()
        if remap and len(waits := plan.remap()):
            table.unverify()
            table.save()
            table.write(id_rows(plan.ids, waits))
            migration._record(f"remapped {len(waits):,}")
            changed = True
        batches = (
            plan.batches(size, budget=budget, share=share, until=until) if rows is None else table.given(rows, size)
        )
        for batch in batches:
            table.encode(encode, batch, callback)
            fresh = table.known(batch)
            if not fresh.all():
                words = f"{np.count_nonzero(~fresh):,} rows have changed, but not their new vectors: they stay mapped"
                journal.log(words)
                tell(words)
            batch = batch[fresh]
            if not len(batch):
                continue
            table.unverify()
            update = plan.update(batch, table.encoded.take(batch.tolist()), refit=remap)
            table.save()
            table.write(np.concatenate([id_rows(plan.ids, batch), id_rows(plan.ids, update.remap)]))
            changed = True
            reading = plan.meter()
            migration._record(f"re-embedded {len(batch):,}, remapped {len(update.remap):,}; {reading}")
            tell(f"{reading}; {len(update.remap):,} rows mapped again")
        if changed:
            table.save(forecast=True)
        migration.retry(migration.database.build_index)  # also of what a killed process wrote
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
        search: str | None,
        random_state: int,
        refit: bool,
    ) -> None:
        self.migration = migration
        plans = read_native(migration.folder, migration.mapper.map)
        if among is None and len(plans) > 1:
            names = sorted(filter(None, plans))
            raise ParameterError(f"Rows of {', '.join(names)} were re-embedded apart.", f"Pass `among={names[0]!r}`.")
        before = among if among in plans or None not in plans else None  # a plan of all rows had them too
        before = next(iter(plans), None) if among is None else before
        native, facts = plans.get(before, (None, {}))
        self.among = before if among is None else among
        self.path = plan_folder(migration.folder, self.among)
        if native is not None:
            self.path = facts["folder"]
        self.modality = self.among or migration.mapper.modality
        self.ids, self.digests, old = self._read_old(facts.get("ids"))
        inputs: dict[str, Any] = {"texts": texts, "new_texts": new_texts}
        if texts is None and new_texts is None:
            inputs = {name: facts.get(name) for name in inputs}
        store = Embeddings(old, ids=id_texts(self.ids.to_pylist()), allow_zero_rows=True)
        mapping, plan = migration.mapper.map.for_modality(self.modality), None
        self.encoded, same = EncodedRows(migration.folder, migration.mapper.dim), np.empty(0, bool)
        if native is not None:
            place = id_rows(store.ids, native.ids)
            same = (place >= 0) & (self.digests[place] == native.digests)
            self.encoded.keep(native, np.flatnonzero((place >= 0) & ~same))  # to know the vector when it comes again
            if same.all() and same_ids(store.ids, facts["ids"]):
                with suppress(CorruptFileError):  # the vectors or texts have changed since then
                    state, folder = facts["state"], facts["folder"]
                    plan = Progressive.from_state(state, mapping, store, folder=folder, order=order, **inputs)
        self.checked = False  # whether the order of the encoder's vectors was
        search = check_choice(search or (plan.search if plan else SEARCHES[0]), SEARCHES, "search")
        self.plan = plan or Progressive(mapping, store, order=order, random_state=random_state, **inputs)
        self.plan.search = search
        self.texts: tuple[np.ndarray, np.ndarray] | None = None
        if inputs["texts"] is not None:
            ours, theirs = (as_embeddings(inputs[name], name).vectors for name in inputs)
            self.texts = ours, theirs
        if native is None:  # left over from a migration that was discarded
            names = self.plan.ids[self.known(self.plan.ids)]
            self._update(names, lambda part: self.encoded.take(names[part].tolist()), refit)
        elif plan is None:  # the rows have changed: start a new plan from those re-embedded so far
            self._mark()
            left = np.flatnonzero(same)
            self._update(native.ids[left], lambda part: native.take(left[part]))

    def _update(self, names: np.ndarray, take: Callable[[slice], np.ndarray], refit: bool = True) -> None:
        """Give the plan rows that are re-embedded already."""
        for part in blocks(len(names), 1, budget=ROWS_PER_UPDATE):
            self.plan.update(names[part], take(part), refit=refit)

    def _read_old(self, known: np.ndarray | None) -> tuple[pa.Array, np.ndarray, np.ndarray]:
        """Return ids, digests and old vectors, as a memory map, of the rows to re-embed, in the order of known ids.

        Some databases change the order of their rows after writes.
        """
        migration, among, dim = self.migration, self.among, self.migration.info.dim
        ids: list[pa.Array] = []
        digests: list[np.ndarray] = []
        seen: set[str] = set()

        def rows() -> Iterator[np.ndarray]:
            ids.clear()
            digests.clear()
            for block in migration.database.scan("old", batch=rows_per_block(dim)):
                if among is None and block.modalities is not None:
                    seen.update(block.modalities.unique().to_pylist())
                kept = np.flatnonzero(of_modality(block, among))
                # A copy, because a slice of the client's column would keep its whole batch in memory.
                names, vectors = block.ids.take(pa.array(kept)), block.vectors[kept]
                ids.append(names)
                digests.append(hashes(names, vectors))
                yield migration.mapper.rows(vectors)

        old = migration.retry(lambda: _scratch(migration.folder, rows(), dim))
        if len(seen) > 1:
            raise ParameterError(
                f"The table has rows of {', '.join(sorted(seen))}; one is re-embedded at a time.",
                f"Pass `among={sorted(seen)[0]!r}`, for example.",
            )
        if len(old) < 2:
            raise ParameterError(
                f"Got {len(old)} rows{'' if among is None else f' of {among}'}; expected at least 2.",
                "Pass another `among=…`.",
            )
        names, digest = pa.concat_arrays(ids), np.concatenate(digests)
        if known is not None and len(known) == len(names):
            place = id_rows(id_texts(names.to_pylist()), known)
            if (place >= 0).all() and (place != np.arange(len(place))).any():
                ordered = (old[place[part]] for part in blocks(len(place), 4 * dim))
                return names.take(pa.array(place)), digest[place], _scratch(migration.folder, ordered, dim)
        return names, digest, old

    def save(self, *, forecast: bool = False) -> None:
        """Save the plan in the journal's folder, and pass its vectors and maps to the migration."""
        plan, new = self.plan, self.plan.new_vectors
        native = NativeRows(plan.ids[new.rows], self.digests[new.rows], new, plan.refit, plan.correction_, self.among)
        if self.among is not None:
            self.migration.mapper.native.pop(None, None)
        self.migration.mapper.native[self.among] = native
        save_plan(plan, self.path, native.digests, self.among, self.modality, self.texts, forecast=forecast)
        self.encoded.forget(plan.ids[plan.embedded].tolist())

    def given(self, rows: Ids, size: int) -> Iterator[np.ndarray]:
        """Yield batches of these ids, without those of rows that are gone or re-embedded already."""
        at = id_rows(self.plan.ids, id_texts(list(rows)))
        at = at[at >= 0]
        left = self.plan.ids[at[~self.plan.embedded[at]]]
        for part in blocks(len(left), 1, size, 1):
            yield left[part]

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
            if vectors.dtype != np.float32:
                with np.errstate(over="ignore"):  # what float32 cannot hold is refused, before it is kept
                    vectors = as_matrix(vectors.astype(np.float32), "encode", ids=ids)
            if vectors.shape != (len(ids), dim):
                raise ShapeError(
                    f"Got vectors of shape {vectors.shape} from encode; expected ({len(ids)}, {dim}).",
                    "Return one vector of the new model per id, in the same order.",
                )
            self._check_order(ids, vectors)
            new = np.array([not self.encoded.holds(name, row) for name, row in zip(ids, vectors, strict=True)])
            digests = self.digests[id_rows(self.plan.ids, ids[new])]
            self.encoded.add(ids[new].tolist(), digests, vectors[new])
            if callback is not None:
                callback(len(ids))

    def _check_order(self, ids: np.ndarray, vectors: np.ndarray) -> None:
        """Raise MigrationError if the first chunk of vectors is certainly not of these rows, before any is kept."""
        if self.checked or len(ids) < _CHECKED or self.migration._journal().allow_unknown:
            return
        self.checked = True
        if (vectors == vectors[0]).all():
            raise MigrationError(f"encode returned one vector for all of {len(ids)} rows.", "Check what it reads.")
        report = check_pairing(self.plan.stored(id_rows(self.plan.ids, ids)), vectors)
        if report.state in ("not paired", "shifted"):
            raise MigrationError(
                f"The vectors from encode do not belong to these rows. {report.sentence}",
                "Return one vector of the new model per id, in the same order.",
            )

    def write(self, rows: np.ndarray) -> None:
        """Write the plan's current vectors of these rows to the database, except those that the application wrote."""
        migration, database, marks = self.migration, self.migration.database, self.migration.marks
        retry, new = migration.retry, migration.mapper.new
        for part in np.split(rows, range(step := rows_per_block(migration.mapper.dim), len(rows), step)):
            names = self.ids.take(pa.array(part))
            if marks is not None:  # also what it wrote while rows were encoded
                ours = ~retry(self._theirs, names)
                part, names = part[ours], names.filter(pa.array(ours))
            if not len(part):
                continue
            vectors = self.plan.stored(part)
            retry(database.write, names, new.encode(vectors))
            if marks is not None:  # as they are read back
                retry(database.flush)
                stored = retry(database.fetch, names, "new")
                ours = ~new.differs(stored.vectors, database.as_stored(vectors[rows_of(stored.ids, names)]))
                marks.add(marks.digests(stored.ids.filter(pa.array(ours)), stored.vectors[ours]))
        retry(database.flush)
        if marks is not None:
            marks.write(migration.folder)

    def _theirs(self, names: pa.Array) -> np.ndarray:
        """Return which rows have a new vector that the application wrote after a switch, bool of shape (b,)."""
        found, marks = np.zeros(len(names), bool), self.migration.marks
        assert marks is not None
        old, new = (self.migration.database.fetch(names, side) for side in ("old", "new"))
        place = rows_of(old.ids, new.ids)
        both = place >= 0
        ids = old.ids.filter(pa.array(both))
        found[rows_of(ids, names)] = marks.theirs(ids, old.vectors[both], new.vectors[place[both]])
        return found

    def _mark(self) -> dict[str, Any]:
        """Return what differs from the last saved plan, and mark the other vectors as ours, also after a kill."""
        found = replace(self.migration.passes, engine=None).repair(marks=self.migration.marks, write=False)
        if (marks := self.migration.marks) is not None:
            marks.add(found["marks"])
            marks.write(self.migration.folder)
        return found

    def repair(self) -> bool:
        """Write all rows that differ from the plan, if they fit the map; return whether there were any."""
        found = self._mark()
        if changed := bool(found["written"]):
            self.migration._judge(found["sample"])
            self.unverify()
            replace(self.migration.passes, engine=None).repair(marks=self.migration.marks)
            if self.migration.marks is not None:
                self._mark()  # reads back what was written
        return changed

    def unverify(self) -> None:
        """Record, before rows are written, that the new vectors are not those that were verified."""
        journal = self.migration._journal()
        if journal.state in ("verified", "rolled back"):
            journal.state = "filled"
            journal.write(self.migration.folder)


def _scratch(folder: Path, rows: Iterable[np.ndarray], dim: int) -> np.ndarray:
    """Return rows as a memory map of a file without a name, which the system removes with it."""
    n = 0
    try:
        with tempfile.TemporaryFile(dir=folder, suffix=".tmp") as out:
            for block in rows:
                out.write(np.ascontiguousarray(block, np.float32).data)
                n += len(block)
            out.flush()
            return np.memmap(out, np.float32, "r", shape=(n, dim)) if n else np.empty((0, dim), np.float32)
    except OSError as error:
        if isinstance(error, CongruenceError | ConnectionError | TimeoutError) or error.errno is None:
            raise  # the database's own
        raise StorageError(describe_refusal(error, f"from the disk while writing to {folder}")) from error
