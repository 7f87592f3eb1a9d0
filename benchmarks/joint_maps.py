"""Ways to join two models, all under one budget of labels: the tables in docs/research/sotalign.md.

A row of a table has seen n pairs and no other label. *Default*: the method as it comes, on all n. *Tuned*: ``tune``
chooses among settings, the default one included, by folds of the n pairs, left out and searched among the pool, and
then all n are used. Test rows are searched among others that nothing has seen. Pools are disjoint (no item on both
sides) or common (the same items on both, in another order). All rows are reduced to 128 principal directions of pairs
and pools, which needs no label.

``PLAN`` lists what is run, the cheapest and most telling first. Every result is appended to ``--results`` as soon as it
is known, and is not computed again. Give the folder of the data.

``--rows N`` measures the cost of ``SelfTrainedMap`` instead: 50 pairs and N unpaired rows a side in files of 128
numbers a row, each a photo of a disjoint pool plus normal noise of a fifth of its length. ``mb`` is the peak of the
memory that belongs to the process alone, without the mapped files, above what it had before.
"""

from __future__ import annotations

import itertools
import json
import tempfile
import threading
import time
import warnings
from collections import defaultdict
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from common import arguments, write_json
from congruence._utils.arrays import normalize_rows as unit
from congruence.errors import CongruenceWarning
from congruence.maps.refinement import leading_directions
from congruence.train import make_method
from congruence.train.retrieval import mean_recall
from congruence.train.tuning import tune

#: The file of each kind of rows, its two encoders, and the number of test rows. ``images-texts``: class images and
#: names, by encoders that learned from images with texts; ``photos-names``: by encoders trained apart.
KINDS = {
    "photos": ("caltech101_unimodal", "image_effnet_lite0", "image_mobilenet_v2", 1000),
    "texts": ("caltech101_unimodal", "text_mpnet", "text_minilm_l6", 1000),
    "images-texts": ("lvis1203_clip", "image_openai_vitb32_avg5", "text_eva02_b16", 300),
    "photos-names": ("imagenet1000_unimodal", "image_effnet_lite0", "text_mpnet", 300),
}
#: At this learning rate, 300 steps find as much as 2,000 at the default one, on a split that is in no table.
SHORT = {"max_steps": 300, "folds": 3, "validate_every": 50}
RATES = [3e-4, 1e-3, 3e-3]
RIDGES = {"ridge": [0.1, 1, 10, 100]}
#: The grid of each method: what its paper or SOTAlign's authors search over, and the learning rate. Heads choose among
#: these in short runs, and their defaults.
GRIDS: dict[str, dict[str, list[Any]]] = {
    "procrustes": {"n_components": [None, 16, 32]},
    "cca": RIDGES,
    "weighted_cca": RIDGES,
    "csa": {"ridge": [0.0, *RIDGES["ridge"]]},
    "self_trained": {},
    "sotalign": {"divergence_weight": ["auto", 2.0, 20.0]},
    "sail": {"n_components": [512], "learning_rate": RATES},
    "structure": {"n_components": [512], "learning_rate": [1e-3, 3e-3], "weight": [1.0, 10.0]},
    "nnclr": {"n_components": [512], "learning_rate": [1e-3], "text_weight": [0.1, 1.0], "image_weight": [0.1, 1.0]},
    "sclip": {"n_components": [512], "learning_rate": [1e-3], "assignment": ["soft"], "image_weight": [0.1, 1.0]},
    "contrastive": {"n_components": [256], "hidden": [256], "learning_rate": RATES},
    "sue": {"n_components": [16], "spectral_steps": [300]},
}
CLOSED, HEADS = ("procrustes", "cca", "weighted_cca", "csa"), ("sail", "structure", "nnclr", "contrastive")
#: These take a minute a fit, and choose by one part of the pairs, a fifth, in place of three folds.
SLOW = ("sclip", "sue")
#: Parts of self-training, left out or changed.
ABLATION: dict[str, dict[str, Any]] = {
    "soft": {"matches": "soft"},
    "hard": {"matches": "hard"},
    "one round": {"max_rounds": 1},
    "two rounds": {"max_rounds": 2},
    "ten rounds": {"max_rounds": 10},
    "temperature 0.05": {"temperature": 0.05},
    "temperature 0.2": {"temperature": 0.2},
}


SETTING = ("kind", "pairs", "pool", "common", "split")


class Part(NamedTuple):
    """Settings and methods of which all combinations are run."""

    kind: str
    pairs: tuple[int, ...]
    pool: tuple[int, ...]
    methods: tuple[str, ...]
    modes: tuple[str, ...] = ("default", "tuned")
    pools: tuple[str, ...] = ("disjoint", "common")


BUDGETS = 10, 20, 50, 100, 200, 1000
LINEAR = ("procrustes", "weighted_cca", "self_trained")
PLAN = (
    Part("photos", (50,), (500,), (*CLOSED, "self_trained")),
    # 6,000 are all photos that are left for pools in common, 3,100 those for each of two.
    Part("photos", BUDGETS, (6000,), LINEAR[1:], ("default",), ("common",)),
    Part("photos", (50,), (500,), SLOW, ("default",)),
    Part("images-texts", (50,), (400,), (*CLOSED, "self_trained")),
    Part("photos-names", (50, 200), (200,), (*CLOSED, "self_trained")),
    Part("texts", (50,), (500,), (*CLOSED, "self_trained")),
    Part("photos", (50,), (500,), ("sotalign",)),
    Part("photos", (50,), (500,), ("sail", "structure"), ("tuned",), ("disjoint",)),
    Part("photos", (50,), (500,), SLOW, ("tuned",), ("disjoint",)),
    Part("photos", BUDGETS, (3100,), LINEAR[1:], ("default",), ("disjoint",)),
    Part("photos", (50,), (500,), ("nnclr", "contrastive"), ("tuned",), ("disjoint",)),
    Part("photos", (50,), (500,), HEADS, ("tuned",), ("common",)),
    Part("photos", (50,), (500,), SLOW, ("tuned",), ("common",)),
    Part("images-texts", (50,), (400,), ("sotalign",), ("default",)),
    Part("photos", BUDGETS, (500,), LINEAR, ("default",)),
    Part("photos", BUDGETS, (100, 2000), LINEAR, ("default",), ("disjoint",)),
    Part("photos", (50,), (100, 2000), LINEAR, ("default",), ("common",)),
    Part("photos", (50,), (500,), tuple(f"self_trained, {part}" for part in ABLATION), ("default",)),
    Part("photos", (50,), (500,), HEADS, ("default",)),
    Part("photos", (200,), (2000,), ("sotalign",), ("default",), ("disjoint",)),
    Part("images-texts", (50,), (400,), ("sail",), ("default",)),
)


def cells(splits: int) -> Iterator[dict[str, Any]]:
    """Yield what is run, in order: all splits of a setting and a method together."""
    for part in PLAN:
        for method, mode, *setting in itertools.product(part.methods, part.modes, part.pools, part.pairs, part.pool):
            if mode == "default" or GRIDS[method]:
                pools, pairs, pool = setting
                for split in range(splits):
                    where = {"kind": part.kind, "pairs": pairs, "pool": pool, "common": pools == "common"}
                    yield {**where, "method": method, "mode": mode, "split": split}


def divide(
    sides: Any, tests: int, pairs: int, pool: int, common: bool, seed: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return pairs, pools and test rows of both sides, reduced to the principal directions of pairs and pools."""
    rng = np.random.default_rng([seed, 47])
    test, paired, rest = np.split(rng.permutation(len(sides[0])), [tests, tests + pairs])
    if len(rest) < pool * (1 if common else 2):
        raise SystemExit(f"{len(rest)} rows are left for pools of {pool}.")
    u = rest[:pool]
    v = rng.permutation(u) if common else rest[pool : 2 * pool]
    out = []
    for side, loose in zip(sides, (u, v), strict=True):
        parts = [unit(side[part]) for part in (paired, loose, test)]
        known = np.concatenate(parts[:2])
        mean, basis = known.mean(axis=0), leading_directions(known, 128)
        out.append([(rows - mean) @ basis for rows in parts])
    return list(zip(*out, strict=True))


@cache
def read(folder: Path, kind: str) -> list[np.ndarray]:
    file, *encoders, _ = KINDS[kind]
    with np.load(folder / f"{file}.npz", allow_pickle=False) as data:
        sides = [data[name].astype(np.float32) for name in encoders]
    return [side.reshape(-1, side.shape[-1]) for side in sides]


@lru_cache(maxsize=6)
def draw(folder: Path, kind: str, *setting: Any) -> list[tuple[np.ndarray, np.ndarray]]:
    return divide(read(folder, kind), KINDS[kind][-1], *setting)


def measure(cell: dict[str, Any], drawn: Any) -> dict[str, Any]:
    pairs, pools, test = drawn
    name, _, part = cell["method"].partition(", ")
    method = make_method(name, **ABLATION.get(part, {}))
    if "random_state" in method.get_params():
        method.set_params(random_state=cell["split"])
    start, point = time.process_time(), {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CongruenceWarning)
        if cell["mode"] == "tuned":
            tries: list[tuple[dict[str, Any], Any]] = [({}, GRIDS[name])]
            if name in (*HEADS, *SLOW):
                tries = [({"folds": SHORT["folds"]}, {}), (SHORT, GRIDS[name])]
            options = {"unpaired": pools, "verbose": False, "validation": 0.2 if name in SLOW else None}
            found = [tune(method.set_params(**own), grid, *pairs, **options) for own, grid in tries]
            best = max(found, key=lambda one: one.score)
            mapping, point = best.map, {"try": found.index(best), **best.parameters}
        else:
            mapping = method.fit(*pairs, unpaired=pools, verbose=False)
    seconds = time.process_time() - start
    mapped = mapping.transform(test[0]), mapping.transform_target(test[1])
    banks = mapping.banks_ or tuple(
        unit(f(rows)) for f, rows in ((mapping.transform, pools[0]), (mapping.transform_target, pools[1]))
    )
    scores = {"plain": 100 * mean_recall(*mapped), "csls": 100 * mean_recall(*mapped, banks=banks)}
    if name == "self_trained":
        facts = mapping.scores_["self_training"]
        scores |= {name: facts.get(name) for name in ("matches", "rounds", "hubness", "gain")}
    if "steps" in mapping.facts_:
        scores["steps"] = mapping.facts_["steps"]
    return {**scores, "seconds": seconds, **point}


def large(folder: Path, n: int) -> dict[str, Any]:
    """Return the seconds, the memory and the retrieval of unseen photos of a map from n unpaired rows a side."""
    pairs, pools, test = draw(folder, "photos", 50, 3500, False, 0)
    with tempfile.TemporaryDirectory() as place:
        files = []
        for side, pool in enumerate(pools):
            rng = np.random.default_rng([47, side])
            file = np.lib.format.open_memmap(f"{place}/{side}.npy", "w+", np.float32, (n, pool.shape[1]))
            for start in range(0, n, 50_000):
                rows = pool[rng.integers(len(pool), size=min(50_000, n - start))]
                noise = rng.standard_normal(rows.shape, np.float32) * np.linalg.norm(rows, axis=1, keepdims=True)
                file[start : start + len(rows)] = rows + noise * np.float32(0.2 / pool.shape[1] ** 0.5)
            file.flush()
            del file
            files.append(np.load(f"{place}/{side}.npy", mmap_mode="r"))
        before, peak, done = own_mb(), [0.0], threading.Event()

        def watch() -> None:
            while not done.wait(0.02):
                peak[0] = max(peak[0], own_mb())

        watcher = threading.Thread(target=watch)
        watcher.start()
        start = time.process_time()
        mapping = make_method("self_trained").fit(*pairs, unpaired=tuple(files))
        seconds = time.process_time() - start
        done.set()
        watcher.join()
    mapped = mapping.transform(test[0]), mapping.transform_target(test[1])
    scores = {"plain": 100 * mean_recall(*mapped), "csls": 100 * mean_recall(*mapped, banks=mapping.banks_)}
    return {"rows": n, "seconds": seconds, "mb": peak[0] - before, **scores, **mapping.choice_._asdict()}


def own_mb() -> float:
    """Return the memory of this process that is no file's."""
    return int(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0]) / 1024


def table(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the mean and standard error over the splits of each setting, method and mode."""
    groups = defaultdict(list)
    for one in results:
        groups[tuple(one[key] for key in ("kind", "pairs", "pool", "common", "method", "mode"))].append(one)
    lines = []
    for key, ones in groups.items():
        line = dict(zip(("kind", "pairs", "pool", "common", "method", "mode"), key, strict=True))
        for name in ("plain", "csls", "seconds"):
            values = np.array([one[name] for one in ones])
            error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else float("nan")
            line |= {name: float(values.mean()), f"{name}_error": float(error)}
        lines.append({**line, "splits": len(ones)})
    return lines


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("folder", type=Path, help="the data")
    parser.add_argument("--results", type=Path, default=Path("joint-maps.jsonl"))
    parser.add_argument("--methods", nargs="+", choices=GRIDS, default=list(GRIDS), metavar="NAME")
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--rows", type=int, help="measure one map from so many unpaired rows a side")
    options = parser.parse_args()
    if options.rows:
        found = large(options.folder, options.rows)
        print(json.dumps(found))
        write_json(options, found)
        return
    done: list[dict[str, Any]] = []
    if options.results.exists():
        done = [json.loads(line) for line in options.results.read_text().splitlines()]
    for cell in cells(options.splits):
        if any(cell.items() <= one.items() for one in done) or cell["method"].split(",")[0] not in options.methods:
            continue
        done.append({**cell, **measure(cell, draw(options.folder, *(cell[name] for name in SETTING)))})
        with options.results.open("a") as file:
            file.write(json.dumps(done[-1]) + "\n")
        print(json.dumps(done[-1]), flush=True)
    lines = table(done)
    for line in lines:
        print(
            f"| {line['kind']}, {line['pairs']} pairs, {line['pool']} {'common' if line['common'] else 'disjoint'} | "
            f"{line['method']}, {line['mode']} | {line['plain']:.1f} ± {line['plain_error']:.1f} | "
            f"{line['csls']:.1f} ± {line['csls_error']:.1f} | {line['seconds']:.1f} | {line['splits']} |"
        )
    write_json(options, lines)


if __name__ == "__main__":
    main()
