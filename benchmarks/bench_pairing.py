"""Measure the pairing check: false alarms per fit, power and time."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from scipy.stats import beta

import right_link
from common import arguments, write_json
from congruence import OrthogonalMap
from congruence.compare import pairing, sequence
from congruence.compare.pairing import Agreement, check_pairing
from congruence.datasets import load_sample
from congruence.synthetic import rigid_problem

TEXT = ("text_openai_vitb32", "text_eva02_b16")
IMAGE = "image_openai_vitb32_avg5"
PARTS = ("real", "noisy", "weak", "power", "kinds", "ranking", "shuffled", "unseen", "exchanged", "time")
KINDS = ("text-text", "image-text", "image-text, two models", "COCO image-text")
TEXT_TEXT = KINDS[0]
#: Numbers of pairs, and of wrong pairs among them.
CASES = ((30, 3), (50, 5), (100, 5), (100, 10), (300, 15))


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--fits", type=int, default=1000)
    parser.add_argument("--part", choices=PARTS)
    parser.add_argument("--seed", type=int, default=1000)
    options = parser.parse_args()
    with np.load(options.data / "lvis1203_clip.npz", allow_pickle=False) as data:
        lvis = {key: data[key] for key in (*TEXT, IMAGE)}
    with np.load(options.data / "coco500_openai_vitb16.npz", allow_pickle=False) as data:
        coco = data["image"], data["text"]
    pairs = dict(
        zip(
            KINDS,
            [(lvis[TEXT[0]], lvis[TEXT[1]]), (lvis[IMAGE], lvis[TEXT[0]]), (lvis[IMAGE], lvis[TEXT[1]]), coco],
            strict=True,
        )
    )
    rng = np.random.default_rng(options.seed)
    chosen = [options.part] if options.part else PARTS
    found: dict = {}
    if "real" in chosen:
        found["real"] = _alarms("real", (_draw(pairs[KINDS[k % 4]], _size(rng), rng) for k in range(options.fits)))
    if "noisy" in chosen:
        found["noisy"] = _alarms(
            "noisy", (_noisy(_draw(pairs[KINDS[k % 4]], _size(rng), rng), 1.5, rng) for k in range(options.fits))
        )
    if "weak" in chosen:
        count = min(options.fits, 300)
        found["weak"] = {
            name: _states(name, (_drowned(pairs[TEXT_TEXT], rng, each) for _ in range(count)))
            for name, each in (("noise 2.0, of the signal's size", False), ("noise 2.0 on each coordinate", True))
        }
    if "power" in chosen:
        found["power"] = [
            _power(pairs[TEXT_TEXT], *case, 40, rng) for case in ((30, 3), (100, 5), (300, 15), (900, 45))
        ]
    if "kinds" in chosen:
        found["kinds"] = _kinds({kind: pairs[kind] for kind in KINDS[:2]}, CASES, 40, rng)
    if "ranking" in chosen:
        found["ranking"] = {kind: _ranking(kind, pairs[kind], 30, 3, 400, rng) for kind in KINDS[:2]}
    if "shuffled" in chosen:
        draws = (_shuffled(_draw(pairs[KINDS[k % 4]], _size(rng), rng), rng) for k in range(192))
        found["shuffled"] = _states("all shuffled", draws)
    if "unseen" in chosen:
        found["unseen"] = _unseen(options.data, options.fits, options.seed)
    if "exchanged" in chosen:
        found["exchanged"] = _possible(options.data)
    if "time" in chosen:
        found["time"] = _time()
    write_json(options, found)


def _size(rng):
    return int(np.exp(rng.uniform(np.log(20), np.log(900))))


def _draw(pair, n, rng):
    rows = rng.permutation(len(pair[0]))[:n]
    return pair[0][rows], pair[1][rows]


def _noisy(pair, most, rng):
    X, Y = pair
    scale = rng.uniform(0.2, most) * np.linalg.norm(Y - Y.mean(axis=0)) / np.sqrt(Y.size)
    return X, Y + scale * rng.standard_normal(Y.shape)


def _drowned(pair, rng, each):
    X, Y = _draw(pair, _size(rng), rng)
    scale = 2.0 if each else 2.0 * np.linalg.norm(Y - Y.mean(axis=0)) / np.sqrt(Y.size)
    return X, Y + scale * rng.standard_normal(Y.shape)


def _shuffled(pair, rng):
    return pair[0], pair[1][rng.permutation(len(pair[1]))]


def _alarms(name, fits):
    reports = [check_pairing(X, Y) for X, Y in fits]
    total, accused = len(reports), sum(bool(report.suspects) for report in reports)
    denied = sum(report.state == "not paired" for report in reports)
    bound = beta.ppf(0.95, accused + 1, total - accused)
    print(
        f"{name}: {accused} of {total} fits accuse a true pair (95 % upper bound {bound:.2%}), {denied} say not paired"
    )
    return {"fits": total, "accused": accused, "not_paired": denied, "bound": bound}


def _states(name, fits):
    states = [check_pairing(X, Y).state for X, Y in fits]
    print(f"{name}: " + ", ".join(f"{state} {states.count(state)}" for state in sorted(set(states))))
    return {state: states.count(state) for state in sorted(set(states))}


def _power(pair, n, wrong, fits, rng, exchanged=True):
    """Shuffle some pairs among themselves, or replace their partners by rows that are not anchors."""
    found = rows = false = 0
    for _ in range(fits):
        X, Y = _draw(pair, n if exchanged else n + wrong, rng)
        mixed = rng.permutation(n)[:wrong]
        Z = Y[:n].copy()
        Z[mixed] = Y[np.roll(mixed, 1)] if exchanged else Y[n:]
        named = {int(name) for name in check_pairing(X[:n], Z).suspects}
        hit = named & set(mixed.tolist())
        found, rows, false = found + bool(hit), rows + len(hit), false + len(named - hit)
    how = "exchanged" if exchanged else "without partner"
    print(
        f"{wrong} of {n} {how}: found in {found} of {fits} fits, {rows} of {wrong * fits} rows, {false} right "
        "rows accused"
    )
    return {"n": n, "wrong": wrong, "fits": fits, "found": found, "rows": rows, "right_accused": false}


def _kinds(pairs, cases, fits, rng):
    found = []
    for kind, pair in pairs.items():
        print(kind)
        for case in cases:
            for exchanged in (True, False):
                found.append({"kind": kind, "exchanged": exchanged, **_power(pair, *case, fits, rng, exchanged)})
    return found


def _ranking(kind, pair, n, wrong, fits, rng):
    """Count the fits in which a wrong pair has the lowest evidence: an upper bound for any threshold on the
    evidence.
    """
    lowest = 0
    for _ in range(fits):
        X, Y = _draw(pair, n + wrong, rng)
        Y[:wrong] = Y[n:]
        lowest += int(np.argmin(Agreement(_unit(X[:n]), _unit(Y[:n]), rng).evidence) < wrong)
    print(f"{wrong} of {n} without partner, {kind}: the lowest evidence is a wrong pair's in {lowest} of {fits} fits")
    return {"n": n, "wrong": wrong, "fits": fits, "lowest_is_wrong": lowest}


def _unit(Z):
    Z = Z - Z.mean(axis=0)
    return Z / np.linalg.norm(Z, axis=1, keepdims=True)


def _unseen(folder, fits, seed):
    """Run the check on data that was not used to choose any constant."""
    pairs = _others(folder)
    rng = np.random.default_rng(seed)
    found = {"real": {}, "shuffled": {}}
    for kind, pair in pairs.items():
        found["real"][kind] = _alarms(kind, (_draw(pair, _size(rng), rng) for _ in range(fits // len(pairs))))
    rng = np.random.default_rng(seed + 1)
    for kind, pair in pairs.items():
        draws = (_shuffled(_draw(pair, _size(rng), rng), rng) for _ in range(20))
        found["shuffled"][kind] = _states(f"{kind}, shuffled", draws)
    rng = np.random.default_rng(seed + 2)
    return found | {"wrong": _kinds(pairs, CASES[:1] + CASES[2:4], 20, rng)}


def _others(folder):
    with np.load(folder / "imagenet1000_unimodal.npz", allow_pickle=False) as data:
        net, mobile, mpnet, mini = (
            data[key].astype(np.float32)
            for key in ("image_effnet_lite0", "image_mobilenet_v2", "text_mpnet", "text_minilm_l6")
        )
    pairs = {
        "ImageNet image-image": (net, mobile),
        "ImageNet text-text": (mpnet, mini),
        "ImageNet image-text": (net, mpnet),
    }
    with np.load(folder / "caltech101_unimodal.npz", allow_pickle=False) as data:
        net, mobile = (data[key].astype(np.float32) for key in ("image_effnet_lite0", "image_mobilenet_v2"))
        texts = data["text_mpnet"].astype(np.float32)[data["label"]]
        prompt = np.random.default_rng(0).integers(texts.shape[1], size=len(texts))
    pairs |= {
        "Caltech-101 image-image": (net, mobile),
        "Caltech-101 image-text": (net, texts[np.arange(len(texts)), prompt]),
    }
    sample = load_sample("emoji")
    return pairs | {
        f"sample {kind}-{kind}": (np.asarray(sample.source[kind]), np.asarray(sample.target[kind]))
        for kind in ("image", "text")
    }


def _possible(folder, rounds=2):
    """Count the exchanges of right_link.py that a test finds which knows the right pairs and which rows were moved."""
    found = {}
    for kind, make in right_link.WRONG.items():
        for name, (X, Y, labels) in right_link.models(folder, "show").items() if "exchanged with" in kind else ():
            for k in range(rounds):
                A, B, moved, right = make(X, Y, labels, np.random.default_rng([1, k, *map(ord, name + kind)]))
                rng = np.random.default_rng(0)
                sides = [sequence.whiten(pairing._CenteredRows.of(Z, rng).rows)[0] for Z in (A, B)]
                table = sequence._evidence(*sides, right).sum(axis=0)
                rows = np.flatnonzero(moved)
                lead = table[rows, right[rows]] - table[rows, rows]
                found.setdefault(kind, []).append(sequence._tail(lead, len(rows) / 2) < sequence._LEVEL)
    for kind, each in found.items():
        print(f"{kind}: {sum(each)} of {len(each)} could be found")
    return {kind: [int(sum(each)), len(each)] for kind, each in found.items()}


def _time():
    p = rigid_problem(5000, 768, 1024, decay=0.5, noise=0.1, random_state=0)
    X, Y = p.X.astype(np.float32), p.Y.astype(np.float32)
    seconds = {"fit": [], "check": []}
    for _ in range(5):
        for name, job in (("fit", OrthogonalMap().fit), ("check", check_pairing)):
            start = time.process_time()
            job(X, Y)
            seconds[name].append(time.process_time() - start)
    print(
        "5,000 pairs, 768 → 1024, processor time: "
        + ", ".join(f"{name} {np.median(s):.2f} s" for name, s in seconds.items())
    )
    return seconds


if __name__ == "__main__":
    main()
