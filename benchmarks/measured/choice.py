"""The tables of docs/few_anchors.md and docs/means.md on the map that is chosen."""

from __future__ import annotations

from typing import Any

from measured.blocks import Block, table
from measured.jobs import JOBS

WORDS = {
    "fixed (default before)": "fixed",
    "chosen, other modality seen": "chosen, evidence",
}


def chosen(data: str) -> Any:
    """One data set: each map's scores with standard errors; bold where nothing is ahead by more than one."""

    def write(results: list[Any]) -> str:
        rows = []
        last = None
        found = [table for result in results for table in result["results"] if table["data"] == data]
        for one in (row for part in found for row in part["rows"]):
            cells = []
            for mean, se, behind, error in zip(one["mean"], one["se"], one["behind"], one["error"], strict=True):
                mark = "**" if behind <= error else ""
                cells.append(f"{mark}{mean:.3f}{mark} ± {se:.3f}")
            rows.append([str(one["n"]) if one["n"] != last else "", WORDS.get(one["map"], one["map"]), *cells])
            last = one["n"]
        return table(["pairs", "map", "own →", "own ←", "other →", "other ←"], rows)

    return write


def offset(results: list[Any]) -> str:
    """Images by the share of the anchors' offset that they are given."""
    rows, last = [], None
    for one in results[0]:
        cells = [f"{mean:.3f} ± {se:.3f}" for mean, se in zip(one["mean"], one["se"], strict=True)]
        rows.append([one["data"] if one["data"] != last else "", str(one["n"]), *cells])
        last = one["data"]
    return table(["images, at 1", "text anchors", "whole offset", "half", "a quarter", "none", "`center=False`"], rows)


BLOCKS = {
    f"choice-{name}": Block(chosen(data), JOBS["choice"])
    for name, data in (
        ("lvis-eva", "LVIS → EVA-02 B/16"),
        ("lvis-openai", "LVIS → OpenAI B/16"),
        ("sample", "sample"),
        ("caltech", "Caltech-101 towers (photos)"),
    )
} | {"offset": Block(offset, JOBS["offset"])}
