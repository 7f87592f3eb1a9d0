"""Table of docs/doctor.md."""

from __future__ import annotations

from typing import Any

from measured.blocks import Block, table
from measured.jobs import JOBS


def origins(results: list[Any]) -> str:
    rows = []
    last = ""
    for line in results[0]["results"]["lines"]:
        right, found, wrong = (f"{m:.3f} ± {e:.3f}" for m, e in zip(line["mean"], line["error"], strict=True))
        content = "–" if line["content"] is None else f"{line['content']:.3f}"
        name = f"{line['data']}, {line['rows']:,} rows"
        rows.append([name * (name != last), f"{line['n']:,}", right, found, wrong, content])
        last = name
    return table(
        [
            "store",
            "known rows of each",
            "right model",
            "foreign rows found",
            "own rows called foreign",
            "the same, other content",
        ],
        rows,
    )


BLOCKS = {"origins": Block(origins, JOBS["origins"])}
