"""What to expect of a change of models: every pair of published models of ``../shared/data``, by the number of pairs.

    python benchmarks/expect.py ../shared/data --record expect

A map is fitted on n photos or texts. The index holds other items, and 100 queries, photos or texts, are items that
neither map nor index has seen (of texts, the photos' classes first). Columns: ``lists``, the overlap of a query's ten
first rows with those of an index of the new model's rows, and ``ndcg``, the same with gains 10 to 1 by the new model's
rank; ``item``, the share of queries whose own item is first once it is in the index; ``class``, the share of the ten
first rows that have the query's label.

Rows: old model (its queries, its index); new queries on the old index as it is, where the widths agree; the mapped
index; mapped queries on the old index; the mapped index with a random tenth re-embedded; 50 encodings for each query
(``LazySearch``, nothing re-embedded before); the new model; and, as a control, a map fitted on shuffled pairs. Beside
them the answers of ``certify`` from the same n items.
"""

from __future__ import annotations

import time
import warnings
import zlib
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from common import arguments, arrays, write_json
from congruence import LazySearch, certify, fit
from congruence.errors import CongruenceError, CongruenceWarning
from lazy import fresh
from readouts import World, worlds

PAIRS, QUERIES, K = (20, 50, 200, 900), 100, 10
MODALITY = {"photo": "image", "text": "text"}

#: Kind of change of each pair of models; what is not here (heads trained by us, texts without a partner) is left out.
KINDS = {
    "RN50→B/32": "same family, another architecture",
    "B/32→RN50": "same family, another architecture",
    "LVIS B/32→B/16": "same family, new size",
    "LVIS B/32→EVA": "another CLIP",
    "LVIS EVA→B/32": "another CLIP",
    "CLIP→FashionSigLIP": "CLIP to SigLIP",
    "FashionSigLIP→CLIP": "SigLIP to CLIP",
    "B/32, two libraries": "same weights, another library",
    "Caltech MobileNet→EfficientNet": "image classifiers",
    "Caltech EfficientNet→MobileNet": "image classifiers",
    "passages paraphrase-L6→L6": "text, same family",
    "passages BGE small→BGE base": "text, wider",
    "passages BGE base→MPNet": "text, another family",
    "passages L6→MPNet": "text, another family",
    "passages MPNet→E5": "text, another family",
    "names MPNet→MiniLM": "text, narrower",
    "names MiniLM→MPNet": "text, wider",
}


def load(folder: Path) -> list[tuple[World, np.ndarray | None]]:
    """Return the pairs of models, each with the labels of its photos, −1 where there is none."""
    fashion, caltech = arrays(folder / "fashionpedia1150_images.npz"), arrays(folder / "caltech101_unimodal.npz")
    garment = np.unique(fashion["garment"], return_inverse=True)[1]
    found = [(world, world.label) for world in worlds(folder) if world.name in KINDS and not world.one_item]
    found += [(world, None) for world in worlds(folder) if world.name in KINDS and world.one_item]
    found = [
        (w, garment[: len(w.new["photo"])] if "Fashion" in w.name or "libraries" in w.name else y) for w, y in found
    ]
    light, mobile = ({"photo": unit32(caltech[f"image_{key}"])} for key in ("effnet_lite0", "mobilenet_v2"))
    found.append((World("Caltech MobileNet→EfficientNet", mobile, light), caltech["label"]))
    found.append((World("Caltech EfficientNet→MobileNet", light, mobile), caltech["label"]))
    return sorted(found, key=lambda one: list(KINDS).index(one[0].name))


def unit32(X: np.ndarray) -> np.ndarray:
    X = np.asarray(X, np.float32)
    return X / np.linalg.norm(X, axis=1, keepdims=True)


@dataclass
class Cell:
    """An index and queries of one kind, in both models."""

    old: np.ndarray
    new: np.ndarray
    asked_old: np.ndarray
    asked_new: np.ndarray
    labels: tuple[np.ndarray, np.ndarray] | None

    def __post_init__(self) -> None:
        self.true = first(self.asked_new @ self.new.T)

    def judge(self, scores: np.ndarray, own: np.ndarray | None = None) -> dict[str, float]:
        """Score the lists of the index, and the queries' own rows beside them, from their similarities."""
        return self.judge_lists(first(scores), None if own is None else own > scores.max(axis=1))

    def judge_lists(self, lists: np.ndarray, item: np.ndarray | None = None) -> dict[str, float]:
        gains = np.zeros((len(lists), len(self.new)))
        np.put_along_axis(gains, self.true, np.arange(K, 0, -1.0)[None], axis=1)
        gained, weights = np.take_along_axis(gains, lists, axis=1), 1 / np.log2(np.arange(K) + 2)
        best = float(np.arange(K, 0, -1) @ weights)
        found = {"lists": float(np.mean(gained > 0)), "ndcg": float((gained @ weights).mean() / best)}
        if item is not None:
            found["item"] = float(np.mean(item))
        if self.labels is not None:
            rows, asked = self.labels
            known = asked >= 0
            found["class"] = float(np.mean(rows[lists[known]] == asked[known][:, None]))
        return found


def first(scores: np.ndarray) -> np.ndarray:
    return np.argsort(-scores, axis=1, kind="stable")[:, :K]


def cells(world: World) -> list[tuple[str, str]]:
    """Return what a map is fitted on and who asks; the index holds photos where there are any in both models."""
    kinds = world.modalities
    return [("photo", "photo"), ("photo", "text"), ("text", "text")] if len(kinds) == 2 else [(kinds[0], kinds[0])]


def measure(
    world: World, labels: np.ndarray | None, fitted: str, asking: str, n: int, seed: int
) -> dict[str, dict[str, Any]] | None:
    """Return the scores of every row of the table for one split; None if the pairs leave too few items."""
    rng = np.random.default_rng([seed, zlib.crc32(world.name.encode())])
    order = {k: rng.permutation(len(world.old[k])) for k in world.modalities}
    held = "photo" if "photo" in order else "text"
    if asking != held:  # the classes of the photos ask first
        assert labels is not None
        classes = rng.permutation(np.unique(labels[labels >= 0]))
        order[asking] = np.concatenate([classes, order[asking][~np.isin(order[asking], classes)]])
    asked, rest = order[asking][:QUERIES], order[fitted][QUERIES if fitted == asking else 0 :]
    known, index = rest[:n], (rest[n:] if fitted == held else order[held])[:2000]
    if len(known) < n or len(index) < 5 * K:
        return None
    X, Y = world.old[fitted][known], world.new[fitted][known]
    given: dict[str, Any] = {"modality": MODALITY[fitted], "queries": MODALITY[asking]}
    if fitted != asking:  # 300 unpaired texts
        more = order[asking][QUERIES:][:300], order[asking][QUERIES:][300:600]
        given["means"] = {MODALITY[asking]: (world.old[asking][more[0]], world.new[asking][more[1]])}
    elif fitted != held:
        given["means"] = {MODALITY[held]: (world.old[held][index], None)}
    backward = dict(given)  # of an index's rows only the old ones are known, which queries do not need
    backward["means"] = {kind: sides[::-1] for kind, sides in given.get("means", {}).items() if sides[1] is not None}
    mapping, back = fit(X, Y, **given), fit(Y, X, **backward)
    shuffled = fit(X, Y[rng.permutation(n)], check=False, **given)
    both = None
    if labels is not None:
        both = labels[index], labels[asked] if asking == held else np.where(np.isin(asked, labels), asked, -1)
    cell = Cell(
        world.old[held][index], world.new[held][index], world.old[asking][asked], world.new[asking][asked], both
    )
    own = asking == held  # the queries' own items can be put into the index

    def judge(queries: np.ndarray, rows: np.ndarray, own_rows: np.ndarray) -> dict[str, float]:
        return cell.judge(queries @ rows.T, np.einsum("ij,ij->i", queries, own_rows) if own else None)

    found: dict[str, dict[str, Any]] = {"old model": cell.judge(cell.asked_old @ cell.old.T)}
    if X.shape[1] == Y.shape[1]:
        found["unmapped"] = judge(cell.asked_new, cell.old, cell.asked_old)
    for name, one in (("shuffled pairs", shuffled), ("mapped index", mapping)):
        mapped = [unit32(one.transform(rows, modality=MODALITY[held])) for rows in (cell.old, cell.asked_old)]
        found[name] = judge(cell.asked_new, *mapped)
    queries = unit32(back.transform(cell.asked_new, modality=MODALITY[asking], role="query"))
    found["mapped queries"] = judge(queries, cell.old, cell.asked_old)
    part = rng.choice(len(index), len(index) // 10, replace=False)
    options: dict[str, Any] = {"check": False, "modality": MODALITY[held]}
    tenth = LazySearch(cell.old, mapping, lambda ids: cell.new[ids], limit=0, known=(part, cell.new[part]), **options)
    found["a tenth re-embedded"] = cell.judge_lists(fresh(tenth, cell.asked_new))
    found["50 encodings a query"] = cell.judge_lists(
        fresh(LazySearch(cell.old, mapping, lambda ids: cell.new[ids], budget=50, **options), cell.asked_new)
    )
    found["new model"] = cell.judge(cell.asked_new @ cell.new.T)
    if own:
        found["verdict"] = verdict(X, Y, MODALITY[held])
    return found


def verdict(X: np.ndarray, Y: np.ndarray, modality: str) -> dict[str, Any]:
    """Return what ``certify`` says from the pairs, and how long it takes."""
    begun = time.process_time()
    try:
        said = certify(X, Y, modality=modality)
    except CongruenceError as error:
        return {"answer": type(error).__name__}
    return {"answer": said.verdict.action, "seconds": time.process_time() - begun}


def table(runs: list[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Return means over splits with their standard errors, and how often each answer was given."""
    found: dict[str, Any] = {}
    for name in runs[0]:
        if name == "verdict":
            answers = [run[name]["answer"] for run in runs]
            found[name] = {one: answers.count(one) for one in sorted(set(answers))}
            continue
        found[name] = {}
        for column in runs[0][name]:
            values = [run[name][column] for run in runs]
            found[name][column] = [float(np.mean(values)), float(np.std(values, ddof=1) / len(values) ** 0.5)]
    return found


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("../shared/data"))
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--only", help="a part of the names of pairs of models")
    options = parser.parse_args()
    warnings.simplefilter("ignore", CongruenceWarning)
    results: dict[str, Any] = {}
    for world, labels in load(options.folder):
        if options.only is not None and options.only not in world.name:
            continue
        for (fitted, asking), n in product(cells(world), PAIRS):
            seeds = range(500, 500 + options.splits)
            runs = [run for seed in seeds if (run := measure(world, labels, fitted, asking, n, seed))]
            if not runs:
                continue
            name = f"{world.name}, {n} {fitted}s, asked by {asking}s"
            results[name] = table(runs)
            print(f"{name} ({KINDS[world.name]})", flush=True)
            for row, columns in results[name].items():
                cell = (f"{c} {v}" if row == "verdict" else f"{c} {v[0]:.3f} ± {v[1]:.3f}" for c, v in columns.items())
                print(f"  {row:22s}", "  ".join(cell), flush=True)
    write_json(options, results)


if __name__ == "__main__":
    main()
