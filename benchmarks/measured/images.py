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


def _leads(setting: Setting, pairs: int, key: str) -> list[str]:
    """Return the scores of SAIL and the linear map, and those of SOTAlign with its lead over the linear map."""
    linear = setting.values("linear", key, pairs)
    cells = [_spread(setting.values("sail", key, pairs)), _spread(linear)]
    for overlap in (1.0, 0.0):
        pool = None if setting.pools() == [None] else overlap
        if pool is None and overlap:  # rows that are classes have no partners
            cells.append("–")
            continue
        found = setting.values("sotalign", key, pairs, overlap=pool)
        cells.append(f"{found.mean():.1f} ({minus(f'{(found - linear).mean():+.1f} ± {(found - linear).std(ddof=1):.1f}')})")  # fmt: skip
    return cells


def _limits(setting: Setting, pairs: int, key: str) -> list[str]:
    """Return the mutual k-NN of the encoders, the best score with all pairs, and how often the teacher's nearest rows and plan are correct."""
    teacher = [f"{setting.values('linear', name, pairs).mean():.1f}" for name in ("nearest", "plan")]
    return [f"{setting.agreement:.2f}", f"{setting.bound(key):.1f}", *teacher]


def images(results: list[Any]) -> str:
    """Return recall at 1 by setting and pairs, with SOTAlign's lead over the linear map; then the correctness of its teacher's plan."""
    leads, limits = [], []
    for setting in (Setting(one) for result in results for one in result["results"]):
        keys = {"mean_r1": "", "zero_shot": ", zero-shot"} if "zero_shot" in setting.lines[0] else {"mean_r1": ""}
        for pairs in setting.pairs:
            for key, words in keys.items():
                name = [f"{setting.words}{words}", str(pairs)]
                leads.append([*name, *_leads(setting, pairs, key)])
                limits.append([*name, *_limits(setting, pairs, key)])
    first = ["SAIL", "linear", "SOTAlign, all partners", "SOTAlign, no partners"]
    second = ["mutual k-NN", "all pairs (%)", "teacher's nearest row correct (%)", "mass of teacher's plan on correct rows (%)"]  # fmt: skip
    names = ["encoders", "pairs"]
    return table([*names, *first], leads) + "\n" + table([*names, *second], limits)


def shifts(results: list[Any]) -> str:
    """Return the distance of each pool's unpaired rows from the pairs, most pairs first, with its floor."""
    rows = []
    for setting in (Setting(one) for result in results for one in result["results"]):
        pairs = setting.pairs[-1]
        for overlap in setting.pools():
            distances = [setting.values("sotalign", key, pairs, overlap=overlap) for key in ("shift", "floor")]
            sizes = setting.values("sotalign", "rows", pairs, overlap=overlap)[0]
            words = {1.0: "all partners", 0.0: "no partners", None: "classes"}[overlap]
            counts = " and ".join(f"{n:,}" for n in dict.fromkeys(sizes.tolist()))
            rows.append([setting.words, f"{counts}, {words}", *(f"{v.mean():.4f} ± {v.std(ddof=1):.4f}" for v in distances)])  # fmt: skip
    return table(["encoders", "unpaired rows", "distance from the pairs, turns", "floor, turns"], rows)


BLOCKS = {
    "sotalign-images": Block(images, JOBS["sotalign-images"]),
    "sotalign-images-shift": Block(shifts, JOBS["sotalign-images"]),
}
