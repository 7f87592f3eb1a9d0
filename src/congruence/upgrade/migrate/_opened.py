"""Open a migration: check database, journal and map against each other, and provide what all steps share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from congruence.databases import Database
from congruence.errors import MigrationError, ParameterError, SpaceMismatchError
from congruence.maps import Map, load
from congruence.upgrade.migrate.executor import Executor, LocalExecutor
from congruence.upgrade.migrate.journal import PROGRESSIVE, Journal, default_folder, lock_folder, make_folder
from congruence.upgrade.migrate.mapper import RowMapper, map_digest
from congruence.upgrade.migrate.passes import Retry, repair_until_equal
from congruence.upgrade.migrate.plan import SAMPLE, Plan, bytes_a_row
from congruence.upgrade.migrate.quantize import Quantizer
from congruence.upgrade.migrate.refusal import refuse

__all__ = ["OpenMigration"]


class OpenMigration:
    """Base class of :class:`congruence.upgrade.migrate.Migration`, with the same parameters and errors: opening and state."""

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
        executor: Executor | None = None,
    ) -> None:
        self.database = database
        self.retry = retry or Retry()
        self.executor: Executor = executor or LocalExecutor()
        self.executor.begin(database)
        self.info = self.retry(database, database.info)
        self.folder = Path(journal) if journal is not None else default_folder(self.info.place)
        self.journal = Journal.read(self.folder)
        kept = self.journal
        if mapping is None:
            if kept is None:
                raise ParameterError(
                    f"Got no map, and no journal at {self.folder}; expected one of the two. Pass a map, or journal=… with the folder of a migration that was begun."
                )
            mapping = load(self.folder / "map")
        digest = map_digest(mapping)
        if kept is not None and kept.map_digest != digest:
            raise SpaceMismatchError(
                f"Got another map than the one this migration was begun with ({self.folder}); expected the same. Leave the map out, or discard the new vectors first."
            )
        if kept is not None and kept.place != self.info.place:
            raise MigrationError(
                f"Got the journal of {kept.place} for {self.info.place}; expected its own. Pass journal=… with another folder."
            )
        self.element_type = element_type or (kept.element_type if kept else self._default_type())
        if self.element_type not in database.capabilities.element_types:
            raise ParameterError(
                f"Got element_type={self.element_type!r} for {database.kind}; expected one of {', '.join(database.capabilities.element_types)}. Choose one of these."
            )
        if kept is not None:
            self.mapper = RowMapper.of_journal(mapping, self.info, kept, allow_zero_rows=allow_zero_rows)
        else:
            self.mapper = RowMapper(
                mapping,
                modality=modality,
                normalize=normalize,
                allow_zero_rows=allow_zero_rows,
                old=Quantizer(self.info.element_type, self.info.dim, old_ranges, "old_ranges"),
                new=Quantizer(self.element_type, int(mapping.d_out), ranges),
            )
        self._digest = digest
        if kept is not None and (self.folder / PROGRESSIVE).is_dir():
            from congruence.upgrade.migrate.native import read_native

            saved = read_native(self.folder, mapping)
            self.mapper.native = None if saved is None else saved[0]

    def _default_type(self) -> str:
        supported = self.database.capabilities.element_types
        return self.info.element_type if self.info.element_type in supported else supported[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.database.close()

    def _journal(self) -> Journal:
        if self.journal is None:
            raise MigrationError(
                f"Got no migration at {self.folder}; expected one that was begun. Run it first, or pass journal=… with its folder."
            )
        return self.journal

    def _begin(self, plan: Plan, anyway: bool) -> None:
        """Check the plan, and create the journal's folder with the map in it."""
        refuse(plan, anyway=anyway)
        # These raise errors that name the argument to change.
        sample = next(iter(self.database.scan("old", batch=SAMPLE)))
        self.mapper.check(self.info, sample.vectors)
        self.mapper(sample.ids, sample.vectors, sample.modalities)
        make_folder(self.folder)
        ranges = self.mapper.new.ranges
        if ranges is not None:
            np.save(self.folder / "ranges.npy", ranges.astype(np.float32))
        self.mapper.map.save(self.folder / "map", force=True)
        self.journal = Journal(
            place=self.info.place,
            map_digest=self._digest,
            dim=self.mapper.dim,
            element_type=self.element_type,
            normalize=self.mapper.unit,
            scale=self.mapper.scale,
            modality=self.mapper.modality,
            ranges=self.mapper.new.plain_ranges(),
            old_ranges=self.mapper.old.plain_ranges(),
        )
        self.journal.log(f"begun: {plan.rows:,} rows, {bytes_a_row(self.mapper.dim, self.element_type)} bytes a row")
        self.journal.write(self.folder)

    def _prepare(self) -> None:
        target = self.mapper.map.target_space_
        note = {"map": self._digest, "model": target.model or "", "version": self._journal().version}
        self.retry(self.database, lambda: self.database.prepare(self.mapper.dim, self.element_type, note))

    def _repair(self, tell: Callable[[str], object], callback: Callable[[int], object] | None) -> None:
        def pass_over() -> dict[str, object]:
            return self.executor.repair(self.database, self.mapper, self.info.dim, self.retry, callback)

        repair_until_equal(pass_over, self._journal(), self.folder, tell)

    @contextmanager
    def _at_work(self) -> Iterator[Journal]:
        """Lock the journal's folder against other runs, and yield the journal, updated to the state of the database."""
        journal = self._journal()
        with lock_folder(self.folder):
            self._sync()
            yield journal

    def _sync(self) -> None:
        self._journal().sync(self.retry(self.database, self.database.stage))
