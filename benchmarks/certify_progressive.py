"""Accuracy of the share that ``certify`` recommends to re-embed: its forecast compared with an actual progressive
migration of other items.

A few hundred items encoded by both models are certified. Thousands of other items are the store: the certified map maps
them, and `congruence.upgrade.progressive.Progressive` re-embeds them batch by batch, refitting the map. At several
shares, three scores are compared: the forecast, the same store re-embedded in the same order without refitting, and the
actual run, which the forecast predicts. The share said to be needed is compared with the share at which the run reached
the required score.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench_progressive import caltech
from common import arguments, write_json
from congruence import Embeddings
from congruence.datasets import load_sample
from congruence.synthetic import upgrade_problem
from congruence.upgrade.certify import Certificate, certify
from congruence.upgrade.progressive import Progressive

#: Shares of the store at which scores are compared.
AT = (0.1, 0.2, 0.3)

CLASSES = 20


def pair(seed: int) -> dict[str, Any]:
    """Draw the parameters of a pair of models in which the newer one is better."""
    rng = np.random.default_rng(seed)
    return {
        "source_noise": float(rng.uniform(0.8, 1.3)),
        "target_noise": float(rng.uniform(0.3, 0.7)),
        "shared": float(rng.uniform(0.3, 0.9)),
        "spread": float(rng.uniform(0.4, 0.6)),
        "decay": 0.2,
        "classes": CLASSES,
    }


def first_share(shares: np.ndarray, scores: np.ndarray, wanted: float) -> float | None:
    """Return the smallest share at which a score is reached, interpolated linearly between stages."""
    enough = np.flatnonzero(scores >= wanted)
    if not len(enough):
        return None
    k = int(enough[0])
    if k == 0:
        return 0.0
    return float(shares[k - 1] + (shares[k] - shares[k - 1]) * (wanted - scores[k - 1]) / (scores[k] - scores[k - 1]))


@dataclass
class Items:
    """Items in both models with the descriptions of their classes."""

    name: str
    old: np.ndarray
    new: np.ndarray
    prompts: tuple[np.ndarray, np.ndarray]
    labels: np.ndarray


def simulated(seed: int, n: int) -> Items:
    p = upgrade_problem(n, 32, random_state=seed, **pair(seed))
    old, new = (
        np.stack([side[p.labels == k].mean(axis=0) for k in range(CLASSES)])
        for side in (p.source_texts, p.target_texts)
    )
    return Items(f"simulated {seed}", p.source_images, p.target_images, (old, new), p.labels)


def photos(folder: Path, seed: int, cache: Path | None) -> Items:
    """Return Caltech-101 encoded by two separately trained dual encoders, and the class names used as queries."""
    case = caltech(folder, seed, cache)
    return Items(f"Caltech-101, split {seed}", case.old, case.new, (case.queries_old, case.queries), case.labels)


def run(items: Items, n_anchors: int, seed: int) -> dict[str, Any]:
    """Certify on some items, and migrate the others."""
    shuffled = np.random.default_rng([seed, 5]).permutation(len(items.old))
    here, store = np.split(shuffled, [n_anchors])
    names, ids = [f"class {k}" for k in range(len(items.prompts[0]))], [str(i) for i in here]
    sides = [
        {"image": Embeddings(images[here], ids=ids), "text": Embeddings(texts, ids=names)}
        for images, texts in zip((items.old, items.new), items.prompts, strict=True)
    ]
    labels = {one: names[k] for one, k in zip(ids, items.labels[here], strict=True)}
    found = certify(*sides, labels=labels, random_state=seed, rows=len(store), seen=True)  # the plan is given the texts
    mapping = found.fit()
    old, new, own = items.old[store], items.new[store], items.labels[store]

    def accuracy(rows: np.ndarray, model: int = 1) -> float:
        return float(np.mean(np.argmax(rows @ items.prompts[model].T, axis=1) == own))

    def plan() -> Progressive:
        texts, new_texts = items.prompts
        return Progressive(mapping, old, texts=texts, new_texts=new_texts, random_state=seed, modality="image")

    wanted = max(found.thresholds.retention * accuracy(new), accuracy(old, 0) + found.thresholds.worth)
    return {"items": items.name, **compare(found, plan, new, accuracy, wanted)}


def emoji(seed: int) -> dict[str, Any]:
    """Certify the sample's pictures and captions with others as queries, and migrate the rest: galleries of equal size,
    without texts, since captions are the queries.
    """
    sample = load_sample("emoji")
    models = [{kind: side[kind].vectors for kind in ("image", "text")} for side in (sample.source, sample.target)]
    n = len(models[0]["image"])
    here, asked, store = np.split(np.random.default_rng([seed, 5]).permutation(n), [400, 400 + (n - 400) // 2])

    def side(rows: np.ndarray) -> list[dict[str, Embeddings]]:
        return [{kind: Embeddings(v[rows], ids=[str(i) for i in rows]) for kind, v in m.items()} for m in models]

    found = certify(*side(here), queries=side(asked), random_state=seed, rows=len(store))
    mapping = found.fit()
    old, new = (model["image"][store] for model in models)

    def recall(rows: np.ndarray, model: int = 1) -> float:
        return float(np.mean(np.argmax(models[model]["text"][store] @ rows.T, axis=1) == np.arange(len(store))))

    def plan() -> Progressive:
        return Progressive(mapping, old, modality="image", random_state=seed)

    wanted = max(found.thresholds.retention * recall(new), recall(old, 0) + found.thresholds.worth)
    return {"items": f"emoji, split {seed}", **compare(found, plan, new, recall, wanted)}


def compare(
    found: Certificate,
    plan: Callable[[], Progressive],
    new: np.ndarray,
    score: Callable[[np.ndarray], float],
    wanted: float,
) -> dict[str, Any]:
    """Compare the forecast with re-embedding in the initial order without refitting, and with a run batch by batch."""
    fixed = []
    for share in AT:
        still = plan()
        rows = still.mapped()
        taken = next(still.batches(size=round(share * len(new))))
        rows[taken] = new[taken]
        fixed.append(score(rows))
    moving = plan()
    shares, scores = [0.0], [score(moving.store())]
    for batch in moving.batches(size=round(0.02 * len(new)), share=0.5):
        moving.update(batch, new[batch])
        shares.append(float(moving.embedded.mean()))
        scores.append(score(moving.store()))
    ahead = found.progressive
    return {
        "action": found.verdict.action,
        "sure": found.verdict.confidence,
        "share": found.verdict.share,
        "between": found.verdict.share_interval,
        "ways": {name: one.value for name, one in found.strategies[found.task].items()},
        "forecast": [
            [float(np.interp(s, ahead["share"], ahead[side])) for side in ("value", "low", "high")] for s in AT
        ],
        "fixed": fixed,
        "refitted": [float(np.interp(s, shares, scores)) for s in AT],
        "new": score(new),
        "reached": first_share(np.array(shares), np.array(scores), wanted),
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--part", choices=("simulated", "emoji", "caltech"), default="simulated")
    parser.add_argument("--data", type=Path, help="folder with caltech101_unimodal.npz, for --part caltech")
    parser.add_argument("--cache", type=Path, help="folder in which trained vectors of Caltech-101 are kept")
    parser.add_argument("--pairs", type=int, default=40, help="pairs of models, or splits of real data")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--anchors", type=int, default=300)
    parser.add_argument("--store", type=int, default=3000)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    makers: dict[str, Callable[[int], dict[str, Any]]] = {
        "simulated": lambda k: run(simulated(k, options.anchors + options.store), options.anchors, k),
        "emoji": emoji,
        "caltech": lambda k: run(photos(options.data, k, options.cache), options.anchors, k),
    }
    runs = []
    for seed in range(options.seed, options.seed + options.pairs):
        runs.append(makers[options.part](seed))
        one = runs[-1]
        cells = [
            f"{value:.3f} ({low:.3f} … {high:.3f}) {fixed:.3f} {moved:.3f}"
            for (value, low, high), fixed, moved in zip(one["forecast"], one["fixed"], one["refitted"], strict=True)
        ]
        print(one["items"], one["action"], one["share"], one["between"], one["reached"], *cells, sep=" | ", flush=True)
    write_json(options, {"at": list(AT), "part": options.part, "anchors": options.anchors, "runs": runs})


if __name__ == "__main__":
    main()
