"""Comparison of the orders of progressive re-embedding on simulated models of several qualities and kinds of noise.

Two simulated dual encoders per run, 20 classes. 1,200 pictures are stored, the first map is a rotation fitted on 400
captions of other items, and the 20 texts are the mean captions of each class. *With texts*: accuracy of the nearest
text with a tenth re-embedded. *Without*: overlap@10 with the rows that the new model finds, for 200 other captions as
queries; the first map is fitted on 100 further pairs of pictures, a fifth is re-embedded, and scores are on a common
scale. Nothing in the library was chosen using these tables.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from bench_progressive import Case, first_map, follow, parse_options
from common import write_json
from congruence.embeddings import normalize_rows
from congruence.maps import OrthogonalMap
from congruence.synthetic import UpgradeProblem, upgrade_problem

STORED, TEXTS, QUERIES, ANCHORS, CLASSES, WIDTH, SPREAD = 1200, 400, 200, 100, 20, 48, 0.4

#: Parameters of upgrade_problem. "hard quarter": both models see every fourth item with three times the noise.
KINDS: dict[str, dict[str, float]] = {
    "good models, noise in common": {"source_noise": 0.6, "target_noise": 0.6, "shared": 0.8},
    "good models, noise of their own": {"source_noise": 0.6, "target_noise": 0.6, "shared": 0.1},
    "old model poorer": {"source_noise": 1.2, "target_noise": 0.6},
    "old model useless": {"source_noise": 4.0, "target_noise": 0.6},
    "new model lost a third": {"source_noise": 0.6, "target_noise": 0.6, "lost": 0.3},
    "sheared": {"source_noise": 0.8, "target_noise": 0.6, "shear": 0.5},
    "hard quarter": {"source_noise": 0.6, "target_noise": 0.5},
}
WITH_TEXTS = ("random", "margin", "disagreement", "entropy")
WITHOUT = ("random", "residual")


def world(kind: str, seed: int) -> UpgradeProblem:
    """Return a problem of a kind; with the same seed, items and models are the same for any noise."""
    n = STORED + TEXTS + QUERIES + ANCHORS
    easy = upgrade_problem(n, WIDTH, classes=CLASSES, spread=SPREAD, random_state=seed, **KINDS[kind])
    if kind != "hard quarter":
        return easy
    louder = {name: 3 * noise for name, noise in KINDS[kind].items()}
    hard = upgrade_problem(n, WIDTH, classes=CLASSES, spread=SPREAD, random_state=seed, **louder)
    for name in ("source_images", "target_images", "source_texts", "target_texts"):
        getattr(easy, name)[::4] = getattr(hard, name)[::4]
    return easy


def cases(kind: str, seed: int) -> tuple[Case, Case]:
    """Return the store with texts and the store without."""
    p = world(kind, seed)
    rows, words, asked, pairs = np.split(np.arange(len(p.labels)), np.cumsum([STORED, TEXTS, QUERIES]))
    names = [
        normalize_rows(np.stack([side[words][p.labels[words] == one].mean(axis=0) for one in range(CLASSES)]))
        for side in (p.source_texts, p.target_texts)
    ]
    old, new = p.source_images[rows], p.target_images[rows]
    mapping = first_map(p.source_texts[words], p.target_texts[words], old)
    known = (p.source_texts[words], p.target_texts[words])
    texts = Case(old, new, mapping, names[1], names[0], *names, p.labels[rows], known, "accuracy")
    pictures = OrthogonalMap().fit(p.source_images[pairs], p.target_images[pairs])
    # Captions that the first map was not fitted on represent the queries if a scale is fitted.
    without = Case(
        old,
        new,
        pictures,
        p.target_texts[asked],
        p.source_texts[asked],
        new_texts=p.target_texts[words],
        kind="overlap",
    )
    return texts, without


def kinds(kind: str, seed: int) -> dict[str, Any]:
    """Return accuracy and overlap@10 by order, at one share each."""
    texts, without = cases(kind, seed)
    found: dict[str, Any] = {
        "old": texts.score(texts.old, texts.queries_old),
        "new": texts.score(texts.new),
        "mapped": texts.score(texts.plan("random", seed).store()),
        "mapped, no texts": without.score(without.plan("random", seed).store()),
    }
    for name in WITH_TEXTS:
        found[name] = follow(texts, texts.plan(name, seed), (0.1,), 0.02)[0]
    for name in WITHOUT:
        found[f"{name}, no texts"] = follow(without, without.plan(name, seed), (0.2,), 0.05)[0][1]
    return found


def main() -> None:
    given = parse_options(__doc__, ("kinds",))
    begun = time.process_time()
    runs: list[Any] = []
    for seed in range(given.splits):
        runs.append({kind: kinds(kind, 1000 + seed) for kind in KINDS})
        print(seed, runs[-1], flush=True)
    print(f"{time.process_time() - begun:.0f} s")
    write_json(given, runs)


if __name__ == "__main__":
    main()
