"""When are few classes sufficient? Figure 5 of the Canonical paper on simulated dual encoders of increasing quality.

``python benchmarks/few_classes.py --data ../shared/data/caltech101_unimodal.npz``. There are 64 latent factors; a photo
is a thing plus details. Two dual encoders are trained separately, each on its own random nonlinear features of its own
pairs, by the closed form of the spectral contrastive loss (``contrastive_heads``, width 48), like the stand-in
``caltech101``. The number of training pairs, the noise of photo features, and the content of captions vary:

- ``100 classes``: the name of one of 100 things, including the 37 test classes (as for the heads on Caltech-101);
- ``things and details``: each pair shows a different thing, and the caption also describes the details.

Figure 5 is then computed for both models on 37 classes with 40 photos each, half of them to fit on, by the rules of
``congruence lab reproduce fig5``. ``details`` is the cosine of mapped and true photos after subtracting the mean of
each class from both: what the models share beyond classes. It is also measured on the stand-ins.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from itertools import product

import numpy as np

from congruence.linalg.procrustes import procrustes
from congruence_papers import EXPERIMENTS, Collection, Model, run
from congruence_papers.canonical import open_sample
from congruence_papers.canonical.samples import Heads, contrastive_heads
from machine_output import add_json, write_json

LATENT, FEATURES, WIDTH = 64, 256, 48
CLASSES, PHOTOS, KNOWN = 37, 40, 100
DETAIL = 0.7
CAPTIONS = ("100 classes", "things and details")
SHOWN = (2, 5, 10, 15, 20, 30)


def features(latent: np.ndarray, weights: np.ndarray, noise: float, rng: np.random.Generator) -> np.ndarray:
    """Return the features of a frozen encoder: a random nonlinear layer of the latent factors, plus independent
    noise.
    """
    return np.tanh(latent @ weights) + noise * rng.standard_normal((len(latent), weights.shape[1]))


def train(
    things: np.ndarray, captions: str, pairs: int, noise: float, seed: int
) -> tuple[Heads, np.ndarray, np.ndarray]:
    """Train one dual encoder on its own pairs; return its heads, and the random layers for photos and texts."""
    rng = np.random.default_rng([seed, 1])
    photos, texts = (rng.standard_normal((LATENT, FEATURES)) / np.sqrt(LATENT) for _ in range(2))
    few = captions == "100 classes"
    named = things[rng.integers(len(things), size=pairs)] if few else rng.standard_normal((pairs, LATENT))
    seen = named + DETAIL * rng.standard_normal((pairs, LATENT))
    said = named if few else seen
    heads = contrastive_heads(features(seen, photos, noise, rng), features(said, texts, 0.1, rng), WIDTH, seed=seed)
    return heads, photos, texts


def measure(captions: str, pairs: int, noise: float, seed: int) -> dict[str, object]:
    """Compute figure 5 for two models and return its curve, controls and verdict."""
    rng = np.random.default_rng([seed, 0])
    things = rng.standard_normal((KNOWN, LATENT))
    labels = np.repeat(np.arange(CLASSES), PHOTOS)
    latent = things[labels] + DETAIL * rng.standard_normal((len(labels), LATENT))
    models = []
    for k in (1, 2):
        heads, photos, texts = train(things, captions, pairs, noise, 10 * seed + k)
        own = np.random.default_rng([seed, k])
        images = heads.images(features(latent, photos, noise, own))
        models.append(Model(f"model {k}", images, heads.texts(features(things[:CLASSES], texts, 0.1, own))))
    train_rows = np.arange(len(labels)) % 2 == 0
    data = Collection(
        "made up", tuple(models), tuple(map(str, range(CLASSES))), np.arange(len(labels)).astype(str), labels,
        train_rows,
        np.arange(CLASSES), np.zeros(CLASSES, int),
    )  # fmt: skip
    config = EXPERIMENTS["fig5"]
    config = replace(config, parameters={**config.parameters, "methods": ["orthogonal", "random"]})
    results = run(config, collections=[data], seeds=3).results
    value = {
        (row["metric"], row["series"], row["quantity"], row["x"]): row["mean"]
        for row in results["rows"]
        if row["part"] == "unseen"
    }
    kept, centered = "aligned_image_aligned_text", "aligned_image_text_centered"
    curve = {x: value["text_cosine", "orthogonal", "after", x] for x in SHOWN}
    return {
        "curve": [curve[x] for x in SHOWN],
        "details": _details([np.asarray(model.images, np.float64) for model in models], labels, train_rows),
        "alone": value[kept, None, "model_a", 10],
        "both_mapped": [value[kept, method, "after", 10] for method in ("orthogonal", "random")],
        "one_mapped": [value[centered, method, "after", 10] for method in ("orthogonal", "random")],
        "saturated": curve[10] >= 0.95 * curve[30],
    }


def _details(images: list[np.ndarray], labels: np.ndarray, train_rows: np.ndarray) -> float:
    """Return the mean cosine of true and mapped photos after subtracting class means, with a rotation fitted on the
    other photos' differences from them.
    """
    places = np.unique(labels, return_inverse=True)[1]
    a, b = (
        side - np.array([side[places == c].mean(axis=0) for c in range(places.max() + 1)])[places] for side in images
    )
    test = ~train_rows & (np.bincount(places)[places] > 1)  # a single photo equals its class mean
    moved = (a @ procrustes(a[train_rows], b[train_rows]))[test]
    lengths = np.linalg.norm(moved, axis=1) * np.linalg.norm(b[test], axis=1)
    return float(np.mean((moved * b[test]).sum(axis=1)[lengths > 0] / lengths[lengths > 0]))


def stand_in(name: str, file: str | None) -> float:
    """Return ``details`` for the two models of a stand-in."""
    data = open_sample(name, file)
    images = [np.asarray(data.models[k].images, np.float64) for k in data.pairs[0]]
    return _details(images, data.labels, data.train)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="caltech101_unimodal.npz")
    parser.add_argument("--pairs", type=int, nargs="+", default=[1_000, 16_000])
    parser.add_argument("--noise", type=float, nargs="+", default=[2.0, 1.0, 0.5, 0.25])
    parser.add_argument("--seeds", type=int, default=3)
    add_json(parser)
    args = parser.parse_args()
    lines = []
    for captions in CAPTIONS:
        for pairs, noise in product(args.pairs, args.noise):
            found = [measure(captions, pairs, noise, seed) for seed in range(args.seeds)]
            mean = {key: np.mean([one[key] for one in found], axis=0).tolist() for key in found[0]}
            mean["sd"] = np.std([one["curve"] for one in found], axis=0, ddof=1).tolist() if args.seeds > 1 else None
            lines.append({"captions": captions, "pairs": pairs, "noise": noise, **mean})
            print(
                f"{captions:20} {pairs:6} {noise:4} details {mean['details']:.2f}",
                *(f"{v:.3f}" for v in mean["curve"]),
                end=" ",
            )
            print(
                f"alone {mean['alone']:.2f}, both {mean['both_mapped']}, one {mean['one_mapped']}, saturated "
                f"{mean['saturated']:.2f}",
                flush=True,
            )
    stand_ins = {"sample": stand_in("sample", None)} | (
        {"caltech101": stand_in("caltech101", args.data)} if args.data else {}
    )
    print(stand_ins)
    write_json(args, {"shown": list(SHOWN), "lines": lines, "stand_ins": stand_ins})


if __name__ == "__main__":
    main()
