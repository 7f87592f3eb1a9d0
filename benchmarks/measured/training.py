"""Tables of docs/training.md, docs/few_anchors.md."""

from __future__ import annotations

from typing import Any

import numpy as np

from measured.blocks import Block, compact, minus, table
from measured.jobs import JOBS


def cells_of(mean: list[float], sd: list[float]) -> str:
    """Format recalls at 1, 5 and 10 in one cell."""
    return " / ".join(f"{m:.1f} ± {s:.1f}" for m, s in zip(mean, sd, strict=True))


def heads(results: list[Any]) -> str:
    """Return the results of the page's first training command over three seeds: the trained heads compared with their teacher."""
    rows = []
    for name, prefix in (("teacher alone", "teacher_test_mean"), ("trained heads", "test_mean")):
        values = np.array([[scores[f"{prefix}@{k}"] for k in (1, 5, 10)] for scores in results])
        rows.append([name, *(f"{m:.3f} ± {s:.3f}" for m, s in zip(values.mean(0), values.std(0, ddof=1), strict=True))])
    return table(["method, 200 test pairs", *(f"mean recall@{k}" for k in (1, 5, 10))], rows)


def _counts(anchors: list[int]) -> list[str]:
    return [f"n = {n}" for n in anchors]


def few_anchors(which: int) -> Any:
    def write(results: list[Any]) -> str:
        found = results[0]["results"][which]
        rows = []
        for name, line in found["filters"].items():
            cells = []
            for one in line:
                gap = f" ({1e4 * one['gap']:+.0f} ± {1e4 * one['gap_error']:.0f})" if "gap" in one else ""
                cells.append(compact(one["mean"], one["error"]) + minus(gap))
            rows.append([name, *cells])
        return table(["filter", *_counts(found["anchors"])], rows)

    return write


#: Measures of the benchmark for each target, and the tables that docs/few_anchors.md shows completely.
_MEASURES, _WHOLE = 7, 3


def few_anchors_search(which: int) -> Any:
    """Return the scores of the default, the paper's filter and ridge for each search method, for one target."""
    words = ("images, centered", "images, gap mapped", "texts", "images, centered, CSLS", "images, centered, QB-Norm", "texts, centered", "texts, centered, CSLS")  # fmt: skip

    def write(results: list[Any]) -> str:
        tables = results[0]["results"][which * _MEASURES : (which + 1) * _MEASURES]
        rows = []
        for k in (1, 0, 3, 4, 2, 5, 6):
            for name in ("default", "full (the paper's)", "ridge, GCV"):
                cells = [compact(one["mean"], one["error"]) for one in tables[k]["filters"][name]]
                rows.append([f"{words[k]}; {name}", *cells])
        return table(["search; filter", *_counts(tables[0]["anchors"])], rows)

    return write


def few_anchors_readme(results: list[Any]) -> str:
    """Return the first tables for EVA-02, without differences: both sides centered, as searched, and centered with CSLS."""
    rows = []
    shown = [results[0]["results"][k] for k in (0, 1, 3)]
    for found, mark in zip(shown, ("*centered:* ", "*gap mapped:* ", "*centered, CSLS:* "), strict=True):
        for name in ("default", "full (the paper's)", "ridge, GCV"):
            rows.append([f"{mark}{name}", *(compact(one["mean"], one["error"]) for one in found["filters"][name])])
    return table(["search and filter", *_counts(results[0]["results"][0]["anchors"])], rows)


WHY = {
    "SAIL (centered, the higher rate)": "SAIL, centered, higher learning rate",
    "250": "SOTAlign, 250 unpaired rows",
    "500, all there are": "SOTAlign, 500 unpaired rows (all)",
    "500, teacher of 64 dimensions": "500 rows, teacher of 64 dimensions",
    "500, alpha = 100/n": "500 rows, α = 100/n",
    "500, the teacher's epsilon 0.05": "500 rows, teacher's ε* = 0.05",
    "500, the student's epsilon 0.02": "500 rows, student's ε = 0.02",
    "500, the student's epsilon 0.1": "500 rows, student's ε = 0.1",
    "500, pairs in the divergence too": "500 rows, pairs in the divergence too",
    "500, inputs of 64 directions": "500 rows, inputs reduced to 64 principal directions",
    "Procrustes on these": "Procrustes on the reduced inputs",
    "SAIL on these": "SAIL on the reduced inputs",
}


def why(results: list[Any]) -> str:
    """Return the ablation of SOTAlign."""
    rows = []
    for one in results[0]["results"]:
        cells = [f"{m:.1f} ± {s:.1f}" for m, s in zip(one["mean"], one["sd"], strict=True)]
        rows.append([WHY.get(one["run"], one["run"]), *cells])
    return table(["method", "MeanR@1 (%)", "MeanR@5 (%)", "MeanR@10 (%)"], rows)


START = {
    "Procrustes": "Procrustes alone",
    "random start, rate 3e-4": "SOTAlign, random start, rate 3·10⁻⁴",
    "teacher's start, rate 3e-4": "SOTAlign, start at the teacher, rate 3·10⁻⁴",
    "teacher's start, rate 1e-4": "SOTAlign, start at the teacher, rate 10⁻⁴",
}


def start(results: list[Any]) -> str:
    """Return the results of starting from the teacher."""
    found = results[0]["results"]
    pairs = list(dict.fromkeys(one["pairs"] for one in found))
    rows = [
        [words, *(cells_of(one["mean"], one["sd"]) for n in pairs for one in found if one["pairs"] == n and one["method"] == name)]
        for name, words in START.items()
    ]  # fmt: skip
    return table(["method", *(f"{n} pairs: MeanR@1 / 5 / 10 (%)" for n in pairs)], rows)


def cost(results: list[Any]) -> str:
    """Return the time of each part of a step, measured in the second of two steps."""
    runs = results[0]["results"][0]["ways"]
    parts = {
        "draw": "drawing rows, in memory",
        "heads": "heads, forward",
        "teach": "teacher's heads",
        "pairs": "loss on pairs",
        "student": "KLOT: student's plan",
        "teacher": "KLOT: teacher's plan",
        "slope": "KLOT: value and gradient",
        "backward": "backward",
        "optimizer": "optimizer",
        "rest": "everything else",
    }
    seconds = {who: {part: runs[who]["steps"][-1].get(part, 0.0) for part in parts} for who in ("ours", "plain")}
    whole = {who: sum(of.values()) for who, of in seconds.items()}

    def shown(value: float) -> str:
        return f"{value:.3f} s" if value < 0.01 else f"{value:.2f} s"

    rows = []
    for part, words in parts.items():
        cells = []
        for who, of in seconds.items():
            share = of[part] / whole[who]
            cells += [shown(of[part]), f"{100 * share:.1f} %" if share < 0.01 else f"{100 * share:.0f} %"]
        rows.append([words, *cells])
    times = whole["plain"] / whole["ours"]
    memory = {who: runs[who]["memory"] for who in seconds}
    rows.append(["whole step", shown(whole["ours"]), "", f"{shown(whole['plain'])}, {times:.1f} ×", ""])
    ratio = memory["plain"] / memory["ours"]
    rows.append(["peak memory", f"{memory['ours']:.0f} MB", "", f"{memory['plain']:.0f} MB, {ratio:.1f} ×", ""])
    return table(["part of a step", "ours: CPU time", "ours: share", "plain: CPU time", "plain: share"], rows)


BLOCKS = {
    "heads": Block(heads, JOBS["heads"]),
    "few-anchors": Block(few_anchors_readme, JOBS["few-anchors"]),
    **{
        f"few-anchors-{'abcdef'[_WHOLE * target + k]}": Block(few_anchors(_MEASURES * target + k), JOBS["few-anchors"])
        for target in (0, 1)
        for k in range(_WHOLE)
    },
    **{f"few-anchors-search-{'ab'[k]}": Block(few_anchors_search(k), JOBS["few-anchors"]) for k in (0, 1)},
    "sotalign-why": Block(why, JOBS["sotalign-why"]),
    "sotalign-start": Block(start, JOBS["sotalign-start"]),
    "train-cost": Block(cost, JOBS["train-cost"]),
}
