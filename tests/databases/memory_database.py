"""An in-memory database: the reference implementation of the contract, and the place where tests inject faults."""

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from congruence.databases import Block, Capabilities, Database, DatabaseInfo, NewVectors, Stage
from congruence.embeddings import Space
from congruence.errors import ParameterError


@dataclass
class Table:
    """A table as users see it: rows by id, each a dict; ``shown`` is the column that readers use as the embedding."""

    rows: dict
    old: dict
    new: dict = field(default_factory=dict)
    made: tuple | None = None
    switched: bool = False
    space: Space = field(default_factory=Space)
    element_type: str = "float32"


class MemoryDatabase(Database):
    kind = "memory"
    capabilities = Capabilities(
        "table", True, True, False, True, element_types=("float32", "float16", "int8", "binary")
    )

    def __init__(self, table: Table, fail=None):
        self.table = table
        self.fail = fail or (lambda step: None)
        self.calls: list[str] = []

    def _step(self, name):
        self.calls.append(name)
        self.fail(name)

    def _side(self, side):
        return self.table.old if side == "old" else self.table.new

    def info(self):
        vectors = self.table.old
        first = next(iter(vectors.values()), ())
        ids = list(self.table.rows)
        return DatabaseInfo(
            place="memory",
            rows=len(vectors),
            rows_without=len(self.table.rows) - len(vectors),
            dim=len(first),
            element_type=self.table.element_type,
            distance="cosine",
            id_type="int" if ids and isinstance(ids[0], int) else "text",
            space=self.table.space,
        )

    def stage(self):
        if self.table.switched:
            return Stage.SWITCHED
        return Stage.UNTOUCHED if self.table.made is None else Stage.PREPARED

    @property
    def _subject(self):
        return "The table"

    def _made(self):
        return NewVectors(*self.table.made)

    def _block(self, ids, side, cursor):
        vectors = self._side(side)
        kinds = [self.table.rows.get(one, {}).get("kind") for one in ids]
        width = self.info().dim if side == "old" or self.table.made is None else self.table.made[0]
        array = np.array([vectors[one] for one in ids], np.float32).reshape(len(ids), width)
        number = not ids or isinstance(ids[0], int)
        names = pa.array(ids, pa.int64() if number else pa.large_string())
        return Block(names, array, pa.array(kinds, pa.large_string()) if any(kinds) else None, cursor)

    def scan(self, side="old", *, after=None, batch=4096):
        self._step(f"scan {side}")
        ids = sorted(self._side(side))
        if after is not None:
            if type(after) is not type(ids[0] if ids else after):
                raise ParameterError(f"Got cursor {after!r}; expected an id. Pass one that a scan of this table gave.")
            ids = [one for one in ids if one > after]
        for start in range(0, len(ids), batch):
            some = [one for one in ids[start : start + batch] if one in self._side(side)]
            if some:
                self._step("read")
                yield self._block(some, side, some[-1])

    def fetch(self, ids, side="old"):
        return self._block([one for one in ids.to_pylist() if one in self._side(side)], side, 0)

    def count(self, side="old"):
        return len(self._side(side))

    def _create(self, new):
        self.table.made = new

    def prepare(self, *arguments):
        self._step("prepare")
        super().prepare(*arguments)

    def write(self, ids, vectors):
        self._step("write")
        kind = self.table.made[1]
        assert kind != "int8" or (vectors == np.clip(np.rint(vectors), -128, 127)).all()
        assert kind != "binary" or (np.abs(vectors) == 1).all()
        if kind == "float16":
            vectors = vectors.astype(np.float16).astype(np.float32)
        for one, row in zip(ids.to_pylist(), vectors, strict=True):
            if one in self.table.rows:
                self.table.new[one] = row.copy()

    def delete(self, ids):
        self._step("delete")
        for one in ids.to_pylist():
            self.table.new.pop(one, None)

    def build_index(self):
        self._step("index")
        return "none, in memory"

    def search(self, queries, k, side="new"):
        vectors = self._side(side)
        ids = sorted(vectors)
        rows = np.array([vectors[one] for one in ids])
        scores = queries @ (rows / np.linalg.norm(rows, axis=1, keepdims=True)).T  # by cosine, as info says
        return [pa.array([ids[j] for j in np.argsort(-row)[:k]]) for row in scores]

    def _show_new(self):
        self.table.switched = True

    def _show_old(self):
        self.table.switched = False

    def switch(self):
        self._step("switch")
        super().switch()
        self._step("switched")

    def rollback(self):
        self._step("rollback")
        super().rollback()
        self._step("rolled back")

    def _remove_old(self):
        table = self.table
        table.element_type = table.made[1]
        table.old, table.new, table.made, table.switched = table.new, {}, None, False

    def _remove_new(self):
        self.table.new.clear()
        self.table.made = None

    bare_rows = True

    def put_old(self, ids, vectors):
        for k, one in enumerate(ids.to_pylist()):
            if vectors is None:
                self.table.old.pop(one, None)
            else:
                self.table.old[one] = vectors[k].copy()

    def exist(self, ids, side):
        return np.array([one in self.table.rows for one in ids.to_pylist()], bool)

    def forget_old(self, ids):
        self.put_old(ids, None)

    def close(self):
        self.calls.append("close")
