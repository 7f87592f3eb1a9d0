"""How the rows of a map should be read: each fixed form of the read-out, and what ``congruence.fit`` chooses.

``python benchmarks/readouts.py --data ../shared/data --cache FOLDER`` measures what the folder lacks, then prints the
table, and how far ``congruence.fit`` is behind the fixed form that is best in each cell. All but the arm ``fit`` is
independent NumPy (but for the loader of the Caltech heads).

A map is fitted on n pairs of one modality; 300 unpaired rows of the other one are known of both models, or of the old
one alone. Everything that is measured is unseen. Store columns: the new model's own rows search mapped ones. ``c1``
class text → photo of the class, ``c2`` the reverse, ``c3`` photo → class text, ``c4`` photo → itself, ``c5`` share kept
of a photo's ten nearest photos, ``c6`` and ``c7`` as ``c4`` and ``c5`` for texts; ``m20``, ``m50``, ``t20``, ``t50`` as
``c5`` and ``c7`` where 20 or 50 % of the rows are native. Query columns ``q1``, ``q4`` to ``q7``: mapped rows search
native ones. Forms and constants were chosen on splits 0 to 4 and 100 to 102 of the pairs of models marked *.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from unittest.mock import patch

import numpy as np

from common import arguments, arrays, write_json

PAIRS = (10, 20, 50, 200, 600, 900, 1200)
OTHER = {"photo": "text", "text": "photo"}
ASKED = {"c1": "text", "c3": "photo", "c4": "photo", "c5": "photo", "c6": "text", "c7": "text"}
ASKED |= {"m20": "photo", "m50": "photo", "t20": "text", "t50": "text"}
LIST = 10
Rows = dict[str, np.ndarray]

# ------------------------------------------------------------------------------------------------------------ the data


@dataclass(frozen=True)
class World:
    """Two models: unit rows of each by modality, and for every photo the row of its class among the texts, or −1."""

    name: str
    old: Rows
    new: Rows
    label: np.ndarray | None = None
    one_item: bool = False  # photo i and text i are one item
    heads: np.ndarray | None = None  # class of each text, of which the first 100 are the classes' own
    chosen_on: bool = False

    @property
    def modalities(self) -> tuple[str, ...]:
        return tuple(m for m in OTHER if m in self.old and m in self.new)


def unit(X: np.ndarray) -> np.ndarray:
    X = np.asarray(X, np.float32)
    return X / np.maximum(np.linalg.norm(X, axis=-1, keepdims=True), 1e-12)


def plain_name(text: str) -> str:
    return text.lower().replace("_", " ").replace("-", " ")


#: Names of Caltech's classes in LVIS and ImageNet.
SAME = {"airplanes": "airplane", "motorbikes": "motorcycle", "cellphone": "cellular telephone", "leopards": "leopard"}
SAME |= {"car side": "car (automobile)", "laptop": "laptop computer", "rhino": "rhinoceros", "panda": "giant panda"}
SAME |= {"water lilly": "water lily", "faces": ""}


def worlds(folder: Path) -> list[World]:
    def load(name: str) -> Rows:
        return arrays(folder / f"{name}.npz")

    clip, lvis, fashion = load("clip_rn50_vitb32"), load("lvis1203_clip"), load("fashionpedia1150_images")
    first = [plain_name(x) for x in clip["lvis_names"]]
    second = [plain_name(x) for x in clip["imagenet_names"]]
    more = [k for k, x in enumerate(second) if x not in set(first)]
    row = {x: k for k, x in reversed(list(enumerate(first + [second[k] for k in more])))}
    classes = [SAME.get(plain_name(x), plain_name(x)) for x in clip["classes"]]
    label = np.array([row.get(x, -1) for x in classes])[clip["label"]]
    rn50, b32 = (
        {
            "photo": unit(clip[f"image_openai_{key}"]),
            "text": unit(np.concatenate([clip[f"lvis_text_openai_{key}"], clip[f"imagenet_text_openai_{key}"][more]])),
        }
        for key in ("rn50", "vitb32")
    )
    out = [World("RN50→B/32", rn50, b32, label), World("B/32→RN50", b32, rn50, label, chosen_on=True)]
    own = np.arange(len(lvis["names"]))
    l32 = {"photo": unit(lvis["image_openai_vitb32_avg5"]), "text": unit(lvis["text_openai_vitb32"])}
    three = {"B/16": lvis["text_openai_vitb16"], "EVA": lvis["text_eva02_b16"], "RN50": clip["lvis_text_openai_rn50"]}
    for name, rows in three.items():
        texts = {"text": unit(rows)}
        out.append(World(f"LVIS B/32→{name}", l32, texts, own, True, chosen_on=name == "EVA"))
        out.append(World(f"LVIS {name}→B/32", texts, l32, own, True, chosen_on=name == "EVA"))
    siglip, b32 = ({"photo": unit(fashion[f"image_{key}"])} for key in ("fashionsiglip", "openai_b32_openclip"))
    out += [World("CLIP→FashionSigLIP", b32, siglip, chosen_on=True), World("FashionSigLIP→CLIP", siglip, b32)]
    hf = {"photo": unit(fashion["image_openai_b32_hf"][:1000])}  # the same weights through another library
    out.append(World("B/32, two libraries", hf, {"photo": b32["photo"][:1000]}))
    six = [{"text": unit(rows)} for rows in load("guideline250_text6").values()]
    names = ("L6", "BGE small", "BGE base", "MPNet", "E5", "paraphrase-L6")
    for a, b in ((5, 0), (1, 2), (0, 3), (3, 4), (0, 5), (2, 3), (4, 3), (0, 1)):
        chosen_on = (a, b) in ((5, 0), (1, 2), (0, 3), (3, 4))
        out.append(World(f"passages {names[a]}→{names[b]}", six[a], six[b], chosen_on=chosen_on))
    data = load("imagenet1000_unimodal")
    kept = np.sort(np.unique(data["names"], return_index=True)[1])
    mpnet, l6 = ({"text": unit(data[f"text_{key}"][kept])} for key in ("mpnet", "minilm_l6"))
    out += [World("names MPNet→MiniLM", mpnet, l6, chosen_on=True), World("names MiniLM→MPNet", l6, mpnet)]
    return [*out, *caltech_heads(folder)]


def caltech_heads(folder: Path) -> list[World]:
    """Two dual encoders made of heads on frozen features; the first 100 texts are the classes', the others prompts."""
    from congruence_papers.canonical.data import open_sample

    heads = open_sample("caltech101", folder / "caltech101_unimodal.npz")
    sides = []
    for model in (heads.models[k] for k in heads.pairs[0]):
        prompts = unit(model.prompts)
        classes = unit(np.stack([prompts[heads.prompt_labels == k].mean(0) for k in range(100)]))
        sides.append({"photo": unit(model.images), "text": np.concatenate([classes, prompts])})
    group = np.concatenate([np.arange(100), heads.prompt_labels])
    return [World("Caltech heads", *sides, np.asarray(heads.labels, int), heads=group)]


@dataclass
class Split:
    """Row numbers of one split: pools to fit on, and photos, texts and class texts that nothing else sees."""

    world: World
    seed: int
    pool: dict[str, np.ndarray]
    test: dict[str, np.ndarray]

    def __post_init__(self) -> None:
        w, test = self.world, self.test
        kind = {"photo": "photo", "text": "text", "class": "text"}
        self.old, self.new = (
            {k: side[m][test[k]] for k, m in kind.items() if m in side and len(test[k])} for side in (w.old, w.new)
        )
        self.native = {k: self.new[k] @ self.new[k].T for k in ("photo", "text") if k in self.new}
        self.kept = {k: nearest(found, own=True) for k, found in self.native.items()}
        if len(test["class"]):
            place = {text: k for k, text in enumerate(test["class"])}
            self.label = np.array([place.get(text, -1) for text in w.label[test["photo"]]])
            self.labelled = np.flatnonzero(self.label >= 0)
            self.asked = np.unique(self.label[self.labelled])


def split(world: World, seed: int) -> Split:
    rng = np.random.default_rng([seed, zlib.crc32(world.name.encode())])
    n = {m: len(rows) for side in (world.old, world.new) for m, rows in side.items()}
    none = np.zeros(0, int)
    pool, test = {"photo": none, "text": none}, {"photo": none, "text": none, "class": none}
    if world.one_item:
        order = rng.permutation(n["text"])
        return Split(world, seed, dict.fromkeys(pool, order[303:]), dict.fromkeys(test, order[:303]))
    if world.heads is not None:  # classes of tested photos and texts are in no text pair
        classes = rng.permutation(100)[:50]
        photos = rng.permutation(n["photo"])
        seen = np.isin(world.label[photos], classes)
        test = {"photo": photos[seen][:450], "text": classes, "class": classes}
        prompts = 100 + rng.permutation(n["text"] - 100)
        pool["photo"] = rng.permutation(np.concatenate([photos[seen][450:], photos[~seen]]))
        pool["text"] = prompts[~np.isin(world.heads[prompts], classes)]
        return Split(world, seed, pool, test)
    if "photo" in n:
        order = rng.permutation(n["photo"])
        test["photo"], pool["photo"] = np.split(order, [min(349, 2 * n["photo"] // 5)])
    if "text" in n:
        if world.label is not None:
            test["class"] = np.unique(world.label[world.label >= 0])
        order = rng.permutation(np.setdiff1d(np.arange(n["text"]), test["class"]))
        test["text"], pool["text"] = np.split(order, [150 if n["text"] < 300 else 300])
    return Split(world, seed, pool, test)


# ----------------------------------------------------------------------------------------------------------- the scores


def nearest(scores: np.ndarray, own: bool = False) -> np.ndarray:
    """Return the columns of the ten largest scores of each row; with ``own``, row i is not its own neighbor."""
    if own:
        scores = scores.copy()
        np.fill_diagonal(scores, -9)
    return np.argpartition(-scores, LIST, axis=1)[:, :LIST]


def overlap(kept: np.ndarray, found: np.ndarray) -> float:
    return float((kept[:, :, None] == found[:, None, :]).any(2).mean())


def found_own(scores: np.ndarray) -> float:
    return float((scores.argmax(1) == np.arange(len(scores))).mean())


def scores(s: Split, rows: Rows, role: str) -> dict[str, float]:
    """Score mapped rows (of photos, texts and class texts): as an index's, or as queries of one of native rows."""
    out, store = {}, role == "store"

    def near(k: str, j: str) -> np.ndarray:
        """Return the scores of rows that ask, of kind k, with those that are searched, of kind j."""
        return s.new[k] @ rows[j].T if store else rows[k] @ s.new[j].T

    mapped, native = (rows, s.new) if store else (s.new, rows)
    if "photo" in mapped and "class" in native:
        found = near("class", "photo")
        out["c1" if store else "q1"] = float((s.label[found[s.asked].argmax(1)] == s.asked).mean())
        if store:
            out["c2"] = float((found[:, s.labelled].argmax(0) == s.label[s.labelled]).mean())
    if store and "class" in rows and "photo" in s.new:
        out["c3"] = float((near("photo", "class").argmax(1) == s.label)[s.labelled].mean())
    for k, number, mixed in (("photo", 4, "m"), ("text", 6, "t")):
        if k not in rows or k not in s.new:
            continue
        found = near(k, k)
        out[f"{'cq'[not store]}{number}"] = found_own(found)
        out[f"{'cq'[not store]}{number + 1}"] = overlap(s.kept[k], nearest(found, own=True))
        order = np.random.default_rng(s.seed).permutation(len(found))
        for share in (20, 50) if store else ():
            part = order[: len(found) * share // 100]
            both = found.copy()
            both[:, part] = s.native[k][:, part]
            out[f"{mixed}{share}"] = overlap(s.kept[k], nearest(both, own=True))
    return out


# -------------------------------------------------------------------------------------------------- matrices from pairs


def span(X: np.ndarray, Y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the singular directions and values of XᵀY/n that the pairs span."""
    n = len(X)
    if n <= min(X.shape[1], Y.shape[1]):
        (a, r), (b, t) = np.linalg.qr(X.T), np.linalg.qr(Y.T)
        U, s, Vt = np.linalg.svd(r @ t.T / n)
        U, Vt = a @ U, Vt @ b.T
    else:
        U, s, Vt = np.linalg.svd(X.T @ Y / n, full_matrices=False)
    rank = min(n - 1, int((s > 1e-6 * s[0]).sum()))
    return U[:, :rank], s[:rank], Vt[:rank]


def rotation(X: np.ndarray, Y: np.ndarray) -> np.ndarray:
    """Return the rotation whose weak directions are shrunk: gains s²/(s² + τ²), τ from the share left unexplained."""
    U, s, Vt = span(X, Y)
    a = min(s.sum() / (np.linalg.norm(X) * np.linalg.norm(Y) / len(X)), 1.0)
    level = 0.1 * (1 - a * a) / a * s.sum() / min(X.shape[1], Y.shape[1])
    return (U * (s**2 / (s**2 + level**2))) @ Vt


def completed(X: np.ndarray, Y: np.ndarray) -> np.ndarray:
    """Return the paper's rotation, arbitrary outside the pairs' span."""
    U, _, Vt = np.linalg.svd(X.T @ Y, full_matrices=False)
    return U @ Vt


def ridge(X: np.ndarray, Y: np.ndarray) -> np.ndarray:
    """Return ridge regression with the penalty of generalized cross-validation."""
    U, s, Vt = np.linalg.svd(X, full_matrices=False)
    Z, total, n = U.T @ Y, (Y**2).sum(), len(X)

    def error(penalty: float) -> float:
        f = s**2 / (s**2 + penalty)
        return (total - ((2 * f - f * f)[:, None] * Z**2).sum()) / max(1 - (f.sum() + 1) / n, 1e-9) ** 2

    best = min(np.logspace(-4, 2, 25) * (s**2).mean(), key=error)
    return (Vt.T * (s / (s**2 + best))) @ Z


def near_identity(strength: float) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Return a fit of the rotation of XᵀY/n + λI, λ = strength · s₁; ∞ leaves rows as they are."""

    def solve(X: np.ndarray, Y: np.ndarray) -> np.ndarray:
        d = X.shape[1]
        if strength == np.inf:
            return np.eye(d, dtype=X.dtype)
        if 2 * len(X) < d:  # the identity outside the joint span of both sides
            Q = np.linalg.qr(np.concatenate([X, Y]).T)[0]
            return np.eye(d) + Q @ (solve_dense(Q.T @ (X.T @ Y / len(X)) @ Q, strength) - np.eye(Q.shape[1])) @ Q.T
        return solve_dense(X.T @ Y / len(X), strength)

    def solve_dense(C: np.ndarray, strength: float) -> np.ndarray:
        level = strength * np.linalg.svd(C, compute_uv=False).max()
        U, _, Vt = np.linalg.svd(C + level * np.eye(len(C)))
        return U @ Vt

    return solve


# ----------------------------------------------------------------------------------------------------------- read-outs

MATRICES = {"rotation": rotation, "ridge": ridge, "paper": completed}


@dataclass
class Fitted:
    """A matrix with the means of every modality it knows, and what the read-outs need."""

    fitted: str
    M: np.ndarray
    a: Rows  # old means
    b: Rows  # new means, of the modalities that are known
    spread: dict[str, float]  # ρ: typical length of new rows' part off their mean
    done: dict[int, np.ndarray] = field(default_factory=dict)

    def residual(self, Z: np.ndarray, m: str) -> np.ndarray:
        if id(Z) not in self.done:
            self.done[id(Z)] = (Z - self.a[m]) @ self.M
        return self.done[id(Z)]

    def guessed(self, m: str) -> np.ndarray:
        """Return the new mean of m; where it is unknown, the rotated old one with half of the pairs' offset."""
        f = self.fitted
        return self.b[m] if m in self.b else self.a[m] @ self.M + (self.b[f] - self.a[f] @ self.M) / 2

    def plain(self, Z: np.ndarray, m: str) -> np.ndarray:
        return unit(self.residual(Z, m) + self.guessed(m))

    def off(self, Z: np.ndarray, m: str, directions: list[np.ndarray]) -> np.ndarray:
        """Return dir or dir2: residuals without these directions, about half of μ where ν is unknown."""
        r = self.residual(Z, m)
        if m not in self.b:
            r = r + self.a[m] / 2 @ self.M
        Q = np.linalg.qr(np.stack(directions, 1))[0]
        return unit(r - (r @ Q) @ Q.T)

    def cone(self, Z: np.ndarray, m: str) -> np.ndarray:
        """Return residuals without the directions of all means, raised to the new mean of m if it is known."""
        means = [*self.b.values(), *([] if m in self.b else [self.guessed(m)])]
        Q = np.linalg.qr(np.stack([unit(mean) for mean in means], 1))[0]
        r = self.residual(Z, m)
        p = unit(r - (r @ Q) @ Q.T)
        if m not in self.b:
            return p
        mean = self.b[m] * min(1.0, 0.995 / float(np.linalg.norm(self.b[m])))
        return mean + np.sqrt(1 - mean @ mean) * p

    def query(self, Z: np.ndarray, m: str, share: float) -> np.ndarray:
        """Return queries with a share of their mean, and residuals of full length."""
        return unit(share * self.guessed(m) + self.spread[m] * unit(self.residual(Z, m)))


def rms(X: np.ndarray) -> float:
    return float(np.sqrt((X.astype(np.float64) ** 2).sum(1).mean()))


@dataclass
class Pairs:
    """Pairs of modality f."""

    f: str
    X: np.ndarray
    Y: np.ndarray

    def fit(self, name: str, others: dict[str, tuple]) -> Fitted:
        """Fit a matrix; ``others`` holds unpaired rows (old or None, new or None) of other modalities."""
        a, b = {self.f: self.X.mean(0)}, {self.f: self.Y.mean(0)}
        matrix = near_identity(float(name.split()[1])) if name.startswith("near") else MATRICES[name]
        M = matrix(self.X - a[self.f], self.Y - b[self.f]).astype(np.float32)
        spread = dict.fromkeys({self.f, *others}, rms(self.Y - b[self.f]))
        for m, (old, new) in others.items():
            if new is not None:
                b[m] = new.mean(0)
                spread[m] = rms(new - b[m])
            if old is not None:
                a[m] = old.mean(0)
        return Fitted(self.f, M, a, b, spread)


# ------------------------------------------------------------------------------------------------------------ the table

How = Callable[[np.ndarray, str], np.ndarray]
KINDS = {"photo": "photo", "text": "text", "class": "text"}


def forms(s: Split, pairs: Pairs, known: str) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield the scores of every form on one split, as "role form"."""
    others = known_rows(s, pairs.f, known)

    def every(one: Fitted, name: str, how: How, roles: str = "store query") -> Iterator[tuple[str, dict[str, float]]]:
        rows = {k: how(Z, KINDS[k]) for k, Z in s.old.items() if KINDS[k] in one.a}
        for role in roles.split():
            yield f"{role} {name}", scores(s, rows, role)

    names = ["rotation", "ridge", "paper", "near 0.1"]
    same_width = pairs.X.shape[1] == pairs.Y.shape[1]
    for name in names if same_width else names[:3]:
        one = pairs.fit(name, others)
        yield from every(one, f"{name} plain", one.plain)
        if name == "paper":
            continue
        directions = {m: [unit(one.b[m])] for m in one.b if name == "rotation" or len(one.b) == 1}
        if len(one.b) > 1:
            directions["2"] = [unit(mean) for mean in one.b.values()]
        for q, d in directions.items():
            yield from every(one, f"{name} dir {q}", lambda Z, m, d=d, one=one: one.off(Z, m, d), "store")
        yield from every(one, f"{name} cone", one.cone, "store")
        for share in (0.25, 1.0):
            yield from every(one, f"{name} share {share}", lambda Z, m, one=one, s=share: one.query(Z, m, s), "query")
    if same_width:
        yield from every(one, "unmapped", lambda Z, m: Z)
    noise, one = np.random.default_rng(s.seed), pairs.fit("rotation", others)
    yield from every(one, "constant", lambda Z, m: one.guessed(m) + 1e-6 * noise.normal(size=(len(Z), one.M.shape[1])))


def product(s: Split, pairs: Pairs, known: str) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield the scores of the map that ``congruence.fit`` returns, told no queries and told either modality."""
    import congruence
    from congruence.upgrade.choose import Quality
    from congruence.upgrade.readouts import choose_readout

    f, named = pairs.f, {"photo": "image", "text": "text"}
    others = {named[m]: sides for m, sides in known_rows(s, f, known).items() if sides[0] is not None}
    rows = {k: Z for k, Z in s.old.items() if KINDS[k] == f or named[KINDS[k]] in others}
    with patch("congruence.upgrade.fit.remember_rows"):  # a third of the time, for what is not measured here
        mapping = congruence.fit(pairs.X, pairs.Y, modality=named[f], means=others, queries="all", check=False)
    quality = Quality(**mapping.scores_["choice"]["quality"])
    sides = [{m: two[k] for m, two in others.items() if two[k] is not None} for k in (0, 1)]
    for told in ("all", *(m for m in OTHER if m == f or named[m] in others)):
        # What queries= changes of a fit.
        mapping.readout_ = choose_readout(mapping, quality, () if told == "all" else (named[told],), sides)
        for role in ("store", "query") if told == "all" else ("store",):
            mapped = {k: mapping.transform(Z, modality=named[KINDS[k]], role=role) for k, Z in rows.items()}
            yield f"{role} fit, {told}" if role == "store" else "query fit", scores(s, mapped, role)


def known_rows(s: Split, f: str, known: str) -> dict[str, tuple]:
    """Return the unpaired rows (old, new) of the other modality, None where they are unknown."""
    o, rows = OTHER[f], s.pool[OTHER[f]][-300:]
    sides = [s.world.old, s.world.new if known == "both" else {}]
    return {o: tuple(side[o][rows] if o in side else None for side in sides)} if len(rows) else {}


def job(task: tuple[World, int, int, str, Path]) -> None:
    """Measure one split of one pair of models at one number of pairs, unless the cache has it."""
    world, seed, n, arm, file = task
    if file.exists():
        return
    s, lines = split(world, seed), []
    for f in (f for f in world.modalities if n <= len(s.pool[f])):
        o = OTHER[f]
        pairs = Pairs(f, *(side[f][s.pool[f][:n]] for side in (world.old, world.new)))
        knows = ["both"] if o in world.new or o not in world.old else []
        for known in [*knows, "old"] if o in world.old else knows:
            for form, found in (forms if arm == "forms" else product)(s, pairs, known):
                lines.append({"fit": f, "known": known, "form": form, **found})
    part = file.with_suffix(".part")
    part.write_text("\n".join(json.dumps(line, ensure_ascii=False) for line in lines), encoding="utf-8")
    os.replace(part, file)


Table = dict[tuple, dict[str, dict[str, list[float]]]]


def measured(tasks: list[tuple[World, int, int, str, Path]]) -> Table:
    """Return the values over splits by cell (pair of models, fitted modality, what is known, n), form and column."""
    out: Table = {}
    for world, _, n, _, file in tasks:
        for text in file.read_text(encoding="utf-8").splitlines():
            line = json.loads(text)
            cell = (world.name + "*" * world.chosen_on, *(line.pop(k) for k in ("fit", "known")), n)
            columns = out.setdefault(cell, {}).setdefault(line.pop("form"), {})
            for column, value in line.items():
                columns.setdefault(column, []).append(value)
    return out


def behind(table: Table) -> Iterator[tuple[tuple, str, str, str, float, float]]:
    """Yield how far ``fit`` is behind the one fixed form that is best in a cell, on average over the columns told."""
    for cell, found in table.items():
        for mine, columns in found.items():
            role, _, name = mine.partition(" ")
            name, _, told = name.partition(", ")
            asked = [c for c in columns if c != "c2" and told in ("", "all", ASKED.get(c))]
            if name != "fit" or cell[3] < 20 or not asked:
                continue
            fixed = {
                form: np.mean([values[c] for c in asked], axis=0)
                for form, values in found.items()
                if form.startswith(role) and " fit" not in form and set(asked) <= set(values)
            }
            if not fixed:  # they were not measured
                continue
            best = max(fixed, key=lambda form: fixed[form].mean())
            gap = fixed[best] - np.mean([columns[c] for c in asked], axis=0)
            yield cell, role, told or "all", best, float(gap.mean()), float(gap.std(ddof=1) / len(gap) ** 0.5)


BESIDE = ("rotation plain", "paper plain", "ridge plain", "unmapped", "constant")


def ahead(table: Table) -> Iterator[str]:
    """Yield by role and pairs how far ``fit``, told no queries, is ahead of the form that is best in a cell and of each
    of BESIDE, on average over columns and the cells that have both, with the standard error over cells.
    """
    gaps: dict[tuple[str, int, str], list[float]] = {}
    for cell, role, told, _, gap, _ in behind(table):
        if told == "all":
            gaps.setdefault((role, cell[3], "best"), []).append(-gap)
    for (*_, n), found in table.items():
        for role, mine in (("store", "store fit, all"), ("query", "query fit")):
            for name in BESIDE:
                if mine in found and (other := found.get(f"{role} {name}")):
                    asked = [c for c in found[mine] if c != "c2" and c in other]
                    gaps.setdefault((role, n, name), []).append(
                        float(np.mean([np.subtract(found[mine][c], other[c]) for c in asked]))
                    )
    for role, n in sorted({key[:2] for key in gaps}):
        cells = {name: gaps[role, n, name] for name in ("best", *BESIDE) if len(gaps.get((role, n, name), ())) > 1}
        leads = (
            f"{name} {np.mean(g):+.3f}±{np.std(g, ddof=1) / len(g) ** 0.5:.3f} ({len(g)})" for name, g in cells.items()
        )
        yield f"fit, {role}, {n} pairs, is ahead of: {', '.join(leads)}"


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--cache", type=Path, required=True, help="folder of finished splits")
    parser.add_argument("--splits", type=int, nargs="+", default=[500, 501, 502, 503, 504])
    parser.add_argument("--pairs", type=int, nargs="+", default=PAIRS)
    parser.add_argument("--only", default="", help="only pairs of models whose name contains this")
    parser.add_argument("--arms", nargs="+", choices=("forms", "fit"), default=["forms", "fit"])
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    given.cache.mkdir(parents=True, exist_ok=True)
    chosen = [world for world in worlds(given.data) if given.only in world.name]
    tasks = [
        (world, seed, n, arm, given.cache / f"{world.name.replace('/', '').replace(' ', '-')}-{n}-{seed}-{arm}.jsonl")
        for arm in given.arms
        for n in given.pairs
        for seed in given.splits
        for world in sorted(chosen, key=lambda world: world.chosen_on)
    ]
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("fork")) as pool:
        list(pool.map(job, tasks))
    table = measured(tasks)
    lines = []
    for cell, found in sorted(table.items()):
        for form, columns in found.items():
            values = {c: (np.mean(v), np.std(v, ddof=1) / len(v) ** 0.5) for c, v in columns.items() if len(v) > 1}
            line = [*cell, form, "|", *(f"{c} {mean:.3f}±{error:.3f}" for c, (mean, error) in values.items())]
            lines.append(" ".join(map(str, line)))
    lines += ahead(table) if len(given.splits) > 1 else []
    gaps = list(behind(table)) if len(given.splits) > 1 else []
    for key in sorted({gap[1:3] for gap in gaps}):
        part = [gap for gap in gaps if gap[1:3] == key]
        far = [gap for gap in part if gap[4] > 2 * gap[5]]
        mean = np.mean([gap[4] for gap in part])
        lines.append(
            f"fit, {' '.join(key)}: {len(part)} cells, {mean:+.4f} behind on average, {len(far)} by two errors:"
        )
        lines += [f"    {' '.join(map(str, cell))}: {best} by {g:.3f}±{e:.3f}" for cell, _, _, best, g, e in far]
    print(*lines, sep="\n")
    write_json(given, lines)


if __name__ == "__main__":
    main()
