"""Coverage of the intervals, and correctness of the verdicts, of `certify`: on many simulated pairs of models, and on
parts of real embeddings.

A simulated pair consists of two dual encoders. With `--kind simulated` they differ by a rotation, noise, a shear,
directions that one of them lacks, their widths, or wrong pairs, all drawn at random; with `--kind distorted`, by a
warp, heavy tails, unequal noise and near-duplicates. `certify` gets n anchors. The true scores are those of the map
that is chosen and fitted on these n anchors, on thousands of other items, in galleries of n. The true verdict results
from applying the same rule to the true scores and to the true learning curve, measured with further anchors.
"""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict

import numpy as np

from common import arguments, arrays, write_json
from congruence import Embeddings
from congruence.metrics.hubness import as_hubness
from congruence.synthetic import upgrade_problem
from congruence.upgrade.certify import ACTIONS as ALL_ACTIONS
from congruence.upgrade.certify import Criteria, certify
from congruence.upgrade.certify.design import EvaluationSet, make_tables
from congruence.upgrade.certify.recipe import MapRecipe
from congruence.upgrade.certify.scoring import Sheet, read_unmapped, score_heldout
from congruence.upgrade.certify.verdict import decide, is_of_lists, with_known

#: Number of items on which the true scores are measured. Their own error counts against the intervals: measured on six
#: times the number of items of the estimate, they lie in only 93 % of exact 95 % intervals.
POPULATION = 9000
CURVE_POPULATION = 3000
POOL = 2000
NEAR = 0.02
#: Progressive re-embedding is counted as re-embedding, of which it is a variant; ``certify_progressive.py`` examines
#: it.
ACTIONS = tuple(action for action in ALL_ACTIONS if action != "progressive")
KINDS = ("pairs", "classes", "one modality")


class Case:
    """Items in two models: some are anchors, some are a pool of further anchors, and the rest is the population."""

    def __init__(self, arrays, kind, labels=None, prompts=None):
        self.arrays, self.kind, self.codes, self.prompts = arrays, kind, labels, prompts

    def part(self, rows):
        names = [str(i) for i in rows]
        sides = []
        for model in ("source", "target"):
            side = {m: Embeddings(v[rows], ids=names) for m, v in self.arrays[model].items()}
            if self.prompts is not None:
                texts = self.prompts[model]
                side["text"] = Embeddings(texts, ids=[f"class {k}" for k in range(len(texts))])
            sides.append(side)
        labels = None
        if self.kind != "pairs" and self.codes is not None:
            labels = {str(i): f"class {self.codes[i]}" for i in rows}
        return (*sides, labels)

    def tables(self, rows, what="queries"):
        source, target, labels = self.part(rows)
        return make_tables(source, target, labels, what=what)


def simulated(rng):
    d = int(rng.choice([16, 32, 64]))
    n = int(rng.choice([60, 120, 250, 500]))
    kind = KINDS[rng.integers(len(KINDS))]
    facts = {
        "source_noise": float(rng.uniform(0.3, 1.6)),
        "target_noise": float(rng.uniform(0.3, 1.2)),
        "shared": float(rng.uniform(0, 1)),
        "shear": float(rng.choice([0, 0, 0.3, 0.6])),
        "lost": float(rng.choice([0, 0, 0.2])),
        "mispaired": float(rng.choice([0, 0, 0, 0.05])),
        "decay": float(rng.uniform(0.1, 0.9)),
        "d_target": int(rng.choice([d, d, d // 2, 2 * d])),
    }
    p = upgrade_problem(n + POOL + POPULATION, d, random_state=int(rng.integers(2**31)), classes=20, **facts)
    source, target = {"image": p.source_images}, {"image": p.target_images}
    prompts = None
    if kind == "pairs":
        source["text"], target["text"] = p.source_texts, p.target_texts
    if kind == "classes":
        # A prompt's vector is the mean text of its class.
        prompts = {}
        for model, texts in (("source", p.source_texts), ("target", p.target_texts)):
            means = np.stack([texts[p.labels == k].mean(axis=0) for k in range(20)])
            prompts[model] = means / np.linalg.norm(means, axis=1, keepdims=True)
    facts |= {"d": d, "n": n, "kind": kind}
    return Case({"source": source, "target": target}, kind, p.labels, prompts), n, facts


def distorted(rng):
    """Draw two encoders that are not related by a rotation: warped, with heavy tails, noise of unequal size, and
    clusters of unequal size.

    This shares nothing with :func:`simulated`, to detect intervals and verdicts that are correct only on the simulation
    they were tuned on.
    """
    d = int(rng.choice([16, 32, 48]))
    n = int(rng.choice([60, 120, 250, 500]))
    kind = KINDS[rng.integers(len(KINDS))]
    total, width, classes = n + POOL + POPULATION, d // 2, 20
    warp, spread = float(rng.uniform(0, 1.5)), float(rng.uniform(0, 1.2))
    noise = {"source": float(np.exp(rng.uniform(-3, 0.4))), "target": float(np.exp(rng.uniform(-3, 0.2)))}
    # Cluster sizes fall as 1/rank; the rows of a cluster follow a t-distribution with three degrees of freedom around
    # its center.
    shares = 1 / np.arange(1, classes + 1)
    labels = rng.choice(classes, total, p=shares / shares.sum())
    tails = np.sqrt(3 / rng.chisquare(3, (total, 1)))
    within = float(rng.choice([0.2, 0.8]))
    latent = rng.standard_normal((classes, width))[labels] + within * tails * rng.standard_normal((total, width))
    # Items in groups of near-duplicates; no group is split between parts of the data.
    group = int(rng.choice([1, 1, 4]))
    if group > 1:
        own = np.arange(total) // group * group
        latent, labels = latent[own] + 0.1 * rng.standard_normal((total, width)), labels[own]
        tails = tails[own]
    hard = np.exp(spread * rng.standard_normal((total, 1)))  # items that are hard for one model are hard for the other
    hard = hard[np.arange(total) // group * group]
    arrays, prompts = {}, {}
    for model in ("source", "target"):
        d_model = d if model == "source" else int(rng.choice([d, d, 2 * d]))
        plain, bent = (rng.standard_normal((width, d_model)) / np.sqrt(width) for _ in range(2))
        seen = latent @ plain + warp * np.tanh(1.5 * latent @ bent)
        sides = {}
        for modality in ("image", "text"):
            shift = rng.standard_normal(d_model) * rng.uniform(0, 1)
            rows = seen + noise[model] * hard * rng.standard_normal((total, d_model)) + shift
            sides[modality] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        if kind == "classes":
            means = np.stack([sides["text"][labels == k].mean(axis=0) for k in range(classes)])
            prompts[model] = means / np.linalg.norm(means, axis=1, keepdims=True)
        arrays[model] = sides if kind == "pairs" else {"image": sides["image"]}
    facts = {
        "d": d,
        "n": n,
        "kind": kind,
        "warp": warp,
        "spread": spread,
        "group": group,
        "within": within,
        "noise": noise,
    }
    return Case(arrays, kind, labels, prompts or None), n, facts


def galleries(case, population, size, hubness):
    """Yield disjoint galleries of the population."""
    for start in range(0, len(population) - size + 1, size):
        yield EvaluationSet(case.tables(population[start : start + size]), hubness=hubness)


def true_scores(case, mapping, population, size, hubness):
    """Return the mean scores over disjoint galleries of the population."""
    out = defaultdict(list)
    for items in galleries(case, population, size, hubness):
        for name, values in score_heldout(mapping, items).scores.items():
            out[name].append(values.mean())
    return {name: float(np.mean(values)) for name, values in out.items()}


def true_stored(case, mapping, population, size, hubness):
    """Return the mean score of the mapped store by the deciding measure, over disjoint galleries of the population."""
    values = []
    for items in galleries(case, population, size, hubness):
        sheet = Sheet(items, only_task=True)
        sheet.add(mapping)
        values.append(sheet.read(read_unmapped(items)[0])[f"{items.task}/stored"].score.mean())
    return float(np.mean(values))


def examine(case, n, rows, pool, population, thresholds, seed, way):
    source, target, labels = case.part(rows)
    said = certify(source, target, labels=labels, thresholds=thresholds, random_state=seed, **way)
    hubness = as_hubness(way["hubness"])
    tables = case.tables(rows, "anchors")
    recipe = MapRecipe(said.fitted, random_state=seed)
    mapping = recipe.fit(tables, np.arange(n))
    truth = true_scores(case, mapping, population, min(n, len(population)), hubness)
    covered = defaultdict(list)
    for name, ways in said.strategies.items():
        for strategy, e in ways.items():
            kind = "overlap" if "overlap@" in name else "rate"
            for key in (kind, f"{kind}, {strategy}"):
                covered[key].append((e.low, truth[f"{name}/{strategy}"], e.high))
    task = said.task
    for name, e in said.retention.items():
        a, b = (truth[f"{task}/{strategy}"] for strategy in name.split("/"))
        covered["ratio"].append((e.low, a / b if b else np.inf, e.high))
    for modality, e in said.cosines.items():
        if not (
            case.prompts is not None and modality == "text"
        ):  # there are only these twenty prompts, so no others to measure the truth on
            covered["cosine"].append((e.low, truth[f"cosine/{modality}"], e.high))
    gains, curve = [], {}

    def at(more):
        if more not in curve:
            full = case.tables(np.concatenate([rows, pool[:more]]), "anchors")
            grown = recipe.fit(full, np.arange(n + more))
            part = population[: max(CURVE_POPULATION, n)]
            curve[more] = true_stored(case, grown, part, min(n, len(part)), hubness)
        return curve[more]

    def gained(more):
        return at(more) - at(0)  # on the same items

    for gain in said.gains:
        if gain["more"] <= len(pool):
            gains.append((gain["score"], gained(gain["more"]), gain["score_at_most"]))

    def enough(wanted):
        for more in sorted({*(round(n * s) for s in (0.25, 0.5, 1, 2, 4, 8, 16)), thresholds.most_anchors}):
            if more <= min(len(pool), thresholds.most_anchors) and truth[f"{task}/stored"] + gained(more) >= wanted:
                return more
        return None

    ways = with_known({strategy: truth[f"{task}/{strategy}"] for strategy in said.strategies[task]}, task)
    narrows = tables.source[tables.store_modality].shape[1] > tables.target[tables.query_modality].shape[1]
    right = decide(ways, enough, thresholds, narrows=narrows, of_lists=is_of_lists(task))
    near = {right.action}
    for shift in (-NEAR, NEAR):
        moved = {one: value + (shift if one in ("stored", "queries") else 0) for one, value in ways.items()}
        near.add(
            decide(
                moved,
                lambda wanted, shift=shift: enough(wanted - shift),
                thresholds,
                narrows=narrows,
                of_lists=is_of_lists(task),
            ).action
        )
    return said, covered, gains, right, near


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--pairs", type=int, default=300, help="simulated pairs of models")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=GENERATORS, default="simulated", help="generator of the pairs")
    parser.add_argument("--hubness", help="correction for hubs: csls or qb_norm")
    parser.add_argument("--real", action="store_true", help="parts of real embeddings instead")
    parser.add_argument("--data", default="../shared/data")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rng = np.random.default_rng(options.seed)
    way = {"hubness": options.hubness}
    covered, gains, confusion, sure, log = defaultdict(list), [], Counter(), [], []
    jobs = (
        real_cases(options.data, rng, options.pairs)
        if options.real
        else simulated_cases(GENERATORS[options.kind], rng, options.pairs)
    )
    for k, (case, n, facts, rows, pool, population) in enumerate(jobs):
        thresholds = Criteria(retention=float(rng.choice([0.8, 0.9, 0.95])), most_anchors=POOL)
        said, intervals, more, right, near = examine(case, n, rows, pool, population, thresholds, k, way)
        for name, triples in intervals.items():
            covered[name] += triples
            if "," not in name:
                covered[f"{name}, {facts['kind']}"] += triples
        gains += more
        shares = dict(said.verdict.confidence)
        shares["re-embed"] = shares.get("re-embed", 0) + shares.pop("progressive", 0)
        action = "re-embed" if said.verdict.action == "progressive" else said.verdict.action
        confusion[right.action, action, action in near] += 1
        sure.append((shares.get(action, 0), action == right.action))
        log.append(
            {
                **facts,
                "map": said.choice["name"],
                "said": action,
                "right": right.action,
                "near": sorted(near),
                "sure": shares,
            }
        )
    print(
        "| 95 % interval of | intervals | contain the truth | truth below | truth above |\n| --- | --- | --- "
        "| --- | --- |"
    )
    for name, triples in sorted(covered.items()):
        low, true, high = np.array(triples).T
        inside = (low <= true) & (true <= high)
        print(
            f"| {name} | {len(true)} | {inside.mean():.1%} ± "
            f"{np.sqrt(inside.mean() * (1 - inside.mean()) / len(true)):.1%} | {(true < low).mean():.1%} | "
            f"{(true > high).mean():.1%} |"
        )
    expected, real, most = np.array(gains).T
    print(
        f"\ngain of more anchors: expected {expected.mean():.4f}, true {real.mean():.4f}, error (rms) "
        f"{np.sqrt(np.mean((expected - real) ** 2)):.4f}; at most as said in {(real <= most).mean():.1%} of {len(real)}"
    )
    print("\n| true verdict | said: " + " | ".join(ACTIONS) + " |\n| --- |" + " --- |" * len(ACTIONS))
    for right in ACTIONS:
        cells = []
        for said in ACTIONS:
            good, bad = confusion[right, said, True], confusion[right, said, False]
            cells.append(f"{good + bad}" + (f" ({bad} far)" if bad and said != right else "") if good + bad else "")
        print(f"| {right} | " + " | ".join(cells) + " |")
    sure = np.array(sure)
    print(f"\nright: {sure[:, 1].mean():.1%} of {len(sure)}; within {NEAR} of right:", end=" ")
    print(f"{sum(c for (_, _, near), c in confusion.items() if near) / len(sure):.1%}")
    for low, high in ((0, 0.6), (0.6, 0.9), (0.9, 1.01)):
        part = sure[(sure[:, 0] >= low) & (sure[:, 0] < high)]
        if len(part):
            print(
                f"share of draws {low:.1f} to {min(high, 1):.1f}: {len(part)} verdicts, mean "
                f"{part[:, 0].mean():.2f}, right {part[:, 1].mean():.2f} ± "
                f"{np.sqrt(max(part[:, 1].mean() * (1 - part[:, 1].mean()), 0.01) / len(part)):.2f}"
            )
    inside = {
        name: [sum(low <= true <= high for low, true, high in triples), len(triples)]
        for name, triples in covered.items()
    }
    write_json(options, {"pairs": log, "intervals": inside, "shares": sure, "gains": gains})


GENERATORS = {"simulated": simulated, "distorted": distorted}


def simulated_cases(generator, rng, count):
    for _ in range(count):
        case, n, facts = generator(rng)
        rows = np.arange(n)
        yield case, n, facts, rows, n + np.arange(POOL), n + POOL + np.arange(POPULATION)


def real_cases(folder, rng, count):
    from congruence.datasets import load_sample

    bundle = load_sample("emoji")
    lvis = {k: rows.astype(np.float64) for k, rows in arrays(f"{folder}/lvis1203_clip.npz").items() if k != "names"}
    emoji = {
        side: {m: e.vectors.astype(np.float64) for m, e in getattr(bundle, side).items() if m in ("image", "text")}
        for side in ("source", "target")
    }
    texts = ["text_openai_vitb32", "text_openai_vitb16", "text_eva02_b16"]
    pairs = [(a, b) for a in texts for b in texts if a != b]
    for k in range(count):
        if k % 2:
            case, name = Case(emoji, "pairs"), "emoji"
            total = len(emoji["source"]["image"])
        else:
            a, b = pairs[rng.integers(len(pairs))]
            case, name = Case({"source": {"text": lvis[a]}, "target": {"text": lvis[b]}}, "one modality"), f"{a} to {b}"
            total = len(lvis[a])
        n = int(rng.choice([60, 120, 250]))
        order = rng.permutation(total)
        facts = {"name": name, "n": n, "kind": case.kind}
        half = (total - n) // 2
        yield case, n, facts, order[:n], order[n : n + half], order[n + half :]


if __name__ == "__main__":
    main()
