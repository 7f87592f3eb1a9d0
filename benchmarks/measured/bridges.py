"""Tables of docs/bridge.md."""

from __future__ import annotations

from typing import Any

import numpy as np

from measured.blocks import Block, table
from measured.jobs import JOBS

#: Data of the four commands, in order.
DATA = (
    "sample, 795 texts over 1,595 pictures",
    "LVIS, 603 texts over 1,203 pictures",
    "LVIS, 400 texts over their 400 pictures",
    "Caltech-101, 500 photos over 5,742",
)
SYSTEMS = ("old model", "bridge", "two-stage", "re-embedded", "unmapped", "chance")
#: Cut-offs in the record, and their names in the tables.
METHODS = {
    "unchanged": "unchanged",
    "quantiles": "translated (quantiles)",
    "regression, new on old": "regression, new on old",
    "regression, old on new": "regression, old on new",
}
RATES = ("10 %", "1 %", "0.1 %")


def _mean(values: list[float]) -> str:
    array = np.array(values)
    return f"{array.mean():.3f} ± {array.std(ddof=1) / np.sqrt(len(array)):.3f}"


def scores(results: list[Any], data: tuple[str, ...] = DATA) -> str:
    """Return mean and standard error over splits."""
    rows = []
    for words, found in zip(data, results, strict=True):
        there = [name for name in SYSTEMS if name in found["runs"][0]["scores"]]
        for k, system in enumerate(there):
            values = np.array([run["scores"][system] for run in found["runs"]])
            rows.append([words * (k == 0), system, *(_mean(column) for column in values.T)])
    return table(["queries and index", "system", "recall@1", "recall@10", "nDCG@10"], rows)


def thresholds(results: list[Any], data: tuple[str, ...] = DATA) -> str:
    """Return false-positive rates on the other half of the queries, and the factor by which each method deviates from the old model's, by split."""
    rows = []
    for words, found in zip(data, results, strict=True):
        if words == DATA[2]:
            continue
        for r, rate in enumerate(RATES):
            old = np.array([run["old"]["fpr"][r] for run in found["runs"]])
            cells = [f"{old.mean():.5f}"]
            for method in METHODS:
                new = np.array([run["ways"][method]["fpr"][r] for run in found["runs"]])
                # No factor if nothing passed in a split.
                factor = f"{np.exp(np.abs(np.log(new / old)).mean()):.2f}×" if new.all() else "–"
                cells.append(f"{new.mean():.5f} ({factor})")
            rows.append([words.split(",")[0] * (r == 0), rate, *cells])
    return table(["data", "rate chosen for", "old model", *METHODS.values()], rows)


def recalls(results: list[Any]) -> str:
    """Return the recall of relevant pairs above the same cut-offs."""
    rows = []
    for words, found in zip(DATA, results, strict=True):
        if words == DATA[2]:
            continue
        for r, rate in enumerate(RATES):
            values = [np.mean([run["old"]["recall"][r] for run in found["runs"]])]
            values += [
                np.mean([run["ways"][method]["recall"][r] for run in found["runs"]])
                for method in ("unchanged", "quantiles")
            ]
            rows.append([words.split(",")[0] * (r == 0), rate, *(f"{value:.3f}" for value in values)])
    return table(["data", "rate chosen for", "old model", METHODS["unchanged"], METHODS["quantiles"]], rows)


def speed(results: list[Any]) -> str:
    rows = []
    for batch, one in results[0]["results"].items():
        times = [f"{one['microseconds'][name]:.0f}" for name in ("x @ M", "bridge", "map.transform")]
        low, high = one["ratios"]
        rows.append([batch, *times, f"{one['ratio']:.2f} ({low:.2f} … {high:.2f})"])
    header = ["`x @ M`, µs", "`bridge.transform`, µs", "`map.transform`, µs", "`bridge.transform` / `x @ M`"]
    return table(["queries per call", *header], rows)


BLOCKS = {
    "bridge-scores": Block(scores, JOBS["bridge"]),
    "bridge-thresholds": Block(thresholds, JOBS["bridge"]),
    "bridge-recall": Block(recalls, JOBS["bridge"]),
    "bridge-speed": Block(speed, JOBS["bridge-speed"]),
}
