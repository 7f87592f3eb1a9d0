"""Train the two photo models and write the photo sample: ``python make_sample.py FEATURES THUMBNAILS OUT``, about half
a minute of processor time.

FEATURES is ``caltech101_unimodal.npz`` and THUMBNAILS ``caltech101_thumbs.npz``; README.md beside this file says what
they hold. The models are those of ``benchmarks/dual_encoders.py`` at seed 0, whose settings were written down before
the first photo was searched.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import warnings
from pathlib import Path

import numpy as np

from congruence.datasets import Bundle, write_bundle
from congruence.embeddings import Embeddings, Space, normalize_rows

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from dual_encoders import TRAINED, VALIDATED, Dual, classified, load  # noqa: E402

SEED = 0
#: Photos of the sample, drawn at random from the 3,242 that neither model has seen.
PHOTOS = 1500
#: Wordings of each class name that are shipped one by one; the row of a class is the mean of all 34.
WORDINGS = 8
MODELS = {"old": "mobilenet-minilm", "new": "effnet-mpnet"}
TOWERS = {
    "mobilenet-minilm": "linear heads on MobileNet-v2 and MiniLM-L6, InfoNCE",
    "effnet-mpnet": "linear heads on EfficientNet-Lite0 and MPNet, sigmoid loss",
}
LICENCES = [
    "Photos (thumbnails of at most 128 pixels, and what is computed from them): Caltech-101 by Fei-Fei Li, Marco "
    "Andreeto, Marc'Aurelio Ranzato and Pietro Perona, CaltechDATA, https://data.caltech.edu/records/mzrjq-6wc02, "
    "CC BY 4.0; reduced in size and stored as WebP.",
    "Vision encoders: MobileNet-v2 of torchvision (BSD-3-Clause), EfficientNet-Lite0 (Apache-2.0). Text encoders: "
    "all-MiniLM-L6-v2 and all-mpnet-base-v2 (Apache-2.0). Neither their weights nor those of the heads are "
    "contained here.",
]


def rows(model: Dual, name: str, kept: np.ndarray, ids: dict[str, list[str]]) -> dict[str, Embeddings]:
    """Return one model's rows by kind: photos, the mean of each class's wordings, and single wordings."""
    vectors = {
        "image": model.photos[kept],
        "text": normalize_rows(model.texts.mean(axis=1)),
        "prompt": model.texts[:, :WORDINGS].reshape(-1, model.texts.shape[2]),
    }
    return {
        kind: Embeddings(rows, ids=ids[kind], space=Space(model=name, modality="image" if kind == "image" else "text"))
        for kind, rows in vectors.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path)
    parser.add_argument("thumbnails", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    with np.load(options.features, allow_pickle=False) as data:
        templates = data["templates"][:WORDINGS].tolist()
    with np.load(options.thumbnails, allow_pickle=False) as data:
        place = {name: k for k, name in enumerate(data["image_file"].tolist())}
        webp, offset = data["webp"], data["offset"]
    pair = load(options.features, SEED)
    kept = np.sort(np.random.default_rng([SEED, 3]).permutation(len(pair.photos))[:PHOTOS])
    photos, label = [pair.photos[k] for k in kept], pair.label[kept]
    names = [name.replace("_", " ") for name in pair.classes]
    prompts = [f"{name}#{k}" for name in names for k in range(WORDINGS)]
    ids = {"image": photos, "text": names, "prompt": prompts}
    sides = {side: rows(getattr(pair, side), model, kept, ids) for side, model in MODELS.items()}
    alone = {
        MODELS[side]: {"accuracy": classified(kinds["text"].vectors, kinds["image"].vectors, label)}
        for side, kinds in sides.items()
    }
    bundle = Bundle(
        sides["old"],
        sides["new"],
        classes={
            "image": {photo: names[k] for photo, k in zip(photos, label.tolist(), strict=True)},
            "prompt": {prompt: prompt.partition("#")[0] for prompt in prompts},
        },
        texts={
            "image": {photo: names[k] for photo, k in zip(photos, label.tolist(), strict=True)},
            "text": {name: name for name in names},
            "prompt": {f"{name}#{k}": words.format(name) for name in names for k, words in enumerate(templates)},
        },
        thumbnails={
            photo: webp[offset[place[photo]] : offset[place[photo] + 1]].tobytes() for photo in photos
        },
        info={
            "title": "A photo library in two dual encoders trained apart",
            "images_of": "Caltech-101; no photo of the sample was seen by either model",
            "text": "mean of 34 wordings a class; all 100 classes were seen by both models",
            "models": TOWERS,
            "each_model_alone": alone,
            "trained_with": "examples/train_photos",
            "photos_of_each_model": TRAINED + VALIDATED,
            "licences": LICENCES,
        },
    )  # fmt: skip
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_bundle(options.out, bundle, force=True)
    digest = hashlib.sha256(options.out.read_bytes()).hexdigest()
    print(f"{alone}\n{options.out}: {options.out.stat().st_size / 1e6:.2f} MB, SHA-256 {digest}")


if __name__ == "__main__":
    main()
