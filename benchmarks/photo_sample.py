"""The photo sample: accuracy of the nearest class name for 1,500 photos, by the pairs the map is fitted on and by the
share that is re-embedded.

``python benchmarks/photo_sample.py`` needs only the package. Queries are the new model's class names, except for "old
model". *Unseen*: the map is fitted on a random half of the names, the plan knows that half, and the other half are the
queries, which search for the photos of their classes. *Seen*: all names are fitted on, and searched with. *Photo
pairs*: random photos encoded by both models, measured on the other photos; all maps are fitted by ``congruence.fit``.
*Re-embedded*: ``congruence.upgrade.progressive.Progressive`` with its defaults, worst rows first, a fifth of each batch
random, batches of 2 %. Draws differ in the random photos and rows; the models are the same.

The settings listed in bench_progressive.py were chosen using these models, among others. ``--fresh
../shared/data/caltech101_unimodal.npz`` therefore trains new pairs of models with seeds 10, 11, … (dual_encoders.py),
on which nothing was chosen, and measures each in one draw.
"""

from __future__ import annotations

import base64
import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import congruence
from common import arguments, write_json
from congruence.datasets import load_sample
from congruence.embeddings import Embeddings, Space, normalize_rows
from congruence.upgrade.progressive import Progressive
from dual_encoders import Dual, load

PHOTOS = 1500
PAIRS = (100, 500, 1000)
SHARES = (0.0, 0.04, 0.08, 0.1, 0.12, 0.16)
UNSEEN = (0.0, 0.1, 0.2, 0.3)
TITLES = (
    "old vectors, as they are",
    "mapped by 200 photos in both models",
    "mapped, then 50 photos encoded for this query",
    "all photos encoded by the new model",
)

Side = dict[str, Embeddings]


def sample_sides() -> tuple[Side, Side, np.ndarray]:
    """Return the old and the new model's rows of the sample, and the class of each photo."""
    sample = load_sample("photos")
    return sample.source, sample.target, sample.class_of("image", sample.source["image"].ids)


def fresh_sides(data: Path, seed: int) -> tuple[Side, Side, np.ndarray]:
    """Train a new pair of models, and return the same as :func:`sample_sides`; photos are drawn as in
    examples/train_photos.
    """
    pair = load(data, seed)
    kept = np.sort(np.random.default_rng([seed, 3]).permutation(len(pair.photos))[:PHOTOS])
    photos = [pair.photos[k] for k in kept]

    def side(model: Dual) -> Side:
        names = normalize_rows(model.texts.mean(axis=1))
        return {
            "image": Embeddings(model.photos[kept], ids=photos, space=Space(modality="image")),
            "text": Embeddings(names, ids=pair.classes, space=Space(modality="text")),
        }

    return side(pair.old), side(pair.new), np.array(pair.classes, object)[pair.label[kept]]


def measure(old: Side, new: Side, own: np.ndarray, draws: int) -> dict[str, Any]:
    photos, names, theirs = old["image"].vectors, old["text"].ids, new["text"].vectors

    def score(vectors: np.ndarray, texts: np.ndarray = theirs, rows: Any = slice(None)) -> float:
        return float((names[(vectors @ texts.T).argmax(axis=1)] == own[rows]).mean())

    first = congruence.fit(old["text"], new["text"], means={"image": (old["image"], None)}, check=False)
    words = first.for_modality("text").transform(old["text"].vectors)
    found: dict[str, Any] = {
        "old": score(photos, old["text"].vectors),
        "new": score(new["image"].vectors),
        "unmapped": score(photos),
        "names": score(first.for_modality("image").transform(photos)),
        "names of names": float(((words @ theirs.T).argmax(axis=1) == np.arange(len(names))).mean()),
        "pairs": {n: [] for n in PAIRS},
        "progressive": {share: [] for share in SHARES},
    }
    for draw in range(draws):
        order = np.random.default_rng(draw).permutation(len(photos))
        for n in PAIRS:
            known, rest = order[:n], order[n:]
            ids = old["image"].ids[known]
            mapping = congruence.fit(old["image"].take(ids), new["image"].take(ids), check=False)
            found["pairs"][n].append(score(mapping.transform(photos[rest]), rows=rest))
        plan = Progressive(
            first, old["image"], texts=old["text"], new_texts=new["text"], modality="image", random_state=draw
        )
        for share in SHARES:
            for ids in plan.batches(round(0.02 * len(plan)), share=share) if share else ():
                plan.update(ids, new["image"].take(ids).vectors)
            found["progressive"][share].append(score(plan.store()))
    return found


def measure_unseen(old: Side, new: Side, own: np.ndarray, draws: int) -> dict[str, Any]:
    """Return the accuracy of names that neither the map nor the plan knows, for the photos of their classes."""
    found: dict[str, Any] = {name: [] for name in ("old", "new", "unmapped")}
    found["progressive"] = {share: [] for share in UNSEEN}
    for draw in range(draws):
        order = np.random.default_rng([draw, 1]).permutation(len(old["text"]))
        known, asked = (np.sort(half) for half in np.array_split(order, 2))
        names = old["text"].ids[asked]
        rows = np.isin(own, names)

        def score(
            vectors: np.ndarray,
            side: Side,
            names: np.ndarray = names,
            rows: np.ndarray = rows,
            asked: np.ndarray = asked,
        ) -> float:
            return float((names[(vectors[rows] @ side["text"].vectors[asked].T).argmax(axis=1)] == own[rows]).mean())

        texts, new_texts = old["text"].take(known), new["text"].take(known)
        mapping = congruence.fit(texts, new_texts, means={"image": (old["image"], None)}, check=False)
        found["old"].append(score(old["image"].vectors, old))
        found["new"].append(score(new["image"].vectors, new))
        found["unmapped"].append(score(old["image"].vectors, new))
        plan = Progressive(mapping, old["image"], texts=texts, new_texts=new_texts, modality="image", random_state=draw)
        for share in UNSEEN:
            for ids in plan.batches(round(0.02 * len(plan)), share=share) if share else ():
                plan.update(ids, new["image"].take(ids).vectors)
            found["progressive"][share].append(
                score(plan.store() if share else mapping.for_modality("image").transform(old["image"].vectors), new)
            )
    return found


def draw(file: Path) -> None:
    """Draw the search that ``congruence demo`` shows."""
    import matplotlib.pyplot as plt
    from PIL import Image

    from congruence.cli._demo_photos import certify_sample, search_library, split_names

    sample = load_sample("photos")
    known, asked = split_names(sample)
    story = search_library(sample, certify_sample(sample, known).fit(), asked)
    shown = [place for place in story["places"] if place["name"] != "old model"]
    figure, axes = plt.subplots(len(shown), story["shown"], figsize=(10, 5.2))
    figure.subplots_adjust(0.01, 0.01, 0.99, 0.9, 0.04, 0.32)
    for line, place, title in zip(axes, shown, TITLES, strict=True):
        for axis, photo in zip(line, place["found"], strict=True):
            picture = Image.open(io.BytesIO(base64.b64decode(photo["picture"].partition(",")[2])))
            axis.imshow(picture.convert("RGB").resize((96, 96)))
            axis.set(xticks=[], yticks=[])
            for side in axis.spines.values():
                side.set(color="C2" if photo["wanted"] else "C3", linewidth=2.5)
        line[0].set_title(f"{title}: {place['right']} of {story['shown']}", loc="left", fontsize=10)
    figure.suptitle(f"New model's query \u201c{story['query']}\u201d, searched in", x=0.01, ha="left", fontsize=11)
    figure.savefig(file, dpi=110, pil_kwargs={"quality": 80})


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--part", choices=("unseen", "seen"), default="unseen")
    parser.add_argument(
        "--fresh", type=Path, help="caltech101_unimodal.npz: train new pairs of models instead of using the sample"
    )
    parser.add_argument("--pairs", type=int, default=3, help="number of pairs of models to train")
    parser.add_argument("--figure", type=Path, help="only draw the README's picture to this file")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    if given.figure:
        draw(given.figure)
        return
    if given.fresh:
        pairs = (fresh_sides(given.fresh, seed) for seed in range(10, 10 + given.pairs))
        runs = [measure(*sides, draws=1) if given.part == "seen" else measure_unseen(*sides, 4) for sides in pairs]
    else:
        sides = sample_sides()
        runs = [measure(*sides, given.draws) if given.part == "seen" else measure_unseen(*sides, 4)]
    for found in runs:
        for name, value in found.items():
            cells = value.items() if isinstance(value, dict) else [("", value if isinstance(value, list) else [value])]
            for key, values in cells:
                print(f"{name:16s} {key!s:6} {np.mean(values):.3f}", *(f"{one:.3f}" for one in values))
    write_json(given, runs)


if __name__ == "__main__":
    main()
