"""A migration from the first look to the switch and back, each step repeatable and written down."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from congruence._utils.typing import RowsLike
from congruence.embeddings import Embeddings
from congruence.errors import MigrationError, ParameterError
from congruence.evaluation.thresholds import Thresholds
from congruence.upgrade.migrate._opened import OpenMigration
from congruence.upgrade.migrate.cutoffs import fit_cutoffs
from congruence.upgrade.migrate.journal import Journal
from congruence.upgrade.migrate.plan import Plan, make_plan
from congruence.upgrade.migrate.summary import summarize, write_summary
from congruence.upgrade.migrate.verify import Verification, verify

__all__ = ["Migration"]


class Migration(OpenMigration):
    """The vectors of a database on their way to a new model's space; a context manager.

    The steps are :meth:`plan`, :meth:`run`, :meth:`verify`, :meth:`switch`, and after it :meth:`rollback` or :meth:`drop_old`. Old and new
    vectors stand side by side until the switch, and the old ones until :meth:`drop_old`. How far it is stands in a journal, a folder that also keeps
    the map: a run that was killed goes on where it was, and later steps need only the database and the folder.

    Parameters
    ----------
    database : Database
        From :func:`congruence.databases.open_database`.
    mapping : Map, optional
        From the old model's space to the new one's; by default that of the journal.
    journal : path-like, optional
        Its folder; by default one in the current folder, named after the database.
    modality : str, optional
        Of all rows, where the database was not opened with a column that says it.
    normalize : {"auto", True, False}, default="auto"
        Unit norm for the new vectors; "auto": if the target's rows had it at the fit.
    element_type : str, optional
        As which the new vectors are stored: float32, float16, int8 or binary, where the database has it; by default as the old ones.
    ranges : array-like, shape (2, dim), optional
        Of int8: the smallest and the largest value of each component of the new vectors; by default one range for all, symmetric about 0, up to
        the largest component of a sample. The journal's folder keeps them as ``ranges.npy``: queries must be quantized by the same.
    old_ranges : array-like, shape (2, dim), optional
        By which old int8 vectors were quantized; by default one range for all, symmetric about 0.
    allow_zero_rows : bool, default=False
    retry : Retry, optional
        How often and how long to wait for a database that does not answer.
    walks : Walks, optional
        Where all rows are walked over: by default in this process; :class:`congruence.engines.EngineWalks` has it done by an engine.

    Raises
    ------
    ParameterError
        No map, or one that leads both sides to a space of its own; no element type of this database, or one that the ranges or the
        map's width do not fit.
    SpaceMismatchError
        The map is another than that of the journal.
    CorruptFileError, FileError
        The journal's folder.

    Examples
    --------
    >>> with Migration(open_database("photos/items.lance"), mapping) as migration:  # doctest: +SKIP
    ...     migration.run()
    ...     migration.verify()
    ...     migration.switch()
    """

    # ------------------------------------------------------------------ the steps

    def plan(
        self,
        *,
        certificate: Mapping[str, object] | None = None,
        encode_rate: float | None = None,
        price: float | None = None,
    ) -> Plan:
        """Say what :meth:`run` would do, and check what can be checked; nothing is changed.

        Parameters
        ----------
        certificate : mapping, optional
            What ``congruence certify --json`` printed.
        encode_rate : float, optional
            Items a second that the new model encodes.
        price : float, optional
            Of encoding one item.

        Returns
        -------
        Plan

        Raises
        ------
        ShapeError
            No row has a vector.
        ParameterError
            No certificate, or a rate or price that is not positive.
        DatabaseError, CorruptFileError
        """
        for name, value in (("encode_rate", encode_rate), ("price", price)):
            if value is not None and not value > 0:
                raise ParameterError(f"Got {name}={value}; expected a number above 0. Leave out {name}=…, or pass one.")
        return self._plan(certificate=certificate, encode_rate=encode_rate, price=price)

    def _plan(self, **options: Any) -> Plan:
        return self.retry(self.database, lambda: make_plan(self.database, self.mapper, self.info, **options))

    def run(
        self,
        *,
        certificate: Mapping[str, Any] | None = None,
        resume: bool = False,
        anyway: bool = False,
        callback: Callable[[int], object] | None = None,
        stage: Callable[[str], object] | None = None,
    ) -> Journal:
        """Write the new vectors of all rows beside the old ones, and what others change meanwhile; then index them.

        Parameters
        ----------
        certificate : mapping, optional
        resume : bool, default=False
            Go on with a run that was stopped.
        anyway : bool, default=False
            Although the certificate speaks against mapping. No other check is passed over.
        callback : callable, optional
            Called with the number of rows of each block that was written or compared.
        stage : callable, optional
            Called with a few words at the beginning of each walk.

        Returns
        -------
        Journal

        Raises
        ------
        MigrationError
            A check is bad, or there is a migration already that is not to be resumed.
        NotFiniteError, ZeroRowError, ModalityError
            A row cannot be mapped; named. Nothing the readers see has changed.
        DatabaseError, DatabaseUnavailableError, StorageError, FileError
            The journal stands: go on with ``resume=True``.
        """
        tell = stage or (lambda words: None)
        if self.journal is None:
            if resume:
                raise MigrationError(
                    f"Got nothing to resume at {self.folder}; expected the journal of a run. Leave out resume=True to begin one, or pass journal=… with its folder."
                )
            self._begin(self._plan(certificate=certificate, measure=False), anyway)
        elif not resume:
            raise MigrationError(
                f"Got a migration that was begun already and is {self.journal.state} ({self.folder}); expected none. Pass resume=True to go on with it, or end it by discard first, also where the table was made anew since."
            )
        with self._at_work() as journal:
            journal.expect("filling", "filled", "verified", "rolled back", to="run")
            if journal.rows:
                journal.resumed += 1
                journal.say(f"resumed after {journal.rows:,} rows")
            self._prepare()
            if journal.state == "filling":
                tell("mapping")
                self.walks.fill(self.database, self.mapper, journal, self.folder, self.info.dim, self.retry, callback)
            if self.database.capabilities.concurrent_writes or journal.resumed:
                self._settle(tell, callback)
            tell("indexing")
            index = self.retry(self.database, self.database.build_index)
            journal.state = "filled"
            journal.say(f"{journal.rows:,} rows mapped" + (f"; index: {index}" if index else ""))
            journal.write(self.folder)
        return journal

    def verify(
        self,
        *,
        heldout: Embeddings | None = None,
        k: int = 10,
        least_recall: float = 0.9,
        callback: Callable[[int], object] | None = None,
    ) -> Verification:
        """Compare counts, a sample read back, and what the new index finds with exact search; see :class:`Verification`.

        Parameters
        ----------
        heldout : Embeddings, optional
            Vectors of the new model that were not fitted on, with the ids of their rows.
        k : int, default=10
            Nearest rows that are compared.
        least_recall : float, default=0.9
            The new index must find this share of them, or what the old index finds less .05.
        callback : callable, optional

        Returns
        -------
        Verification
            Its ``passed`` says whether :meth:`switch` is allowed.

        Raises
        ------
        MigrationError
            The run has not ended.
        """
        with self._at_work() as journal:
            journal.expect("filled", "verified", "switched", "rolled back", to="verify")
            found = verify(
                self.database,
                self.mapper,
                journal.sample,
                distance=self.info.distance,
                heldout=heldout,
                k=k,
                least_recall=least_recall,
                callback=callback,
            )
            journal.verification = found.to_dict()
            if journal.state in ("filled", "verified", "rolled back"):
                journal.state = "verified" if found.passed else "filled"
            journal.say("verified" if found.passed else "not verified: " + "; ".join(found.problems))
            journal.write(self.folder)
        return found

    def switch(self, *, callback: Callable[[int], object] | None = None) -> dict[str, Any]:
        """Make readers see the new vectors; what others changed since the run is repaired right before.

        Returns
        -------
        dict
            The summary (:meth:`summary`).

        Raises
        ------
        MigrationError
            It was not verified.
        """
        with self._at_work() as journal:
            if journal.state != "switched":
                journal.expect("verified", to="switch")
                self._settle(lambda words: None, callback)
            # Where the database says that it is switched, too: a kill may have come between the last two of its steps.
            self.retry(self.database, self.database.switch)
            if journal.state != "switched":
                journal.state = "switched"
                journal.say("switched")
            journal.summary = self.summary()
            journal.write(self.folder)
            write_summary(journal, self.folder)
        return journal.summary

    def rollback(self) -> dict[str, Any]:
        """Make readers see the old vectors again; the new ones stay beside.

        Returns
        -------
        dict
            ``rows``; ``identical``: the old vectors' checksum is that of the last walk before the switch (other rows written meanwhile make it
            another); ``rows_without``: rows without an old vector, written since the switch.

        Raises
        ------
        MigrationError
            Nothing is switched, or the old vectors were dropped.
        """
        with self._at_work() as journal:
            journal.expect("switched", "rolled back", to="roll back")
            self.retry(
                self.database, self.database.rollback
            )  # also where a kill has come between the last two of its steps
            journal.state = "rolled back"
            checksum = self.walks.checksum(self.database, self.info.dim, self.retry)
            known = journal.passes[-1]["old"] if journal.passes else None
            info = self.retry(self.database, self.database.info)
            told = {
                "rows": checksum.rows,
                "identical": known == str(checksum) if known else None,
                "checksum": str(checksum),
                "rows_without": info.rows_without,
            }
            journal.say(f"rolled back: {told['rows']:,} rows, identical: {told['identical']}")
            journal.write(self.folder)
        return told

    def drop_old(self) -> None:
        """Remove the old vectors after the switch: no way back. Raises MigrationError where nothing is switched."""
        with self._at_work() as journal:
            journal.expect("switched", to="drop the old vectors")
            self.retry(self.database, self.database.drop_old)
            journal.state = "dropped"
            journal.say("the old vectors were dropped")
            journal.write(self.folder)
            write_summary(journal, self.folder)

    def discard(self) -> None:
        """Remove the new vectors before the switch, and the journal. Raises MigrationError where they are switched on.

        What :func:`reembed` has had encoded stays in the folder, and is not encoded again.
        """
        with self._at_work() as journal:
            journal.expect("filling", "filled", "verified", "rolled back", to="discard the new vectors")
            self.retry(self.database, self.database.discard)
            if self.mapper.native is not None:
                from congruence.upgrade.migrate.paid import keep_paid

                keep_paid(self.folder, self.mapper.native)
                self.mapper.native = None
            for name in ("journal.json", "summary.json", "ranges.npy"):
                (self.folder / name).unlink(missing_ok=True)
        self.journal = None

    def fit_thresholds(
        self,
        queries: RowsLike | None = None,
        queries_old: RowsLike | None = None,
        *,
        among: str | None = None,
        folds: int = 5,
        random_state: int = 0,
    ) -> Thresholds:
        """Learn which cut-off on scores lets through after the switch what a cut-off of the old model did before.

        Parameters
        ----------
        queries : Embeddings or array_like, shape (m, dim_new), optional
            Queries in the new model. Without, the table's rows are compared with each other, as in a search for duplicates.
        queries_old : Embeddings or array_like, shape (m, dim_old), optional
            The same in the old model; paired by id, or by position.
        among : str, optional
            Modality of the rows that are searched, where a column says it; by default all.
        folds : int, default=5
            Of the cross-validation, over queries.
        random_state : int, default=0

        Returns
        -------
        Thresholds
            Its ``translate(0.28)`` gives the new cut-off, with false-positive rate and recall before and after.

        Raises
        ------
        MigrationError
            The run has not ended.
        TooFewAnchorsError
            The sample has fewer than two rows with both vectors; fewer than two queries a fold.
        ParameterError, ModalityError, ShapeError, InputError
            One side of the queries only; no column of modalities; queries of another model.

        Notes
        -----
        Scores are cosines with the rows that the journal keeps for :meth:`verify` (at most 1,000). As in :meth:`congruence.Bridge.fit_thresholds`, a cut-off
        is translated to the score above which there is the same share of irrelevant pairs.
        """
        with self._at_work() as journal:
            journal.expect("filled", "verified", "switched", "rolled back", to="translate cut-offs")
            return self.retry(
                self.database,
                lambda: fit_cutoffs(
                    self.database,
                    self.mapper,
                    journal.sample,
                    queries,
                    queries_old,
                    among=among,
                    folds=folds,
                    random_state=random_state,
                ),
            )

    def status(self) -> dict[str, object]:
        """Return where the migration stands, by the journal and by the database itself, as plain data."""
        stage = self.retry(self.database, self.database.stage)
        told: dict[str, object] = {"place": self.info.place, "stage": stage.value, "journal": str(self.folder)}
        if self.journal is not None:
            self._follow()
            told |= {"state": self.journal.state, "rows_mapped": self.journal.rows, "rows": self.info.rows}
            told |= {"resumed": self.journal.resumed, "passes": self.journal.passes, "events": self.journal.events}
            told |= {"verification": self.journal.verification}
            if self.mapper.native is not None:
                told["reembedded"] = len(self.mapper.native.ids)
        return told

    def summary(self) -> dict[str, Any]:
        """Return what was done as plain data: rows, checksums, the map's digest, and a SHA-256 over all of it.

        With the environment variable CONGRUENCE_SIGNING_KEY it is signed as well (HMAC-SHA256).
        """
        return summarize(self._journal())
