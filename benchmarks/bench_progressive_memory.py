"""What a progressive migration takes of memory and processor time, in memory and as a stream from a file.

``python benchmarks/bench_progressive_memory.py --rows 100000 1000000``: rows of 64 random numbers in a ``.npy`` file, 100 texts, three batches of a
thousandth of the rows, each followed by the refit, the meter and ``save``. Each way runs in a process of its own; memory is the peak over what the process had
after its imports.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

WIDTH, TEXTS, BATCHES = 64, 100, 3

#: Ways, and whether texts are used.
WAYS = {"in memory": True, "stream": True, "stream, no texts": False}


def write(path: Path, n: int) -> None:
    """Write a store's old vectors."""
    rng = np.random.default_rng(0)
    rows = np.lib.format.open_memmap(path, "w+", np.float32, (n, WIDTH))
    for start in range(0, n, 65_536):
        part = rng.standard_normal((min(65_536, n - start), WIDTH), np.float32)
        rows[start : start + len(part)] = part / np.linalg.norm(part, axis=1, keepdims=True)
    rows.flush()


def follow(path: Path, way: str) -> dict[str, float]:
    """Go through a few batches, and return megabytes and seconds."""
    from congruence import OrthogonalMap
    from congruence.stores import open_source
    from congruence.upgrade.progressive import Progressive

    rng = np.random.default_rng(1)
    turn = np.linalg.qr(rng.standard_normal((WIDTH, WIDTH)))[0].astype(np.float32)
    texts = rng.standard_normal((TEXTS, WIDTH)).astype(np.float32)
    texts /= np.linalg.norm(texts, axis=1, keepdims=True)
    first = OrthogonalMap().fit(texts, texts @ turn)
    source = open_source(path)
    next(source.scan(0, 16))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    given = {"texts": texts, "new_texts": texts @ turn} if WAYS[way] else {}
    plan = Progressive(first, source if way.startswith("stream") else np.load(path), **given)
    started, seconds = time.process_time(), []
    with tempfile.TemporaryDirectory() as folder:
        for ids in plan.batches(len(plan) // 1000, budget=BATCHES * (len(plan) // 1000)):
            old = source.take(ids)[1]
            new = old @ turn + 0.3 * np.abs(old) + 0.1 * rng.standard_normal(old.shape).astype(np.float32)
            plan.update(ids, new)
            plan.save(Path(folder) / "plan", force=True)
            seconds.append(time.process_time() - started)
            started = time.process_time()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"megabytes": (peak - before) / 1024, "seconds": float(np.median(seconds))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--json")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(follow(Path(options.one[0]), options.one[1])))
        return
    found = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "old.npy"
        for n in options.rows:
            write(path, n)
            for way in WAYS:
                done = subprocess.run([sys.executable, __file__, "--one", str(path), way], capture_output=True, text=True, check=True)  # fmt: skip
                found.append({"rows": n, "way": way, **json.loads(done.stdout)})
                print(found[-1], flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps({"results": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
