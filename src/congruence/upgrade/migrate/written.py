"""Rows that the application wrote after the switch: how they are told from ours, counted, and kept by a rollback."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import pyarrow as pa

from congruence.databases import Block, Database, rows_of
from congruence.errors import CorruptFileError, MigrationError, ParameterError
from congruence.io.locations import Location
from congruence.upgrade.migrate.journal import hashes, is_among, row_digests
from congruence.upgrade.migrate.mapper import RowMapper

#: What a rollback does with rows that the application wrote after the switch.
NewRows: TypeAlias = Literal["refuse", "keep", "map-back"]

#: Files in the journal's folder: digests of the new vectors that this migration wrote, by ``row_digests`` or, in
#: earlier versions, by ``hashes``; and ids of rows whose old vectors a rollback computed.
_MARKS, _EARLIER, MAPPED_BACK = "written.digests", "written.u64", "mapped-back.txt"


class Marks:
    """Digests of vectors, with their ids, that a migration wrote, by which those of others are told apart.

    These are new vectors, and old ones that a rollback computed.
    """

    switched = False  # whether readers see the new vectors

    def __init__(self, values: np.ndarray | None = None, *, earlier: bool = False) -> None:
        self.values = np.empty(0, np.uint64) if values is None else values  # sorted
        self.earlier = earlier  # whether an earlier version began them: they stay of its kind

    @classmethod
    def read(cls, folder: Path, *, needed: bool) -> Marks | None:
        """Return the marks in a journal's folder; None if the migration was never switched."""
        earlier = (folder / _EARLIER).exists()
        place = folder / (_EARLIER if earlier else _MARKS)
        raw = Location.of(place).read()
        if raw is None and not needed:
            return None
        if raw is None or len(raw) % 8:
            raise CorruptFileError(f"{place} is missing or damaged.", "Restore it from a backup.")
        return cls(np.frombuffer(raw, "<u8"), earlier=earlier)

    def write(self, folder: Path) -> None:
        """Replace the marks in the folder."""
        Location.of(folder / (_EARLIER if self.earlier else _MARKS)).write(self.values.astype("<u8").tobytes())

    @staticmethod
    def remove(folder: Path) -> None:
        """Remove the files of a migration that has ended."""
        for name in (_MARKS, _EARLIER, MAPPED_BACK):
            (folder / name).unlink(missing_ok=True)

    def add(self, found: np.ndarray) -> None:
        """Add digests."""
        self.values = np.union1d(self.values, found)

    def drop(self, found: np.ndarray) -> None:
        """Remove digests."""
        self.values = np.setdiff1d(self.values, found)

    def has(self, ids: pa.Array, vectors: np.ndarray) -> np.ndarray:
        """Return which of these rows (b, dim) were written by the migration, bool of shape (b,)."""
        return is_among(self.digests(ids, vectors), self.values)

    def digests(self, ids: pa.Array, vectors: np.ndarray) -> np.ndarray:
        """Return the digests of rows (b, dim) of the kind of these marks."""
        return hashes(ids, vectors) if self.earlier else row_digests(ids, vectors)

    def theirs(self, ids: pa.Array, old: np.ndarray, new: np.ndarray) -> np.ndarray:
        """Return which new vectors (b, dim) the application wrote after a switch, bool of shape (b,).

        After a rollback, those whose rows have the old vectors (b, dim_old) that it computed: others are newer.
        """
        found = ~self.has(ids, new)
        return found if self.switched else found & self.has(ids, old)


@dataclass
class Written:
    """Rows that the application wrote after the switch, by id; each list has blocks of ids."""

    added: list[pa.Array] = field(default_factory=list)
    changed: list[pa.Array] = field(default_factory=list)  # with another vector
    edited: list[pa.Array] = field(default_factory=list)  # with our vector and other fields
    emptied: list[pa.Array] = field(default_factory=list)  # without their vector
    deleted: list[pa.Array] = field(default_factory=list)
    fewer: int = 0  # rows with an old vector than at the switch, where a deleted row has none on either side

    def __bool__(self) -> bool:
        return any((self.added, self.changed, self.edited, self.emptied, self.deleted))

    def counts(self) -> dict[str, int | None]:
        """Return how many rows were added, changed and deleted; None if some may have been replaced instead."""
        sides = {"added": self.added, "changed": [*self.changed, *self.edited, *self.emptied], "deleted": self.deleted}
        counts: dict[str, int | None] = {name: sum(map(len, blocks)) for name, blocks in sides.items()}
        if self.fewer:
            counts["deleted"] = None if self.added else self.fewer
        return counts

    def check(self, place: str, database: Database, new_rows: str) -> None:
        """Raise MigrationError if a rollback would lose these rows."""
        files = not database.capabilities.writes_after_switch  # which a rollback exchanges
        bare = bool(self.added or self.changed or self.emptied)  # rows that `keep` leaves without an old vector
        keeps = {"refuse": False, "keep": database.bare_rows or not bare, "map-back": True}[new_rows]
        if not self or (keeps and not files):
            return
        keep = "`new_rows='keep'` to keep them without an old vector, or " if database.bare_rows else ""
        fix = f"Pass {keep}`new_rows='map-back'` to keep them with one computed by the map's inverse."
        if files:
            fix = "Undo these writes, or stay with the new vectors: a rollback exchanges whole files."
        added, changed, deleted = (f"up to {self.fewer:,}" if n is None else f"{n:,}" for n in self.counts().values())
        raise MigrationError(
            f"Since the switch, {added} rows of {place} were added, {changed} changed and {deleted} deleted.", fix
        )


def find_written(database: Database, mapper: RowMapper, marks: Marks | None, batch: int) -> Written:
    """Compare the rows that readers see after the switch with those from before it."""
    found = Written()

    def note(ids: pa.Array, *kinds: tuple[np.ndarray, list[pa.Array]]) -> None:
        for rows, kind in kinds:
            if rows.any():
                kind.append(ids.filter(pa.array(rows)))

    for block in database.scan_new(batch=batch):
        ours = np.zeros(len(block.ids), bool) if marks is None else marks.has(block.ids, block.vectors)
        if (unknown := block.has_old & ~ours).any():  # perhaps what the map gives now, after a killed re-embedding
            old = database.fetch(block.ids.filter(pa.array(unknown)), "old")
            rows = rows_of(old.ids, block.ids)
            wanted = database.as_stored(mapper(old.ids, old.vectors, old.modalities))
            ours[rows] = ~mapper.new.differs(block.vectors[rows], wanted)
        note(
            block.ids,
            (~block.has_old, found.added),  # also with our vector, if the application replaced the row
            (block.has_old & ~ours, found.changed),
            (block.has_old & ours & ~block.same, found.edited),
        )
    for ids, seen in database.without_new(batch=batch):
        note(ids, (seen, found.emptied), (~seen, found.deleted))
    return found


def keep_written(database: Database, found: Written, back: Callable[[Block], np.ndarray] | None, marks: Marks) -> None:
    """Bring rows that the application wrote to the old side, before a rollback; can be repeated.

    ``back`` computes old vectors, which the rows otherwise do not get, and ``marks`` get their digests.
    """
    for ids in found.deleted:
        database.forget_old(ids)
    for ids in found.edited:
        old = database.fetch(ids, "old")
        database.put_old(old.ids, old.vectors)
    for ids in found.emptied:
        database.put_old(ids, None)
    for ids in (*found.added, *found.changed):
        block = database.fetch(ids, "new")
        if back is None:
            marks.drop(marks.digests(block.ids, block.vectors))  # their only vector is not ours to remove
            database.put_old(ids, None)
            continue
        database.put_old(block.ids, back(block))
        put = database.fetch(block.ids, "old")  # as stored
        marks.add(marks.digests(put.ids, put.vectors))


def map_back(mapper: RowMapper, folder: Path) -> Callable[[Block], np.ndarray]:
    """Return the function that maps new vectors back to old ones, and lists their ids in the journal's folder."""
    invert = getattr(mapper.map, "inverse", None)
    if invert is None:
        raise ParameterError(
            f"Got `new_rows='map-back'`, and a map of kind {mapper.map.kind} has no inverse.", "Pass `new_rows='keep'`."
        )
    back = RowMapper(
        invert(), modality=mapper.modality, allow_zero_rows=mapper.allow_zero_rows, old=mapper.new, new=mapper.old
    )

    def mapped(block: Block) -> np.ndarray:
        with open(folder / MAPPED_BACK, "a", encoding="utf-8") as marked:
            marked.writelines(f"{id_}\n" for id_ in block.ids.to_pylist())
        return back.encoded(block)

    return mapped
