"""How many rows do the means need? Each mean of a map is estimated from 1 to all rows, unpaired, with a fixed rotation.

``python benchmarks/bench_means.py --data ../shared/data``. The rotation is fitted once per split on all training pairs,
each side minus its full mean. Then a mean is replaced by that of m random training rows, in five draws per split, drawn
separately for each side. Measured on rows that were not fitted on: "same modality", the share of mapped rows of the
fitted modality whose nearest target row is of the same item (Caltech: class, the row's own counterpart left out), from
``(x − μ_A) Q + μ_B`` against the target's rows; "image → text", mapped images against the target's texts, as searched
(with the target's image mean added, if the target has images) and with both sides centered.

LVIS: texts of OpenAI ViT-B/32 to EVA-02 and to ViT-B/16, 900 classes fitted, 303 measured; the target has no images.
Caltech-101: two dual encoders made of heads on frozen features, half of 2,542 photos fitted. The emoji sample: half of
1,595 images fitted. Interval: Student's of the means of the splits.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from common import arguments, write_json
from congruence import OrthogonalMap
from congruence.datasets import load_sample
from congruence.metrics import class_retrieval, ensemble_prompts, zero_shot_accuracy
from congruence_papers.canonical.data import open_sample

ROWS = (1, 3, 10, 30, 100, 300)
DRAWS = 5


@dataclass(frozen=True)
class World:
    """Rows of both models: images and texts of the same items in each, with their classes.

    Attributes
    ----------
    source, target : dict of str to ndarray
        ``"image"`` and ``"text"``; the target may lack images.
    image_class, text_class : ndarray of int
    fitted : str
        Modality that the rotation is fitted on.
    by_item : bool
        Whether every item is a class of its own; the texts of the other items are then left out, too.
    prompts : dict of str to ndarray, or None
        Prompts of each side, whose means by class are the texts; the mean of the texts is computed from all prompts.
    """

    source: dict[str, np.ndarray]
    target: dict[str, np.ndarray]
    image_class: np.ndarray
    text_class: np.ndarray
    fitted: str
    by_item: bool
    prompts: dict[str, np.ndarray] | None = None

    def parts(self, rng: np.random.Generator) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Return the rows to fit on and the rows to measure on, by modality."""
        n = len(self.image_class)
        order = rng.permutation(n)
        count = 900 if self.fitted == "text" else n // 2
        fit, test = {"image": order[:count]}, {"image": order[count:]}
        # The text of a single item is in the same part as the item; texts of classes are in both parts.
        fit["text"], test["text"] = (
            (fit["image"], test["image"]) if self.by_item else (np.arange(len(self.text_class)),) * 2
        )
        return fit, test


def worlds(folder: Path) -> dict[str, World]:
    out = {}
    with np.load(folder / "lvis1203_clip.npz", allow_pickle=False) as data:
        own = np.arange(len(data["names"]))
        source = {"image": data["image_openai_vitb32_avg5"], "text": data["text_openai_vitb32"]}
        for name, key in (("LVIS, EVA-02", "text_eva02_b16"), ("LVIS, ViT-B/16", "text_openai_vitb16")):
            out[name] = World(source, {"text": data[key]}, own, own, "text", True)
    heads = open_sample("caltech101", folder / "caltech101_unimodal.npz")
    sides = []
    for model in heads.models:
        texts, classes = ensemble_prompts(model.prompts, heads.prompt_labels)
        sides.append({"image": model.images, "text": texts})
    prompts = {side: model.prompts for side, model in zip(("source", "target"), heads.models, strict=True)}
    out["Caltech-101"] = World(sides[0], sides[1], heads.labels, classes, "image", False, prompts)
    sample = load_sample("emoji")
    first, second = sample.side("source"), sample.side("target")
    order = [first["text"].ids.tolist().index(name) for name in first["image"].ids.tolist()]
    sides = [
        {"image": side["image"].normalize().vectors, "text": side["text"].normalize().vectors[order]}
        for side in (first, second)
    ]
    own = np.arange(len(order))
    out["sample"] = World(sides[0], sides[1], own, own, "image", True)
    return out


def scores(
    world: World, rotation: np.ndarray, means: dict[str, np.ndarray], test: dict[str, np.ndarray]
) -> dict[str, float]:
    """Return the scores with the given means, which are named ``"source text"`` and so on."""
    m = world.fitted
    moved = (world.source[m][test[m]] - means[f"source {m}"]) @ rotation + means[f"target {m}"]
    group = (world.image_class if m == "image" else world.text_class)[test[m]]
    found = {"same modality": class_retrieval(moved, world.target[m][test[m]], group, exclude_self=not world.by_item)}
    texts, classes = world.target["text"][test["text"]], world.text_class[test["text"]]
    images = (world.source["image"][test["image"]] - means["source image"]) @ rotation
    labels = world.image_class[test["image"]]
    if "image" in world.target:
        found["as searched"] = zero_shot_accuracy(images + means["target image"], texts, labels, classes)
    found["centered"] = zero_shot_accuracy(images, texts - means["target text"], labels, classes)
    return found


def measure(world: World, seed: int) -> tuple[dict[str, dict[str, dict[str, float]]], dict[str, list[float]]]:
    """Return the scores of one split by mean and number of rows, and for each mean the spread of its rows and its
    norm.
    """
    rng = np.random.default_rng(seed)
    fit, test = world.parts(rng)
    fitted = {
        f"{side} {m}": rows[fit[m]]
        for side, has in (("source", world.source), ("target", world.target))
        for m, rows in has.items()
    }
    if world.prompts is not None:
        fitted |= {f"{side} text": rows for side, rows in world.prompts.items()}
    full = {name: rows.mean(axis=0, dtype=np.float64) for name, rows in fitted.items()}
    spread = {
        name: [float(np.sqrt(((rows - full[name]) ** 2).sum(axis=1).mean())), float(np.linalg.norm(full[name]))]
        for name, rows in fitted.items()
    }
    sides = (fitted[f"{side} {world.fitted}"] - full[f"{side} {world.fitted}"] for side in ("source", "target"))
    rotation = OrthogonalMap(center=False).fit(*sides).rotation_
    out: dict[str, dict[str, dict[str, float]]] = {}
    for which in (*fitted, "all at once"):
        names = list(fitted) if which == "all at once" else [which]
        for m in (*ROWS, "all"):
            found = []
            for _ in range(1 if m == "all" else DRAWS):
                means = dict(full)
                for name in names:
                    rows = fitted[name]
                    if m != "all" and m < len(rows):
                        means[name] = rows[rng.choice(len(rows), m, replace=False)].mean(axis=0, dtype=np.float64)
                found.append(scores(world, rotation, means, test))
            out.setdefault(which, {})[str(m)] = {key: float(np.mean([one[key] for one in found])) for key in found[0]}
    return out, spread


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--splits", type=int, default=6)
    options = parser.parse_args()
    results = []
    for name, world in worlds(options.data).items():
        runs = [measure(world, seed) for seed in range(options.splits)]
        results.append({"world": name, "spread": runs[0][1], "splits": [run[0] for run in runs]})
        for which, by_rows in runs[0][0].items():
            for key in next(iter(by_rows.values())):
                values = [np.mean([run[0][which][m][key] for run in runs]) for m in by_rows]
                print(f"{name:15} {which:13} {key:14} " + " ".join(f"{v:.3f}" for v in values), flush=True)
    write_json(options, results)


if __name__ == "__main__":
    main()
