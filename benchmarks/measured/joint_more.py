"""Tables of docs/jam_more.md: categories, transfer, controls, the weight of the reconstruction, layers and towers."""

from __future__ import annotations

from typing import Any

import numpy as np

from congruence.evaluation.compositional import CATEGORY_NAMES
from congruence_papers.jam import BASELINES, CONTROLS
from congruence_papers.jam.figures import pareto_front
from congruence_papers.jam.samples import CONTEXTS
from measured.blocks import Block, minus, table
from measured.canonical import Figure
from measured.jobs import JOBS

TASKS = ("replace", "add", "swap")
BINARY, CHOICE = "binary_recall", "five_way_recall"


def two(found: Figure, **given: Any) -> str:
    """Format binary and 5-way recall in one cell."""
    return " / ".join(found.both(metric, **given) for metric in (BINARY, CHOICE))


def categories(results: list[Any]) -> str:
    found = Figure(results[0])
    named = [BASELINES[name] for name in ("con", "negcon", "spread", "cca", "text_only")]
    rows = [
        [words, *(found.both(BINARY, series=series, pair=f"{words}:") for series in named)]
        for words in CATEGORY_NAMES.values()
    ]
    return table(["category", *named], rows)


def transfer(results: list[Any]) -> str:
    found = Figure(results[0])
    rows = []
    for name in ("con", "spread", "cca", "text_only"):
        for fitted_on in (*TASKS, "all"):
            given = {"series": BASELINES[name], "part": f"fitted on {fitted_on}"}
            rows.append(
                [f"{BASELINES[name]}, fitted on {fitted_on}", *(two(found, pair=f"{t}:", **given) for t in TASKS)]
            )
    return table(["binary / 5-way", *(f"tested on {task}" for task in TASKS)], rows)


def controls(results: list[Any]) -> str:
    found = Figure(results[0])
    rows = [
        [f"{BASELINES[name]}, {words}", *(two(found, pair=f"{t}:", series=BASELINES[name], part=words) for t in TASKS)]
        for name in ("spread", "cca", "text_only")
        for words in CONTROLS.values()
    ]
    return table(["binary / 5-way", *TASKS], rows)


def reconstruction(results: list[Any]) -> str:
    found = Figure(results[0])
    lines = [{"series": row["series"], "x": row["x"]} for row in found.rows if row["metric"] == CHOICE]
    errors = [np.mean([found.row(m, **line)["mean"] for m in ("image_error", "text_error")]) for line in lines]
    front = pareto_front(errors, [found.row(CHOICE, **line)["mean"] for line in lines])
    measures = ("image_error", "text_error", CHOICE, BINARY)
    rows = [
        [
            line["series"].partition("λ ")[2] or f"{line['x']:g}",  # the name of a schedule is in its series
            *(found.both(metric, **line) for metric in measures),
            "yes" if on else "no",
        ]
        for line, on in zip(lines, front, strict=True)
    ]
    return table(["λ", "image error", "text error", "5-way recall", "binary recall", "on the Pareto front"], rows)


def layers(results: list[Any]) -> str:
    found = Figure(results[0])
    depths = ("early", "mid", "late")
    rows = [
        [f"images {seen}", *(two(found, pair=f"replace: images {seen}", part=f"texts {read}") for read in depths)]
        for seen in depths
    ]
    return table(["binary / 5-way", *(f"texts {read}" for read in depths)], rows)


def towers(results: list[Any]) -> str:
    found = Figure(results[0])
    rows = [
        [BASELINES[name], *(two(found, series=BASELINES[name], pair=f"{task}:") for task in TASKS)]
        for name in ("spread", "towers", "towers_spread", "text_only")
    ]
    return table(["binary / 5-way", *TASKS], rows)


def context(results: list[Any]) -> str:
    """Return 5-way recall by kind of wrong captions and by the pairs, with Spread's lead, paired by item."""
    found = Figure(results[0])
    tests = {
        (one["pair"], one["metric"], one["second"]): one for one in results[0]["item_tests"] if one["first"] == "Spread"
    }
    rows = []
    for words in CONTEXTS:
        for n in dict.fromkeys(row["x"] for row in found.rows):
            leads = []
            for other in ("Con", "NegCon"):
                one = tests[f"replace: {words}, {n:g} pairs", CHOICE, other]
                sure = " *" * (one["adjusted_p_value"] < 0.05)
                leads.append(minus(f"{one['difference']:+.3f} ({one['low']:+.3f} to {one['high']:+.3f}){sure}"))
            cells = (
                found.both(CHOICE, pair=f"replace: {words}", series=name, x=n) for name in ("Con", "NegCon", "Spread")
            )
            rows.append([words.partition(": ")[2], f"{n:g}", *cells, *leads])
    return table(["wrong captions", "pairs", "Con", "NegCon", "Spread", "Spread − Con", "Spread − NegCon"], rows)


BLOCKS = {
    "jam-context": Block(context, JOBS["jam-context"]),
    "jam-more-categories": Block(categories, JOBS["jam-more-towers"]),
    "jam-more-transfer": Block(transfer, JOBS["jam-more-transfer"]),
    "jam-more-controls": Block(controls, JOBS["jam-more-controls"]),
    "jam-more-reconstruction": Block(reconstruction, JOBS["jam-more-reconstruction"]),
    "jam-more-layers": Block(layers, JOBS["jam-more-layers"]),
    "jam-more-towers": Block(towers, JOBS["jam-more-towers"]),
}
