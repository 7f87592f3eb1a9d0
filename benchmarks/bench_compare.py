"""compare_maps on LVIS: is a map without centering better than a centered one, and how often do its tests reject if
there is no difference?

``python benchmarks/bench_compare.py --data ../shared/data/lvis1203_clip.npz``. Texts of OpenAI ViT-B/32 are mapped to
EVA-02, fitted on n class names; 303 classes are not fitted on. The centered map knows the source's image mean of the
900 other classes. Mapped images are searched without further centering. Simulated: 40 queries in 6 dimensions, and two
predictions, each the truth plus noise of the same distribution, so that measures differ only by chance. By group: 5
copies of each query's noise, tested by query and by group.
"""

from __future__ import annotations

import numpy as np

import congruence
from common import arguments, write_json
from congruence import Embeddings, Space, compare_maps


def lvis(file: str, pairs: int, seed: int) -> list[dict[str, object]]:
    with np.load(file, allow_pickle=False) as data:
        ids = data["names"].tolist()
        keys = (("text_openai_vitb32", "text"), ("image_openai_vitb32_avg5", "image"), ("text_eva02_b16", "text"))
        text, image, new = (
            Embeddings(data[key], ids=ids, space=Space("EVA-02" if "eva" in key else "B/32", modality=m))
            for key, m in keys
        )
    order = np.random.default_rng(seed).permutation(len(ids))
    fit, test = order[:900], order[900:]
    known = {"method": "orthogonal", "means": {"image": (image.take(fit), None)}, "check": False}
    few = text.take(fit[:pairs]), new.take(fit[:pairs])
    centered = congruence.fit(*few, **known)
    uncentered = congruence.fit(*few, method="orthogonal", center=False, check=False)
    sides = {"text": text.take(test), "image": image.take(test)}, {"text": new.take(test)}
    found = compare_maps(uncentered, centered, *sides, metrics=["retrieval", "zero_shot", "overlap_at_10"])
    return [row.__dict__ | {"pairs": pairs} for row in found.rows]


def rejections(trials: int) -> list[dict[str, object]]:
    rng = np.random.default_rng(0)
    counts: dict[str, int] = {}
    family = grouped = single = 0
    for _ in range(trials):
        truth = rng.standard_normal((40, 6))
        first, second = truth + rng.standard_normal((2, 40, 6))
        found = compare_maps(first, second, None, truth, k=3, draws=2, permutations=199)
        for row in found.rows:
            name = f"{row.metric} ({row.test})"
            counts[name] = counts.get(name, 0) + (row.p_value <= 0.05)
        family += min(row.adjusted_p_value for row in found.rows) <= 0.05
        copies = [np.repeat(rows, 5, axis=0) for rows in (first[:16], second[:16], truth[:16])]
        options = {"metrics": ["cosine"], "draws": 2, "permutations": 199, "k": 3}
        for groups in (None, np.repeat(np.arange(16), 5)):
            (row,) = compare_maps(*copies[:2], None, copies[2], groups=groups, **options).rows
            if groups is None:
                single += row.p_value <= 0.05
            else:
                grouped += row.p_value <= 0.05
    counts |= {
        "any of the four, after Holm": family,
        "cosine, copies tested by query": single,
        "cosine, copies tested by group": grouped,
    }
    return [{"test": name, "share": count / trials, "trials": trials} for name, count in counts.items()]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--data", default="../shared/data/lvis1203_clip.npz")
    parser.add_argument("--trials", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    lines = [row for pairs in (50, 200, 900) for row in lvis(options.data, pairs, options.seed)]
    for row in lines:
        print(
            row["pairs"],
            row["metric"],
            row["query"],
            f"{row['first']:.3f} {row['second']:.3f} {row['difference']:+.3f} ({row['low']:+.3f} … {row['high']:+.3f})",
            row["wins"],
            row["losses"],
            row["p_value"],
            row["adjusted_p_value"],
        )
    simulated = rejections(options.trials)
    for one in simulated:
        print(one)
    write_json(options, {"lvis": lines, "simulated": simulated})


if __name__ == "__main__":
    main()
