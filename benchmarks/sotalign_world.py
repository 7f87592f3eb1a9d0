"""A case in which SOTAlign is ahead: synthetic data with a clustered latent and 100,000 unpaired rows, the table in
docs/training.md.

The task is to find each item among 1,000. SOTAlign has one combination of parameters; for the other methods, all named
combinations are shown.
"""

from __future__ import annotations

import argparse

import numpy as np

from congruence.synthetic import unimodal_problem
from congruence_papers.sotalign import SOTAlignData, fit_baseline, measure_heads
from machine_output import add_json, write_json

WORLD = {"latent": 32, "classes": 300, "spread": 0.1, "noise": 0.3, "nuisance": 1.5, "random_state": 0}
TRAINING = {
    "n_components": 128,
    "max_steps": 200,
    "learning_rate": 2e-3,
    "validate_every": 20,
    "max_iter": 50,
    "tolerance": 1e-3,
    "device": "cpu",
    "unpaired_batch": 1024,
}
TRIED = [
    ("procrustes", {"components_share": 1.0}),
    *(("cca", {"ridge": weight}) for weight in (0.1, 1.0, 10.0)),
    *(("sail", {"rate": rate}) for rate in (1.0, 3.0)),
    ("sotalign", {"paper_alpha": 1e-4, "teacher": "cca", "ridge": 1.0}),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--unpaired", type=int, default=100_000)
    parser.add_argument("--pairs", type=int, nargs="+", default=[100, 200, 400])
    parser.add_argument("--splits", type=int, default=2)
    parser.add_argument("--methods", nargs="+", default=["procrustes", "cca", "sail", "sotalign"])
    add_json(parser)
    options = parser.parse_args()
    made = unimodal_problem(options.unpaired + 6000, 96, 64, **WORLD)
    items = np.arange(len(made.images))
    data = SOTAlignData("world", {"images": made.images}, {"texts": made.texts}, items, items)
    results = []
    for pairs in options.pairs:
        for name, tried in TRIED:
            if name not in options.methods:
                continue
            scores = []
            for seed in range(options.splits):
                parts = data.split(pairs, unpaired=options.unpaired, validation=500, test=1000, seed=seed, overlap=None)
                found = measure_heads(fit_baseline(name, parts, TRAINING, tried, seed), parts.test)
                scores.append([100 * found[f"mean_r{k}"] for k in (1, 5, 10)])
            means = np.mean(scores, axis=0)
            sds = np.std(scores, axis=0, ddof=1 if len(scores) > 1 else 0)
            cells = " / ".join(f"{mean:.1f} ± {sd:.1f}" for mean, sd in zip(means, sds, strict=True))
            print(f"{pairs} pairs, {name} {tried}: {cells}", flush=True)
            results.append({"pairs": pairs, "method": name, "tried": tried, "mean": means, "sd": sds})
    write_json(options, results)


if __name__ == "__main__":
    main()
