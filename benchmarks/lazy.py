"""Agreement of result lists with the new model's own: by the map, after a few encodings a query, and by use.

The overlap of the ten first rows with those of an index of the new model's vectors, for queries that neither map nor
index has seen. ``lists``: of a map alone, and of ``LazySearch`` with a number of encodings for each query, with nothing
re-embedded before it and with a tenth of the rows (random ones). ``shares``: of random rows re-embedded and no encoding
for the query. ``progressive``: the same by ``Progressive``, from a rotation and from a kernel map, for lists and for
single items, and with the linear ridge regression as its only refit; also how often the new model's vector of a mapped
row finds it first. ``logs``: queries asked a second time, after a first. ``time``: processor time of a lazy search
without its encodings, beside that of an exact search.

    python benchmarks/lazy.py lists ../shared/data --record lazy_lists
"""

import copy
import time
import warnings
from functools import partial
from pathlib import Path

import numpy as np

from common import arguments, arrays, unit, write_json
from congruence import LazySearch, Progressive, fit
from congruence.errors import CongruenceWarning
from congruence.upgrade.progressive.refit import Refit

K = 10
MODELS = ["caltech", "fashion", "fashion reversed", "clip", "names", "texts over photos", "lvis texts"]


def pair(name, folder):
    """Return the rows of both models, unit, labels if there are any, and how many rows the index has; and, where other
    items ask than rows, queries of the new model, with their labels.
    """
    others, of_others = None, None
    if name == "caltech":
        data = arrays(folder / "caltech101_unimodal.npz")
        sides, labels, n = ("image_mobilenet_v2", "image_effnet_lite0"), data["label"], 6000
    elif name in ("fashion", "fashion reversed"):
        data = arrays(folder / "fashionpedia1150_images.npz")
        sides, labels, n = ("image_openai_b32_openclip", "image_fashionsiglip"), data["garment"], 800
    elif name == "clip":
        data = arrays(folder / "clip_rn50_vitb32.npz")
        sides, labels, n = ("image_openai_rn50", "image_openai_vitb32"), data["label"], 1200
    elif name == "texts over photos":
        data = arrays(folder / "clip_rn50_vitb32.npz")
        sides, labels, n = ("image_openai_rn50", "image_openai_vitb32"), data["label"], 1200
        names = np.concatenate([data[f"{words}_names"] for words in ("lvis", "imagenet")])
        others = np.concatenate([data[f"{words}_text_openai_vitb32"] for words in ("lvis", "imagenet")])
        number = {str(one).lower().replace("_", " "): k for k, one in enumerate(data["classes"])}
        of_others = np.array([number.get(str(one).lower().replace("_", " "), -1) for one in names])
        others = unit(others, np.float32)
    elif name == "lvis texts":
        data = arrays(folder / "lvis1203_clip.npz")
        sides, labels, n = ("text_openai_vitb16", "text_eva02_b16"), None, 850
    else:
        data = arrays(folder / "imagenet1000_unimodal.npz")
        sides, labels, n = ("text_minilm_l6", "text_mpnet"), None, 700
    sides = sides[::-1] if name == "fashion reversed" else sides
    return *(unit(data[side], np.float32) for side in sides), labels, n, others, of_others


class World:
    """A split of a pair of models: an index, a map from other rows, and unseen queries."""

    def __init__(self, name, folder, pairs, split, queries):
        old, new, labels, n, others, of_others = pair(name, folder)
        order = np.random.default_rng(1000 + split).permutation(len(old))
        known, index, asked = order[:pairs], order[pairs : pairs + n], order[pairs + n :][:queries]
        self.pairs = old[known], new[known]
        self.mapping = fit(*self.pairs, check=False)
        self.old, self.new, self.Q, self.n = old[index], new[index], new[asked], n
        self.labels = None if labels is None else (labels[index], labels[asked])
        if others is not None:  # the names of classes, which can be judged, and as many others
            order = np.random.default_rng(2000 + split).permutation(len(others))
            order = np.concatenate([order[of_others[order] >= 0][: queries // 2], order[of_others[order] < 0]])[
                :queries
            ]
            self.Q, self.labels = others[order], (labels[index], of_others[order])
        self.true = self.first(self.Q @ self.new.T)

    @staticmethod
    def first(scores):
        return np.argsort(-scores, axis=1, kind="stable")[:, :K]

    def search(self, share=0.0, **options):
        """Return a search with a share of random rows re-embedded."""
        rows = np.random.default_rng(7).choice(self.n, round(share * self.n), replace=False)
        known = (rows, self.new[rows]) if len(rows) else None
        return LazySearch(self.old, self.mapping, lambda ids: self.new[ids], check=False, known=known, **options)

    def judge(self, ids, where=slice(None)):
        """Return the overlap with the new model's lists, and the share of rows of the query's class."""
        ids, true = np.asarray(ids), self.true[where]
        found = {"overlap": float(np.mean([len(np.intersect1d(a, b)) / K for a, b in zip(ids, true, strict=True)]))}
        if self.labels is not None:
            rows, asked = self.labels
            judged = np.isin(asked[where], rows)
            found["class"] = float(np.mean(rows[ids[judged]] == asked[where][judged][:, None]))
        return found


def fresh(search, queries):
    """Return each query's list as if it were the first."""
    kept, out = search.rows, []
    shared = {id(part): part for part in (kept.old, kept.map, kept.first)}
    search.refits = False
    for query in queries:
        search.rows = copy.deepcopy(kept, dict(shared))
        out.append(search.search(query, K).ids)
    search.rows = kept
    return np.array(out)


def lists(world, budgets):
    mapped = World.first(world.Q @ world.search().rows.vectors.T)
    found = {"map": world.judge(mapped), "new model": world.judge(world.true)}
    for share in (0.0, 0.1):
        for budget in budgets:
            found[f"{budget} encodings, {share:.0%} before"] = world.judge(
                fresh(world.search(share, budget=budget), world.Q)
            )
    return found


def draw(file, results):
    """Draw the overlap by the encodings a query."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "lazy"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 3.6), layout="constrained")
    for color, (name, table) in enumerate(results.items()):
        for share, line in (("0%", "-"), ("10%", "--")):
            points = {0: table["map"]["overlap"]} if share == "0%" else {}
            points |= {int(row.split()[0]): cell["overlap"] for row, cell in table.items() if f", {share} b" in row}
            label = name + (", a tenth re-embedded before" if share == "10%" else "")
            axes.errorbar(list(points), *zip(*points.values(), strict=True), fmt=line, color=f"C{color}", label=label)
    axes.set(xlabel="encodings for the query", ylabel="overlap with the new model's ten first", ylim=(0, 1))
    axes.legend(frameon=False, fontsize="small", loc="lower right")
    figure.savefig(file, metadata={"Date": None})


def shares(world, budgets):
    found = {}
    for share in (0.0, 0.02, 0.1, 0.3, 0.5):
        for name, refit in (("first map", False), ("refitted", True)):
            search = world.search(share, limit=0, refit=refit)
            found[f"{share:.0%}, {name}, no correction"] = world.judge(World.first(world.Q @ search.rows.vectors.T))
            found[f"{share:.0%}, {name}"] = world.judge(fresh(search, world.Q))
    return found


def progressive(world, budgets, shares=(0.02, 0.1, 0.3, 0.5)):
    """Follow plans in random order, one batch for each share."""
    found, kernel = {}, fit(*world.pairs, "kernel", check=False)
    for name, mapping, search in (
        ("rotation, linear ridge", world.mapping, None),
        ("rotation", world.mapping, "lists"),
        ("kernel", kernel, "lists"),
        ("kernel, for items", kernel, "items"),
    ):
        plan = Progressive(mapping, world.old, search=search or "lists")
        if search is None:
            plan.refit = Refit(mapping, None, plan.refit.size)
        for share in (0.0, *shares):
            if share:
                size = round(share * world.n) - int(plan.embedded.sum())
                for ids in plan.batches(size=size, share=share):
                    plan.update(ids, world.new[ids])
            store = plan.store()
            cell = world.judge(World.first(world.Q @ store.T))
            some = np.flatnonzero(~plan.embedded)[:300]
            cell["own item"] = float(np.mean((world.new[some] @ store.T).argmax(axis=1) == some))
            found[f"{share:.0%}, {name}"] = cell
    return found


def logs(world, budgets):
    found = {}
    for asked, budget in ((10, 50), (10, 100), (30, 50), (100, 20), (100, 50)):
        search = world.search(budget=budget)
        order = np.random.default_rng(5).permutation(len(world.Q))
        part, unseen = order[:asked], order[asked:][:50]
        at_once = []
        for query in world.Q[part]:
            search.limit = 0
            at_once.append(search.search(query, K).ids)
            search.limit = None
            search.search(query, K)
        estimate, search.limit = search.agreement_, 0
        again, others = (np.array([search.search(query, K).ids for query in world.Q[some]]) for some in (part, unseen))
        row = found[f"{asked} × {budget}"] = {"share": search.reembedded_share_}
        row["expected share"] = 1 - (1 - min(budget / world.n, 1)) ** asked
        row |= {"first time": world.judge(np.array(at_once), part)["overlap"], "estimated": estimate}
        row["again"] = world.judge(again, part)["overlap"]
        row["unseen"] = world.judge(others, unseen)["overlap"] if len(unseen) else np.nan
        log = world.search()
        log.reembed(world.Q[part], budget=search.rows.n_native // 2)
        log.limit = 0
        ids = np.array([log.search(query, K).ids for query in world.Q[part]])
        row |= {"half as many, ahead": world.judge(ids, part)["overlap"]}
    return found


def timed(n, width, queries):
    """Return milliseconds of processor time of an exact search, and of a lazy one without its encodings."""
    rng = np.random.default_rng(0)
    centers = unit(rng.standard_normal((300, width), np.float32), np.float32)
    old = np.empty((n, width), np.float32)
    for start in range(0, n, 100_000):
        part = centers[rng.integers(300, size=min(100_000, n - start))]
        old[start : start + len(part)] = part + 0.03 * rng.standard_normal(part.shape, np.float32)
    old /= np.linalg.norm(old, axis=1, keepdims=True)
    turn = np.linalg.qr(rng.normal(size=(width, width)))[0].astype(np.float32)
    spent = [0.0]

    def encode(rows):
        begun = time.process_time()
        out = old[rows] @ turn
        out += 0.02 * centers[rows % 300]
        out = unit(out, np.float32)
        spent[0] += time.process_time() - begun
        return out

    pairs = np.arange(400)
    mapping = fit(old[pairs], encode(pairs), check=False)
    begun = time.process_time()
    search = LazySearch(old, mapping, encode, check=False, refit=False)
    opened = time.process_time() - begun
    asked = encode(rng.choice(n, queries)) + 0.02 * rng.standard_normal((queries, width), np.float32)
    plain, lazy = [], []
    for query in unit(asked, np.float32):
        begun = time.process_time()
        scores = (query[None] @ search.rows.vectors.T)[0]
        top = np.argpartition(scores, n - K)[n - K :]
        top = top[np.argsort(-scores[top])]
        plain.append(time.process_time() - begun)
        begun, spent[0] = time.process_time(), 0.0
        search.search(query, K)
        lazy.append(time.process_time() - begun - spent[0])
    begun = time.process_time()
    search.rows.refit()
    refit = time.process_time() - begun
    plain, lazy = (1000 * float(np.median(side)) for side in (plain, lazy))
    return {
        "plain ms": plain,
        "lazy ms": lazy,
        "added / plain": (lazy - plain) / plain,
        "map all s": opened,
        "refit s": refit,
        "re-embedded": search.rows.n_native,
    }


def main():
    parser = arguments(__doc__)
    parser.add_argument("what", choices=("lists", "shares", "progressive", "logs", "time"))
    parser.add_argument("folder", type=Path, nargs="?", default=Path("../shared/data"))
    parser.add_argument("--pairs", type=int, nargs="+", default=[50, 200], help="pairs of the map")
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--budgets", type=int, nargs="+", default=[50], help="encodings a query")
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.02, 0.1, 0.3, 0.5], help="of progressive plans")
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--figure", type=Path, help="draw the lists' overlap by encodings to this file")
    options = parser.parse_args()
    warnings.simplefilter("ignore", CongruenceWarning)
    results = {}
    if options.what == "time":
        for n in options.rows:
            results[f"{n} rows"] = timed(n, options.width, 30)
            print(n, {name: round(value, 2) for name, value in results[f"{n} rows"].items()}, flush=True)
    else:
        follow = partial(progressive, shares=options.shares)
        ask = {"lists": lists, "shares": shares, "progressive": follow, "logs": logs}[options.what]
        for name in options.models:
            for pairs in options.pairs:
                runs = [
                    ask(World(name, options.folder, pairs, split, options.queries), options.budgets)
                    for split in range(options.splits)
                ]
                print(f"{name}, {pairs} pairs, {options.splits} splits")
                results[f"{name}, {pairs} pairs"] = table = {}
                for row in runs[0]:
                    table[row] = {}
                    for column in runs[0][row]:
                        values = [run[row][column] for run in runs]
                        error = np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
                        table[row][column] = [float(np.mean(values)), float(error)]
                    print(f"  {row:34s}", "  ".join(f"{c} {m:.3f} ± {e:.3f}" for c, (m, e) in table[row].items()))
    if options.figure is not None:
        draw(options.figure, results)
    write_json(options, results)


if __name__ == "__main__":
    main()
