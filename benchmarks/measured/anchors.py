"""Tables of docs/anchors.md."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import t

from measured.blocks import Block, minus, table
from measured.jobs import JOBS

_METHODS = ("random", "variance", "facility", "volume", "kmeans++", "leverage", "balanced")
_PAIRS = {
    "LVIS texts, ViT-B/32 → EVA-02": "LVIS → EVA-02",
    "LVIS texts, ViT-B/32 → ViT-B/16": "LVIS → ViT-B/16",
    "ImageNet names, MiniLM → MPNet": "MiniLM → MPNet",
    "sample, captions": "sample",
    "Caltech-101 heads, photos": "Caltech-101 heads",
}


def half_width(values: np.ndarray) -> float:
    """Return half the width of the 95 % interval of a mean over splits, by Student's t."""
    n = len(values)
    return float(t.ppf(0.975, n - 1) * np.std(values, ddof=1) / np.sqrt(n))


def mean_and_half(values: Any, digits: int = 3) -> str:
    values = np.asarray(values, float)
    return minus(f"{values.mean():.{digits}f} ± {half_width(values):.{digits}f}")


def needed(which: int) -> Any:
    """Return the number of pairs needed within the modality (0) or across (1): mean over splits and its interval."""

    def write(results: list[Any]) -> str:
        cases = [one for result in results for one in result["results"] if one["full"][which] is not None]
        rows = [["accuracy with all pairs", *(f"{one['full'][which]:.3f} ({one['pool']:,} pairs)" for one in cases)]]
        for method in _METHODS:
            cells = [
                mean_and_half([split[which] for split in one["needed"][method]], 0) if method in one["needed"] else "–"
                for one in cases
            ]
            rows.append([f"`{method}`", *cells])
        return table(["method", *(_PAIRS[one["pair"]] for one in cases)], rows)

    return write


def few(n: int) -> Any:
    """Return the scores of a number of random pairs, and the gain of each method, paired over splits."""

    def write(results: list[Any]) -> str:
        rows = []
        for one in (one for result in results for one in result["results"]):
            at = one["sizes"].index(n)
            for which, words in ((0, "within"), (1, "across")):
                if one["full"][which] is None:
                    continue
                scores = {m: np.array([split[at][which] for split in v]) for m, v in one["scores"].items()}
                base = scores["random"]
                cells = [
                    f"{(scores[m] - base).mean():+.3f} ± {half_width(scores[m] - base):.3f}" for m in _METHODS[1:-1]
                ]
                rows.append([f"{_PAIRS[one['pair']]}, {words}", mean_and_half(base), *map(minus, cells)])
        return table(["models, retrieval", "`random`: accuracy", *(f"`{m}`: gain" for m in _METHODS[1:-1])], rows)

    return write


def by_choice(results: list[Any]) -> str:
    """Return retrieval by the fixed rotation, and the gain of the chosen map, paired over splits, for random anchors and chosen ones."""
    rows = []
    for n in (20, 50):
        for one in results[0]["results"]:
            cells = []
            for method in ("random", "variance"):
                fixed, chosen = (np.array(one[f"{method} {n} {name}"]) for name in ("fixed", "chosen"))
                gain = minus(f"{(chosen - fixed).mean():+.3f} ± {half_width(chosen - fixed):.3f}")
                other = sum(name != "rotation about the means" for name in one[f"{method} {n} names"])
                cells += [mean_and_half(fixed), f"{gain} ({other} of {len(fixed)})"]
            rows.append([str(n) if one is results[0]["results"][0] else "", _PAIRS[one["pair"]], *cells])
    header = (f"`{m}`: {what}" for m in ("random", "variance") for what in ("fixed", "chosen − fixed (other map)"))
    return table(["pairs", "models", *header], rows)


def order(results: list[Any]) -> str:
    """Return the scores of texts in random order, and the gain of the other orders, paired over splits."""
    rows = []
    by = {(one["n"], one["order"]): np.array(one["values"]) for one in results[0]["results"]}
    for n, name in sorted(by, key=lambda key: key[0]):
        base = by[n, "random"]
        if name == "random":
            cells = [mean_and_half(column) for column in base.T]
        else:
            cells = [minus(f"{gain.mean():+.3f} ± {half_width(gain):.3f}") for gain in (by[n, name] - base).T]
        rows.append([str(n) * (name == "random"), name, *cells])
    header = ["texts", "order", "image variance", "EVA-02: text", "EVA-02: image", "ViT-B/16: text", "ViT-B/16: image"]
    return table(header, rows)


def pairs(results: list[Any]) -> str:
    rows = []
    for one in results[1]["results"]:
        use = f"{one['pairs']}, {one['use']}" if one["pairs"] else "0"
        first = f"{one['data']}, {one['texts']}" if not one["pairs"] else ""
        rows.append([first, use, *(mean_and_half(column) for column in np.array(one["values"]).T)])
    return table(["data, texts", "image pairs, use", "image → text", "image → text, centered", "image → image"], rows)


BLOCKS = {
    "anchors-within": Block(needed(0), JOBS["anchors"]),
    "anchors-across": Block(needed(1), JOBS["anchors"]),
    "anchors-20": Block(few(20), JOBS["anchors"]),
    "anchors-chosen": Block(by_choice, JOBS["anchors-chosen"]),
    "anchors-50": Block(few(50), JOBS["anchors"]),
    "text-anchors-order": Block(order, JOBS["text-anchors"]),
    "text-anchors-pairs": Block(pairs, JOBS["text-anchors"]),
}
