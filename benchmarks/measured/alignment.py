"""Tables in docs/training.md that take hours: methods by number of pairs on the stand-ins, and synthetic data."""

from __future__ import annotations

from typing import Any

import numpy as np

from measured.blocks import Block, minus, table
from measured.jobs import JOBS
from measured.training import cells_of

METHODS = {
    "SOTAlign": "**SOTAlign**",
    "SAIL": "SAIL",
    "SAIL, unpaired negatives": "SAIL, unpaired rows as negatives",
    "STRUCTURE": "STRUCTURE",
    "STRUCTURE, unpaired too": "STRUCTURE, regularized on unpaired rows too",
    "NNCLR": "NNCLR",
    "S-CLIP": "S-CLIP",
    "SUE": "SUE",
    "Contrastive": "Contrastive",
    "CSA": "CSA",
    "CCA": "CCA",
    "Procrustes": "Procrustes",
}
KS = ("mean_r1", "mean_r5", "mean_r10")
RECALLS = "R@1 / R@5 / R@10, %"


class Splits:
    """Scores of single splits in percent, by method, number of pairs and metric."""

    def __init__(self, *runs: dict[str, Any]):
        self.scores = {}
        for results in runs:
            lines = [dict(zip(results["columns"], row, strict=True)) for row in results["rows"]]
            for line, values in zip(lines, results["values"], strict=True):
                key = (line["series"] or line["quantity"], line["part"], line["metric"])
                self.scores[key] = 100 * np.array(values)
        self.pairs = list(dict.fromkeys(part for _, part, _ in self.scores))

    def cell(self, method: str, pairs: str, metrics: tuple[str, ...] = KS) -> str:
        values = [self.scores.get((method, pairs, metric)) for metric in metrics]
        if any(v is None for v in values):
            return "–"
        return cells_of([v.mean() for v in values], [v.std(ddof=1) for v in values])

    def lead(self, other: str, pairs: str) -> str:
        """Return SOTAlign's lead in recall at 5 and 10, as paired differences over splits."""
        cells = []
        for metric in KS[1:]:
            gap = self.scores["SOTAlign", pairs, metric] - self.scores[other, pairs, metric]
            cells.append(minus(f"{gap.mean():+.1f} ± {gap.std(ddof=1):.1f}"))
        return " / ".join(cells)


def imagenet(results: list[Any]) -> str:
    splits = Splits(*results)
    measured = {name for name, _, _ in splits.scores}
    rows = [
        [words, *(splits.cell(name, n) for n in splits.pairs)] for name, words in METHODS.items() if name in measured
    ]
    chance = [f"{splits.scores['chance', splits.pairs[0], metric].mean():.1f}" for metric in KS]
    rows.append(["chance", " / ".join(chance), *[""] * (len(splits.pairs) - 1)])
    return table([RECALLS, *splits.pairs], rows)


def leads(results: list[Any]) -> str:
    splits = Splits(*results)
    others = ("SAIL", "Procrustes", "CCA", "CSA")
    rows = [[f"over {other}", *(splits.lead(other, n) for n in splits.pairs)] for other in others]
    return table(["lead of SOTAlign in R@5 / R@10, points", *splits.pairs], rows)


def caltech(results: list[Any]) -> str:
    splits, sue = Splits(*results[:-1]), Splits(results[-1])
    rows = []
    for name, words in METHODS.items():
        of, words = (sue, "SUE, not tuned") if name == "SUE" else (splits, words)
        cells = ((of.cell(name, n), of.cell(name, n, ("zero_shot",))) for n in splits.pairs)
        rows.append([words, *(cell for pair in cells for cell in pair)])
    header = (f"{n}: {score}" for n in splits.pairs for score in ("R@1 / R@5 / R@10", "zero-shot"))
    return table(["method, scores in %", *header], rows)


def world(results: list[Any]) -> str:
    """Return the best of the named combinations, by the mean of the three recalls, on the splits shown."""
    hundreds, two, few = (result["results"] for result in results)
    columns = [
        [line for line in hundreds if line["pairs"] == 100],
        two,
        [line for line in hundreds if line["pairs"] == 400],
        few,
    ]

    def best(lines: list[dict[str, Any]], method: str, **given: float) -> str:
        of = [
            line for line in lines if line["method"] == method and all(line["tried"][k] == v for k, v in given.items())
        ]
        if not of:
            return "–"
        line = max(of, key=lambda line: sum(line["mean"]))
        return cells_of(line["mean"], line["sd"])

    rows = [
        ["Procrustes", *(best(lines, "procrustes") for lines in columns)],
        ["CCA, best of λ = 0.1, 1, 10", *(best(lines, "cca") for lines in columns)],
        ["CCA, λ = 1 (SOTAlign's teacher)", *(best(lines, "cca", ridge=1.0) for lines in columns)],
        ["SAIL, better of two learning rates", *(best(lines, "sail") for lines in columns)],
        ["**SOTAlign**", *(best(lines, "sotalign") for lines in columns)],
    ]
    splits = [result["arguments"]["splits"] for result in results]
    header = [f"100 pairs ({splits[0]} splits)", f"200 pairs ({splits[1]} splits)", f"400 pairs ({splits[0]} splits)"]
    return table([RECALLS, *header, f"200 pairs, 1,000 unpaired rows ({splits[2]} splits)"], rows)


def overlap(results: list[Any]) -> str:
    """Return R@1 by overlap of the unpaired items and by start, with the lead over the best validated linear map, paired over splits."""
    scores = [line for result in results for line in result["results"]["scores"]]
    sides = list(dict.fromkeys(line["encoders"] for line in scores))

    def values(encoders: str, method: str, **given: object) -> np.ndarray:
        kept = [line for line in scores if line["encoders"] == encoders and line["method"] == method]
        return np.array([line["recall"][0] for line in kept if all(line[key] == v for key, v in given.items())])

    def plain(encoders: str, method: str) -> str:
        recalls = values(encoders, method)
        return f"{recalls.mean():.1f} ± {recalls.std(ddof=1):.1f}"

    def led(encoders: str, method: str, **given: object) -> str:
        recalls = values(encoders, method, **given)
        gap = recalls - values(encoders, "linear")
        return (
            f"{recalls.mean():.1f} ± {recalls.std(ddof=1):.1f} ({minus(f'{gap.mean():+.1f} ± {gap.std(ddof=1):.1f}')})"
        )

    rows = [
        ["SAIL", *(cell for side in sides for cell in (plain(side, "sail"), ""))],
        ["best validated linear map", *(cell for side in sides for cell in ("", plain(side, "linear")))],
    ]
    pools = list(dict.fromkeys((line["overlap"], line["all"]) for line in scores if "overlap" in line))
    for share, every in pools:
        counts = [next(x["rows"] for x in scores if x["encoders"] == side and x.get("overlap") == share and x["all"] == every) for side in sides]  # fmt: skip
        words = " or ".join(f"{n:,}" for n in dict.fromkeys(counts))
        cells = (led(side, start, overlap=share, all=every) for side in sides for start in ("random", "teacher"))
        rows.append([f"SOTAlign, {words} unpaired rows, {100 * share:.0f} % common", *cells])
    header = [f"{side}: {start} start" for side in sides for start in ("random", "teacher's")]
    return table(["MeanR@1, %", *header], rows)


def overlap_shift(results: list[Any]) -> str:
    """Return the distance of the pools of the overlap table from the pairs, with that between samples of one collection."""
    lines = [line for result in results for line in result["results"]["shifts"]]
    sides = list(dict.fromkeys(line["encoders"] for line in lines))
    rows = []
    for share, every in dict.fromkeys((line["overlap"], line["all"]) for line in lines):
        of = {side: [x for x in lines if (x["encoders"], x["overlap"], x["all"]) == (side, share, every)] for side in sides}  # fmt: skip
        words = " or ".join(f"{n:,}" for n in dict.fromkeys(mine[0]["rows"] for mine in of.values()))
        cells = []
        for mine in of.values():
            for key in ("shift", "floor"):
                values = np.array([line[key] for line in mine])
                cells.append(f"{values.mean():.4f} ± {values.std(ddof=1):.4f}")
        rows.append([f"{words} unpaired rows, {100 * share:.0f} % common", *cells])
    return table(
        ["distance from 50 pairs, turns", *(words for side in sides for words in (side, f"{side}, floor"))], rows
    )


def unbalanced(results: list[Any]) -> str:
    """Return R@1 by overlap and by strength of the marginal constraints of the teacher's plan, with the lead over the best validated linear map."""
    scores = [line for result in results for line in result["results"]["scores"]]
    chosen = {side: of for result in results for side, of in result["results"]["chosen"].items()}

    def values(encoders: str, method: str, **given: object) -> np.ndarray:
        kept = [line for line in scores if line["encoders"] == encoders and line["method"] == method]
        return np.array([line["recall"][0] for line in kept if all(line[key] == v for key, v in given.items())])

    def cell(encoders: str, start: str, share: float, rho: float | None, short: bool) -> str:
        recalls = values(encoders, start, overlap=share, rho=rho, short=short)
        gap = recalls - values(encoders, "linear")
        words = f"{recalls.mean():.1f} ({minus(f'{gap.mean():+.1f} ± {gap.std(ddof=1):.1f}')})"
        return f"{words} *" if rho == chosen[encoders][start] else words

    plans = list(dict.fromkeys((line["rho"], line["short"]) for line in scores if "rho" in line))
    rows = [
        [f"{100 * share:.0f} %", _strength(*plan), *(cell(side, start, share, *plan) for side in chosen for start in chosen[side])]
        for share in dict.fromkeys(line["overlap"] for line in scores if "overlap" in line)
        for plan in plans
    ]  # fmt: skip
    header = [f"{side}: {start} start" for side in chosen for start in ("random", "teacher's")]
    return table(["common", "ρ", *header], rows)


def unbalanced_plans(results: list[Any]) -> str:
    """Return statistics of the teacher's plan between all unpaired rows, mean over splits, with a table for each pair of encoders."""
    plans = [line for result in results for line in result["results"]["plans"]]
    tables = []
    for side in dict.fromkeys(line["encoders"] for line in plans):
        rows = []
        for share, rho in dict.fromkeys((line["overlap"], line["rho"]) for line in plans):
            kept = [x for x in plans if (x["encoders"], x["overlap"], x["rho"]) == (side, share, rho)]
            means = {key: np.mean([x[key] for x in kept]) for key in kept[0] if isinstance(kept[0][key], float)}
            ratio = means.get("with_over_without")
            partners = [f"{100 * means['on_partners']:.0f} %" if share else "", "" if ratio is None else f"{ratio:.1f}"]
            spread = [f"{100 * means['effective_rows']:.0f} %", f"{means['largest_column']:.1f}"]
            rows.append([f"{100 * share:.0f} %", _strength(rho), *partners, *spread])
        header = ["ρ", "mass on partners", "row mass with / without partner", "effective rows", "largest column / mean"]
        tables.append(table([f"{side}: common items", *header], rows))
    return "\n".join(tables)


def _strength(rho: float | None, short: bool = False) -> str:
    return ("balanced" if rho is None else f"{rho:g}") + ", 30 iterations" * short


BLOCKS = {
    "sotalign-unbalanced": Block(unbalanced, JOBS["sotalign-unbalanced"]),
    "sotalign-unbalanced-plans": Block(unbalanced_plans, JOBS["sotalign-unbalanced"]),
    "sotalign-overlap": Block(overlap, JOBS["sotalign-overlap"]),
    "sotalign-overlap-shift": Block(overlap_shift, JOBS["sotalign-overlap-shift"]),
    "alignment-imagenet": Block(imagenet, JOBS["alignment-imagenet"]),
    "alignment-leads": Block(leads, JOBS["alignment-imagenet"]),
    "alignment-caltech": Block(caltech, JOBS["alignment-caltech"]),
    "alignment-world": Block(world, JOBS["alignment-world"]),
}
