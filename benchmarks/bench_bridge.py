"""Queries of a new model over an unchanged index: retrieval, thresholds, and the cost of a query.

``python benchmarks/bench_bridge.py sample`` searches the sample's pictures of emoji-a with texts of emoji-b; ``lvis
FILE`` the pictures of OpenAI ViT-B/32 with texts of EVA-02 (``lvis1203_clip.npz``), ``caltech FILE`` photos in
MobileNet-v2 with photos in EfficientNet-Lite0 (``caltech101_unimodal.npz``). Each split draws anchors, which are used
only to fit the map; the other items are queries. On the sample and LVIS, the index contains all pictures (with
``--unseen`` only those of unseen classes); on Caltech-101, it contains photos that are neither anchors nor queries, and
those of the query's class are relevant.

Thresholds: cut-offs are those above which the old model has a given share of irrelevant pairs among half of the
queries. Methods of translating them are fitted on this half and evaluated on the other. Quantiles are what
``Bridge.fit_thresholds`` matches; regressions are scikit-learn's IsotonicRegression of one score on the other, the
second inverted. The error is the mean of \\|log(FPR after / FPR before)\\|, as a factor.

``speed`` times one query and 32 (float32, a map with the means of two modalities) against the bare product, in
processor time of one run.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from common import arguments, write_json
from congruence import Bridge, Embeddings, Space, fit
from congruence.embeddings import normalize_rows
from congruence.evaluation.judgments import judge

#: Widths of the old and the new model whose queries are timed.
WIDTHS = ((512, 512), (768, 1024), (1024, 1536))

#: False-positive rates of the old model for which thresholds are translated.
RATES = (0.1, 0.01, 0.001)


def unit(vectors: np.ndarray) -> np.ndarray:
    return normalize_rows(np.asarray(vectors, dtype=np.float32))


def sample(seed: int) -> dict[str, Any]:
    from congruence.datasets import load_sample

    data = load_sample("emoji")
    new, old = data.target, data.source  # emoji-b is the better model
    ids = old["text"].ids
    order = np.random.default_rng(seed).permutation(len(ids))
    anchors, asked = order[:800], order[800:]

    def texts(side: dict[str, Embeddings], which: np.ndarray, model: str) -> Embeddings:
        return Embeddings(side["text"].vectors[which], ids=ids[which], space=Space(model, modality="text"))

    return {
        "mapping": fit(texts(new, anchors, "emoji-b"), texts(old, anchors, "emoji-a"), "orthogonal"),
        "queries": texts(new, asked, "emoji-b"),
        "queries_old": texts(old, asked, "emoji-a"),
        "index": old["image"],
        "index_new": new["image"],
    }


def lvis(path: str, n_anchors: int, unseen: bool, seed: int) -> dict[str, Any]:
    with np.load(path, allow_pickle=False) as data:
        names = data["names"]
        new, old, image = (data[key] for key in ("text_eva02_b16", "text_openai_vitb32", "image_openai_vitb32_avg5"))
    order = np.random.default_rng(seed).permutation(len(names))
    anchors, asked = order[:n_anchors], order[n_anchors:]
    spaces = Space("eva02", modality="text"), Space("openai", modality="text")

    def rows(vectors: np.ndarray, which: np.ndarray, space: Space) -> Embeddings:
        return Embeddings(vectors[which], ids=names[which].tolist(), space=space)

    return {
        "mapping": fit(rows(new, anchors, spaces[0]), rows(old, anchors, spaces[1]), "orthogonal"),
        "queries": rows(new, asked, spaces[0]),
        "queries_old": rows(old, asked, spaces[1]),
        "index": rows(image, asked if unseen else np.arange(len(names)), Space("openai", modality="image")),
    }


def caltech(path: str, seed: int) -> dict[str, Any]:
    with np.load(path, allow_pickle=False) as data:
        new, old, label = unit(data["image_effnet_lite0"]), unit(data["image_mobilenet_v2"]), data["label"]
    order = np.random.default_rng(seed).permutation(len(label))
    anchors, asked, rows = order[:2000], order[2000:2500], order[2500:]
    return {
        "mapping": fit(new[anchors], old[anchors], "orthogonal", modality="image"),
        "queries": new[asked],
        "queries_old": old[asked],
        "index": old[rows],
        "index_new": new[rows],
        "labels": (label[asked], label[rows]),
    }


def monotone(kind: str, old: np.ndarray, new: np.ndarray, cuts: np.ndarray) -> np.ndarray:
    """Translate cut-offs by an isotonic regression on pairs: of the new score on the old one, or of the old on the new
    one, inverted.
    """
    from sklearn.isotonic import IsotonicRegression

    if kind == "new on old":
        return IsotonicRegression(out_of_bounds="clip").fit(old, new).predict(cuts)
    grid = np.linspace(new.min(), new.max(), 4001)
    back = IsotonicRegression(out_of_bounds="clip").fit(new, old).predict(grid)
    return grid[np.minimum(np.searchsorted(back, cuts), len(grid) - 1)]


def thresholds(data: dict[str, Any], bridge: Bridge, seed: int) -> dict[str, Any]:
    """Return the rates of the old model and of bridged queries at cut-offs chosen on the other half of the queries."""
    parts = {}
    for key in ("queries", "queries_old", "index"):
        side = data[key]
        parts[key] = side if isinstance(side, Embeddings) else Embeddings(side)
    m = len(parts["queries"])
    order = np.random.default_rng(seed + 1000).permutation(m)
    halves = order[: m // 2], order[m // 2 :]
    labels, qrels = data.get("labels"), data.get("qrels")
    judged = judge(parts["queries"], parts["index"], labels=labels, qrels=qrels)
    rows = unit(parts["index"].vectors)
    scores = {
        "old": unit(parts["queries_old"].vectors) @ rows.T,
        "new": bridge.transform(parts["queries"].vectors, "image" if labels else "text") @ rows.T,
    }
    relevant = np.zeros((m, len(rows)), bool)
    for q, found in enumerate(judged.rows):
        relevant[q, found] = True
    known = [{name: s[half][~relevant[half]].astype(np.float64) for name, s in scores.items()} for half in halves]
    cuts = np.quantile(known[0]["old"], 1 - np.array(RATES))
    learned = [parts[key].take(halves[0]) for key in ("queries", "queries_old")]
    half_labels = None if labels is None else (labels[0][halves[0]], labels[1])
    bridge.fit_thresholds(*learned, parts["index"], labels=half_labels, qrels=qrels)
    found = [bridge.translate(cut) for cut in cuts]
    sampled = np.random.default_rng(seed).choice(
        len(known[0]["old"]), min(200_000, len(known[0]["old"])), replace=False
    )
    pairs = known[0]["old"][sampled], known[0]["new"][sampled]
    ways = {"unchanged": cuts, "quantiles": np.array([one.value for one in found])}
    ways |= {f"regression, {kind}": monotone(kind, *pairs, cuts) for kind in ("new on old", "old on new")}
    true = relevant[halves[1]]

    def rates(name: str, at: np.ndarray) -> dict[str, list[float]]:
        hit = scores[name][halves[1]][true]
        return {
            "fpr": [float((known[1][name] >= cut).mean()) for cut in at],
            "recall": [float((hit >= cut).mean()) for cut in at],
        }

    return {
        "cuts": cuts.tolist(),
        "old": rates("old", cuts),
        "ways": {name: {"cuts": at.tolist(), **rates("new", at)} for name, at in ways.items()},
        "claimed": [one.to_dict() for one in found],
    }


def measure(data: dict[str, Any], seed: int) -> dict[str, Any]:
    bridge = Bridge(data["mapping"])
    given = {key: data[key] for key in ("queries_old", "index_new", "labels", "qrels") if key in data}
    found = bridge.evaluate(data["queries"], data["index"], modality="image" if "labels" in data else "text", **given)
    return {"scores": found.to_dict(), "thresholds": thresholds(data, bridge, seed)}


def speed(repeats: int = 15, calls: int = 300) -> dict[str, Any]:
    """Measure the median processor time per call in µs, of the bare product and of other ways in alternation."""
    rng = np.random.default_rng(0)
    out = {}
    for old, new in WIDTHS:
        X, turn = unit(rng.standard_normal((1500, old)) + 2), rng.standard_normal((old, new))
        others = unit(rng.standard_normal((500, old)) - 2)
        mapping = fit(X, unit(X @ turn), modality="text", means={"image": (others, unit(others @ turn))}, check=False)
        bridge = Bridge(mapping)
        # The same array, since another one in another place of the memory can take 15 % longer.
        matrix, _, _ = mapping.in_use("text", "query").product_in(np.dtype(np.float32))  # type: ignore[attr-defined]
        for batch in (1, 32):
            x = X[:batch]
            ways = {
                "x @ M": lambda x=x, matrix=matrix: x @ matrix,
                "bridge": lambda x=x, bridge=bridge: bridge.transform(x, "text"),
                "as queries": lambda x=x, mapping=mapping: mapping.transform(x, "text", "query"),
                "as stored rows": lambda x=x, mapping=mapping: mapping.transform(x, "text", "store"),
            }
            n = calls if batch == 1 else calls // 10
            times: dict[str, list[float]] = {name: [] for name in ways}
            for _ in range(repeats):
                for name, call in ways.items():
                    call()
                    started = time.process_time()
                    for _ in range(n):
                        call()
                    times[name].append((time.process_time() - started) / n * 1e6)
            base = np.array(times["x @ M"])
            out[f"{old} → {new}, batch of {batch}"] = {
                name: {"microseconds": float(np.median(found)), "ratio": float(np.median(np.array(found) / base))}
                for name, found in times.items()
            }
    return out


def show(runs: list[dict[str, Any]]) -> None:
    """Print means and standard errors over splits, and the results for cut-offs."""
    systems = [one["system"] for one in runs[0]["scores"]["systems"]]
    for k, system in enumerate(systems):
        cells = []
        for name in runs[0]["scores"]["systems"][k]["scores"]:
            values = np.array([run["scores"]["systems"][k]["scores"][name] for run in runs])
            cells.append(f"{name} {values.mean():.3f} ± {values.std(ddof=1) / np.sqrt(len(values)):.3f}")
        print(f"{system:<12}" + "  ".join(cells))
    for r, rate in enumerate(RATES):
        print(
            f"cut-off at {rate:g}: old {np.mean([run['thresholds']['old']['fpr'][r] for run in runs]):.5f} "
            f"recall {np.mean([run['thresholds']['old']['recall'][r] for run in runs]):.3f}"
        )
        for way in runs[0]["thresholds"]["ways"]:
            fpr = np.array([run["thresholds"]["ways"][way]["fpr"][r] for run in runs])
            recall = np.array([run["thresholds"]["ways"][way]["recall"][r] for run in runs])
            before = np.array([run["thresholds"]["old"]["fpr"][r] for run in runs])
            error = np.exp(np.mean(np.abs(np.log(np.maximum(fpr, 1e-7) / np.maximum(before, 1e-7)))))
            print(f"    {way:<26} fpr {fpr.mean():.5f}  recall {recall.mean():.3f}  off by a factor of {error:.2f}")


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("data", choices=("sample", "lvis", "caltech", "speed"))
    parser.add_argument("file", nargs="?")
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--anchors", type=int, default=600, help="number of anchors on LVIS")
    parser.add_argument("--unseen", action="store_true", help="only pictures of unseen classes in the index of LVIS")
    given = parser.parse_args()
    if given.data == "speed":
        found = speed()
        for batch, one in found.items():
            print(batch, {name: f"{way['microseconds']:.0f} µs, {way['ratio']:.2f} ×" for name, way in one.items()})
        write_json(given, found)
        return
    openers = {
        "sample": lambda seed: sample(seed),
        "lvis": lambda seed: lvis(given.file, given.anchors, given.unseen, seed),
        "caltech": lambda seed: caltech(given.file, seed),
    }
    runs = [measure(openers[given.data](seed), seed) for seed in range(given.splits)]
    show(runs)
    write_json(given, runs)


if __name__ == "__main__":
    main()
