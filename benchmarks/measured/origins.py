"""Tables of docs/doctor.md and docs/mixed.md."""

from __future__ import annotations

from typing import Any

from measured.blocks import Block, table
from measured.jobs import JOBS


def origins(results: list[Any]) -> str:
    rows = []
    last = ""
    for line in results[0]["results"]["lines"]:
        shares = (f"{m:.3f} ± {e:.3f}" for m, e in zip(line["mean"], line["error"], strict=True))
        content = "–" if line["content"] is None else f"{line['content']:.3f}"
        name = f"{line['data']}, {line['rows']:,} rows"
        rows.append([name * (name != last), f"{line['n']:,}", *shares, content])
        last = name
    return table(
        [
            "store",
            "known rows per model",
            "correct model",
            "foreign rows found",
            "own rows called foreign",
            "own rows called foreign, other content",
        ],
        rows,
    )


#: Ways to search in the record, and their names in the table.
METHODS = {
    "old vectors only, bridged": "old vectors only, bridged",
    "new vectors only": "new vectors only",
    "mixed, as they are": "mixed, raw cosines",
    "mixed, standardized": "mixed, standardized",
    "mixed, standardized by paired items": "mixed, standardized by paired items",
}


def mixed(results: list[Any]) -> str:
    found: dict[tuple[str, bool], dict[str, list[str]]] = {}
    for line in results[0]["results"]["lines"]:
        cells = [f"{line['mean'][0]:.3f} ± {line['error'][0]:.3f}", *(f"{value:.3f}" for value in line["mean"][1:3])]
        found.setdefault((line["data"], line["topic"]), {})[line["way"]] = cells
    rows = []
    for (data, topic), methods in found.items():
        for k, (method, cells) in enumerate(methods.items()):
            if method != "new vectors only" or not data.startswith(
                ("openai", "eva")
            ):  # on LVIS, this is the ground truth
                rows.append(
                    [f"{data}, halves {'by topic' if topic else 'at random'}" * (k == 0), METHODS[method], *cells]
                )
    return table(["index", "method", "found", "found, new half", "found, old half"], rows)


BLOCKS = {"origins": Block(origins, JOBS["origins"]), "mixed-search": Block(mixed, JOBS["mixed-search"])}
