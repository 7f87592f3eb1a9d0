"""How well are rows assigned to their model, and foreign rows detected? ``python benchmarks/bench_doctor.py
../shared/data``.

LVIS class names encoded by three CLIP text towers: stores with 60 % of the rows from one known model, 38 % from
another, and ten rows from a third, unknown one. Photos of Caltech-101 encoded by MobileNet-v2, which is known, and ten
by EfficientNet-Lite0, which is not. For each known model, n rows are given, of items that are not in the store. "Other
content": the known photos show 50 classes, those in the store the other 50, by the same model. Nothing was chosen on
these rows except the form of the tail (Pareto's rather than the generalized Pareto distribution, which missed foreign
rows in one of five splits).
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from common import arguments, write_json
from congruence.compare.origins import OriginDetector

FOREIGN = 10


def trial(a: np.ndarray, b: np.ndarray | None, foreign: np.ndarray, n: int, rows: int, seed: int) -> list[float]:
    """Return the share of rows assigned to the right model, of foreign rows detected, and of rows wrongly reported as
    foreign.
    """
    order = np.random.default_rng(seed).permutation(len(a))
    of_a = rows - FOREIGN if b is None else int(0.6 * rows)
    known, first, second, third = np.split(order[: n + rows], [n, n + of_a, n + rows - FOREIGN])
    models = {"a": a[known]} | ({} if b is None else {"b": b[known]})
    parts = [a[first], *([] if b is None else [b[second]]), foreign[third]]
    report = OriginDetector(random_state=seed).fit(models).examine(np.vstack(parts))
    truth = np.repeat([0, 1, -1], [len(first), len(second), FOREIGN])
    own = truth >= 0
    return [
        float((report.origin[own] == truth[own]).mean()),
        float((report.origin[~own] == -1).mean()),
        float((report.origin[own] == -1).mean()),
    ]


def other_content(a: np.ndarray, labels: np.ndarray, n: int, seed: int) -> float:
    """Return the share of rows of unseen classes that are assigned to no model."""
    rng = np.random.default_rng(seed)
    classes = rng.permutation(np.unique(labels))
    seen = np.isin(labels, classes[: len(classes) // 2])
    known, store = rng.permutation(np.flatnonzero(seen))[:n], rng.permutation(np.flatnonzero(~seen))[:2000]
    report = OriginDetector(random_state=seed).fit({"a": a[known]}).examine(a[store])
    return float((report.origin == -1).mean())


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--splits", type=int, default=10)
    given = parser.parse_args()
    with np.load(given.data / "lvis1203_clip.npz", allow_pickle=False) as data:
        names = [data[f"text_{key}"] for key in ("openai_vitb32", "eva02_b16", "openai_vitb16")]
    with np.load(given.data / "caltech101_unimodal.npz", allow_pickle=False) as data:
        photos = [data[f"image_{key}"].astype(np.float32) for key in ("mobilenet_v2", "effnet_lite0")]
        labels = data["label"]
    lines = []
    for data_name, (a, b, foreign), counts, rows in (
        ("LVIS names", names, (100, 300, 600), 600),
        ("Caltech photos", (photos[0], None, photos[1]), (100, 300, 1000), 2000),
    ):
        for n in counts:
            start = time.process_time()
            found = [trial(a, b, foreign, n, rows, seed) for seed in range(given.splits)]
            seconds = (time.process_time() - start) / given.splits
            content = None
            if data_name == "Caltech photos":
                content = float(np.mean([other_content(a, labels, n, seed) for seed in range(given.splits)]))
            mean, error = np.mean(found, axis=0), np.std(found, axis=0, ddof=1) / np.sqrt(given.splits)
            lines.append(
                {
                    "data": data_name,
                    "n": n,
                    "rows": rows,
                    "mean": mean.tolist(),
                    "error": error.tolist(),
                    "content": content,
                    "seconds": seconds,
                }
            )
            print(lines[-1], flush=True)
    write_json(given, {"splits": given.splits, "lines": lines})


if __name__ == "__main__":
    main()
