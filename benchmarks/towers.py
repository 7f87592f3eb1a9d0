"""Combinations of image towers and text towers: native pairs, and pairs connected by a rotation that was fitted on
texts alone.

``python benchmarks/towers.py sample``: pictures of emoji, searched by captions of classes that the rotation has not
seen; the correct result is the caption's own picture, among all of them. ``lvis FILE``: all class images of OpenAI
ViT-B/32, searched by the names of unseen classes encoded by three text towers. ``imagenet FOLDER``: 4,000 photos of
ImageNet in ViT-B/32 find the name of their class, encoded by RN50 and mapped by a rotation fitted on 1,200 photos of
Caltech-101 alone; of the names' modality only the means of LVIS's names are known.
"""

from __future__ import annotations

import itertools
import warnings
from pathlib import Path

import numpy as np

from common import arguments, arrays, write_json
from congruence import Bridge, fit
from congruence.embeddings import normalize_rows

Spaces = dict[str, np.ndarray]


def crossed(new: np.ndarray, old: np.ndarray, anchors: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """Return the texts of another tower in the space of this one, mapped by a rotation fitted on the anchors' texts."""
    return np.asarray(
        Bridge(fit(new[anchors], old[anchors], "orthogonal", modality="text", check=False)).transform(
            new[asked], "text"
        )
    )


def first(queries: np.ndarray, rows: np.ndarray, own: np.ndarray, k: int) -> float:
    """Return the share of queries whose own row is among the first k."""
    near = normalize_rows(queries) @ normalize_rows(rows).T
    ahead = np.count_nonzero(near > near[np.arange(len(own)), own][:, None], axis=1)
    return float((ahead < k).mean())


def retrieval(images: Spaces, texts: Spaces, n_anchors: int, seed: int) -> dict[str, list[float]]:
    """Return recall at 1 and 10 of every pair of towers with an available image tower."""
    n = len(next(iter(texts.values())))
    order = np.random.default_rng(seed).permutation(n)
    anchors, asked = order[:n_anchors], order[n_anchors:]
    out = {}
    for of_image, of_text in itertools.product(images, texts):
        native = of_image == of_text
        queries = texts[of_text][asked] if native else crossed(texts[of_text], texts[of_image], anchors, asked)
        out[f"{of_image} × {of_text}"] = [first(queries, images[of_image], asked, k) for k in (1, 10)]
    return out


def sample(seed: int) -> dict[str, list[float]]:
    from congruence.datasets import load_sample

    data = load_sample("emoji")
    models = {"emoji-a": data.source, "emoji-b": data.target}
    images, texts = ({name: side[kind].vectors for name, side in models.items()} for kind in ("image", "text"))
    return retrieval(images, texts, 800, seed)


def lvis(path: Path, seed: int) -> dict[str, list[float]]:
    with np.load(path, allow_pickle=False) as data:
        texts = {
            name: data[f"text_{key}"]
            for name, key in (
                ("OpenAI B/32", "openai_vitb32"),
                ("OpenAI B/16", "openai_vitb16"),
                ("EVA-02 B/16", "eva02_b16"),
            )
        }
        images = {"OpenAI B/32": data["image_openai_vitb32_avg5"]}
    return retrieval(images, texts, 900, seed)


def imagenet(folder: Path, seed: int) -> dict[str, list[float]]:
    clip = arrays(folder / "clip_rn50_vitb32.npz")
    photos = arrays(folder / "imagenet4000_openai_vitb32_photos.npz")["image_4shot"].astype(np.float32)
    own = np.repeat(np.arange(1000), 4)
    new, old = ({kind: clip[f"{kind}_{key}"] for kind in _KINDS} for key in ("openai_rn50", "openai_vitb32"))
    pairs = np.random.default_rng(seed).permutation(len(new["image"]))[:1200]
    names = new["imagenet_text"].astype(np.float32)
    means = {"text": (new["lvis_text"], old["lvis_text"])}
    out = {"B/32 × B/32": old["imagenet_text"].astype(np.float32)}
    for title, method in (("B/32 × RN50, a rotation", "orthogonal"), ("B/32 × RN50, fit", "auto")):
        sides = new["image"][pairs], old["image"][pairs]
        mapping = fit(*sides, method, modality="image", means=means, queries="image", check=False)
        role = "plain" if method == "orthogonal" else "store"  # the photos search the names
        out[title] = np.asarray(mapping.transform(names, modality="text", role=role))
    return {title: [first(photos, rows, own, k) for k in (1, 10)] for title, rows in out.items()}


_KINDS = ("image", "lvis_text", "imagenet_text")


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("data", choices=("sample", "lvis", "imagenet"))
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--splits", type=int, default=5)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    measure = {
        "sample": sample,
        "lvis": lambda seed: lvis(given.file, seed),
        "imagenet": lambda seed: imagenet(given.file, seed),
    }[given.data]
    runs = [measure(seed) for seed in range(given.splits)]
    lines = []
    for name in runs[0]:
        values = np.array([run[name] for run in runs])
        lines.append(
            {
                "pair": name,
                "mean": values.mean(axis=0).tolist(),
                "error": (values.std(axis=0, ddof=1) / np.sqrt(len(values))).tolist(),
            }
        )
        print(f"{name:36s} at 1 {lines[-1]['mean'][0]:.3f}, at 10 {lines[-1]['mean'][1]:.3f}", flush=True)
    write_json(given, lines)


if __name__ == "__main__":
    main()
