"""SOTAlign from a random start and from its teacher, on the ImageNet photos of the test data: the table in
docs/training.md.

Three splits of the 1,000 items: 200 to search, 100 to choose the best step, the given number of pairs; the rest is
unpaired and shuffled on each side.
"""

from __future__ import annotations

import argparse

import numpy as np

from congruence.train import Procrustes, SOTAlign
from congruence.train.retrieval import recalls
from machine_output import add_json, write_json

TRAINING = {
    "teacher": "procrustes",
    "n_components": 512,
    "max_steps": 120,
    "validate_every": 10,
    "max_iter": 50,
    "tolerance": 1e-3,
}
METHODS = {
    "Procrustes": Procrustes(),
    "random start, rate 3e-4": SOTAlign(learning_rate=3e-4, **TRAINING),
    "teacher's start, rate 3e-4": SOTAlign(init="teacher", learning_rate=3e-4, **TRAINING),
    "teacher's start, rate 1e-4": SOTAlign(init="teacher", learning_rate=1e-4, **TRAINING),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", help="imagenet1000_unimodal.npz")
    parser.add_argument("--pairs", type=int, nargs="+", default=[100, 400])
    parser.add_argument("--splits", type=int, default=3)
    add_json(parser)
    options = parser.parse_args()
    with np.load(options.file, allow_pickle=False) as data:
        X, Y = data["image_effnet_lite0"].astype(np.float32), data["text_mpnet"].astype(np.float32)
    results = []
    for n in options.pairs:
        for name, method in METHODS.items():
            scores = []
            for seed in range(options.splits):
                rng = np.random.default_rng(seed)
                test, held, paired, loose = np.split(rng.permutation(len(X)), [200, 300, 300 + n])
                other = rng.permutation(loose)
                if isinstance(method, SOTAlign):
                    method.set_params(divergence_weight=1 / n)
                heads = method.fit(
                    X[paired], Y[paired], unpaired=(X[loose], Y[other]), validation=(X[held], Y[held]), verbose=False
                )
                found = recalls(heads.transform(X[test]), heads.transform_target(Y[test]))
                scores.append([100 * found[f"mean@{k}"] for k in (1, 5, 10)])
            means, sds = np.mean(scores, axis=0), np.std(scores, axis=0, ddof=1)
            cells = " / ".join(f"{mean:.1f} ± {sd:.1f}" for mean, sd in zip(means, sds, strict=True))
            print(f"{n} pairs, {name}: {cells}", flush=True)
            results.append({"pairs": n, "method": name, "mean": means, "sd": sds})
    write_json(options, results)


if __name__ == "__main__":
    main()
