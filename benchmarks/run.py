"""Run all benchmarks in sequence: ``make bench``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
JOBS = [
    ["speed.py", "--rounds", "3"],
    ["bench_transform.py"],
    ["bench_transform.py", "--suffix", ".parquet"],
    ["bench_few_anchors.py"],
    ["right_link.py", "--rounds", "1"],
    ["bench_theory.py"],
    ["bench_negatives.py"],
    ["certify_calibration.py", "--cases", "12"],
    ["klot.py", "--most", "4000"],
    ["bench_train.py", "--unpaired", "2048", "--pairs", "512"],
    ["bench_jam.py"],
    ["bench_progressive_memory.py", "--rows", "1000000"],
    ["bench_migrate.py", "lancedb", "--rows", "100000", "--ways", "mapped copy", "whole"],
    ["bench_migrate.py", "duckdb", "--rows", "60000", "--rounds", "2", "--ways", "mapped copy", "whole"],
    ["bench_migrate.py", "sqlite-vec", "--ways", "mapped copy", "whole"],
    ["bench_migrate.py", "pgvector", "--ways", "mapped copy", "whole"],
]


def main() -> None:
    for job in JOBS:
        print(f"\n$ python benchmarks/{' '.join(job)}", flush=True)
        subprocess.run([sys.executable, HERE / job[0], *job[1:]], check=True)


if __name__ == "__main__":
    main()
