"""Tables about the number of rows that means need, maps compared by query, and what an attacker can read from a store."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import t

from measured.blocks import Block, minus, table
from measured.jobs import JOBS

#: Numbers of rows that the pages show.
SHOWN = ("1", "3", "10", "30", "100", "all")


def _lines(results: list[Any], measure: str) -> list[tuple[str, np.ndarray]]:
    """Return the lines of a measure: data, mean, and values by split and number of rows; means without any effect are left out."""
    out = []
    for one in results[0]:
        places = [one["rows"].index(m) for m in SHOWN]
        for which, by in one["values"].items():
            if measure not in by:
                continue
            values = np.array(by[measure])[:, places]
            if np.ptp(values, axis=1).any():  # leave out means that the measure does not use
                out.append((f"{one['world']}: {which}", values))
    return out


def _interval(values: np.ndarray) -> str:
    half = t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return f"{values.mean():.3f} ± {half:.3f}"


def rows_of_means(measure: str) -> Any:
    def write(results: list[Any]) -> str:
        rows = [[name, *map(_interval, values.T)] for name, values in _lines(results, measure)]
        return table(["replaced mean", *(f"{m} rows" if m != "1" else "1 row" for m in SHOWN)], rows)

    return write


def losses(results: list[Any]) -> np.ndarray:
    """Return the median and the largest loss compared with all rows, over all lines of all measures, shape (2, numbers of rows − 1)."""
    lines = [values for key in ("same modality", "as searched", "centered") for _, values in _lines(results, key)]
    lost = np.array([values.mean(axis=0)[-1] - values.mean(axis=0) for values in lines])[:, :-1]
    return np.stack([np.median(lost, axis=0), lost.max(axis=0)])


def loss_by_rows(results: list[Any]) -> str:
    """Return the error of a mean and the loss that it caused."""
    median, largest = losses(results)
    rows = [
        ["error of the mean ÷ σ = 1/√m", *(f"{1 / np.sqrt(int(m)):.2f}" for m in SHOWN[:-1])],
        ["largest loss", *(f"{loss:.3f}" for loss in largest)],
        ["median loss", *(f"{loss:.3f}" for loss in median)],
    ]
    return table(["rows per mean", *(f"m = {m}" for m in SHOWN[:-1])], rows)


def compared(results: list[Any]) -> str:
    words = {
        "retrieval": "recall at 1, text → its text",
        "zero_shot": "recall at 1, image → its text",
        "overlap_at_10": "overlap at 10, text → text",
    }
    rows = []
    for one in results[0]["results"]["lvis"]:
        means = [f"{one[key]:.3f}" for key in ("second", "first")]
        interval = minus(f"{one['difference']:+.3f} ({one['low']:+.3f} … {one['high']:+.3f})")
        p = one["adjusted_p_value"]
        counts = f"{one['wins']} / {one['losses']}"
        rows.append([str(one["pairs"]), words[one["metric"]], *means, interval, counts, f"{p:.3f}" if p >= 0.001 else "< 0.001"])  # fmt: skip
    header = ["pairs", "metric", "centered", "`center=False`", "difference", "queries better / worse", "p (Holm)"]
    return table(header, rows)


def rejected(results: list[Any]) -> str:
    rows = []
    for one in results[0]["results"]["simulated"]:
        error = np.sqrt(one["share"] * (1 - one["share"]) / one["trials"])
        rows.append([one["test"].replace("_", " "), f"{100 * one['share']:.1f} ± {100 * error:.1f} %"])
    return table(["test at the 5 % level", "rejections"], rows)


WORDS = {
    "none": "none",
    "rotation": "random rotation",
    "noise=1": "noise of the row's norm",
    "pca=64": "64 directions",
    "pca=16": "16 directions",
    "int8": "int8",
    "binary": "binary",
}


def _store(results: list[Any], name: str) -> list[Any]:
    """Return the lines of a store."""
    return next(one["results"]["lines"][name] for one in results if name in one["results"]["lines"])


def _share(line: dict[str, Any]) -> str:
    return f"{line['found']:.3f} ({line['low']:.3f} … {line['high']:.3f})"


def exposure(store: str) -> Any:
    def write(results: list[Any]) -> str:
        by = {(line["protection"], line["pairs"]): line for line in _store(results, store)}
        rows = []
        for name, words in ((name, words) for name, words in WORDS.items() if (name, 10) in by):
            ten, hundred = by[name, 10], by[name, 100]
            rows.append([words, f"{ten['by_pairs']:.3f}", _share(ten), _share(hundred), f"{ten['search']:.3f}"])
        return table(
            ["protection", "10 pairs: `by_pairs`", "10 pairs: `found`", "100 pairs: `found`", "`search`"], rows
        )

    return write


def controls(results: list[Any]) -> str:
    rows = []
    for one in results:
        control, name = one["results"]["control"], one["arguments"]["store"]
        counts = [f"{control['n']:,}", f"{control['candidates']:,}"]
        rows.append([name, *counts, *(f"{control[key]:.4f}" for key in ("found", "chance"))])
    return table(["store", "vectors scored", "candidates", "`found` with 100 wrong pairs", "chance"], rows)


def smaller(results: list[Any]) -> str:
    """Return the results for stores smaller than the list of candidates, and for the whole store."""
    rows = []
    for name in ("LVIS names", "600 LVIS names", "200 LVIS names"):
        ten, hundred = (line for line in _store(results, name) if line["protection"] == "none")
        counts = [f"{ten['n'] + ten['pairs']:,}", f"{ten['candidates']:,}"]
        rows.append([*counts, *(cell for line in (ten, hundred) for cell in (f"{line['by_pairs']:.3f}", _share(line)))])
    header = (f"{n} pairs: `{score}`" for n in (10, 100) for score in ("by_pairs", "found"))
    return table(["stored vectors", "candidates", *header], rows)


def unpaired(results: list[Any]) -> str:
    rows = []
    for one in results:
        line, name = one["results"], one["arguments"]["store"]
        rows.append(
            [name, _share(line), f"{min(line['values']):.3f} … {max(line['values']):.3f}", f"{line['chance']:.4f}"]
        )
    return table(["store", "`found`", "range over draws", "chance"], rows)


_STORES = {
    "exposure-names": "LVIS names",
    "exposure-images": "LVIS images",
    "exposure-prompts": "Caltech prompts",
    "exposure-photos": "Caltech photos",
}
BLOCKS = {
    "means-same": Block(rows_of_means("same modality"), JOBS["means-rows"]),
    "means-searched": Block(rows_of_means("as searched"), JOBS["means-rows"]),
    "means-centered": Block(rows_of_means("centered"), JOBS["means-rows"]),
    "means-loss": Block(loss_by_rows, JOBS["means-rows"]),
    "compare-lvis": Block(compared, JOBS["compare-maps"]),
    "compare-null": Block(rejected, JOBS["compare-maps"]),
    **{name: Block(exposure(store), JOBS["exposure"]) for name, store in _STORES.items()},
    "exposure-unpaired": Block(unpaired, JOBS["exposure-unpaired"]),
    "exposure-smaller": Block(smaller, JOBS["exposure"]),
    "exposure-controls": Block(controls, JOBS["exposure"]),
}
