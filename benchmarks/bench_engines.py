"""Map a data set of many files with Ray on this machine, compared with Ray's own read and write and with the local
command.

Each run is a separate process, and the runs of a round follow each other. Wall-clock seconds are meaningful only on an
otherwise idle machine; processor seconds cover the whole process tree, including Ray's own processes. For the fault
test, SIGKILL ends the driver with its workers, or a single worker, at random moments, and the run is restarted until it
is complete; then every id must be present exactly once.

With ``--shards``, one and two tasks of an array run ``examples/cluster/shard.sh`` in turn, with ``--slurm`` as jobs of
a cluster on this machine.

python benchmarks/bench_engines.py --rows 200000 --json OUT
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from common import arguments, write_json

WORKERS = 2
CLUSTER = Path(__file__).parents[1] / "examples/cluster"


def make(folder: Path, rows: int, dim: int, files: int) -> None:
    """Write vectors that repeat one random block, so that they are cheap to generate."""
    from congruence import OrthogonalMap

    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.standard_normal((dim, dim)))[0]
    X = rng.standard_normal((2 * dim, dim))
    OrthogonalMap().fit(X, X @ turn + 0.01).save(folder / "map")
    (folder / "in").mkdir()
    step = -(-rows // files)
    block = rng.standard_normal((min(step, 20_000), dim), dtype=np.float32)
    schema = pa.schema({"id": pa.int64(), "vector": pa.list_(pa.float32(), dim)})
    for k in range(files):
        low, high = k * step, min((k + 1) * step, rows)
        with pq.ParquetWriter(
            folder / f"in/part-{k:05d}.parquet", schema, compression="none", use_dictionary=False
        ) as out:
            for start in range(low, high, len(block)):
                n = min(len(block), high - start)
                lists = pa.FixedSizeListArray.from_arrays(pa.array(block[:n].reshape(-1)), dim)
                out.write_table(pa.table([pa.array(np.arange(start, start + n)), lists], schema=schema))


def start_ray() -> None:
    import logging

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray
    import ray.data

    ray.init(address="local", num_cpus=WORKERS, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    ray.data.DataContext.get_current().enable_progress_bars = False


def run(what: str, folder: Path) -> None:
    """Run one job in this process, as a command does, and print its time and memory."""
    from congruence._utils.process import start_command

    start_command()
    me = psutil.Process()
    peak = [0]
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.05):
            peak[0] = max(peak[0], me.memory_info().rss)

    begun, first = time.perf_counter(), processor(me)
    if what != "local":
        start_ray()
    started, before = time.perf_counter(), processor(me)
    threading.Thread(target=watch, daemon=True).start()
    out = folder / f"out-{what}"
    base = me.memory_info().rss
    if what == "local":
        from congruence import load, transform_file
        from congruence.io import open_source

        transform_file(load(folder / "map"), open_source(folder / "in"), out, force=True)
    elif what == "ray":
        from congruence import load, transform_file
        from congruence.engines import RayEngine, open_dataset

        transform_file(load(folder / "map"), open_dataset(str(folder / "in")), str(out), engine=RayEngine())
    elif what == "plain":
        import ray.data

        ray.data.read_parquet(str(folder / "in")).write_parquet(str(out))
    ended, after = time.perf_counter(), processor(me)
    stop.set()
    facts = {
        "what": what,
        "start_seconds": started - begun,
        "start_processor": before - first,
        "seconds": ended - started,
        "processor": after - before,
        "driver_mb": (peak[0] - base) / 2**20,
    }
    print(json.dumps(facts), flush=True)


def processor(me: psutil.Process) -> float:
    """Return the processor seconds of this process and all descendants, including those that have ended and were waited
    for.
    """
    total = 0.0
    for one in [me, *me.children(recursive=True)]:
        try:
            times = one.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
        except psutil.NoSuchProcess:
            continue
    return total


def call(what: str, folder: Path) -> dict:
    command = [sys.executable, __file__, "--run", what, "--folder", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout.strip().splitlines()[-1])


def is_worker(process: psutil.Process) -> bool:
    """Return whether a process runs tasks; the agents of a Ray node have similar names, and killing one of them ends
    the node.
    """
    try:
        name = next(iter(process.cmdline()), "")
    except psutil.NoSuchProcess:
        return False
    return name.startswith("ray::") and "Agent" not in name


def kill(folder: Path, whom: str, after: float) -> tuple[bool, bool]:
    """Start a run and kill it, or one of its workers, after a number of seconds; return whether there was something to
    kill, and whether the run completed.
    """
    command = [sys.executable, __file__, "--run", "ray", "--folder", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    journal = folder / "out-ray.partial/journal"
    while process.poll() is None and not journal.exists():
        time.sleep(0.02)
    time.sleep(after)
    hit = False
    tree = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    if journal.exists() and process.poll() is None and whom == "driver":
        process.kill()
        for one in tree:
            if one.is_running():
                one.kill()
        hit = True
    elif journal.exists() and process.poll() is None:
        tasks = [one for one in tree if one.is_running() and is_worker(one)]
        for one in tasks[:1]:
            one.send_signal(signal.SIGKILL)
            hit = True
    return hit, process.wait() == 0


def faults(folder: Path, kills: int, seconds: float, seed: int) -> list[dict]:
    """Repeat until a number of kills have hit a run; if a random time lies after the end of the run, it is drawn
    again.
    """
    rng = np.random.default_rng(seed)
    expected = pq.read_table(folder / "in", columns=["id"]).num_rows
    found: list[dict] = []
    while len(found) < kills:
        shutil.rmtree(folder / "out-ray", ignore_errors=True)
        whom = ("driver", "worker")[len(found) % 2]
        after = float(rng.uniform(0, seconds))
        hit, ended = kill(folder, whom, after)
        if not hit:
            seconds = max(after, 1.0)  # later times also lie after the end
            continue
        if not (folder / "out-ray").exists():  # otherwise it was killed after its last step
            call("ray", folder)
        ids = np.sort(pq.read_table(folder / "out-ray", columns=["id"]).column("id").to_numpy())
        once = len(np.unique(ids))
        found.append(
            {
                "killed": whom,
                "after": after,
                "ended_by_itself": ended,
                "lost": expected - once,
                "doubled": len(ids) - once,
            }
        )
        print(found[-1], flush=True)
    return found


def shards(folder: Path, count: int, slurm: bool) -> dict:
    """Map all files by an array of tasks of one thread, and return its seconds and those of the processors."""
    shutil.rmtree(folder / "out-shards", ignore_errors=True)
    words = [str(folder / name) for name in ("in", "out-shards", "map")]
    own = {**os.environ, "OMP_NUM_THREADS": "1", "SHARD": str(CLUSTER / "shard.sh")}
    started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    if slurm:
        array = ["--wait", f"--array=0-{count - 1}", "--cpus-per-task=1", "--mem=1000", f"--output={folder}/log"]
        subprocess.run(["sbatch", *array, str(CLUSTER / "slurm.sh"), *words], env=own, check=True, capture_output=True)
    else:
        numbers = [{"SLURM_ARRAY_TASK_ID": str(k), "SLURM_ARRAY_TASK_COUNT": str(count)} for k in range(count)]
        tasks = [subprocess.Popen(["bash", own["SHARD"], *words], env={**own, **one}) for one in numbers]
        if any([task.wait() for task in tasks]):
            sys.exit("a task failed")
    seconds, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    rows = sum(pq.read_metadata(file).num_rows for file in (folder / "out-shards").glob("*.parquet"))
    own_jobs = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    spent = None if slurm else own_jobs
    return {
        "what": "shards",
        "tasks": count,
        "slurm": slurm,
        "rows": rows,
        "seconds": seconds,
        "processor": None if slurm else spent,
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--files", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--shards", action="store_true")
    parser.add_argument("--slurm", action="store_true")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--run", choices=("local", "ray", "plain"))
    options = parser.parse_args()
    if options.run:
        run(options.run, options.folder)
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as place:
        folder = Path(place)
        make(folder, options.rows, options.dim, options.files)
        results = []
        for count in (1, 2) * options.rounds if options.shards else ():
            results.append(shards(folder, count, options.slurm))
            print(results[-1], flush=True)
        for _ in range(0 if options.shards else options.rounds):
            for what in ("plain", "ray", "local"):
                results.append(call(what, folder))
                print(results[-1], flush=True)
                shutil.rmtree(folder / f"out-{what}")
        longest = max([one["seconds"] for one in results if one["what"] == "ray"], default=0)
        killed = faults(folder, options.kills, longest, 0) if options.kills else []
    write_json(
        options, {"rows": options.rows, "dim": options.dim, "files": options.files, "runs": results, "kills": killed}
    )


if __name__ == "__main__":
    main()
