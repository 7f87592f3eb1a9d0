"""Table of docs/towers.md."""

from __future__ import annotations

from typing import Any

from measured.blocks import Block, table
from measured.jobs import JOBS

#: Of each command: what is searched, and the text tower that is native to each image tower.
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
    return table(["image tower", "text tower", "right at 1", "among 10"], rows)


BLOCKS = {"towers": Block(towers, JOBS["towers"])}
