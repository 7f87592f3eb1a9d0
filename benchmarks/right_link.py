"""Count what the pairing check says of files in order: wrong links and true ones, over real and synthetic data
(docs/anchors.md), and whether tied data that are independent look alike.

``--half choose`` has the data on which constants were chosen, ``--half show`` those on which nothing was.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from scipy.stats import beta, kstest

from common import arguments, arrays, write_json
from congruence.compare.pairing import check_pairing
from congruence.datasets import load_sample
from congruence.metrics import METRICS
from congruence.synthetic import random_rotation

PARTS = ("wrong", "true", "ties")
SIZES = (120, 200, 400, 1000)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--half", choices=("choose", "show"), default="show")
    parser.add_argument("--part", choices=PARTS)
    parser.add_argument("--rounds", type=int, default=4, help="times that each kind is drawn from each pair of models")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help="part of the name of data or kind")
    options = parser.parse_args()
    found = {}
    for part in [options.part] if options.part else PARTS:
        found[part] = ties(options.seed) if part == "ties" else count(part, options)
    write_json(options, found)


def count(part: str, options) -> dict:
    data, table, start = models(options.data, options.half), {}, time.process_time()
    kinds = WRONG if part == "wrong" else TRUE
    cases = 0
    for name, (X, Y, labels) in data.items():
        for kind, make in kinds.items():
            if options.only and not any(part in f"{name}/{kind}" for part in options.only.split(";")):
                continue
            for k in range(options.rounds):
                rng = np.random.default_rng([options.seed, k, *map(ord, name + kind)])
                case = make(X, Y, labels, rng)
                if case is None:
                    continue
                A, B, wrong, breaks = case
                report = check_pairing(A, B)
                cell = table.setdefault(kind, {}).setdefault(name, dict.fromkeys(COUNTS, 0))
                cases += 1
                for what, value in judged(report, wrong, breaks).items():
                    cell[what] += int(value)
    for kind, cells in table.items():
        total = {what: sum(cell[what] for cell in cells.values()) for what in COUNTS}
        print(f"{kind}: " + ", ".join(f"{what} {value}" for what, value in total.items() if value))
        for name, cell in cells.items():
            odd = cell["cases"] - cell["found"] if part == "wrong" else cell["accused"]
            if odd:
                print(f"    {name}: " + ", ".join(f"{what} {value}" for what, value in cell.items() if value))
    done = time.process_time() - start
    everything = {w: sum(cell[w] for cells in table.values() for cell in cells.values()) for w in COUNTS}
    share = "found" if part == "wrong" else "accused"
    low = beta.ppf(0.025, everything[share], everything["cases"] - everything[share] + 1)
    high = beta.ppf(0.975, everything[share] + 1, everything["cases"] - everything[share])
    print(f"{part}: {everything}, {share} 95 % interval {low:.3f} to {high:.3f}; {done:.0f} s of CPU")
    return {"table": table, "all": everything, "interval": [low, high], "cpu": done}


def ties(seed: int, n: int = 60, draws: int = 39, sets: int = 100) -> dict:
    """Test whether the p-values of independent tied data are uniform, one side in order (Kolmogorov and Smirnov)."""
    found = {}
    for kind, make in TIED.items():
        for name in ("mutual_knn", "cknna"):
            metric, p = METRICS[name], []
            for k in range(sets):
                rng = np.random.default_rng([seed, k])
                A, B = make(rng, n), rng.permutation(make(rng, n))
                first, second = metric.prepare(A[np.lexsort(A.T)], "X"), metric.prepare(B, "Y")
                null = [metric.compare(first, metric.reorder(second, rng.permutation(n))) for _ in range(draws)]
                above = np.array(null) - metric.compare(first, second)
                equal = np.count_nonzero(np.abs(above) <= 1e-12)
                place = np.count_nonzero(above > 1e-12) + rng.integers(0, equal + 1)
                p.append((place + rng.random()) / (draws + 1))
            found[f"{kind}, {name}"] = {
                "p": float(kstest(p, "uniform").pvalue),
                "at most .05": float(np.mean(np.array(p) <= 0.05)),
            }
            print(
                f"{kind}, {name}: "
                + ", ".join(f"{what} {value:.3f}" for what, value in found[f"{kind}, {name}"].items())
            )
    return found


TIED = {
    "labels": lambda rng, n: np.eye(10)[rng.integers(0, 10, n)],
    "two classes": lambda rng, n: np.eye(2)[rng.integers(0, 2, n)],
    "classes of unequal size": lambda rng, n: np.eye(8)[np.minimum(rng.geometric(0.4, n) - 1, 7)],
    "copies": lambda rng, n: rng.standard_normal((n // 10, 8))[np.arange(n) % (n // 10)],
    "drawn with repetition": lambda rng, n: rng.standard_normal((n // 3, 8))[rng.integers(0, n // 3, n)],
    "8-bit codes": lambda rng, n: np.round(rng.standard_normal((n, 2))),
    "counts": lambda rng, n: rng.poisson(0.7, (n, 4)).astype(float),
    "failed encodes": lambda rng, n: rng.standard_normal((n, 8)) * (rng.random((n, 1)) > 0.3),
}

COUNTS = ("cases", "found", "named", "mended", "accused", "cannot tell", "too few", "rows accused")


def judged(report, wrong: np.ndarray, truth: np.ndarray) -> dict[str, bool | int]:
    """``found``: not called paired; ``named``: with most rows that are wrong put right; ``mended``: nine of ten pairs
    that ``realigned`` gives are right; ``accused``: called wrong although it is right.
    """
    sure = report.state not in ("cannot tell", "too few")
    said = sure and (not report.looks_paired or bool(report.suspects))
    pairs = report.realigned()
    right = truth[pairs[:, 0]] == pairs[:, 1]
    return {
        "cases": 1,
        "found": said or report.state == "cannot tell",
        "named": said and (right.mean() > max((~wrong).mean() + 0.2 * wrong.mean(), 0) if wrong.any() else False),
        "mended": said and len(right) > 0 and right.mean() >= 0.9,
        "accused": said and not wrong.any(),
        "cannot tell": report.state == "cannot tell",
        "too few": report.state == "too few",
        "rows accused": len(report.suspects) if not wrong.any() else 0,
    }


# ------------------------------------------------------------------ data: two models and labels, in a file's order


def models(folder: Path, half: str) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return pairs of models by name: rows (n, d), (n, e) and the class of each row, in the order of the file."""
    found = {}
    if half == "choose":
        lvis = arrays(folder / "lvis1203_clip.npz")
        rows = np.arange(len(lvis["names"]))
        found["names, CLIP texts"] = lvis["text_openai_vitb32"], lvis["text_eva02_b16"], rows // 30
        found["names, photos and texts"] = lvis["image_openai_vitb32_avg5"], lvis["text_openai_vitb32"], rows // 30
        net = {k: v.astype(np.float32) for k, v in arrays(folder / "imagenet1000_unimodal.npz").items() if "_" in k}
        rows = np.arange(1000)
        found["ImageNet, texts apart"] = net["text_mpnet"], net["text_minilm_l6"], rows // 25
        found["ImageNet, photos apart"] = net["image_effnet_lite0"], net["image_mobilenet_v2"], rows // 25
        found["ImageNet, photos and texts apart"] = net["image_effnet_lite0"], net["text_mpnet"], rows // 25
        kinds = range(3)
    else:
        clip = arrays(folder / "clip_rn50_vitb32.npz")
        order = np.argsort(clip["label"], kind="stable")
        photos = [clip[f"image_openai_{m}"][order].astype(np.float32) for m in ("rn50", "vitb32")]
        found["CLIP photos by class"] = *photos, clip["label"][order]
        texts = [clip[f"lvis_text_openai_{m}"].astype(np.float32) for m in ("rn50", "vitb32")]
        found["names, two CLIPs"] = *texts, np.arange(len(texts[0])) // 30
        cal = arrays(folder / "caltech101_unimodal.npz")
        order = np.argsort(cal["label"], kind="stable")
        photos = [cal[k][order].astype(np.float32) for k in ("image_effnet_lite0", "image_mobilenet_v2")]
        found["photos by class, apart"] = *photos, cal["label"][order]
        coco = arrays(folder / "coco500_openai_vitb16.npz")
        first = np.argsort(coco["image"][:, 0])
        found["photos and captions"] = coco["image"][first], coco["text"][first], np.arange(500) // 25
        guide = arrays(folder / "guideline250_text6.npz")
        names = [k for k, v in guide.items() if v.ndim == 2]
        found["passages"] = *(guide[names[k]].astype(np.float32) for k in (0, 5)), np.arange(250) // 25
        sample = load_sample("emoji")
        for kind in ("image", "text"):
            sides = [np.asarray(getattr(sample, side)[kind]) for side in ("source", "target")]
            found[f"emoji, {kind}"] = *sides, np.arange(len(sides[0])) // 25
        fashion = arrays(folder / "fashionpedia1150_images.npz")
        order = np.argsort(fashion["garment"], kind="stable")
        sides = [fashion[k][order].astype(np.float32) for k in ("image_fashionsiglip", "image_openai_b32_openclip")]
        found["fashion by garment"] = *sides, np.unique(fashion["garment"][order], return_inverse=True)[1]
        kinds = range(3, 6)
    for kind in kinds:
        found[f"synthetic {kind}"] = synthetic(kind)
    return {name: (X.astype(np.float32), Y.astype(np.float32), labels) for name, (X, Y, labels) in found.items()}


def synthetic(kind: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a walk, clusters, or rows with heavy tails, turned and with noise."""
    rng = np.random.default_rng(kind)
    n, d = 2000, (64, 128, 96, 32, 200, 128)[kind]
    decay = np.arange(1, d + 1) ** -0.5
    labels = np.repeat(np.arange(n // 20), 20)
    if kind % 3 == 0:  # a walk: neighbors in the file resemble each other
        Z, step = np.empty((n, d)), rng.standard_normal((n, d))
        Z[0] = step[0]
        for i in range(1, n):
            Z[i] = 0.9 * Z[i - 1] + 0.44 * step[i]
    elif kind % 3 == 1:
        Z = 1.5 * rng.standard_normal((n // 20, d))[labels] + rng.standard_normal((n, d))
    else:
        Z = rng.standard_t(3, (n, d))
    Z = Z * decay
    turned = Z @ random_rotation(d, d, kind) + 0.5 * np.sqrt((Z**2).mean()) * rng.standard_normal((n, d))
    return Z.astype(np.float32), turned.astype(np.float32), labels


# ------------------------------------------------------------------ wrong links


def draw(X, Y, labels, rng, forms=("as it is", "shuffled", "near copies", "sorted")):
    """Return a stretch of a file in one of several orders."""
    n = int(min(rng.choice(SIZES), len(X) - 40))
    start = int(rng.integers(0, len(X) - n - 39))
    rows = np.arange(start, start + n + 40)
    form = forms[int(rng.integers(len(forms)))]
    if form == "shuffled":
        rows = rng.permutation(rows)
    elif form == "sorted":  # by the leading direction
        Z = X[rows] - X[rows].mean(axis=0)
        rows = rows[np.argsort(Z @ np.linalg.svd(Z, full_matrices=False)[2][0])]
    elif form == "near copies":  # three of each item
        rows = rows[np.repeat(np.arange(len(rows)), 3)[: len(rows)]] if n >= 400 else rows
    A, B = X[rows], Y[rows]
    if form == "near copies":
        A, B = (Z + 0.3 * Z.std() * rng.standard_normal(Z.shape).astype(Z.dtype) for Z in (A, B))
    return A, B, labels[rows], n


def wrong(choose, forms=("as it is", "shuffled", "near copies", "sorted")):
    """Return a maker of cases from a function that gives the rows of both sides."""

    def make(X, Y, labels, rng):
        A, B, own, n = draw(X, Y, labels, rng, forms)
        chosen = choose(n, own, A, B, rng)
        if chosen is None:
            return None
        a, b = chosen
        place = np.full(len(B), -1)
        place[b] = np.arange(len(b))
        return A[a], B[b], a != b, place[a]

    return make


def lag(n, own, A, B, rng):
    k = int(rng.integers(1, 30))
    rows = np.arange(n)
    return (rows + k, rows) if rng.random() < 0.5 else (rows, rows + k)


def blocks(n, own, A, B, rng):
    cut = np.sort(rng.choice(np.arange(n // 10, n), 2, replace=False))
    if min(cut[0], cut[1] - cut[0]) < n // 10:
        cut = np.array([n // 3, 2 * n // 3])
    rows = np.arange(n)
    return rows, np.concatenate([rows[cut[0] : cut[1]], rows[: cut[0]], rows[cut[1] :]])


def reversed_part(n, own, A, B, rng):
    length = int(n * rng.uniform(0.2, 1.0))
    start = int(rng.integers(0, n - length + 1))
    other = np.arange(n)
    other[start : start + length] = other[start : start + length][::-1]
    return np.arange(n), other


def half_reversed(n, own, A, B, rng):
    other = np.arange(n)
    other[: n // 2] = other[: n // 2][::-1]
    return np.arange(n), other


def lost(n, own, A, B, rng):
    """One to three rows lost at places of one side."""
    at = np.sort(rng.integers(0, int(n * 0.7), int(rng.integers(1, 4))))
    rows = np.arange(n + 3)
    sides = np.delete(rows, at)[:n], rows[:n]
    return sides if rng.random() < 0.5 else sides[::-1]


def lost_on_both(n, own, A, B, rng):
    rows = np.arange(n + 10)
    times = int(rng.integers(1, 4))
    first = np.delete(rows, rng.integers(0, n // 3, times))
    second = np.delete(rows, rng.integers(2 * n // 3, n, times))
    return first[:n], second[:n]


def within_classes(n, own, A, B, rng):
    own, other = own[:n], np.arange(n)
    for name in np.unique(own):
        rows = np.flatnonzero(own == name)
        other[rows] = np.roll(rows, -1)
    return np.arange(n), other


def near_neighbors(share):
    def exchange(n, own, A, B, rng):
        Z = B[:n] - B[:n].mean(axis=0)
        Z = Z / (np.linalg.norm(Z, axis=1, keepdims=True) + 1e-12)
        near = np.argsort(-(Z @ Z.T), axis=1)[:, 1:6]
        other, free, moved = np.arange(n), np.ones(n, bool), 0
        for i in rng.permutation(n):
            if moved >= share * n:
                break
            mates = [j for j in near[i] if free[j] and free[i] and j != i]
            if mates:
                j = mates[0]
                other[i], other[j] = other[j], other[i]
                free[i] = free[j] = False
                moved += 2
        return np.arange(n), other

    return exchange


ORDERED = ("as it is", "sorted", "near copies")
WRONG = {
    "lag": wrong(lag),
    "blocks exchanged": wrong(blocks),
    "a part reversed": wrong(reversed_part),
    "first half reversed": wrong(half_reversed),
    "rows lost on one side": wrong(lost),
    "rows lost on both sides": wrong(lost_on_both),
    "cyclic within classes": wrong(within_classes, ("as it is",)),
    "5 % exchanged with near neighbors": wrong(near_neighbors(0.05), ("as it is", "shuffled", "sorted")),
    "20 % exchanged with near neighbors": wrong(near_neighbors(0.2), ("as it is", "shuffled", "sorted")),
    "50 % exchanged with near neighbors": wrong(near_neighbors(0.5), ("as it is", "shuffled", "sorted")),
}


# ------------------------------------------------------------------ true links


def true(change):
    def make(X, Y, labels, rng):
        n = int(min(rng.choice((40, 80, *SIZES)), len(X)))
        start = int(rng.integers(0, len(X) - n + 1))
        A, B = change(X[start : start + n], Y[start : start + n], labels[start : start + n], rng)
        return A, B, np.zeros(len(A), bool), np.arange(len(A))

    return make


def both(rows_of, noise=0.0):
    def change(A, B, own, rng):
        rows = rows_of(len(A), own, rng)
        A, B = A[rows], B[rows]
        return [Z + noise * Z.std() * rng.standard_normal(Z.shape).astype(Z.dtype) for Z in (A, B)] if noise else (A, B)

    return change


def by_direction(A, B, own, rng):
    Z = A - A.mean(axis=0)
    order = np.argsort(Z @ np.linalg.svd(Z, full_matrices=False)[2][0])
    return A[order], B[order]


def warped(A, B, own, rng):
    Z = (B - B.mean(axis=0)) / B.std()
    return A, Z + 0.7 * np.tanh(Z @ rng.standard_normal((Z.shape[1], Z.shape[1])) / np.sqrt(Z.shape[1]))


def heavy(A, B, own, rng):
    return [Z + 0.5 * Z.std() * rng.standard_t(2, (len(Z), 1)) * rng.standard_normal(Z.shape) for Z in (A, B)]


def damaged(A, B, own, rng):
    """Some rows of one side are noisy: a failing encoder, but the right items."""
    size = np.where(rng.random(len(B)) < 0.1, 2.0, 0.1)[:, None]
    return A, B + size * B.std() * rng.standard_normal(B.shape)


TRUE = {
    "as it is": true(both(lambda n, own, rng: np.arange(n))),
    "shuffled": true(both(lambda n, own, rng: rng.permutation(n))),
    "sorted": true(by_direction),
    "class by class": true(both(lambda n, own, rng: np.argsort(own, kind="stable"))),
    "copies": true(both(lambda n, own, rng: np.repeat(np.arange(n), rng.integers(1, 10, n))[:n])),
    "drawn with repetition": true(both(lambda n, own, rng: rng.integers(0, n, n))),
    "near copies": true(both(lambda n, own, rng: np.repeat(np.arange(n), 12)[:n], 0.1)),
    "nearer copies, mixed": true(both(lambda n, own, rng: rng.integers(0, n // 3, n), 0.02)),
    "few items": true(both(lambda n, own, rng: np.repeat(np.arange(6), -(-n // 6))[:n], 0.05)),
    "few items in turn": true(both(lambda n, own, rng: np.arange(n) % 30, 0.2)),
    "noise": true(both(lambda n, own, rng: np.arange(n), 0.7)),
    "more noise": true(both(lambda n, own, rng: np.arange(n), 1.5)),
    "warped": true(warped),
    "heavy tails": true(heavy),
    "some rows damaged": true(damaged),
}


if __name__ == "__main__":
    main()
