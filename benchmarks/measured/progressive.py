"""Tables of docs/progressive.md."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from measured.blocks import Block, table
from measured.jobs import JOBS

#: Shares re-embedded in bench_progressive.py, by part, and those that are shown.
SHARES = {
    "caltech": ((0.0, 0.02, 0.04, 0.08, 0.12, 0.16),) * 2,
    "emoji": ((0.0, 0.1, 0.2, 0.3, 0.4, 0.45, 0.6, 0.8, 0.9), (0.0, 0.2, 0.4, 0.45, 0.6, 0.9)),
    "lvis": ((0.0, 0.1, 0.2, 0.3, 0.5),) * 2,
}

WORDS = {
    "rotation, random": "random, a rotation refitted",
    "random": "random",
    "k-center": "k-center",
    "margin": "margin (uncertainty)",
    "disagreement": "disagreement",
    "residual": "predicted residual",
    "coverage": "covered variance",
    "entropy": "entropy",
    "auto": "auto",
}


def _cell(values: Any) -> str:
    array = np.array(values, float)
    return f"{array.mean():.3f} ± {array.std(ddof=1) / np.sqrt(len(array)):.3f}"


def _stages(shares: Iterable[str]) -> list[str]:
    """Return the columns for shares of the store; the first one says what they are shares of."""
    first, *rest = shares
    return [f"{first} re-embedded", *rest]


def orders(part: str) -> Any:
    """Return quality by order and share, mean and standard error over splits."""

    def write(results: list[Any]) -> str:
        runs = results[0]["results"]
        all_, shown = SHARES[part]
        rows = [
            [f"{name} model", _cell([run[name] for run in runs]), *[""] * (len(shown) - 1)] for name in ("old", "new")
        ]
        for name in (one for one in runs[0] if one not in ("old", "new")):
            cells = []
            for share in shown:
                place = all_.index(share)
                values = [run[name][place] if place < len(run[name]) else None for run in runs]
                cells.append("" if values[0] is None else _cell(values))
            rows.append([WORDS[name], *cells])
        return table(["order", *_stages(f"{100 * share:g} %" for share in shown)], rows)

    return write


def lvis(results: list[Any]) -> str:
    """Return recall without texts, by plain cosines and on a common scale."""
    runs = results[0]["results"]
    shown = SHARES["lvis"][1]
    rows = []
    for name in (one for one in runs[0] if one not in ("old", "new")):
        for column, words in enumerate(("raw", "rescaled")):
            cells = [_cell([run[name][place][column] for run in runs]) for place in range(len(shown))]
            rows.append([WORDS[name] * (column == 0), words, *cells])
    return table(["order", "cosines", *_stages(f"{100 * share:g} %" for share in shown)], rows)


def coverage(results: list[Any]) -> str:
    """Return the share of intervals that contain the true value, and their mean width."""
    lines = results[0]["results"]
    rows = []
    for label in dict.fromkeys(name.rsplit(": ", 1)[0] for name in lines):
        scores = {name.rsplit(": ", 1)[1]: cells for name, cells in lines.items() if name.rsplit(": ", 1)[0] == label}
        scores["weighted"] = pooled([cells for name, cells in scores.items() if name.startswith("weighted ")])
        cells = [
            f"{scores[name][1]:.3f} ({scores[name][2]:.2f})" if name in scores else ""
            for name in ("agreement", "overlap@10", "cosine", "weighted", "forecast")
        ]
        rows.append([label, str(scores["cosine"][0]), *cells])
    header = [
        "data",
        "stages",
        "agreement",
        "overlap@10",
        "cosine",
        "all three, weighted by traffic",
        "forecast of agreement",
    ]
    return table(header, rows)


def pooled(cells: list[list[float]]) -> list[float]:
    """Return the number of cases and the means over them of several lines [number, share, mean]."""
    numbers = [one[0] for one in cells]
    return [sum(numbers), *(float(np.average([one[k] for one in cells], weights=numbers)) for k in (1, 2))]


#: Candidates for the meter's interval.
CANDIDATES = {
    "student": "Student",
    "wilson": "Wilson, from the variance",
    "hall": "Hall, skewness-corrected",
    "bootstrap_t": "bootstrap-t",
    "likelihood": "empirical likelihood",
    "betting": "betting",
    "Gaffke, least seen": "Gaffke, lower limit observed",
    "Student": "Student, ratio estimate",
    "Gaffke": "Gaffke",
}


def intervals(results: list[Any]) -> str:
    """Return the coverage over all artificial populations and in the worst one, and the width."""
    coverages = results[0]["results"]
    rows = []
    for kind, scores in (("shares", "rates"), ("cosines", "cosines"), ("weighted", "weighted rates")):
        first = True
        for name, words in CANDIDATES.items():
            if f"{kind}: {name}: 10" in coverages:
                cells = [coverages[f"{kind}: {name}: {n}"] for n in (10, 20, 40, 100)]
                texts = [f"{mean:.2f}, {worst:.2f} ({width:.2f})" for mean, worst, width in cells]
                rows.append([scores * first, words, *texts])
                first = False
    return table(["scores", "interval", "n = 10", "n = 20", "n = 40", "n = 100"], rows)


def settings(results: list[Any]) -> str:
    """Return results by weights of the fit, and by scale of the scores."""
    runs = results[0]["results"]
    rows = []
    for data, share in (("Caltech-101", 8), ("emoji", 40)):
        first = True
        for name in (one for one in runs[0][data] if one != "new"):
            values = np.array([np.ravel(run[data][name]) for run in runs], float)
            cells = [_cell(column) for column in values.T]
            kind, value = name.rsplit(" ", 1)
            setting = f"`clip` = {value}" if kind == "weights to" else f"scores: {value if value == 'none' else f'`{value}`'}"  # fmt: skip
            rows.append([f"{data}, {share} % re-embedded" * first, setting, *cells, *[""] * (3 - len(cells))])
            first = False
    return table(["data", "setting", "all rows", "native rows", "mapped rows"], rows)


PAIRS = {
    "random, fixed": "no names: random, never refitted",
    "random, rotation": "no names: random, a rotation refitted",
    "random": "no names: random",
    "auto": "no names: auto",
    "disagreement for the order only, fixed": "names in the order: disagreement, never refitted",
    "disagreement for the order only": "names in the order: disagreement",
    "random, names": "names in order and map: random",
    "disagreement, names": "names in order and map: disagreement",
    "auto, names": "names in order and map: auto (entropy)",
}


def pairs(results: list[Any]) -> str:
    """Return the accuracy, starting from 100 photo pairs."""
    runs = results[0]["results"]
    rows = [[f"{name} model", _cell([run[name] for run in runs]), *[""] * 5] for name in ("old", "new")]
    rows += [[words, *map(_cell, zip(*(run[name] for run in runs), strict=True))] for name, words in PAIRS.items()]
    return table(["names: order", *_stages(f"{share} %" for share in (3, 7, 11, 15, 19, 23))], rows)


UNSEEN = {
    "all texts known": "all",
    "half of the texts known": "half",
    "half known to the first map, none to the plan": "half, by the first map only",
}


def unseen(results: list[Any]) -> str:
    """Return the scores of queries by whether their texts are known."""
    runs = results[0]["results"]
    rows = []
    for data in ("Caltech-101", "emoji"):
        for place, queries in enumerate(("known half", "other half")):
            for name in ("old", "new"):
                cell = _cell([run[data][name][place] for run in runs])
                rows.append([data, f"{name} model", queries, cell, "", "", ""])
            for name, known in UNSEEN.items():
                cells = zip(*(run[data][name] for run in runs), strict=True)
                rows.append([data, known, queries, *(_cell([one[place] for one in cell]) for cell in cells)])
    shares = ["0 % re-embedded", "4 % (emoji: 20 %)", "8 % (40 %)", "16 % (60 %)"]
    return table(["data", "texts known, or model alone", "queries", *shares], rows)


SCALES = {"none": "raw cosines", "factor": "`factor`", "query": "`query`"}


def halves(results: list[Any]) -> str:
    """Return the recall of native and of mapped rows."""
    runs = results[0]["results"]
    rows = []
    for data in ("Caltech-101", "LVIS"):
        for place in range(len(runs[0][data])):
            stages = [run[data][place] for run in runs]
            share = f"{100 * np.mean([one['share'] for one in stages]):.0f} %"
            for kind, words in SCALES.items():
                cells = [_cell(column) for column in zip(*(one["kinds"][kind] for one in stages), strict=True)]
                rows.append([data, share, words, *cells])
            wanted = _cell([one["native"] for one in stages])
            rows.append([data, share, "native share of relevant rows", "", "", "", wanted])
    recalls = ["recall, all rows", "recall, native rows", "recall, mapped rows"]
    return table(["data", "re-embedded", "scores", *recalls, "native share of results"], rows)


def verdicts(results: list[Any]) -> str:
    """Return the forecasts, and the quality that runs reached."""
    runs = results[0]["results"]
    rows = []
    for name in runs[0]:
        draws = [run[name] for run in runs]
        data, metric = name.replace("old model useless", "old model mostly noise").rsplit(": ", 1)
        cells = []
        for target in ("0.95", "0.99"):
            hopeless = sum(draw["said"][target] == "re-embed everything" for draw in draws)
            reached = sum(draw["reached"] >= float(target) for draw in draws)
            cells.append(f"{hopeless} / {reached} of {len(draws)}")
        share = f"{100 * np.mean([draw['share'] for draw in draws]):.0f} %"
        rows.append([data, metric, share, f"{np.mean([draw['reached'] for draw in draws]):.3f}", *cells])
    targets = [f"target {target}: “re-embed everything” / reached" for target in (".95", ".99")]
    return table(["data", "metric", "re-embedded at the forecast", "quality at 50 %", *targets], rows)


def memory(results: list[Any]) -> str:
    """Return peak memory and CPU time by number of rows."""
    by = {(run["rows"], run["way"]): run for run in results[0]["results"]}
    counts, stores = (list(dict.fromkeys(keys)) for keys in zip(*by, strict=True))
    rows = []
    for store in stores:
        cells = []
        for n in counts:
            run = by[n, store]
            cells += [f"{run['megabytes']:,.0f}", f"{run['seconds']:,.1f}"]
        rows.append([{"LanceDB": "LanceDB, `reembed` with three batches"}.get(store, f"{store}, one batch"), *cells])
    head = [cell for n in counts for cell in (f"{n:,} rows: peak memory (MB)", "CPU time (s)")]
    return table(["store", *head], rows)


def _best(values: dict[str, list[float]], names: tuple[str, ...], runs: int) -> list[str]:
    """Return one cell per order; bold if it is within one standard error (of the difference paired by run) of the highest."""
    top = max(names, key=lambda name: np.mean(values[name]))
    cells = []
    for name in names:
        apart = np.array(values[top]) - np.array(values[name])
        close = apart.mean() <= apart.std(ddof=1) / np.sqrt(runs)
        cells.append(f"**{np.mean(values[name]):.3f}**" if close else f"{np.mean(values[name]):.3f}")
    return cells


KINDS = {
    "good models, noise in common": "good models, shared noise",
    "good models, noise of their own": "good models, independent noise",
    "old model poorer": "old model noisier",
    "old model useless": "old model mostly noise",
    "new model lost a third": "new model without 30 % of the variance",
    "sheared": "new model's axes stretched",
    "hard quarter": "a quarter of the items noisier",
}
WITH_TEXTS = ("random", "k-center", "margin", "disagreement", "entropy", "auto")
WITHOUT = ("random", "k-center", "residual", "coverage", "auto")


def kinds(results: list[Any]) -> str:
    """Return accuracy with texts at 10 % re-embedded, and overlap@10 without texts at 20 %, by kind of simulated models and order."""
    runs = results[0]["results"]
    before, texts, none = [], [], []
    for kind in runs[0]:
        values = {name: [run[kind][name] for run in runs] for name in runs[0][kind]}
        before.append([KINDS[kind], *(f"{np.mean(values[name]):.3f}" for name in ("old", "new", "mapped"))])
        texts.append([KINDS[kind], *_best(values, WITH_TEXTS, len(runs))])
        values = {name: values[f"{name}, no texts"] for name in ("mapped", *WITHOUT)}
        none.append([KINDS[kind], f"{np.mean(values['mapped']):.3f}", *_best(values, WITHOUT, len(runs))])
    return "\n".join((
        table(["with texts, nothing re-embedded", "old model", "new model", "mapped"], before),
        table(["with texts, 10 % re-embedded", *WITH_TEXTS], texts),
        table(["without texts, 20 % re-embedded", "mapped, 0 %", *WITHOUT], none),
    ))  # fmt: skip


def mixtures(results: list[Any]) -> str:
    """Return the scores of mixtures and of their parts."""
    runs = results[0]["results"]
    columns = [("Caltech-101", k, share) for k, share in enumerate(("4 %", "8 %", "16 %"))]
    columns += [("emoji", k, share) for k, share in enumerate(("20 %", "45 %"))]
    lines = [
        [name.replace("3 entropy", "3 × entropy"), *(_cell([run[data][name][k] for run in runs]) for data, k, _ in columns)]
        for name in runs[0]["emoji"]
    ]  # fmt: skip
    return table(["order", *(f"{data}, {share}" for data, _, share in columns)], lines)


def duplicates(results: list[Any]) -> str:
    """Return the accuracy of a store with near-duplicates."""
    runs = results[0]["results"]
    words = {"near-duplicates wait": "near-duplicates postponed", "near-duplicates do not wait": "not postponed"}
    lines = []
    for name in (key for key in runs[0] if key != "new"):
        order, rule = name.split(", ")
        lines.append([f"{order}, {words[rule]}", *(_cell([run[name][k] for run in runs]) for k in range(3))])
    return table(["order", "4 % re-embedded", "8 %", "16 %"], lines)


BLOCKS = {
    "progressive-caltech": Block(orders("caltech"), JOBS["progressive-caltech"]),
    "progressive-emoji": Block(orders("emoji"), JOBS["progressive-emoji"]),
    "progressive-lvis": Block(lvis, JOBS["progressive-lvis"]),
    "progressive-coverage": Block(coverage, JOBS["progressive-coverage"]),
    "progressive-intervals": Block(intervals, JOBS["progressive-intervals"]),
    "progressive-memory": Block(memory, JOBS["progressive-memory"]),
    "progressive-settings": Block(settings, JOBS["progressive-settings"]),
    "progressive-pairs": Block(pairs, JOBS["progressive-pairs"]),
    "progressive-unseen": Block(unseen, JOBS["progressive-unseen"]),
    "progressive-halves": Block(halves, JOBS["progressive-halves"]),
    "progressive-verdicts": Block(verdicts, JOBS["progressive-verdicts"]),
    "progressive-kinds": Block(kinds, JOBS["progressive-kinds"]),
    "progressive-mixtures": Block(mixtures, JOBS["progressive-mixtures"]),
    "progressive-duplicates": Block(duplicates, JOBS["progressive-duplicates"]),
}
