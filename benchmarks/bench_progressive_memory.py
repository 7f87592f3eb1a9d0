"""Memory and processor time of a progressive migration: of an array, of a file, and of a LanceDB table.

``python benchmarks/bench_progressive_memory.py --rows 100000 1000000``: rows of 64 random numbers in a ``.npy`` file,
100 texts, batches of a thousandth of the rows, each followed by the meter, by ``save``, and after some by a refit; the
median batch, the longest, and the start are reported. For LanceDB, ``reembed`` runs on a table that was migrated and
switched before: it reads the old vectors, compares the table with the plan, and goes through the batches. Each variant
runs in a separate process; memory is the peak minus that after imports and one read.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np

from common import arguments, in_process, peak_mb, write_json
from congruence import OrthogonalMap, reembed
from congruence.databases import open_database
from congruence.io import open_source
from congruence.upgrade.migrate import Migration
from congruence.upgrade.progressive import Progressive

WIDTH, TEXTS, BATCHES = 64, 100, 16

#: Ways to run a migration, and whether each uses texts.
WAYS = {"array": True, "file": True, "file, no texts": False, "LanceDB": True}


def write(path: Path, n: int) -> None:
    """Write the old vectors of a store."""
    rng = np.random.default_rng(0)
    rows = np.lib.format.open_memmap(path, "w+", np.float32, (n, WIDTH))
    for start in range(0, n, 65_536):
        part = rng.standard_normal((min(65_536, n - start), WIDTH), np.float32)
        rows[start : start + len(part)] = part / np.linalg.norm(part, axis=1, keepdims=True)
    rows.flush()


def models() -> tuple[np.ndarray, np.ndarray, OrthogonalMap]:
    """Return the rotation between the models, texts of the old one, and the first map."""
    rng = np.random.default_rng(1)
    turn = np.linalg.qr(rng.standard_normal((WIDTH, WIDTH)))[0].astype(np.float32)
    texts = rng.standard_normal((TEXTS, WIDTH)).astype(np.float32)
    texts /= np.linalg.norm(texts, axis=1, keepdims=True)
    return turn, texts, OrthogonalMap().fit(texts, texts @ turn)


def encode(old: np.ndarray, turn: np.ndarray) -> np.ndarray:
    """Return the vectors of the new model, which no rotation reproduces exactly."""
    noise = np.random.default_rng(len(old)).standard_normal(old.shape).astype(np.float32)
    return old @ turn + 0.3 * np.abs(old) + 0.1 * noise


def migrated(path: Path) -> None:
    """Migrate a LanceDB table of the rows and switch it."""
    import lancedb
    import pyarrow as pa

    rows = np.load(path, mmap_mode="r")

    def batches():
        for start in range(0, len(rows), 65_536):
            part = np.array(rows[start : start + 65_536])
            vectors = pa.FixedSizeListArray.from_arrays(pa.array(part.ravel()), WIDTH)
            yield pa.record_batch({"id": pa.array(np.arange(start, start + len(part))), "vector": vectors})

    schema = next(batches()).schema
    lancedb.connect(path.parent / "lance").create_table("items", batches(), schema=schema, mode="overwrite")
    with Migration(
        open_database(path.parent / "lance" / "items.lance"), models()[2], journal=path.parent / "journal"
    ) as migration:
        migration.run()
        migration.verify()
        migration.switch()


def reembedded(path: Path) -> dict[str, float]:
    """Re-embed rows of that table, and return megabytes and seconds."""
    turn, texts, _ = models()
    rows = np.load(path, mmap_mode="r")
    with Migration(open_database(path.parent / "lance" / "items.lance"), journal=path.parent / "journal") as migration:
        next(migration.database.scan(batch=16))
        before, started, size = peak_mb(), time.process_time(), len(rows) // 1000
        given = {"texts": texts, "new_texts": texts @ turn, "size": size, "budget": BATCHES * size}
        reembed(migration, lambda ids: encode(rows[[int(one) for one in ids]], turn), **given)
        return {"megabytes": peak_mb() - before, "seconds": time.process_time() - started}


def follow(path: Path, way: str) -> dict[str, float]:
    """Run a few batches, and return megabytes and seconds per batch."""
    turn, texts, first = models()
    source = open_source(path)
    next(source.scan(0, 16))
    before = peak_mb()
    given = {"texts": texts, "new_texts": texts @ turn} if WAYS[way] else {}
    started, seconds = time.process_time(), []
    plan = Progressive(first, source if way.startswith("file") else np.load(path), **given)
    begun = time.process_time() - started
    with tempfile.TemporaryDirectory() as folder:
        batches = plan.batches(len(plan) // 1000)
        for _ in range(BATCHES):
            started = time.process_time()
            ids = next(batches)
            chosen = time.process_time() - started
            vectors = encode(source.take(ids)[1], turn)
            started = time.process_time()
            plan.update(ids, vectors)
            plan.save(Path(folder) / "plan", force=True)
            seconds.append(chosen + time.process_time() - started)
    megabytes = peak_mb() - before
    return {"megabytes": megabytes, "start": begun, "seconds": float(np.median(seconds)), "longest": max(seconds)}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        path, way = Path(options.one[0]), options.one[1]
        ways = {"migrated": migrated, "LanceDB": reembedded}
        print(json.dumps(ways[way](path) if way in ways else follow(path, way)))
        return
    found = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "old.npy"
        for n in options.rows:
            write(path, n)
            shutil.rmtree(path.parent / "journal", ignore_errors=True)
            for way in ("array", "file", "file, no texts", "migrated", "LanceDB"):
                measured = in_process(__file__, "--one", path, way)
                if way != "migrated":
                    found.append({"rows": n, "way": way, **measured})
                    print(found[-1], flush=True)
    write_json(options, found)


if __name__ == "__main__":
    main()
