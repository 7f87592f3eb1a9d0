"""Ablation of SOTAlign with 200 ImageNet pairs, changing one thing at a time: the table in docs/training.md.

Three splits without tuning: 200 items to search, 100 to choose the best step; the rest is unpaired.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import numpy as np

from congruence.embeddings import normalize_rows
from congruence_papers.sotalign import Heldout, Parts, fit_baseline, measure_heads, open_sample
from machine_output import add_json, write_json

BASE = {"paper_alpha": 1e-4, "teacher": "procrustes"}
SAIL = {"rate": 3.0, "preprocess": "center"}
#: Name of a run, method, number of unpaired rows, number of principal directions kept of the inputs (0: all), and
#: parameters.
RUNS: list[tuple[str, str, int, int, dict[str, Any]]] = [
    ("Procrustes alone", "procrustes", 500, 0, {}),
    ("SAIL (centered, the higher rate)", "sail", 500, 0, SAIL),
    ("SOTAlign, 100 unpaired rows", "sotalign", 100, 0, BASE),
    ("250", "sotalign", 250, 0, BASE),
    ("500, all there are", "sotalign", 500, 0, BASE),
    ("500, teacher of 64 dimensions", "sotalign", 500, 0, {**BASE, "teacher_n_components": 64}),
    ("500, alpha = 100/n", "sotalign", 500, 0, {**BASE, "paper_alpha": 1e-2}),
    ("500, the teacher's epsilon 0.05", "sotalign", 500, 0, {**BASE, "epsilon_teacher": 0.05}),
    ("500, the student's epsilon 0.02", "sotalign", 500, 0, {**BASE, "epsilon": 0.02}),
    ("500, the student's epsilon 0.1", "sotalign", 500, 0, {**BASE, "epsilon": 0.1}),
    ("500, pairs in the divergence too", "sotalign", 500, 0, {**BASE, "pairs_too": True}),
    ("500, inputs of 64 directions", "sotalign", 500, 64, {**BASE, "learning_rate": 1e-3}),
    ("Procrustes on these", "procrustes", 500, 64, {}),
    ("SAIL on these", "sail", 500, 64, SAIL),
]


def cut(parts: Parts, directions: int) -> Parts:
    """Project the unit rows of each side to their leading principal directions."""
    if not directions:
        return parts
    changed: dict[str, Any] = {}
    test: dict[str, np.ndarray] = {}
    held: dict[str, np.ndarray] = {}
    for side, loose in (("images", "unpaired_images"), ("texts", "unpaired_texts")):
        rows = [normalize_rows(getattr(parts, name)) for name in (side, loose)]
        every = np.concatenate(rows).astype(float)
        mean = every.mean(0)
        basis = np.linalg.svd(every - mean, full_matrices=False)[2][:directions].T
        changed[side], changed[loose] = (((part - mean) @ basis).astype(np.float32) for part in rows)
        for out, whole in ((test, parts.test), (held, parts.validation)):
            out[side] = ((normalize_rows(getattr(whole, side)) - mean) @ basis).astype(np.float32)
    return replace(parts, **changed, test=_with(parts.test, test), validation=_with(parts.validation, held))


def _with(rows: Heldout, sides: dict[str, np.ndarray]) -> Heldout:
    return replace(rows, images=sides["images"], texts=sides["texts"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="imagenet1000_unimodal.npz")
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument(
        "--only", nargs="+", default=[], help="run only experiments whose name contains one of these words"
    )
    add_json(parser)
    options = parser.parse_args()
    data = open_sample("imagenet1000", options.file)
    results = []
    for words, name, unpaired, directions, tried in RUNS:
        if options.only and not any(word in words for word in options.only):
            continue
        scores = []
        for seed in range(options.splits):
            parts = data.split(options.pairs, unpaired=unpaired, validation=100, test=200, seed=seed, overlap=None)
            parts = cut(parts, directions)
            found = measure_heads(fit_baseline(name, parts, data.sizes["training"], tried, seed), parts.test)
            scores.append([100 * found[f"mean_r{k}"] for k in (1, 5, 10)])
        means, sds = np.mean(scores, axis=0), np.std(scores, axis=0, ddof=1)
        cells = " | ".join(f"{mean:.1f} ± {sd:.1f}" for mean, sd in zip(means, sds, strict=True))
        print(f"| {words} | {cells} |", flush=True)
        results.append({"run": words, "mean": means, "sd": sds})
    write_json(options, results)


if __name__ == "__main__":
    main()
