"""Cost of a migration, compared with a copy of the same table by the database's own client.

``python benchmarks/bench_migrate.py lancedb --rows 200000``. Rows of 512 random numbers of unit norm, whole-number ids,
a column of text, no index. Each variant runs in a separate process on a fresh copy of the database, in rounds, every
second round in reverse order. Ratios are taken within rounds: the time of a copy divided by that of the variant, so 1
is as fast as the copy and .5 half as fast.

``copy``
    Vectors are read in batches by the client and written to a second column or table, as its documentation shows for
    bulk loading; nothing is computed. LanceDB: ``add_columns`` with a reader over batches. DuckDB: Arrow batches of a
    query, ``INSERT … SELECT`` of each into a table with a primary key. sqlite-vec: ``SELECT``, ``executemany`` of
    ``INSERT`` into another vec0 table, in one transaction. PostgreSQL: ``COPY … TO`` and ``COPY … FROM``, both binary,
    passing the bytes through unparsed, into a table with a primary key.
``copy in the server``
    The same by SQL alone (``INSERT … SELECT``): no vector reaches the client, so none can be mapped. Not for LanceDB.
``mapped copy``
    ``copy`` with one float32 NumPy product per batch. No checks, no journal.
``fill``
    The pass of a migration that writes (``prepare`` and ``fill``, until all is in place) and, timed separately, the
    ``comparing`` pass after it, which a copy does not have. A migration makes such a pass once to find rows written by
    others during the run, and once before the switch, unless the database proves that nothing was written.
``whole``
    :meth:`Migration.plan` to ``switch``: checks, filling, comparing, verifying, switching.
``disk``
    ``whole``, and the largest growth of the database's folder meanwhile (``disk_mb``), beside the estimate of the plan
    (``needed_mb``). Not for PostgreSQL.

``seconds`` is wall-clock time, ``cpu`` the processor time of the process and, for PostgreSQL, of its server; ``mb`` is
the peak memory of the process minus that after imports.

With ``--peers PYTHON`` (``migrate_peers.py`` explains how to create such an environment), other packages migrate the
same rows, called as in their documentation. They are compared with ``whole``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np

from common import Clock, arguments, write_json
from migrate_copies import KINDS, Product, rows

ROOT = Path(__file__).resolve().parents[1]

# ---- one way, in a separate process
# ----------------------------------------------------------------------------------------


def child(options: argparse.Namespace) -> dict[str, Any]:
    kind, folder = KINDS[options.kind], options.folder
    place, dim = folder / options.child / kind.file, options.dim
    clock = Clock(options.server)
    if options.child in ("copy", "mapped copy"):
        __import__(
            {"lancedb": "lance", "sqlite-vec": "sqlite_vec", "pgvector": "psycopg"}.get(options.kind, options.kind)
        )
        product = Product(folder) if options.child == "mapped copy" else None
        clock(options.child, lambda: kind.copy(place, dim, product))
        return clock.parts
    if options.child == "copy in the server":
        clock(options.child, lambda: kind.inside(place, dim))
        return clock.parts
    from congruence import Migration, load
    from congruence.databases import open_database
    from congruence.upgrade.migrate.journal import Journal

    address = place.read_text() if options.kind == "pgvector" else str(place)
    mapping, database = load(folder / "map"), open_database(address, table="items")
    if options.child in ("whole", "disk"):

        def whole() -> None:
            with Migration(database, mapping, journal=folder / options.child / "journal") as migration:
                migration.run()
                if not migration.verify().passed:
                    raise SystemExit(f"not verified: {migration.status()}")
                migration.switch()

        if options.child == "whole":
            clock("whole", whole)
            return clock.parts
        needed = database.bytes_needed(database.info(), mapping.d_out, "float32")
        with Growth(place.parent) as growth:
            clock("disk", whole)
        clock.parts["disk"] |= {"needed_mb": needed / 1e6, "disk_mb": growth.most / 1e6}
        return clock.parts
    migration = Migration(database, mapping, journal=folder / options.child)
    mapper, info = migration.mapper, migration.info
    journal = Journal(
        place=info.place,
        map_digest="",
        dim=mapper.dim,
        element_type="float32",
        normalize=mapper.unit,
        scale=False,
        modality=None,
    )

    def fill() -> None:
        database.prepare(mapper.dim)
        migration.passes.fill(journal, migration.folder)
        database.build_index()  # files: writes the complete new file

    clock("fill", fill)
    found = clock("comparing", lambda: migration.passes.repair())
    if found["written"] or found["rows"] != info.rows:
        raise SystemExit(f"the comparing pass found {found}")
    database.close()
    return clock.parts


class Growth:
    """Watches by how much a folder has grown at most, without its journal."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._over, self.most = folder, Event(), 0
        self._first = self._size()

    def _size(self) -> int:
        found = 0
        for folder, _, names in os.walk(self._folder):
            for name in names if "journal" not in Path(folder).parts else ():
                with suppress(OSError):  # removed meanwhile
                    found += os.stat(os.path.join(folder, name)).st_blocks * 512
        return found

    def _watch(self) -> None:
        while not self._over.wait(0.003):
            self.most = max(self.most, self._size() - self._first)

    def __enter__(self) -> Growth:
        self._thread = Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()


# ---- rounds
# ----------------------------------------------------------------------------------------------------------------


@contextmanager
def postgres() -> Iterator[Any]:
    sys.path.insert(0, str(ROOT / "tests" / "databases"))
    from postgres_server import PostgresServer

    server = PostgresServer()
    try:
        yield server
    finally:
        server.remove()


class Rounds:
    """Runs each way in a process of its own, on a fresh copy of one database."""

    def __init__(self, options: argparse.Namespace, folder: Path, server: Any) -> None:
        self.options, self.folder, self.server = options, folder, server
        self.kind = KINDS[options.kind]
        self.first = folder / "first"
        self.first.mkdir()
        if server is not None:
            (self.first / self.kind.file).write_text(self._create("first", "template1"))
        self.kind.make(self.first, options.rows, options.dim)

    def _create(self, name: str, template: str) -> str:
        import psycopg

        with psycopg.connect(self.server.url("postgres"), autocommit=True) as connection:
            connection.execute(f"DROP DATABASE IF EXISTS {name}")
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
        return str(self.server.url(name))

    def run(self, way: str) -> dict[str, Any]:
        place = self.folder / way
        shutil.copytree(self.first, place)
        if self.server is not None:
            (place / self.kind.file).write_text(self._create("one", "first"))
        os.sync()
        command = [
            sys.executable,
            __file__,
            self.options.kind,
            "--child",
            way,
            "--folder",
            self.folder,
            "--dim",
            str(self.options.dim),
        ]
        if way.startswith("peer "):
            address = str(place / self.kind.file) if self.server is None else (place / self.kind.file).read_text()
            peers = Path(__file__).parent / "migrate_peers.py"
            command = [
                self.options.peers,
                "-I",
                peers,
                way.removeprefix("peer "),
                self.options.kind,
                address,
                self.folder,
            ]
        if self.server is not None:
            command += ["--server", str(self.server.process.pid)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(f"{way}: {done.stderr[-2000:]}")
            return json.loads(done.stdout.splitlines()[-1])
        finally:
            shutil.rmtree(place)


def ratios(rounds: list[dict[str, Any]], beside: str = "copy") -> dict[str, dict[str, list[float]]]:
    """Return the lowest, median and highest ratio within a round: the time of ``beside`` divided by that of each
    way.
    """
    out: dict[str, dict[str, list[float]]] = {}
    for way in rounds[0]:
        for key in ("seconds", "cpu"):
            each = [one[beside][key] / one[way][key] for one in rounds]
            out.setdefault(way, {})[key] = [min(each), float(np.median(each)), max(each)]
    return out


def measure(options: argparse.Namespace) -> dict[str, Any]:
    from congruence import OrthogonalMap

    rng = np.random.default_rng(0)
    anchors = rows(0, 2 * options.dim, options.dim)
    target = anchors[:, ::-1] + 0.1 * rng.standard_normal(anchors.shape).astype(np.float32)
    target /= np.linalg.norm(target, axis=1, keepdims=True)
    mapping = OrthogonalMap().fit(anchors, target)
    ways = options.ways or ["copy", "copy in the server", "mapped copy", "fill", "whole"]
    if options.kind == "lancedb":
        ways = [way for way in ways if way != "copy in the server"]
    ways += [f"peer {name}" for name in options.peer]
    rounds: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name, postgres() if options.kind == "pgvector" else nullcontext() as server:
        folder = Path(name)
        mapping.save(folder / "map")
        np.save(folder / "matrix.npy", mapping.rotation_.astype(np.float32))
        np.savez(folder / "anchors.npz", source=anchors, target=target)
        one = Rounds(options, folder, server)
        for k in range(options.rounds):
            found: dict[str, Any] = {}
            for way in ways[:: -1 if k % 2 else 1]:
                found |= one.run(way)
            if "fill" in found:
                found["fill and comparing"] = {
                    key: found["fill"][key] + found["comparing"][key] for key in ("seconds", "cpu")
                } | {"mb": max(found["fill"]["mb"], found["comparing"]["mb"])}
            rounds.append({way: found[way] for way in sorted(found)})
    beside = next((way for way in ("copy", "whole") if way in rounds[0]), ways[0])
    return {"rounds": rounds, "ratios": ratios(rounds, beside)}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("kind", choices=sorted(KINDS))
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ways", nargs="+", metavar="WAY")
    parser.add_argument("--peers", type=Path, metavar="PYTHON")
    parser.add_argument("--peer", nargs="*", default=[], metavar="NAME", help="isotrieve, rebasis")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--server", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(child(options)))
        return
    results = measure(options)
    for way, by in results["ratios"].items():
        runs = [one[way] for one in results["rounds"]]
        seconds, cpu, mb = (np.median([one[key] for one in runs]) for key in ("seconds", "cpu", "mb"))
        if way == "disk":
            print(*(f"{key} {np.median([one[key] for one in runs]):.1f}" for key in ("needed_mb", "disk_mb")))
        print(
            f"{way:20} {seconds:7.2f} s  cpu {cpu:7.2f} s  {mb:6.0f} MB   ratio {by['seconds'][1]:.2f} "
            f"({by['seconds'][0]:.2f} … {by['seconds'][2]:.2f})  cpu {by['cpu'][1]:.2f} ({by['cpu'][0]:.2f} … "
            f"{by['cpu'][2]:.2f})"
        )
    write_json(options, results)


if __name__ == "__main__":
    main()
