"""Which spectral filter is best for which number of anchors? Real CLIP embeddings, unseen classes, paired splits.

Text of OpenAI ViT-B/32 and of a target model for n of 900 LVIS classes fits the map. Two things are measured on the 303
other classes: ViT-B/32 images mapped and classified by the target's text (centered, and with the gap
between the modalities mapped), and text-to-text retrieval; both again with both sides centered and with hubs corrected
for, the queries being the bank. ± is the standard error over the splits; differences to the default are paired over
them. "ridge, best" chooses its penalty on the test classes and is thus an upper bound for ridge.
"""

from __future__ import annotations

import warnings
from collections import defaultdict

import numpy as np

from common import arguments, arrays, write_json
from congruence import LinearMap, OrthogonalMap
from congruence.metrics import class_retrieval, zero_shot_accuracy

ANCHORS = (20, 50, 100, 200, 400, 900)
FILTERS = {
    "default": OrthogonalMap(),
    "full (the paper's)": OrthogonalMap(shrinkage="full"),
    "covered": OrthogonalMap(shrinkage="covered"),
    "soft 0.003": OrthogonalMap(shrinkage="soft"),
    "cv": OrthogonalMap(shrinkage="cv"),
    "ridge, GCV": LinearMap(),
}
MEASURES = (
    "images classified by the target's text, both sides centered",
    "images classified by the target's text, gap mapped",
    "text-to-text retrieval at 1",
    "images classified by the target's text, both sides centered, CSLS",
    "images classified by the target's text, both sides centered, query-bank normalization",
    "text-to-text retrieval at 1, both sides centered",
    "text-to-text retrieval at 1, both sides centered, CSLS",
)
RIDGE = (0.003, 0.01, 0.03)


def measure(matrix, text, image, target, train, means, test):
    own = np.arange(len(test))
    a, b = text[train].mean(0), target[train].mean(0)
    mapped = (image[test] - means) @ matrix
    centered = zero_shot_accuracy(mapped, target[test] - b, own)
    gap_mapped = zero_shot_accuracy((image[test] - a) @ matrix + b, target[test], own)
    corrected = [zero_shot_accuracy(mapped, target[test] - b, own, hubness=name) for name in ("csls", "qb_norm")]
    moved = (text[test] - a) @ matrix + b
    both = moved - moved.mean(0), target[test] - target[test].mean(0)
    texts = [
        class_retrieval(moved, target[test], own),
        *(class_retrieval(*both, own, hubness=name) for name in (None, "csls")),
    ]
    return centered, gap_mapped, texts[0], *corrected, *texts[1:]


def standard_error(values):
    return values.std(ddof=1) / np.sqrt(len(values))


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--data", default="../shared/data/lvis1203_clip.npz")
    parser.add_argument("--splits", type=int, default=8)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = {key: side.astype(np.float64) for key, side in arrays(options.data).items() if key != "names"}
    text, image = rows["text_openai_vitb32"], rows["image_openai_vitb32_avg5"]
    results: dict = defaultdict(list)
    for split in range(options.splits):
        order = np.random.default_rng(split).permutation(len(text))
        pool, test = order[:900], order[900:]
        means = image[pool].mean(0)
        for name in ("text_eva02_b16", "text_openai_vitb16"):
            target = rows[name]
            for n in ANCHORS:
                train = pool[:n]
                for label, mapping in FILTERS.items():
                    mapping.fit(text[train], target[train])
                    results[name, label, n].append(measure(mapping.matrix, text, image, target, train, means, test))
                centered = text[train] - text[train].mean(0)
                top = np.linalg.eigvalsh(centered @ centered.T)[-1]
                ridge = [LinearMap(ridge=a * top).fit(text[train], target[train]).matrix for a in RIDGE]
                scores = np.array([measure(m, text, image, target, train, means, test) for m in ridge])
                results[name, "ridge, best", n].append(tuple(scores.max(axis=0)))
    tables = []
    for name in ("text_eva02_b16", "text_openai_vitb16"):
        for k, what in enumerate(MEASURES):
            filters: dict = {}
            tables.append({"measure": what, "target": name, "anchors": ANCHORS, "filters": filters})
            print(
                f"\n{what}, to {name}; {options.splits} splits; in brackets 10⁴ × (difference to the default ± s.e.)\n"
            )
            print("| filter | " + " | ".join(map(str, ANCHORS)) + " |")
            print("| --- |" + " --- |" * len(ANCHORS))
            for label in [*FILTERS, "ridge, best"]:
                cells = []
                for n in ANCHORS:
                    values = np.array(results[name, label, n])[:, k]
                    gap = values - np.array(results[name, "default", n])[:, k]
                    found = {"mean": values.mean(), "error": standard_error(values)}
                    cell = f"{found['mean']:.3f} ± {found['error']:.3f}"
                    if gap.any():
                        found |= {"gap": gap.mean(), "gap_error": standard_error(gap)}
                        cell += f" ({1e4 * found['gap']:+.0f} ± {1e4 * found['gap_error']:.0f})"
                    filters.setdefault(label, []).append(found)
                    cells.append(cell)
                print(f"| {label} | " + " | ".join(cells) + " |")
    write_json(options, tables)


if __name__ == "__main__":
    main()
