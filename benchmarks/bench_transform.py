"""Map a million 768-d vectors from disk to disk, compared with plain NumPy.

Plain NumPy reads the file, multiplies once in float32 and writes the result, without centering or
checks. Both run alternately, each in a separate process, so that its peak memory can be measured.
"""

from __future__ import annotations

import json
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np

from common import arguments, in_process, in_turn, peak_mb, ratios, write_json


def plain(folder: Path, suffix: str) -> None:
    """Read, multiply and write with NumPy, and time each part."""
    rotation = np.load(folder / "rotation.npy")
    start = time.perf_counter()
    if suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        column = pq.read_table(folder / "in.parquet", columns=["vector"])["vector"].combine_chunks()
        X = column.flatten().to_numpy(zero_copy_only=False).reshape(-1, len(rotation))
        Z = X @ rotation
        lists = pa.FixedSizeListArray.from_arrays(pa.array(Z.reshape(-1)), rotation.shape[1])
        table = pa.table({"vector": lists})
        pq.write_table(table, folder / "out_plain.parquet", compression="none", use_dictionary=False)
    else:
        X = np.load(folder / "in.npy")
        Z = X @ rotation
        np.save(folder / "out_plain.npy", Z)
    report(time.perf_counter() - start)


def ours(folder: Path, suffix: str) -> None:
    import congruence
    from congruence.io import open_source
    from congruence.upgrade.transform import transform_file

    mapping = congruence.load(folder / "map")
    start = time.perf_counter()
    transform_file(mapping, open_source(folder / f"in{suffix}"), folder / f"out{suffix}", force=True)
    report(time.perf_counter() - start)


def report(seconds: float) -> None:
    print(json.dumps({"seconds": seconds, "peak_mb": peak_mb()}))


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=768)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--suffix", default=".npy")
    parser.add_argument("--child")
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    if options.child:
        {"plain": plain, "ours": ours}[options.child](options.folder, options.suffix)
        return
    import pyarrow as pa

    from congruence import OrthogonalMap
    from congruence.io import open_sink

    with tempfile.TemporaryDirectory() as name:
        folder, rng = Path(name), np.random.default_rng(0)
        anchors = rng.standard_normal((2000, options.dim)).astype(np.float32)
        mapping = OrthogonalMap().fit(anchors, anchors[:, ::-1] + 0.1 * anchors)
        mapping.save(folder / "map")
        np.save(folder / "rotation.npy", mapping.rotation_.astype(np.float32))
        parquet = options.suffix == ".parquet"
        with open_sink(folder / f"in{options.suffix}", n=options.rows, dim=options.dim, has_ids=parquet) as sink:
            for start in range(0, options.rows, 50_000):
                count = min(50_000, options.rows - start)
                ids = pa.array([str(k) for k in range(start, start + count)]) if parquet else None
                sink.write(ids, rng.standard_normal((count, options.dim)).astype(np.float32))
        given = ("--folder", folder, "--suffix", options.suffix)
        arms = {who: partial(in_process, __file__, "--child", who, *given) for who in ("plain", "ours")}
        results = in_turn(arms, options.repeat)
    best = {what: min(r["seconds"] for r in runs) for what, runs in results.items()}
    median = {what: float(np.median([r["seconds"] for r in runs])) for what, runs in results.items()}
    print(f"{options.rows:,} × {options.dim} float32, {options.suffix}, {options.repeat} runs each, in turn")
    for what in results:
        peak = max(r["peak_mb"] for r in results[what])
        print(f"  {what:6s} median {median[what]:6.1f} s   best {best[what]:6.1f} s   peak memory {peak:6.0f} MB")
    speed = ratios(results, "plain", "seconds")
    print("  speed relative to plain: " + ", ".join(f"{r:.2f}" for r in speed) + f"; median {np.median(speed):.2f}")
    write_json(options, results)


if __name__ == "__main__":
    main()
