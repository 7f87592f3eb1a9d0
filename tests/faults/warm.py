"""Imported by the process from which commands are forked: a case costs what its command does, not what its first call in a process costs.

That is more than imports: templates are compiled and fonts are read when the first page and the first picture are made.
"""

from __future__ import annotations

import gc
import importlib

from congruence.cli import COMMANDS
from congruence.report.render import templates
from congruence.report.svg import draw_svg

MODULES = [
    # What libraries import when they are first called counts as well: typer and torch's optimizers took most of a case's time.
    *("torch", "torch._dynamo", "faiss", "lance", "scipy.optimize", "scipy.stats", "sklearn.cross_decomposition"),
    *("sklearn.metrics", "array_api_compat.numpy", "array_api_compat.torch", "safetensors.torch", "pyarrow.parquet"),
    *("jinja2", "yaml", "rich.console", "rich.live", "rich.progress", "rich.table", "typer._adapters"),
    *("congruence.train", "congruence.recipe", "congruence.report", "congruence.papers", "congruence.embed"),
    *("congruence.integrations.faiss", "congruence.negatives", "congruence.datasets"),
    *(f"congruence.upgrade.{name}" for name in ("bridge", "certify", "fit", "transform")),
    *("congruence.compare.layers", "congruence.compare.origins"),
    *(f"congruence.cli.{name}" for name in COMMANDS),
]

for name in MODULES:
    importlib.import_module(name)
for name in templates().list_templates(extensions=["html"]):
    templates().get_template(name)
draw_svg(lambda ax: ax.plot([0, 1], label="words"), "a picture")
# Pages of memory that the collector leaves alone stay shared with what is forked.
gc.collect()
gc.freeze()
