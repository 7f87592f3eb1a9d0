"""Photo and text towers of two separately trained dual encoders (dual_encoders.py): a bridge from the new one to the
old one's index, and combinations of towers.

``python benchmarks/photo_towers.py ../shared/data/caltech101_unimodal.npz`` trains both models again in each split.
Class names, "a photo of a …", search the photos that neither model has seen; photos of the class are relevant,
according to a TREC file. Maps are rotations fitted on names in the 33 other wordings: ``unseen``: those of 50 classes,
with the names of the other 50 as queries; ``known``: those of all 100, with all names as queries. ``towers`` combines
image and text towers of both models: recall at 1 and 10 of unseen names, and the share of photos whose nearest of the
100 known names is that of their class.
"""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import numpy as np

import bench_bridge
from common import arguments, write_json
from congruence import Bridge, Embeddings, Space, fit
from congruence.maps import Map
from dual_encoders import ASKED, Dual, Pair, anchor_rows, anchors_and_asked, classified, load

#: Image tower and text tower of each model.
TOWERS = {"old": ("MobileNet-v2", "MiniLM"), "new": ("EfficientNet-Lite0", "MPNet")}


def rotation(pair: Pair, new: Dual, old: Dual, seed: int, known: bool) -> tuple[Map, np.ndarray]:
    """Return a rotation of one model's texts into the other's space, and the classes used as queries."""
    learned, asked = anchors_and_asked(pair, seed, known)
    names = (anchor_rows(model.texts, learned) for model in (new, old))
    return fit(*names, "orthogonal", modality="text", check=False), asked


def bridged(pair: Pair, seed: int, known: bool) -> dict[str, Any]:
    """Search the old model's index with the new model's texts."""
    mapping, asked = rotation(pair, pair.new, pair.old, seed, known)
    names = [pair.classes[c] for c in asked]
    text, image = Space(modality="text"), Space(modality="image")
    data = {
        "mapping": mapping,
        "queries": Embeddings(pair.new.texts[asked, ASKED], ids=names, space=text),
        "queries_old": Embeddings(pair.old.texts[asked, ASKED], ids=names, space=text),
        "index": Embeddings(pair.old.photos, ids=pair.photos, space=image),
        "index_new": Embeddings(pair.new.photos, ids=pair.photos, space=image),
        "qrels": pair.judgments(asked),
    }
    return bench_bridge.measure(data, seed)


def crossed(pair: Pair, seed: int) -> dict[str, list[float]]:
    """Combine every image tower with every text tower."""
    models = {"old": pair.old, "new": pair.new}
    out = {}
    for images, texts in itertools.product(models, models):
        there, here = models[images], models[texts]
        queries = {}
        for known in (False, True):
            mapping, asked = rotation(pair, here, there, seed, known)
            rows = here.texts[asked, ASKED]
            queries[known] = rows if here is there else np.asarray(Bridge(mapping).transform(rows, "text"))
        _, asked = anchors_and_asked(pair, seed, known=False)
        near = queries[False] @ there.photos.T
        best = np.where(pair.label == asked[:, None], near, -np.inf).max(axis=1, keepdims=True)
        ahead = np.count_nonzero(near > best, axis=1)
        right = classified(queries[True], there.photos, pair.label)
        name = f"{TOWERS[images][0]} × {TOWERS[texts][1]}"
        out[name] = [*(float((ahead < k).mean()) for k in (1, 10)), right]
    return out


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("data", help="caltech101_unimodal.npz")
    parser.add_argument("--splits", type=int, default=3)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    found: dict[str, list[Any]] = {"unseen": [], "known": [], "towers": []}
    for seed in range(given.splits):
        pair = load(given.data, seed)
        for part in ("unseen", "known"):
            found[part].append(bridged(pair, seed, part == "known"))
        found["towers"].append(crossed(pair, seed))
    for part in ("unseen", "known"):
        print(f"{part} names")
        bench_bridge.show(found[part])
    for name in found["towers"][0]:
        mean = np.mean([run[name] for run in found["towers"]], axis=0)
        print(f"{name:36s} at 1 {mean[0]:.3f}, at 10 {mean[1]:.3f}, photos classified {mean[2]:.3f}")
    write_json(given, found)


if __name__ == "__main__":
    main()
