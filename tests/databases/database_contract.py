"""The contract that every database fulfills in a migration; a subclass creates and reads it as its users do."""

import gc
import json
import time
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pytest

import congruence
from congruence import LinearMap, OrthogonalMap
from congruence.databases import Database, Stage
from congruence.embeddings import normalize_rows
from congruence.errors import (
    CongruenceError,
    DatabaseError,
    DatabaseUnavailableError,
    FileError,
    MigrationError,
    ParameterError,
    SpaceMismatchError,
    StorageError,
)
from congruence.upgrade.migrate import Migration, passes
from congruence.upgrade.migrate import verify as checks
from congruence.upgrade.migrate.passes import Retry
from congruence.upgrade.migrate.stages import reembed

N, DIM, DIM_NEW = 157, 8, 6

#: What the contract makes of a situation: it is kept, refused by the plan, or refused by the step itself. A database
#: without an entry has no such thing. The same tables are in docs/reference/databases.md.
KEPT, BY_PLAN, REFUSED = "kept", "refused by plan", "refused"

#: Tests in which ids are compared, kept in order or written; the others run with ids of the first type alone.
OF_IDS = ("describes", "scan_gives", "fetch_gives", "rows_without_a_vector", "rows_added", "a_whole_migration")
OF_IDS += ("switch_rollback_switch", "new_vectors_are_written_after")

FAULTS = ("lost connection", "full disk")
FOREIGN = ("mixed stores", "wrong stores", "wrong width")
SITUATIONS = ("NOT NULL", "default", "check", "generated column", "comment", "type", "foreign key")
SITUATIONS += ("two columns",)
_EVERYWHERE = {"drop-old, discard": KEPT, "own name": BY_PLAN}
_EVERYWHERE |= dict.fromkeys(FAULTS, KEPT) | dict.fromkeys(FOREIGN, BY_PLAN)
_EXCHANGED = {"partial run": BY_PLAN, "keep": REFUSED, "map-back": REFUSED}
_WRITES = dict.fromkeys(("partial run", "keep", "map-back"), KEPT)

#: By kind of database and situation.
CELLS = {
    kind: _EVERYWHERE | cells
    for kind, cells in {
        "lancedb": _WRITES | dict.fromkeys(("two columns", "NOT NULL", "comment", "type"), KEPT),
        "duckdb": _WRITES
        | dict.fromkeys(("two columns", "NOT NULL", "default", "comment", "type"), KEPT)
        | dict.fromkeys(("check", "generated column", "foreign key"), BY_PLAN),
        "pgvector": _WRITES
        | dict.fromkeys(("two columns", "NOT NULL", "check", "comment", "foreign key"), KEPT)
        | dict.fromkeys(("default", "generated column"), BY_PLAN),
        "sqlite-vec": {"map-back": KEPT, "keep": REFUSED} | dict.fromkeys(("partial run", "two columns"), BY_PLAN),
        "qdrant": _WRITES | {"two columns": BY_PLAN},
        "chroma": _WRITES | {"keep": REFUSED},
        "milvus": _WRITES | {"keep": REFUSED, "two columns": BY_PLAN},
        "elasticsearch": _WRITES | {"two columns": BY_PLAN},
        "parquet": {"NOT NULL": KEPT, "comment": KEPT, "type": KEPT, "keep": REFUSED, "map-back": REFUSED}
        | dict.fromkeys(("partial run", "two columns"), BY_PLAN),
        "npy": _EXCHANGED | {"type": KEPT},
        "faiss": _EXCHANGED,
    }.items()
}

_K, _R, _N = KEPT, REFUSED, None

#: What others make between two steps, by kind: in words, and what becomes of it by switch, rollback, drop_old and
#: discard; None if it is not theirs to keep. The same table is in docs/reference/databases.md.
BETWEEN = {
    "lancedb": {
        "index": ("an index over the vectors", _K, _K, _K, _K),
        "scalar index": ("an index over another column", _K, _K, _K, _K),
        "tag": ("a tag", _K, _K, _K, _K),
        "comment": ("metadata of the column", _K, _K, _K, _K),
    },
    "duckdb": {
        "seen": ("a view of named columns", _K, _K, _K, _K),
        "whole": ("a view of all columns", _K, _K, _K, _K),
        "placed": ("a view of all columns with names of its own", _R, _R, _R, _R),
        "raw": ("a view of the hidden column", _R, _R, _R, _R),
        "near": ("a macro", _K, _K, _K, _K),
        "by_title": ("an index over another column", _K, _K, _K, _K),
        "a comment": ("a comment on the column", _K, _K, _K, _K),
        "a default": ("a default", _K, _K, _K, _K),
        "likes": ("a foreign key to the table", _R, _R, _R, _R),
        "told": ("a trigger", _R, _R, _R, _R),
    },
    "pgvector": {
        "seen": ("a view of named columns", _K, _K, _K, _K),
        "whole": ("a view of all columns", _R, _R, _R, _R),
        "raw": ("a view of the hidden column", _R, _R, _R, _R),
        "kept": ("a materialized view", _R, _R, _N, _N),
        "loud": ("a rule", _R, _R, _N, _N),
        "told": ("a trigger", _K, _K, _K, _K),
        "width": ("a generated column", _R, _R, _N, _N),
        "default": ("a default", _R, _R, _N, _N),
        "nobody": ("a grant", _K, _K, _K, _K),
        "second": ("an index over the vectors", _K, _N, _K, _K),
        "sole": ("a unique index over the vectors", _K, _R, _K, _K),
        "without": ("an index over the vectors is dropped", _K, _N, _K, _K),
        "wide": ("a check", _K, _K, _K, _K),
        "a comment": ("a comment on the column", _K, _K, _K, _K),
        "likes": ("a foreign key to the table", _K, _K, _K, _K),
    },
    "sqlite-vec": {
        "seen": ("a view", _K, _K, _K, _K),
        "told": ("a trigger of another table", _K, _K, _K, _K),
        "items__congruence_old": ("a table `…__congruence_old`", _R, _N, _N, _N),
        "items__congruence_new": ("a table `…__congruence_new`", _N, _R, _N, _N),
    },
    "qdrant": {
        "field": ("an index of a payload field", _K, _K, _K, _K),
        "staging": ("another alias of the collection that readers see", _R, _K, _K, _K),
        "hidden": ("an alias of the other collection", _N, _N, _R, _R),
        "metadata": ("metadata", _R, _R, _K, _K),
    },
    "chroma": {
        "another": ("another collection", _K, _K, _K, _K),
        "items__congruence_old": ("a collection `…__congruence_old`", _R, _N, _N, _N),
        "items__congruence_new": ("a collection `…__congruence_new`", _N, _R, _N, _N),
        "metadata": ("metadata", _R, _R, _K, _K),
        "configuration": ("settings of the index", _R, _R, _K, _K),
    },
    "milvus": {
        "another": ("another collection", _K, _K, _K, _K),
        "items__congruence_old": ("a collection `…__congruence_old`", _R, _N, _N, _N),
        "items__congruence_new": ("a collection `…__congruence_new`", _N, _R, _N, _N),
        "properties": ("properties", _R, _R, _K, _K),
    },
    "elasticsearch": {
        "field": ("a new field", _K, _K, _K, _K),
        "staging": ("another alias", _R, _K, _K, _K),
        "hidden": ("a hidden alias", _N, _N, _R, _R),
        "metadata": ("metadata", _R, _R, _K, _K),
        "setting": ("a setting", _R, _R, _K, _K),
    },
}

ERRORS = {"lost connection": DatabaseUnavailableError, "full disk": StorageError}  # how the store fails


def cell_of(database, situation, default=None):
    """Return what the contract makes of a situation; ``default`` for databases of other packages."""
    return CELLS[database.kind].get(situation) if database.kind in CELLS else default


NASTY = "we ird\"; DROP TABLE items; -- '`é"


@dataclass
class UserRow:
    """A row as the user's own client reads it: the bytes of the vector in the user's column, and all other columns."""

    vector: bytes | None
    others: dict = field(default_factory=dict)


def make_rows(id_type: str, n: int = N, dim: int = DIM, seed: int = 0):
    """Unsorted ids, unit vectors, and two other columns: ``kind`` (image or text) and ``title``."""
    rng = np.random.default_rng(seed)
    numbers = rng.permutation(n) * 3 + 1
    ids = [int(one) for one in numbers]
    if id_type == "text":
        ids = [f"item-{one:04d}" for one in numbers]
    elif id_type == "uuid":
        ids = [f"00000000-0000-4000-8000-{one:012d}" for one in numbers]
    vectors = rng.normal(size=(n, dim)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    kinds = ["image" if k % 3 else "text" for k in range(n)]
    titles = [f'title of {one}; it\'s "quoted" – ünï' for one in ids]
    return ids, vectors, {"kind": kinds, "title": titles}


class Killed(BaseException):
    """Simulates a kill: no code catches it."""


def kill_after(patch, owner, name, calls):
    """Raise Killed at the call of a method after this number of calls."""
    done, call = [], getattr(owner, name)

    def killed(*arguments, **options):
        if len(done) == calls:
            raise Killed
        done.append(arguments)
        return call(*arguments, **options)

    patch.setattr(owner, name, killed)


class Counted:
    """A client or a cursor that is killed at a statement."""

    def __init__(self, inner, left):
        self.inner, self.left = inner, left

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def execute(self, statement, *values):
        if not self.left and statement != "ROLLBACK":
            raise Killed
        self.left -= 1
        return self.inner.execute(statement, *values)


@contextmanager
def killed_client(database, at):
    """Within it, the client is killed after ``at`` statements."""
    inner = database._client
    database._client = Counted(inner, at)
    try:
        yield
    finally:
        database._client = inner


def check_kills(database, step, rows, killed, least):
    """Kill a step at each of its statements, inside ``killed(at)``: rows and stage stay, until an attempt succeeds."""
    before, stage = rows(), database.stage()
    for at in range(200):
        try:
            with killed(at):
                getattr(database, step)(*([3] if step == "prepare" else []))
            break
        except Killed:
            assert database.stage() is stage
            assert rows() == before
    assert at >= least
    assert database.stage() is not stage


def lists(vectors):
    """Return an Arrow array of lists of one length."""
    flat = pa.array(np.ascontiguousarray(vectors).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])


def paired(database, batch):
    """Return the blocks of rows with both vectors, as a pass of a migration reads them."""
    blocks = []
    for rows in database.ranges(10**6):
        assert not database.revise(rows, batch, blocks.append)
    return blocks


def without_new(database):
    """Return the ids of the rows that have no new vector of their present content."""
    found = ((block.ids.to_pylist(), block.has_new) for block in paired(database, 7))
    return {one for ids, has_new in found for one, has in zip(ids, has_new, strict=True) if not has}


def run(database, dim=DIM_NEW, element_type="float32", note=None):
    """Fill the new side with the first columns of the old one."""
    database.prepare(dim, element_type, note or {"map": "abc"})
    for block in database.scan("old", batch=10):
        database.write(block.ids, np.ascontiguousarray(block.vectors[:, :dim]))


class DatabaseContract:
    """Base class of the tests, which run for each of ``id_types`` if they use ids; a subclass provides the database."""

    kind = ""  # of :data:`CELLS`; nothing for databases of other packages
    id_types = ("int", "text")
    slow = False  # some tests take seconds, and are run by ``make test-long`` alone
    any_names = True  # whether names of tables and columns may hold anything
    rows_without = True  # A row may have no vector
    times_writing = False  # writing can be timed on a scratch table
    has_modalities = True  # the modality can come from a column ``kind``

    needed: tuple[str, ...] = ()  # names that a migration needs, and that ``take`` can give to something of the user's
    named: ClassVar[dict[str, str]] = {}  # options that name the table among others

    # ---- to be given -------------------------------------------------------------------------------------------------

    def make(self, folder, ids, vectors, others, *, table="items", column="embedding", id_column="id") -> str:
        """Create a database as its users do, with an index if this is the default, and return its address."""
        raise NotImplementedError

    def open(self, where, **options) -> Database:
        """Open the database by :func:`congruence.databases.open_database`."""
        from congruence.databases import open_database

        return open_database(where, **options)

    def user_rows(self, where, *, table="items", column="embedding", id_column="id") -> dict[int | str, UserRow]:
        """Read all rows with the user's own client, with the bytes of the vectors in the user's column."""
        raise NotImplementedError

    def user_add(self, where, one, vector, others, *, table="items", column="embedding", id_column="id") -> None:
        """Add or replace a row with the user's own client; ``vector`` may be None if rows may have none."""
        raise NotImplementedError

    def user_delete(self, where, one, *, table="items", id_column="id") -> None:
        raise NotImplementedError

    def take(self, where, name) -> None:
        """Create something of the user's that has this name: a column, table, collection or, by default, a folder."""
        folder = Path(where).with_name(name)
        folder.mkdir()
        (folder / "mine.txt").write_text("of the user")

    def user_change(self, where, one, vector, others) -> None:
        """Change a row with the user's own client."""
        self.user_add(where, one, vector, others)

    between: ClassVar[dict[str, tuple[str, ...]]] = {}  # what others make between two steps

    def make_between(self, where, what) -> None:
        """Make one of these with the user's own client."""
        raise NotImplementedError

    def unmake(self, where, what) -> None:
        """Remove it again."""
        raise NotImplementedError

    def holds(self, where, what) -> bool:
        """Return whether it is there, and is about the vectors that readers see."""
        raise NotImplementedError

    def traces(self, where) -> object:
        """Return all that is stored apart from the rows: names, definitions, comments, metadata, settings, files."""
        raise NotImplementedError

    def clear(self) -> None:
        """Remove what :meth:`make` created, if a second database would collide with it."""

    def restart(self) -> None:
        """Let the next client read what is stored, if the clients of a process share what they have in memory."""

    def filter_of_images(self) -> str:
        """The condition kind = image in the database's own language."""
        return "kind = 'image'"

    # ---- fixtures ----------------------------------------------------------------------------------------------------

    def pytest_generate_tests(self, metafunc):
        if "id_type" in metafunc.fixturenames:
            ids = metafunc.function.__name__.removeprefix("test_").startswith(OF_IDS)
            metafunc.parametrize("id_type", metafunc.cls.id_types if ids else metafunc.cls.id_types[:1])
        if "rule" in metafunc.fixturenames:
            metafunc.parametrize("rule", [one for one in SITUATIONS if one in CELLS.get(metafunc.cls.kind, {})])

    @pytest.fixture
    def made(self, tmp_path, id_type):
        self.id_type = id_type
        ids, vectors, others = make_rows(id_type)
        return self.make(tmp_path, ids, vectors, others), ids, vectors, others

    @staticmethod
    def mapped(vectors):
        """A substitute for a map: the first columns in reverse order plus a constant, with unit norm."""
        out = np.ascontiguousarray(vectors[:, DIM_NEW - 1 :: -1]) + np.float32(0.1)
        return out / np.linalg.norm(out, axis=1, keepdims=True)

    def fill(self, database, batch=50):
        database.prepare(DIM_NEW, "float32", {"map": "abc"})
        for block in database.scan("old", batch=batch):
            database.write(block.ids, self.mapped(block.vectors))
        database.flush()

    # ---- reading -----------------------------------------------------------------------------------------------------

    def test_describes_what_is_there(self, made, id_type):
        where, _ids, _vectors, _others = made
        with self.open(where) as database:
            info = database.info()
            assert (info.rows, info.dim, info.element_type, info.rows_without) == (N, DIM, "float32", 0)
            assert info.id_type == id_type
            assert database.stage() is Stage.UNTOUCHED
            assert database.count("old") == N
            assert not database.note()
            assert database.repeated_ids() == []

    def test_scan_gives_every_row_once_in_one_order_and_goes_on_anywhere(self, made):
        where, ids, vectors, others = made
        with self.open(where, modality_column="kind" if self.has_modalities else None) as database:
            blocks = list(database.scan("old", batch=20))
            assert max(len(block.ids) for block in blocks) <= 20
            seen = [one for block in blocks for one in block.ids.to_pylist()]
            assert sorted(seen, key=str) == sorted(ids, key=str)
            got = np.concatenate([block.vectors for block in blocks])
            assert got.dtype == np.float32
            row = {one: k for k, one in enumerate(ids)}
            np.testing.assert_array_equal(got, vectors[[row[one] for one in seen]])
            if self.has_modalities:
                kinds = [kind for block in blocks for kind in block.modalities.to_pylist()]
                assert kinds == [others["kind"][row[one]] for one in seen]
            for k, block in enumerate(blocks):
                cursor = json.loads(json.dumps(block.cursor))
                rest = [one for part in database.scan("old", after=cursor, batch=33) for one in part.ids.to_pylist()]
                assert rest == seen[sum(len(part.ids) for part in blocks[: k + 1]) :]
        with self.open(where) as database:
            assert [one for part in database.scan(batch=1000) for one in part.ids.to_pylist()] == seen
            assert next(iter(database.scan())).modalities is None

    def test_fetch_gives_those_that_exist(self, made):
        where, ids, vectors, _ = made
        with self.open(where) as database:
            first = next(iter(database.scan(batch=5))).ids
            unknown = pa.array(["no such"] if not pa.types.is_integer(first.type) else [10**9], first.type)
            block = database.fetch(pa.concat_arrays([first, unknown.cast(first.type)]))
            assert sorted(block.ids.to_pylist(), key=str) == sorted(first.to_pylist(), key=str)
            row = {one: k for k, one in enumerate(ids)}
            np.testing.assert_array_equal(block.vectors, vectors[[row[one] for one in block.ids.to_pylist()]])

    def test_rows_without_a_vector_are_counted_and_passed_over(self, tmp_path, id_type):
        if not self.rows_without:
            pytest.skip("this database has no rows without a vector")
        ids, vectors, others = make_rows(id_type, 20)
        where = self.make(tmp_path, ids, vectors, others)
        empty = {"text": "item-empty", "int": 10_000, "uuid": "00000000-0000-4000-8000-000000010000"}[id_type]
        self.user_add(where, empty, None, {"kind": "image", "title": "none"})
        with self.open(where) as database:
            info = database.info()
            assert (info.rows, info.rows_without) == (20, 1)
            assert empty not in [one for block in database.scan() for one in block.ids.to_pylist()]
            self.fill(database)
            assert database.count("new") == 20
            database.switch()
        assert self.user_rows(where)[empty].vector is None

    def test_a_condition_chooses_rows(self, made):
        where, ids, _, others = made
        with self.open(where) as database:
            if not database.capabilities.filters:
                pytest.skip("this database takes no condition")
        with self.open(where, rows=self.filter_of_images()) as database:
            wanted = {one for one, kind in zip(ids, others["kind"], strict=True) if kind == "image"}
            assert database.info().rows == database.count("old") == len(wanted)
            assert {one for block in database.scan(batch=30) for one in block.ids.to_pylist()} == wanted

    # ---- writing beside ----------------------------------------------------------------------------------------------

    def test_nothing_the_user_sees_changes_before_the_switch(self, made):
        where, ids, vectors, _ = made
        before = self.user_rows(where)
        with self.open(where) as database:
            self.fill(database)
            assert database.stage() is Stage.PREPARED
            assert dict(database.note()) in ({"map": "abc"}, {})
            assert database.count("new") == N
            block = database.fetch(next(iter(database.scan(batch=40))).ids, "new")
            row = {one: k for k, one in enumerate(ids)}
            expected = self.mapped(vectors[[row[one] for one in block.ids.to_pylist()]])
            np.testing.assert_array_equal(block.vectors, expected)
        assert self.user_rows(where) == before

    def test_writing_twice_is_writing_once(self, made):
        where, _ids, _vectors, _ = made
        with self.open(where) as database:
            self.fill(database)
            self.fill(database, batch=31)
            assert database.count("new") == N
            pairs = paired(database, 40)
            assert sum(len(block.ids) for block in pairs) == N
            for block in pairs:
                assert block.has_new.all()
                np.testing.assert_array_equal(block.new, self.mapped(block.old))
        with self.open(where) as database:  # another process finds the same
            assert database.stage() is Stage.PREPARED
            with pytest.raises(MigrationError, match="already has new vectors"):
                database.prepare(DIM_NEW + 1, "float32", {"map": "abc"})
            database.prepare(DIM_NEW, "float32", {"map": "abc"})
            assert database.count("new") == N

    def test_rows_added_changed_and_deleted_meanwhile_are_found(self, made, id_type):
        where, ids, vectors, _others = made
        with self.open(where) as database:
            if not database.capabilities.concurrent_writes:
                pytest.skip("this database has one writer at a time")
            self.fill(database)
            changed, gone = ids[3], ids[4]
            added = {"text": "item-9999", "int": 9999, "uuid": "00000000-0000-4000-8000-000000009999"}[id_type]
            other = np.eye(1, DIM, dtype=np.float32)[0]
            self.user_add(where, added, other, {"kind": "image", "title": "new"})
            self.user_add(where, changed, -vectors[3], {"kind": "image", "title": "changed"})
            self.user_delete(where, gone)
            pairs = paired(database, 40)
            found = {one: k for block in pairs for k, one in enumerate(block.ids.to_pylist())}
            assert gone not in found
            assert added in found
            wrong = set()
            for block in pairs:
                differs = ~block.has_new | (np.abs(block.new - self.mapped(block.old)).max(axis=1) > 1e-6)
                wrong |= {one for one, flag in zip(block.ids.to_pylist(), differs, strict=True) if flag}
            assert wrong == {added, changed}
            orphans = [one for part in database.orphans(batch=40) for one in part.to_pylist()]
            assert orphans in ([gone], [])
            for part in list(database.orphans(batch=40)):
                database.delete(part)
            for block in database.scan("old"):
                database.write(block.ids, self.mapped(block.vectors))
            database.flush()
            assert list(database.orphans()) == []
            assert database.count("new") == N == database.count("old")
            # A row that is gone by the time it is written stays gone.
            database.write(pa.array([gone], block.ids.type), np.ones((1, DIM_NEW), np.float32))
            database.flush()
            assert database.count("new") - sum(len(part) for part in database.orphans()) == N
        assert gone not in self.user_rows(where)

    def test_a_whole_migration_with_a_map(self, made, tmp_path):
        """An engine reads and writes in different threads."""
        where, ids, vectors, _ = made
        before = self.user_rows(where)
        rng = np.random.default_rng(3)
        target = vectors @ np.linalg.qr(rng.normal(size=(DIM, DIM)))[0].astype(np.float32)
        mapping = OrthogonalMap(center=False).fit(vectors[:100], target[:100], modality="image")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(passes, "rows_per_block", lambda dim: 20)
            patch.setattr(passes, "CHECKPOINT_SECONDS", 0.01)
            patch.setattr(checks, "QUERIES", 20)
            with Migration(self.open(where), mapping, journal=tmp_path / "journal", modality="image") as migration:
                migration.run()
                found = migration.verify()
                assert found.passed, found.problems
                assert (found.rows_old, found.rows_new, found.read_back, found.wrong) == (N, N, N, 0)
                assert not migration.rollback()["switched"]
                migration.switch()
        row = {one: k for k, one in enumerate(ids)}
        for one, seen in self.user_rows(where).items():
            np.testing.assert_allclose(np.frombuffer(seen.vector, np.float32), target[row[one]], atol=2e-5)
        with Migration(self.open(where), journal=tmp_path / "journal") as migration:
            back = migration.rollback()
            assert back["identical"]
            assert back["switched"]
        assert self.user_rows(where) == before

    @pytest.mark.parametrize("moment", ["during the run", "before the switch", "never"])
    def test_what_others_write_is_mapped_and_without_it_no_pass_is_made_where_the_store_can_tell(
        self, tmp_path, monkeypatch, moment
    ):
        ids, vectors, others = make_rows(self.id_types[0])
        where = self.make(tmp_path, ids, vectors, others)
        mapping, mapped = self.rotated(vectors)
        wanted, made, repair = dict(zip(ids, mapped, strict=True)), [], passes.Passes.repair
        monkeypatch.setattr(passes, "rows_per_block", lambda dim: 20)
        monkeypatch.setattr(passes.Passes, "repair", lambda *given, **more: made.append(1) or repair(*given, **more))
        todo = [moment == "during the run"]

        def change(rows=0):
            if todo.pop():
                self.user_change(where, ids[3], vectors[5], {name: values[5] for name, values in others.items()})
                self.user_delete(where, ids[4])
                wanted[ids[3]] = mapped[5]
                del wanted[ids[4]]
            todo.append(False)

        with self.migrating(where, tmp_path, mapping) as migration:
            database = migration.database
            if not database.capabilities.concurrent_writes and (moment == "during the run" or self.kind != "duckdb"):
                pytest.skip("no other program can write")
            migration.run(callback=change)
            assert migration.verify().passed
            can_tell, before = database.version() is not None, len(made)
            assert moment == "during the run" or not can_tell or not before
            todo[:] = [moment == "before the switch"]
            change()
            migration.switch()
            assert (len(made) > before) == (moment == "before the switch" or not can_tell)
            assert migration.journal.summary["rows"] == len(wanted)
        self.check_vectors(self.user_rows(where), wanted)
        with self.migrating(where, tmp_path) as migration:
            assert migration.rollback()["identical"]

    def test_what_others_write_behind_the_last_pass_is_mapped_where_the_store_can_tell(self, tmp_path):
        ids, vectors, others = make_rows(self.id_types[0])
        where = self.make(tmp_path, ids, vectors, others)
        mapping, mapped = self.rotated(vectors)
        with self.migrating(where, tmp_path, mapping) as migration:
            if migration.database.version() is None:
                pytest.skip("the store cannot tell")
            migration.run()
            assert migration.verify().passed
        wanted, read = dict(zip(ids, mapped, strict=True)), [0]

        def change(rows):
            read[0] += rows
            if read[0] == len(ids):
                self.user_change(where, ids[3], vectors[5], {name: values[5] for name, values in others.items()})
                self.user_delete(where, ids[4])

        with self.migrating(where, tmp_path) as migration:  # another process, which has to make a pass
            migration.switch(callback=change)
            assert migration.journal.summary["rows"] == len(ids) - 1
        wanted[ids[3]] = mapped[5]
        del wanted[ids[4]]
        self.check_vectors(self.user_rows(where), wanted)

    def test_the_disk_that_the_plan_asks_for_is_enough(self, tmp_path):
        if self.kind not in ("lancedb", "duckdb", "sqlite-vec"):
            pytest.skip("only measured for these, with `bench_migrate.py --ways disk`")
        ids, vectors, others = make_rows(self.id_types[0])
        where = self.make(tmp_path, ids, vectors, others)
        mapping, _ = self.rotated(vectors)

        def size():
            return sum(file.stat().st_size for file in tmp_path.rglob("*") if "journal" not in file.parts)

        with self.migrating(where, tmp_path, mapping) as migration:
            before, info = size(), migration.info
            needed = migration.database.bytes_needed(info, info.dim, "float32")
            migration.run()
            run = size() - before
            assert migration.verify().passed
            migration.switch()
            assert max(run, size() - before) <= needed

    def test_a_store_is_the_same_by_every_path_to_it(self, made, tmp_path, monkeypatch):
        where, _, vectors, _ = made
        scheme, mark, path = where.rpartition("://")
        if tmp_path not in Path(path).parents:
            pytest.skip("no files on this machine")
        monkeypatch.chdir(Path(path).parent)
        (tmp_path / "link").symlink_to(Path(path).parent)
        way = where if mark else Path(path).name  # in an address, a path is a whole one
        with self.migrating(way, tmp_path, self.rotated(vectors)[0]) as migration:
            migration.run()
            assert migration.verify().passed
            folder = migration.database.identify(migration.info.place)
        monkeypatch.chdir("/")
        for way in (where, f"{scheme}{mark}{tmp_path / 'link' / Path(path).name}"):
            self.restart()
            with self.migrating(way, tmp_path) as migration:
                assert migration.database.identify(migration.info.place) == folder
                migration.switch()

    def test_a_discard_that_was_killed_at_its_end_is_completed(self, made, tmp_path):
        where, _, vectors, _ = made
        before = self.user_rows(where)
        self.switched(where, tmp_path, self.rotated(vectors)[0])
        with self.migrating(where, tmp_path) as migration:
            migration.rollback()
            migration.database.discard()  # after which the journal is removed
        with self.migrating(where, tmp_path) as migration:
            assert migration.status()["state"] == "filling"
            migration.discard()
        assert not (tmp_path / "journal" / "journal.json").exists()
        assert self.user_rows(where) == before

    @pytest.mark.parametrize(("width", "result"), [(DIM + 3, DIM_NEW), (DIM_NEW, DIM), (1, 1)])
    def test_a_map_of_another_width_is_refused_before_anything_is_written(self, tmp_path, width, result):
        ids, vectors, others = make_rows(self.id_types[0], 12)
        where = self.make(tmp_path, ids, vectors, others)
        before, rng = self.user_rows(where), np.random.default_rng(1)
        mapping = LinearMap().fit(rng.normal(size=(40, width)), rng.normal(size=(40, result)))
        with Migration(self.open(where), mapping, journal=tmp_path / "journal") as migration:
            assert cell_of(migration.database, "wrong width", BY_PLAN) == BY_PLAN
            for step in (migration.plan, migration.run):
                with pytest.raises(SpaceMismatchError, match=rf"{DIM}-d .*(expected|not) {width}-d"):
                    step()
            assert migration.database.stage() is Stage.UNTOUCHED
        assert self.user_rows(where) == before
        assert not (tmp_path / "journal").exists()

    def test_every_element_type(self, tmp_path):
        """Vectors are written, read, searched, switched and rolled back; then this is the type of the old side."""
        wide = 16
        drawn = np.random.default_rng(5).normal(size=(40, wide)).astype(np.float32)
        stored = {
            "float32": drawn,
            "float16": drawn.astype(np.float16).astype(np.float32),
            "int8": np.clip(np.rint(60 * drawn), -128, 127),
            "binary": np.where(drawn > 0, np.float32(1), np.float32(-1)),
        }
        ids, vectors, others = make_rows(self.id_types[0], 40)
        row = {one: k for k, one in enumerate(ids)}

        def rows_of(block):
            return [row[one] for one in block.ids.to_pylist()]

        (tmp_path / "probe").mkdir()
        with self.open(self.make(tmp_path / "probe", ids, vectors, others)) as database:
            kinds, searches = database.capabilities.element_types, database.capabilities.searches
        for kind in kinds:
            (tmp_path / kind).mkdir()
            self.clear()
            where = self.make(tmp_path / kind, ids, vectors, others)
            before = self.user_rows(where)
            with self.open(where) as database:
                seconds = database.time_write(stored[kind], kind)
                assert seconds is None if not self.times_writing else seconds > 0
                assert not list(tmp_path.rglob(".congruence-*"))
                assert database.stage() is Stage.UNTOUCHED
                database.prepare(wide, kind, {"map": "abc"})
                database.prepare(wide, kind, {"map": "abc"})
                for other in {"float32", kinds[-1]} - {kind}:
                    with pytest.raises(MigrationError, match="already has new vectors"):
                        database.prepare(wide, other, {"map": "abc"})
                for block in database.scan(batch=15):
                    database.write(block.ids, stored[kind][rows_of(block)])
                database.flush()
                for block in paired(database, 15):
                    assert block.has_new.all()
                    np.testing.assert_array_equal(block.new, stored[kind][rows_of(block)])
                database.build_index()
                if searches:
                    asked = database.fetch(block.ids, "new")
                    found = database.search(asked.vectors, 1)
                    assert [one.to_pylist() for one in found] == [[one] for one in asked.ids.to_pylist()]
                database.switch()
                for block in database.scan("new"):
                    np.testing.assert_array_equal(block.vectors, stored[kind][rows_of(block)])
                database.rollback()
            assert self.user_rows(where) == before
            with self.open(where) as database:
                database.switch()
                database.drop_old()
            with self.open(where) as database:
                info = database.info()
                assert (info.element_type, info.dim, info.rows) == (kind, wide, 40)
                database.prepare(DIM, "float32", {})
                for block in database.scan():
                    np.testing.assert_array_equal(block.vectors, stored[kind][rows_of(block)])
                    database.write(block.ids, vectors[rows_of(block)])
                database.build_index()
                database.switch()
            assert {one: found.vector for one, found in self.user_rows(where).items()} == {
                one: found.vector for one, found in before.items()
            }

    # ---- switch and back ---------------------------------------------------------------------------------------------

    def test_switch_rollback_switch_and_drop(self, made):
        where, ids, vectors, _ = made
        before = self.user_rows(where)
        row = {one: k for k, one in enumerate(ids)}
        expected = {one: self.mapped(vectors[row[one]][None])[0].tobytes() for one in ids}
        with self.open(where) as database:
            with pytest.raises(MigrationError):
                database.drop_old()
            self.fill(database)
            database.build_index()
            database.switch()
            assert database.stage() is Stage.SWITCHED
            database.switch()
            with pytest.raises(MigrationError):
                database.discard()
            assert (database.count("old"), database.count("new")) == (N, N)
        after = self.user_rows(where)
        assert {one: found.vector for one, found in after.items()} == expected
        assert {one: found.others for one, found in after.items()} == {one: b.others for one, b in before.items()}
        with self.open(where) as database:  # the words keep their meaning behind the switch
            assert database.stage() is Stage.SWITCHED
            block = next(iter(database.scan("old", batch=10)))
            np.testing.assert_array_equal(block.vectors, vectors[[row[one] for one in block.ids.to_pylist()]])
            database.rollback()
            database.rollback()
            assert database.stage() is Stage.PREPARED
        assert self.user_rows(where) == before
        with self.open(where) as database:
            database.switch()
            database.drop_old()
            assert database.stage() is Stage.UNTOUCHED
            assert database.info().dim == DIM_NEW
        assert {one: found.vector for one, found in self.user_rows(where).items()} == expected

    def test_new_vectors_are_written_after_the_switch_too(self, made):
        """Rows can be re-embedded while readers see the new side."""
        where, ids, vectors, _ = made
        before = self.user_rows(where)
        row = {one: k for k, one in enumerate(ids)}
        expected = {one: self.mapped(vectors[row[one]][None])[0] for one in ids}
        native = np.eye(5, DIM_NEW, dtype=np.float32)
        with self.open(where) as database:
            if not database.capabilities.writes_after_switch:
                pytest.skip("the new side is a complete file, exchanged with the old one")
            self.fill(database)
            database.build_index()
            database.switch()
            block = next(iter(database.scan("old", batch=5)))
            database.write(block.ids, native)
            database.flush()
            assert database.stage() is Stage.SWITCHED
            assert database.count("new") == N
            expected |= {one: database.as_stored(native[k : k + 1])[0] for k, one in enumerate(block.ids.to_pylist())}
            for pair in paired(database, 40):
                np.testing.assert_allclose(pair.new, [expected[one] for one in pair.ids.to_pylist()], atol=1e-6)
            database.build_index()
            if database.capabilities.searches:
                found = database.search(native[:1], 1, "new")
                assert found[0].to_pylist() == block.ids[:1].to_pylist()
        after = self.user_rows(where)
        assert len(after) == N
        for one, found in after.items():
            np.testing.assert_allclose(np.frombuffer(found.vector, np.float32), expected[one], atol=1e-6)
            assert found.others == before[one].others
        with self.open(where) as database:
            database.rollback()
        assert self.user_rows(where) == before

    def test_discard_leaves_nothing(self, made):
        where, _, _, _ = made
        before = self.user_rows(where)
        with self.open(where) as database:
            assert self.kind == (database.kind if database.kind in CELLS else "")
            self.fill(database)
            database.discard()
            assert database.stage() is Stage.UNTOUCHED
            database.discard()
            self.fill(database)
            assert database.count("new") == N
        assert self.user_rows(where) == before

    def test_search_finds_each_row_itself(self, made):
        where, _, _vectors, _ = made
        with self.open(where) as database:
            if not database.capabilities.searches:
                with pytest.raises(ParameterError, match="has no index"):
                    database.search(np.ones((1, DIM), np.float32), 3)
                return
            self.fill(database)
            database.build_index()
            block = next(iter(database.scan("old", batch=7)))
            for side, asked in (("old", block.vectors), ("new", self.mapped(block.vectors))):
                found = database.search(asked, 3, side)
                assert [one.to_pylist()[0] for one in found] == block.ids.to_pylist()
                assert {len(one) for one in found} == {3}

    @pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="no list of open descriptors")
    def test_closing_releases_its_descriptors(self, made):
        where, *_ = made
        self.restart()

        def count():
            with self.open(where) as database:
                next(iter(database.scan("old", batch=7)))
            gc.collect()
            return len(list(Path("/proc/self/fd").iterdir()))

        gc.freeze()  # what other tests made and loaded is not searched again, by these collections or any later one
        first = [count() for _ in range(3)]  # a client may open what it then keeps for all
        # A server in this process may close its ends later.
        tries = (time.sleep(0.02 * k) or count() for k in range(20))
        assert any(found <= first[-1] for found in tries)

    def test_what_others_gave_a_name_of_ours_is_refused_and_left_alone(self, tmp_path):
        ids, vectors, others = make_rows(self.id_types[0], 20)
        mapping, _ = self.rotated(vectors)
        for k, name in enumerate(self.needed):
            (tmp_path / str(k)).mkdir()
            self.clear()
            where = self.make(tmp_path / str(k), ids, vectors, others)
            self.take(where, name)
            before = self.user_rows(where)
            with (
                pytest.raises(CongruenceError, match=f"{name}.*[Rr]ename"),
                self.migrating(where, tmp_path, mapping, **self.named) as migration,
            ):
                assert migration.database.stage() is Stage.UNTOUCHED  # else it is refused where it is opened
                migration.run()
            assert self.user_rows(where) == before
            with pytest.raises(Exception, match=r".+"):  # it is still there
                self.take(where, name)

    # ---- what the application writes, and what it leaves out --------------------------------------------------------

    def rotated(self, vectors):
        """Return a map between two models of the same width, and the mapped vectors."""
        turn = np.linalg.qr(np.random.default_rng(3).normal(size=(DIM, DIM)))[0].astype(np.float32)
        mapping = OrthogonalMap(center=False).fit(vectors[:100], vectors[:100] @ turn, modality="image")
        return mapping, vectors @ turn

    @contextmanager
    def migrating(self, where, folder, mapping=None, *, retry=None, **options):
        journal = folder / "journal"
        with Migration(
            self.open(where, **options), mapping, journal=journal, modality="image", retry=retry
        ) as migration:
            yield migration

    def switched(self, where, folder, mapping, **options):
        with self.migrating(where, folder, mapping, **options) as migration:
            migration.run(mixed=bool(options))
            assert migration.verify().passed
            migration.switch()

    @staticmethod
    def check_vectors(rows, wanted):
        """Check vectors of rows as their users read them, None for none."""
        assert {one for one in rows if rows[one].vector is None} == {one for one in wanted if wanted[one] is None}
        for one, row in rows.items():
            if row.vector is not None:
                np.testing.assert_allclose(np.frombuffer(row.vector, np.float32), wanted[one], atol=3e-5)

    def test_rows_of_any_norm_are_found_by_the_distance_of_the_search(self, tmp_path):
        ids, vectors, others = make_rows(self.id_types[0])
        vectors = vectors * np.linspace(0.5, 3, len(vectors), dtype=np.float32)[:, None]
        mapping, _ = self.rotated(vectors)
        with self.migrating(self.make(tmp_path, ids, vectors, others), tmp_path, mapping) as migration:
            migration.run()
            found = migration.verify()
        assert found.passed, found.problems
        assert found.index_recall is None or found.index_recall > 0.5  # an inverted file finds fewer

    def test_a_partial_run_keeps_the_vectors_of_all_other_rows(self, made, tmp_path):
        where, ids, vectors, others = made
        with self.open(where) as database:
            cell = cell_of(database, "partial run")
        options, before = {"rows": self.filter_of_images()}, self.user_rows(where)
        if cell != KEPT:
            assert cell in (BY_PLAN, None)
            with pytest.raises(CongruenceError) if cell else nullcontext():
                self.open(where, **options).close()
            return
        mapping, new = self.rotated(vectors)
        wide = np.hstack([vectors, vectors[:, :2]])
        wider = OrthogonalMap(center=False).fit(vectors[:100], wide[:100], modality="image")
        for other, mixed in ((mapping, False), (wider, True)):
            with self.migrating(where, tmp_path, other, **options) as migration:
                assert [check["outcome"] for check in migration.plan(mixed=mixed).checks][-1] == "bad"
                with pytest.raises(ParameterError, match="leaves out"):
                    migration.run(mixed=mixed)
        assert not (tmp_path / "journal").exists()
        self.switched(where, tmp_path, mapping, **options)
        images = np.array(others["kind"]) == "image"
        both = dict(zip(ids, np.where(images[:, None], new, vectors), strict=True))
        self.check_vectors(self.user_rows(where), both)
        with pytest.raises(MigrationError, match="same condition"), self.migrating(where, tmp_path):
            pass
        with self.migrating(where, tmp_path, **options) as migration:
            with pytest.raises(MigrationError, match="some rows"):
                reembed(migration, lambda ids: new[: len(ids)])
            assert migration.rollback()["identical"]
        assert self.user_rows(where) == before
        with self.migrating(where, tmp_path, **options) as migration:
            assert migration.verify().passed
            migration.switch()
            migration.drop_old()
        self.check_vectors(self.user_rows(where), both)

    @pytest.mark.parametrize("new_rows", ["keep", "map-back"])
    def test_what_the_application_writes_after_the_switch_survives_every_step(self, made, tmp_path, new_rows):
        where, ids, vectors, others = made
        with self.open(where) as database:
            cell = cell_of(database, new_rows, KEPT)
            if database.kind == "npy":
                pytest.skip("its own tests follow")
        mapping, new = self.rotated(vectors)
        self.switched(where, tmp_path, mapping)
        row = dict(zip(ids, range(len(ids)), strict=True))
        added = {"text": "item-9999", "int": 9999, "uuid": "00000000-0000-4000-8000-000000009999"}[self.id_type]
        changed, edited, gone = ids[3], ids[4], ids[5]
        fields = {name: values[4] for name, values in others.items()} | {"title": "edited"}
        self.user_add(where, added, new[0], {"kind": "image", "title": "added"})
        self.user_change(where, changed, -new[3], {"kind": "image", "title": "changed"})
        self.user_change(where, edited, np.frombuffer(self.user_rows(where)[edited].vector, np.float32), fields)
        self.user_delete(where, gone)
        after = self.user_rows(where)
        pattern = r"[123] rows of .* added, [012] changed and (up to )?[0123] deleted"
        with self.migrating(where, tmp_path) as migration, pytest.raises(MigrationError, match=pattern):
            migration.rollback()
        with self.migrating(where, tmp_path) as migration:
            if cell in (REFUSED, BY_PLAN):
                with pytest.raises(MigrationError, match=pattern):
                    migration.rollback(new_rows=new_rows)
        assert self.user_rows(where) == after
        if cell in (REFUSED, BY_PLAN):
            with self.migrating(where, tmp_path) as migration:
                with pytest.raises(MigrationError, match="switched"):
                    migration.discard()
                migration.drop_old()
            assert self.user_rows(where) == after
            return
        with self.migrating(where, tmp_path) as migration:
            found = migration.rollback(new_rows=new_rows)
            assert found["added"] + found["changed"] + (found["deleted"] or 0) in (2, 3, 4)
            assert not found["identical"]
        kept = self.user_rows(where)
        assert {one: found.others for one, found in kept.items()} == {one: a.others for one, a in after.items()}
        wanted = {one: vectors[row[one]] for one in ids if one != gone}
        wanted |= {added: vectors[0], changed: -vectors[3]} if new_rows == "map-back" else {added: None, changed: None}
        if kept[edited].vector is None:  # a client that replaces a row drops what it does not know
            wanted[edited] = None
        self.check_vectors(kept, wanted)
        with self.migrating(where, tmp_path) as migration:
            if new_rows == "keep":
                with pytest.raises(MigrationError, match="[23] rows .* have only a new vector"):
                    migration.discard()
            found = migration.verify()
            assert found.passed, found.problems
            migration.switch()
        assert self.user_rows(where) == after
        self.user_change(where, changed, new[9], {"kind": "image", "title": "changed again"})
        with self.migrating(where, tmp_path) as migration:
            migration.rollback(new_rows)
        self.user_change(where, changed, vectors[7], {"kind": "image", "title": "changed again"})
        with self.migrating(where, tmp_path) as migration:
            assert not migration.verify().passed
            migration.run(resume=True)
            assert migration.verify().passed
            migration.switch()
        found = self.user_rows(where)
        np.testing.assert_allclose(np.frombuffer(found.pop(changed).vector, np.float32), new[7], atol=3e-5)
        del after[changed]
        assert found == after
        with self.migrating(where, tmp_path) as migration:
            migration.drop_old()
        assert {one: kept for one, kept in self.user_rows(where).items() if one != changed} == after

    @pytest.mark.parametrize(
        "moment", ["before the switch", "after a rollback", pytest.param("after a discard", marks=pytest.mark.long)]
    )
    def test_no_row_keeps_the_new_models_vector_of_earlier_content(self, tmp_path, moment):
        ids, vectors, others = make_rows(self.id_types[0])
        where, row = self.make(tmp_path, ids, vectors, others), {str(one): k for k, one in enumerate(ids)}
        mapping, mapped = self.rotated(vectors)
        own = mapped + np.random.default_rng(4).normal(size=mapped.shape).astype(np.float32) / 8
        own /= np.linalg.norm(own, axis=1, keepdims=True)
        content, encoded = np.arange(N), []

        def encode(names, content=content):
            encoded.extend(names)
            return own[content[[row[name] for name in names]]]

        def change(changed):
            for k, other in changed.items():
                self.user_change(where, ids[k], vectors[other], {name: values[k] for name, values in others.items()})
                content[k] = other

        def check(native):
            """Check which rows are of the new model, and that the others are mapped, by their content."""
            found = self.user_rows(where)
            rows = np.array([np.frombuffer(found[one].vector, np.float32) for one in ids])
            np.testing.assert_allclose(rows[native], own[content[native]], atol=3e-5)
            others = np.setdiff1d(np.arange(N), native)
            assert ((rows * mapped[content]).sum(axis=1)[others] > 0.9).all()
            assert (np.abs(rows - own[content]).max(axis=1)[others] > 1e-3).all()

        with self.migrating(where, tmp_path, mapping) as migration:
            writers = migration.database.capabilities.concurrent_writes
            if not writers and moment != "after a discard":
                pytest.skip("every step refuses a file that was changed since the run")
            migration.run()
            reembed(migration, encode, size=100)
            assert migration.verify().passed
            if moment == "after a rollback":
                migration.switch()
                migration.rollback()
            if moment == "after a discard":
                migration.discard()
        change({3: 9, 4: 5, 5: 4})  # among them two that change places, so that the table's sum stays
        same = np.setdiff1d(np.arange(N), [3, 4, 5])
        with self.migrating(where, tmp_path, mapping) as migration:
            if moment == "after a discard":
                migration.run()
            else:
                assert migration.verify().wrong == 3
                migration.run(resume=True)
            assert migration.verify().passed
            migration.switch()
        if moment != "after a discard":
            check(same)
        for encoder in (lambda names: encode(names, np.arange(N)), encode):  # first as from a file of earlier content
            with self.migrating(where, tmp_path, mapping) as migration:
                migration.rollback()
                encoded.clear()
                reembed(migration, encoder, size=100)
                assert {row[name] for name in encoded} == {3, 4, 5}
                assert migration.verify().passed
                if writers and encoder is encode:
                    change({6: 8})
                migration.switch()
            if encoder is not encode:
                check(same)
        check(np.setdiff1d(np.arange(N), [6] if writers else []))

    def test_a_lazy_search_writes_the_rows_that_it_encodes(self, tmp_path):
        ids, vectors, others = make_rows(self.id_types[0])
        vectors = normalize_rows(vectors)
        where, (mapping, new) = self.make(tmp_path, ids, vectors, others), self.rotated(vectors)
        own = normalize_rows(new + 0.1 * np.random.default_rng(4).normal(size=new.shape).astype(np.float32))
        row, asked, before = {str(one): k for k, one in enumerate(ids)}, set(), self.user_rows(where)

        def encode(names):
            asked.update(names)
            return own[[row[name] for name in names]]

        with self.migrating(where, tmp_path, mapping) as migration:
            able = migration.database.capabilities
            if not (able.searches and able.writes_after_switch):
                pytest.skip("a file is re-embedded before the switch")
            migration.run()
            assert migration.verify().passed
            migration.switch()
            search = congruence.LazySearch(migration, None, encode, budget=5, check=False)
            assert search.search(own[:6], k=3).reembedded.all()
            search.write()
        assert 5 <= len(asked) < N / 2
        for one, found in self.user_rows(where).items():
            wanted = own[row[str(one)]] if str(one) in asked else new[row[str(one)]]
            np.testing.assert_allclose(np.frombuffer(found.vector, np.float32), wanted, atol=1e-5)
        with self.migrating(where, tmp_path) as migration:
            assert migration.rollback()["identical"]
        assert self.user_rows(where) == before

    def test_the_plan_says_of_each_step_what_then_happens(self, tmp_path):
        ids, vectors, others = make_rows(self.id_types[0])
        where, (mapping, new) = self.make(tmp_path, ids, vectors, others), self.rotated(vectors)
        with self.migrating(where, tmp_path, mapping) as migration:
            checks = {check["check"]: check for check in migration.plan().checks}
        assert [checks[step]["outcome"] for step in ("switch", "rollback", "drop-old")] == ["good"] * 3
        self.switched(where, tmp_path, mapping)
        with self.migrating(where, tmp_path) as migration:
            assert migration.rollback()["identical"]
            assert migration.verify().passed
            migration.switch()
        self.user_change(where, ids[3], -new[3], {name: values[3] for name, values in others.items()})
        for new_rows in ("refuse", "keep", "map-back"):
            with self.migrating(where, tmp_path) as migration:
                writes = migration.database.capabilities.writes_after_switch
                try:
                    migration.rollback(new_rows=new_rows)
                except MigrationError:
                    assert new_rows != "refuse" or writes or migration.status()["refused"]
                    happened = False
                else:
                    happened = True
                    assert migration.verify().passed
                    migration.switch()
            said = checks["rollback"]["detail"]
            assert happened == (new_rows in said and "stay" in said), (new_rows, said)
        with self.migrating(where, tmp_path) as migration:
            migration.drop_old()

    def test_a_file_that_was_written_to_since_the_run_can_only_be_discarded(self, tmp_path):
        ids, vectors, others = make_rows(self.id_types[0])
        where, (mapping, _) = self.make(tmp_path, ids, vectors, others), self.rotated(vectors)
        with self.open(where) as database:
            if database.capabilities.writes_after_switch:
                pytest.skip("rows that others write are repaired")
        added = 9999 if self.id_types[0] == "int" else "item-9999"
        fields = {"kind": "image", "title": "added"}
        for write in (
            lambda: self.user_add(where, added, -vectors[0], fields),
            lambda: self.user_delete(where, ids[2]),
        ):
            with self.migrating(where, tmp_path, mapping) as migration:
                migration.run()
                migration.verify()
            write()
            rows, (record,) = self.user_rows(where), tmp_path.glob(".*.congruence/migration.json")
            written = record.read_bytes()
            with self.migrating(where, tmp_path) as migration:
                for step in (migration.verify, migration.switch, lambda: migration.run(resume=True)):
                    with pytest.raises(MigrationError, match="written to since the run began.*`discard`"):
                        step()
                assert "written to since" in migration.status()["refused"]
                assert not migration.rollback()["switched"]
                assert record.read_bytes() == written
                migration.discard()
            assert self.user_rows(where) == rows

    def test_deleted_rows_are_counted(self, made, tmp_path):
        where, ids, vectors, _ = made
        self.switched(where, tmp_path, self.rotated(vectors)[0])
        for one in ids[:2]:
            self.user_delete(where, one)
        with self.migrating(where, tmp_path) as migration:
            if migration.database.capabilities.follows_deletes:  # a deleted row has no vector on either side
                assert migration.rollback()["deleted"] == 2
                return
            with pytest.raises(MigrationError, match="0 rows of .* and 2 deleted|155 ids for 157 rows"):
                migration.rollback()
            if not migration.database.capabilities.writes_after_switch:
                assert migration.status()["refused"]
                with pytest.raises(MigrationError, match="since the switch"):
                    migration.verify()
            migration.drop_old()
        assert len(self.user_rows(where)) == N - 2

    @pytest.mark.parametrize("moment", ["before the switch", "after a rollback"])
    def test_a_vector_that_the_application_removed_does_not_come_back(self, made, tmp_path, moment):
        where, ids, vectors, others = made
        with self.open(where) as database:
            if not (self.rows_without and database.capabilities.writes_after_switch and database.bare_rows):
                pytest.skip("no row may be without a vector, or nobody may write during a migration")
        with self.migrating(where, tmp_path, self.rotated(vectors)[0]) as migration:
            migration.run()
            migration.verify()
            if moment == "after a rollback":
                migration.switch()
                migration.rollback()
        self.user_change(where, ids[3], None, {name: values[3] for name, values in others.items()})
        with self.migrating(where, tmp_path) as migration:
            migration.run(resume=True)
            assert migration.verify().passed
            status = migration.status()
            assert status["rows_mapped"] == status["rows"] == N - 1
            migration.switch()
        found = self.user_rows(where)
        assert {one for one in found if found[one].vector is not None} == {*ids} - {ids[3]}
        with self.migrating(where, tmp_path) as migration:
            status = migration.rollback()
            assert (status["added"], status["changed"], status["identical"]) == (0, 0, True)
            migration.discard()

    def test_old_vectors_stay_while_they_are_the_only_ones(self, made, tmp_path):
        where, ids, vectors, others = made
        with self.open(where) as database:
            if not self.rows_without or type(database).kind not in CELLS:
                pytest.skip("this database has no rows without a vector")
        self.switched(where, tmp_path, self.rotated(vectors)[0])
        self.user_change(where, ids[3], None, {name: values[3] for name, values in others.items()})
        with (
            pytest.raises(MigrationError, match="1 rows of .* only an old vector"),
            self.migrating(where, tmp_path) as migration,
        ):
            migration.drop_old()
        with (
            pytest.raises(MigrationError, match="0 rows of .* 1 changed and 0 deleted"),
            self.migrating(where, tmp_path) as migration,
        ):
            migration.rollback()
        self.user_delete(where, ids[3])
        with self.migrating(where, tmp_path) as migration:
            migration.drop_old()
        assert len(self.user_rows(where)) == N - 1

    def test_nothing_of_ours_stays_after_the_last_step(self, tmp_path):
        ids, vectors, others = make_rows(self.id_types[0])
        (tmp_path / "store").mkdir()
        where, (mapping, _) = self.make(tmp_path / "store", ids, vectors, others), self.rotated(vectors)
        before = self.traces(where)
        assert before
        for last in ("discard", "rollback", "drop_old"):
            with self.migrating(where, tmp_path, mapping) as migration:
                migration.run()
            assert self.traces(where) != before
            with self.migrating(where, tmp_path) as migration:
                migration.verify()
                if last != "discard":
                    migration.switch()
                if last == "rollback":
                    migration.rollback()
                getattr(migration, "drop_old" if last == "drop_old" else "discard")()
            after = self.traces(where)
            assert after == before, (last, after, before)

    @pytest.mark.parametrize("last", ["drop_old", "discard"])
    def test_what_a_killed_last_step_left_is_removed(self, tmp_path, last):
        ids, vectors, others = make_rows(self.id_types[0], 20)
        (tmp_path / "store").mkdir()
        where, (mapping, _) = self.make(tmp_path / "store", ids, vectors, others), self.rotated(vectors)
        with self.open(where) as database:
            kind = type(database)
            removes = [name for name in ("_unmark", "tidy") if getattr(kind, name, None) not in (None, Database.tidy)]
            if not removes:
                pytest.skip("the last step is one change")
        before = self.traces(where)
        with self.migrating(where, tmp_path, mapping) as migration:
            migration.run()
            migration.verify()
            if last == "drop_old":
                migration.switch()
        with self.migrating(where, tmp_path) as migration, pytest.MonkeyPatch.context() as patch:
            kill_after(patch, kind, removes[0], 0)
            with suppress(Killed):
                getattr(migration, last)()
        begun = (tmp_path / "journal" / "journal.json").exists()
        with self.migrating(where, tmp_path, None if begun else mapping) as migration:
            if migration.database.stage() is Stage.SWITCHED:
                pytest.skip("the last step is one transaction")
            if last == "discard" and migration.journal is not None:
                migration.discard()
            elif migration.journal is not None:
                assert migration.status()["state"] == "dropped"
        assert self.traces(where) == before

    @pytest.mark.long
    @pytest.mark.parametrize("step", ["switch", "rollback", "drop_old", "discard"])
    def test_what_others_make_between_two_steps_is_kept_or_refused(self, tmp_path, step):
        ids, vectors, others = make_rows(self.id_types[0])
        mapping, _ = self.rotated(vectors)
        column = ("switch", "rollback", "drop_old", "discard").index(step) + 1
        cells = {what: cells[column] for what, cells in self.between.items() if cells[column]}
        for k, (what, cell) in enumerate(cells.items()):
            folder = tmp_path / str(k)
            folder.mkdir()
            self.clear()
            where = self.make(folder, ids, vectors, others)
            with self.migrating(where, folder, mapping, table="items") as migration:
                migration.run()
                migration.verify()
                if step in ("rollback", "drop_old"):
                    migration.switch()
            self.make_between(where, what)
            if cell == REFUSED:
                rows, stored = self.user_rows(where), self.traces(where)
                with self.migrating(where, folder, table="items") as migration:
                    if step != "discard":
                        assert any(what in words for words in migration.status()["obstacles"]), what
                    with pytest.raises(MigrationError, match=f"{what}.*in the way of"):
                        getattr(migration, step)()
                assert (self.user_rows(where), self.traces(where)) == (rows, stored)
                self.unmake(where, what)
            with self.migrating(where, folder, table="items") as migration:
                getattr(migration, step)()
            assert cell == REFUSED or self.holds(where, what), (what, self.traces(where))

    def empty(self, where) -> None:
        """Write a file without rows."""
        raise NotImplementedError

    @pytest.mark.parametrize("moment", ["before the switch", "after the switch"])
    def test_a_file_that_the_application_emptied(self, tmp_path, moment):
        ids, vectors, others = make_rows(self.id_types[0], 30)
        where, (mapping, _) = self.make(tmp_path, ids, vectors, others), self.rotated(vectors)
        with self.open(where) as database:
            if database.capabilities.writes_after_switch:
                pytest.skip("a table, which the next test empties")
        with self.migrating(where, tmp_path, mapping) as migration:
            migration.run()
            migration.verify()
            if moment == "after the switch":
                migration.switch()
        self.empty(where)
        written = Path(where).read_bytes() if Path(where).is_file() else b""
        ours = next(tmp_path.glob(".*.congruence"))
        if moment == "before the switch":
            reads = Path(where).suffix != ".npy"  # an array without rows is none
            said = rf"was written to since the run began, and cannot be read.*remove {ours}"
            refused = nullcontext() if reads else pytest.raises(MigrationError, match=said)
            with refused, self.migrating(where, tmp_path) as migration:
                assert "written to since the run began" in migration.status()["refused"]
                migration.discard()
            if not reads:
                return
        else:
            with self.migrating(where, tmp_path) as migration:
                assert "ince the switch" in migration.status()["refused"]
                with pytest.raises(MigrationError, match="since the switch|[Ss]ince the switch"):
                    migration.rollback()
                migration.drop_old()
        assert not ours.exists()
        assert not written or Path(where).read_bytes() == written

    @pytest.mark.parametrize("moment", ["before the switch", "after the switch", "after a rollback"])
    def test_a_table_that_the_application_emptied(self, tmp_path, moment):
        ids, vectors, others = make_rows(self.id_types[0], 30)
        where, (mapping, _) = self.make(tmp_path, ids, vectors, others), self.rotated(vectors)
        with self.open(where) as database:
            if not database.capabilities.writes_after_switch:
                pytest.skip("a file without rows cannot be opened")
        with self.migrating(where, tmp_path, mapping) as migration:
            migration.run()
            migration.verify()
            if moment != "before the switch":
                migration.switch()
            if moment == "after a rollback":
                migration.rollback()
        for one in ids:
            self.user_delete(where, one)
        with self.migrating(where, tmp_path) as migration:
            if moment != "after the switch":
                assert "No row" in migration.status()["refused"]
                for refused in (migration.verify, *([migration.switch] if moment == "before the switch" else [])):
                    with pytest.raises(MigrationError, match="No row .*`discard`"):
                        refused()
                migration.discard()
                assert migration.database.stage() is Stage.UNTOUCHED
                return
            assert not migration.status()["refused"]
            if not migration.database.capabilities.follows_deletes:
                with pytest.raises(MigrationError, match="0 changed and 30 deleted"):
                    migration.rollback()
            else:
                assert migration.rollback()["rows"] == 0
                return
            migration.drop_old()
        assert not self.user_rows(where)

    @contextmanager
    def failing(self, where, database, fault, after):
        """Let all calls to the store fail after the first ones, as if it were gone."""
        calls, errors = [], database._errors

        @contextmanager
        def counted():
            calls.append(1)
            if len(calls) > after:
                raise ERRORS[fault]("the test", "Nothing.")
            with errors():
                yield

        database._errors = counted
        try:
            yield
        finally:
            del database._errors

    # At every call with one fault only: which it is, is in the error, which each back end raises in one place.
    @pytest.mark.parametrize(
        ("fault", "every"),
        [(FAULTS[0], False), *(pytest.param(FAULTS[1], every, marks=pytest.mark.long) for every in (False, True))],
    )
    def test_a_step_that_fails_on_the_way_is_done_or_not(self, tmp_path, fault, every):
        """Each step fails at one call, at a later one when it is repeated, and so on, until it is done."""
        ids, vectors, others = make_rows(self.id_types[0])
        mapping, new = self.rotated(vectors)
        where = self.make(tmp_path, ids, vectors, others)
        before, after, journal = self.user_rows(where), dict(zip(ids, new, strict=True)), tmp_path / "journal"

        def do(step, calls=None):
            """Run a step, and return whether it failed."""
            begun = (journal / "journal.json").exists()
            options = {"resume": True} if begun and step == "run" else {}
            with self.migrating(where, tmp_path, None if begun else mapping, retry=Retry(attempts=1)) as migration:
                assert cell_of(migration.database, fault, KEPT) == KEPT
                failing = nullcontext() if calls is None else self.failing(where, migration.database, fault, calls)
                try:
                    with failing:
                        getattr(migration, step)(**options)
                except (ERRORS[fault], FileError):
                    return True
            return False

        def state():
            """Return the state, according to ``status``, and whether readers see the new vectors."""
            status = {}
            if (journal / "journal.json").exists():
                with self.migrating(where, tmp_path) as migration:
                    status = migration.status()
            rows = self.user_rows(where)  # after a look at the state, which completes what was interrupted
            switched = rows != before
            if switched:
                self.check_vectors(rows, after)
            assert not status or (status["stage"] == Stage.SWITCHED) == switched or status["state"] == "dropped"
            return status.get("state", "none"), switched

        for step, *ends in (
            ("run", ("filled", False)),
            ("verify", ("verified", False)),
            ("switch", ("switched", True)),
            ("rollback", ("rolled back", False), ("verified", False)),
            ("discard", ("none", False)),
            ("drop_old", ("dropped", True)),
        ):
            for one in ("run", "verify", "switch") if step == "drop_old" else ():
                do(one)
            calls, begin = 0, state()
            while do(step, calls):
                found = state()
                assert found in (begin, *ends, ("filling", False)), (step, calls, found)
                if found in ends:
                    break
                # A slow client is killed at each of the first calls, and then at ever rarer ones.
                calls += 1 + (calls // 4 if self.slow else 0) if every else 3 * calls + 2
            assert calls or step == "verify"
            assert state() in ends

    @pytest.mark.parametrize("situation", FOREIGN[:2])
    def test_rows_of_another_model_are_refused(self, tmp_path, situation):
        """Both models and the stranger have vectors of one width."""
        rng, first = np.random.default_rng(7), np.arange(400)[:, None] < (200 if situation == "mixed stores" else 400)
        ids, _, others = make_rows(self.id_types[0], 400)
        old, pairs, other = (
            rng.normal(size=(3, 400, DIM)).astype("f4") / 2 + 3 * np.eye(3, DIM, dtype="f4")[[[0], [0], [2]]]
        )
        turn = np.linalg.qr(rng.normal(size=(DIM, DIM)))[0].astype("f4")
        old, pairs, other, new = map(normalize_rows, (old, pairs, other, pairs @ turn + np.float32(0.2)))
        mapping = congruence.fit(pairs, new, "orthogonal", modality="image", check=False)
        mapped = normalize_rows(mapping.transform(old, modality="image"))
        for k, rows in enumerate((new, mapped, other)):
            (tmp_path / str(k)).mkdir()
            self.clear()
            where = self.make(tmp_path / str(k), ids, np.where(first, rows, old), others)
            before = self.user_rows(where)
            with self.migrating(where, tmp_path, mapping) as migration:
                assert cell_of(migration.database, situation, BY_PLAN) == BY_PLAN
                assert len(migration.plan().refused) == 1
                with pytest.raises(SpaceMismatchError, match="do not all fit the map"):
                    migration.run()
            assert self.user_rows(where) == before
            assert not (tmp_path / "journal").exists()

    def give(self, where, situation) -> None:
        """Give the table, as its users do, one of the ``SITUATIONS`` of its kind."""
        raise NotImplementedError

    def rules(self, where) -> object:
        """Return the rules of the user's column: its type, whether it may be null, its default, comment, …"""
        raise NotImplementedError

    def test_the_rules_of_a_column_hold_or_the_plan_refuses(self, tmp_path, rule):
        ids, vectors, others = make_rows(self.id_types[0])
        where = self.make(tmp_path, ids, vectors, others)
        with self.open(where) as database:
            cell, kind = cell_of(database, rule), database.kind
        mapping, new = self.rotated(vectors)
        self.give(where, rule)
        if rule == "two columns":
            self.check_two_columns(where, tmp_path, cell, mapping, dict(zip(ids, new, strict=True)))
            return
        before, rows = cell == KEPT and self.rules(where), self.user_rows(where)
        if cell in (REFUSED, BY_PLAN):
            with pytest.raises(DatabaseError), self.migrating(where, tmp_path, mapping, table="items") as migration:
                assert migration.plan().refused
                migration.run()
            assert self.user_rows(where) == rows
            assert not (tmp_path / "journal").exists()
            return
        if rule == "type" and CELLS[kind]["partial run"] == KEPT:  # float64, of which a copy in float32 is no copy
            with (
                pytest.raises(ParameterError, match="would change"),
                self.migrating(where, tmp_path, mapping, rows=self.filter_of_images()) as migration,
            ):
                migration.run(mixed=True)
        self.switched(where, tmp_path, mapping)
        assert self.rules(where) == before
        self.check_vectors(self.user_rows(where), dict(zip(ids, new, strict=True)))
        with self.migrating(where, tmp_path) as migration:
            migration.rollback()
        assert (self.rules(where), self.user_rows(where)) == (before, rows)
        with self.migrating(where, tmp_path) as migration:
            assert migration.verify().passed
            migration.switch()
        writes = rule != "type" and kind not in ("parquet", "npy")
        if writes:
            self.user_add(where, 999_999, new[0], {"kind": "image", "title": "added"})
        if writes and rule == "NOT NULL":
            with pytest.raises(MigrationError, match="1 rows"), self.migrating(where, tmp_path) as migration:
                migration.rollback("keep")
            with self.migrating(where, tmp_path) as migration:
                migration.rollback("map-back")
            assert self.rules(where) == before
            with self.migrating(where, tmp_path) as migration:
                assert migration.verify().passed
                migration.switch()
        with self.migrating(where, tmp_path) as migration:
            migration.drop_old()
        assert self.rules(where) == before
        assert len(self.user_rows(where)) == N + writes

    def check_two_columns(self, where, folder, cell, mapping, new):
        """Migrate both columns of vectors at the same time, with the default journals."""
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            options = {"modality": "image"}
            with Migration(self.open(where, table="items", column="embedding"), mapping, **options) as migration:
                migration.run()
                migration.verify()
                migration.switch()
            if cell in (REFUSED, BY_PLAN):
                with pytest.raises(CongruenceError), self.open(where, table="items", column="second") as database:
                    Migration(database, mapping, **options).plan()
                self.check_vectors(self.user_rows(where, column="embedding"), new)
                return
            with Migration(self.open(where, table="items", column="second"), mapping, **options) as migration:
                migration.run()
                migration.verify()
                migration.switch()
            for step in ("shown", "drop_old"):
                for column in ("embedding", "second"):
                    if step == "drop_old":
                        with Migration(self.open(where, column=column), **options) as migration:
                            migration.drop_old()
                    self.check_vectors(self.user_rows(where, column=column), new)

    # ---- names and secrets -------------------------------------------------------------------------------------------

    def test_names_are_quoted(self, tmp_path):
        if not self.any_names:
            pytest.skip("this database's names are letters and digits")
        ids, vectors, others = make_rows("int", 12)
        names = {"table": NASTY, "column": "vec \"tor'", "id_column": 'i d"'}
        where = self.make(tmp_path, ids, vectors, others, **names)
        before = self.user_rows(where, **names)
        with self.open(where, table=NASTY, column=names["column"], ids=names["id_column"]) as database:
            self.fill(database)
            database.build_index()
            database.switch()
            database.rollback()
            assert database.count("new") == 12
            database.discard()
        assert self.user_rows(where, **names) == before

    @pytest.mark.parametrize(
        "options", [{"table": "no such table"}, {"column": "no_such_column"}, {"modality_column": "nope"}]
    )
    def test_names_that_are_not_there_are_refused(self, tmp_path, options):
        ids, vectors, others = make_rows("int", 12)
        where = self.make(tmp_path, ids, vectors, others)
        with (
            pytest.raises(CongruenceError, match="|".join([*options, *options.values()])),
            self.open(where, **options) as database,
        ):
            database.info()
            list(database.scan())


class RenamesContract:
    """Tests of collections that a switch renames; ``items`` is the address of a collection of 25 rows."""

    def renaming(self):
        """Return the class and the name of the client's method that renames a collection."""
        raise NotImplementedError

    def user_rows(self, where) -> dict[str, UserRow]:
        raise NotImplementedError

    def collections(self, where) -> list[str]:
        """Return the names of all collections."""
        raise NotImplementedError

    def create(self, where, name) -> None:
        """Create another collection."""
        raise NotImplementedError

    def change(self, where, ids) -> tuple[set[str], str, dict]:
        """Delete the first of these rows, add the row ``later`` and change others; return the ids of all that are to be
        written again, and one of them with its other columns.
        """
        raise NotImplementedError

    def shown(self, where):
        rows = self.user_rows(where)
        return len(rows), len(next(iter(rows.values())).vector) // 4

    @pytest.mark.long
    @pytest.mark.parametrize("then", ["switch", "rollback"])
    @pytest.mark.parametrize(
        ("step", "renames", "stage"),
        [
            ("switch", 0, Stage.PREPARED),
            ("switch", 1, Stage.PREPARED),
            ("rollback", 0, Stage.SWITCHED),
            ("rollback", 1, Stage.PREPARED),
        ],
    )
    def test_a_kill_between_the_renames(self, items, step, renames, stage, then):
        before = self.user_rows(items)
        with self.open(items) as database:
            run(database)
            if step == "rollback":
                database.switch()
            with pytest.MonkeyPatch.context() as patch:
                kill_after(patch, *self.renaming(), renames)
                with pytest.raises(Killed):
                    getattr(database, step)()
        with self.open(items) as database:  # found without its name: the user's one is between the others
            assert database.stage() is stage
            assert (database.count("old"), database.count("new")) == (25, 25)
            getattr(database, then)()
            assert database.stage() is (Stage.SWITCHED if then == "switch" else Stage.PREPARED)
            assert self.shown(items) == (25, DIM_NEW if then == "switch" else DIM)
            (database.rollback if then == "switch" else database.switch)()
            assert self.shown(items) == (25, DIM if then == "switch" else DIM_NEW)
            assert len([name for name in self.collections(items) if not name.endswith("_tag")]) == 2
            database.rollback()
            assert self.user_rows(items) == before
            database.discard()
        assert self.collections(items) == ["items"]

    def test_a_switch_that_was_cut_short_can_be_given_up(self, items):
        with self.open(items) as database:
            run(database)
            with pytest.MonkeyPatch.context() as patch:
                kill_after(patch, *self.renaming(), 1)
                with pytest.raises(Killed):
                    database.switch()
            database.discard()
            assert database.stage() is Stage.UNTOUCHED
        assert self.shown(items) == (25, DIM)

    def test_rows_that_changed_meanwhile_are_found(self, items):
        with self.open(items) as database:
            run(database)
            assert not without_new(database)
            ids = sorted(self.user_rows(items))
            late, changed, others = self.change(items, ids)
            assert without_new(database) == late
            assert [part.to_pylist() for part in database.orphans()] == [[ids[0]]]
            gone = pa.array([ids[0]], pa.large_string())
            database.delete(gone)
            run(database)
            assert not without_new(database)
            database.write(gone, np.ones((1, DIM_NEW), np.float32))  # stays gone
            assert (database.count("new"), list(database.orphans())) == (25, [])
            database.switch()
            for step in (database.prepare, lambda dim: database.delete(pa.array(["later"]))):
                with pytest.raises(MigrationError, match="Roll back first"):
                    step(DIM_NEW)
        assert self.user_rows(items)[changed].others == others

    def test_rows_that_readers_would_lose_keep_the_names(self, items):
        with self.open(items, rows=self.filter_of_images()) as database:
            run(database)
            with pytest.raises(MigrationError, match="rows .*readers would lose them"):
                database.switch()
        assert self.shown(items) == (25, DIM)

    needed = ("items__congruence_new", "items__congruence_old")
    named: ClassVar[dict[str, str]] = {"table": "items"}

    def take(self, where, name):
        self.create(where, name)

    def test_one_of_several_collections_must_be_named(self, items):
        self.create(items, "another")
        with pytest.raises(ParameterError, match=r"2 .*collections \('another', 'items'\).*Pass table="):
            self.open(items)
