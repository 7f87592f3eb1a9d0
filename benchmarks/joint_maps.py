"""Ways to join two models, all under one budget of labels: the tables in docs/research/sotalign.md.

A row of a table has seen n pairs and no other label. *Default*: the method as it comes, on all n. *Tuned*: its grid is
searched by three folds of the n pairs (mean reciprocal rank of left-out pairs among these and the pool), then all n are
used. Test rows are searched among 1,000 that nothing has seen. Pools are disjoint (no item on both sides) or common
(the same items on both, in another order). All rows are reduced to 128 principal directions of pairs and pools, which
needs no label. Every result is written to ``--results`` as soon as it is known, and is not computed again.

Kinds: ``photos`` and ``texts`` of ``caltech101_unimodal.npz``, each by two encoders; ``images-texts``, class images by
CLIP B/32's image encoder and names by EVA-02 B/16's text encoder, of ``lvis1203_clip.npz``; ``photos-names``, one photo
a class and its name by encoders that know nothing of each other, of ``imagenet1000_unimodal.npz``.
"""

from __future__ import annotations

import itertools
import json
import time
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from common import arguments, write_json
from congruence._utils.arrays import normalize_rows as unit
from congruence.errors import CongruenceWarning
from congruence.maps.refinement import leading_directions
from congruence.train import make_method
from congruence.train.retrieval import left_out_ranks, mean_recall
from congruence.train.rows import fold_numbers

#: The two encoders of each kind of rows, and the number of test rows.
KINDS = {
    "photos": ("image_effnet_lite0", "image_mobilenet_v2", 1000),
    "texts": ("text_mpnet", "text_minilm_l6", 1000),
    "images-texts": ("image_openai_vitb32_avg5", "text_eva02_b16", 300),
    "photos-names": ("image_effnet_lite0", "text_mpnet", 300),
}
SHORT = {"max_steps": 300, "n_components": 128, "folds": 3, "validate_every": 50}
RATES = [{"learning_rate": rate} for rate in (1e-4, 1e-3, 1e-2)]
#: The grid of each method: parameters that its paper searches over, or the learning rate.
GRIDS: dict[str, list[dict[str, Any]]] = {
    "cca": [{"ridge": ridge} for ridge in (0.1, 1, 10, 100)],
    "weighted_cca": [{"ridge": ridge} for ridge in (0.1, 1, 10, 100)],
    "csa": [{"ridge": ridge} for ridge in (0.1, 1, 10, 100)],
    "procrustes": [{"n_components": width} for width in (16, 32, None)],
    "self_trained": [],
    "sotalign": [{"divergence_weight": weight} for weight in (0.2, 2.0, 20.0)],
    "sail": [{**SHORT, **rate} for rate in RATES],
    "structure": [{**SHORT, **rate} for rate in RATES],
    "nnclr": [{**SHORT, **rate} for rate in RATES],
    "sclip": [{**SHORT, **rate} for rate in RATES],
    "contrastive": [{**SHORT, **rate} for rate in RATES],
    "sue": [],
}
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
#: Methods that learn from unpaired rows.
UNPAIRED = ("self_trained", "sotalign", "nnclr", "sclip", "sue")


def read(file: str, kind: str) -> tuple[np.ndarray, np.ndarray]:
    with np.load(file, allow_pickle=False) as data:
        sides = [data[name].astype(np.float32) for name in KINDS[kind][:2]]
    return tuple(side.reshape(-1, side.shape[-1]) for side in sides)  # type: ignore[return-value]


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


def fit(name: str, parameters: dict[str, Any], pairs: Any, pools: Any, seed: int) -> Any:
    name, _, part = name.partition(", ")
    method = make_method(name, **parameters, **ABLATION.get(part, {}))
    if "random_state" in method.get_params():
        method.set_params(random_state=seed)
    rows = {"unpaired": pools} if name in UNPAIRED else {}
    return method.fit(*pairs, **rows, verbose=False)


def tuned(name: str, pairs: Any, pools: Any, seed: int) -> dict[str, Any]:
    """Return the point of the method's grid that finds left-out pairs best."""
    labels = np.arange(len(pairs[0]))
    fold = fold_numbers(labels, 3, seed)
    quality = []
    for point in GRIDS[name]:
        scores = []
        for k in range(3):
            out = fold == k
            plain = {**point, "folds": None} if "folds" in point else point
            mapping = fit(name, plain, [side[~out] for side in pairs], pools, seed)
            functions = (mapping.transform, mapping.transform_target) * 2
            a, b, u, v = (unit(f(rows)) for f, rows in zip(functions, (*pairs, *pools), strict=True))
            scores.append(left_out_ranks((a[out], b[out]), (u, v), labels[out])[:, 0])
        quality.append(float(np.concatenate(scores).mean()))
    return GRIDS[name][int(np.argmax(quality))]


def measure(name: str, mode: str, drawn: Any, seed: int) -> dict[str, Any]:
    pairs, pools, test = drawn
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CongruenceWarning)
        point = tuned(name, pairs, pools, seed) if mode == "tuned" else {}
        mapping = fit(name, point, pairs, pools, seed)
    seconds = time.process_time() - start
    mapped = mapping.transform(test[0]), mapping.transform_target(test[1])
    banks = mapping.banks_ or tuple(
        unit(f(rows)) for f, rows in ((mapping.transform, pools[0]), (mapping.transform_target, pools[1]))
    )
    scores = {"plain": 100 * mean_recall(*mapped), "csls": 100 * mean_recall(*mapped, banks=banks)}
    if name.startswith("self_trained"):
        facts = mapping.scores_["self_training"]
        scores |= {"matches": facts["matches"], "rounds": facts["rounds"], "expected": facts.get("gain")}
    if name == "sotalign":
        scores["steps"] = mapping.history_.steps
    return {**scores, "seconds": seconds, **{key: value for key, value in point.items() if key not in SHORT}}


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
    parser.add_argument("file", help="the .npz file of the kind")
    parser.add_argument("--results", type=Path, default=Path("joint-maps.jsonl"))
    parser.add_argument("--kind", choices=KINDS, default="photos")
    parser.add_argument("--pairs", type=int, nargs="+", default=[50])
    parser.add_argument("--pool", type=int, nargs="+", default=[500])
    parser.add_argument("--pools", choices=("disjoint", "common"), nargs="+", default=["disjoint", "common"])
    names = [*GRIDS, *(f"self_trained, {part}" for part in ABLATION)]
    parser.add_argument("--methods", nargs="+", choices=names, default=list(GRIDS), metavar="NAME")
    parser.add_argument("--ablation", action="store_true", help="parts of self-training instead of methods")
    parser.add_argument("--modes", choices=("default", "tuned"), nargs="+", default=["default", "tuned"])
    parser.add_argument("--splits", type=int, default=3)
    options = parser.parse_args()
    if options.ablation:
        options.methods = names[len(GRIDS) :]
    keys = ("kind", "pairs", "pool", "common", "method", "mode", "split")
    done: list[dict[str, Any]] = []
    if options.results.exists():
        done = [json.loads(line) for line in options.results.read_text().splitlines()]
    known = {tuple(one[name] for name in keys) for one in done}
    sides = read(options.file, options.kind)
    draws: dict[tuple[Any, ...], Any] = {}
    for method, mode, pools, pairs, pool, split in itertools.product(
        options.methods, options.modes, options.pools, options.pairs, options.pool, range(options.splits)
    ):
        key = (options.kind, pairs, pool, pools == "common", method, mode, split)
        if key in known or (mode == "tuned" and not GRIDS.get(method)):
            continue
        where = pairs, pool, pools == "common", split
        if where not in draws:
            draws[where] = divide(sides, KINDS[options.kind][2], *where)
        done.append({**dict(zip(keys, key, strict=True)), **measure(method, mode, draws[where], split)})
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
