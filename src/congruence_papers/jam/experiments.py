"""How the figures and tables of JAM, and experiments that its paper does not have, are measured."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from congruence.datasets import SugarCrepe
from congruence.errors import InputError, TooFewAnchorsError
from congruence.evaluation.paired_tests import bootstrap_intervals, group_sums, holm, sign_flip
from congruence.metrics import cca, cknna, linear_cka, rbf_cka, svcca
from congruence.train.jam import autoencoder, count
from congruence_papers.core import Experiment, ExperimentJob, Paper, described
from congruence_papers.jam.data import LAYERS, SAMPLE_DATA, TASKS, JAMData, JAMParts, open_features, open_sample
from congruence_papers.jam.methods import (
    BASELINES,
    CONTROLS,
    Fitted,
    control_data,
    dual_as_encoders,
    fit_method,
)

#: Parameters of training and numbers of items that are replaced in a quick run.
QUICK_TRAINING = {"hidden": (16,), "latent": 8, "max_epochs": 2, "validate_every": 1}
QUICK_MOST = {"train": 64, "validation": 64, "test": 0}

Job = ExperimentJob[JAMData]

#: Seeds used in the paper; further seeds count up from the last.
PAPER_SEEDS = (5, 42, 55)

#: The order of the losses in the paper, best first.
PAPER_ORDER = ("Spread", "NegCon", "Con")


def paper_seeds(draws: int) -> list[int]:
    """Return the paper's seeds, followed by further seeds if more draws are requested."""
    return [*PAPER_SEEDS, *range(PAPER_SEEDS[-1] + 1, PAPER_SEEDS[-1] + 1 + draws)][:draws]


def training(job: Job, data: JAMData) -> dict[str, Any]:
    """Return the parameters of JAM that differ from its defaults."""
    return {**(job.size(data, "training") or {}), **(QUICK_TRAINING if job.quick else {})}


def tasks(job: Job, data: JAMData) -> list[str]:
    """Return the configuration's tasks for which the data have items. Raises InputError if there are none."""
    present = [task for task in job["tasks"] if task in data.tasks]
    if not present:
        raise InputError(f"Got {data.name} without items of {', '.join(job['tasks'])}.", "Pass data with such items.")
    return present


def limits(job: Job, data: JAMData) -> dict[str, int]:
    """Return the maximum number of items of each part of a split; 0 means no limit."""
    most = {part: job.size(data, part) or 0 for part in ("train", "validation", "test")}
    return {**QUICK_MOST, "test": most["test"]} if job.quick else most


def pair_name(data: JAMData, encoders: tuple[str, str]) -> str:
    """Name a pair of encoders; the image encoder is included only if there are several, to keep bar labels short."""
    return " – ".join(encoders) if len({image for image, _ in data.encoders}) > 1 else encoders[1]


@dataclass(frozen=True)
class Cell:
    """What one fit runs on: a task of some data, the seed of a draw, and a pair of encoders."""

    job: Job
    data: JAMData
    task: str
    seed: int
    encoders: tuple[str, str]

    @property
    def pair(self) -> str:
        """Name of the pair of encoders, after the task."""
        return f"{self.task}: {pair_name(self.data, self.encoders)}"

    def split(self, layer: str | tuple[str, str] = "late", **most: int) -> JAMParts:
        """Split the task's items, with the sizes of this run."""
        most = {**limits(self.job, self.data), **most}
        return self.data.split(self.task, self.seed, encoders=self.encoders, layer=layer, most=most)

    def fit(self, method: str, parts: JAMParts, **options: Any) -> Fitted:
        """Fit a method with the training of this run."""
        return fit_method(method, parts, {**training(self.job, self.data), **options}, self.seed)

    def line(self, **more: Any) -> dict[str, Any]:
        """Return what identifies a measured value of this cell."""
        return {"data": self.data.name, "pair": self.pair, **more}

    def add(self, fitted: Fitted, parts: JAMParts, at_best: Mapping[str, float] | None = None, **more: Any) -> None:
        """Add the recalls of the task, with the metrics of its best step, and of its parts."""
        pair = str(more.pop("pair", pair_name(self.data, self.encoders)))
        for part, recall in fitted.measure(parts.items, parts.test, self.seed).items():
            values = {**recall, **((at_best or {}) if part == self.task else {})}
            self.job.add_listed(self.line(pair=f"{part}: {pair}", **more), values)

    def record(self, fitted: Fitted, series: str) -> dict[str, float]:
        """Record a training run of JAM, and return its best epoch and the α at that epoch."""
        facts = getattr(fitted.mapping, "facts_", None) or {}
        if fitted.mapping is None or "reconstruction_error" not in facts:  # not trained by JAM
            return {}
        per_epoch = -(-facts["n_pairs"] // facts["training"]["batch_size"])
        best = facts["best_step"]
        at_best = {} if best is None else {"epoch_at_best": best / per_epoch}
        if "spread_mix_at_best" in facts:
            at_best["alpha_at_best"] = facts["spread_mix_at_best"]
        line = self.line(series=series, pair=pair_name(self.data, self.encoders), task=self.task, seed=self.seed)
        line |= {key: facts[key] for key in ("steps", "best_step", "reconstruction_error", "training")}
        score = fitted.mapping.scores_.get("validation_source_to_target_recall_at_1")
        self.job.extra.setdefault("runs", []).append(
            {**line, "pairs": facts["n_pairs"], **at_best, "validation": score}
        )
        return at_best


def draws(job: Job) -> Iterator[tuple[JAMData, str, int]]:
    """Yield every combination of data, task and seed."""
    for data in job.data:
        yield from itertools.product([data], tasks(job, data), job.seeds)


def cells(job: Job) -> Iterator[Cell]:
    """Yield every combination of data, task, seed and pair of encoders."""
    for data, task, seed in draws(job):
        yield from (Cell(job, data, task, seed, encoders) for encoders in data.encoders)


def check_layers(job: Job) -> None:
    """Refuse data without early, middle and late layers of every encoder."""
    for data in job.data:
        if data.layers != LAYERS:
            raise InputError(f"{data.name} lacks early, mid or late of an encoder.", "Embed with --layer all.")


LEVEL = 0.95
PERMUTATIONS = 9999
DRAWS = 2000


class ItemPairs:
    """Per-item outcomes of the losses of one experiment, and paired tests of two losses on the same items."""

    def __init__(self) -> None:
        #: The outcomes and the images of each draw, by (data, pair) and loss.
        self._right: dict[tuple[str, str], dict[str, dict[int, np.ndarray]]] = defaultdict(lambda: defaultdict(dict))
        self._images: dict[tuple[str, str], dict[int, np.ndarray]] = defaultdict(dict)

    def add(self, where: tuple[str, str], name: str, draw: int, items: SugarCrepe, right: np.ndarray | None) -> None:
        """Add the per-item outcomes, shape (n, 2), of one fitted loss; None has no outcomes."""
        if right is not None:
            self._right[where][name][draw] = right
            self._images[where][draw] = items.filenames

    def tests(self, every: bool = False) -> list[dict[str, Any]]:
        """Test adjacent losses in the paper's order, or every two, that were run on the same draws."""
        rng = np.random.default_rng(0)
        tests: list[dict[str, Any]] = []
        for (data, pair), names in self._right.items():
            for first, second in itertools.combinations(PAPER_ORDER, 2) if every else itertools.pairwise(PAPER_ORDER):
                if first not in names or second not in names or names[first].keys() != names[second].keys():
                    continue
                draws = list(names[first])
                gaps = np.concatenate([names[first][draw] - names[second][draw] for draw in draws])
                sums, sizes = group_sums(gaps, np.concatenate([self._images[data, pair][draw] for draw in draws]))
                ends = bootstrap_intervals(sums, sizes, LEVEL, DRAWS, rng, np.ones(2))
                for k, metric in enumerate(("binary_recall", "five_way_recall")):
                    p = sign_flip(sums[:, k], PERMUTATIONS, rng)
                    interval = {"low": float(ends[0, k]), "high": float(ends[1, k])}
                    tests.append(
                        {
                            **{"data": data, "pair": pair, "metric": metric, "first": first, "second": second},
                            **{"difference": float(gaps[:, k].mean()), **interval, "p_value": p},
                            **{"adjusted_p_value": p, "n": len(gaps), "n_images": len(sizes), "draws": len(draws)},
                        }
                    )
        adjusted = holm(np.array([test["p_value"] for test in tests]))
        return [{**test, "adjusted_p_value": float(p)} for test, p in zip(tests, adjusted, strict=True)]


def record_item_tests(job: Job, pairs: ItemPairs, every: bool = False) -> None:
    """Store the tests in the results' ``item_tests``, and add notes on the significant differences."""
    tests = pairs.tests(every)
    if tests:
        job.extra["item_tests"] = tests
    for first, second in dict.fromkeys((test["first"], test["second"]) for test in tests):
        lines = [test for test in tests if (test["first"], test["second"]) == (first, second)]
        significant = [test for test in lines if test["adjusted_p_value"] < 1 - LEVEL]
        above, below = (sum(sign * test["difference"] > 0 for test in significant) for sign in (1, -1))
        job.add_note(
            f"Item by item (sign-flip tests of images, Holm, 5 %): {first} is above {second} in {above} of "
            f"{len(lines)} tasks and measures, below in {below}, and not significantly different in "
            f"{len(lines) - above - below}."
        )
        for test in significant:
            metric = test["metric"].removesuffix("_recall").replace("_", "-")
            job.add_note(
                f"{test['data']}, {test['pair']}, {metric}: {first} − {second} {test['difference']:+.3f} "
                f"({test['low']:+.3f} to {test['high']:+.3f}), p = {test['adjusted_p_value']:.2g}, "
                f"{test['n_images']} images."
            )


def pareto_front(cost: np.ndarray, gain: np.ndarray) -> np.ndarray:
    """Return which points (n,) no other equals or beats in both smaller ``cost`` and larger ``gain``, one strictly."""
    no_worse = (cost[:, None] >= cost) & (gain[:, None] <= gain)  # of point j, compared with point i
    better = (cost[:, None] > cost) | (gain[:, None] < gain)
    return np.asarray(~(no_worse & better).any(axis=1))


def losses(job: Job) -> None:
    """Train with every loss on every task, and measure dual encoders for comparison (tables 2 and 3)."""
    tested = ItemPairs()
    for data, task, seed in draws(job):
        for encoders in data.encoders:
            cell = Cell(job, data, task, seed, encoders)
            parts = cell.split()
            for method in job["methods"]:
                fitted, series = cell.fit(method, parts), BASELINES[method]
                cell.add(fitted, parts, cell.record(fitted, series), series=series)
                outcomes = fitted.outcomes(parts.items, parts.test, seed)
                tested.add((data.name, cell.pair), series, seed, parts.items, outcomes)
                job.tick()
        _add_dual_encoders(job, data, task, seed)
    record_item_tests(job, tested)


def pairs(job: Job) -> None:
    """Train with every loss on increasing numbers of pairs, and compare the losses item by item at each number."""
    tested = ItemPairs()
    for cell in cells(job):
        name = pair_name(cell.data, cell.encoders)
        for n in job["pairs"][:2] if job.quick else job["pairs"]:
            parts = cell.split(train=n)
            if len(parts.train) < n:
                raise TooFewAnchorsError(
                    f"Got {len(parts.train)} pairs of {cell.data.name}, not {n}.", "Leave out this number from pairs."
                )
            for method in job["methods"]:
                fitted, series = cell.fit(method, parts), BASELINES[method]
                cell.add(fitted, parts, series=series, part=name, x=n)
                outcomes = fitted.outcomes(parts.items, parts.test, cell.seed)
                tested.add((cell.data.name, f"{cell.pair}, {n} pairs"), series, cell.seed, parts.items, outcomes)
        job.tick()
    # One panel per pair of encoders.
    names = dict.fromkeys(pair_name(data, encoders) for data in job.data for encoders in data.encoders)
    job.extra["axes"] = [[name, f"pairs trained on ({name})"] for name in names]
    record_item_tests(job, tested, every=True)


def layers(job: Job) -> None:
    """Train with the Spread loss and a linear α schedule, on early, middle and late layers (figures 4 and 5)."""
    check_layers(job)
    for cell, layer in itertools.product(list(cells(job)), LAYERS):
        parts = cell.split(layer)
        fitted = cell.fit("spread", parts, spread_mix=tuple(job["spread_mix"]))
        cell.add(fitted, parts, cell.record(fitted, layer), series=layer)
        job.tick()


def _add_dual_encoders(job: Job, data: JAMData, task: str, seed: int) -> None:
    """Measure dual encoders on the same test items, untrained, and JAM on the embeddings of their towers."""
    for name in data.dual:
        cell = Cell(job, dual_as_encoders(data, name), task, seed, (name, name))
        parts = cell.split()
        cell.add(Fitted(), parts, pair="dual encoders", series=name)
        for method in job["dual_methods"]:
            series = f"{name}, {BASELINES[method]} on its towers"
            cell.add(cell.fit(method, parts), parts, pair="dual encoders", series=series)


def controls(job: Job) -> None:
    """Fit and evaluate on the data and on each control, with everything else equal."""
    for data, control in itertools.product(job.data, job["controls"]):
        if control == "unrelated" and any(text not in data.unrelated for _, text in data.encoders):
            job.add_note(f"{data.name} has no unrelated texts: {CONTROLS[control]} is left out.")
            continue
        for seed in job.seeds:
            own = control_data(data, control, seed)
            for task, encoders in itertools.product(tasks(job, own), own.encoders):
                cell = Cell(job, own, task, seed, encoders)
                parts = cell.split()
                for method in job["methods"]:
                    scores = cell.fit(method, parts).measure(parts.items, parts.test, seed)[task]
                    series, part = BASELINES[method], CONTROLS[control]
                    job.add_listed(cell.line(data=data.name, series=series, part=part), scores)
                job.tick()


def transfer(job: Job) -> None:
    """Fit on each task and on all tasks together, and evaluate on every task, which gives one matrix per method.

    The images of all tasks are split once, so that no method is evaluated on images that it was fitted on.
    """
    for data in job.data:
        for seed, encoders in itertools.product(job.seeds, data.encoders):
            by_task = data.split_tasks(seed, encoders=encoders, most=limits(job, data))
            for method, (fitted_on, own) in itertools.product(job["methods"], by_task.items()):
                fitted = fit_method(method, own, training(job, data), seed)
                for task in data.tasks:
                    scores = fitted.measure(by_task[task].items, by_task[task].test, seed)[task]
                    line = Cell(job, data, task, seed, encoders).line(series=BASELINES[method])
                    job.add_listed({**line, "part": f"fitted on {fitted_on}"}, scores)
            job.tick()


#: Reconstruction weight in the first step and in the last.
Span = tuple[float, float]


def reconstruction(job: Job) -> None:
    """Train with each reconstruction weight, and mark those on the Pareto front of error and recall."""
    draws: dict[tuple[str, str, str], dict[Span, list[list[float]]]] = {}
    for cell in cells(job):
        parts = cell.split()
        for method, weight in itertools.product(job["methods"], job["weights"]):
            first, last = weight if isinstance(weight, list | tuple) else (weight, weight)
            span = float(first), float(last)
            fitted = cell.fit(method, parts, reconstruction=span)
            values = fitted.measure(parts.items, parts.test, cell.seed)[cell.task]
            values |= reconstruction_errors(fitted.mapping, parts)
            # A schedule is a series of its own, placed at its mean weight: no constant weight is equivalent to it.
            schedule = f", λ {_named(span)}" * (first != last)
            job.add_listed(cell.line(series=BASELINES[method] + schedule, x=sum(span) / 2), values)
            error = (values["image_error"] + values["text_error"]) / 2
            by_weight = draws.setdefault((cell.data.name, cell.pair, BASELINES[method]), {})
            by_weight.setdefault(span, []).append([error, values["five_way_recall"]])
        job.tick()
    job.extra["axes"] = [[None, "weight of the reconstruction, λ"]]
    job.extra["curves"] = [_pareto(job, key, points) for key, points in draws.items()]


def reconstruction_errors(mapping: Any, parts: JAMParts) -> dict[str, float]:
    """Return the squared error of reconstructed test rows, divided by that of the training mean."""
    if not hasattr(mapping, "reconstruct"):
        raise InputError(f"{type(mapping).__name__} cannot reconstruct.", "Pass one that JAM trained.")
    V, P, _ = parts.test
    out = {}
    for name, reconstructed, rows, train in (
        ("image_error", mapping.reconstruct(V), V, parts.train.source),
        ("text_error", mapping.reconstruct_target(P), P, parts.train.target),
    ):
        A = np.asarray(rows, np.float64)
        out[name] = float(np.sum((reconstructed - A) ** 2) / np.sum((A - train.mean(axis=0, dtype=np.float64)) ** 2))
    return out


def _named(weight: Span) -> str:
    return f"{weight[0]:g}" if weight[0] == weight[1] else f"{weight[0]:g} → {weight[1]:g}"


def _pareto(job: Job, key: tuple[str, str, str], points: dict[Span, list[list[float]]]) -> dict[str, Any]:
    """Return a panel of recall against reconstruction error, and record which weights are on the Pareto front."""
    values = np.array(list(points.values()))  # (weights, draws, error and recall)
    mean = values.mean(axis=1)
    sd = values[:, :, 1].std(axis=1, ddof=1).tolist() if values.shape[1] > 1 else [None] * len(values)
    front = pareto_front(mean[:, 0], mean[:, 1])
    weights = [first if first == last else [first, last] for first, last in points]
    found = {"error": mean[:, 0].tolist(), "recall": mean[:, 1].tolist(), "on_front": front.tolist()}
    job.extra.setdefault("fronts", []).append({"of": " | ".join(key), "weights": weights, **found})
    on_front = ", ".join(map(_named, itertools.compress(points, front)))
    job.add_note(f"{key[1]}, {key[2]}: λ = {on_front} on the Pareto front of reconstruction error and 5-way recall.")
    series: list[dict[str, Any]] = []
    for name, on, color in (("on the Pareto front", front, "series-0"), ("dominated", ~front, "before")):
        order = [k for k in np.argsort(mean[:, 0]) if on[k]]
        x, recall = mean[order].T.tolist()
        if order:
            series.append({"name": name, "color": color, "x": x, "mean": recall, "sd": [sd[k] for k in order]})
    title = f"Pareto front of {key[2]}, {key[1].partition(':')[0]}: 5-way recall"
    return {"kind": "lines", "title": title, "label": "reconstruction error", "series": series}


def layer_pairs(job: Job) -> None:
    """Train on every combination of a layer of the image encoder and a layer of the text encoder."""
    check_layers(job)
    for cell in cells(job):
        pair = f"{pair_name(cell.data, cell.encoders)}, " * (len(cell.data.encoders) > 1)
        for image_layer, text_layer in itertools.product(LAYERS, LAYERS):
            parts = cell.split((image_layer, text_layer))
            for method in job["methods"]:
                scores = cell.fit(method, parts).measure(parts.items, parts.test, cell.seed)[cell.task]
                line = cell.line(series=BASELINES[method], part=f"texts {text_layer}")
                job.add_listed({**line, "pair": f"{cell.task}: {pair}images {image_layer}"}, scores)
        job.tick()


#: Number of components for CCA and for the other measures, and number of neighbors, as in the paper.
CCA_RANK, RANK, NEIGHBORS = 50, 10, 10
_QUICK_ROWS = 120


def statistics(job: Job) -> None:
    """Measure matching pairs, hard non-matches and easy non-matches (figure 1, tables 6 to 8)."""
    for cell in cells(job):
        for case, (V, T) in cases(job, cell.data, cell.encoders, cell.task, cell.seed).items():
            job.add_all(cell.line(part=case), measure_statistics(V, T, job.metrics))
        job.tick()


def cases(
    job: Job, data: JAMData, encoders: tuple[str, str], task: str, seed: int
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return paired images and texts for each case of matches and non-matches, with one random item per image."""
    rng = np.random.default_rng([seed, 37])
    own = rng.permutation(np.flatnonzero(data.task_of == task))
    _, first = np.unique(data.items.filenames[own], return_index=True)
    most = _QUICK_ROWS if job.quick else job["rows"]
    own = rng.permutation(own[first])[:most]
    V = data.images[encoders[0]]["late"][data.image_of[own]]
    P, N = (side[encoders[1]]["late"][own] for side in (data.captions, data.negatives))
    cases = {"match": (V, P), "hard non-match": (V, N), "easy: captions of other images": (V, np.roll(P, 1, axis=0))}
    for encoder, case in zip(encoders, ("easy: noise for images", "easy: other texts"), strict=True):
        if encoder in data.unrelated:
            unrelated = rng.permutation(data.unrelated[encoder])[: len(own)]
            n = len(unrelated)
            cases[case] = (unrelated, P[:n]) if encoder == encoders[0] else (V[:n], unrelated)
    return cases


def measure_statistics(V: np.ndarray, T: np.ndarray, metrics: Sequence[str]) -> dict[str, float]:
    """Return the requested similarity measures of paired rows, computed as in the paper."""
    V, T = (rows.astype(np.float64) for rows in (V, T))
    A, B = _leading(V), _leading(T)
    measures: dict[str, Any] = {
        "cca_linear": lambda: cca(V, T, components="first", rank=CCA_RANK),
        "cca_kernel": lambda: cca(V, T, components="first", rank=CCA_RANK, reduce="kernel"),
        "cka_linear": lambda: linear_cka(A, B, estimator="biased"),
        "cka_rbf": lambda: rbf_cka(A, B, estimator="biased"),
        "svcca": lambda: svcca(V, T, keep=RANK),
        "cknna": lambda: cknna(A, B, NEIGHBORS, definition="jam"),
    }
    return {name: float(measure()) for name, measure in measures.items() if name in metrics}


def _leading(rows: np.ndarray) -> np.ndarray:
    U, s, _ = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
    return np.asarray(U[:, :RANK] * s[:RANK])


def sizes(job: Job) -> None:
    """Count parameters and operations of an autoencoder for the width of each backbone and encoder (table 12).

    The widths are those of the published configurations; table 11 prints 4,096 for Llama3.2 3B, which has 3,072.
    """
    rng = np.random.default_rng(0)
    widths: dict[tuple[str | None, str], int] = {(None, name): width for name, width in job["widths"].items()}
    for data in job.data:
        for side in (data.images, data.captions):
            widths |= {(data.name, name): layers["late"].shape[1] for name, layers in side.items()}
    for (where, name), width in widths.items():
        encoder, decoder = autoencoder(width, rng)
        cost = count(encoder) + count(decoder)
        for metric, value in (("parameters", cost.parameters), ("mflops", cost.flops)):
            job.add({"data": where, "pair": f"{name} ({width})", "metric": metric, "quantity": "value"}, value / 1e6)
    job.tick()


STUDIES = (losses, pairs, transfer, controls, reconstruction, layer_pairs, layers, statistics, sizes)


def _open_models(
    experiment: Experiment,
    models: str,
    *,
    file: str | Path | None = None,
    root: str | Path | None = None,
    device: str = "auto",
    **_: object,
) -> list[JAMData]:
    named = experiment.models if models == "paper" else [models]
    dual = experiment.parameters.get("dual_encoders", [])
    return [open_features(named, file, root, experiment.variant, dual_encoders=dual, device=device)]


def _count(facts: Mapping[str, Any]) -> str:
    items = ", ".join(f"{count} {task}" for task, count in facts["items"].items())
    return f"{items} items of {facts['distinct_images']} images, split 70–15–15 by image"


def _numbers(value: Any, most: float = float("inf")) -> bool:
    return all(0 <= one <= most for one in value)


def _weights(value: Any) -> bool:
    """Return whether these are at least two weights, each not negative, or (first, last) of a schedule."""
    pairs = [one if isinstance(one, list | tuple) else (one, one) for one in value]
    return len(pairs) > 1 and all(len(pair) == 2 and _numbers(pair) for pair in pairs)


PAPER = Paper(
    *("jam", "JAM", *described("jam", STUDIES), JAMData, SAMPLE_DATA, open_sample, _open_models, _count),
    choices={
        "methods": tuple(BASELINES),
        "tasks": TASKS,
        "controls": tuple(CONTROLS),
        "dual_methods": ("con", "negcon", "spread"),
    },
    ranges={
        "spread_mix": ("two numbers from 0 to 1", lambda value: len(value) == 2 and _numbers(value, 1)),
        "weights": ("at least two weights, none negative", _weights),
        "pairs": (
            "numbers of pairs, each above 1",
            lambda value: bool(value) and all(isinstance(n, int) and n > 1 for n in value),
        ),
    },
    seeds=paper_seeds,
    files=lambda models, _: [f"{models[0]}/images", f"{models[1]}/captions", f"{models[1]}/negatives"],
)
