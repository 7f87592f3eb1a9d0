"""Migrations of the rows of ``bench_migrate.py`` by other packages, in a separate environment.

``python3.12 -m venv .venv-peers && .venv-peers/bin/pip install isotrieve==0.4.0 rebasis==0.1.0 'psycopg[binary]'
pgvector lancedb``; rebasis needs Python 3.12. ``bench_migrate.py`` runs this file with that interpreter. A map is
fitted to the same anchors first, which is not timed.

isotrieve: ``PgvectorAdapter(mapping, …).migrate()`` with its default batches. It adds a column, updates it row by row,
and then drops the old column. rebasis: ``MigrationEngine`` as constructed by its command ``rebasis migrate``, which
keeps the original vectors in a shadow copy. Vectors are overwritten in place, with one ``update`` per row; rows are
found only by text, that is by the text column. Neither compares all rows afterwards; rebasis reads back one in a
hundred.

Left out: rebasis with sqlite-vec, since ``sqlite3`` of the Python 3.12 used here cannot load extensions; both with
Qdrant, since no server was available. vecshift 0.4.0 and embedflow 0.8.0 embed the texts again and do not map vectors.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from common import Clock


def isotrieve(kind: str, address: str, folder: Path, source: np.ndarray, target: np.ndarray) -> Callable[[], Any]:
    from isotrieve.adapters.pgvector import PgvectorAdapter
    from isotrieve.mapping.linear import OrthogonalProcrustesMapping
    from psycopg.conninfo import conninfo_to_dict

    given = {
        key: value for key, value in conninfo_to_dict(address).items() if key in ("host", "dbname", "user", "password")
    }
    adapter = PgvectorAdapter(OrthogonalProcrustesMapping().fit(source, target), **given, table="items")
    return adapter.migrate


def rebasis(kind: str, address: str, folder: Path, source: np.ndarray, target: np.ndarray) -> Callable[[], Any]:
    from rebasis.core.procrustes import CenteredProcrustesAdapter
    from rebasis.manifest import ManifestDB, manifest_path
    from rebasis.migrate import MigrationEngine
    from rebasis.store import open_store

    adapter = CenteredProcrustesAdapter.fit(source, target)
    place = Path(address)
    uri = f"lancedb://{place.parent}?vector_column=embedding&id_column=name#{place.stem}"

    def migrate() -> None:
        store = open_store(uri)
        state = folder / "rebasis"
        manifest_path(state).parent.mkdir(parents=True, exist_ok=True)
        with ManifestDB(manifest_path(state)) as db:
            engine = MigrationEngine(
                db=db, store=store, adapter=adapter, shadow_root=state / "shadow", store_uri=uri, power_aware=False
            )
            engine.prepare([record.id for record in store.iter_records(with_vectors=False, with_text=False)])
            result = engine.run()
        if result.failed or result.processed != store.count():
            raise SystemExit(f"rebasis: {result}")

    return migrate


def main() -> None:
    name, kind, address, folder, *server = sys.argv[1:]
    with np.load(Path(folder) / "anchors.npz", allow_pickle=False) as anchors:
        source, target = anchors["source"], anchors["target"]
    run = {"isotrieve": isotrieve, "rebasis": rebasis}[name](kind, address, Path(folder), source, target)
    if kind == "lancedb":
        import lancedb  # noqa: F401  # imported before timing starts, as in all benchmarks
    clock = Clock(int(server[1]) if server else None)
    clock("whole", run)
    print("\n" + json.dumps({f"{name} {version(name)}": clock.parts["whole"]}))


if __name__ == "__main__":
    main()
