"""Tables of docs/towers.md."""

from __future__ import annotations

from typing import Any

import numpy as np

from measured import bridges
from measured.blocks import Block, table
from measured.jobs import JOBS

#: For each command: what is searched, and the native text tower of each image tower.
DATA = (
    ("emoji", {"emoji-a": "emoji-a", "emoji-b": "emoji-b"}),
    ("LVIS", {"OpenAI B/32": "OpenAI B/32"}),
)


def towers(results: list[Any]) -> str:
    rows = []
    for (data, native), one in zip(DATA, results, strict=True):
        last = ""
        for line in one["results"]:
            image, text = line["pair"].split(" × ")
            cells = [f"{m:.3f} ± {e:.3f}" for m, e in zip(line["mean"], line["error"], strict=True)]
            place = f"{data}: {image}" if image != last else ""
            rows.append([place, f"{text}{', native' * (native[image] == text)}", *cells])
            last = image
    return table(["image tower", "text tower", "recall@1", "recall@10"], rows)


#: Parts of the job of the photo towers, and their descriptions.
PARTS = {"unseen": "50 unseen names, over 3,242 photos", "known": "100 known names, over 3,242 photos"}
NATIVE = {"MobileNet-v2 × MiniLM", "EfficientNet-Lite0 × MPNet"}


def crossed(results: list[Any]) -> str:
    """Return mean and standard error over splits."""
    runs = results[0]["towers"]
    rows, last = [], ""
    for pair in runs[0]:
        image, text = pair.split(" × ")
        values = np.array([run[pair] for run in runs])
        errors = values.std(axis=0, ddof=1) / np.sqrt(len(values))
        cells = [f"{m:.3f} ± {e:.3f}" for m, e in zip(values.mean(axis=0), errors, strict=True)]
        rows.append([image if image != last else "", f"{text}{', native' * (pair in NATIVE)}", *cells])
        last = image
    return table(["image tower", "text tower", "recall@1", "recall@10", "zero-shot accuracy"], rows)


def _bridged(results: list[Any]) -> list[Any]:
    return [results[0][part] for part in PARTS]


BLOCKS = {
    "towers": Block(towers, JOBS["towers"]),
    "photo-towers": Block(crossed, JOBS["photo-towers"]),
    "photo-towers-bridge": Block(
        lambda results: bridges.scores(_bridged(results), tuple(PARTS.values())), JOBS["photo-towers"]
    ),
    "photo-towers-thresholds": Block(
        lambda results: bridges.thresholds(_bridged(results), tuple(PARTS.values())), JOBS["photo-towers"]
    ),
}
