"""A million rows from a fit to the switch, killed twice on the way: time, memory, disk, and whether each row is right.

``python benchmarks/scale.py --rows 1000000 --dim 64 --record scale``. Rows are drawn around the texts of LVIS's 1,203
names by OpenAI's CLIP ViT-B/32 (the old model) and B/16 (the new one), of each model in its ``dim`` leading directions:
a name's row plus normal noise of a tenth of its length, scaled to unit norm. The map is fitted on the rows of 1,000
names. A process of its own fits, maps and writes, verifies and switches: once undisturbed, and once killed by SIGKILL
at two moments drawn at random from the time that this took, and started again each time with the same command.

``seconds`` are by the clock and ``cpu`` by the processor, of the last process; ``mb`` is the peak memory and
``disk_mb`` the largest size of the folder, table included, both sampled, over all processes. ``right``: rows of the
table that readers see after the switch, read by the client of the format, that equal the map of their old row (within
1e-5); ``unmapped``: rows that equal the old row; ``not once``: ids that occur never or more than once.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from common import arguments, arrays, unit, write_json

os.environ.setdefault("LANCE_LOG", "error")

BLOCK = 50_000
FILES = {"parquet": "items.parquet", "lancedb": "items.lance"}


def models(data: Path, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the texts of both models in their leading directions, as unit rows."""
    found = arrays(data / "lvis1203_clip.npz")
    both = []
    for key in ("text_openai_vitb32", "text_openai_vitb16"):
        rows = found[key].astype(np.float64)
        directions = np.linalg.svd(rows, full_matrices=False)[2][:dim]
        both.append(unit(rows @ directions.T, np.float32))
    return both[0], both[1]


def drawn(old: np.ndarray, n: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the first row number and the rows of each block."""
    for start in range(0, n, BLOCK):
        rng = np.random.default_rng([7, start])
        size = min(BLOCK, n - start)
        noise = rng.standard_normal((size, old.shape[1]), np.float32) * np.float32(0.1 / old.shape[1] ** 0.5)
        yield start, unit(old[rng.integers(len(old), size=size)] + noise, np.float32)


def make(kind: str, place: Path, old: np.ndarray, n: int) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        for start, rows in drawn(old, n):
            ids = pa.array(np.arange(start, start + len(rows)))
            column = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])
            yield pa.record_batch([ids, pa.array([f"item {k}" for k in ids.to_pylist()]), column], schema.names)

    width = old.shape[1]
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("embedding", pa.list_(pa.float32(), width))])
    if kind == "parquet":
        with pq.ParquetWriter(place / FILES[kind], schema) as writer:
            for batch in batches():
                writer.write_batch(batch)
        return
    import lancedb

    lancedb.connect(place).create_table("items", pa.RecordBatchReader.from_batches(schema, batches()))


def shown(kind: str, place: Path) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield ids and vectors that readers see."""
    if kind == "parquet":
        found = pq.ParquetFile(place / FILES[kind]).iter_batches(BLOCK, columns=["id", "embedding"])
    else:
        import lance

        found = lance.dataset(str(place / FILES[kind])).to_batches(columns=["id", "embedding"], batch_size=BLOCK)
    for batch in found:
        vectors = batch.column("embedding").flatten().to_numpy(zero_copy_only=False)
        yield batch.column("id").to_numpy(), vectors.reshape(len(batch), -1)


def child(options: argparse.Namespace) -> None:
    """Fit if there is no map yet, then run, verify and switch from the state in which the last process left it."""
    from congruence import Migration, fit, load
    from congruence.databases import open_database

    place, begun = options.child, (time.perf_counter(), time.process_time())
    spent: dict[str, dict[str, float]] = {"seconds": {}, "cpu": {}}

    def lap(name: str) -> None:
        nonlocal begun
        now = time.perf_counter(), time.process_time()
        for key, last, this in zip(spent, begun, now, strict=True):
            spent[key][name] = this - last
        begun = now

    if not (place / "map").exists():
        old, new = models(options.data, options.dim)
        fit(old[:1000], new[:1000], modality="text").save(place / "map")
    lap("fit")
    database = open_database(str(place / FILES[options.kind]))
    with Migration(database, load(place / "map"), journal=place / "journal", modality="text") as migration:
        state = migration.status().get("state")
        if state in (None, "filling"):
            migration.run(resume=state is not None)
        lap("migrate")
        if migration.journal.state == "filled":
            found = migration.verify()
            if not found.passed:
                raise SystemExit(f"does not verify: {found.problems}")
        lap("verify")
        if migration.journal.state == "verified" or state == "switched":
            migration.switch()
        lap("switch")
    print(json.dumps(spent))


def size_mb(folder: Path) -> float:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue
    return total / 2**20


def start(options: argparse.Namespace, place: Path, kill_after: float | None, peaks: dict[str, float]) -> str | None:
    """Run the process; return what it printed, or None if it was killed after that many seconds."""
    given = ["--kind", options.kind, "--dim", str(options.dim), "--data", str(options.data), "--child", str(place)]
    process = subprocess.Popen([sys.executable, __file__, *given], stdout=subprocess.PIPE, text=True)
    begun, looked = time.monotonic(), 0.0
    while process.poll() is None:
        now = time.monotonic() - begun
        if kill_after is not None and now >= kill_after:
            process.send_signal(signal.SIGKILL)
            process.wait()
            return None
        if now - looked > 0.5:
            looked = now
            try:
                status = Path(f"/proc/{process.pid}/status").read_text()
                peak = int(status.partition("VmHWM:")[2].split()[0]) / 1024
                peaks["mb"] = max(peaks.get("mb", 0.0), peak)
            except (OSError, IndexError):
                pass
            peaks["disk_mb"] = max(peaks.get("disk_mb", 0.0), size_mb(place))
        time.sleep(0.02)
    if process.returncode:
        raise SystemExit(f"{options.kind}: the migration ended with {process.returncode}")
    assert process.stdout is not None
    return process.stdout.read().splitlines()[-1]


def check(options: argparse.Namespace, place: Path, old: np.ndarray) -> dict[str, int]:
    """Count the rows that readers see, by whether they are the map of their old row."""
    from congruence import load

    mapping = load(place / "map")
    plain = np.concatenate([rows for _, rows in drawn(old, options.rows)])
    wanted = mapping.transform(plain, modality="text")
    times, right, unmapped = np.zeros(options.rows, int), 0, 0
    for ids, vectors in shown(options.kind, place):
        np.add.at(times, ids, 1)
        right += int((np.abs(vectors - wanted[ids]).max(axis=1) < 1e-5).sum())
        unmapped += int((np.abs(vectors - plain[ids]).max(axis=1) < 1e-5).sum())
    return {"rows": int(times.sum()), "right": right, "unmapped": unmapped, "not once": int((times != 1).sum())}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--kind", choices=FILES, help="one of them; both by default")
    parser.add_argument("--scratch", type=Path, help="folder for the tables")
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        child(options)
        return
    old, _ = models(options.data, options.dim)
    rng, results = np.random.default_rng(options.seed), {}
    for kind in [options.kind] if options.kind else [*FILES]:
        one, found = argparse.Namespace(**vars(options) | {"kind": kind}), dict[str, Any]()
        for arm in ("undisturbed", "killed twice"):
            with tempfile.TemporaryDirectory(dir=options.scratch) as name:
                place, peaks, killed = Path(name), {}, []
                make(kind, place, old, options.rows)
                table_mb, begun = size_mb(place), time.monotonic()
                moments = [None] if arm == "undisturbed" else [*rng.uniform(0.1, 0.9, 2) * found["undisturbed"]["wall"]]
                said = None
                for moment in moments:
                    said = start(one, place, moment, peaks)
                    if moment is not None and said is None:
                        killed.append(round(float(moment), 2))
                if said is None:
                    said = start(one, place, None, peaks)
                wall = time.monotonic() - begun
                counted = check(one, place, old)
                found[arm] = {**json.loads(said), **peaks, "wall": wall, "table_mb": table_mb, "kills_at": killed}
                found[arm] |= counted
                print(kind, arm, found[arm], flush=True)
        results[kind] = found
    write_json(options, results)


if __name__ == "__main__":
    main()
