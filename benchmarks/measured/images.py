"""Tables in docs/training.md on images and texts: when many unpaired rows help if there are few pairs."""

from __future__ import annotations

from typing import Any

import numpy as np

from measured.blocks import Block, minus, table
from measured.jobs import JOBS

NAMES = {
    "imagenet": "ImageNet photos, EfficientNet – MiniLM",
    "emoji": "emoji, EfficientNet – MiniLM",
    "caltech": "Caltech-101 photos, EfficientNet – MiniLM",
    "lvis-minilm": "LVIS classes, CLIP B/32 – MiniLM",
    "lvis-clip": "LVIS classes, CLIP B/32 – EVA-02",
}


class Setting:
    """The results of one setting, by method, pairs and pool."""

    def __init__(self, found: dict[str, Any]):
        self.lines = found["lines"]
        self.agreement = float(np.mean(found["mutual_knn"]))
        name = found["setting"]
        self.words = NAMES.get(name, name)
        self.pairs = list(dict.fromkeys(line["pairs"] for line in self.lines if "," not in line["method"]))

    def values(self, method: str, key: str, pairs: int | None = None, **given: object) -> np.ndarray:
        of = [line for line in self.lines if line["method"] == method and pairs in (None, line["pairs"])]
        return np.array([line[key] for line in of if all(line[k] == v for k, v in given.items())])

    def pools(self) -> list[float | None]:
        return list(dict.fromkeys(line["overlap"] for line in self.lines if line["method"] == "sotalign"))

    def bound(self, key: str) -> float:
        return max(self.values(f"{method}, all pairs", key).mean() for method in ("sail", "linear"))


def _spread(values: np.ndarray) -> str:
    return f"{values.mean():.1f} ± {values.std(ddof=1):.1f}"


def _row(setting: Setting, pairs: int, key: str, words: str) -> list[str]:
    linear = setting.values("linear", key, pairs)
    cells = []
    for overlap in (1.0, 0.0):
        pool = None if setting.pools() == [None] else overlap
        if pool is None and overlap:  # rows that are classes have no partners
            cells.append("–")
            continue
        found = setting.values("sotalign", key, pairs, overlap=pool)
        cells.append(f"{found.mean():.1f} ({minus(f'{(found - linear).mean():+.1f} ± {(found - linear).std(ddof=1):.1f}')})")  # fmt: skip
    lesson = [setting.values("linear", name, pairs).mean() for name in ("nearest", "plan")]
    bars = [_spread(setting.values("sail", key, pairs)), _spread(linear)]
    return [words, str(pairs), f"{setting.bound(key):.1f}", *bars, *cells, f"{lesson[0]:.1f} → {lesson[1]:.1f}"]


HEADER = ["", "pairs", "all pairs", "SAIL", "linear", "SOTAlign, all partners", "no partners", "right: nearest → plan"]


def images(results: list[Any]) -> str:
    """Return recall at 1 by setting and pairs, with SOTAlign's lead over the linear map and the correctness of its teacher's plan."""
    rows = []
    for setting in (Setting(one) for result in results for one in result["results"]):
        words = f"{setting.words}; {setting.agreement:.2f}"
        for pairs in setting.pairs:
            rows.append(_row(setting, pairs, "mean_r1", words))
            if "zero_shot" in setting.lines[0]:
                rows.append(_row(setting, pairs, "zero_shot", "the same, zero-shot"))
            words = ""
    return table(["encoders; mutual k-NN", *HEADER[1:]], rows)


def shifts(results: list[Any]) -> str:
    """Return the distance of each pool's unpaired rows from the pairs, most pairs first, with its floor."""
    rows = []
    for setting in (Setting(one) for result in results for one in result["results"]):
        pairs = setting.pairs[-1]
        for overlap in setting.pools():
            found = [setting.values("sotalign", key, pairs, overlap=overlap) for key in ("shift", "floor")]
            sizes = setting.values("sotalign", "rows", pairs, overlap=overlap)[0]
            words = {1.0: "all partners", 0.0: "no partners", None: "classes"}[overlap]
            counts = " and ".join(f"{n:,}" for n in dict.fromkeys(sizes.tolist()))
            rows.append([setting.words, f"{counts}, {words}", *(f"{v.mean():.4f} ± {v.std(ddof=1):.4f}" for v in found)])  # fmt: skip
    return table(["encoders", "unpaired rows", "distance from the pairs (turns)", "floor"], rows)


BLOCKS = {
    "sotalign-images": Block(images, JOBS["sotalign-images"]),
    "sotalign-images-shift": Block(shifts, JOBS["sotalign-images"]),
}
