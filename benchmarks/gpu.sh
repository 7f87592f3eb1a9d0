#!/bin/sh
# Measures on a CUDA device what gpu.py names, in under five minutes; without one it says so.
cd "$(dirname "$0")/.." && exec "${PYTHON:-python}" benchmarks/gpu.py "$@"
