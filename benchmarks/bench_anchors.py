"""How many pairs does each way to choose anchors need, and what does it gain with few anchors? Real and sample models,
unseen items.

``python benchmarks/bench_anchors.py --data ../shared/data``. In each split, anchors are chosen from a pool of items by
the source's vectors alone; the other items are the test set. Two measures: retrieval at 1 of the target rows by mapped
rows of the anchors' own modality and, if the source has images and the target has texts, accuracy of images of unseen
classes against the target's texts, both sides centered. Full accuracy is that of a map fitted on the whole pool. The
pairs needed are the smallest number from which on 95 % of it is reached, interpolated in log n between the sizes tried.

``--chosen`` checks instead whether ``fit`` still chooses well if the anchors are not a random sample: within the
modality, with 20 and 50 anchors in random order and in that of ``variance``, for the fixed rotation about the means and
for the chosen map.
"""

from __future__ import annotations

import time
import warnings
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from common import arguments, arrays, unit, write_json
from congruence import OrthogonalMap, fit
from congruence.datasets import load_sample
from congruence.metrics import class_retrieval, zero_shot_accuracy
from congruence.upgrade.anchors import METHODS, choose_anchors
from congruence_papers.canonical.data import open_sample

#: Numbers of anchors taken from every order, and those whose scores are kept.
SIZES = (20, 35, 50, 70, 100, 140, 200, 280, 400, 560, 800, 1100)
KEPT = (20, 50, 100, 200)


@dataclass
class Pair:
    """Rows of two models for the same items; ``images`` are source images of the same classes, ``labels`` the classes
    of the items.
    """

    source: np.ndarray
    target: np.ndarray
    pool: int
    images: np.ndarray | None = None
    labels: np.ndarray | None = None
    #: For photos as anchors: the target's text vector of each class.
    prototypes: np.ndarray | None = None


def open_pairs(folder: str) -> dict[str, Pair]:
    lvis, names = (arrays(f"{folder}/{name}.npz") for name in ("lvis1203_clip", "imagenet1000_unimodal"))
    texts, images = unit(lvis["text_openai_vitb32"]), unit(lvis["image_openai_vitb32_avg5"])
    sample = load_sample("emoji")
    groups = np.array([sample.labels[item] for item in sample.source["text"].ids.tolist()])
    photos = open_sample("caltech101", f"{folder}/caltech101_unimodal.npz")
    a, b = photos.models[:2]
    prompts = b.prompts
    prototypes = unit(np.stack([prompts[photos.prompt_labels == k].mean(0) for k in range(len(photos.classes))]))
    return {
        "LVIS texts, ViT-B/32 → EVA-02": Pair(texts, unit(lvis["text_eva02_b16"]), 900, images),
        "LVIS texts, ViT-B/32 → ViT-B/16": Pair(texts, unit(lvis["text_openai_vitb16"]), 900, images),
        "ImageNet names, MiniLM → MPNet": Pair(unit(names["text_minilm_l6"]), unit(names["text_mpnet"]), 750),
        "sample, captions": Pair(
            unit(sample.source["text"].vectors), unit(sample.target["text"].vectors), 1195,
            unit(sample.source["image"].vectors), groups,
        ),
        "Caltech-101 heads, photos": Pair(
            unit(a.images), unit(b.images), 2042, None, np.asarray(photos.labels), prototypes
        ),
    }  # fmt: skip


def measure_chosen(pair: Pair, splits: int) -> dict[str, list]:
    """Return retrieval within the modality by order, number of anchors and map, one value per split; and the names of
    the chosen maps.
    """
    out: dict[str, list] = defaultdict(list)
    for split in range(splits):
        order = np.random.default_rng(split).permutation(len(pair.source))
        pool, test = order[: pair.pool], order[pair.pool :]
        for method in ("random", "variance"):
            chosen = pool[choose_anchors(pair.source[pool], 50, method, random_state=100 + split).rows]
            for n in (20, 50):
                X, Y = pair.source[chosen[:n]], pair.target[chosen[:n]]
                auto = fit(X, Y, check=False)
                out[f"{method} {n} names"].append(auto.scores_["choice"]["name"])
                for name, one in (("fixed", OrthogonalMap().fit(X, Y)), ("chosen", auto)):
                    moved = one.transform(pair.source[test])
                    out[f"{method} {n} {name}"].append(class_retrieval(moved, pair.target[test], np.arange(len(test))))
    return dict(out)


def measure(pair: Pair, train: np.ndarray, pool: np.ndarray, test: np.ndarray) -> tuple[float, float]:
    """Return retrieval within the modality, and across modalities (NaN if it cannot be measured)."""
    found = OrthogonalMap().fit(pair.source[train], pair.target[train])
    own = np.arange(len(test))
    mapped = found.transform(pair.source[test])
    across = np.nan
    if pair.images is not None:
        centered = (pair.images[test] - pair.images[pool].mean(0)) @ found.matrix
        across = zero_shot_accuracy(centered, pair.target[test] - pair.target[train].mean(0), own)
    elif pair.prototypes is not None:
        across = zero_shot_accuracy(mapped, pair.prototypes, pair.labels[test])
    return class_retrieval(mapped, pair.target[test], own), across


def needed(sizes: list[int], scores: np.ndarray, full: float) -> float:
    """Return the number of pairs from which on scores reach 95 % of the full score, interpolated in log n; NaN if they
    do not.
    """
    below = np.flatnonzero(scores < 0.95 * full)
    if not len(below):
        return float(sizes[0])
    k = int(below[-1])
    if k + 1 == len(sizes):
        return float("nan")
    low, high = scores[k], scores[k + 1]
    share = (0.95 * full - low) / (high - low)
    return float(np.exp(np.log(sizes[k]) + share * np.log(sizes[k + 1] / sizes[k])))


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--data", default="../shared/data")
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--only", help="only pairs of models whose name contains this")
    parser.add_argument(
        "--chosen", action="store_true", help="compare the fixed rotation with the map that fit chooses"
    )
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    results = []
    for name, pair in open_pairs(options.data).items():
        if options.only and options.only not in name:
            continue
        if options.chosen:
            results.append({"pair": name, **measure_chosen(pair, options.splits)})
            print(
                name,
                *(f"{k}: {np.mean(v):.3f}" for k, v in results[-1].items() if k.endswith(("fixed", "chosen"))),
                flush=True,
            )
            continue
        sizes = [n for n in SIZES if n < pair.pool] + [pair.pool]
        methods = [m for m in METHODS if m != "balanced" or pair.labels is not None]
        scores: dict = defaultdict(list)
        wanted: dict = defaultdict(list)
        start = time.perf_counter()
        for split in range(options.splits):
            order = np.random.default_rng(split).permutation(len(pair.source))
            pool, test = order[: pair.pool], order[pair.pool :]
            full = measure(pair, pool, pool, test)
            for method in methods:
                labels = pair.labels[pool] if method == "balanced" else None
                chosen = choose_anchors(
                    pair.source[pool], sizes[-2], method, labels=labels, random_state=100 + split
                ).rows
                curve = np.array([*(measure(pair, pool[chosen[:n]], pool, test) for n in sizes[:-1]), full])
                scores[method].append(curve)
                wanted[method].append([needed(sizes, curve[:, k], full[k]) for k in (0, 1)])
        at = [sizes.index(n) for n in KEPT]
        results.append({
            "pair": name, "pool": pair.pool, "test": len(pair.source) - pair.pool, "sizes": KEPT,
            "full": np.mean([curve[-1] for curve in scores["random"]], axis=0).round(5),
            "scores": {m: np.array(v)[:, at].round(5) for m, v in scores.items()},
            "needed": {m: np.array(v).round(1) for m, v in wanted.items()},
        })  # fmt: skip
        print(f"\n{name}: {time.perf_counter() - start:.0f} s; full {results[-1]['full'].round(3)}")
        for m in methods:
            means = np.mean(wanted[m], axis=0)
            few = " ".join(f"{x:.3f}/{y:.3f}" for x, y in np.mean(scores[m], axis=0)[at])
            print(f"{m:10s} needs {means[0]:5.0f} and {means[1]:5.0f}; at 20, 50, 100, 200: {few}", flush=True)
    write_json(options, results)


if __name__ == "__main__":
    main()
