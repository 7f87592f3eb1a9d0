"""All measured numbers on the pages of README and docs: the functions that write them, and the records of their runs."""

from __future__ import annotations

from measured import (
    alignment,
    anchors,
    bridges,
    canonical,
    certificates,
    choice,
    engines,
    faults,
    frames,
    images,
    joint,
    joint_more,
    means,
    migrations,
    origins,
    pairing,
    performance,
    progressive,
    quick,
    records,
    samples,
    serving,
    spaces,
    speed,
    theorems,
    towers,
    training,
    unpaired,
)
from measured.blocks import DATA, PAGES, ROOT, Block, Job, blocks, loose_tables, replace, same
from measured.jobs import JOBS
from measured.sentences import SENTENCES

#: Blocks by name.
BLOCKS: dict[str, Block] = {
    **quick.BLOCKS,
    **canonical.BLOCKS,
    **spaces.BLOCKS,
    **theorems.BLOCKS,
    **training.BLOCKS,
    **choice.BLOCKS,
    **alignment.BLOCKS,
    **images.BLOCKS,
    **joint.BLOCKS,
    **joint_more.BLOCKS,
    **speed.BLOCKS,
    **performance.BLOCKS,
    **certificates.BLOCKS,
    **pairing.BLOCKS,
    **anchors.BLOCKS,
    **frames.BLOCKS,
    **means.BLOCKS,
    **faults.BLOCKS,
    **origins.BLOCKS,
    **serving.BLOCKS,
    **towers.BLOCKS,
    **unpaired.BLOCKS,
    **bridges.BLOCKS,
    **progressive.BLOCKS,
    **migrations.BLOCKS,
    **samples.BLOCKS,
    **engines.BLOCKS,
}

#: Tables outside of blocks, by page and first line, and why they contain no measurements.
REFERENCE: dict[tuple[str, str], str] = {
    ("docs/datasets.md", "| file | from | place below the root |"): "names of files",
    ("docs/encoders.md", "| adapter | in the tests | by hand |"): "versions of libraries and tolerances of tests",
    ("docs/jam.md", "| printed | here |"): "the paper's formulas",
    (
        "docs/means.md",
        "| what the images get | `recenter(images, offset=…)` | is right when |",
    ): "values of a parameter",
    ("docs/match.md", "| metric | paper (`jam`) | ours (`congruence`) |"): "sections of the paper",
    ("docs/pairing.md", "| `state` | what was found | `congruence fit` |"): "a threshold of the rule",
    ("docs/report.md", "| part | shows | needs |"): "the level of an interval",
    ("docs/reproducing.md", "| command | shows | paper | models | data |"): "sections of the paper",
    ("docs/reproducing.md", "| command | shows | paper's encoders |"): "names of models",
    ("docs/transport.md", "| | |"): "definitions and defaults",
}

__all__ = [
    "BLOCKS",
    "DATA",
    "JOBS",
    "PAGES",
    "REFERENCE",
    "ROOT",
    "SENTENCES",
    "Block",
    "Job",
    "blocks",
    "loose_tables",
    "records",
    "replace",
    "same",
]
