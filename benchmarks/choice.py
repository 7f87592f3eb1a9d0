"""Is the map that ``congruence fit`` chooses the best at hand, for the modality it was fitted on and for the other?

``python benchmarks/choice.py --data ../shared/data``. A map is fitted on n pairs of one modality and measured on items of which
it has seen nothing: mapped rows look for their own among the target's (own, forth), the target's among mapped ones (own, back), mapped rows of the other
modality for the target's row of the fitted one (other, forth), and the latter among the former (other, back). The target's mean of the
other modality is not given. On Caltech-101 the pairs are photos and the other modality is 100 class texts: "other, forth" classifies
the target's photos by mapped texts, and "other, back" is whether the nearest photo of a mapped text is of its class.

"chosen" is ``fit`` without any row of the other modality but for a mean, "chosen, other modality seen" has rows of the other modality by the
source model that share the pairs' ids, which is evidence. All maps are searched with plain cosines. Means and standard errors over splits;
"behind" is the paired difference to the best of the others that are fitted without that evidence.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

import congruence
from congruence import Embeddings, LinearMap, OrthogonalMap
from congruence.datasets import load_sample
from congruence.metrics import class_retrieval, ensemble_prompts, zero_shot_accuracy
from congruence.papers.canonical.sample_data import open_sample
from machine_output import add_json, write_json

ANCHORS = (20, 50, 100, 200, 900)
MEASURES = ("own, forth", "own, back", "other, forth", "other, back")


class World(NamedTuple):
    """Two models: pairs of one modality, and rows of the other.

    ``other`` and ``other_item`` are rows of the other modality by the source model and the item each belongs to; where there are labels,
    ``other`` has a row a class instead.
    """

    name: str
    source: np.ndarray
    target: np.ndarray
    other: np.ndarray
    other_item: np.ndarray
    label: np.ndarray | None
    tested: int


WORLDS = ("lvis-eva", "lvis-openai", "sample", "caltech")


def open_world(name: str, folder: Path) -> World:
    if name.startswith("lvis"):
        return lvis(name, folder)
    return sample() if name == "sample" else caltech(folder)


def lvis(name: str, folder: Path) -> World:
    key, words = {
        "lvis-eva": ("text_eva02_b16", "LVIS → EVA-02 B/16"),
        "lvis-openai": ("text_openai_vitb16", "LVIS → OpenAI B/16"),
    }[name]
    with np.load(folder / "lvis1203_clip.npz", allow_pickle=False) as data:
        arrays = {key: data[key].astype(np.float64) for key in data.files if key != "names"}
    source, images = arrays["text_openai_vitb32"], arrays["image_openai_vitb32_avg5"]
    return World(words, source, arrays[key], images, np.arange(len(source)), None, 303)


def sample() -> World:
    data = load_sample()
    source, target = (data.side(side) for side in ("source", "target"))
    texts = source["text"].vectors.astype(np.float64), target["text"].vectors.astype(np.float64)
    return World("sample", *texts, source["image"].vectors.astype(np.float64), np.arange(len(texts[0])), None, 600)


def caltech(folder: Path) -> World:
    towers = open_sample("caltech101", folder / "caltech101_unimodal.npz")
    a, b = (towers.models[k] for k in towers.pairs[0])
    prompts = [ensemble_prompts(m.prompts, towers.prompt_labels)[0] for m in (a, b)]
    return World(
        "Caltech-101 towers (photos)", a.images, b.images, prompts[0], np.arange(len(prompts[0])), towers.labels, 1500
    )


def maps(world: World, train: np.ndarray, seen: np.ndarray) -> Iterator[tuple[str, object]]:
    """Yield each method's map, with a mean of the other modality where it takes one; ``seen`` are rows of the other modality."""
    X, Y, Z = world.source[train], world.target[train], world.other[seen]
    yield "fixed (default before)", OrthogonalMap().fit(X, Y, modality="text").recenter(Z, modality="image")
    yield "`center=False`", OrthogonalMap(center=False).fit(X, Y, modality="text")
    yield "ridge, GCV", LinearMap().fit(X, Y)
    if len(X) > X.shape[1] + 1:
        yield "least squares (affine)", LinearMap(ridge=0.0).fit(X, Y)
    yield "chosen", congruence.fit(X, Y, modality="text", means={"image": (Z, None)}, check=False)
    if world.label is None:
        ids = [np.char.add("item ", rows.astype(str)) for rows in (train, world.other_item[seen])]
        pairs = [Embeddings(rows, ids=ids[0]) for rows in (X, Y)]
        rows = Embeddings(Z, ids=ids[1])
        yield (
            "chosen, other modality seen",
            congruence.fit(*pairs, modality="text", means={"image": (rows, None)}, check=False),
        )


def measure(world: World, mapping: object, test: np.ndarray) -> list[float]:
    X, Y = world.source[test], world.target[test]
    own = np.arange(len(test))
    moved = mapping.for_modality("text").transform(X)
    out = [class_retrieval(moved, Y, own), class_retrieval(Y, moved, own)]
    if world.label is not None:
        prototypes = mapping.for_modality("image").transform(world.other)
        kinds = np.arange(len(prototypes))
        back = class_retrieval(prototypes, Y, kinds, world.label[test])
        return [*out, zero_shot_accuracy(Y, prototypes, world.label[test]), back]
    place = np.full(len(world.source), -1)
    place[test] = own
    rows = np.flatnonzero(place[world.other_item] >= 0)
    mapped = mapping.for_modality("image").transform(world.other[rows])
    wanted = place[world.other_item[rows]]
    return [*out, class_retrieval(mapped, Y, wanted, own), class_retrieval(Y, mapped, own, wanted)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--only", nargs="+", choices=WORLDS, default=WORLDS)
    parser.add_argument("--anchors", nargs="+", type=int, default=ANCHORS)
    parser.add_argument("--splits", type=int, default=5)
    add_json(parser)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    tables = []
    for key in options.only:
        world = open_world(key, options.data)
        found: dict[tuple[int, str], list[list[float]]] = {}
        chosen: dict[tuple[int, str], list[str]] = {}
        for split in range(options.splits):
            order = np.random.default_rng(split).permutation(len(world.source))
            test, pool = order[: world.tested], order[world.tested :]
            seen = (
                np.arange(len(world.other))
                if world.label is not None
                else np.flatnonzero(np.isin(world.other_item, pool))
            )
            for n in options.anchors:
                for name, mapping in maps(world, pool[:n], seen):
                    found.setdefault((n, name), []).append(measure(world, mapping, test))
                    if "choice" in mapping.scores_:
                        chosen.setdefault((n, name), []).append(mapping.scores_["choice"]["name"])
        rows = []
        for (n, name), values in found.items():
            scores = np.array(values)
            rivals = [
                np.array(others)
                for (m, other), others in found.items()
                if m == n and other != name and not other.startswith("chosen")
            ]
            behind, error = [], []
            for k in range(len(MEASURES)):
                best = max(rivals, key=lambda other: other[:, k].mean())[:, k]
                behind.append(float((best - scores[:, k]).mean()))
                error.append(float((best - scores[:, k]).std(ddof=1) / np.sqrt(len(scores))))
            row = {"n": n, "map": name, "mean": scores.mean(axis=0).tolist(), "behind": behind, "error": error}
            row["se"] = (scores.std(axis=0, ddof=1) / np.sqrt(len(scores))).tolist()
            if (n, name) in chosen:
                row["chosen"] = {one: chosen[n, name].count(one) for one in sorted(set(chosen[n, name]))}
            rows.append(row)
            print(world.name, n, f"{name:28s}", *(f"{v:.3f}" for v in row["mean"]), row.get("chosen", ""), flush=True)
        tables.append({"data": world.name, "splits": options.splits, "rows": rows})
    write_json(options, tables)


if __name__ == "__main__":
    main()
