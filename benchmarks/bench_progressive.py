"""Progressive re-embedding: the share of a store to re-embed until it is as good as the new model's, by order and by
map.

``python benchmarks/bench_progressive.py ../shared/data --part caltech`` and ``--part emoji``: text queries over images,
a first map fitted on texts alone. Of Caltech-101 (dual_encoders.py: two models trained apart in each split) the
accuracy of the nearest class name, "a photo of a …", and the vocabulary is the mean of the other wordings; of the emoji
sample recall@10 of all captions, and the vocabulary is the mean of each emoji's prompts. ``--part lvis``: names by two
text towers as items, no texts, a first map fitted on 100 names; recall@10 of what the new model finds for 200 other
names, by cosines as they are and by scores on one scale (calibration.py), with 40 % random rows. *Rotation*: refitted
on texts and re-embedded photos together, without what the old model says of texts. ``--part coverage``: how often the
meter's 95 % intervals hold the true value, at every stage of many runs, real and simulated, and the forecast's the true
quality or a lower one; and how often a target is reached where batches stop. ``--part settings``: weights of the fit,
and scores by origin.

Chosen after looking: SHARPNESS and the order "entropy" on the emoji sample and splits 0 to 2 of Caltech-101; splits 3
and 4 were not looked at.
"""

from __future__ import annotations

import argparse
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from common import arguments, write_json
from congruence.datasets import load_sample
from congruence.embeddings import normalize_rows
from congruence.maps import Map, OrthogonalMap
from congruence.synthetic import upgrade_problem
from congruence.upgrade.progressive import ORDERS, Progressive, fit_origin_scale
from dual_encoders import ASKED, load

ORDER = (*ORDERS, "auto")
#: On Caltech-101, "auto" kept "entropy" in the two splits that were examined; it and "residual" are left out there to
#: save time.
LEFT_OUT = {
    "caltech": ("residual", "auto"),
    "emoji": (),
    "lvis": ("disagreement", "margin", "entropy", "auto"),
}
SHARES = {
    "caltech": (0.0, 0.02, 0.04, 0.08, 0.12, 0.16),
    "emoji": (0.0, 0.1, 0.2, 0.3, 0.4, 0.45, 0.6, 0.8, 0.9),
    "lvis": (0.0, 0.1, 0.2, 0.3, 0.5),
}
#: Share of the store per batch, and the largest share to which orders are followed; the rotation is refitted at all
#: shares.
BATCH = {"caltech": 0.02, "emoji": 0.05, "lvis": 0.05}
MOST = 0.6


@dataclass
class Case:
    """A store in both models, with queries, texts and the first map."""

    old: np.ndarray
    new: np.ndarray
    mapping: Map
    queries: np.ndarray
    queries_old: np.ndarray
    texts: np.ndarray | None = None
    new_texts: np.ndarray | None = None
    labels: np.ndarray | None = None
    pairs: tuple[np.ndarray, np.ndarray] | None = None
    kind: str = "recall"

    def score(self, store: np.ndarray, queries: np.ndarray | None = None) -> float:
        asked = self.queries if queries is None else queries
        near = asked @ store.T
        if self.kind == "accuracy":
            return float((near.argmax(axis=0) == self.labels).mean())
        if self.kind == "recall":
            own = near[np.arange(len(near)), self.labels]
            return float((np.count_nonzero(near > own[:, None], axis=1) < 10).mean())
        return self.found(near)

    def found(self, near: np.ndarray) -> float:
        truth = np.argsort(-(self.queries @ self.new.T), axis=1)[:, :10]
        return float((truth[:, :, None] == np.argsort(-near, axis=1)[:, None, :10]).any(axis=2).mean())

    def plan(self, order: str, seed: int, **given: Any) -> Progressive:
        if self.kind == "overlap":
            return Progressive(self.mapping, self.old, order=order, random_state=seed, meter_share=0.4, **given)
        return Progressive(
            self.mapping, self.old, texts=self.texts, new_texts=self.new_texts, modality="image", order=order,
            random_state=seed, **given
        )  # fmt: skip


def mean_rows(rows: np.ndarray, each: int) -> np.ndarray:
    return normalize_rows(rows.reshape(-1, each, rows.shape[1]).mean(axis=1))


def first_map(texts: np.ndarray, new_texts: np.ndarray, photos: np.ndarray) -> Map:
    fitted = OrthogonalMap().fit(texts, new_texts, modality="text")
    return fitted.recenter(photos, None, modality="image", offset=0.5)


def caltech(folder: Path, seed: int, cache: Path | None) -> Case:
    kept = cache and cache / f"dual-{seed}.npz"
    if kept and kept.is_file():
        with np.load(kept) as data:
            old, new, ours, theirs, label = (data[key] for key in ("old", "new", "ours", "theirs", "label"))
    else:
        pair = load(folder / "caltech101_unimodal.npz", seed)
        old, new, ours, theirs, label = pair.old.photos, pair.new.photos, pair.old.texts, pair.new.texts, pair.label
        if kept:
            np.savez(kept, old=old, new=new, ours=ours, theirs=theirs, label=label)
    each = ours.shape[1] - 1
    known = [np.delete(side, ASKED, axis=1).reshape(-1, side.shape[2]) for side in (ours, theirs)]
    vocabulary = [mean_rows(side, each) for side in known]
    return Case(
        old, new, first_map(*known, old), theirs[:, ASKED], ours[:, ASKED], *vocabulary, label, (known[0], known[1]),
        "accuracy"
    )  # fmt: skip


def emoji() -> Case:
    sample = load_sample("emoji")
    known = [side["prompt"].vectors for side in (sample.source, sample.target)]
    each = len(known[0]) // len(sample.source["text"])
    old, new = sample.source["image"].vectors, sample.target["image"].vectors
    return Case(
        old, new, first_map(*known, old), sample.target["text"].vectors, sample.source["text"].vectors,
        *(mean_rows(side, each) for side in known), np.arange(len(old)), (known[0], known[1]),
    )  # fmt: skip


def lvis(folder: Path, seed: int) -> Case:
    with np.load(folder / "lvis1203_clip.npz", allow_pickle=False) as data:
        old, new = data["text_openai_vitb32"], data["text_eva02_b16"]
    order = np.random.default_rng([seed, 3]).permutation(len(old))
    known, asked, rows = np.split(order, [100, 300])
    mapping = OrthogonalMap().fit(old[known], new[known])
    # The names that the first map was fitted on serve as queries if a scale is fitted.
    return Case(old[rows], new[rows], mapping, new[asked], old[asked], new_texts=new[known], kind="overlap")


def rotation(case: Case, shares: tuple[float, ...], seed: int) -> list[float]:
    """Re-embed random rows, and refit a rotation on texts and rows together."""
    order = np.random.default_rng([seed, 4]).permutation(len(case.old))
    out = []
    for share in shares:
        done = order[: round(share * len(order))]
        mapping = case.mapping.for_modality("image")
        if len(done) and case.pairs is not None:
            X, Y = (np.vstack([side, rows[done]]) for side, rows in zip(case.pairs, (case.old, case.new), strict=True))
            words = ["text"] * len(case.pairs[0]) + ["image"] * len(done)
            mapping = OrthogonalMap().fit(X, Y, modality=words).for_modality("image")
        store = normalize_rows(mapping.transform(case.old))
        store[done] = case.new[done]
        out.append(case.score(store))
    return out


def follow(case: Case, plan: Progressive, shares: tuple[float, ...], batch: float) -> list[float]:
    out = []
    for share in shares:
        if share:
            for ids in plan.batches(max(1, round(batch * len(plan))), share=share):
                plan.update(ids, case.new[ids])
        out.append(case.score(plan.store()) if case.pairs is not None else scaled(case, plan))
    return out


def by_query(scores: np.ndarray, queries: np.ndarray, mapped: np.ndarray, native: np.ndarray) -> np.ndarray:
    """Give each query's scores the mean and spread that native rows have, judged by the same rows in both forms."""
    ours, theirs = queries @ mapped.T, queries @ native.T
    slope = theirs.std(axis=1, keepdims=True) / np.maximum(ours.std(axis=1, keepdims=True), 1e-12)
    return (scores - ours.mean(axis=1, keepdims=True)) * slope + theirs.mean(axis=1, keepdims=True)


def scaled(case: Case, plan: Progressive) -> list[float]:
    """Without texts: recall by cosines as they are, and by cosines of which those of mapped rows are on the scale of
    native ones.
    """
    scores, done, rows = case.queries @ plan.store().T, plan.embedded, plan.measured
    other = scores
    if len(rows) >= 20:
        other = np.where(done, scores, by_query(scores, case.queries, plan.mapped()[rows], case.new[rows]))
    return [case.found(one) for one in (scores, other)]


def orders(case: Case, part: str, seed: int) -> dict[str, Any]:
    shares = SHARES[part]
    found: dict[str, Any] = {
        "old": case.score(case.old, case.queries_old) if case.kind != "overlap" else None,
        "new": case.score(case.new),
    }
    if case.pairs is not None:
        found["rotation, random"] = rotation(case, shares, seed)
    for name in ORDER:
        if name in LEFT_OUT[part]:
            continue
        found[name] = follow(case, case.plan(name, seed), tuple(one for one in shares if one <= MOST), BATCH[part])
    return found


def simulated(seed: int) -> tuple[str, Case]:
    kinds = {
        "alike": {"source_noise": 0.3, "target_noise": 0.3},
        "noisy": {"source_noise": 0.9, "target_noise": 0.5, "shared": 0.2},
        "sheared": {"shear": 0.5},
        "lossy": {"lost": 0.3, "target_noise": 0.3},
        "wrong pairs": {"mispaired": 0.1},
    }
    name = list(kinds)[seed % len(kinds)]
    p = upgrade_problem(1200, 32, random_state=seed, **kinds[name])
    words = np.arange(100)
    mapping = first_map(p.source_texts[words], p.target_texts[words], p.source_images)
    return f"simulated, {name}", Case(
        p.source_images, p.target_images, mapping, p.target_texts[words], p.source_texts[words],
        p.source_texts[words], p.target_texts[words],
    )  # fmt: skip


#: Targets for which the stopping point of batches is reported.
TARGETS = (0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.98)


def watch(case: Case, seed: int, share: float = 0.3) -> list[list[Any]]:
    """Return for each stage and metric whether the meter's interval contains the true value, and its width; and for
    each target whether it was reached when batches stopped.

    Every second run has traffic weights, drawn from a lognormal distribution to simulate a long tail.
    """
    out: list[list[Any]] = []
    n = len(case.old)
    weights = np.random.default_rng([seed, 5]).lognormal(0, 1, n) if seed % 2 else None
    plan = case.plan("auto", seed, weights=weights)
    ahead: list[tuple[float, float]] = []
    stages: list[tuple[float, float, float]] = []
    for ids in plan.batches(round(0.05 * n), share=share):
        plan.update(ids, case.new[ids])
        reading, done = plan.meter(), plan.embedded
        kept = keeps(case, plan)
        true = {name: float(np.where(done, 1.0, values).mean()) for name, values in kept.items()}
        if weights is not None:
            true |= {
                f"weighted {name}": float(np.average(np.where(done, 1.0, values), weights=weights))
                for name, values in kept.items()
            }
        for name, truth in true.items():
            result = reading.store[name]
            out.append([name, result.low - 1e-9 <= truth <= result.high + 1e-9, result.high - result.low])
        stop = "agreement" if "agreement" in true else "cosine"
        stages.append((true[stop], reading.store[stop].value, reading.store[stop].low))
        if case.kind == "overlap":
            continue
        out += [["forecast", low <= true["agreement"], high - low] for low, high in ahead]
        result = plan.forecast(metric="agreement", further=(0.05,))
        ahead = [(result.low[1], result.high[1])] if len(result.low) > 1 and reading.n_meter >= 20 else []
    for target in TARGETS:
        for column, name in ((1, "stop by estimate"), (2, "stop by lower end")):
            stopped = [k for k, one in enumerate(stages) if one[column] >= target]
            if stopped:
                out.append([name, stages[stopped[0]][0] >= target, stopped[0] + 1])
    return out


def keeps(case: Case, plan: Progressive) -> dict[str, np.ndarray]:
    """Return what mapping preserves of each row, from all of the new model's vectors; without texts, among the
    neighbors that the meter uses.
    """
    mapped = plan.transform(case.old)
    kept = {"cosine": np.einsum("ij,ij->i", mapped, case.new)}
    texts = case.new_texts if case.kind != "overlap" else case.new[plan.reference_rows()]
    if texts is not None and len(texts):
        near, found = (np.argsort(-(rows @ texts.T), axis=1)[:, :10] for rows in (case.new, mapped))
        kept["overlap@10"] = (near[:, :, None] == found[:, None, :]).any(axis=2).mean(axis=1)
        if case.kind != "overlap":
            kept["agreement"] = near[:, 0] == found[:, 0]
    return kept


def settings(case: Case, share: float, seed: int) -> dict[str, Any]:
    out: dict[str, Any] = {"new": case.score(case.new)}
    plan = case.plan("auto", seed)
    follow(case, plan, (share,), share / 4)
    done, store = plan.embedded, plan.store()
    scores, rows = case.queries @ store.T, plan.measured
    sides = plan.mapped()[rows], case.new[rows]
    for kind, scale in (
        ("none", scores),
        ("factor", scores * fit_origin_scale(case.new_texts, *sides)),
        ("query", by_query(scores, case.queries, *sides)),
    ):
        changed = np.where(done, scores, scale)
        own = changed[np.arange(len(changed)), case.labels] if case.kind == "recall" else None
        if own is not None:
            hit = np.count_nonzero(changed > own[:, None], axis=1) < 10
            out[f"scores, {kind}"] = [float(part.mean()) for part in (hit, hit[done], hit[~done])]
    return out


def parse_options(description: str, parts: tuple[str, ...]) -> argparse.Namespace:
    """Return the command-line options that the benchmarks of progressive re-embedding share; create the cache folder,
    and silence warnings.
    """
    parser = arguments(description)
    parser.add_argument("data", type=Path, help="folder of the data sets")
    parser.add_argument("--part", choices=parts, required=True)
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--cache", type=Path, help="folder in which trained vectors of Caltech-101 are kept")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.cache:
        options.cache.mkdir(parents=True, exist_ok=True)
    return options


def main() -> None:
    given = parse_options(__doc__, ("caltech", "emoji", "lvis", "coverage", "settings"))
    begun = time.process_time()
    runs: Any = []
    if given.part == "coverage":
        runs = {}
        for seed in range(given.splits):
            name, case = simulated(seed)
            for label, one in ((name, case), ("emoji", emoji() if seed % 5 == 0 else None)):
                if one is not None:
                    runs.setdefault(label, []).extend(watch(one, seed))
        for split in range(min(5, given.splits)):
            case = caltech(given.data, split, given.cache)
            for seed in range(max(1, given.splits // 10)):
                runs.setdefault("Caltech-101", []).extend(watch(case, seed))
        for seed in range(max(1, given.splits // 10)):
            # Up to 60 %, since neighbors are measured only from 50 random rows on.
            runs.setdefault("LVIS, no texts", []).extend(watch(lvis(given.data, seed), seed, 0.6))
        summary = {}
        for label, rows in runs.items():
            for name in dict.fromkeys(row[0] for row in rows):
                mine = [row for row in rows if row[0] == name]
                summary[f"{label}: {name}"] = [
                    len(mine),
                    float(np.mean([r[1] for r in mine])),
                    float(np.mean([r[2] for r in mine])),
                ]
        runs = summary
        for name, cells in summary.items():
            print(f"{name:40s} {cells[0]:5d} {cells[1]:.3f} {cells[2]:.3f}")
    else:
        for seed in range(given.splits):
            if given.part == "settings":
                runs.append(
                    {
                        "Caltech-101": settings(caltech(given.data, seed, given.cache), 0.08, seed),
                        "emoji": settings(emoji(), 0.4, seed),
                    }
                )
            else:
                case = (
                    caltech(given.data, seed, given.cache)
                    if given.part == "caltech"
                    else emoji()
                    if given.part == "emoji"
                    else lvis(given.data, seed)
                )
                runs.append(orders(case, given.part, seed))
            for name, cells in runs[-1].items():
                print(
                    seed,
                    f"{name:18s}",
                    " ".join(f"{v:.3f}" for v in np.ravel(cells) if v is not None)
                    if not isinstance(cells, dict)
                    else cells,
                    flush=True,
                )
    print(f"{time.process_time() - begun:.0f} s")
    write_json(given, runs)


if __name__ == "__main__":
    main()
