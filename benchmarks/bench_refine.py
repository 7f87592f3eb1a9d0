"""Few pairs and two unpaired pools: how much refinement improves a map, and whether it declines when it would not.

``python benchmarks/bench_refine.py``. Texts of OpenAI ViT-B/32 are mapped to EVA-02 B/16, fitted on n LVIS class names;
303 classes are in neither pairs nor pools. Measured on these: their texts among the target's texts, and ViT-B/32 images
among the target's texts, both sides centered. "all of 850": the pools are 850 other classes, each in its own random
order; "of 420": pools of 420 classes that share all, half or none of them.

``--models`` takes other pairs of models, with smaller pools: ViT-B/32 to OpenAI ViT-B/16 on the same classes, and
MiniLM to MPNet on ImageNet's names, of which 700 may be pairs or pool and 298 are tested; those have no images.
"""

from __future__ import annotations

import warnings

import numpy as np

from common import arguments, write_json
from congruence import OrthogonalMap, RefinedMap
from congruence.embeddings import normalize_rows
from congruence.metrics import class_retrieval

PAIRS = (5, 10, 20, 50)
POOLS = {"all of 850": (850, 1.0), "all of 420": (420, 1.0), "half of 420": (420, 0.5), "none of 420": (420, 0.0)}
#: Numbers of pairs for the other pairs of models.
OTHER_PAIRS = (10, 20, 50)
OTHER_POOLS = {"all of 300": (300, 1.0), "half of 300": (300, 0.5), "none of 300": (300, 0.0)}
MODELS = {"eva": "text_eva02_b16", "openai-b16": "text_openai_vitb16", "names": "text_mpnet"}


def open_models(data: str, target: str) -> tuple[np.ndarray, np.ndarray | None, np.ndarray, int]:
    """Return the source's texts and images (None without), the target's texts, and how many rows may be pairs or
    pool.
    """
    with np.load(data, allow_pickle=False) as rows:
        if target == "text_mpnet":
            kept = np.sort(np.unique(rows["names"], return_index=True)[1])
            a, b = (normalize_rows(rows[key][kept].astype(np.float32)) for key in ("text_minilm_l6", target))
            return a, None, b, 700
        return rows["text_openai_vitb32"], rows["image_openai_vitb32_avg5"], rows[target], 900


def scores(mapping: OrthogonalMap, text: np.ndarray, image: np.ndarray | None, target: np.ndarray) -> list[float]:
    """Return the share of texts, and of images if there are any, whose nearest target text is their own, both sides
    centered.
    """
    own = np.arange(len(target))
    offered = target - target.mean(axis=0)
    sides = (text,) if image is None else (text, image)
    return [class_retrieval((side - side.mean(axis=0)) @ mapping.rotation_, offered, own) for side in sides]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--data", default="../shared/data/lvis1203_clip.npz")
    parser.add_argument("--models", choices=MODELS, default="eva")
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="number of the first split")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    text, image, target, fitted = open_models(options.data, MODELS[options.models])
    pools, sizes = (POOLS, PAIRS) if options.models == "eva" else (OTHER_POOLS, OTHER_PAIRS)
    results = []
    for split in range(options.first, options.first + options.splits):
        rng = np.random.default_rng(split)
        order = rng.permutation(len(text))
        fit, test = order[:fitted], order[fitted:]
        tested = text[test], None if image is None else image[test], target[test]
        truth = OrthogonalMap().fit(text[fit], target[fit])
        results.append({"split": split, "pool": f"{fitted} pairs", "pairs": fitted, "before": scores(truth, *tested)})
        for pool, (size, share) in pools.items():
            for n in sizes:
                pairs, others = fit[:n], fit[n:]
                common = round(size * share)
                left = others[:size]
                right = rng.permutation(np.concatenate([others[:common], others[size : 2 * size - common]]))
                unpaired = text[left], target[right]
                maps = (
                    OrthogonalMap().fit(text[pairs], target[pairs]),
                    RefinedMap().fit(text[pairs], target[pairs], unpaired=unpaired),
                )
                before, after = (scores(one, *tested) for one in maps)
                found = maps[1].refinement_
                result = {"split": split, "pool": pool, "pairs": n, "before": before, "returned": after}
                results.append({**result, "found": found.to_dict()})
                print(f"{split} {pool:<12} {n:>3}  {before[-1]:.3f} -> {after[-1]:.3f}  {found.sentence}", flush=True)
    write_json(options, results)


if __name__ == "__main__":
    main()
