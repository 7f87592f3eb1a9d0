"""Tables in docs/jam.md for which autoencoders are trained, and its statistical measures."""

from __future__ import annotations

from typing import Any

import numpy as np

from congruence_papers.jam import BASELINES
from measured.blocks import Block, minus, spread, table
from measured.canonical import Figure
from measured.jobs import JOBS

LOSSES = {"Con": "Con", "NegCon": "NegCon", "Spread": "Spread"}
MEASURES = ("binary_recall", "five_way_recall")


def sugarcrepe(results: list[Any]) -> str:
    found = Figure(results[0])
    tasks = ("replace", "add", "swap")
    rows = [
        [words, *(found.both(metric, series=series, pair=f"{task}:") for task in tasks for metric in MEASURES)]
        for series, words in {**LOSSES, "CCA": "CCA, closed form, no wrong captions"}.items()
    ]
    return table(["method", *(f"{task}: {what}" for task in tasks for what in ("binary", "5-way"))], rows)


def text_only(results: list[Any]) -> str:
    """Return the results of a logistic regression on captions, without images, on the items of the tables above."""
    found = [Figure(one) for one in results]
    rows = [
        [f"SugarCrepe, {task}", *(found[0].both(metric, series="text only", pair=f"{task}:") for metric in MEASURES)]
        for task in ("replace", "add", "swap")
    ]
    for figure, words in zip(found[1:], ("Caltech-101", "ImageNet-1000"), strict=True):
        rows.append([words, *(figure.both(metric, series="text only") for metric in MEASURES)])
    return table(["items", "binary", "5-way"], rows)


def item_tests(results: list[Any]) -> str:
    """Return the differences between successive losses, their intervals, and Holm-adjusted p-values."""
    rows: dict[tuple[str, str], list[str]] = {}
    for one in results[0]["item_tests"]:
        words = {"binary_recall": "binary", "five_way_recall": "5-way"}[one["metric"]]
        cell = f"{one['difference']:+.3f} ({one['low']:+.3f} … {one['high']:+.3f}), p = {one['adjusted_p_value']:.2g}"
        rows.setdefault((one["pair"].partition(":")[0], words), []).append(minus(cell))
    return table(["task", "recall", "Spread − NegCon", "NegCon − Con"], [[*key, *cells] for key, cells in rows.items()])


def photos(which: int, first: str, cca: str) -> Any:
    def write(results: list[Any]) -> str:
        found = Figure(results[which])
        rows = [
            [words, *(found.both(metric, series=series) for metric in MEASURES)]
            for series, words in {**LOSSES, "CCA": cca}.items()
        ]
        return table([first, "binary", "5-way"], rows)

    return write


def _precisions(results: list[Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    return results[0]["results"]["steps"], results[0]["results"]["recalls"]


def step_costs(results: list[Any]) -> str:
    """Return the milliseconds per step at the paper's setting, the total time, and the ratio, paired by round."""
    cost, _ = _precisions(results)
    rows = []
    for precision in ("float32", "bfloat16"):
        wall, cpu = (np.array(cost[key][precision]) for key in ("clock", "processor"))
        ratios = [np.array(cost[key]["float32"]) / np.array(cost[key][precision]) for key in ("clock", "processor")]
        ends = [f"{np.median(r):.2f} ({r.min():.2f}–{r.max():.2f})" if precision != "float32" else "1" for r in ratios]
        times = [f"{1e3 * np.median(one):.0f}" for one in (wall, cpu)]
        rows.append([precision, *times, f"{cost['steps_of_paper'] * np.median(wall):.0f}", *ends])
    header = [
        "wall time per step, ms",
        "CPU time per step, ms",
        "wall time of the paper's steps, extrapolated, s",
        "speed / float32, wall time",
        "speed / float32, CPU time",
    ]
    return table(["precision", *header], rows)


def precisions(results: list[Any]) -> str:
    """Return recall in both precisions, and the difference on the same splits."""
    _, lines = _precisions(results)
    rows = []
    for loss in dict.fromkeys(line["loss"] for line in lines):
        for task in dict.fromkeys(line["task"] for line in lines):
            own = [line for line in lines if (line["loss"], line["task"]) == (loss, task)]
            cells = []
            for metric in (*MEASURES, "text_error"):
                by = {
                    p: np.array([line[metric] for line in own if line["precision"] == p])
                    for p in ("float32", "bfloat16")
                }
                gaps = by["bfloat16"] - by["float32"]
                cells += [
                    spread(by["float32"].mean(), by["float32"].std(ddof=1)),
                    minus(f"{gaps.mean():+.3f} ± {gaps.std(ddof=1):.3f}"),
                ]
            rows.append([f"{BASELINES[loss]}, {task}", *cells])
    scores = ("binary", "5-way", "text error")
    header = (f"{score}: {what}" for score in scores for what in ("float32", "bfloat16 − float32"))
    return table(["loss, task", *header], rows)


def emoji(results: list[Any]) -> str:
    found = results[0]["results"]
    seeds = list(found["tested"].items())
    rows = []
    for key, words in (
        ("con", "Con"),
        ("negcon", "NegCon"),
        ("spread", "Spread"),
        ("cca", "CCA, closed form, no wrong captions"),
    ):
        scores = np.array(found["losses"][key])
        mean, sd = scores.mean(0), scores.std(0, ddof=1)
        rows.append([words, *(f"{b:.3f} / {c:.3f}" for b, c in scores), " / ".join(map(spread, mean, sd))])
    header = [f"seed {seed} ({n} items)" for seed, n in seeds]
    return table(["method", *header, "mean ± SD"], rows)


def layers(results: list[Any]) -> str:
    found = Figure(results[0])
    rows = []
    for series, words in (("early", "early"), ("mid", "middle"), ("late", "late")):
        alpha = found.row("alpha_at_best", series=series)
        recalls = [found.both(metric, series=series) for metric in ("five_way_recall", "binary_recall")]
        rows.append([words, spread(alpha["mean"], alpha["sd"], 2), *recalls])
    return table(["layers", "α at the best step", "5-way recall", "binary recall"], rows)


def measures(results: list[Any]) -> str:
    found = Figure(results[0])
    names = ("cca_linear", "cca_kernel", "cka_linear", "cka_rbf", "svcca", "cknna")
    rows = []
    for task in ("replace", "add", "swap"):
        for part, words in (
            ("match", "match"),
            ("hard non-match", "hard non-match"),
            ("easy: captions of other images", "captions of other images"),
        ):
            rows.append(
                [f"{task}: {words}", *(f"{found.row(name, pair=f'{task}:', part=part)['mean']:.3f}" for name in names)]
            )
    header = ["CCA, linear", "CCA, kernel", "CKA, linear", "CKA, Gaussian", "SVCCA", "CKNNA (eq. 6–9)"]
    return table(["task: pairs", *header], rows)


BLOCKS = {
    "jam-sugarcrepe": Block(sugarcrepe, JOBS["jam-sugarcrepe"]),
    "jam-caltech": Block(photos(0, "Caltech-101, classes seen in training", "CCA, 256 dimensions, closed form, no wrong captions"), JOBS["jam-photos"]),
    "jam-imagenet": Block(photos(1, "ImageNet-1000, other classes (150 tested)", "CCA, 256 dimensions"), JOBS["jam-photos"]),
    "jam-text-only": Block(text_only, JOBS["jam-text-only"]),
    "jam-item-tests": Block(item_tests, JOBS["jam-item-tests"]),
    "jam-precision-cost": Block(step_costs, JOBS["jam-precision-cost"]),
    "jam-precision": Block(precisions, JOBS["jam-precision"]),
    "jam-emoji": Block(emoji, JOBS["jam-emoji"]),
    "jam-layers": Block(layers, JOBS["jam-layers"]),
    "jam-measures": Block(measures, JOBS["jam-measures"]),
}  # fmt: skip
