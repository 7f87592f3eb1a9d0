"""Migrate the vectors of a database in repeatable steps: plan, write, verify, switch and roll back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from typing import Any, Self, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike

from congruence import errors
from congruence._utils.atomic import locked, remove_folder
from congruence._utils.engine import Engine
from congruence._utils.ids import id_texts, is_in
from congruence._utils.typing import RowsLike
from congruence._utils.validation import check_choice, check_positive
from congruence.databases import Block, Database, Stage, bytes_a_row, open_database
from congruence.embeddings import Embeddings, Pairs, as_embeddings
from congruence.evaluation.judgments import judge
from congruence.evaluation.thresholds import Thresholds, fit_thresholds
from congruence.maps import Map, load
from congruence.upgrade.migrate.journal import (
    DROPPING,
    PROGRESSIVE,
    Journal,
    check_folder,
    default_folder,
    make_folder,
    summarize,
)
from congruence.upgrade.migrate.mapper import RowMapper, all_bad_rows, judge_rows, misfit
from congruence.upgrade.migrate.passes import (
    EARLIER_DIGITS,
    PASSES,
    RANGE_BYTES,
    Passes,
    Retry,
    paced,
    rows_per_block,
)
from congruence.upgrade.migrate.plan import Plan, make_plan, refuse
from congruence.upgrade.migrate.quantize import Quantizer
from congruence.upgrade.migrate.verify import Verification, read_sample, verify
from congruence.upgrade.migrate.written import Marks, NewRows, Written, find_written, keep_written, map_back
from congruence.upgrade.transform import map_digest


class Migration:
    """A migration of a database's vectors to a new model's space; a context manager.

    The steps are ``plan``, ``run``, ``verify``, ``switch``, and then ``rollback`` or ``drop_old``. Old and new vectors
    coexist, and the old ones are kept until ``drop_old``. Progress is recorded in a journal, a folder that also stores
    the map: a run that was killed can be resumed, and later steps need only the database and this folder.

    Parameters
    ----------
    database : Database
        From ``congruence.databases.open_database``.
    mapping : Map, optional
        From the old model's space to the new one's; by default the map stored in the journal.
    journal : path-like, optional
        Folder of the journal; by default one in the current folder, named after the database.
    modality, normalize, allow_zero_rows
        Of all rows, as for ``congruence.transform_file``; a column of modalities is an option of ``open_database``.
    element_type : {"float32", "float16", "int8", "binary"}, optional
        Type in which the new vectors are stored; by default that of the old ones.
    ranges, old_ranges : array-like, shape (2, dim), optional
        For int8: the smallest and the largest value of each component; by default one symmetric range, of the new
        vectors up to the largest component of a sample. Queries must be quantized with ``ranges.npy`` of the journal.
    retry : Retry, optional
        Number of retries and waiting times if the database does not answer.
    engine, range_bytes : optional
        Runs the passes over files or a LanceDB table that all workers share, such as ``congruence.engines.RayEngine``,
        in tasks of this many bytes of old vectors.

    Examples
    --------
    >>> with Migration(open_database("photos/items.lance"), mapping) as migration:  # doctest: +SKIP
    ...     migration.run()
    ...     migration.verify()
    ...     migration.switch()
    """

    def __init__(
        self,
        database: Database,
        mapping: Map | None = None,
        *,
        journal: str | Path | None = None,
        modality: str | None = None,
        normalize: bool | str = "auto",
        element_type: str | None = None,
        ranges: ArrayLike | None = None,
        old_ranges: ArrayLike | None = None,
        allow_zero_rows: bool = False,
        retry: Retry | None = None,
        engine: Engine | None = None,
        range_bytes: int = RANGE_BYTES,
    ) -> None:
        self.database = database
        self.retry = (retry or Retry()).of(database)
        self.info = self.retry(database.info)
        self._identity = database.identify(self.info.place)
        self.folder = Path(journal) if journal is not None else default_folder(self._identity)
        self.journal = kept = Journal.read(self.folder)
        if mapping is None:
            if kept is None:
                raise errors.ParameterError(
                    f"Got no map, and no journal at {self.folder}.", "Pass a map, or the `journal=…` of a migration."
                )
            mapping = load(self.folder / "map")
        self._digest = map_digest(mapping)
        kind, width, supported = self.info.element_type, self.info.dim, database.capabilities.element_types
        if kept is not None:
            self._check_journal(kept)
            element_type, ranges = kept.element_type, kept.ranges
            modality, normalize, known = kept.modality, kept.normalize, kept.old_ranges or ()
            # If the old vectors were dropped, their ranges do not belong to the current ones.
            fits = kind == "int8" and not any(isinstance(bound, list) and len(bound) != width for bound in known)
            old_ranges = kept.old_ranges if fits else None
        element_type = element_type or (kind if kind in supported else supported[0])
        if element_type not in supported:
            raise errors.ParameterError(
                f"Got `element_type={element_type!r}` for {database.kind}; expected one of {', '.join(supported)}.",
                "Choose one.",
            )
        old = Quantizer(kind, width, old_ranges, "old_ranges")
        new = Quantizer(element_type, int(mapping.d_out), ranges)
        options: dict[str, Any] = {"modality": modality, "normalize": normalize, "allow_zero_rows": allow_zero_rows}
        self.mapper = RowMapper(mapping, **options, old=old, new=new)
        self.passes = Passes(database, self.mapper, self.retry, engine, range_bytes)
        database.engine = engine
        self.marks: Marks | None = None
        self._proof: tuple[object, dict[str, Any]] | None = None  # version that `verify` found complete, and its counts
        self._plans: dict[Path, int] = {}  # when the files of re-embedded rows that were read were written
        if kept is not None:
            self.mapper.scale = kept.scale
            self.reload()
            self._include_all_rows()

    def _check_journal(self, kept: Journal) -> None:
        """Raise an error if the journal is that of another map, database or condition."""
        place, rows = self.info.place, self.database.condition
        if kept.map_digest != self._digest:
            raise errors.SpaceMismatchError(
                f"The migration in {self.folder} was begun with another map.", "Leave it out, or run `discard` first."
            )
        if kept.place not in (self._identity, place):
            raise errors.MigrationError(
                f"{self.folder} is the journal of {kept.place}, not of {place}.", "Pass its own `journal=…`."
            )
        if kept.condition != rows:
            raise errors.MigrationError(
                f"The migration in {self.folder} was begun with the condition {kept.condition!r}, not {rows!r}.",
                "Open the database with the same condition (`rows=…`).",
            )

    def reload(self) -> Journal:
        """Read again what another process may have written to the journal's folder: the state, marks, own vectors."""
        self.journal = journal = Journal.read(self.folder) or self._journal()
        self.marks = Marks.read(self.folder, needed=bool(journal.summary) and journal.state != "dropped")
        if self.marks is not None:
            self.marks.switched = journal.state == "switched"
        plans = {path: path.stat().st_mtime_ns for path in (self.folder / PROGRESSIVE).rglob("config.json")}
        if plans != self._plans:
            from congruence.upgrade.migrate.native import read_native

            found = read_native(self.folder, self.mapper.map)
            self.mapper.native = {name: saved for name, (saved, _) in found.items()}
            self._plans = plans
        return journal

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.database.close()

    def plan(
        self,
        *,
        mixed: bool = False,
        certificate: Mapping[str, object] | None = None,
        encode_rate: float | None = None,
        price: float | None = None,
        allow_unknown: bool = False,
    ) -> Plan:
        """Report what ``run`` would do, and check everything that can be checked in advance; nothing is changed.

        ``mixed``: allow a run over some rows (``rows``), after which the table has vectors of both models;
        ``allow_unknown``: and rows that seem to be of no model that the map knows. ``certificate``: output of
        ``congruence check --json``; ``encode_rate`` and ``price``: items per second that the new model encodes, and
        price of encoding one.
        """
        costs = {"encode_rate": encode_rate, "price": price}
        for name, value in costs.items():
            if value is not None:
                check_positive(value, name)
        return self._plan(mixed, certificate=certificate, allow_unknown=allow_unknown, **costs)

    def _plan(self, mixed: bool, **options: Any) -> Plan:
        check_folder(self.folder)
        database, asked = self.passes.selection or self.database, mixed if self.journal is None else None
        return self.retry(lambda: make_plan(database, self.mapper, self.info, mixed=asked, **options))

    def _include_all_rows(self) -> None:
        """Work on all rows, and map those of the condition; unless the database copies the others."""
        if self.database.condition is None or self.database.mixes_widths:
            return
        selection, self.database = self.database, self.database.without_condition()
        self.passes = replace(self.passes, database=self.database, selection=selection)

    def run(
        self,
        *,
        mixed: bool = False,
        certificate: Mapping[str, Any] | None = None,
        resume: bool = False,
        anyway: bool = False,
        allow_unknown: bool = False,
        rate: float | None = None,
        callback: Callable[[int], object] | None = None,
        stage: Callable[[str], object] | None = None,
    ) -> Journal:
        """Write the new vectors of all rows, also of rows that others change during the run, and index them.

        Parameters
        ----------
        mixed, certificate, allow_unknown
            As for ``plan``; with ``anyway``, also if the certificate advises against mapping.
        resume : bool, default=False
            Resume a run that was stopped, for example by a DatabaseUnavailableError.
        rate : float, optional
            Largest number of rows per second, on average, so that a busy database has pauses; not for an engine.
        callback, stage : callable, optional
            Called, also from other threads, with the number of rows of each block, and with words before each pass
            and, before the journal is written, with "beginning".
        """
        tell = stage or (lambda words: None)
        if rate is not None:
            callback = paced(check_positive(rate, "rate"), callback)
        if self.journal is None:
            if resume:
                raise errors.MigrationError(
                    f"Nothing to resume at {self.folder}.", "Leave out `resume=True`, or pass its `journal=…`."
                )
            plan = self._plan(mixed, certificate=certificate, measure=False, allow_unknown=allow_unknown)
            refuse(plan, anyway=anyway)
            make_folder(self.folder)
            with self._locked():
                if Journal.read(self.folder) is not None:  # since this migration was opened
                    problem = f"Another run has begun this migration meanwhile ({self.folder})."
                    raise errors.MigrationError(problem, "Pass `resume=True` to continue it.")
                tell("beginning")
                self._begin(plan.rows, allow_unknown)
        elif not resume:
            raise errors.MigrationError(
                f"This migration has already begun and is {self.journal.state} ({self.folder}).",
                "Pass `resume=True` to continue it, or `discard` it, also if the table was recreated.",
            )
        with self._at_work("filling", "filled", "verified", "rolled back", to="run") as journal:
            self.database.check_unchanged()
            if resume and self.retry(self.database.stage) is Stage.UNTOUCHED:
                # Nothing is written yet, or the table was created again, perhaps with other rows.
                refuse(self._plan(mixed, measure=False, allow_unknown=allow_unknown))
            if resume:
                journal.allow_unknown |= allow_unknown
                journal.resumed += 1
                journal.log(f"resumed after {journal.rows:,} rows")
            result = self.mapper.map.target_space_
            note = {"map": self._digest, "model": result.model or "", "version": journal.version}
            note |= {"revision": result.revision} if result.revision else {}
            note |= {"journal": journal.token} if journal.token else {}
            self.retry(self.database.prepare, self.mapper.dim, self.mapper.new.element_type, note)
            watched = self.database.capabilities.concurrent_writes
            version = self.retry(self.database.version) if watched and not resume else None
            if journal.state == "filling":
                if resume:  # rows may have been added since the plan
                    self._judge(self.passes.repair(callback, marks=self.marks, write=False)["sample"])
                tell("mapping")
                self.passes.fill(journal, self.folder, callback)
            unchanged = version is not None and version == self.retry(self.database.version)
            if journal.resumed or (watched and not unchanged):
                self._repair(journal, tell, callback)
            tell("indexing")
            index = self.retry(self.database.build_index)
            journal.state = "filled"
            self._record(f"{journal.rows:,} rows mapped" + (f"; index: {index}" if index else ""))
        return journal

    def verify(
        self,
        *,
        heldout: Embeddings | None = None,
        k: int = 10,
        least_recall: float = 0.9,
        callback: Callable[[int], object] | None = None,
    ) -> Verification:
        """Check row counts, a sample read back, and the recall of the new index against exact search.

        ``passed`` of the result tells whether ``switch`` is allowed. The index must find ``least_recall`` of the ``k``
        nearest rows, or the old index's share minus .05. ``heldout`` are vectors of the new model that the map was not
        fitted on, with the ids of their rows.
        """
        with self._at_work("filled", "verified", "switched", "rolled back", to="verify") as journal:
            self.database.check_unchanged()
            version = self.retry(self.database.version)
            result, counts = verify(
                self.database,
                self.mapper,
                journal.sample,
                heldout=heldout,
                k=k,
                least_recall=least_recall,
                callback=callback,
                marks=self.marks,
                prove=version is not None,
            )
            self._proof = None if version is None or counts is None or not result.passed else (version, counts)
            journal.verification = result.to_dict()
            if journal.state != "switched":
                journal.state = "verified" if result.passed else "filled"
            self._record("verified" if result.passed else "not verified: " + "; ".join(result.problems))
        return result

    def switch(self, *, callback: Callable[[int], object] | None = None) -> dict[str, Any]:
        """Make readers see the new vectors, after updating rows that others have changed since the run.

        Returns the ``summary``.
        """
        with self._at_work("verified", "switched", to="switch", step="switch") as journal:
            self.database.rest = self._map_rest
            if journal.state != "switched":
                self.database.check_unchanged()
            for attempt in range(PASSES):
                if journal.state != "switched":
                    self._repair(journal, lambda words: None, callback, keep=True)
                try:
                    # Also if the state is already switched: the process may have been killed between the last two steps
                    # of the database's switch.
                    self.retry(self.database.switch)
                    break
                except errors.MigrationError:
                    added = self.database.count("old") > self.database.count("new")  # in the meantime
                    if not added or attempt == PASSES - 1:
                        raise
            if journal.state != "switched":
                journal.state = "switched"
                journal.log("switched")
            if self.marks is None:  # a copy of this journal switched; vectors are then compared with the map
                self.marks = Marks()
                self.marks.write(self.folder)
            journal.summary = self.summary()
            journal.write(self.folder)
            journal.write_summary(self.folder)
        return journal.summary

    def _map_rest(self, block: Block) -> np.ndarray:
        """Map rows that have changed since the last pass; a database that calls it fetches only rows it selects."""
        if self.passes.selection is not None:
            self.mapper.selected = self.passes.selection.fetch(block.ids).ids
        return self.mapper.encoded(block)

    def rollback(self, new_rows: NewRows = "refuse") -> dict[str, Any]:
        """Make readers see the old vectors again; the new ones are kept.

        Returns ``rows``, the ``checksum`` of the old vectors, ``rows_without`` an old vector, ``identical``: whether
        the checksum is that of the last pass before the switch, None without one, and how many rows the application
        has ``added``, ``changed`` and ``deleted`` since the switch; ``deleted`` is None if it cannot be told, and
        ``switched`` says whether readers saw the new vectors.

        Parameters
        ----------
        new_rows : {"refuse", "keep", "map-back"}, default="refuse"
            What to do with rows that the application has added, changed or deleted since the switch: raise
            MigrationError with their number; keep them without an old vector, where the database allows this; or keep
            them with an old vector computed by the map's inverse, and list their ids in ``mapped-back.txt`` in the
            journal's folder. Rows that ``reembed`` wrote return to their old vectors.
        """
        check_choice(new_rows, get_args(NewRows), "new_rows")
        # Also if it is verified or rolled back: the process may have been killed during a switch or rollback.
        with self._at_work("verified", "switched", "rolled back", to="roll back", step="rollback") as journal:
            database, found = self.database, Written()
            switched = self.retry(database.stage) is Stage.SWITCHED
            if switched:
                found = self._find_written()
            found.check(self.info.place, database, new_rows)
            back = map_back(self.mapper, self.folder) if new_rows == "map-back" else None
            if found:
                self.marks = self.marks or Marks()
                self.retry(keep_written, database, found, back, self.marks)
                self.marks.write(self.folder)
            database.rest, database.leaves_bare = back, new_rows == "keep"
            self.retry(database.rollback)
            if journal.state == "switched":  # else nothing was switched that could have changed since the verification
                journal.state = "rolled back"
            known = journal.passes[-1]["old"] if journal.passes else None
            rows, checksum = self.passes.checksum(earlier=len(known or "") == EARLIER_DIGITS)
            status = {
                "rows": rows,
                "identical": known == checksum if known else None,
                "checksum": checksum,
                "rows_without": self.retry(database.info).rows_without,
                "switched": switched,
                **found.counts(),
            }
            event = "rolled back" if switched else "nothing to roll back"
            self._record(f"{event}: {rows:,} rows, identical: {status['identical']}")
        return status

    def _find_written(self) -> Written:
        """Return what the application has written since the switch."""
        found = self.retry(find_written, self.database, self.mapper, self.marks, rows_per_block(self.mapper.dim))
        passes = self._journal().passes
        if self.database.capabilities.follows_deletes and passes:
            found.fewer = max(passes[-1]["rows"] - self.retry(self.database.count), 0)
        return found

    def refused(self) -> str:
        """Return why the next step or, after the switch, a rollback is refused, if it is known without reading all."""
        database, state = self.database, self._journal().state
        try:
            if state != "switched":
                database.check_unchanged()
                if state not in ("filling", "dropped"):
                    self._check_rows()
            elif not database.capabilities.writes_after_switch and database.changed_since_switch():
                self._find_written().check(self.info.place, database, "refuse")
        except errors.MigrationError as error:
            return error.problem
        return ""

    def _check_rows(self) -> None:
        """Raise MigrationError if no row is left that could be switched."""
        if not self.retry(self.database.count):
            raise errors.MigrationError(
                f"No row of {self.info.place} has a vector any more.",
                "Add rows and pass `resume=True`, or remove the new vectors by `discard`.",
            )

    def _obstacles(self, stage: Stage) -> list[str]:
        """Return what others made since the run that is in the way of the next steps."""
        found = []
        for step in {Stage.PREPARED: ["switch"], Stage.SWITCHED: ["rollback", "drop-old"]}.get(stage, ()):
            try:
                self.retry(self.database.check_step, step)
            except errors.MigrationError as error:
                found.append(error.problem)
        return found

    def drop_old(self) -> None:
        """Remove the old vectors after the switch. This cannot be undone.

        Raises MigrationError if rows would lose their only vector.
        """
        with self._at_work("switched", to="drop the old vectors", step="drop-old") as journal:
            self._record(DROPPING)
            self.retry(self.database.drop_old)
            journal.state = "dropped"
            self._record("the old vectors were dropped")
            Marks.remove(self.folder)
            journal.write_summary(self.folder)

    def discard(self) -> None:
        """Remove the new vectors before the switch, and the journal.

        Raises MigrationError if they are switched on, or rows written after a switch would lose their only vector.
        Vectors that ``reembed`` had encoded are kept in the folder and are not encoded again.
        """
        with self._at_work(
            "filling", "filled", "verified", "rolled back", to="discard the new vectors", step="discard"
        ) as journal:
            if rows := self.retry(self._count_only_vectors):
                first = {"run": "`run`, `verify` and ", "verify": "`verify` and "}.get(journal.first() or "", "")
                raise errors.MigrationError(
                    f"{rows:,} rows of {self.info.place}, written after the switch, have only a new vector.",
                    f"Switch again by {first}`switch`, or write their old vectors.",
                )
            self.retry(self.database.discard)
            if self.mapper.native:
                from congruence.upgrade.migrate.native import EncodedRows

                encoded = EncodedRows(self.folder, self.mapper.dim)
                for native in self.mapper.native.values():
                    encoded.keep(native, np.arange(len(native.ids)))
                self.mapper.native = {}
            remove_folder(self.folder / PROGRESSIVE)
            for name in ("journal.json", "summary.json", "ranges.npy"):
                (self.folder / name).unlink(missing_ok=True)
            Marks.remove(self.folder)
        self.journal = self.marks = None

    def _count_only_vectors(self) -> int:
        """Return the number of rows that the application wrote after a switch and that have no old vector."""
        database, marks = self.database, self.marks
        # Without new vectors, an earlier call was killed at its end; and a switch of files exchanges all vectors.
        if marks is None or database.stage() is Stage.UNTOUCHED or not database.capabilities.writes_after_switch:
            return 0
        # Ours without an old one is that of a row that was deleted, or whose vector was removed.
        return sum(
            int((~block.has_old & ~marks.has(block.ids, block.vectors)).sum())
            for block in database.scan_new(batch=rows_per_block(self.mapper.dim))
        )

    def fit_thresholds(
        self,
        queries: RowsLike | None = None,
        queries_old: RowsLike | None = None,
        *,
        among: str | None = None,
        folds: int = 5,
        random_state: int = 0,
    ) -> Thresholds:
        """Learn how to translate score thresholds of the old model into thresholds that hold after the switch.

        As ``congruence.Bridge.fit_thresholds``, with the rows that the journal keeps for ``verify`` (at most 1,000):
        ``translate(0.28)`` of the result gives the new threshold, with false-positive rate and recall before and after.
        ``queries`` and ``queries_old`` are the same queries in both models, paired by id or by position; without them,
        the table's rows are compared with each other, as in a search for duplicates. ``among``: modality of the rows
        that are searched, if a column stores it; ``folds`` of the cross-validation, over queries.
        """
        states = "filled", "verified", "switched", "rolled back"
        with self._at_work(*states, to="translate score thresholds") as journal:
            old, new, place = self.retry(read_sample, self.database, journal.sample)
        kept = (place >= 0) & of_modality(old, among)
        names = id_texts(old.ids.filter(pa.array(kept)).to_pylist())
        if len(names) < 2:
            raise errors.TooFewAnchorsError(
                f"{len(names)} rows of the sample have both "
                f"vectors{'' if among is None else f' and are of {among}'}; 2 are needed.",
                "Finish the run, or pass another `among=…`.",
            )
        before = self.mapper.old.decode(old.vectors[kept])
        after = self.mapper.new.decode(new.vectors[place[kept]])
        options: dict[str, Any] = {"folds": folds, "random_state": random_state}
        if queries is None and queries_old is None:
            order = np.random.default_rng(random_state).permutation(len(names))
            asked, searched = np.array_split(order, 2)  # disjoint halves, so that no row is compared with itself
            return fit_thresholds((after[asked], after[searched]), (before[asked], before[searched]), None, **options)
        if queries is None or queries_old is None:
            missing, passed = ("queries", "queries_old") if queries is None else ("queries_old", "queries")
            raise errors.ParameterError(f"Got {passed} without {missing}.", f"Pass `{missing}=…` too.")
        pairs = Pairs.join(as_embeddings(queries, "queries"), as_embeddings(queries_old, "queries_old"))
        sides = []
        for side, rows, name, stored in (
            (pairs.source, after, "queries", self.mapper.new),
            (pairs.target, before, "queries_old", self.mapper.old),
        ):
            if side.dim != rows.shape[1]:
                fix = f"Pass other `{name}=…`."
                raise errors.ShapeError(f"Got {side.dim}-d {name}; expected {rows.shape[1]}-d.", fix)
            asked = side.vectors.astype(np.float32, copy=False)
            # As the database would store them; for bits, a cosine is 1 − 2h/d of Hamming distance h.
            sides.append((stored.decode(stored.encode(asked)) if stored.coded else asked, rows))
        judgments = None
        if pairs.source.has_ids and bool(is_in(pairs.source.ids, names).any()):
            judgments = judge(pairs.source, Embeddings(after, ids=names, allow_zero_rows=True))
        return fit_thresholds(sides[0], sides[1], judgments, **options)

    def status(self) -> dict[str, object]:
        """Return the state of the migration, according to the journal and to the database itself, as plain data."""
        stage = self.retry(self.database.stage)
        status: dict[str, object] = {"place": self.info.place, "stage": stage.value, "journal": str(self.folder)}
        if (journal := self.journal) is not None:
            self._sync()
            rows, chosen = self.info.rows, self.passes.selection or self.database
            mapped = journal.rows
            if stage is not Stage.UNTOUCHED and self.database.capabilities.writes_after_switch:
                mapped = self.retry(chosen.count, "new")  # others may have added and deleted rows since
            status |= {"state": journal.state, "rows_mapped": min(mapped, rows), "rows": rows}
            status |= {name: getattr(journal, name) for name in ("resumed", "passes", "events", "verification")}
            status |= {"refused": self.refused(), "obstacles": self._obstacles(stage)}
            if self.mapper.native:
                status["reembedded"] = sum(len(native.ids) for native in self.mapper.native.values())
        return status

    def summary(self) -> dict[str, Any]:
        """Return a summary as plain data: rows, checksums, the map's digest, and a SHA-256 over all of it.

        With the environment variable CONGRUENCE_SIGNING_KEY it is also signed (HMAC-SHA256).
        """
        return summarize(self._journal())

    def _journal(self) -> Journal:
        if self.journal is None:
            raise errors.MigrationError(
                f"No migration at {self.folder}.", "Run it first, or pass `journal=…` with its folder."
            )
        return self.journal

    def _record(self, event: str) -> None:
        journal = self._journal()
        journal.log(event)
        journal.write(self.folder)

    def _begin(self, rows: int, allow_unknown: bool) -> None:
        """Create the journal's folder with the map in it."""
        make_folder(self.folder)
        Marks.remove(self.folder)  # a killed `discard` may have left them, and rows of theirs are not this migration's
        if self.mapper.new.ranges is not None:
            np.save(self.folder / "ranges.npy", self.mapper.new.ranges.astype(np.float32))
        self.mapper.map.save(self.folder / "map", force=True)
        self.journal = Journal(
            place=self._identity,
            map_digest=self._digest,
            dim=self.mapper.dim,
            element_type=self.mapper.new.element_type,
            normalize=self.mapper.unit,
            scale=self.mapper.scale,
            modality=self.mapper.modality,
            condition=self.database.condition,
            allow_unknown=allow_unknown,
            ranges=self.mapper.new.plain_ranges(),
            old_ranges=self.mapper.old.plain_ranges(),
            token=token_hex(8),
        )
        self._record(f"begun: {rows:,} rows, {bytes_a_row(self.mapper.dim, self.mapper.new.element_type)} bytes a row")
        self._include_all_rows()

    def _repair(
        self,
        journal: Journal,
        tell: Callable[[str], object],
        callback: Callable[[int], object] | None,
        *,
        keep: bool = False,
    ) -> None:
        """Repeat passes until one finds no differences, which others judge and repair; record each in the journal.

        The first is that of ``verify``, if this process has made it and the database proves that nobody has written
        since. ``keep``, before a switch: also keep the marks of the vectors, and make one pass more if somebody has
        written during the last one, perhaps to rows that it had already read.
        """
        again = keep
        for number in range(1, PASSES + 1):
            tell(f"comparing, pass {number}")
            version = self.retry(self.database.version) if again else None
            counts = self._proven() or self.passes.repair(callback, marks=self.marks, write=False)
            right, changed = counts.pop("marks"), counts.pop("sample")
            if self.marks is not None:
                self.marks.add(right)
            journal.passes = [*journal.passes[-9:], counts]
            journal.write(self.folder)
            if not counts["written"] and not counts["removed"]:
                if version is not None and version != self.retry(self.database.version) and number < PASSES:
                    again = False  # others may be writing to other tables all the time
                    continue
                if keep and self.marks is None:
                    self.marks = Marks(np.unique(right))
                if self.marks is not None:
                    self.marks.write(self.folder)
                return
            self._judge(changed)
            self.passes.repair(marks=self.marks)
            again = keep
        raise errors.MigrationError(
            f"The table still changed in pass {PASSES} ({counts['written']:,} rows written, {counts['removed']:,} "
            "removed).",
            "Stop writers for the time of the switch, and pass `resume=True`.",
        )

    def _proven(self) -> dict[str, Any] | None:
        """Return once what ``verify`` has found, if nothing was written since."""
        proof, self._proof = self._proof, None
        if proof is None or proof[0] != self.retry(self.database.version):
            return None
        return proof[1]

    def _judge(self, ids: list[int | str]) -> None:
        """Refuse rows that were added or changed since the plan, and do not fit the map."""
        if ids:
            block = self.retry(self.database.fetch, pa.array(ids), "old")
            for check in judge_rows(self.mapper, [block], self._journal().allow_unknown, self.database):
                if check["outcome"] == "bad":
                    raise misfit(f"that were added or changed at {self.info.place}", check)

    def _locked(self) -> AbstractContextManager[None]:
        """Lock the journal's folder against other runs."""
        problem = f"Another run is working on this migration ({self.folder})."
        return locked(self.folder, problem, "Wait for that run, or stop it.")

    @contextmanager
    def _at_work(self, *states: str, to: str, step: str | None = None) -> Iterator[Journal]:
        """Lock the journal's folder against other runs, and yield the journal, updated to the state of the database.

        Before a ``step`` of the database, obstacles made since the run are refused, as nothing is written yet. An error
        about rows of NaN or zeros names all of the table instead of those of one block.
        """
        self._journal()
        with self._locked():
            journal = self.reload()
            known = journal.state
            self._sync()
            if journal.state != known:  # else this step, if it is killed too, would leave a state that cannot be told
                journal.write(self.folder)
            journal.require_state(*states, to=to)
            if step is None or (step == "switch" and journal.state != "switched"):
                self._check_rows()
            if step is not None:
                self.retry(self.database.check_step, step)
            self.passes.select()
            try:
                yield journal
            except (errors.NotFiniteError, errors.ZeroRowError) as error:
                raise (all_bad_rows(self.database, self.mapper.allow_zero_rows) or error) from None

    def _sync(self) -> None:
        stage, journal = self.retry(self.database.stage), self._journal()
        if self.retry(self.database.note).get("journal", journal.token) != journal.token:
            raise errors.MigrationError(
                f"The new vectors at {self.info.place} are those of another journal than {self.folder}.",
                f"Pass that one as `journal=…`, and remove {self.folder}.",
            )
        journal.sync(stage)
        if stage is Stage.UNTOUCHED:
            self.retry(self.database.tidy)
        if self.marks is not None:
            self.marks.switched = stage is Stage.SWITCHED


def of_modality(block: Block, among: str | None) -> np.ndarray:
    """Return which rows of a block are of a modality, bool of shape (b,); all without one."""
    if among is None:
        return np.ones(len(block.ids), bool)
    if block.modalities is None:
        raise errors.ModalityError(
            f"Got `among={among!r}`, but no such column.", "Pass `modality_column=…`, or leave out `among=…`."
        )
    return np.array([name == among for name in block.modalities.to_pylist()], bool)


def migrate(
    where: str | Path,
    mapping: Map,
    *,
    journal: str | Path | None = None,
    modality: str | None = None,
    element_type: str | None = None,
    switch: bool = False,
    resume: bool = False,
    callback: Callable[[int], object] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Write mapped vectors next to the old ones of a database, verify them and, with ``switch``, make readers see them.

    Returns ``Migration.status``. Raises MigrationError if a check of the plan is bad, or the new vectors do not pass
    verification. ``where`` and ``**options`` are those of ``congruence.databases.open_database``, the others those of
    ``Migration`` and its ``run``.
    """
    database = open_database(where, **options)
    with Migration(database, mapping, journal=journal, modality=modality, element_type=element_type) as migration:
        migration.run(resume=resume, callback=callback)
        verification = migration.verify(callback=callback)
        if not verification.passed:
            raise errors.MigrationError(
                f"The new vectors fail verification ({'; '.join(verification.problems)}).", "Resume, or discard them."
            )
        if switch:
            migration.switch(callback=callback)
        return migration.status()
