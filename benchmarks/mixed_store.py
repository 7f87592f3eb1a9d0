"""An inner-product index with half of its rows mapped and half native: do mapped rows need unit norm?

``python benchmarks/mixed_store.py ../shared/data/lvis1203_clip.npz``. Texts of OpenAI ViT-B/32 are mapped to EVA-02
B/16; both models' rows have unit norm. For queries of the target model that neither the map nor the store has seen, the
ground truth is the ten nearest rows of an all-native store. Recall is the share of them among the ten largest inner
products of the mixed store, for mapped items and for native ones. "All centered": the mean of the target's anchors is
subtracted from all rows and queries, including native ones and the ground truth, before normalization. The control
replaces mapped rows by shuffled native ones.
"""

from __future__ import annotations

import argparse

import numpy as np

import congruence
from congruence import Embeddings, Space
from congruence.embeddings import normalize_rows
from machine_output import add_json, write_json

K = 10


def top(queries: np.ndarray, store: np.ndarray) -> np.ndarray:
    """Return the row numbers of the ten largest inner products of each query, shape (queries, 10)."""
    return np.argsort(-(queries @ store.T), axis=1, kind="stable")[:, :K]


def recall(truth: np.ndarray, found: np.ndarray, items: np.ndarray) -> float:
    """Return the share of the true neighbors among ``items`` that were found."""
    hits = (truth[:, :, None] == found[:, None, :]).any(axis=2)
    return float(hits[items[truth]].mean())


def measure(source: Embeddings, target: Embeddings, anchors: int, n_queries: int, seed: int) -> dict[str, list[float]]:
    """Return, by form of the mapped rows, the recall of mapped, native and all items, the share of mapped rows among
    those found, and the range of norms.
    """
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(source))
    fit, ask, rows = np.split(order, [anchors, anchors + n_queries])
    mapping = congruence.fit(source.take(fit), target.take(fit), "orthogonal", modality="text")
    queries, native = target.vectors[ask], target.vectors[rows]
    mapped = np.arange(len(rows)) < len(rows) // 2
    mean = target.vectors[fit].mean(axis=0)
    versions = {
        "as the map gives them": mapping.transform_embeddings(source.take(rows), normalize=False).vectors,
        "unit rows": mapping.transform_embeddings(source.take(rows)).vectors,
        "unit rows, all centered": mapping.transform_embeddings(source.take(rows), normalize=False).vectors,
        "control: native, shuffled": native[rng.permutation(len(rows))],
    }
    out = {}
    for name, vectors in versions.items():
        ask_with, theirs = queries, native
        if name.endswith("centered"):  # subtract the target's mean from everything, including its own rows and queries
            ask_with, theirs, vectors = (normalize_rows(X - mean) for X in (queries, native, vectors))
        truth = top(ask_with, theirs)
        store = np.where(mapped[:, None], vectors, theirs)
        found = top(ask_with, store)
        norms = np.linalg.norm(vectors, axis=1)
        out[name] = [
            recall(truth, found, mapped),
            recall(truth, found, ~mapped),
            recall(truth, found, np.ones_like(mapped)),
            float(mapped[found].mean()),
            float(norms.min()),
            float(norms.max()),
        ]
    return out


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("--source", default="text_openai_vitb32")
    parser.add_argument("--target", default="text_eva02_b16")
    parser.add_argument("--anchors", type=int, default=300)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--splits", type=int, default=10)
    add_json(parser)
    given = parser.parse_args()
    with np.load(given.file, allow_pickle=False) as data:
        ids = data["names"].tolist()
        sides = [Embeddings(data[key], ids=ids, space=Space(key)) for key in (given.source, given.target)]
    runs = [measure(*sides, given.anchors, given.queries, seed) for seed in range(given.splits)]
    print(f"{given.source} -> {given.target}: {given.anchors} anchors, {given.splits} splits, mean (sd)")
    print(f"{'mapped half':<26}{'recall@10 mapped':>18}{'native':>15}{'all':>15}{'mapped of found':>18}{'norms':>14}")
    for name in runs[0]:
        values = np.array([run[name] for run in runs])
        cells = [f"{m:.3f} ({s:.3f})" for m, s in zip(values[:, :4].mean(0), values[:, :4].std(0, ddof=1), strict=True)]
        norms = f"{values[:, 4].min():.2f} … {values[:, 5].max():.2f}"
        print(f"{name:<26}{cells[0]:>18}{cells[1]:>15}{cells[2]:>15}{cells[3]:>18}{norms:>14}")
    write_json(given, runs)


if __name__ == "__main__":
    main()
