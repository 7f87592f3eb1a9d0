"""Progressive re-embedding in further settings: few pairs, unknown texts, re-embedded and mapped rows separately, and
the forecast's verdict.

``--part pairs``: Caltech-101, starting from 100 random photo pairs, without texts in the fit of the first map. Queries
are the new model's class names. *Names*: the names in both models are passed as ``texts``; *for the order only*: the
map does not use them. ``--part unseen``: half of the class names (Caltech-101) or captions (emoji) are known as texts
and to the first map; queries of the other half are scored separately. ``--part halves``: recall of re-embedded rows and
of mapped rows, by plain cosines and by scores on a common scale. For Caltech-101 it is the share of a class's n photos
among the first n found by its name, for LVIS the share of the ten rows that the new model finds. ``--part verdicts``:
the verdict of ``forecast`` as soon as 20 rows are measured, and the quality that the same run reaches with half of the
store re-embedded.

Data, models and splits are those of bench_progressive.py. Nothing in the library was chosen using these tables.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from bench_progressive import Case, by_query, caltech, emoji, first_map, lvis, parse_options, simulated
from common import write_json
from congruence import fit
from congruence.embeddings import normalize_rows
from congruence.maps import Map, OrthogonalMap
from congruence.synthetic import upgrade_problem
from congruence.upgrade.progressive import ORDERS, Progressive, View, fit_origin_scale
from congruence.upgrade.progressive.texts import Scale, TextFacts

PAIRS = 100
#: Shares of the store by part; "pairs" starts with its 100 pairs, 3 % of the photos.
SHARES = {"pairs": (0.03, 0.07, 0.11, 0.15, 0.19, 0.23), "unseen": (0.0, 0.04, 0.08, 0.16), "halves": (0.1, 0.2, 0.3)}
EMOJI_SHARES, LVIS_SHARES = (0.0, 0.2, 0.4, 0.6), (0.2, 0.3, 0.5)
BATCH = 0.02
#: Targets of the verdict, and the share above which re-embedding everything is recommended.
TARGETS = (0.95, 0.99)
MOST = 0.5


def by_texts(name: str, case: Case) -> Callable[[View], np.ndarray]:
    """Return an order by texts for a plan whose map does not use texts."""
    ours, theirs = normalize_rows(case.texts, dtype=np.float64), normalize_rows(case.new_texts, dtype=np.float64)

    def order(view: View) -> np.ndarray:
        sides = ((view.old, ours), (view.mapped, theirs))
        old, new = (TextFacts.of(rows, texts, Scale.of(rows, texts)) for rows, texts in sides)
        return ORDERS[name](replace(view, by_texts=(old, new)))

    return order


def pairs(case: Case, seed: int) -> dict[str, Any]:
    """Return the accuracy, starting from 100 photo pairs, by order and kind of refit."""
    n = len(case.old)
    start = np.random.default_rng([seed, 9]).permutation(n)[:PAIRS]
    mapping = fit(case.old[start], case.new[start], modality="image", check=False)
    known = {"texts": case.texts, "new_texts": case.new_texts}
    found: dict[str, Any] = {"old": case.score(case.old, case.queries_old), "new": case.score(case.new)}
    found["random, fixed"] = still(case, mapping, start, "random", seed)
    found["random, rotation"] = rotations(case, start, seed)
    for name, order, given in (
        ("random", "random", {}),
        ("auto", "auto", {}),
        ("disagreement for the order only", by_texts("disagreement", case), {}),
        ("random, names", "random", known),
        ("disagreement, names", "disagreement", known),
        ("auto, names", "auto", known),
    ):
        if name.startswith("disagreement for"):
            found["disagreement for the order only, fixed"] = still(case, mapping, start, order, seed)
        plan = Progressive(mapping, case.old, modality="image", order=order, random_state=seed, **given)
        plan.update(start, case.new[start])
        found[name] = [case.score(plan.store()) for _ in stages(plan, case.new, SHARES["pairs"])]
    return found


def stages(plan: Progressive, new: np.ndarray, shares: tuple[float, ...], batch: float = BATCH) -> Any:
    """Re-embed up to each share in turn, and yield it."""
    for share in shares:
        if round(share * len(plan)) > plan.embedded.sum():
            for ids in plan.batches(round(batch * len(plan)), share=share):
                plan.update(ids, new[ids])
        yield share


def still(case: Case, mapping: Map, start: np.ndarray, order: Any, seed: int) -> list[float]:
    """Return the accuracy if neither the first map nor its order is updated."""
    plan = Progressive(mapping, case.old, modality="image", order=order, random_state=seed)
    mapped, n = plan.mapped(), len(case.old)
    view = View(normalize_rows(case.old, dtype=np.float64), mapped, np.empty(0, np.intp), np.empty(0), n, seed)
    scores = (ORDERS[order] if isinstance(order, str) else order)(view)
    scores[start] = np.inf
    ranks = np.argsort(-scores, kind="stable")
    out = []
    for share in SHARES["pairs"]:
        store, done = mapped.copy(), ranks[: max(PAIRS, round(share * n))]
        store[done] = case.new[done]
        out.append(case.score(store))
    return out


def rotations(case: Case, start: np.ndarray, seed: int) -> list[float]:
    """Return the accuracy with photos in random order and a rotation refitted on all re-embedded ones."""
    n, out = len(case.old), []
    shuffled = np.random.default_rng([seed, 4]).permutation(n)
    ranks = np.concatenate([start, shuffled[~np.isin(shuffled, start)]])
    for share in SHARES["pairs"]:
        done = ranks[: max(PAIRS, round(share * n))]
        store = normalize_rows(OrthogonalMap().fit(case.old[done], case.new[done]).transform(case.old))
        store[done] = case.new[done]
        out.append(case.score(store))
    return out


def unseen(case: Case, seed: int, shares: tuple[float, ...], batch: float) -> dict[str, Any]:
    """Return the scores of queries with known texts and of queries with unknown ones, by where the known texts are
    used.
    """
    assert case.texts is not None
    assert case.new_texts is not None
    assert case.pairs is not None
    m = len(case.texts)
    known = np.sort(np.random.default_rng([seed, 11]).permutation(m)[: m // 2])
    each = len(case.pairs[0]) // m
    ours, theirs = (side.reshape(m, each, -1)[known].reshape(len(known) * each, -1) for side in case.pairs)
    half = first_map(ours, theirs, case.old)
    mine = np.isin(case.labels, known)
    found: dict[str, Any] = {"queries of known texts": float(mine.mean())}
    for name, rows, queries in (("old", case.old, case.queries_old), ("new", case.new, case.queries)):
        found[name] = split(hits(case, rows, queries), mine)
    for name, mapping, texts, order in (
        ("all texts known", case.mapping, slice(None), "auto"),
        ("half of the texts known", half, known, "auto"),
        ("half known to the first map, none to the plan", half, None, "auto"),
    ):
        given = {} if texts is None else {"texts": case.texts[texts], "new_texts": case.new_texts[texts]}
        plan = Progressive(mapping, case.old, modality="image", order=order, random_state=seed, **given)
        found[name] = [split(hits(case, plan.store()), mine) for _ in stages(plan, case.new, shares, batch)]
    return found


def hits(case: Case, store: np.ndarray, queries: np.ndarray | None = None) -> np.ndarray:
    """Return for each row, or its caption, whether it is found."""
    near = (case.queries if queries is None else queries) @ store.T
    if case.kind == "accuracy":
        return near.argmax(axis=0) == case.labels
    own = near[np.arange(len(near)), case.labels]
    return np.count_nonzero(near > own[:, None], axis=1) < 10


def split(hit: np.ndarray, mine: np.ndarray) -> list[float]:
    return [float(hit[mine].mean()), float(hit[~mine].mean())]


def halves(case: Case, order: str, seed: int, shares: tuple[float, ...]) -> list[dict[str, Any]]:
    """Return, at each share, the recall of all rows, of native ones and of mapped ones by kind of scale, and the share
    of native rows among those found and among those wanted.
    """
    plan, out = case.plan(order, seed), []
    if case.kind == "overlap":
        near = np.argsort(-(case.queries @ case.new.T), axis=1)[:, :10]
        wanted = np.zeros((len(case.queries), len(case.new)), bool)
        np.put_along_axis(wanted, near, True, axis=1)
    else:
        wanted = np.arange(len(case.queries))[:, None] == case.labels
    depth = wanted.sum(axis=1)
    for share in stages(plan, case.new, shares):
        native, rows = plan.embedded, plan.measured
        scores, result = case.queries @ plan.store().T, {}
        known, sides = case.queries if case.new_texts is None else case.new_texts, (plan.mapped()[rows], case.new[rows])
        for kind, scale in (
            ("none", scores),
            ("factor", scores * fit_origin_scale(known, *sides)),
            ("query", by_query(scores, case.queries, *sides)),
        ):
            changed = np.where(native, scores, scale)
            place = np.argsort(np.argsort(-changed, axis=1, kind="stable"), axis=1)
            found = place < depth[:, None]
            right = found & wanted
            result[kind] = [
                *(float(right[:, part].sum() / wanted[:, part].sum()) for part in (slice(None), native, ~native)),
                float(found[:, native].sum() / found.sum()),
            ]
        out.append({"share": share, "native": float(wanted[:, native].sum() / wanted.sum()), "kinds": result})
    return out


def made_up(seed: int, source_noise: float, target_noise: float) -> Case:
    """Return simulated models with the given noise, for example an old model that separates few of the items that the
    new one separates.
    """
    p = upgrade_problem(1200, 32, random_state=seed, source_noise=source_noise, target_noise=target_noise)
    words = np.arange(100)
    mapping = first_map(p.source_texts[words], p.target_texts[words], p.source_images)
    ours, theirs = p.source_texts[words], p.target_texts[words]
    return Case(p.source_images, p.target_images, mapping, theirs, ours, ours, theirs)


def verdict(case: Case, seed: int, metric: str) -> dict[str, Any]:
    """Return the forecast once 20 rows are measured, and the true quality with half of the store re-embedded."""
    plan = case.plan("auto", seed, **({"labels": case.labels} if metric == "accuracy" else {}))
    result: dict[str, Any] = {"metric": metric}
    for ids in plan.batches(round(0.05 * len(plan)), share=MOST):
        plan.update(ids, case.new[ids])
        if "said" not in result and len(plan.measured) >= 20 and metric in plan.meter().store:
            result["share"] = float(plan.embedded.mean())
            ahead = {target: plan.forecast(target=target, metric=metric) for target in TARGETS}
            result["said"] = {str(target): one.verdict for target, one in ahead.items()}
            result["needed"] = {str(target): one.needed for target, one in ahead.items()}
    result["reached"] = quality(case, plan, metric)
    return result


def quality(case: Case, plan: Progressive, metric: str) -> float:
    """Return the true quality of the store: agreement by texts, accuracy as a share of the new model's, or overlap by
    re-embedded rows.
    """
    done = plan.embedded
    if metric == "accuracy":
        near = [(rows @ case.new_texts.T).argmax(axis=1) == case.labels for rows in (plan.store(), case.new)]
        return float(near[0].mean() / near[1].mean())
    against, k = (case.new_texts, 1) if metric == "agreement" else (case.new[done], 10)
    sides = [np.argsort(-(rows[~done] @ against.T), axis=1)[:, :k] for rows in (case.new, plan.transform(case.old))]
    kept = (sides[0][:, :, None] == sides[1][:, None, :]).any(axis=2).mean(axis=1)
    return float((done.sum() + kept.sum()) / len(done))


def main() -> None:
    given = parse_options(__doc__, ("pairs", "unseen", "halves", "verdicts"))
    begun = time.process_time()
    runs: Any = []
    for seed in range(given.splits):
        photos = caltech(given.data, seed, given.cache)
        if given.part == "pairs":
            one: dict[str, Any] = pairs(photos, seed)
        elif given.part == "unseen":
            one = {
                "Caltech-101": unseen(photos, seed, SHARES["unseen"], BATCH),
                "emoji": unseen(emoji(), seed, EMOJI_SHARES, 0.05),
            }
        elif given.part == "halves":
            one = {
                "Caltech-101": halves(photos, "auto", seed, SHARES["halves"]),
                "LVIS": halves(lvis(given.data, seed), "random", seed, LVIS_SHARES),
            }
        else:
            made = [(*simulated(5 * seed + k), "agreement") for k in range(5)]
            made += [("simulated, little noise", made_up(seed, 0.1, 0.1), "agreement")]
            made += [("simulated, old model useless", made_up(seed, 3.0, 0.3), "agreement")]
            made += [
                (name, case, each)
                for name, case in (("emoji", emoji()), ("Caltech-101", photos))
                for each in ("agreement", "accuracy")
            ]
            made += [("LVIS", lvis(given.data, seed), "overlap@10")]
            one = {f"{name}: {metric}": verdict(case, seed, metric) for name, case, metric in made}
        runs.append(one)
        print(seed, one, flush=True)
    print(f"{time.process_time() - begun:.0f} s")
    write_json(given, runs)


if __name__ == "__main__":
    main()
