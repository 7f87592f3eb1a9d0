"""Kill a migration at every step and count what is lost, doubled, wrong or changed.

``python benchmarks/migrate_faults.py lancedb --rows 200000``. The table holds the CLIP vectors of LVIS (texts and images of ../shared/data, 512-d),
each repeated with a little noise so that no two rows are alike, of two modalities. A first run, with no fault, lists its steps: before and after each
call that changes something (prepare, write, flush, the journal, the index, switch, rollback). Then, for the first, a middle and the last call
of each, a process of its own does the same on a fresh copy of the table and is killed there with SIGKILL; another takes it up, to the end. A row is lost if it
has no new vector, doubled if it is there twice, wrong if its new vector is not the map's, changed if its old vector is not the one before.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from machine_output import add_json, write_json

LVIS = "../shared/data/lvis1203_clip.npz"

STEPS = ("prepare", "write", "flush", "build_index", "switch", "rollback")


def vectors(n: int) -> tuple[np.ndarray, list[str], Any]:
    """Rows of the old model with controlled copies, the modality of each, and a map to the new model."""
    import congruence
    from congruence.embeddings import normalize_rows

    with np.load(LVIS, allow_pickle=False) as data:
        images, texts = (data[key].astype(np.float32) for key in ("image_openai_vitb32_avg5", "text_openai_vitb32"))
        target = data["text_openai_vitb16"].astype(np.float32)
    mapping = congruence.OrthogonalMap().fit(texts[:900], target[:900], modality="text")
    # No images of the new model are at hand: for the transport of rows any mean does.
    mapping = mapping.recenter(images.mean(axis=0), target.mean(axis=0), modality="image")
    rng = np.random.default_rng(0)
    base = np.concatenate([images, texts])
    kinds = np.repeat(["image", "text"], [len(images), len(texts)])
    which = np.arange(n) % len(base)
    rows = base[which] + 0.02 * rng.normal(size=(n, base.shape[1])).astype(np.float32)
    return normalize_rows(rows.astype(np.float32)), kinds[which].tolist(), mapping


# ---- the databases as their users make and read them ---------------------------------------------------------------------


def make_lancedb(folder: Path, ids: list[int], rows: np.ndarray, kinds: list[str]) -> str:
    import lancedb

    table = pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "kind": kinds,
            "path": [f"photos/{one}.jpg" for one in ids],
            "embedding": pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1]),
        }
    )
    lancedb.connect(folder).create_table("items", table)
    return str(folder / "items.lance")


def read_lancedb(where: str) -> dict[int, bytes]:
    import lance

    table = lance.dataset(where).to_table(columns=["id", "embedding"])
    matrix = np.stack(table["embedding"].combine_chunks().flatten().to_numpy().reshape(len(table), -1))
    return _unique(table["id"].to_pylist(), matrix)


def make_duckdb(folder: Path, ids: list[int], rows: np.ndarray, kinds: list[str]) -> str:
    import duckdb

    lists = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])
    table = pa.table({"id": pa.array(ids, pa.int64()), "kind": kinds, "embedding": lists})  # noqa: F841  # read by name
    with duckdb.connect(str(folder / "photos.duckdb")) as connection:
        connection.execute(
            f"CREATE TABLE items (id BIGINT PRIMARY KEY, kind VARCHAR, embedding FLOAT[{rows.shape[1]}])"
        )
        connection.execute("INSERT INTO items SELECT * FROM table")
    return str(folder / "photos.duckdb")


def read_duckdb(where: str) -> dict[int, bytes]:
    import duckdb

    with duckdb.connect(where) as connection:
        found = connection.execute("SELECT id, embedding FROM items").fetchnumpy()
    return _unique(found["id"].tolist(), np.stack(found["embedding"]))


def _unique(ids: list[int], matrix: np.ndarray) -> dict[int, bytes]:
    counts = Counter(ids)
    doubled = [one for one, count in counts.items() if count > 1]
    if doubled:
        raise SystemExit(f"{len(doubled)} ids are doubled")
    return {one: row.astype(np.float32).tobytes() for one, row in zip(ids, matrix, strict=True)}


KINDS = {"lancedb": (make_lancedb, read_lancedb), "duckdb": (make_duckdb, read_duckdb)}


# ---- a process that is killed ----------------------------------------------------------------------------------------------


def child(where: str, folder: str, at: int, trace: str) -> None:
    """Run, verify, switch and roll back, from wherever it stands; die at a step."""
    from congruence.databases import open_database
    from congruence.maps import load
    from congruence.upgrade.migrate import Migration, passes
    from congruence.upgrade.migrate.journal import Journal

    passes.CHECKPOINT_SECONDS = 0.3
    count = 0
    log = open(trace, "a", encoding="utf-8") if trace else None

    def step(name: str) -> None:
        nonlocal count
        if log is not None:
            log.write(name + "\n")
            log.flush()
        if count == at:
            os.kill(os.getpid(), signal.SIGKILL)
        count += 1

    def watched(name: str, call: Any) -> Any:
        def run(*arguments: Any, **options: Any) -> Any:
            step(f"before {name}")
            result = call(*arguments, **options)
            step(f"after {name}")
            return result

        return run

    database = open_database(where, table="items", modality_column="kind")
    for name in STEPS:
        setattr(database, name, watched(name, getattr(database, name)))
    Journal.write = watched("journal", Journal.write)  # type: ignore[method-assign]
    with Migration(database, load(Path(folder) / "map"), journal=Path(folder) / "journal") as migration:
        state = migration.status().get("state")
        if state in (None, "filling"):
            migration.run(resume=state is not None)
        if migration.journal.state == "filled":
            found = migration.verify()
            if not found.passed:
                raise SystemExit(f"does not verify: {found.problems}")
        if migration.journal.state == "verified":
            migration.switch()
        if migration.journal.state == "switched":
            told = migration.rollback()
            if not told["identical"]:
                raise SystemExit("the old vectors changed")


def run_child(where: str, folder: Path, at: int = -1, trace: str = "") -> int:
    words = [sys.executable, __file__, "--child", where, "--folder", str(folder), "--at", str(at), "--trace", trace]
    return subprocess.run(words, check=False).returncode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", nargs="?", choices=sorted(KINDS))
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--most", type=int, default=1000, help="kill points, at most")
    parser.add_argument("--child")
    parser.add_argument("--folder")
    parser.add_argument("--at", type=int)
    parser.add_argument("--trace", default="")
    add_json(parser)
    options = parser.parse_args()
    if options.child:
        child(options.child, options.folder, options.at, options.trace)
        return
    make, read = KINDS[options.kind]
    rows, kinds, mapping = vectors(options.rows)
    ids = np.random.default_rng(1).permutation(options.rows).tolist()
    from congruence.databases import open_database
    from congruence.upgrade.migrate.mapper import RowMapper
    from congruence.upgrade.migrate.quantize import Quantizer

    mapper = RowMapper(mapping)
    wanted = mapper(pa.array(ids), rows, pa.array(kinds, pa.large_string()))
    row_of = {one: k for k, one in enumerate(ids)}
    with tempfile.TemporaryDirectory() as scratch:
        first = Path(scratch) / "first"
        first.mkdir()
        where = make(first, ids, rows, kinds)
        before = read(where)
        whole = Path(scratch) / "whole"
        shutil.copytree(first, whole)
        mapping.save(whole / "map")
        mapping.save(first / "map")
        trace = Path(scratch) / "trace.txt"
        started = time.perf_counter()
        if run_child(str(whole / Path(where).name), whole, trace=str(trace)):
            raise SystemExit("the run without a fault failed")
        seconds = time.perf_counter() - started
        steps = trace.read_text().split("\n")[:-1]
        points: dict[int, str] = {}
        for name in dict.fromkeys(steps):
            places = [k for k, one in enumerate(steps) if one == name]
            points |= {places[k]: name for k in (0, len(places) // 2, -1)}
        totals = Counter()
        for at, name in sorted(points.items())[: options.most]:
            place = Path(scratch) / "killed"
            shutil.copytree(first, place)
            here = str(place / Path(where).name)
            ended = run_child(here, place, at)
            totals["killed"] += ended == -signal.SIGKILL
            if run_child(here, place):
                raise SystemExit(f"not resumed after a kill {name} ({at})")
            after = read(here)
            totals["lost rows"] += len(set(before) - set(after))
            totals["changed originals"] += sum(after.get(one) != bits for one, bits in before.items())
            with open_database(here, table="items", modality_column="kind") as database:
                seen = Counter()
                for block in database.scan("new"):
                    names = block.ids.to_pylist()
                    seen.update(names)
                    expected = wanted[[row_of[one] for one in names]]
                    totals["wrong"] += int(
                        Quantizer("float32", expected.shape[1]).differs(block.vectors, expected).sum()
                    )
                totals["lost"] += len(before) - len(seen)
                totals["doubled"] += sum(count > 1 for count in seen.values())
            print(f"{name} ({at}): {dict(totals)}", flush=True)
            shutil.rmtree(place)
    told = {key: int(totals[key]) for key in ("killed", "lost", "lost rows", "doubled", "wrong", "changed originals")}
    results = {
        "kind": options.kind,
        "rows": options.rows,
        "steps": len(steps),
        "points": len(points),
        "seconds": seconds,
        **told,
    }
    print(results)
    write_json(options, results)


if __name__ == "__main__":
    main()
