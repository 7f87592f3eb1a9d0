"""Can attributes still be read from mapped rows? Probes of one model, applied to rows that were mapped from another.

    python benchmarks/decodability.py ../shared/data --record decodability

Logistic regressions (scikit-learn, C by folds) for four tags of Fashionpedia's photos, written by a small model and so
noisy, in CLIP and FashionSigLIP. A map is fitted on 200 photos, probes on 600 others, and all are tested on the rest,
by balanced accuracy over classes with at least 20 photos. Rows: ``native``, probe and photos of the new model; ``new
probe, mapped``, the same probe on mapped photos of the old model; ``mapped probe, native``, the reverse; ``mapped``,
probe and photos mapped; ``old``, probe and photos of the old model. Nulls: a map fitted on shuffled pairs, and a probe
fitted on shuffled tags.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegressionCV
from sklearn.metrics import balanced_accuracy_score

from common import arguments, arrays, unit, write_json
from congruence import OrthogonalMap, fit
from congruence.errors import CongruenceWarning

TAGS, PAIRS, TRAINED, FEWEST = ("garment", "color", "style", "environment"), 200, 600, 20
MODELS = ("image_openai_b32_openclip", "image_fashionsiglip")


def probe(X, y):
    """Return a classifier; its rows are centered, as cones hide attributes from the regularization."""
    grid = {"Cs": np.logspace(-1, 4, 6), "cv": 3, "l1_ratios": (0,), "use_legacy_attributes": False}
    model = LogisticRegressionCV(**grid, max_iter=2000, scoring="balanced_accuracy")
    mean = X.mean(axis=0)
    model.fit(X - mean, y)
    return lambda rows: model.predict(rows - mean)


def measure(old, new, tags, seed):
    """Return balanced accuracies by tag and row of the table for one split."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(old))
    pairs, trained, tested = np.split(order, [PAIRS, PAIRS + TRAINED])
    maps = {
        "mapped": fit(old[pairs], new[pairs], modality="image", queries="image", check=False),
        "rotated": OrthogonalMap().fit(old[pairs], new[pairs]),
        "shuffled map": OrthogonalMap().fit(old[pairs], new[rng.permutation(pairs)]),
    }
    rows = {name: unit(one.transform(old)) for name, one in maps.items()} | {"old": old, "new": new}
    found = {}
    for tag, values in tags.items():
        names, counts = np.unique(values, return_counts=True)
        kept = np.isin(values, names[(counts >= FEWEST) & (names != "")])
        a, b = trained[kept[trained]], tested[kept[tested]]

        def score(predict, name, b=b, values=values):
            return float(balanced_accuracy_score(values[b], predict(rows[name][b])))

        probes = {name: probe(rows[name][a], values[a]) for name in ("new", "old", "mapped", "rotated")}
        found[tag] = {
            "classes": len(np.unique(values[b])),
            "native": score(probes["new"], "new"),
            "new probe, mapped by fit": score(probes["new"], "mapped"),
            "new probe, rotated": score(probes["new"], "rotated"),
            "mapped probe, native": score(probes["mapped"], "new"),
            "rotated probe, native": score(probes["rotated"], "new"),
            "mapped": score(probes["mapped"], "mapped"),
            "old": score(probes["old"], "old"),
            "null: map of shuffled pairs": score(probes["new"], "shuffled map"),
            "null: probe of shuffled tags": score(probe(rows["new"][a], rng.permutation(values[a])), "mapped"),
        }
    return found


def main():
    parser = arguments(__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("../shared/data"))
    parser.add_argument("--splits", type=int, default=5)
    options = parser.parse_args()
    warnings.simplefilter("ignore", CongruenceWarning)
    data, results = arrays(options.folder / "fashionpedia1150_images.npz"), {}
    tags = {tag: data[tag].astype(str) for tag in TAGS}
    for old, new in (MODELS, MODELS[::-1]):
        name = f"{old} → {new}"
        runs = [measure(unit(data[old]), unit(data[new]), tags, 700 + split) for split in range(options.splits)]
        results[name] = {}
        print(name)
        for tag in TAGS:
            values = {row: [run[tag][row] for run in runs] for row in runs[0][tag]}
            results[name][tag] = {
                row: [float(np.mean(v)), float(np.std(v, ddof=1) / len(v) ** 0.5)] for row, v in values.items()
            }
            print(f"  {tag}:", "; ".join(f"{row} {m:.3f} ± {e:.3f}" for row, (m, e) in results[name][tag].items()))
    write_json(options, results)


if __name__ == "__main__":
    main()
