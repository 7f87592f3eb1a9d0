"""Reports: HTML pages about a map, its training, a certificate or a migration, with data separate from markup.

A ``render_…`` function returns one self-contained page: HTML without scripts and without references to anything outside
it, in which all text is escaped. ``write_page`` writes it to a file, atomically; only with ``force`` does it replace an
existing one, instead of raising OutputExistsError. Plots need matplotlib, of the extra ``plot``.
"""

from congruence.report.pages import read_migration, read_reembedding, render_certificate, render_migration, render_story
from congruence.report.pictures import write_layers, write_similarities
from congruence.report.rendering import write_page
from congruence.report.summary import render, summarize
from congruence.report.training import render_training, summarize_training

__all__ = [
    "read_migration",
    "read_reembedding",
    "render",
    "render_certificate",
    "render_migration",
    "render_story",
    "render_training",
    "summarize",
    "summarize_training",
    "write_layers",
    "write_page",
    "write_similarities",
]
