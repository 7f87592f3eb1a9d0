"""Tables about the chosen map in docs/few_anchors.md and docs/means.md."""

from __future__ import annotations

from typing import Any

import numpy as np

from measured.blocks import Block, table
from measured.jobs import JOBS

#: Rows of the tables in order, including maps of other packages, and their names in the tables.
WORDS = {
    "fixed (default before)": "fixed",
    "the paper's": "the paper's",
    "`center=False`": "`center=False`",
    "ridge, GCV": "ridge, GCV",
    "least squares (affine)": "least squares (affine)",
    "": "",
    "chosen": "chosen",
    "chosen, one modality": "chosen, `single_modality`",
    "chosen, other modality seen": "chosen, evidence",
}
_COLUMNS = ["own →", "own ←", "other →", "other ←"]


def tables(results: list[Any], data: str) -> dict[int, dict[str, np.ndarray]]:
    """Return a data set's scores by number of pairs and map: an array of splits by measures."""
    found: dict[int, dict[str, np.ndarray]] = {}
    for part in (part for result in results for part in result["results"] if part["data"] == data):
        for row in part["rows"]:
            found.setdefault(row["n"], {})[row["map"]] = np.array(row["values"])
    places = list(WORDS)
    return {
        n: dict(sorted(maps.items(), key=lambda one: places.index(one[0] if one[0] in WORDS else "")))
        for n, maps in found.items()
    }


def leads(maps: dict[str, np.ndarray], name: str) -> list[bool]:
    """Return, measure by measure, whether a map is the best, or within one standard error of the best of the others that were not chosen.

    The error is that of the mean difference over splits, which both maps share.
    """
    out = []
    for k in range(maps[name].shape[1]):
        rivals = [scores[:, k] for other, scores in maps.items() if other != name and not other.startswith("chosen")]
        behind = max(rivals, key=np.mean) - maps[name][:, k]
        out.append(bool(behind.mean() <= behind.std(ddof=1) / np.sqrt(len(behind))))
    return out


def chosen(data: str) -> Any:
    """Return one data set's scores by map with standard errors; bold if no map is ahead by more than one standard error."""

    def write(results: list[Any]) -> str:
        rows, header = [], _COLUMNS
        for n, maps in tables(results, data).items():
            for k, (name, scores) in enumerate(maps.items()):
                header = _COLUMNS[: scores.shape[1]]
                errors = scores.std(axis=0, ddof=1) / np.sqrt(len(scores))
                marks = ["**" if best else "" for best in leads(maps, name)]
                cells = [
                    f"{mark}{mean:.3f}{mark} ± {error:.3f}"
                    for mark, mean, error in zip(marks, scores.mean(axis=0), errors, strict=True)
                ]
                rows.append([str(n) if k == 0 else "", WORDS.get(name, name), *cells])
        return table(["pairs", "map", *header], rows)

    return write


def goal(results: list[Any]) -> str:
    """Return in how many cells a map is the best or within one standard error of it: in the anchors' modality, and with the other one as queries."""
    rows = []
    for words, sets in (
        ("LVIS", ("LVIS → EVA-02 B/16", "LVIS → OpenAI B/16")),
        ("sample and Caltech-101", ("sample", "Caltech-101 towers (photos)")),
        ("ImageNet's names", ("MiniLM → MPNet", "MiniLM → E5", "E5 → MPNet")),
    ):
        by = [maps for data in sets for maps in tables(results, data).values()]
        names = list(dict.fromkeys(name for maps in by for name in maps))
        for k, name in enumerate(sorted(names, key=lambda one: list(WORDS).index(one if one in WORDS else ""))):
            cells = []
            for column in range(4):
                within = [leads(maps, name)[column] for maps in by if name in maps and column < maps[name].shape[1]]
                cells.append(f"{sum(within)} of {len(within)}" if within else "–")
            rows.append([words if k == 0 else "", WORDS.get(name, name), *cells])
    return table(["data", "map", *_COLUMNS], rows)


def offset(results: list[Any]) -> str:
    """Return the scores of images by the share of the anchors' offset that is applied to them."""
    rows, last = [], None
    for one in results[0]:
        cells = [f"{mean:.3f} ± {se:.3f}" for mean, se in zip(one["mean"], one["se"], strict=True)]
        rows.append([one["data"] if one["data"] != last else "", str(one["n"]), *cells])
        last = one["data"]
    return table(["data", "text anchors", "whole offset", "half", "a quarter", "none", "`center=False`"], rows)


BLOCKS = {
    f"choice-{name}": Block(chosen(data), JOBS["choice"])
    for name, data in (
        ("lvis-eva", "LVIS → EVA-02 B/16"),
        ("lvis-openai", "LVIS → OpenAI B/16"),
        ("sample", "sample"),
        ("caltech", "Caltech-101 towers (photos)"),
        ("names-mpnet", "MiniLM → MPNet"),
        ("names-e5", "MiniLM → E5"),
        ("names-e5-mpnet", "E5 → MPNet"),
    )
} | {"choice-goal": Block(goal, JOBS["choice"]), "offset": Block(offset, JOBS["offset"])}
