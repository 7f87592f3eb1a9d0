"""Search of an index with half of its vectors from the old model and half from the new one, by queries of the new
model.

``python benchmarks/mixed_search.py ../shared/data``. LVIS: 900 class names (texts), one half encoded by one CLIP text
tower and the other half by another; 200 queries, used neither by the map nor in the index; "found" is the share found
of the ten names that are nearest if the new model encodes all of them. Sample: pictures of emoji, searched by captions;
"found" is the share of captions whose picture is among the first ten. The bridge is a rotation fitted on 300 (LVIS) and
400 (sample) texts of items that are not in the index. "By topic": the halves are not random, but split along the new
model's first principal direction (LVIS) or by subgroups (sample). "Paired": scores are standardized by 200 items of the
new half whose old vectors still exist. Nothing is tuned.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np

import congruence
from common import arguments, write_json
from congruence import Bridge
from congruence.datasets import load_sample
from congruence.embeddings import normalize_rows
from congruence.upgrade.bridge import search_mixed

K = 10
PAIRS = (
    ("openai_vitb32", "eva02_b16"),
    ("openai_vitb16", "eva02_b16"),
    ("openai_vitb32", "openai_vitb16"),
    ("eva02_b16", "openai_vitb16"),
)


def nearest(queries: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the row numbers of the ten largest cosines, shape (queries, 10)."""
    return np.argsort(-(normalize_rows(queries) @ normalize_rows(rows).T), axis=1, kind="stable")[:, :K]


def ways(
    bridge: Bridge, queries: np.ndarray, old: np.ndarray, new: np.ndarray, is_new: np.ndarray, seed: int
) -> dict[str, np.ndarray]:
    """Return the row numbers found by each search method, shape (queries, 10)."""
    places = {True: np.flatnonzero(is_new), False: np.flatnonzero(~is_new)}
    both = np.random.default_rng(seed).permutation(places[True])[:200]
    found = {"old vectors only, bridged": bridge.search(queries, old, K).ids, "new vectors only": nearest(queries, new)}
    for name, options in (
        ("mixed, as they are", {"merge": "none"}),
        ("mixed, standardized", {}),
        ("mixed, standardized by paired items", {"background": (old[both], new[both])}),
    ):
        result = search_mixed(bridge, queries, old[~is_new], new[is_new], K, **options)
        found[name] = np.where(
            result.new,
            places[True][np.where(result.new, result.ids, 0)],
            places[False][np.where(result.new, 0, result.ids)],
        )
    return found


def names(data: dict[str, np.ndarray], pair: tuple[str, str], topic: bool, seed: int) -> dict[str, list[float]]:
    """Return the share found of the new model's ten nearest names (all, those in the new half, those in the old half),
    and the new half's share of the results.
    """
    old, new = (data[f"text_{key}"] for key in pair)
    order = np.random.default_rng(seed).permutation(len(old))
    fit, ask, rows = np.split(order, [300, 500])
    rows = rows[:700]
    bridge = Bridge(congruence.fit(new[fit], old[fit], "orthogonal", modality="text", check=False))
    is_new = np.arange(len(rows)) < len(rows) // 2
    if topic:
        first = np.linalg.svd(new[rows] - new[rows].mean(axis=0), full_matrices=False)[0][:, 0]
        is_new = first > np.median(first)
    truth = nearest(new[ask], new[rows])
    out = {}
    for name, found in ways(bridge, new[ask], old[rows], new[rows], is_new, seed).items():
        hits = (truth[:, :, None] == found[:, None, :]).any(axis=2)
        out[name] = [
            float(hits.mean()),
            float(hits[is_new[truth]].mean()),
            float(hits[~is_new[truth]].mean()),
            float(is_new[found].mean()),
        ]
    return out


def pictures(sample, topic: bool, seed: int) -> dict[str, list[float]]:
    """Return the share of captions whose picture is among the first ten (all, those in the new half, those in the old
    half), and the new half's share of the results.
    """
    rng = np.random.default_rng(seed)
    sides = {(side, kind): getattr(sample, side)[kind] for side in ("source", "target") for kind in ("image", "text")}
    ids = np.asarray(sides["source", "image"].ids)
    order = rng.permutation(len(ids))
    fit, rows = order[:400], order[400:]
    vectors = {key: one[ids[rows].tolist()].vectors for key, one in sides.items()}
    bridge = Bridge(
        congruence.fit(
            *(sides[side, "text"][ids[fit].tolist()].vectors for side in ("target", "source")),
            "orthogonal",
            modality="text",
            check=False,
        )
    )
    is_new = np.arange(len(rows)) < len(rows) // 2
    if topic:
        groups = np.array([sample.labels[key] for key in ids[rows]])
        chosen = rng.permutation(np.unique(groups))
        is_new = np.isin(groups, chosen[: len(chosen) // 2])
    out = {}
    for name, found in ways(
        bridge, vectors["target", "text"], vectors["source", "image"], vectors["target", "image"], is_new, seed
    ).items():
        hit = (found == np.arange(len(rows))[:, None]).any(axis=1)
        out[name] = [
            float(hit.mean()),
            float(hit[is_new].mean()),
            float(hit[~is_new].mean()),
            float(is_new[found].mean()),
        ]
    return out


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--splits", type=int, default=10)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    with np.load(given.data / "lvis1203_clip.npz", allow_pickle=False) as archive:
        data = dict(archive)
    sample = load_sample("emoji")
    tasks = [
        (f"{old} → {new}", lambda topic, seed, pair=(old, new): names(data, pair, topic, seed)) for old, new in PAIRS
    ]
    tasks.append(("sample, captions → pictures", lambda topic, seed: pictures(sample, topic, seed)))
    lines = []
    for name, task in tasks:
        for topic in (False, True):
            runs = [task(topic, seed) for seed in range(given.splits)]
            for way in runs[0]:
                values = np.array([run[way] for run in runs])
                error = values.std(axis=0, ddof=1) / np.sqrt(len(values))
                lines.append(
                    {
                        "data": name,
                        "topic": topic,
                        "way": way,
                        "mean": values.mean(axis=0).tolist(),
                        "error": error.tolist(),
                    }
                )
                print(name, "by topic" if topic else "at random", way, np.round(values.mean(axis=0), 3), flush=True)
    write_json(given, {"splits": given.splits, "lines": lines})


if __name__ == "__main__":
    main()
