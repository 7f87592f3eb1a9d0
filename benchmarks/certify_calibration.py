"""Whether what `certify` says is true on other rows: coverage of its intervals, and correctness of its sure verdicts.

Each case is a pair of models of which `certify` gets n items; the truth is what the map that it returns scores on other
items of the same models, in galleries of the same size, searched by queries that neither has seen (descriptions of
classes are in other words). The right verdict is the same rule, applied to the true scores. Cases by ``--kinds``:

- random, distorted: drawn by two generators that share nothing. Of the first, models differ by a rotation, noise, a
  shear, directions that one lacks, their widths; of the second, by a warp, heavy tails, unequal noise, near-duplicates.
- ordered (files sorted by class), duplicated (every item one to nine times), clustered (few tight classes), tied
  (vectors of few levels), few (10 to 30 items), mixed (two contents, related by two rotations): changed cases of these
  generators.
- real: items of ``../shared/data`` and of the samples, in random or sorted order.
"""

from __future__ import annotations

import time
import warnings
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from common import arguments, arrays, write_json
from congruence import Embeddings
from congruence.datasets import load_sample
from congruence.errors import TooFewAnchorsError
from congruence.synthetic import upgrade_problem
from congruence.upgrade.certify import Criteria, certify
from congruence.upgrade.certify.design import Design, EvaluationSet, draw_samples, make_tables
from congruence.upgrade.certify.mixed import measure_mixed, reached
from congruence.upgrade.certify.recipe import MapRecipe
from congruence.upgrade.certify.scoring import score_heldout
from congruence.upgrade.certify.verdict import decide, is_of_lists, with_known

#: Multiple of the items of a certificate on which the truth is measured: its own error counts against the intervals.
#: Measured on 10 times as many items, it lies in 94 % of exact 95 % intervals.
POPULATION = 10
MOST = 4  # most galleries in which stores that are partly re-embedded are measured
NEAR = 0.01  # shift of the true scores of mapping within which a verdict is counted as nearly right
FORMS = ("pairs", "classes", "labels", "lists")

Model = dict[str, np.ndarray]


@dataclass
class Case:
    """Items in two models, by modality; what describes classes is in the certificate's words and in others."""

    name: str
    old: Model
    new: Model
    n: int  # items of the certificate: the first ones
    labels: np.ndarray | None = None
    prompts: tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]] | None = None

    def part(
        self, rows: np.ndarray, *, other: bool = False
    ) -> tuple[dict[str, Embeddings], dict[str, Embeddings], Any]:
        names, sides = [str(i) for i in rows], []
        for k, model in enumerate((self.old, self.new)):
            sides.append({kind: Embeddings(X[rows], ids=names) for kind, X in model.items()})
            if self.prompts is not None:
                texts = self.prompts[int(other)][k]
                sides[-1]["text"] = Embeddings(texts, ids=[f"class {c}" for c in range(len(texts))])
        labels = None if self.labels is None else {str(i): f"class {self.labels[i]}" for i in rows}
        return sides[0], sides[1], labels


def unit(X: np.ndarray) -> np.ndarray:
    return X / np.linalg.norm(X, axis=1, keepdims=True)


def formed(name: str, form: str, old: Model, new: Model, labels: np.ndarray, n: int, rng: np.random.Generator) -> Case:
    """Return what a certificate of this form is given of two dual encoders."""
    if form == "pairs":
        return Case(name, old, new, n)
    images = [{"image": model["image"]} for model in (old, new)]
    if form != "classes":
        return Case(name, images[0], images[1], n, labels if form == "labels" else None)
    labels = np.unique(labels, return_inverse=True)[1]
    half = rng.permutation(len(labels)) % 2
    wordings = []
    for part in (0, 1):  # the mean of half of the texts of each class
        own = [labels == c for c in range(int(labels.max()) + 1)]
        own = [rows & (half == part) if (rows & (half == part)).any() else rows for rows in own]
        wordings.append(tuple(unit(np.stack([m["text"][rows].mean(axis=0) for rows in own])) for m in (old, new)))
    return Case(name, images[0], images[1], n, labels, (wordings[0], wordings[1]))


def random_models(
    rng: np.random.Generator, total: int, *, classes: int = 20, d: int | None = None, **facts: Any
) -> tuple[Model, Model, Any]:
    d = d or int(rng.choice([16, 32, 64]))
    given = {
        "source_noise": float(rng.uniform(0.3, 1.6)),
        "target_noise": float(rng.uniform(0.3, 1.2)),
        "shared": float(rng.uniform(0, 1)),
        "shear": float(rng.choice([0, 0, 0.3, 0.6])),
        "lost": float(rng.choice([0, 0, 0.2])),
        "decay": float(rng.uniform(0.1, 0.9)),
        "d_target": int(rng.choice([d, d, d // 2, 2 * d])),
    }
    p = upgrade_problem(total, d, random_state=int(rng.integers(2**31)), classes=classes, **{**given, **facts})
    old, new = (
        {"image": s[0], "text": s[1]} for s in ((p.source_images, p.source_texts), (p.target_images, p.target_texts))
    )
    return old, new, p.labels


def distorted_models(rng: np.random.Generator, total: int, *, classes: int = 20) -> tuple[Model, Model, Any]:
    """Draw two encoders that no rotation relates: warped, with heavy tails, noise of unequal size, unequal clusters."""
    d = int(rng.choice([16, 32, 48]))
    width, warp, spread = d // 2, float(rng.uniform(0, 1.5)), float(rng.uniform(0, 1.2))
    shares = 1 / np.arange(1, classes + 1)
    labels = rng.choice(classes, total, p=shares / shares.sum())
    tails = np.sqrt(3 / rng.chisquare(3, (total, 1)))
    within = float(rng.choice([0.2, 0.8]))
    latent = rng.standard_normal((classes, width))[labels] + within * tails * rng.standard_normal((total, width))
    hard = np.exp(spread * rng.standard_normal((total, 1)))  # items that are hard for one model are hard for the other
    if rng.random() < 1 / 3:  # groups of near-duplicates
        own = np.arange(total) // 4 * 4
        latent = latent[own] + 0.1 * rng.standard_normal((total, width))
        labels, hard = labels[own], hard[own]
    models = []
    for low, high in ((-3, 0.4), (-3, 0.2)):
        d_model = d if not models else int(rng.choice([d, d, 2 * d]))
        noise = float(np.exp(rng.uniform(low, high)))
        plain, bent = (rng.standard_normal((width, d_model)) / np.sqrt(width) for _ in range(2))
        seen = latent @ plain + warp * np.tanh(1.5 * latent @ bent)
        sides = {}
        for kind in ("image", "text"):
            shift = rng.standard_normal(d_model) * rng.uniform(0, 1)
            sides[kind] = unit(seen + noise * hard * rng.standard_normal((total, d_model)) + shift)
        models.append(sides)
    return models[0], models[1], labels


def simulated(kind: str, seed: int) -> tuple[Case, np.ndarray, np.ndarray]:
    """Return a case of a kind, the rows of the certificate, and other rows."""
    rng = np.random.default_rng([seed, len(kind), ord(kind[0])])
    n = int(rng.integers(10, 31)) if kind == "few" else int(rng.choice([120, 250, 400]))
    form = FORMS[seed % len(FORMS)]
    total = n * (1 + max(POPULATION, 600 // n))
    plain = kind == "random" or (kind != "distorted" and rng.random() < 0.5)
    draw = random_models if plain else distorted_models
    classes = 20
    if kind == "clustered":
        classes, draw = int(rng.choice([5, 10])), random_models
        old, new, labels = draw(rng, total, classes=classes, spread=float(rng.uniform(0.1, 0.3)))
    else:
        old, new, labels = draw(rng, total)
    if kind == "mixed":  # a second content, related otherwise
        widths = {"d": old["image"].shape[1], "d_target": new["image"].shape[1]}
        old2, new2, labels2 = random_models(rng, total, **widths)
        second = rng.random(total) < 0.4
        for model, other in ((old, old2), (new, new2)):
            for name in model:
                model[name] = np.where(second[:, None], other[name], model[name])
        labels = np.where(second, labels2 % 10, labels % 10 + 10)
    if kind == "duplicated":  # no item is both in the certificate and beside it
        times = rng.integers(1, 10, total)
        own = np.repeat(np.arange(total), times)
        own = np.concatenate([own[:n], own[own > own[n - 1]][: total - n]])
        old, new = ({name: X[own] for name, X in model.items()} for model in (old, new))
        labels = labels[own]
    if kind == "tied":
        levels = float(rng.choice([1, 2]))
        for model in (old, new):
            for name, X in model.items():
                codes = np.round(levels * X * np.sqrt(X.shape[1]))
                codes[~codes.any(axis=1), 0] = 1.0
                model[name] = unit(codes)
    case = formed(f"{kind} {seed}", form, old, new, labels, n, rng)
    rows = np.arange(n)
    if kind == "ordered":
        rows = rows[np.lexsort([case.old["image"][:n, 0], labels[:n]])]
    return case, rows, np.arange(n, len(labels))


def real_cases(folder: str) -> Iterator[tuple[str, Model, Model, np.ndarray | None, Any]]:
    """Yield pairs of models and items: name, both models, labels, prompts."""

    def rows(**given: np.ndarray) -> Model:
        return {name: unit(X.astype(np.float64)) for name, X in given.items()}

    for name in ("emoji", "photos"):
        sample = load_sample(name)
        models = [rows(image=side["image"].vectors) for side in (sample.source, sample.target)]
        if name == "emoji":
            texts = [rows(text=side["text"].vectors) for side in (sample.source, sample.target)]
            yield "emoji, pairs", models[0] | texts[0], models[1] | texts[1], None, None
            continue
        names = sample.source["text"].ids.tolist()
        code = np.array([names.index(sample.classes["image"][i]) for i in sample.source["image"].ids.tolist()])
        own, other = [], []
        for side in (sample.source, sample.target):
            own.append(unit(side["text"].vectors.astype(np.float64)))
            of = np.array([names.index(sample.classes["prompt"][i]) for i in side["prompt"].ids.tolist()])
            other.append(unit(np.stack([side["prompt"].vectors[of == c].mean(axis=0) for c in range(len(names))])))
        yield "photos, classes", models[0], models[1], code, (tuple(own), tuple(other))
        yield "photos, labels", models[0], models[1], code, None
    lvis = arrays(f"{folder}/lvis1203_clip.npz")
    for a, b in (("openai_vitb32", "openai_vitb16"), ("openai_vitb32", "eva02_b16"), ("eva02_b16", "openai_vitb16")):
        yield f"LVIS names, {a} to {b}", rows(text=lvis[f"text_{a}"]), rows(text=lvis[f"text_{b}"]), None, None
    images = rows(image=lvis["image_openai_vitb32_avg5"], text=lvis["text_openai_vitb32"])
    yield "LVIS, new texts alone", images, rows(text=lvis["text_eva02_b16"]), None, None
    clip = arrays(f"{folder}/clip_rn50_vitb32.npz")
    for a, b in (("rn50", "vitb32"), ("vitb32", "rn50")):
        old, new = (rows(image=clip[f"image_openai_{name}"]) for name in (a, b))
        yield f"CLIP {a} to {b}, photos", old, new, None, None
        yield f"CLIP {a} to {b}, photos and labels", old, new, clip["label"], None
        old, new = (rows(text=clip[f"lvis_text_openai_{name}"]) for name in (a, b))
        yield f"CLIP {a} to {b}, LVIS names", old, new, None, None
    fashion = arrays(f"{folder}/fashionpedia1150_images.npz")
    old, new = (rows(image=fashion[f"image_{name}"]) for name in ("openai_b32_openclip", "fashionsiglip"))
    code = np.unique(fashion["garment"].astype(str), return_inverse=True)[1]
    yield "Fashionpedia, photos", old, new, None, None
    yield "Fashionpedia, labels", old, new, code, None
    same = rows(image=fashion["image_openai_b32_hf"][:1000])
    yield "Fashionpedia, one model in two libraries", {"image": old["image"][:1000]}, same, None, None
    net = arrays(f"{folder}/imagenet1000_unimodal.npz")
    old, new = (rows(image=net[f"image_{name}"]) for name in ("effnet_lite0", "mobilenet_v2"))
    yield "ImageNet, photos", old, new, None, None
    yield "ImageNet, photos, back", new, old, None, None
    caltech = arrays(f"{folder}/caltech101_unimodal.npz")
    some = np.random.default_rng(0).permutation(len(caltech["label"]))[:3000]
    old, new = (rows(image=caltech[f"image_{name}"][some]) for name in ("effnet_lite0", "mobilenet_v2"))
    yield "Caltech-101, labels", old, new, caltech["label"][some], None
    yield "Caltech-101, labels, back", new, old, caltech["label"][some], None


def real(folder: str, seed: int) -> tuple[Case, np.ndarray, np.ndarray]:
    cases = list(real_cases(folder))
    name, old, new, labels, prompts = cases[seed % len(cases)]
    rng = np.random.default_rng([seed, 7])
    total = len(next(iter(old.values())))
    n = min(int(rng.choice([60, 120, 250])), total // 7)
    order = rng.permutation(total)
    rows = np.sort(order[:n]) if seed % 2 else order[:n]
    return Case(f"{name}, {n}", old, new, n, labels, prompts), rows, order[n:]


def inside(ends: tuple[float, float, float]) -> bool:
    low, true, high = ends
    return low - 1e-9 <= true <= high + 1e-9


def examine(kind: str, seed: int, folder: str) -> dict[str, Any] | None:
    """Certify a case, and measure the truth on other rows; None if `certify` answers "too few"."""
    warnings.simplefilter("ignore")
    started = time.process_time()
    case, rows, others = real(folder, seed) if kind == "real" else simulated(kind, seed)
    rng = np.random.default_rng([seed, 11])
    thresholds = Criteria(retention=float(rng.choice([0.8, 0.9, 0.95])))
    old, new, labels = case.part(rows)
    clock = time.process_time()
    try:
        said = certify(old, new, labels=labels, thresholds=thresholds, random_state=seed)
    except TooFewAnchorsError:  # most of few items are near-duplicates: an answer, and nothing to count
        return None
    seconds = time.process_time() - clock
    design = Design.of(old, new, None, None, labels, None, None, "auto", 10, None, seed)
    recipe = MapRecipe(design.fitted, random_state=seed)
    mapping = recipe.fit(design.anchors, np.arange(design.n_anchors), None, design.others)
    stored = design.items.tables.store_modality
    some = case.old[stored][others[:50]]
    gap = np.abs(said.fit().transform(some, modality=stored) - mapping.to_target(stored).transform(some)).max()
    truth, stores = defaultdict(list), []
    for start in range(0, len(others) - case.n + 1, case.n):
        source, target, classes = case.part(others[start : start + case.n], other=True)
        tables = make_tables(source, target, classes, what="queries")
        items = EvaluationSet(tables, samples=draw_samples(tables, seed))
        measured = score_heldout(mapping, items)
        for name, scores in measured.scores.items():
            truth[name].append(scores.mean())
        if len(stores) < MOST and (mixed := measure_mixed(items, measured, said.task)) is not None:
            stores.append(mixed.values)
    true = {name: float(np.mean(values)) for name, values in truth.items()}
    true = {name: score if name.startswith("cosine/") else min(max(score, 0.0), 1.0) for name, score in true.items()}
    found: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    missed: dict[str, list[float]] = {}
    for name, ways in said.strategies.items():
        for way, e in ways.items():
            if f"{name}/{way}" in true and e.interval is not None:
                ends = e.low, true[f"{name}/{way}"], e.high
                found["overlap" if is_of_lists(name) else "score"].append(ends)
                if not inside(ends):
                    missed[f"{name}/{way}"] = [round(end, 4) for end in ends]
    for name, e in said.retention.items():
        a, b = (true[f"{said.task}/{way}"] for way in name.split("/"))
        found["ratio"].append((e.low, a / b if b else np.inf, e.high))
    for modality, e in said.cosines.items():
        if case.prompts is None or modality != "text":
            found["cosine"].append((e.low, true[f"cosine/{modality}"], e.high))
    ways = with_known({way: true[f"{said.task}/{way}"] for way in said.strategies[said.task]}, said.task)
    tables = design.items.tables
    narrows = tables.source[stored].shape[1] > next(iter(tables.target.values())).shape[1]
    values = np.mean(stores, axis=0) if stores else None

    def right(shift: float = 0.0) -> Any:
        moved = {way: value + shift * (way in ("stored", "queries", "leave")) for way, value in ways.items()}

        def share(wanted: float) -> float | None:
            return None if values is None else reached(values + shift, wanted)

        return decide(moved, thresholds, narrows=narrows, of_lists=is_of_lists(said.task), share=share)

    best = right()
    return {
        "kind": kind,
        "name": case.name,
        "task": said.task,
        "said": said.verdict.action,
        "between": said.verdict.between,
        "shares": {action: round(share, 3) for action, share in said.verdict.confidence.items()},
        "right": best.action,
        "near": sorted({right(-NEAR).action, best.action, right(NEAR).action}),
        "more": said.verdict.more,
        "mispaired": bool(said.pairing["state"] not in ("paired", "cannot tell", "too few")),
        "same_map": bool(gap < 1e-6),
        "scores": {way: [e.value, e.low, e.high, ways.get(way)] for way, e in said.strategies[said.task].items()},
        "inside": {name: [sum(map(inside, of)), len(of)] for name, of in found.items()},
        "missed": missed,
        "seconds": [round(seconds, 2), round(time.process_time() - started, 2)],
    }


KINDS = ("random", "distorted", "ordered", "duplicated", "clustered", "tied", "few", "mixed", "real")


def summary(cases: list[dict[str, Any]]) -> str:
    inside: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(2, int))
    for one in cases:
        for name, counts in one["inside"].items():
            inside[name] += counts
    sure = [one for one in cases if one["said"] != "undecided"]
    good = sum(one["said"] == one["right"] for one in sure)
    near = sum(one["said"] in one["near"] for one in sure)
    cells = [f"{a} of {b}" for a, b in (inside[name] for name in ("score", "overlap", "ratio", "cosine"))]
    named = sum(one["right"] in one["between"] for one in cases if one["between"])
    undecided = sum(bool(one["between"]) for one in cases)
    return " | ".join([str(len(cases)), *cells, f"{good} of {len(sure)}", str(near), f"{named} of {undecided}"])


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--cases", type=int, default=40, help="cases of each kind")
    parser.add_argument("--seed", type=int, default=0, help="number of the first case")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--data", default="../shared/data")
    options = parser.parse_args()
    found: list[dict[str, Any]] = []
    print("| kind | cases | scores | overlaps | ratios | cosines | sure and right | within .01 | undecided names it |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
    with ProcessPoolExecutor(options.jobs) as pool:
        for kind in options.kinds:
            seeds = range(options.seed, options.seed + options.cases)
            found_here = pool.map(examine, [kind] * len(seeds), seeds, [options.data] * len(seeds))
            cases = [case for case in found_here if case is not None]
            found += cases
            print(f"| {kind} | {summary(cases)} |", flush=True)
            write_json(options, {"cases": found})
    print(f"| all | {summary(found)} |")
    for one in found:
        if one["said"] not in ("undecided", one["right"]):
            print(one["name"], one["task"], one["said"], one["right"], one["shares"], one["scores"], sep=" | ")
    print("mispaired:", [one["name"] for one in found if one["mispaired"]])
    print("another map saved than measured:", [one["name"] for one in found if not one["same_map"]])
    seconds = np.array([one["seconds"] for one in found])
    print(f"seconds of processor time: certify {np.median(seconds[:, 0]):.2f}, all {seconds[:, 1].sum():.0f}")


if __name__ == "__main__":
    main()
