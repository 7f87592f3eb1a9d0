#!/bin/bash
# Map every SHARDS-th file of IN, beginning with file INDEX, into OUT; a Slurm array and an Indexed Job number the shards.
# A file of OUT appears when it is complete: it is the receipt, and is made again only if its input or the map is newer.
set -euo pipefail
in=$1 out=$2 map=$3
index=${SLURM_ARRAY_TASK_ID:-${JOB_COMPLETION_INDEX:-0}} shards=${SLURM_ARRAY_TASK_COUNT:-${SHARDS:-1}}
mkdir -p "$out"
files=("$in"/*.parquet)
for ((k = index; k < ${#files[@]}; k += shards)); do
  made=$out/$(basename "${files[k]}")
  [[ $made -nt ${files[k]} && $made -nt $map/config.json ]] || congruence transform "$map" "${files[k]}" -o "$made" --force
done
